//! The vault on Btrfs: a checkpoint is a read-only snapshot of the live subvolume, in its final place at
//! once, with its record set on its directory *before* the snapshot is made: the snapshot's own commit
//! makes both durable. A directory without a snapshot is what a crash left.

mod fresh;
pub(in crate::engine::vault) mod list;
pub(in crate::engine::vault) mod look;
mod remove;
mod state;
mod swap;
mod whole;

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use chrono::{DateTime, Utc};
use rustix::fs::{AtFlags, Mode, XattrFlags};

use super::super::catalog::{SandboxDir, lock_dir, read_xattr, reopen};
use super::super::pool::Pool;
use super::super::subvolume::{open_dir, root_info};
use super::super::{
    Checkpoint, CheckpointId, CheckpointMeta, EngineError, Health, NewCheckpoint, PartKind, Result, ioctl,
    space,
};
use crate::process::fault_point;

pub use list::records;
pub use remove::Swept;
pub use state::StateRoot;

/// The attribute of a checkpoint's directory.
pub const CHECKPOINT_XATTR: &str = "user.respool.checkpoint";
/// The longest record in bytes.
const MAX_RECORD: usize = 4096;
/// The longest label in characters.
const MAX_LABEL: usize = 200;
/// How long to wait for other processes that take checkpoints of the same sandbox.
pub(in crate::engine::vault) const PATIENCE: Duration = Duration::from_secs(30);

/// The name of a part's snapshot in a checkpoint's directory.
pub fn part_name(part: PartKind) -> &'static str {
    match part {
        PartKind::Workspace => "workspace",
        PartKind::Container => "container",
        PartKind::DockerVolume => "docker-volume",
        PartKind::Conversation => "conversation",
        PartKind::Docker => "docker",
    }
}

/// Keeps the checkpoints of the workspace of one sandbox.
#[derive(Debug)]
pub struct BtrfsVault {
    sandbox: SandboxDir,
    snaps: OwnedFd,
    snaps_path: PathBuf,
    live: OwnedFd,
    /// What it keeps.
    part: PartKind,
    /// Where in the live subvolume that is; empty: all of it.
    inner: PathBuf,
    guard: space::Guard,
}

impl BtrfsVault {
    /// Opens the vault of another part than the workspace, named `id`; made if it is not there. The part is the
    /// folder `inner` of the live subvolume, or all of it: what else is in that is kept too, but not looked at.
    pub fn open_part(pool: &Pool, id: &str, live: OwnedFd, inner: &Path, part: PartKind) -> Result<Self> {
        let sandbox = SandboxDir::make_part(pool, id)?;
        Ok(Self {
            part,
            inner: inner.to_owned(),
            ..Self::at(pool, sandbox, live)?
        })
    }

    /// Opens the vault of a sandbox. `live` is the root of its live subvolume; the caller has checked that
    /// it is the one that the sandbox's record names.
    pub fn open(pool: &Pool, sandbox: &str, live: OwnedFd) -> Result<Self> {
        Self::at(pool, SandboxDir::open(pool, sandbox)?, live)
    }

    fn at(pool: &Pool, sandbox: SandboxDir, live: OwnedFd) -> Result<Self> {
        let snaps_path = sandbox.path().join("snaps");
        let snaps = sandbox.folder("snaps")?;
        let info = root_info(&live).map_err(EngineError::io("look at the live tree of", sandbox.path()))?;
        if info.is_none_or(|i| i.read_only) {
            return Err(EngineError::NotManaged {
                path: sandbox
                    .record()
                    .map_or_else(|_| sandbox.path().to_owned(), |r| r.path),
            });
        }
        Ok(Self {
            sandbox,
            snaps,
            snaps_path,
            live,
            part: PartKind::Workspace,
            inner: PathBuf::new(),
            guard: pool.guard()?,
        })
    }

    /// The root of the part in the live subvolume.
    fn part_fd(&self) -> Result<OwnedFd> {
        open_dir(&self.live, &self.inner).map_err(EngineError::io("open", &self.inner))
    }

    /// The part in a snapshot.
    fn part_in(snapshot: OwnedFd, inner: &Path, path: &Path) -> Result<OwnedFd> {
        if inner.as_os_str().is_empty() {
            return Ok(snapshot);
        }
        open_dir(&snapshot, inner).map_err(EngineError::io("open", path.join(inner)))
    }

