//! Which checkpoint belongs to which message: by ids, never by time or count.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};

use chrono::{DateTime, Utc};

use super::{CheckpointState, Row, RowCheckpoint};
use crate::conversation::{Conversation, Message};
use crate::engine::{Checkpoint, CheckpointId, CheckpointKind, CheckpointMeta, Health};
use crate::sandbox::registry::Earlier;
use crate::text::shown;

/// The hash that ties a hook's checkpoint to its message before the agent has given it an id: 16 hex
/// characters of the text's BLAKE3, line feeds left out. (A message of several parts reaches OpenHands'
/// hook with nothing between the parts, and is read from the store with a line feed between them.)
pub fn text_hash(text: &str) -> String {
    let mut hasher = blake3::Hasher::new();
    for part in text.split('\n') {
        hasher.update(part.as_bytes());
    }
    hasher.finalize().to_hex()[..16].to_owned()
}

/// A conversation id without its dashes: hooks write it with them, folders without.
pub fn plain_id(id: &str) -> String {
    id.chars()
        .filter(|c| *c != '-')
        .flat_map(char::to_lowercase)
        .collect()
}

/// What is known of a sandbox besides its checkpoints.
#[derive(Debug, Clone, Default)]
pub struct Background {
    /// When the folder was tracked.
    pub tracked_since: Option<DateTime<Utc>>,
    /// What retention removed: native ids of messages, and marks by [`thinned_marks`].
    pub thinned: HashSet<String>,
    /// Sandboxes that the workspace was in before.
    pub earlier: Vec<Earlier>,
    /// Checkpoints that were taken for messages of this conversation in one that it is a fork of, by the message's id.
    pub kin: HashMap<String, CheckpointId>,
    /// Why the watcher could not take a checkpoint, by the message's native id.
    pub missed: HashMap<String, String>,
}

/// The mark by which a hook's answer names a failure: what follows it is the reason.
pub const HOOK_FAILED: &str = "respool: no checkpoint: ";

/// The first checkpoint id in a text.
pub fn id_in(text: &str) -> Option<CheckpointId> {
    let at = text.match_indices("cp-").map(|(i, _)| i);
    at.filter_map(|i| text.get(i..i + 13))
        .find(|s| CheckpointId::looks_like(s))
        .map(|s| CheckpointId(s.to_owned()))
}

fn failure_in(text: &str) -> Option<String> {
    let at = text.find(HOOK_FAILED)? + HOOK_FAILED.len();
    let rest = text.get(at..)?;
    let end = rest.find(['"', '\n']).unwrap_or(rest.len());
    Some(shown(rest.get(..end)?.trim_end_matches('\\')))
}

/// What is tied to a message.
#[derive(Clone, Copy)]
enum Tied<'a> {
    /// This checkpoint.
    To(&'a Checkpoint),
    /// One that retention removed, with this sequence number.
    Thinned(u64),
}

impl<'a> Tied<'a> {
    fn seq(self) -> u64 {
        match self {
            Self::To(c) => c.meta.seq,
            Self::Thinned(seq) => seq,
        }
    }

    fn checkpoint(self) -> Option<&'a Checkpoint> {
        match self {
            Self::To(c) => Some(c),
            Self::Thinned(_) => None,
        }
    }
}

/// For each message (by position) the checkpoint, if one is tied to it. `thinned`: the hash of the text and the sequence
/// number of each that was removed.
fn assign<'a>(
    conversation: &Conversation,
    own: &[&'a Checkpoint],
    thinned: &[(&str, u64)],
) -> HashMap<usize, Tied<'a>> {
    let mut taken: HashSet<&CheckpointId> = HashSet::new();
    let mut found: HashMap<usize, Tied<'a>> = HashMap::new();
    let by_id: HashMap<&str, &'a Checkpoint> = own.iter().map(|c| (c.meta.id.as_str(), *c)).collect();
    let mut by_message: HashMap<&str, &'a Checkpoint> = HashMap::new();
    for c in own {
        if let Some(m) = &c.meta.message {
            // the newest one counts, unless it is unusable and an older one is not
            let old = by_message.get(m.as_str());
            if old.is_none_or(|o| o.health != Health::Ok || c.health == Health::Ok) {
                by_message.insert(m, c);
            }
        }
    }
    for (i, m) in conversation.messages.iter().enumerate() {
        let noted = m
            .hooks
            .iter()
            .rev()
            .find_map(|h| id_in(&h.stdout))
            .and_then(|id| by_id.get(id.as_str()).copied());
        if let Some(c) = by_message.get(m.id.as_str()).copied().or(noted) {
            taken.insert(&c.meta.id);
            found.insert(i, Tied::To(c));
        }
    }
    let mut texts: Vec<(&str, Tied<'a>)> = thinned.iter().map(|(h, s)| (*h, Tied::Thinned(*s))).collect();
    for c in own
        .iter()
        .filter(|c| c.meta.message.is_none() && !taken.contains(&c.meta.id))
    {
        texts.extend(c.meta.text_hash.as_deref().map(|h| (h, Tied::To(c))));
    }
    texts.sort_by_key(|(_, tied)| tied.seq());
    assign_by_text(conversation, &texts, &mut found);
    found
}

