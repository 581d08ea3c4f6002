//! What is on the screen: a pure function of the state, one file a pane. Only rows that can be seen are laid
//! out. Foreign text is made harmless before it becomes a span.

pub mod cells;
mod chrome;
mod diff;
mod edit;
mod error;
mod files;
mod help;
mod log;
mod message;
mod outcome;
mod picker;
mod plan;
mod running;
mod start;
mod timeline;
mod track;

use std::path::Path;

use ratatui::Frame;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Style;
use ratatui::text::Line;
use ratatui::widgets::{Block, BorderType, Clear, Widget};

pub use self::log::kind_word;
pub use self::timeline::name_of;
use super::layout;
use super::state::{EditBox, Overlay, Screen, State};
use super::theme::Role;
use crate::engine::Counts;
use crate::text;
use crate::timeline::CheckpointState;

/// The pictures of the spinner.
const SPINNER: [&str; 10] = ["⠋", "⠙", "⠹", "⠸", "⠼", "⠴", "⠦", "⠧", "⠇", "⠏"];

/// Draws everything.
pub fn draw(frame: &mut Frame, state: &State) {
    let full = frame.area().intersection(layout::screen(state));
    render(frame.buffer_mut(), full, state);
}

/// Draws everything into a buffer.
pub fn render(buf: &mut Buffer, full: Rect, state: &State) {
    buf.set_style(full, state.theme[Role::Text]);
    if layout::too_small(state) {
        cells::put(buf, cells::line_of(full, 0), &Line::raw("too small"));
        return;
    }
    let areas = layout::areas(state);
    chrome::header(buf, areas.header, state);
    match state.screen {
        Screen::Start => start::draw(buf, areas.timeline, state),
        Screen::Timeline => {
            timeline::draw(buf, areas.timeline, state);
            timeline::detail(buf, areas.detail, state);
            files::draw(buf, areas.files, state);
            diff::draw(buf, areas.diff, state);
            chrome::divider(buf, &areas, state);
        }
    }
    for over in &state.overlays {
        overlay(buf, full, state, over);
    }
    chrome::footer(buf, areas.footer, state);
}

fn overlay(buf: &mut Buffer, full: Rect, state: &State, over: &Overlay) {
    let area = layout::overlay(state, over).intersection(full);
    // what lies below stays in sight, but quiet
    for cell in &mut buf.content {
        cell.set_style(Style::reset()).set_style(state.theme[Role::Dim]);
    }
    Clear.render(area, buf);
    buf.set_style(area, state.theme[Role::Text]);
    let (title, remark) = match over {
        Overlay::Help(_) => ("Help".to_owned(), String::new()),
        Overlay::Message(id, _) => message::title(state, id),
        Overlay::Error(..) => ("That did not work".to_owned(), String::new()),
        Overlay::Notices(_) => ("Not read".to_owned(), String::new()),
        Overlay::Plan(plan) => plan::title(plan),
        Overlay::Edit(shown) => edit::title(shown),
        Overlay::Track(shown) => (track::title(state, shown), String::new()),
        Overlay::Running(running) => (running::title(running), String::new()),
        Overlay::Ended(ended) => (outcome::title(ended), String::new()),
        Overlay::Log(load, _) => log::title(load),
        Overlay::Picker(picker) => picker::title(picker),
    };
    let columns = usize::from(area.width.saturating_sub(4));
    let title = cells::clip(&title, columns);
    let mut block = Block::bordered()
        .border_type(BorderType::Rounded)
        .border_style(state.theme[Role::Rule])
        .title_top(Line::styled(format!(" {title} "), state.theme[Role::TitleFocus]));
    if !remark.is_empty() && cells::width(&title) + cells::width(&remark) + 6 < columns {
        block = block.title_top(Line::styled(format!(" {remark} "), state.theme[Role::Dim]).right_aligned());
    }
    block.render(area, buf);
    match over {
        Overlay::Help(top) => lines(buf, state, over, &help::lines(state, over), *top),
        Overlay::Message(id, top) => lines(buf, state, over, &message::lines(state, over, id), *top),
        Overlay::Notices(top) => lines(buf, state, over, &error::notices(state, over), *top),
        Overlay::Error(failure, top) => lines(buf, state, over, &error::lines(state, over, failure), *top),
        Overlay::Plan(plan) => plan::draw(buf, state, over, plan),
        Overlay::Edit(shown) => edit::draw(buf, state, over, shown),
        Overlay::Track(shown) => track::draw(buf, state, over, shown),
        Overlay::Running(running) => running::draw(buf, state, over, running),
        Overlay::Ended(ended) => outcome::draw(buf, state, over, ended),
        Overlay::Log(load, at) => log::draw(buf, state, over, load, *at),
        Overlay::Picker(picker) => picker::draw(buf, state, over, picker),
    }
}

