//! How the root file system of a container is kept and brought back, and why so.

use serde::Serialize;

/// A way to keep and bring back the root file system of a container.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Technique {
    /// It is a Btrfs subvolume: a snapshot, and an exchange.
    SubvolumeRoot,
    /// What was changed is a folder on Btrfs: a snapshot of the subvolume that holds it, and the folder made equal.
    OverlayOnBtrfs,
    /// What was changed is a folder on another file system: a copy of what is new in it, and the folder made equal.
    OverlayCopy,
    /// Its files cannot be reached from here: it is not covered.
    ApiOnly,
}

impl Technique {
    /// The word for it in JSON.
    pub const fn word(self) -> &'static str {
        match self {
            Self::SubvolumeRoot => "subvolume-root",
            Self::OverlayOnBtrfs => "overlay-on-btrfs",
            Self::OverlayCopy => "overlay-copy",
            Self::ApiOnly => "api-only",
        }
    }

    /// True if a checkpoint can hold it.
    pub const fn covers(self) -> bool {
        !matches!(self, Self::ApiOnly)
    }
}

/// A technique, why it is that one, and what would make it a better one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Verdict {
    /// How.
    pub technique: Technique,
    /// Why, one harmless line.
    pub why: String,
    /// What would help, one harmless line.
    pub better: Option<String>,
}

impl Verdict {
    /// Not covered, for this reason.
    pub fn api_only(why: impl Into<String>, better: Option<&str>) -> Self {
        Self {
            technique: Technique::ApiOnly,
            why: why.into(),
            better: better.map(str::to_owned),
        }
    }
}
