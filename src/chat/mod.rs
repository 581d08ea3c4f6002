//! Changes a conversation: moves its head, cuts its newest events away, brings them back. Nothing is deleted, and
//! a store that somebody holds is changed by its holder alone.
//!
//! What is done is a [`Change`]: plain data that says what the conversation was and will be, so that after a crash
//! a look at the store tells on which [`Side`] of it the conversation is. The rules are those of OpenHands (V0 0.20
//! to 0.62, SDK 1.21 to 1.58, agent server 1.58).

mod cut;
mod error;
mod holder;
mod members;
mod server;
mod shelf;
mod shells;
mod sockets;
mod user;

pub use error::{ChatError, Result};
pub use holder::Access;
pub use server::Server;
pub use shells::{Shell, shells};
pub use user::Hand;

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::conversation::{ConversationError, Format, OpenHandsApp, Place, Source, Stand, head_now};
use crate::process::fault_point;
use crate::progress::Progress;
use crate::text::ExactPath;

use cut::Cut;
use shelf::{AgentsLock, Shelf};

const BASE: &str = "base_state.json";
const LEAF: &str = "leaf_event_id";
const STATUS: &str = "execution_status";
/// The locks that OpenHands takes when it writes, or when a server takes a store: of the events, of the lease.
const LOCKS: &[&str] = &[".owner_lease.lock", "events/.eventlog.lock"];

/// How long one of them is waited for.
const LOCK_PATIENCE: Duration = Duration::from_secs(2);

/// Where a conversation is to go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Aim {
    /// Just before this message.
    Before(String),
    /// The end of this message's turn.
    EndOf(String),
    /// Back to where it was before this change.
    Undone(Change),
}

/// How it gets there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Way {
    /// The head of an event tree moves.
    Head {
        /// Where it was.
        before: String,
        /// Where it goes.
        after: String,
    },
    /// The events from a place on go to an archive.
    Cut {
        /// The number of the first of them.
        from: u64,
        /// The archive, beside the events.
        archive: String,
        /// The archive whose events come back in their place.
        #[serde(default)]
        back: Option<String>,
    },
}

/// A change of a conversation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Change {
    /// Version.
    pub v: u32,
    /// The agent.
    pub agent: String,
    /// The agent's own id of the conversation.
    pub conversation: String,
    /// Its store.
    pub store: ExactPath,
    /// What is done.
    pub way: Way,
    /// The store said `running` although nobody was at work: set to `idle` with it.
    #[serde(default)]
    pub stale: bool,
}

/// On which side of a change a conversation is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// As it was.
    Before,
    /// As it will be.
    After,
}

/// What is to be done to which conversation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Talk {
    /// Its store.
    pub store: PathBuf,
    /// Where it goes.
    pub aim: Aim,
    /// What is known of servers.
    pub access: Access,
    /// In whose name.
    pub hand: Hand,
    /// Interrupt the agent, if it is at work.
    pub interrupt: bool,
}

/// What a move will do, looked up before anything is done.
#[derive(Debug, Clone)]
pub struct Draft {
    /// The server that does it; nobody holds the store otherwise.
    pub server: Option<Server>,
    /// The agent is at work.
    pub at_work: bool,
    /// The step by which the agent is interrupted first, one harmless line.
    pub interrupt: Option<String>,
    /// The step by which it is moved, one harmless line.
    pub step: String,
}

impl Change {
    /// From what a record keeps.
    pub fn of(kept: &serde_json::Value) -> Result<Self> {
        let unknown = |e: String| {
            ChatError::Unmovable(format!(
                "what was to become of the conversation is not known: {e}"
            ))
        };
        let change = Self::deserialize(kept).map_err(|e| unknown(crate::text::shown(&e.to_string())))?;
        let named = match &change.way {
            Way::Head { .. } => true,
            Way::Cut { archive, back, .. } => {
                cut::is_name(archive) && back.as_deref().is_none_or(cut::is_name)
            }
        };
        if change.v == 1 && change.agent == "openhands" && named {
            return Ok(change);
        }
        Err(unknown("it is of another version".into()))
    }

