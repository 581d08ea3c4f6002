//! Message x checkpoint: the only room where conversation and engine are joined.

pub mod containers;
pub mod counts;
pub mod desk;
pub mod join;
mod kin;
pub mod notes;
pub mod packages;
pub mod select;

use chrono::{DateTime, Utc};
use serde::{Serialize, Serializer, ser::SerializeMap};

use crate::conversation::{MessageKind, Summary};
use crate::engine::{CheckpointId, Counts};
use crate::packages::{PackageChange, Summary as Packages, Unread};
use crate::text;

/// What a row knows of its checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum CheckpointState {
    /// It can be gone back to.
    Ok,
    /// There is none; the reason says why.
    None,
    /// Taking it failed.
    Failed,
    /// It is there but cannot be used.
    Damaged,
    /// Removed by retention.
    Thinned,
    /// Taken after the agent had begun.
    Late,
    /// A part of it is missing.
    Incomplete,
}

impl CheckpointState {
    /// Whether a rewind to it is possible.
    pub fn usable(self) -> bool {
        matches!(self, Self::Ok | Self::Late)
    }
}

/// The checkpoint of a row.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RowCheckpoint {
    /// Its id, if there is one.
    pub id: Option<CheckpointId>,
    /// Its state.
    pub state: CheckpointState,
    /// Why it is not `ok`.
    pub reason: Option<String>,
    /// The user's label.
    pub label: Option<String>,
    /// Never pruned.
    pub pinned: bool,
    /// The checkpoint of the end of this message's turn.
    pub turn_end: Option<CheckpointId>,
}

/// One message and its checkpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Row {
    /// The number on the active branch; `None` off it.
    pub message: Option<u32>,
    /// The native id of the message.
    pub id: String,
    /// What kind of message.
    pub kind: MessageKind,
    /// When it was sent.
    pub time: Option<DateTime<Utc>>,
    /// The whole text (hostile).
    pub text: String,
    /// How many pictures it holds.
    pub pictures: u32,
    /// On the active branch.
    pub active: bool,
    /// See [`crate::conversation::Message::branch`].
    pub branch: u32,
    /// Its checkpoint; `None` if the workspace is not tracked.
    pub checkpoint: Option<RowCheckpoint>,
    /// What its turn changed, where that is known.
    pub changes: Option<Counts>,
    /// What changed from the end of its turn to the next message.
    pub between: Option<Counts>,
    /// The packages that its turn installed, removed or changed, where that is known.
    pub packages: Option<Packages>,
}

impl Serialize for Row {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        let mut map = s.serialize_map(None)?;
        map.serialize_entry("message", &self.message)?;
        map.serialize_entry("id", &self.id)?;
        map.serialize_entry("kind", &self.kind)?;
        map.serialize_entry("time", &self.time.map(text::rfc3339))?;
        map.serialize_entry("text", &self.text)?;
        map.serialize_entry("pictures", &self.pictures)?;
        map.serialize_entry("active", &self.active)?;
        map.serialize_entry("branch", &self.branch)?;
        map.serialize_entry("checkpoint", &self.checkpoint)?;
        map.serialize_entry("changes", &self.changes)?;
        map.serialize_entry("between", &self.between)?;
        let packages = self.packages.as_ref();
        let changed: Option<&[PackageChange]> = packages.map(|p| &p.packages[..]);
        let unread: &[Unread] = packages.map_or(&[], |p| &p.packages_unread);
        map.serialize_entry("packages", &changed)?;
        map.serialize_entry("packages_unread", unread)?;
        map.end()
    }
}

/// The timeline of a conversation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Timeline {
    /// The conversation.
    pub conversation: Summary,
    /// Its messages, in the store's order.
    pub rows: Vec<Row>,
    /// The id of the sandbox, if the workspace is tracked.
    pub sandbox: Option<String>,
    /// True while the agent is at work.
    pub at_work: bool,
    /// What could not be read, one line each.
    pub notices: Vec<String>,
    /// Only the newest rows were read so far; numbers are not known.
    pub partial: bool,
}
