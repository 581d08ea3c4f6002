//! What other windows do to the same sandbox: the log tells, and it is said here.

use super::Effects;
use crate::rewind::{Operation, OperationKind, OperationState};
use crate::text;
use crate::timeline::Timeline;
use crate::timeline::notes::UNDER_WAY;
use crate::tui::backend::Result;
use crate::tui::effect::{Effect, Work};
use crate::tui::keymap::Action;
use crate::tui::message::{JobId, Msg};
use crate::tui::state::{State, Tone};

/// How soon it is asked again whether another one is still at work, in milliseconds.
const AGAIN: u64 = 1000;

/// Looks at the log, after something changed.
pub fn look(state: &mut State, effects: &mut Effects) {
    let tracked = |o: &&mut crate::tui::state::Open| {
        o.timeline
            .as_ref()
            .is_some_and(|t| t.sandbox.is_some() && !t.partial)
    };
    let job = JobId(state.last_job + 1);
    let Some(open) = state.open.as_mut().filter(tracked) else {
        return;
    };
    state.last_job += 1;
    open.looking = Some(job);
    effects.push(Effect::Work(job, Work::Look(open.store.clone())));
}

/// What stands in it, the newest first.
pub fn looked(state: &mut State, job: JobId, result: Result<Vec<Operation>>) {
    let Some(open) = state.open.as_mut().filter(|o| o.looking == Some(job)) else {
        return;
    };
    open.looking = None;
    // a log that cannot be read is told where it is wanted
    let Ok(operations) = result else { return };
    let newest = operations.iter().find(|o| o.state == OperationState::Done);
    let id = newest.map(|o| o.id.clone());
    let before = open.newest.replace(id.clone());
    // of two windows the one that is at work tells of itself
    if before.is_none_or(|b| b == id) || state.running() {
        return;
    }
    let Some(operation) = newest else { return };
    let words = operation.message.as_deref().map(text::shown).unwrap_or_default();
    let what = match operation.kind {
        OperationKind::Rewind => "restored by the other window",
        OperationKind::Undo => "a rewind was undone by the other window",
        OperationKind::Redo => "a rewind was redone by the other window",
        _ => return,
    };
    let undo = state.keymap.key_of(Action::Undo);
    state.dirty = true;
    state.say(Tone::Plain, format!("{what}: {words}   ({undo} takes it back)"));
}

/// True if another respool changes the files. What is done here is no news: it is taken out of what is told.
pub fn under_way(timeline: &mut Timeline, own: bool) -> bool {
    if own {
        timeline.notices.retain(|n| n != UNDER_WAY);
    }
    timeline.notices.iter().any(|n| n == UNDER_WAY)
}

/// What is said of it is not said any longer than it lasts; nothing else may tell of its end.
pub fn wait(state: &mut State, busy: bool, effects: &mut Effects) {
    if !busy {
        state.notice.take_if(|n| n.text == UNDER_WAY);
        return;
    }
    if let Some(open) = state.open.as_mut().filter(|o| !o.refresh_soon) {
        open.refresh_soon = true;
        effects.push(Effect::After(AGAIN, Msg::Refresh));
    }
}

/// An operation of our own is no news.
pub fn own(state: &mut State, operation: &str) {
    if let Some(open) = &mut state.open {
        open.newest = Some(Some(operation.to_owned()));
    }
}
