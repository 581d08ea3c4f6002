//! Where things are on the screen. Both drawing and `update` (which scrolls, and finds what was clicked)
//! ask here.

use ratatui::layout::Rect;

use super::state::{Overlay, Pane, Screen, State};

/// Below this the screen shows one pane.
const WIDE: (u16, u16) = (60, 15);
/// Below this nothing sensible can be shown.
const LEAST: (u16, u16) = (20, 5);

/// The parts of the main screen. Each pane's first line is its title. Empty areas are not shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Areas {
    /// The line at the top.
    pub header: Rect,
    /// The messages.
    pub timeline: Rect,
    /// Below them, what is to say of the selected one.
    pub detail: Rect,
    /// The line between left and right.
    pub divider: Rect,
    /// The changed files.
    pub files: Rect,
    /// The diff.
    pub diff: Rect,
    /// The line at the bottom.
    pub footer: Rect,
}

/// The whole screen.
pub fn screen(state: &State) -> Rect {
    Rect::new(0, 0, state.size.0, state.size.1)
}

/// True if not even one pane fits.
pub fn too_small(state: &State) -> bool {
    state.size.0 < LEAST.0 || state.size.1 < LEAST.1
}

/// The parts of the main screen.
pub fn areas(state: &State) -> Areas {
    if too_small(state) {
        return Areas::default();
    }
    let (width, height) = state.size;
    let mut areas = Areas {
        header: Rect::new(0, 0, width, 1),
        footer: Rect::new(0, height - 1, width, 1),
        ..Areas::default()
    };
    let body = Rect::new(0, 1, width, height - 2);
    if state.screen == Screen::Start {
        areas.timeline = body;
        return areas;
    }
    let single = width < WIDE.0 || height < WIDE.1;
    if single || state.zoom {
        let pane = if state.zoom { Pane::Diff } else { state.focus };
        match pane {
            Pane::Timeline => areas.timeline = body,
            Pane::Files => areas.files = body,
            Pane::Diff => areas.diff = body,
        }
        return areas;
    }
    let left = (width * 11 / 20).clamp(38, 100);
    let detail = if height >= 20 { 4 } else { 0 };
    areas.timeline = Rect::new(0, 1, left, body.height - detail);
    areas.detail = Rect::new(0, 1 + body.height - detail, left, detail);
    areas.divider = Rect::new(left, 1, 1, body.height);
    let files = (body.height * 2 / 5).clamp(4, 16);
    areas.files = Rect::new(left + 1, 1, width - left - 1, files);
    areas.diff = Rect::new(left + 1, 1 + files, width - left - 1, body.height - files);
    areas
}

/// A pane without its title line.
pub fn content(pane: Rect) -> Rect {
    Rect {
        y: pane.y.saturating_add(1).min(pane.bottom()),
        height: pane.height.saturating_sub(1),
        ..pane
    }
}

/// The columns of a box, border included. One that nearly fills the screen fills it.
fn box_width(state: &State, over: &Overlay) -> u16 {
    let wished = match over {
        Overlay::Help(_) => 92,
        Overlay::Message(..) | Overlay::Plan(_) | Overlay::Edit(_) => 100,
        Overlay::Error(..) | Overlay::Notices(_) | Overlay::Ended(_) => 72,
        Overlay::Running(_) => 64,
        Overlay::Track(_) => 88,
        Overlay::Log(..) => 96,
        Overlay::Picker(_) => 84,
    };
    if state.size.0 < wished + 8 {
        state.size.0
    } else {
        wished
    }
}

/// The columns of text in a box; they do not depend on its height.
pub fn text_columns(state: &State, over: &Overlay) -> usize {
    usize::from(box_width(state, over).saturating_sub(4))
}

/// The area of a box over the screen, border included: between the lines at top and bottom, never outside
/// of the screen.
pub fn overlay(state: &State, over: &Overlay) -> Rect {
    let full = screen(state);
    let lines = |extra: usize| {
        let lines = super::view::box_lines(state, over) + extra;
        u16::try_from(lines).unwrap_or(u16::MAX)
    };
    let height = match over {
        Overlay::Plan(_) => lines(4).max(8),
        Overlay::Ended(_) | Overlay::Track(_) => lines(4),
        Overlay::Error(..) | Overlay::Notices(_) => lines(3),
        Overlay::Message(..) => lines(2).max(10),
        Overlay::Help(_) => lines(2),
        Overlay::Running(_) => 9,
        Overlay::Log(load, _) => (load.ready().map_or(0, Vec::len) + 2).clamp(8, 24) as u16,
        Overlay::Picker(_) => 20,
        Overlay::Edit(_) => full.height.saturating_sub(2).min(26),
    };
    let width = box_width(state, over);
    let height = height.min(full.height.saturating_sub(2)).max(full.height.min(6));
    let spare = full.height.saturating_sub(height);
    let area = Rect::new(
        full.width.saturating_sub(width) / 2,
        (spare / 3).max(1),
        width,
        height,
    );
    area.intersection(full)
}

/// A box without its border and a column of air on both sides.
pub fn inside(area: Rect) -> Rect {
    let x = 2.min(area.width / 2);
    let y = 1.min(area.height / 2);
    Rect::new(
        area.x + x,
        area.y + y,
        area.width.saturating_sub(2 * x),
        area.height.saturating_sub(2 * y),
    )
}

/// The lines of a box that scroll: its inside without the last line where that shows keys.
pub fn scrolled(state: &State, over: &Overlay) -> Rect {
    let inside = inside(overlay(state, over));
    let (above, below) = match over {
        Overlay::Picker(_) => (2, 0),
        Overlay::Plan(_) | Overlay::Ended(_) | Overlay::Track(_) => (0, 2),
        Overlay::Edit(edit) => {
            let below = super::view::below_text(state, text_columns(state, over), edit) as u16;
            (0, (below + 1).min(inside.height.saturating_sub(1)))
        }
        _ => (0, 0),
    };
    let above = above.min(inside.height);
    Rect {
        y: inside.y + above,
        height: inside.height.saturating_sub(above + below),
        ..inside
    }
}
