//! The right side: which two states are compared, the changed files, the diff, the versions of a file.

use super::{Effects, begin, opened};
use crate::diff::FileDiff;
use crate::timeline::Row;
use crate::tui::backend::{StateRef, Version};
use crate::tui::effect::{Effect, Work};
use crate::tui::state::{DiffKey, Mark, Open, Pair, Screen, ShownDiff, State, Tone};

/// Asks for everything that is wished and neither there nor under way.
pub fn request(state: &mut State, effects: &mut Effects) {
    if state.screen != Screen::Timeline {
        return;
    }
    files(state, effects);
    diff(state, effects);
    counts(state, effects);
}

fn files(state: &mut State, effects: &mut Effects) {
    let Some(open) = &mut state.open else { return };
    if open.timeline.is_none() {
        return;
    }
    let pair = match pair(open) {
        Ok(pair) => pair,
        Err(why) => {
            if open.files.unable.as_ref() != Some(&why) {
                open.files.unable = Some(why);
                open.files.load.clear();
                open.diff.load.clear();
                state.dirty = true;
            }
            return;
        }
    };
    open.files.unable = None;
    if open.files.load.wanted.as_ref() == Some(&pair) {
        return;
    }
    let work = Work::Changes(open.store.clone(), pair.a.clone(), pair.b.clone());
    let job = begin(state, effects, work);
    if let Some(open) = &mut state.open {
        open.files.load.begin(pair, job);
        open.diff.version = None;
        open.diff.step = 0;
    }
}

/// The two states to compare: the marked ones, or the selected message's turn; or why there are none.
pub fn pair(open: &Open) -> Result<Pair, String> {
    let Some(index) = open.index(open.at.selected) else {
        return Err("no message is selected; what its turn changed is shown here".into());
    };
    let row = &open.rows()[index];
    let named = |mark: &Mark| mark.state();
    let before = || StateRef::Before(row.id.clone());
    let pair = match (&open.a, &open.b) {
        (Some(a), Some(b)) => Pair {
            a: named(a),
            b: named(b),
        },
        (Some(a), None) if a.row() != Some(&row.id) => Pair {
            a: named(a),
            b: before(),
        },
        (None, Some(b)) if b.row() != Some(&row.id) => Pair {
            a: before(),
            b: named(b),
        },
        (Some(Mark::End(id)), None) => Pair {
            a: StateRef::End(id.clone()),
            b: next_before(open.rows(), index).map_or(StateRef::Now, |r| StateRef::Before(r.id.clone())),
        },
        _ => Pair {
            a: before(),
            b: turn_end(open.rows(), index),
        },
    };
    for state in [&pair.a, &pair.b] {
        usable(open, state)?;
    }
    Ok(pair)
}

/// The end of a row's turn: as kept, else just before the next message, else now.
fn turn_end(rows: &[Row], index: usize) -> StateRef {
    let row = &rows[index];
    if row.checkpoint.as_ref().is_some_and(|c| c.turn_end.is_some()) {
        return StateRef::End(row.id.clone());
    }
    next_before(rows, index).map_or(StateRef::Now, |r| StateRef::Before(r.id.clone()))
}

/// The next message on the same branch that has a checkpoint.
pub fn next_before(rows: &[Row], index: usize) -> Option<&Row> {
    let branch = rows[index].branch;
    rows[index + 1..]
        .iter()
        .filter(|r| r.branch == branch)
        .find(|r| r.checkpoint.as_ref().is_some_and(|c| c.state.usable()))
}

/// Says why a state cannot be compared, with its neighbours that can.
fn usable(open: &Open, state: &StateRef) -> Result<(), String> {
    let (StateRef::Before(id) | StateRef::End(id)) = state else {
        return Ok(());
    };
    let rows = open.rows();
    let Some(index) = rows.iter().rposition(|r| r.id == *id) else {
        return Err("the marked message is gone".into());
    };
    match &rows[index].checkpoint {
        Some(c) if matches!(state, StateRef::End(_)) && c.turn_end.is_some() => Ok(()),
        None => Err("not tracked: there are no checkpoints to compare; t begins to keep them".into()),
        Some(c) if c.state.usable() => Ok(()),
        Some(c) => {
            let why = c.reason.as_deref().map(crate::text::shown).unwrap_or_default();
            let word = super::super::view::checkpoint_words(c.state);
            let colon = if why.is_empty() { "" } else { ": " };
            Err(format!("{word}{colon}{why}{}", neighbours(rows, index)))
        }
    }
}

/// The nearest messages with a usable checkpoint, in words.
pub fn neighbours(rows: &[Row], index: usize) -> String {
    let usable = |r: &&Row| r.active && r.checkpoint.as_ref().is_some_and(|c| c.state.usable());
    let name = |r: &Row| r.message.map(|n| n.to_string());
    let before = rows[..index].iter().rev().find(usable).and_then(name);
    let after = rows[index + 1..].iter().find(usable).and_then(name);
    match (before, after) {
        (Some(a), Some(b)) => format!("; messages {a} and {b} have one"),
        (Some(a), None) | (None, Some(a)) => format!("; message {a} has one"),
        (None, None) => String::new(),
    }
}

