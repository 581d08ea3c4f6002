//! What the databases are read through: a folder of this machine, layers of an overlay, a vault's state.

use std::ffi::OsString;
use std::io;
use std::path::Path;

use crate::text;

/// What something is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A regular file.
    File,
    /// A folder.
    Dir,
    /// A symbolic link; never followed.
    Link,
    /// A device, pipe or socket; never opened.
    Other,
}

/// What tells that a file is the very same, unchanged: any change of content sets the change time. The device is none
/// of it: each snapshot has its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Stamp {
    /// The inode.
    pub ino: u64,
    /// Change time: seconds and nanoseconds.
    pub ctime: (i64, i64),
    /// Size in bytes.
    pub size: u64,
}

/// What is at a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Node {
    /// What it is.
    pub kind: Kind,
    /// Size in bytes.
    pub size: u64,
    /// Its stamp; `None` where it cannot be known.
    pub stamp: Option<Stamp>,
}

/// Why something cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum TreeError {
    /// A link is in the way.
    #[error("it is a link, and links are not followed")]
    Link,
    /// Something else than a regular file.
    #[error("it is no regular file")]
    NotAFile,
    /// Something else than a folder.
    #[error("it is no folder")]
    NotADir,
    /// Larger than any real one.
    #[error("it is larger than {}", text::size(*.0))]
    TooLarge(u64),
    /// More entries than any real one.
    #[error("it has more than {0} entries")]
    TooMany(usize),
    /// The overlay keeps it in a way that only the kernel reads.
    #[error("the overlay keeps it as {0}, which is not followed")]
    Overlay(&'static str),
    /// The system said no.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// What the tree is read through said no.
    #[error("{0}")]
    Other(String),
}

/// A tree that can be looked into. All paths are relative to its root.
pub trait Tree {
    /// What is at a path; `None` if there is nothing.
    fn node(&self, path: &Path) -> Result<Option<Node>, TreeError>;
    /// The names in a folder, in any order; `None` if there is nothing.
    fn names(&self, path: &Path) -> Result<Option<Vec<(OsString, Kind)>>, TreeError>;
    /// The first bytes of a regular file, at most `limit`; `None` if there is nothing.
    fn read(&self, path: &Path, limit: u64) -> Result<Option<Vec<u8>>, TreeError>;
}

/// All of a regular file that may not be larger than `limit`.
pub(super) fn whole(tree: &dyn Tree, path: &Path, limit: u64) -> Result<Option<Vec<u8>>, TreeError> {
    match tree.node(path)? {
        None => return Ok(None),
        Some(Node { kind: Kind::Link, .. }) => return Err(TreeError::Link),
        Some(node) if node.kind != Kind::File => return Err(TreeError::NotAFile),
        Some(node) if node.size > limit => return Err(TreeError::TooLarge(limit)),
        Some(_) => {}
    }
    let bytes = tree.read(path, limit + 1)?;
    match bytes {
        Some(b) if b.len() as u64 > limit => Err(TreeError::TooLarge(limit)),
        other => Ok(other),
    }
}
