//! The messages and their checkpoints.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::text::{Line, Span};

use super::{cells, checkpoint_mark, checkpoint_words, count_signs, untracked};
use crate::conversation::MessageKind;
use crate::engine::Counts;
use crate::text;
use crate::timeline::Row;
use crate::tui::keymap::Action;
use crate::tui::layout;
use crate::tui::state::{Mark, Open, Pane, State};
use crate::tui::theme::{Role, Theme};
use crate::tui::update::{age, found};

/// The pane.
pub fn draw(buf: &mut Buffer, area: Rect, state: &State) {
    if area.is_empty() {
        return;
    }
    let Some(open) = &state.open else { return };
    let focused = state.focus == Pane::Timeline;
    let remark = remark(open);
    cells::title(buf, area, &state.theme, "Messages", &remark, focused);
    let content = layout::content(area);
    if open.is_empty() {
        empty(buf, content, state, open);
        return;
    }
    let digits = digits(open);
    let yours = yours_width(open, usize::from(content.height));
    for n in 0..usize::from(content.height) {
        let place = open.at.top + n;
        let Some(row) = open.row(place) else { break };
        let selected = (place == open.at.selected).then(|| {
            let role = if focused {
                Role::Selected
            } else {
                Role::SelectedDim
            };
            state.theme[role]
        });
        let line = cells::line_of(content, n);
        let right = counts(&state.theme, open.counts_of(row), usize::from(line.width), yours);
        let room = usize::from(line.width).saturating_sub(right.width() + 1);
        let left = message(state, open, row, digits, room);
        cells::row(buf, line, left, right, selected);
    }
}

fn remark(open: &Open) -> String {
    let total = open.rows().len();
    match (&open.order, &open.timeline) {
        (Some(order), _) => format!("/{} {} of {total}", text::shown(&open.filter), order.len()),
        (None, None) => String::new(),
        (None, Some(t)) if t.partial => format!("the last {total}"),
        (None, Some(t)) if !t.notices.is_empty() => format!("{total}, {} not read", t.notices.len()),
        (None, Some(_)) => total.to_string(),
    }
}

/// The columns of the numbers: the newest row on the active branch has the greatest.
fn digits(open: &Open) -> usize {
    let newest = open.rows().iter().rev().take(1000).find_map(|r| r.message);
    newest.map_or(1, |n| n.to_string().len())
}

fn message<'a>(state: &State, open: &Open, row: &'a Row, digits: usize, room: usize) -> Line<'a> {
    let theme = &state.theme;
    let dim = |role: Role| if row.active { theme[role] } else { theme[Role::Dim] };
    let (sign, role) = match &row.checkpoint {
        Some(c) => checkpoint_mark(c.state),
        None => (" ", Role::Dim),
    };
    let number = match row.message {
        Some(n) => format!(" {n:>digits$}"),
        // off the active branch: the branch's mark in place of the number
        None if row.active => format!(" {:>digits$}", "·"),
        None => format!(" {:>digits$}", "╎"),
    };
    let age = row.time.map_or_else(String::new, |t| age(t, state.now));
    let mut spans = vec![
        Span::styled(marks(open, row), theme[Role::Mark]),
        Span::styled(sign, dim(role)),
        Span::styled(number, dim(Role::Number)),
        Span::styled(format!(" {age:>3}  "), theme[Role::Dim]),
    ];
    if !row.active {
        spans.push(Span::styled(format!("b{} ", row.branch), theme[Role::Dim]));
    }
    if let Some(word) = kind(row.kind) {
        spans.push(Span::styled(format!("{word} "), theme[Role::Dim]));
    }
    if row.checkpoint.as_ref().is_some_and(|c| c.pinned) {
        spans.push(Span::styled("pin ", theme[Role::Warn]));
    }
    let used: usize = spans.iter().map(Span::width).sum();
    let mut words = cells::first_line(&row.text, room.saturating_sub(used));
    if words.is_empty() && row.pictures > 0 {
        words = pictures(row.pictures);
    }
    highlighted(
        &mut spans,
        &words,
        &open.search,
        dim(Role::Text),
        theme[Role::Match],
    );
    Line::from(spans)
}

