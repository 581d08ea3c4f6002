//! The plan of a rewind: what will happen, what is lost, what stands in the way, and how to say yes.

use ratatui::buffer::Buffer;
use ratatui::text::{Line, Span};

use super::{cells, files, log};
use crate::rewind::{Blocker, Plan, Reach};
use crate::text;
use crate::timeline::CheckpointState;
use crate::tui::backend::{Direction, StateRef, Writing};
use crate::tui::keymap::Action;
use crate::tui::layout;
use crate::tui::state::{Confirm, Overlay, PlanBox, State, Verb, confirm};
use crate::tui::theme::Role;
use crate::tui::update::left_away;

/// The title, and how many paths change.
pub fn title(shown: &PlanBox) -> (String, String) {
    let plan = shown.load.ready();
    let words = plan.map(|p| text::shown(&p.target_words)).unwrap_or_default();
    let title = match (&shown.verb, plan) {
        (Verb::Rewind(_), None) => "Rewind".to_owned(),
        (Verb::Rewind(_), Some(_)) => format!("Rewind to {words}?"),
        (Verb::Resend(_), None) => "Send again".to_owned(),
        (Verb::Resend(_), Some(_)) => format!("Go back to {words}, and send the message?"),
        (Verb::Reverse(Direction::Undo, None), _) => "Undo".to_owned(),
        (Verb::Reverse(Direction::Redo, None), _) => "Redo".to_owned(),
        (Verb::Reverse(Direction::Undo, Some(op)), _) => format!("Undo the {}?", log::kind_word(op.kind)),
        (Verb::Reverse(Direction::Redo, Some(_)), _) => "Redo what was undone?".to_owned(),
    };
    let count = plan.map_or_else(String::new, |p| text::count(p.changes.len() as u64, "path"));
    (title, count)
}

/// The lines above the changed paths.
fn head(state: &State, over: &Overlay, shown: &PlanBox, plan: &Plan) -> Vec<Line<'static>> {
    let theme = &state.theme;
    let columns = layout::text_columns(state, over);
    let mut lines = Vec::new();
    let mut push = |text: &str, role: Role| {
        lines.extend(
            cells::wrap(text, columns)
                .into_iter()
                .map(|l| Line::styled(l, theme[role])),
        );
    };
    if let Verb::Reverse(_, Some(op)) = &shown.verb {
        let words = op.message.as_deref().map(text::shown).unwrap_or_default();
        let time = op.time.with_timezone(&state.offset).format("%H:%M:%S");
        push(
            &format!(
                "{}: {words}, at {time}, {}",
                log::kind_word(op.kind),
                text::shown(&op.id)
            ),
            Role::Text,
        );
        push("", Role::Text);
    }
    if let Some(why) = late(state, &shown.verb) {
        push(&format!("! the checkpoint was taken late{why}"), Role::Warn);
    }
    let stops = plan.blockers.iter().filter(|b| b.stops);
    for blocker in stops {
        push(&format!("✗ {}", blocker_words(blocker)), Role::Bad);
    }
    if !plan.yours.is_empty() {
        let n = plan.yours.len();
        let text = if n == 1 {
            "1 path is your own edit".to_owned()
        } else {
            format!("{n} paths are your own edits")
        };
        push(&format!("! {text}, not the agent's: taken back too"), Role::Yours);
    }
    for blocker in plan.blockers.iter().filter(|b| !b.stops && !bystanders(b)) {
        push(&format!("! {}", blocker_words(blocker)), Role::Warn);
    }
    for line in &plan.not_covered {
        push(
            &format!("! not covered, stays as it is: {}", text::shown(line)),
            Role::Warn,
        );
    }
    for step in &plan.steps {
        push(&format!("· {}", text::shown(step)), Role::Dim);
    }
    if let Some(words) = chat_words(plan) {
        push(&format!("· {words}"), Role::Dim);
    }
    if let Verb::Resend(writing) = &shown.verb {
        push(&format!("· {}", sending(state, writing, plan)), Role::Dim);
        if plan.chat == "kept" {
            push(TOO_LATE, Role::Bad);
        }
    }
    push("", Role::Text);
    if !plan.packages.is_empty() {
        let line = format!("Packages since then, taken back: {}", plan.packages.line());
        push(&line, Role::Accent);
    }
    if plan.reach == Reach::Chat {
        push("No file is changed.", Role::Text);
    } else if plan.changes.is_empty() {
        push(
            "The files are as they were then: nothing to take back.",
            Role::Text,
        );
    } else {
        push("Changed since then, all taken back:", Role::Title);
    }
    lines
}

