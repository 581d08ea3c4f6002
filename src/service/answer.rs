//! What is answered to whom.

use std::path::{Component, Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use notify::{RecursiveMode, Watcher};
use serde::Serialize;
use serde_json::Value;

use super::manage;
use super::peer::Peer;
use super::shelf;
use super::tenant::Realm;
use crate::conversation::Library;
use crate::engine::catalog::SandboxRecord;
use crate::engine::{CheckpointKind, EngineError, NewCheckpoint, Selection};
use crate::failure::{Explain, Kind, Report};
use crate::progress::Progress;
use crate::rewind::OperationKind;
use crate::rewind::remote::{Operate, answer as operate};
use crate::rewind::run::Order;
use crate::sandbox::inside::{refuse_inside, remember_agent, remember_caller};
use crate::sandbox::registry::Registry;
use crate::sandbox::remote::{Ask, Request};
use crate::sandbox::site::Site;
use crate::text::{ExactPath, shown_path};
use crate::timeline::containers::of_containers;
use crate::timeline::counts::Known;
use crate::timeline::notes::{notes, remember_missed};
use crate::watch::take::take;

/// The longest text that is kept on behalf of a client, in bytes.
const TEXT: usize = 2000;
/// The largest content that is sent.
const CONTENT: u64 = 1 << 30;
/// How long [`Ask::Wait`] waits.
const WAIT: Duration = Duration::from_secs(30);
/// So many wait by inotify: all programs of a user together have 128 instances of it (inotify(7)), and root's others
/// need theirs. The rest look now and then.
const INSTANCES: usize = 32;
/// How often those look.
const LOOK: Duration = Duration::from_millis(500);

/// How many wait by inotify.
static FOLLOWING: AtomicUsize = AtomicUsize::new(0);

/// One of [`INSTANCES`].
struct Instance;

impl Instance {
    fn take() -> Option<Self> {
        let free = |n: usize| (n < INSTANCES).then_some(n + 1);
        let taken = FOLLOWING.fetch_update(Ordering::Relaxed, Ordering::Relaxed, free);
        taken.is_ok().then(|| Self)
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        FOLLOWING.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Sandboxes that were just found: who finds one asks about it next, and it need not be opened twice. None is kept for
/// long, as an open sandbox cannot be unmounted.
#[derive(Default)]
pub struct Found(Mutex<Vec<(Instant, i32, Site)>>);

/// How long a sandbox that was found is kept.
const KEPT: Duration = Duration::from_millis(500);
/// How many are.
const MANY: usize = 16;

impl Found {
    fn all(&self) -> MutexGuard<'_, Vec<(Instant, i32, Site)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Closes those that nobody asked about.
    pub fn sweep(&self) {
        self.all().retain(|(since, ..)| since.elapsed() < KEPT);
    }

    /// Closes those of a process that went away.
    pub fn forget(&self, pid: i32) {
        self.all().retain(|(_, p, _)| *p != pid);
    }

    /// Closes all, before a command that may unmount.
    pub fn close(&self) {
        self.all().clear();
    }

    fn put(&self, pid: i32, site: Site) {
        let mut all = self.all();
        if all.len() < MANY {
            all.push((Instant::now(), pid, site));
        }
    }

    fn take(&self, pid: i32, id: &str) -> Option<Site> {
        let mut all = self.all();
        let fits = |(since, p, site): &(Instant, i32, Site)| {
            *p == pid && site.record.id == id && since.elapsed() < KEPT
        };
        let at = all.iter().position(fits)?;
        Some(all.swap_remove(at).2)
    }
}

/// One connection's view.
pub struct View {
    /// Who asks.
    pub peer: Peer,
    /// About which state.
    pub realm: Realm,
    /// The service's own state.
    pub state: Registry,
    /// What was just found, shared by all connections.
    pub found: Arc<Found>,
    /// Numbers of change lists, shared by all connections.
    pub counts: Arc<Known>,
    /// The peer's own conversations, where this process is the peer's own, with no rights but the peer's.
    pub library: Option<Library>,
}

fn report(e: impl Explain) -> Report {
    Report::of(&e)
}

fn refused(message: impl Into<String>, hint: Option<&str>) -> Report {
    Report {
        kind: Kind::Refused,
        message: message.into(),
        path: None,
        hint: hint.map(str::to_owned),
    }
}

fn value(of: impl Serialize) -> Result<Value, Report> {
    serde_json::to_value(of).map_err(|e| Report {
        kind: Kind::Failed,
        message: format!("the answer cannot be written: {e}"),
        path: None,
        hint: None,
    })
}

fn paths(all: crate::engine::Result<Vec<PathBuf>>) -> Result<Value, Report> {
    value(
        all.map_err(report)?
            .into_iter()
            .map(ExactPath)
            .collect::<Vec<_>>(),
    )
}

impl View {
    /// Answers one request.
    pub fn answer(&self, request: Request, progress: &dyn Progress) -> Result<Value, Report> {
        match request {
            Request::Find(path) => self.shown(self.realm.registry.find(absolute(&path)?).map_err(report)?),
            Request::ById(id) => self.shown(self.realm.registry.by_id(&id).map_err(report)?),
            Request::Earlier(path) => {
                let mut all = self.realm.registry.earlier(absolute(&path)?);
                all.retain(|e| self.may(&e.record));
                value(all)
            }
            Request::Of(sandbox, Ask::Wait) if self.library.is_none() => {
                // an open sandbox could not be unmounted meanwhile
                let dir = self.site(&sandbox)?.dir().map_err(report)?.to_owned();
                Self::wait(&dir, progress)
            }
            Request::Of(sandbox, ask) => self.about(&self.site(&sandbox)?, ask, progress),
            Request::Manage(order) => value(manage::run(self, order, progress)?),
            Request::Library(ask) => match &self.library {
                Some(library) => shelf::answer(library, ask, progress),
                None => Err(refused("conversations are not read by the service", None)),
            },
        }
    }

    /// Root may all; others their own.
    fn may(&self, record: &SandboxRecord) -> bool {
        self.peer.uid == 0 || record.uid == self.peer.uid
    }

    fn shown(&self, site: Option<Site>) -> Result<Value, Report> {
        match site {
            Some(site) if !self.may(&site.record) => Err(foreign(&site.record)),
            None => value(None::<SandboxRecord>),
            Some(site) => {
                let answer = value(&site.record);
                // the user's own process has nobody who closes it again
                if self.library.is_none() {
                    self.found.put(self.peer.pid, site);
                }
                answer
            }
        }
    }

    /// The sandbox, if the peer may have it. The peer's terminal is never stopped.
    fn site(&self, id: &str) -> Result<Site, Report> {
        let none = || Report {
            kind: Kind::NotFound,
            message: format!("there is no sandbox {}", crate::text::shown(id)),
            path: None,
            hint: Some("respool sandboxes lists them".into()),
        };
        let site = match self.found.take(self.peer.pid, id) {
            Some(site) => site,
            None => self.realm.registry.by_id(id).map_err(report)?.ok_or_else(none)?,
        };
        if self.may(&site.record) {
            Ok(site.on_behalf(self.peer.pid))
        } else {
            Err(foreign(&site.record))
        }
    }

    /// What writes is done only for a process that still lives: of one that is gone it is not known who it was.
    fn living(&self) -> Result<(), Report> {
        if self.peer.alive() {
            return Ok(());
        }
        Err(refused("who asks is gone", None))
    }

    fn about(&self, site: &Site, ask: Ask, progress: &dyn Progress) -> Result<Value, Report> {
        if ask.writes() {
            self.living()?;
        }
        if let Some(remote) = site.remote() {
            return remote.ask(ask, progress).map_err(report);
        }
        let vault = &site.vault;
        match ask {
            Ask::Checkpoints => value(vault.checkpoints().map_err(report)?),
            Ask::Label(id, label) => {
                short(&label)?;
                value(vault.label(&id, &label).map_err(report)?)
            }
            Ask::Pin(id, pinned) => value(vault.pin(&id, pinned).map_err(report)?),
            Ask::Late(id, paths) => value(vault.mark_late(&id, paths).map_err(report)?),
            Ask::Guard => value(vault.guard().map_err(report)?),
            Ask::NotCovered => paths(site.not_covered()),
            Ask::NotCoveredBy(id) => paths(site.not_covered_by(&id)),
            Ask::LeftOut => paths(vault.left_out()),
            Ask::Changes(a, b, times) => value(vault.changes(&a, &b, times, progress).map_err(report)?),
            Ask::Read(state, path, limit) if self.library.is_some() => {
                value(vault.read(&state, &path, limit.min(CONTENT)).map_err(report)?)
            }
            Ask::Entries(state, path) if self.library.is_some() => {
                value(vault.entries(&state, &path).map_err(report)?)
            }
            Ask::Read(state, path, limit) => {
                let limit = limit.min(CONTENT);
                let reader = self.peer.reader();
                value(vault.read_for(&reader, &state, &path, limit).map_err(report)?)
            }
            Ask::Entries(state, path) => value(
                vault
                    .entries_for(&self.peer.reader(), &state, &path)
                    .map_err(report)?,
            ),
            Ask::Untouched(a, b, path) => value(vault.untouched(&a, &b, &path).map_err(report)?),
            Ask::Denied(target, selection) => {
                value(vault.denied(&target, &selection, progress).map_err(report)?)
            }
            Ask::Warm => value(vault.warm().map_err(report)?),
            Ask::Take(new) => {
                let taken = take(site, &allowed(new)?).map_err(report)?;
                let dir = site.dir().map_err(report)?;
                if let Err(e) = remember_caller(self.peer.pid, dir) {
                    tracing::warn!("the agent's process is not recorded: {e}");
                }
                value(taken)
            }
            Ask::Packages(a, b) => value(of_containers(site, &a, &b, progress).map_err(report)?),
            Ask::Outlook(target) => value(site.outlook(target.as_ref()).map_err(report)?),
            Ask::Holders => value(site.holders().map_err(report)?),
            Ask::Notes => value(notes(site).map_err(report)?),
            Ask::Missed(message, reason) => {
                short(&message)?;
                short(&reason)?;
                value(remember_missed(site, &message, &reason).map_err(report)?)
            }
            Ask::Agent(agent) => {
                short(&agent.agent)?;
                if !crate::process::lineage_of(agent.pid).contains(&self.peer.pid) {
                    return Err(refused("that is no child of who asks", None));
                }
                value(remember_agent(site, &agent).map_err(report)?)
            }
            Ask::Known(pairs) => {
                let known = pairs.iter().map(|pair| self.counts.get(site, pair));
                value(known.collect::<Vec<_>>())
            }
            Ask::Counts(a, b) => value(self.counts.counted(site, &(a, b), progress).map_err(report)?),
            Ask::Wait => {
                let dir = site.dir().map_err(report)?;
                Self::wait(dir, progress)
            }
            Ask::Operate(order) => self.operate(site, order, progress),
        }
    }

    fn wait(dir: &Path, progress: &dyn Progress) -> Result<Value, Report> {
        value(follow(&[dir.join("snaps"), dir.join("ops")], || false, progress)?)
    }

    fn operate(&self, site: &Site, order: Value, progress: &dyn Progress) -> Result<Value, Report> {
        let order: Operate = serde_json::from_value(order).map_err(|e| Report {
            kind: Kind::Usage,
            message: format!("it cannot be understood: {e}"),
            path: None,
            hint: None,
        })?;
        let order = match order {
            Operate::Checkpoint(new) => Operate::Checkpoint(allowed(new)?),
            Operate::Run(order) => {
                refuse_inside(self.peer.pid, site).map_err(report)?;
                let mut order = fitting(order)?;
                order.mover = order.chat.is_some().then_some((self.peer.pid, self.peer.start));
                Operate::Run(order)
            }
            Operate::Settle { operation, done, why } => {
                refuse_inside(self.peer.pid, site).map_err(report)?;
                short(&operation)?;
                let why: String = crate::text::shown(&why).chars().take(TEXT / 4).collect();
                Operate::Settle { operation, done, why }
            }
            other => other,
        };
        operate(site, &order, progress).map_err(report)
    }
}

fn foreign(record: &SandboxRecord) -> Report {
    Report {
        kind: Kind::Refused,
        message: format!("{} belongs to user {}", shown_path(&record.path), record.uid),
        path: Some(record.path.clone()),
        hint: Some("its owner or root may".into()),
    }
}

fn absolute(path: &Path) -> Result<&Path, Report> {
    if path.is_absolute() {
        return Ok(path);
    }
    Err(refused(format!("{} is no absolute path", shown_path(path)), None))
}

fn short(text: &str) -> Result<(), Report> {
    if text.len() <= TEXT {
        return Ok(());
    }
    Err(refused(
        format!("a text of {} bytes, {TEXT} at most", text.len()),
        None,
    ))
}

/// A checkpoint that an owner may ask for; the others respool makes itself.
fn allowed(new: NewCheckpoint) -> Result<NewCheckpoint, Report> {
    let kind = matches!(
        new.kind,
        CheckpointKind::Message | CheckpointKind::TurnEnd | CheckpointKind::Manual
    );
    if !kind || new.operation.is_some() {
        return Err(refused(
            "checkpoints of that kind are made by respool itself",
            None,
        ));
    }
    // which id it gets and what is kept elsewhere is not for who asks to say
    Ok(NewCheckpoint {
        id: None,
        elsewhere: Vec::new(),
        ..new
    })
}

/// An order that an owner may give: back to a checkpoint, for paths inside the part.
fn fitting(order: Order) -> Result<Order, Report> {
    if !matches!(
        order.kind,
        OperationKind::Rewind | OperationKind::Undo | OperationKind::Redo
    ) {
        return Err(refused("no such operation goes back to a checkpoint", None));
    }
    if order.kind == OperationKind::Rewind && order.of.is_some() {
        return Err(refused("a rewind takes back no operation", None));
    }
    if order.whole_docker {
        // that is everybody's
        return Err(refused(
            "all of Docker goes back for root alone",
            Some("sudo respool rewind ... --whole-docker"),
        ));
    }
    short(&order.words)?;
    if let Some(chat) = &order.chat {
        // kept as it is; who orders it reads it again
        short(&chat.to_string())?;
    }
    if let Selection::Paths(paths) = &order.selection {
        let inside = |p: &Path| {
            p.components()
                .all(|c| matches!(c, Component::Normal(_) | Component::CurDir))
        };
        if let Some(bad) = paths.iter().find(|p| !inside(p)) {
            return Err(refused(
                format!("{} leads out of the workspace", shown_path(bad)),
                None,
            ));
        }
    }
    Ok(order)
}

/// Waits for a change in one of these folders; false if none came in time. `already`: asked once they are followed.
pub(super) fn follow(
    paths: &[PathBuf],
    already: impl FnOnce() -> bool,
    progress: &dyn Progress,
) -> Result<bool, Report> {
    let (tell, changes) = channel();
    let failed = |e: notify::Error| refused(format!("what changes cannot be followed: {e}"), None);
    let told = move |event: notify::Result<notify::Event>| {
        if event.is_ok_and(|e| !e.kind.is_access()) {
            // nobody waits any more: the answer was given
            tell.send(()).unwrap_or_default();
        }
    };
    let instance = Instance::take();
    let mut watcher: Box<dyn Watcher> = if instance.is_some() {
        Box::new(notify::recommended_watcher(told).map_err(failed)?)
    } else {
        let often = notify::Config::default().with_poll_interval(LOOK);
        Box::new(notify::PollWatcher::new(told, often).map_err(failed)?)
    };
    for path in paths.iter().filter(|p| p.exists()) {
        watcher.watch(path, RecursiveMode::NonRecursive).map_err(failed)?;
    }
    if already() {
        return Ok(true);
    }
    let until = Instant::now() + WAIT;
    while Instant::now() < until && !progress.cancelled() {
        match changes.recv_timeout(Duration::from_millis(500)) {
            Ok(()) => return Ok(true),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => {
                return Err(report(EngineError::Cancelled));
            }
        }
    }
    Ok(false)
}
