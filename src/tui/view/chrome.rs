//! The line at the top, the line at the bottom, the line between left and right.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::text::{Line, Span};

use super::{cells, path, spinner, untracked};
use crate::text;
use crate::tui::keymap::Action;
use crate::tui::layout::Areas;
use crate::tui::state::{Open, Screen, State, Tone};
use crate::tui::theme::Role;

/// Name, conversation, agent, folder, whether the agent is at work.
pub fn header(buf: &mut Buffer, area: Rect, state: &State) {
    let theme = &state.theme;
    let name = Span::styled(" respool", theme[Role::TitleFocus]);
    if state.screen == Screen::Start {
        let what = Span::styled("  conversations", theme[Role::Dim]);
        let here = here(state, usize::from(area.width) / 2);
        cells::row(buf, area, Line::from(vec![name, what]), here, None);
        return;
    }
    let Some(open) = &state.open else { return };
    let summary = open.timeline.as_ref().map(|t| &t.conversation);
    let title = summary
        .and_then(|s| s.title.as_deref())
        .map(|t| cells::first_line(t, 200))
        .unwrap_or_default();
    let mut right = Vec::new();
    if let Some(summary) = summary {
        let folder = summary
            .workspace
            .as_deref()
            .map(|w| path(state, w))
            .unwrap_or_default();
        let room = usize::from(area.width) * 2 / 5;
        right.push(Span::styled(summary.agent, theme[Role::Dim]));
        right.push(Span::raw("  "));
        right.push(Span::raw(cells::clip_middle(&folder, room)));
    }
    let timeline = open.timeline.as_ref();
    if open.gone.is_some() && timeline.is_some() {
        right.push(Span::styled("  not readable", theme[Role::Bad]));
    } else if timeline.is_some_and(|t| t.at_work) {
        right.push(Span::styled("  ● at work", theme[Role::Live]));
    }
    right.push(Span::raw(" "));
    let right = Line::from(right);
    let room = usize::from(area.width).saturating_sub(right.width() + 12);
    let left = Line::from(vec![name, Span::raw("  "), Span::raw(cells::clip(&title, room))]);
    cells::row(buf, area, left, right, None);
}

/// The folder that the program was started in, and the key that tracks it.
fn here(state: &State, room: usize) -> Line<'static> {
    let Some(folder) = &state.folder else {
        return Line::default();
    };
    let theme = &state.theme;
    let folder = cells::clip_middle(&path(state, folder), room.saturating_sub(24));
    Line::from(vec![
        Span::styled("you are in ", theme[Role::Dim]),
        Span::raw(folder),
        Span::raw("  "),
        Span::styled(
            state.keymap.key_of(Action::TrackHere).to_owned(),
            theme[Role::Key],
        ),
        Span::styled(" track it ", theme[Role::Dim]),
    ])
}

/// The keys that do something here; or what is being typed; or what there is to say.
pub fn footer(buf: &mut Buffer, area: Rect, state: &State) {
    let theme = &state.theme;
    let mut right = Vec::new();
    if state.spinner.is_some() {
        right.push(Span::styled(format!("{} ", spinner(state)), theme[Role::Accent]));
    }
    if let Some(text) = &state.typing {
        let found = state.open.as_ref().map_or(0, Open::len);
        right.push(Span::styled(format!("{found} found "), theme[Role::Dim]));
        let left = Line::from(vec![
            Span::styled(" /", theme[Role::Key]),
            Span::raw(text::shown(text)),
            Span::styled("▏", theme[Role::Accent]),
        ]);
        cells::row(buf, area, left, Line::from(right), None);
        return;
    }
    if let Some(notice) = &state.notice {
        let role = match notice.tone {
            Tone::Good => Role::Ok,
            Tone::Plain => Role::Warn,
            Tone::Bad => Role::Bad,
        };
        let room = usize::from(area.width).saturating_sub(3);
        let text = cells::clip(&notice.text, room);
        cells::row(
            buf,
            area,
            Line::styled(format!(" {text}"), theme[role]),
            Line::from(right),
            None,
        );
        return;
    }
    if state.checkpointing.is_some() && state.spinner.is_some() {
        right.insert(0, Span::styled("taking a checkpoint ", theme[Role::Dim]));
    }
    let right = Line::from(right);
    let left = keys(state, usize::from(area.width).saturating_sub(right.width() + 1));
    cells::row(buf, area, left, right, None);
}

/// Where nothing is tracked yet, tracking is what there is to do; later it is not.
fn does_something(state: &State, word: &str) -> bool {
    let untracked = match state.screen {
        Screen::Start => true,
        Screen::Timeline => untracked(state),
    };
    match word {
        "track" => untracked,
        "rewind" | "edit" | "undo" | "from" | "to" => !untracked,
        _ => true,
    }
}

/// As many keys with their words as fit.
fn keys(state: &State, room: usize) -> Line<'static> {
    let theme = &state.theme;
    let context = state.context();
    let mut all: Vec<(String, String)> = state
        .keymap
        .footer(context)
        .filter(|(_, word)| does_something(state, word))
        .map(|(k, w)| (k.to_owned(), w.to_owned()))
        .collect();
    // help comes last and always fits
    all.sort_by_key(|(_, word)| word == "help");
    let need = |(key, word): &(String, String)| cells::width(key) + cells::width(word) + 3;
    let help = all.last().filter(|(_, w)| w == "help").map_or(0, need);
    let mut used = 1;
    let mut spans = vec![Span::raw(" ")];
    for entry in &all {
        let last = entry.1 == "help";
        if used + need(entry) + if last { 0 } else { help } > room + 2 {
            continue;
        }
        used += need(entry);
        spans.push(Span::styled(entry.0.clone(), theme[Role::Key]));
        spans.push(Span::styled(format!(" {}  ", entry.1), theme[Role::Dim]));
    }
    Line::from(spans)
}

/// The line between left and right, joined with the titles.
pub fn divider(buf: &mut Buffer, areas: &Areas, state: &State) {
    let area = areas.divider.intersection(buf.area);
    for y in area.top()..area.bottom() {
        let right = y == areas.files.y || y == areas.diff.y;
        let left = y == areas.timeline.y || (y == areas.detail.y && areas.detail.height > 0);
        let sign = match (y == area.top(), left, right) {
            (true, ..) => "┬",
            (_, true, true) => "┼",
            (_, true, false) => "┤",
            (_, false, true) => "├",
            _ => "│",
        };
        buf.set_string(area.x, y, sign, state.theme[Role::Rule]);
    }
}
