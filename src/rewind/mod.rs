//! Going back: the plan, the journal, the run, what a crash left, undo and redo.

pub mod adopt;
mod aside;
pub mod boot;
mod both;
pub mod copies;
pub mod docker;
mod error;
pub mod exclusive;
mod extent;
pub mod guard;
pub mod journal;
pub mod offer;
mod others;
pub mod plan;
pub mod recover;
pub mod remote;
pub mod run;
pub mod survey;
pub mod talk;
pub mod tools;
pub mod track;
pub mod undo;
pub mod untrack;

pub use error::{AS_BEFORE, Restarted, Result, RewindError};

use std::path::PathBuf;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize, Serializer};

use crate::chat::Talk;
use crate::engine::{Change, CheckpointId};
use crate::packages::Summary;
use crate::sandbox::parts::turn::Rewound;
use crate::text;

/// Why a rewind cannot be done as it is, or what must be decided first.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Blocker {
    /// `holder` (open files: will be paused), `cwd` (only stands there: told, not stopped), `shell` (one that an
    /// agent left behind), `agent` (the agent is at work), `container` (one has the folder mounted, or cannot go back), `chat` (somebody holds the conversation), `conversation` (another one changed some of the paths), `docker` (what becomes of everybody's containers), `nested` (a subvolume or mount inside is not covered), `rights` (this user may
    /// not bring it back), `space`.
    pub kind: &'static str,
    /// The process, where it is one.
    pub pid: Option<i32>,
    /// What it is, one harmless line.
    pub what: String,
    /// True if the rewind is refused as long as it stands; false if it is only told.
    pub stops: bool,
}

/// How far a rewind reaches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Reach {
    /// Files, and the conversation where it can be moved.
    #[default]
    Auto,
    /// Files and conversation, or nothing.
    Both,
    /// Files alone.
    Files,
    /// The conversation alone.
    Chat,
}

/// What a rewind will do, computed before it does anything.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Plan {
    /// The sandbox.
    pub sandbox: String,
    /// Where it goes back to.
    pub target: CheckpointId,
    /// The target in words: "just before message 3", "end of turn 2".
    pub target_words: String,
    /// The number of the message, where the target is one.
    pub message: Option<u32>,
    /// The steps, one line each.
    pub steps: Vec<String>,
    /// What differs from the target to now: all of it is taken back.
    pub changes: Vec<Change>,
    /// The packages that were installed, removed or changed since then: that is taken back with their files.
    #[serde(flatten)]
    pub packages: Summary,
    /// Those of the changes that are not the agent's doing but the user's own (or another's), after a turn's end.
    #[serde(serialize_with = "paths")]
    pub yours: Vec<PathBuf>,
    /// What stands in the way.
    pub blockers: Vec<Blocker>,
    /// What is in the workspace but in no checkpoint (nested subvolumes, mounts), harmless lines.
    pub not_covered: Vec<String>,
    /// What happens to the conversation: `kept`, `rewound`, `forked`.
    pub chat: &'static str,
    /// Why it is kept although that was not asked for, one harmless line.
    pub chat_reason: Option<String>,
    /// How far it reaches.
    #[serde(skip)]
    pub reach: Reach,
    /// How the conversation is moved.
    #[serde(skip)]
    pub talk: Option<Box<Talk>>,
    /// An agent server has the conversation, and sends a message to it.
    #[serde(skip)]
    pub sends: bool,
}

impl Plan {
    /// True where a quick yes is not enough, because more than the agent's work is touched: the user's own
    /// edits or another conversation's work are lost, a program that has files open is affected, or the agent is
    /// interrupted. Then the verb must be typed.
    pub fn needs_word(&self) -> bool {
        let others = |b: &Blocker| matches!(b.kind, "holder" | "agent" | "conversation" | "docker");
        !self.yours.is_empty() || self.blockers.iter().any(others)
    }
}

fn paths<S: Serializer>(paths: &[PathBuf], s: S) -> std::result::Result<S::Ok, S::Error> {
    s.collect_seq(paths.iter().map(|p| text::json_path(p).0))
}

/// One of a few fixed words.
pub type Word = &'static str;

/// The result of a rewind, an undo or a redo, after its check.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Outcome {
    /// The operation's id in the log.
    pub operation: String,
    /// The safety checkpoint taken before.
    pub safety: CheckpointId,
    /// Inodes changed in the workspace.
    pub changed: u64,
    /// True: the check after it found no difference to the target. It is never shown as done otherwise.
    pub verified: bool,
    /// `kept`, `rewound` or `forked`.
    #[serde(deserialize_with = "chat_word")]
    pub chat: Word,
    /// The id of the conversation that is gone on with, where it is another one than before.
    #[serde(default)]
    pub conversation: Option<String>,
    /// Its store, once it has one.
    #[serde(skip)]
    pub store: Option<PathBuf>,
    /// An edited message was sent.
    pub resent: bool,
    /// What the user should know, harmless lines (a shell to `cd` again, a holder that was paused).
    pub notes: Vec<String>,
    /// The containers that went back, too.
    #[serde(default)]
    pub containers: Vec<Rewound>,
}

fn chat_word<'de, D: serde::Deserializer<'de>>(d: D) -> std::result::Result<&'static str, D::Error> {
    let word = String::deserialize(d)?;
    let known = ["kept", "rewound", "forked"].into_iter().find(|w| *w == word);
    known.ok_or_else(|| serde::de::Error::custom("no word for what happened to the conversation"))
}

/// What an entry of the operation log is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OperationKind {
    /// A folder was put under respool.
    Track,
    /// It was given back.
    Untrack,
    /// Back to a checkpoint.
    Rewind,
    /// A rewind taken back.
    Undo,
    /// An undo taken back.
    Redo,
}

/// Where an operation stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OperationState {
    /// It was done and checked.
    Done,
    /// It was taken back later.
    Undone,
    /// It was cut short; `recover` finishes it or takes it back.
    Interrupted,
    /// It failed or was cut short, and everything is as before it.
    RolledBack,
}

/// An entry of the operation log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Operation {
    /// Its id, `op-...`.
    pub id: String,
    /// What was done.
    pub kind: OperationKind,
    /// When it began.
    #[serde(serialize_with = "crate::text::serialize_time")]
    pub time: DateTime<Utc>,
    /// The message that it went back to, in words.
    pub message: Option<String>,
    /// Where it stands.
    pub state: OperationState,
    /// Its safety checkpoint.
    pub safety: Option<CheckpointId>,
    /// Where it went.
    pub target: Option<CheckpointId>,
}
