//! Folders with an entry for each package: Python's, Node's, Ruby's, pacman's.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::places::{FOLDERS, expand, is_python};
use super::stanzas::python;
use super::tree::{Kind, Tree, TreeError, whole};
use super::{Installed, Manager, Result, Summary, go_on, harmless};
use crate::progress::Progress;
use crate::text;

/// The head of a Python package's description; the rest is a text for people.
const HEAD: u64 = 64 << 10;
/// The largest `package.json`.
const JSON: u64 = 4 << 20;
/// A folder with more packages is none.
const MOST: usize = 20_000;
/// Who else writes Python packages: what these install is told by the distribution's own manager.
const OTHERS: [&[u8]; 3] = [b"rpm", b"debian", b"apk"];

type Listing = std::result::Result<BTreeMap<PathBuf, Kind>, TreeError>;

/// Compares the folders of a whole root.
pub(super) fn compare(
    before: &dyn Tree,
    after: &dyn Tree,
    out: &mut Summary,
    progress: &dyn Progress,
) -> Result<()> {
    for (manager, pattern) in FOLDERS {
        let (a, b) = (expand(before, pattern), expand(after, pattern));
        for (path, e) in a.wrong.iter().chain(&b.wrong) {
            out.unread(*manager, &rooted(path), e);
        }
        let places: BTreeSet<&PathBuf> = a.found.iter().chain(&b.found).collect();
        for place in places {
            go_on(progress)?;
            let shown = rooted(place);
            match (listing(before, *manager, place), listing(after, *manager, place)) {
                (Ok(a), Ok(b)) => {
                    let wanted = differing(*manager, &a, &b);
                    let old = details(
                        before,
                        *manager,
                        place,
                        wanted.iter().copied().filter(|n| a.contains_key(*n)),
                    );
                    let new = details(
                        after,
                        *manager,
                        place,
                        wanted.iter().copied().filter(|n| b.contains_key(*n)),
                    );
                    both(out, *manager, &shown, old, new);
                }
                (Err(e), _) | (_, Err(e)) => out.unread(*manager, &shown, e),
            }
        }
    }
    Ok(())
}

/// Compares the entries of a workspace that were touched.
pub(super) fn touched(
    before: &dyn Tree,
    after: &dyn Tree,
    entries: &BTreeSet<(Manager, PathBuf, PathBuf)>,
    out: &mut Summary,
    progress: &dyn Progress,
) -> Result<()> {
    let mut places: BTreeMap<(Manager, &Path), Vec<&PathBuf>> = BTreeMap::new();
    for (manager, place, entry) in entries {
        places.entry((*manager, place)).or_default().push(entry);
    }
    for ((manager, place), entries) in places {
        go_on(progress)?;
        if manager == Manager::Npm && (is_project(before, place) || is_project(after, place)) {
            continue;
        }
        let shown = text::shown_path(place);
        if entries.len() > MOST {
            out.unread(manager, &shown, TreeError::TooMany(MOST));
            continue;
        }
        let old = details(before, manager, place, entries.iter().copied());
        let new = details(after, manager, place, entries.iter().copied());
        both(out, manager, &shown, old, new);
    }
    Ok(())
}

/// The folder is named `lib`, and is a project with dependencies of its own.
fn is_project(tree: &dyn Tree, place: &Path) -> bool {
    let lib = place.parent().unwrap_or(place);
    matches!(tree.node(&lib.join("package.json")), Ok(Some(_)))
}

fn both(out: &mut Summary, manager: Manager, place: &str, old: Details, new: Details) {
    let shown = (!manager.of_distribution()).then_some(place);
    let wrong: BTreeMap<PathBuf, String> = old.wrong.into_iter().chain(new.wrong).collect();
    for (path, why) in wrong {
        out.unread(manager, &format!("{place}/{}", text::shown_path(&path)), why);
    }
    out.compare(manager, shown, &old.installed, &new.installed);
}

fn rooted(path: &Path) -> String {
    format!("/{}", text::shown_path(path))
}

/// The entries of a folder.
fn listing(tree: &dyn Tree, manager: Manager, place: &Path) -> Listing {
    let mut out = BTreeMap::new();
    let mut add = |name: PathBuf, kind| {
        out.insert(name, kind);
        if out.len() > MOST {
            Err(TreeError::TooMany(MOST))
        } else {
            Ok(())
        }
    };
    for (name, kind) in tree.names(place)?.unwrap_or_default() {
        let scope = manager == Manager::Npm && name.as_bytes().starts_with(b"@") && kind == Kind::Dir;
        if scope {
            let folder = PathBuf::from(&name);
            for (inner, kind) in tree.names(&place.join(&name))?.unwrap_or_default() {
                if is_entry(manager, &inner, kind) {
                    add(folder.join(inner), kind)?;
                }
            }
        } else if is_entry(manager, &name, kind) {
            add(PathBuf::from(name), kind)?;
        }
    }
    Ok(out)
}

