//! Everything that the screens show. One task owns it; drawing reads it; only `update` changes it.

use std::collections::{HashMap, HashSet};
use std::path::PathBuf;
use std::sync::Arc;

use chrono::{DateTime, FixedOffset, Utc};

use super::backend::{Direction, Failure, RowCounts, StateRef, Version};
use super::keymap::{Action, Context, Keymap};
use super::message::{JobId, Millis};
use super::theme::Theme;
use crate::conversation::Summary;
use crate::diff::FileDiff;
use crate::engine::{Change, PartKind};
use crate::rewind::{Operation, Outcome, Plan};
use crate::timeline::{Row, Timeline};

/// A selected row and the first one on the screen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Position {
    /// The selected row.
    pub selected: usize,
    /// The first row that is shown.
    pub top: usize,
}

impl Position {
    /// Moves both so that the selection exists and can be seen in `height` rows.
    pub fn settle(&mut self, len: usize, height: usize) {
        self.selected = self.selected.min(len.saturating_sub(1));
        self.top = self.top.min(len.saturating_sub(height.max(1)));
        if self.selected < self.top {
            self.top = self.selected;
        } else if height > 0 && self.selected >= self.top + height {
            self.top = self.selected + 1 - height;
        }
    }
}

/// Something that is asked for in the background. The last value stays until the next one is there, or
/// until the work turns out to be slow.
#[derive(Debug, Clone)]
pub struct Loading<K, T> {
    /// What is wished.
    pub wanted: Option<K>,
    /// The work that is under way for it.
    pub job: Option<JobId>,
    /// It has been under way for a while.
    pub slow: bool,
    /// What is there, and for which wish.
    pub value: Option<(K, Result<T, Failure>)>,
}

impl<K, T> Default for Loading<K, T> {
    fn default() -> Self {
        Self {
            wanted: None,
            job: None,
            slow: false,
            value: None,
        }
    }
}

impl<K: Clone, T> Loading<K, T> {
    /// Work begins.
    pub fn begin(&mut self, wanted: K, job: JobId) {
        self.wanted = Some(wanted);
        self.job = Some(job);
        self.slow = false;
    }
    /// Takes an answer; false if it is not the one that is waited for.
    pub fn finish(&mut self, job: JobId, value: Result<T, Failure>) -> bool {
        if self.job != Some(job) {
            return false;
        }
        self.job = None;
        self.slow = false;
        if let Some(wanted) = self.wanted.clone() {
            self.value = Some((wanted, value));
        }
        true
    }
    /// Forgets everything.
    pub fn clear(&mut self) {
        *self = Self::default();
    }
    /// The value, if it can be used.
    pub fn ready(&self) -> Option<&T> {
        self.value.as_ref().and_then(|(_, v)| v.as_ref().ok())
    }
}

/// The panes of the main screen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pane {
    /// The messages.
    Timeline,
    /// The changed files.
    Files,
    /// The diff of the selected file.
    Diff,
}

/// Which screen lies below the boxes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Screen {
    /// All conversations.
    Start,
    /// One conversation.
    Timeline,
}

/// A marked state: a row, and which end of its turn.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Mark {
    /// Just before this message.
    Before(String),
    /// The end of its turn.
    End(String),
    /// Now.
    Now,
}

impl Mark {
    /// The state that it names.
    pub fn state(&self) -> StateRef {
        match self {
            Self::Before(id) => StateRef::Before(id.clone()),
            Self::End(id) => StateRef::End(id.clone()),
            Self::Now => StateRef::Now,
        }
    }
    /// The row that it is on.
    pub fn row(&self) -> Option<&str> {
        match self {
            Self::Before(id) | Self::End(id) => Some(id),
            Self::Now => None,
        }
    }
}

/// Two states that are compared.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pair {
    /// The first.
    pub a: StateRef,
    /// The second.
    pub b: StateRef,
}

/// What the diff pane is to show.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DiffKey {
    /// The states.
    pub pair: Pair,
    /// The path.
    pub change: Change,
    /// If it is one of the file's versions: which, of how many, in words.
    pub version: Option<(usize, usize, String)>,
}

/// A diff and where its rows are.
#[derive(Debug, Clone)]
pub struct ShownDiff {
    /// The diff.
    pub diff: FileDiff,
    /// For each row on the screen: the hunk, and the line in it (`None` = the hunk's head).
    pub rows: Vec<(u32, Option<u32>)>,
}

/// The changed files pane.
#[derive(Debug, Default)]
pub struct Files {
    /// The list.
    pub load: Loading<Pair, Vec<Change>>,
    /// Why there is none to ask for.
    pub unable: Option<String>,
    /// The selection.
    pub at: Position,
}

