//! What a crash left: an operation whose journal is open and whose lock is free.

use serde::{Deserialize, Serialize};

use super::error::{Result, RewindError};
use super::journal::{Lock, Phase, Record};
use super::run::{Ground, order_target};
use super::{OperationKind, OperationState};
use crate::engine::State;
use crate::progress::Progress;

/// What became of an interrupted operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum How {
    /// It reached its target after all.
    Finished,
    /// Everything is as it was before it.
    RolledBack,
    /// Its files are done; what became of its conversation is for its owner to see.
    Waits,
}

/// One recovered operation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Recovered {
    /// Its id.
    pub operation: String,
    /// What became of it.
    pub outcome: How,
    /// Why it waits, one harmless line.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// The sandbox, of one that waits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<String>,
}

impl Recovered {
    /// What became of an operation.
    pub fn new(operation: String, outcome: How) -> Self {
        Self {
            operation,
            outcome,
            why: None,
            sandbox: None,
        }
    }
}

impl Ground<'_> {
    /// Finishes or rolls back an interrupted rewind, undo or redo. The caller holds the lock.
    pub fn recover(&self, _lock: &Lock, progress: &dyn Progress) -> Result<Option<Recovered>> {
        let Some(mut record) = self.log.interrupted()? else {
            return Ok(None);
        };
        if matches!(record.kind, OperationKind::Track | OperationKind::Untrack) {
            return Ok(None);
        }
        let operation = record.id.clone();
        let outcome = match record.phase {
            Phase::Applying if record.safety.is_some() => self.finish_or_take_back(&mut record, progress)?,
            Phase::RollingBack => {
                let cause = RewindError::NoOperation(
                    record.error.clone().unwrap_or_else(|| "it was cut short".into()),
                );
                let mut frozen = self.quiet(&record, progress)?;
                match self.take_back(&mut record, &mut frozen, cause, progress) {
                    RewindError::RolledBack { .. } => How::RolledBack,
                    other => return Err(other),
                }
            }
            Phase::Chat => How::Waits,
            // no safety checkpoint is recorded: nothing had been changed
            _ => {
                self.containers.resume(&record.containers, progress)?;
                self.log.close(&mut record, OperationState::RolledBack)?;
                How::RolledBack
            }
        };
        Ok(Some(Recovered::new(operation, outcome)))
    }

    fn finish_or_take_back(&self, record: &mut Record, progress: &dyn Progress) -> Result<How> {
        let mut frozen = self.quiet(record, progress)?;
        // somebody may have worked here since the crash: that must not be lost
        let left = State::Checkpoint(self.safety(record)?);
        let mut forward = || -> Result<()> {
            self.restore_and_check(record, &left, &mut frozen, progress)?;
            self.containers_back(record, &order_target(record)?, progress)?;
            self.containers.resume(&record.containers, progress)?;
            Ok(())
        };
        match forward() {
            Ok(()) => {
                self.finish(record)?;
                Ok(How::Finished)
            }
            Err(cause) => match self.take_back(record, &mut frozen, cause, progress) {
                RewindError::RolledBack { .. } => Ok(How::RolledBack),
                other => Err(other),
            },
        }
    }
}
