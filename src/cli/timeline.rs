//! `respool timeline`.

use std::ffi::OsString;
use std::fmt::Write as _;
use std::io::IsTerminal;
use std::time::Duration;

use super::app::App;
use super::output::{Done, Failure};
use crate::engine::Counts;
use crate::failure::Kind;
use crate::sandbox::registry::Earlier;
use crate::text::{age, count, first_line, shown};
use crate::timeline::{CheckpointState, Row, Timeline};

/// How long turns are counted that were not counted before; the rows themselves wait for nothing longer.
const PATIENCE: Duration = Duration::from_secs(3);

/// Shows the messages of a conversation, each with its checkpoint.
pub fn run(app: &App, conversation: Option<&OsString>) -> Done {
    if let (Some(named), Some(with_c)) = (conversation, &app.global.conversation)
        && named != with_c
    {
        let what = "two conversations are named";
        return Err(Failure::new(Kind::Usage, what).hint("name one: respool timeline ID, or -c ID"));
    }
    let mut opened = app.opened(conversation)?;
    if let Some(site) = opened.site.take() {
        let bar = app.bar();
        let counted = app.desk.count(&site, &mut opened.timeline.rows, PATIENCE, &bar);
        let notice = match counted {
            Ok(0) => None,
            Ok(n) => Some(format!(
                "{n} older turns are not counted yet; again: respool timeline"
            )),
            Err(e) => Some(format!("changes are not counted: {e}")),
        };
        opened.timeline.notices.extend(notice);
    }
    for n in &opened.timeline.notices {
        app.out.say(format!("respool: {}", shown(n)));
    }
    app.out
        .result(&opened.timeline, || text(app, &opened.timeline, &opened.earlier))?;
    let counted = |r: &Row| !parts(r.changes.as_ref()).is_empty() || !parts(r.between.as_ref()).is_empty();
    if !app.out.json && std::io::stdout().is_terminal() && opened.timeline.rows.iter().any(counted) {
        app.out
            .say("[paths that the turn added + changed ~ deleted - renamed >]  [yours: after it, before the next message]");
    }
    Ok(())
}

fn text(app: &App, timeline: &Timeline, earlier: &[Earlier]) -> String {
    let now = chrono::Utc::now();
    let mut out = String::new();
    for row in &timeline.rows {
        let number = row.message.map_or_else(|| "   -".into(), |n| format!("{n:>4}"));
        let age = row.time.map_or_else(String::new, |t| age(t, now));
        let line = format!("{number} {age:>4}  {:<13} {}", mark(row), first_line(&row.text));
        let line = if row.active {
            line
        } else {
            app.out.paint("2", &line)
        };
        let _written = writeln!(out, "{}{}", line.trim_end(), counted(row));
    }
    if timeline.rows.is_empty() {
        out.push_str("no messages\n");
    }
    if timeline.sandbox.is_none() {
        out.push_str(&untracked(earlier));
    }
    out
}

fn untracked(earlier: &[Earlier]) -> String {
    if earlier.is_empty() {
        return "the workspace is not tracked: there are no checkpoints (respool track DIR)\n".into();
    }
    let line = |e: &Earlier| {
        let verb = if e.checkpoints.len() == 1 { "is" } else { "are" };
        let number = count(e.checkpoints.len() as u64, "checkpoint");
        format!(
            "no longer tracked: {number} of sandbox {} {verb} kept\n",
            e.record.id
        )
    };
    earlier.iter().map(line).collect()
}

fn mark(row: &Row) -> String {
    match &row.checkpoint {
        None => "-".into(),
        Some(c) => match (&c.id, c.state) {
            (Some(id), CheckpointState::Ok) => id.to_string(),
            (Some(id), _) => format!("{id}!"),
            (None, state) => format!("({})", word(state)),
        },
    }
}

fn word(state: CheckpointState) -> &'static str {
    match state {
        CheckpointState::Ok => "ok",
        CheckpointState::None => "none",
        CheckpointState::Failed => "failed",
        CheckpointState::Damaged => "damaged",
        CheckpointState::Thinned => "thinned",
        CheckpointState::Late => "late",
        CheckpointState::Incomplete => "incomplete",
    }
}

/// `+1 ~2`: what is not there is not shown.
fn parts(counts: Option<&Counts>) -> String {
    let Some(c) = counts else { return String::new() };
    let all = [
        ('+', c.added),
        ('~', c.modified + c.other),
        ('-', c.deleted),
        ('>', c.renamed),
    ];
    let there = all
        .iter()
        .filter(|(_, n)| *n > 0)
        .map(|(sign, n)| format!("{sign}{n}"));
    there.collect::<Vec<_>>().join(" ")
}

fn counted(row: &Row) -> String {
    let mut out = String::new();
    for (name, part) in [
        ("", parts(row.changes.as_ref())),
        ("yours ", parts(row.between.as_ref())),
    ] {
        if !part.is_empty() {
            let _written = write!(out, "  [{name}{part}]");
        }
    }
    if let Some(packages) = row.packages.as_ref().filter(|p| !p.is_empty()) {
        let _written = write!(out, "  [{}]", packages.line());
    }
    if let Some(reason) = row.checkpoint.as_ref().and_then(|c| c.reason.as_ref()) {
        let _written = write!(out, "  ({})", shown(reason));
    }
    out
}
