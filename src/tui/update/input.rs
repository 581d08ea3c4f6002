//! Keys, paste and mouse.

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers, MouseEvent, MouseEventKind};
use ratatui::layout::{Position as Cell, Rect};

use super::{Effects, actions, edit, filter, picker, plan, track};
use crate::tui::keymap::Context;
use crate::tui::layout;
use crate::tui::message::Millis;
use crate::tui::state::{Overlay, Pane, Screen, State};

/// Rows that one turn of the wheel moves.
const WHEEL: isize = 3;

/// A key.
pub fn key(state: &mut State, key: &KeyEvent, at: Millis, effects: &mut Effects) {
    if key.kind == KeyEventKind::Release {
        return;
    }
    state.notice = None;
    state.dirty = true;
    let context = state.context();
    let action = state.keymap.action(context, key);
    if context == Context::Plan && plan::key(state, key, action, at, effects) {
        return;
    }
    if matches!(context, Context::Edit | Context::Attached) {
        return edit::key(state, key, action, effects);
    }
    if context == Context::Track {
        return track::key(state, key, action, effects);
    }
    if let Some(action) = action {
        actions::act(state, action, effects);
    } else if let Some(c) = typed(key) {
        match context {
            Context::Picker => picker::typed(state, c),
            Context::Filter => filter::typed(state, c),
            _ => {}
        }
    }
}

/// The character that a key types, if it types one.
pub fn typed(key: &KeyEvent) -> Option<char> {
    let plain = (key.modifiers - KeyModifiers::SHIFT).is_empty();
    match key.code {
        KeyCode::Char(c) if plain && !c.is_control() => Some(c),
        _ => None,
    }
}

/// Pasted text goes into lines of text only; it never presses a key and never confirms anything.
pub fn paste(state: &mut State, text: &str, effects: &mut Effects) {
    state.dirty = true;
    if matches!(state.context(), Context::Edit | Context::Attached) {
        return edit::paste(state, text, effects);
    }
    let line = text
        .lines()
        .next()
        .unwrap_or("")
        .chars()
        .filter(|c| !c.is_control());
    match state.context() {
        Context::Picker => line.for_each(|c| picker::typed(state, c)),
        Context::Filter => line.for_each(|c| filter::typed(state, c)),
        _ => {}
    }
}

/// A click selects, the wheel scrolls what is under it.
pub fn mouse(state: &mut State, mouse: MouseEvent, effects: &mut Effects) {
    let cell = Cell::new(mouse.column, mouse.row);
    match mouse.kind {
        MouseEventKind::Down(_) => click(state, cell),
        MouseEventKind::ScrollDown => wheel(state, cell, WHEEL, effects),
        MouseEventKind::ScrollUp => wheel(state, cell, -WHEEL, effects),
        _ => return,
    }
    state.dirty = true;
}

fn click(state: &mut State, cell: Cell) {
    if let Some(overlay) = state.overlays.last() {
        let line = line_in(layout::scrolled(state, overlay), cell);
        match (state.overlays.last_mut(), line) {
            (Some(Overlay::Log(_, at)), Some(line)) => at.selected = at.top + line,
            (Some(Overlay::Picker(p)), Some(line)) => p.at.selected = p.at.top + line,
            _ => {}
        }
        return;
    }
    let areas = layout::areas(state);
    if state.screen == Screen::Start {
        if let Some(line) = line_in(layout::content(areas.timeline), cell) {
            // the first line is the table's head
            let at = &mut state.conversations.at;
            at.selected = at.top + line.saturating_sub(1);
        }
        return;
    }
    let Some(pane) = pane_at(state, cell) else { return };
    state.focus = pane;
    let Some(open) = &mut state.open else { return };
    match pane {
        Pane::Timeline => {
            if let Some(line) = line_in(layout::content(areas.timeline), cell) {
                open.at.selected = open.at.top + line;
            }
        }
        Pane::Files => {
            if let Some(line) = line_in(layout::content(areas.files), cell) {
                open.files.at.selected = open.files.at.top + line;
            }
        }
        Pane::Diff => {}
    }
}

fn line_in(area: Rect, cell: Cell) -> Option<usize> {
    area.contains(cell).then(|| usize::from(cell.y - area.y))
}

fn pane_at(state: &State, cell: Cell) -> Option<Pane> {
    let areas = layout::areas(state);
    [
        (areas.timeline, Pane::Timeline),
        (areas.files, Pane::Files),
        (areas.diff, Pane::Diff),
    ]
    .into_iter()
    .find_map(|(area, pane)| area.contains(cell).then_some(pane))
}

fn wheel(state: &mut State, cell: Cell, rows: isize, effects: &mut Effects) {
    if state.overlays.is_empty() && state.screen == Screen::Timeline {
        let Some(pane) = pane_at(state, cell) else { return };
        actions::move_in(state, pane, rows);
    } else {
        actions::scroll(state, rows, effects);
    }
}
