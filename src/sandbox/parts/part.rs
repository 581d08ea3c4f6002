//! One container of a sandbox, found and opened: its engine, its files, the vault that keeps them.

use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::record::ContainerRecord;
use super::remount;
use crate::engine::pool::Pool;
use crate::engine::subvolume::{self, open_dir};
use crate::engine::vault::Vault;
use crate::engine::vault::btrfs::{BtrfsVault, StateRoot};
use crate::engine::vault::copy::{CopyDir, CopyVault};
use crate::engine::{CheckpointId, Difference, EngineError, PartKind, Result, Selection, State};
use crate::progress::Progress;
use crate::sandbox::docker::locate::{Located, locate};
use crate::sandbox::docker::{DockerError, Engine, Inspect, Technique, rootfs};
use crate::sandbox::{bind, mounts};
use crate::text::shown;

/// Where the checkpoints of containers are kept.
#[derive(Debug, Clone)]
pub struct Shelf {
    /// Where the file systems of engines are mounted, out of reach of others.
    pub mnt: PathBuf,
    /// The folder of copies, in that of the sandbox.
    pub copies: PathBuf,
}

/// What keeps a container's files.
enum Keep {
    Btrfs(Box<Tree>),
    Copy(Box<CopyVault>),
}

/// A folder on Btrfs.
struct Tree {
    pool: Pool,
    vault: BtrfsVault,
    /// The subvolume within the file system.
    subvolume: PathBuf,
    /// The part within the subvolume.
    inner: PathBuf,
}

/// A state of a container's files, to look into: the whole root, or the upper layer of an overlay.
pub enum Look<'a> {
    /// As they are: a folder.
    Live(OwnedFd),
    /// A snapshot.
    Snapshot(StateRoot),
    /// Copies.
    Copies(&'a CopyVault, CheckpointId),
}

/// A container of a sandbox.
pub struct Part {
    /// As it is recorded, with what was seen now.
    pub record: ContainerRecord,
    /// Its engine.
    pub engine: Arc<Engine>,
    /// As its engine describes it.
    pub container: Inspect,
    /// Where its files are.
    pub located: Located,
    keep: Keep,
}

/// A path within a file system, relative to its top level.
fn relative(inside: &Path) -> &Path {
    inside.strip_prefix("/").unwrap_or(inside)
}

impl Tree {
    fn open(shelf: &Shelf, part: &str, path: &Path) -> Result<Self> {
        let own = mounts::mounts(None).map_err(EngineError::io("read the mounts at", path))?;
        let (inside, _) = rootfs::within(path, &own).ok_or_else(|| EngineError::NoPath {
            path: path.to_owned(),
        })?;
        let pool = Pool::open_existing(path, &shelf.mnt)?;
        let inside = relative(&inside);
        for subvolume in inside.ancestors() {
            let live = open_dir(pool.root(), subvolume).map_err(EngineError::io("open", path))?;
            let root = subvolume::root_info(&live).map_err(EngineError::io("look at", path))?;
            if root.is_some() {
                let inner = inside.strip_prefix(subvolume).unwrap_or(Path::new(""));
                let vault = BtrfsVault::open_part(&pool, part, live, inner, PartKind::Container)?;
                return Ok(Self {
                    pool,
                    vault,
                    subvolume: subvolume.to_owned(),
                    inner: inner.to_owned(),
                });
            }
        }
        Err(EngineError::NoPath {
            path: path.to_owned(),
        })
    }

    /// The folder that holds the subvolume, and its name there.
    fn place(&self) -> Result<(OwnedFd, OsString)> {
        let path = &self.subvolume;
        let name = path
            .file_name()
            .ok_or_else(|| EngineError::NoPath { path: path.clone() })?;
        let parent = path.parent().unwrap_or(Path::new(""));
        let parent = open_dir(self.pool.root(), parent).map_err(EngineError::io("open", parent))?;
        Ok((parent, name.to_owned()))
    }

    /// The same, with the live tree that is there now.
    fn again(&self, part: &str) -> Result<BtrfsVault> {
        let live =
            open_dir(self.pool.root(), &self.subvolume).map_err(EngineError::io("open", &self.subvolume))?;
        BtrfsVault::open_part(&self.pool, part, live, Path::new(""), PartKind::Container)
    }
}

