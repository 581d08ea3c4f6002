//! `respool rewind`, `undo`, `redo`.

use std::path::{Path, PathBuf};

use serde_json::json;

use super::app::{App, Subject};
use super::args::{ReverseArgs, RewindArgs};
use super::changes::{line, relative};
use super::operations::recover_first;
use super::output::{Done, Failure};
use super::resend::{Draft, draft, send};
use crate::engine::{EngineError, Selection, State};
use crate::failure::{Explain, Kind};
use crate::rewind::run::Order;
use crate::rewind::survey::{Scope, survey};
use crate::rewind::talk::undone;
use crate::rewind::tools::Tools;
use crate::rewind::{OperationKind, Outcome, Plan, Reach};
use crate::sandbox::inside::refuse_inside;
use crate::sandbox::parts::turn::DOCKER;
use crate::text::{count, shown, shown_path};
use crate::timeline::select::Selected;

/// How many changes of a plan are printed for people.
const SHOWN: usize = 40;

/// Goes back to a state.
pub fn run(app: &App, args: &RewindArgs) -> Done {
    let subject = app.subject_for(&[&args.state])?;
    let target = App::state(&subject, &args.state)?;
    let State::Checkpoint(id) = target.state.clone() else {
        return Err(Failure::new(Kind::Usage, "now is where you are").hint("name a message or a checkpoint"));
    };
    not_by_the_agent(app, &subject)?;
    recover_first(app, &subject.site)?;
    let paths = if args.paths.is_empty() {
        None
    } else {
        Some(relative(app, &subject, &args.paths)?)
    };
    for path in paths.iter().flatten() {
        known(&subject, &target.state, path)?;
    }
    let scope = Scope {
        paths,
        keep_mine: args.keep_mine,
        only_turn: args.only_turn,
        whole_docker: args.whole_docker,
        reach: args.reach(),
        interrupt: args.interrupt,
        access: app.access(),
        undone: None,
    };
    let seen = survey(
        subject.timeline(),
        &subject.site,
        &target,
        &id,
        &scope,
        &app.bar(),
    )
    .map_err(|e| of_target(e, &target))?;
    let (plan, selection) = (seen.plan, seen.selection);
    if app.global.dry_run {
        return app.out.result(&json!({"plan": plan}), || text(app, &plan));
    }
    refuse_stopped(&plan)?;
    let draft = draft(app, args, &subject, &target, &plan)?;
    if !app.global.yes {
        app.out.say(text(app, &plan).trim_end());
    } else if !plan.yours.is_empty() {
        let first: Vec<String> = plan.yours.iter().take(5).map(|p| shown_path(p)).collect();
        let more = if plan.yours.len() > first.len() {
            ", ..."
        } else {
            ""
        };
        app.out.say(format!(
            "respool: {} of your own is taken back, too, and kept in the safety checkpoint: {}{more}",
            count(plan.yours.len() as u64, "path"),
            first.join(", ")
        ));
    }
    let question = format!("go back to {}?", plan.target_words);
    if plan.needs_word() {
        app.confirm_word(&question, "rewind")?;
    } else {
        app.confirm(&question)?;
    }
    let words = format!("to {}", target.words);
    let order = Order {
        kind: OperationKind::Rewind,
        target: id,
        words,
        selection,
        of: None,
        chat: None,
        mover: None,
        whole_docker: args.whole_docker,
    };
    carry_out(app, &subject, &order, &plan, draft.as_ref())
}

/// What stands in the way is named.
fn refuse_stopped(plan: &Plan) -> Done {
    match plan.blockers.iter().find(|b| b.stops) {
        None => Ok(()),
        Some(b) => {
            let pid = b.pid.map_or_else(String::new, |p| format!("process {p}: "));
            Err(Failure::new(Kind::Refused, format!("{pid}{}", b.what))
                .hint("respool rewind --dry-run shows the plan"))
        }
    }
}

