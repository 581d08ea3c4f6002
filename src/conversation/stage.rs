//! Whether an agent is at work, for formats that say how far it is but not whether it still lives.

use chrono::{DateTime, TimeDelta, Utc};

use super::claude_record::Stage;
use super::openhands_lease::{Held, since_boot};

/// A store that did not change for so long is no sign of an agent at work.
const STALE: TimeDelta = TimeDelta::minutes(10);

/// True while the agent may change files: its turn has not ended, and a process has the conversation open, or, where
/// that cannot be told, the store has just changed.
pub(super) fn at_work(stage: Option<Stage>, held: Held, changed: DateTime<Utc>) -> bool {
    stage == Some(Stage::Running)
        && match held {
            Held::Yes => true,
            Held::No => false,
            Held::Unknown => since_boot(Some(changed)) && Utc::now() - changed < STALE,
        }
}
