//! What each action does.

use super::{
    Effects, begin, conversations, edit, filter, opened, picker, plan, preview, quit, track, unsent,
};
use crate::tui::effect::{Effect, Work};
use crate::tui::keymap::{Action, Context};
use crate::tui::layout;
use crate::tui::message::JobId;
use crate::tui::state::{Loading, Mark, Overlay, Pane, Position, Screen, State, Tone};

/// Carries an action out in the present context.
pub fn act(state: &mut State, action: Action, effects: &mut Effects) {
    match action {
        Action::Down | Action::PickDown => scroll(state, 1, effects),
        Action::Up | Action::PickUp => scroll(state, -1, effects),
        Action::HalfDown => scroll(state, page(state).div_euclid(2).max(1), effects),
        Action::HalfUp => scroll(state, -page(state).div_euclid(2).max(1), effects),
        Action::PageDown => scroll(state, page(state), effects),
        Action::PageUp => scroll(state, -page(state), effects),
        Action::First => scroll(state, isize::MIN, effects),
        Action::Last => scroll(state, isize::MAX, effects),
        Action::Left | Action::Right => sideways(state, action == Action::Right),
        Action::NextPane => next_pane(state, true),
        Action::PreviousPane => next_pane(state, false),
        Action::Open => open(state, effects),
        Action::Back => back(state),
        Action::MarkA | Action::MarkB => mark(state, action == Action::MarkA),
        Action::ClearMarks => marks(state, None, None),
        Action::MarkNow | Action::MarkStart => compare_with(state, action == Action::MarkNow),
        Action::ShowBetween => show_between(state),
        Action::OlderVersion => preview::version(state, -1, effects),
        Action::NewerVersion => preview::version(state, 1, effects),
        Action::Rewind | Action::RewindEnd => plan::rewind(state, action == Action::RewindEnd, effects),
        Action::Edit => edit::open(state, effects),
        Action::RunCommand | Action::WindowCommand | Action::CopyCommand => {
            unsent::act(state, action, effects);
        }
        Action::Reach => plan::reach(state, effects),
        Action::Undo | Action::Redo => plan::reverse(state, action == Action::Undo, effects),
        // a plan takes its keys itself, after a look at the time; so do an offer and a text that is edited
        Action::Confirm
        | Action::OtherVault
        | Action::Send
        | Action::Editor
        | Action::OldText
        | Action::Attachments
        | Action::DropAttachment
        | Action::LeaveEdit => {}
        Action::Track => track::workspace(state, effects),
        Action::TrackHere => track::here(state, effects),
        Action::Checkpoint => checkpoint(state, effects),
        Action::Filter => filter::start(state),
        Action::NextMatch => filter::jump(state, true),
        Action::PreviousMatch => filter::jump(state, false),
        Action::Switch => picker::switcher(state, effects),
        Action::Palette => picker::palette(state),
        Action::Log => log(state, effects),
        Action::Notices => state.overlays.push(Overlay::Notices(0)),
        Action::Help => state.overlays.push(Overlay::Help(0)),
        Action::Refresh => refresh(state, effects),
        Action::Close => drop(state.overlays.pop()),
        Action::Cancel => plan::stop(state, effects),
        Action::Suspend if state.running() => state.say(Tone::Plain, "not while something is at work"),
        Action::Suspend => effects.push(Effect::Suspend),
        Action::Quit | Action::ForceQuit => quit(state, effects),
        Action::Accept => accept(state, effects),
        Action::Dismiss => dismiss(state),
        Action::RubOut | Action::ClearLine => rub_out(state, action == Action::ClearLine),
    }
}

/// The rows of a page in the present context.
fn page(state: &State) -> isize {
    let areas = layout::areas(state);
    let height = if let Some(overlay) = state.overlays.last() {
        layout::scrolled(state, overlay).height
    } else {
        let pane = match (state.screen, state.focus) {
            (Screen::Start, _) | (_, Pane::Timeline) => areas.timeline,
            (_, Pane::Files) => areas.files,
            (_, Pane::Diff) => areas.diff,
        };
        layout::content(pane).height
    };
    isize::from(height as i16).max(1)
}

