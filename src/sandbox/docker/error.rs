//! What can go wrong with a container.

use std::path::{Path, PathBuf};

use crate::engine::EngineError;
use crate::failure::{Explain, Kind};
use crate::text::shown;

/// A result of this room.
pub type Result<T> = std::result::Result<T, DockerError>;

/// What can go wrong with a container, or its engine.
#[derive(Debug, thiserror::Error)]
pub enum DockerError {
    /// No engine answers.
    #[error("no container engine answers: {}", shown(.0))]
    Unreachable(String),
    /// It has no such container.
    #[error("there is no container {}", shown(.0))]
    NoContainer(String),
    /// An act did not have the effect that was wanted.
    #[error("cannot {what} container {}: {}", shown(name), shown(why))]
    Act {
        /// The verb.
        what: &'static str,
        /// The container's name.
        name: String,
        /// What the engine said, and the state after it.
        why: String,
    },
    /// It is not done, with the reason.
    #[error("{why}")]
    Refused {
        /// The reason, one harmless line.
        why: String,
        /// The path that it is about.
        path: Option<PathBuf>,
        /// What helps.
        hint: Option<String>,
    },
    /// The files of a container.
    #[error(transparent)]
    Engine(#[from] EngineError),
}

impl Explain for DockerError {
    fn kind(&self) -> Kind {
        match self {
            Self::Unreachable(_) | Self::Act { .. } => Kind::Failed,
            Self::NoContainer(_) => Kind::NotFound,
            Self::Refused { .. } => Kind::Refused,
            Self::Engine(e) => e.kind(),
        }
    }
    fn path(&self) -> Option<&Path> {
        match self {
            Self::Refused { path, .. } => path.as_deref(),
            Self::Engine(e) => e.path(),
            _ => None,
        }
    }
    fn hint(&self) -> Option<String> {
        match self {
            Self::Unreachable(_) => Some(
                "engines are looked for at DOCKER_HOST, the current context, /var/run/docker.sock and Podman's sockets"
                    .into(),
            ),
            Self::NoContainer(_) => Some("respool docker status lists them".into()),
            Self::Act { .. } => None,
            Self::Refused { hint, .. } => hint.clone(),
            Self::Engine(e) => e.hint(),
        }
    }
}
