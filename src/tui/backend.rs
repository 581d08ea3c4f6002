//! What the screens ask of the rooms below: one trait with blocking calls, made on worker threads only.
//! The real one joins conversations, timeline, engine, diff and rewind; the tests have a fake.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::conversation::Summary;
use crate::diff::FileDiff;
use crate::engine::{Change, CheckpointId, Counts, PartKind};
use crate::failure::{Explain, Kind};
use crate::progress::Progress;
use crate::rewind::offer::{Offer, VaultKind};
use crate::rewind::{Operation, OperationKind, OperationState, Outcome, Plan, Reach};
use crate::text;
use crate::timeline::Timeline;

/// A result of the backend.
pub type Result<T> = std::result::Result<T, Failure>;

/// An error of any room, as the screens show it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// Its kind.
    pub kind: Kind,
    /// One harmless line.
    pub message: String,
    /// What helps.
    pub hint: Option<String>,
}

impl Failure {
    /// A failure of the screens' own making.
    pub fn new(kind: Kind, message: impl Into<String>, hint: Option<String>) -> Self {
        Self {
            kind,
            message: text::shown(&message.into()),
            hint: hint.map(|h| text::shown(&h)),
        }
    }
}

impl<E: Explain> From<E> for Failure {
    fn from(error: E) -> Self {
        Self::new(error.kind(), error.to_string(), error.hint())
    }
}

/// A state of the sandbox, as the screens name it. Messages are named by their native id.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum StateRef {
    /// When tracking began.
    Start,
    /// Just before this message took effect.
    Before(String),
    /// The end of this message's turn.
    End(String),
    /// As kept by this checkpoint (a safety checkpoint, for undo).
    Checkpoint(CheckpointId),
    /// As it is.
    Now,
}

/// The numbers of one row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RowCounts {
    /// What its turn changed; `None` if there is nothing to compare.
    pub changes: Option<Counts>,
    /// What changed from the end of its turn to the next message (or to now); `None` if not known.
    pub between: Option<Counts>,
}

/// One version of a file: a turn (or the time between two turns) that changed it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Version {
    /// What it is, in words, harmless: "message 3", "after message 3".
    pub words: String,
    /// The state before it.
    pub a: StateRef,
    /// The state after it.
    pub b: StateRef,
    /// How the file changed there.
    pub change: Change,
}

/// A checkpoint that was just taken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Taken {
    /// Its id.
    pub id: CheckpointId,
    /// How long it took, in milliseconds.
    pub ms: u64,
    /// What went wrong beside it.
    pub warning: Option<String>,
}

/// A folder that is tracked now, and what to do next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TrackedHere {
    /// The sandbox's id.
    pub sandbox: String,
    /// What the user should know.
    pub hints: Vec<String>,
    /// Commands, each with what it does.
    pub next: Vec<(String, &'static str)>,
}

/// Which way the operation log is walked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// Take the last rewind back.
    Undo,
    /// Take the last undo back.
    Redo,
}

/// The operation that an undo or a redo takes back, and what that will do.
#[derive(Debug, Clone, PartialEq)]
pub struct Reversal {
    /// The operation.
    pub operation: Operation,
    /// What taking it back does: back to its safety checkpoint.
    pub plan: Plan,
}

/// A message as it is to be sent again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Writing {
    /// The native id of the message in whose place it goes.
    pub row: String,
    /// The text.
    pub text: Arc<str>,
    /// Which of the things that went with it go with it again.
    pub keep: Vec<bool>,
}

/// What a message is edited from.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Opening {
    /// A text that was kept and not sent.
    pub kept: Option<String>,
    /// What goes with the message, each in words.
    pub attachments: Vec<String>,
}

/// A message that could not be sent after a rewind that was done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unsent {
    /// Why, harmless lines.
    pub why: Vec<String>,
    /// The file that keeps it.
    pub kept: PathBuf,
    /// The words of the agent's own command that sends it, and the folder in which that is to be run.
    pub command: Option<(Vec<OsString>, PathBuf)>,
    /// That command as a line for a shell.
    pub line: Option<String>,
}

/// What came of a message that was to be sent again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Resent {
    /// What came of the rewind.
    pub outcome: Outcome,
    /// The message, if it was not sent.
    pub unsent: Option<Unsent>,
}

/// Ends a subscription when it is dropped.
pub type WatchGuard = Box<dyn Send>;

