//! The shells that OpenHands runs commands in: a tmux server of its own, `tmux -Lopenhands-<hex>`. It outlives an
//! agent that is killed, and the shells stay where they were.

use crate::process;

/// One of these shells.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shell {
    /// The shell, or what runs in it.
    pub pid: i32,
    /// The tmux server that it belongs to.
    pub server: i32,
}

fn is_tmux(pid: i32) -> bool {
    let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let mut words = line.split(|b| *b == 0);
    let first = words.next().unwrap_or_default();
    let tmux = first
        .rsplit(|b| *b == b'/')
        .next()
        .is_some_and(|n| n.starts_with(b"tmux"));
    let rest: Vec<&[u8]> = words.take(4).collect();
    tmux && (rest.iter().any(|w| w.starts_with(b"-Lopenhands-"))
        || rest
            .windows(2)
            .any(|w| w[0] == b"-L" && w[1].starts_with(b"openhands-")))
}

/// Those of these processes that are such shells, or run in one.
pub fn shells(pids: &[i32]) -> Vec<Shell> {
    let found = pids.iter().filter_map(|&pid| {
        let server = process::lineage_of(pid)
            .into_iter()
            .skip(1)
            .find(|p| is_tmux(*p))?;
        Some(Shell { pid, server })
    });
    found.collect()
}