/// What an agent starts is refused; a dry run changes nothing.
fn not_by_the_agent(app: &App, subject: &Subject) -> Done {
    if app.global.dry_run {
        return Ok(());
    }
    Ok(refuse_inside(std::process::id() as i32, &subject.site)?)
}

/// A checkpoint that turns out to be damaged is named by what was asked for, too.
fn of_target(e: impl Explain, target: &Selected) -> Failure {
    let mut failure = Failure::from(e);
    if failure.kind == Kind::Damaged && !failure.message.contains(&target.words) {
        failure.message = format!("{}: {}", target.words, failure.message);
    }
    failure
}

/// A path that is neither in the target nor here now is a mistake, and not done with success.
fn known(subject: &Subject, target: &State, path: &Path) -> Done {
    let gone = |state: &State| match subject.site.vault.read(state, path, 0) {
        Err(EngineError::NoPath { .. }) => Ok(true),
        Err(e) => Err(Failure::from(e)),
        Ok(_) => Ok(false),
    };
    if gone(target)? && gone(&State::Now)? {
        let what = format!("there is no {}, neither then nor now", shown_path(path));
        return Err(Failure::new(Kind::NotFound, what).path(path));
    }
    Ok(())
}

fn carry_out(app: &App, subject: &Subject, order: &Order, plan: &Plan, draft: Option<&Draft>) -> Done {
    let bar = app.bar();
    // so that the first Ctrl-C takes it back
    super::signals::cancel_on_signals();
    let mut outcome = Tools::of(&subject.site)?.run_with(order, plan.talk.as_deref(), &bar)?;
    drop(bar);
    outcome
        .notes
        .extend(subject.site.after_rewind(&outcome.operation, &order.target));
    match draft {
        Some(draft) => send(draft, plan, &mut outcome)?,
        None => outcome.notes.extend(next(app, subject, plan, &outcome)),
    }
    done(app, &outcome, order.kind, plan)
}

/// The agent's own command that goes on in the conversation that this led to, where that is another one.
fn next(app: &App, subject: &Subject, plan: &Plan, outcome: &Outcome) -> Option<String> {
    let (id, talk) = (outcome.conversation.as_ref()?, plan.talk.as_deref()?);
    let summary = app.desk.library.summary_at(&talk.store)?;
    let resume = app.resume(&summary, subject.site.path())?;
    resume.goes_on_in(id, &talk.store, talk.hand).told()
}

fn done(app: &App, o: &Outcome, kind: OperationKind, plan: &Plan) -> Done {
    let each = o.containers.iter().map(|c| {
        let doc = json!({"changed": c.changed, "technique": c.technique, "state": c.state, "ms": c.ms});
        (c.name.clone(), doc)
    });
    let mut containers: serde_json::Map<String, serde_json::Value> = each.collect();
    let mut restored = json!({"workspace": {"changed": o.changed}});
    if let Some(docker) = containers.remove(DOCKER) {
        restored["docker"] = docker;
    }
    if !containers.is_empty() {
        restored["container"] = containers.into();
    }
    let doc = json!({
        "operation": o.operation, "safety": o.safety, "restored": restored,
        "verified": o.verified, "chat": o.chat, "chat_reason": plan.chat_reason,
        "conversation": o.conversation, "resent": o.resent, "notes": o.notes,
    });
    app.out.result(&doc, || {
        let mut text = format!(
            "done: {} changed, checked against the checkpoint, no difference\n{}\nto take this back: respool {}\n",
            count(plan.changes.len() as u64, "path"),
            match (o.chat, &o.conversation) {
                ("kept", _) => "the conversation is as it was".to_owned(),
                ("forked", Some(id)) => format!(
                    "the conversation goes on in a fork, {}; the old one is as it was",
                    shown(id)
                ),
                _ => "the conversation went back, too".to_owned(),
            },
            if kind == OperationKind::Undo { "redo" } else { "undo" }
        );
        if o.containers.iter().any(|c| c.name == DOCKER) {
            text += "all of Docker went back, too\n";
        }
        for c in o.containers.iter().filter(|c| c.name != DOCKER) {
            let changed = c.changed.map_or_else(String::new, |n| format!("{} changed, ", count(n, "path")));
            let name = crate::text::shown(&c.name);
            text += &format!("container {name} went back, too: {changed}checked, no difference\n");
        }
        for n in &o.notes {
            text += &format!("{n}\n");
        }
        text
    })
}

