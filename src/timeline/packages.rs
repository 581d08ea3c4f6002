//! Which packages differ between two states of a workspace: the room `packages`, reading through a vault.

use std::ffi::OsString;
use std::path::Path;

use super::containers::of_containers;
use crate::engine::vault::Vault;
use crate::engine::{Change, Content, EngineError, FileType, Reader, Result, State};
use crate::packages::{Kind, Node, Summary, Tree, TreeError, workspace};
use crate::progress::Progress;
use crate::sandbox::site::Site;

/// A state as a tree: whatever kind of vault keeps it, and on whichever side of the service.
pub(super) struct StateTree<'a> {
    vault: &'a dyn Vault,
    state: State,
    reader: Option<Reader>,
}

fn kind(file_type: FileType) -> Kind {
    match file_type {
        FileType::File => Kind::File,
        FileType::Dir => Kind::Dir,
        FileType::Link => Kind::Link,
        FileType::Fifo | FileType::Socket | FileType::CharDevice | FileType::BlockDevice => Kind::Other,
    }
}

impl<'a> StateTree<'a> {
    /// With the rights of this process.
    pub(super) fn owned(vault: &'a dyn Vault, state: State) -> Self {
        Self {
            vault,
            state,
            reader: None,
        }
    }

    fn content(&self, path: &Path, limit: u64) -> std::result::Result<Option<Content>, TreeError> {
        there(match &self.reader {
            Some(reader) => self.vault.read_for(reader, &self.state, path, limit),
            None => self.vault.read(&self.state, path, limit),
        })
    }
}

/// Nothing there is no failure.
fn there<T>(result: Result<T>) -> std::result::Result<Option<T>, TreeError> {
    match result {
        Ok(it) => Ok(Some(it)),
        Err(EngineError::NoPath { .. }) => Ok(None),
        // from the other side of the service
        Err(EngineError::Remote(r)) if r.kind == crate::failure::Kind::NotFound => Ok(None),
        Err(e) => Err(TreeError::Other(e.to_string())),
    }
}

impl Tree for StateTree<'_> {
    fn node(&self, path: &Path) -> std::result::Result<Option<Node>, TreeError> {
        let (kind, size) = match self.content(path, 0)? {
            None => return Ok(None),
            Some(Content::File { size, .. }) => (Kind::File, size),
            Some(Content::Link(_)) => (Kind::Link, 0),
            Some(Content::Other(t)) => (kind(t), 0),
        };
        Ok(Some(Node {
            kind,
            size,
            stamp: None,
        }))
    }

    fn names(&self, path: &Path) -> std::result::Result<Option<Vec<(OsString, Kind)>>, TreeError> {
        let entries = there(match &self.reader {
            Some(reader) => self.vault.entries_for(reader, &self.state, path),
            None => self.vault.entries(&self.state, path),
        })?;
        Ok(entries.map(|all| {
            let one = |e: crate::engine::Entry| (e.name.into_os_string(), kind(e.file_type));
            all.into_iter().map(one).collect()
        }))
    }

    fn read(&self, path: &Path, limit: u64) -> std::result::Result<Option<Vec<u8>>, TreeError> {
        match self.content(path, limit)? {
            None => Ok(None),
            Some(Content::File { bytes, .. }) => Ok(Some(bytes)),
            Some(Content::Link(_)) => Err(TreeError::Link),
            Some(Content::Other(_)) => Err(TreeError::NotAFile),
        }
    }
}

/// The packages of a sandbox that differ from one state to another: of its workspace, and of its containers.
pub fn of_sandbox(
    site: &Site,
    a: &State,
    b: &State,
    changes: &[Change],
    progress: &dyn Progress,
) -> Result<Summary> {
    let mut out = of_workspace(site, a, b, changes, progress)?;
    out.extend(of_containers(site, a, b, progress)?);
    Ok(out)
}

/// The packages of a workspace that differ from one state to another. `changes`: what of that difference counts. Here
/// no more is read than the workspace's owner may: the service tells him what is found.
pub fn of_workspace(
    site: &Site,
    a: &State,
    b: &State,
    changes: &[Change],
    progress: &dyn Progress,
) -> Result<Summary> {
    let touched = changes.iter().flat_map(|c| [c.path.as_path(), c.old_path()]);
    let (uid, gid) = (site.record.uid, site.record.gid);
    let owner = (site.remote().is_none() && uid != 0).then(|| Reader {
        uid,
        groups: vec![gid],
    });
    let tree = |state: &State| StateTree {
        vault: &*site.vault,
        state: state.clone(),
        reader: owner.clone(),
    };
    workspace(&tree(a), &tree(b), touched, progress).map_err(|_| EngineError::Cancelled)
}
