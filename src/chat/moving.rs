//! Moves a conversation: by the server that holds it, or offline where nobody does.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::{Duration, Instant};

use super::cut;
use super::error::{ChatError, Result};
use super::fork;
use super::holder::{self, Access};
use super::members;
use super::prefix;
use super::server::Server;
use super::shelf::{AgentsLock, Shelf};
use super::{Change, Side, Way, as_cut};
use crate::conversation::{Stand, head_now, leased_now};
use crate::process::fault_point;

const BASE: &str = "base_state.json";
const LEAF: &str = "leaf_event_id";
const STATUS: &str = "execution_status";
/// The locks that OpenHands takes when it writes, or when a server takes a store: of the events, of the lease.
const LOCKS: &[&str] = &[".owner_lease.lock", "events/.eventlog.lock"];

/// How long one of them is waited for.
const LOCK_PATIENCE: Duration = Duration::from_secs(2);

/// A server that holds a conversation of this age cannot be asked to cut it.
pub(super) fn no_way_back(server: &Server) -> ChatError {
    ChatError::Held {
        what: format!(
            "{} holds it, and knows no way back for a conversation of this age",
            server.words()
        ),
        pid: server.pid,
        hint: Some("end the server first, or restore the files alone: --files".into()),
    }
}

/// Brings the conversation to a side of the change.
pub(super) fn moved(change: &Change, access: &Access, to: Side) -> Result<()> {
    let store = change.path();
    if fork::is_ours(store) {
        return prefix::moved(change, to);
    }
    let stand = Stand::read(store)?;
    let server = holder::holder(store, &stand, access)?;
    match (&change.way, server) {
        (Way::Head { before, after }, Some(server)) => {
            let (from, goal) = if to == Side::After {
                (before, after)
            } else {
                (after, before)
            };
            let told = server.knows(&change.conversation, store)?;
            if told.running() {
                return Err(ChatError::AtWork(server.words()));
            }
            let here = told.leaf_event_id.as_ref();
            if here == Some(goal) {
                return Ok(());
            }
            if here.is_some_and(|h| h != from) {
                return Err(ChatError::Changed("its head is not where it was".into()));
            }
            server.navigate(&change.conversation, goal)
        }
        (Way::Head { before, after }, None) => {
            let (from, goal) = if to == Side::After {
                (before, after)
            } else {
                (after, before)
            };
            let status = match (change.stale, to) {
                (false, _) => None,
                (true, Side::After) => Some("idle"),
                (true, Side::Before) => Some("running"),
            };
            set_head(store, from, goal, status)
        }
        (Way::Cut { .. }, Some(server)) => Err(no_way_back(&server)),
        (Way::Fork(_) | Way::Unfork(_), _) => prefix::moved(change, to),
        (Way::Cut { .. }, None) => {
            let shelf = Shelf::open(store)?;
            let _agents = agents_locks(&shelf)?;
            match to {
                Side::After => cut::apply(&shelf, as_cut(&change.way)),
                Side::Before => cut::revert(&shelf, as_cut(&change.way)),
            }
        }
    }
}

/// The agent's own locks, so that it does not begin to write meanwhile.
fn agents_locks(shelf: &Shelf) -> Result<Vec<OwnedFd>> {
    fault_point("chat-alone");
    let mut held = Vec::new();
    for name in LOCKS {
        let (folder, file) = name.split_once('/').map_or((None, *name), |(d, f)| (Some(d), f));
        let inside = match folder {
            Some(folder) => shelf.sub(folder)?,
            None => shelf.sub(".")?,
        };
        let Some(inside) = inside else { continue };
        let until = Instant::now() + LOCK_PATIENCE;
        loop {
            match inside.agents_lock(file)? {
                AgentsLock::Taken(lock) => held.push(lock),
                AgentsLock::Absent => {}
                AgentsLock::Busy if Instant::now() < until => {
                    std::thread::sleep(Duration::from_millis(20));
                    continue;
                }
                AgentsLock::Busy => {
                    return Err(ChatError::Held {
                        what: "an agent is writing to it".into(),
                        pid: None,
                        hint: Some("wait for it, then try again".into()),
                    });
                }
            }
            break;
        }
    }
    // nobody had it a moment ago
    if leased_now(&shelf.path) {
        return Err(ChatError::Held {
            what: "an agent server has just taken it".into(),
            pid: None,
            hint: Some("try again: then the server is asked".into()),
        });
    }
    Ok(held)
}

/// Sets the head of a store that nobody holds; all else in the file stays byte for byte.
fn set_head(store: &Path, from: &str, goal: &str, status: Option<&str>) -> Result<()> {
    let shelf = Shelf::open(store)?;
    let _agents = agents_locks(&shelf)?;
    shelf.sweep(BASE)?;
    let damaged = |reason: &'static str| ChatError::Damaged {
        path: store.join(BASE),
        reason: reason.into(),
    };
    let bytes = shelf.read(BASE)?;
    let quoted = |text: &str| serde_json::Value::from(text).to_string();
    let here = members::get(&bytes, LEAF).map_err(damaged)?;
    let recorded = here.filter(|v| *v != b"null");
    if recorded.is_some_and(|v| v != quoted(from).as_bytes() && v != quoted(goal).as_bytes()) {
        return Err(ChatError::Changed("its head is not where it was".into()));
    }
    let mut new = members::set(&bytes, LEAF, goal).map_err(damaged)?;
    if let Some(status) = status {
        new = members::set(&new, STATUS, status).map_err(damaged)?;
    }
    if new != bytes {
        fault_point("chat-head");
        shelf.replace(BASE, &new)?;
    }
    let (now, _) = head_now(store)?;
    if now.as_deref() == Some(goal) {
        return Ok(());
    }
    Err(ChatError::Changed("its head is not where it was put".into()))
}
