//! An error in full, with what helps; what could not be read of a conversation.

use ratatui::text::Line;

use super::cells;
use crate::text;
use crate::tui::backend::Failure;
use crate::tui::layout;
use crate::tui::state::{Overlay, State};
use crate::tui::theme::Role;

/// All lines of it.
pub fn lines(state: &State, over: &Overlay, failure: &Failure) -> Vec<Line<'static>> {
    let columns = layout::text_columns(state, over);
    let mut lines = vec![Line::default()];
    lines.extend(cells::wrap(&failure.message, columns).into_iter().map(Line::raw));
    if let Some(hint) = &failure.hint {
        lines.push(Line::default());
        let hint = cells::wrap(hint, columns);
        lines.extend(hint.into_iter().map(|l| Line::styled(l, state.theme[Role::Warn])));
    }
    lines
}

/// What could not be read, one below the other.
pub fn notices(state: &State, over: &Overlay) -> Vec<Line<'static>> {
    let columns = layout::text_columns(state, over);
    let notices = state
        .open
        .as_ref()
        .and_then(|o| o.timeline.as_ref())
        .map_or(&[][..], |t| &t.notices);
    if notices.is_empty() {
        return vec![Line::default(), Line::raw("Everything was read and understood.")];
    }
    let wrapped = notices.iter().flat_map(|n| cells::wrap(&text::shown(n), columns));
    std::iter::once(Line::default())
        .chain(wrapped.map(Line::raw))
        .collect()
}
