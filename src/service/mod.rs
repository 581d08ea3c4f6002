//! The privileged helper behind a socket, the same on another machine at the end of ssh, and their client. The service does what needs root for the owner of a
//! sandbox: checkpoints, reading, rewind, undo, redo. It removes no checkpoint for anybody but root, and knows no
//! conversation.
//!
//! # The protocol
//! Frames in both directions: the length as four bytes (big endian), then that many bytes of JSON. The client's first
//! frame is [`frame::Hello`]; the service answers with its own. Then requests go out, each with a number of the
//! client's, and for each number come [`frame::Answer`]s: progress, and at the end one result. Requests run side by
//! side; [`frame::Ask::cancel`] stops one, and so does the end of the connection.

pub mod answer;
pub mod client;
pub mod door;
pub mod frame;
pub mod host;
pub mod manage;
mod origin;
pub mod peer;
pub mod server;
pub mod shelf;
pub mod stdio;
pub mod tenant;

use std::path::{Path, PathBuf};

use crate::failure::{Explain, Kind};
use crate::text::shown_path;

/// Where the service listens.
pub const SOCKET: &str = "/run/respool.sock";

/// A result of this room.
pub type Result<T> = std::result::Result<T, ServiceError>;

/// What can go wrong with the service and the line to it.
#[derive(Debug, thiserror::Error)]
pub enum ServiceError {
    /// A system call failed.
    #[error("cannot {what} {}: {source}", shown_path(path))]
    Io {
        /// The verb.
        what: &'static str,
        /// The socket.
        path: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
    /// The other end breaks the protocol.
    #[error("the line to the service: {0}")]
    Line(String),
    /// The socket is somebody else's.
    #[error(
        "{} is not root's: process {pid} of user {uid} listens there",
        shown_path(path)
    )]
    Foreign {
        /// The socket.
        path: PathBuf,
        /// Who listens.
        pid: i32,
        /// As whom.
        uid: u32,
    },
    /// Another machine cannot be used.
    #[error("{what}")]
    Host {
        /// Why, one harmless line.
        what: String,
        /// What helps.
        hint: String,
        /// The call is wrong, not the machine.
        usage: bool,
    },
}

impl Explain for ServiceError {
    fn kind(&self) -> Kind {
        match self {
            Self::Io { .. } | Self::Line(_) | Self::Host { usage: false, .. } => Kind::Failed,
            Self::Foreign { .. } => Kind::Refused,
            Self::Host { usage: true, .. } => Kind::Usage,
        }
    }
    fn path(&self) -> Option<&Path> {
        match self {
            Self::Io { path, .. } | Self::Foreign { path, .. } => Some(path),
            Self::Line(_) | Self::Host { .. } => None,
        }
    }
    fn hint(&self) -> Option<String> {
        match self {
            Self::Io { .. } | Self::Line(_) => Some("see: respool doctor".into()),
            Self::Foreign { .. } => Some("start the service as root: sudo respool service".into()),
            Self::Host { hint, .. } => Some(hint.clone()),
        }
    }
}