/// Everything that the screens ask for. All calls block; they come from worker threads.
pub trait Backend: Send + Sync + 'static {
    /// All conversations on this machine, newest first.
    fn conversations(&self) -> Result<Vec<Summary>>;
    /// The newest `rows` rows, quickly (`partial` is set); counts may be missing.
    fn tail(&self, store: &Path, rows: usize) -> Result<Timeline>;
    /// All of it; counts may be missing.
    fn timeline(&self, store: &Path, progress: &dyn Progress) -> Result<Timeline>;
    /// The numbers of one row. Slow; called for rows that can be seen.
    fn counts(&self, store: &Path, row: &str, progress: &dyn Progress) -> Result<RowCounts>;
    /// The changed paths from `a` to `b`.
    fn changes(
        &self,
        store: &Path,
        a: &StateRef,
        b: &StateRef,
        progress: &dyn Progress,
    ) -> Result<Vec<Change>>;
    /// How one of these paths differs.
    fn file_diff(&self, store: &Path, a: &StateRef, b: &StateRef, change: &Change) -> Result<FileDiff>;
    /// The versions of one file, oldest first.
    fn file_versions(
        &self,
        store: &Path,
        part: PartKind,
        path: &Path,
        progress: &dyn Progress,
    ) -> Result<Vec<Version>>;
    /// What a rewind to `target` will do. Changes nothing.
    fn plan(&self, store: &Path, target: &StateRef, reach: Reach, progress: &dyn Progress) -> Result<Plan>;
    /// Does it.
    fn rewind(&self, store: &Path, plan: &Plan, progress: &dyn Progress) -> Result<Outcome>;
    /// Takes a rewind (or a redo) back.
    fn undo(&self, store: &Path, operation: &str, progress: &dyn Progress) -> Result<Outcome>;
    /// Takes an undo back.
    fn redo(&self, store: &Path, operation: &str, progress: &dyn Progress) -> Result<Outcome>;
    /// What tracking this folder will do; without a vault, with the one that this user has first. Changes nothing.
    fn track_plan(&self, dir: &Path, vault: Option<VaultKind>, progress: &dyn Progress) -> Result<Offer>;
    /// Does it.
    fn track(&self, offer: &Offer, progress: &dyn Progress) -> Result<TrackedHere>;
    /// Takes a checkpoint now.
    fn checkpoint(&self, store: &Path) -> Result<Taken>;
    /// The operation log, newest first.
    fn operations(&self, store: &Path) -> Result<Vec<Operation>>;
    /// What a message is edited from. An error says why it cannot be sent again.
    fn opening(&self, store: &Path, row: &str) -> Result<Opening>;
    /// Keeps what was written in the place of a message until it is sent; without a text, keeps it no longer.
    fn keep(&self, store: &Path, row: &str, text: Option<&str>) -> Result<()>;
    /// A file for the user's editor, with this text.
    fn to_editor(&self, store: &Path, row: &str, text: &str) -> Result<PathBuf>;
    /// What the editor made of it.
    fn edited(&self, store: &Path, row: &str, file: &Path, before: &str) -> Result<String>;
    /// Goes back, and sends a message.
    fn resend(&self, store: &Path, plan: &Plan, writing: &Writing, progress: &dyn Progress)
    -> Result<Resent>;
    /// Calls `changed` after each change of the store (also its deletion) until the guard is dropped.
    fn watch(&self, store: &Path, changed: Box<dyn Fn() + Send + Sync>) -> Result<WatchGuard>;

    /// What the next undo or redo takes back, and what that will do. Changes nothing.
    fn reversal(&self, store: &Path, direction: Direction, progress: &dyn Progress) -> Result<Reversal> {
        let operations = self.operations(store)?;
        let operation = candidate(&operations, direction)
            .cloned()
            .ok_or_else(|| nothing(direction))?;
        let safety = operation.safety.clone().ok_or_else(|| {
            Failure::new(
                Kind::Damaged,
                format!("{} has no safety checkpoint", operation.id),
                None,
            )
        })?;
        let plan = self.plan(store, &StateRef::Checkpoint(safety), Reach::Auto, progress)?;
        Ok(Reversal { operation, plan })
    }
}

/// There is nothing to take back.
pub fn nothing(direction: Direction) -> Failure {
    let what = match direction {
        Direction::Undo => "there is no rewind to undo",
        Direction::Redo => "there is nothing to redo",
    };
    Failure::new(Kind::NotFound, what, None)
}

/// The operation that the next undo or redo takes back. `operations` is newest first. A redo is offered
/// only while no rewind was done after the undo.
pub fn candidate(operations: &[Operation], direction: Direction) -> Option<&Operation> {
    for op in operations.iter().filter(|o| o.state == OperationState::Done) {
        match (direction, op.kind) {
            (Direction::Undo, OperationKind::Rewind | OperationKind::Redo)
            | (Direction::Redo, OperationKind::Undo) => return Some(op),
            (Direction::Redo, OperationKind::Rewind) | (_, OperationKind::Track | OperationKind::Untrack) => {
                return None;
            }
            (Direction::Undo, OperationKind::Undo) | (Direction::Redo, OperationKind::Redo) => {}
        }
    }
    None
}
