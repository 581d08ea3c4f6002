//! The agents whose hooks are known, and where each keeps their configuration.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

/// An agent that can call a hook for each message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Agent {
    /// OpenHands (SDK 1.21 to 1.58): `.openhands/hooks.json`; the project's file hides the user's.
    OpenHands,
    /// Claude Code (2.1): `.claude/settings.json`; the project's and the user's are read both.
    Claude,
}

impl Agent {
    /// All of them.
    pub const ALL: [Self; 2] = [Self::OpenHands, Self::Claude];

    /// The one of this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|a| a.name() == name)
    }

    /// Its name in commands and conversations.
    pub const fn name(self) -> &'static str {
        match self {
            Self::OpenHands => "openhands",
            Self::Claude => "claude",
        }
    }

    /// Its name for people.
    pub const fn title(self) -> &'static str {
        match self {
            Self::OpenHands => "OpenHands",
            Self::Claude => "Claude Code",
        }
    }

    /// The names of all, for a hint.
    pub fn names() -> String {
        Self::ALL.map(Self::name).join(", ")
    }

    const fn folder(self) -> &'static str {
        match self {
            Self::OpenHands => ".openhands",
            Self::Claude => ".claude",
        }
    }

    /// The hook file's name.
    pub const fn file(self) -> &'static str {
        match self {
            Self::OpenHands => "hooks.json",
            Self::Claude => "settings.json",
        }
    }

    /// Where the hooks of a workspace are.
    pub fn in_project(self, workspace: &Path) -> Spot {
        Spot::new(workspace, self.folder())
    }

    /// Where the user's hooks are. `moved`: what `CLAUDE_CONFIG_DIR` says.
    pub fn in_home(self, home: &Path, moved: Option<&OsStr>) -> Spot {
        let moved = moved
            .filter(|m| self == Self::Claude && !m.is_empty())
            .map(Path::new);
        match moved.and_then(|m| Some((m.parent()?, m.file_name()?))) {
            Some((parent, name)) => Spot::new(&home.join(parent), name),
            None => Spot::new(home, self.folder()),
        }
    }
}

/// The folder of a hook file: `name` in `parent`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Spot {
    /// The folder above, which must be there.
    pub parent: PathBuf,
    /// The folder's name.
    pub name: OsString,
}

impl Spot {
    fn new(parent: &Path, name: impl Into<OsString>) -> Self {
        Self {
            parent: parent.to_owned(),
            name: name.into(),
        }
    }

    /// The folder.
    pub fn folder(&self) -> PathBuf {
        self.parent.join(&self.name)
    }

    /// The agent's hook file.
    pub fn file(&self, agent: Agent) -> PathBuf {
        self.folder().join(agent.file())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_users_file_may_be_moved() {
        let at = |agent: Agent, moved| {
            agent
                .in_home(Path::new("/h"), moved)
                .file(agent)
                .to_string_lossy()
                .into_owned()
        };
        let moved = Some(OsStr::new("/etc/claude"));
        assert_eq!(at(Agent::Claude, moved), "/etc/claude/settings.json");
        assert_eq!(
            at(Agent::Claude, Some(OsStr::new(""))),
            "/h/.claude/settings.json"
        );
        assert_eq!(at(Agent::OpenHands, moved), "/h/.openhands/hooks.json");
    }
}
