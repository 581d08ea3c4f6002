//! One connection on standard input and output: what `ssh HOST respool service --stdio` starts. It has the rights of
//! the user who started it, and reads that user's conversations.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::answer::View;
use super::frame::{read, read_ask};
use super::peer::Peer;
use super::server::{GREETING, SLOW, Shared, talk};
use super::tenant::Realm;
use super::{Result, ServiceError};
use crate::conversation::Library;
use crate::progress::Progress;
use crate::sandbox::registry::Registry;

/// What goes into a pipe in one piece, in bytes (pipe(7)).
const PIPE_BUF: usize = 4096;
/// How often it is looked whether a signal came.
const LOOK: Duration = Duration::from_millis(20);
/// How long work that was cancelled is waited for, where nobody asks for an end.
const LONG: Duration = Duration::from_secs(3600);

/// Serves until the line or `stop` says so; what is under way then is cancelled, and waited for. `registry`: what this
/// user has, by the state folder that the other end names.
pub fn serve(
    library: Library,
    registry: impl FnOnce(Option<&Path>) -> io::Result<Registry> + Send + 'static,
    state: Registry,
    stop: &dyn Progress,
) -> Result<()> {
    let line = |e: io::Error| ServiceError::Line(e.to_string());
    // unbuffered: a frame must go out at once, and nothing is read ahead
    let from = File::from(io::stdin().as_fd().try_clone_to_owned().map_err(line)?);
    let to = File::from(io::stdout().as_fd().try_clone_to_owned().map_err(line)?);
    let shared = Shared::new(state);
    let work = Arc::clone(&shared);
    let talking = std::thread::Builder::new()
        .name("connection".into())
        .spawn(move || converse(&work, from, to, library, registry))
        .map_err(line)?;
    while !talking.is_finished() && !stop.cancelled() {
        std::thread::sleep(LOOK);
    }
    if !shared.wind_up(LONG) {
        tracing::warn!("some work did not end; respool recover finishes it");
    }
    if !talking.is_finished() {
        // a signal: the other end sees that the line ends
        return Ok(());
    }
    talking
        .join()
        .unwrap_or_else(|_| Err(io::Error::other("it broke")))
        .map_err(line)
}

fn converse(
    shared: &Arc<Shared>,
    mut from: File,
    to: File,
    library: Library,
    registry: impl FnOnce(Option<&Path>) -> io::Result<Registry>,
) -> io::Result<()> {
    let Some(hello) = read(&mut from, GREETING)? else {
        return Ok(());
    };
    let view = |named: Option<&Path>| {
        Ok(View {
            peer: Peer::own()?,
            realm: Realm::mine(registry(named)?),
            state: shared.state(),
            found: Arc::default(),
            counts: shared.counts(),
            library: Some(library),
        })
    };
    let next = || read_ask(&mut from);
    talk(shared, hello, Box::new(Patient { to, broken: false }), view, next)
}

/// A pipe into which nothing is written that would wait for long: the work must not be held up by an end that does
/// not read. After a frame that was cut nothing more is written.
struct Patient {
    to: File,
    broken: bool,
}

impl Write for Patient {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let patience = Timespec {
            tv_sec: SLOW.as_secs().cast_signed(),
            tv_nsec: 0,
        };
        let ready = || -> io::Result<bool> {
            loop {
                let mut fds = [PollFd::new(&self.to, PollFlags::OUT)];
                match poll(&mut fds, Some(&patience)) {
                    Ok(n) => return Ok(n > 0),
                    Err(rustix::io::Errno::INTR) => {}
                    Err(e) => return Err(e.into()),
                }
            }
        };
        if self.broken || !ready()? {
            self.broken = true;
            return Err(io::ErrorKind::TimedOut.into());
        }
        // so many bytes go into a pipe at once that poll(2) says is ready
        self.to.write(&bytes[..bytes.len().min(PIPE_BUF)])
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
