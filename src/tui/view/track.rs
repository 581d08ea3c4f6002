//! Tracking a folder: what it will do, how far it is, what to do next.

use ratatui::buffer::Buffer;
use ratatui::style::Style;
use ratatui::text::{Line, Span};

use super::{cells, path, running, spinner};
use crate::rewind::offer::{Offer, VaultKind};
use crate::text;
use crate::tui::backend::{Failure, TrackedHere};
use crate::tui::keymap::Action;
use crate::tui::layout;
use crate::tui::state::{Overlay, State, TrackBox, TrackStage};
use crate::tui::theme::Role;

/// The title.
pub fn title(state: &State, shown: &TrackBox) -> String {
    let folder = path(state, &shown.dir);
    match &shown.stage {
        TrackStage::Offer(load) if matches!(load.value, Some(((), Err(_)))) => {
            format!("{folder} is not tracked")
        }
        TrackStage::Offer(_) => format!("Keep checkpoints of {folder}?"),
        TrackStage::Working(..) => format!("Tracking {folder}"),
        TrackStage::Ended(Ok(_)) => format!("{folder} is tracked"),
        TrackStage::Ended(Err(_)) => format!("{folder} was not tracked"),
    }
}

/// All lines but the last one with the keys.
pub fn lines(state: &State, over: &Overlay, shown: &TrackBox) -> Vec<Line<'static>> {
    let mut page = Page {
        lines: Vec::new(),
        columns: layout::text_columns(state, over),
    };
    match &shown.stage {
        TrackStage::Offer(load) => match &load.value {
            None => page.push("measuring; nothing is changed yet …", state.theme[Role::Dim]),
            Some(((), Err(failure))) => page.failure(state, failure),
            Some(((), Ok(offer))) => page.offer(state, offer),
        },
        TrackStage::Working(_, step) => page.working(state, *step),
        TrackStage::Ended(Err(failure)) => page.failure(state, failure),
        TrackStage::Ended(Ok(done)) => page.done(state, done),
    }
    page.lines
}

struct Page {
    lines: Vec<Line<'static>>,
    columns: usize,
}

impl Page {
    fn push(&mut self, text: &str, style: Style) {
        let wrapped = cells::wrap(text, self.columns);
        self.lines
            .extend(wrapped.into_iter().map(|l| Line::styled(l, style)));
    }

    fn failure(&mut self, state: &State, failure: &Failure) {
        self.push(&failure.message, state.theme[Role::Bad]);
        if let Some(hint) = &failure.hint {
            self.push("", state.theme[Role::Text]);
            self.push(hint, state.theme[Role::Warn]);
        }
    }

    fn offer(&mut self, state: &State, offer: &Offer) {
        let theme = &state.theme;
        let plan = &offer.plan;
        let what = match offer.wish.vault {
            VaultKind::Btrfs => {
                "Checkpoints will be snapshots: taken in milliseconds, out of the agent's reach."
            }
            VaultKind::Copy => "Checkpoints will be copies: nothing is moved, and no root is needed.",
        };
        self.push(what, theme[Role::Title]);
        let size = format!(
            "{} now, {}",
            text::count(plan.entries, "file or folder").replace("file or folders", "files and folders"),
            text::size(plan.bytes)
        );
        self.push(&size, theme[Role::Dim]);
        self.push("", theme[Role::Text]);
        for (n, step) in plan.steps.iter().enumerate() {
            self.push(&format!("{}. {}", n + 1, text::shown(step)), theme[Role::Text]);
        }
        let told = plan.blockers.iter().filter(|b| b.stops || b.kind != "cwd");
        for (n, blocker) in told.enumerate() {
            if n == 0 {
                self.push("", theme[Role::Text]);
            }
            let pid = blocker.pid.map(|p| format!(" (process {p})")).unwrap_or_default();
            let (mark, role) = if blocker.stops {
                ("✗ in the way:", Role::Bad)
            } else {
                ("! note:", Role::Warn)
            };
            self.push(
                &format!("{mark} {}{pid}", text::shown(&blocker.what)),
                theme[role],
            );
        }
    }

    fn working(&mut self, state: &State, step: Option<(&'static str, u64, u64)>) {
        let theme = &state.theme;
        let (what, done, total) = step.unwrap_or(("beginning", 0, 0));
        let number = match (done, total) {
            (0, 0) => String::new(),
            (done, 0) => done.to_string(),
            (done, total) => format!("{done} of {total}"),
        };
        self.lines.push(Line::default());
        self.lines.push(Line::from(vec![
            Span::styled(format!("{} ", spinner(state)), theme[Role::Accent]),
            Span::raw(format!("{what:<14}")),
            running::bar(done, total, self.columns.saturating_sub(40), theme[Role::Accent]),
            Span::styled(format!("  {number}"), theme[Role::Dim]),
        ]));
    }

    fn done(&mut self, state: &State, done: &TrackedHere) {
        let theme = &state.theme;
        let first = format!(
            "Tracked as {}; the first checkpoint is taken.",
            text::shown(&done.sandbox)
        );
        self.push(&first, theme[Role::Ok]);
        for hint in &done.hints {
            self.push(&text::shown(hint), theme[Role::Warn]);
        }
        self.push("", theme[Role::Text]);
        self.push(
            "Next, for a checkpoint at each message, one of:",
            theme[Role::Title],
        );
        for (command, what) in &done.next {
            self.push(&format!("  {}", text::shown(command)), theme[Role::Key]);
            self.push(&format!("      {what}"), theme[Role::Dim]);
        }
    }
}

/// The box.
pub fn draw(buf: &mut Buffer, state: &State, over: &Overlay, shown: &TrackBox) {
    super::lines(buf, state, over, &lines(state, over, shown), shown.top);
    let inside = layout::inside(layout::overlay(state, over));
    let last = usize::from(inside.height).saturating_sub(1);
    cells::put(buf, cells::line_of(inside, last), &question(state, shown));
}

fn question(state: &State, shown: &TrackBox) -> Line<'static> {
    let theme = &state.theme;
    let mut spans = Vec::new();
    let mut key = |action, words: &str| {
        let name = state.keymap.key_of(action).to_owned();
        spans.push(Span::styled(name, theme[Role::Key]));
        spans.push(Span::styled(format!(" {words}   "), theme[Role::Dim]));
    };
    match &shown.stage {
        TrackStage::Offer(load) => {
            let stopped = load.ready().map(|o| o.plan.blockers.iter().any(|b| b.stops));
            if stopped == Some(false) {
                key(Action::Confirm, "track it");
            }
            if load.value.is_some() {
                key(
                    Action::OtherVault,
                    match shown.vault {
                        VaultKind::Btrfs => "copies instead: nothing is moved",
                        VaultKind::Copy => "snapshots instead (btrfs)",
                    },
                );
            }
            key(Action::Close, "no");
            if stopped == Some(true) {
                spans.insert(0, Span::styled("this cannot be done now   ", theme[Role::Bad]));
            }
        }
        TrackStage::Working(..) => key(Action::Close, "stop, and leave the folder as it was"),
        TrackStage::Ended(_) => key(Action::Close, "close"),
    }
    Line::from(spans)
}
