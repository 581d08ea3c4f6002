//! Conversations that a sandbox was told of by its own hook line or by an agent server's events: their stores name a
//! path inside a container, so that no path leads from them to the sandbox.

use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::durable::append_lines;
use crate::engine::{EngineError, Result};

/// In the sandbox's folder, out of the agent's reach.
const FILE: &str = "heard.jsonl";
/// So many conversations of one sandbox are remembered.
const MOST: usize = 4096;
/// The longest id of a conversation, in bytes.
const LONGEST: usize = 128;

/// How a sandbox hears of a conversation's messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Way {
    /// The agent's hook, inside a container.
    Hook,
    /// The events of the agent server in a container.
    Stream,
}

/// A conversation that a sandbox was told of.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Heard {
    /// Its id.
    pub conversation: String,
    /// How.
    pub way: Way,
    /// The container, where that is known.
    #[serde(default)]
    pub container: Option<String>,
}

/// True for what can be the id of a conversation.
pub fn is_id(id: &str) -> bool {
    let fine = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.');
    !id.is_empty() && id.len() <= LONGEST && id.bytes().all(fine)
}

/// True if both are the same id: they are written with dashes or without.
pub fn same(a: &str, b: &str) -> bool {
    let plain = |id: &str| {
        let hex = id.bytes().filter(|c| *c != b'-');
        hex.map(|c| c.to_ascii_lowercase()).collect::<Vec<u8>>()
    };
    plain(a) == plain(b)
}

/// What the sandbox with this folder was told of, the oldest first. A line that cannot be read is left out.
pub fn heard(dir: &Path) -> Vec<Heard> {
    let text = crate::paths::read_file(&dir.join(FILE)).unwrap_or_default();
    text.split(|b| *b == b'\n')
        .filter_map(|line| serde_json::from_slice(line).ok())
        .collect()
}

/// Remembers it, once.
pub fn remember(dir: &Path, new: &Heard) -> Result<()> {
    let known = heard(dir);
    if known.contains(new) || known.len() >= MOST || !is_id(&new.conversation) {
        return Ok(());
    }
    let path = dir.join(FILE);
    let write =
        || -> std::io::Result<()> { append_lines(&path, &format!("{}\n", serde_json::to_string(new)?)) };
    write().map_err(EngineError::io("write", &path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_is_remembered_once_and_damage_is_left_out() {
        let dir = tempfile::tempdir().expect("tempdir");
        let one = |id: &str, way| Heard {
            conversation: id.into(),
            way,
            container: None,
        };
        for new in [
            one("a-b", Way::Hook),
            one("a-b", Way::Hook),
            one("a-b", Way::Stream),
            one("../x", Way::Hook),
        ] {
            remember(dir.path(), &new).expect("remembered");
        }
        assert_eq!(
            heard(dir.path()),
            [one("a-b", Way::Hook), one("a-b", Way::Stream)]
        );
        std::fs::write(dir.path().join(FILE), b"\xff\n{\n").expect("damage");
        assert_eq!(heard(dir.path()), []);
        assert!(same("2BBE104C-b4ef", "2bbe104cb4ef") && !same("a", "b"));
    }
}
