//! Messages to new state and effects. Pure: no input or output, no clock; time comes with the messages.

mod actions;
mod edit;
mod filter;
mod input;
mod opened;
mod others;
mod picker;
mod plan;
mod preview;
mod replies;
mod track;
mod unsent;

use super::effect::{Effect, Outside, Work};
use super::layout;
use super::message::{JobId, Msg};
use super::state::{Conversations, End, Overlay, Screen, State, TrackStage};
use crate::text;

/// A picture of the spinner lasts this long, in milliseconds.
const SPIN: u64 = 120;
/// Work is shown as such after so many milliseconds.
const SLOW: u64 = 150;

/// The effects of one message.
type Effects = Vec<Effect>;

/// Takes one message.
pub fn update(state: &mut State, msg: Msg) -> Vec<Effect> {
    let mut effects = Vec::new();
    match msg {
        Msg::Start => start(state, &mut effects),
        Msg::Key(key, at) => input::key(state, &key, at, &mut effects),
        Msg::Paste(text) => input::paste(state, &text, &mut effects),
        Msg::Mouse(mouse) => input::mouse(state, mouse, &mut effects),
        Msg::Resize(width, height) => {
            state.size = (width, height);
            state.dirty = true;
        }
        Msg::Drawn(at) => plan::drawn(state, at),
        Msg::Tick(now) => tick(state, now),
        Msg::Slow(job) => slow(state, job, &mut effects),
        Msg::Spin => spin(state, &mut effects),
        Msg::Changed => opened::changed(state, &mut effects),
        Msg::Refresh => opened::refresh(state, &mut effects),
        Msg::Reply(job, reply) => replies::reply(state, job, reply, &mut effects),
        Msg::Progress(job, what, done, total) => {
            plan::progress(state, job, (what, done, total));
            track::progress(state, job, (what, done, total));
        }
        Msg::Keep(row) => edit::keep(state, &row, &mut effects),
        Msg::Ran(Outside::Editor(file), ended) => edit::edited(state, file, ended, &mut effects),
        Msg::Ran(what, ended) => unsent::ran(state, &what, ended, &mut effects),
        Msg::Signal(number) => signal(state, number, &mut effects),
    }
    settle(state);
    if state.end.is_none() {
        preview::request(state, &mut effects);
    }
    effects
}

fn start(state: &mut State, effects: &mut Effects) {
    state.dirty = true;
    if state.screen == Screen::Start {
        conversations(state, effects);
    } else {
        opened::load(state, effects);
    }
}

/// Asks for the list of conversations.
fn conversations(state: &mut State, effects: &mut Effects) {
    let job = begin(state, effects, Work::Conversations);
    state.conversations.load.begin((), job);
}

/// Starts work; it is looked at again when it turns out to be slow.
fn begin(state: &mut State, effects: &mut Effects, work: Work) -> JobId {
    let job = state.job();
    effects.push(Effect::Work(job, work));
    effects.push(Effect::After(SLOW, Msg::Slow(job)));
    job
}

/// Ages are drawn again only if one that can be seen has changed.
fn tick(state: &mut State, now: chrono::DateTime<chrono::Utc>) {
    let before = std::mem::replace(&mut state.now, now);
    let changed = |t: chrono::DateTime<chrono::Utc>| age(t, before) != age(t, now);
    let timeline = state.open.as_ref().is_some_and(|open| {
        let end = open.at.top + usize::from(state.size.1);
        (open.at.top..end).filter_map(|p| open.row(p)?.time).any(changed)
    });
    let list = |c: &Conversations| {
        c.load
            .ready()
            .is_some_and(|l| l.iter().filter_map(|s| s.updated_at).any(changed))
    };
    let listed = state.screen == Screen::Start
        || state
            .overlays
            .iter()
            .any(|o| matches!(o, Overlay::Picker(_) | Overlay::Log(..)));
    if timeline || (listed && list(&state.conversations)) {
        state.dirty = true;
    }
}

/// An age as the screens show it: no seconds, so that an idle screen stays as it is for a minute.
pub fn age(then: chrono::DateTime<chrono::Utc>, now: chrono::DateTime<chrono::Utc>) -> String {
    if (now - then).num_seconds() < 60 {
        "now".into()
    } else {
        text::age(then, now)
    }
}