/// A hook's checkpoint whose record the agent has not written: by text, and only between the checkpoints of
/// the messages before and after it, so that none of an earlier message with the same text is taken for it. One that was
/// removed has its place among them. `texts`: each with the hash of its text, oldest first.
fn assign_by_text<'a>(
    conversation: &Conversation,
    texts: &[(&str, Tied<'a>)],
    found: &mut HashMap<usize, Tied<'a>>,
) {
    let mut by_text: BTreeMap<&str, VecDeque<Tied<'a>>> = BTreeMap::new();
    for (hash, tied) in texts {
        by_text.entry(hash).or_default().push_back(*tied);
    }
    if by_text.is_empty() {
        return;
    }
    let total = conversation.messages.len();
    // for each message the first checkpoint known after it
    let mut until = vec![u64::MAX; total];
    for i in (0..total.saturating_sub(1)).rev() {
        until[i] = found.get(&(i + 1)).map_or(until[i + 1], |t| t.seq());
    }
    // of a part of a conversation it is not known where the first message's may be
    let mut after = if conversation.partial { u64::MAX } else { 0 };
    for (i, m) in conversation.messages.iter().enumerate() {
        if let Some(c) = found.get(&i) {
            after = c.seq();
            continue;
        }
        if !m.hooks.is_empty() {
            continue;
        }
        let Some(queue) = by_text.get_mut(text_hash(&m.text).as_str()) else {
            continue;
        };
        while queue.front().is_some_and(|t| t.seq() <= after) {
            queue.pop_front();
        }
        if queue.front().is_some_and(|t| t.seq() < until[i])
            && let Some(tied) = queue.pop_front()
        {
            after = tied.seq();
            found.insert(i, tied);
        }
    }
}

/// The id of the earlier sandbox that has a checkpoint of this message.
fn in_earlier<'a>(message: &Message, conversation: &str, earlier: &'a [Earlier]) -> Option<&'a str> {
    let noted = message.hooks.iter().rev().find_map(|h| id_in(&h.stdout));
    let hash = text_hash(&message.text);
    let is_its = |meta: &CheckpointMeta| {
        let own = meta
            .conversation
            .as_deref()
            .is_some_and(|c| plain_id(c) == conversation);
        let named = meta.message.as_ref() == Some(&message.id) || Some(&meta.id) == noted.as_ref();
        let text = meta.message.is_none() && meta.text_hash.as_ref() == Some(&hash);
        own && meta.kind == CheckpointKind::Message && (named || text)
    };
    let has = |e: &&Earlier| e.checkpoints.iter().filter_map(|(_, m)| m.as_ref()).any(is_its);
    earlier.iter().find(has).map(|e| e.record.id.as_str())
}

/// How a checkpoint of a message is remembered once retention has removed it: by the message's native id; where a hook
/// took it, which did not know that id yet, by its own id, and by the text and its place in the sequence.
pub fn thinned_marks(meta: &CheckpointMeta) -> Vec<String> {
    if meta.kind != CheckpointKind::Message {
        return Vec::new();
    }
    if let Some(message) = &meta.message {
        return vec![message.clone()];
    }
    let said = meta.conversation.as_ref().zip(meta.text_hash.as_ref());
    let said = said.map(|(conversation, hash)| format!("{} {hash} {}", plain_id(conversation), meta.seq));
    [Some(meta.id.to_string()), said].into_iter().flatten().collect()
}

/// Of what was removed, what has no more than a text: its hash, and the sequence number.
fn thinned_texts<'a>(thinned: &'a HashSet<String>, conversation: &str) -> Vec<(&'a str, u64)> {
    let parts = |mark: &'a String| {
        let (id, rest) = mark.split_once(' ')?;
        let (hash, seq) = rest.split_once(' ')?;
        Some((id, hash, seq.parse().ok()?))
    };
    let all = thinned.iter().filter_map(parts);
    all.filter(|(id, ..)| *id == conversation)
        .map(|(_, hash, seq)| (hash, seq))
        .collect()
}

