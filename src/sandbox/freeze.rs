//! Stopping the writers of a part for the time of a restore. A helper process started before the first one
//! is stopped holds a pipe, and lets all of them go on when respool is done or dies.

use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::holders::{Holder, Place, holders, known};
use super::writers::Writers;
use crate::failure::{Explain, Kind};
use crate::process;

/// The hidden command of the helper process.
pub const THAW_COMMAND: &str = "__thaw";

/// What can go wrong when writers are stopped.
#[derive(Debug, thiserror::Error)]
pub enum FreezeError {
    /// The helper could not be started.
    #[error("cannot start the process that lets stopped programs go on: {0}")]
    Helper(#[source] std::io::Error),
    /// A writer could not be stopped.
    #[error("process {pid} ({comm}) cannot be stopped")]
    Stop {
        /// The process.
        pid: i32,
        /// Its name, harmless.
        comm: String,
    },
}

impl Explain for FreezeError {
    fn kind(&self) -> Kind {
        match self {
            Self::Helper(_) => Kind::Failed,
            Self::Stop { .. } => Kind::Refused,
        }
    }
    fn hint(&self) -> Option<String> {
        match self {
            Self::Helper(_) => None,
            Self::Stop { pid, .. } => Some(format!("end it first: kill {pid}")),
        }
    }
}

/// Stops the writers of a part.
pub trait Freeze {
    /// Stops them; they go on when the guard is dropped, or when this process dies.
    fn freeze(&self) -> Result<Frozen, FreezeError>;

