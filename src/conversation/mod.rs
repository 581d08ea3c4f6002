//! Who said what: conversations as the agents store them, read by one *source* for each agent and format.
//! This room never writes.

mod branch;
mod claude_code;
mod claude_cut;
mod claude_gather;
mod claude_live;
mod claude_record;
mod claude_text;
mod claude_tree;
mod clock;
mod codex;
mod codex_files;
mod codex_record;
mod codex_thread;
mod copilot;
mod copilot_record;
pub mod elsewhere;
mod folder;
mod frozen;
mod frozen_vfs;
mod gemini;
mod gemini_record;
mod gemini_replay;
mod json;
mod jsonl;
mod lookup;
mod opencode;
mod opencode_base;
mod opencode_record;
mod opencode_tree;
mod openhands_app;
mod openhands_base;
mod openhands_event;
mod openhands_lease;
mod openhands_roots;
mod openhands_stand;
mod openhands_store;
mod openhands_tree;
mod openhands_v0;
mod openhands_v1;
mod rows;
mod stage;
mod torn;

use std::path::{Path, PathBuf};
use std::time::SystemTime;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Deserializer, Serialize, Serializer, ser::SerializeMap};

use crate::failure::{Explain, Kind, Report};
use crate::progress::Progress;
use crate::text::{self, shown_path};

pub use claude_code::{ClaudeCode, ClaudeOpen, claude_open, claude_words};
pub use claude_cut::{Beginning, Piece, Until};
pub use codex::Codex;
pub use copilot::Copilot;
pub use gemini::Gemini;
pub use lookup::{Found, Library, Listing};
pub use opencode::Opencode;
pub use opencode_tree::OpencodeTree;
pub use openhands_app::OpenHandsApp;
pub use openhands_lease::Owner;
pub use openhands_roots::{is_server, served_by};
pub use openhands_stand::{Format, Place, Stand, head_now, leased_now};
pub use openhands_v0::OpenHandsV0;
pub use openhands_v1::OpenHandsV1;

/// Reads one JSON object as an agent writes it: text that is no UTF-8 and lone surrogates are replaced, not
/// refused, exactly as when stores are read. The error is one harmless line.
pub fn lenient_json<T: serde::de::DeserializeOwned>(bytes: &[u8]) -> std::result::Result<T, String> {
    json::with_object(bytes, &mut Vec::new(), |value: T| value)
}

/// A result of this room.
pub type Result<T> = std::result::Result<T, ConversationError>;

/// What can go wrong when conversations are read.
#[derive(Debug, thiserror::Error)]
pub enum ConversationError {
    /// No such conversation.
    #[error("there is no conversation {}", text::shown(what))]
    NotFound {
        /// What was asked for.
        what: String,
    },
    /// More than one fits.
    #[error("{} fits {count} conversations", text::shown(what))]
    Ambiguous {
        /// What was asked for.
        what: String,
        /// How many fit.
        count: usize,
    },
    /// A file of the store cannot be parsed.
    #[error("{} cannot be read: {reason}", shown_path(path))]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// A system call failed.
    #[error("cannot read {}: {source}", shown_path(path))]
    Io {
        /// The path.
        path: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
    /// The user cancelled.
    #[error("cancelled")]
    Cancelled,
    /// What the machine answered that has the conversations.
    #[error("{}", .0.message)]
    Elsewhere(Report),
}

impl Explain for ConversationError {
    fn kind(&self) -> Kind {
        match self {
            Self::NotFound { .. } => Kind::NotFound,
            Self::Ambiguous { .. } => Kind::Refused,
            Self::Damaged { .. } => Kind::Damaged,
            Self::Io { .. } => Kind::Failed,
            Self::Cancelled => Kind::Cancelled,
            Self::Elsewhere(r) => r.kind,
        }
    }
    fn path(&self) -> Option<&Path> {
        match self {
            Self::Damaged { path, .. } | Self::Io { path, .. } => Some(path),
            Self::Elsewhere(r) => r.path.as_deref(),
            _ => None,
        }
    }
    fn hint(&self) -> Option<String> {
        match self {
            Self::NotFound { .. } | Self::Ambiguous { .. } => {
                Some("respool conversations lists what was found".into())
            }
            Self::Elsewhere(r) => r.hint.clone(),
            _ => None,
        }
    }
}

/// A conversation in a list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Summary {
    /// The agent's own id of it.
    pub id: String,
    /// The agent: `openhands`, ...
    pub agent: &'static str,
    /// The folder or file that it is stored in.
    pub store: PathBuf,
    /// The folder that the agent works in, as the store says; may be a path inside a container.
    pub workspace: Option<PathBuf>,
    /// The title, or the first message's first line.
    pub title: Option<String>,
    /// How many messages, where that is known without reading all of it.
    pub messages: Option<u64>,
    /// When the store last changed.
    pub updated_at: Option<DateTime<Utc>>,
    /// The agent says that it is at work, or a living process holds the store.
    pub live: bool,
}

