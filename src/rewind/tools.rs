//! What a writing operation on an opened sandbox needs, put together.

use super::error::Result;
use super::journal::Log;
use super::recover::Recovered;
use super::run::{Ground, Order};
use super::{OperationKind, Outcome, undo};
use crate::progress::Progress;
use crate::sandbox::freeze::StopHolders;
use crate::sandbox::site::Site;

/// The log of a sandbox and how its writers are stopped: what a [`Ground`] borrows.
pub struct Tools<'a> {
    site: &'a Site,
    /// The operation log.
    pub log: Log,
    freeze: StopHolders,
}

impl<'a> Tools<'a> {
    /// Of this sandbox.
    pub fn of(site: &'a Site) -> Result<Self> {
        Ok(Self {
            site,
            log: Log::open(site.dir())?,
            freeze: site.freezer(),
        })
    }

    /// The ground of a rewind.
    pub fn ground(&self) -> Ground<'_> {
        Ground {
            vault: &self.site.vault,
            log: &self.log,
            freeze: &self.freeze,
            workspace: self.site.path(),
        }
    }

    /// What an interrupted rewind left, finished or rolled back.
    pub fn recover(&self, progress: &dyn Progress) -> Result<Option<Recovered>> {
        if self.log.interrupted()?.is_none() {
            return Ok(None);
        }
        let ground = self.ground();
        let lock = ground.lock()?;
        ground.recover(&lock, progress)
    }

    /// Does it, under the sandbox's lock.
    pub fn run(&self, order: &Order, progress: &dyn Progress) -> Result<Outcome> {
        let ground = self.ground();
        let lock = ground.lock()?;
        self.site.pool.guard_space()?;
        ground.run(&lock, order, progress)
    }

    /// What an undo or redo does.
    pub fn reversal(&self, kind: OperationKind, operation: Option<&str>) -> Result<Order> {
        match kind {
            OperationKind::Redo => undo::redo_order(&self.log, operation),
            _ => undo::undo_order(&self.log, operation),
        }
    }
}
