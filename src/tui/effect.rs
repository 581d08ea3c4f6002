//! What `update` asks for, and the workers that do it. Previews: the newest wins. Rewinds: never dropped.

use std::collections::HashMap;
use std::ffi::OsString;
use std::panic::AssertUnwindSafe;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::mpsc::UnboundedSender;
use tokio::task::JoinHandle;

use super::backend::{Backend, Direction, Failure, StateRef, WatchGuard, Writing};
use super::message::{JobId, Msg, Reply};
use super::terminal;
use crate::engine::{Change, PartKind};
use crate::failure::Kind;
use crate::progress::{CancelFlag, Progress};
use crate::rewind::offer::{Offer, VaultKind};
use crate::rewind::{Plan, Reach};

/// Something to be done outside of `update`.
#[derive(Debug, Clone)]
pub enum Effect {
    /// Work in the background.
    Work(JobId, Work),
    /// Ask this work to stop.
    Cancel(JobId),
    /// Send this message after so many milliseconds.
    After(u64, Msg),
    /// Follow this store from now on (and no other).
    Watch(PathBuf),
    /// Give the terminal back to the shell until `fg`.
    Suspend,
    /// Draw every cell anew.
    Redraw,
    /// Something that other programs do, or the terminal itself; answered by [`Msg::Ran`].
    Outside(Outside),
}

/// What is done outside of the screens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outside {
    /// The user's editor has the terminal, with this file.
    Editor(PathBuf),
    /// A program has the terminal: its words, and its folder.
    Run(Vec<OsString>, PathBuf),
    /// The same in a new window of tmux, beside the screens.
    Window(Vec<OsString>, PathBuf),
    /// A line goes to the clipboard.
    Copy(String),
}

/// Work in the background; each is a method of the backend.
#[derive(Debug, Clone)]
#[expect(
    missing_docs,
    reason = "each is the backend's method of that name with its arguments"
)]
pub enum Work {
    Conversations,
    Tail(PathBuf, usize),
    Timeline(PathBuf),
    Counts(PathBuf, Vec<String>),
    Changes(PathBuf, StateRef, StateRef),
    Diff(PathBuf, StateRef, StateRef, Box<Change>),
    Versions(PathBuf, PartKind, PathBuf),
    Plan(PathBuf, StateRef, Reach),
    Reversal(PathBuf, Direction),
    Rewind(PathBuf, Arc<Plan>),
    Reverse(PathBuf, Direction, String),
    TrackPlan(PathBuf, Option<VaultKind>),
    Track(Arc<Offer>),
    Checkpoint(PathBuf),
    Operations(PathBuf),
    Look(PathBuf),
    Opening(PathBuf, String),
    Keep(PathBuf, String, Option<String>),
    ToEditor(PathBuf, String, String),
    FromEditor(PathBuf, String, PathBuf, String),
    Resend(PathBuf, Arc<Plan>, Writing),
}

/// Work of one slot is done one after the other; in all but `Write` a newer one replaces what waits and
/// stops what runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Slot {
    Conversations,
    Tail,
    Timeline,
    Counts,
    Changes,
    Diff,
    Versions,
    Plan,
    Operations,
    Look,
    Opening,
    Write,
}

impl Work {
    fn slot(&self) -> Slot {
        match self {
            Self::Conversations => Slot::Conversations,
            Self::Tail(..) => Slot::Tail,
            Self::Timeline(..) => Slot::Timeline,
            Self::Counts(..) => Slot::Counts,
            Self::Changes(..) => Slot::Changes,
            Self::Diff(..) => Slot::Diff,
            Self::Versions(..) => Slot::Versions,
            Self::Plan(..) | Self::Reversal(..) | Self::TrackPlan(..) => Slot::Plan,
            Self::Operations(..) => Slot::Operations,
            Self::Look(..) => Slot::Look,
            Self::Opening(..) => Slot::Opening,
            // what was written is never dropped
            Self::Rewind(..)
            | Self::Reverse(..)
            | Self::Checkpoint(..)
            | Self::Track(..)
            | Self::Keep(..)
            | Self::ToEditor(..)
            | Self::FromEditor(..)
            | Self::Resend(..) => Slot::Write,
        }
    }

    /// The answer for work that broke.
    fn broken(&self, failure: Failure) -> Reply {
        match self {
            Self::Conversations => Reply::Conversations(Err(failure)),
            Self::Tail(..) => Reply::Tail(Err(failure)),
            Self::Timeline(..) => Reply::Timeline(Err(failure)),
            Self::Counts(..) => Reply::CountsDone,
            Self::Changes(..) => Reply::Changes(Err(failure)),
            Self::Diff(..) => Reply::Diff(Err(failure)),
            Self::Versions(..) => Reply::Versions(Err(failure)),
            Self::Plan(..) => Reply::Plan(Err(failure)),
            Self::Reversal(..) => Reply::Reversal(Err(failure)),
            Self::Rewind(..) | Self::Reverse(..) => Reply::Outcome(Err(failure)),
            Self::TrackPlan(..) => Reply::TrackPlan(Err(failure)),
            Self::Track(..) => Reply::Track(Err(failure)),
            Self::Checkpoint(..) => Reply::Checkpoint(Err(failure)),
            Self::Operations(..) => Reply::Operations(Err(failure)),
            Self::Look(..) => Reply::Looked(Err(failure)),
            Self::Opening(..) => Reply::Opening(Err(failure)),
            Self::Keep(..) => Reply::Kept(Err(failure)),
            Self::ToEditor(..) => Reply::ToEditor(Err(failure)),
            Self::FromEditor(..) => Reply::FromEditor(Err(failure)),
            Self::Resend(..) => Reply::Resent(Err(failure)),
        }
    }
}

