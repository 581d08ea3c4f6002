//! Databases that are a file or a few: dpkg's, apk's, rpm's, cargo's.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use serde::Deserialize;
use serde_json::Value;

use super::places::{CARGO, expand};
use super::stanzas::{Listed, apk, dpkg};
use super::tree::{Kind, Stamp, Tree, TreeError, whole};
use super::{Manager, Result, Summary, go_on, harmless, rpm};
use crate::progress::Progress;
use crate::text;

/// The largest text database; real ones have some megabytes.
const TEXT: u64 = 64 << 20;
/// The largest database of rpm.
const RPM: u64 = 256 << 20;
/// So many files of one database are read.
const FILES: usize = 2000;
/// So many databases that were read are remembered.
const REMEMBERED: usize = 16;

const STATUS: &str = "var/lib/dpkg/status";
const APK: [&str; 2] = ["lib/apk/db/installed", "usr/lib/apk/db/installed"];
/// Fedora's first: there the second is a link to it.
const RPMS: [&str; 2] = ["usr/lib/sysimage/rpm", "var/lib/rpm"];

/// A file, and its bytes.
type Loaded = (PathBuf, Vec<u8>);

/// One database: which files it has in a tree, and how they are read.
struct Database {
    manager: Manager,
    place: String,
    files: Vec<PathBuf>,
    limit: u64,
    parse: fn(&[Loaded]) -> std::result::Result<Listed, String>,
}

/// Where it is, and why it cannot be found out what is there.
type Hidden = (PathBuf, TreeError);
/// Finds the database of one manager.
type Find = fn(&dyn Tree) -> std::result::Result<Option<Database>, Hidden>;
/// What tells a database from all others: its manager, the stamps of its files.
type Key = (Manager, Vec<Stamp>);

/// Compares the databases of a whole root.
pub(super) fn compare(
    before: &dyn Tree,
    after: &dyn Tree,
    out: &mut Summary,
    progress: &dyn Progress,
) -> Result<()> {
    let finders: [(Manager, Find); 3] = [
        (Manager::Dpkg, find_dpkg),
        (Manager::Apk, find_apk),
        (Manager::Rpm, find_rpm),
    ];
    for (manager, find) in finders {
        go_on(progress)?;
        match (find(before), find(after)) {
            (Ok(a), Ok(b)) => one((before, a), (after, b), out),
            (Err((path, e)), _) | (_, Err((path, e))) => out.unread(manager, &rooted(&path), e),
        }
    }
    for pattern in CARGO {
        go_on(progress)?;
        let (a, b) = (expand(before, pattern), expand(after, pattern));
        for (path, e) in a.wrong.iter().chain(&b.wrong) {
            out.unread(Manager::Cargo, &rooted(path), e);
        }
        let all: BTreeSet<&PathBuf> = a.found.iter().chain(&b.found).collect();
        for path in all {
            let there = |found: &[PathBuf]| found.contains(path).then(|| of_cargo(path));
            one((before, there(&a.found)), (after, there(&b.found)), out);
        }
    }
    Ok(())
}

fn rooted(path: &Path) -> String {
    format!("/{}", text::shown_path(path))
}

fn of_cargo(path: &Path) -> Database {
    Database {
        manager: Manager::Cargo,
        place: rooted(path),
        files: vec![path.to_owned()],
        limit: TEXT,
        parse: |files| cargo(files.first().map_or(&[][..], |(_, b)| b)),
    }
}

/// What is at a path, however it is called.
fn kind(tree: &dyn Tree, path: &Path) -> std::result::Result<Option<Kind>, Hidden> {
    let node = tree.node(path).map_err(|e| (path.to_owned(), e))?;
    Ok(node.map(|n| n.kind))
}

