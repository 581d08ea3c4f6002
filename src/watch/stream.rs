//! Checkpoints by the events of agent servers inside a sandbox's containers: for conversations whose store lies where this
//! machine does not see it, and whose agent calls no hook.

use std::collections::BTreeSet;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use chrono::Utc;

use super::event::Event;
use super::hook::words;
use super::take::{restore_command, take};
use crate::chat::stream::{Told, follow, servers_in};
use crate::engine::{Checkpoint, CheckpointKind, How, NewCheckpoint};
use crate::progress::Progress;
use crate::sandbox::docker::State as Does;
use crate::sandbox::heard::{self, Heard, Way};
use crate::sandbox::registry::Registry;
use crate::sandbox::site::Site;
use crate::text::shown;
use crate::timeline::join::text_hash;

/// How often the containers of a sandbox are looked at; where it has none, whether it has some by now.
const ROUND: Duration = Duration::from_secs(2);
const SELDOM: Duration = Duration::from_secs(10);
/// How soon the end is seen.
const TICK: Duration = Duration::from_millis(200);
/// A hook's checkpoint of the same text that is not older, in seconds, is that of this message.
const JUST_NOW: i64 = 60;

/// Follows the agent servers in the containers of a sandbox, those too that start later, until `stop` says so.
pub fn listen(registry: &Registry, sandbox: &str, stop: &dyn Progress, tell: &mut dyn FnMut(Event)) {
    let (send, receive) = channel();
    std::thread::scope(|threads| {
        let mut known = BTreeSet::new();
        let mut next = Instant::now();
        let mut ears = Ears {
            registry,
            sandbox,
            acted: BTreeSet::new(),
        };
        while !stop.cancelled() {
            if Instant::now() >= next {
                let servers = ears.servers();
                next = Instant::now() + if servers.is_some() { ROUND } else { SELDOM };
                for pid in servers.unwrap_or_default() {
                    if known.insert(pid) {
                        let send: Sender<Told> = send.clone();
                        threads.spawn(move || follow(pid, stop, &send));
                    }
                }
            }
            ears.drain(&receive, tell);
        }
    });
}

struct Ears<'a> {
    registry: &'a Registry,
    sandbox: &'a str,
    /// Conversations with a message since their turn's last end.
    acted: BTreeSet<String>,
}

impl Ears<'_> {
    fn site(&self) -> Result<Site, String> {
        let found = self.registry.by_id(self.sandbox).map_err(|e| words(&e))?;
        let tracked = found.filter(|s| s.record.tracked);
        tracked.ok_or_else(|| format!("sandbox {} is not tracked any more", self.sandbox))
    }

    /// The processes of the servers that run now; `None` where there are no containers. The sandbox is not kept open: its
    /// pool could not be unmounted.
    fn servers(&self) -> Option<Vec<i32>> {
        let site = self.site().ok()?;
        let parts = site.parts().ok().filter(|p| !p.is_empty())?;
        let opened = parts.open().into_iter().filter_map(|f| f.part.ok());
        let lives = opened.filter(|p| p.container.state == Does::Running && p.container.pid > 0);
        Some(lives.flat_map(|p| servers_in(p.container.pid)).collect())
    }

    fn drain(&mut self, receive: &Receiver<Told>, tell: &mut dyn FnMut(Event)) {
        let Ok(first) = receive.recv_timeout(TICK) else {
            return;
        };
        for told in std::iter::once(first).chain(receive.try_iter()) {
            if let Some(event) = self.heard(told) {
                tell(event);
            }
        }
    }

    fn heard(&mut self, told: Told) -> Option<Event> {
        match told {
            Told::Following(conversation) => {
                let new = Heard {
                    conversation: conversation.clone(),
                    way: Way::Stream,
                    container: None,
                };
                let noted = self.site().and_then(|s| {
                    let dir = s.dir().map_err(|e| words(&e))?;
                    heard::remember(dir, &new).map_err(|e| words(&e))
                });
                if let Err(e) = noted {
                    tracing::warn!("{}", shown(&e));
                }
                let sandbox = self.sandbox.to_owned();
                Some(Event::Watching {
                    conversation,
                    sandbox,
                })
            }
            Told::Message {
                conversation,
                id,
                text,
            } => {
                self.acted.insert(conversation.clone());
                self.message(&conversation, &id, &text).unwrap_or_else(|reason| {
                    Some(Event::Failed {
                        conversation,
                        message: Some(id),
                        reason,
                    })
                })
            }
            Told::Stopped { conversation } => {
                if !self.acted.remove(&conversation) {
                    return None;
                }
                self.turn_end(&conversation).unwrap_or_else(|reason| {
                    Some(Event::Failed {
                        conversation,
                        message: None,
                        reason,
                    })
                })
            }
            Told::Deaf { conversation, why } => Some(Event::Failed {
                conversation: conversation.unwrap_or_default(),
                message: None,
                reason: why,
            }),
        }
    }

    fn message(&self, conversation: &str, id: &str, text: &str) -> Result<Option<Event>, String> {
        let site = self.site()?;
        let hash = text_hash(text);
        let list = site.vault.checkpoints().map_err(|e| words(&e))?;
        if list
            .iter()
            .rev()
            .take(32)
            .any(|c| is_of(c, conversation, id, &hash))
        {
            return Ok(None);
        }
        let mut new = NewCheckpoint::of(CheckpointKind::Message, How::Watch);
        new.conversation = Some(conversation.to_owned());
        new.message = Some(id.to_owned());
        new.text_hash = Some(hash);
        let start = Instant::now();
        let taken = take(&site, &new).map_err(|e| words(&e))?;
        Ok(Some(Event::Checkpoint {
            conversation: conversation.to_owned(),
            message: id.to_owned(),
            number: None,
            restore: restore_command(self.registry, &taken.meta.id, &site.record.id),
            checkpoint: taken.meta.id,
            ms: start.elapsed().as_millis() as u64,
            how: How::Watch,
            late: None,
        }))
    }

    fn turn_end(&self, conversation: &str) -> Result<Option<Event>, String> {
        let site = self.site()?;
        let list = site.vault.checkpoints().map_err(|e| words(&e))?;
        let own = |c: &&Checkpoint| {
            c.meta
                .conversation
                .as_deref()
                .is_some_and(|o| heard::same(o, conversation))
        };
        let newest = list.iter().rev().find(own);
        if newest.is_none_or(|c| c.meta.kind == CheckpointKind::TurnEnd) {
            // the hook was there before
            return Ok(None);
        }
        let mut new = NewCheckpoint::of(CheckpointKind::TurnEnd, How::Watch);
        new.conversation = Some(conversation.to_owned());
        new.message = newest.and_then(|c| c.meta.message.clone());
        let taken = take(&site, &new).map_err(|e| words(&e))?;
        Ok(Some(Event::TurnEnd {
            conversation: conversation.to_owned(),
            message: new.message.unwrap_or_default(),
            checkpoint: taken.meta.id,
            how: How::Watch,
        }))
    }
}

/// True for a checkpoint of this message, also for the one that its hook took a moment ago.
fn is_of(c: &Checkpoint, conversation: &str, id: &str, hash: &str) -> bool {
    let meta = &c.meta;
    if meta.message.as_deref() == Some(id) {
        return true;
    }
    let same = meta
        .conversation
        .as_deref()
        .is_some_and(|o| heard::same(o, conversation));
    let young = (Utc::now() - meta.time).num_seconds() < JUST_NOW;
    meta.how == How::Hook
        && meta.kind == CheckpointKind::Message
        && same
        && young
        && meta.text_hash.as_deref() == Some(hash)
}
