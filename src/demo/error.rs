//! What can go wrong in the demo.

use std::io;
use std::path::{Path, PathBuf};

use crate::failure::{Explain, Kind};
use crate::text::{shown, shown_path};

/// A result of this room.
pub type Result<T> = std::result::Result<T, DemoError>;

/// What can go wrong in the demo.
#[derive(Debug, thiserror::Error)]
pub enum DemoError {
    /// The recording inside the program cannot be used.
    #[error("the demo's recording cannot be used: {}", shown(what))]
    Recording {
        /// What is wrong with it.
        what: String,
    },
    /// The engine.
    #[error(transparent)]
    Engine(#[from] crate::engine::EngineError),
    /// Tracking, rewinding, undoing.
    #[error(transparent)]
    Rewind(#[from] crate::rewind::RewindError),
    /// The conversation that was played.
    #[error(transparent)]
    Conversation(#[from] crate::conversation::ConversationError),
    /// A message or checkpoint of it.
    #[error(transparent)]
    Select(#[from] crate::timeline::select::SelectError),
    /// A path of the scratch sandbox could not be changed or read.
    #[error("cannot {doing} {}: {source}", shown_path(path))]
    Io {
        /// What was tried, as in "write".
        doing: &'static str,
        /// The path.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
}

impl DemoError {
    /// For `map_err`: what was tried with which path.
    pub(super) fn io<E: Into<io::Error>>(doing: &'static str, path: &Path) -> impl FnOnce(E) -> Self {
        move |e| Self::Io {
            doing,
            path: path.to_owned(),
            source: e.into(),
        }
    }
    /// For `map_err`: a part of the recording that does not read.
    pub(super) fn recording<E: std::fmt::Display>(part: &str) -> impl FnOnce(E) -> Self {
        move |e| Self::Recording {
            what: format!("{part}: {e}"),
        }
    }
}

impl Explain for DemoError {
    fn kind(&self) -> Kind {
        match self {
            Self::Engine(e) => e.kind(),
            Self::Rewind(e) => e.kind(),
            Self::Conversation(e) => e.kind(),
            Self::Select(e) => e.kind(),
            Self::Recording { .. } => Kind::Damaged,
            Self::Io { .. } => Kind::Failed,
        }
    }
    fn path(&self) -> Option<&Path> {
        match self {
            Self::Engine(e) => e.path(),
            Self::Rewind(e) => e.path(),
            Self::Conversation(e) => e.path(),
            Self::Select(_) | Self::Recording { .. } => None,
            Self::Io { path, .. } => Some(path),
        }
    }
    fn hint(&self) -> Option<String> {
        match self {
            Self::Engine(e) => e.hint(),
            Self::Rewind(e) => e.hint(),
            Self::Conversation(e) => e.hint(),
            Self::Select(e) => e.hint(),
            Self::Recording { .. } => Some("build respool again from its source".into()),
            Self::Io { .. } => {
                Some("respool demo --dir DIR takes another folder for the scratch sandbox".into())
            }
        }
    }
}
