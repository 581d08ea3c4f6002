//! Plan, confirmation, running, result. Nothing here starts a rewind but a deliberate yes: another key than
//! the one that opened the box, pressed after the plan could be read.

use std::collections::HashSet;
use std::sync::Arc;

use ratatui::crossterm::event::{KeyEvent, KeyEventKind};

use super::input::typed;
use super::picker::cut;
use super::{Effects, actions, begin, opened, others};
use crate::failure::Kind;
use crate::rewind::{Operation, Outcome, Plan, Reach};
use crate::text;
use crate::tui::backend::{Direction, Failure, Resent, StateRef, Writing};
use crate::tui::effect::{Effect, Work};
use crate::tui::keymap::Action;
use crate::tui::message::{JobId, Millis};
use crate::tui::state::{
    Confirm, End, Ended, Loading, Overlay, PlanBox, Running, State, Tone, Verb, confirm,
};
use crate::tui::view::kind_word;

/// Nothing confirms until the plan could be seen, and no key was pressed, for so many milliseconds.
const QUIET: Millis = 300;
/// The same where a confirming key came before the plan: it may be held down, and the first repeat of a
/// held key comes late.
const HELD: Millis = 1000;

/// Asks for the plan of a rewind to just before the selected message, or to the end of its turn.
pub fn rewind(state: &mut State, end: bool, effects: &mut Effects) {
    let Some(row) = state
        .open
        .as_ref()
        .and_then(|o| o.selected())
        .map(|r| r.id.clone())
    else {
        return;
    };
    if refused(state, &row, end) {
        return;
    }
    let target = if end {
        StateRef::End(row)
    } else {
        StateRef::Before(row)
    };
    ask(state, Verb::Rewind(target.clone()), target, Reach::Auto, effects);
}

/// Asks for the plan of going back to just before a message, which is then sent again.
pub fn resend(state: &mut State, writing: Writing, effects: &mut Effects) {
    let target = StateRef::Before(writing.row.clone());
    ask(state, Verb::Resend(writing), target, Reach::Auto, effects);
}

/// True if there is no way back to just before a message, or to the end of its turn; then it is said why.
pub fn refused(state: &mut State, row: &str, end: bool) -> bool {
    if !may_write(state) {
        return true;
    }
    let Some(open) = &state.open else { return true };
    let Some(index) = open.rows().iter().rposition(|r| r.id == row) else {
        state.say(Tone::Plain, "this message is no longer there");
        return true;
    };
    let row = &open.rows()[index];
    let checkpoint = row.checkpoint.as_ref();
    let there = checkpoint.is_some_and(|c| {
        if end {
            c.turn_end.is_some()
        } else {
            c.state.usable()
        }
    });
    if !there {
        let near = super::preview::neighbours(open.rows(), index);
        let what = if end {
            "the end of this turn was not kept"
        } else {
            "this message has no checkpoint to go back to"
        };
        state.say(Tone::Plain, format!("{what}{near}"));
    }
    !there
}

fn ask(state: &mut State, verb: Verb, target: StateRef, reach: Reach, effects: &mut Effects) {
    let Some(store) = state.open.as_ref().map(|o| o.store.clone()) else {
        return;
    };
    let job = begin(state, effects, Work::Plan(store, target, reach));
    push(state, verb, reach, job);
}

/// Files and conversation, the files alone, the conversation alone: a new plan for the next of them.
pub fn reach(state: &mut State, effects: &mut Effects) {
    let Some(Overlay::Plan(shown)) = state.overlays.last() else {
        return;
    };
    let target = match &shown.verb {
        Verb::Rewind(target) => target.clone(),
        Verb::Resend(writing) => StateRef::Before(writing.row.clone()),
        Verb::Reverse(..) => return,
    };
    let Some(plan) = shown.load.ready() else { return };
    let verb = shown.verb.clone();
    let next = match shown.reach {
        Reach::Auto | Reach::Both if plan.chat == "kept" => {
            let why = plan
                .chat_reason
                .as_deref()
                .unwrap_or("it cannot be moved from here");
            let why = format!("the conversation stays as it is: {}", text::shown(why));
            return state.say(Tone::Plain, why);
        }
        // files alone: the message would come last of all
        Reach::Auto | Reach::Both if matches!(verb, Verb::Resend(_)) => Reach::Chat,
        Reach::Auto | Reach::Both => Reach::Files,
        Reach::Files => Reach::Chat,
        Reach::Chat => Reach::Auto,
    };
    close(state, effects);
    ask(state, verb, target, next, effects);
}

