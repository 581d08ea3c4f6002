//! What the watcher tells, and what can go wrong with it.

use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::conversation::ConversationError;
use crate::engine::{CheckpointId, EngineError, How};
use crate::failure::{Explain, Kind};
use crate::text::shown;

/// What can go wrong.
#[derive(Debug, thiserror::Error)]
pub enum WatchError {
    /// The conversation.
    #[error(transparent)]
    Conversation(#[from] ConversationError),
    /// The engine.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// The system's notification of changes.
    #[error("stores cannot be followed: {0}")]
    Notify(#[from] notify::Error),
    /// Nothing is left to be followed.
    #[error("the store of {} is gone", shown(conversation))]
    Gone {
        /// The last conversation.
        conversation: String,
        /// Where its store was.
        store: PathBuf,
    },
}

impl Explain for WatchError {
    fn kind(&self) -> Kind {
        match self {
            Self::Conversation(e) => e.kind(),
            Self::Engine(e) => e.kind(),
            Self::Notify(_) => Kind::Failed,
            Self::Gone { .. } => Kind::NotFound,
        }
    }
    fn path(&self) -> Option<&Path> {
        match self {
            Self::Conversation(e) => e.path(),
            Self::Engine(e) => e.path(),
            Self::Notify(_) => None,
            Self::Gone { store, .. } => Some(store),
        }
    }
    fn hint(&self) -> Option<String> {
        match self {
            Self::Conversation(e) => e.hint(),
            Self::Engine(e) => e.hint(),
            Self::Notify(_) => Some("see: sysctl fs.inotify.max_user_watches".into()),
            Self::Gone { .. } => Some("respool conversations lists what there is".into()),
        }
    }
}

/// What the watcher tells, one JSON line each.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "event", rename_all = "kebab-case")]
pub enum Event {
    /// It waits for conversations in this workspace; each one is followed from its first message on.
    Waiting {
        /// The workspace, a path as text.
        workspace: String,
        /// Its sandbox.
        sandbox: String,
    },
    /// It follows this conversation from now on.
    Watching {
        /// The conversation.
        conversation: String,
        /// Its sandbox.
        sandbox: String,
    },
    /// A message has a checkpoint now.
    Checkpoint {
        /// The conversation.
        conversation: String,
        /// The native id of the message.
        message: String,
        /// Its number on the active branch, where it is known.
        number: Option<u32>,
        /// The checkpoint.
        checkpoint: CheckpointId,
        /// How long it took, 0 where the hook took it.
        ms: u64,
        /// `hook` or `watch`.
        how: How,
        /// Paths that had changed already, where it is late.
        late: Option<u64>,
        /// The command that goes back to it.
        restore: String,
    },
    /// A turn has ended.
    TurnEnd {
        /// The conversation.
        conversation: String,
        /// The native id of its message.
        message: String,
        /// The checkpoint.
        checkpoint: CheckpointId,
        /// `hook` or `watch`.
        how: How,
    },
    /// Something failed; the watcher goes on.
    Failed {
        /// The conversation.
        conversation: String,
        /// The message, where it is about one.
        message: Option<String>,
        /// Why.
        reason: String,
    },
    /// The store of this conversation is gone; it is followed no longer.
    Gone {
        /// The conversation.
        conversation: String,
    },
}
