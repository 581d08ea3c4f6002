//! One sandbox, opened: its pool, its record, its vault, its live tree, checked to be what was tracked.

use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::bind;
use super::freeze::{Freeze, StopHolders};
use super::holders::{Holder, holders};
use super::parts::outlook::Outlook;
use super::parts::turn::no_docker;
use super::parts::{ContainerRecord, PartedVault, Parts, containers, record};
use super::remote::{Ask, Line, Remote};
use super::settings::Settings;
use super::whole::Fate;
use super::{exclusive, mounts, revive};
use crate::config::project::Project;
use crate::engine::catalog::{Place, SandboxDir, SandboxRecord};
use crate::engine::pool::{Pool, PoolKind};
use crate::engine::vault::Vault;
use crate::engine::vault::btrfs::BtrfsVault;
use crate::engine::vault::copy::{CopyDir, CopyVault, open_root};
use crate::engine::{Checkpoint, CheckpointId, EngineError, NewCheckpoint, Result, subvolume};

/// An opened sandbox.
pub struct Site {
    /// Its record.
    pub record: SandboxRecord,
    /// The vault of its workspace, and of its containers' share.
    pub vault: Arc<dyn Vault>,
    /// What the user's config says; nothing where it was not opened through a registry that knows.
    pub settings: Settings,
    at: At,
    behalf: Option<i32>,
}

/// Where the sandbox is.
enum At {
    /// In reach of this process.
    Here(Here),
    /// Behind the service.
    There(Remote),
}

struct Here {
    btrfs: Option<(Arc<Pool>, Arc<BtrfsVault>)>,
    dir: PathBuf,
    device: u64,
    tree_id: u64,
    parts: Parts,
}