/// Finds the container of a record: by its id, else another one by its name.
fn found(engine: &Engine, record: &ContainerRecord) -> std::result::Result<Inspect, String> {
    let ask = |name: &str| engine.find(name).map_err(|e| e.to_string());
    if let Some(c) = ask(&record.id)? {
        return Ok(c);
    }
    ask(&record.name)?.ok_or_else(|| format!("container {} is gone", shown(&record.name)))
}

impl Part {
    /// Finds and opens it, or why it cannot be.
    pub fn open(
        shelf: &Shelf,
        engine: &Arc<Engine>,
        record: &ContainerRecord,
    ) -> std::result::Result<Self, String> {
        let container = found(engine, record)?;
        let same = container.id == record.id;
        let known = same.then_some(record.path.0.as_path());
        let located = locate(engine, &container, known).map_err(|v| v.why)?;
        if !same && !record.fits(&container, &located.chain()) {
            return Err(format!(
                "container {} was made again from another image",
                shown(&record.name)
            ));
        }
        Self::at(shelf, engine, record, container, located).map_err(|e| e.to_string())
    }

    /// Opens it where it is.
    pub fn at(
        shelf: &Shelf,
        engine: &Arc<Engine>,
        record: &ContainerRecord,
        container: Inspect,
        located: Located,
    ) -> Result<Self> {
        let keep = match located.verdict.technique {
            Technique::SubvolumeRoot | Technique::OverlayOnBtrfs => {
                Keep::Btrfs(Box::new(Tree::open(shelf, &record.part, &located.path)?))
            }
            Technique::OverlayCopy => {
                let folder =
                    bind::open_folder(&located.path).map_err(EngineError::io("open", &located.path))?;
                let dir = CopyDir::part(&shelf.copies, &record.part)?;
                Keep::Copy(Box::new(
                    CopyVault::open(&dir, &located.path, Some(folder)).layer(),
                ))
            }
            Technique::ApiOnly => {
                return Err(EngineError::Refused {
                    why: format!(
                        "the files of container {} cannot be reached",
                        shown(&container.name)
                    ),
                    path: None,
                    hint: located.verdict.better,
                });
            }
        };
        let mut record = record.clone();
        record.id.clone_from(&container.id);
        record.path = crate::text::ExactPath(located.path.clone());
        Ok(Self {
            record,
            engine: Arc::clone(engine),
            container,
            located,
            keep,
        })
    }

    /// The vault of its files.
    pub fn vault(&self) -> &dyn Vault {
        match &self.keep {
            Keep::Btrfs(tree) => &tree.vault,
            Keep::Copy(vault) => &**vault,
        }
    }

