//! The place of Docker's data in a pool.
//! ```text
//! <base>/docker/<id>/live                              the writable subvolume that is shown at the data folder
//! <base>/docker/<id>/next                              the one that takes its place, while it is made
//! <base>/docker/<id>/snaps/<sandbox>/<checkpoint>/     root, 0, 1, ...: read-only snapshots of it and of what is nested
//!                                                      in it; kept.json, written last, says which and what ran
//! ```

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{AtFlags, Mode, OFlags, RenameFlags};
use serde::{Deserialize, Serialize};

use super::record::{Ran, Record};
use crate::engine::catalog::{lock_dir, names};
use crate::engine::forest::{self, Inner};
use crate::engine::pool::{Pool, make_folder};
use crate::engine::subvolume::{self, open_beneath, open_dir, root_info};
use crate::engine::{CheckpointId, EngineError, Result, ioctl};
use crate::process::fault_point;
use crate::sandbox::registry::PoolEntry;
use crate::text::shown;

const LIVE: &str = "live";
const NEXT: &str = "next";
const KEPT: &str = "kept.json";
/// The most that is read of it.
const MOST: u64 = 16 << 20;

/// What is known of one set of snapshots.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Kept {
    /// Version.
    pub v: u32,
    /// The subvolumes nested in it.
    pub inner: Vec<Inner>,
    /// The containers that lived.
    pub running: Vec<Ran>,
}

/// The folder of Docker's data in a pool, opened.
pub struct Home {
    /// The pool.
    pub pool: Pool,
    dir: OwnedFd,
    path: PathBuf,
}

