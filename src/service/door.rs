//! The doors of sandboxes: for each one a folder with a socket, to be mounted into its containers, where an agent's hook
//! says that a message has come. Nothing else can be asked there, and of no other sandbox: which one it is, the socket
//! tells; from which container, the kernel.

use std::collections::{BTreeSet, VecDeque};
use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FlockOperation, Mode, OFlags, flock};

use super::origin::origin;
use super::peer::Peer;
use crate::progress::Progress;
use crate::sandbox::heard::{self, Heard, Way};
use crate::sandbox::inside::remember_caller;
use crate::sandbox::registry::Registry;
use crate::text::{shown, shown_path};
use crate::watch::hook::words;
use crate::watch::line::{LINE, PROGRAM, Reply, SOCKET, Said, read_line};
use crate::watch::{restore_command, take};

/// Doors are looked for again so often, and the end of the service is seen so soon.
const ROUND: Duration = Duration::from_millis(500);
/// How long a hook may take to say its line.
const SLOW: Duration = Duration::from_secs(5);
/// So many checkpoints a minute may one sandbox's agents have.
const A_MINUTE: usize = 120;

/// The folder of all doors of a state folder.
fn doors(state: &Path) -> PathBuf {
    state.join("doors")
}

/// The folder of a sandbox's door: what is mounted into its containers.
pub fn folder(registry: &Registry, sandbox: &str) -> PathBuf {
    doors(registry.state_dir()).join(sandbox)
}

/// Makes the door of a sandbox: its folder, with this program in it. Whoever serves finds it there.
pub fn make(registry: &Registry, sandbox: &str) -> io::Result<PathBuf> {
    let folder = folder(registry, sandbox);
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(doors(registry.state_dir()))?;
    match DirBuilder::new().create(&folder) {
        Err(e) if e.kind() != io::ErrorKind::AlreadyExists => return Err(e),
        _ => {}
    }
    std::fs::set_permissions(&folder, PermissionsExt::from_mode(0o755))?;
    program(&folder)?;
    Ok(folder)
}

/// Takes the door of a sandbox away.
pub fn remove(registry: &Registry, sandbox: &str) -> io::Result<bool> {
    match std::fs::remove_dir_all(folder(registry, sandbox)) {
        Ok(()) => {}
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(false),
        Err(e) => return Err(e),
    }
    match std::fs::remove_file(lock_of(registry, sandbox)) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e),
        _ => Ok(true),
    }
}

/// Whether a sandbox has a door, and whether somebody serves it now.
pub fn state(registry: &Registry, sandbox: &str) -> (bool, bool) {
    let there = folder(registry, sandbox).is_dir();
    let served = File::open(lock_of(registry, sandbox)).is_ok_and(|file| {
        matches!(
            flock(&file, FlockOperation::NonBlockingLockShared),
            Err(rustix::io::Errno::WOULDBLOCK)
        )
    });
    (there, there && served)
}

/// Outside of what containers see.
fn lock_of(registry: &Registry, sandbox: &str) -> PathBuf {
    doors(registry.state_dir()).join(format!("{sandbox}.lock"))
}

/// Puts this program into the folder, where another one or none is there. Whoever is root in a container that has the
/// folder mounted to write may have put something else in its place: it is never opened, only replaced.
fn program(folder: &Path) -> io::Result<()> {
    let own = std::env::current_exe()?;
    let (is, at) = (std::fs::metadata(&own)?, folder.join(PROGRAM));
    let there = std::fs::symlink_metadata(&at);
    if there.is_ok_and(|m| m.is_file() && m.len() == is.len() && m.mtime() >= is.mtime() && m.uid() == 0) {
        return Ok(());
    }
    let temp = folder.join(format!(".{PROGRAM}.{}", std::process::id()));
    let mut to = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o700)
        .open(&temp)?;
    let copied = io::copy(&mut File::open(own)?, &mut to)
        .and_then(|_| to.set_permissions(PermissionsExt::from_mode(0o755)))
        .and_then(|()| std::fs::rename(&temp, &at));
    if copied.is_err() {
        std::fs::remove_file(&temp)?;
    }
    copied
}

/// A door that this process serves.
struct Door {
    sandbox: String,
    listener: UnixListener,
    /// Says to others that it is served.
    _lock: File,
    /// The folder that the socket was made in.
    inode: u64,
    /// When the last ones came.
    recent: VecDeque<Instant>,
}

