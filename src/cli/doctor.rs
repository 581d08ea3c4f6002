//! `respool doctor`.

mod container;

use std::path::Path;

use rustix::fs::Access;
use serde::Serialize;

use super::app::App;
use super::hooks::{binary, of_user};
use super::output::Done;
use super::run::folders;
use crate::engine::nodes::Loops;
use crate::failure::Kind;
use crate::rewind::track::{Means, means};
use crate::sandbox::foreground::find_program;
use crate::sandbox::inside::PROGRAMS;
use crate::text::{count, shell_word, shown, shown_path, size};
use crate::watch::agent::Agent;
use crate::watch::hooks::{HookError, State as Hooked, Status, status};

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
    const HINT: &str = "free space, or name another folder: --state-dir DIR";
    let dir = app.desk.registry.state_dir();
    let there = dir.ancestors().find(|d| d.exists()).unwrap_or(Path::new("/"));
    let free = match rustix::fs::statvfs(there) {
        Ok(v) => v.f_bavail.saturating_mul(v.f_frsize),
        Err(e) => return check("space", true, false, format!("{}: {e}", shown_path(there)), HINT),
    };
    let writable = rustix::fs::access(there, Access::WRITE_OK | Access::EXEC_OK).is_ok();
    let detail = if writable {
        format!("{} has {} free", shown_path(dir), size(free))
    } else {
        format!("{} cannot be written by you", shown_path(dir))
    };
    check("space", true, writable && free > 256 << 20, detail, HINT)
}

/// Loop devices, for root: a container may lack their nodes and have the right to make them.
fn loops() -> Loops {
    Loops::look(container::look().is_none_or(|c| c.nodes))
}

/// Which vaults this user can use for the folder that he is in.
fn vaults(app: &App, root: bool) -> [Check; 2] {
    let here = if app.cwd == app.who.home {
        "DIR".into() // a home folder is no workspace
    } else {
        shell_word(&app.cwd)
    };
    let on_btrfs = matches!(means(&app.cwd), Ok(Means::Adopt | Means::Exchange));
    let loops = loops().usable();
    let able = root || served(app);
    let detail = match (able, on_btrfs, knows_btrfs(), loops) {
        (_, _, false, _) => "this kernel has no Btrfs",
        (true, true, ..) => "snapshots on the Btrfs that this folder is on",
        (false, true, ..) => "snapshots on the Btrfs that this folder is on; they belong to you",
        (_, false, _, false) => "needs loop devices, as this folder is on no Btrfs",
        (true, ..) => "snapshots on a loop image",
        (false, ..) => "snapshots on a loop image; needs root or the service",
    };
    let works = knows_btrfs() && (on_btrfs || able && loops);
    let mend = if able {
        "sudo modprobe btrfs loop   (in a container: see its line); copies work without".to_owned()
    } else {
        format!("sudo respool track {here}   (or start the service, below)")
    };
    let copies = "copies: nothing is moved, no root, any file system";
    [
        check("vault-btrfs", false, works, detail, &mend),
        check("vault-copy", false, true, copies, ""),
    ]
}

/// True if the service works for this user.
fn served(app: &App) -> bool {
    app.desk.registry.line().is_some()
}

/// Whether ordinary users need no sudo.
fn service(app: &App, root: bool) -> Check {
    let runs = served(app) || root && Path::new(crate::service::SOCKET).exists();
    let detail = match (runs, root) {
        (true, true) => "ordinary users need no sudo",
        (true, false) => "you need no sudo",
        (false, _) => "without it ordinary users need sudo for snapshots",
    };
    let mend = "sudo systemctl enable --now respool.socket; or, without systemd: sudo respool service";
    check("service", false, runs, detail, mend)
}