fn io(what: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> EngineError {
    EngineError::io(what, path)
}

/// True for a name that this program gives.
fn plain(name: &str) -> bool {
    !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
}

impl Home {
    /// Opens the pool of a record.
    pub fn pool(state: &Path, entry: &PoolEntry) -> Result<Pool> {
        let mnt = state.join("mnt");
        match entry {
            PoolEntry::Image(image) => Pool::open_image(&image.0, &mnt),
            PoolEntry::Existing(folder) => Pool::open_existing(&folder.0, &mnt),
            PoolEntry::Folder(folder) => Pool::open_folder(&folder.0),
        }
    }

    /// Opens that of a record; it must be there.
    pub fn open(state: &Path, record: &Record) -> Result<Self> {
        Self::at(Self::pool(state, &record.pool)?, &record.id)
    }

    fn at(pool: Pool, id: &str) -> Result<Self> {
        let path = pool.base_path().join("docker").join(id);
        let dir = open_dir(pool.base(), Path::new("docker").join(id)).map_err(io("open", &path))?;
        Ok(Self { pool, dir, path })
    }

    /// Makes it, unless it is there.
    pub fn make(pool: Pool, id: &str) -> Result<Self> {
        make_folder(pool.base(), "docker", pool.base_path())?;
        let above = pool.base_path().join("docker");
        let folder = open_dir(pool.base(), "docker").map_err(io("open", &above))?;
        make_folder(&folder, id, &above)?;
        let home = Self::at(pool, id)?;
        make_folder(&home.dir, "snaps", &home.path)?;
        Ok(home)
    }

    /// The right to change it; ends with the value.
    pub fn lock(&self, patience: Duration) -> Result<File> {
        let own = open_dir(&self.dir, "").map_err(io("open", &self.path))?;
        lock_dir(own, &self.path, patience)
    }

    /// The subvolume of the data.
    pub fn live(&self) -> Result<OwnedFd> {
        open_dir(&self.dir, LIVE).map_err(io("open", &self.path.join(LIVE)))
    }

    /// Its path.
    pub fn live_path(&self) -> PathBuf {
        self.path.join(LIVE)
    }

    /// The folder to make it in, and its name.
    pub fn fresh(&self) -> Result<(&OwnedFd, &'static str)> {
        self.clear(LIVE)?;
        Ok((&self.dir, LIVE))
    }

    /// Makes it, empty, and opens it.
    pub fn empty_live(&self) -> Result<OwnedFd> {
        let (dir, name) = self.fresh()?;
        ioctl::subvol_create(dir, name.as_bytes()).map_err(io("make", &self.path.join(LIVE)))?;
        self.live()
    }

    fn clear(&self, name: &str) -> Result<()> {
        match subvolume::destroy(&self.dir, name) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(io("remove", &self.path.join(name))(e)),
            _ => Ok(()),
        }
    }

    /// Removes what an exchange left.
    pub fn clear_next(&self) -> Result<()> {
        self.clear(NEXT)
    }

    /// Removes the folder with all that is in it.
    pub fn destroy(self) -> Result<()> {
        let snaps = self.snaps()?;
        for sandbox in self.names_in(&snaps)? {
            for id in self.kept_of(&sandbox)? {
                self.remove(&sandbox, &id)?;
            }
            let gone = rustix::fs::unlinkat(&snaps, &sandbox, AtFlags::REMOVEDIR);
            gone.map_err(|e| io("remove", &self.path)(e.into()))?;
        }
        self.clear(NEXT)?;
        self.clear(LIVE)?;
        let end = |dir: &OwnedFd, name: &str| match rustix::fs::unlinkat(dir, name, AtFlags::REMOVEDIR) {
            Err(e) if e != rustix::io::Errno::NOENT => Err(io("remove", &self.path)(e.into())),
            _ => Ok(()),
        };
        end(&self.dir, "snaps")?;
        let above = open_dir(self.pool.base(), "docker").map_err(io("open", &self.path))?;
        let name = self.path.file_name().and_then(|n| n.to_str()).unwrap_or_default();
        end(&above, name)
    }

    fn snaps(&self) -> Result<OwnedFd> {
        open_dir(&self.dir, "snaps").map_err(io("open", &self.path.join("snaps")))
    }

    fn names_in(&self, dir: &OwnedFd) -> Result<Vec<String>> {
        let again = open_dir(dir, "").map_err(io("open", &self.path))?;
        let all = names(&again, &self.path)?.into_iter();
        Ok(all
            .filter_map(|n| String::from_utf8(n).ok())
            .filter(|n| plain(n))
            .collect())
    }

    /// The checkpoints of a sandbox that have a set here, whole or not.
    pub fn kept_of(&self, sandbox: &str) -> Result<Vec<CheckpointId>> {
        match open_dir(&self.snaps()?, sandbox) {
            Ok(dir) => Ok(self.names_in(&dir)?.into_iter().map(CheckpointId).collect()),
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(Vec::new()),
            Err(e) => Err(io("open", &self.path)(e)),
        }
    }

    /// All sets, of all sandboxes.
    pub fn count(&self) -> Result<usize> {
        let mut all = 0;
        for sandbox in self.names_in(&self.snaps()?)? {
            all += self.kept_of(&sandbox)?.len();
        }
        Ok(all)
    }

    /// Takes read-only snapshots of all of it.
    pub fn keep(&self, sandbox: &str, id: &CheckpointId, running: Vec<Ran>) -> Result<()> {
        let snaps = self.snaps()?;
        make_folder(&snaps, sandbox, &self.path)?;
        let of = open_dir(&snaps, sandbox).map_err(io("open", &self.path))?;
        let path = self.path.join("snaps").join(sandbox).join(id.as_str());
        rustix::fs::mkdirat(&of, id.as_str(), Mode::RWXU).map_err(|e| io("make", &path)(e.into()))?;
        let done = self.fill(&of, id, running, &path);
        if done.is_err() {
            let removed = self.remove(sandbox, id);
            tracing::debug!(?removed, "took back a set of snapshots");
        }
        done
    }

    fn fill(&self, of: &OwnedFd, id: &CheckpointId, running: Vec<Ran>, path: &Path) -> Result<()> {
        let dir = open_dir(of, id.as_str()).map_err(io("open", path))?;
        let inner = forest::keep(self.live()?.as_fd(), dir.as_fd())?;
        fault_point("docker-kept");
        let kept = Kept { v: 1, inner, running };
        let bytes = serde_json::to_vec(&kept).map_err(|e| io("write", path)(e.into()))?;
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = rustix::fs::openat(&dir, KEPT, flags, Mode::RUSR | Mode::WUSR)
            .map_err(|e| io("write", path)(e.into()))?;
        let mut file = File::from(file);
        file.write_all(&bytes)
            .and_then(|()| file.sync_all())
            .map_err(io("write", path))
    }

    fn set(&self, sandbox: &str, id: &CheckpointId) -> Result<Option<OwnedFd>> {
        if !plain(sandbox) || !plain(id.as_str()) {
            return Ok(None);
        }
        match open_dir(&self.snaps()?, Path::new(sandbox).join(id.as_str())) {
            Ok(dir) => Ok(Some(dir)),
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(e) => Err(io("open", &self.path)(e)),
        }
    }

    /// A set, open, and what is known of it. An error says why it cannot be used.
    pub fn kept(&self, sandbox: &str, id: &CheckpointId) -> Result<(OwnedFd, Kept)> {
        let damaged = |reason: String| EngineError::DamagedCheckpoint {
            id: id.to_string(),
            reason: format!("Docker's data: {reason}"),
        };
        let dir = self
            .set(sandbox, id)?
            .ok_or_else(|| damaged("it is not in this checkpoint".into()))?;
        let file = open_beneath(&dir, Path::new(KEPT), OFlags::RDONLY | OFlags::NONBLOCK)
            .map_err(|_| damaged("it was cut short".into()))?;
        let mut bytes = Vec::new();
        File::from(file)
            .take(MOST)
            .read_to_end(&mut bytes)
            .map_err(io("read", &self.path))?;
        let kept: Kept = serde_json::from_slice(&bytes).map_err(|e| damaged(shown(&e.to_string())))?;
        match forest::missing(dir.as_fd(), &kept.inner) {
            None => Ok((dir, kept)),
            Some(why) => Err(damaged(why)),
        }
    }

    /// Removes a set.
    pub fn remove(&self, sandbox: &str, id: &CheckpointId) -> Result<()> {
        let Some(dir) = self.set(sandbox, id)? else {
            return Ok(());
        };
        // without its record it is none, whatever comes
        match rustix::fs::unlinkat(&dir, KEPT, AtFlags::empty()) {
            Err(e) if e != rustix::io::Errno::NOENT => return Err(io("remove", &self.path)(e.into())),
            _ => {}
        }
        forest::drop_set(dir.as_fd())?;
        drop(dir);
        let of = open_dir(&self.snaps()?, sandbox).map_err(io("open", &self.path))?;
        rustix::fs::unlinkat(&of, id.as_str(), AtFlags::REMOVEDIR)
            .map_err(|e| io("remove", &self.path)(e.into()))
    }

    /// Puts a writable copy of a set in the place of the data, which nobody may use. What was there is removed by
    /// [`Home::clear_next`]. Safe to do again.
    pub fn exchange(&self, set: &OwnedFd, kept: &Kept) -> Result<()> {
        self.clear(NEXT)?;
        forest::make(set.as_fd(), &kept.inner, self.dir.as_fd(), NEXT)?;
        fault_point("docker-made");
        rustix::fs::renameat_with(&self.dir, LIVE, &self.dir, NEXT, RenameFlags::EXCHANGE)
            .map_err(|e| io("exchange", &self.path)(e.into()))?;
        ioctl::fs_sync(&self.dir).map_err(io("sync", &self.path))?;
        fault_point("docker-exchanged");
        match forest::differs(self.live()?.as_fd(), set.as_fd(), &kept.inner)? {
            None => Ok(()),
            Some(why) => Err(EngineError::Damaged {
                what: format!("Docker's data is not what was kept: {why}"),
                path: self.live_path(),
            }),
        }
    }

    /// The uuid of the data's subvolume.
    pub fn live_uuid(&self) -> Result<Option<[u8; 16]>> {
        let info = root_info(self.live()?).map_err(io("look at", &self.path))?;
        Ok(info.map(|i| i.uuid))
    }
}
