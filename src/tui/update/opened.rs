//! The open conversation: opened, read, followed.

use std::path::PathBuf;

use super::{Effects, begin, filter, others, preview, unsent};
use crate::failure::Kind;
use crate::text;
use crate::timeline::{Row, Timeline};
use crate::tui::backend::Failure;
use crate::tui::effect::{Effect, Work};
use crate::tui::layout;
use crate::tui::message::{JobId, Msg};
use crate::tui::state::{Loading, Open, Pane, Screen, State, Tone};

/// A store that changes all the time is read again at most so often, in milliseconds.
const SOON: u64 = 250;
/// What is said where there is nothing to rewind.
pub const UNTRACKED: &str = "this workspace is not tracked: t begins to keep checkpoints";

/// What is said to a key that comes before anything is known of the workspace.
const READING: &str = "the conversation is still being read";

/// True if the open conversation's workspace is tracked; else it is said why nothing can be changed.
pub fn tracked(state: &mut State) -> bool {
    let timeline = state.open.as_ref().and_then(|o| o.timeline.as_ref());
    let known = timeline.map(|t| t.sandbox.is_some());
    match known {
        Some(true) => {}
        Some(false) => state.say(Tone::Plain, UNTRACKED),
        None => state.say(Tone::Plain, READING),
    }
    known == Some(true)
}

/// Opens a conversation.
pub fn open(state: &mut State, store: PathBuf, effects: &mut Effects) {
    state.screen = Screen::Timeline;
    state.open = Some(Open::new(store));
    state.focus = Pane::Timeline;
    state.zoom = false;
    state.typing = None;
    state.overlays.clear();
    load(state, effects);
}

/// A rewind led to another conversation: that one is shown from now on, behind what is shown of the rewind.
pub fn go_on_in(state: &mut State, store: PathBuf, effects: &mut Effects) {
    let from = state.open.as_ref().map(|o| o.store.clone());
    if from.as_ref() == Some(&store) {
        return files_changed(state, effects);
    }
    state.open = Some(Open {
        from,
        ..Open::new(store)
    });
    load(state, effects);
}

/// Asks for the last screenful, then for everything, and follows the store.
pub fn load(state: &mut State, effects: &mut Effects) {
    let Some(store) = state.open.as_ref().map(|o| o.store.clone()) else {
        return;
    };
    let screenful = usize::from(state.size.1).max(50);
    let tail = state.job();
    if let Some(open) = &mut state.open {
        open.tail = Some(tail);
    }
    effects.push(Effect::Work(tail, Work::Tail(store.clone(), screenful)));
    effects.push(Effect::Watch(store));
    refresh(state, effects);
}

/// The store changed: read it again soon.
pub fn changed(state: &mut State, effects: &mut Effects) {
    let Some(open) = &mut state.open else { return };
    if open.load.job.is_some() {
        open.again = true;
    } else if !open.refresh_soon {
        open.refresh_soon = true;
        effects.push(Effect::After(SOON, Msg::Refresh));
    }
}

/// Reads all of it.
pub fn refresh(state: &mut State, effects: &mut Effects) {
    let Some(store) = state.open.as_mut().map(|open| {
        open.refresh_soon = false;
        open.again = false;
        open.store.clone()
    }) else {
        return;
    };
    let job = begin(state, effects, Work::Timeline(store));
    if let Some(open) = &mut state.open {
        open.load.begin(true, job);
    }
}

/// The last screenful is there. It comes from the time when the conversation was opened.
pub fn tail(state: &mut State, job: JobId, result: Result<Timeline, Failure>) {
    let Some(open) = &mut state.open else { return };
    if open.tail != Some(job) {
        return;
    }
    open.tail = None;
    // an error comes again with the whole; and the whole may have been quicker
    if let (Ok(timeline), None) = (result, &open.timeline) {
        show(open, timeline);
        state.dirty = true;
    }
}

