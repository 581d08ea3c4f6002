//! Who is at the other end of a socket, by the kernel's word.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{PidfdFlags, getgroups, pidfd_open};

use crate::engine::{Reader, ioctl};
use crate::process;

/// A process at the other end.
#[derive(Debug, Clone)]
pub struct Peer {
    /// The process.
    pub pid: i32,
    /// When it started: with the pid, it names one process for ever.
    pub start: u64,
    /// As whom it connected.
    pub uid: u32,
    /// All its groups when it connected.
    pub groups: Vec<u32>,
    /// A handle of that process, for which no other one is ever taken; `None` where Linux has none (before 5.3).
    pub handle: Option<Arc<OwnedFd>>,
}

impl Peer {
    /// By the credentials that the kernel noted when the connection was made (`SO_PEERCRED`, unix(7);
    /// `SO_PEERGROUPS`, `SO_PEERPIDFD`): what the process, or another one with its number, has become since then
    /// changes none of them.
    pub fn of(socket: impl AsFd) -> io::Result<Self> {
        let cred = rustix::net::sockopt::socket_peercred(&socket)?;
        let pid = cred.pid.as_raw_nonzero().get();
        let mut groups = ioctl::peer_groups(&socket)?;
        groups.push(cred.gid.as_raw());
        // before Linux 6.5 another process may have got the number by now
        let handle = match ioctl::peer_process(&socket)? {
            Some(handle) => Some(handle),
            None => pidfd_open(cred.pid, PidfdFlags::empty()).ok(),
        };
        Self {
            pid,
            start: 0,
            uid: cred.uid.as_raw(),
            groups,
            handle: handle.map(Arc::new),
        }
        .started()
    }

    /// This process itself: it works for its own user.
    pub fn own() -> io::Result<Self> {
        let own = rustix::process::getpid();
        let mut groups: Vec<u32> = getgroups()?.iter().map(|g| g.as_raw()).collect();
        groups.push(rustix::process::getegid().as_raw());
        Self {
            pid: own.as_raw_nonzero().get(),
            start: 0,
            uid: rustix::process::geteuid().as_raw(),
            groups,
            handle: pidfd_open(own, PidfdFlags::empty()).ok().map(Arc::new),
        }
        .started()
    }

    /// Reads when it started. It still lives after that: then it was no other one with its number.
    fn started(mut self) -> io::Result<Self> {
        let stat = process::stat(self.pid).ok_or_else(gone)?;
        self.start = stat.start;
        if self.alive() { Ok(self) } else { Err(gone()) }
    }

    /// True while that very process lives.
    pub fn alive(&self) -> bool {
        let Some(handle) = &self.handle else {
            return process::alive(self.pid, self.start);
        };
        // it can be read once the process has ended (pidfd_open(2))
        let mut ended = [PollFd::new(handle, PollFlags::IN)];
        matches!(poll(&mut ended, Some(&Timespec::default())), Ok(0))
    }

    /// As somebody who wants to read.
    pub fn reader(&self) -> Reader {
        Reader {
            uid: self.uid,
            groups: self.groups.clone(),
        }
    }
}

fn gone() -> io::Error {
    io::Error::other("the process is gone, or /proc is not mounted")
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::{UnixListener, UnixStream};
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn the_other_end_is_this_process() {
        let (one, _other) = UnixStream::pair().expect("pair");
        let peer = Peer::of(&one).expect("peer");
        assert_eq!(peer.pid, std::process::id() as i32);
        assert_eq!(peer.uid, rustix::process::geteuid().as_raw());
        assert!(peer.alive());
        let own = Peer::own().expect("own");
        assert_eq!((own.start, own.groups), (peer.start, peer.groups));
    }

    /// Connects with some groups, then becomes a program with others, under the same number.
    const BECOMES: &str = "import os, socket, sys
os.setgroups([4711, 4712])
os.setgid(4713)
s = socket.socket(socket.AF_UNIX)
s.connect(sys.argv[1])
os.set_inheritable(s.fileno(), True)
os.setgroups([])
os.execvp('sleep', ['sleep', '600'])
";

    #[test]
    fn what_it_has_become_since_it_connected_does_not_count() {
        assert!(
            rustix::process::geteuid().is_root(),
            "only root can change groups"
        );
        let dir = tempfile::tempdir().expect("tempdir");
        let path = dir.path().join("sock");
        let listener = UnixListener::bind(&path).expect("socket");
        let mut child = Command::new("python3")
            .args(["-c", BECOMES])
            .arg(&path)
            .stdin(Stdio::null())
            .spawn()
            .expect("python3");
        let (stream, _) = listener.accept().expect("connection");
        let pid = child.id() as i32;
        while process::stat(pid).is_some_and(|s| s.comm != "sleep" && s.state != 'Z') {
            std::thread::yield_now();
        }
        let peer = Peer::of(&stream);
        let lived = peer.as_ref().is_ok_and(Peer::alive);
        child.kill().expect("killed");
        child.wait().expect("ended");
        let peer = peer.expect("peer");
        assert_eq!(peer.groups, [4711, 4712, 4713]);
        assert!(lived && !peer.alive());
        // the number may be another process's by now
        assert!(Peer::of(&stream).is_err());
        assert!(peer.handle.is_some());
    }
}
