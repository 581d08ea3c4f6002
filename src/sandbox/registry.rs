//! Which sandbox a path belongs to. The catalog is the pool itself; the state folder only lists the pools.

use std::fs;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::remote::{self, Line};
use super::settings::Settings;
use super::site::Site;
use super::{bind, exclusive, heard, rebuilt};
use crate::durable::replace_file;
use crate::engine::catalog::{self, Listed, SandboxRecord};
use crate::engine::pool::Pool;
use crate::engine::vault::btrfs::records as records_of;
use crate::engine::vault::copy::{COPIES, list_copies};
use crate::engine::{CheckpointId, CheckpointMeta, EngineError, Result, ioctl, subvolume};
use crate::paths::SYSTEM_STATE;
use crate::text::ExactPath;

/// The name of the image that is made when none is named.
pub const DEFAULT_IMAGE: &str = "pool.img";
const LIST: &str = "pools.json";

/// A pool in the list of a state folder.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PoolEntry {
    /// A loop image.
    Image(ExactPath),
    /// The Btrfs file system that this folder is on.
    Existing(ExactPath),
    /// This folder, of an ordinary user on a Btrfs file system.
    Folder(ExactPath),
}

#[derive(Debug, Default, Serialize, Deserialize)]
struct PoolList {
    v: u32,
    pools: Vec<PoolEntry>,
}

/// The state folders in which pools are looked for.
#[derive(Clone)]
pub struct Registry {
    own: PathBuf,
    others: Vec<PathBuf>,
    named: bool,
    line: Option<Arc<dyn Line>>,
    settings: Settings,
}

impl Registry {
    /// `named`: the folder was named on the command line, and no other is looked at then.
    pub fn new(state_dir: &Path, named: bool) -> Self {
        let system = PathBuf::from(SYSTEM_STATE);
        let others = if named || state_dir == system {
            Vec::new()
        } else {
            vec![system]
        };
        Self {
            own: state_dir.to_owned(),
            others,
            named,
            line: None,
            settings: Settings::default(),
        }
    }

    /// What is not found here is asked of the service.
    #[must_use]
    pub fn with_line(mut self, line: Arc<dyn Line>) -> Self {
        self.line = Some(line);
        self
    }

    /// The same without the service.
    #[must_use]
    pub fn without_line(&self) -> Self {
        Self {
            line: None,
            ..self.clone()
        }
    }

    /// The line to the service, if there is one.
    pub fn line(&self) -> Option<&Arc<dyn Line>> {
        self.line.as_ref()
    }

    fn behind(&self, record: Option<SandboxRecord>) -> Option<Site> {
        let site = Site::behind(self.line.as_ref()?, record?);
        Some(self.given(site))
    }

    /// With what the user's config says: the sandboxes that it opens have it.
    #[must_use]
    pub fn with(self, settings: Settings) -> Self {
        Self { settings, ..self }
    }

