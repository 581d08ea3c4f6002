//! An overlay whose upper layer is no folder of this machine, such as one that is kept as copies.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Component, Path, PathBuf};

use super::dirs::Dirs;
use super::tree::{Kind, Node, Tree, TreeError};

/// What something in an upper layer hides of the layers below.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hides {
    /// What is not a folder in both.
    Usual,
    /// All of it: a folder that was made anew.
    Below,
    /// All of it, and itself: it was removed.
    Itself,
}

/// An upper layer.
pub trait Upper: Tree {
    /// What hides what at this path. Nothing there hides nothing.
    fn hides(&self, path: &Path) -> Result<Hides, TreeError>;
}

/// An upper layer over others.
pub struct Over<'a> {
    upper: Box<dyn Upper + 'a>,
    lower: Dirs,
}

/// What of a path can be seen.
#[derive(PartialEq)]
enum Seen {
    /// Nothing.
    Nothing,
    /// What the upper layer has.
    Upper,
    /// That, and what is below.
    Both,
}

impl<'a> Over<'a> {
    /// The upper layer over the others.
    pub fn new(upper: Box<dyn Upper + 'a>, lower: Dirs) -> Self {
        Self { upper, lower }
    }

    fn seen(&self, path: &Path) -> Result<Seen, TreeError> {
        let mut seen = Seen::Both;
        let mut at = PathBuf::new();
        let mut parts = path.components().peekable();
        while let Some(part) = parts.next() {
            match part {
                Component::Normal(name) => at.push(name),
                Component::CurDir => continue,
                _ => return Ok(Seen::Nothing),
            }
            let Some(node) = self.upper.node(&at)? else {
                return Ok(seen);
            };
            match self.upper.hides(&at)? {
                Hides::Itself => return Ok(Seen::Nothing),
                Hides::Below => seen = Seen::Upper,
                Hides::Usual => {}
            }
            if node.kind == Kind::Dir {
                continue;
            }
            return match (parts.peek(), node.kind) {
                (None, _) => Ok(Seen::Upper),
                (Some(_), Kind::Link) => Err(TreeError::Link),
                (Some(_), _) => Ok(Seen::Nothing),
            };
        }
        Ok(seen)
    }
}

impl Tree for Over<'_> {
    fn node(&self, path: &Path) -> Result<Option<Node>, TreeError> {
        let seen = self.seen(path)?;
        if seen == Seen::Nothing {
            return Ok(None);
        }
        match self.upper.node(path)? {
            None if seen == Seen::Both => self.lower.node(path),
            other => Ok(other),
        }
    }

    fn names(&self, path: &Path) -> Result<Option<Vec<(OsString, Kind)>>, TreeError> {
        let seen = self.seen(path)?;
        if seen == Seen::Nothing {
            return Ok(None);
        }
        let mut all: BTreeMap<OsString, Option<Kind>> = BTreeMap::new();
        let upper = self.upper.names(path)?;
        let there = upper.is_some();
        for (name, kind) in upper.unwrap_or_default() {
            let gone = self.upper.hides(&path.join(&name))? == Hides::Itself;
            all.insert(name, (!gone).then_some(kind));
        }
        let below = match self.lower.names(path) {
            _ if seen != Seen::Both => None,
            // a folder was put in place of something else
            Err(TreeError::NotADir | TreeError::Link) if there => None,
            other => other?,
        };
        if !there && below.is_none() {
            return Ok(None);
        }
        for (name, kind) in below.unwrap_or_default() {
            all.entry(name).or_insert(Some(kind));
        }
        Ok(Some(all.into_iter().filter_map(|(n, k)| Some((n, k?))).collect()))
    }

    fn read(&self, path: &Path, limit: u64) -> Result<Option<Vec<u8>>, TreeError> {
        let seen = self.seen(path)?;
        if seen == Seen::Nothing {
            return Ok(None);
        }
        match self.upper.node(path)? {
            None if seen == Seen::Both => self.lower.read(path, limit),
            _ => self.upper.read(path, limit),
        }
    }
}
