//! `respool log` and `respool recover`.

use std::path::Path;

use serde_json::json;

use super::app::App;
use super::forward::may;
use super::output::{Done, Failure};
use crate::engine::catalog::SandboxDir;
use crate::failure::Kind;
use crate::rewind::adopt;
use crate::rewind::journal::{Log, Record};
use crate::rewind::recover::{How, Recovered};
use crate::rewind::tools::Tools;
use crate::rewind::{Operation, OperationState};
use crate::sandbox::manage::Verb;
use crate::sandbox::registry::Census;
use crate::sandbox::site::Site;
use crate::text::{age, shown, shown_path};

/// The operations of a sandbox, newest first.
pub fn log(app: &App) -> Done {
    let subject = app.look()?;
    let tools = Tools::of(&subject.site)?;
    for e in tools.damaged()? {
        app.out.say(format!("respool: {e}"));
    }
    let operations: Vec<Operation> = tools.records()?.iter().rev().map(Record::operation).collect();
    app.out.result(&operations, || {
        let now = chrono::Utc::now();
        operations.iter().map(|o| line(o, now)).collect()
    })
}

fn line(o: &Operation, now: chrono::DateTime<chrono::Utc>) -> String {
    let state = match o.state {
        OperationState::Done => "done",
        OperationState::Undone => "undone",
        OperationState::Interrupted => "interrupted",
        OperationState::RolledBack => "rolled back",
    };
    let kind = format!("{:?}", o.kind).to_lowercase();
    format!(
        "{:>4}  {}  {kind:<8} {state:<11} {}\n",
        age(o.time, now),
        o.id,
        shown(o.message.as_deref().unwrap_or(""))
    )
}

/// Before a command that writes: finishes or rolls back what a crash left, and says so. Nothing in a dry run.
pub fn recover_first(app: &App, site: &Site) -> Done {
    if app.global.dry_run {
        return Ok(());
    }
    super::docker::recover_first(app)?;
    for r in recover_site(app, site, false)? {
        app.out.say(format!("respool: {}", said(&r)));
    }
    Ok(())
}

pub fn said(r: &Recovered) -> String {
    match r.outcome {
        How::Finished => format!("operation {} had been cut short; it is finished now", r.operation),
        How::Waits => format!(
            "operation {} had been cut short; its files are done, and what became of its conversation is not known: {} (to give \
             the conversation up and take the files back: respool recover --files)",
            r.operation,
            r.why.as_deref().unwrap_or("its owner has to look")
        ),
        How::RolledBack => format!(
            "operation {} had been cut short; everything is as before it",
            r.operation
        ),
    }
}

fn recover_site(app: &App, site: &Site, files: bool) -> Result<Vec<Recovered>, Failure> {
    let tools = Tools::of(site)?;
    let mut recovered = match app.access() {
        Some(access) => tools.recover_with(&access, files, &app.bar())?,
        None => tools.recover(&app.bar())?,
    };
    for r in recovered.iter_mut().filter(|r| r.outcome == How::Waits) {
        r.sandbox = Some(site.record.id.clone());
    }
    Ok(recovered.into_iter().collect())
}

/// An operation that the service leaves to this user, whose conversation it is.
fn looked_at(app: &App, r: Recovered, files: bool) -> Result<Vec<Recovered>, Failure> {
    let site = match (&r.outcome, &r.sandbox) {
        (How::Waits, Some(id)) => app.desk.registry.by_id(id)?,
        _ => None,
    };
    match site {
        Some(site) => recover_site(app, &site, files),
        None => Ok(vec![r]),
    }
}

fn recover_adoptions(app: &App, path: Option<&Path>) -> Result<Vec<Recovered>, Failure> {
    let swept = adopt::recover_adoptions(&app.desk.registry, path)?;
    for why in &swept.unreadable {
        app.out.say(format!("respool: {why}"));
    }
    Ok(swept.recovered)
}