/// After the timeline changed: what is compared with "now" is no longer right.
pub fn moved_on(open: &mut Open) {
    if open
        .files
        .load
        .wanted
        .as_ref()
        .is_some_and(|p| p.b == StateRef::Now || p.a == StateRef::Now)
    {
        open.files.load.wanted = None;
    }
    open.diff.versions.clear();
    open.diff.version = None;
}

fn diff(state: &mut State, effects: &mut Effects) {
    let Some(open) = &mut state.open else { return };
    if open.diff.version.is_some() {
        let selected = open.change().map(|c| (c.part, c.path.clone()));
        if selected != open.diff.versions.wanted {
            open.diff.version = None;
        }
    }
    let Some(key) = diff_key(open) else {
        if open.files.load.job.is_none() && open.diff.load.wanted.is_some() {
            open.diff.load.clear();
            state.dirty = true;
        }
        return;
    };
    if open.diff.load.wanted.as_ref() == Some(&key) {
        return;
    }
    let change = Box::new(key.change.clone());
    let work = Work::Diff(open.store.clone(), key.pair.a.clone(), key.pair.b.clone(), change);
    let job = begin(state, effects, work);
    if let Some(open) = &mut state.open {
        open.diff.load.begin(key, job);
    }
}

/// What the diff pane is to show now.
fn diff_key(open: &Open) -> Option<DiffKey> {
    if let (Some(at), Some(versions)) = (open.diff.version, open.diff.versions.ready()) {
        let v = versions.get(at)?;
        return Some(DiffKey {
            pair: Pair {
                a: v.a.clone(),
                b: v.b.clone(),
            },
            change: v.change.clone(),
            version: Some((at, versions.len(), v.words.clone())),
        });
    }
    let (pair, changes) = open.files.load.value.as_ref()?;
    if open.files.load.job.is_some() && open.files.load.wanted.as_ref() != Some(pair) {
        return None;
    }
    let change = changes.as_ref().ok()?.get(open.files.at.selected)?;
    Some(DiffKey {
        pair: pair.clone(),
        change: change.clone(),
        version: None,
    })
}

/// Where the rows of a diff are, so that a frame needs only those that it shows.
pub fn shown(diff: FileDiff) -> ShownDiff {
    let mut rows = Vec::new();
    if let FileDiff::Text { hunks, .. } = &diff {
        for (h, hunk) in hunks.iter().enumerate() {
            rows.push((h as u32, None));
            rows.extend((0..hunk.lines.len()).map(|l| (h as u32, Some(l as u32))));
        }
    }
    ShownDiff { diff, rows }
}

/// The numbers of the rows that can be seen; one batch at a time.
fn counts(state: &mut State, effects: &mut Effects) {
    if state
        .open
        .as_ref()
        .is_none_or(|o| o.timeline.as_ref().is_none_or(|t| t.partial))
    {
        return;
    }
    let rows = opened::uncounted(state);
    let job = state.job();
    let Some(open) = &mut state.open else { return };
    if rows.is_empty()
        || open
            .counting
            .as_ref()
            .is_some_and(|(_, r)| rows.iter().all(|id| r.contains(id)))
    {
        state.last_job -= 1;
        return;
    }
    open.counting = Some((job, rows.clone()));
    effects.push(Effect::Work(job, Work::Counts(open.store.clone(), rows)));
}

/// Steps through the versions of the selected file.
pub fn version(state: &mut State, step: i32, effects: &mut Effects) {
    let Some(open) = &mut state.open else { return };
    let Some(change) = open.change() else {
        state.say(Tone::Plain, "select a file first");
        return;
    };
    let wanted = (change.part, change.path.clone());
    open.diff.step += step;
    if open.diff.versions.wanted.as_ref() == Some(&wanted) {
        walk(state);
        return;
    }
    let work = Work::Versions(open.store.clone(), wanted.0, wanted.1.clone());
    let job = begin(state, effects, work);
    if let Some(open) = &mut state.open {
        open.diff.version = None;
        open.diff.versions.clear();
        open.diff.versions.begin(wanted, job);
    }
}

/// Takes the steps that were asked for, once the versions are known.
pub fn walk(state: &mut State) {
    let Some(open) = &mut state.open else { return };
    let Some(versions) = open.diff.versions.ready() else {
        return;
    };
    if versions.is_empty() {
        open.diff.step = 0;
        state.say(
            Tone::Plain,
            "no other version of this file is kept: it was changed in this turn alone",
        );
        return;
    }
    let last = versions.len() - 1;
    let here = open.diff.version.unwrap_or_else(|| start(open, versions));
    let step = std::mem::take(&mut open.diff.step);
    let to = here.saturating_add_signed(step as isize).min(last);
    let end = to == here && open.diff.version.is_some();
    open.diff.version = Some(to);
    open.diff.top = 0;
    if end {
        let which = if step < 0 { "oldest" } else { "newest" };
        state.say(Tone::Plain, format!("this is the {which} version that is kept"));
    }
    state.dirty = true;
}

/// The version that is shown already, or one past the newest.
fn start(open: &Open, versions: &[Version]) -> usize {
    let shown = open.files.load.value.as_ref().map(|(pair, _)| pair);
    versions
        .iter()
        .position(|v| shown.is_some_and(|p| p.a == v.a && p.b == v.b))
        .or_else(|| versions.iter().position(|v| shown.is_some_and(|p| p.a == v.a)))
        .unwrap_or(versions.len() - 1)
}