fn shift(at: &mut usize, rows: isize) {
    *at = at.saturating_add_signed(rows);
}

fn select(at: &mut Position, len: usize, rows: isize) {
    at.selected = at.selected.saturating_add_signed(rows).min(len.saturating_sub(1));
}

/// Moves in the topmost box, or in the pane with the focus.
pub fn scroll(state: &mut State, rows: isize, _effects: &mut Effects) {
    let limit = state.overlays.last().map_or(0, |o| {
        let lines = crate::tui::view::box_lines(state, o);
        lines.saturating_sub(usize::from(layout::scrolled(state, o).height))
    });
    match state.overlays.last_mut() {
        Some(
            Overlay::Help(top) | Overlay::Message(_, top) | Overlay::Error(_, top) | Overlay::Notices(top),
        ) => {
            shift(top, rows);
            *top = (*top).min(limit);
        }
        Some(Overlay::Plan(plan)) => {
            shift(&mut plan.top, rows);
            plan.top = plan.top.min(limit);
        }
        Some(Overlay::Edit(shown)) => edit::scroll(shown, rows),
        Some(Overlay::Track(shown)) => {
            shift(&mut shown.top, rows);
            shown.top = shown.top.min(limit);
        }
        Some(Overlay::Ended(ended)) => {
            shift(&mut ended.top, rows);
            ended.top = ended.top.min(limit);
        }
        Some(Overlay::Log(load, at)) => select(at, load.ready().map_or(0, Vec::len), rows),
        Some(Overlay::Picker(picker)) => select(&mut picker.at, picker.order.len(), rows),
        Some(Overlay::Running(_)) => {}
        None if state.screen == Screen::Start => {
            let len = state.conversations.load.ready().map_or(0, Vec::len);
            select(&mut state.conversations.at, len, rows);
        }
        None => move_in(state, state.focus, rows),
    }
}

/// Moves in one pane.
pub fn move_in(state: &mut State, pane: Pane, rows: isize) {
    let Some(open) = &mut state.open else { return };
    match pane {
        Pane::Timeline => {
            let len = open.len();
            select(&mut open.at, len, rows);
        }
        Pane::Files => {
            let len = open.files.load.ready().map_or(0, Vec::len);
            select(&mut open.files.at, len, rows);
        }
        Pane::Diff => shift(&mut open.diff.top, rows),
    }
}

fn sideways(state: &mut State, right: bool) {
    if let Some(open) = &mut state.open {
        shift(&mut open.diff.left, if right { 8 } else { -8 });
        open.diff.left = open.diff.left.min(100_000);
    }
}

fn next_pane(state: &mut State, forward: bool) {
    state.zoom = false;
    state.focus = match (state.focus, forward) {
        (Pane::Timeline, true) | (Pane::Diff, false) => Pane::Files,
        (Pane::Files, true) | (Pane::Timeline, false) => Pane::Diff,
        (Pane::Diff, true) | (Pane::Files, false) => Pane::Timeline,
    };
}

fn open(state: &mut State, effects: &mut Effects) {
    if state.screen == Screen::Start {
        let list = state.conversations.load.ready();
        let store = list
            .and_then(|l| l.get(state.conversations.at.selected))
            .map(|s| s.store.clone());
        if let Some(store) = store {
            opened::open(state, store, effects);
        }
        return;
    }
    match state.focus {
        Pane::Timeline => {
            if let Some(id) = state
                .open
                .as_ref()
                .and_then(|o| o.selected())
                .map(|r| r.id.clone())
            {
                state.overlays.push(Overlay::Message(id, 0));
            }
        }
        Pane::Files => {
            if state.open.as_ref().is_some_and(|o| o.change().is_some()) {
                state.focus = Pane::Diff;
                state.zoom = true;
            }
        }
        Pane::Diff => state.zoom = !state.zoom,
    }
}

