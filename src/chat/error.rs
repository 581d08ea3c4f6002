//! Errors of this room.

use std::path::{Path, PathBuf};

use crate::conversation::ConversationError;
use crate::failure::{Explain, Kind};
use crate::text::{shown, shown_path};

/// A result of this room.
pub type Result<T> = std::result::Result<T, ChatError>;

/// What can go wrong when a conversation is moved.
#[derive(Debug, thiserror::Error)]
pub enum ChatError {
    /// The store cannot be read.
    #[error(transparent)]
    Read(#[from] ConversationError),
    /// This conversation cannot be moved to that place, whoever asks.
    #[error("{0}")]
    Unmovable(String),
    /// Somebody who cannot be asked holds the store.
    #[error("{what}: a store that is in use is never changed")]
    Held {
        /// Who, one harmless line.
        what: String,
        /// The process, where it is one of this machine.
        pid: Option<i32>,
        /// What helps.
        hint: Option<String>,
    },
    /// The agent is at work.
    #[error("the agent is at work on this conversation ({0})")]
    AtWork(String),
    /// The agent is at work, and nobody but its user can interrupt it.
    #[error("the agent is at work on this conversation (Claude Code, process {0})")]
    Working(i32),
    /// A message cannot be sent again with its pictures.
    #[error("the message has {0} picture(s), and Claude Code's command takes text alone: they would be lost")]
    Pictures(u32),
    /// A message that no command line can carry.
    #[error("the message {0}")]
    Uncarried(String),
    /// The agent did not stop in time.
    #[error("the agent was interrupted and did not stop within {0} seconds")]
    NotStopped(u64),
    /// It failed after the agent was told to stop.
    #[error("{0}; the agent was interrupted for it and stays so: tell it to go on")]
    Interrupted(Box<ChatError>),
    /// The agent's server did not do what it was asked.
    #[error("{url}: {what}")]
    Server {
        /// Its address.
        url: String,
        /// What went wrong, one harmless line.
        what: String,
    },
    /// A message was sent, and nothing came back.
    #[error("{0}: no answer to the message came, and it may have been taken")]
    Unanswered(Box<ChatError>),
    /// Another respool changes the conversation.
    #[error("another respool is changing the conversation at {}", shown_path(.0))]
    Busy(PathBuf),
    /// The store was changed by somebody else.
    #[error("the conversation changed meanwhile: {0}")]
    Changed(String),
    /// A file of the store is not what it must be.
    #[error("{}: {reason}", shown_path(path))]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// A system call failed.
    #[error("cannot {what} {}: {source}", shown_path(path))]
    Io {
        /// The verb.
        what: &'static str,
        /// The path.
        path: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
    /// The user cancelled.
    #[error("cancelled")]
    Cancelled,
}

/// What helps where Claude Code is at work.
pub(super) const WORKING: &str = "wait for it, or press Esc in its window";

impl ChatError {
    /// The agent was told to stop before.
    pub(super) fn after_interrupt(self) -> Self {
        match self {
            said @ Self::NotStopped(_) => said,
            cause => Self::Interrupted(Box::new(cause)),
        }
    }

    /// For a system call on `path`.
    pub(super) fn io<E: Into<std::io::Error>>(what: &'static str, path: &Path) -> impl FnOnce(E) -> Self {
        let path = path.to_owned();
        move |e| Self::Io {
            what,
            path,
            source: e.into(),
        }
    }

    /// An answer that is not what was asked for.
    pub(super) fn server(url: &str, what: impl AsRef<str>) -> Self {
        Self::Server {
            url: url.to_owned(),
            what: shown(what.as_ref()),
        }
    }
}

impl Explain for ChatError {
    fn kind(&self) -> Kind {
        match self {
            Self::Read(e) => e.kind(),
            Self::Interrupted(e) => e.kind(),
            Self::Unmovable(_)
            | Self::Held { .. }
            | Self::AtWork(_)
            | Self::Working(_)
            | Self::Pictures(_)
            | Self::Uncarried(_)
            | Self::NotStopped(_)
            | Self::Busy(_)
            | Self::Changed(_) => Kind::Refused,
            Self::Damaged { .. } => Kind::Damaged,
            Self::Server { .. } | Self::Unanswered(_) | Self::Io { .. } => Kind::Failed,
            Self::Cancelled => Kind::Cancelled,
        }
    }

    fn path(&self) -> Option<&Path> {
        match self {
            Self::Read(e) => e.path(),
            Self::Interrupted(e) => e.path(),
            Self::Busy(path) | Self::Damaged { path, .. } | Self::Io { path, .. } => Some(path),
            _ => None,
        }
    }

    fn hint(&self) -> Option<String> {
        match self {
            Self::Read(e) => e.hint(),
            Self::Interrupted(e) => e.hint(),
            Self::Unmovable(_) => Some("restore the files alone: --files".into()),
            Self::Held { hint, .. } => hint.clone(),
            Self::AtWork(_) => Some("wait for it, or interrupt it: --interrupt".into()),
            Self::Working(_) => Some(WORKING.into()),
            Self::Pictures(_) => {
                Some("rewind without --resend, and send it in the agent with its pictures".into())
            }
            Self::Uncarried(_) => Some("rewind without --resend, and send it in the agent".into()),
            Self::Unanswered(_) => Some("look at the conversation before you send it again".into()),
            Self::NotStopped(_) => Some("end it, then try again".into()),
            Self::Busy(_) | Self::Changed(_) => Some("wait for it, then try again".into()),
            _ => None,
        }
    }
}