    /// As a record keeps it.
    pub fn kept(&self) -> Result<serde_json::Value> {
        serde_json::to_value(self)
            .map_err(|e| ChatError::Unmovable(format!("it cannot be written down: {e}")))
    }

    fn path(&self) -> &Path {
        &self.store.0
    }
}

/// Reads how a conversation stands. The V1 app's copies of what lives in its containers are no conversation.
fn stand(store: &Path) -> Result<Stand> {
    Stand::read(store).map_err(|e| match e {
        ConversationError::NotFound { .. } if OpenHandsApp.recognises(store) => ChatError::Unmovable(
            "this is a copy that the OpenHands app keeps: the conversation itself is in its container".into(),
        ),
        e => e.into(),
    })
}

/// What moving a conversation will do. Nothing is changed.
pub fn draft(talk: &Talk) -> Result<Draft> {
    talk.hand.run(|| {
        let stand = stand(&talk.store)?;
        let change = change(&talk.store, &stand, &talk.aim)?;
        let server = holder::holder(&talk.store, &stand, &talk.access)?;
        if let (Way::Cut { .. }, Some(server)) = (&change.way, &server) {
            return Err(no_way_back(server));
        }
        let at_work = at_work(server.as_ref(), &stand, &talk.store)?;
        let by = server
            .as_ref()
            .map_or_else(String::new, |s| format!(", by {}", s.words()));
        let interrupt = format!("interrupt the agent and wait until it has stopped{by}");
        Ok(Draft {
            step: step(&change, &by),
            interrupt: (at_work && talk.interrupt).then_some(interrupt),
            server,
            at_work,
        })
    })
}

fn step(change: &Change, by: &str) -> String {
    match &change.way {
        Way::Head { .. } => {
            format!("move the conversation's head there{by}: later messages stay as a branch")
        }
        Way::Cut { back: None, .. } => format!(
            "move the conversation's later events to an archive beside it ({})",
            cut::FOLDER
        ),
        Way::Cut { .. } => format!(
            "bring the conversation's events back from the archive beside it ({})",
            cut::FOLDER
        ),
    }
}

fn no_way_back(server: &Server) -> ChatError {
    ChatError::Held {
        what: format!(
            "{} holds it, and knows no way back for a conversation of this age",
            server.words()
        ),
        pid: server.pid,
        hint: Some("end the server first, or restore the files alone: --files".into()),
    }
}

fn at_work(server: Option<&Server>, stand: &Stand, store: &Path) -> Result<bool> {
    Ok(match server {
        Some(server) => server.knows(&stand.id, store)?.running(),
        // the holder is gone: what is stored is a left-over
        None => false,
    })
}

/// The change that leads from how a conversation stands to where it is to go.
fn change(store: &Path, stand: &Stand, aim: &Aim) -> Result<Change> {
    let made = |way| Change {
        v: 1,
        agent: "openhands".into(),
        conversation: stand.id.clone(),
        store: ExactPath(store.to_owned()),
        way,
        stale: false,
    };
    let archive = || crate::engine::random_id("cut");
    let unknown = |id: &str| {
        let id = crate::text::shown(id);
        ChatError::Unmovable(format!("the conversation has no message {id} any more"))
    };
    let place = match aim {
        Aim::Undone(done) => {
            let way = match &done.way {
                Way::Head { before, .. } => {
                    if !stand.has(before) {
                        return Err(unknown(before));
                    }
                    head(stand, Some(before.clone()))?
                }
                Way::Cut {
                    from, archive: old, ..
                } => Way::Cut {
                    from: *from,
                    archive: archive(),
                    back: Some(old.clone()),
                },
            };
            return Ok(made(way));
        }
        Aim::Before(id) => stand.before(id).ok_or_else(|| unknown(id))?,
        Aim::EndOf(id) => stand.end_of(id).ok_or_else(|| unknown(id))?,
    };
    let Place { head: to, next } = place;
    let way = match stand.format {
        Format::Tree => head(stand, to)?,
        Format::Line if to.is_none() => return Err(rootless()),
        Format::Line | Format::V0 => Way::Cut {
            from: next,
            archive: archive(),
            back: None,
        },
    };
    Ok(made(way))
}

