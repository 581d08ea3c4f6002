//! What other conversations in the same workspace did after a state: a rewind of one takes back what they did, too,
//! and the plan says so.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::PathBuf;

use super::{Blocker, Result};
use crate::engine::{Change, Checkpoint, CheckpointId, CheckpointKind, Health, State};
use crate::progress::Progress;
use crate::sandbox::site::Site;
use crate::text::{count, shown, shown_path};
use crate::timeline::Timeline;
use crate::timeline::join::plain_id;

/// So many turns of others are compared, the newest first.
const MOST: usize = 200;
/// So many paths are named.
const NAMED: usize = 5;

/// A turn of another conversation.
struct Turn {
    conversation: String,
    from: CheckpointId,
    /// `Now` where its end is not known: it may have done less.
    to: State,
}

/// What a conversation changed, and whether all of that is certain.
#[derive(Default)]
struct Did {
    paths: BTreeSet<PathBuf>,
    perhaps: bool,
}

/// One line for each other conversation that changed some of these paths since the state with this checkpoint.
pub(super) fn others(
    timeline: &Timeline,
    site: &Site,
    target: &CheckpointId,
    changes: &[Change],
    progress: &dyn Progress,
) -> Result<Vec<Blocker>> {
    if changes.is_empty() {
        return Ok(Vec::new());
    }
    let lost: BTreeSet<&PathBuf> = changes.iter().map(|c| &c.path).collect();
    let mut by: BTreeMap<String, Did> = BTreeMap::new();
    for turn in turns(timeline, &site.vault.checkpoints()?, target) {
        let list = site
            .vault
            .changes(&State::Checkpoint(turn.from), &turn.to, false, progress)?;
        let before = by.entry(turn.conversation).or_default();
        let known = before.paths.len();
        let lost = list.into_iter().map(|c| c.path).filter(|p| lost.contains(p));
        before.paths.extend(lost);
        before.perhaps |= turn.to == State::Now && before.paths.len() > known;
    }
    let told = by.into_iter().filter(|(_, did)| !did.paths.is_empty());
    Ok(told.map(|(id, did)| line(&id, &did)).collect())
}

fn line(conversation: &str, Did { paths, perhaps }: &Did) -> Blocker {
    let verb = if *perhaps { "may have changed" } else { "changed" };
    let named: Vec<String> = paths.iter().take(NAMED).map(|p| shown_path(p)).collect();
    let more = if paths.len() > NAMED { ", ..." } else { "" };
    Blocker {
        kind: "conversation",
        pid: None,
        what: format!(
            "another conversation ({}) {verb} {} of these meanwhile: {}{more}",
            shown(conversation),
            count(paths.len() as u64, "path"),
            named.join(", ")
        ),
        stops: false,
    }
}

/// The turns of other conversations from the target on, oldest first. One that was at work then counts from there.
fn turns(timeline: &Timeline, all: &[Checkpoint], target: &CheckpointId) -> Vec<Turn> {
    let Some(from) = all.iter().find(|c| c.meta.id == *target).map(|c| c.meta.seq) else {
        return Vec::new();
    };
    // a fork shares messages, and so checkpoints, with what it was forked from
    let rows = timeline.rows.iter().filter_map(|r| r.checkpoint.as_ref());
    let ours: BTreeSet<&CheckpointId> = rows.flat_map(|c| [&c.id, &c.turn_end]).flatten().collect();
    let own = plain_id(&timeline.conversation.id);
    let mut sorted: Vec<&Checkpoint> = all.iter().filter(|c| c.health == Health::Ok).collect();
    sorted.sort_by_key(|c| c.meta.seq);
    let mut open: HashMap<&str, CheckpointId> = HashMap::new();
    let mut out = Vec::new();
    for checkpoint in sorted {
        let meta = &checkpoint.meta;
        let Some(conversation) = meta.conversation.as_deref() else {
            continue;
        };
        let turn = matches!(meta.kind, CheckpointKind::Message | CheckpointKind::TurnEnd);
        if !turn || plain_id(conversation) == own || ours.contains(&meta.id) {
            continue;
        }
        let begun = open.remove(conversation);
        if let Some(begun) = begun.filter(|_| meta.seq > from) {
            out.push(Turn {
                conversation: conversation.to_owned(),
                from: begun,
                to: State::Checkpoint(meta.id.clone()),
            });
        }
        if meta.kind == CheckpointKind::Message {
            let since = if meta.seq < from { target } else { &meta.id };
            open.insert(conversation, since.clone());
        }
    }
    // one of before the target that never ended was given up long ago
    let lasting = open.into_iter().filter(|(_, from)| from != target);
    out.extend(lasting.map(|(conversation, from)| Turn {
        conversation: conversation.to_owned(),
        from,
        to: State::Now,
    }));
    let too_many = out.len().saturating_sub(MOST);
    out.drain(..too_many);
    out
}
