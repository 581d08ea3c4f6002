//! What must never be tracked, and who must be gone first.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::Blocker;
use super::error::{Result, RewindError};
use crate::engine::EngineError;
use crate::sandbox::docker::sight::Residents;
use crate::sandbox::holders::{Holder, Place, holders};
use crate::sandbox::mounts::{self, ForeignMount};
use crate::text::{shown, shown_path};

/// A path that a workspace must neither contain nor lie in, and what it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reserved {
    /// The path, resolved.
    pub path: PathBuf,
    /// "the state folder", "the workspace of sandbox sb-..", ...
    pub what: String,
}

const SYSTEM: &[&str] = &[
    "/",
    "/bin",
    "/boot",
    "/dev",
    "/etc",
    "/home",
    "/lib",
    "/lib32",
    "/lib64",
    "/media",
    "/mnt",
    "/opt",
    "/proc",
    "/root",
    "/run",
    "/sbin",
    "/srv",
    "/sys",
    "/tmp",
    "/usr",
    "/usr/local",
    "/var",
    "/var/lib",
    "/var/tmp",
];

fn refused(path: &Path, why: String, hint: &str) -> RewindError {
    RewindError::Refused {
        why,
        path: Some(path.to_owned()),
        hint: Some(hint.to_owned()),
    }
}

fn is_home(path: &Path) -> bool {
    let accounts = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    path.parent() == Some(Path::new("/home"))
        || accounts
            .lines()
            .filter_map(|l| l.split(':').nth(5))
            .any(|h| h.len() > 1 && Path::new(h) == path)
}

/// Refuses what design and common sense forbid. `path` is resolved and is a folder.
pub fn check_place(path: &Path, reserved: &[Reserved]) -> Result<()> {
    const HINT: &str = "track the project's own folder";
    if SYSTEM.iter().any(|s| Path::new(s) == path) || path.starts_with("/proc") || path.starts_with("/sys") {
        return Err(refused(
            path,
            format!("{} is a folder of the system", shown_path(path)),
            HINT,
        ));
    }
    if is_home(path) {
        return Err(refused(
            path,
            format!("{} is a home folder", shown_path(path)),
            HINT,
        ));
    }
    for r in reserved {
        let relation = if r.path.starts_with(path) {
            "contains"
        } else if path.starts_with(&r.path) {
            "lies in"
        } else {
            continue;
        };
        let same = r.path == path;
        let why = if same {
            format!("{} is {}", shown_path(path), r.what)
        } else {
            format!("{} {relation} {}", shown_path(path), r.what)
        };
        return Err(refused(path, why, HINT));
    }
    let all = mounts::mounts(None).map_err(EngineError::io("read the mounts at", path))?;
    if all.iter().any(|m| m.point == path) {
        return Err(refused(
            path,
            format!("{} is a mount point", shown_path(path)),
            "track a folder inside it",
        ));
    }
    if let Some(m) = mounts::below(&all, path).next() {
        let why = format!("{} is a mount point inside it", shown_path(&m.point));
        return Err(refused(path, why, "unmount it first"));
    }
    Ok(())
}

/// Who stands in the way of exchanging a folder: open files and mounts elsewhere stop it, a working folder
/// is told.
pub fn occupants(path: &Path) -> Result<Vec<Blocker>> {
    let meta = std::fs::symlink_metadata(path).map_err(EngineError::io("look at", path))?;
    let held: Vec<Blocker> = holders(&Place::Folder(meta.dev(), path), None)
        .iter()
        .filter_map(|h| occupant(h, path))
        .collect();
    Ok(with_containers(held, &elsewhere(path)?))
}

/// Where a folder is mounted elsewhere, as mounts here have no say.
pub fn elsewhere(path: &Path) -> Result<Vec<ForeignMount>> {
    let all = mounts::foreign_mounts(path).map_err(EngineError::io("read the mounts at", path))?;
    Ok(all.into_iter().filter(|m| !m.follows).collect())
}

/// The words before the name of a container in what helps against it.
const STOP: &str = "; docker stop ";

fn of_container(name: &str, pid: i32, what: &str) -> Blocker {
    let name = shown(name);
    Blocker {
        kind: "container",
        pid: Some(pid),
        what: format!("container {name} {what}{STOP}{name}, then try again, then docker start {name}"),
        stops: true,
    }
}

