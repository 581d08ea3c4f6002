//! Which packages differ between two states of a sandbox's containers.

use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::path::Path;

use super::packages::StateTree;
use crate::engine::vault::CopyVault;
use crate::engine::vault::copy::LayerMark;
use crate::engine::{CheckpointId, EngineError, Result, State};
use crate::packages::{Dirs, Hides, Kind, Marks, Node, Over, Summary, Tree, TreeError, Upper, system};
use crate::progress::Progress;
use crate::sandbox::parts::Part;
use crate::sandbox::parts::part::Look;
use crate::sandbox::remote::{Ask, typed};
use crate::sandbox::site::Site;
use crate::text::shown;

/// The packages of all containers of a sandbox that differ from one state to another. A container that is in one of the
/// two alone is left out: its files stay as they are. One that cannot be reached is named.
pub fn of_containers(site: &Site, a: &State, b: &State, progress: &dyn Progress) -> Result<Summary> {
    if let Some(remote) = site.remote() {
        return typed(remote.ask(Ask::Packages(a.clone(), b.clone()), progress)?);
    }
    let mut out = Summary::default();
    let parts = site.parts()?;
    if parts.is_empty() {
        return Ok(out);
    }
    for found in parts.open() {
        out.extend(match &found.part {
            Ok(part) => match of_container(part, a, b, progress) {
                Err(EngineError::NoCheckpoint { .. }) => continue,
                Err(EngineError::Cancelled) => return Err(EngineError::Cancelled),
                Err(e) => Summary::hidden(&found.record.name, &e.to_string()),
                Ok(summary) => summary,
            },
            Err(why) => Summary::hidden(&found.record.name, why),
        });
    }
    Ok(out)
}

/// The packages of one container that differ from one state to another.
pub fn of_container(part: &Part, a: &State, b: &State, progress: &dyn Progress) -> Result<Summary> {
    let (before, after) = (Root::open(part, a)?, Root::open(part, b)?);
    system(&*before.tree()?, &*after.tree()?, progress).map_err(|_| EngineError::Cancelled)
}

/// The root of a container in some state.
struct Root<'a> {
    part: &'a Part,
    look: Look<'a>,
}

fn open(path: &Path) -> Result<OwnedFd> {
    let real = path.canonicalize().map_err(EngineError::io("find", path))?;
    crate::sandbox::bind::open_folder(&real).map_err(EngineError::io("open", path))
}

impl<'a> Root<'a> {
    fn open(part: &'a Part, state: &State) -> Result<Self> {
        let look = part.look(state)?;
        Ok(Self { part, look })
    }

    fn marks(&self) -> Option<Marks> {
        let overlay = self.part.located.overlay.as_ref()?;
        Some(if overlay.options.iter().any(|o| o == "userxattr") {
            Marks::User
        } else {
            Marks::Trusted
        })
    }

    /// The layers below, the uppermost first.
    fn lower(&self) -> Result<Vec<OwnedFd>> {
        let overlay = self.part.located.overlay.iter();
        overlay.flat_map(|o| &o.lower).map(|l| open(l)).collect()
    }

    fn tree(&self) -> Result<Box<dyn Tree + '_>> {
        let again = |fd: std::os::fd::BorrowedFd<'_>| {
            fd.try_clone_to_owned()
                .map_err(EngineError::io("open", &self.part.located.path))
        };
        let folder = match &self.look {
            Look::Live(fd) => again(std::os::fd::AsFd::as_fd(fd))?,
            Look::Snapshot(root) => again(root.fd())?,
            Look::Copies(vault, id) => return self.copies(vault, id),
        };
        let Some(marks) = self.marks() else {
            return Ok(Box::new(Dirs::one(folder)));
        };
        let mut layers = vec![folder];
        layers.extend(self.lower()?);
        Ok(Box::new(Dirs::overlay(layers, marks)))
    }

    fn copies(&self, vault: &'a CopyVault, id: &'a CheckpointId) -> Result<Box<dyn Tree + '_>> {
        let state = State::Checkpoint(id.clone());
        let marks = self.marks();
        let upper = Kept {
            vault,
            id,
            tree: StateTree::owned(vault, state),
            space: if marks == Some(Marks::User) {
                "user"
            } else {
                "trusted"
            },
        };
        Ok(match marks {
            None => Box::new(upper),
            Some(marks) => Box::new(Over::new(Box::new(upper), Dirs::overlay(self.lower()?, marks))),
        })
    }
}

/// An upper layer that is kept as copies.
struct Kept<'a> {
    vault: &'a CopyVault,
    id: &'a CheckpointId,
    tree: StateTree<'a>,
    space: &'static str,
}

impl Tree for Kept<'_> {
    fn node(&self, path: &Path) -> std::result::Result<Option<Node>, TreeError> {
        self.tree.node(path)
    }
    fn names(&self, path: &Path) -> std::result::Result<Option<Vec<(OsString, Kind)>>, TreeError> {
        self.tree.names(path)
    }
    fn read(&self, path: &Path, limit: u64) -> std::result::Result<Option<Vec<u8>>, TreeError> {
        self.tree.read(path, limit)
    }
}

impl Upper for Kept<'_> {
    fn hides(&self, path: &Path) -> std::result::Result<Hides, TreeError> {
        match self.vault.layer_mark(self.id, path, self.space) {
            Ok(LayerMark::Plain) | Err(EngineError::NoPath { .. }) => Ok(Hides::Usual),
            Ok(LayerMark::Opaque) => Ok(Hides::Below),
            Ok(LayerMark::Whiteout) => Ok(Hides::Itself),
            Ok(LayerMark::Elsewhere) => Err(TreeError::Overlay("a renamed folder, or without its content")),
            Err(e) => Err(TreeError::Other(shown(&e.to_string()))),
        }
    }
}
