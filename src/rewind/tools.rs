//! What a writing operation on an opened sandbox needs, put together. Where the sandbox is behind the service, the
//! same is done there.

use serde::de::DeserializeOwned;

use super::error::{Result, RewindError};
use super::journal::{Log, Record};
use super::recover::{How, Recovered};
use super::remote::Operate;
use super::run::{Ground, Order};
use super::{OperationKind, OperationState, Outcome, both, undo};
use crate::chat::{self, Access, Hand, Talk};
use crate::engine::{Checkpoint, NewCheckpoint};
use crate::process::fault_point;
use crate::progress::{Progress, Silent};
use crate::sandbox::freeze::StopHolders;
use crate::sandbox::remote::{Ask, Remote, typed};
use crate::sandbox::site::Site;

/// The log of a sandbox and how its writers are stopped: what a [`Ground`] borrows.
pub struct Tools<'a> {
    site: &'a Site,
    at: At<'a>,
}

enum At<'a> {
    Here { log: Log, freeze: StopHolders },
    There(&'a Remote),
}

fn far<T: DeserializeOwned>(remote: &Remote, ask: &Operate, progress: &dyn Progress) -> Result<T> {
    let ask = serde_json::to_value(ask)
        .map_err(|e| RewindError::NoOperation(format!("the question cannot be written: {e}")))?;
    Ok(typed(remote.ask(Ask::Operate(ask), progress)?)?)
}

/// In whose name the conversation of a sandbox is touched: its owner's.
pub fn hand(site: &Site) -> Hand {
    Hand {
        uid: site.record.uid,
        gid: site.record.gid,
    }
}

impl<'a> Tools<'a> {
    /// Of this sandbox.
    pub fn of(site: &'a Site) -> Result<Self> {
        let at = match site.remote() {
            Some(remote) => At::There(remote),
            None => At::Here {
                log: Log::open(site.dir()?)?,
                freeze: site.freezer()?,
            },
        };
        Ok(Self { site, at })
    }

