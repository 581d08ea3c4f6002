//! What every error of every room can tell the user: its kind (and so the exit code), the path that it is
//! about, and what helps.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// The kind of a failure; each kind is one exit code of the command line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// It did not work; the state is the one from before, or the message says what `recover` will finish.
    Failed,
    /// The call itself is wrong.
    Usage,
    /// A decision is needed first; the message names the flag.
    Refused,
    /// No such conversation, message, checkpoint or path.
    NotFound,
    /// Damaged or incomplete data was found.
    Damaged,
    /// The user cancelled.
    Cancelled,
}

impl Kind {
    /// The exit code of the process.
    pub const fn exit_code(self) -> u8 {
        match self {
            Self::Failed => 1,
            Self::Usage => 2,
            Self::Refused => 3,
            Self::NotFound => 4,
            Self::Damaged => 5,
            Self::Cancelled => 130,
        }
    }

    /// The word used for it in JSON.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Failed => "failed",
            Self::Usage => "usage",
            Self::Refused => "refused",
            Self::NotFound => "not-found",
            Self::Damaged => "damaged",
            Self::Cancelled => "cancelled",
        }
    }
}

/// An error that can be explained to the user. `Display` is one line without control bytes of foreign
/// content (use [`crate::text::shown`] for names), the source chain holds the cause.
pub trait Explain: std::error::Error + Send + Sync + 'static {
    /// The kind, and so the exit code.
    fn kind(&self) -> Kind;
    /// The path that it is about.
    fn path(&self) -> Option<&Path> {
        None
    }
    /// What the user can do: a sentence or a command.
    fn hint(&self) -> Option<String> {
        None
    }
}

/// An error of any room in plain data: it can cross to another process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// Its kind.
    pub kind: Kind,
    /// One harmless line.
    pub message: String,
    /// The path that it is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[serde(with = "maybe_path")]
    pub path: Option<PathBuf>,
    /// What helps.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
}

impl Report {
    /// Of an error.
    pub fn of(error: &dyn Explain) -> Self {
        Self {
            kind: error.kind(),
            message: error.to_string(),
            path: error.path().map(Path::to_owned),
            hint: error.hint(),
        }
    }

    /// The same with every unsafe character visible: one that came from another machine promises nothing.
    #[must_use]
    pub fn harmless(self) -> Self {
        Self {
            message: crate::text::shown(&self.message),
            hint: self.hint.as_deref().map(crate::text::shown),
            ..self
        }
    }
}

mod maybe_path {
    use std::path::PathBuf;

    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use crate::text::ExactPath;

    #[expect(clippy::ref_option, reason = "serde hands the field over")]
    pub(super) fn serialize<S: Serializer>(path: &Option<PathBuf>, s: S) -> Result<S::Ok, S::Error> {
        path.clone().map(ExactPath).serialize(s)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<Option<PathBuf>, D::Error> {
        Ok(Option::<ExactPath>::deserialize(d)?.map(|p| p.0))
    }
}
