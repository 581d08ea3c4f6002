//! Who holds files of a part: processes with an open file, a mapping, a root or a working directory in it.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::process;

/// How to tell that something lies in the part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place<'a> {
    /// On this device: a Btrfs subvolume has a device number of its own, the same under every mount of it.
    Device(u64),
    /// On this device and at or below this path (an ordinary folder).
    Folder(u64, &'a Path),
}

/// A process that holds a part.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holder {
    /// The process.
    pub pid: i32,
    /// Its start time (see [`process::Stat::start`]).
    pub start: u64,
    /// Its name (hostile).
    pub comm: String,
    /// It has a file open for writing.
    pub writes: bool,
    /// It has a file open or mapped.
    pub open: bool,
    /// Its working directory or root is in the part.
    pub cwd: bool,
    /// It is respool, an ancestor of it, in its session or in the foreground of its terminal: never stopped.
    pub own: bool,
    /// A window of this program that writes nothing there: a rewind does not disturb it, nor it the rewind.
    #[serde(default)]
    pub window: bool,
}

impl Place<'_> {
    fn has(&self, link: &str) -> bool {
        // stat through the magic link: no file is opened, and a path is not trusted
        let Ok(meta) = fs::metadata(link) else {
            return false;
        };
        match self {
            Self::Device(dev) => meta.dev() == *dev,
            Self::Folder(dev, path) => {
                meta.dev() == *dev && fs::read_link(link).is_ok_and(|to| to.starts_with(path))
            }
        }
    }
}

fn writable(pid: i32, fd: &str) -> bool {
    let Ok(info) = fs::read_to_string(format!("/proc/{pid}/fdinfo/{fd}")) else {
        return false;
    };
    info.lines()
        .find_map(|l| l.strip_prefix("flags:"))
        .and_then(|f| u32::from_str_radix(f.trim(), 8).ok())
        .is_some_and(|f| f & 3 != 0)
}

fn names(dir: String) -> impl Iterator<Item = String> {
    fs::read_dir(dir)
        .into_iter()
        .flatten()
        .filter_map(|e| e.ok()?.file_name().into_string().ok())
}

fn holder(pid: i32, place: &Place<'_>) -> Option<Holder> {
    let stat = process::stat(pid)?;
    let cwd = place.has(&format!("/proc/{pid}/cwd")) || place.has(&format!("/proc/{pid}/root"));
    let (mut open, mut writes) = (false, false);
    for fd in names(format!("/proc/{pid}/fd")) {
        if place.has(&format!("/proc/{pid}/fd/{fd}")) {
            open = true;
            writes |= writable(pid, &fd);
        }
    }
    if !open {
        open =
            names(format!("/proc/{pid}/map_files")).any(|m| place.has(&format!("/proc/{pid}/map_files/{m}")));
    }
    (cwd || open).then_some(Holder {
        pid,
        start: stat.start,
        comm: stat.comm,
        writes,
        open,
        cwd,
        own: false,
        window: false,
    })
}

/// Processes that must never be stopped: this one, its ancestors, its session, the foreground process group
/// of its terminal. (Stopping the user's shell makes it swallow the next key.) The same for the process on
/// whose behalf this one works, and for those of other users than its own.
struct Own {
    lineage: Vec<i32>,
    stats: Vec<process::Stat>,
    /// The user whose processes alone may be stopped, where that is not root: nobody stops others' by a rewind.
    only: Option<u32>,
}

impl Own {
    fn of(behalf: Option<i32>) -> Self {
        let pids = std::iter::once(std::process::id() as i32).chain(behalf);
        let mut own = Self {
            lineage: Vec::new(),
            stats: Vec::new(),
            // of one that is gone it is not known what it might
            only: behalf
                .map(|pid| process::user(pid).unwrap_or(u32::MAX))
                .filter(|uid| *uid != 0),
        };
        for pid in pids {
            own.lineage.extend(process::lineage_of(pid));
            own.stats.extend(process::stat(pid));
        }
        own
    }

    fn has(&self, pid: i32) -> bool {
        self.lineage.contains(&pid)
            || self.only.is_some_and(|uid| process::user(pid) != Some(uid))
            || process::stat(pid).is_some_and(|s| {
                let with = |o: &process::Stat| {
                    s.session == o.session || (o.foreground > 0 && s.pgrp == o.foreground)
                };
                self.stats.iter().any(with)
            })
    }
}

/// The same program as this one: what changes files in a sandbox holds its lock.
fn same_program(pid: i32) -> bool {
    let file = |pid: &str| {
        let meta = fs::metadata(format!("/proc/{pid}/exe"));
        meta.ok().map(|m| (m.dev(), m.ino()))
    };
    let own = file("self");
    own.is_some() && file(&pid.to_string()) == own
}

/// All holders, by pid. As root all of them are seen; else those of the same user. `behalf`: the process on whose
/// behalf this one works, if it is another.
pub fn holders(place: &Place<'_>, behalf: Option<i32>) -> Vec<Holder> {
    let own = Own::of(behalf);
    let me = std::process::id() as i32;
    process::pids()
        .into_iter()
        .filter(|pid| *pid != me)
        .filter_map(|pid| holder(pid, place))
        .map(|h| Holder {
            own: own.has(h.pid),
            window: !h.writes && same_program(h.pid),
            ..h
        })
        .collect()
}

/// Processes that were seen to write, as holders; those that are gone are left out.
pub fn known(pids: &BTreeSet<i32>, behalf: Option<i32>) -> Vec<Holder> {
    let own = Own::of(behalf);
    let stats = pids.iter().filter_map(|pid| process::stat(*pid));
    stats
        .map(|s| Holder {
            pid: s.pid,
            start: s.start,
            writes: true,
            open: false,
            cwd: false,
            own: own.has(s.pid),
            window: false,
            comm: s.comm,
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    #[test]
    fn a_child_with_cwd_and_open_file_is_found() {
        let dir = tempfile::tempdir().expect("tempdir");
        let path = dir.path().canonicalize().expect("path");
        let mut child = Command::new("sh")
            .args(["-c", "exec 7>held; echo ready; exec cat"])
            .current_dir(&path)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("sh");
        let mut line = String::new();
        std::io::BufRead::read_line(
            &mut std::io::BufReader::new(child.stdout.take().expect("stdout")),
            &mut line,
        )
        .expect("ready");
        let dev = fs::metadata(&path).expect("stat").dev();
        let found = holders(&Place::Folder(dev, &path), None);
        let other = holders(&Place::Folder(dev, &path.join("none")), None);
        child.kill().expect("kill");
        child.wait().expect("wait");
        let h = found.iter().find(|h| h.pid == child.id() as i32).expect("found");
        assert!(h.cwd && h.open && h.writes && h.own, "{h:?}");
        assert!(other.iter().all(|h| h.pid != child.id() as i32));
    }
}
