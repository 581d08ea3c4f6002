//! The numbers of change lists between checkpoints, and the packages that differ. A list between two read-only snapshots never changes, so
//! its numbers are kept: in memory, and in the sandbox's folder, one small file a pair. What is kept there
//! may be missing, torn or old: then it is counted again.

use std::collections::HashMap;
use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use serde::{Deserialize, Serialize};

use super::packages::of_sandbox;
use crate::engine::{Change, CheckpointId, Counts, Result, State};
use crate::packages::Summary;
use crate::progress::Progress;
use crate::sandbox::remote::{Ask, typed};
use crate::sandbox::site::Site;

/// The folder of the numbers, in the sandbox's folder.
const FOLDER: &str = "cache";
/// The way of counting: another number, and what was counted before is counted again.
const VERSION: u32 = 2;

type Pair = (CheckpointId, CheckpointId);

#[derive(Serialize, Deserialize)]
struct Kept {
    v: u32,
    #[serde(flatten)]
    tally: Tally,
}

/// What is known of the difference between two checkpoints.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tally {
    /// How many paths differ.
    #[serde(flatten)]
    pub counts: Counts,
    /// The packages that differ; `None` where nobody looked.
    #[serde(default)]
    pub packages: Option<Summary>,
}

/// Numbers that are known.
#[derive(Debug, Default)]
pub struct Known(Mutex<HashMap<Pair, Tally>>);

impl Known {
    /// The numbers of this pair, if they are known.
    pub fn get(&self, site: &Site, pair: &Pair) -> Option<Tally> {
        // what the service knows was fetched before
        self.kept(site.dir().ok(), pair)
    }

    /// Asks the service for all the numbers that it knows, at once; nothing to do where the sandbox is here.
    pub fn fetch(&self, site: &Site, pairs: impl Iterator<Item = Pair>) -> Result<()> {
        let Some(remote) = site.remote() else {
            return Ok(());
        };
        let pairs: Vec<Pair> = pairs.collect();
        let known: Vec<Option<Tally>> = remote.get(Ask::Known(pairs.clone()))?;
        for (pair, tally) in pairs.iter().zip(known) {
            if let Some(tally) = tally {
                self.remember(pair, tally);
            }
        }
        Ok(())
    }

    /// The numbers of a pair; counted where they are not known.
    pub fn counted(&self, site: &Site, pair: &Pair, progress: &dyn Progress) -> Result<Tally> {
        if let Some(tally) = self.get(site, pair) {
            return Ok(tally);
        }
        let Some(remote) = site.remote() else {
            return Ok(self.tallied(site, pair, progress)?.1);
        };
        let tally: Tally = typed(remote.ask(Ask::Counts(pair.0.clone(), pair.1.clone()), progress)?)?;
        self.remember(pair, tally.clone());
        Ok(tally)
    }

    /// The list of a pair. Its numbers are kept.
    pub fn listed(&self, site: &Site, pair: &Pair, progress: &dyn Progress) -> Result<Vec<Change>> {
        Ok(self.tallied(site, pair, progress)?.0)
    }

    fn tallied(&self, site: &Site, pair: &Pair, progress: &dyn Progress) -> Result<(Vec<Change>, Tally)> {
        let (from, to) = (
            State::Checkpoint(pair.0.clone()),
            State::Checkpoint(pair.1.clone()),
        );
        let list = site.vault.changes(&from, &to, false, progress)?;
        let tally = Tally {
            counts: Counts::of(&list),
            packages: Some(of_sandbox(site, &from, &to, &list, progress)?),
        };
        // a container that cannot be reached now may be later
        let whole = tally.packages.as_ref().is_some_and(Summary::is_whole);
        match site.dir() {
            Ok(dir) if whole => self.put(dir, pair, tally.clone()),
            _ => self.remember(pair, tally.clone()),
        }
        Ok((list, tally))
    }

    /// The numbers of this pair that are kept in memory or in the sandbox's folder.
    fn kept(&self, dir: Option<&Path>, pair: &Pair) -> Option<Tally> {
        if let Some(c) = self.0.lock().ok().and_then(|m| m.get(pair).cloned()) {
            return Some(c);
        }
        let bytes = fs::read(file(dir?, pair)).ok()?;
        let kept: Kept = serde_json::from_slice(&bytes).ok()?;
        (kept.v == VERSION).then(|| {
            self.remember(pair, kept.tally.clone());
            kept.tally
        })
    }