const REMOVED: &str = "removed by retention";

/// Why a message has no checkpoint.
fn missing(message: &Message, conversation: &str, background: &Background) -> (CheckpointState, String) {
    let noted = message.hooks.iter().rev().find_map(|h| id_in(&h.stdout));
    let removed = |mark: &str| background.thinned.contains(mark);
    if removed(&message.id) || noted.as_ref().is_some_and(|id| removed(id.as_str())) {
        return (CheckpointState::Thinned, REMOVED.into());
    }
    // by ids, whatever the clocks say, and before a noted checkpoint is called gone
    if let Some(id) = in_earlier(message, conversation, &background.earlier) {
        return (
            CheckpointState::None,
            format!("its checkpoint is in an earlier sandbox: {id}"),
        );
    }
    if let Some(id) = noted {
        return (CheckpointState::Damaged, format!("checkpoint {id} is gone"));
    }
    if let Some(reason) = message.hooks.iter().rev().find_map(|h| failure_in(&h.stdout)) {
        return (CheckpointState::Failed, reason);
    }
    if let Some(reason) = background.missed.get(&message.id) {
        return (CheckpointState::Failed, shown(reason));
    }
    if let (Some(sent), Some(since)) = (message.time, background.tracked_since)
        && sent < since
    {
        return (CheckpointState::None, "sent before the folder was tracked".into());
    }
    (
        CheckpointState::None,
        "neither a hook nor a watcher was there".into(),
    )
}

fn describe(checkpoint: &Checkpoint) -> (CheckpointState, Option<String>) {
    match (&checkpoint.health, checkpoint.meta.late) {
        (Health::Incomplete(r), _) => (CheckpointState::Incomplete, Some(r.clone())),
        (Health::Damaged(r), _) => (CheckpointState::Damaged, Some(r.clone())),
        (Health::Ok, Some(n)) => {
            let paths = if n == 1 { "path" } else { "paths" };
            (
                CheckpointState::Late,
                Some(format!("taken late: up to {n} {paths} had changed")),
            )
        }
        (Health::Ok, None) if checkpoint.meta.clock_back => {
            (CheckpointState::Ok, Some("the clock went back before it".into()))
        }
        (Health::Ok, None) => (CheckpointState::Ok, None),
    }
}

/// The turn-end that belongs to the checkpoint with sequence `seq`: the last one before the next message.
fn turn_end(own: &[&Checkpoint], seq: u64) -> Option<CheckpointId> {
    let later = own.iter().filter(|c| c.meta.seq > seq);
    later
        .take_while(|c| c.meta.kind != CheckpointKind::Message)
        .filter(|c| c.meta.kind == CheckpointKind::TurnEnd && c.health == Health::Ok)
        .last()
        .map(|c| c.meta.id.clone())
}

fn of_conversation<'a>(checkpoints: &'a [Checkpoint], id: &str) -> Vec<&'a Checkpoint> {
    let wanted = plain_id(id);
    let is = |c: &&Checkpoint| {
        c.meta
            .conversation
            .as_deref()
            .is_some_and(|id| plain_id(id) == wanted)
    };
    checkpoints.iter().filter(is).collect()
}

fn of_messages<'a>(own: &[&'a Checkpoint]) -> Vec<&'a Checkpoint> {
    let is = |c: &&&Checkpoint| c.meta.kind == CheckpointKind::Message;
    own.iter().filter(is).copied().collect()
}

/// The checkpoints of a conversation's messages, by the messages' ids. `thinned`: see [`Background`].
pub(super) fn taken_for(
    conversation: &Conversation,
    checkpoints: &[Checkpoint],
    thinned: &HashSet<String>,
) -> HashMap<String, CheckpointId> {
    let id = &conversation.summary.id;
    let own = of_messages(&of_conversation(checkpoints, id));
    let found = assign(conversation, &own, &thinned_texts(thinned, &plain_id(id)));
    let named = |(i, tied): (usize, Tied<'_>)| {
        let message = conversation.messages.get(i)?.id.clone();
        Some((message, tied.checkpoint()?.meta.id.clone()))
    };
    found.into_iter().filter_map(named).collect()
}

