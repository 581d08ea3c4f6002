//! Putting a checkpoint in the place of a live subvolume that nobody uses: a writable snapshot of it beside, and an
//! atomic exchange of the two names.

use std::ffi::OsStr;
use std::os::fd::AsFd;

use nix::libc;
use rustix::fs::RenameFlags;

use super::super::super::restore::check::{Trust, differences};
use super::super::super::subvolume::{self, open_dir};
use super::super::super::{CheckpointId, Difference, EngineError, Result, Selection, State, ioctl};
use super::BtrfsVault;
use super::whole::tree;
use crate::engine::changes::Tree;
use crate::process::fault_point;
use crate::progress::Progress;

impl BtrfsVault {
    /// Exchanges the live subvolume, which is `name` in the folder `parent`, for a writable snapshot of a checkpoint.
    /// The old one is `beside` afterwards; what is there before is removed. This vault shows the old one from then on.
    pub fn exchange(
        &self,
        target: &CheckpointId,
        parent: impl AsFd,
        name: &OsStr,
        beside: &str,
    ) -> Result<()> {
        let err = |what| EngineError::io(what, name);
        let state = self.open_state(&State::Checkpoint(target.clone()))?;
        Self::remove_beside(parent.as_fd(), beside)?;
        ioctl::snap_create(state.fd(), parent.as_fd(), beside.as_bytes(), false)
            .map_err(err("take a writable snapshot for"))?;
        fault_point("swap-made");
        let flags = RenameFlags::EXCHANGE;
        rustix::fs::renameat_with(parent.as_fd(), name, parent.as_fd(), beside, flags)
            .map_err(|e| err("exchange")(e.into()))?;
        fault_point("swap-exchanged");
        ioctl::fs_sync(parent).map_err(err("sync"))
    }

    /// Removes the subvolume `beside` of a folder, if there is one.
    pub fn remove_beside(parent: impl AsFd, beside: &str) -> Result<()> {
        match open_dir(parent.as_fd(), beside) {
            Err(e) if e.raw_os_error() == Some(libc::ENOENT) => return Ok(()),
            Err(e) => return Err(EngineError::io("open", beside)(e)),
            Ok(_) => {}
        }
        subvolume::destroy(parent, beside).map_err(EngineError::io("remove", beside))
    }

    /// True if the kernel vouches that the live subvolume equals a checkpoint: it is a snapshot of that one's, and
    /// nothing was written to it in any transaction after the one that made it. (Making a snapshot ends a transaction.)
    pub fn is_pristine(&self, target: &CheckpointId) -> Result<bool> {
        let err = || EngineError::io("look at", self.sandbox.path());
        if !self.inner.as_os_str().is_empty() {
            return Ok(false);
        }
        let state = self.open_state(&State::Checkpoint(target.clone()))?;
        let kept = subvolume::root_info(state.fd()).map_err(err())?;
        let live = subvolume::root_info(&self.live).map_err(err())?;
        Ok(match (kept, live) {
            (Some(kept), Some(live)) => live.parent_uuid == kept.uuid && live.generation <= live.otransid,
            _ => false,
        })
    }

    /// As [`crate::engine::vault::Vault::verify`] of all, of a live tree that nobody can write to: no snapshot of it is taken.
    pub fn verify_still(&self, target: &CheckpointId, progress: &dyn Progress) -> Result<Vec<Difference>> {
        let live = self.part_fd()?;
        let target = self.open_state(&State::Checkpoint(target.clone()))?;
        let now = Tree {
            root: live.as_fd(),
            made: None,
        };
        differences(&now, &tree(&target), &Selection::All, self.trust(), progress)
    }

    /// What the check takes for equal.
    pub(super) fn trust(&self) -> Trust {
        if self.inner.as_os_str().is_empty() {
            return Trust::Lineage;
        }
        // whiteouts have a name in the work folder of the overlay, too
        Trust::LineageShared
    }
}
