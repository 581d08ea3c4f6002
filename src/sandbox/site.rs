//! One sandbox, opened: its pool, its record, its vault, its live tree, checked to be what was tracked.

use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::bind;
use super::freeze::{Freeze, StopHolders};
use super::holders::{Holder, holders};
use super::{mounts, revive};
use crate::engine::catalog::{Place, SandboxDir, SandboxRecord};
use crate::engine::pool::{Pool, PoolKind};
use crate::engine::vault::Vault;
use crate::engine::vault::btrfs::BtrfsVault;
use crate::engine::vault::copy::{CopyDir, CopyVault, open_root};
use crate::engine::{Checkpoint, EngineError, NewCheckpoint, Result, subvolume};

/// An opened sandbox.
pub struct Site {
    /// Its record.
    pub record: SandboxRecord,
    /// The vault of its workspace.
    pub vault: Arc<dyn Vault>,
    btrfs: Option<(Arc<Pool>, Arc<BtrfsVault>)>,
    dir: PathBuf,
    device: u64,
    tree_id: u64,
}

impl Site {
    /// Opens a sandbox by its record. The live tree must be the subvolume that was tracked, and the workspace
    /// must show it: where only the mount is missing, it is mounted again.
    /// One that was removed with all that was in it is made again, empty.
    pub fn open(pool: Pool, record: SandboxRecord) -> Result<Self> {
        let dir = SandboxDir::open(&pool, &record.id)?;
        let record = revive::revived(&pool, &dir, &record)?.unwrap_or(record);
        let live = Self::live(&dir, &record)?;
        if record.tracked {
            show(&dir, &live, &record)?;
        }
        Self::assemble(pool, dir, record, live)
    }

    /// Opens it without asking what the workspace shows: for `untrack`, `recover` and removal.
    pub fn open_unshown(pool: Pool, record: SandboxRecord) -> Result<Self> {
        let dir = SandboxDir::open(&pool, &record.id)?;
        let live = Self::live(&dir, &record)?;
        Self::assemble(pool, dir, record, live)
    }

    /// Opens a sandbox whose checkpoints are copies, from the folder `copies` of a state folder. The workspace
    /// must be the folder that was tracked; of one that is tracked no more only the checkpoints are there.
    pub fn open_copy(copies: &Path, record: SandboxRecord) -> Result<Self> {
        let dir = CopyDir::open(copies, &record.id)?;
        let (mut live, mut device) = (None, 0);
        if record.tracked {
            let folder = open_root(&record.path, record.root.as_ref())?;
            let stat = bind::stat(&folder).map_err(EngineError::io("look at", &record.path))?;
            (live, device) = (Some(folder), stat.st_dev);
        }
        Ok(Self {
            vault: Arc::new(CopyVault::open(&dir, &record.path, live)),
            btrfs: None,
            dir: dir.path().to_owned(),
            device,
            tree_id: 0,
            record,
        })
    }

    /// Takes a checkpoint. Where it is a copy, what writes to the workspace is stopped meanwhile, as far as
    /// this process may: a copy is not atomic.
    pub fn checkpoint(&self, new: &NewCheckpoint) -> Result<Checkpoint> {
        let frozen = self.copied().then(|| self.freezer().freeze());
        if let Some(Err(e)) = &frozen {
            tracing::warn!("the copy is taken while something may write: {e}");
        }
        self.vault.checkpoint(new)
    }

    /// True where checkpoints are copies of the workspace, file by file.
    pub fn copied(&self) -> bool {
        self.record.place == Place::Copy
    }

    fn assemble(pool: Pool, dir: SandboxDir, record: SandboxRecord, live: OwnedFd) -> Result<Self> {
        let pool = Arc::new(pool);
        let device = bind::stat(&live)
            .map_err(EngineError::io("look at", &record.path))?
            .st_dev;
        let tree_id = subvolume::root_info(&live)
            .map_err(EngineError::io("look at", &record.path))?
            .map_or(0, |i| i.tree_id);
        let path = dir.path().to_owned();
        let vault = Arc::new(BtrfsVault::open(&pool, &record.id, live)?);
        Ok(Self {
            record,
            vault: Arc::clone(&vault) as Arc<dyn Vault>,
            btrfs: Some((pool, vault)),
            dir: path,
            device,
            tree_id,
        })
    }

    /// The root of the live tree, checked by its uuid.
    fn live(dir: &SandboxDir, record: &SandboxRecord) -> Result<OwnedFd> {
        let not_managed = || EngineError::NotManaged {
            path: record.path.clone(),
        };
        let live = match record.place {
            Place::Pool => dir.live()?.ok_or_else(not_managed)?,
            Place::Own | Place::Copy => {
                bind::open_folder(&record.path).map_err(EngineError::io("open", &record.path))?
            }
        };
        match subvolume::root_info(&live).map_err(EngineError::io("look at", &record.path))? {
            Some(info) if subvolume::hex(&info.uuid) == record.live_uuid => Ok(live),
            other => Err(EngineError::OtherRoot {
                path: record.path.clone(),
                what: "subvolume",
                recorded: format!("the uuid {}", record.live_uuid),
                present: other.map_or_else(
                    || "a folder and no subvolume".into(),
                    |i| format!("the uuid {}", subvolume::hex(&i.uuid)),
                ),
            }),
        }
    }