/// What becomes of the conversation, where no step says it.
fn chat_words(plan: &Plan) -> Option<String> {
    let told = || plan.steps.iter().any(|s| s.contains("conversation"));
    let words = match (plan.chat, &plan.chat_reason) {
        ("kept", Some(why)) => format!("the conversation is kept as it is: {}", text::shown(why)),
        ("kept", None) => "the conversation is kept as it is".to_owned(),
        _ if told() => return None,
        ("rewound", _) if plan.reach == Reach::Chat => {
            "the conversation goes back, the files stay".to_owned()
        }
        ("rewound", _) => "the conversation goes back too".to_owned(),
        ("forked", _) => "the conversation goes on in a fork".to_owned(),
        _ => return None,
    };
    Some(words)
}

/// Why nothing is sent where the conversation stays.
const TOO_LATE: &str = "✗ the message would come last of all, so it is not sent. To go back with the files alone, and \
    send it in the agent: Esc, Esc, then r; what you wrote is kept.";

/// What is sent, in one line.
fn sending(state: &State, writing: &Writing, plan: &Plan) -> String {
    let rows = state.open.as_ref().map_or(&[][..], |o| o.rows());
    let old = rows
        .iter()
        .rfind(|r| r.id == writing.row)
        .map(|r| r.text.as_str());
    let what = if old == Some(&*writing.text) {
        "send the same message again"
    } else {
        "send the new text"
    };
    let left = left_away(&writing.keep);
    let left = if left.is_empty() {
        left
    } else {
        format!(", {left}")
    };
    let who = if plan.sends {
        ""
    } else {
        "then offer the agent's own command to "
    };
    let line = first_changed(old.unwrap_or_default(), &writing.text);
    format!("{who}{what}{left}: {}", cells::first_line(line, 60))
}

/// The first line of a text that is another one than before, from there on; all of it where none is.
fn first_changed<'a>(old: &str, new: &'a str) -> &'a str {
    let same = old
        .split('\n')
        .zip(new.split('\n'))
        .take_while(|(a, b)| a == b)
        .map(|(_, b)| b.len() + 1)
        .sum();
    new.get(same..)
        .filter(|rest| !rest.trim().is_empty())
        .unwrap_or(new)
}

/// Programs that are left alone are no warning.
fn bystanders(blocker: &Blocker) -> bool {
    blocker.kind == "cwd" && !blocker.stops
}

/// The lines below the changed paths.
fn tail(state: &State, over: &Overlay, plan: &Plan) -> Vec<Line<'static>> {
    let columns = layout::text_columns(state, over);
    let told = plan.blockers.iter().filter(|b| bystanders(b));
    let lines = told.flat_map(|b| cells::wrap(&text::shown(&b.what), columns));
    let mut lines: Vec<Line<'static>> = lines.map(|l| Line::styled(l, state.theme[Role::Dim])).collect();
    if !lines.is_empty() {
        lines.insert(0, Line::default());
    }
    lines
}

/// If the message's checkpoint was taken after the agent had begun: why, or how much had changed.
fn late(state: &State, verb: &Verb) -> Option<String> {
    let (Verb::Rewind(StateRef::Before(id)) | Verb::Resend(Writing { row: id, .. })) = verb else {
        return None;
    };
    let row = state.open.as_ref()?.rows().iter().rfind(|r| r.id == *id)?;
    let late = row
        .checkpoint
        .as_ref()
        .filter(|c| c.state == CheckpointState::Late)?;
    Some(
        late.reason
            .as_deref()
            .map(|r| format!(": {}", text::shown(r)))
            .unwrap_or_default(),
    )
}

fn blocker_words(blocker: &Blocker) -> String {
    let pid = blocker.pid.map(|p| format!(" (process {p})")).unwrap_or_default();
    format!("{}{pid}", text::shown(&blocker.what))
}

/// How many lines scroll.
pub fn length(state: &State, over: &Overlay, shown: &PlanBox) -> usize {
    shown.load.ready().map_or(0, |plan| {
        head(state, over, shown, plan).len() + plan.changes.len() + tail(state, over, plan).len()
    })
}

