//! What a writing operation on an opened sandbox needs, put together.

use super::error::{Result, RewindError};
use super::journal::Log;
use super::recover::Recovered;
use super::run::{Ground, Order};
use super::{OperationKind, OperationState, Outcome, undo};
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
            vault: &*self.site.vault,
            log: &self.log,
            freeze: &self.freeze,
            workspace: self.site.path(),
        }
    }

    /// What an interrupted rewind left, finished or rolled back.
    pub fn recover(&self, progress: &dyn Progress) -> Result<Option<Recovered>> {
        use OperationKind::{Track, Untrack};
        // those of adoption are recovered from the catalog, as the workspace may not be there
        if self
            .log
            .interrupted()?
            .is_none_or(|r| matches!(r.kind, Track | Untrack))
        {
            return Ok(None);
        }
        let ground = self.ground();
        let lock = ground.lock()?;
        let recovered = ground.recover(&lock, progress)?;
        self.site.vault.sweep()?;
        Ok(recovered)
    }

    /// Does it, under the sandbox's lock.
    pub fn run(&self, order: &Order, progress: &dyn Progress) -> Result<Outcome> {
        let ground = self.ground();
        self.site.vault.guard()?;
        let lock = ground.lock()?;
        self.still_fits(order)?;
        ground.run(&lock, order, progress)
    }

    /// While the lock was waited for, another process may have been killed, or may have taken back the same
    /// operation.
    fn still_fits(&self, order: &Order) -> Result<()> {
        self.log.none_interrupted()?;
        let Some(of) = &order.of else { return Ok(()) };
        let records = self.log.records()?;
        if records
            .iter()
            .any(|r| r.id == *of && r.state == OperationState::Done)
        {
            return Ok(());
        }
        Err(RewindError::Refused {
            why: format!("operation {of} was taken back meanwhile"),
            path: None,
            hint: Some("respool log shows what stands".into()),
        })
    }

    /// What an undo or redo does.
    pub fn reversal(&self, kind: OperationKind, operation: Option<&str>) -> Result<Order> {
        match kind {
            OperationKind::Redo => undo::redo_order(&self.log, operation),
            _ => undo::undo_order(&self.log, operation),
        }
    }
}
