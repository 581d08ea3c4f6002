//! A whole message.

use ratatui::text::Line;

use super::{cells, checkpoint_words, timeline};
use crate::text;
use crate::timeline::Row;
use crate::tui::layout;
use crate::tui::state::{Overlay, State};
use crate::tui::theme::Role;

/// Longer text is cut, and says so.
const LIMIT: usize = 64 * 1024;

fn row<'a>(state: &'a State, id: &str) -> Option<&'a Row> {
    state.open.as_ref()?.rows().iter().rfind(|r| r.id == id)
}

/// The title, and the time at its right.
pub fn title(state: &State, id: &str) -> (String, String) {
    let Some(row) = row(state, id) else {
        return ("Message".to_owned(), String::new());
    };
    let time = row.time.map_or_else(String::new, |t| {
        t.with_timezone(&state.offset)
            .format("%Y-%m-%d %H:%M:%S")
            .to_string()
    });
    (timeline::name_of(row), time)
}

/// All lines of it.
pub fn lines(state: &State, over: &Overlay, id: &str) -> Vec<Line<'static>> {
    let Some(row) = row(state, id) else {
        return vec![Line::raw("This message is no longer there.")];
    };
    let columns = layout::text_columns(state, over);
    let mut end = row.text.len().min(LIMIT);
    while !row.text.is_char_boundary(end) {
        end -= 1;
    }
    let mut lines: Vec<Line> = cells::wrap(&row.text[..end], columns)
        .into_iter()
        .map(Line::raw)
        .collect();
    let dim = state.theme[Role::Dim];
    lines.push(Line::default());
    if end < row.text.len() {
        let rest = text::size((row.text.len() - end) as u64);
        lines.push(Line::styled(format!("{rest} more are not shown"), dim));
    }
    if row.pictures > 0 {
        lines.push(Line::styled(
            format!("with {}", timeline::pictures(row.pictures)),
            dim,
        ));
    }
    let packages = state.open.as_ref().and_then(|o| o.packages_of(row));
    if let Some(packages) = packages {
        lines.push(Line::styled(
            "Packages that its turn changed:",
            state.theme[Role::Title],
        ));
        let all = super::packages::all(packages);
        lines.extend(
            all.iter()
                .flat_map(|l| cells::wrap(l, columns))
                .map(|l| Line::styled(l, state.theme[Role::Accent])),
        );
        lines.push(Line::default());
    }
    let mut facts = vec![format!("id  {}", text::shown(&row.id))];
    if let Some(c) = &row.checkpoint {
        let id =
            c.id.as_ref()
                .map_or_else(String::new, |id| format!("  {}", text::shown(id.as_str())));
        facts.push(format!("{}{id}", checkpoint_words(c.state)));
    }
    for fact in facts {
        lines.extend(
            cells::wrap(&fact, columns)
                .into_iter()
                .map(|l| Line::styled(l, dim)),
        );
    }
    lines
}
