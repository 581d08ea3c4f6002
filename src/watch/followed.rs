//! One conversation that the watcher follows: what of it is known, what is new, and the checkpoints for it.

use std::collections::{HashMap, HashSet};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::event::{Event, WatchError};
use super::take::{restore_command, take};
use crate::conversation::{Conversation, Found, Message};
use crate::engine::{
    Checkpoint, CheckpointId, CheckpointKind, Health, How, NewCheckpoint, State as TreeState,
};
use crate::progress::Silent;
use crate::sandbox::registry::Registry;
use crate::sandbox::site::Site;
use crate::timeline::desk::Desk;
use crate::timeline::join::{id_in, plain_id, text_hash};
use crate::timeline::notes::remember_missed;

/// Messages whose ids are remembered from the start.
const KNOWN: usize = 64;
/// Events before the newest known one that are read again: the newest may have been half written.
const AGAIN: u64 = 8;

/// How long a store is quiet before it is looked at again for the end of the turn.
const QUIET: Duration = Duration::from_millis(300);
/// The same where a stop hook may be at work.
const QUIET_HOOKED: Duration = Duration::from_secs(2);

/// A file or folder, whatever its name.
type Identity = (u64, u64);

/// The inode at a path; `None` if there is none.
fn identity(path: &Path) -> Option<Identity> {
    std::fs::symlink_metadata(path).ok().map(|m| (m.dev(), m.ino()))
}

/// The same of a store. One that is in a file with others has the file's path, with its id behind it.
fn store_identity(store: &Path) -> Option<Identity> {
    let shared = || store.parent().filter(|p| p.is_file()).and_then(identity);
    identity(store).or_else(shared)
}

/// The turn that began with the newest message.
#[derive(Debug)]
struct Turn {
    message: String,
    index: u64,
    /// The newest checkpoint that is older than anything of this turn's end.
    seq: u64,
    /// The agent has worked since the last turn-end.
    busy: bool,
    /// The tool use that was the newest at the last turn-end.
    acted: Option<u64>,
    /// A turn-end was taken.
    ended: bool,
    /// The agent calls the hook, so that its end is the hook's to take.
    hooked: bool,
}

impl Turn {
    fn new(message: &Message, seq: u64) -> Self {
        Self {
            hooked: !message.hooks.is_empty(),
            message: message.id.clone(),
            index: message.index,
            seq,
            busy: false,
            acted: Some(message.index),
            ended: false,
        }
    }

    /// Notes what the agent does, and says whether its turn has ended. (What the store says of the turn before
    /// may stand there for a moment after the message.)
    fn ends(&mut self, now: &Conversation, settled: bool) -> bool {
        if now.at_work {
            self.busy = true;
            return false;
        }
        // a message that nothing has followed is one that the agent has not taken up yet
        if now.events <= self.index + 1 {
            return false;
        }
        self.busy |= now.acted > self.acted;
        self.busy || (settled && !self.ended && is_over(now))
    }

    fn end(&mut self, now: &Conversation, seq: u64) {
        self.busy = false;
        self.ended = true;
        self.acted = self.acted.max(now.acted);
        self.seq = seq;
    }
}

/// The agent says that it has stopped for good.
fn is_over(c: &Conversation) -> bool {
    !c.at_work
        && matches!(
            c.status.as_deref(),
            Some("finished" | "error" | "stuck" | "interrupted")
        )
}

/// One followed conversation.
pub(super) struct Followed {
    /// Its store.
    pub(super) found: Found,
    /// Its id.
    pub(super) id: String,
    store: Option<Identity>,
    /// What of it the system reports changes of.
    reported: HashMap<PathBuf, Identity>,
    seen: HashSet<String>,
    /// The hashes of the texts of the messages that were there at the start.
    texts: HashSet<String>,
    /// How many events it had at the last look.
    events: u64,
    turn: Option<Turn>,
    /// The last failure that was told.
    trouble: Option<String>,
}

impl Followed {
    /// Begins to follow. Of a store that was there before the watcher (`fresh` is false), every message is
    /// known already; of one that appeared later, its newest message may be new.
    pub(super) fn new(found: Found, desk: &Desk, fresh: bool) -> Result<(Self, Conversation), WatchError> {
        let store = store_identity(&found.1);
        let now = found.0.tail(&found.1, KNOWN)?;
        let newest = now
            .messages
            .iter()
            .max_by_key(|m| m.index)
            .filter(|m| fresh && (begins(&now, m) || is_hooked(desk, &now, m)))
            .filter(|m| !is_of_another(&found, m));
        let old = || {
            now.messages
                .iter()
                .filter(|m| newest.is_none_or(|n| n.id != m.id))
        };
        let seen = old().map(|m| m.id.clone()).collect();
        let texts = old().map(|m| text_hash(&m.text)).collect();
        let mut turn = None;
        if newest.is_none() && now.at_work {
            // in the middle of a turn: its end is worth a checkpoint
            let listed = match desk.site(&now) {
                Ok(site) => site.vault.checkpoints()?,
                Err(_) => Vec::new(),
            };
            let seq = listed.last().map_or(0, |c| c.meta.seq);
            turn = now.messages.last().map(|m| Turn::new(m, seq));
        }
        let it = Self {
            id: now.summary.id.clone(),
            found,
            store,
            reported: HashMap::new(),
            seen,
            texts,
            events: newest.map_or(now.events, |m| m.index),
            turn,
            trouble: None,
        };
        Ok((it, now))
    }

