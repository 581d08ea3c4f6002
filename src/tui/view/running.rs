//! A rewind at work.

use ratatui::buffer::Buffer;
use ratatui::text::{Line, Span};

use super::{cells, spinner};
use crate::tui::backend::Direction;
use crate::tui::keymap::Action;
use crate::tui::layout;
use crate::tui::state::{Overlay, Running, State, Verb};
use crate::tui::theme::Role;

/// The title.
pub fn title(running: &Running) -> String {
    match running.verb {
        Verb::Rewind(_) | Verb::Resend(_) => "Rewinding",
        Verb::Reverse(Direction::Undo, _) => "Undoing",
        Verb::Reverse(Direction::Redo, _) => "Redoing",
    }
    .to_owned()
}

/// The box.
pub fn draw(buf: &mut Buffer, state: &State, over: &Overlay, running: &Running) {
    let theme = &state.theme;
    let area = layout::scrolled(state, over);
    let columns = usize::from(area.width);
    let mut lines = vec![
        Line::default(),
        Line::raw(cells::clip(&format!("to {}", running.words), columns)),
    ];
    lines.push(Line::default());
    let (what, done, total) = running.step.unwrap_or(("beginning", 0, 0));
    let number = match (done, total) {
        (0, 0) => String::new(),
        (done, 0) => done.to_string(),
        (done, total) => format!("{done} of {total}"),
    };
    lines.push(Line::from(vec![
        Span::styled(format!("{} ", spinner(state)), theme[Role::Accent]),
        Span::raw(format!("{what:<14}")),
        bar(done, total, columns.saturating_sub(40), theme[Role::Accent]),
        Span::styled(format!("  {number}"), theme[Role::Dim]),
    ]));
    lines.push(Line::default());
    lines.push(if running.stopping {
        Line::styled("stopping: everything goes back to how it was", theme[Role::Warn])
    } else {
        Line::from(vec![
            Span::styled(state.keymap.key_of(Action::Cancel).to_owned(), theme[Role::Key]),
            Span::styled(" stop, and put everything back", theme[Role::Dim]),
        ])
    });
    for (n, line) in lines.iter().enumerate() {
        cells::put(buf, cells::line_of(area, n), line);
    }
}

/// How much of it is done, as a line.
pub fn bar(done: u64, total: u64, columns: usize, style: ratatui::style::Style) -> Span<'static> {
    if total == 0 {
        return Span::raw("");
    }
    let full = (done.min(total) as f64 / total as f64 * columns as f64) as usize;
    Span::styled(
        format!("{}{}", "━".repeat(full), "┄".repeat(columns - full)),
        style,
    )
}
