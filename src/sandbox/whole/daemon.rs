//! The daemon of a container engine: which process it is, and how it is stopped: by systemd where a unit of it owns the
//! process, else by being told to end. It is never killed.

use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use super::recipe::{Recipe, Runs, recipe};
use crate::process;
use crate::sandbox::boot::Systemd;
use crate::sandbox::docker::{DockerError, Engine, Result};
use crate::text::shown;

/// How long its end is waited for: each container has ten seconds by default, and those were stopped before.
const END: Duration = Duration::from_secs(120);
/// How long the end of its own containerd is waited for.
const HELPER: Duration = Duration::from_secs(20);
/// How long it is watched whether somebody else starts it again.
const RIVAL: Duration = Duration::from_millis(700);
pub(super) const STEP: Duration = Duration::from_millis(30);
/// Programs that end when their only child does.
const SHELLS_OF_ONE: [&str; 5] = ["tini", "docker-init", "dumb-init", "catatonit", "podman-init"];

/// A running daemon.
#[derive(Debug, Clone)]
pub struct Daemon {
    /// Its process.
    pub pid: i32,
    /// When that started.
    pub start: u64,
    /// How it is started.
    pub recipe: Recipe,
}

/// The error for a daemon that cannot be stopped or started.
pub(super) fn refused(why: String, hint: &str) -> DockerError {
    DockerError::Refused {
        why,
        path: None,
        hint: (!hint.is_empty()).then(|| hint.to_owned()),
    }
}

/// The process at the other end of a socket; `None` if it cannot be told, or is the one that starts services.
fn listener(socket: &Path) -> Option<i32> {
    let stream = UnixStream::connect(socket).ok()?;
    let cred = rustix::net::sockopt::socket_peercred(&stream).ok()?;
    let pid = cred.pid.as_raw_nonzero().get();
    is_daemon(pid).then_some(pid)
}

fn is_daemon(pid: i32) -> bool {
    process::stat(pid).is_some_and(|s| s.comm == "dockerd" && !matches!(s.state, 'Z' | 'X'))
}

/// Daemons here that keep their data in this folder.
pub(super) fn daemons_of(data_root: &Path) -> Vec<i32> {
    let of = |pid: &i32| {
        let root = recipe(*pid).map(|r| r.data_root());
        root.is_ok_and(|r| r.canonicalize().unwrap_or(r) == data_root)
    };
    process::pids()
        .into_iter()
        .filter(|p| is_daemon(*p))
        .filter(of)
        .collect()
}

impl Daemon {
    /// The daemon behind an engine, where it is one that can be stopped and started from here.
    pub fn find(engine: &Engine, data_root: &Path) -> Result<Self> {
        let socket = engine.host().strip_prefix("unix://").unwrap_or_default();
        let found = listener(Path::new(socket));
        let found = found.or_else(|| match daemons_of(data_root).as_slice() {
            [one] => Some(*one),
            _ => None,
        });
        let pid = found.ok_or_else(|| {
            refused(
                format!(
                    "no process of this machine could be told to be the dockerd behind {}",
                    shown(engine.host())
                ),
                "run respool where dockerd runs; Podman and Docker Desktop cannot be moved in this way",
            )
        })?;
        let ns = |pid: &str| std::fs::read_link(format!("/proc/{pid}/ns/mnt")).ok();
        if ns(&pid.to_string()) != ns("self") {
            return Err(refused(
                format!(
                    "dockerd (process {pid}) has mounts of its own: what is mounted here is not seen by it"
                ),
                "run respool where dockerd runs",
            ));
        }
        let stat = process::stat(pid).ok_or_else(|| refused("dockerd has just ended".into(), ""))?;
        if let Some(why) = bound(pid, stat.ppid) {
            return Err(refused(
                why,
                "start dockerd as a child of a process that stays, or mount a Btrfs over its data before it starts",
            ));
        }
        let recipe =
            recipe(pid).map_err(|e| refused(format!("process {pid} cannot be looked at: {e}"), ""))?;
        Ok(Self {
            pid,
            start: stat.start,
            recipe,
        })
    }

    /// Stops it, and waits for its end. An error if it lives on, or somebody else starts it again.
    pub fn stop(&self, data_root: &Path) -> Result<()> {
        let helpers = containerds(self.pid);
        match &self.recipe.runs {
            Runs::Systemd { unit, sockets } => {
                let systemd = Systemd::here().ok_or_else(|| refused("systemd is gone".into(), ""))?;
                let all: Vec<&str> = sockets.iter().chain([unit]).map(String::as_str).collect();
                systemd.act("stop", &all)?;
            }
            Runs::ByHand => {
                let pid = rustix::process::Pid::from_raw(self.pid);
                let told = pid.map(|p| rustix::process::kill_process(p, rustix::process::Signal::TERM));
                if let Some(Err(e)) = told.filter(|_| process::alive(self.pid, self.start)) {
                    return Err(refused(format!("dockerd cannot be told to end: {e}"), ""));
                }
            }
        }
        if !until(END, || !process::alive(self.pid, self.start)) {
            return Err(refused(
                format!("dockerd (process {}) does not end", self.pid),
                "its log may say why; it is never killed",
            ));
        }
        // its own containerd has files of the data open, and ends a moment later
        until(HELPER, || {
            !helpers.iter().any(|(pid, start)| process::alive(*pid, *start))
        });
        // a supervisor would bring it up on the old data
        if until(RIVAL, || !daemons_of(data_root).is_empty()) {
            return Err(refused(
                "something starts dockerd again as soon as it ends".into(),
                "stop what watches it (supervisord, runit, a loop in a script) and start dockerd by hand",
            ));
        }
        Ok(())
    }
}

/// The containerd that a daemon runs for itself: process, and when it started.
fn containerds(daemon: i32) -> Vec<(i32, u64)> {
    let all = process::pids().into_iter().filter_map(process::stat);
    all.filter(|s| s.ppid == daemon && s.comm == "containerd")
        .map(|s| (s.pid, s.start))
        .collect()
}

/// Why the end of this process would be the end of more: it is the first of a container, or that ends with it.
fn bound(pid: i32, parent: i32) -> Option<String> {
    if pid == 1 {
        return Some("dockerd is the first process of a container: that would end with it".into());
    }
    let first = process::stat(1).filter(|_| parent == 1)?;
    let of_one = SHELLS_OF_ONE.contains(&first.comm.as_str());
    of_one.then(|| {
        format!(
            "{} ends with dockerd, and the container with it",
            shown(&first.comm)
        )
    })
}

fn until(limit: Duration, mut done: impl FnMut() -> bool) -> bool {
    let began = Instant::now();
    loop {
        if done() {
            return true;
        }
        if began.elapsed() >= limit {
            return false;
        }
        std::thread::sleep(STEP);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_container_that_would_end_is_told() {
        assert!(bound(1, 0).is_some_and(|w| w.contains("first process")));
    }
}
