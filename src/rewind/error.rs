//! Errors of this room.

use std::path::{Path, PathBuf};

use crate::chat::ChatError;
use crate::engine::{Difference, EngineError};
use crate::failure::{Explain, Kind};
use crate::sandbox::freeze::FreezeError;
use crate::sandbox::parts::turn::DOCKER;
use crate::text::{shown, shown_path};

/// A result of this room.
pub type Result<T> = std::result::Result<T, RewindError>;

/// What can go wrong when the state of a sandbox is changed.
#[derive(Debug, thiserror::Error)]
pub enum RewindError {
    /// The conversation cannot be moved.
    #[error(transparent)]
    Chat(#[from] ChatError),
    /// All is done, but the record of it could not be closed.
    #[error("files and conversation are as wanted, but operation {operation} could not be closed: {cause}")]
    Unsettled {
        /// The operation.
        operation: String,
        /// Why.
        cause: Box<RewindError>,
    },
    /// The files are done, and the conversation is neither here nor there.
    #[error(
        "{cause}; it cannot be brought back now: {second}; the files are as wanted, operation {operation} waits"
    )]
    ChatStuck {
        /// The operation.
        operation: String,
        /// Why it could not be moved.
        cause: Box<ChatError>,
        /// Why it could not be brought back.
        second: Box<ChatError>,
    },
    /// It failed, and the agent had been interrupted for it.
    #[error("{cause}; the agent was interrupted for it and stays so: tell it to go on")]
    Interrupted {
        /// Why it failed.
        cause: Box<RewindError>,
    },
    /// The engine failed before anything was changed.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// Writers could not be stopped.
    #[error(transparent)]
    Freeze(#[from] FreezeError),
    /// It failed, and everything is back to the state before.
    #[error("{cause}{AS_BEFORE}{restarted}")]
    RolledBack {
        /// Why it failed.
        cause: Box<RewindError>,
        /// The containers that were stopped for it, and started again.
        restarted: Restarted,
    },
    /// It failed, and the way back failed too.
    #[error(
        "{cause}; going back to the state before failed too: {second}; the safety checkpoint {safety} holds it"
    )]
    Stuck {
        /// Why it failed.
        cause: Box<RewindError>,
        /// Why the roll-back failed.
        second: Box<RewindError>,
        /// What holds the state before.
        safety: String,
    },
    /// Moving Docker's data failed, and the way back failed too.
    #[error("{cause}; putting Docker's data back failed too: {second}")]
    DockerStuck {
        /// Why it failed.
        cause: Box<RewindError>,
        /// Why it could not be put back.
        second: Box<RewindError>,
    },
    /// The check after a restore found differences.
    #[error("the check found {} that differ from the checkpoint, first {}: {}", count_words(.0.len()), .0.first().map_or_else(String::new, |d| shown_path(&d.path)), .0.first().map_or("", |d| d.what.as_str()))]
    NotEqual(Vec<Difference>),
    /// A file of the operation log.
    #[error("cannot {what} {}: {source}", shown_path(path))]
    Log {
        /// The verb.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
    /// An entry of the operation log cannot be read.
    #[error(
        "the entry {} of the operation log cannot be read: {reason}",
        shown_path(path)
    )]
    DamagedLog {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// Another respool is at work on this sandbox.
    #[error("another respool is changing {} (process {holder})", shown_path(path))]
    Busy {
        /// The workspace.
        path: PathBuf,
        /// Who, if known.
        holder: String,
    },
    /// A decision is needed first.
    #[error("{why}")]
    Refused {
        /// The reason, one harmless line.
        why: String,
        /// The path that it is about.
        path: Option<PathBuf>,
        /// What helps.
        hint: Option<String>,
    },
    /// There is no such folder.
    #[error("there is no folder {}", shown_path(path))]
    NoFolder {
        /// Its path.
        path: PathBuf,
    },
    /// There is no such operation, or none that can be taken back.
    #[error("{0}")]
    NoOperation(String),
    /// The user cancelled.
    #[error("cancelled")]
    Cancelled,
}

/// What is said of an operation that was taken back, before what happened to containers all the same.
pub const AS_BEFORE: &str = "; everything is as it was before";

/// Containers (hostile names) that were stopped and started again.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Restarted(pub Vec<String>);

impl std::fmt::Display for Restarted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for name in &self.0 {
            match name.as_str() {
                DOCKER => write!(f, "; {DOCKER} was restarted")?,
                name => write!(f, "; container {} was restarted", shown(name))?,
            }
        }
        Ok(())
    }
}

fn count_words(n: usize) -> String {
    if n == 1 {
        "1 path".into()
    } else {
        format!("{n} paths")
    }
}

impl Explain for RewindError {
    fn kind(&self) -> Kind {
        match self {
            Self::Engine(e) => e.kind(),
            Self::Freeze(e) => e.kind(),
            Self::Chat(e) => e.kind(),
            Self::Interrupted { cause } => cause.kind(),
            Self::RolledBack { cause, .. } if cause.kind() == Kind::Cancelled => Kind::Cancelled,
            Self::Unsettled { .. }
            | Self::ChatStuck { .. }
            | Self::RolledBack { .. }
            | Self::Stuck { .. }
            | Self::DockerStuck { .. }
            | Self::Log { .. }
            | Self::NotEqual(_) => Kind::Failed,
            Self::DamagedLog { .. } => Kind::Damaged,
            Self::Busy { .. } | Self::Refused { .. } => Kind::Refused,
            Self::NoOperation(_) | Self::NoFolder { .. } => Kind::NotFound,
            Self::Cancelled => Kind::Cancelled,
        }
    }

    fn path(&self) -> Option<&Path> {
        match self {
            Self::Engine(e) => e.path(),
            Self::Chat(e) => e.path(),
            Self::RolledBack { cause, .. } | Self::Interrupted { cause } | Self::Stuck { cause, .. } => {
                cause.path()
            }
            Self::NotEqual(d) => d.first().map(|d| d.path.as_path()),
            Self::Log { path, .. }
            | Self::DamagedLog { path, .. }
            | Self::Busy { path, .. }
            | Self::NoFolder { path } => Some(path),
            Self::Refused { path, .. } => path.as_deref(),
            _ => None,
        }
    }

    fn hint(&self) -> Option<String> {
        match self {
            Self::Engine(e) => e.hint(),
            Self::Freeze(e) => e.hint(),
            Self::Chat(e) => e.hint(),
            Self::Unsettled { .. } | Self::ChatStuck { .. } => Some("run: respool recover".into()),
            Self::RolledBack { cause, .. } | Self::Interrupted { cause } => cause.hint(),
            Self::DockerStuck { .. } => Some("mend that, then: respool recover".into()),
            Self::Stuck { safety, .. } => Some(format!(
                "free space or stop writers, then: respool recover; or: respool rewind {safety}"
            )),
            Self::NotEqual(_) => Some("something wrote at the same time; stop it and try again".into()),
            Self::Busy { .. } => Some("wait for it, then try again".into()),
            Self::Refused { hint, .. } => hint.clone(),
            Self::Log { source, .. } => crate::engine::error::io_hint(source),
            Self::NoOperation(_) => Some("respool log lists the operations".into()),
            _ => None,
        }
    }
}
