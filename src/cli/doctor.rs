//! `respool doctor`.

use std::path::Path;

use serde::Serialize;

use super::app::App;
use super::output::Done;
use crate::failure::Kind;
use crate::sandbox::docker::containers;
use crate::text::{shown_path, size};

/// One check.
#[derive(Debug, Serialize)]
struct Check {
    check: &'static str,
    ok: bool,
    /// The main job does not work without it.
    needed: bool,
    detail: String,
    hint: Option<String>,
}

fn check(check: &'static str, needed: bool, ok: bool, detail: impl Into<String>, hint: &str) -> Check {
    let hint = (!ok).then(|| hint.to_owned()).filter(|h| !h.is_empty());
    Check {
        check,
        ok,
        needed,
        detail: detail.into(),
        hint,
    }
}

fn knows_btrfs() -> bool {
    let known =
        || std::fs::read_to_string("/proc/filesystems").is_ok_and(|t| t.lines().any(|l| l.trim() == "btrfs"));
    // the module may only not be loaded yet
    known() || Path::new("/sys/module/btrfs").exists() || {
        let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        std::fs::read_to_string(format!("/lib/modules/{}/modules.dep", release.trim()))
            .is_ok_and(|t| t.contains("/btrfs.ko"))
    }
}

fn state_space(app: &App) -> Check {
    let dir = app.desk.registry.state_dir();
    let there = dir.ancestors().find(|d| d.exists()).unwrap_or(Path::new("/"));
    match rustix::fs::statvfs(there) {
        Ok(v) => {
            let free = v.f_bavail.saturating_mul(v.f_frsize);
            let detail = format!("{} has {} free", shown_path(dir), size(free));
            check(
                "space",
                true,
                free > 256 << 20,
                detail,
                "free space, or name another folder: --state-dir DIR",
            )
        }
        Err(e) => check(
            "space",
            true,
            false,
            format!("{}: {e}", shown_path(there)),
            "name another folder: --state-dir DIR",
        ),
    }
}

fn pools(app: &App) -> Check {
    let trouble: Vec<String> = app
        .desk
        .registry
        .pools()
        .into_iter()
        .filter_map(|(_, pool)| match pool.and_then(|p| p.status()) {
            Ok(status) => status.trouble,
            Err(e) => Some(e.to_string()),
        })
        .collect();
    let n = app.desk.registry.listed().len();
    let detail = if trouble.is_empty() {
        format!("{n} known, all can be written")
    } else {
        trouble.join("; ")
    };
    check(
        "pools",
        false,
        trouble.is_empty(),
        detail,
        "see: respool pool status",
    )
}

fn conversations(app: &App) -> Check {
    let listing = app.desk.library.list(None);
    let detail = format!(
        "{} found, {} of them damaged",
        listing.conversations.len(),
        listing.damaged.len()
    );
    check(
        "conversations",
        false,
        listing.damaged.is_empty(),
        detail,
        "respool conversations names them",
    )
}

/// Tells what works here.
pub fn run(app: &App) -> Done {
    let root = rustix::process::geteuid().is_root();
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let mut checks = vec![
        check(
            "root",
            true,
            root,
            if root { "running as root" } else { "not root" },
            "run: sudo respool doctor",
        ),
        check(
            "btrfs",
            true,
            knows_btrfs(),
            format!("kernel {}", kernel.trim()),
            "load it: sudo modprobe btrfs",
        ),
        check(
            "loop",
            true,
            Path::new("/dev/loop-control").exists(),
            "loop devices hold the pool where the disk is no Btrfs",
            "load it: sudo modprobe loop (in a container: start it with access to /dev)",
        ),
        state_space(app),
    ];
    if root {
        checks.push(pools(app));
    }
    checks.push(conversations(app));
    let docker = containers();
    let detail = docker
        .as_ref()
        .map_or_else(ToString::to_string, |c| format!("{} containers", c.len()));
    checks.push(check(
        "docker",
        false,
        docker.is_ok(),
        detail,
        "only needed for agents in containers",
    ));
    let works = checks.iter().all(|c| c.ok || !c.needed);
    app.out.result(&checks, || {
        checks
            .iter()
            .map(|c| {
                let mark = match (c.ok, c.needed) {
                    (true, _) => app.out.paint("32", "ok  "),
                    (false, true) => app.out.paint("31", "FAIL"),
                    (false, false) => app.out.paint("33", "note"),
                };
                let hint = c
                    .hint
                    .as_ref()
                    .map_or_else(String::new, |h| format!("\n       {h}"));
                format!("{mark} {:<14} {}{hint}\n", c.check, c.detail)
            })
            .collect()
    })?;
    if works {
        return Ok(());
    }
    // the list itself is the answer; the exit code tells scripts
    std::process::exit(i32::from(Kind::Failed.exit_code()))
}