impl Door {
    /// Opens it; `None` if another process serves it.
    fn open(registry: &Registry, sandbox: &str) -> io::Result<Option<Self>> {
        let path = lock_of(registry, sandbox);
        let mut options = OpenOptions::new();
        let lock = options
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600);
        let lock = lock.open(&path)?;
        if flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err() {
            return Ok(None);
        }
        let folder = folder(registry, sandbox);
        program(&folder)?;
        let socket = folder.join(SOCKET);
        match std::fs::remove_file(&socket) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
            _ => {}
        }
        let listener = UnixListener::bind(&socket)?;
        for_all(&socket)?;
        listener.set_nonblocking(true)?;
        Ok(Some(Self {
            sandbox: sandbox.to_owned(),
            listener,
            _lock: lock,
            inode: std::fs::symlink_metadata(&folder)?.ino(),
            recent: VecDeque::new(),
        }))
    }

    /// Until `stop` says so, or the door is taken away.
    fn serve(&mut self, registry: &Registry, stop: &dyn Progress) {
        let at = folder(registry, &self.sandbox);
        let there = |inode| std::fs::symlink_metadata(&at).is_ok_and(|m| m.ino() == inode);
        let patience = Timespec {
            tv_sec: 0,
            tv_nsec: i64::from(ROUND.subsec_nanos()),
        };
        while !stop.cancelled() && there(self.inode) {
            let mut fds = [PollFd::new(&self.listener, PollFlags::IN)];
            if !matches!(poll(&mut fds, Some(&patience)), Ok(n) if n > 0) {
                continue;
            }
            let answered = self.listener.accept().and_then(|(s, _)| self.answer(registry, s));
            if let Err(e) = answered {
                tracing::debug!("{}: a hook was not answered: {e}", self.sandbox);
            }
        }
    }

    /// One that says its line.
    fn answer(&mut self, registry: &Registry, mut stream: UnixStream) -> io::Result<()> {
        stream.set_nonblocking(false)?;
        stream.set_read_timeout(Some(SLOW))?;
        stream.set_write_timeout(Some(SLOW))?;
        let peer = Peer::of(&stream)?;
        let said: Said = read_line(&stream)?;
        let reply = match self
            .modest()
            .and_then(|()| taken(registry, &self.sandbox, &peer, &said))
        {
            Ok(reply) => reply,
            Err(why) => {
                tracing::warn!("{}: no checkpoint: {}", self.sandbox, shown(&why));
                Reply::None(why.chars().take(1024).collect())
            }
        };
        let mut line = serde_json::to_vec(&reply)?;
        line.push(b'\n');
        line.truncate(usize::try_from(LINE).unwrap_or(usize::MAX));
        stream.write_all(&line)
    }

    fn modest(&mut self) -> Result<(), String> {
        let now = Instant::now();
        let minute = Duration::from_secs(60);
        self.recent.retain(|t| now.duration_since(*t) < minute);
        if self.recent.len() >= A_MINUTE {
            return Err(format!("more than {A_MINUTE} messages a minute"));
        }
        self.recent.push_back(now);
        Ok(())
    }
}

/// Lets everybody who sees the socket connect. What is at the path by now may be a link.
fn for_all(socket: &Path) -> io::Result<()> {
    let fd = rustix::fs::open(
        socket,
        OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC,
        Mode::empty(),
    )?;
    let file = File::from(fd);
    if !file.metadata()?.file_type().is_socket() {
        return Err(io::Error::other("somebody put something else in its place"));
    }
    let own = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&file));
    std::fs::set_permissions(own, PermissionsExt::from_mode(0o666))
}

/// Takes the checkpoint.
fn taken(registry: &Registry, sandbox: &str, peer: &Peer, said: &Said) -> Result<Reply, String> {
    let new = said.checkpoint()?;
    let site = registry.by_id(sandbox).map_err(|e| words(&e))?;
    let site = site
        .filter(|s| s.record.tracked)
        .ok_or_else(|| format!("sandbox {sandbox} is not tracked any more"))?;
    let container = origin(&site, peer)?;
    let taken = take(&site, &new).map_err(|e| words(&e))?;
    let dir = site.dir().map_err(|e| words(&e))?;
    let new = Heard {
        conversation: said.conversation.clone(),
        way: Way::Hook,
        container,
    };
    if let Err(e) = heard::remember(dir, &new) {
        tracing::warn!("{e}");
    }
    if let Err(e) = remember_caller(peer.pid, dir) {
        tracing::warn!("the agent's process is not recorded: {e}");
    }
    let restore = restore_command(registry, &taken.meta.id, &site.record.id);
    Ok(Reply::Taken(taken.meta.id, restore))
}

/// Serves the doors of a state folder, those too that are made later, until `stop` says so. `only`: that sandbox's alone.
/// Each has a thread: what one sandbox's agents do holds up no other.
pub fn serve(registry: &Registry, only: Option<&str>, stop: &dyn Progress) {
    let open: Mutex<BTreeSet<String>> = Mutex::default();
    let known = || open.lock().unwrap_or_else(PoisonError::into_inner);
    std::thread::scope(|threads| {
        while !stop.cancelled() {
            for id in names(registry, only) {
                if known().contains(&id) {
                    continue;
                }
                let mut door = match Door::open(registry, &id) {
                    Ok(Some(door)) => door,
                    Ok(None) => continue,
                    Err(e) => {
                        tracing::warn!("{}: {e}", shown_path(&folder(registry, &id)));
                        continue;
                    }
                };
                known().insert(id.clone());
                threads.spawn(move || {
                    door.serve(registry, stop);
                    known().remove(&id);
                });
            }
            std::thread::sleep(ROUND);
        }
    });
}

fn names(registry: &Registry, only: Option<&str>) -> Vec<String> {
    let all = std::fs::read_dir(doors(registry.state_dir()))
        .into_iter()
        .flatten()
        .flatten();
    let folders = all.filter(|e| e.file_type().is_ok_and(|t| t.is_dir()));
    folders
        .filter_map(|e| e.file_name().into_string().ok())
        .filter(|n| n.starts_with("sb-") && only.is_none_or(|o| o == n))
        .collect()
}
