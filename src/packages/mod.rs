//! Which packages differ between two states of a root file system or of a workspace: dpkg, apk, rpm, pacman, pip,
//! `npm -g`, gem and `cargo install`, read from their databases. Nothing is executed and nothing is written. The
//! databases are hostile: their size is bounded, no link is followed, nothing but regular files and folders is opened,
//! and names are harmless text once they are read. What cannot be read is said, never left out.
//!
//! [`system`] compares two roots, [`workspace`] two states of a workspace; both read through a [`Tree`].

mod database;
mod dirs;
mod entries;
mod over;
mod places;
mod rpm;
mod sqlite;
mod stanzas;
mod tree;
mod words;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

pub use dirs::{Dirs, Marks};
pub use over::{Hides, Over, Upper};
pub use tree::{Kind, Node, Stamp, Tree, TreeError};

use crate::progress::Progress;
use crate::text;

/// What manages a package.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Manager {
    /// Debian, Ubuntu.
    Dpkg,
    /// Alpine, Wolfi.
    Apk,
    /// Fedora, Red Hat, SUSE.
    Rpm,
    /// Arch.
    Pacman,
    /// Python's.
    Pip,
    /// Node's, installed with `-g`.
    Npm,
    /// Ruby's.
    Gem,
    /// `cargo install`.
    Cargo,
}

impl Manager {
    /// Its command.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Dpkg => "dpkg",
            Self::Apk => "apk",
            Self::Rpm => "rpm",
            Self::Pacman => "pacman",
            Self::Pip => "pip",
            Self::Npm => "npm",
            Self::Gem => "gem",
            Self::Cargo => "cargo",
        }
    }

    /// True for the one that the distribution itself is made of.
    pub const fn of_distribution(self) -> bool {
        matches!(self, Self::Dpkg | Self::Apk | Self::Rpm | Self::Pacman)
    }
}

/// One package that differs. All texts are harmless.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct PackageChange {
    /// What manages it.
    pub manager: Manager,
    /// Its name.
    pub name: String,
    /// Its version in the first state; `None`: not there.
    pub from: Option<String>,
    /// Its version in the second state; `None`: not there.
    pub to: Option<String>,
    /// The folder that it is in, for managers that have several.
    #[serde(rename = "where")]
    pub place: Option<String>,
}

/// A database that cannot be read, or not all of it. All texts are harmless.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Unread {
    /// What manages it; `None` where none of a whole place could be looked for.
    pub manager: Option<Manager>,
    /// Where it is.
    #[serde(rename = "where")]
    pub place: String,
    /// Why, in words.
    pub why: String,
}

/// The packages that differ between two states, sorted.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Summary {
    /// Installed, removed, or of another version.
    #[serde(default)]
    pub packages: Vec<PackageChange>,
    /// What could not be compared.
    #[serde(default)]
    pub packages_unread: Vec<Unread>,
}

impl Summary {
    /// True if nothing differs and all could be read.
    pub fn is_empty(&self) -> bool {
        self.packages.is_empty() && self.packages_unread.is_empty()
    }

    /// "installed ripgrep, jq; upgraded curl 7.88 -> 7.89; removed nano"; of many the number and the first ones.
    /// Empty if there is nothing to say. One harmless line.
    pub fn line(&self) -> String {
        words::line(self)
    }

    /// With what another part of the sandbox has.
    pub fn extend(&mut self, other: Self) {
        self.packages.extend(other.packages);
        self.packages_unread.extend(other.packages_unread);
        self.sort();
    }

    /// False if a whole place could not be looked into.
    pub fn is_whole(&self) -> bool {
        self.packages_unread.iter().all(|u| u.manager.is_some())
    }

    /// A whole place of which nothing could be read, and why.
    pub fn hidden(place: &str, why: &str) -> Self {
        Self {
            packages: Vec::new(),
            packages_unread: vec![Unread {
                manager: None,
                place: text::shown(place),
                why: text::shown(why),
            }],
        }
    }

    fn sort(&mut self) {
        self.packages.sort();
        self.packages.dedup();
        self.packages_unread.sort();
        self.packages_unread.dedup();
    }

    /// Takes up what differs between two lists of one place.
    fn compare(&mut self, manager: Manager, place: Option<&str>, a: &Installed, b: &Installed) {
        let names: BTreeSet<&String> = a.keys().chain(b.keys()).collect();
        let none = BTreeSet::new();
        for name in names {
            let (old, new) = (a.get(name).unwrap_or(&none), b.get(name).unwrap_or(&none));
            let gone: Vec<&String> = old.difference(new).collect();
            let come: Vec<&String> = new.difference(old).collect();
            let mut push = |from: Option<&String>, to: Option<&String>| {
                self.packages.push(PackageChange {
                    manager,
                    name: name.clone(),
                    from: from.cloned(),
                    to: to.cloned(),
                    place: place.map(str::to_owned),
                });
            };
            match (gone.as_slice(), come.as_slice()) {
                ([from], [to]) => push(Some(from), Some(to)),
                _ => {
                    for version in gone {
                        push(Some(version), None);
                    }
                    for version in come {
                        push(None, Some(version));
                    }
                }
            }
        }
    }

    fn unread(&mut self, manager: Manager, place: &str, why: impl ToString) {
        self.packages_unread.push(Unread {
            manager: Some(manager),
            place: place.to_owned(),
            why: text::shown(&why.to_string()),
        });
    }
}

/// What is installed: names, each with its versions.
type Installed = BTreeMap<String, BTreeSet<String>>;

/// Longest name or version that is taken up, in characters.
const LONGEST: usize = 120;

/// A name or version out of a database: one harmless line that is not endless.
fn harmless(bytes: &[u8]) -> String {
    // of a long one no more is looked at than can be shown
    let end = bytes.len().min(4 * LONGEST);
    let all = text::shown_bytes(&bytes[..end]);
    match all.char_indices().nth(LONGEST) {
        Some((at, _)) => format!("{}...", &all[..at]),
        None => all,
    }
}

/// It was cancelled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("cancelled")]
pub struct Cancelled;

/// The result of a comparison: what cannot be read is in it, so that it fails only when it is cancelled.
pub type Result<T> = std::result::Result<T, Cancelled>;

fn go_on(progress: &dyn Progress) -> Result<()> {
    if progress.cancelled() {
        Err(Cancelled)
    } else {
        Ok(())
    }
}

/// The packages that differ between two states of a whole root file system, such as a container's. A database with the
/// same inode, change time and size in both is not read.
pub fn system(before: &dyn Tree, after: &dyn Tree, progress: &dyn Progress) -> Result<Summary> {
    let mut out = Summary::default();
    database::compare(before, after, &mut out, progress)?;
    entries::compare(before, after, &mut out, progress)?;
    out.sort();
    Ok(out)
}

/// The packages that differ between two states of a workspace: those of Python's virtual environments and of prefixes of
/// `npm -g`, each at most three folders deep. `touched`: the paths that differ, relative to it; of folders that were
/// added or removed all that is in them. A project's own `node_modules` are its files and no packages of anybody's.
pub fn workspace<'a>(
    before: &dyn Tree,
    after: &dyn Tree,
    touched: impl Iterator<Item = &'a Path>,
    progress: &dyn Progress,
) -> Result<Summary> {
    let mut out = Summary::default();
    let found: BTreeSet<(Manager, PathBuf, PathBuf)> = touched.filter_map(places::entry_of).collect();
    entries::touched(before, after, &found, &mut out, progress)?;
    out.sort();
    Ok(out)
}

#[cfg(test)]
mod tests;
