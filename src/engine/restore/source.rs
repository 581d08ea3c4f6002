//! Where a restore gets the target's bytes and attributes from.

use std::os::fd::OwnedFd;

use super::apply::on;
use super::attrs::Attrs;
use crate::engine::changes::attrs::{flags, target, xattrs};
use crate::engine::changes::node::{Facts, Hash, Walked};
use crate::engine::changes::open::{Dirs, open_file_at};
use crate::engine::{EngineError, Result};

/// What keeps the content of files by their hashes.
pub(in crate::engine) trait Objects: Sync {
    /// Opens a content for reading. Its bytes were compared with the hash before.
    fn open(&self, hash: &Hash) -> std::io::Result<OwnedFd>;
    /// Reads a content and compares it with its hash; an error if it is not there or another one.
    fn check(&self, hash: &Hash) -> std::io::Result<()>;
}

/// The target of a restore.
pub(super) enum Source<'a> {
    /// A tree on disk.
    Disk(Dirs<'a>),
    /// A record: all but the content of files is in its nodes.
    Record(&'a dyn Objects),
}

fn facts(tree: &Walked, i: u32) -> Result<&Facts> {
    tree.node(i).facts.as_deref().ok_or_else(|| EngineError::Damaged {
        what: "its attributes are not recorded".into(),
        path: tree.path(i),
    })
}

/// The hash of the recorded file `i`.
pub(super) fn hash(tree: &Walked, i: u32) -> Result<&Hash> {
    facts(tree, i)?.hash.as_ref().ok_or_else(|| EngineError::Damaged {
        what: "its content is not recorded".into(),
        path: tree.path(i),
    })
}

impl Source<'_> {
    /// What entry `i` of `tree` shall have.
    pub fn attrs<'t>(&mut self, tree: &'t Walked, i: u32) -> Result<Attrs<'t>> {
        let node = tree.node(i);
        match self {
            Self::Record(_) => {
                let facts = facts(tree, i)?;
                Ok(Attrs {
                    node,
                    xattrs: facts.xattrs.clone(),
                    flags: facts.flags,
                })
            }
            Self::Disk(dirs) => {
                let (dir, name) = dirs.place(i)?;
                Ok(Attrs {
                    node,
                    xattrs: xattrs(dir, name).map_err(on("read the attributes of", tree, i))?,
                    flags: flags(dir, name, node.file_type).map_err(on("read the flags of", tree, i))?,
                })
            }
        }
    }

    /// Where link `i` leads.
    pub fn link(&mut self, tree: &Walked, i: u32) -> Result<Vec<u8>> {
        match self {
            Self::Record(_) => Ok(facts(tree, i)?.link.clone()),
            Self::Disk(dirs) => {
                let (dir, name) = dirs.place(i)?;
                target(dir, name).map_err(on("read", tree, i))
            }
        }
    }

    /// The content of file `i`.
    pub fn open(&mut self, tree: &Walked, i: u32) -> Result<OwnedFd> {
        match self {
            Self::Record(objects) => objects.open(hash(tree, i)?).map_err(on("open", tree, i)),
            Self::Disk(dirs) => {
                let (dir, name) = dirs.place(i)?;
                open_file_at(dir, name, false).map_err(on("open", tree, i))
            }
        }
    }
}