/// Asks for what an undo or a redo will do.
pub fn reverse(state: &mut State, undo: bool, effects: &mut Effects) {
    if !may_write(state) {
        return;
    }
    let Some(store) = state.open.as_ref().map(|o| o.store.clone()) else {
        return;
    };
    if matches!(state.overlays.last(), Some(Overlay::Ended(e)) if e.result.is_err()) {
        // what failed is undone already; an older rewind is not what the key means here
        return;
    }
    let way = if undo { Direction::Undo } else { Direction::Redo };
    let job = begin(state, effects, Work::Reversal(store, way));
    state.overlays.retain(|o| !matches!(o, Overlay::Ended(_)));
    push(state, Verb::Reverse(way, None), Reach::Auto, job);
}

fn may_write(state: &mut State) -> bool {
    if !opened::tracked(state) {
        return false;
    }
    if state.running() {
        state.say(Tone::Plain, "a rewind is at work");
        return false;
    }
    true
}

fn push(state: &mut State, verb: Verb, reach: Reach, job: JobId) {
    let mut load = Loading::default();
    load.begin((), job);
    state.overlays.push(Overlay::Plan(Box::new(PlanBox {
        verb,
        reach,
        load,
        yours: HashSet::new(),
        typed: String::new(),
        shown_at: None,
        last_key: 0,
        early: false,
        top: 0,
    })));
}

/// The plan is there.
pub fn came(state: &mut State, job: JobId, operation: Option<Operation>, result: Result<Arc<Plan>, Failure>) {
    let found = state
        .overlays
        .iter()
        .position(|o| matches!(o, Overlay::Plan(p) if p.load.job == Some(job)));
    let Some(place) = found else { return };
    state.dirty = true;
    let failure = match result {
        Ok(plan) => {
            if let Some(Overlay::Plan(shown)) = state.overlays.get_mut(place) {
                shown.yours = plan.yours.iter().cloned().collect();
                shown.load.finish(job, Ok(plan));
                if let (Verb::Reverse(_, op), Some(_)) = (&mut shown.verb, &operation) {
                    *op = operation;
                }
            }
            return;
        }
        Err(failure) => failure,
    };
    state.overlays.remove(place);
    if failure.kind != Kind::Cancelled {
        failed(state, failure);
    }
}

/// Shows an error: one line, or a box where there is a hint too.
pub fn failed(state: &mut State, failure: Failure) {
    if failure.hint.is_none() {
        state.say(Tone::Bad, failure.message);
    } else {
        state.overlays.push(Overlay::Error(failure, 0));
    }
}

/// A frame was drawn: a plan that it shows for the first time has been seen from now on.
pub fn drawn(state: &mut State, at: Millis) {
    if let Some(Overlay::Plan(plan)) = state.overlays.last_mut()
        && plan.load.ready().is_some()
        && plan.shown_at.is_none()
    {
        plan.shown_at = Some(at);
    }
}

/// A key while a plan is shown. True if it was used here.
pub fn key(
    state: &mut State,
    key: &KeyEvent,
    action: Option<Action>,
    at: Millis,
    effects: &mut Effects,
) -> bool {
    let Some(Overlay::Plan(plan)) = state.overlays.last_mut() else {
        return false;
    };
    let quiet = if plan.early { HELD } else { QUIET };
    let since = |then: Millis| at.saturating_sub(then);
    let awake = plan
        .shown_at
        .is_some_and(|shown| since(shown) >= QUIET && since(plan.last_key) >= quiet);
    let repeated = key.kind == KeyEventKind::Repeat;
    let wanted = plan.load.ready().map(|p| confirm(&plan.verb, p));
    let confirming = match wanted {
        Some(Confirm::Word) => typed(key).is_some(),
        _ => action == Some(Action::Confirm),
    };
    // letters of the word come quickly one after the other
    let typing = wanted == Some(Confirm::Word) && !plan.typed.is_empty();
    let ready = !repeated && (awake || (typing && plan.shown_at.is_some()));
    plan.last_key = at;
    if confirming && !ready {
        plan.early = true;
        return true;
    }
    plan.early = false;
    match (wanted, action) {
        (Some(Confirm::Word), Some(Action::RubOut)) => cut(&mut plan.typed, false),
        (Some(Confirm::Word), _) if typed(key).is_some() => return word(state, key, action, effects),
        (Some(Confirm::Key), Some(Action::Confirm)) => go(state, effects),

        (_, Some(Action::Close)) => close(state, effects),
        (_, Some(Action::Confirm | Action::RubOut) | None) => {}
        (_, Some(action)) => actions::act(state, action, effects),
    }
    true
}

