//! The boxes over the screen: plan, progress, result, lists, texts.

use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::Arc;

use super::{EditBox, Loading, Position};
use crate::rewind::offer::{Offer, VaultKind};
use crate::rewind::{Operation, Outcome, Plan, Reach};
use crate::tui::backend::{Direction, Failure, StateRef, TrackedHere, Unsent, Writing};
use crate::tui::keymap::{Action, Context};
use crate::tui::message::{JobId, Millis};

/// What a plan is for.
#[derive(Debug, Clone, PartialEq)]
pub enum Verb {
    /// Back to a state.
    Rewind(StateRef),
    /// Back to just before a message, which is then sent again, as it was written or as it was.
    Resend(Writing),
    /// Take an operation back; it is known once the plan is there.
    Reverse(Direction, Option<Operation>),
}

impl Verb {
    /// The word that is to be typed, and that names it.
    pub fn word(&self) -> &'static str {
        match self {
            Self::Rewind(_) => "rewind",
            Self::Resend(_) => "send",
            Self::Reverse(Direction::Undo, _) => "undo",
            Self::Reverse(Direction::Redo, _) => "redo",
        }
    }
}

/// What a plan asks for before it is carried out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Confirm {
    /// The key `y`.
    Key,
    /// The verb, typed out.
    Word,
    /// Nothing would be changed.
    Nothing,
    /// A blocker stops it.
    Refused,
}

/// A plan on the screen.
#[derive(Debug)]
pub struct PlanBox {
    /// What for.
    pub verb: Verb,
    /// How far it reaches.
    pub reach: Reach,
    /// The plan.
    pub load: Loading<(), Arc<Plan>>,
    /// The paths in it that are the user's own.
    pub yours: HashSet<PathBuf>,
    /// What was typed of the word.
    pub typed: String,
    /// When the plan was first drawn; until a while after that nothing confirms.
    pub shown_at: Option<Millis>,
    /// The last key of any kind.
    pub last_key: Millis,
    /// A confirming key came too early and may be held down.
    pub early: bool,
    /// First line on the screen.
    pub top: usize,
}

/// A rewind at work.
#[derive(Debug)]
pub struct Running {
    /// The work.
    pub job: JobId,
    /// What it is.
    pub verb: Verb,
    /// Where it goes, in words.
    pub words: String,
    /// How many paths the plan changes.
    pub paths: usize,
    /// Phase, done, total.
    pub step: Option<(&'static str, u64, u64)>,
    /// The user asked it to stop.
    pub stopping: bool,
    /// Quit when it has ended.
    pub then_quit: bool,
}

/// The result of a rewind.
#[derive(Debug)]
pub struct Ended {
    /// What it was.
    pub verb: Verb,
    /// Where it went, in words.
    pub words: String,
    /// How many paths the plan changed.
    pub paths: usize,
    /// What came of it.
    pub result: Result<Outcome, Failure>,
    /// The message that was not sent.
    pub unsent: Option<Unsent>,
    /// First line on the screen.
    pub top: usize,
}

/// How far the tracking of a folder is.
#[derive(Debug)]
pub enum TrackStage {
    /// It is offered.
    Offer(Loading<(), Arc<Offer>>),
    /// The work, and its phase, done, total.
    Working(JobId, Option<(&'static str, u64, u64)>),
    /// What came of it.
    Ended(Result<TrackedHere, Failure>),
}

/// A folder that is to be tracked.
#[derive(Debug)]
pub struct TrackBox {
    /// The folder.
    pub dir: PathBuf,
    /// The vault that is offered.
    pub vault: VaultKind,
    /// How far it is.
    pub stage: TrackStage,
    /// First line on the screen.
    pub top: usize,
}

/// What a list with a search line is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PickerKind {
    /// Conversations.
    Switcher,
    /// Actions.
    Palette,
}

/// A list with a search line.
#[derive(Debug)]
pub struct Picker {
    /// What for.
    pub kind: PickerKind,
    /// What was typed.
    pub query: String,
    /// The entries that match, best first.
    pub order: Vec<usize>,
    /// The actions, for the palette.
    pub actions: Vec<(Action, String)>,
    /// Selection.
    pub at: Position,
    /// The place where an action from the palette takes effect.
    pub context: Context,
}

/// A box over the screen.
#[derive(Debug)]
pub enum Overlay {
    /// All keys; the first line shown.
    Help(usize),
    /// A whole message: its row's id, the first line shown.
    Message(String, usize),
    /// An error in full.
    Error(Failure, usize),
    /// What could not be read of the conversation; the first line shown.
    Notices(usize),
    /// A plan.
    Plan(Box<PlanBox>),
    /// A message that is edited.
    Edit(Box<EditBox>),
    /// A folder that is to be tracked.
    Track(Box<TrackBox>),
    /// A rewind at work.
    Running(Running),
    /// Its result.
    Ended(Box<Ended>),
    /// The operation log.
    Log(Loading<(), Vec<Operation>>, Position),
    /// A list with a search line.
    Picker(Picker),
}

/// What a plan asks for. Own edits and holders of open files need the word. A message is sent only where the
/// conversation goes back: it would come last of all.
pub fn confirm(verb: &Verb, plan: &Plan) -> Confirm {
    let too_late = matches!(verb, Verb::Resend(_)) && plan.chat == "kept";
    if too_late || plan.blockers.iter().any(|b| b.stops) {
        Confirm::Refused
    } else if plan.changes.is_empty() && plan.chat == "kept" {
        Confirm::Nothing
    } else if plan.needs_word() {
        Confirm::Word
    } else {
        Confirm::Key
    }
}