/// An empty head would lose the system prompt.
fn rootless() -> ChatError {
    ChatError::Unmovable(
        "nothing comes before that message, not even the agent's own instructions: they would be lost".into(),
    )
}

fn head(stand: &Stand, to: Option<String>) -> Result<Way> {
    let before = stand.head.clone().ok_or_else(rootless)?;
    let after = to.ok_or_else(rootless)?;
    Ok(Way::Head { before, after })
}

/// A conversation that is ready to be moved: nobody is at work on it, and no other respool is.
pub struct Prepared<'a> {
    /// What will be done.
    pub change: Change,
    talk: &'a Talk,
    _lock: OwnedFd,
}

/// Gets a conversation ready: locks it against other respools, interrupts the agent if that is wanted.
pub fn prepare<'a>(talk: &'a Talk, progress: &dyn Progress) -> Result<Prepared<'a>> {
    talk.hand.run(|| {
        let lock = locked(&talk.store)?;
        let mut stand = Stand::read(&talk.store)?;
        let server = holder::holder(&talk.store, &stand, &talk.access)?;
        if let Some(server) = &server
            && server.knows(&stand.id, &talk.store)?.running()
        {
            if !talk.interrupt {
                return Err(ChatError::AtWork(server.words()));
            }
            progress.step("interrupting the agent", 0, 0);
            server.interrupt(&stand.id, progress)?;
            fault_point("chat-interrupted");
            // it noted that it was interrupted
            stand = Stand::read(&talk.store)?;
        }
        let mut change = change(&talk.store, &stand, &talk.aim)?;
        change.stale = server.is_none()
            && matches!(change.way, Way::Head { .. })
            && stand.status.as_deref() == Some("running");
        Ok(Prepared {
            change,
            talk,
            _lock: lock,
        })
    })
}

fn locked(store: &Path) -> Result<OwnedFd> {
    Shelf::open(store)?
        .lock()?
        .ok_or_else(|| ChatError::Busy(store.to_owned()))
}

impl Prepared<'_> {
    /// Moves it, and looks whether it moved.
    pub fn apply(&self) -> Result<()> {
        let talk = self.talk;
        talk.hand.run(|| moved(&self.change, &talk.access, Side::After))
    }

    /// Brings it back to where it was.
    pub fn revert(&self) -> Result<()> {
        let talk = self.talk;
        talk.hand.run(|| {
            if side(&self.change)? == Some(Side::Before) {
                return Ok(());
            }
            moved(&self.change, &talk.access, Side::Before)
        })
    }
}

/// After a crash: on which side of a change the conversation is, once and for all. Where it is between the two it is
/// brought back to where it was. An error means that it cannot be told, or not be done now.
pub fn settle(change: &Change, access: &Access, hand: Hand) -> Result<Side> {
    hand.run(|| {
        let _lock = locked(change.path())?;
        if let Some(side) = side(change)? {
            return Ok(side);
        }
        moved(change, access, Side::Before)?;
        Ok(Side::Before)
    })
}

fn side(change: &Change) -> Result<Option<Side>> {
    match &change.way {
        Way::Head { before, after } => {
            let stand = Stand::read(change.path())?;
            // where a head moved on since, the nearer one is where it came from
            match stand.first_met(after, before) {
                Some(met) if met == after => Ok(Some(Side::After)),
                Some(_) => Ok(Some(Side::Before)),
                None => Err(ChatError::Changed("its head is on neither branch".into())),
            }
        }
        Way::Cut { .. } => cut::side(&Shelf::open(change.path())?, as_cut(&change.way)),
    }
}

fn as_cut(way: &Way) -> Cut<'_> {
    match way {
        Way::Cut { from, archive, back } => Cut {
            from: *from,
            archive,
            back: back.as_deref(),
        },
        // nothing is after the last number
        Way::Head { .. } => Cut {
            from: u64::MAX,
            archive: "none",
            back: None,
        },
    }
}

/// Brings the conversation to a side of the change.
fn moved(change: &Change, access: &Access, to: Side) -> Result<()> {
    let store = change.path();
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