    /// True while the conversation is in its place: the store that was followed from the start, or one that was put
    /// in its place and is of the same conversation.
    pub(super) fn there(&mut self) -> bool {
        let now = store_identity(&self.found.1);
        if now.is_none() || now == self.store {
            return now.is_some();
        }
        let same = self
            .found
            .0
            .tail(&self.found.1, 1)
            .is_ok_and(|c| c.summary.id == self.id);
        if same {
            self.store = now;
        }
        same
    }

    /// A change of this path may be one of the conversation.
    pub(super) fn concerned(&self, path: &Path) -> bool {
        self.found.0.concerns(&self.found.1, path)
    }

    /// Asks for reports of changes of all its folders that there are; again where one was made anew.
    pub(super) fn report(&mut self, watcher: &mut dyn notify::Watcher) -> notify::Result<()> {
        for path in self.found.0.watched(&self.found.1) {
            match identity(&path) {
                None => {
                    self.reported.remove(&path);
                }
                Some(is) if self.reported.get(&path) != Some(&is) => {
                    if self.reported.contains_key(&path) {
                        // else the end of the old one would be taken for the end of the new one
                        let _gone_already = watcher.unwatch(&path);
                    }
                    watcher.watch(&path, notify::RecursiveMode::NonRecursive)?;
                    self.reported.insert(path, is);
                }
                Some(_) => {}
            }
        }
        Ok(())
    }

    /// How long it must be quiet to be looked at again as settled. (OpenHands says that it has finished before
    /// it calls the stop hook.)
    pub(super) fn quiet(&self) -> Duration {
        match &self.turn {
            Some(t) if t.hooked && !t.ended => QUIET_HOOKED,
            _ => QUIET,
        }
    }

    /// Looks at the store: checkpoints for what is new, and for the end of the turn. `settled`: it was quiet
    /// for a while.
    pub(super) fn look(&mut self, desk: &Desk, settled: bool, tell: &mut dyn FnMut(Event)) {
        let from = self.events.saturating_sub(AGAIN);
        let read = self.found.0.since(&self.found.1, from);
        // messages were taken away: what is left is known by its ids
        let read = match read {
            Ok(c) if c.events < self.events => self.found.0.tail(&self.found.1, KNOWN),
            other => other,
        };
        let now = match read {
            Ok(now) => now,
            Err(e) => return self.failed(e.to_string(), tell),
        };
        self.events = now.events;
        let new: Vec<Message> = now
            .messages
            .iter()
            .filter(|m| !self.seen.contains(&m.id))
            .cloned()
            .collect();
        if new.is_empty() && !self.turn.as_mut().is_some_and(|t| t.ends(&now, settled)) {
            return;
        }
        let site = match desk.site(&now) {
            Ok(site) => site,
            Err(e) => {
                self.seen.extend(new.into_iter().map(|m| m.id));
                return self.failed(e.to_string(), tell);
            }
        };
        self.trouble = None;
        let mut taken = Vec::new();
        for message in new {
            self.seen.insert(message.id.clone());
            let (event, seq) = self.message(&desk.registry, &site, &message);
            let mut turn = Turn::new(&message, seq);
            turn.hooked |= matches!(event, Event::Checkpoint { how: How::Hook, .. });
            self.turn = Some(turn);
            taken.push(event);
        }
        // all checkpoints first: the numbers need the whole conversation
        self.number(&mut taken);
        taken.into_iter().for_each(&mut *tell);
        if self.turn.as_mut().is_some_and(|t| t.ends(&now, settled)) {
            self.turn_end(&site, &now, settled, tell);
        }
    }

    /// Gives events of messages their numbers where a part of the conversation did not tell them.
    fn number(&self, events: &mut [Event]) {
        let unknown = |e: &Event| matches!(e, Event::Checkpoint { number: None, .. });
        if !events.iter().any(unknown) {
            return;
        }
        let whole = match self.found.0.read(&self.found.1, &Silent) {
            Ok(whole) => whole,
            Err(e) => return tracing::debug!("{}: numbers are not known: {e}", self.id),
        };
        let new: HashSet<String> = events
            .iter()
            .filter_map(|e| match e {
                Event::Checkpoint { message, .. } => Some(message.clone()),
                _ => None,
            })
            .collect();
        let numbers = numbers(&whole.messages, &new);
        for event in events {
            if let Event::Checkpoint { message, number, .. } = event {
                *number = number.or_else(|| numbers.get(message.as_str()).copied());
            }
        }
    }

