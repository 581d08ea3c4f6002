//! The vault's whole trait: what it keeps itself, and the comparisons and restores of the rooms beside.

use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use super::super::{Vault, no_right};
use super::{BtrfsVault, StateRoot};
use crate::engine::changes::{Tree, changes};
use crate::engine::restore::check::differences;
use crate::engine::restore::{denied, restore};
use crate::engine::{
    Change, Checkpoint, CheckpointId, Content, Difference, EngineError, Entry, NewCheckpoint, Reader,
    Restored, Result, Selection, State, ioctl, space, subvolume,
};
use crate::progress::Progress;

pub(super) fn tree(state: &StateRoot) -> Tree<'_> {
    Tree {
        root: state.fd(),
        made: Some(state.made()),
    }
}

impl Vault for BtrfsVault {
    fn kind(&self) -> &'static str {
        "btrfs"
    }

    fn checkpoint(&self, new: &NewCheckpoint) -> Result<Checkpoint> {
        Self::checkpoint(self, new)
    }

    fn checkpoints(&self) -> Result<Vec<Checkpoint>> {
        Self::checkpoints(self)
    }

    fn label(&self, id: &CheckpointId, label: &str) -> Result<()> {
        Self::label(self, id, label)
    }

    fn pin(&self, id: &CheckpointId, pinned: bool) -> Result<()> {
        Self::pin(self, id, pinned)
    }

    fn mark_late(&self, id: &CheckpointId, paths: u64) -> Result<()> {
        Self::mark_late(self, id, paths)
    }

    fn guard(&self) -> Result<()> {
        Self::guard(self)
    }

    fn used(&self) -> Result<u64> {
        let path = self.sandbox().path();
        space::settle(self.live_fd(), path)?;
        Ok(space::of(self.live_fd(), path)?.used)
    }

    fn new_data(&self) -> Result<Vec<(CheckpointId, u64)>> {
        Self::new_data(self)
    }

    fn sweep(&self) -> Result<()> {
        Self::sweep(self).map(drop)
    }

    fn not_covered(&self) -> Result<Vec<PathBuf>> {
        let nested = subvolume::nested(self.live_fd())
            .map_err(EngineError::io("look for subvolumes in", self.sandbox().path()))?;
        let inside = |n: subvolume::Nested| n.path.strip_prefix(&self.inner).ok().map(Path::to_owned);
        let mut paths: Vec<PathBuf> = nested.into_iter().filter_map(inside).collect();
        paths.sort();
        Ok(paths)
    }

    fn remove(&self, ids: &[CheckpointId], progress: &dyn Progress) -> Result<()> {
        Self::remove(self, ids, progress)
    }

    fn changes(&self, a: &State, b: &State, times: bool, progress: &dyn Progress) -> Result<Vec<Change>> {
        let (a, b) = (self.open_state(a)?, self.open_state(b)?);
        changes(&tree(&a), &tree(&b), times, self.part, progress)
    }

    fn untouched(&self, a: &CheckpointId, b: &CheckpointId, path: &Path) -> Result<bool> {
        Self::untouched(self, a, b, path)
    }

    fn read(&self, state: &State, path: &Path, limit: u64) -> Result<Content> {
        Self::read(self, state, path, limit)
    }

    fn entries(&self, state: &State, path: &Path) -> Result<Vec<Entry>> {
        Self::entries(self, state, path)
    }

    fn read_for(&self, reader: &Reader, state: &State, path: &Path, limit: u64) -> Result<Content> {
        Self::read_for(self, reader, state, path, limit)
    }

    fn entries_for(&self, reader: &Reader, state: &State, path: &Path) -> Result<Vec<Entry>> {
        Self::entries_for(self, reader, state, path)
    }

    fn restore(
        &self,
        from: &State,
        target: &CheckpointId,
        selection: &Selection,
        progress: &dyn Progress,
    ) -> Result<Restored> {
        let from = self.open_state(from)?;
        let target = self.open_state(&State::Checkpoint(target.clone()))?;
        if !rustix::process::geteuid().is_root()
            && let Some(first) = denied(&tree(&from), &tree(&target), selection, progress)?.first()
        {
            return Err(no_right(first));
        }
        let live = self.part_fd()?;
        let restored = restore(live.as_fd(), &tree(&from), &tree(&target), selection, progress)?;
        ioctl::fs_sync(self.live_fd()).map_err(EngineError::io("sync", self.sandbox().path()))?;
        Ok(restored)
    }

    fn denied(
        &self,
        target: &CheckpointId,
        selection: &Selection,
        progress: &dyn Progress,
    ) -> Result<Vec<Difference>> {
        if rustix::process::geteuid().is_root() {
            return Ok(Vec::new());
        }
        let now = self.open_state(&State::Now)?;
        let target = self.open_state(&State::Checkpoint(target.clone()))?;
        denied(&tree(&now), &tree(&target), selection, progress)
    }

    fn verify(
        &self,
        target: &CheckpointId,
        selection: &Selection,
        progress: &dyn Progress,
    ) -> Result<Vec<Difference>> {
        let now = self.open_state(&State::Now)?;
        let target = self.open_state(&State::Checkpoint(target.clone()))?;
        differences(&tree(&now), &tree(&target), selection, self.trust(), progress)
    }

    fn warm(&self) -> Result<()> {
        Self::warm(self)
    }
}
