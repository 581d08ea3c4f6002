//! Changes a conversation: moves its head, cuts its newest events away, brings them back, goes on in a fork. Nothing
//! is deleted, and a store that somebody holds is changed by its holder alone.
//!
//! What is done is a [`Change`]: plain data that says what the conversation was and will be, so that after a crash
//! a look at the store tells on which [`Side`] of it the conversation is. The rules are those of OpenHands (V0 0.20
//! to 0.62, SDK 1.21 to 1.58, agent server 1.58) and, for forks, of Claude Code.

mod change;
mod cut;
mod error;
mod fork;
mod holder;
mod kept;
mod members;
mod moving;
mod prefix;
mod resume;
mod send;
mod server;
mod shelf;
mod shells;
mod sockets;
pub mod stream;
mod user;
mod way;

pub use change::{Aim, Change, Side, Way};
pub use error::{ChatError, Result};
pub use fork::Fork;
pub use holder::Access;
pub use kept::{Drafts, Kept, MOST};
pub use resume::{Program, Resume};
pub use send::{Letter, by_server};
pub use server::Server;
pub use shells::{Shell, shells};
pub use user::Hand;

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use crate::conversation::{ConversationError, OpenHandsApp, Source, Stand};
use crate::process::fault_point;
use crate::progress::Progress;

use cut::Cut;
use moving::{moved, no_way_back};
use shelf::Shelf;
use way::{change, step};

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
    /// What becomes of it: `rewound`, `forked`.
    pub becomes: &'static str,
    /// Programs that have the conversation open without holding its store: the process, what is to be known of it,
    /// and whether that stands in the way.
    pub told: Vec<(i32, String, bool)>,
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
        if fork::is_ours(&talk.store) {
            return fork::draft(talk);
        }
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
            becomes: change.word(),
            told: Vec::new(),
            interrupt: (at_work && talk.interrupt).then_some(interrupt),
            server,
            at_work,
        })
    })
}

fn at_work(server: Option<&Server>, stand: &Stand, store: &Path) -> Result<bool> {
    Ok(match server {
        Some(server) => server.knows(&stand.id, store)?.running(),
        // the holder is gone: what is stored is a left-over
        None => false,
    })
}

/// A conversation that is ready to be moved: nobody is at work on it, and no other respool is.
pub struct Prepared<'a> {
    /// What will be done.
    pub change: Change,
    /// The agent was at work, and was interrupted.
    pub interrupted: bool,
    talk: &'a Talk,
    _lock: OwnedFd,
}

/// Gets a conversation ready: locks it against other respools, interrupts the agent if that is wanted.
pub fn prepare<'a>(talk: &'a Talk, progress: &dyn Progress) -> Result<Prepared<'a>> {
    talk.hand.run(|| {
        let lock = locked(&talk.store)?;
        if fork::is_ours(&talk.store) {
            return Ok(Prepared {
                change: fork::prepare(talk, progress)?,
                interrupted: false,
                talk,
                _lock: lock,
            });
        }
        let mut stand = Stand::read(&talk.store)?;
        let server = holder::holder(&talk.store, &stand, &talk.access)?;
        let mut interrupted = false;
        if let Some(server) = &server
            && server.knows(&stand.id, &talk.store)?.running()
        {
            if !talk.interrupt {
                return Err(ChatError::AtWork(server.words()));
            }
            progress.step("interrupting the agent", 0, 0);
            server.interrupt(&stand.id, progress)?;
            interrupted = true;
            fault_point("chat-interrupted");
            // it noted that it was interrupted
            let read = Stand::read(&talk.store).map_err(ChatError::from);
            stand = read.map_err(ChatError::after_interrupt)?;
        }
        let made = change(&talk.store, &stand, &talk.aim);
        let mut change = if interrupted {
            made.map_err(ChatError::after_interrupt)?
        } else {
            made?
        };
        change.stale = server.is_none()
            && matches!(change.way, Way::Head { .. })
            && stand.status.as_deref() == Some("running");
        Ok(Prepared {
            change,
            interrupted,
            talk,
            _lock: lock,
        })
    })
}

fn locked(store: &Path) -> Result<OwnedFd> {
    if fork::is_ours(store) {
        return fork::locked(store);
    }
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

    /// The store of the conversation that it leads to, where that is another one; `None` where it has none yet.
    pub fn store(&self) -> Option<PathBuf> {
        let id = self.change.leads_to()?;
        let store = self.change.path();
        let begun = self.talk.hand.run(|| Ok(fork::has_begun(store, id)));
        begun.is_ok_and(|b| b).then(|| fork::beside(store, id))
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
        Way::Fork(_) | Way::Unfork(_) => prefix::side(change),
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
        Way::Head { .. } | Way::Fork(_) | Way::Unfork(_) => Cut {
            from: u64::MAX,
            archive: "none",
            back: None,
        },
    }
}
