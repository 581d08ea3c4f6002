//! A message that no server sends: the agent's own command is offered, and it is looked for in the conversation.

use std::collections::HashSet;

use super::{Effects, opened, plan};
use crate::text::count;
use crate::timeline::Row;
use crate::tui::backend::Failure;
use crate::tui::effect::{Effect, Outside, Work};
use crate::tui::keymap::Action;
use crate::tui::state::{Awaited, Open, Overlay, State, Tone, Verb};

/// The keys of the result of a rewind, where the message was not sent.
pub fn act(state: &mut State, action: Action, effects: &mut Effects) {
    let Some(Overlay::Ended(ended)) = state.overlays.last() else {
        return;
    };
    let (Verb::Resend(writing), Some(unsent)) = (&ended.verb, &ended.unsent) else {
        return;
    };
    let outside = match (action, &unsent.command, &unsent.line) {
        (Action::RunCommand, Some((words, folder)), _) => Outside::Run(words.clone(), folder.clone()),
        (Action::WindowCommand, Some((words, folder)), _) if state.tmux => {
            Outside::Window(words.clone(), folder.clone())
        }
        (Action::CopyCommand, _, Some(line)) => Outside::Copy(line.clone()),
        _ => return,
    };
    let awaited = Awaited {
        writing: writing.clone(),
        unsent: unsent.clone(),
        known: state.open.as_ref().and_then(there),
    };
    if let Some(open) = &mut state.open {
        open.awaited = Some(awaited);
    }
    effects.push(Effect::Outside(outside));
}

/// It has ended, or could not be done.
pub fn ran(state: &mut State, what: &Outside, ended: Result<(), Failure>, effects: &mut Effects) {
    state.dirty = true;
    if let Err(failure) = ended {
        return plan::failed(state, failure);
    }
    match what {
        Outside::Copy(_) => state.say(
            Tone::Good,
            "the command is in the clipboard, where the terminal allows it",
        ),
        Outside::Window(..) => {
            close(state);
            state.say(Tone::Good, "the agent has the message, in a new window of tmux");
        }
        Outside::Run(..) => {
            close(state);
            state.say(Tone::Plain, "the agent has ended");
            opened::files_changed(state, effects);
        }
        Outside::Editor(_) => {}
    }
}

fn close(state: &mut State) {
    state
        .overlays
        .retain(|o| !matches!(o, Overlay::Ended(e) if e.unsent.is_some()));
}

/// The messages that are there; `None` while the conversation is not read.
fn there(open: &Open) -> Option<HashSet<String>> {
    let timeline = open.timeline.as_ref()?;
    Some(timeline.rows.iter().map(|r| r.id.clone()).collect())
}

/// The conversation was read: a message that was waited for may be there now, and is kept no longer.
pub fn arrived(state: &mut State, effects: &mut Effects) {
    let Some(open) = &mut state.open else { return };
    let now = there(open);
    let rows = open.timeline.as_ref().map_or(&[][..], |t| &t.rows);
    let newest = rows.iter().rfind(|r| r.active);
    // an older one may say the same
    let came = |a: &mut Awaited| {
        let is = |r: &&Row| r.text.trim() == a.writing.text.trim();
        let known = a.known.get_or_insert_with(|| now.unwrap_or_default());
        newest.filter(is).is_some_and(|r| !known.contains(&r.id))
    };
    let Some(awaited) = open.awaited.take_if(came) else {
        return;
    };
    // it is kept as one of the conversation in which it was written
    let store = open.from.clone().unwrap_or_else(|| open.store.clone());
    let row = awaited.writing.row;
    let job = state.job();
    effects.push(Effect::Work(job, Work::Keep(store, row, None)));
    state.say(Tone::Good, "the agent has taken the message");
}

/// What is left away, in words; empty if all goes with it.
pub fn left_away(keep: &[bool]) -> String {
    match keep.iter().filter(|k| !**k).count() as u64 {
        0 => String::new(),
        n => format!("without {}", count(n, "picture")),
    }
}
