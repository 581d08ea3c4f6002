//! Conversations that begin in a workspace while it is watched.

use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use notify::RecursiveMode;

use crate::conversation::{Found, Library};
use crate::sandbox::mapped::Known;

/// How long a new folder may take to become a store.
const BECOMING: Duration = Duration::from_secs(10);
/// Everything is looked through no more often than so for a file that many conversations share.
const OFTEN: Duration = Duration::from_millis(250);
/// How often everything is looked through, in case that a place appeared unseen.
const ROUND: Duration = Duration::from_secs(5);

/// Where new stores may appear, and which folders are none yet.
pub(super) struct Newcomers {
    /// The workspace, and the folder of its clones.
    workspaces: Vec<PathBuf>,
    places: Vec<PathBuf>,
    /// Files in which new ones may begin that are no files of their own.
    shared: Vec<PathBuf>,
    /// Folders that changes are reported of.
    reported: HashSet<PathBuf>,
    /// Stores that were looked at.
    known: HashSet<PathBuf>,
    /// New folders, until when each may become a store.
    becoming: BTreeMap<PathBuf, Instant>,
    looked: Instant,
    containers: Known,
}

impl Newcomers {
    /// For a workspace, and the folder of its clones if it has some. Gives the stores of its conversations that are there already.
    pub(super) fn new(workspaces: Vec<PathBuf>, library: &Library) -> (Self, Vec<Found>) {
        let mut it = Self {
            workspaces,
            places: library.places(),
            shared: library.shared(),
            reported: HashSet::new(),
            known: HashSet::new(),
            becoming: BTreeMap::new(),
            looked: Instant::now(),
            containers: Known::default(),
        };
        let here = it.unknown(library);
        (it, here)
    }

    /// The stores that were not looked at yet and belong to the workspace.
    fn unknown(&mut self, library: &Library) -> Vec<Found> {
        let mut here = Vec::new();
        for found in library.stores(None) {
            if self.known.contains(&found.1) {
                continue;
            }
            match self.belongs(&found) {
                Some(true) => here.push(found.clone()),
                Some(false) => {}
                // its own record is not written yet; what is old and has none is told by its next change
                None => {
                    if is_recent(&found.1) {
                        self.candidate(found.1);
                    }
                    continue;
                }
            }
            self.known.insert(found.1);
        }
        here
    }

    /// Whether a store's workspace is this one or lies in it; `None` while it does not say.
    fn belongs(&mut self, found: &Found) -> Option<bool> {
        let workspace = found.0.workspace(&found.1).ok()??;
        let inside = |known: &mut Known| known.find(&found.1.file_name()?.to_string_lossy(), &workspace);
        let real = workspace.canonicalize().ok();
        // a path inside a container
        let real = real.or_else(|| inside(&mut self.containers)).unwrap_or(workspace);
        Some(self.workspaces.iter().any(|w| real.starts_with(w)))
    }

    /// Asks for reports of new stores: at each place, or at the folder that it will be made in.
    pub(super) fn report(&mut self, watcher: &mut dyn notify::Watcher) {
        let before = self.reported.len();
        for place in &self.places {
            let there = place.ancestors().find(|p| p.is_dir());
            let Some(folder) = there.filter(|p| p.parent().is_some()) else {
                continue;
            };
            if self.reported.contains(folder) {
                continue;
            }
            match watcher.watch(folder, RecursiveMode::NonRecursive) {
                Ok(()) => {
                    self.reported.insert(folder.to_owned());
                }
                Err(e) => tracing::warn!("{} is not followed: {e}", folder.display()),
            }
        }
        if self.reported.len() > before {
            // what was made in it before is not reported
            self.look_through();
        }
    }

    /// A path changed. True if places may have appeared: then [`Newcomers::report`] is due.
    pub(super) fn changed(&mut self, path: &Path) -> bool {
        if self.shared.iter().any(|s| s == path) {
            // it changes at each step of an agent
            if self.looked.elapsed() > OFTEN {
                self.look_through();
            }
            return false;
        }
        if path.parent().is_some_and(|p| self.places.iter().any(|x| x == p)) {
            if (path.is_dir() || path.is_file()) && !self.known.contains(path) {
                // a folder may be a store, or a place of its own where stores are files
                if path.is_dir() && !self.becoming.contains_key(path) {
                    self.look_through();
                }
                self.candidate(path.to_owned());
            }
            return false;
        }
        let leads = self.places.iter().any(|p| p.starts_with(path));
        if leads {
            // one that was made anew is another folder
            self.reported.retain(|p| !p.starts_with(path));
            self.look_through();
        }
        leads
    }

    /// Everything is looked through at the next turn.
    fn look_through(&mut self) {
        self.looked = Instant::now().checked_sub(ROUND).unwrap_or(self.looked);
    }

    fn candidate(&mut self, path: PathBuf) {
        self.becoming
            .entry(path)
            .or_insert_with(|| Instant::now() + BECOMING);
    }

    /// A store is gone; one of the same name is another one.
    pub(super) fn forget(&mut self, store: &Path) {
        self.known.remove(store);
        if store.is_dir() || store.is_file() {
            self.candidate(store.to_owned());
        }
    }

    /// How soon to ask again.
    pub(super) fn patience(&self) -> Duration {
        if self.becoming.is_empty() {
            ROUND.saturating_sub(self.looked.elapsed())
        } else {
            Duration::from_millis(5)
        }
    }

    /// The stores that have appeared since the last time.
    pub(super) fn arrived(&mut self, library: &Library) -> Vec<Found> {
        let mut here = Vec::new();
        for (path, until) in std::mem::take(&mut self.becoming) {
            // it was found when everything was looked through
            if self.known.contains(&path) {
                continue;
            }
            let found = library.at(&path).ok();
            match found.as_ref().and_then(|f| self.belongs(f)) {
                Some(ours) => {
                    self.known.insert(path.clone());
                    // it may be one more file of a conversation that is known
                    here.extend(found.filter(|f| ours && (f.1 == path || self.known.insert(f.1.clone()))));
                }
                None if Instant::now() < until => {
                    self.becoming.insert(path, until);
                }
                None => {}
            }
        }
        if self.looked.elapsed() >= ROUND {
            self.looked = Instant::now();
            self.places = library.places();
            self.shared = library.shared();
            here.extend(self.unknown(library));
        }
        here
    }
}

/// It changed a moment ago.
fn is_recent(store: &Path) -> bool {
    let changed = std::fs::symlink_metadata(store).and_then(|m| m.modified());
    // a time to come is one of a clock that was set
    changed.is_ok_and(|t| t.elapsed().is_ok_and(|age| age < BECOMING))
}