    /// A record rebuilt from the live tree that `path` is in, and written.
    pub fn rebuild(pool: &Pool, id: &str, path: &Path) -> Result<SandboxRecord> {
        let dir = SandboxDir::open(pool, id)?;
        // the workspace is the highest folder of this path that is the root of the subvolume
        let root = path
            .ancestors()
            .find(|p| bind::open_folder(p).is_ok_and(|f| subvolume::root_info(&f).is_ok_and(|i| i.is_some())))
            .unwrap_or(path);
        let folder = bind::open_folder(root).map_err(EngineError::io("open", root))?;
        let place = if dir.live()?.is_some() {
            Place::Pool
        } else {
            Place::Own
        };
        let record = dir.rebuild(root, &folder, place)?;
        dir.write_record(&record)?;
        Ok(record)
    }

    /// The pool and the vault, where it is a btrfs vault; else refused.
    pub fn btrfs(&self) -> Result<(&Pool, &BtrfsVault)> {
        let refused = || EngineError::Refused {
            why: format!("{} is not in a btrfs vault", crate::text::shown_path(self.path())),
            path: Some(self.path().to_owned()),
            hint: None,
        };
        self.btrfs.as_ref().map(|(p, v)| (&**p, &**v)).ok_or_else(refused)
    }

    /// The sandbox's folder in the pool: log and lock lie there, out of the agent's reach.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The workspace.
    pub fn path(&self) -> &Path {
        &self.record.path
    }

    /// How its writers are stopped.
    pub fn freezer(&self) -> StopHolders {
        let mounted = |pool: &Pool| !matches!(pool.kind(), PoolKind::Folder { .. });
        let pool = self.btrfs.as_ref().map(|(pool, _)| pool);
        let top = pool.filter(|p| mounted(p)).map(|p| p.mount().to_owned());
        StopHolders {
            device: self.device,
            tree: top.map(|top| (top, self.tree_id)),
            folder: self.copied().then(|| self.record.path.clone()),
        }
    }

    /// Who holds files in it.
    pub fn holders(&self) -> Vec<Holder> {
        holders(&self.freezer().place())
    }

    /// Nested subvolumes and mounts, relative to the workspace: in no checkpoint.
    pub fn not_covered(&self) -> Result<Vec<PathBuf>> {
        let mut out = self.vault.not_covered()?;
        let all = mounts::mounts(None).map_err(EngineError::io("read the mounts at", self.path()))?;
        out.extend(
            mounts::below(&all, self.path())
                .filter_map(|m| Some(m.point.strip_prefix(self.path()).ok()?.to_owned())),
        );
        out.sort();
        out.dedup();
        Ok(out)
    }

    /// True if the workspace shows the live tree now.
    pub fn shown(&self) -> bool {
        self.copied() || shows(&self.record)
    }
}

/// True if the workspace shows the live tree of this record.
pub fn shows(record: &SandboxRecord) -> bool {
    bind::open_folder(&record.path)
        .ok()
        .and_then(|f| subvolume::root_info(&f).ok().flatten())
        .is_some_and(|i| subvolume::hex(&i.uuid) == record.live_uuid)
}

/// True if `path` is the emptied folder of this record, with nothing mounted over it.
pub fn is_own_stub(record: &SandboxRecord) -> bool {
    let own = |f| bind::is_stub(f, &record.id, record.stub.as_ref()).unwrap_or(false);
    bind::open_folder(&record.path).is_ok_and(own)
}

/// Makes the workspace show the live tree again where only the mount is missing. Anything else at that path
/// is refused: it is not ours to hide.
pub fn show(dir: &SandboxDir, live: impl AsFd, record: &SandboxRecord) -> Result<()> {
    if shows(record) {
        return Ok(());
    }
    let path = &record.path;
    let not_managed = || EngineError::NotManaged { path: path.clone() };
    if record.place != Place::Pool {
        return Err(not_managed());
    }
    // of several processes that find the mount missing one makes it
    let _lock = dir.lock()?;
    if shows(record) {
        return Ok(());
    }
    let folder = bind::open_exact(path).map_err(|_| not_managed())?;
    let stub = bind::is_stub(&folder, &record.id, record.stub.as_ref());
    if !stub.map_err(EngineError::io("look at", path))? {
        return Err(not_managed());
    }
    bind::mount_over(live, &folder).map_err(EngineError::io("mount", path))?;
    if shows(record) { Ok(()) } else { Err(not_managed()) }
}