    /// The sandbox's directory.
    pub fn sandbox(&self) -> &SandboxDir {
        &self.sandbox
    }

    /// The root of the live subvolume.
    pub fn live_fd(&self) -> BorrowedFd<'_> {
        self.live.as_fd()
    }

    /// Starts writing dirty data out, so that a checkpoint soon after is quick.
    pub fn warm(&self) -> Result<()> {
        ioctl::start_sync(&self.live).map_err(EngineError::io("start a sync of", self.sandbox.path()))
    }

    /// An error if there is no room to write safely.
    pub fn guard(&self) -> Result<()> {
        self.guard.check()
    }

    /// The right to add and remove checkpoints of this sandbox; ends with the value.
    fn lock(&self) -> Result<File> {
        let again = reopen(&self.snaps).map_err(EngineError::io("open", &self.snaps_path))?;
        lock_dir(again, &self.snaps_path, PATIENCE)
    }

    /// Takes a checkpoint of the present state; durable when it returns.
    pub fn checkpoint(&self, new: &NewCheckpoint) -> Result<Checkpoint> {
        self.checkpoint_at(new, Utc::now())
    }

    /// As [`BtrfsVault::checkpoint`], with the clock given.
    pub fn checkpoint_at(&self, new: &NewCheckpoint, time: DateTime<Utc>) -> Result<Checkpoint> {
        self.guard.check()?;
        self.take(new, time)
    }

    /// The checkpoint from which the folder is given back: taken even where the image was deleted.
    pub fn last_checkpoint(&self, new: &NewCheckpoint) -> Result<Checkpoint> {
        self.room()?;
        self.take(new, Utc::now())
    }

    /// An error if there is no room to give the folder back.
    pub fn room(&self) -> Result<()> {
        self.guard.room()
    }

    fn take(&self, new: &NewCheckpoint, time: DateTime<Utc>) -> Result<Checkpoint> {
        // held until the snapshot is made: the order of the sequence is that of the states
        let _lock = self.lock()?;
        let last = self.last()?;
        let mut meta = new_meta(new, last.map(|(name, time)| (name.seq, time)), time);
        if self.part != PartKind::Workspace {
            meta.parts = vec![self.part];
        }
        if !self.inner.as_os_str().is_empty() {
            meta.inner = Some(crate::text::ExactPath(self.inner.clone()));
        }
        let json = record_bytes(&meta, &self.snaps_path)?;
        let name = list::Name::of(&meta).text();
        let path = self.snaps_path.join(&name);
        rustix::fs::mkdirat(&self.snaps, name.as_str(), Mode::RWXU)
            .map_err(|e| EngineError::io("make the checkpoint", &path)(e.into()))?;
        fault_point("checkpoint-made");
        if let Err(e) = self.fill(&name, &path, &json) {
            // without a snapshot in it, it is not one; if it cannot be removed either, it is listed so
            let removed = rustix::fs::unlinkat(&self.snaps, name.as_str(), AtFlags::REMOVEDIR);
            tracing::debug!(?removed, "took back the directory of a failed checkpoint");
            return Err(e);
        }
        Ok(Checkpoint {
            meta,
            health: Health::Ok,
        })
    }

    /// The record, then the snapshot: in this order.
    fn fill(&self, name: &str, path: &Path, json: &[u8]) -> Result<()> {
        let dir = open_dir(&self.snaps, name).map_err(EngineError::io("open", path))?;
        rustix::fs::fsetxattr(&dir, CHECKPOINT_XATTR, json, XattrFlags::CREATE)
            .map_err(|e| EngineError::io("write the record of", path)(e.into()))?;
        fault_point("checkpoint-recorded");
        ioctl::snap_create(&self.live, &dir, part_name(self.part).as_bytes(), true)
            .map_err(EngineError::io("take the snapshot", path))?;
        fault_point("checkpoint-taken");
        Ok(())
    }

    /// Sets or clears (empty text) the label; durable when it returns.
    pub fn label(&self, id: &CheckpointId, label: &str) -> Result<()> {
        self.change(id, |meta| meta.label = short_label(label))
    }

    /// Pins or unpins; durable when it returns.
    pub fn pin(&self, id: &CheckpointId, pinned: bool) -> Result<()> {
        self.change(id, |meta| meta.pinned = pinned)
    }

    /// Records that so many paths may have changed before it was taken; durable when it returns.
    pub fn mark_late(&self, id: &CheckpointId, paths: u64) -> Result<()> {
        self.change(id, |meta| meta.late = Some(paths))
    }

    fn change(&self, id: &CheckpointId, edit: impl FnOnce(&mut CheckpointMeta)) -> Result<()> {
        self.guard.check()?;
        let _lock = self.lock()?;
        let (name, dir) = self.find(id)?;
        let path = self.snaps_path.join(name.text());
        let value =
            read_xattr(&dir, CHECKPOINT_XATTR).map_err(EngineError::io("read the record of", &path))?;
        let mut meta = name
            .parse(value.as_deref())
            .map_err(|reason| EngineError::DamagedCheckpoint {
                id: id.to_string(),
                reason,
            })?;
        edit(&mut meta);
        let json = record_bytes(&meta, &path)?;
        rustix::fs::fsetxattr(&dir, CHECKPOINT_XATTR, &json, XattrFlags::REPLACE)
            .map_err(|e| EngineError::io("write the record of", &path)(e.into()))?;
        ioctl::fs_sync(&dir).map_err(EngineError::io("sync", &path))
    }
}

