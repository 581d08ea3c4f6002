//! Where Codex keeps its rollouts: `sessions/<year>/<month>/<day>/rollout-<local time>-<thread>[_<segment>].jsonl` below
//! `~/.codex` or `CODEX_HOME`, and `archived_sessions/`. A thread has one rollout, and after each rewind one more, a
//! *segment*, which goes on from another one. A rollout's own id is the last one in its name.

use std::collections::{BTreeMap, HashMap};
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::Roots;

/// So long a listing need not be made again; a list asks for each thread.
const FRESH: Duration = Duration::from_millis(100);
/// The length of an id.
const ID: usize = 36;

/// The ids in a rollout's name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Name {
    pub(super) thread: String,
    /// The rollout's own; the thread's where it is its first one.
    pub(super) segment: String,
}

impl Name {
    /// Of a path to a rollout.
    pub(super) fn of(path: &Path) -> Option<Self> {
        let name = path.file_name()?.to_str()?;
        let stem = name.strip_prefix("rollout-")?.strip_suffix(".jsonl")?;
        let ids = match stem.rsplit_once('_') {
            Some((front, segment)) => (tail(front)?, id(segment)?),
            None => (tail(stem)?, tail(stem)?),
        };
        Some(Self {
            thread: ids.0.to_owned(),
            segment: ids.1.to_owned(),
        })
    }
}

fn tail(text: &str) -> Option<&str> {
    let at = text.len().checked_sub(ID)?;
    id(text.get(at..)?)
}

fn id(text: &str) -> Option<&str> {
    let dash = |i: usize| matches!(i, 8 | 13 | 18 | 23);
    let fits = text.len() == ID
        && text
            .bytes()
            .enumerate()
            .all(|(i, b)| if dash(i) { b == b'-' } else { b.is_ascii_hexdigit() });
    fits.then_some(text)
}

/// Codex's folder of this user.
pub(super) fn home(roots: &Roots) -> PathBuf {
    let named = roots.env.get("CODEX_HOME").filter(|d| !d.is_empty());
    named.map_or_else(|| roots.home.join(".codex"), |dir| roots.cwd.join(dir))
}

/// Codex's folder, of a rollout in it; `None` for one that lies elsewhere.
pub(super) fn home_of(rollout: &Path) -> Option<&Path> {
    let folder = rollout.parent()?;
    if folder.file_name()? == "archived_sessions" {
        return folder.parent();
    }
    let sessions = folder.ancestors().nth(3)?;
    (sessions.file_name()? == "sessions")
        .then(|| sessions.parent())
        .flatten()
}

/// The folder of sessions, with its newest year, month and day: a new rollout appears in the last one, or in a new
/// folder in one of the others.
pub(super) fn newest(home: &Path) -> Vec<PathBuf> {
    let mut all = vec![home.join("sessions")];
    for _ in 0..3 {
        let last = all.last().and_then(|folder| folders(folder).pop());
        match last {
            Some(folder) => all.push(folder),
            None => break,
        }
    }
    all
}

/// The folders in a folder that are named by a number, in order.
fn folders(folder: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(folder) else {
        return Vec::new();
    };
    let numbered = |name: &OsStr| name.as_encoded_bytes().iter().all(u8::is_ascii_digit);
    let mut all: Vec<PathBuf> = entries
        .flatten()
        .filter(|e| numbered(&e.file_name()) && e.file_type().is_ok_and(|t| t.is_dir()))
        .map(|e| e.path())
        .collect();
    all.sort();
    all
}

/// All rollouts, by their ids.
#[derive(Debug, Default)]
pub(super) struct Rollouts {
    /// Those of each thread, in the order in which they were begun.
    pub(super) threads: BTreeMap<String, Vec<PathBuf>>,
    /// Each by its own id.
    pub(super) segments: HashMap<String, PathBuf>,
}

impl Rollouts {
    /// Those in Codex's folder.
    pub(super) fn read(home: &Path) -> Self {
        let mut all = Self::default();
        for year in folders(&home.join("sessions")) {
            for month in folders(&year) {
                for day in folders(&month) {
                    all.add(&day);
                }
            }
        }
        all.add(&home.join("archived_sessions"));
        all.sort();
        all
    }

