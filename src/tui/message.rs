//! What happens: keys and other input, answers of workers, time.

use std::path::PathBuf;
use std::sync::Arc;

use chrono::{DateTime, Utc};
use ratatui::crossterm::event::{KeyEvent, MouseEvent};

use super::backend::{Failure, Opening, Resent, Reversal, RowCounts, Taken, TrackedHere, Version};
use super::effect::Outside;
use crate::conversation::Summary;
use crate::diff::FileDiff;
use crate::engine::Change;
use crate::rewind::offer::Offer;
use crate::rewind::{Operation, Outcome, Plan};
use crate::timeline::Timeline;

/// Milliseconds of a clock that never goes back; where it began does not matter.
pub type Millis = u64;

/// Names one piece of background work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct JobId(pub u64);

/// The answer to one piece of background work.
#[derive(Debug, Clone)]
#[expect(
    missing_docs,
    reason = "each is the result of the backend's method of that name"
)]
pub enum Reply {
    Conversations(Result<Vec<Summary>, Failure>),
    Tail(Result<Timeline, Failure>),
    Timeline(Result<Timeline, Failure>),
    Counts(String, Result<RowCounts, Failure>),
    CountsDone,
    Changes(Result<Vec<Change>, Failure>),
    Diff(Result<FileDiff, Failure>),
    Versions(Result<Vec<Version>, Failure>),
    Plan(Result<Arc<Plan>, Failure>),
    Reversal(Result<Box<Reversal>, Failure>),
    Outcome(Result<Outcome, Failure>),
    TrackPlan(Result<Arc<Offer>, Failure>),
    Track(Result<TrackedHere, Failure>),
    Checkpoint(Result<Taken, Failure>),
    Operations(Result<Vec<Operation>, Failure>),
    Looked(Result<Vec<Operation>, Failure>),
    Opening(Result<Opening, Failure>),
    Kept(Result<(), Failure>),
    ToEditor(Result<PathBuf, Failure>),
    FromEditor(Result<String, Failure>),
    Resent(Result<Box<Resent>, Failure>),
    WatchFailed(Failure),
}

/// One thing that happened.
#[derive(Debug, Clone)]
pub enum Msg {
    /// The program begins: the skeleton was drawn.
    Start,
    /// A key, and when it was read.
    Key(KeyEvent, Millis),
    /// Bracketed paste.
    Paste(String),
    /// A click or a turn of the wheel.
    Mouse(MouseEvent),
    /// The terminal's new size.
    Resize(u16, u16),
    /// A frame was drawn at this time.
    Drawn(Millis),
    /// The time of day, for ages.
    Tick(DateTime<Utc>),
    /// This work has been going on for a while.
    Slow(JobId),
    /// The next picture of the spinner.
    Spin,
    /// The store of the open conversation changed.
    Changed,
    /// It is time to read it again.
    Refresh,
    /// An answer.
    Reply(JobId, Reply),
    /// How far work is: phase, done, total (0 = not known).
    Progress(JobId, &'static str, u64, u64),
    /// What is written in the place of this message is to be kept.
    Keep(String),
    /// Something outside of the screens has ended: well, or why not.
    Ran(Outside, Result<(), Failure>),
    /// A signal asks the program to end.
    Signal(i32),
}