fn find_dpkg(tree: &dyn Tree) -> std::result::Result<Option<Database>, Hidden> {
    let mut files = Vec::new();
    let status = PathBuf::from(STATUS);
    if kind(tree, &status)?.is_some() {
        files.push(status);
    }
    // a run that was cut short, and images without dpkg
    for (folder, own) in [
        (
            "var/lib/dpkg/updates",
            (|n: &str| n.bytes().all(|b| b.is_ascii_digit())) as fn(&str) -> bool,
        ),
        ("var/lib/dpkg/status.d", |n: &str| !n.contains(".md5sums")),
    ] {
        let folder = PathBuf::from(folder);
        let names = tree.names(&folder).map_err(|e| (folder.clone(), e))?;
        let names: BTreeSet<_> = names.unwrap_or_default().into_iter().map(|(n, _)| n).collect();
        files.extend(
            names
                .into_iter()
                .filter(|n| n.to_str().is_some_and(own))
                .map(|n| folder.join(n)),
        );
    }
    if files.len() > FILES {
        return Err(("var/lib/dpkg".into(), TreeError::TooMany(FILES)));
    }
    Ok((!files.is_empty()).then_some(Database {
        manager: Manager::Dpkg,
        place: format!("/{STATUS}"),
        files,
        limit: TEXT,
        parse: |files| list(dpkg(files.iter().map(|(_, b)| b.as_slice()))),
    }))
}

fn find_apk(tree: &dyn Tree) -> std::result::Result<Option<Database>, Hidden> {
    for path in APK.map(PathBuf::from) {
        let there = match kind(tree, &path) {
            // /lib is one to /usr/lib: the other path
            Err((_, TreeError::Link)) => None,
            other => other?,
        };
        if there.is_some() {
            return Ok(Some(Database {
                manager: Manager::Apk,
                place: rooted(&path),
                files: vec![path],
                limit: TEXT,
                parse: |files| list(apk(files.first().map_or(&[][..], |(_, b)| b))),
            }));
        }
    }
    Ok(None)
}

fn find_rpm(tree: &dyn Tree) -> std::result::Result<Option<Database>, Hidden> {
    const WAL: &str = "rpmdb.sqlite-wal";
    let mut link = None;
    for folder in RPMS.map(PathBuf::from) {
        match kind(tree, &folder) {
            Ok(Some(Kind::Link)) | Err((_, TreeError::Link)) => {
                link = Some((folder, TreeError::Link));
                continue;
            }
            other => other?,
        };
        let found = |name: &str| -> std::result::Result<Option<PathBuf>, Hidden> {
            let path = folder.join(name);
            Ok(kind(tree, &path)?.map(|_| path))
        };
        if let Some(path) = found("rpmdb.sqlite")? {
            let mut files = vec![path.clone()];
            files.extend(found(WAL)?);
            return Ok(Some(Database {
                manager: Manager::Rpm,
                place: rooted(&path),
                files,
                limit: RPM,
                parse: |files| match files {
                    [_, (_, log)] if !log.is_empty() => {
                        Err("a part of it is still in its write-ahead log".into())
                    }
                    files => list(rpm::sqlite(files.first().map_or(&[][..], |(_, b)| b))?),
                },
            }));
        }
        for old in ["Packages.db", "Packages"] {
            if let Some(path) = found(old)? {
                return Ok(Some(Database {
                    manager: Manager::Rpm,
                    place: rooted(&path),
                    files: vec![path],
                    limit: RPM,
                    parse: |_| Err("it is of an older kind than SQLite (Berkeley DB or ndb)".into()),
                }));
            }
        }
    }
    link.map_or(Ok(None), Err)
}

/// Nothing but entries that cannot be read is no database.
fn list(listed: Listed) -> std::result::Result<Listed, String> {
    if listed.installed.is_empty() && listed.broken > 0 {
        return Err("no entry of it can be read".into());
    }
    Ok(listed)
}

#[derive(Deserialize)]
struct Crates {
    #[serde(default)]
    installs: HashMap<String, Value>,
}

