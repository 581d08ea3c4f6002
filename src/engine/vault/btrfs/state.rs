//! A state of the tree, opened: a checkpoint's snapshot, or a snapshot of "now" that goes away with its
//! user, also after a kill.

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use nix::libc;
use rustix::fs::{AtFlags, FlockOperation, Mode};

use super::super::super::catalog::{lock_dir, names, reopen};
use super::super::super::subvolume::{self, open_dir, root_info};
use super::super::super::{EngineError, Health, Result, State, ioctl, random_id};
use super::list::PARTS;
use super::{BtrfsVault, PATIENCE, part_name};
use crate::process::fault_point;

/// The snapshot in a temporary directory.
const TREE: &str = "tree";

/// The root of a read-only tree.
#[derive(Debug)]
pub struct StateRoot {
    // before `temp`: closed before the snapshot is removed
    root: OwnedFd,
    made: (i64, u32),
    _temp: Option<Temp>,
}

impl StateRoot {
    /// The root directory; everything below it is read-only.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.root.as_fd()
    }
    /// When the snapshot was made: seconds and nanoseconds since 1970.
    pub fn made(&self) -> (i64, u32) {
        self.made
    }
}

/// A snapshot of "now", removed on drop. Its directory is locked as long as it is used: one that is not
/// locked is what a killed process left.
#[derive(Debug)]
struct Temp {
    parent: OwnedFd,
    dir: File,
    name: String,
}

impl Drop for Temp {
    fn drop(&mut self) {
        if let Err(e) = remove_temp(&self.parent, &self.dir, &self.name) {
            tracing::warn!(
                "the temporary snapshot {} stays until the next comparison: {e}",
                self.name
            );
        }
    }
}

pub(super) fn remove_temp(parent: &OwnedFd, dir: &File, name: &str) -> std::io::Result<()> {
    // a checkpoint that a user removes is moved here first
    for tree in std::iter::once(TREE).chain(PARTS.map(part_name)) {
        match subvolume::destroy(dir, tree) {
            Ok(()) => {}
            Err(e) if e.raw_os_error() == Some(libc::ENOENT) => {}
            Err(e) => return Err(e),
        }
    }
    rustix::fs::unlinkat(parent, name, AtFlags::REMOVEDIR).map_err(Into::into)
}

impl BtrfsVault {
    /// Opens a state. "Now" is a temporary snapshot of the live tree; leftovers of killed processes are
    /// removed first.
    pub fn open_state(&self, state: &State) -> Result<StateRoot> {
        match state {
            State::Now => self.now(),
            State::Checkpoint(id) => {
                let (name, dir) = self.find(id)?;
                let found = self.examine(&name, &dir)?;
                match found.health {
                    Health::Ok => {}
                    Health::Incomplete(reason) | Health::Damaged(reason) => {
                        return Err(EngineError::DamagedCheckpoint {
                            id: id.to_string(),
                            reason,
                        });
                    }
                }
                let part = part_name(self.part);
                let path = self.snaps_path.join(name.text()).join(part);
                let root = open_dir(&dir, part).map_err(EngineError::io("open", &path))?;
                let inner = found.meta.inner.map(|p| p.0).unwrap_or_default();
                opened(root, None, &inner, &path)
            }
        }
    }

    fn now(&self) -> Result<StateRoot> {
        self.guard.room()?; // a snapshot that goes away again
        let parent = self.sandbox.folder("tmp")?;
        let path = self.sandbox.path().join("tmp");
        let again = reopen(&parent).map_err(EngineError::io("open", &path))?;
        let lock = lock_dir(again, &path, PATIENCE)?;
        self.sweep_temp()?;
        let name = random_id(&std::process::id().to_string());
        let path = path.join(&name);
        rustix::fs::mkdirat(&parent, name.as_str(), Mode::RWXU)
            .map_err(|e| EngineError::io("make", &path)(e.into()))?;
        let dir = open_dir(&parent, &name).map_err(EngineError::io("open", &path))?;
        let dir = lock_dir(dir, &path, PATIENCE)?;
        drop(lock);
        let temp = Temp { parent, dir, name };
        fault_point("now-made");
        ioctl::snap_create(&self.live, &temp.dir, TREE.as_bytes(), true)
            .map_err(EngineError::io("take the snapshot", &path))?;
        fault_point("now-taken");
        let root = open_dir(&temp.dir, TREE).map_err(EngineError::io("open", &path))?;
        opened(root, Some(temp), &self.inner, &path)
    }

    /// Removes the temporary snapshots that no process uses; how many. The caller holds the lock of `tmp`.
    pub(super) fn sweep_temp(&self) -> Result<u64> {
        let path = self.sandbox.path().join("tmp");
        let parent = self.sandbox.folder("tmp")?;
        let listed = reopen(&parent).map_err(EngineError::io("open", &path))?;
        let mut removed = 0;
        for name in names(&listed, &path)? {
            let Ok(name) = String::from_utf8(name) else {
                continue;
            };
            let one = path.join(&name);
            let dir = match open_dir(&parent, &name) {
                Ok(fd) => File::from(fd),
                // removed by its owner meanwhile; or no directory, so not ours
                Err(e) if matches!(e.raw_os_error(), Some(libc::ENOENT | libc::ENOTDIR | libc::ELOOP)) => {
                    continue;
                }
                Err(e) => return Err(EngineError::io("open", &one)(e)),
            };
            match rustix::fs::flock(&dir, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => {}
                Err(rustix::io::Errno::WOULDBLOCK) => continue,
                Err(e) => return Err(EngineError::io("lock", &one)(e.into())),
            }
            match remove_temp(&parent, &dir, &name) {
                Ok(()) => removed += 1,
                Err(e) if e.raw_os_error() == Some(libc::ENOENT) => {}
                Err(e) => return Err(EngineError::io("remove", &one)(e)),
            }
        }
        Ok(removed)
    }
}

fn opened(root: OwnedFd, temp: Option<Temp>, inner: &Path, path: &Path) -> Result<StateRoot> {
    let info = root_info(&root).map_err(EngineError::io("look at", path))?;
    match info {
        Some(info) if info.read_only => Ok(StateRoot {
            root: BtrfsVault::part_in(root, inner, path)?,
            made: info.otime,
            _temp: temp,
        }),
        _ => Err(EngineError::Damaged {
            what: "this is no read-only snapshot".into(),
            path: path.to_owned(),
        }),
    }
}
