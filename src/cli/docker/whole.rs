//! `respool docker enable` and `disable`, and the setting `docker_snapshots`.

use std::path::{Path, PathBuf};

use serde_json::json;

use super::super::app::App;
use super::super::output::{Done, Failure};
use super::super::pool::bytes;
use crate::failure::Kind;
use crate::rewind::docker::{self, DisablePlan, EnablePlan, Wanted, disable_plan, enable_plan};
use crate::rewind::{Blocker, RewindError};
use crate::sandbox::whole::{Phase, Record};
use crate::text::{shown_path, size};

/// What Docker's data is now, one harmless line; `None` if it is in no pool.
pub fn mode(app: &App) -> Option<String> {
    let record = Record::load(app.desk.registry.state_dir()).ok()??;
    let root = shown_path(record.root());
    Some(match record.phase {
        Phase::On => format!("Docker's data at {root} is in a pool: each checkpoint has all of it"),
        _ => format!(
            "moving Docker's data at {root} was interrupted: {} recover",
            app.program()
        ),
    })
}

/// Finishes or takes back what a crash left of moving Docker's data, and says so. One that is under way is left alone.
pub fn recover_first(app: &App) -> Done {
    let registry = &app.desk.registry;
    let may = !app.global.dry_run && app.global.behalf.is_none() && rustix::process::geteuid().is_root();
    let moving = may && Record::load(registry.state_dir())?.is_some_and(|r| r.phase != Phase::On);
    if !moving {
        return Ok(());
    }
    match docker::recover(registry) {
        Ok(Some(r)) => app
            .out
            .say(format!("respool: {}", super::super::operations::said(&r))),
        Ok(None) | Err(RewindError::Busy { .. }) => {}
        Err(e) => return Err(e.into()),
    }
    Ok(())
}

fn listed(head: &str, steps: &[String], lost: &[String], blockers: &[Blocker]) -> String {
    let mut out = format!("{head}\n");
    for (i, s) in steps.iter().enumerate() {
        out += &format!("  {}. {s}\n", i + 1);
    }
    for l in lost {
        out += &format!("  lost: {l}\n");
    }
    for b in blockers {
        out += &format!("  in the way: {}\n", b.what);
    }
    out
}

fn enable_text(plan: &EnablePlan) -> String {
    let mut out = listed(
        &format!("Docker's data at {} into a pool", plan.path),
        &plan.steps,
        &plan.lost,
        &plan.blockers,
    );
    if !plan.containers.is_empty() {
        out += &format!("  stopped meanwhile: {}\n", plan.containers.join(", "));
    }
    if let Some(n) = plan.image_size {
        out += &format!(
            "  the image is made, of {}: it takes space as it is filled\n",
            size(n)
        );
    }
    out
}

fn disable_text(plan: &DisablePlan) -> String {
    let mut out = listed(
        &format!("Docker's data at {} out of its pool", plan.path),
        &plan.steps,
        &plan.lost,
        &plan.blockers,
    );
    if !plan.containers.is_empty() {
        out += &format!("  stopped meanwhile: {}\n", plan.containers.join(", "));
    }
    out + "  nothing that was made since it came there is lost: the present content comes back\n"
}

fn stopped(blockers: &[Blocker], what: &str) -> Done {
    match blockers.iter().find(|b| b.stops) {
        None => Ok(()),
        Some(b) => Err(Failure::new(Kind::Refused, b.what.clone())
            .hint(format!("respool docker {what} --dry-run shows the plan"))),
    }
}

fn asked_in(app: &App, plan: &EnablePlan) -> Result<Vec<String>, Failure> {
    stopped(&plan.blockers, "enable")?;
    if !app.global.yes {
        app.out.say(enable_text(plan).trim_end());
    }
    app.confirm_word("bring all of Docker's data into the pool?", "enable")?;
    Ok(docker::enable(&app.desk.registry, plan, &app.bar())?)
}

fn asked_out(app: &App, plan: &DisablePlan) -> Result<Vec<String>, Failure> {
    stopped(&plan.blockers, "disable")?;
    if !app.global.yes {
        app.out.say(disable_text(plan).trim_end());
    }
    app.confirm_word("bring all of Docker's data back out of the pool?", "disable")?;
    Ok(docker::disable(&app.desk.registry, plan, &app.bar())?)
}

/// Brings Docker's data into a pool.
pub fn enable(app: &App, image: Option<&Path>, wanted: Option<&str>) -> Done {
    recover_first(app)?;
    let image: Option<PathBuf> = image
        .map(|i| crate::paths::settled(&app.cwd.join(i)))
        .transpose()
        .map_err(|e| Failure::new(Kind::Usage, format!("--image: {e}")))?;
    let wanted = Wanted {
        image,
        size: wanted.map(bytes).transpose()?,
    };
    let plan = enable_plan(&app.desk.registry, &wanted, &app.bar())?;
    if app.global.dry_run {
        return app.out.result(&json!({"plan": plan}), || enable_text(&plan));
    }
    let told = asked_in(app, &plan)?;
    let doc = json!({"enabled": true, "path": plan.path, "bytes": plan.bytes, "notes": told});
    app.out.result(&doc, || {
        let mut text = format!(
            "Docker's data at {} is in the pool, checked; each checkpoint has all of it from now on\n",
            plan.path
        );
        for t in &told {
            text += &format!("{t}\n");
        }
        text
    })
}

/// Brings it back.
pub fn disable(app: &App) -> Done {
    recover_first(app)?;
    let (_, plan) = disable_plan(&app.desk.registry, &app.bar())?;
    if app.global.dry_run {
        return app.out.result(&json!({"plan": plan}), || disable_text(&plan));
    }
    let told = asked_out(app, &plan)?;
    let doc = json!({"enabled": false, "path": plan.path, "lost": plan.lost, "notes": told});
    app.out.result(&doc, || {
        let mut text = format!("Docker's data is back at {}, checked\n", plan.path);
        for t in &told {
            text += &format!("{t}\n");
        }
        text
    })
}

/// Where the setting says otherwise than it is: does it, with its plan and after asking; where nobody can answer, or the
/// answer is no, it is said and left.
pub fn as_set(app: &App) {
    let registry = &app.desk.registry;
    let elsewhere = registry.far() || app.global.behalf.is_some() || !rustix::process::geteuid().is_root();
    let Some(wanted) = app
        .config
        .sandbox
        .docker_snapshots
        .filter(|_| !elsewhere && !app.global.dry_run)
    else {
        return;
    };
    let is = Record::load(registry.state_dir()).is_ok_and(|r| r.is_some());
    if is == wanted {
        return;
    }
    let (verb, why) = if wanted {
        (
            "enable",
            "docker_snapshots is true, and Docker's data is in no pool",
        )
    } else {
        (
            "disable",
            "docker_snapshots is false, and Docker's data is in a pool",
        )
    };
    app.out.say(format!("respool: {why}"));
    let done = if wanted {
        enable_plan(registry, &Wanted::default(), &app.bar())
            .map_err(Failure::from)
            .and_then(|plan| asked_in(app, &plan))
    } else {
        disable_plan(registry, &app.bar())
            .map_err(Failure::from)
            .and_then(|(_, plan)| asked_out(app, &plan))
    };
    match done {
        Ok(told) => told.iter().for_each(|t| app.out.say(format!("respool: {t}"))),
        Err(e) => app.out.say(format!(
            "respool: it stays so: {}; to change it: {} docker {verb}",
            e.message,
            app.program()
        )),
    }
}