    /// What the user's config says.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    fn given(&self, mut site: Site) -> Site {
        site.settings = self.settings.clone();
        site
    }

    /// The state folder that is written to.
    pub fn state_dir(&self) -> &Path {
        &self.own
    }

    /// The state folder, if it was named on the command line.
    pub fn named(&self) -> Option<&Path> {
        self.named.then_some(&self.own)
    }

    /// Where pools are mounted.
    pub fn mnt_dir(&self) -> PathBuf {
        self.own.join("mnt")
    }

    /// The image to use when none is named.
    pub fn default_image(&self) -> PathBuf {
        self.own.join(DEFAULT_IMAGE)
    }

    /// The own state folder alone.
    #[must_use]
    pub fn alone(&self) -> Self {
        Self {
            others: Vec::new(),
            ..self.clone()
        }
    }

    /// These state folders are looked at, too.
    #[must_use]
    pub fn and(mut self, others: Vec<PathBuf>) -> Self {
        self.others.extend(others);
        self
    }

    /// Where the service is on another machine, nothing of this one counts.
    fn dirs(&self) -> impl Iterator<Item = &PathBuf> {
        let all = std::iter::once(&self.own).chain(&self.others);
        all.filter(|_| !self.far())
    }

    /// True if all is on another machine.
    pub fn far(&self) -> bool {
        self.line.as_ref().is_some_and(|l| l.far())
    }

    /// The pools of a state folder. A damaged list is rebuilt from what lies there and what is mounted.
    fn entries(dir: &Path) -> Vec<PoolEntry> {
        Self::listed_or_found(dir).0
    }

    /// As [`Registry::entries`]; true if there is a list that cannot be used.
    fn listed_or_found(dir: &Path) -> (Vec<PoolEntry>, bool) {
        let path = dir.join(LIST);
        let (list, damaged) = match crate::paths::read_file(&path) {
            Ok(bytes) => match serde_json::from_slice::<PoolList>(&bytes) {
                Ok(list) => (list.pools, None),
                Err(e) => (rebuilt::from_mounts(dir), Some(e.to_string())),
            },
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => (Vec::new(), None),
            // not this user's: see `hidden`
            Err(e) if e.kind() == std::io::ErrorKind::PermissionDenied => (Vec::new(), None),
            Err(e) => (rebuilt::from_mounts(dir), Some(e.to_string())),
        };
        if let Some(why) = &damaged {
            tracing::warn!(
                "{} is damaged ({}): looking at what is mounted and lies beside it; pools elsewhere that are not mounted \
                 are not found",
                crate::text::shown_path(&path),
                crate::text::shown(why)
            );
        }
        let mut pools = list;
        let default = PoolEntry::Image(ExactPath(dir.join(DEFAULT_IMAGE)));
        if !pools.contains(&default) && dir.join(DEFAULT_IMAGE).is_file() {
            pools.push(default);
        }
        (pools, damaged.is_some())
    }

    /// The error for "nothing is known here" where a list of pools exists that this user may not read: what
    /// is tracked is known to root alone then.
    pub fn hidden(&self) -> Option<EngineError> {
        if self.line.is_some() {
            // the service has answered for what cannot be read here
            return None;
        }
        let denied = |dir: &&PathBuf| {
            crate::paths::read_file(&dir.join(LIST))
                .is_err_and(|e| e.kind() == std::io::ErrorKind::PermissionDenied)
        };
        self.dirs().find(denied).map(|dir| EngineError::Refused {
            why: format!(
                "what is tracked cannot be seen: {} cannot be read",
                crate::text::shown_path(dir)
            ),
            path: Some(dir.clone()),
            hint: Some("run it as root: sudo respool ...".into()),
        })
    }

    /// Remembers a pool.
    pub fn remember(&self, entry: PoolEntry) -> Result<()> {
        self.prepare()?;
        // another process may be adding one at the same time
        let folder = bind::open_folder(&self.own).map_err(EngineError::io("open", &self.own))?;
        let _lock = catalog::lock_dir(folder, &self.own, std::time::Duration::from_secs(10))?;
        let (mut pools, damaged) = Self::listed_or_found(&self.own);
        if damaged {
            rebuilt::keep_aside(&self.own.join(LIST))?;
        } else if pools.contains(&entry) && self.own.join(LIST).exists() {
            return Ok(());
        }
        if !pools.contains(&entry) {
            pools.push(entry);
        }
        self.write(&PoolList { v: 1, pools })
    }

    /// Makes the state folder, for its owner alone.
    pub fn prepare(&self) -> Result<()> {
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&self.own)
            .map_err(EngineError::io("make the state folder", &self.own))
    }

    fn write(&self, list: &PoolList) -> Result<()> {
        let path = self.own.join(LIST);
        let temp = self.own.join(format!("{LIST}.{}", std::process::id()));
        let bytes = serde_json::to_vec_pretty(list).map_err(|e| EngineError::io("write", &path)(e.into()))?;
        replace_file(&path, &temp, &bytes).map_err(EngineError::io("write", &path))
    }

    /// Opens (attaches, mounts) the pool of an entry of the state folder `dir`.
    fn open(dir: &Path, entry: &PoolEntry) -> Result<Pool> {
        let mnt = dir.join("mnt");
        match entry {
            PoolEntry::Image(image) => Pool::open_image(&image.0, &mnt),
            PoolEntry::Existing(folder) => Pool::open_existing(&folder.0, &mnt),
            PoolEntry::Folder(folder) => Pool::open_folder(&folder.0),
        }
    }

    /// The pool in an image of the own state folder, opened and remembered.
    pub fn open_image(&self, image: &Path) -> Result<Pool> {
        self.prepare()?;
        let pool = Pool::open_image(image, &self.mnt_dir())?;
        let image = pool.image().unwrap_or(image).to_owned();
        self.remember(PoolEntry::Image(ExactPath(image)))?;
        Ok(pool)
    }

    /// The Btrfs that a folder is on as a pool, opened and remembered.
    pub fn open_existing(&self, folder: &Path) -> Result<Pool> {
        self.prepare()?;
        let pool = Pool::open_existing(folder, &self.mnt_dir())?;
        self.remember(PoolEntry::Existing(ExactPath(folder.to_owned())))?;
        Ok(pool)
    }

    /// A folder of this user's as a pool, made, opened and remembered.
    pub fn open_folder(&self, folder: &Path) -> Result<Pool> {
        self.prepare()?;
        let pool = Pool::make_in_folder(folder)?;
        self.remember(PoolEntry::Folder(ExactPath(pool.base_path().to_owned())))?;
        Ok(pool)
    }

    /// Every pool that is listed, opened, or why it cannot be. Where entries lead to the same pool (folders of
    /// one file system) it is given once.
    pub fn pools(&self) -> Vec<(PoolEntry, Result<Pool>)> {
        let mut out: Vec<(PoolEntry, Result<Pool>)> = Vec::new();
        for dir in self.dirs() {
            for entry in Self::entries(dir) {
                let pool = Self::open(dir, &entry);
                let known = |p: &Pool| {
                    out.iter()
                        .filter_map(|(_, o)| o.as_ref().ok())
                        .any(|o| o.base_path() == p.base_path())
                };
                if !pool.as_ref().is_ok_and(known) {
                    out.push((entry, pool));
                }
            }
        }
        out
    }

    /// The entries alone: nothing is attached or mounted.
    pub fn listed(&self) -> Vec<(PathBuf, PoolEntry)> {
        self.dirs()
            .flat_map(|dir| Self::entries(dir).into_iter().map(|e| (dir.join("mnt"), e)))
            .collect()
    }

    /// The sandbox that covers `path` (a workspace, or a folder in one); `None` if none does. A workspace
    /// whose mount was taken away is shown again; one that was replaced is [`EngineError::NotManaged`].
    pub fn find(&self, path: &Path) -> Result<Option<Site>> {
        if let Some(line) = self.line.as_ref().filter(|l| l.far()) {
            return Ok(self.behind(remote::find(&**line, path)?));
        }
        let resolved = path.canonicalize().unwrap_or_else(|_| path.to_owned());
        let here = self.find_here(&resolved)?;
        match &self.line {
            Some(line) if here.is_none() => Ok(self.behind(remote::find(&**line, &resolved)?)),
            _ => Ok(here),
        }
    }

    fn find_here(&self, resolved: &Path) -> Result<Option<Site>> {
        if let Some(site) = self.by_subvolume(resolved)? {
            return Ok(Some(self.given(site)));
        }
        if let Some(site) = self.by_copy(resolved)? {
            return Ok(Some(site));
        }
        Ok(self.by_record(resolved)?.map(|site| self.given(site)))
    }

    /// The folder of the sandboxes whose checkpoints are copies, in the own state folder.
    pub fn copies(&self) -> PathBuf {
        self.own.join(COPIES)
    }

    /// All sandboxes whose checkpoints are copies, each with the folder that it is in.
    fn all_copies(&self) -> Result<Vec<(PathBuf, Listed)>> {
        let mut out = Vec::new();
        for dir in self.dirs().map(|d| d.join(COPIES)) {
            out.extend(list_copies(&dir)?.into_iter().map(|l| (dir.clone(), l)));
        }
        Ok(out)
    }

    /// The sandbox with copies whose workspace the path is in.
    fn by_copy(&self, path: &Path) -> Result<Option<Site>> {
        let found = self
            .all_copies()?
            .into_iter()
            .filter_map(|(dir, l)| Some((dir, l.record.ok()?)))
            .filter(|(_, r)| r.tracked && path.starts_with(&r.path))
            .max_by_key(|(_, r)| r.path.as_os_str().len());
        found
            .map(|(dir, record)| Site::open_copy(&dir, record, self.settings.clone()))
            .transpose()
    }

    /// The quick way: the subvolume that the path is in tells which sandbox it is.
    fn by_subvolume(&self, path: &Path) -> Result<Option<Site>> {
        let Ok(folder) = bind::open_folder(path) else {
            return Ok(None);
        };
        let (Ok(info), Ok(fsid)) = (ioctl::subvol_info(&folder), ioctl::fs_id(&folder)) else {
            return Ok(None);
        };
        let uuid = subvolume::hex(&info.uuid);
        let mut dirs: Vec<PathBuf> = self.dirs().cloned().collect();
        if !self.named {
            dirs.extend(mounted_by(&subvolume::hex(&fsid)));
        }
        for dir in &dirs {
            let mounted = dir.join("mnt").join(subvolume::hex(&fsid)).exists();
            for entry in Self::entries(dir) {
                // the folder of a user's pool is there without a mount
                if !mounted && !matches!(entry, PoolEntry::Folder(_)) {
                    continue;
                }
                let pool = match Self::open(dir, &entry) {
                    Ok(pool) if pool.fsid() == fsid => pool,
                    Ok(_) => continue,
                    Err(e) => {
                        tracing::debug!("a pool of {}: {e}", dir.display());
                        continue;
                    }
                };
                let found = catalog::list_sandboxes(&pool)?
                    .into_iter()
                    .find(|l| matches(l, &uuid));
                if let Some(listed) = found {
                    return open_listed(pool, listed, path).map(Some);
                }
            }
        }
        Ok(None)
    }

    /// The slow way: by the recorded path, all pools. The path shows something else than the live tree.
    fn by_record(&self, path: &Path) -> Result<Option<Site>> {
        let mut trouble = None;
        for (_, pool) in self.pools() {
            let pool = match pool {
                Ok(pool) => pool,
                Err(e) => {
                    trouble.get_or_insert(e);
                    continue;
                }
            };
            let record = catalog::list_sandboxes(&pool)?
                .into_iter()
                .filter_map(|l| l.record.ok())
                .filter(|r| r.tracked && path.starts_with(&r.path))
                .max_by_key(|r| r.path.as_os_str().len());
            if let Some(record) = record {
                return Site::open(pool, record).map(Some);
            }
        }
        // a pool that cannot be opened may be the one that covers this path
        trouble.map_or(Ok(None), Err)
    }

    /// A sandbox by its id, tracked or not.
    pub fn by_id(&self, id: &str) -> Result<Option<Site>> {
        let here = match &self.line {
            Some(line) if line.far() => None,
            _ => self.by_id_here(id)?,
        };
        match &self.line {
            Some(line) if here.is_none() => Ok(self.behind(remote::by_id(&**line, id)?)),
            _ => Ok(here),
        }
    }

    fn by_id_here(&self, id: &str) -> Result<Option<Site>> {
        let damaged = |what: String| EngineError::Damaged {
            what,
            path: id.into(),
        };
        if let Some((dir, listed)) = self.all_copies()?.into_iter().find(|(_, l)| l.id == id) {
            return Site::open_copy(&dir, listed.record.map_err(damaged)?, self.settings.clone()).map(Some);
        }
        for (_, pool) in self.pools() {
            let Ok(pool) = pool else { continue };
            let found = catalog::list_sandboxes(&pool)?.into_iter().find(|l| l.id == id);
            if let Some(listed) = found {
                let record = listed.record.map_err(damaged)?;
                return Site::open(pool, record).map(|site| Some(self.given(site)));
            }
        }
        Ok(None)
    }

    /// The tracked sandbox that heard of this conversation, or that is the clone for it: for one whose store names a path
    /// inside a container. Two that did are none: it is not guessed.
    pub fn of_conversation(&self, id: &str) -> Result<Option<Site>> {
        let (mut fit, mut dirs) = (Vec::new(), Vec::new());
        let Census {
            pools,
            sandboxes,
            copies,
            ..
        } = if self.far() { return Ok(None) } else { self.all()? };
        for (i, listed) in sandboxes {
            dirs.push((pools[i].base_path().join("s").join(&listed.id), listed));
        }
        dirs.extend(copies.into_iter().map(|(dir, l)| (dir.join(&l.id), l)));
        for (dir, listed) in dirs {
            let Ok(record) = listed.record else { continue };
            let cloned = || exclusive::clone_of(&record).is_some_and(|o| heard::same(&o.conversation, id));
            let told = || {
                heard::heard(&dir)
                    .iter()
                    .any(|h| heard::same(&h.conversation, id))
            };
            if record.tracked && (cloned() || told()) {
                fit.push(record.id);
            }
        }
        match fit.as_slice() {
            [one] => self.by_id(one),
            _ => Ok(None),
        }
    }

    /// The sandboxes that `path` was in and that are no longer tracked, the newest first. What cannot be read
    /// is left out.
    pub fn earlier(&self, path: &Path) -> Vec<Earlier> {
        let mut out = Vec::new();
        if let Some(line) = self.line.as_ref().filter(|l| l.far()) {
            return remote::earlier(&**line, path).unwrap_or_default();
        }
        let resolved = path.canonicalize().unwrap_or_else(|_| path.to_owned());
        if let Some(line) = &self.line {
            out.extend(remote::earlier(&**line, &resolved).unwrap_or_default());
        }
        for pool in self.pools().into_iter().filter_map(|(_, pool)| pool.ok()) {
            let records = catalog::list_sandboxes(&pool).unwrap_or_default().into_iter();
            for record in records
                .filter_map(|l| l.record.ok())
                .filter(|r| !r.tracked && resolved.starts_with(&r.path))
            {
                let dir = catalog::SandboxDir::open(&pool, &record.id);
                if let Ok(checkpoints) = dir.and_then(|d| records_of(&d)) {
                    out.push(Earlier { record, checkpoints });
                }
            }
        }
        out.sort_by_key(|e| std::cmp::Reverse(e.record.created));
        out
    }

    /// Everything that the catalogs list.
    pub fn all(&self) -> Result<Census> {
        let (mut pools, mut sandboxes, mut trouble) = (Vec::new(), Vec::new(), Vec::new());
        for (_, pool) in self.pools() {
            match pool {
                Ok(pool) => {
                    sandboxes.extend(
                        catalog::list_sandboxes(&pool)?
                            .into_iter()
                            .map(|l| (pools.len(), l)),
                    );
                    pools.push(pool);
                }
                Err(e) => trouble.push(e),
            }
        }
        Ok(Census {
            pools,
            sandboxes,
            copies: self.all_copies()?,
            trouble,
        })
    }
}

