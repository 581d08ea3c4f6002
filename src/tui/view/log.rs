//! The operation log.

use ratatui::buffer::Buffer;
use ratatui::text::{Line, Span};

use super::cells;
use crate::rewind::{Operation, OperationKind, OperationState};
use crate::text;
use crate::tui::layout;
use crate::tui::state::{Loading, Overlay, Position, State};
use crate::tui::theme::Role;
use crate::tui::update::age;

type Load = Loading<(), Vec<Operation>>;

/// The title, and how many there are.
pub fn title(load: &Load) -> (String, String) {
    let cut = |l: &[Operation]| l.iter().any(|o| o.state == OperationState::Interrupted);
    let count = load.ready().map_or_else(String::new, |l| {
        if cut(l) {
            "one was interrupted: respool recover".to_owned()
        } else {
            l.len().to_string()
        }
    });
    ("Operations".to_owned(), count)
}

/// The list, newest first.
pub fn draw(buf: &mut Buffer, state: &State, over: &Overlay, load: &Load, at: Position) {
    let area = layout::scrolled(state, over);
    let dim = state.theme[Role::Dim];
    match &load.value {
        None => cells::put(buf, cells::line_of(area, 0), &Line::styled("reading …", dim)),
        Some(((), Err(failure))) => {
            let hint = failure.hint.clone().unwrap_or_default();
            cells::say(buf, area, state.theme[Role::Bad], &[&failure.message, &hint]);
        }
        Some(((), Ok(list))) if list.is_empty() => {
            let then = "A rewind is written here, and can be undone from here.";
            cells::say(buf, area, dim, &["Nothing was done yet.", "", then]);
        }
        Some(((), Ok(list))) => {
            for n in 0..usize::from(area.height) {
                let Some(op) = list.get(at.top + n) else { break };
                let selected = (at.top + n == at.selected).then(|| state.theme[Role::Selected]);
                let (left, right) = operation(state, op);
                cells::row(buf, cells::line_of(area, n), left, right, selected);
            }
        }
    }
}

/// What an operation is, in a word.
pub fn kind_word(kind: OperationKind) -> &'static str {
    match kind {
        OperationKind::Track => "track",
        OperationKind::Untrack => "untrack",
        OperationKind::Rewind => "rewind",
        OperationKind::Undo => "undo",
        OperationKind::Redo => "redo",
    }
}

fn operation(state: &State, op: &Operation) -> (Line<'static>, Line<'static>) {
    let theme = &state.theme;
    let (word, role) = match op.state {
        OperationState::Done => ("done", Role::Ok),
        OperationState::Undone => ("undone", Role::Dim),
        OperationState::Interrupted => ("interrupted", Role::Bad),
        OperationState::RolledBack => ("rolled back", Role::Warn),
    };
    let words = op.message.as_deref().map(text::shown).unwrap_or_default();
    let left = vec![
        Span::styled(format!("{:>4}  ", age(op.time, state.now)), theme[Role::Dim]),
        Span::raw(format!("{:<8} ", kind_word(op.kind))),
        Span::raw(words),
    ];
    let right = vec![
        Span::styled(word, theme[role]),
        Span::styled(format!("  {}", text::shown(&op.id)), theme[Role::Dim]),
    ];
    (Line::from(left), Line::from(right))
}