struct Job {
    id: JobId,
    work: Work,
    cancel: Arc<CancelFlag>,
}

#[derive(Default)]
struct Lane {
    running: Option<(JobId, Arc<CancelFlag>)>,
    waiting: Vec<Job>,
}

type Lanes = Arc<Mutex<HashMap<Slot, Lane>>>;

/// Runs effects on worker threads and sends what comes of them.
pub struct Runner {
    backend: Arc<dyn Backend>,
    send: UnboundedSender<Msg>,
    lanes: Lanes,
    writing: Vec<JoinHandle<()>>,
    watch: Arc<Mutex<(u64, Option<WatchGuard>)>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Runner {
    /// Must be called inside a tokio runtime.
    pub fn new(backend: Arc<dyn Backend>, send: UnboundedSender<Msg>) -> Self {
        Self {
            backend,
            send,
            lanes: Lanes::default(),
            writing: Vec::new(),
            watch: Arc::default(),
        }
    }

    /// Starts one effect; those of the terminal are not done here.
    pub fn run(&mut self, effect: Effect) {
        match effect {
            Effect::Work(id, work) => self.work(id, work),
            Effect::Cancel(id) => self.cancel(id),
            Effect::After(ms, msg) => {
                let send = self.send.clone();
                tokio::spawn(async move {
                    tokio::time::sleep(Duration::from_millis(ms)).await;
                    let _gone = send.send(msg);
                });
            }
            Effect::Watch(store) => self.follow(store),
            Effect::Suspend | Effect::Redraw | Effect::Outside(_) => {}
        }
    }

    fn work(&mut self, id: JobId, work: Work) {
        let slot = work.slot();
        let cancel = Arc::new(CancelFlag::default());
        let job = Job { id, work, cancel };
        let mut lanes = lock(&self.lanes);
        let lane = lanes.entry(slot).or_default();
        if let Some((_, running)) = &lane.running {
            if slot != Slot::Write {
                running.cancel();
                lane.waiting.clear();
            }
            lane.waiting.push(job);
            return;
        }
        lane.running = Some((id, job.cancel.clone()));
        drop(lanes);
        let (backend, send, lanes) = (self.backend.clone(), self.send.clone(), self.lanes.clone());
        let handle = tokio::task::spawn_blocking(move || {
            let mut next = Some(job);
            while let Some(job) = next {
                perform(backend.as_ref(), &job, &send);
                next = advance(&lanes, slot);
            }
        });
        if slot == Slot::Write {
            self.writing.retain(|h| !h.is_finished());
            self.writing.push(handle);
        }
    }

    fn cancel(&self, id: JobId) {
        for lane in lock(&self.lanes).values() {
            let running = lane.running.iter().map(|(i, c)| (*i, c));
            let waiting = lane.waiting.iter().map(|j| (j.id, &j.cancel));
            for (_, flag) in running.chain(waiting).filter(|(i, _)| *i == id) {
                flag.cancel();
            }
        }
    }

    fn follow(&self, store: PathBuf) {
        let mine = {
            let mut watch = lock(&self.watch);
            watch.0 += 1;
            watch.1 = None;
            watch.0
        };
        let (backend, send, watch) = (self.backend.clone(), self.send.clone(), self.watch.clone());
        tokio::task::spawn_blocking(move || {
            let changed = send.clone();
            let watch_it = || backend.watch(&store, Box::new(move || drop(changed.send(Msg::Changed))));
            let guard = terminal::as_worker(|| std::panic::catch_unwind(AssertUnwindSafe(watch_it)));
            let broken = |_| Err(Failure::new(Kind::Failed, "internal error", None));
            match guard.unwrap_or_else(broken) {
                Ok(guard) => {
                    let mut watch = lock(&watch);
                    if watch.0 == mine {
                        watch.1 = Some(guard);
                    }
                }
                Err(failure) => drop(send.send(Msg::Reply(JobId(0), Reply::WatchFailed(failure)))),
            }
        });
    }

    /// Stops everything that only reads, and waits until what writes has ended (unless `abandon`).
    pub async fn finish(mut self, abandon: bool) {
        for lane in lock(&self.lanes).values_mut() {
            if let Some((_, cancel)) = &lane.running {
                cancel.cancel();
            }
            lane.waiting.clear();
        }
        *lock(&self.watch) = (u64::MAX, None);
        if abandon {
            return;
        }
        for handle in self.writing.drain(..) {
            // the job has answered even if it broke; there is nothing left to tell
            let _ended = handle.await;
        }
    }
}

/// Takes the next job of a lane, or leaves it idle.
fn advance(lanes: &Lanes, slot: Slot) -> Option<Job> {
    let mut lanes = lock(lanes);
    let lane = lanes.entry(slot).or_default();
    lane.running = None;
    if lane.waiting.is_empty() {
        return None;
    }
    let job = lane.waiting.remove(0);
    lane.running = Some((job.id, job.cancel.clone()));
    Some(job)
}

/// Does one job and sends exactly one answer (and, for numbers, one for each row before it).
fn perform(backend: &dyn Backend, job: &Job, send: &UnboundedSender<Msg>) {
    let reply = terminal::as_worker(|| {
        std::panic::catch_unwind(AssertUnwindSafe(|| answer(backend, job, send))).unwrap_or_else(|panic| {
            let why = panic
                .downcast_ref::<&str>()
                .map(ToString::to_string)
                .or_else(|| panic.downcast_ref::<String>().cloned())
                .unwrap_or_default();
            tracing::error!(job = job.id.0, why, "a worker broke");
            job.work.broken(Failure::new(
                Kind::Failed,
                format!("internal error: {}", crate::text::shown(&why)),
                Some("please report it; the log has more".into()),
            ))
        })
    });
    let _gone = send.send(Msg::Reply(job.id, reply));
}

fn answer(backend: &dyn Backend, job: &Job, send: &UnboundedSender<Msg>) -> Reply {
    let report = Report {
        id: job.id,
        cancel: job.cancel.clone(),
        send: send.clone(),
        last: Mutex::new(None),
    };
    let b = backend;
    match &job.work {
        Work::Conversations => Reply::Conversations(b.conversations()),
        Work::Tail(store, rows) => Reply::Tail(b.tail(store, *rows)),
        Work::Timeline(store) => Reply::Timeline(b.timeline(store, &report)),
        Work::Counts(store, rows) => counts(b, job, store, rows, &report),
        Work::Changes(store, from, to) => Reply::Changes(b.changes(store, from, to, &report)),
        Work::Diff(store, from, to, change) => Reply::Diff(b.file_diff(store, from, to, change)),
        Work::Versions(store, part, path) => Reply::Versions(b.file_versions(store, *part, path, &report)),
        Work::Plan(store, target, reach) => Reply::Plan(b.plan(store, target, *reach, &report).map(Arc::new)),
        Work::Reversal(store, way) => Reply::Reversal(b.reversal(store, *way, &report).map(Box::new)),
        Work::Rewind(store, plan) => Reply::Outcome(b.rewind(store, plan, &report)),
        Work::Reverse(store, Direction::Undo, op) => Reply::Outcome(b.undo(store, op, &report)),
        Work::Reverse(store, Direction::Redo, op) => Reply::Outcome(b.redo(store, op, &report)),
        Work::TrackPlan(dir, vault) => Reply::TrackPlan(b.track_plan(dir, *vault, &report).map(Arc::new)),
        Work::Track(offer) => Reply::Track(b.track(offer, &report)),
        Work::Checkpoint(store) => Reply::Checkpoint(b.checkpoint(store)),
        Work::Operations(store) => Reply::Operations(b.operations(store)),
        Work::Look(store) => Reply::Looked(b.operations(store)),
        Work::Opening(store, row) => Reply::Opening(b.opening(store, row)),
        Work::Keep(store, row, text) => Reply::Kept(b.keep(store, row, text.as_deref())),
        Work::ToEditor(store, row, text) => Reply::ToEditor(b.to_editor(store, row, text)),
        Work::FromEditor(store, row, file, before) => Reply::FromEditor(b.edited(store, row, file, before)),
        Work::Resend(store, plan, writing) => {
            Reply::Resent(b.resend(store, plan, writing, &report).map(Box::new))
        }
    }
}

fn counts(backend: &dyn Backend, job: &Job, store: &Path, rows: &[String], report: &Report) -> Reply {
    for row in rows {
        if job.cancel.is_set() {
            break;
        }
        let reply = Reply::Counts(row.clone(), backend.counts(store, row, report));
        let _gone = report.send.send(Msg::Reply(job.id, reply));
    }
    Reply::CountsDone
}

/// Passes progress on, at most thirty times a second but for the last step of a phase.
struct Report {
    id: JobId,
    cancel: Arc<CancelFlag>,
    send: UnboundedSender<Msg>,
    last: Mutex<Option<(Instant, &'static str)>>,
}

impl Progress for Report {
    fn step(&self, what: &'static str, done: u64, total: u64) {
        let mut last = lock(&self.last);
        let soon = Duration::from_millis(33);
        let skip = last.is_some_and(|(at, phase)| phase == what && at.elapsed() < soon);
        if skip && done != total {
            return;
        }
        *last = Some((Instant::now(), what));
        let _gone = self.send.send(Msg::Progress(self.id, what, done, total));
    }
    fn cancelled(&self) -> bool {
        self.cancel.is_set()
    }
}