/// Adds text with the words of the last search marked.
fn highlighted(
    spans: &mut Vec<Span<'_>>,
    text: &str,
    search: &str,
    style: ratatui::style::Style,
    hit: ratatui::style::Style,
) {
    let mut hits: Vec<_> = search.split_whitespace().filter_map(|w| found(text, w)).collect();
    hits.sort_by_key(|r| r.start);
    let mut at = 0;
    for range in hits {
        if range.start < at {
            continue;
        }
        spans.push(Span::styled(text[at..range.start].to_owned(), style));
        spans.push(Span::styled(text[range.clone()].to_owned(), style.patch(hit)));
        at = range.end;
    }
    spans.push(Span::styled(text[at..].to_owned(), style));
}

fn marks(open: &Open, row: &Row) -> String {
    let on = |m: &Option<Mark>| m.as_ref().is_some_and(|m| m.row() == Some(&row.id));
    match (on(&open.a), on(&open.b)) {
        (true, true) => "=",
        (true, false) => "a",
        (false, true) => "b",
        (false, false) => " ",
    }
    .to_owned()
}

/// A word for messages that are no plain prompt.
pub fn kind(kind: MessageKind) -> Option<&'static str> {
    match kind {
        MessageKind::Prompt => None,
        MessageKind::Queued => Some("queued"),
        MessageKind::Steer => Some("steer"),
        MessageKind::Shell => Some("$"),
        MessageKind::Command => Some("/"),
    }
}

/// "2 pictures".
pub fn pictures(n: u32) -> String {
    if n == 1 {
        "1 picture".to_owned()
    } else {
        format!("{n} pictures")
    }
}

/// The numbers of a turn, and of the time after it.
type Both = (Option<Counts>, Option<Counts>);

/// What the turn changed, then what the user changed after it; shorter where there is little room.
fn counts(theme: &Theme, counts: Both, columns: usize, yours: usize) -> Line<'static> {
    let mut spans = Vec::new();
    if let Some(turn) = counts.0.filter(|c| c.total() > 0) {
        let signs = count_signs(&turn);
        let wide: usize = signs.iter().map(|(s, _)| s.len() + 1).sum();
        if wide > columns / 3 {
            spans.push(Span::styled(
                format!("±{}", super::short(turn.total())),
                theme[Role::Modified],
            ));
        } else {
            for (n, (sign, role)) in signs.into_iter().enumerate() {
                let space = if n > 0 { " " } else { "" };
                spans.push(Span::styled(format!("{space}{sign}"), theme[role]));
            }
        }
    }
    let sign = yours_sign(counts);
    let gap = usize::from(yours > 0);
    spans.push(Span::styled(
        format!("{:gap$}{sign:<yours$} ", ""),
        theme[Role::Yours],
    ));
    Line::from(spans)
}

/// What the user changed after the turn.
fn yours_sign(counts: Both) -> String {
    match counts.1.map_or(0, |c| c.total()) {
        0 => String::new(),
        n => format!("»{}", super::short(n)),
    }
}

/// The columns of the user's own changes, so that the turns' numbers stay aligned.
fn yours_width(open: &Open, height: usize) -> usize {
    let rows = (open.at.top..open.at.top + height).map_while(|p| open.row(p));
    rows.map(|r| cells::width(&yours_sign(open.counts_of(r))))
        .max()
        .unwrap_or(0)
}

fn empty(buf: &mut Buffer, area: Rect, state: &State, open: &Open) {
    let style = state.theme[Role::Dim];
    if !open.filter.is_empty() && open.timeline.is_some() {
        cells::say(
            buf,
            area,
            style,
            &["No message has that.", "", "Esc shows all of them."],
        );
    } else if let (Some(failure), None) = (&open.gone, &open.timeline) {
        let hint = failure.hint.clone().unwrap_or_default();
        cells::say(buf, area, state.theme[Role::Bad], &[&failure.message, "", &hint]);
    } else if open.timeline.is_some() {
        let first = "No message yet.";
        let then = "The first one that you send to the agent appears here by itself.";
        let track = format!(
            "{} begins to keep checkpoints of its folder.",
            state.keymap.key_of(Action::Track)
        );
        let run = "respool run -- openhands starts the agent with a checkpoint at each.";
        let next = if untracked(state) { track.as_str() } else { run };
        cells::say(buf, area, style, &[first, "", then, next]);
    } else {
        cells::put(buf, cells::line_of(area, 0), &Line::styled("  …", style));
    }
}