    /// Opens a state of its files to look into.
    pub fn look(&self, state: &State) -> Result<Look<'_>> {
        match (state, &self.keep) {
            (State::Now, _) => {
                let path = &self.located.path;
                let folder = bind::open_folder(path).map_err(EngineError::io("open", path))?;
                Ok(Look::Live(folder))
            }
            (State::Checkpoint(_), Keep::Btrfs(tree)) => Ok(Look::Snapshot(tree.vault.open_state(state)?)),
            (State::Checkpoint(id), Keep::Copy(vault)) => {
                // copies are read one by one, later: that there are some is asked now
                if vault.checkpoints()?.iter().any(|c| c.meta.id == *id) {
                    return Ok(Look::Copies(vault, id.clone()));
                }
                Err(EngineError::NoCheckpoint { id: id.to_string() })
            }
        }
    }

    /// True if a restore exchanges its root for another one; else the files in it are made equal.
    pub fn exchanges(&self) -> Result<bool> {
        let whole = self.located.verdict.technique == Technique::SubvolumeRoot;
        // what is nested in it would not come along
        Ok(whole && self.vault().not_covered()?.is_empty())
    }

    /// How many paths of its files differ from a checkpoint now; `None` if that cannot be told.
    pub fn differing(&self, target: &CheckpointId, progress: &dyn Progress) -> Option<u64> {
        let target = State::Checkpoint(target.clone());
        let found = self.vault().changes(&target, &State::Now, false, progress);
        match found {
            Ok(all) => Some(all.len() as u64),
            Err(e) => {
                tracing::debug!("{e}");
                None
            }
        }
    }

    /// Brings the files of a checkpoint back. Nobody may write to them. `from`: the present state, or `Now`; `beside`:
    /// a name for the root that is exchanged, which [`Part::clear`] removes. How many inodes were changed, where that
    /// is known. Safe to run again after a kill.
    pub fn restore(
        &self,
        from: &State,
        target: &CheckpointId,
        beside: &str,
        progress: &dyn Progress,
    ) -> Result<Option<u64>> {
        if let Keep::Btrfs(tree) = &self.keep
            && self.exchanges()?
        {
            let (parent, name) = tree.place()?;
            tree.vault.exchange(target, &parent, &name, beside)?;
            return Ok(None);
        }
        let restored = self.vault().restore(from, target, &Selection::All, progress)?;
        Ok(Some(restored.changed))
    }

    /// True if its files can be brought back without a stop: for one that was started with `--rm`.
    pub fn lives_through(&self) -> Result<bool> {
        match &self.located.overlay {
            Some(overlay) => remount::possible(overlay),
            None => self.exchanges(),
        }
    }

    /// As [`Part::restore`], of one that lives, is paused, and is restarted afterwards. How it differs from the
    /// checkpoint then.
    pub fn restore_living(
        &self,
        target: &CheckpointId,
        beside: &str,
        progress: &dyn Progress,
    ) -> Result<Vec<Difference>> {
        if let Some(overlay) = &self.located.overlay {
            return remount::remount(self, overlay, target, beside, progress);
        }
        self.restore(&State::Now, target, beside, progress)?;
        self.verify(target, progress)
    }

    /// Makes a copy of its files equal to a checkpoint. How it differs then.
    pub(super) fn rebuild(
        &self,
        folder: &Path,
        target: &CheckpointId,
        progress: &dyn Progress,
    ) -> Result<Vec<Difference>> {
        let open = EngineError::io("open", folder);
        match &self.keep {
            Keep::Btrfs(tree) => {
                let live = open_dir(tree.pool.root(), &tree.subvolume).map_err(open)?;
                let inner = tree.inner.with_file_name(folder.file_name().unwrap_or_default());
                let vault =
                    BtrfsVault::open_part(&tree.pool, &self.record.part, live, &inner, PartKind::Container)?;
                vault.restore(&State::Now, target, &Selection::All, progress)?;
                vault.verify_still(target, progress)
            }
            Keep::Copy(vault) => {
                let vault = vault.on(folder, bind::open_folder(folder).map_err(open)?);
                vault.restore(&State::Now, target, &Selection::All, progress)?;
                vault.verify(target, &Selection::All, progress)
            }
        }
    }

    /// How its files differ from a checkpoint. Nobody may write to them.
    pub fn verify(&self, target: &CheckpointId, progress: &dyn Progress) -> Result<Vec<Difference>> {
        match &self.keep {
            Keep::Btrfs(tree) if self.located.verdict.technique == Technique::SubvolumeRoot => {
                let now = tree.again(&self.record.part)?;
                if now.is_pristine(target)? {
                    return Ok(Vec::new());
                }
                now.verify_still(target, progress)
            }
            Keep::Btrfs(tree) => tree.vault.verify_still(target, progress),
            Keep::Copy(vault) => vault.verify(target, &Selection::All, progress),
        }
    }

    /// Removes what an exchange left beside.
    pub fn clear(&self, beside: &str) -> Result<()> {
        match &self.keep {
            Keep::Btrfs(tree) if self.located.verdict.technique == Technique::SubvolumeRoot => {
                let (parent, _) = tree.place()?;
                BtrfsVault::remove_beside(parent, beside)
            }
            _ => match &self.located.overlay {
                Some(overlay) => remount::clear(overlay, beside),
                None => Ok(()),
            },
        }
    }
}

/// An error of a container as one of the engine: vaults know no others.
pub fn as_engine(e: DockerError) -> EngineError {
    use crate::failure::Report;
    match e {
        DockerError::Engine(e) => e,
        other => EngineError::Remote(Report::of(&other)),
    }
}
