//! A list with a search line: conversations, actions.

use ratatui::buffer::Buffer;
use ratatui::text::{Line, Span};

use super::{cells, path};
use crate::conversation::Summary;
use crate::text;
use crate::tui::keymap::Action;
use crate::tui::layout;
use crate::tui::state::{Overlay, Picker, PickerKind, State};
use crate::tui::theme::Role;
use crate::tui::update::age;

/// The title, and how many match.
pub fn title(picker: &Picker) -> (String, String) {
    let name = match picker.kind {
        PickerKind::Switcher => "Conversations",
        PickerKind::Palette => "Actions",
    };
    (name.to_owned(), picker.order.len().to_string())
}

/// The box.
pub fn draw(buf: &mut Buffer, state: &State, over: &Overlay, picker: &Picker) {
    let theme = &state.theme;
    let inside = layout::inside(layout::overlay(state, over));
    let query = text::shown(&picker.query);
    let line = Line::from(vec![
        Span::styled("› ", theme[Role::Key]),
        Span::raw(query),
        Span::styled("▏", theme[Role::Accent]),
    ]);
    cells::put(buf, cells::line_of(inside, 0), &line);
    let area = layout::scrolled(state, over);
    if picker.order.is_empty() {
        let loading = picker.kind == PickerKind::Switcher && state.conversations.load.job.is_some();
        let none = format!(
            "nothing matches; {} makes the search shorter",
            state.keymap.key_of(Action::RubOut)
        );
        let words = if loading { "reading …" } else { none.as_str() };
        cells::put(
            buf,
            cells::line_of(area, 0),
            &Line::styled(words.to_owned(), theme[Role::Dim]),
        );
        return;
    }
    for n in 0..usize::from(area.height) {
        let place = picker.at.top + n;
        let Some(entry) = picker.order.get(place) else {
            break;
        };
        let line = cells::line_of(area, n);
        let (left, right) = match picker.kind {
            PickerKind::Palette => action(state, picker, *entry),
            PickerKind::Switcher => {
                let Some(summary) = state.conversations.load.ready().and_then(|l| l.get(*entry)) else {
                    break;
                };
                conversation(state, summary, usize::from(line.width))
            }
        };
        let selected = (place == picker.at.selected).then(|| theme[Role::Selected]);
        cells::row(buf, line, left, right, selected);
    }
}

fn action(state: &State, picker: &Picker, entry: usize) -> (Line<'static>, Line<'static>) {
    let Some((action, help)) = picker.actions.get(entry) else {
        return Default::default();
    };
    let key = state
        .keymap
        .bindings
        .iter()
        .find(|b| b.action == *action)
        .and_then(|b| b.keys.first());
    let key = key.cloned().unwrap_or_default();
    (
        Line::raw(format!(" {help}")),
        Line::styled(format!("{key} "), state.theme[Role::Key]),
    )
}

fn conversation(state: &State, summary: &Summary, columns: usize) -> (Line<'static>, Line<'static>) {
    let theme = &state.theme;
    let age = summary.updated_at.map_or_else(String::new, |t| age(t, state.now));
    let folder = summary
        .workspace
        .as_deref()
        .map(|w| path(state, w))
        .unwrap_or_default();
    let folder = cells::clip_middle(&folder, columns * 2 / 5);
    let right = Line::from(vec![Span::styled(
        format!("{folder}  {} ", summary.agent),
        theme[Role::Dim],
    )]);
    let room = columns.saturating_sub(right.width() + 8);
    let live = if summary.live {
        Span::styled("● ", theme[Role::Live])
    } else {
        Span::raw("  ")
    };
    let title = summary
        .title
        .as_deref()
        .map_or_else(|| text::shown(&summary.id), |t| cells::first_line(t, 200));
    let left = Line::from(vec![
        Span::styled(format!("{age:>4} "), theme[Role::Dim]),
        live,
        Span::raw(cells::clip(&title, room)),
    ]);
    (left, right)
}
