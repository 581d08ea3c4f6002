//! `respool track` and `respool untrack`.

use std::path::{Path, PathBuf};

use serde_json::json;

use super::app::App;
use super::args::{TrackArgs, VaultChoice};
use super::boot::{self, Boot};
use super::extent::extent;
use super::operations::{recover_adoptions_first, recover_first};
use super::output::{Done, Failure};
use super::pool::bytes;
use crate::config::VaultSetting;
use crate::engine::image;
use crate::engine::pool::Pool;
use crate::failure::Kind;
use crate::rewind::Blocker;
use crate::rewind::RewindError;
use crate::rewind::copies::{copy_plan, track_copy};
use crate::rewind::guard::{Reserved, check_place, stopped_by};
use crate::rewind::track::{Means, TrackPlan, Tracked, means, track as do_track, track_plan};
use crate::rewind::untrack::{UntrackPlan, untrack as do_untrack, untrack_plan};
use crate::sandbox::registry::{Census, PoolEntry};
use crate::text::{count, json_path, shown_path};

fn folder(app: &App, dir: &Path) -> Result<PathBuf, Failure> {
    let path = app.cwd.join(dir);
    let gone = |e: std::io::Error| {
        Failure::new(
            Kind::NotFound,
            format!("there is no folder {}: {e}", shown_path(dir)),
        )
        .path(dir)
    };
    let meta = std::fs::symlink_metadata(&path).map_err(gone)?;
    let resolved = path.canonicalize().map_err(gone)?;
    if meta.is_symlink() {
        return Err(Failure::new(
            Kind::Refused,
            format!("{} is a link to {}", shown_path(dir), shown_path(&resolved)),
        )
        .path(dir)
        .hint("name the folder itself"));
    }
    if !meta.is_dir() {
        return Err(Failure::new(Kind::Refused, format!("{} is no folder", shown_path(dir))).path(dir));
    }
    Ok(resolved)
}

/// Everything that a workspace must not touch.
fn reserved(app: &App, image: Option<&Path>) -> Vec<Reserved> {
    let mut out = Vec::new();
    let mut add = |path: PathBuf, what: String| {
        let path = path.canonicalize().unwrap_or(path);
        out.push(Reserved { path, what });
    };
    add(
        app.desk.registry.state_dir().to_owned(),
        "respool's state folder".into(),
    );
    add(
        PathBuf::from(crate::paths::SYSTEM_STATE),
        "respool's state folder".into(),
    );
    for (_, entry) in app.desk.registry.listed() {
        if let PoolEntry::Folder(folder) = entry {
            add(folder.0, "the folder of its checkpoints".into());
        }
    }
    if let Some(image) = image {
        add(image.to_owned(), "the image of the pool".into());
    }
    if let Ok(exe) = std::env::current_exe() {
        // a build folder may hold the program while it is worked on: only the exact file counts
        add(exe, "the respool program itself".into());
    }
    for (_, store) in app.desk.library.stores(None) {
        let what = format!("a conversation's store ({})", shown_path(&store));
        add(store, what);
    }
    if let Ok(Census {
        sandboxes, copies, ..
    }) = app.desk.registry.all()
    {
        let sandboxes = sandboxes.into_iter().map(|(_, l)| l);
        for record in sandboxes
            .chain(copies.into_iter().map(|(_, l)| l))
            .filter_map(|l| l.record.ok())
            .filter(|r| r.tracked)
        {
            let what = format!("the workspace of sandbox {}", record.id);
            add(record.path, what);
        }
    }
    out
}

fn wants_copy(app: &App, args: &TrackArgs) -> bool {
    args.vault == Some(VaultChoice::Copy)
        || args.vault.is_none() && app.config.sandbox.vault == VaultSetting::Copy
}