impl Serialize for Summary {
    fn serialize<S: Serializer>(&self, s: S) -> std::result::Result<S::Ok, S::Error> {
        let mut map = s.serialize_map(None)?;
        map.serialize_entry("id", &self.id)?;
        map.serialize_entry("agent", self.agent)?;
        text::serialize_path(&mut map, "store", "store_b64", &self.store)?;
        match &self.workspace {
            Some(w) => text::serialize_path(&mut map, "workspace", "workspace_b64", w)?,
            None => map.serialize_entry("workspace", &None::<()>)?,
        }
        map.serialize_entry("title", &self.title)?;
        map.serialize_entry("messages", &self.messages)?;
        map.serialize_entry("updated_at", &self.updated_at.map(text::rfc3339))?;
        map.serialize_entry("live", &self.live)?;
        map.end()
    }
}

/// A summary as it is written.
#[derive(Deserialize)]
struct RawSummary {
    id: String,
    agent: String,
    store: String,
    #[serde(default)]
    store_b64: Option<String>,
    workspace: Option<String>,
    #[serde(default)]
    workspace_b64: Option<String>,
    title: Option<String>,
    messages: Option<u64>,
    updated_at: Option<DateTime<Utc>>,
    live: bool,
}

impl<'de> Deserialize<'de> for Summary {
    fn deserialize<D: Deserializer<'de>>(d: D) -> std::result::Result<Self, D::Error> {
        let raw = RawSummary::deserialize(d)?;
        let exact = raw.workspace_b64;
        Ok(Self {
            id: raw.id,
            agent: elsewhere::agent(&raw.agent),
            store: text::path_of(raw.store, raw.store_b64.as_deref()),
            workspace: raw.workspace.map(|w| text::path_of(w, exact.as_deref())),
            title: raw.title,
            messages: raw.messages,
            updated_at: raw.updated_at,
            live: raw.live,
        })
    }
}

/// What kind of message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MessageKind {
    /// A plain message.
    Prompt,
    /// Sent while the agent was at work, to be taken up when it is done.
    Queued,
    /// Sent while the agent was at work, taken up at once.
    Steer,
    /// A shell line of the user's in the agent's prompt.
    Shell,
    /// A slash command.
    Command,
}

/// What an agent recorded of a prompt hook's run for a message.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HookNote {
    /// What the hook printed.
    pub stdout: String,
    /// The hook stopped the message.
    pub blocked: bool,
}

/// One message of the human's, in the store's order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Message {
    /// The agent's own id of it (an event uuid; a number for OpenHands V0).
    pub id: String,
    /// Its position in the store (the event's index; the last byte's where the store is one file).
    pub index: u64,
    /// Its number on the active branch, from 1; `None` off it.
    pub number: Option<u32>,
    /// What kind.
    pub kind: MessageKind,
    /// When it was sent, as far as that can be known.
    pub time: Option<DateTime<Utc>>,
    /// The text, as the human wrote it (hostile: show it through [`crate::text`]).
    pub text: String,
    /// How many pictures it holds.
    pub pictures: u32,
    /// On the active branch.
    pub active: bool,
    /// The branch it is on: 0 = the active one, then in the order in which they leave it.
    pub branch: u32,
    /// The native id of the event that the conversation's head must be set to, to be just before it.
    pub parent: Option<String>,
    /// Runs of prompt hooks recorded for it.
    pub hooks: Vec<HookNote>,
}