/// The diff pane.
#[derive(Debug, Default)]
pub struct Diff {
    /// The diff.
    pub load: Loading<DiffKey, ShownDiff>,
    /// First row on the screen.
    pub top: usize,
    /// First column on the screen.
    pub left: usize,
    /// The versions of the file.
    pub versions: Loading<(PartKind, PathBuf), Vec<Version>>,
    /// The version that is shown.
    pub version: Option<usize>,
    /// Steps to take as soon as the versions are known.
    pub step: i32,
}

/// The open conversation.
#[derive(Debug)]
pub struct Open {
    /// Its store.
    pub store: PathBuf,
    /// The timeline; the wish is whether all of it was asked for.
    pub load: Loading<bool, ()>,
    /// What is shown of it.
    pub timeline: Option<Timeline>,
    /// Numbers that came later than the rows, by the message's id.
    pub counts: HashMap<String, RowCounts>,
    /// Work on numbers that is under way, and for which rows.
    pub counting: Option<(JobId, Vec<String>)>,
    /// Rows whose numbers cannot be had.
    pub uncounted: HashSet<String>,
    /// Rows that pass the filter; `None` = all.
    pub order: Option<Vec<usize>>,
    /// The selection, an index into the rows that are shown.
    pub at: Position,
    /// The filter that is applied.
    pub filter: String,
    /// The last thing searched for.
    pub search: String,
    /// The first mark.
    pub a: Option<Mark>,
    /// The second mark.
    pub b: Option<Mark>,
    /// The changed files.
    pub files: Files,
    /// The diff.
    pub diff: Diff,
    /// The store changed while it was read: read it again.
    pub again: bool,
    /// A refresh is on its way.
    pub refresh_soon: bool,
    /// The store can no longer be read.
    pub gone: Option<Failure>,
}

impl Open {
    /// A conversation of which nothing is known yet.
    pub fn new(store: PathBuf) -> Self {
        Self {
            store,
            load: Loading::default(),
            timeline: None,
            counts: HashMap::new(),
            counting: None,
            uncounted: HashSet::new(),
            order: None,
            at: Position::default(),
            filter: String::new(),
            search: String::new(),
            a: None,
            b: None,
            files: Files::default(),
            diff: Diff::default(),
            again: false,
            refresh_soon: false,
            gone: None,
        }
    }
    /// All rows.
    pub fn rows(&self) -> &[Row] {
        self.timeline.as_ref().map_or(&[], |t| &t.rows)
    }
    /// How many rows are shown.
    pub fn len(&self) -> usize {
        self.order.as_ref().map_or(self.rows().len(), Vec::len)
    }
    /// True if no row is shown.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// The row index shown at this place.
    pub fn index(&self, place: usize) -> Option<usize> {
        match &self.order {
            Some(order) => order.get(place).copied(),
            None => (place < self.rows().len()).then_some(place),
        }
    }
    /// The row shown at this place.
    pub fn row(&self, place: usize) -> Option<&Row> {
        self.rows().get(self.index(place)?)
    }
    /// The selected row.
    pub fn selected(&self) -> Option<&Row> {
        self.row(self.at.selected)
    }
    /// The numbers of a row, wherever they come from.
    pub fn counts_of(&self, row: &Row) -> RowCounts {
        let late = self.counts.get(&row.id).copied().unwrap_or_default();
        RowCounts {
            changes: row.changes.or(late.changes),
            between: row.between.or(late.between),
        }
    }
    /// The selected change.
    pub fn change(&self) -> Option<&Change> {
        self.files.load.ready()?.get(self.files.at.selected)
    }
}

/// What a plan is for.
#[derive(Debug, Clone, PartialEq)]
pub enum Verb {
    /// Back to a state.
    Rewind(StateRef),
    /// Take an operation back; it is known once the plan is there.
    Reverse(Direction, Option<Operation>),
}

impl Verb {
    /// The word that is to be typed, and that names it.
    pub fn word(&self) -> &'static str {
        match self {
            Self::Rewind(_) => "rewind",
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
    /// What came of it.
    pub result: Result<Outcome, Failure>,
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
    /// A plan.
    Plan(Box<PlanBox>),
    /// A rewind at work.
    Running(Running),
    /// Its result.
    Ended(Ended),
    /// The operation log.
    Log(Loading<(), Vec<Operation>>, Position),
    /// A list with a search line.
    Picker(Picker),
}

/// How a notice is meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tone {
    /// All is well.
    Good,
    /// Something to know.
    Plain,
    /// Something went wrong.
    Bad,
}

/// One line that stays until the next key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Notice {
    /// How it is meant.
    pub tone: Tone,
    /// The line, harmless.
    pub text: String,
}

/// How the program ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// The user quit.
    Quit,
    /// The user quit at once, without waiting for a running rewind; `recover` finishes it.
    Abandoned,
    /// This signal ended it.
    Signal(i32),
}

/// The conversations of this machine.
#[derive(Debug, Default)]
pub struct Conversations {
    /// The list.
    pub load: Loading<(), Vec<Summary>>,
    /// Selection on the start screen.
    pub at: Position,
}