/// Whether the kernel tells who writes to a Btrfs: from 6.8 on, to root.
fn writers(root: bool, release: &str) -> Check {
    let mut numbers = release.split(['.', '-']).map_while(|n| n.parse::<u32>().ok());
    let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    let new = version >= (6, 8);
    let detail = match (new, root) {
        (true, true) => "every writer is seen during a rewind (fanotify)",
        (true, false) => "writers with open files are seen during a rewind; all of them as root",
        (false, _) => "writers with open files are seen during a rewind; all of them from Linux 6.8 on",
    };
    check(
        "writers",
        false,
        new && root,
        detail,
        if new { "sudo respool" } else { "a newer kernel" },
    )
}

fn agents(app: &App) -> Check {
    let folders = folders(app);
    let found: Vec<&str> = PROGRAMS
        .iter()
        .copied()
        .filter(|p| find_program(p.as_ref(), &folders, &app.cwd).is_some())
        .collect();
    let read = app.desk.library.agents().join(", ");
    let detail = if found.is_empty() {
        "no agent's program is in PATH".to_owned()
    } else {
        format!("{} found; conversations can be read of: {read}", found.join(", "))
    };
    let hint = "uv tool install openhands --python 3.12   (or start it with its path: respool run -- PATH)";
    check("agents", false, !found.is_empty(), detail, hint)
}

fn hooks(app: &App) -> Check {
    let own = Agent::named(app.desk.agent_of(&app.cwd)).unwrap_or(Agent::OpenHands);
    let hint = format!(
        "respool hooks install {0} --project   (or: respool run -- {0}, which needs none)",
        own.name()
    );
    let all = |program: &Path| -> Result<Vec<Status>, HookError> {
        let each = Agent::ALL.map(|agent| {
            let (project, user) = (agent.in_project(&app.cwd), of_user(app, agent));
            status(agent, Some(&project), &user, program, app.desk.registry.named())
        });
        let each: Vec<Vec<Status>> = each.into_iter().collect::<Result<_, _>>()?;
        Ok(each.concat())
    };
    match binary().and_then(|program| Ok(all(&program)?)) {
        Ok(states) => {
            let at: Vec<String> = states
                .iter()
                .filter(|s| s.state == Hooked::Installed)
                .map(|s| shown_path(&s.path))
                .collect();
            let detail = if at.is_empty() {
                "not installed for this folder".to_owned()
            } else {
                format!("installed in {}", at.join(", "))
            };
            check("hooks", false, !at.is_empty(), detail, &hint)
        }
        Err(e) => check("hooks", false, false, e.message, &hint),
    }
}

fn terminal() -> Check {
    let set = |name: &str| std::env::var(name).ok().filter(|v| !v.is_empty());
    let locale = ["LC_ALL", "LC_CTYPE", "LANG"]
        .into_iter()
        .find_map(set)
        .unwrap_or_default();
    let upper = locale.to_ascii_uppercase();
    let utf8 = upper.contains("UTF-8") || upper.contains("UTF8");
    let term = set("TERM").unwrap_or_default();
    let dumb = term.is_empty() || term == "dumb";
    let (locale, term) = (shown(&locale), shown(&term));
    let detail = match (utf8, dumb) {
        (true, false) => format!("{term}, {locale}"),
        (false, _) => format!("the locale {locale:?} is not UTF-8: lines and signs may be wrong"),
        (true, true) => format!("TERM is {term:?}: the screens need a terminal, the commands do not"),
    };
    let hint = if utf8 {
        "use a terminal emulator"
    } else {
        "export LANG=C.UTF-8"
    };
    check("terminal", false, utf8 && !dumb, detail, hint)
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
    let places: Vec<String> = app.desk.library.places().iter().map(|p| shown_path(p)).collect();
    let detail = format!(
        "{} found, {} of them damaged; looked for in {}",
        listing.conversations.len(),
        listing.damaged.len(),
        places.join(", ")
    );
    check(
        "conversations",
        false,
        listing.damaged.is_empty(),
        detail,
        "respool conversations names them",
    )
}