/// One step back: the diff in full, a version of a file, the pane, the filter, the marks.
fn back(state: &mut State) {
    if std::mem::take(&mut state.zoom) {
        state.focus = Pane::Files;
        return;
    }
    if state.focus != Pane::Timeline {
        state.focus = Pane::Timeline;
        return;
    }
    if state.open.as_ref().is_some_and(|o| !o.filter.is_empty()) {
        filter::clear(state);
        return;
    }
    marks(state, None, None);
}

fn mark(state: &mut State, first: bool) {
    let Some(open) = &mut state.open else { return };
    let Some(row) = open.selected() else { return };
    let (id, ended) = (
        row.id.clone(),
        row.checkpoint.as_ref().is_some_and(|c| c.turn_end.is_some()),
    );
    let slot = if first { &mut open.a } else { &mut open.b };
    *slot = match slot.take() {
        Some(Mark::Before(old)) if old == id && ended => Some(Mark::End(id)),
        Some(Mark::Before(old) | Mark::End(old)) if old == id => None,
        _ => Some(Mark::Before(id)),
    };
}

fn marks(state: &mut State, a: Option<Mark>, b: Option<Mark>) {
    if let Some(open) = &mut state.open {
        (open.a, open.b) = (a, b);
    }
}

fn compare_with(state: &mut State, now: bool) {
    let id = state
        .open
        .as_ref()
        .and_then(|o| o.selected())
        .map(|r| r.id.clone());
    if let Some(id) = id {
        let (a, b) = if now {
            (Mark::Before(id), Mark::Now)
        } else {
            (Mark::Start, Mark::Before(id))
        };
        marks(state, Some(a), Some(b));
    }
}

fn show_between(state: &mut State) {
    let Some(open) = &state.open else { return };
    let Some(index) = open.index(open.at.selected) else {
        return;
    };
    let rows = open.rows();
    let ended = rows[index]
        .checkpoint
        .as_ref()
        .is_some_and(|c| c.turn_end.is_some());
    if !ended {
        state.say(
            Tone::Plain,
            "the end of this turn was not kept, so nothing tells your edits apart",
        );
        return;
    }
    let next = preview::next_before(rows, index).map_or(Mark::Now, |r| Mark::Before(r.id.clone()));
    let first = Mark::End(rows[index].id.clone());
    marks(state, Some(first), Some(next));
}

fn checkpoint(state: &mut State, effects: &mut Effects) {
    if state.checkpointing.is_some() || state.running() {
        state.say(Tone::Plain, "a checkpoint is being taken already");
        return;
    }
    let Some(store) = state.open.as_ref().map(|o| o.store.clone()) else {
        return;
    };
    if !opened::tracked(state) {
        return;
    }
    state.checkpointing = Some(begin(state, effects, Work::Checkpoint(store)));
}

fn log(state: &mut State, effects: &mut Effects) {
    let Some(open) = &state.open else { return };
    let store = open.store.clone();
    let job: JobId = begin(state, effects, Work::Operations(store));
    let mut load = Loading::default();
    load.begin((), job);
    state.overlays.push(Overlay::Log(load, Position::default()));
}

fn refresh(state: &mut State, effects: &mut Effects) {
    effects.push(Effect::Redraw);
    if state.screen == Screen::Start {
        conversations(state, effects);
        return;
    }
    if let Some(open) = &mut state.open {
        open.files.load.clear();
        open.diff.load.clear();
        open.diff.versions.clear();
        open.counts.clear();
        open.uncounted.clear();
    }
    opened::refresh(state, effects);
}

fn accept(state: &mut State, effects: &mut Effects) {
    if state.context() == Context::Filter {
        filter::accept(state);
    } else {
        picker::accept(state, effects);
    }
}

fn dismiss(state: &mut State) {
    if state.context() == Context::Filter {
        state.typing = None;
        filter::clear(state);
    } else {
        state.overlays.pop();
    }
}

fn rub_out(state: &mut State, all: bool) {
    if state.context() == Context::Filter {
        filter::rub_out(state, all);
    } else {
        picker::rub_out(state, all);
    }
}