/// The vault of a sandbox: that of its workspace, and its containers'.
fn parted(primary: Arc<dyn Vault>, parts: &Parts) -> Arc<dyn Vault> {
    if parts.is_empty() {
        return primary;
    }
    Arc::new(PartedVault::new(primary, parts.clone()))
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
    /// `settings` and the workspace say what is left out of new checkpoints.
    pub fn open_copy(copies: &Path, record: SandboxRecord, settings: Settings) -> Result<Self> {
        let dir = CopyDir::open(copies, &record.id)?;
        let (mut live, mut device) = (None, 0);
        if record.tracked {
            let folder = open_root(&record.path, record.root.as_ref())?;
            let stat = bind::stat(&folder).map_err(EngineError::io("look at", &record.path))?;
            (live, device) = (Some(folder), stat.st_dev);
        }
        let project = live.as_ref().map(|root| Project::read(root.as_fd()));
        let patterns = settings.patterns(&project.unwrap_or_default());
        let mnt = copies.parent().unwrap_or(copies).join("mnt");
        let parts = Parts::new(containers(&record), dir.path(), &mnt);
        let vault = CopyVault::open(&dir, &record.path, live).without(patterns);
        Ok(Self {
            vault: parted(Arc::new(vault), &parts),
            at: At::Here(Here {
                btrfs: None,
                dir: dir.path().to_owned(),
                device,
                tree_id: 0,
                parts,
            }),
            behalf: None,
            settings,
            record,
        })
    }

    /// A sandbox behind the service.
    pub fn behind(line: &Arc<dyn Line>, record: SandboxRecord) -> Self {
        let remote = Remote::new(line, &record);
        Self {
            vault: Arc::new(remote.clone()),
            settings: Settings::default(),
            at: At::There(remote),
            behalf: None,
            record,
        }
    }

    /// The other end, if it is behind the service.
    pub fn remote(&self) -> Option<&Remote> {
        match &self.at {
            At::Here(_) => None,
            At::There(remote) => Some(remote),
        }
    }

    /// Works on behalf of this process: it and its terminal are never stopped.
    #[must_use]
    pub fn on_behalf(mut self, pid: i32) -> Self {
        self.behalf = Some(pid);
        self
    }

    fn here(&self) -> Result<&Here> {
        match &self.at {
            At::Here(here) => Ok(here),
            At::There(_) => Err(EngineError::Refused {
                why: format!(
                    "{} is in the hands of the service",
                    crate::text::shown_path(self.path())
                ),
                path: Some(self.path().to_owned()),
                hint: Some("run it as root: sudo respool ...".into()),
            }),
        }
    }

    /// Takes a checkpoint. Where it is a copy, what writes to the workspace is stopped meanwhile, as far as
    /// this process may: a copy is not atomic.
    pub fn checkpoint(&self, new: &NewCheckpoint) -> Result<Checkpoint> {
        let frozen = match (self.copied(), &self.at) {
            (true, At::Here(_)) => Some(self.freezer()?.freeze()),
            _ => None,
        };
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
        let parts = Parts::new(
            containers(&record),
            &path,
            pool.mount().parent().unwrap_or(pool.mount()),
        );
        Ok(Self {
            record,
            vault: parted(Arc::clone(&vault) as Arc<dyn Vault>, &parts),
            at: At::Here(Here {
                btrfs: Some((pool, vault)),
                dir: path,
                device,
                tree_id,
                parts,
            }),
            behalf: None,
            settings: Settings::default(),
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
        let here = self.here()?;
        here.btrfs.as_ref().map(|(p, v)| (&**p, &**v)).ok_or_else(refused)
    }

    /// The sandbox's folder in the pool: log and lock lie there, out of the agent's reach. Refused where the
    /// sandbox is behind the service.
    pub fn dir(&self) -> Result<&Path> {
        Ok(&self.here()?.dir)
    }

    /// Its containers. Refused where the sandbox is behind the service.
    pub fn parts(&self) -> Result<&Parts> {
        Ok(&self.here()?.parts)
    }

    /// What will become of its containers in a rewind to this checkpoint; without one, in a checkpoint.
    pub fn outlook(&self, target: Option<&CheckpointId>) -> Result<Vec<Outlook>> {
        let here = match &self.at {
            At::Here(here) => here,
            At::There(remote) => return remote.get(Ask::Outlook(target.cloned())),
        };
        if here.parts.is_empty() {
            return Ok(Vec::new());
        }
        let Some(id) = target else {
            return Ok(here.parts.outlook(None, self.path()));
        };
        let found = self.vault.checkpoints()?.into_iter().find(|c| c.meta.id == *id);
        let kept = found.map(|c| c.meta.elsewhere).unwrap_or_default();
        Ok(here.parts.outlook(Some((id, &kept)), self.path()))
    }

    /// What a rewind of all of Docker's data to this checkpoint does to each container, and to images and volumes.
    pub fn fates(&self, target: &CheckpointId) -> Result<(Vec<Fate>, Vec<String>)> {
        let parts = self.parts()?;
        parts.docker().ok_or_else(no_docker)?.fates(target)
    }

    /// Names its containers, durably: they are in each checkpoint from now on.
    pub fn set_containers(&mut self, list: Vec<ContainerRecord>) -> Result<()> {
        let path = self.path().to_owned();
        let mut record = self.record.clone();
        record::set_containers(&mut record, &list)
            .map_err(|e| EngineError::io("write the record of", path)(e.into()))?;
        self.write_record(record)
    }

    /// Replaces its record, durably. Refused where the sandbox is behind the service.
    pub fn write_record(&mut self, record: SandboxRecord) -> Result<()> {
        let here = self.here()?;
        match &here.btrfs {
            Some((_, vault)) => vault.sandbox().write_record(&record)?,
            None => {
                let copies = here.dir.parent().unwrap_or(&here.dir);
                CopyDir::open(copies, &record.id)?.write_record(&record)?;
            }
        }
        self.record = record;
        Ok(())
    }

    /// The workspace.
    pub fn path(&self) -> &Path {
        &self.record.path
    }

    /// How its writers are stopped.
    pub fn freezer(&self) -> Result<StopHolders> {
        let here = self.here()?;
        let mounted = |pool: &Pool| !matches!(pool.kind(), PoolKind::Folder { .. });
        let pool = here.btrfs.as_ref().map(|(pool, _)| pool);
        let top = pool.filter(|p| mounted(p)).map(|p| p.mount().to_owned());
        Ok(StopHolders {
            device: here.device,
            tree: top.map(|top| (top, here.tree_id)),
            folder: self.copied().then(|| self.record.path.clone()),
            behalf: self.behalf,
        })
    }

    /// Who holds files in it.
    pub fn holders(&self) -> Result<Vec<Holder>> {
        match &self.at {
            At::Here(_) => Ok(holders(&self.freezer()?.place(), self.behalf)),
            At::There(remote) => remote.get(Ask::Holders),
        }
    }

    /// Nested subvolumes, mounts and what is left out, relative to the workspace: in no checkpoint.
    pub fn not_covered(&self) -> Result<Vec<PathBuf>> {
        if let At::There(remote) = &self.at {
            return remote.not_covered();
        }
        self.with_mounts(self.vault.not_covered()?)
    }

    /// As [`Site::not_covered`], as far as this checkpoint is concerned.
    pub fn not_covered_by(&self, id: &CheckpointId) -> Result<Vec<PathBuf>> {
        if let At::There(remote) = &self.at {
            return remote.not_covered_by(id);
        }
        self.with_mounts(self.vault.not_covered_by(id)?)
    }

    fn with_mounts(&self, mut out: Vec<PathBuf>) -> Result<Vec<PathBuf>> {
        let all = mounts::mounts(None).map_err(EngineError::io("read the mounts at", self.path()))?;
        out.extend(
            mounts::below(&all, self.path())
                .filter_map(|m| Some(m.point.strip_prefix(self.path()).ok()?.to_owned())),
        );
        out.sort();
        out.dedup();
        out.extend(exclusive::shared(&self.record));
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
