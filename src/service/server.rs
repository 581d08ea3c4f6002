//! The service's end: connections, each with its own thread, and a thread for each request.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::answer::{Found, View};
use super::door;
use super::frame::{Answer, Ask, Hello, Outcome, VERSION, read, read_ask, write};
use super::peer::Peer;
use super::tenant::{Realm, sweep_all};
use super::{Result, ServiceError};
use crate::failure::{Kind, Report};
use crate::progress::{CancelFlag, Progress, Until};
use crate::sandbox::registry::Registry;
use crate::sandbox::remote::{Ask as About, Request};
use crate::timeline::counts::Known;

/// Connections at the same time, in all and of one user.
const CONNECTIONS: usize = 256;
const OF_ONE_USER: usize = 64;
/// Requests at the same time on one connection, and of one user.
const REQUESTS: usize = 16;
const REQUESTS_OF_ONE_USER: usize = 64;
/// Contents longer than this (bytes) are read for one user one after the other: each is in memory several times until
/// it is sent.
const LONG: u64 = 32 << 20;
/// How long the first frame, or the rest of one that has begun, may take.
pub(super) const SLOW: Duration = Duration::from_secs(10);
/// The longest greeting, in bytes.
pub(super) const GREETING: usize = 64 << 10;
/// How often progress is told.
const TELL: Duration = Duration::from_millis(33);
/// How long work that was cancelled is waited for at the end.
const LAST: Duration = Duration::from_secs(60);

fn locked<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What one user has under way.
#[derive(Default)]
struct Load {
    connections: usize,
    requests: usize,
    /// Held while a long content is read.
    long: Arc<Mutex<()>>,
}

/// What all connections share.
pub(super) struct Shared {
    state: Registry,
    found: Arc<Found>,
    counts: Arc<Known>,
    users: Mutex<HashMap<u32, Load>>,
    /// Requests that are being answered, and a bell for when one is done.
    busy: Mutex<usize>,
    bell: Condvar,
    stop: CancelFlag,
}

impl Shared {
    pub(super) fn new(state: Registry) -> Arc<Self> {
        Arc::new(Self {
            state,
            found: Arc::default(),
            counts: Arc::default(),
            users: Mutex::default(),
            busy: Mutex::new(0),
            bell: Condvar::new(),
            stop: CancelFlag::new(),
        })
    }

    /// Its own state.
    pub(super) fn state(&self) -> Registry {
        self.state.clone()
    }

    /// Numbers of change lists.
    pub(super) fn counts(&self) -> Arc<Known> {
        Arc::clone(&self.counts)
    }

    /// Counts one more request of this user, if there are not too many.
    fn begin(&self, uid: u32, weight: usize) -> bool {
        let mut users = locked(&self.users);
        let own = users.entry(uid).or_default();
        if uid != 0 && own.requests + weight > REQUESTS_OF_ONE_USER {
            return false;
        }
        own.requests += weight;
        *locked(&self.busy) += 1;
        true
    }

    fn end(&self, uid: u32, weight: usize) {
        let mut users = locked(&self.users);
        if let Some(own) = users.get_mut(&uid) {
            own.requests -= weight;
        }
        users.retain(|_, l| l.connections > 0 || l.requests > 0);
        *locked(&self.busy) -= 1;
        self.bell.notify_all();
    }

    /// Cancels what is under way, and waits for its end; false if that takes longer than `patience`.
    pub(super) fn wind_up(&self, patience: Duration) -> bool {
        self.stop.cancel();
        let busy = locked(&self.busy);
        let waited = self.bell.wait_timeout_while(busy, patience, |busy| *busy > 0);
        waited.is_ok_and(|(busy, _)| *busy == 0)
    }
}

/// The socket, and whether it was handed over by the system's manager.
pub struct Socket {
    listener: UnixListener,
    /// To be removed at the end.
    path: Option<PathBuf>,
}

impl Socket {
    /// The socket that systemd hands over (`LISTEN_FDS`, sd_listen_fds(3)), else a new one at `path`. Everybody may
    /// connect: who asks is known by the kernel's word.
    pub fn open(path: &Path) -> Result<Self> {
        let failed = |what| {
            let path = path.to_owned();
            move |source| ServiceError::Io { what, path, source }
        };
        let given = listenfd::ListenFd::from_env().take_unix_listener(0);
        if let Some(listener) = given.map_err(failed("take over"))? {
            return Ok(Self { listener, path: None });
        }
        if UnixStream::connect(path).is_ok() {
            return Err(failed("listen at")(io::Error::other(
                "a service is there already",
            )));
        }
        match fs::symlink_metadata(path) {
            Ok(meta) if std::os::unix::fs::FileTypeExt::is_socket(&meta.file_type()) => {
                // what one that was killed left
                fs::remove_file(path).map_err(failed("remove"))?;
            }
            _ => {}
        }
        let listener = UnixListener::bind(path).map_err(failed("listen at"))?;
        fs::set_permissions(path, fs::Permissions::from_mode(0o666)).map_err(failed("open up"))?;
        Ok(Self {
            listener,
            path: Some(path.to_owned()),
        })
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        if let Some(Err(e)) = self.path.as_ref().map(fs::remove_file) {
            tracing::warn!("the socket stays: {e}");
        }
    }
}

