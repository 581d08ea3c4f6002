//! The watcher: follows stores, takes a checkpoint at each message that the hook did not see, and at each
//! turn end.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use notify::RecommendedWatcher;

pub use super::event::{Event, WatchError};
use super::followed::Followed;
use super::newcomers::Newcomers;
use super::presence::{Presence, announce};
use crate::conversation::Found;
use crate::progress::Progress;
use crate::sandbox::exclusive::{folder_of, template};
use crate::sandbox::site::Site;
use crate::text::json_path;
use crate::timeline::desk::Desk;

/// How soon a cancel is seen.
const IDLE: Duration = Duration::from_millis(500);

/// What is watched.
pub enum Scope {
    /// These conversations, until their stores are gone.
    These(Vec<Found>),
    /// Every conversation in the workspace of this sandbox, also those that begin later.
    Sandbox(Box<Site>),
}

/// What the system reports.
enum Report {
    /// This path changed.
    Changed(PathBuf),
    /// Reports were lost: anything may have changed.
    Lost,
}

/// Follows conversations until it is cancelled. `tell` gets every event.
pub fn watch(
    desk: &Desk,
    scope: Scope,
    cancel: &dyn Progress,
    tell: &mut dyn FnMut(Event),
) -> Result<(), WatchError> {
    let (send, receive) = channel();
    let mut watch = Watch {
        desk,
        tell,
        watcher: notify::recommended_watcher(reporter(send))?,
        all: BTreeMap::new(),
        next: 0,
        quiet: BTreeMap::new(),
        newcomers: None,
        presence: None,
    };
    match scope {
        Scope::These(stores) => {
            for found in stores {
                watch.follow(found, false)?;
            }
        }
        Scope::Sandbox(site) => watch.follow_workspace(*site),
    }
    watch.run(&receive, cancel)
}

fn reporter(send: Sender<Report>) -> impl FnMut(notify::Result<notify::Event>) + Send + 'static {
    move |event| {
        // the receiver is gone when the watcher ends
        let report = |r| drop(send.send(r));
        match event {
            Ok(event) if event.need_rescan() => report(Report::Lost),
            Ok(event) if event.kind.is_access() => {}
            Ok(event) => event.paths.into_iter().map(Report::Changed).for_each(report),
            Err(e) => {
                tracing::warn!("reports of changes: {e}");
                report(Report::Lost);
            }
        }
    }
}

struct Watch<'a> {
    desk: &'a Desk,
    tell: &'a mut dyn FnMut(Event),
    watcher: RecommendedWatcher,
    all: BTreeMap<usize, Followed>,
    next: usize,
    /// Those that changed, and when each is to be looked at again.
    quiet: BTreeMap<usize, Instant>,
    newcomers: Option<Newcomers>,
    /// Tells others that the workspace is watched.
    presence: Option<Presence>,
}