    fn ground<'b>(&'b self, log: &'b Log, freeze: &'b StopHolders) -> Ground<'b> {
        Ground {
            vault: &*self.site.vault,
            log,
            freeze,
            workspace: self.site.path(),
        }
    }

    /// The entries of the log, oldest first.
    pub fn records(&self) -> Result<Vec<Record>> {
        match &self.at {
            At::Here { log, .. } => log.records(),
            At::There(remote) => far(remote, &Operate::Records, &Silent),
        }
    }

    /// What of the log cannot be read, one line each.
    pub fn damaged(&self) -> Result<Vec<String>> {
        match &self.at {
            At::Here { log, .. } => Ok(log.damaged()?.iter().map(ToString::to_string).collect()),
            At::There(remote) => far(remote, &Operate::Damaged, &Silent),
        }
    }

    /// True while somebody changes the sandbox.
    pub fn busy(&self) -> Result<bool> {
        match &self.at {
            At::Here { log, .. } => Ok(log.busy()),
            At::There(remote) => far(remote, &Operate::Busy, &Silent),
        }
    }

    /// Takes a checkpoint on the user's demand. What a crash left was recovered before.
    pub fn checkpoint(&self, new: &NewCheckpoint) -> Result<Checkpoint> {
        let (log, freeze) = match &self.at {
            At::Here { log, freeze } => (log, freeze),
            At::There(remote) => return far(remote, &Operate::Checkpoint(new.clone()), &Silent),
        };
        self.site.vault.guard()?;
        let _lock = self.ground(log, freeze).lock()?;
        log.none_interrupted()?;
        Ok(self.site.checkpoint(new)?)
    }

    /// What an interrupted rewind left, finished or rolled back.
    pub fn recover(&self, progress: &dyn Progress) -> Result<Option<Recovered>> {
        use OperationKind::{Track, Untrack};
        let (log, freeze) = match &self.at {
            At::Here { log, freeze } => (log, freeze),
            At::There(remote) => return far(remote, &Operate::Recover, progress),
        };
        // those of adoption are recovered from the catalog, as the workspace may not be there
        if log
            .interrupted()?
            .is_none_or(|r| matches!(r.kind, Track | Untrack))
        {
            return Ok(None);
        }
        let ground = self.ground(log, freeze);
        wait_told(log, progress);
        let lock = ground.lock()?;
        let recovered = ground.recover(&lock, progress)?;
        self.site.vault.sweep()?;
        Ok(recovered)
    }

    /// Does it, under the sandbox's lock.
    pub fn run(&self, order: &Order, progress: &dyn Progress) -> Result<Outcome> {
        let (log, freeze) = match &self.at {
            At::Here { log, freeze } => (log, freeze),
            At::There(remote) => return far(remote, &Operate::Run(order.clone()), progress),
        };
        let ground = self.ground(log, freeze);
        self.site.vault.guard()?;
        wait_told(log, progress);
        let lock = ground.lock()?;
        still_fits(log, order)?;
        ground.run(&lock, order, progress)
    }

    /// As [`Tools::run`], with the conversation: all or nothing. Without one the files alone.
    pub fn run_with(&self, order: &Order, talk: Option<&Talk>, progress: &dyn Progress) -> Result<Outcome> {
        let Some(talk) = talk else {
            return self.run(order, progress);
        };
        let prepared = chat::prepare(talk, progress)?;
        let done = self.run_prepared(order, &prepared, progress);
        done.map_err(|cause| {
            // nobody sets an agent to work again unasked
            if prepared.interrupted {
                let cause = Box::new(cause);
                RewindError::Interrupted { cause }
            } else {
                cause
            }
        })
    }

    fn run_prepared(
        &self,
        order: &Order,
        prepared: &chat::Prepared<'_>,
        progress: &dyn Progress,
    ) -> Result<Outcome> {
        let mut order = order.clone();
        order.chat = Some(prepared.change.kept()?);
        fault_point("chat-prepared");
        let (log, freeze) = match &self.at {
            At::Here { log, freeze } => (log, freeze),
            At::There(_) => {
                let outcome = self.run(&order, progress)?;
                let settle = |id: &str, done, why: &str| self.settle(id, done, why);
                return both::moved(prepared, outcome, progress, &settle);
            }
        };
        // here the sandbox is locked from the first step to the last
        let ground = self.ground(log, freeze);
        self.site.vault.guard()?;
        wait_told(log, progress);
        let lock = ground.lock()?;
        still_fits(log, &order)?;
        let outcome = ground.run(&lock, &order, progress)?;
        let settle = |id: &str, done, why: &str| ground.settle(&lock, id, done, why);
        both::moved(prepared, outcome, progress, &settle)
    }

    /// Closes an operation that was held open for its conversation.
    pub fn settle(&self, operation: &str, done: bool, why: &str) -> Result<()> {
        let (log, freeze) = match &self.at {
            At::Here { log, freeze } => (log, freeze),
            At::There(remote) => {
                let ask = Operate::Settle {
                    operation: operation.to_owned(),
                    done,
                    why: why.to_owned(),
                };
                return far(remote, &ask, &Silent);
            }
        };
        let ground = self.ground(log, freeze);
        let lock = ground.lock()?;
        ground.settle(&lock, operation, done, why)
    }

    /// As [`Tools::recover`]; of an operation that waits for its conversation a look at that tells what became of
    /// it. `give_up`: where that cannot be told, the files go back, and the conversation is left as it is.
    pub fn recover_with(
        &self,
        access: &Access,
        give_up: bool,
        progress: &dyn Progress,
    ) -> Result<Option<Recovered>> {
        let recovered = self.recover(progress)?;
        let Some(waiting) = recovered.as_ref().filter(|r| r.outcome == How::Waits) else {
            return Ok(recovered);
        };
        let records = self.records()?;
        let kept = records
            .into_iter()
            .find(|r| r.id == waiting.operation)
            .and_then(|r| r.chat);
        let (operation, hand) = (waiting.operation.clone(), hand(self.site));
        let settle = |id: &str, done, why: &str| self.settle(id, done, why);
        both::recovered(operation, kept, (access, hand, give_up), &settle).map(Some)
    }

    /// What an undo or redo does.
    pub fn reversal(&self, kind: OperationKind, operation: Option<&str>) -> Result<Order> {
        match (&self.at, kind) {
            (At::There(remote), _) => {
                let ask = Operate::Reversal(kind, operation.map(str::to_owned));
                far(remote, &ask, &Silent)
            }
            (At::Here { log, .. }, OperationKind::Redo) => undo::redo_order(log, operation),
            (At::Here { log, .. }, _) => undo::undo_order(log, operation),
        }
    }
}

/// Where the lock is waited for, that is said.
fn wait_told(log: &Log, progress: &dyn Progress) {
    if log.busy() {
        progress.step("waiting for another respool", 0, 0);
    }
}

/// While the lock was waited for, another process may have been killed, or may have taken back the same
/// operation.
fn still_fits(log: &Log, order: &Order) -> Result<()> {
    log.none_interrupted()?;
    let Some(of) = &order.of else { return Ok(()) };
    let records = log.records()?;
    let goes_back = |r: &Record| {
        use OperationKind::{Redo, Rewind, Undo};
        matches!(r.kind, Rewind | Undo | Redo)
    };
    if records
        .iter()
        .any(|r| r.id == *of && r.state == OperationState::Done && goes_back(r))
    {
        return Ok(());
    }
    Err(RewindError::Refused {
        why: format!("operation {of} was taken back meanwhile"),
        path: None,
        hint: Some("respool log shows what stands".into()),
    })
}
