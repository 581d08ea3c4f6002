//! Everything that the screens show. One task owns it; drawing reads it; only `update` changes it.

mod edit;
mod field;
mod loading;
mod open;
mod overlay;

use std::path::PathBuf;
use std::sync::Arc;

use chrono::{DateTime, FixedOffset, Utc};

pub use self::edit::*;
pub use self::field::Field;
pub use self::loading::*;
pub use self::open::*;
pub use self::overlay::*;
use super::keymap::{Context, Keymap};
use super::message::JobId;
use super::theme::Theme;
use crate::conversation::Summary;

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
    /// The store that is to be selected when the list comes first.
    pub wished: Option<PathBuf>,
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
    /// The folder that the program was started in.
    pub folder: Option<PathBuf>,
    /// Inside of tmux, which can open a window.
    pub tmux: bool,
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
    /// The folder that the program was started in.
    pub folder: Option<PathBuf>,
    /// The store to open; none = the start screen.
    pub store: Option<PathBuf>,
    /// The store that is selected on the start screen.
    pub select: Option<PathBuf>,
    /// Something to say at once.
    pub notice: Option<String>,
    /// Inside of tmux.
    pub tmux: bool,
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
            folder: setup.folder,
            tmux: setup.tmux,
            screen: if setup.store.is_some() {
                Screen::Timeline
            } else {
                Screen::Start
            },
            conversations: Conversations {
                wished: setup.select,
                ..Conversations::default()
            },
            open: setup.store.map(Open::new),
            focus: Pane::Timeline,
            zoom: false,
            typing: None,
            overlays: Vec::new(),
            notice: setup.notice.map(|text| Notice {
                tone: Tone::Plain,
                text,
            }),
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
            Some(Overlay::Help(_) | Overlay::Message(..) | Overlay::Error(..) | Overlay::Notices(_)) => {
                Context::Text
            }
            Some(Overlay::Plan(_)) => Context::Plan,
            Some(Overlay::Edit(edit)) if edit.on_parts => Context::Attached,
            Some(Overlay::Edit(_)) => Context::Edit,
            Some(Overlay::Track(_)) => Context::Track,
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

    /// True while a rewind or a tracking is at work.
    pub fn running(&self) -> bool {
        self.overlays.iter().any(|o| match o {
            Overlay::Running(_) => true,
            Overlay::Track(shown) => matches!(shown.stage, TrackStage::Working(..)),
            _ => false,
        })
    }
}
