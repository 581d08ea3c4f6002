//! The order of things in a rewind, an undo and a redo: journal, writers stopped, safety checkpoint,
//! restore, check, writers on, log. A failure at any step puts everything back.

use std::path::Path;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::error::{Restarted, Result, RewindError};
use super::journal::{Lock, Log, Phase, Record};
use super::{OperationKind, OperationState, Outcome};
use crate::engine::vault::Vault;
use crate::engine::{
    CheckpointId, CheckpointKind, CheckpointMeta, EngineError, How, NewCheckpoint, Selection, State,
};
use crate::process::fault_point;
use crate::progress::Progress;
use crate::sandbox::freeze::{Freeze, Frozen};
use crate::sandbox::parts::turn::{Rewound, Way};
use crate::sandbox::parts::{Turn, Turns, Was};
use crate::text::shown;

/// How long a writing command waits for another one.
pub const PATIENCE: Duration = Duration::from_secs(10);

/// How often a restore is tried while writers slip in.
const ATTEMPTS: u32 = 8;

/// What a rewind works on.
pub struct Ground<'a> {
    /// The vault of the workspace.
    pub vault: &'a dyn Vault,
    /// The operation log of the sandbox.
    pub log: &'a Log,
    /// How its writers are stopped.
    pub freeze: &'a dyn Freeze,
    /// Its containers.
    pub containers: &'a dyn Turns,
    /// The workspace, for messages.
    pub workspace: &'a Path,
}

/// What is to be done.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Order {
    /// Rewind, undo or redo.
    pub kind: OperationKind,
    /// Where to.
    pub target: CheckpointId,
    /// The target in words.
    pub words: String,
    /// What of it.
    pub selection: Selection,
    /// Undo and redo: the operation taken back.
    pub of: Option<String>,
    /// What the conversation was and is to be: once the files are checked the record is held open until
    /// [`Ground::settle`] says what became of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chat: Option<serde_json::Value>,
    /// Who moves the conversation, for whom the service does the files: pid, and when it started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mover: Option<(i32, u64)>,
    /// All of Docker's data goes back, and not the sandbox's own containers alone.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub whole_docker: bool,
}

