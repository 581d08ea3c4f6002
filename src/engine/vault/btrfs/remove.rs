//! Removing checkpoints, and what crashes left.

use rustix::fs::AtFlags;

use super::super::super::catalog::{lock_dir, names, read_xattr, reopen};
use super::super::super::subvolume::{self, open_dir, root_info};
use super::super::super::{CheckpointId, EngineError, Health, Result, ioctl, random_id};
use super::list::Name;
use super::state::remove_temp;
use super::{BtrfsVault, CHECKPOINT_XATTR, PATIENCE};
use crate::process::fault_point;
use crate::progress::Progress;
use crate::text;

/// What a sweep removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Swept {
    /// Directories of checkpoints whose snapshot was never made.
    pub unmade: u64,
    /// Snapshots of "now" left by killed processes.
    pub temporary: u64,
}

impl BtrfsVault {
    /// Removes checkpoints for good. Pinned ones are refused, and then none is removed. The space comes
    /// back in the background: see [`crate::engine::space::measure_freed`].
    pub fn remove(&self, ids: &[CheckpointId], progress: &dyn Progress) -> Result<()> {
        if ids.is_empty() {
            return Ok(());
        }
        let _lock = self.lock()?;
        let mut found = Vec::new();
        for id in ids {
            let (name, dir) = self.find(id)?;
            let path = self.snaps_path.join(name.text());
            let value =
                read_xattr(&dir, CHECKPOINT_XATTR).map_err(EngineError::io("read the record of", &path))?;
            if name.parse(value.as_deref()).is_ok_and(|m| m.pinned) {
                return Err(EngineError::Refused {
                    why: format!("checkpoint {id} is pinned"),
                    path: None,
                    hint: Some(format!("respool unpin {id}")),
                });
            }
            found.push((name, dir));
        }
        let total = found.len() as u64;
        let mut outcome = Ok(());
        for (done, (name, dir)) in found.into_iter().enumerate() {
            progress.step("removing checkpoints", done as u64, total);
            outcome = if progress.cancelled() {
                Err(EngineError::Cancelled)
            } else {
                self.remove_one(&name, &dir)
            };
            if outcome.is_err() {
                break;
            }
        }
        // one commit for all of them
        ioctl::fs_sync(&self.snaps).map_err(EngineError::io("sync", &self.snaps_path))?;
        progress.step("removing checkpoints", total, total);
        outcome
    }

    /// Removes the snapshots of one checkpoint, then its directory. What is there and no read-only snapshot
    /// is never removed.
    fn remove_one(&self, name: &Name, dir: &std::os::fd::OwnedFd) -> Result<()> {
        let path = self.snaps_path.join(name.text());
        let listed = reopen(dir).map_err(EngineError::io("open", &path))?;
        for part in names(&listed, &path)? {
            let part = String::from_utf8_lossy(&part).into_owned();
            let one = path.join(&part);
            let root = open_dir(dir, &part).map_err(EngineError::io("open", &one))?;
            let info = root_info(&root).map_err(EngineError::io("look at", &one))?;
            drop(root);
            if !info.is_some_and(|i| i.read_only) {
                return Err(EngineError::Damaged {
                    what: format!(
                        "{} in checkpoint {} is no read-only snapshot",
                        text::shown(&part),
                        name.id
                    ),
                    path: one,
                });
            }
            if rustix::process::geteuid().is_root() {
                subvolume::destroy(dir, &part).map_err(EngineError::io("remove the snapshot", &one))?;
            }
        }
        if !rustix::process::geteuid().is_root() {
            return self.remove_moved(name, &path);
        }
        rustix::fs::unlinkat(&self.snaps, name.text().as_str(), AtFlags::REMOVEDIR)
            .map_err(|e| EngineError::io("remove the checkpoint", &path)(e.into()))
    }

    /// As a user a snapshot is emptied file by file: that is done out of the way, where what is half removed is
    /// never taken for a checkpoint, and the next sweep finishes it.
    fn remove_moved(&self, name: &Name, path: &std::path::Path) -> Result<()> {
        let tmp = self.sandbox.path().join("tmp");
        let parent = self.sandbox.folder("tmp")?;
        let again = reopen(&parent).map_err(EngineError::io("open", &tmp))?;
        let lock = lock_dir(again, &tmp, PATIENCE)?;
        let moved = random_id(&std::process::id().to_string());
        rustix::fs::renameat(&self.snaps, name.text().as_str(), &parent, moved.as_str())
            .map_err(|e| EngineError::io("remove the checkpoint", path)(e.into()))?;
        fault_point("checkpoint-moved");
        let one = tmp.join(&moved);
        let dir = open_dir(&parent, &moved).map_err(EngineError::io("open", &one))?;
        let dir = lock_dir(dir, &one, PATIENCE)?;
        drop(lock);
        remove_temp(&parent, &dir, &moved).map_err(EngineError::io("remove the snapshot", &one))
    }

    /// Removes what crashes left: directories of checkpoints that have no snapshot (nobody is making one:
    /// this holds the lock), and snapshots of "now" that no process uses.
    pub fn sweep(&self) -> Result<Swept> {
        let mut swept = Swept::default();
        let lock = self.lock()?;
        for name in self.names()? {
            let Some(dir) = self.open_checkpoint(&name)? else {
                continue;
            };
            let path = self.snaps_path.join(name.text());
            let listed = reopen(&dir).map_err(EngineError::io("open", &path))?;
            let incomplete = matches!(self.examine(&name, &dir)?.health, Health::Incomplete(_));
            if incomplete && names(&listed, &path)?.is_empty() {
                rustix::fs::unlinkat(&self.snaps, name.text().as_str(), AtFlags::REMOVEDIR)
                    .map_err(|e| EngineError::io("remove", &path)(e.into()))?;
                swept.unmade += 1;
            }
        }
        drop(lock);
        let path = self.sandbox.path().join("tmp");
        let parent = self.sandbox.folder("tmp")?;
        let _lock = lock_dir(parent, &path, PATIENCE)?;
        swept.temporary = self.sweep_temp()?;
        Ok(swept)
    }
}
