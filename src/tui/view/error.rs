//! An error in full, with what helps.

use ratatui::text::Line;

use super::cells;
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