/// A conversation that was read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Conversation {
    /// Id, agent, store, ...
    pub summary: Summary,
    /// The human's messages, in the store's order.
    pub messages: Vec<Message>,
    /// The agent's word for what it is doing, as stored ("finished", "running", ...).
    pub status: Option<String>,
    /// True while the agent may still change files for the newest message.
    pub at_work: bool,
    /// How many events the store holds: the position after the newest one.
    pub events: u64,
    /// The position of the newest event read by which the agent used a tool, and so may have changed files;
    /// `None` if none was read, or if the format does not tell.
    pub acted: Option<u64>,
    /// What could not be read or understood, one line each; the rest is right.
    pub notices: Vec<String>,
    /// True if only the newest part was read (see [`Source::tail`]): numbers are not known then.
    pub partial: bool,
}

/// Where conversations are looked for.
#[derive(Debug, Clone)]
pub struct Roots {
    /// The home folder of the invoking user (also under sudo).
    pub home: PathBuf,
    /// Environment variables of the invoking user that move stores (`OPENHANDS_CONVERSATIONS_DIR`, ...).
    pub env: std::collections::BTreeMap<String, std::ffi::OsString>,
    /// The current folder.
    pub cwd: PathBuf,
}

/// Reads the conversations of one agent in one format.
pub trait Source: Send + Sync {
    /// The agent's name: `openhands`.
    fn agent(&self) -> &'static str;
    /// The stores on this machine. Cheap: no event is read.
    fn find(&self, roots: &Roots) -> Vec<PathBuf>;
    /// The agent's own id of the conversation in a store. Cheap.
    fn id(&self, store: &Path) -> String {
        lookup::name(store)
    }
    /// True if this folder or file is a store of this format.
    fn recognises(&self, store: &Path) -> bool;
    /// The store of the conversation that this path belongs to: a conversation may have more files than the one
    /// that it is known by.
    fn store_of(&self, path: &Path) -> PathBuf {
        path.to_owned()
    }
    /// The folder that the agent works in, as the store says. Cheaper than [`Source::summary`].
    fn workspace(&self, store: &Path) -> Result<Option<PathBuf>> {
        self.summary(store).map(|s| s.workspace)
    }
    /// What a list shows. Cheap: at most a few files are read.
    fn summary(&self, store: &Path) -> Result<Summary>;
    /// All of it.
    fn read(&self, store: &Path, progress: &dyn Progress) -> Result<Conversation>;
    /// The newest `rows` messages only, in a time that does not depend on the length of the conversation.
    fn tail(&self, store: &Path, rows: usize) -> Result<Conversation>;
    /// The messages whose events are at position `index` or after it; no message before it is read. Quick
    /// where nothing much came after it.
    fn since(&self, store: &Path, index: u64) -> Result<Conversation> {
        let mut some = self.tail(store, 16)?;
        some.messages.retain(|m| m.index >= index);
        some.partial = true;
        Ok(some)
    }
    /// Other stores that hold messages of this one, under the same ids: what it was forked from, or what was forked from
    /// it.
    fn kin(&self, _store: &Path) -> Vec<PathBuf> {
        Vec::new()
    }
    /// The folders in which stores appear, whether they exist or not (to be watched). Only of formats that
    /// record the workspace.
    fn places(&self, _roots: &Roots) -> Vec<PathBuf> {
        Vec::new()
    }
    /// Files that hold many conversations each, and what is beside them, whether they exist or not: one that begins there
    /// makes no new file.
    fn shared(&self, _roots: &Roots) -> Vec<PathBuf> {
        Vec::new()
    }
    /// When the conversation last changed.
    fn changed(&self, store: &Path) -> Option<SystemTime> {
        let times = self.watched(store).into_iter();
        times
            .filter_map(|p| std::fs::symlink_metadata(p).ok()?.modified().ok())
            .max()
    }
    /// The files, and the folders whose entries, change when the conversation goes on (to be watched).
    fn watched(&self, store: &Path) -> Vec<PathBuf>;
    /// True if a change of `path`, of which [`Source::watched`] brought a report, may be one of this conversation.
    fn concerns(&self, store: &Path, path: &Path) -> bool {
        path.starts_with(store)
    }
}