    /// Tells a failure once.
    fn failed(&mut self, reason: String, tell: &mut dyn FnMut(Event)) {
        if self.trouble.as_ref() != Some(&reason) {
            tell(self.failure(None, reason.clone()));
            self.trouble = Some(reason);
        }
    }

    fn failure(&self, message: Option<&str>, reason: String) -> Event {
        Event::Failed {
            conversation: self.id.clone(),
            message: message.map(ToOwned::to_owned),
            reason,
        }
    }

    /// A message's checkpoint: the hook's, else one that is taken now. And the newest sequence number before
    /// its turn's end.
    fn message(&self, registry: &Registry, site: &Site, message: &Message) -> (Event, u64) {
        let listed = match site.vault.checkpoints() {
            Ok(listed) => listed,
            Err(e) => return (self.failure(Some(&message.id), e.to_string()), 0),
        };
        let event = |checkpoint: CheckpointId, ms, how, late| Event::Checkpoint {
            conversation: self.id.clone(),
            message: message.id.clone(),
            number: message.number,
            restore: restore_command(registry, &checkpoint, &site.record.id),
            checkpoint,
            ms,
            how,
            late,
        };
        if let Some(c) = self.taken_by_hook(&listed, message) {
            return (event(c.meta.id.clone(), 0, c.meta.how, None), c.meta.seq);
        }
        let mut new = NewCheckpoint::of(CheckpointKind::Message, How::Watch);
        new.conversation = Some(self.id.clone());
        new.message = Some(message.id.clone());
        let started = Instant::now();
        // the snapshot first, then the question how late it is: counting takes longer than taking
        match take(site, &new) {
            Ok(taken) => {
                let ms = started.elapsed().as_millis() as u64;
                let late = self.late(&listed, site, message, &taken.meta.id);
                (event(taken.meta.id, ms, How::Watch, late), taken.meta.seq)
            }
            Err(e) => {
                let reason = e.to_string();
                if let Err(e) = remember_missed(site, &message.id, &reason) {
                    tracing::warn!("that a message has no checkpoint cannot be recorded: {e}");
                }
                let newest = listed.last().map_or(0, |c| c.meta.seq);
                (self.failure(Some(&message.id), reason), newest)
            }
        }
    }