/// Draws the part of long text that is scrolled to, with a mark where there is more.
fn lines(buf: &mut Buffer, state: &State, over: &Overlay, lines: &[Line], top: usize) {
    let area = layout::scrolled(state, over).intersection(buf.area);
    let height = usize::from(area.height);
    let top = top.min(lines.len().saturating_sub(height));
    for (n, line) in lines.iter().skip(top).take(height).enumerate() {
        cells::put(buf, cells::line_of(area, n), line);
    }
    more(buf, state, over, top, lines.len());
}

/// Says in the border how much is above and below.
fn more(buf: &mut Buffer, state: &State, over: &Overlay, top: usize, total: usize) {
    let height = usize::from(layout::scrolled(state, over).height);
    let area = layout::overlay(state, over).intersection(buf.area);
    if total <= height || area.width < 24 || area.height < 2 {
        return;
    }
    let text = format!(" {}-{} of {total} ", top + 1, (top + height).min(total));
    let wide = cells::width(&text) as u16;
    let x = area.right().saturating_sub(wide + 2).max(area.x);
    let at = Rect::new(x, area.bottom() - 1, wide.min(area.width), 1);
    cells::put(buf, at, &Line::styled(text, state.theme[Role::Dim]));
}

/// How many lines a box has that scrolls as a whole.
pub fn box_lines(state: &State, over: &Overlay) -> usize {
    match over {
        Overlay::Help(_) => help::lines(state, over).len(),
        Overlay::Message(id, _) => message::lines(state, over, id).len(),
        Overlay::Error(failure, _) => error::lines(state, over, failure).len(),
        Overlay::Notices(_) => error::notices(state, over).len(),
        Overlay::Plan(plan) => plan::length(state, over, plan),
        Overlay::Track(shown) => track::lines(state, over, shown).len(),
        Overlay::Ended(ended) => outcome::lines(state, over, ended).len(),
        Overlay::Running(_) | Overlay::Log(..) | Overlay::Picker(_) | Overlay::Edit(_) => 0,
    }
}

/// How many lines stand below the text of a message that is edited.
pub fn below_text(state: &State, columns: usize, shown: &EditBox) -> usize {
    edit::below(state, columns, shown).len()
}

/// The state of a checkpoint in words.
pub fn checkpoint_words(state: CheckpointState) -> &'static str {
    match state {
        CheckpointState::Ok => "checkpoint",
        CheckpointState::None => "no checkpoint",
        CheckpointState::Failed => "the checkpoint failed",
        CheckpointState::Damaged => "the checkpoint is damaged",
        CheckpointState::Thinned => "the checkpoint was thinned out",
        CheckpointState::Late => "late checkpoint",
        CheckpointState::Incomplete => "the checkpoint is incomplete",
    }
}

/// The mark of a checkpoint in the timeline.
fn checkpoint_mark(state: CheckpointState) -> (&'static str, Role) {
    match state {
        CheckpointState::Ok => ("●", Role::Ok),
        CheckpointState::None => ("○", Role::Dim),
        CheckpointState::Failed => ("✗", Role::Bad),
        CheckpointState::Damaged => ("!", Role::Bad),
        CheckpointState::Thinned => ("·", Role::Dim),
        CheckpointState::Late => ("◐", Role::Warn),
        CheckpointState::Incomplete => ("◌", Role::Bad),
    }
}

/// The signs of a count, each with its colour: `+2 ~1 -3 >1 *4`.
fn count_signs(counts: &Counts) -> Vec<(String, Role)> {
    [
        ('+', counts.added, Role::Added),
        ('~', counts.modified, Role::Modified),
        ('-', counts.deleted, Role::Deleted),
        ('>', counts.renamed, Role::Renamed),
        ('*', counts.other, Role::Other),
    ]
    .into_iter()
    .filter(|(_, n, _)| *n > 0)
    .map(|(sign, n, role)| (format!("{sign}{}", short(n)), role))
    .collect()
}

/// A number in at most four columns.
fn short(n: u64) -> String {
    match n {
        0..=9999 => n.to_string(),
        10_000..=999_999 => format!("{}k", n / 1000),
        _ => format!("{}M", n / 1_000_000),
    }
}

/// A path as the screens show it: harmless, the home folder as `~`.
fn path(state: &State, path: &Path) -> String {
    if let Some(rest) = state
        .home
        .as_deref()
        .and_then(|home| path.strip_prefix(home).ok())
    {
        let rest = text::shown_path(rest);
        return if rest.is_empty() {
            "~".to_owned()
        } else {
            format!("~/{rest}")
        };
    }
    text::shown_path(path)
}

/// True if the open conversation was read and its folder is not tracked.
fn untracked(state: &State) -> bool {
    let timeline = state.open.as_ref().and_then(|o| o.timeline.as_ref());
    timeline.is_some_and(|t| t.sandbox.is_none())
}

/// The picture of the spinner, if it turns.
fn spinner(state: &State) -> &'static str {
    state.spinner.map_or(" ", |n| SPINNER[n % SPINNER.len()])
}