/// Serves until `stop` says so, and the doors of its own state beside it: those of users' states are served by who
/// watches there.
pub fn serve(socket: &Socket, state: Registry, stop: &dyn Progress) -> Result<()> {
    let doors = state.clone();
    let end = Until::new(stop);
    std::thread::scope(|threads| {
        let beside = std::thread::Builder::new().name("doors".into());
        if let Err(e) = beside.spawn_scoped(threads, || door::serve(&doors, None, &end)) {
            tracing::warn!("no hook inside a container is heard: {e}");
        }
        let served = serve_socket(socket, state, stop);
        end.end();
        served
    })
}

/// Serves until `stop` says so; then what is under way is cancelled and waited for.
fn serve_socket(socket: &Socket, state: Registry, stop: &dyn Progress) -> Result<()> {
    let shared = Shared::new(state);
    sweep_all(&shared.state);
    let failed = |source| ServiceError::Io {
        what: "listen at",
        path: socket.path.clone().unwrap_or_default(),
        source,
    };
    socket.listener.set_nonblocking(true).map_err(failed)?;
    while !stop.cancelled() {
        shared.found.sweep();
        let mut fds = [PollFd::new(&socket.listener, PollFlags::IN)];
        let patience = Timespec {
            tv_sec: 1,
            tv_nsec: 0,
        };
        match poll(&mut fds, Some(&patience)) {
            Ok(0) | Err(rustix::io::Errno::INTR) => continue,
            Ok(_) => {}
            Err(e) => return Err(failed(e.into())),
        }
        match socket.listener.accept() {
            Ok((stream, _)) => welcome(&shared, stream),
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
            Err(e) => {
                tracing::warn!("a connection was not taken: {e}");
                std::thread::sleep(TELL);
            }
        }
    }
    if !shared.wind_up(LAST) {
        tracing::warn!("some work did not end; respool recover finishes it");
    }
    Ok(())
}

/// Takes a connection of somebody who does not have too many.
fn welcome(shared: &Arc<Shared>, stream: UnixStream) {
    let taken = || -> io::Result<()> {
        stream.set_nonblocking(false)?;
        let peer = Peer::of(&stream)?;
        let seat = Seat::take(shared, peer.uid).ok_or_else(|| io::Error::other("too many connections"))?;
        let shared = Arc::clone(shared);
        std::thread::Builder::new()
            .name("connection".into())
            .spawn(move || {
                let _seat = seat;
                let pid = peer.pid;
                if let Err(e) = converse(&shared, &stream, peer) {
                    tracing::debug!("a connection ended: {e}");
                }
                shared.found.forget(pid);
            })?;
        Ok(())
    };
    if let Err(e) = taken() {
        tracing::debug!("a connection was turned away: {e}");
    }
}

/// One of the connections of a user.
struct Seat(Arc<Shared>, u32);

impl Seat {
    fn take(shared: &Arc<Shared>, uid: u32) -> Option<Self> {
        let mut users = locked(&shared.users);
        let all: usize = users.values().map(|l| l.connections).sum();
        let own = users.entry(uid).or_default();
        if uid != 0 && (all >= CONNECTIONS || own.connections >= OF_ONE_USER) {
            return None;
        }
        own.connections += 1;
        Some(Self(Arc::clone(shared), uid))
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut users = locked(&self.0.users);
        if let Some(own) = users.get_mut(&self.1) {
            own.connections -= 1;
        }
        users.retain(|_, l| l.connections > 0 || l.requests > 0);
    }
}

/// Waits as long as nothing comes; what has begun must come soon.
struct Patient<'a>(&'a UnixStream);

impl io::Read for Patient<'_> {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        let n = (&mut &*self.0).read(to)?;
        self.0.set_read_timeout(Some(SLOW))?;
        Ok(n)
    }
}

fn converse(shared: &Arc<Shared>, stream: &UnixStream, peer: Peer) -> io::Result<()> {
    stream.set_read_timeout(Some(SLOW))?;
    // progress must not hold up the work for a client that does not read
    stream.set_write_timeout(Some(SLOW))?;
    let view = |named: Option<&Path>| {
        let realm = Realm::of(&peer, &shared.state, named);
        Ok(View {
            peer,
            realm,
            state: shared.state.clone(),
            found: Arc::clone(&shared.found),
            counts: Arc::clone(&shared.counts),
            library: None,
        })
    };
    let next = || {
        stream.set_read_timeout(None)?;
        read_ask(&mut Patient(stream))
    };
    let Some(hello) = read(&mut &*stream, GREETING)? else {
        return Ok(());
    };
    talk(shared, hello, Box::new(stream.try_clone()?), view, next)
}

