//! The client's end of the line.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde_json::Value;

use super::frame::{Answer, Ask, FROM_SERVICE, Hello, Outcome, VERSION, read, write};
use super::{Result, ServiceError};
use crate::engine::EngineError;
use crate::failure::{Kind, Report};
use crate::progress::Progress;
use crate::sandbox::remote::{Line, Request};
use crate::text::ExactPath;

/// How soon a cancel is sent.
const PATIENCE: Duration = Duration::from_millis(50);

/// Who waits for which number; `None` once the line has ended.
type Waiting = Arc<Mutex<Option<HashMap<u64, Sender<Outcome>>>>>;

/// A connection to the service. Any number of threads may ask at the same time.
pub struct Client {
    to: Mutex<Box<dyn Write + Send>>,
    waiting: Waiting,
    next: AtomicU64,
    far: bool,
}

fn locked<T: ?Sized>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Client {
    /// Connects to the service's socket; `None` if nobody listens there. Refused if it is not root who does.
    pub fn connect(socket: &Path, state_dir: Option<&Path>) -> Result<Option<Self>> {
        let stream = match UnixStream::connect(socket) {
            Ok(stream) => stream,
            Err(e) if absent(&e) => return Ok(None),
            Err(source) => return Err(io("connect to", socket)(source)),
        };
        let cred =
            rustix::net::sockopt::socket_peercred(&stream).map_err(|e| io("look at", socket)(e.into()))?;
        let (uid, pid) = (cred.uid.as_raw(), cred.pid.as_raw_nonzero().get());
        if uid != 0 {
            let path = socket.to_owned();
            return Err(ServiceError::Foreign { path, pid, uid });
        }
        let from = stream.try_clone().map_err(io("connect to", socket))?;
        Self::over(from, stream, state_dir, false).map(Some)
    }

    /// Over any pair of streams; `far`: the service is on another machine.
    pub fn over(
        mut from: impl Read + Send + 'static,
        mut to: impl Write + Send + 'static,
        state_dir: Option<&Path>,
        far: bool,
    ) -> Result<Self> {
        let line = |e: std::io::Error| ServiceError::Line(e.to_string());
        let hello = Hello::own(state_dir.map(|d| ExactPath(d.to_owned())));
        write(&mut to, &hello).map_err(line)?;
        let answer: Option<Hello> = read(&mut from, 1 << 16).map_err(line)?;
        let other = answer.ok_or_else(|| ServiceError::Line("it was closed at once".into()))?;
        if other.version != VERSION {
            return Err(ServiceError::Line(format!(
                "respool {} is at the other end, {} here: they do not understand each other",
                crate::text::shown(&other.program),
                env!("CARGO_PKG_VERSION")
            )));
        }
        let waiting: Waiting = Arc::new(Mutex::new(Some(HashMap::new())));
        let shared = Arc::clone(&waiting);
        std::thread::Builder::new()
            .name("service line".into())
            .spawn(move || distribute(&mut from, &shared))
            .map_err(line)?;
        Ok(Self {
            to: Mutex::new(Box::new(to)),
            waiting,
            next: AtomicU64::new(1),
            far,
        })
    }

    fn send(&self, ask: &Ask) -> crate::engine::Result<()> {
        write(&mut *locked(&self.to), ask).map_err(|e| lost(&e.to_string()))
    }
}

