//! A tree of files in memory.

use std::collections::BTreeMap;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use chrono::{DateTime, Utc};

use super::super::super::FileType;

/// What a node holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Body {
    /// A regular file's bytes.
    File(Arc<[u8]>),
    /// A folder.
    Dir,
    /// A link's target.
    Link(PathBuf),
    /// A fifo, socket or device.
    Other(FileType),
}

/// One file, folder, link or special file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    /// Its identity: the same in two states = the same file, whatever its name.
    pub inode: u64,
    /// What it holds.
    pub body: Body,
    /// Permission bits.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Modification time.
    pub mtime: DateTime<Utc>,
}

impl Node {
    /// Its type.
    pub fn file_type(&self) -> FileType {
        match &self.body {
            Body::File(_) => FileType::File,
            Body::Dir => FileType::Dir,
            Body::Link(_) => FileType::Link,
            Body::Other(t) => *t,
        }
    }

    /// Size in bytes of files and links.
    pub fn size(&self) -> Option<u64> {
        match &self.body {
            Body::File(bytes) => Some(bytes.len() as u64),
            Body::Link(target) => Some(target.as_os_str().len() as u64),
            _ => None,
        }
    }
}

/// All nodes by path; the root is the empty path and always there. Parents come before children.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tree(pub(super) BTreeMap<PathBuf, Node>);

/// The path without `.`; `None` if it is absolute or has `..`.
pub(super) fn normal(path: &Path) -> Option<PathBuf> {
    let mut out = PathBuf::new();
    for part in path.components() {
        match part {
            Component::Normal(name) => out.push(name),
            Component::CurDir => {}
            _ => return None,
        }
    }
    Some(out)
}

impl Tree {
    pub(super) fn new(root: Node) -> Self {
        Self(BTreeMap::from([(PathBuf::new(), root)]))
    }

    /// The node at a path.
    pub fn get(&self, path: &Path) -> Option<&Node> {
        self.0.get(&normal(path)?)
    }

    /// The paths at and below `path`, parents first.
    pub(super) fn below(&self, path: &Path) -> Vec<PathBuf> {
        self.0.keys().filter(|p| p.starts_with(path)).cloned().collect()
    }

    pub(super) fn remove(&mut self, path: &Path) {
        for p in self.below(path) {
            self.0.remove(&p);
        }
    }

    /// The names directly in a folder.
    pub(super) fn children<'a>(&'a self, path: &'a Path) -> impl Iterator<Item = (&'a PathBuf, &'a Node)> {
        self.0
            .iter()
            .filter(move |(p, _)| p.parent() == Some(path) && !p.as_os_str().is_empty())
    }
}