/// Marks slow work as such, and starts the spinner.
fn slow(state: &mut State, job: JobId, effects: &mut Effects) {
    let mut found = false;
    each_load(state, |waiting, slow| {
        if waiting == Some(job) {
            *slow = true;
            found = true;
        }
    });
    found |= state.checkpointing == Some(job);
    found |= state.overlays.iter().any(|o| match o {
        Overlay::Running(r) => r.job == job,
        Overlay::Track(t) => matches!(t.stage, TrackStage::Working(own, _) if own == job),
        _ => false,
    });
    if found {
        state.dirty = true;
        if state.spinner.is_none() {
            state.spinner = Some(0);
            effects.push(Effect::After(SPIN, Msg::Spin));
        }
    }
}

fn spin(state: &mut State, effects: &mut Effects) {
    let mut busy = state.checkpointing.is_some() || state.running();
    each_load(state, |_, slow| busy |= *slow);
    state.dirty = true;
    if busy {
        state.spinner = state.spinner.map(|n| n.wrapping_add(1));
        effects.push(Effect::After(SPIN, Msg::Spin));
    } else {
        state.spinner = None;
    }
}

/// Calls `f` with the job and the slowness of everything that loads.
fn each_load(state: &mut State, mut f: impl FnMut(Option<JobId>, &mut bool)) {
    let c = &mut state.conversations.load;
    f(c.job, &mut c.slow);
    if let Some(open) = &mut state.open {
        f(open.load.job, &mut open.load.slow);
        f(open.files.load.job, &mut open.files.load.slow);
        f(open.diff.load.job, &mut open.diff.load.slow);
        f(open.diff.versions.job, &mut open.diff.versions.slow);
    }
    for overlay in &mut state.overlays {
        match overlay {
            Overlay::Plan(plan) => f(plan.load.job, &mut plan.load.slow),
            Overlay::Log(load, _) => f(load.job, &mut load.slow),
            Overlay::Track(shown) => {
                if let TrackStage::Offer(load) = &mut shown.stage {
                    f(load.job, &mut load.slow);
                }
            }
            _ => {}
        }
    }
}

fn signal(state: &mut State, number: i32, effects: &mut Effects) {
    edit::save(state, effects);
    plan::stop(state, effects);
    state.end = Some(End::Signal(number));
}

/// Quits; a running rewind is asked to stop first.
fn quit(state: &mut State, effects: &mut Effects) {
    edit::save(state, effects);
    if plan::stop_then_quit(state, effects) {
        return;
    }
    state.end = Some(End::Quit);
}

/// Puts every selection and every first line where it exists and can be seen.
fn settle(state: &mut State) {
    let areas = layout::areas(state);
    let height = |pane| usize::from(layout::content(pane).height);
    let list = state.conversations.load.ready().map_or(0, Vec::len);
    if state.screen == Screen::Start {
        state
            .conversations
            .at
            .settle(list, height(areas.timeline).saturating_sub(1));
    }
    if let Some(open) = &mut state.open {
        let rows = open.len();
        open.at.settle(rows, height(areas.timeline));
        let files = open.files.load.ready().map_or(0, Vec::len);
        open.files.at.settle(files, height(areas.files));
        let lines = open.diff.load.ready().map_or(0, |d| d.rows.len());
        let page = height(areas.diff).max(1);
        open.diff.top = open.diff.top.min(lines.saturating_sub(page));
    }
    let boxes: Vec<usize> = state
        .overlays
        .iter()
        .map(|o| usize::from(layout::scrolled(state, o).height))
        .collect();
    for (overlay, height) in state.overlays.iter_mut().zip(boxes) {
        match overlay {
            Overlay::Log(load, at) => at.settle(load.ready().map_or(0, Vec::len), height),
            Overlay::Picker(picker) => picker.at.settle(picker.order.len(), height),
            _ => {}
        }
    }
}

/// Where a text has a word of the search first, for drawing.
pub fn found(text: &str, word: &str) -> Option<std::ops::Range<usize>> {
    filter::find(text, word)
}

pub use preview::next_before;
pub use unsent::left_away;
