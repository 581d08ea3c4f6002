//! Files and conversation together: all or nothing. The files are done and checked, and their record is held open;
//! then the conversation moves; then the record is closed, or both go back.

use serde_json::Value;

use super::Outcome;
use super::error::{Restarted, Result, RewindError};
use super::recover::{How, Recovered};
use crate::chat::{Access, Change, ChatError, Hand, Prepared, Side, settle as settled};
use crate::process::fault_point;
use crate::progress::Progress;

/// Closes the held record: its operation, whether the conversation was moved, why it was not.
type Settle<'a> = &'a dyn Fn(&str, bool, &str) -> Result<()>;

/// The second half of an operation whose files are done: `outcome` is theirs.
pub(super) fn moved(
    prepared: &Prepared<'_>,
    mut outcome: Outcome,
    progress: &dyn Progress,
    settle: Settle<'_>,
) -> Result<Outcome> {
    fault_point("chat-held");
    progress.step("moving the conversation", 0, 0);
    let operation = outcome.operation.clone();
    let applied = prepared.apply();
    fault_point("chat-moved");
    let Err(cause) = applied else {
        settle(&operation, true, "").map_err(|e| RewindError::Unsettled {
            operation,
            cause: Box::new(e),
        })?;
        outcome.chat = prepared.change.word();
        outcome.conversation = prepared.change.leads_to().map(str::to_owned);
        outcome.store = prepared.store();
        return Ok(outcome);
    };
    if let Err(second) = prepared.revert() {
        return Err(RewindError::ChatStuck {
            operation,
            cause: Box::new(cause),
            second: Box::new(second),
        });
    }
    fault_point("chat-reverted");
    let why = cause.to_string();
    match settle(&operation, false, &why) {
        Ok(()) => Err(RewindError::RolledBack {
            cause: Box::new(cause.into()),
            restarted: Restarted::default(),
        }),
        Err(second) => Err(RewindError::Stuck {
            cause: Box::new(cause.into()),
            second: Box::new(second),
            safety: outcome.safety.to_string(),
        }),
    }
}

/// What became of an operation that was cut short while its conversation was being moved.
pub(super) fn recovered(
    operation: String,
    kept: Option<Value>,
    (access, hand, give_up): (&Access, Hand, bool),
    settle: Settle<'_>,
) -> Result<Recovered> {
    let look = || settled(&Change::of(&kept.unwrap_or_default())?, access, hand);
    let (outcome, why) = match look() {
        Ok(Side::After) => {
            settle(&operation, true, "")?;
            (How::Finished, None)
        }
        Ok(Side::Before) => {
            settle(
                &operation,
                false,
                "it was cut short before the conversation was moved",
            )?;
            (How::RolledBack, None)
        }
        Err(e) if give_up && !matches!(e, ChatError::Busy(_)) => {
            settle(&operation, false, &format!("its conversation was given up: {e}"))?;
            (How::RolledBack, None)
        }
        Err(e) => (How::Waits, Some(e.to_string())),
    };
    Ok(Recovered {
        why,
        ..Recovered::new(operation, outcome)
    })
}
