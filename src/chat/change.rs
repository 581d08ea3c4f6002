//! What is done to a conversation, as plain data that a record keeps.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::error::{ChatError, Result};
use super::{Fork, cut, fork};
use crate::text::ExactPath;

/// Where a conversation is to go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Aim {
    /// Just before this message.
    Before(String),
    /// The end of this message's turn.
    EndOf(String),
    /// Back to where it was before this change.
    Undone(Change),
}

/// How it gets there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Way {
    /// The head of an event tree moves.
    Head {
        /// Where it was.
        before: String,
        /// Where it goes.
        after: String,
    },
    /// The events from a place on go to an archive.
    Cut {
        /// The number of the first of them.
        from: u64,
        /// The archive, beside the events.
        archive: String,
        /// The archive whose events come back in their place.
        #[serde(default)]
        back: Option<String>,
    },
    /// The conversation stays, and a new one begins as it does up to a place.
    Fork(Fork),
    /// The new one is left again, and taken away if nobody has gone on in it.
    Unfork(Fork),
}

impl Way {
    /// What becomes of the conversation: `rewound`, `forked`.
    pub(super) fn word(&self) -> &'static str {
        match self {
            Self::Fork(_) => "forked",
            Self::Head { .. } | Self::Cut { .. } | Self::Unfork(_) => "rewound",
        }
    }
}

/// A change of a conversation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Change {
    /// Version.
    pub v: u32,
    /// The agent.
    pub agent: String,
    /// The agent's own id of the conversation.
    pub conversation: String,
    /// Its store.
    pub store: ExactPath,
    /// What is done.
    pub way: Way,
    /// The store said `running` although nobody was at work: set to `idle` with it.
    #[serde(default)]
    pub stale: bool,
}

/// On which side of a change a conversation is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// As it was.
    Before,
    /// As it will be.
    After,
}

impl Change {
    /// From what a record keeps.
    pub fn of(kept: &serde_json::Value) -> Result<Self> {
        let unknown = |e: String| {
            ChatError::Unmovable(format!(
                "what was to become of the conversation is not known: {e}"
            ))
        };
        let change = Self::deserialize(kept).map_err(|e| unknown(crate::text::shown(&e.to_string())))?;
        let (agent, named) = match &change.way {
            Way::Head { .. } => ("openhands", true),
            Way::Cut { archive, back, .. } => (
                "openhands",
                cut::is_name(archive) && back.as_deref().is_none_or(cut::is_name),
            ),
            Way::Fork(fork) | Way::Unfork(fork) => {
                (fork::AGENT, fork.is_named() && fork::is_ours(change.path()))
            }
        };
        if change.v == 1 && change.agent == agent && named {
            return Ok(change);
        }
        Err(unknown("it is of another version".into()))
    }

    /// As a record keeps it.
    pub fn kept(&self) -> Result<serde_json::Value> {
        serde_json::to_value(self)
            .map_err(|e| ChatError::Unmovable(format!("it cannot be written down: {e}")))
    }

    pub(super) fn path(&self) -> &Path {
        &self.store.0
    }

    /// What becomes of the conversation: `rewound`, `forked`.
    pub fn word(&self) -> &'static str {
        self.way.word()
    }

    /// The id of the conversation that is gone on with, where it is another one than before.
    pub fn leads_to(&self) -> Option<&str> {
        match &self.way {
            Way::Fork(fork) => Some(&fork.id),
            Way::Unfork(_) => Some(&self.conversation),
            Way::Head { .. } | Way::Cut { .. } => None,
        }
    }

    /// Where that conversation is stored, if it has begun.
    pub fn leads_to_store(&self) -> Option<PathBuf> {
        self.leads_to().map(|id| fork::beside(self.path(), id))
    }
}