    /// The checkpoint that was taken for this message before the watcher saw it: named by the message's id,
    /// by what the hook answered, or, where the agent has not recorded that, the newest of its text that
    /// nothing else was taken after.
    fn taken_by_hook<'a>(&self, listed: &'a [Checkpoint], message: &Message) -> Option<&'a Checkpoint> {
        let own = plain_id(&self.id);
        let mut ours = listed
            .iter()
            .filter(|c| c.health == Health::Ok && c.meta.kind == CheckpointKind::Message)
            .filter(|c| {
                c.meta
                    .conversation
                    .as_deref()
                    .is_some_and(|id| plain_id(id) == own)
            });
        let said = message.hooks.iter().rev().find_map(|h| id_in(&h.stdout));
        if let Some(c) = ours
            .clone()
            .find(|c| c.meta.message.as_ref() == Some(&message.id) || Some(&c.meta.id) == said.as_ref())
        {
            return Some(c);
        }
        if !message.hooks.is_empty() {
            return None;
        }
        let hash = text_hash(&message.text);
        let after = self.turn.as_ref().map_or_else(
            // those of the messages that were there at the start
            || {
                let of_old = |c: &&Checkpoint| match (&c.meta.message, &c.meta.text_hash) {
                    (Some(id), _) => self.seen.contains(id),
                    (None, Some(hash)) => self.texts.contains(hash),
                    (None, None) => false,
                };
                ours.clone().filter(of_old).map(|c| c.meta.seq).max().unwrap_or(0)
            },
            |t| t.seq,
        );
        ours.find(|c| {
            c.meta.message.is_none() && c.meta.seq > after && c.meta.text_hash.as_ref() == Some(&hash)
        })
    }

    /// How many paths differ from the checkpoint before, if the agent had begun when this one was taken.
    fn late(
        &self,
        before: &[Checkpoint],
        site: &Site,
        message: &Message,
        taken: &CheckpointId,
    ) -> Option<u64> {
        let now = self.found.0.since(&self.found.1, message.index).ok()?;
        // the agent writes down that it uses a tool before it does
        if now.acted.is_none_or(|at| at < message.index) {
            return None;
        }
        let last = before.iter().rfind(|c| c.health == Health::Ok)?;
        let (a, b) = (
            TreeState::Checkpoint(last.meta.id.clone()),
            TreeState::Checkpoint(taken.clone()),
        );
        let changed = match site.vault.changes(&a, &b, false, &Silent) {
            Ok(list) => list.len() as u64,
            Err(e) => {
                tracing::warn!("how late checkpoint {taken} is cannot be told: {e}");
                return None;
            }
        };
        if changed == 0 {
            return None;
        }
        if let Err(e) = site.vault.mark_late(taken, changed) {
            tracing::warn!("checkpoint {taken} is late, and that cannot be recorded: {e}");
        }
        Some(changed)
    }

    /// The end of the turn: the hook's checkpoint, else one that is taken now.
    fn turn_end(&mut self, site: &Site, now: &Conversation, settled: bool, tell: &mut dyn FnMut(Event)) {
        let Some(turn) = &mut self.turn else { return };
        let own = plain_id(&self.id);
        let event = |checkpoint: CheckpointId, message: &str, how| Event::TurnEnd {
            conversation: self.id.clone(),
            message: message.to_owned(),
            checkpoint,
            how,
        };
        let listed = site.vault.checkpoints().unwrap_or_default();
        let hook = listed.iter().rfind(|c| {
            c.meta.kind == CheckpointKind::TurnEnd
                && c.meta.seq > turn.seq
                && c.health == Health::Ok
                && c.meta
                    .conversation
                    .as_deref()
                    .is_some_and(|id| plain_id(id) == own)
        });
        if let Some(c) = hook {
            turn.end(now, c.meta.seq);
            return tell(event(c.meta.id.clone(), &turn.message, c.meta.how));
        }
        if turn.hooked && !settled {
            return;
        }
        let mut new = NewCheckpoint::of(CheckpointKind::TurnEnd, How::Watch);
        new.conversation = Some(self.id.clone());
        new.message = Some(turn.message.clone());
        match take(site, &new) {
            Ok(taken) => {
                turn.end(now, taken.meta.seq);
                tell(event(taken.meta.id, &turn.message, How::Watch));
            }
            Err(e) => {
                turn.end(now, turn.seq);
                let message = turn.message.clone();
                tell(self.failure(Some(&message), e.to_string()));
            }
        }
    }
}

/// The numbers of messages by their ids. The agent may not have said yet that the newest ones are on the active
/// branch: where nothing but the `new` ones comes after the last number, they go on from it.
fn numbers<'a>(messages: &'a [Message], new: &HashSet<String>) -> HashMap<&'a str, u32> {
    let mut known: HashMap<&str, u32> = messages
        .iter()
        .filter_map(|m| Some((m.id.as_str(), m.number?)))
        .collect();
    let tail = messages
        .iter()
        .rposition(|m| m.number.is_some())
        .map_or(0, |i| i + 1);
    let (head, tail) = messages.split_at(tail);
    if head.iter().all(|m| m.number.is_some()) && tail.iter().all(|m| new.contains(&m.id)) {
        let last = head.last().and_then(|m| m.number).unwrap_or(0);
        known.extend((last + 1..).zip(tail).map(|(n, m)| (m.id.as_str(), n)));
    }
    known
}

/// True if the hook took a checkpoint for this, the newest message of a store that has just appeared: the agent may have
/// done its turn before the store was seen.
fn is_hooked(desk: &Desk, now: &Conversation, message: &Message) -> bool {
    let Ok(listed) = desk.site(now).and_then(|site| site.vault.checkpoints()) else {
        return false;
    };
    let (id, hash) = (plain_id(&now.summary.id), text_hash(&message.text));
    listed.iter().any(|c| {
        let own = c
            .meta
            .conversation
            .as_deref()
            .is_some_and(|id_of| plain_id(id_of) == id);
        own && c.meta.how == How::Hook && c.meta.text_hash.as_ref() == Some(&hash)
    })
}

/// True if a message was sent in another conversation, of which this one is a fork: it has its checkpoint there.
fn is_of_another(found: &Found, message: &Message) -> bool {
    let has = |store: &PathBuf| {
        let read = found.0.tail(store, KNOWN);
        read.is_ok_and(|c| {
            c.messages
                .iter()
                .any(|m| (&m.id, &m.text) == (&message.id, &message.text))
        })
    };
    found.0.kin(&found.1).iter().any(has)
}

/// True if this, the newest message of a store that has just appeared, was just sent: a copy of an old
/// conversation has no message that a checkpoint could be taken for.
fn begins(now: &Conversation, message: &Message) -> bool {
    let acted = now.acted.is_some_and(|at| at > message.index);
    now.at_work || now.events <= message.index + 1 || (!acted && !is_over(now))
}
