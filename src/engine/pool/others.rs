//! The pools that are no mounted image: a user's own folder, one whose image was deleted; and what every base needs.

use std::fs::File;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;

use rustix::fs::{Mode, OFlags};

use super::super::flags::{IFlags, flags, set_flags};
use super::super::{EngineError, Result, attach, ioctl, mounts, subvolume};
use super::format::check_format;
use super::place::{check_owner, make_folder};
use super::{Pool, PoolKind};
use crate::text;

impl Pool {
    /// Checks who owns the base and which version its layout has; makes what is missing.
    pub(super) fn laid_out(self) -> Result<Self> {
        check_owner(&self.base, &self.base_path)?;
        check_format(&self.base, &self.base_path)?;
        make_folder(&self.base, "s", &self.base_path)?;
        if matches!(self.kind, PoolKind::Existing { .. }) {
            self.hold_fast()?;
        }
        Ok(self)
    }

    /// Where others than root can rename what is at the top level, the base could be moved out of sight: an immutable
    /// folder cannot be renamed (what is in the folders in it can be changed as before).
    fn hold_fast(&self) -> Result<()> {
        let top =
            rustix::fs::fstat(&self.root).map_err(|e| EngineError::io("look at", &self.mount)(e.into()))?;
        if top.st_uid == 0 && top.st_mode & 0o022 == 0 {
            return Ok(());
        }
        let now = flags(&self.base).map_err(EngineError::io("read the flags of", &self.base_path))?;
        if now.contains(IFlags::IMMUTABLE) {
            return Ok(());
        }
        match set_flags(&self.base, now | IFlags::IMMUTABLE) {
            // a read-only file system lets nobody rename anything
            Err(e) if e.raw_os_error() == Some(nix::libc::EROFS) => Ok(()),
            other => other.map_err(EngineError::io("lock", &self.base_path)),
        }
    }

    /// Makes a folder in one that is there, unless it exists, and opens it: see [`Pool::open_folder`].
    pub fn make_in_folder(path: &Path) -> Result<Self> {
        match std::fs::DirBuilder::new().mode(0o700).create(path) {
            Ok(()) => {}
            Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => {}
            Err(e) => return Err(EngineError::io("make", path)(e)),
        }
        Self::open_folder(path)
    }

    /// Opens a folder of this user's on a Btrfs as a pool, for what can be done without root.
    pub fn open_folder(path: &Path) -> Result<Self> {
        let path = path.canonicalize().map_err(EngineError::io("find", path))?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let open = || {
            rustix::fs::open(&path, flags, Mode::empty())
                .map_err(|e| EngineError::io("open", &path)(e.into()))
        };
        let (root, base) = (open()?, open()?);
        if !subvolume::on_btrfs(&root).map_err(EngineError::io("look at", &path))? {
            return Err(EngineError::Refused {
                why: format!("{} is not on a Btrfs file system", text::shown_path(&path)),
                path: Some(path),
                hint: Some("use: --vault copy".into()),
            });
        }
        Self {
            fsid: ioctl::fs_id(&root).map_err(EngineError::io("read the file system id of", &path))?,
            mount: path.clone(),
            base_path: path.clone(),
            kind: PoolKind::Folder { path },
            root,
            base,
        }
        .laid_out()
    }

    /// The pool of an image that was deleted while it is mounted: it can be looked at and given back, and
    /// [`Pool::guard_space`] refuses the rest.
    pub(super) fn open_deleted(image: &Path, mnt_dir: &Path) -> Result<Option<Self>> {
        let Some(device) = attach::deleted(image) else {
            return Ok(None);
        };
        let mounts = mounts::list()?;
        let ours = |m: &&mounts::Mount| m.source == device && m.point.parent() == Some(mnt_dir);
        let Some(mount) = mounts.iter().find(ours).map(|m| m.point.clone()) else {
            return Ok(None);
        };
        let root = File::open(&mount).map_err(EngineError::io("open", &mount))?;
        let fsid = ioctl::fs_id(&root).map_err(EngineError::io("read the file system id of", &mount))?;
        let path = image.to_owned();
        Self::hold(mount, fsid, PoolKind::Image { path }).map(Some)
    }
}
