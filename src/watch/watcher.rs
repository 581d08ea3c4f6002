//! The watcher: follows stores, takes a checkpoint at each message that the hook did not see, and at each
//! turn end.

use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use notify::{RecursiveMode, Watcher as _};
use serde::Serialize;

use crate::conversation::{ConversationError, Found};
use crate::engine::vault::Vault;
use crate::engine::{CheckpointId, CheckpointKind, EngineError, How, NewCheckpoint, State};
use crate::failure::{Explain, Kind};
use crate::progress::{Progress, Silent};
use crate::sandbox::site::Site;
use crate::timeline::Row;
use crate::timeline::desk::{Desk, Opened};

/// Rows that are looked at when a store changes.
const ROWS: usize = 8;
/// A store that was quiet for so long is looked at again for the end of the turn.
const QUIET: Duration = Duration::from_millis(300);

/// What can go wrong.
#[derive(Debug, thiserror::Error)]
pub enum WatchError {
    /// The conversation.
    #[error(transparent)]
    Conversation(#[from] ConversationError),
    /// The engine.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// The system's notification of changes.
    #[error("stores cannot be followed: {0}")]
    Notify(#[from] notify::Error),
}

impl Explain for WatchError {
    fn kind(&self) -> Kind {
        match self {
            Self::Conversation(e) => e.kind(),
            Self::Engine(e) => e.kind(),
            Self::Notify(_) => Kind::Failed,
        }
    }
    fn hint(&self) -> Option<String> {
        match self {
            Self::Conversation(e) => e.hint(),
            Self::Engine(e) => e.hint(),
            Self::Notify(_) => Some("see: sysctl fs.inotify.max_user_watches".into()),
        }
    }
}

/// What the watcher tells, one JSON line each.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "event", rename_all = "kebab-case")]
pub enum Event {
    /// It follows this conversation from now on.
    Watching {
        /// The conversation.
        conversation: String,
        /// Its sandbox.
        sandbox: String,
    },
    /// A message has a checkpoint now.
    Checkpoint {
        /// The conversation.
        conversation: String,
        /// The native id of the message.
        message: String,
        /// Its number on the active branch, where it is known.
        number: Option<u32>,
        /// The checkpoint.
        checkpoint: CheckpointId,
        /// How long it took, 0 where the hook took it.
        ms: u64,
        /// `hook` or `watch`.
        how: How,
        /// Paths that had changed already, where it is late.
        late: Option<u64>,
        /// The command that goes back to it.
        restore: String,
    },
    /// A turn has ended.
    TurnEnd {
        /// The conversation.
        conversation: String,
        /// The native id of its message.
        message: String,
        /// The checkpoint.
        checkpoint: CheckpointId,
        /// `hook` or `watch`.
        how: How,
    },
    /// Something failed; the watcher goes on.
    Failed {
        /// The conversation.
        conversation: String,
        /// The message, where it is about one.
        message: Option<String>,
        /// Why.
        reason: String,
    },
}

/// One followed conversation.
struct Followed {
    found: Found,
    id: String,
    seen: HashSet<String>,
    /// The message whose turn has not ended.
    open: Option<String>,
    /// The number of events when the last turn-end was taken.
    ended_at: u64,
}

/// Follows conversations until it is cancelled. `tell` gets every event.
pub fn watch(
    desk: &Desk,
    stores: Vec<Found>,
    cancel: &dyn Progress,
    tell: &mut dyn FnMut(Event),
) -> Result<(), WatchError> {
    let (send, receive) = channel();
    let mut watcher = notify::recommended_watcher(notifier(send))?;
    let mut all = Vec::new();
    for found in stores {
        let opened = desk.open(&found, &Silent)?;
        let id = opened.conversation.summary.id.clone();
        let site = desk.site(&opened.conversation)?;
        for path in found.0.watched(&found.1) {
            watcher.watch(&path, RecursiveMode::NonRecursive)?;
        }
        tell(Event::Watching {
            conversation: id.clone(),
            sandbox: site.record.id.clone(),
        });
        let seen = opened
            .conversation
            .messages
            .iter()
            .map(|m| m.id.clone())
            .collect();
        all.push(Followed {
            found,
            id,
            seen,
            open: None,
            ended_at: opened.conversation.events,
        });
    }
    follow(desk, &mut all, &receive, cancel, tell);
    Ok(())
}

fn notifier(send: Sender<PathBuf>) -> impl FnMut(notify::Result<notify::Event>) + Send + 'static {
    move |event| {
        let Ok(event) = event else { return };
        if event.kind.is_access() {
            return;
        }
        for path in event.paths {
            // the receiver is gone when the watcher ends
            drop(send.send(path));
        }
    }
}

fn follow(
    desk: &Desk,
    all: &mut [Followed],
    changes: &Receiver<PathBuf>,
    cancel: &dyn Progress,
    tell: &mut dyn FnMut(Event),
) {
    let mut quiet: BTreeMap<usize, Instant> = BTreeMap::new();
    while !cancel.cancelled() {
        match changes.recv_timeout(if quiet.is_empty() {
            Duration::from_millis(500)
        } else {
            QUIET / 3
        }) {
            Ok(path) => {
                let mut touched: HashSet<usize> = which(all, &path).collect();
                while let Ok(more) = changes.try_recv() {
                    touched.extend(which(all, &more));
                }
                for i in touched {
                    look(desk, &mut all[i], tell);
                    quiet.insert(i, Instant::now());
                }
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
        let due: Vec<usize> = quiet
            .iter()
            .filter(|(_, t)| t.elapsed() >= QUIET)
            .map(|(i, _)| *i)
            .collect();
        for i in due {
            look(desk, &mut all[i], tell);
            quiet.remove(&i);
        }
    }
}

fn which<'a>(all: &'a [Followed], path: &'a Path) -> impl Iterator<Item = usize> + 'a {
    all.iter()
        .enumerate()
        .filter(move |(_, f)| path.starts_with(&f.found.1))
        .map(|(i, _)| i)
}

/// Looks at a store that changed: new messages, and the end of the turn.
fn look(desk: &Desk, f: &mut Followed, tell: &mut dyn FnMut(Event)) {
    let opened = match desk.tail(&f.found, ROWS) {
        Ok(opened) => opened,
        Err(e) => {
            tell(Event::Failed {
                conversation: f.id.clone(),
                message: None,
                reason: e.to_string(),
            });
            return;
        }
    };
    let site = match desk.site(&opened.conversation) {
        Ok(site) => site,
        Err(e) => {
            tell(Event::Failed {
                conversation: f.id.clone(),
                message: None,
                reason: e.to_string(),
            });
            return;
        }
    };
    let new: Vec<&Row> = opened
        .timeline
        .rows
        .iter()
        .filter(|r| !f.seen.contains(&r.id))
        .collect();
    for row in new {
        f.seen.insert(row.id.clone());
        f.open = Some(row.id.clone());
        tell(message(f, &opened, &site, row));
    }
    if let Some(event) = turn_end(f, &opened, &site) {
        tell(event);
    }
}

fn message(f: &Followed, opened: &Opened, site: &Site, row: &Row) -> Event {
    let event = |checkpoint: CheckpointId, ms, how, late| Event::Checkpoint {
        conversation: f.id.clone(),
        message: row.id.clone(),
        number: row.message,
        restore: format!("respool rewind {checkpoint} -s {}", site.record.id),
        checkpoint,
        ms,
        how,
        late,
    };
    if let Some(id) = row
        .checkpoint
        .as_ref()
        .filter(|c| c.state.usable())
        .and_then(|c| c.id.clone())
    {
        return event(id, 0, How::Hook, None);
    }
    let mut new = NewCheckpoint::of(CheckpointKind::Message, How::Watch);
    new.conversation = Some(f.id.clone());
    new.message = Some(row.id.clone());
    let started = Instant::now();
    // the snapshot first, then the question how late it is: counting takes longer than taking
    match site.vault.checkpoint(&new) {
        Ok(taken) => {
            let ms = started.elapsed().as_millis() as u64;
            event(
                taken.meta.id.clone(),
                ms,
                How::Watch,
                late(opened, site, row, &taken.meta.id),
            )
        }
        Err(e) => Event::Failed {
            conversation: f.id.clone(),
            message: Some(row.id.clone()),
            reason: e.to_string(),
        },
    }
}

/// How many paths differ from the checkpoint before, if the agent had begun when this one was taken.
fn late(opened: &Opened, site: &Site, row: &Row, taken: &CheckpointId) -> Option<u64> {
    let index = opened
        .conversation
        .messages
        .iter()
        .find(|m| m.id == row.id)?
        .index;
    if opened.conversation.events <= index + 1 {
        return None;
    }
    let before = opened
        .checkpoints
        .iter()
        .rfind(|c| c.health == crate::engine::Health::Ok)?;
    let (a, b) = (
        State::Checkpoint(before.meta.id.clone()),
        State::Checkpoint(taken.clone()),
    );
    let changed = Vault::changes(&site.vault, &a, &b, false, &Silent).ok()?.len() as u64;
    if changed == 0 {
        return None;
    }
    if let Err(e) = site.vault.mark_late(taken, changed) {
        tracing::warn!("checkpoint {taken} is late, and that cannot be recorded: {e}");
    }
    Some(changed)
}

fn turn_end(f: &mut Followed, opened: &Opened, site: &Site) -> Option<Event> {
    let message = f.open.clone()?;
    let index = opened
        .conversation
        .messages
        .iter()
        .find(|m| m.id == message)?
        .index;
    let events = opened.conversation.events;
    // a message that nothing has followed is one that the agent has not taken up yet
    if opened.conversation.at_work || events <= index + 1 || events <= f.ended_at {
        return None;
    }
    let known = opened.timeline.rows.iter().find(|r| r.id == message)?;
    if let Some(id) = known.checkpoint.as_ref().and_then(|c| c.turn_end.clone()) {
        f.open = None;
        f.ended_at = events;
        return Some(Event::TurnEnd {
            conversation: f.id.clone(),
            message,
            checkpoint: id,
            how: How::Hook,
        });
    }
    let mut new = NewCheckpoint::of(CheckpointKind::TurnEnd, How::Watch);
    new.conversation = Some(f.id.clone());
    new.message = Some(message.clone());
    f.ended_at = events;
    Some(match site.vault.checkpoint(&new) {
        Ok(taken) => {
            f.open = None;
            Event::TurnEnd {
                conversation: f.id.clone(),
                message,
                checkpoint: taken.meta.id,
                how: How::Watch,
            }
        }
        Err(e) => Event::Failed {
            conversation: f.id.clone(),
            message: Some(message),
            reason: e.to_string(),
        },
    })
}