impl Ground<'_> {
    /// Takes the lock of the sandbox.
    pub fn lock(&self) -> Result<Lock> {
        self.log.lock(self.workspace, PATIENCE)
    }

    /// Takes it for something new: a conversation that is being moved is waited for, too.
    pub fn lock_at_rest(&self) -> Result<Lock> {
        self.log.lock_at_rest(self.workspace, PATIENCE)
    }

    /// Does it. The caller holds the lock, and has recovered what a crash left.
    pub fn run(&self, _lock: &Lock, order: &Order, progress: &dyn Progress) -> Result<Outcome> {
        let target = self.usable(&order.target)?;
        let mut record = Record::new(order.kind);
        record.target = Some(order.target.clone());
        record.words = Some(order.words.clone());
        record.of.clone_from(&order.of);
        record.chat.clone_from(&order.chat);
        record.mover = order.mover;
        record.set_selection(&order.selection);
        if order.whole_docker {
            record.containers = self.containers.whole(&order.target)?;
        } else if order.selection == Selection::All {
            record.containers = self.containers.turns(&order.target, &target.elsewhere)?;
        }
        self.log.begin(&mut record)?;
        fault_point("rewind-planned");
        progress.step("stopping writers", 0, 0);
        let mut frozen = match self.quiet(&record, progress) {
            Ok(frozen) => frozen,
            Err(cause) => return Err(self.take_back(&mut record, &mut Frozen::default(), cause, progress)),
        };
        fault_point("rewind-frozen");
        // writers stay stopped until the record is closed, whichever way it goes
        match self.carry_out(&mut record, &mut frozen, progress) {
            Ok(outcome) => Ok(outcome),
            Err(cause) => Err(self.take_back(&mut record, &mut frozen, cause, progress)),
        }
    }

    /// Closes an operation that was held open for its conversation: that was moved (`done`), or it stays as it was
    /// and the files go back, too. `why`: what went wrong with it.
    pub fn settle(&self, _lock: &Lock, operation: &str, done: bool, why: &str) -> Result<()> {
        let open = self.log.interrupted()?;
        let held = open.filter(|r| r.id == operation && r.phase == Phase::Chat);
        let mut record = held.ok_or_else(|| {
            RewindError::NoOperation(format!(
                "operation {} does not wait for its conversation",
                shown(operation)
            ))
        })?;
        if done {
            self.finish(&mut record)?;
            fault_point("rewind-settled");
            return Ok(());
        }
        let progress = &crate::progress::Silent;
        let mut frozen = self.quiet(&record, progress)?;
        let cause = RewindError::NoOperation(why.to_owned());
        match self.take_back(&mut record, &mut frozen, cause, progress) {
            RewindError::RolledBack { .. } => Ok(()),
            other => Err(other),
        }
    }

    /// Stops what writes. Containers first: a process that is stopped by itself would not hear that it is to end.
    /// Those that must not be stopped last: what is in a paused one does not stop by itself.
    pub(super) fn quiet(&self, record: &Record, progress: &dyn Progress) -> Result<Frozen> {
        self.containers.stop(&record.containers, progress)?;
        let frozen = self.freeze.freeze()?;
        self.containers.pause(&record.containers)?;
        Ok(frozen)
    }

    /// The target must be there and whole.
    fn usable(&self, target: &CheckpointId) -> Result<CheckpointMeta> {
        use crate::engine::Health;
        let found = self
            .vault
            .checkpoints()?
            .into_iter()
            .find(|c| c.meta.id == *target);
        let id = target.to_string();
        match found.map(|c| (c.meta, c.health)) {
            Some((meta, Health::Ok)) => Ok(meta),
            Some((_, Health::Incomplete(reason) | Health::Damaged(reason))) => {
                Err(EngineError::DamagedCheckpoint { id, reason }.into())
            }
            None => Err(EngineError::NoCheckpoint { id }.into()),
        }
    }

    /// A checkpoint of the present state, before anything is destroyed.
    pub(super) fn safety(&self, record: &Record) -> Result<CheckpointId> {
        let mut new = NewCheckpoint::of(CheckpointKind::Safety, How::Own);
        new.operation = Some(record.id.clone());
        new.like.clone_from(&record.target);
        Ok(self.vault.checkpoint(&new)?.meta.id)
    }

    fn carry_out(
        &self,
        record: &mut Record,
        frozen: &mut Frozen,
        progress: &dyn Progress,
    ) -> Result<Outcome> {
        progress.step("safety checkpoint", 0, 0);
        let safety = self.safety(record)?;
        fault_point("rewind-safety");
        record.safety = Some(safety.clone());
        self.log.advance(record, Phase::Applying)?;
        fault_point("rewind-applying");
        let from = State::Checkpoint(safety.clone());
        let changed = self.restore_and_check(record, &from, frozen, progress)?;
        fault_point("rewind-checked");
        let containers = self.containers_back(record, &order_target(record)?, progress)?;
        let mut told = self.containers.resume(&record.containers, progress)?;
        fault_point("rewind-resumed");
        if record.chat.is_some() {
            self.log.advance(record, Phase::Chat)?;
            fault_point("rewind-held");
        } else {
            self.finish(record)?;
            fault_point("rewind-closed");
        }
        Ok(Outcome {
            operation: record.id.clone(),
            safety,
            changed,
            verified: true,
            chat: "kept",
            conversation: None,
            store: None,
            resent: false,
            notes: {
                told.extend(notes(frozen));
                told
            },
            containers,
        })
    }

    /// Brings the containers' files to `target`. That they may have changed is written down first.
    pub(super) fn containers_back(
        &self,
        record: &mut Record,
        target: &CheckpointId,
        progress: &dyn Progress,
    ) -> Result<Vec<Rewound>> {
        if record.containers.is_empty() {
            return Ok(Vec::new());
        }
        for turn in &mut record.containers {
            turn.holds = Some(target.clone());
        }
        self.log.write(record)?;
        fault_point("rewind-containers");
        Ok(self
            .containers
            .restore(&record.containers, target, Way::There, progress)?)
    }

    /// Restores the record's target and proves that it is equal. Where a writer slipped in it is stopped, and
    /// what it wrote goes into a safety checkpoint of its own before the next try.
    pub(super) fn restore_and_check(
        &self,
        record: &Record,
        from: &State,
        frozen: &mut Frozen,
        progress: &dyn Progress,
    ) -> Result<u64> {
        let target = order_target(record)?;
        let selection = record.selection();
        let mut changed = 0;
        let mut from = from.clone();
        for attempt in 1.. {
            progress.step("restoring", 0, 0);
            let tried = self.vault.restore(&from, &target, &selection, progress);
            let cause = match tried {
                Err(e) => RewindError::from(e),
                Ok(restored) => {
                    changed += restored.changed;
                    fault_point("rewind-restored");
                    progress.step("checking", 0, 0);
                    let differs = self.vault.verify(&target, &selection, progress)?;
                    if differs.is_empty() {
                        return Ok(changed);
                    }
                    RewindError::NotEqual(differs)
                }
            };
            if progress.cancelled() || attempt == ATTEMPTS || no_room(&cause) {
                return Err(cause);
            }
            let caught = self.freeze.catch(frozen)?;
            // one that was about to end when the first were stopped cannot be found any more
            let again = caught || attempt == 1;
            let Some(safety) = again.then(|| self.safety(record)).and_then(Result::ok) else {
                return Err(cause);
            };
            from = State::Checkpoint(safety);
        }
        Ok(changed)
    }

    /// Closes a record that reached its target, and marks what it took back.
    pub(super) fn finish(&self, record: &mut Record) -> Result<()> {
        // first the others: if this process dies in between, the record is still open and is finished again
        super::undo::mark_taken_back(self.log, record)?;
        fault_point("rewind-marked");
        self.log.close(record, OperationState::Done)
    }

    /// Everything to the safety checkpoint, if there is one.
    fn files_back(&self, record: &mut Record, frozen: &mut Frozen, progress: &dyn Progress) -> Result<()> {
        let Some(safety) = record.safety.clone() else {
            return Ok(());
        };
        let mut back = record.clone();
        self.log.advance(&mut back, Phase::RollingBack)?;
        fault_point("rewind-rolling-back");
        back.target = Some(safety.clone());
        back.paths = None;
        if !record.containers.is_empty() {
            // one that was started again, or that failed to
            self.containers.stop(&record.containers, progress)?;
            self.containers.pause(&record.containers)?;
        }
        // what somebody wrote meanwhile must not be lost; a full pool may have no room for it
        let from = self.safety(&back).map_or(State::Now, State::Checkpoint);
        self.restore_and_check(&back, &from, frozen, &crate::progress::Silent)?;
        if record.containers.iter().any(|t| t.holds.is_some()) {
            for turn in &mut record.containers {
                turn.holds = Some(safety.clone());
            }
            // the journal has them by the record that is rolled back
            back.containers.clone_from(&record.containers);
            back.target.clone_from(&record.target);
            back.paths.clone_from(&record.paths);
            self.log.write(&back)?;
            self.containers
                .restore(&record.containers, &safety, Way::Back, &crate::progress::Silent)?;
        }
        Ok(())
    }

    /// After a failure: back to the safety checkpoint if anything can have changed. Gives the error to show.
    /// The caller keeps the writers stopped.
    pub(super) fn take_back(
        &self,
        record: &mut Record,
        frozen: &mut Frozen,
        cause: RewindError,
        progress: &dyn Progress,
    ) -> RewindError {
        record.error = Some(cause.to_string());
        let back = self.files_back(record, frozen, progress);
        // containers come up again whatever became of the files
        let up = self.containers.resume(&record.containers, progress);
        match back.and_then(|()| up.map(drop).map_err(Into::into)) {
            Ok(()) => match self.log.close(record, OperationState::RolledBack) {
                Ok(()) => RewindError::RolledBack {
                    cause: Box::new(cause),
                    restarted: restarted(&record.containers),
                },
                Err(second) => stuck(record, cause, second),
            },
            Err(second) => stuck(record, cause, second),
        }
    }
}

