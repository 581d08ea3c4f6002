//! Errors of the engine.

use std::io;
use std::path::{Path, PathBuf};

use crate::failure::{Explain, Kind, Report};
use crate::text::shown_path;

/// A result of the engine.
pub type Result<T> = std::result::Result<T, EngineError>;

/// What can go wrong in the engine.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// A system call failed.
    #[error("cannot {what} {}: {source}", shown_path(path))]
    Io {
        /// The verb: "open", "mount", ...
        what: &'static str,
        /// The path that it was about.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// No such checkpoint.
    #[error("there is no checkpoint {id}")]
    NoCheckpoint {
        /// The id asked for.
        id: String,
    },
    /// The checkpoint is there, but cannot be used.
    #[error("checkpoint {id} is damaged: {reason}")]
    DamagedCheckpoint {
        /// Its id.
        id: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The path is no longer what it was when it was tracked.
    #[error("{} is no longer the managed subvolume", shown_path(path))]
    NotManaged {
        /// The path.
        path: PathBuf,
    },
    /// Something else is at the path of what was tracked.
    #[error(
        "{} is no longer the managed {what}: recorded is {recorded}, now it is {present}",
        shown_path(path)
    )]
    OtherRoot {
        /// The path.
        path: PathBuf,
        /// `subvolume` or `folder`.
        what: &'static str,
        /// What tells the recorded one: its uuid, or its inode and birth time.
        recorded: String,
        /// The same of what is there now, in harmless words.
        present: String,
    },
    /// The folder is no longer the one that was tracked.
    #[error("{} is no longer the managed folder", shown_path(path))]
    Replaced {
        /// The path.
        path: PathBuf,
    },
    /// No such path in that state.
    #[error("there is no {} in that state", shown_path(path))]
    NoPath {
        /// The path.
        path: PathBuf,
    },
    /// Something was found that is not as it must be.
    #[error("{what}: {}", shown_path(path))]
    Damaged {
        /// What is wrong.
        what: String,
        /// Where.
        path: PathBuf,
    },
    /// Refused, with the reason and what helps.
    #[error("{why}")]
    Refused {
        /// The reason, one line.
        why: String,
        /// The path that it is about.
        path: Option<PathBuf>,
        /// What helps.
        hint: Option<String>,
    },
    /// A pool cannot be unmounted: something uses it.
    #[error("{} is in use{}", shown_path(path), also_mounted(mounts))]
    Busy {
        /// The mount point or image.
        path: PathBuf,
        /// The other places where it is mounted, where they are the reason.
        mounts: Vec<PathBuf>,
    },
    /// The user cancelled.
    #[error("cancelled")]
    Cancelled,
    /// What the service answered.
    #[error("{}", .0.message)]
    Remote(Report),
}

fn also_mounted(mounts: &[PathBuf]) -> String {
    if mounts.is_empty() {
        return String::new();
    }
    let shown: Vec<String> = mounts.iter().take(5).map(|m| shown_path(m)).collect();
    format!(": it is also mounted at {}", shown.join(", "))
}

impl EngineError {
    /// An adaptor for `map_err`: a system call on a path.
    pub fn io(what: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::Io { what, path, source }
    }
}

/// What helps against an error of a system call.
pub fn io_hint(error: &io::Error) -> Option<String> {
    use nix::libc::{EACCES, EDQUOT, EMFILE, ENOSPC, EPERM, EROFS};
    let hint = match error.raw_os_error()? {
        EPERM | EACCES => "run it as root: sudo respool ...",
        ENOSPC => "free space, or run: respool prune; respool pool grow",
        EDQUOT => {
            "a quota of the file system is used up: remove old checkpoints (respool prune), or raise the limit (btrfs qgroup limit)"
        }
        EROFS => "the file system is read-only; see: respool pool status",
        EMFILE => "allow more open files: ulimit -n 1024",
        _ => return None,
    };
    Some(hint.into())
}

impl Explain for EngineError {
    fn kind(&self) -> Kind {
        match self {
            Self::Io { .. } => Kind::Failed,
            Self::NoCheckpoint { .. } | Self::NoPath { .. } => Kind::NotFound,
            Self::DamagedCheckpoint { .. } | Self::Damaged { .. } => Kind::Damaged,
            Self::NotManaged { .. }
            | Self::OtherRoot { .. }
            | Self::Replaced { .. }
            | Self::Refused { .. }
            | Self::Busy { .. } => Kind::Refused,
            Self::Cancelled => Kind::Cancelled,
            Self::Remote(r) => r.kind,
        }
    }

    fn path(&self) -> Option<&Path> {
        match self {
            Self::Io { path, .. }
            | Self::NotManaged { path }
            | Self::OtherRoot { path, .. }
            | Self::Replaced { path }
            | Self::NoPath { path }
            | Self::Busy { path, .. }
            | Self::Damaged { path, .. } => Some(path),
            Self::Refused { path, .. } => path.as_deref(),
            Self::Remote(r) => r.path.as_deref(),
            _ => None,
        }
    }

    fn hint(&self) -> Option<String> {
        match self {
            Self::Io { source, .. } => io_hint(source),
            Self::NoCheckpoint { .. } => Some("respool timeline lists the checkpoints".into()),
            Self::NotManaged { .. } => {
                Some("it was replaced or unmounted; see: respool sandboxes, respool pool mount".into())
            }
            Self::Replaced { .. } | Self::OtherRoot { .. } => Some(
                "another one is in its place; put the tracked one back, or: respool sandboxes lists what is tracked"
                    .into(),
            ),
            Self::Refused { hint, .. } => hint.clone(),
            Self::Remote(r) => r.hint.clone(),
            Self::Busy { .. } => {
                Some("end the processes and unmount the places that use it, then try again".into())
            }
            _ => None,
        }
    }
}