/// Who holds a folder, and who has it mounted elsewhere: what is in a container is told once, by its name.
pub fn with_containers(held: Vec<Blocker>, mounts: &[ForeignMount]) -> Vec<Blocker> {
    if held.is_empty() && mounts.is_empty() {
        return held;
    }
    let residents = Residents::look();
    let mut out: Vec<Blocker> = Vec::new();
    let mut named: Vec<&str> = Vec::new();
    for m in mounts {
        let point = shown_path(&m.point);
        match residents.of(m.pid) {
            Some(name) if named.contains(&name) => {}
            Some(name) => {
                named.push(name);
                out.push(of_container(name, m.pid, &format!("has it mounted at {point}")));
            }
            None => out.push(Blocker {
                kind: "mount",
                pid: Some(m.pid),
                what: format!("{} has it mounted at {point} (a container?)", shown(&m.comm)),
                stops: true,
            }),
        }
    }
    for b in held {
        match b.pid.and_then(|pid| Some((pid, residents.of(pid)?))) {
            Some((_, name)) if named.contains(&name) => {}
            Some((pid, name)) => {
                named.push(name);
                out.push(of_container(name, pid, "works in it"));
            }
            None => out.push(b),
        }
    }
    out
}

/// Takes what helps away, where nothing has to be done.
pub fn told_only(b: &mut Blocker) {
    if b.kind == "container"
        && let Some((what, _)) = b.what.rsplit_once(STOP)
    {
        b.what = what.to_owned();
    }
}

/// The containers among blockers: what each does, and what helps.
fn containers_in_the_way(path: &Path, blockers: &[Blocker]) -> Option<RewindError> {
    let parts = blockers
        .iter()
        .filter(|b| b.kind == "container" && b.stops)
        .filter_map(|b| b.what.rsplit_once(STOP));
    let (mut does, mut names) = (Vec::new(), Vec::new());
    for (what, then) in parts {
        does.push(what);
        names.extend(then.split(',').next());
    }
    let names = (!names.is_empty()).then(|| names.join(" "))?;
    let why = format!("{}: {}", shown_path(path), does.join("; "));
    let hint = format!("docker stop {names}, then try again, then docker start {names}");
    Some(refused(path, why, &hint))
}

/// What one holder means for an exchange.
pub fn occupant(h: &Holder, path: &Path) -> Option<Blocker> {
    let name = shown(&h.comm);
    if h.open {
        return Some(Blocker {
            kind: "holder",
            pid: Some(h.pid),
            what: format!("{name} has files open in it"),
            stops: true,
        });
    }
    h.cwd.then(|| Blocker {
        kind: "cwd",
        pid: Some(h.pid),
        what: format!(
            "{name} stands in it: afterwards run there: cd {}",
            crate::text::shell_word(path)
        ),
        stops: false,
    })
}

/// The error for blockers that stop; `None` if none does.
pub fn stopped_by(path: &Path, blockers: &[Blocker]) -> Option<RewindError> {
    if let Some(e) = containers_in_the_way(path, blockers) {
        return Some(e);
    }
    let first = blockers.iter().find(|b| b.stops)?;
    let pids: Vec<String> = blockers
        .iter()
        .filter(|b| b.stops)
        .filter_map(|b| b.pid)
        .map(|p| p.to_string())
        .collect();
    if pids.is_empty() {
        let why = format!("{}: {}", shown_path(path), first.what);
        let hint = match first.kind {
            "space" => "free space there, then try again",
            "workspace" => "give it back first: respool untrack, with its path",
            "rights" => "run it as root: sudo respool track ...; or: --vault copy",
            _ => "move it away or unmount it, then try again",
        };
        return Some(refused(path, why, hint));
    }
    let why = format!(
        "{}: process {} ({})",
        shown_path(path),
        pids.join(", "),
        first.what
    );
    Some(refused(path, why, "end them or close the files, then try again"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refuses(path: &str, reserved: &[Reserved]) -> String {
        check_place(Path::new(path), reserved)
            .expect_err("refused")
            .to_string()
    }

    #[test]
    fn system_folders_and_homes_are_refused() {
        for p in ["/", "/etc", "/var", "/usr", "/tmp", "/proc/1", "/home"] {
            assert!(refuses(p, &[]).contains("a folder of the system"), "{p}");
        }
        assert!(refuses("/home/dev", &[]).contains("is a home folder"));
    }

    #[test]
    fn containers_are_named_with_what_helps() {
        let all = [
            of_container("late", 7, "has it mounted at /a; docker stop x, y"),
            of_container("box", 8, "works in it"),
        ];
        let e = stopped_by(Path::new("/w"), &all).expect("in the way");
        assert_eq!(
            e.to_string(),
            "/w: container late has it mounted at /a; docker stop x, y; container box works in it"
        );
        assert_eq!(
            crate::failure::Explain::hint(&e).as_deref(),
            Some("docker stop late box, then try again, then docker start late box")
        );
    }

    #[test]
    fn reserved_places_are_refused_both_ways() {
        let r = [Reserved {
            path: "/srv/x/state".into(),
            what: "the state folder".into(),
        }];
        assert_eq!(refuses("/srv/x", &r), "/srv/x contains the state folder");
        assert_eq!(
            refuses("/srv/x/state/y", &r),
            "/srv/x/state/y lies in the state folder"
        );
        assert_eq!(refuses("/srv/x/state", &r), "/srv/x/state is the state folder");
    }
}
