//! Facts about processes from /proc, and the fault points of the crash tests.

use std::fs;

/// What `/proc/<pid>/stat` says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stat {
    /// The process.
    pub pid: i32,
    /// Its name (hostile: any bytes, replaced where not UTF-8).
    pub comm: String,
    /// `R`, `S`, `T`, ...
    pub state: char,
    /// Its parent.
    pub ppid: i32,
    /// Its process group.
    pub pgrp: i32,
    /// Its session.
    pub session: i32,
    /// The foreground process group of its terminal, -1 if it has none.
    pub foreground: i32,
    /// Start time in clock ticks since boot: with the pid, names one process for ever.
    pub start: u64,
}

/// The stat of a process; `None` if it is gone.
pub fn stat(pid: i32) -> Option<Stat> {
    let text = fs::read(format!("/proc/{pid}/stat")).ok()?;
    let text = String::from_utf8_lossy(&text);
    let open = text.find('(')?;
    let close = text.rfind(')')?;
    let comm = text.get(open + 1..close)?.to_owned();
    let rest: Vec<&str> = text.get(close + 1..)?.split_ascii_whitespace().collect();
    let number = |i: usize| rest.get(i).and_then(|f| f.parse::<i64>().ok());
    Some(Stat {
        pid,
        comm,
        state: rest.first()?.chars().next()?,
        ppid: number(1)? as i32,
        pgrp: number(2)? as i32,
        session: number(3)? as i32,
        foreground: number(5)? as i32,
        start: number(19)? as u64,
    })
}

/// The user that a process belongs to, its real user id (`/proc/PID/status`, proc(5)); `None` if it is gone.
pub fn user(pid: i32) -> Option<u32> {
    let text = fs::read(format!("/proc/{pid}/status")).ok()?;
    let text = String::from_utf8_lossy(&text);
    let line = text.lines().find_map(|l| l.strip_prefix("Uid:"))?;
    line.split_ascii_whitespace().next()?.parse().ok()
}

/// All process ids.
pub fn pids() -> Vec<i32> {
    let Ok(dir) = fs::read_dir("/proc") else {
        return Vec::new();
    };
    let mut pids: Vec<i32> = dir
        .filter_map(|e| e.ok()?.file_name().to_str()?.parse().ok())
        .collect();
    pids.sort_unstable();
    pids
}

/// True if the process that had this start time still lives (zombies do not).
pub fn alive(pid: i32, start: u64) -> bool {
    stat(pid).is_some_and(|s| s.start == start && !matches!(s.state, 'Z' | 'X'))
}

/// True if every thread of the process is stopped or dead.
pub fn all_stopped(pid: i32) -> bool {
    let Ok(tasks) = fs::read_dir(format!("/proc/{pid}/task")) else {
        return true;
    };
    tasks.filter_map(Result::ok).all(|task| {
        let text = fs::read(task.path().join("stat")).unwrap_or_default();
        let state = text
            .iter()
            .rposition(|&b| b == b')')
            .and_then(|i| text.get(i + 2));
        state.is_none_or(|s| matches!(s, b'T' | b't' | b'Z' | b'X'))
    })
}

/// This process and all its ancestors.
pub fn lineage() -> Vec<i32> {
    lineage_of(std::process::id() as i32)
}

/// A process and all its ancestors.
pub fn lineage_of(pid: i32) -> Vec<i32> {
    let mut pids = vec![pid];
    while let Some(s) = pids.last().and_then(|p| stat(*p)) {
        if s.ppid <= 0 || pids.contains(&s.ppid) {
            break;
        }
        pids.push(s.ppid);
    }
    pids
}

/// A point at which the crash tests kill this process (`RESPOOL_KILL_AT` names it) or stop it
/// (`RESPOOL_STOP_AT`), in debug builds. Release builds have none.
pub fn fault_point(name: &str) {
    if !cfg!(debug_assertions) {
        return;
    }
    let named = |variable| std::env::var_os(variable).is_some_and(|n| n == name);
    let own = nix::unistd::Pid::this();
    if named("RESPOOL_STOP_AT") && nix::sys::signal::kill(own, nix::sys::signal::Signal::SIGSTOP).is_err() {
        std::process::abort();
    }
    if named("RESPOOL_KILL_AT") {
        // the test wants exactly this: no unwinding, no clean-up
        if nix::sys::signal::kill(own, nix::sys::signal::Signal::SIGKILL).is_err() {
            std::process::abort();
        }
        loop {
            std::thread::park();
        }
    }
}

/// As [`fault_point`], for one of many like steps: `name-number`.
pub fn fault_step(name: &str, number: u64) {
    if cfg!(debug_assertions) {
        fault_point(&format!("{name}-{number}"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_stat_and_lineage() {
        let own = stat(std::process::id() as i32).expect("own stat");
        assert!(alive(own.pid, own.start));
        assert!(!alive(own.pid, own.start + 1));
        assert!(lineage().contains(&own.ppid) || own.ppid == 0);
        assert!(pids().contains(&own.pid));
    }
}
