//! `respool track` and `respool untrack`.

mod container;
pub mod exclusive;

use std::path::Path;

use serde_json::json;

use super::app::App;
use super::args::{TrackArgs, VaultChoice};
use super::forward::must;
use super::operations::{recover_adoptions_first, recover_first};
use super::output::{Done, Failure};
use super::pool::bytes;
use crate::config::VaultSetting;
use crate::failure::Kind;
use crate::rewind::Blocker;
use crate::rewind::boot;
use crate::rewind::guard::stopped_by;
use crate::rewind::offer::{
    Offer, VaultKind, Wish, accept, folder, in_the_way as in_the_way_of, offer, permitted,
};
use crate::rewind::track::{Means, TrackPlan, Tracked};
use crate::rewind::untrack::{UntrackPlan, untrack as do_untrack, untrack_plan};
use crate::service::door;
use crate::text::{count, json_path, shown_path};
use crate::watch::agent::Agent;

fn wish(app: &App, args: &TrackArgs) -> Result<Wish, Failure> {
    let vault = match (args.vault, app.config.sandbox.vault) {
        (Some(VaultChoice::Copy), _) | (None, VaultSetting::Copy) => VaultKind::Copy,
        _ => VaultKind::Btrfs,
    };
    Ok(Wish {
        vault,
        image: args.image.as_ref().map(|i| app.cwd.join(i)),
        size: bytes(&args.size)?,
        preallocate: args.preallocate,
        pool: args.pool.clone(),
    })
}

/// Puts a workspace under respool, and containers with it.
pub fn track(app: &App, args: &TrackArgs) -> Done {
    let path = folder(&app.cwd.join(&args.dir))?;
    if args.per_conversation {
        return exclusive::track(app, args, &path);
    }
    super::docker::as_set(app);
    let containers = container::offers(&args.containers)?;
    if !containers.is_empty()
        && let Some(site) = container::tracked(app, &path)?
    {
        if app.global.dry_run {
            let steps: Vec<String> = containers.iter().map(container::step).collect();
            let doc = json!({"plan": {"steps": steps}});
            return app
                .out
                .result(&doc, || steps.iter().map(|s| format!("would {s}\n")).collect());
        }
        let attached = container::attach(app, site, &containers)?;
        let (shown, exact) = json_path(&path);
        let doc = json!({"sandbox": attached.sandbox, "vault": attached.vault, "path": shown, "path_b64": exact,
            "containers": attached.rows});
        return app.out.result(&doc, || attached.text);
    }
    let wish = wish(app, args)?;
    let vault = wish.vault;
    permitted(&app.desk, vault, &path)?;
    recover_adoptions_first(app, &path)?;
    let mut offer = offer(&app.desk, &app.who.home, &path, wish, &app.bar())?;
    offer.plan.only_of = app.global.behalf.map(|b| b.uid).filter(|uid| *uid != 0);
    offer.plan.steps.extend(containers.iter().map(container::step));
    if app.global.dry_run {
        return app
            .out
            .result(&json!({"plan": offer.plan}), || plan_text(&offer.plan));
    }
    let tracked = asked(app, &offer)?;
    let (shown, exact) = json_path(&path);
    let id = &tracked.record.id;
    let mut doc = json!({"sandbox": id, "vault": vault.word(), "path": shown, "path_b64": exact});
    let mut text = format!("tracked as {id}\n");
    if !containers.is_empty() {
        let site = app.desk.site_at(&path)?;
        let attached = container::attach(app, site, &containers)?;
        doc["containers"] = attached.rows.into();
        text += &attached.text;
    }
    app.out.result(&doc, || text + &next_steps(app, vault, &path))?;
    if offer.plan.means != Means::Adopt {
        enter_again(app, &offer.plan.blockers, "old, now empty folder");
    }
    Ok(())
}

/// Shows the plan of an offer, asks, and does it.
pub fn asked(app: &App, offer: &Offer) -> Result<Tracked, Failure> {
    let path = &offer.plan.path;
    if offer.wish.vault == VaultKind::Copy {
        for warning in crate::sandbox::settings::project_at(path).warnings {
            app.out.say(format!("respool: {warning}"));
        }
    }
    in_the_way_of(offer)?;
    if !app.global.yes {
        app.out.say(plan_text(&offer.plan).trim_end());
    }
    app.confirm(&format!("track {}?", shown_path(path)))?;
    let bar = app.bar();
    let tracked = accept(&app.desk, offer, &bar)?;
    drop(bar);
    for h in &tracked.hints {
        app.out.say(format!("respool: {h}"));
    }
    Ok(tracked)
}

