//! Mounts, as /proc tells them.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use crate::process;

/// A line of a mountinfo file (proc_pid_mountinfo(5)).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mount {
    /// `major:minor` of the file system.
    pub device: String,
    /// What of the file system is shown: a path inside it.
    pub root: PathBuf,
    /// Where it is shown.
    pub point: PathBuf,
    /// The type: `btrfs`, `ext4`, ...
    pub fs_type: String,
    /// The device or source.
    pub source: PathBuf,
}

fn unescape(field: &[u8]) -> PathBuf {
    let mut out = Vec::with_capacity(field.len());
    let mut i = 0;
    while i < field.len() {
        let octal = field
            .get(i + 1..i + 4)
            .filter(|d| field[i] == b'\\' && d.iter().all(|c| (b'0'..=b'7').contains(c)));
        if let Some(d) = octal {
            out.push(
                d.iter()
                    .fold(0u8, |n, c| n.wrapping_mul(8).wrapping_add(c - b'0')),
            );
            i += 4;
        } else {
            out.push(field[i]);
            i += 1;
        }
    }
    PathBuf::from(OsString::from_vec(out))
}

fn parse(line: &[u8]) -> Option<Mount> {
    let fields: Vec<&[u8]> = line.split(|b| *b == b' ').collect();
    let dash = fields.iter().position(|f| *f == b"-")?;
    Some(Mount {
        device: String::from_utf8_lossy(fields.get(2)?).into_owned(),
        root: unescape(fields.get(3)?),
        point: unescape(fields.get(4)?),
        fs_type: String::from_utf8_lossy(fields.get(dash + 1)?).into_owned(),
        source: unescape(fields.get(dash + 2)?),
    })
}

/// The mounts that a process sees (`None` = this one), in the order of mounting.
pub fn mounts(pid: Option<i32>) -> io::Result<Vec<Mount>> {
    let name = pid.map_or_else(
        || "/proc/self/mountinfo".to_owned(),
        |p| format!("/proc/{p}/mountinfo"),
    );
    let text = fs::read(name)?;
    Ok(text.split(|b| *b == b'\n').filter_map(parse).collect())
}

/// The mount that shows `path`, which must be absolute and resolved: the last one of the longest prefix.
pub fn mount_of<'a>(mounts: &'a [Mount], path: &Path) -> Option<&'a Mount> {
    mounts
        .iter()
        .filter(|m| path.starts_with(&m.point))
        .max_by_key(|m| m.point.as_os_str().as_bytes().len())
        .map(|best| {
            mounts
                .iter()
                .rev()
                .find(|m| m.point == best.point)
                .unwrap_or(best)
        })
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
}

/// Finds mounts of `path` (or of something below it) in other mount namespaces.
pub fn foreign_mounts(path: &Path) -> io::Result<Vec<ForeignMount>> {
    let own = mounts(None)?;
    let Some(mount) = mount_of(&own, path) else {
        return Ok(Vec::new());
    };
    let inside = match path.strip_prefix(&mount.point) {
        Ok(rest) if rest.as_os_str().is_empty() => mount.root.clone(),
        Ok(rest) => mount.root.join(rest),
        Err(_) => return Ok(Vec::new()),
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
            });
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_with_escapes() {
        let m = parse(b"36 35 98:0 /mnt\\0401 /mnt\\0122 rw,noatime master:1 - ext3 /dev/root rw")
            .expect("parses");
        assert_eq!(
            (m.root.as_path(), m.point.as_path()),
            (Path::new("/mnt 1"), Path::new("/mnt\n2"))
        );
        assert_eq!(
            (m.device.as_str(), m.fs_type.as_str(), m.source.as_path()),
            ("98:0", "ext3", Path::new("/dev/root"))
        );
        assert_eq!(parse(b""), None);
    }

    #[test]
    fn the_longest_and_last_mount_wins() {
        let m = |point: &str, source: &str| Mount {
            device: "0:1".into(),
            root: "/".into(),
            point: point.into(),
            fs_type: "x".into(),
            source: source.into(),
        };
        let all = [m("/", "a"), m("/w", "b"), m("/w", "c"), m("/wide", "d")];
        assert_eq!(
            mount_of(&all, Path::new("/w/x")).map(|m| m.source.as_path()),
            Some(Path::new("c"))
        );
        assert_eq!(
            mount_of(&all, Path::new("/wi")).map(|m| m.source.as_path()),
            Some(Path::new("a"))
        );
        assert_eq!(below(&all, Path::new("/w")).count(), 0);
    }
}