/// Where the tests run, and where nobody has looked.
const PLATFORMS: &[(&str, &str)] = &[
    (
        "Debian 12, root, kernel 6.x",
        "tested: the whole suite, and in CI",
    ),
    (
        "Debian 12, ordinary user: service, Btrfs, copies",
        "tested, and in CI",
    ),
    ("Ubuntu, Fedora, Arch, openSUSE", "untested"),
    ("WSL2", "untested"),
    (
        "privileged containers, dev containers",
        "tested: loop images where /dev has no nodes for them",
    ),
    ("unprivileged containers", "untested; the copy vault should do"),
    ("macOS, Windows", "not supported"),
];

/// How each container can be covered.
fn docker(app: &App) -> Check {
    let rows = match super::docker::rows(app) {
        Ok(rows) => rows,
        Err(e) => {
            return check(
                "docker",
                false,
                false,
                e.to_string(),
                "only needed for agents in containers",
            );
        }
    };
    let each = rows.iter().map(|r| {
        let better = r
            .verdict
            .better
            .as_ref()
            .map_or_else(String::new, |b| format!("; better: {b}"));
        let (name, word) = (shown(&r.container.name), r.verdict.technique.word());
        let warnings: String = r.warnings().map(|w| format!("\n       {w}")).collect();
        format!("\n       {name}: {word}: {}{better}{warnings}", r.verdict.why)
    });
    let mode = super::docker::mode(app).map_or_else(String::new, |m| format!("\n       {m}"));
    let detail = format!(
        "{}{}{mode}",
        count(rows.len() as u64, "container"),
        each.collect::<String>()
    );
    check("docker", false, true, detail, "")
}

fn all(app: &App) -> Vec<Check> {
    let root = rustix::process::geteuid().is_root();
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let release = release.trim();
    let user = if root { "root" } else { "an ordinary user" };
    let mut checks = vec![
        check("user", false, true, format!("running as {user}"), ""),
        state_space(app),
    ];
    checks.extend(vaults(app, root));
    checks.extend([
        check(
            "btrfs",
            false,
            knows_btrfs(),
            format!("kernel {release}"),
            "load it: sudo modprobe btrfs",
        ),
        check(
            "loop",
            false,
            loops().usable(),
            "loop devices hold the pool where the disk is no Btrfs",
            "load it: sudo modprobe loop (in a container: see its line)",
        ),
    ]);
    checks.extend(container::look().map(|inside| {
        let (ok, detail, hint) = container::told(&inside);
        check("container", false, ok, detail, &hint)
    }));
    checks.extend([service(app, root), writers(root || served(app), release)]);
    if root {
        checks.push(pools(app));
    }
    checks.extend([agents(app), conversations(app), hooks(app), terminal()]);
    checks.push(docker(app));
    checks
}

fn text(app: &App, checks: &[Check]) -> String {
    let mut out = String::new();
    for c in checks {
        let mark = match (c.ok, c.needed) {
            (true, _) => app.out.paint("32", "ok  "),
            (false, true) => app.out.paint("31", "FAIL"),
            (false, false) => app.out.paint("33", "note"),
        };
        let hint = c
            .hint
            .as_ref()
            .map_or_else(String::new, |h| format!("\n       {h}"));
        out += &format!("{mark} {:<14} {}{hint}\n", c.check, c.detail);
    }
    out += "\nplatforms\n";
    for (platform, state) in PLATFORMS {
        out += &format!("  {platform:<50} {state}\n");
    }
    out
}

/// Tells what works here.
pub fn run(app: &App) -> Done {
    let checks = all(app);
    let works = checks.iter().all(|c| c.ok || !c.needed);
    app.out.result(&checks, || text(app, &checks))?;
    if works {
        return Ok(());
    }
    // the list itself is the answer; the exit code tells scripts
    std::process::exit(i32::from(Kind::Failed.exit_code()))
}