/// The record of a new checkpoint that follows `last` (sequence, time if known).
pub(in crate::engine::vault) fn new_meta(
    new: &NewCheckpoint,
    last: Option<(u64, Option<DateTime<Utc>>)>,
    time: DateTime<Utc>,
) -> CheckpointMeta {
    let kept = new.elsewhere.iter().filter(|e| e.missing.is_none());
    let mut parts = vec![PartKind::Workspace];
    for part in kept.map(|e| e.kind) {
        if !parts.contains(&part) {
            parts.push(part);
        }
    }
    CheckpointMeta {
        v: 1,
        id: new.id.clone().unwrap_or_else(CheckpointId::random),
        seq: last.map_or(1, |(seq, _)| seq + 1),
        kind: new.kind,
        time,
        parts,
        how: new.how,
        conversation: new.conversation.clone(),
        message: new.message.clone(),
        text_hash: new.text_hash.clone(),
        label: new.label.as_deref().and_then(short_label),
        pinned: false,
        late: new.late,
        operation: new.operation.clone(),
        clock_back: last.and_then(|(_, t)| t).is_some_and(|before| time < before),
        elsewhere: new.elsewhere.clone(),
        inner: None,
        pause_ms: None,
    }
}

/// The label as it is kept; `None` if nothing is left of it.
pub(in crate::engine::vault) fn short_label(label: &str) -> Option<String> {
    let short: String = label.trim().chars().take(MAX_LABEL).collect();
    (!short.is_empty()).then_some(short)
}

/// The record's bytes; refused if they would not be small.
pub(in crate::engine::vault) fn record_bytes(meta: &CheckpointMeta, path: &Path) -> Result<Vec<u8>> {
    let json =
        serde_json::to_vec(meta).map_err(|e| EngineError::io("write the record of", path)(e.into()))?;
    if json.len() <= MAX_RECORD {
        return Ok(json);
    }
    Err(EngineError::Refused {
        why: format!(
            "the record of the checkpoint would take {} bytes, {MAX_RECORD} at most",
            json.len()
        ),
        path: Some(path.to_owned()),
        hint: Some("an id of the conversation or of the message is far too long".into()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::{CheckpointKind, How};

    #[test]
    fn labels_are_short_and_never_empty() {
        assert_eq!(short_label("  "), None);
        assert_eq!(short_label(" a b "), Some("a b".into()));
        assert_eq!(
            short_label(&"é".repeat(500)).map(|l| l.chars().count()),
            Some(MAX_LABEL)
        );
    }

    #[test]
    fn a_huge_record_is_refused() {
        let new = NewCheckpoint::of(CheckpointKind::Manual, How::Own);
        let mut meta = CheckpointMeta {
            v: 1,
            id: CheckpointId::random(),
            seq: 1,
            kind: new.kind,
            time: Utc::now(),
            parts: vec![PartKind::Workspace],
            how: new.how,
            conversation: None,
            message: Some("x".repeat(100)),
            text_hash: None,
            label: None,
            pinned: false,
            late: None,
            operation: None,
            clock_back: false,
            elsewhere: Vec::new(),
            inner: None,
            pause_ms: None,
        };
        assert!(record_bytes(&meta, Path::new("p")).is_ok());
        meta.message = Some("x".repeat(5000));
        assert!(record_bytes(&meta, Path::new("p")).is_err());
    }
}