/// All of it is there.
pub fn whole(state: &mut State, result: Result<Timeline, Failure>, effects: &mut Effects) {
    let own = state.running();
    let Some(open) = &mut state.open else { return };
    match result {
        Ok(mut timeline) => {
            let busy = others::under_way(&mut timeline, own);
            let back = open.gone.take().is_some();
            let told = open
                .timeline
                .as_ref()
                .filter(|t| !t.partial)
                .map(|t| t.notices.clone())
                .unwrap_or_default();
            let notices = timeline.notices.clone();
            show(open, timeline);
            if notices != told
                && let Some(first) = notices.first()
            {
                state.say(Tone::Plain, text::shown(first));
            }
            if back {
                state.say(Tone::Good, "the conversation is there again");
            }
            others::wait(state, busy, effects);
            unsent::arrived(state, effects);
            others::look(state, effects);
        }
        Err(failure) if failure.kind == Kind::Cancelled => {}
        Err(failure) => {
            if open.timeline.is_some() {
                let text = format!("no longer readable, the last state is shown: {}", failure.message);
                open.gone = Some(failure);
                state.say(Tone::Bad, text);
            } else {
                open.gone = Some(failure);
            }
        }
    }
    state.dirty = true;
    if state.open.as_ref().is_some_and(|o| o.again) {
        changed(state, effects);
    }
}

/// Shows a timeline: the selection stays on its message, or follows the newest.
fn show(open: &mut Open, timeline: Timeline) {
    let newest = open.timeline.is_none() || open.at.selected + 1 >= open.len();
    let selected = open.selected().map(|r| r.id.clone());
    let place = open.index(open.at.selected);
    let offset = open.at.selected.saturating_sub(open.at.top);
    forget_counts(open, &timeline.rows);
    open.timeline = Some(timeline);
    filter::refilter(open);
    let rows = open.rows();
    let same = selected.and_then(|id| rows.iter().rposition(|r| r.id == id));
    match same {
        _ if newest => open.at.selected = open.len().saturating_sub(1),
        Some(index) => filter::select_index(open, index),
        None => filter::select_index(open, place.unwrap_or(usize::MAX)),
    }
    // the anchor: the selected row stays on its line of the screen
    open.at.top = open.at.selected.saturating_sub(offset);
    let known = |id: &str| open.rows().iter().any(|r| r.id == id);
    let lost = |m: &Option<_>| {
        let m: Option<&crate::tui::state::Mark> = m.as_ref();
        m.and_then(|m| m.row()).is_some_and(|id| !known(id))
    };
    let (a, b) = (lost(&open.a), lost(&open.b));
    if a {
        open.a = None;
    }
    if b {
        open.b = None;
    }
    preview::moved_on(open);
}

/// Numbers stay for rows whose states are the same as before.
fn forget_counts(open: &mut Open, new: &[Row]) {
    open.counting = None;
    if open.counts.is_empty() && open.uncounted.is_empty() {
        return;
    }
    let states = |rows: &[Row], i: usize| {
        let next = preview::next_before(rows, i).and_then(|r| r.checkpoint.as_ref()?.id.clone());
        (rows[i].checkpoint.clone(), next)
    };
    let old = open.rows();
    let mut place = std::collections::HashMap::with_capacity(old.len());
    place.extend(old.iter().enumerate().map(|(i, r)| (r.id.as_str(), i)));
    let mut keep = std::collections::HashSet::new();
    for (i, row) in new.iter().enumerate() {
        if !open.counts.contains_key(&row.id) && !open.uncounted.contains(&row.id) {
            continue;
        }
        if let Some(old_place) = place.get(row.id.as_str()) {
            // a turn that goes on, or whose rest is compared with now, is counted again
            let settled = preview::next_before(new, i).is_some();
            if settled && states(old, *old_place) == states(new, i) {
                keep.insert(row.id.clone());
            }
        }
    }
    open.counts.retain(|id, _| keep.contains(id));
    open.uncounted.retain(|id| keep.contains(id));
}

/// Everything is read again after the files were changed by us.
pub fn files_changed(state: &mut State, effects: &mut Effects) {
    if let Some(open) = &mut state.open {
        open.files.load = Loading::default();
        open.diff.load = Loading::default();
        open.diff.versions.clear();
        open.counts.clear();
        open.uncounted.clear();
    }
    refresh(state, effects);
}

/// The rows that can be seen and whose numbers are not known, the newest first.
pub fn uncounted(state: &State) -> Vec<String> {
    let Some(open) = &state.open else {
        return Vec::new();
    };
    let height = usize::from(layout::content(layout::areas(state).timeline).height);
    let end = (open.at.top + height).min(open.len());
    (open.at.top..end)
        .rev()
        .filter_map(|place| open.row(place))
        .filter(|row| row.checkpoint.as_ref().is_some_and(|c| c.state.usable()))
        .filter(|row| {
            let (changes, between) = open.counts_of(row);
            let known = open.counts.contains_key(&row.id) || (changes.is_some() && between.is_some());
            !known && !open.uncounted.contains(&row.id)
        })
        .map(|row| row.id.clone())
        .collect()
}
