//! The start screen: all conversations by agent and folder.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::text::{Line, Span};

use super::{cells, path};
use crate::conversation::Summary;
use crate::text;
use crate::tui::keymap::Action;
use crate::tui::layout;
use crate::tui::state::State;
use crate::tui::theme::Role;
use crate::tui::update::age;

/// The screen.
pub fn draw(buf: &mut Buffer, area: Rect, state: &State) {
    let load = &state.conversations.load;
    let count = load.ready().map_or_else(String::new, |l| l.len().to_string());
    cells::title(
        buf,
        area,
        &state.theme,
        "Conversations by agent and folder",
        &count,
        true,
    );
    let content = layout::content(area);
    let dim = state.theme[Role::Dim];
    match &load.value {
        None => cells::put(buf, cells::line_of(content, 0), &Line::styled("  …", dim)),
        Some(((), Err(failure))) => {
            let hint = failure.hint.clone().unwrap_or_default();
            cells::say(
                buf,
                content,
                state.theme[Role::Bad],
                &[&failure.message, "", &hint],
            );
        }
        Some(((), Ok(list))) if list.is_empty() => empty(buf, content, state),
        Some(((), Ok(list))) => table(buf, content, state, list),
    }
}

fn empty(buf: &mut Buffer, area: Rect, state: &State) {
    let (refresh, track) = (
        state.keymap.key_of(Action::Refresh),
        state.keymap.key_of(Action::TrackHere),
    );
    let run = "Begin with one: respool run -- openhands, in a project's folder.";
    let here = format!("{track} keeps checkpoints of the folder that you are in.");
    let again = format!("{refresh} looks again.");
    cells::say(
        buf,
        area,
        state.theme[Role::Dim],
        &[
            "No conversation of an agent was found on this machine.",
            "",
            run,
            &here,
            &again,
            "",
            "respool demo shows how it works, with nothing to set up.",
            "respool doctor says where conversations are looked for.",
        ],
    );
}

fn table(buf: &mut Buffer, area: Rect, state: &State, list: &[Summary]) {
    let columns = usize::from(area.width);
    let folder = (columns * 3 / 10).clamp(8, 48);
    let head = format!(
        " {:<10} {:<folder$}  {:>4}  {:>5}  {}",
        "agent", "folder", "age", "msgs", "title"
    );
    cells::put(
        buf,
        cells::line_of(area, 0),
        &Line::styled(head, state.theme[Role::Dim]),
    );
    let at = state.conversations.at;
    for n in 1..usize::from(area.height) {
        let place = at.top + n - 1;
        let Some(summary) = list.get(place) else { break };
        // an agent's folder is named once, and again at the top of the screen
        let above = place.checked_sub(1).and_then(|p| list.get(p)).filter(|_| n > 1);
        let same = above.is_some_and(|p| p.agent == summary.agent && p.workspace == summary.workspace);
        let selected = (place == at.selected).then(|| state.theme[Role::Selected]);
        let line = conversation(state, summary, same && selected.is_none(), folder, columns);
        cells::row(buf, cells::line_of(area, n), line, Line::default(), selected);
    }
}

fn conversation(state: &State, s: &Summary, same: bool, folder: usize, columns: usize) -> Line<'static> {
    let theme = &state.theme;
    let place = s
        .workspace
        .as_deref()
        .map_or_else(|| "-".to_owned(), |w| path(state, w));
    let place = cells::clip_middle(&place, folder);
    let pad = " ".repeat(folder.saturating_sub(cells::width(&place)));
    let (agent, place) = if same {
        ("", " ".repeat(folder))
    } else {
        (s.agent, format!("{place}{pad}"))
    };
    let age = s.updated_at.map_or_else(String::new, |t| age(t, state.now));
    let messages = s.messages.map_or_else(String::new, |n| n.to_string());
    let title = s
        .title
        .as_deref()
        .map_or_else(|| text::shown(&s.id), |t| cells::first_line(t, 200));
    let mut spans = vec![
        Span::styled(format!(" {agent:<10} "), theme[Role::Accent]),
        Span::raw(place),
        Span::styled(format!("  {age:>4}  {messages:>5}  "), theme[Role::Dim]),
    ];
    if s.live {
        spans.push(Span::styled("● ", theme[Role::Live]));
    }
    let used: usize = spans.iter().map(Span::width).sum();
    spans.push(Span::raw(cells::clip(&title, columns.saturating_sub(used + 1))));
    Line::from(spans)
}