/// A sandbox that is no longer tracked, and the checkpoints that it keeps.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Earlier {
    /// Its record.
    pub record: SandboxRecord,
    /// Its checkpoints, oldest first; `None` where a record cannot be read.
    pub checkpoints: Vec<(CheckpointId, Option<CheckpointMeta>)>,
}

/// Everything that the catalogs of all pools list.
#[derive(Debug)]
pub struct Census {
    /// The pools that could be opened.
    pub pools: Vec<Pool>,
    /// The sandboxes, each with the position of its pool in `pools`.
    pub sandboxes: Vec<(usize, Listed)>,
    /// The sandboxes whose checkpoints are copies, each with the folder that it is in.
    pub copies: Vec<(PathBuf, Listed)>,
    /// Why other pools could not be opened.
    pub trouble: Vec<EngineError>,
}

/// The state folders that have a file system mounted, told by the mount itself: a pool that another state
/// folder brought up is found too.
fn mounted_by(fsid: &str) -> Vec<PathBuf> {
    let all = crate::engine::mounts::list().unwrap_or_default();
    let state = |m: &crate::engine::mounts::Mount| {
        let mnt = m.point.parent()?;
        let fits = m.point.file_name()? == fsid && mnt.file_name()? == "mnt" && m.root == Path::new("/");
        fits.then(|| mnt.parent().map(Path::to_owned))?
    };
    all.iter().filter_map(state).collect()
}

/// Untracked ones do not count: a subvolume that was given back and tracked again is in two sandboxes.
fn matches(listed: &Listed, uuid: &str) -> bool {
    if listed.record.as_ref().is_ok_and(|r| !r.tracked) {
        return false;
    }
    listed.live_uuid.as_deref() == Some(uuid) || listed.record.as_ref().is_ok_and(|r| r.live_uuid == uuid)
}

/// Opens a sandbox found by its live subvolume; a damaged record is rebuilt from what is there.
fn open_listed(pool: Pool, listed: Listed, path: &Path) -> Result<Site> {
    let record: SandboxRecord = match listed.record {
        Ok(record) => record,
        Err(why) => {
            tracing::warn!("the record of {}: {why}; rebuilt", listed.id);
            Site::rebuild(&pool, &listed.id, path)?
        }
    };
    Site::open(pool, record)
}