/// A letter of the word. As long as it is the right one it counts; another one is a key like any other.
fn word(state: &mut State, key: &KeyEvent, action: Option<Action>, effects: &mut Effects) -> bool {
    let Some(Overlay::Plan(plan)) = state.overlays.last_mut() else {
        return false;
    };
    let (word, c) = (plan.verb.word(), typed(key).unwrap_or('\0'));
    if word[plan.typed.len()..].starts_with(c) {
        plan.typed.push(c);
        if plan.typed == word {
            go(state, effects);
        }
        return true;
    }
    plan.typed.clear();
    match action {
        Some(Action::Close) => close(state, effects),
        Some(Action::Confirm) | None => {}
        Some(action) => actions::act(state, action, effects),
    }
    true
}

fn close(state: &mut State, effects: &mut Effects) {
    if let Some(Overlay::Plan(plan)) = state.overlays.pop() {
        effects.extend(plan.load.job.map(Effect::Cancel));
    }
}

/// The user said yes.
fn go(state: &mut State, effects: &mut Effects) {
    let Some(Overlay::Plan(shown)) = state.overlays.pop() else {
        return;
    };
    let (Some(plan), Some(store)) = (shown.load.ready(), state.open.as_ref().map(|o| o.store.clone())) else {
        return;
    };
    let words = match &shown.verb {
        Verb::Reverse(_, Some(op)) => format!("before the {}", kind_word(op.kind)),
        _ => text::shown(&plan.target_words),
    };
    let paths = plan.changes.len();
    let (verb, work) = match shown.verb {
        Verb::Reverse(way, Some(op)) => {
            let work = Work::Reverse(store, way, op.id.clone());
            (Verb::Reverse(way, Some(op)), work)
        }
        Verb::Resend(writing) => {
            let work = Work::Resend(store, plan.clone(), writing.clone());
            (Verb::Resend(writing), work)
        }
        verb => (verb, Work::Rewind(store, plan.clone())),
    };
    let job = begin(state, effects, work);
    state.overlays.retain(|o| !matches!(o, Overlay::Edit(_)));
    state.overlays.push(Overlay::Running(Running {
        job,
        verb,
        words,
        paths,
        step: None,
        stopping: false,
        then_quit: false,
    }));
}

fn at_work(state: &mut State) -> Option<&mut Running> {
    state.overlays.iter_mut().find_map(|o| match o {
        Overlay::Running(running) => Some(running),
        _ => None,
    })
}

/// How far it is.
pub fn progress(state: &mut State, job: JobId, step: (&'static str, u64, u64)) {
    if let Some(running) = at_work(state).filter(|r| r.job == job) {
        running.step = Some(step);
        state.dirty = true;
    }
}

/// Asks a running rewind to stop.
pub fn stop(state: &mut State, effects: &mut Effects) {
    if let Some(running) = at_work(state) {
        running.stopping = true;
        effects.push(Effect::Cancel(running.job));
    }
}

/// Asks a running rewind to stop, and quits when it has. The second time quits at once.
pub fn stop_then_quit(state: &mut State, effects: &mut Effects) -> bool {
    let Some(running) = at_work(state) else {
        return false;
    };
    if running.then_quit {
        state.end = Some(End::Abandoned);
        return true;
    }
    running.then_quit = true;
    stop(state, effects);
    state.say(
        Tone::Plain,
        "stopping; quits when everything is as it was. Ctrl-c again quits at once",
    );
    true
}

/// A message was to be sent again: it has ended, one way or the other.
pub fn resent(state: &mut State, job: JobId, result: Result<Box<Resent>, Failure>, effects: &mut Effects) {
    let (result, unsent) = match result {
        Ok(resent) => (Ok(resent.outcome), resent.unsent),
        Err(failure) => (Err(failure), None),
    };
    ended(state, job, result, effects);
    if let Some(Overlay::Ended(ended)) = state.overlays.last_mut() {
        ended.unsent = unsent;
    }
}

/// It has ended, one way or the other.
pub fn ended(state: &mut State, job: JobId, result: Result<Outcome, Failure>, effects: &mut Effects) {
    let found = state
        .overlays
        .iter()
        .position(|o| matches!(o, Overlay::Running(r) if r.job == job));
    let Some(place) = found else { return };
    let mut leads_to = None;
    if let Ok(outcome) = &result {
        others::own(state, &outcome.operation);
        leads_to.clone_from(&outcome.store);
    }
    if let Overlay::Running(running) = state.overlays.remove(place) {
        if running.then_quit {
            state.end = Some(End::Quit);
            return;
        }
        state.overlays.push(Overlay::Ended(Box::new(Ended {
            verb: running.verb,
            words: running.words,
            paths: running.paths,
            result,
            unsent: None,
            top: 0,
        })));
    }
    state.dirty = true;
    match leads_to {
        Some(store) => opened::go_on_in(state, store, effects),
        None => opened::files_changed(state, effects),
    }
}