fn io(what: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> ServiceError {
    let path = path.to_owned();
    move |source| ServiceError::Io { what, path, source }
}

/// True if nobody listens there.
fn absent(e: &std::io::Error) -> bool {
    use std::io::ErrorKind::{ConnectionRefused, NotFound, PermissionDenied};
    matches!(e.kind(), NotFound | ConnectionRefused | PermissionDenied)
}

fn lost(why: &str) -> EngineError {
    EngineError::Remote(Report {
        kind: Kind::Failed,
        message: format!("the line to the service broke: {}", crate::text::shown(why)),
        path: None,
        hint: Some("what it was doing is in respool log; see: respool doctor".into()),
    })
}

/// Hands each answer to who waits for it, until the line ends; then nobody waits any more.
fn distribute(from: &mut impl Read, waiting: &Waiting) {
    while let Ok(Some(Answer { id, outcome })) = read(from, FROM_SERVICE) {
        let last = !matches!(outcome, Outcome::Progress(..));
        let mut waiting = locked(waiting);
        let Some(waiting) = waiting.as_mut() else { break };
        if let Some(to) = waiting.get(&id) {
            // who does not wait any more does not need it
            drop(to.send(outcome));
        }
        if last {
            waiting.remove(&id);
        }
    }
    *locked(waiting) = None;
}

/// The name of a phase, as the rooms above know it.
fn phase(word: &str) -> &'static str {
    const KNOWN: &[&str] = &[
        "checking",
        "comparing",
        "copying",
        "playing messages",
        "reading",
        "removing checkpoints",
        "restoring",
        "restoring containers",
        "restoring Docker's data",
        "safety checkpoint",
        "stopping writers",
    ];
    if let Some(known) = KNOWN.iter().find(|k| **k == word) {
        return known;
    }
    // with a container's name in it
    if ["stopping container", "starting container"]
        .iter()
        .any(|w| word.starts_with(w))
    {
        return crate::progress::named(&crate::text::shown(word), "working");
    }
    "working"
}

impl Line for Client {
    fn call(&self, request: &Request, progress: &dyn Progress) -> crate::engine::Result<Value> {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let (tell, answers) = channel();
        let ended = || lost("the service ended");
        locked(&self.waiting).as_mut().ok_or_else(ended)?.insert(id, tell);
        self.send(&Ask {
            id,
            request: Some(request.clone()),
            cancel: false,
            weight: 1,
        })?;
        let value = self.wait(id, &answers, progress)?;
        // conversations are hostile at home, too
        let trusted = !self.far || matches!(request, Request::Library(_));
        Ok(if trusted {
            value
        } else {
            crate::text::harmless(value)
        })
    }

    fn far(&self) -> bool {
        self.far
    }
}

impl Client {
    fn wait(
        &self,
        id: u64,
        answers: &Receiver<Outcome>,
        progress: &dyn Progress,
    ) -> crate::engine::Result<Value> {
        let mut cancelled = false;
        loop {
            match answers.recv_timeout(PATIENCE) {
                Ok(Outcome::Progress(what, done, total)) => progress.step(phase(&what), done, total),
                Ok(Outcome::Ok(value)) => return Ok(value),
                Ok(Outcome::Error(report)) => return Err(EngineError::Remote(report.harmless())),
                Err(RecvTimeoutError::Disconnected) => return Err(lost("the service ended")),
                Err(RecvTimeoutError::Timeout) => {}
            }
            if !cancelled && progress.cancelled() {
                cancelled = true;
                self.send(&Ask {
                    id,
                    request: None,
                    cancel: true,
                    weight: 1,
                })?;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::progress::Silent;

    /// A client whose other end says these bytes after its greeting.
    fn told(bytes: &[u8]) -> Client {
        let mut line = Vec::new();
        write(&mut line, &Hello::own(None)).expect("written");
        line.extend(bytes);
        Client::over(std::io::Cursor::new(line), std::io::sink(), None, true).expect("greeted")
    }

    proptest! {
        #[test]
        fn no_bytes_hang_or_break_who_asks(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let asked = told(&bytes).call(&Request::ById("sb-0".into()), &Silent);
            prop_assert!(asked.is_err());
        }

        #[test]
        fn no_greeting_breaks_it(bytes in proptest::collection::vec(any::<u8>(), 0..100)) {
            let from = std::io::Cursor::new(bytes);
            prop_assert!(Client::over(from, std::io::sink(), None, true).is_err());
        }
    }
}