/// Joins. `checkpoints` are all of the sandbox, oldest first; `None` = the workspace is not tracked.
pub fn rows(
    conversation: &Conversation,
    checkpoints: Option<&[Checkpoint]>,
    background: &Background,
) -> Vec<Row> {
    let wanted = plain_id(&conversation.summary.id);
    let all = checkpoints.unwrap_or_default();
    let own = of_conversation(all, &wanted);
    let thinned = thinned_texts(&background.thinned, &wanted);
    let mut found = assign(conversation, &of_messages(&own), &thinned);
    for (i, m) in conversation.messages.iter().enumerate() {
        if let Some(id) = background.kin.get(&m.id).filter(|_| !found.contains_key(&i)) {
            found.extend(all.iter().find(|c| c.meta.id == *id).map(|c| (i, Tied::To(c))));
        }
    }
    // the end of a turn is in the conversation that it was a turn of
    let end = |c: &Checkpoint| match c.meta.conversation.as_deref() {
        Some(id) if plain_id(id) != wanted => turn_end(&of_conversation(all, id), c.meta.seq),
        _ => turn_end(&own, c.meta.seq),
    };
    let row = |(i, m): (usize, &Message)| {
        let tied = found.get(&i);
        let checkpoint = checkpoints
            .is_some()
            .then(|| match tied.and_then(|t| t.checkpoint()) {
                Some(c) => {
                    let (state, reason) = describe(c);
                    RowCheckpoint {
                        id: Some(c.meta.id.clone()),
                        state,
                        reason,
                        label: c.meta.label.clone(),
                        pinned: c.meta.pinned,
                        turn_end: end(c),
                    }
                }
                None => {
                    let (state, reason) = match tied {
                        Some(_) => (CheckpointState::Thinned, REMOVED.to_owned()),
                        None => missing(m, &wanted, background),
                    };
                    RowCheckpoint {
                        id: None,
                        state,
                        reason: Some(reason),
                        label: None,
                        pinned: false,
                        turn_end: None,
                    }
                }
            });
        Row {
            message: m.number,
            id: m.id.clone(),
            kind: m.kind,
            time: m.time,
            text: m.text.clone(),
            pictures: m.pictures,
            active: m.active,
            branch: m.branch,
            checkpoint,
            changes: None,
            between: None,
            packages: None,
        }
    };
    conversation.messages.iter().enumerate().map(row).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conversation::{HookNote, MessageKind};
    use crate::engine::catalog::{Place, SandboxRecord};
    use crate::engine::{CheckpointMeta, How, PartKind};

    fn meta(id: &CheckpointId) -> CheckpointMeta {
        CheckpointMeta {
            v: 1,
            id: id.clone(),
            seq: 1,
            kind: CheckpointKind::Message,
            time: DateTime::UNIX_EPOCH,
            parts: vec![PartKind::Workspace],
            how: How::Hook,
            conversation: Some("c-1".into()),
            message: None,
            text_hash: None,
            label: None,
            pinned: false,
            late: None,
            operation: None,
            clock_back: false,
            elsewhere: Vec::new(),
            inner: None,
            pause_ms: None,
        }
    }

    /// A noted checkpoint that an earlier sandbox keeps is not called gone, and no clock has a say in it.
    #[test]
    fn a_checkpoint_of_an_earlier_sandbox_is_known_by_its_id() {
        let id = CheckpointId("cp-abcdefghij".into());
        let record = SandboxRecord {
            v: 1,
            id: "sb-old".into(),
            path: "/w".into(),
            created: DateTime::UNIX_EPOCH,
            live_uuid: String::new(),
            place: Place::Pool,
            uid: 0,
            gid: 0,
            tracked: false,
            stub: None,
            root: None,
            extra: serde_json::Map::new(),
        };
        let message = Message {
            id: "m".into(),
            index: 0,
            number: Some(1),
            kind: MessageKind::Prompt,
            time: Some(Utc::now()),
            text: "do it".into(),
            pictures: 0,
            active: true,
            branch: 0,
            parent: None,
            hooks: vec![HookNote {
                stdout: format!("respool: checkpoint {id}; go back with: x"),
                blocked: false,
            }],
        };
        let mut background = Background {
            tracked_since: Some(DateTime::UNIX_EPOCH),
            ..Background::default()
        };
        let (state, reason) = missing(&message, "c1", &background);
        assert_eq!(
            (state, reason.as_str()),
            (CheckpointState::Damaged, "checkpoint cp-abcdefghij is gone")
        );
        background.earlier = vec![Earlier {
            record,
            checkpoints: vec![(id.clone(), Some(meta(&id)))],
        }];
        let (state, reason) = missing(&message, "c1", &background);
        assert_eq!(
            (state, reason.as_str()),
            (
                CheckpointState::None,
                "its checkpoint is in an earlier sandbox: sb-old"
            )
        );
    }
}