    /// Keeps the numbers of a pair. A pool that cannot be written is no failure: they are counted again.
    fn put(&self, dir: &Path, pair: &Pair, tally: Tally) {
        self.remember(pair, tally.clone());
        if let Err(e) = write(dir, pair, tally) {
            tracing::debug!("counted changes are not kept: {e}");
        }
    }

    fn remember(&self, pair: &Pair, tally: Tally) {
        if let Ok(mut m) = self.0.lock() {
            m.insert(pair.clone(), tally);
        }
    }
}

fn file(dir: &Path, (a, b): &Pair) -> PathBuf {
    dir.join(FOLDER).join(format!("{a}_{b}.json"))
}

fn write(dir: &Path, pair: &Pair, tally: Tally) -> io::Result<()> {
    let path = file(dir, pair);
    let temp = path.with_extension(format!("{}.tmp", std::process::id()));
    let bytes = serde_json::to_vec(&Kept { v: VERSION, tally })?;
    let open = || {
        fs::OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&temp)
    };
    let mut file = match open() {
        Err(e) if e.kind() == io::ErrorKind::NotFound => {
            fs::DirBuilder::new().mode(0o700).create(dir.join(FOLDER))?;
            open()?
        }
        other => other?,
    };
    file.write_all(&bytes)?;
    // not synced: one that a crash tore is counted again
    fs::rename(&temp, &path)
}

/// Removes the numbers of checkpoints that are no more, and what killed processes left. `dir`: the sandbox's
/// folder.
pub fn forget(dir: &Path, gone: &[CheckpointId]) -> io::Result<()> {
    let entries = match fs::read_dir(dir.join(FOLDER)) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
        other => other?,
    };
    let gone: std::collections::HashSet<&str> = gone.iter().map(CheckpointId::as_str).collect();
    for entry in entries {
        let entry = entry?;
        let name = entry.file_name();
        let pair = name
            .to_str()
            .and_then(|n| n.strip_suffix(".json")?.split_once('_'));
        if pair.is_none_or(|(a, b)| gone.contains(a) || gone.contains(b)) {
            match fs::remove_file(entry.path()) {
                Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
                _ => {}
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packages::{Manager, PackageChange};

    #[test]
    fn numbers_are_kept_and_forgotten_with_their_checkpoints() {
        let dir = tempfile::tempdir().expect("tempdir");
        let id = |n: u32| CheckpointId(format!("cp-{n:010}"));
        let pair = |a, b| (id(a), id(b));
        let counts = |n| Tally {
            counts: Counts {
                added: n,
                ..Counts::default()
            },
            packages: (n % 2 == 0).then(|| Summary {
                packages: vec![PackageChange {
                    manager: Manager::Pip,
                    name: "requests".into(),
                    from: None,
                    to: Some(n.to_string()),
                    place: Some("venv".into()),
                }],
                packages_unread: Vec::new(),
            }),
        };
        let first = Known::default();
        assert_eq!(first.kept(Some(dir.path()), &pair(1, 2)), None);
        for n in 1..5 {
            first.put(dir.path(), &pair(n, n + 1), counts(u64::from(n)));
        }
        // another process
        let known = |a, b| Known::default().kept(Some(dir.path()), &pair(a, b));
        assert_eq!(known(2, 3), Some(counts(2)));
        assert_eq!(known(3, 2), None);
        let at = |a, b| file(dir.path(), &pair(a, b));
        for torn in [
            &b""[..],
            b"{",
            b"\0\0\0\0",
            br#"{"v":1,"added":1,"modified":0,"deleted":0,"renamed":0,"other":0}"#,
            b"[]",
        ] {
            fs::write(at(4, 5), torn).expect("write");
            assert_eq!(known(4, 5), None, "{torn:?}");
        }
        fs::write(dir.path().join("cache/x.1.tmp"), "").expect("write");
        forget(dir.path(), &[id(2)]).expect("forget");
        assert_eq!(
            [known(1, 2), known(2, 3), known(3, 4)],
            [None, None, Some(counts(3))]
        );
        assert!(!dir.path().join("cache/x.1.tmp").exists());
        // an older service knows of no packages
        let numbers = serde_json::to_value(counts(3).counts).expect("json");
        assert_eq!(
            serde_json::from_value::<Tally>(numbers).expect("a tally"),
            counts(3)
        );
        // a folder that cannot be written
        let none = dir.path().join("none/deeper");
        first.put(&none, &pair(1, 2), counts(7));
        assert_eq!(first.kept(Some(&none), &pair(1, 2)), Some(counts(7)));
        forget(&none, &[id(1)]).expect("nothing there");
    }
}
