//! The result of a rewind. It is called done only if the check after it found no difference.

use ratatui::buffer::Buffer;
use ratatui::text::{Line, Span};

use super::cells;
use crate::failure::Kind;
use crate::rewind::AS_BEFORE;
use crate::rewind::Outcome;
use crate::text;
use crate::tui::backend::{Direction, Failure, Unsent};
use crate::tui::keymap::Action;
use crate::tui::layout;
use crate::tui::state::{Ended, Overlay, State, Verb};
use crate::tui::theme::Role;

/// The title.
pub fn title(ended: &Ended) -> String {
    let what = match ended.verb {
        Verb::Rewind(_) | Verb::Resend(_) => "Rewind",
        Verb::Reverse(Direction::Undo, _) => "Undo",
        Verb::Reverse(Direction::Redo, _) => "Redo",
    };
    match &ended.result {
        Ok(outcome) if outcome.resent => "Sent".to_owned(),
        Ok(_) if ended.unsent.is_some() => "Rewind done, message not sent".to_owned(),
        Ok(outcome) if outcome.verified => format!("{what} done"),
        Ok(_) => format!("{what} not verified"),
        Err(failure) if failure.kind == Kind::Cancelled => format!("{what} stopped"),
        Err(_) => format!("{what} failed"),
    }
}

/// All lines of it.
pub fn lines(state: &State, over: &Overlay, ended: &Ended) -> Vec<Line<'static>> {
    let columns = layout::text_columns(state, over);
    let mut lines = vec![Line::default()];
    match &ended.result {
        Ok(outcome) => done(state, ended, outcome, columns, &mut lines),
        Err(failure) => {
            broken(state, failure, columns, &mut lines);
            if let Verb::Resend(_) = ended.verb {
                let key = state.keymap.key_of(Action::Edit);
                let kept = format!("The message was not sent; it is kept: {key} on it offers it again.");
                lines.push(Line::default());
                push(&mut lines, &kept, columns, state.theme[Role::Text]);
            }
        }
    }
    lines
}

fn push(lines: &mut Vec<Line<'static>>, text: &str, columns: usize, style: ratatui::style::Style) {
    lines.extend(
        cells::wrap(text, columns)
            .into_iter()
            .map(|l| Line::styled(l, style)),
    );
}

fn done(state: &State, ended: &Ended, outcome: &Outcome, columns: usize, lines: &mut Vec<Line<'static>>) {
    let theme = &state.theme;
    let words = &ended.words;
    if outcome.verified {
        push(
            lines,
            &format!("The files are as they were: {words}."),
            columns,
            theme[Role::Ok],
        );
        let verb = if ended.paths == 1 { "was" } else { "were" };
        let checked = format!(
            "{} {verb} taken back; the check after it found no difference.",
            text::count(ended.paths as u64, "path")
        );
        push(lines, &checked, columns, theme[Role::Text]);
    } else {
        let text = format!("Files were restored ({words}), but the check after it did not confirm it.");
        push(lines, &text, columns, theme[Role::Bad]);
    }
    let chat = match outcome.chat {
        "kept" => "The conversation was kept as it is.",
        "rewound" => "The conversation went back too.",
        "forked" => "The conversation goes on in a fork.",
        _ => "",
    };
    push(lines, chat, columns, theme[Role::Dim]);
    for c in &outcome.containers {
        let changed = c
            .changed
            .map_or_else(String::new, |n| format!(", {} changed", text::count(n, "path")));
        let told = format!(
            "Container {} went back too{changed}; the check of its files found no difference.",
            text::shown(&c.name)
        );
        push(lines, &told, columns, theme[Role::Text]);
    }
    if let Some(unsent) = &ended.unsent {
        lines.push(Line::default());
        not_sent(state, unsent, columns, lines);
    }
    if !outcome.notes.is_empty() {
        lines.push(Line::default());
    }
    for note in &outcome.notes {
        push(lines, &text::shown(note), columns, theme[Role::Warn]);
    }
    lines.push(Line::default());
    let safety = format!(
        "The state before is kept as {}.",
        text::shown(outcome.safety.as_str())
    );
    push(lines, &safety, columns, theme[Role::Dim]);
}

/// Why the message was not sent, where it is kept, and the command that sends it.
fn not_sent(state: &State, unsent: &Unsent, columns: usize, lines: &mut Vec<Line<'static>>) {
    for why in &unsent.why {
        push(lines, &text::shown(why), columns, state.theme[Role::Warn]);
    }
    let kept = format!("It is kept in {}.", super::path(state, &unsent.kept));
    push(lines, &kept, columns, state.theme[Role::Text]);
    if let Some(line) = &unsent.line {
        push(
            lines,
            "The agent's own command sends it:",
            columns,
            state.theme[Role::Text],
        );
        push(lines, line, columns, state.theme[Role::Title]);
    }
}

/// The keys that do something about a message that was not sent.
fn offers(state: &State, unsent: &Unsent) -> Vec<(String, &'static str)> {
    let key = |action| state.keymap.key_of(action).to_owned();
    let mut offers = Vec::new();
    if unsent.command.is_some() {
        offers.push((key(Action::RunCommand), "run it here"));
        if state.tmux {
            offers.push((key(Action::WindowCommand), "in a tmux window"));
        }
    }
    if unsent.line.is_some() {
        offers.push((key(Action::CopyCommand), "copy it"));
    }
    offers
}

fn broken(state: &State, failure: &Failure, columns: usize, lines: &mut Vec<Line<'static>>) {
    if failure.kind == Kind::Cancelled {
        push(
            lines,
            "Stopped: everything is as it was.",
            columns,
            state.theme[Role::Text],
        );
        let restarted = failure.message.rsplit_once(AS_BEFORE).map(|(_, told)| told);
        for told in restarted
            .unwrap_or_default()
            .split("; ")
            .filter(|t| !t.is_empty())
        {
            push(lines, &format!("But {told}."), columns, state.theme[Role::Warn]);
        }
        return;
    }
    push(lines, &failure.message, columns, state.theme[Role::Bad]);
    if let Some(hint) = &failure.hint {
        lines.push(Line::default());
        push(lines, hint, columns, state.theme[Role::Warn]);
    }
}

/// The box.
pub fn draw(buf: &mut Buffer, state: &State, over: &Overlay, ended: &Ended) {
    super::lines(buf, state, over, &lines(state, over, ended), ended.top);
    let inside = layout::inside(layout::overlay(state, over));
    let theme = &state.theme;
    let mut spans = Vec::new();
    for (key, word) in ended.unsent.iter().flat_map(|u| offers(state, u)) {
        spans.push(Span::styled(key, theme[Role::Key]));
        spans.push(Span::styled(format!(" {word}   "), theme[Role::Dim]));
    }
    if ended.result.is_ok() {
        let (key, word) = match ended.verb {
            Verb::Reverse(Direction::Undo, _) => (state.keymap.key_of(Action::Redo), "redo"),
            _ => (state.keymap.key_of(Action::Undo), "undo"),
        };
        spans.push(Span::styled(key.to_owned(), theme[Role::Key]));
        spans.push(Span::styled(format!(" {word}   "), theme[Role::Dim]));
    }
    spans.push(Span::styled(
        state.keymap.key_of(Action::Close).to_owned(),
        theme[Role::Key],
    ));
    spans.push(Span::styled(" close", theme[Role::Dim]));
    cells::put(
        buf,
        cells::line_of(inside, usize::from(inside.height).saturating_sub(1)),
        &Line::from(spans),
    );
}
