//! Answers of workers. One that nobody waits for any more is dropped.

use crate::engine::{Change, FileType};
use std::sync::Arc;

use super::{Effects, edit, opened, others, picker, plan, preview, track};
use crate::conversation::Summary;
use crate::failure::Kind;
use crate::rewind::Operation;
use crate::tui::message::{JobId, Reply};
use crate::tui::state::{Overlay, State, Tone};

/// Takes one answer.
pub fn reply(state: &mut State, job: JobId, reply: Reply, effects: &mut Effects) {
    match reply {
        Reply::Conversations(result) => {
            let id = selected_conversation(state).or_else(|| state.conversations.wished.take());
            let picked = picker::picked(state);
            if state.conversations.load.finish(job, result.map(grouped)) {
                reselect_conversation(state, id);
                picker::conversations_came(state, picked);
                state.dirty = true;
            }
        }
        Reply::Tail(result) => opened::tail(state, job, result),
        Reply::Timeline(result) => {
            if state.open.as_ref().is_some_and(|o| o.load.job == Some(job)) {
                if let Some(open) = &mut state.open {
                    open.load.job = None;
                    open.load.slow = false;
                }
                opened::whole(state, result, effects);
            }
        }
        Reply::Counts(row, result) => counts(state, job, row, result),
        Reply::CountsDone => {
            if let Some(open) = &mut state.open {
                // a batch that broke is not asked for again and again
                if let Some((_, rows)) = open.counting.take_if(|(id, _)| *id == job) {
                    let counted = &open.counts;
                    open.uncounted
                        .extend(rows.into_iter().filter(|r| !counted.contains_key(r)));
                }
            }
        }
        Reply::Changes(result) => changes(state, job, result),
        Reply::Diff(result) => {
            let Some(open) = &mut state.open else { return };
            let before = open.diff.load.value.as_ref().map(|(k, _)| k.change.path.clone());
            if open.diff.load.finish(job, result.map(preview::shown)) {
                let now = open.diff.load.value.as_ref().map(|(k, _)| k.change.path.clone());
                if before != now {
                    (open.diff.top, open.diff.left) = (0, 0);
                }
                state.dirty = true;
            }
        }
        Reply::Versions(result) => {
            let Some(open) = &mut state.open else { return };
            let failed = result.as_ref().err().cloned();
            if open.diff.versions.finish(job, result) {
                match failed {
                    Some(failure) => plan::failed(state, failure),
                    None => preview::walk(state),
                }
                state.dirty = true;
            }
        }
        Reply::Plan(result) => plan::came(state, job, None, result),
        Reply::Reversal(result) => match result {
            Ok(reversal) => plan::came(state, job, Some(reversal.operation), Ok(Arc::new(reversal.plan))),
            Err(failure) => plan::came(state, job, None, Err(failure)),
        },
        Reply::TrackPlan(result) => track::came(state, job, result),
        Reply::Track(result) => track::ended(state, job, result, effects),
        Reply::Outcome(result) => plan::ended(state, job, result, effects),
        Reply::Checkpoint(result) => checkpoint(state, job, result, effects),
        Reply::Operations(result) => operations(state, job, result),
        Reply::Looked(result) => others::looked(state, job, result),
        Reply::Opening(result) => edit::came(state, job, result),
        Reply::Kept(result) => edit::kept(state, result),
        Reply::ToEditor(result) => edit::to_editor(state, result, effects),
        Reply::FromEditor(result) => edit::from_editor(state, result, effects),
        Reply::Resent(result) => plan::resent(state, job, result, effects),
        Reply::WatchFailed(failure) => {
            state.say(Tone::Bad, format!("not followed live: {}", failure.message));
            state.dirty = true;
        }
    }
}

/// Those of one agent in one folder stand together, the newest first, the group with the newest first.
fn grouped(mut list: Vec<Summary>) -> Vec<Summary> {
    let key = |s: &Summary| (s.agent, s.workspace.clone());
    list.sort_by_key(|s| std::cmp::Reverse(s.updated_at));
    let mut order = std::collections::HashMap::new();
    for summary in &list {
        let next = order.len();
        order.entry(key(summary)).or_insert(next);
    }
    list.sort_by_key(|s| order.get(&key(s)).copied());
    list
}

fn selected_conversation(state: &State) -> Option<std::path::PathBuf> {
    let list = state.conversations.load.ready()?;
    Some(list.get(state.conversations.at.selected)?.store.clone())
}

fn reselect_conversation(state: &mut State, store: Option<std::path::PathBuf>) {
    let Some(list) = state.conversations.load.ready() else {
        return;
    };
    if let Some(place) = store.and_then(|s| list.iter().position(|c| c.store == s)) {
        state.conversations.at.selected = place;
    }
}

type Counted = crate::tui::backend::Result<crate::tui::backend::RowCounts>;

fn counts(state: &mut State, job: JobId, row: String, result: Counted) {
    let Some(open) = &mut state.open else { return };
    if open.counting.as_ref().is_none_or(|(id, _)| *id != job) {
        return;
    }
    match result {
        Ok(counts) => drop(open.counts.insert(row, counts)),
        Err(failure) if failure.kind == Kind::Cancelled => {}
        Err(_) => drop(open.uncounted.insert(row)),
    }
    state.dirty = true;
}

fn changes(state: &mut State, job: JobId, result: crate::tui::backend::Result<Vec<Change>>) {
    let Some(open) = &mut state.open else { return };
    let path = open.change().map(|c| c.path.clone());
    if !open.files.load.finish(job, result) {
        return;
    }
    // the same file stays selected, where it is in the new list too; else the first that has a diff
    let list = open.files.load.ready().map_or(&[][..], Vec::as_slice);
    let file = |c: &Change| c.type_b.or(c.type_a) != Some(FileType::Dir);
    let same = path.and_then(|p| list.iter().position(|c| c.path == p && file(c)));
    let selected = same.or_else(|| list.iter().position(file)).unwrap_or(0);
    open.files.at.selected = selected;
    open.diff.version = None;
    state.dirty = true;
}

fn operations(state: &mut State, job: JobId, result: crate::tui::backend::Result<Vec<Operation>>) {
    let log = state.overlays.iter_mut().find_map(|o| match o {
        Overlay::Log(load, _) if load.job == Some(job) => Some(load),
        _ => None,
    });
    if let Some(load) = log {
        load.finish(job, result);
        state.dirty = true;
    }
}

type Took = crate::tui::backend::Result<crate::tui::backend::Taken>;

fn checkpoint(state: &mut State, job: JobId, result: Took, effects: &mut Effects) {
    if state.checkpointing != Some(job) {
        return;
    }
    state.checkpointing = None;
    state.dirty = true;
    match result {
        Ok(taken) => {
            let said = format!("checkpoint {} taken in {} ms", taken.id, taken.ms);
            match taken.warning {
                Some(warning) => state.say(Tone::Bad, format!("{said}; {warning}")),
                None => state.say(Tone::Good, said),
            }
            opened::refresh(state, effects);
        }
        Err(failure) => plan::failed(state, failure),
    }
}