/// `name version (source)` is the key of each entry.
fn cargo(bytes: &[u8]) -> std::result::Result<Listed, String> {
    let crates: Crates = serde_json::from_slice(bytes).map_err(|e| e.to_string())?;
    let mut out = Listed::default();
    for key in crates.installs.keys() {
        let mut words = key.split(' ').filter(|w| !w.is_empty());
        match (words.next(), words.next()) {
            (Some(name), Some(version)) => {
                let versions = out.installed.entry(harmless(name.as_bytes())).or_default();
                versions.insert(harmless(version.as_bytes()));
            }
            _ => out.broken += 1,
        }
    }
    Ok(out)
}

/// What was read of a database; or why it cannot be, and what tells its bytes from others.
type Read = std::result::Result<Arc<Listed>, (String, Option<[u8; 32]>)>;

fn one(before: (&dyn Tree, Option<Database>), after: (&dyn Tree, Option<Database>), out: &mut Summary) {
    let (a, b) = (before.1, after.1);
    let Some(any) = b.as_ref().or(a.as_ref()) else {
        return;
    };
    let stamps = |tree: &dyn Tree, db: Option<&Database>| stamps(tree, db?);
    let (old, new) = (stamps(before.0, a.as_ref()), stamps(after.0, b.as_ref()));
    if old.is_some() && old == new {
        return;
    }
    let a = a
        .as_ref()
        .map_or_else(|| Ok(Arc::default()), |db| read(before.0, db, old));
    let b = b
        .as_ref()
        .map_or_else(|| Ok(Arc::default()), |db| read(after.0, db, new));
    match (a, b) {
        (Ok(a), Ok(b)) => {
            let place = (!any.manager.of_distribution()).then_some(any.place.as_str());
            if a.broken.max(b.broken) > 0 && a != b {
                let n = a.broken.max(b.broken);
                let what = if n == 1 { "entry is" } else { "entries are" };
                out.unread(any.manager, &any.place, format!("{n} {what} broken"));
            }
            out.compare(any.manager, place, &a.installed, &b.installed);
        }
        (Err((_, Some(a))), Err((_, Some(b)))) if a == b => {}
        (_, Err((why, _))) => out.unread(any.manager, &any.place, why),
        (Err((why, _)), Ok(_)) => out.unread(any.manager, &any.place, format!("{why} (in the first state)")),
    }
}

/// The stamps of all its files, where they can be known.
fn stamps(tree: &dyn Tree, db: &Database) -> Option<Vec<Stamp>> {
    let stamp = |path: &PathBuf| tree.node(path).ok().flatten()?.stamp;
    db.files.iter().map(stamp).collect()
}

/// What was read before: by manager and stamps.
static KNOWN: Mutex<VecDeque<(Key, Arc<Listed>)>> = Mutex::new(VecDeque::new());

fn read(tree: &dyn Tree, db: &Database, stamps: Option<Vec<Stamp>>) -> Read {
    let key = stamps.map(|s| (db.manager, s));
    if let Some(key) = &key {
        let known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, listed)) = known.iter().find(|(k, _)| k == key) {
            return Ok(Arc::clone(listed));
        }
    }
    let mut files = Vec::new();
    let mut left = db.limit;
    for path in &db.files {
        let bytes = whole(tree, path, left)
            .map_err(|e| (e.to_string(), None))?
            .unwrap_or_default();
        left = left.saturating_sub(bytes.len() as u64);
        files.push((path.clone(), bytes));
    }
    let hash = || {
        let mut hash = blake3::Hasher::new();
        for (_, bytes) in &files {
            hash.update(bytes);
        }
        Some(*hash.finalize().as_bytes())
    };
    let listed = Arc::new((db.parse)(&files).map_err(|why| (why, hash()))?);
    if let Some(key) = key {
        let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= REMEMBERED {
            known.pop_front();
        }
        known.push_back((key, Arc::clone(&listed)));
    }
    Ok(listed)
}
