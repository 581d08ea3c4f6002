//! What is remembered in a sandbox's folder beside its checkpoints: messages whose checkpoint was removed or could
//! not be taken, and whether an operation is open.

use std::collections::{HashMap, HashSet};
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::durable::append_lines;
use crate::engine::{EngineError, Result};
use crate::sandbox::quiet::{self, NotQuiet};
use crate::sandbox::remote::Ask;
use crate::sandbox::site::Site;
use crate::text::ExactPath;

/// Where the messages of removed checkpoints are remembered, in the sandbox's folder.
pub const THINNED: &str = "thinned.jsonl";
/// Where the messages are remembered whose checkpoint the watcher could not take, in the sandbox's folder.
const MISSED: &str = "missed.jsonl";
/// That file does not grow beyond this.
const MISSED_MOST: u64 = 4 << 20;

/// What is said while an operation is under way.
pub const UNDER_WAY: &str = "another respool is changing the files now";

/// What is remembered of a sandbox.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Notes {
    /// What was removed: native ids of messages, and marks by [`thinned_marks`](super::join::thinned_marks).
    pub thinned: HashSet<String>,
    /// The messages without a checkpoint, each with the reason.
    pub missed: HashMap<String, String>,
    /// Conversations that a rewind began anew, with nothing in common: the store of the old one, that of the new one.
    #[serde(default)]
    pub anew: Vec<(ExactPath, ExactPath)>,
    /// What an operation that is under way or was cut short looks like to a command that only reads.
    pub interrupted: Option<String>,
}

#[derive(Serialize, Deserialize)]
struct Missed {
    message: String,
    reason: String,
}

/// Reads what is remembered.
pub fn notes(site: &Site) -> Result<Notes> {
    if let Some(remote) = site.remote() {
        return remote.get(Ask::Notes);
    }
    let dir = site.dir()?;
    Ok(Notes {
        thinned: lines(&dir.join(THINNED)).into_iter().collect(),
        missed: lines::<Missed>(&dir.join(MISSED))
            .into_iter()
            .map(|m| (m.message, m.reason))
            .collect(),
        anew: anew(&dir.join("ops")),
        interrupted: match quiet::look(dir) {
            Err(NotQuiet::Interrupted { .. }) => {
                Some("an operation was interrupted; run: respool recover".into())
            }
            Err(NotQuiet::UnderWay { .. }) => Some(UNDER_WAY.into()),
            Ok(()) => None,
            Err(e @ NotQuiet::Io { .. }) => Some(e.to_string()),
        },
    })
}

/// What of an entry of the log matters here: the room `rewind` writes it, and the room `chat` what becomes of the
/// conversation.
#[derive(Deserialize)]
struct Entry {
    state: String,
    chat: Option<Moved>,
}

#[derive(Deserialize)]
struct Moved {
    store: ExactPath,
    way: Way,
}

#[derive(Deserialize)]
struct Way {
    fork: Option<Fork>,
}

#[derive(Deserialize)]
struct Fork {
    id: String,
    bytes: u64,
}

fn anew(ops: &Path) -> Vec<(ExactPath, ExactPath)> {
    let entries = std::fs::read_dir(ops).into_iter().flatten().flatten();
    let read = |e: std::fs::DirEntry| -> Option<(ExactPath, ExactPath)> {
        let path = e.path();
        path.extension().filter(|e| *e == "json")?;
        let entry: Entry = serde_json::from_slice(&std::fs::read(path).ok()?).ok()?;
        let moved = entry
            .chat
            .filter(|_| ["done", "undone"].contains(&entry.state.as_str()))?;
        let fork = moved.way.fork.filter(|f| f.bytes == 0)?;
        let new = moved.store.0.with_file_name(format!("{}.jsonl", fork.id));
        Some((moved.store, ExactPath(new)))
    };
    let mut all: Vec<_> = entries.filter_map(read).collect();
    all.sort_by(|a, b| (&a.0.0, &a.1.0).cmp(&(&b.0.0, &b.1.0)));
    all.dedup();
    all
}

fn lines<T: serde::de::DeserializeOwned>(path: &Path) -> Vec<T> {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    text.lines()
        .filter_map(|l| serde_json::from_str(l).ok())
        .collect()
}

/// Remembers why a message has no checkpoint, so that its row can say it.
pub fn remember_missed(site: &Site, message: &str, reason: &str) -> Result<()> {
    if let Some(remote) = site.remote() {
        return remote.get(Ask::Missed(message.to_owned(), reason.to_owned()));
    }
    let path = site.dir()?.join(MISSED);
    if std::fs::metadata(&path).is_ok_and(|m| m.len() > MISSED_MOST) {
        return Ok(());
    }
    let write = || -> std::io::Result<()> {
        let line = serde_json::to_string(&Missed {
            message: message.to_owned(),
            reason: reason.to_owned(),
        })?;
        append_lines(&path, &format!("{line}\n"))
    };
    write().map_err(EngineError::io("write", &path))
}
