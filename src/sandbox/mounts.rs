//! Mounts, as /proc tells them.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

pub use crate::engine::mounts::{Mount, find, parse};
use crate::process;

/// The mounts that a process sees (`None` = this one), in the order of mounting.
pub fn mounts(pid: Option<i32>) -> io::Result<Vec<Mount>> {
    let name = pid.map_or_else(
        || "/proc/self/mountinfo".to_owned(),
        |p| format!("/proc/{p}/mountinfo"),
    );
    Ok(parse(&fs::read(name)?))
}

/// Mount points strictly below `path`.
pub fn below<'a>(mounts: &'a [Mount], path: &'a Path) -> impl Iterator<Item = &'a Mount> {
    mounts
        .iter()
        .filter(move |m| m.point.starts_with(path) && m.point != path)
}

/// A process in another mount namespace (a container, as a rule) that has `path` or something in it mounted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ForeignMount {
    /// One process of the namespace.
    pub pid: i32,
    /// Its name.
    pub comm: String,
    /// Where it is mounted there.
    pub point: PathBuf,
    /// It goes when it is unmounted here, as it came.
    pub follows: bool,
}

/// True if a mount at a point there goes with the one here: what it is on hears of what is done here.
fn follows(here: (&[Mount], &Mount), there: (&[Mount], &Mount)) -> bool {
    let on = |(all, m): (&[Mount], &Mount)| all.iter().find(|p| p.id == m.parent).map(|p| p.peers.clone());
    let (Some(ours), Some(theirs)) = (on(here), on(there)) else {
        return false;
    };
    let group = |p: &String| p.split_once(':').map(|(_, n)| n.to_owned());
    let told: Vec<String> = ours
        .iter()
        .filter(|p| p.starts_with("shared:"))
        .filter_map(group)
        .collect();
    here.1.point == there.1.point && theirs.iter().filter_map(group).any(|g| told.contains(&g))
}

/// What a path here is within its file system, and the number of that.
pub fn identity(own: &[Mount], path: &Path) -> Option<(String, PathBuf)> {
    let mount = find(own, path)?;
    let rest = path.strip_prefix(&mount.point).ok()?;
    let inside = if rest.as_os_str().is_empty() {
        mount.root.clone()
    } else {
        mount.root.join(rest)
    };
    Some((mount.device.clone(), inside))
}

/// Finds mounts of `path` (or of something below it) in other mount namespaces.
pub fn foreign_mounts(path: &Path) -> io::Result<Vec<ForeignMount>> {
    let own = mounts(None)?;
    let Some(mount) = find(&own, path) else {
        return Ok(Vec::new());
    };
    let Some((_, inside)) = identity(&own, path) else {
        return Ok(Vec::new());
    };
    let mut seen: BTreeSet<PathBuf> = fs::read_link("/proc/self/ns/mnt").into_iter().collect();
    let mut found = Vec::new();
    for pid in process::pids() {
        let Ok(ns) = fs::read_link(format!("/proc/{pid}/ns/mnt")) else {
            continue;
        };
        if !seen.insert(ns) {
            continue;
        }
        let Ok(theirs) = mounts(Some(pid)) else { continue };
        for m in theirs
            .iter()
            .filter(|m| m.device == mount.device && m.root.starts_with(&inside))
        {
            let comm = process::stat(pid).map(|s| s.comm).unwrap_or_default();
            found.push(ForeignMount {
                pid,
                comm,
                point: m.point.clone(),
                follows: mount.point == path && follows((&own, mount), (&theirs, m)),
            });
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mount_that_came_from_here_goes_from_here() {
        let here = parse(b"1 0 0:1 / / rw shared:1 - ext4 a rw\n2 1 0:2 /live /w rw shared:2 - btrfs b rw\n");
        let told = |text: &[u8]| {
            let there = parse(text);
            let mount = there.last().expect("a mount");
            follows((&here, &here[1]), (&there, mount))
        };
        assert!(told(
            b"11 0 0:1 / / rw master:1 - ext4 a rw\n12 11 0:2 /live /w rw master:2 - btrfs b rw\n"
        ));
        assert!(!told(
            b"11 0 0:1 / / rw - ext4 a rw\n12 11 0:2 /live /w rw - btrfs b rw\n"
        ));
        assert!(!told(
            b"11 0 0:1 / / rw master:1 - ext4 a rw\n12 11 0:2 /live /x rw master:2 - btrfs b rw\n"
        ));
        assert_eq!(
            identity(&here, Path::new("/w/a")),
            Some(("0:2".into(), "/live/a".into()))
        );
    }

    #[test]
    fn only_what_is_strictly_below_counts() {
        let all = parse(
            b"1 0 0:1 / / rw - ext4 a rw\n2 1 0:2 / /w rw - btrfs b rw\n3 2 0:3 / /w/x rw - btrfs c rw\n",
        );
        let points: Vec<&Path> = below(&all, Path::new("/w")).map(|m| m.point.as_path()).collect();
        assert_eq!(points, [Path::new("/w/x")]);
        assert_eq!(below(&all, Path::new("/wide")).count(), 0);
    }
}