/// What there is to say of the selected message.
pub fn detail(buf: &mut Buffer, area: Rect, state: &State) {
    if area.is_empty() {
        return;
    }
    let Some(open) = &state.open else { return };
    let name = open.selected().map_or_else(String::new, name_of);
    cells::title(buf, area, &state.theme, &name, "", false);
    let Some(row) = open.selected() else { return };
    let content = layout::content(area);
    for (n, line) in detail_lines(state, open, row, usize::from(content.width))
        .iter()
        .enumerate()
    {
        cells::put(buf, cells::line_of(content, n), line);
    }
}

/// "Message 3", "Message on branch 2".
pub fn name_of(row: &Row) -> String {
    match row.message {
        Some(n) => format!("Message {n}"),
        None if row.active => "Message".to_owned(),
        None => format!("Message on branch {}", row.branch),
    }
}

fn detail_lines<'a>(state: &State, open: &Open, row: &Row, columns: usize) -> Vec<Line<'a>> {
    let theme = &state.theme;
    let time = row.time.map_or_else(String::new, |t| {
        t.with_timezone(&state.offset)
            .format("%Y-%m-%d %H:%M:%S")
            .to_string()
    });
    let mut first = vec![Span::styled(format!(" {time}  "), theme[Role::Dim])];
    let mut lines = Vec::new();
    let tracked = open.timeline.as_ref().is_some_and(|t| t.sandbox.is_some());
    match &row.checkpoint {
        None if tracked => {}
        None => {
            lines.push(Line::from(first));
            let track = state.keymap.key_of(Action::Track);
            let text = format!("not tracked: {track} begins to keep checkpoints");
            let text = cells::wrap(&text, columns - 1);
            lines.extend(
                text.into_iter()
                    .map(|t| Line::styled(format!(" {t}"), theme[Role::Warn])),
            );
            return lines;
        }
        Some(c) => {
            let (_, role) = checkpoint_mark(c.state);
            let id =
                c.id.as_ref()
                    .map_or_else(String::new, |id| text::shown(id.as_str()));
            first.push(Span::styled(id, theme[role]));
            let label = c.label.as_deref().map(text::shown).unwrap_or_default();
            first.push(Span::styled(format!("  {label}"), theme[Role::Accent]));
            let why = c.reason.as_deref().map(text::shown);
            if !c.state.usable() || why.is_some() {
                let colon = if why.is_some() { ": " } else { "" };
                let why = why.unwrap_or_default();
                let text = format!("{}{colon}{why}", checkpoint_words(c.state));
                lines.push(Line::from(first));
                let text = cells::wrap(&text, columns.saturating_sub(2));
                lines.extend(
                    text.into_iter()
                        .map(|t| Line::styled(format!(" {t}"), theme[role])),
                );
                return lines;
            }
        }
    }
    lines.push(Line::from(first));
    let counts = open.counts_of(row);
    let asked = open.counts.contains_key(&row.id) || open.uncounted.contains(&row.id);
    let unknown = if asked { "not known" } else { "…" };
    lines.push(counted(theme, " the agent changed  ", counts.0, unknown));
    if let Some(packages) = open.packages_of(row) {
        let text = cells::clip(&format!(" {}", packages.line()), columns);
        lines.push(Line::styled(text, theme[Role::Accent]));
    }
    lines.push(counted(theme, " then you changed   ", counts.1, unknown));
    lines
}

fn counted<'a>(
    theme: &Theme,
    words: &'static str,
    counts: Option<Counts>,
    unknown: &'static str,
) -> Line<'a> {
    let mut spans = vec![Span::styled(words, theme[Role::Dim])];
    match counts {
        None => spans.push(Span::styled(unknown, theme[Role::Dim])),
        Some(c) if c.total() == 0 => spans.push(Span::styled("nothing", theme[Role::Dim])),
        Some(c) => {
            for (sign, role) in count_signs(&c) {
                spans.push(Span::styled(format!("{sign} "), theme[role]));
            }
        }
    }
    Line::from(spans)
}