/// The plan for people.
fn text(app: &App, plan: &Plan) -> String {
    let mut out = format!("back to {}\n", plan.target_words);
    for (i, s) in plan.steps.iter().enumerate() {
        out += &format!("  {}. {s}\n", i + 1);
    }
    out += &match (plan.chat, &plan.chat_reason) {
        ("kept", None) => "  the conversation stays as it is\n".to_owned(),
        ("kept", Some(why)) => format!("  the conversation stays as it is: {why}\n"),
        _ => String::new(),
    };
    if !plan.packages.is_empty() {
        out += &format!("packages since then, taken back: {}\n", plan.packages.line());
    }
    out += "changes since then, all taken back:\n";
    for c in plan.changes.iter().take(SHOWN) {
        let own = plan.yours.contains(&c.path);
        out += &format!(
            "  {}{}",
            line(app, c).trim_end(),
            if own { "   YOURS\n" } else { "\n" }
        );
    }
    if plan.changes.len() > SHOWN {
        out += &format!("  ... and {} more\n", plan.changes.len() - SHOWN);
    }
    if plan.changes.is_empty() {
        out += "  none\n";
    }
    let hidden: Vec<&PathBuf> = plan
        .yours
        .iter()
        .filter(|p| !plan.changes.iter().take(SHOWN).any(|c| c.path == **p))
        .collect();
    for p in hidden {
        out += &format!("  yours too: {}\n", shown_path(p));
    }
    for b in plan.blockers.iter().filter(|b| b.kind == "cwd") {
        out += &format!("{}\n", b.what);
    }
    for b in plan.blockers.iter().filter(|b| b.kind != "cwd") {
        let pid = b.pid.map_or_else(String::new, |p| format!("process {p}: "));
        out += &format!("note: {pid}{}\n", b.what);
    }
    out
}

/// Takes back the last rewind.
pub fn undo(app: &App, operation: Option<&str>, reach: ReverseArgs) -> Done {
    again(app, operation, OperationKind::Undo, reach)
}

/// Takes back the last undo.
pub fn redo(app: &App, operation: Option<&str>, reach: ReverseArgs) -> Done {
    again(app, operation, OperationKind::Redo, reach)
}

fn again(app: &App, operation: Option<&str>, kind: OperationKind, reach: ReverseArgs) -> Done {
    let subject = app.subject()?;
    not_by_the_agent(app, &subject)?;
    recover_first(app, &subject.site)?;
    let tools = Tools::of(&subject.site)?;
    let order = tools.reversal(kind, operation)?;
    let target = Selected {
        state: State::Checkpoint(order.target.clone()),
        words: format!("the state {}", order.words),
        message: None,
        native: None,
    };
    let alone = matches!(&order.selection, Selection::Paths(p) if p.is_empty());
    let scope = Scope {
        reach: match (reach.files, alone) {
            (true, _) => Reach::Files,
            (_, true) => Reach::Chat,
            _ => Reach::Auto,
        },
        interrupt: reach.interrupt,
        access: app.access(),
        undone: undone(&tools, &order)?,
        whole_docker: order.whole_docker,
        ..Scope::default()
    };
    let plan = survey(None, &subject.site, &target, &order.target, &scope, &app.bar())?.plan;
    if app.global.dry_run {
        return app.out.result(&json!({"plan": plan}), || text(app, &plan));
    }
    if !app.global.yes {
        app.out.say(text(app, &plan).trim_end());
    }
    refuse_stopped(&plan)?;
    let question = format!("go back to {}?", plan.target_words);
    if order.whole_docker {
        app.confirm_word(&question, "rewind")?;
    } else {
        app.confirm(&question)?;
    }
    carry_out(app, &subject, &order, &plan, None)
}
