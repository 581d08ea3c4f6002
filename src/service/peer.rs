//! Who is at the other end of a socket, by the kernel's word.

use std::io;
use std::os::fd::AsFd;

use crate::engine::Reader;
use crate::process;

/// A process at the other end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Peer {
    /// The process.
    pub pid: i32,
    /// When it started: with the pid, it names one process for ever.
    pub start: u64,
    /// As whom it connected.
    pub uid: u32,
    /// All its groups.
    pub groups: Vec<u32>,
}

impl Peer {
    /// By the credentials that the kernel noted when the connection was made (`SO_PEERCRED`, unix(7)).
    pub fn of(socket: impl AsFd) -> io::Result<Self> {
        let cred = rustix::net::sockopt::socket_peercred(socket)?;
        let pid = cred.pid.as_raw_nonzero().get();
        let stat = process::stat(pid).ok_or_else(|| io::Error::other("the process is gone"))?;
        let mut groups = supplementary(pid);
        groups.push(cred.gid.as_raw());
        Ok(Self {
            pid,
            start: stat.start,
            uid: cred.uid.as_raw(),
            groups,
        })
    }

    /// This process itself: it works for its own user.
    pub fn own() -> io::Result<Self> {
        let pid = std::process::id() as i32;
        let stat = process::stat(pid).ok_or_else(|| io::Error::other("/proc is not mounted"))?;
        let mut groups = supplementary(pid);
        groups.push(rustix::process::getegid().as_raw());
        Ok(Self {
            pid,
            start: stat.start,
            uid: rustix::process::geteuid().as_raw(),
            groups,
        })
    }

    /// True while that very process lives.
    pub fn alive(&self) -> bool {
        process::alive(self.pid, self.start)
    }

    /// As somebody who wants to read.
    pub fn reader(&self) -> Reader {
        Reader {
            uid: self.uid,
            groups: self.groups.clone(),
        }
    }
}

/// The supplementary groups (`/proc/PID/status`, proc(5)); none if they cannot be read.
fn supplementary(pid: i32) -> Vec<u32> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = text.lines().find_map(|l| l.strip_prefix("Groups:"));
    line.unwrap_or_default()
        .split_ascii_whitespace()
        .filter_map(|g| g.parse().ok())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_other_end_is_this_process() {
        let (one, _other) = std::os::unix::net::UnixStream::pair().expect("pair");
        let peer = Peer::of(&one).expect("peer");
        assert_eq!(peer.pid, std::process::id() as i32);
        assert_eq!(peer.uid, rustix::process::geteuid().as_raw());
        assert!(peer.alive());
    }
}