fn next_steps(app: &App, vault: VaultKind, path: &Path) -> String {
    let (program, agent) = (app.program(), app.desk.agent_of(path));
    let root = rustix::process::geteuid().is_root();
    let (sudo, as_root) = match vault {
        VaultKind::Btrfs if root => ("as root, ", ", where the agent runs as root"),
        VaultKind::Btrfs | VaultKind::Copy => ("", ""),
    };
    let hooks = Agent::named(agent).map_or_else(String::new, |agent| {
        let agent = agent.name();
        format!("  {program} hooks install {agent} --project   (in the workspace{as_root})\n")
    });
    format!(
        "next, for a checkpoint at each message, one of:\n  {program} run -- {agent}   ({sudo}in the workspace: starts the agent)\n  {program} watch   ({sudo}in the workspace, while the agent works)\n{hooks}"
    )
}

/// Tells once that a working folder is the old one now: of the user's shell, else of other programs.
fn enter_again(app: &App, blockers: &[Blocker], old: &str) {
    let pids: Vec<i32> = blockers
        .iter()
        .filter(|b| b.kind == "cwd")
        .filter_map(|b| b.pid)
        .collect();
    let lineage = crate::process::lineage();
    if pids.iter().any(|p| lineage.contains(p)) {
        app.out
            .say(format!("your shell still sees the {old}: run cd \"$PWD\""));
    } else if !pids.is_empty() {
        let list: Vec<String> = pids.iter().map(ToString::to_string).collect();
        let list = list.join(", ");
        app.out.say(format!(
            "a shell that stands in it still sees the {old}: run cd \"$PWD\" there (process {list})"
        ));
    }
}

/// The plan for people.
pub fn plan_text(plan: &TrackPlan) -> String {
    let mut out = format!("track {}\n", shown_path(&plan.path));
    for (i, s) in plan.steps.iter().enumerate() {
        out += &format!("  {}. {s}\n", i + 1);
    }
    out + &in_the_way(&plan.blockers)
}

/// What stands in the way, and notes; working folders are told when it is done.
fn in_the_way(blockers: &[Blocker]) -> String {
    let mut out = String::new();
    for b in blockers.iter().filter(|b| b.stops || b.kind != "cwd") {
        let pid = b.pid.map_or_else(String::new, |p| format!("process {p}: "));
        out += &format!(
            "  {}: {pid}{}\n",
            if b.stops { "in the way" } else { "note" },
            b.what
        );
    }
    out
}

/// Gives a workspace back.
pub fn untrack(app: &App, dir: &Path) -> Done {
    let path = folder(&app.cwd.join(dir))?;
    recover_adoptions_first(app, &path)?;
    let site = app.desk.site_at(&path)?;
    if site.path() != path {
        return Err(Failure::new(
            Kind::Refused,
            format!(
                "{} lies in the workspace {}",
                shown_path(&path),
                shown_path(site.path())
            ),
        )
        .path(path)
        .hint("untrack the workspace itself"));
    }
    must(app, &site.record)?;
    recover_first(app, &site)?;
    let mut plan = untrack_plan(&site, &app.bar())?;
    plan.steps
        .extend(boot::last_step(&app.desk.registry, &site.record));
    if app.global.dry_run {
        return app.out.result(&json!({"plan": plan}), || {
            untrack_text(&path, &site.record.id, &plan)
        });
    }
    if let Some(e) = stopped_by(&path, &plan.blockers) {
        return Err(e.into());
    }
    if !app.global.yes {
        app.out
            .say(untrack_text(&path, &site.record.id, &plan).trim_end());
    }
    app.confirm(&format!("make {} a plain folder again?", shown_path(&path)))?;
    let bar = app.bar();
    do_untrack(&site, &bar)?;
    drop(bar);
    if let Err(e) = door::remove(&app.desk.registry, &site.record.id) {
        app.out
            .say(format!("respool: its door for containers stays: {e}"));
    }
    if let Some(notice) = boot::unset_after(&app.desk.registry, &site.record) {
        app.out.say(format!("respool: {notice}"));
    }
    let doc = json!({"sandbox": site.record.id, "path": json_path(&path).0, "untracked": true});
    app.out.result(&doc, || {
        format!(
            "{} is a plain folder again; {}; to remove them for good: {} prune -s {}\n",
            shown_path(&path),
            kept(plan.kept),
            app.program(),
            site.record.id
        )
    })?;
    enter_again(app, &plan.blockers, "old folder");
    Ok(())
}

fn kept(n: usize) -> String {
    let verb = if n == 1 { "is" } else { "are" };
    format!("{} {verb} kept", count(n as u64, "checkpoint"))
}

fn untrack_text(path: &Path, sandbox: &str, plan: &UntrackPlan) -> String {
    let mut out = format!("untrack {}\n", shown_path(path));
    for (i, s) in plan.steps.iter().enumerate() {
        out += &format!("  {}. {s}\n", i + 1);
    }
    out += &format!("  {}, in sandbox {sandbox}\n", kept(plan.kept));
    out + &in_the_way(&plan.blockers)
}