/// Everything that the screens show.
#[derive(Debug)]
pub struct State {
    /// The keys.
    pub keymap: Arc<Keymap>,
    /// The colours.
    pub theme: Arc<Theme>,
    /// Columns and rows of the terminal.
    pub size: (u16, u16),
    /// The time of day, for ages.
    pub now: DateTime<Utc>,
    /// The time zone of times of day.
    pub offset: FixedOffset,
    /// The home folder, shown as `~`.
    pub home: Option<PathBuf>,
    /// Files named in the help: what, where.
    pub paths: Vec<(&'static str, PathBuf)>,
    /// Which screen.
    pub screen: Screen,
    /// The conversations.
    pub conversations: Conversations,
    /// The open one.
    pub open: Option<Open>,
    /// Which pane has the keys.
    pub focus: Pane,
    /// The diff fills the screen.
    pub zoom: bool,
    /// The filter that is being typed.
    pub typing: Option<String>,
    /// The boxes over the screen, the topmost last.
    pub overlays: Vec<Overlay>,
    /// A line for the user.
    pub notice: Option<Notice>,
    /// A checkpoint that is being taken.
    pub checkpointing: Option<JobId>,
    /// The picture of the spinner, while it turns.
    pub spinner: Option<usize>,
    /// The last job's number.
    pub last_job: u64,
    /// The screen must be drawn.
    pub dirty: bool,
    /// The program is to end.
    pub end: Option<End>,
}

/// What a new state is made from.
#[derive(Debug, Clone)]
pub struct Setup {
    /// The keys.
    pub keymap: Arc<Keymap>,
    /// The colours.
    pub theme: Arc<Theme>,
    /// Columns and rows of the terminal.
    pub size: (u16, u16),
    /// The time of day.
    pub now: DateTime<Utc>,
    /// The time zone of times of day.
    pub offset: FixedOffset,
    /// The home folder.
    pub home: Option<PathBuf>,
    /// See [`State::paths`].
    pub paths: Vec<(&'static str, PathBuf)>,
    /// The store to open; none = the start screen.
    pub store: Option<PathBuf>,
}

impl State {
    /// The skeleton: nothing is loaded yet.
    pub fn new(setup: Setup) -> Self {
        Self {
            keymap: setup.keymap,
            theme: setup.theme,
            size: setup.size,
            now: setup.now,
            offset: setup.offset,
            home: setup.home,
            paths: setup.paths,
            screen: if setup.store.is_some() {
                Screen::Timeline
            } else {
                Screen::Start
            },
            conversations: Conversations::default(),
            open: setup.store.map(Open::new),
            focus: Pane::Timeline,
            zoom: false,
            typing: None,
            overlays: Vec::new(),
            notice: None,
            checkpointing: None,
            spinner: None,
            last_job: 0,
            dirty: true,
            end: None,
        }
    }

    /// A new job's name.
    pub fn job(&mut self) -> JobId {
        self.last_job += 1;
        JobId(self.last_job)
    }

    /// Where keys go.
    pub fn context(&self) -> Context {
        match self.overlays.last() {
            Some(Overlay::Help(_) | Overlay::Message(..) | Overlay::Error(..)) => Context::Text,
            Some(Overlay::Plan(_)) => Context::Plan,
            Some(Overlay::Running(_)) => Context::Running,
            Some(Overlay::Ended(_)) => Context::Outcome,
            Some(Overlay::Log(..)) => Context::Log,
            Some(Overlay::Picker(_)) => Context::Picker,
            None if self.typing.is_some() => Context::Filter,
            None => self.base_context(),
        }
    }

    /// Where keys go without the boxes.
    pub fn base_context(&self) -> Context {
        match (self.screen, self.focus) {
            (Screen::Start, _) => Context::Start,
            (Screen::Timeline, Pane::Timeline) => Context::Timeline,
            (Screen::Timeline, Pane::Files) => Context::Files,
            (Screen::Timeline, Pane::Diff) => Context::Diff,
        }
    }

    /// Says something to the user.
    pub fn say(&mut self, tone: Tone, text: impl Into<String>) {
        self.notice = Some(Notice {
            tone,
            text: text.into(),
        });
    }

    /// True while a rewind is at work.
    pub fn running(&self) -> bool {
        self.overlays.iter().any(|o| matches!(o, Overlay::Running(_)))
    }
}

/// What a plan asks for. Own edits and holders of open files need the word.
pub fn confirm(plan: &Plan) -> Confirm {
    if plan.blockers.iter().any(|b| b.stops) {
        Confirm::Refused
    } else if plan.changes.is_empty() && plan.chat == "kept" {
        Confirm::Nothing
    } else if !plan.yours.is_empty() || plan.blockers.iter().any(|b| b.kind == "holder") {
        Confirm::Word
    } else {
        Confirm::Key
    }
}
