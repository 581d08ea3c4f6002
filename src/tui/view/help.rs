//! All keys, made from the keymap; the marks; where the files are.

use ratatui::text::{Line, Span};

use super::{cells, checkpoint_mark, checkpoint_words, path};
use crate::timeline::CheckpointState as C;
use crate::tui::keymap::{Action, Binding};
use crate::tui::layout;
use crate::tui::state::{Overlay, State};
use crate::tui::theme::Role;

/// Columns of the keys.
const KEYS: usize = 18;

/// All lines of it.
pub fn lines(state: &State, over: &Overlay) -> Vec<Line<'static>> {
    let theme = &state.theme;
    let columns = layout::text_columns(state, over).saturating_sub(KEYS + 2).max(10);
    let mut groups: Vec<&str> = Vec::new();
    for b in &state.keymap.bindings {
        if !groups.contains(&b.group.as_str()) {
            groups.push(&b.group);
        }
    }
    let mut lines = Vec::new();
    for group in groups {
        lines.push(Line::styled(group.to_owned(), theme[Role::Title]));
        for b in state.keymap.bindings.iter().filter(|b| b.group == group) {
            lines.extend(entry(state, columns, &keys(state, b), &b.help));
        }
        lines.push(Line::default());
    }
    lines.push(Line::styled("Marks in the timeline", theme[Role::Title]));
    for mark in [
        C::Ok,
        C::Late,
        C::None,
        C::Thinned,
        C::Failed,
        C::Incomplete,
        C::Damaged,
    ] {
        let (sign, role) = checkpoint_mark(mark);
        let words = match mark {
            C::Late => "late checkpoint: the agent had begun when it was taken",
            mark => checkpoint_words(mark),
        };
        lines.extend(sign_lines(state, columns, sign, role, words));
    }
    for (sign, role, words) in [
        (
            "+ ~ - > *",
            Role::Modified,
            "paths added, modified, deleted, renamed, otherwise changed in the turn",
        ),
        (
            "»3",
            Role::Yours,
            "paths changed after the turn, before the next message: yours",
        ),
        (
            "╎ b2",
            Role::Dim,
            "a message on another branch of the conversation",
        ),
        ("a b =", Role::Mark, "the marked states; both"),
    ] {
        lines.extend(sign_lines(state, columns, sign, role, words));
    }
    if !state.paths.is_empty() {
        lines.push(Line::default());
        lines.push(Line::styled("Files", theme[Role::Title]));
        for (what, where_) in &state.paths {
            lines.extend(entry(state, columns, what, &path(state, where_)));
        }
    }
    lines
}

fn keys(state: &State, binding: &Binding) -> String {
    if binding.keys.is_empty() {
        return format!("{} …", state.keymap.key_of(Action::Palette));
    }
    binding.keys.join(" ")
}

fn entry(state: &State, columns: usize, keys: &str, help: &str) -> Vec<Line<'static>> {
    sign_lines(state, columns, keys, Role::Key, help)
}

/// The sign, and beside it the words, as many lines as they take.
fn sign_lines(state: &State, columns: usize, sign: &str, role: Role, words: &str) -> Vec<Line<'static>> {
    let mut sign = sign;
    let line = |words: String| {
        let pad = KEYS.saturating_sub(cells::width(sign));
        let line = Line::from(vec![
            Span::styled(format!("  {sign}"), state.theme[role]),
            Span::raw(" ".repeat(pad.max(1))),
            Span::raw(words),
        ]);
        sign = "";
        line
    };
    cells::wrap(words, columns).into_iter().map(line).collect()
}