/// Puts a workspace under respool.
pub fn track(app: &App, args: &TrackArgs) -> Done {
    let path = folder(app, &args.dir)?;
    let copy = wants_copy(app, args);
    if !copy && !is_root() && means(&path)? == Means::Copy {
        let word = crate::text::shell_word(&path);
        return Err(
            Failure::new(Kind::Refused, "tracking needs root: it mounts a file system").hint(format!(
                "run: sudo respool track {word}; or, without root: respool track --vault copy {word}"
            )),
        );
    }
    recover_adoptions_first(app, &path)?;
    if let Some(site) = tracked_already(app, &path)? {
        let what = format!("{} is tracked already, as {}", shown_path(&path), site);
        return Err(Failure::new(Kind::Refused, what)
            .path(path)
            .hint("respool sandboxes lists what is tracked"));
    }
    if copy {
        return with_copies(app, &path);
    }
    let way = means(&path)?;
    let image = args
        .image
        .clone()
        .map_or_else(|| app.desk.registry.default_image(), |i| app.cwd.join(i));
    allowed(app, &path, (way == Means::Copy).then_some(&image))?;
    let mut plan = track_plan(&path, (way == Means::Copy).then_some(image.as_path()), &app.bar())?;
    let own = if is_root() {
        None
    } else {
        Some(own_pool(app, args, &path)?)
    };
    if let Some(folder) = &own {
        plan.steps
            .push(format!("keep its checkpoints in {}", shown_path(folder)));
    }
    let boot = Boot::of(app, way);
    plan.steps.extend(boot.step());
    if app.global.dry_run {
        return app.out.result(&json!({"plan": plan}), || text(&plan));
    }
    if let Some(e) = stopped_by(&path, &plan.blockers) {
        return Err(e.into());
    }
    if !app.global.yes {
        app.out.say(text(&plan).trim_end());
    }
    app.confirm(&format!("track {}?", shown_path(&path)))?;
    let pool = match &own {
        Some(folder) => app.desk.registry.open_folder(folder)?,
        None => open_pool(app, args, way, &path, &image)?,
    };
    let bar = app.bar();
    let tracked = do_track(&pool, &plan, &bar)?;
    drop(bar);
    boot.set(app);
    is_tracked(app, &tracked, own.as_deref(), &path)?;
    if way != Means::Adopt {
        enter_again(app, &plan.blockers, "old, now empty folder");
    }
    Ok(())
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Refuses places that are never a workspace.
fn allowed(app: &App, path: &Path, image: Option<&PathBuf>) -> Done {
    let home = app.who.home.canonicalize().unwrap_or_default();
    let at_home = |what: &str| {
        Failure::new(
            Kind::Refused,
            format!("{} {what} your home folder{}", shown_path(path), extent(path)),
        )
        .path(path)
        .hint("track the project's own folder")
    };
    if home == path {
        return Err(at_home("is"));
    }
    let large = |e: RewindError| {
        let failure = Failure::from(e);
        let message = format!("{}{}", failure.message, extent(path));
        Failure { message, ..failure }
    };
    check_place(path, &reserved(app, image.map(PathBuf::as_path))).map_err(large)?;
    if home.starts_with(path) {
        return Err(at_home("contains"));
    }
    Ok(())
}

/// What is said when a folder is tracked.
fn is_tracked(app: &App, tracked: &Tracked, own: Option<&Path>, path: &Path) -> Done {
    for h in &tracked.hints {
        app.out.say(format!("respool: {h}"));
    }
    if let Some(folder) = own {
        belong_to_you(app, folder);
    }
    let (shown, exact) = json_path(path);
    let doc = json!({"sandbox": tracked.record.id, "vault": "btrfs", "path": shown, "path_b64": exact});
    let program = app.program();
    let (watcher, hook) = match own {
        None => ("as root, in", ", where the agent runs as root"),
        Some(_) => ("in", ""),
    };
    app.out.result(&doc, || {
        format!(
            "tracked as {}\nnext, for a checkpoint at each message, one of:\n  {program} watch   ({watcher} the workspace, while the agent works)\n  {program} hooks install openhands --project   (in the workspace{hook})\n",
            tracked.record.id
        )
    })
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

/// Puts a workspace under respool where it is, with copies as checkpoints.
fn with_copies(app: &App, path: &Path) -> Done {
    check_place(path, &reserved(app, None))?;
    let copies = app.desk.registry.copies();
    let plan = copy_plan(path, &copies, &app.bar())?;
    if app.global.dry_run {
        return app.out.result(&json!({"plan": plan}), || text(&plan));
    }
    if !app.global.yes {
        app.out.say(text(&plan).trim_end());
    }
    app.confirm(&format!("track {}?", shown_path(path)))?;
    app.desk.registry.prepare()?;
    let bar = app.bar();
    let tracked = track_copy(&copies, &plan, &bar)?;
    drop(bar);
    if !is_root() {
        belong_to_you(app, &copies);
    }
    let (shown, exact) = json_path(path);
    let doc = json!({"sandbox": tracked.record.id, "vault": "copy", "path": shown, "path_b64": exact});
    app.out.result(&doc, || {
        format!(
            "tracked as {}\nnext: respool hooks install openhands --project (in the workspace), then work with the agent\n",
            tracked.record.id
        )
    })
}

/// Says once what a user's own checkpoints are not.
fn belong_to_you(app: &App, folder: &Path) {
    app.out.say(format!(
        "respool: the checkpoints belong to you: your own processes, the agent's too, can remove them ({})",
        shown_path(folder)
    ));
}

/// The folder of an ordinary user's checkpoints on the Btrfs of this folder.
fn own_pool(app: &App, args: &TrackArgs, path: &Path) -> Result<PathBuf, Failure> {
    let named = args.pool.as_ref().map(|p| app.cwd.join(p));
    let state = app.desk.registry.state_dir();
    Ok(crate::sandbox::user_pool::place(path, state, named.as_deref())?)
}

fn tracked_already(app: &App, path: &Path) -> Result<Option<String>, Failure> {
    // a folder that only lies in a tracked one is refused by the places, with its own words
    let site = app.desk.registry.find(path)?;
    Ok(site
        .filter(|s| s.path() == path && s.record.tracked)
        .map(|s| s.record.id))
}

fn open_pool(app: &App, args: &TrackArgs, way: Means, path: &Path, image: &Path) -> Result<Pool, Failure> {
    let registry = &app.desk.registry;
    if way != Means::Copy {
        return Ok(registry.open_existing(path)?);
    }
    if let Some(folder) = &args.pool {
        return Err(Failure::new(
            Kind::Refused,
            format!("{} is on another file system than the folder", shown_path(folder)),
        )
        .hint("a folder that is not on Btrfs needs a loop image: --image FILE"));
    }
    if !image.exists() {
        registry.prepare()?;
        image::create(image, bytes(&args.size)?, args.preallocate)?;
    }
    Ok(registry.open_image(image)?)
}

fn text(plan: &TrackPlan) -> String {
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
    let path = folder(app, dir)?;
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
    recover_first(app, &site)?;
    let mut plan = untrack_plan(&site, &app.bar())?;
    plan.steps.extend(boot::last_step(app, &site.record));
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
    boot::unset_after(app, &site.record);
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