    /// Those that belong to a rollout: all of Codex's folder, or of its own where it lies elsewhere.
    pub(super) fn around(rollout: &Path) -> Self {
        match home_of(rollout) {
            Some(home) => Self::read(home),
            None => {
                let mut all = Self::default();
                all.add(rollout.parent().unwrap_or(rollout));
                all.sort();
                all
            }
        }
    }

    fn add(&mut self, folder: &Path) {
        // a link is not followed
        if !fs::symlink_metadata(folder).is_ok_and(|m| m.is_dir()) {
            return;
        }
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            let path = entry.path();
            let Some(name) = Name::of(&path).filter(|_| entry.file_type().is_ok_and(|t| t.is_file())) else {
                continue;
            };
            // of copies one is enough
            if self.segments.insert(name.segment, path.clone()).is_none() {
                self.threads.entry(name.thread).or_default().push(path);
            }
        }
    }

    fn sort(&mut self) {
        for files in self.threads.values_mut() {
            // ids begin with the time at which they were made
            files.sort_by_cached_key(|f| Name::of(f).map(|n| (n.segment != n.thread, n.segment)));
        }
    }

    /// The rollouts of the thread that this one is of.
    pub(super) fn of(&self, rollout: &Path) -> Vec<PathBuf> {
        let thread = Name::of(rollout).and_then(|n| self.threads.get(&n.thread));
        thread.cloned().unwrap_or_else(|| vec![rollout.to_owned()])
    }
}

struct Listed {
    home: PathBuf,
    when: Instant,
    all: Arc<Rollouts>,
}

/// The listing that was made last.
#[derive(Default)]
pub(super) struct Lately(Mutex<Option<Listed>>);

impl Lately {
    /// The rollouts around one, as they were a moment ago.
    pub(super) fn around(&self, rollout: &Path) -> Arc<Rollouts> {
        match home_of(rollout) {
            Some(home) => self.read(home),
            None => Arc::new(Rollouts::around(rollout)),
        }
    }

    /// The rollouts in Codex's folder, as they were a moment ago.
    pub(super) fn read(&self, home: &Path) -> Arc<Rollouts> {
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let known = last
            .as_ref()
            .filter(|l| l.home == home && l.when.elapsed() < FRESH);
        match known {
            Some(known) => Arc::clone(&known.all),
            None => Self::anew(&mut last, home),
        }
    }

    /// The rollouts in Codex's folder, as they are now.
    pub(super) fn now(&self, home: &Path) -> Arc<Rollouts> {
        Self::anew(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner), home)
    }

    fn anew(last: &mut Option<Listed>, home: &Path) -> Arc<Rollouts> {
        let all = Arc::new(Rollouts::read(home));
        *last = Some(Listed {
            home: home.to_owned(),
            when: Instant::now(),
            all: Arc::clone(&all),
        });
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ids_stand_in_the_name() {
        let (a, b) = (
            "01a22846-48df-72c1-80dd-3ed79d56c1a9",
            "01a22848-69bc-74f0-9263-bf5482118b62",
        );
        let of = |name: &str| Name::of(Path::new(name)).map(|n| (n.thread, n.segment));
        let ids = |x: &str, y: &str| Some((x.to_owned(), y.to_owned()));
        assert_eq!(
            of(&format!("/d/rollout-2026-11-29T17-07-04-{a}.jsonl")),
            ids(a, a)
        );
        assert_eq!(
            of(&format!("rollout-2026-11-29T17-07-04-{a}_{b}.jsonl")),
            ids(a, b)
        );
        for bad in [
            format!("rollout-{a}.jsonl.zst"),
            format!("rollout-x_{b}.jsonl"),
            format!("{a}.jsonl"),
            "rollout-é-01a22846-48df-72c1-80dd-3ed79d56c1az.jsonl".to_owned(),
        ] {
            assert_eq!(of(&bad), None, "{bad}");
        }
        assert_eq!(
            home_of(Path::new("/h/.codex/sessions/2026/11/29/rollout-x")),
            Some(Path::new("/h/.codex"))
        );
        assert_eq!(
            home_of(Path::new("/h/.codex/archived_sessions/rollout-x")),
            Some(Path::new("/h/.codex"))
        );
        assert_eq!(home_of(Path::new("/h/rollout-x")), None);
    }
}
