//! A message that is edited.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::text::{Line, Span};
use ratatui::widgets::Widget;

use super::cells;
use crate::text;
use crate::tui::keymap::Action;
use crate::tui::layout;
use crate::tui::state::{Content, EditBox, Field, Overlay, State};
use crate::tui::theme::Role;

/// How many of the things that go with it are shown at once.
const PARTS: usize = 4;

/// The title, and how long the text is.
pub fn title(edit: &EditBox) -> (String, String) {
    let remark = match &edit.content {
        Content::Reading(_) => String::new(),
        Content::Field(field) => text::count(field.widget().lines().len() as u64, "line"),
        Content::Long(long) => text::size(long.len() as u64),
    };
    let name = edit
        .name
        .strip_prefix('M')
        .map_or_else(|| edit.name.clone(), |n| format!("m{n}"));
    let found = if edit.found {
        ": not sent yet, from last time"
    } else {
        ""
    };
    (format!("Edit {name} and send it again{found}"), remark)
}

/// The lines below the text: what goes with it, and what there is to know.
pub fn below(state: &State, columns: usize, edit: &EditBox) -> Vec<Line<'static>> {
    let theme = &state.theme;
    let mut lines = Vec::new();
    let top = edit.chosen.saturating_sub(PARTS - 1);
    for (n, (words, keep)) in edit.parts.iter().enumerate().skip(top).take(PARTS) {
        let (sign, role) = if *keep {
            ("+", Role::Added)
        } else {
            ("-", Role::Deleted)
        };
        let away = if *keep { "" } else { "   left away" };
        let mut line = Line::from(vec![
            Span::styled(format!("{sign} "), theme[role]),
            Span::raw(cells::clip(words, columns.saturating_sub(14))),
            Span::styled(away, theme[Role::Dim]),
        ]);
        if edit.on_parts && n == edit.chosen {
            line = line.style(theme[Role::Selected]);
        }
        lines.push(line);
    }
    let hidden = edit.parts.len().saturating_sub(PARTS);
    let key = state.keymap.key_of(Action::Attachments);
    if !edit.parts.is_empty() {
        let more = if hidden > 0 {
            format!("{hidden} more; ")
        } else {
            String::new()
        };
        let told = if edit.on_parts {
            format!(
                "{more}{} leave it away   {key} back to the text",
                state.keymap.key_of(Action::DropAttachment)
            )
        } else {
            format!("{more}they go with it; {key} to leave some away")
        };
        lines.push(Line::styled(cells::clip(&told, columns), theme[Role::Dim]));
    }
    if edit.found {
        let key = state.keymap.key_of(Action::OldText);
        let told =
            format!("Not sent yet: this is what you wrote last time. {key} for the text as it was sent.");
        let told = cells::wrap(&told, columns);
        lines.extend(told.into_iter().map(|l| Line::styled(l, theme[Role::Warn])));
    }
    lines
}

/// The box.
pub fn draw(buf: &mut Buffer, state: &State, over: &Overlay, edit: &EditBox) {
    let area = layout::scrolled(state, over).intersection(buf.area);
    let theme = &state.theme;
    match &edit.content {
        Content::Reading(_) => cells::put(
            buf,
            cells::line_of(area, 0),
            &Line::styled("reading …", theme[Role::Dim]),
        ),
        Content::Field(field) => draw_field(buf, area, field),
        Content::Long(long) => draw_long(buf, state, area, long),
    }
    let inside = layout::inside(layout::overlay(state, over)).intersection(buf.area);
    let below = below(state, layout::text_columns(state, over), edit);
    let first = usize::from(inside.height).saturating_sub(below.len());
    for (n, line) in below.iter().enumerate() {
        cells::put(buf, cells::line_of(inside, first + n), line);
    }
}

fn draw_field(buf: &mut Buffer, area: Rect, field: &Field) {
    if area.is_empty() {
        return;
    }
    field.widget().render(area, buf);
    for y in area.top()..area.bottom() {
        for x in area.left()..area.right() {
            let cell = &mut buf[(x, y)];
            if let Some(drawn) = field.drawn(cell.symbol()) {
                cell.set_symbol(&drawn);
            }
        }
    }
}

/// Text that is too long to be edited here: its beginning.
fn draw_long(buf: &mut Buffer, state: &State, area: Rect, long: &str) {
    let theme = &state.theme;
    let key = state.keymap.key_of(Action::Editor);
    let columns = usize::from(area.width);
    let told = format!("Too long to be edited here: {key} opens it in your editor. It begins:");
    let mut lines: Vec<Line> = cells::wrap(&told, columns)
        .into_iter()
        .map(|l| Line::styled(l, theme[Role::Warn]))
        .collect();
    lines.push(Line::default());
    let mut end = long.len().min(8192);
    while !long.is_char_boundary(end) {
        end -= 1;
    }
    lines.extend(cells::wrap(&long[..end], columns).into_iter().map(Line::raw));
    for (n, line) in lines.iter().take(usize::from(area.height)).enumerate() {
        cells::put(buf, cells::line_of(area, n), line);
    }
}
