//! What keeps the checkpoints of a part: the trait, and the vaults.

pub mod btrfs;
pub mod copy;
pub mod memory;

use std::path::{Path, PathBuf};

use super::{
    Change, Checkpoint, CheckpointId, Content, Difference, EngineError, Entry, NewCheckpoint, Reader,
    Restored, Result, Selection, State,
};
use crate::progress::Progress;

pub use btrfs::{BtrfsVault, StateRoot};
pub use copy::CopyVault;
pub use memory::MemoryVault;

/// The error for what a process has no right to bring back.
fn no_right(first: &Difference) -> EngineError {
    EngineError::Refused {
        why: format!(
            "{} cannot be brought back: {}",
            crate::text::shown_path(&first.path),
            first.what
        ),
        path: Some(first.path.clone()),
        hint: Some("run it as root, or go back to other paths only: --path PATH".into()),
    }
}

/// Keeps the checkpoints of one part of one sandbox. All paths are relative to the part's root. The real
/// one is on Btrfs; the fake in memory behaves the same for everything above the engine.
pub trait Vault: Send + Sync {
    /// `btrfs`, `copy` or `memory`.
    fn kind(&self) -> &'static str;
    /// Takes a checkpoint of the present state. Durable when it returns.
    fn checkpoint(&self, new: &NewCheckpoint) -> Result<Checkpoint>;
    /// All checkpoints, oldest first by sequence, damaged and incomplete ones included.
    fn checkpoints(&self) -> Result<Vec<Checkpoint>>;
    /// Sets or clears (empty text) the label.
    fn label(&self, id: &CheckpointId, label: &str) -> Result<()>;
    /// Pins or unpins.
    fn pin(&self, id: &CheckpointId, pinned: bool) -> Result<()>;
    /// Records that so many paths may have changed before this checkpoint was taken.
    fn mark_late(&self, id: &CheckpointId, paths: u64) -> Result<()>;
    /// Asked before every writing action: an error if there is no room to do it safely.
    fn guard(&self) -> Result<()>;
    /// Bytes that the vault's store takes, after the space of what was removed has come back.
    fn used(&self) -> Result<u64>;
    /// Of each checkpoint, oldest first: bytes on disk of the data that the previous one has not. Empty where the
    /// vault cannot tell.
    fn new_data(&self) -> Result<Vec<(CheckpointId, u64)>> {
        Ok(Vec::new())
    }
    /// Removes what crashed processes left half made.
    fn sweep(&self) -> Result<()>;
    /// What lies in the part but is in no checkpoint, other than mounts; relative paths, sorted.
    fn not_covered(&self) -> Result<Vec<PathBuf>>;
    /// As [`Vault::not_covered`], as far as this checkpoint is concerned: what it left out.
    fn not_covered_by(&self, _id: &CheckpointId) -> Result<Vec<PathBuf>> {
        self.not_covered()
    }
    /// What of [`Vault::not_covered`] is so because the user's patterns leave it out.
    fn left_out(&self) -> Result<Vec<PathBuf>> {
        Ok(Vec::new())
    }
    /// Removes checkpoints for good. Pinned ones are refused.
    fn remove(&self, ids: &[CheckpointId], progress: &dyn Progress) -> Result<()>;
    /// What differs from `a` to `b`, sorted by path. With `times`, also paths whose modification time alone
    /// differs (folders never).
    fn changes(&self, a: &State, b: &State, times: bool, progress: &dyn Progress) -> Result<Vec<Change>>;
    /// The content of one path, at most `limit` bytes of a regular file. Links are not followed, nothing
    /// but regular files is opened.
    fn read(&self, state: &State, path: &Path, limit: u64) -> Result<Content>;
    /// The entries of one folder, sorted by name.
    fn entries(&self, state: &State, path: &Path) -> Result<Vec<Entry>>;
    /// As [`Vault::read`], for another user: refused where the permission bits of the file, or of a folder
    /// above it, would not let that user read it. Checked on what is then read.
    fn read_for(&self, reader: &Reader, state: &State, path: &Path, limit: u64) -> Result<Content>;
    /// As [`Vault::entries`], for another user.
    fn entries_for(&self, reader: &Reader, state: &State, path: &Path) -> Result<Vec<Entry>>;
    /// True if it is certain, without making a list, that nothing of this path differs between two checkpoints;
    /// false says nothing. (What lies below a folder is another path.)
    fn untouched(&self, _a: &CheckpointId, _b: &CheckpointId, _path: &Path) -> Result<bool> {
        Ok(false)
    }
    /// Makes the present state equal to `target` in place. `from` is the present state: a checkpoint taken
    /// after all writers were stopped, or [`State::Now`], of which a temporary one is taken then. Safe to
    /// run again after a kill, with `Now`.
    fn restore(
        &self,
        from: &State,
        target: &CheckpointId,
        selection: &Selection,
        progress: &dyn Progress,
    ) -> Result<Restored>;
    /// What of `target` this process has no right to bring back, at most 100.
    fn denied(
        &self,
        _target: &CheckpointId,
        _selection: &Selection,
        _progress: &dyn Progress,
    ) -> Result<Vec<Difference>> {
        Ok(Vec::new())
    }
    /// Compares the present state with `target` path by path, every attribute; shares no code path with
    /// the change list that `restore` uses. At most 100 differences.
    fn verify(
        &self,
        target: &CheckpointId,
        selection: &Selection,
        progress: &dyn Progress,
    ) -> Result<Vec<Difference>>;
    /// Starts writing dirty data out, so that a checkpoint soon after is quick.
    fn warm(&self) -> Result<()>;
}