fn is_entry(manager: Manager, name: &OsString, kind: Kind) -> bool {
    let bytes = name.as_bytes();
    match manager {
        Manager::Pip => is_python(&name.to_string_lossy()),
        Manager::Npm => !bytes.starts_with(b".") && matches!(kind, Kind::Dir | Kind::Link),
        Manager::Gem => bytes.ends_with(b".gemspec"),
        _ => kind == Kind::Dir,
    }
}

/// The entries that must be looked at: those that only one state has, and those whose name says no version.
fn differing<'a>(
    manager: Manager,
    a: &'a BTreeMap<PathBuf, Kind>,
    b: &'a BTreeMap<PathBuf, Kind>,
) -> BTreeSet<&'a PathBuf> {
    let names = a.keys().chain(b.keys());
    let says = |n: &Path| {
        let stem = n.file_stem().unwrap_or_default();
        manager != Manager::Npm && stem.as_bytes().contains(&b'-')
    };
    names
        .filter(|n| !(a.contains_key(*n) && b.contains_key(*n) && says(n)))
        .collect()
}

#[derive(Default)]
struct Details {
    installed: Installed,
    wrong: Vec<(PathBuf, String)>,
}

/// What is known of these entries; one that is not there is none.
fn details<'a>(
    tree: &dyn Tree,
    manager: Manager,
    place: &Path,
    entries: impl Iterator<Item = &'a PathBuf>,
) -> Details {
    let mut out = Details::default();
    for entry in entries {
        match detail(tree, manager, place, entry) {
            Ok(Some((name, version))) => {
                out.installed.entry(name).or_default().insert(version);
            }
            Ok(None) => {}
            Err(e) => out.wrong.push((entry.clone(), e.to_string())),
        }
    }
    out
}

type Detail = std::result::Result<Option<(String, String)>, TreeError>;

fn detail(tree: &dyn Tree, manager: Manager, place: &Path, entry: &Path) -> Detail {
    let bytes = entry.as_os_str().as_bytes();
    match manager {
        Manager::Pip => of_python(tree, &place.join(entry)),
        Manager::Npm => of_node(tree, &place.join(entry), harmless(bytes)),
        Manager::Gem => {
            let name = bytes.strip_suffix(b".gemspec").unwrap_or(bytes);
            let at = name
                .windows(2)
                .position(|w| w[0] == b'-' && w[1].is_ascii_digit());
            split(name, at).map(Some)
        }
        _ => {
            let release = bytes.iter().rposition(|b| *b == b'-');
            let at = release.and_then(|r| bytes[..r].iter().rposition(|b| *b == b'-'));
            split(bytes, at).map(Some)
        }
    }
}

/// Name and version of `name-version`.
fn split(name: &[u8], dash: Option<usize>) -> std::result::Result<(String, String), TreeError> {
    let at = dash.filter(|at| *at > 0);
    let at = at.ok_or_else(|| TreeError::Other("its name says no version".into()))?;
    Ok((harmless(&name[..at]), harmless(&name[at + 1..])))
}

fn of_python(tree: &dyn Tree, path: &Path) -> Detail {
    let within = |e: TreeError, file: &str| TreeError::Other(format!("{file}: {e}"));
    let (file, at) = match tree.node(path)?.map(|n| n.kind) {
        None => return Ok(None),
        Some(Kind::Link) => return Err(TreeError::Link),
        Some(Kind::File) => ("it", path.to_owned()),
        Some(Kind::Other) => return Err(TreeError::NotAFile),
        Some(Kind::Dir) => {
            let installer = tree.read(&path.join("INSTALLER"), 64).unwrap_or_default();
            if installer.is_some_and(|i| OTHERS.contains(&i.trim_ascii())) {
                return Ok(None);
            }
            let new = path.extension().is_some_and(|e| e == "dist-info");
            let file = if new { "METADATA" } else { "PKG-INFO" };
            (file, path.join(file))
        }
    };
    let head = tree.read(&at, HEAD).map_err(|e| within(e, file))?;
    let head = head.ok_or_else(|| TreeError::Other(format!("it has no {file}")))?;
    let found = python(&head);
    found
        .map(Some)
        .ok_or_else(|| TreeError::Other(format!("{file} says no name and version")))
}

#[derive(Deserialize)]
struct PackageJson {
    #[serde(default)]
    version: Option<String>,
}

fn of_node(tree: &dyn Tree, path: &Path, name: String) -> Detail {
    match tree.node(path)?.map(|n| n.kind) {
        None => return Ok(None),
        // `npm link`: what it leads to is a project's
        Some(Kind::Link) => return Ok(Some((name, "link".into()))),
        Some(Kind::Dir) => {}
        Some(_) => return Err(TreeError::NotADir),
    }
    let wrong = |e: String| TreeError::Other(format!("package.json: {e}"));
    let json = whole(tree, &path.join("package.json"), JSON).map_err(|e| wrong(e.to_string()))?;
    // a folder without one is nothing that npm installed
    let Some(json) = json else { return Ok(None) };
    let json: PackageJson = serde_json::from_slice(&json).map_err(|e| wrong(e.to_string()))?;
    let version = json.version.unwrap_or_else(|| "?".into());
    Ok(Some((name, harmless(version.as_bytes()))))
}
