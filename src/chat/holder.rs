//! Who holds a store now: an agent server (its lease, its process), or a program that has the conversation open.

use std::path::{Path, PathBuf};

use super::error::{ChatError, Result};
use super::server::Server;
use crate::conversation::{Format, Stand, is_server, served_by};
use crate::process;
use crate::text::shown;

/// What is known of servers beforehand.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Access {
    /// The address of the agent's server, where the user's config names one.
    pub url: Option<String>,
    /// The file with its key.
    pub key_file: Option<PathBuf>,
    /// The user's home: Agent Canvas keeps its key there.
    pub home: PathBuf,
    network: Option<PathBuf>,
}

impl Access {
    /// For the user with this home.
    pub fn new(home: &Path, url: Option<String>, key_file: Option<PathBuf>) -> Self {
        Self {
            url,
            key_file,
            home: home.to_owned(),
            network: std::fs::read_link("/proc/self/ns/net").ok(),
        }
    }

    /// Where Agent Canvas 1.20 keeps the key of its server.
    fn key_files(&self) -> Vec<PathBuf> {
        let canvas = self.home.join(".openhands/agent-canvas/api-key.txt");
        self.key_file.iter().cloned().chain([canvas]).collect()
    }
}

/// The server that holds the store, if one does. A holder that cannot be asked is [`ChatError::Held`].
pub(super) fn holder(store: &Path, stand: &Stand, access: &Access) -> Result<Option<Server>> {
    if let Some(url) = &access.url {
        let server = Server::configured(url, access.key_file.as_deref())?;
        match server.knows(&stand.id, store) {
            Ok(_) => return Ok(Some(server)),
            Err(e) => tracing::debug!("the configured server: {e}"),
        }
    }
    if let Some(owner) = stand.owner.as_ref().filter(|o| o.holds) {
        if !owner.here {
            return Err(ChatError::Held {
                what: format!("an agent server on {} holds it", shown(&owner.host)),
                pid: None,
                hint: Some(
                    "name its address: [agents.openhands] url and api_key_file in the config; or: --files"
                        .into(),
                ),
            });
        }
        return ask(owner.pid, store, stand, access).map(Some);
    }
    for pid in others() {
        if serves(pid, store, access) {
            return ask(pid, store, stand, access).map(Some);
        }
        if let Some(what) = program(pid, store, stand) {
            return Err(ChatError::Held {
                what: format!("process {pid} ({what}) may hold it"),
                pid: Some(pid),
                hint: Some(format!(
                    "end it first: kill {pid}; or restore the files alone: --files"
                )),
            });
        }
    }
    Ok(None)
}

fn ask(pid: i32, store: &Path, stand: &Stand, access: &Access) -> Result<Server> {
    let found = Server::of_process(
        pid,
        access.network.as_deref(),
        &access.key_files(),
        &stand.id,
        store,
    );
    found.map_err(|e| ChatError::Held {
        what: format!("an agent server (process {pid}) holds it, and cannot be asked: {e}"),
        pid: Some(pid),
        hint: Some(format!(
            "name its key: [agents.openhands] api_key_file in the config; or end it: kill {pid}; or: --files"
        )),
    })
}

/// Processes that are neither this one nor its ancestors.
fn others() -> impl Iterator<Item = i32> {
    let own = process::lineage();
    process::pids().into_iter().filter(move |p| !own.contains(p))
}

/// True for an agent server whose conversations are in the folder of this store.
fn serves(pid: i32, store: &Path, access: &Access) -> bool {
    let parent = store.parent().and_then(|p| p.canonicalize().ok());
    parent.is_some() && served_by(pid, &access.home).and_then(|d| d.canonicalize().ok()) == parent
}

fn base(word: &[u8]) -> &[u8] {
    word.rsplit(|b| *b == b'/').next().unwrap_or(word)
}

/// What a program is that has this conversation open, as far as its command line tells. A server of its own
/// format has all conversations.
fn program(pid: i32, store: &Path, stand: &Stand) -> Option<String> {
    let line = std::fs::read(format!("/proc/{pid}/cmdline")).ok()?;
    if line.is_empty() || is_server(&line) {
        return None;
    }
    let words: Vec<&[u8]> = line.split(|b| *b == 0).filter(|w| !w.is_empty()).collect();
    let first = base(words.first()?);
    let second = words.get(1).map(|w| base(w)).unwrap_or_default();
    let python = first.starts_with(b"python") || first.starts_with(b"uv") || first.starts_with(b"pypy");
    let cli = first == b"openhands" || (python && second == b"openhands");
    if !python && !cli {
        return None;
    }
    let name = if cli { "openhands" } else { "python" };
    let hex: String = stand.id.chars().filter(|c| *c != '-').collect();
    let id = |w: &&[u8]| {
        let w = String::from_utf8_lossy(w).replace('-', "").to_lowercase();
        hex.len() >= 8 && w.contains(&hex.to_lowercase())
    };
    let names_it = words.iter().any(id)
        || words
            .iter()
            .any(|w| w.ends_with(store.as_os_str().as_encoded_bytes()));
    let v0 = stand.format == Format::V0
        && words
            .iter()
            .any(|w| w.starts_with(b"openhands.server") || w.starts_with(b"openhands.core.main"));
    // a conversation that was just begun is not named: its folder tells
    let here = cli
        && stand.format != Format::V0
        && std::fs::read_link(format!("/proc/{pid}/cwd")).ok() == stand.workspace;
    (names_it || v0 || here).then(|| name.to_owned())
}