/// Before a command that tracks or untracks `path`: what a crash left is finished or taken back, and said
/// on stderr. Nothing in a dry run.
pub fn recover_adoptions_first(app: &App, path: &Path) -> Done {
    if app.global.dry_run {
        return Ok(());
    }
    for r in recover_adoptions(app, Some(path))? {
        app.out.say(format!("respool: {}", said(&r)));
    }
    Ok(())
}

/// What `recover` would work on.
fn interrupted(app: &App) -> Done {
    let Census {
        pools,
        sandboxes,
        copies,
        ..
    } = app.desk.registry.all()?;
    let mut open: Vec<Operation> = Vec::new();
    let mut folders = Vec::new();
    for (i, listed) in sandboxes {
        folders.push(SandboxDir::open(&pools[i], &listed.id)?.path().to_owned());
    }
    folders.extend(copies.iter().map(|(dir, l)| dir.join(&l.id)));
    for folder in folders {
        let log = Log::open(&folder)?;
        if !log.busy() {
            open.extend(log.interrupted()?.iter().map(Record::operation));
        }
    }
    let mut steps: Vec<String> = open
        .iter()
        .map(|o| format!("finish or take back operation {}", o.id))
        .collect();
    if crate::rewind::docker::interrupted(&app.desk.registry)? {
        steps.push("finish or take back moving Docker's data".into());
    }
    if let Some(plan) = super::forward::document(app, Verb::Recover)? {
        let more = plan["plan"]["steps"].as_array().into_iter().flatten();
        steps.extend(more.filter_map(|s| s.as_str().map(str::to_owned)));
    }
    app.out.result(&json!({"plan": {"steps": steps}}), || {
        steps.iter().map(|s| format!("would {s}\n")).collect()
    })
}

/// Finishes or rolls back everything that a crash left. `files`: also where a conversation cannot be seen.
pub fn recover(app: &App, files: bool) -> Done {
    if app.global.dry_run {
        return interrupted(app);
    }
    let mut recovered = recover_adoptions(app, None)?;
    if let Some(done) = super::forward::document(app, Verb::Recover)? {
        let done: Vec<Recovered> = serde_json::from_value(done)
            .map_err(|e| Failure::new(Kind::Failed, format!("the service's answer: {e}")))?;
        for r in done {
            recovered.extend(looked_at(app, r, files)?);
        }
    }
    let Census {
        pools: _,
        sandboxes,
        copies,
        trouble,
    } = app.desk.registry.all()?;
    let docker = crate::rewind::docker::interrupted(&app.desk.registry)?;
    if sandboxes.is_empty()
        && !docker
        && copies.is_empty()
        && let Some(e) = app.desk.registry.hidden()
    {
        return Err(e.into());
    }
    for e in &trouble {
        app.out.say(format!("respool: {e}"));
    }
    let all = sandboxes.into_iter().map(|(_, l)| l);
    for listed in all.chain(copies.into_iter().map(|(_, l)| l)) {
        let Ok(record) = listed.record else { continue };
        if !record.tracked || !may(app, &record) {
            continue;
        }
        match app.desk.registry.by_id(&record.id) {
            // for the service's own clients what is under way is waited for
            Ok(Some(site)) if app.global.behalf.is_none() && Tools::of(&site)?.busy()? => {
                let path = shown_path(site.path());
                app.out
                    .say(format!("respool: another respool is changing {path}: left to it"));
            }
            Ok(Some(site)) => {
                for e in Tools::of(&site)?.damaged()? {
                    app.out.say(format!("respool: {e}"));
                }
                recovered.extend(recover_site(app, &site, files)?);
                site.vault.sweep()?;
            }
            Ok(None) => {}
            Err(e) => app.out.say(format!("respool: {e}")),
        }
    }
    if app.global.behalf.is_none() && rustix::process::geteuid().is_root() {
        recovered.extend(crate::rewind::docker::recover(&app.desk.registry)?);
    }
    app.out.result(&recovered, || {
        if recovered.is_empty() {
            return "nothing was interrupted\n".into();
        }
        recovered.iter().map(|r| said(r) + "\n").collect()
    })
}
