//! Where package managers keep what is installed, in a root and in a workspace.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use super::Manager;
use super::tree::{Kind, Tree, TreeError};

/// Folders with an entry for each package, in a root; `*` is for any part of one name. Debian's own
/// `usr/lib/python3/dist-packages` is dpkg's alone.
pub(super) const FOLDERS: &[(Manager, &str)] = &[
    (Manager::Pacman, "var/lib/pacman/local"),
    (Manager::Pip, "usr/lib/python3.*/site-packages"),
    (Manager::Pip, "usr/lib64/python3.*/site-packages"),
    (Manager::Pip, "usr/local/lib/python3.*/site-packages"),
    (Manager::Pip, "usr/local/lib/python3.*/dist-packages"),
    (Manager::Pip, "usr/local/lib64/python3.*/site-packages"),
    (Manager::Pip, "opt/*/lib/python3.*/site-packages"),
    (Manager::Pip, "~/.local/lib/python3.*/site-packages"),
    (
        Manager::Pip,
        "~/.local/share/pipx/venvs/*/lib/python3.*/site-packages",
    ),
    (
        Manager::Pip,
        "~/.local/share/uv/tools/*/lib/python3.*/site-packages",
    ),
    (Manager::Pip, "~/.pyenv/versions/*/lib/python3.*/site-packages"),
    (Manager::Pip, "~/.venv/lib/python3.*/site-packages"),
    (Manager::Npm, "usr/lib/node_modules"),
    (Manager::Npm, "usr/local/lib/node_modules"),
    (
        Manager::Npm,
        "usr/local/share/nvm/versions/node/*/lib/node_modules",
    ),
    (Manager::Npm, "opt/*/lib/node_modules"),
    (Manager::Npm, "~/.npm-global/lib/node_modules"),
    (Manager::Npm, "~/.local/lib/node_modules"),
    (Manager::Npm, "~/.nvm/versions/node/*/lib/node_modules"),
    (Manager::Gem, "var/lib/gems/*/specifications"),
    (Manager::Gem, "usr/local/bundle/specifications"),
    (Manager::Gem, "usr/lib/ruby/gems/*/specifications"),
    (Manager::Gem, "usr/local/lib/ruby/gems/*/specifications"),
    (Manager::Gem, "~/.gem/ruby/*/specifications"),
    (Manager::Gem, "~/.local/share/gem/ruby/*/specifications"),
];

/// Files in which `cargo install` writes what it installed.
pub(super) const CARGO: &[&str] = &["~/.cargo/.crates2.json", "usr/local/cargo/.crates2.json"];

/// Homes.
const HOMES: [&str; 2] = ["root", "home/*"];
/// So many matches of one pattern are looked at.
const MOST: usize = 500;
/// A virtual environment or prefix in a workspace is at most so deep.
const DEEPEST: usize = 3;

/// What a pattern leads to, and what of it cannot be read.
#[derive(Debug, Default)]
pub(super) struct Matches {
    /// What is there, of any kind.
    pub found: Vec<PathBuf>,
    /// What is in the way.
    pub wrong: Vec<(PathBuf, TreeError)>,
}

/// The paths of a root that a pattern means.
pub(super) fn expand(tree: &dyn Tree, pattern: &str) -> Matches {
    let mut out = Matches::default();
    match pattern.strip_prefix("~/") {
        Some(rest) => HOMES
            .iter()
            .for_each(|home| one(tree, &format!("{home}/{rest}"), &mut out)),
        None => one(tree, pattern, &mut out),
    }
    out
}

fn one(tree: &dyn Tree, pattern: &str, out: &mut Matches) {
    let mut at = vec![PathBuf::new()];
    for part in pattern.split('/') {
        let Some((before, after)) = part.split_once('*') else {
            for path in &mut at {
                path.push(part);
            }
            continue;
        };
        let mut next = Vec::new();
        for folder in at {
            match tree.names(&folder) {
                Ok(names) => next.extend(
                    names
                        .unwrap_or_default()
                        .into_iter()
                        // a link stands for what has a place of its own
                        .filter(|(name, kind)| *kind == Kind::Dir && is_like(name, before, after))
                        .map(|(name, _)| folder.join(name)),
                ),
                Err(e) => out.wrong.push((folder, e)),
            }
        }
        if next.len() > MOST {
            out.wrong.push((pattern.into(), TreeError::TooMany(MOST)));
            next.truncate(MOST);
        }
        next.sort();
        at = next;
    }
    for path in at {
        match tree.node(&path) {
            Ok(None) => {}
            Ok(Some(_)) => out.found.push(path),
            Err(e) => out.wrong.push((path, e)),
        }
    }
}

fn is_like(name: &OsStr, before: &str, after: &str) -> bool {
    let rest = name.as_bytes().strip_prefix(before.as_bytes());
    rest.is_some_and(|r| r.ends_with(after.as_bytes()))
}

/// The package that a path of a workspace belongs to: its manager, the folder of packages, its entry there.
pub(super) fn entry_of(path: &Path) -> Option<(Manager, PathBuf, PathBuf)> {
    let mut names = Vec::new();
    for part in path.components() {
        match part {
            Component::Normal(name) => names.push(name.to_str().unwrap_or("\0")),
            Component::CurDir => {}
            _ => return None,
        }
    }
    let lib = (0..=DEEPEST).find(|i| matches!(names.get(*i), Some(&"lib" | &"lib64")))?;
    if names[..lib].contains(&"node_modules") {
        return None;
    }
    let (manager, wide, entry) = match &names[lib + 1..] {
        [python, "site-packages", entry, ..] if python.starts_with("python3.") => {
            is_python(entry).then_some((Manager::Pip, 2, 1))?
        }
        ["node_modules", scope, _, ..] if scope.starts_with('@') => (Manager::Npm, 1, 2),
        ["node_modules", entry, ..] if !entry.starts_with(['.', '@']) => (Manager::Npm, 1, 1),
        _ => return None,
    };
    let all: Vec<&OsStr> = path
        .components()
        .filter_map(|c| match c {
            Component::Normal(name) => Some(name),
            _ => None,
        })
        .collect();
    let place = all[..=lib + wide].iter().collect();
    Some((
        manager,
        place,
        all[lib + wide + 1..=lib + wide + entry].iter().collect(),
    ))
}

/// True for the entry of a Python package's description; `~` begins what pip left half removed.
pub(super) fn is_python(name: &str) -> bool {
    let is = |end| name.strip_suffix(end).is_some_and(|n: &str| !n.is_empty());
    !name.starts_with('~') && (is(".dist-info") || is(".egg-info"))
}