/// Where an operation goes.
pub(super) fn order_target(record: &Record) -> Result<CheckpointId> {
    let target = record.target.clone();
    target.ok_or_else(|| damaged(record, "it names no target"))
}

/// True if there was no space left, or no quota. Trying again would not help, and what the kernel then shows of a
/// file that could not be written is not what is on the disk: it would look like a writer's doing.
fn no_room(e: &RewindError) -> bool {
    use rustix::io::Errno;
    let code = match e {
        RewindError::Engine(EngineError::Io { source, .. }) => source.raw_os_error(),
        _ => None,
    };
    code.is_some_and(|c| c == Errno::NOSPC.raw_os_error() || c == Errno::DQUOT.raw_os_error())
}

/// The containers that were stopped or restarted, whatever became of the operation.
fn restarted(turns: &[Turn]) -> Restarted {
    let was = |t: &&Turn| t.whole || t.was != Was::Stopped && (!t.keep_alive || t.holds.is_some());
    Restarted(turns.iter().filter(was).map(|t| t.name.clone()).collect())
}

fn stuck(record: &Record, cause: RewindError, second: RewindError) -> RewindError {
    let safety = record
        .safety
        .as_ref()
        .map_or_else(String::new, ToString::to_string);
    RewindError::Stuck {
        cause: Box::new(cause),
        second: Box::new(second),
        safety,
    }
}

fn damaged(record: &Record, reason: &str) -> RewindError {
    RewindError::DamagedLog {
        path: record.id.clone().into(),
        reason: reason.into(),
    }
}

/// What the user should know of processes that were or were not stopped.
fn notes(frozen: &Frozen) -> Vec<String> {
    let mut notes = Vec::new();
    for h in &frozen.stopped {
        notes.push(format!(
            "process {} ({}) was paused meanwhile",
            h.pid,
            shown(&h.comm)
        ));
    }
    for h in frozen.left.iter().filter(|h| h.writes) {
        notes.push(format!(
            "process {} ({}) has files open for writing and was not paused",
            h.pid,
            shown(&h.comm)
        ));
    }
    notes
}