    /// After something was changed all the same: finds who did it and stops it, too. False if nobody was
    /// found.
    fn catch(&self, _frozen: &mut Frozen) -> Result<bool, FreezeError> {
        Ok(false)
    }
}

/// Stopped writers. They go on when it is dropped.
#[derive(Debug, Default)]
pub struct Frozen {
    helper: Option<(Child, Option<ChildStdin>)>,
    /// Names who writes, from the first surprise on.
    writers: Option<Writers>,
    /// Who was stopped.
    pub stopped: Vec<Holder>,
    /// Holders that were left alone: a working directory only, or respool's own session.
    pub left: Vec<Holder>,
}

impl Drop for Frozen {
    fn drop(&mut self) {
        let Some((child, pipe)) = self.helper.take() else {
            return;
        };
        // not left to the helper: somebody may have killed or stopped it
        for h in &self.stopped {
            go_on(h.pid, h.start);
        }
        drop(pipe);
        if let Err(e) = end(child) {
            tracing::warn!("the thawing helper: {e}");
        }
    }
}

/// Lets a stopped process go on, if it is still the one that was stopped.
fn go_on(pid: i32, start: u64) {
    if process::alive(pid, start)
        && let Err(e) = kill(Pid::from_raw(pid), Signal::SIGCONT)
    {
        tracing::warn!("process {pid}: {e}");
    }
}

/// Waits for the helper, which has nothing left to do; one that does not end is killed.
pub(super) fn end(mut child: Child) -> std::io::Result<()> {
    let until = Instant::now() + Duration::from_secs(2);
    while child.try_wait()?.is_none() {
        if Instant::now() > until {
            child.kill()?;
            return child.wait().map(drop);
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

/// Freezes nothing: for parts that no process can hold, and for tests.
#[derive(Debug, Default, Clone, Copy)]
pub struct NoWriters;

impl Freeze for NoWriters {
    fn freeze(&self) -> Result<Frozen, FreezeError> {
        Ok(Frozen::default())
    }
}

/// Stops the holders of a live tree by SIGSTOP.
#[derive(Debug, Clone)]
pub struct StopHolders {
    /// Its device number.
    pub device: u64,
    /// The mount of the top level of its file system, and the id of the live subvolume.
    pub tree: Option<(PathBuf, u64)>,
    /// Where it is, if it is an ordinary folder; else it is all that the device has.
    pub folder: Option<PathBuf>,
    /// The process on whose behalf this one works, if it is another: it and its terminal are not stopped.
    pub behalf: Option<i32>,
}

impl StopHolders {
    /// How to tell who holds it.
    pub fn place(&self) -> Place<'_> {
        self.folder.as_deref().map_or(Place::Device(self.device), |path| {
            Place::Folder(self.device, path)
        })
    }
}

/// How long writers are watched before the first of them is stopped.
const WATCH: Duration = Duration::from_millis(100);

impl Freeze for StopHolders {
    fn freeze(&self) -> Result<Frozen, FreezeError> {
        let mut frozen = Frozen::default();
        // a writer may start another before it is stopped: look again until none is new
        for _round in 0..8 {
            let all = holders(&self.place(), self.behalf);
            let new: Vec<Holder> = all
                .iter()
                .filter(|h| {
                    h.open
                        && !h.own
                        && !h.window
                        && !frozen.left.contains(h)
                        && !frozen
                            .stopped
                            .iter()
                            .any(|s| s.pid == h.pid && s.start == h.start)
                })
                .cloned()
                .collect();
            if new.is_empty() {
                frozen
                    .left
                    .extend(all.into_iter().filter(|h| h.own || h.window || !h.open));
                break;
            }
            for h in new {
                stop(&mut frozen, h)?;
            }
        }
        Ok(frozen)
    }

    fn catch(&self, frozen: &mut Frozen) -> Result<bool, FreezeError> {
        let before = frozen.stopped.len();
        let Some((top, tree)) = &self.tree else {
            return Ok(false);
        };
        if frozen.writers.is_none() {
            match Writers::watch(top, *tree) {
                Ok(writers) => frozen.writers = Some(writers),
                // kernels before 6.8 cannot
                Err(e) => tracing::debug!("who writes cannot be seen: {e}"),
            }
            std::thread::sleep(WATCH);
        }
        let mut wrote = false;
        for _round in 0..8 {
            let seen = frozen.writers.as_ref().map(Writers::seen).unwrap_or_default();
            // a program that works through short-lived others is found by its working folder only
            let mut new = known(&seen, self.behalf);
            // against one that is never stopped more tries are of no use
            wrote |= seen.len() > new.iter().filter(|h| h.own).count();
            new.extend(
                holders(&self.place(), self.behalf)
                    .into_iter()
                    .filter(|h| !h.window),
            );
            let met = |h: &Holder| {
                frozen
                    .stopped
                    .iter()
                    .any(|s| (s.pid, s.start) == (h.pid, h.start))
            };
            new.retain(|h| !h.own && !met(h));
            if new.is_empty() {
                break;
            }
            for h in new {
                frozen.left.retain(|l| (l.pid, l.start) != (h.pid, h.start));
                stop(frozen, h)?;
            }
        }
        Ok(wrote || frozen.stopped.len() > before)
    }
}

fn stop(frozen: &mut Frozen, holder: Holder) -> Result<(), FreezeError> {
    // one that its user had stopped already must not be let go on by us
    if process::stat(holder.pid).is_some_and(|s| s.start == holder.start && s.state == 'T') {
        frozen.left.push(holder);
        return Ok(());
    }
    if frozen.helper.is_none() {
        frozen.helper = Some(start_helper(THAW_COMMAND).map_err(FreezeError::Helper)?);
    }
    if let Some((_, Some(pipe))) = &mut frozen.helper {
        writeln!(pipe, "{} {}", holder.pid, holder.start)
            .and_then(|()| pipe.flush())
            .map_err(FreezeError::Helper)?;
    }
    if !process::alive(holder.pid, holder.start) {
        return Ok(());
    }
    let failed = || FreezeError::Stop {
        pid: holder.pid,
        comm: crate::text::shown(&holder.comm),
    };
    match kill(Pid::from_raw(holder.pid), Signal::SIGSTOP) {
        Ok(()) => {}
        Err(nix::errno::Errno::ESRCH) => return Ok(()),
        Err(_) => return Err(failed()),
    }
    let until = Instant::now() + Duration::from_secs(3);
    while process::alive(holder.pid, holder.start) && !process::all_stopped(holder.pid) {
        if Instant::now() > until {
            return Err(failed());
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    frozen.stopped.push(holder);
    Ok(())
}

/// Starts a helper process of this program, with a pipe to it. It outlives this process.
pub(super) fn start_helper(command: &str) -> std::io::Result<(Child, Option<ChildStdin>)> {
    let mut child = Command::new("/proc/self/exe")
        .arg(command)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .current_dir("/")
        .spawn()?;
    // it answers once it has left our session: from then on no signal to our terminal reaches it
    let mut line = String::new();
    if let Some(out) = child.stdout.take() {
        BufReader::new(out).read_line(&mut line)?;
    }
    if line.trim() != "ready" {
        return Err(std::io::Error::other("it did not answer"));
    }
    let pipe = child.stdin.take();
    Ok((child, pipe))
}

/// The helper: reads `pid start` lines until its standard input ends, then lets each of these processes go on.
pub fn thaw_helper() -> std::io::Result<()> {
    rustix::process::setsid()?;
    println!("ready");
    std::io::stdout().flush()?;
    let mut stopped: Vec<(i32, u64)> = Vec::new();
    for line in std::io::stdin().lock().lines() {
        // a torn last line cannot be acted on; all that were stopped came in whole lines before
        let Ok(line) = line else { break };
        if let Some((pid, start)) = line.split_once(' ')
            && let (Ok(pid), Ok(start)) = (pid.parse(), start.parse())
        {
            stopped.push((pid, start));
        }
    }
    for (pid, start) in stopped {
        go_on(pid, start);
    }
    Ok(())
}