/// The box.
pub fn draw(buf: &mut Buffer, state: &State, over: &Overlay, shown: &PlanBox) {
    let area = layout::scrolled(state, over);
    let Some(plan) = shown.load.ready() else {
        let line = Line::styled("comparing; nothing is changed yet …", state.theme[Role::Dim]);
        cells::put(buf, cells::line_of(area, 0), &line);
        return;
    };
    let head = head(state, over, shown, plan);
    let tail = tail(state, over, plan);
    let below = head.len() + plan.changes.len();
    let total = below + tail.len();
    let top = shown.top.min(total.saturating_sub(usize::from(area.height)));
    for n in 0..usize::from(area.height) {
        let at = cells::line_of(area, n);
        let place = top + n;
        if let Some(line) = head.get(place).or_else(|| tail.get(place.checked_sub(below)?)) {
            cells::put(buf, at, line);
        } else if let Some(change) = plan.changes.get(place - head.len()) {
            let yours = shown.yours.contains(&change.path)
                || change
                    .from
                    .as_ref()
                    .is_some_and(|from| shown.yours.contains(from));
            let tag = yours.then_some(("yours", Role::Yours));
            let (left, right) = files::change_row(state, change, usize::from(at.width), tag);
            cells::row(buf, at, left, right, None);
        }
    }
    super::more(buf, state, over, top, total);
    let inside = layout::inside(layout::overlay(state, over));
    let last = usize::from(inside.height).saturating_sub(1);
    cells::put(buf, cells::line_of(inside, last), &question(state, shown, plan));
}

/// How to say yes; No is always the other keys.
fn question(state: &State, shown: &PlanBox, plan: &Plan) -> Line<'static> {
    let theme = &state.theme;
    let key = |text: &str| Span::styled(text.to_owned(), theme[Role::Key]);
    let dim = |text: String| Span::styled(text, theme[Role::Dim]);
    let word = shown.verb.word();
    let does = match &shown.verb {
        Verb::Resend(_) if !plan.sends => "go back, then offer the command",
        _ => word,
    };
    let mut spans = Vec::new();
    match confirm(&shown.verb, plan) {
        Confirm::Key => {
            spans.extend([
                key(state.keymap.key_of(Action::Confirm)),
                Span::raw(format!(" {does}   ")),
            ]);
        }
        Confirm::Word => {
            spans.extend([
                Span::raw("type "),
                Span::styled(word, theme[Role::Yours]),
                Span::raw(": "),
                Span::styled(shown.typed.clone(), theme[Role::Title]),
                Span::styled("▏  ", theme[Role::Accent]),
            ]);
        }
        Confirm::Nothing => {}
        Confirm::Refused => spans.push(Span::styled("this cannot be done now   ", theme[Role::Bad])),
    }
    if !matches!(shown.verb, Verb::Reverse(..)) && (plan.chat != "kept" || shown.reach != Reach::Auto) {
        spans.extend([
            key(state.keymap.key_of(Action::Reach)),
            dim(format!(" {}   ", reach_word(shown.reach))),
        ]);
    }
    spans.extend([
        key(state.keymap.key_of(Action::Close)),
        dim(" no, leave everything".to_owned()),
    ]);
    if shown.early {
        spans.push(Span::styled(
            "   too early: look, pause, then press it",
            theme[Role::Warn],
        ));
    }
    Line::from(spans)
}

fn reach_word(reach: Reach) -> &'static str {
    match reach {
        Reach::Auto | Reach::Both => "files and chat",
        Reach::Files => "files alone",
        Reach::Chat => "chat alone",
    }
}

#[cfg(test)]
mod tests {
    use super::first_changed;

    #[test]
    fn the_line_that_is_another_one_is_shown() {
        for (old, new, want) in [
            ("one\ntwo\nthree", "one\nTWO\nthree", "TWO\nthree"),
            ("one", "one\nmore", "more"),
            ("one\ntwo", "One\ntwo", "One\ntwo"),
            ("one\ntwo", "one", "one"),
            ("one", "one\n \n", "one\n \n"),
            ("same", "same", "same"),
            ("", "new", "new"),
        ] {
            assert_eq!(first_changed(old, new), want, "{old:?} {new:?}");
        }
    }
}