/// Answers the greeting, and then what `next` reads until there is no more. `view`: of the state folder that was
/// named.
pub(super) fn talk(
    shared: &Arc<Shared>,
    hello: Hello,
    mut to: Box<dyn io::Write + Send>,
    view: impl FnOnce(Option<&Path>) -> io::Result<View>,
    mut next: impl FnMut() -> io::Result<Option<Ask>>,
) -> io::Result<()> {
    write(&mut to, &Hello::own(None))?;
    if hello.version != VERSION {
        return Ok(());
    }
    let named = hello.state_dir.map(|d| d.0).filter(|d| d.is_absolute());
    let line = Arc::new(Connection {
        shared: Arc::clone(shared),
        view: view(named.as_deref())?,
        to: Mutex::new(to),
        running: Mutex::default(),
        ended: CancelFlag::new(),
    });
    let mut read_all = || -> io::Result<()> {
        while let Some(ask) = next()? {
            line.take(ask)?;
        }
        Ok(())
    };
    let outcome = read_all();
    // who asked is gone: what is under way goes back to where it was
    line.ended.cancel();
    outcome
}

struct Connection {
    shared: Arc<Shared>,
    view: View,
    to: Mutex<Box<dyn io::Write + Send>>,
    running: Mutex<HashMap<u64, Arc<CancelFlag>>>,
    ended: CancelFlag,
}

impl Connection {
    fn take(self: &Arc<Self>, ask: Ask) -> io::Result<()> {
        let mut running = locked(&self.running);
        let Some(request) = ask.request else {
            if let Some(flag) = running.get(&ask.id).filter(|_| ask.cancel) {
                flag.cancel();
            }
            return Ok(());
        };
        let fits = running.len() < REQUESTS && !running.contains_key(&ask.id);
        if !fits || !self.shared.begin(self.view.peer.uid, ask.weight) {
            drop(running);
            let report = Report {
                kind: Kind::Refused,
                message: "too many requests at the same time".into(),
                path: None,
                hint: None,
            };
            return self.tell(ask.id, Outcome::Error(report));
        }
        let flag = Arc::new(CancelFlag::new());
        running.insert(ask.id, Arc::clone(&flag));
        drop(running);
        let line = Arc::clone(self);
        let spawned = std::thread::Builder::new()
            .name("request".into())
            .spawn(move || line.answer(ask.id, ask.weight, request, flag));
        if let Err(e) = spawned {
            self.shared.end(self.view.peer.uid, ask.weight);
            return Err(e);
        }
        Ok(())
    }

    fn answer(&self, id: u64, weight: usize, request: Request, flag: Arc<CancelFlag>) {
        let _done = Done(self, weight);
        let told = Told {
            line: self,
            id,
            flag,
            last: AtomicU64::new(0),
            since: Instant::now(),
        };
        let long = self.long(&request);
        let _turn = long.as_ref().map(|long| locked(long));
        let outcome = match self.view.answer(request, &told) {
            Ok(value) => Outcome::Ok(value),
            Err(report) => Outcome::Error(report),
        };
        // from here on the client may use the number again
        locked(&self.running).remove(&id);
        if let Err(e) = self.tell(id, outcome) {
            tracing::debug!("nobody takes the answer: {e}");
        }
    }

    fn tell(&self, id: u64, outcome: Outcome) -> io::Result<()> {
        write(&mut *locked(&self.to), &Answer { id, outcome })
    }

    /// What is held while this is answered, if it may be long.
    fn long(&self, request: &Request) -> Option<Arc<Mutex<()>>> {
        let Request::Of(_, About::Read(_, _, LONG..)) = request else {
            return None;
        };
        let mut users = locked(&self.shared.users);
        Some(Arc::clone(&users.entry(self.view.peer.uid).or_default().long))
    }
}

/// However a request ends, it is no longer waited for.
struct Done<'a>(&'a Connection, usize);

impl Drop for Done<'_> {
    fn drop(&mut self) {
        self.0.shared.end(self.0.view.peer.uid, self.1);
    }
}

/// Progress, told to the client; cancelled by it, by the end of its line, or by the end of the service.
struct Told<'a> {
    line: &'a Connection,
    id: u64,
    flag: Arc<CancelFlag>,
    last: AtomicU64,
    since: Instant,
}

impl Progress for Told<'_> {
    fn step(&self, what: &'static str, done: u64, total: u64) {
        let now = self.since.elapsed().as_millis() as u64;
        let last = self.last.load(Ordering::Relaxed);
        if now < last + TELL.as_millis() as u64 && last != 0 {
            return;
        }
        if self
            .last
            .compare_exchange(last, now.max(1), Ordering::Relaxed, Ordering::Relaxed)
            .is_ok()
        {
            let told = self
                .line
                .tell(self.id, Outcome::Progress(what.into(), done, total));
            if told.is_err() {
                // nobody is there any more
                self.flag.cancel();
            }
        }
    }

    fn cancelled(&self) -> bool {
        self.flag.is_set() || self.line.ended.is_set() || self.line.shared.stop.is_set()
    }
}