impl Watch<'_> {
    fn follow(&mut self, found: Found, fresh: bool) -> Result<(), WatchError> {
        let (mut followed, now) = Followed::new(found, self.desk, fresh)?;
        let sandbox = self.desk.site(&now)?.record.id;
        followed.report(&mut self.watcher)?;
        (self.tell)(Event::Watching {
            conversation: followed.id.clone(),
            sandbox,
        });
        // what came between the reading and the first report
        followed.look(self.desk, false, self.tell);
        self.quiet.insert(self.next, Instant::now() + followed.quiet());
        self.all.insert(self.next, followed);
        self.next += 1;
        Ok(())
    }

    fn follow_workspace(&mut self, site: Site) {
        let mut all = vec![site.path().to_owned()];
        if template(&site.record).is_some() {
            all.push(folder_of(site.path()));
        }
        let (mut newcomers, here) = Newcomers::new(all, &self.desk.library);
        newcomers.report(&mut self.watcher);
        self.newcomers = Some(newcomers);
        let (workspace, sandbox) = (json_path(site.path()).0, site.record.id.clone());
        match announce(&self.desk.registry, &sandbox) {
            Ok(presence) => self.presence = Some(presence),
            Err(e) => tracing::warn!("others cannot see that {sandbox} is watched: {e}"),
        }
        // an open sandbox cannot be unmounted
        drop(site);
        for found in here {
            self.follow_or_tell(found, false);
        }
        (self.tell)(Event::Waiting { workspace, sandbox });
    }

    fn follow_or_tell(&mut self, found: Found, fresh: bool) {
        let store = found.1.clone();
        if let Err(e) = self.follow(found, fresh) {
            (self.tell)(Event::Failed {
                conversation: store
                    .file_name()
                    .map(|n| n.to_string_lossy().into_owned())
                    .unwrap_or_default(),
                message: None,
                reason: e.to_string(),
            });
        }
    }

    fn run(&mut self, reports: &Receiver<Report>, cancel: &dyn Progress) -> Result<(), WatchError> {
        while !cancel.cancelled() {
            if let Ok(first) = reports.recv_timeout(self.patience()) {
                let batch = std::iter::once(first).chain(reports.try_iter()).collect();
                self.changed(batch);
            }
            let arrived = self
                .newcomers
                .as_mut()
                .map(|n| n.arrived(&self.desk.library))
                .unwrap_or_default();
            for found in arrived {
                self.follow_or_tell(found, true);
            }
            self.settled();
            if let Some(n) = &mut self.newcomers {
                n.report(&mut self.watcher);
            } else if let Some(gone) = self.nothing_left() {
                return Err(gone);
            }
        }
        Ok(())
    }

    fn patience(&self) -> Duration {
        let due = self.quiet.values().min();
        let quiet = due.map(|t| t.saturating_duration_since(Instant::now()));
        let new = self.newcomers.as_ref().map(Newcomers::patience);
        [quiet, new].into_iter().flatten().fold(IDLE, Duration::min)
    }

    fn changed(&mut self, batch: Vec<Report>) {
        let mut touched = BTreeSet::new();
        for report in batch {
            match report {
                Report::Lost => touched.extend(self.all.keys()),
                Report::Changed(path) => {
                    let of = |(i, f): (&usize, &Followed)| f.concerned(&path).then_some(*i);
                    touched.extend(self.all.iter().filter_map(of));
                    if let Some(n) = &mut self.newcomers
                        && n.changed(&path)
                    {
                        n.report(&mut self.watcher);
                    }
                }
            }
        }
        for i in touched {
            self.look(i, false);
            if let Some(f) = self.all.get(&i) {
                self.quiet.insert(i, Instant::now() + f.quiet());
            }
        }
    }

    /// Looks again at those that have been quiet for a while.
    fn settled(&mut self) {
        let now = Instant::now();
        let due: Vec<usize> = self
            .quiet
            .iter()
            .filter(|(_, t)| **t <= now)
            .map(|(i, _)| *i)
            .collect();
        for i in due {
            self.quiet.remove(&i);
            self.look(i, true);
        }
    }

    fn look(&mut self, i: usize, settled: bool) {
        let Some(followed) = self.all.get_mut(&i) else {
            return;
        };
        if followed.there() {
            if let Err(e) = followed.report(&mut self.watcher) {
                tracing::warn!("{}: {e}", followed.id);
            }
            followed.look(self.desk, settled, self.tell);
        } else if let Some(n) = &mut self.newcomers {
            n.forget(&followed.found.1);
            self.drop_gone(i);
        } else if self.all.len() > 1 {
            // the last one is the error that the watcher ends with
            self.drop_gone(i);
        }
    }

    fn drop_gone(&mut self, i: usize) {
        if let Some(followed) = self.all.remove(&i) {
            (self.tell)(Event::Gone {
                conversation: followed.id,
            });
        }
    }

    /// The error to end with when the last conversation's store is gone.
    fn nothing_left(&mut self) -> Option<WatchError> {
        if self.all.len() != 1 {
            return None;
        }
        let last = self.all.values_mut().next()?;
        if last.there() {
            return None;
        }
        Some(WatchError::Gone {
            conversation: last.id.clone(),
            store: last.found.1.clone(),
        })
    }
}
