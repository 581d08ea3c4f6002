//! The pool: the Btrfs file system that holds the checkpoints; an image of ours or one that exists.
//!
//! # Layout below the base
//! The base is the top level of the file system for an image, `<top level>/.respool` for an existing one,
//! and for an ordinary user on an existing one a folder of his own.
//! ```text
//! <base>/format                                       "respool-pool 1"
//! <base>/s/<sandbox id>/                              xattr user.respool.sandbox = JSON SandboxRecord
//! <base>/s/<sandbox id>/live                          the writable subvolume that is bind-mounted over the
//!                                                     workspace; absent where the live tree is at its own
//!                                                     place on an existing Btrfs
//! <base>/s/<sandbox id>/snaps/<seq>-<checkpoint id>/  xattr user.respool.checkpoint = JSON CheckpointMeta,
//!                                                     set before the snapshot is made
//! <base>/s/<sandbox id>/snaps/<..>/workspace          the read-only snapshot, named by the part's kind
//! <base>/s/<sandbox id>/tmp/<pid>-<random>/tree       a snapshot of "now"; its directory is locked (flock)
//!                                                     by the process that reads it
//! <base>/s/<part id>/                                 the same (snaps, tmp) of a container: its snapshots must be on
//!                                                     the file system that it is on
//! <base>/s/<sandbox id>/ops/ journal lock cache/      the operations of the room `rewind`
//! ```
//! The pool is mounted at `<state dir>/mnt/<file system id>`, a folder that only root may enter.

mod format;
mod others;
mod place;
mod status;

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{FlockOperation, Mode, OFlags};

use super::attach::{self, ImageLock};
use super::{EngineError, Result, image, ioctl, mounts, space, subvolume};
use crate::text;

pub use format::FORMAT;
pub(crate) use place::make_folder;
pub use status::{CheckReport, PoolStatus, check_image, peek};

use place::{
    is_mounted, is_top_level, mount_btrfs, mount_image, mount_source, preallocate, prepare_folder, unmount_at,
};

/// The folder of the pool's data on an existing Btrfs.
const OWN_FOLDER: &str = ".respool";

/// Where a pool comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PoolKind {
    /// A file that holds the file system.
    Image {
        /// The file.
        path: PathBuf,
    },
    /// A Btrfs that exists.
    Existing {
        /// Its device.
        device: PathBuf,
    },
    /// A folder of an ordinary user's on a Btrfs that exists. Nothing is mounted.
    Folder {
        /// The folder; its owner's alone.
        path: PathBuf,
    },
}

/// A mounted pool, held open.
#[derive(Debug)]
pub struct Pool {
    mount: PathBuf,
    root: OwnedFd,
    base: OwnedFd,
    base_path: PathBuf,
    fsid: [u8; 16],
    kind: PoolKind,
}

impl Pool {
    /// Opens the pool in an image: attaches and mounts it if that is not done yet, finishes a growth that
    /// was cut short. Any number of processes may call it at once.
    pub fn open_image(image: &Path, mnt_dir: &Path) -> Result<Self> {
        let image = match image.canonicalize() {
            Ok(image) => image,
            Err(e) => match Self::open_deleted(image, mnt_dir)? {
                Some(pool) => return Ok(pool),
                None => return Err(attach::missing(image, e)),
            },
        };
        let lock = ImageLock::take(&image)?;
        let fsid = lock.fsid()?;
        let mount = mnt_dir.join(subvolume::hex(&fsid));
        if !is_mounted(&mount, &fsid)? {
            prepare_folder(mnt_dir)?;
            prepare_folder(&mount)?;
            mount_image(&lock, &image, &mount)?;
        }
        let same = match mount_source(&mount)? {
            Some(device) => attach::is_of(&device, &image)?,
            None => false,
        };
        if !same {
            return Err(EngineError::Refused {
                why: format!(
                    "another image with the same file system id is mounted at {}",
                    text::shown_path(&mount)
                ),
                path: Some(image),
                hint: Some("this image is a copy: unmount the other one first: respool pool unmount".into()),
            });
        }
        Self::hold(mount, fsid, PoolKind::Image { path: image })
    }

    /// Opens the Btrfs that the folder `path` is on as a pool: its top level is mounted apart, respool's
    /// data lies in its folder `.respool`. Where the folder is gone, the one that it was in tells the file system;
    /// nothing is made there then.
    pub fn open_existing(path: &Path, mnt_dir: &Path) -> Result<Self> {
        let there = path.ancestors().find(|p| p.exists()).unwrap_or(path);
        let gone = there != path;
        let path = there.canonicalize().map_err(EngineError::io("find", path))?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let folder = rustix::fs::open(&path, flags, Mode::empty())
            .map_err(|e| EngineError::io("open", &path)(e.into()))?;
        if !subvolume::on_btrfs(&folder).map_err(EngineError::io("look at", &path))? {
            return Err(EngineError::Refused {
                why: format!("{} is not on a Btrfs file system", text::shown_path(&path)),
                path: Some(path),
                hint: Some("use a loop image: --image FILE --size 20G; or: --vault copy".into()),
            });
        }
        let fsid = ioctl::fs_id(&folder).map_err(EngineError::io("read the file system id of", &path))?;
        let all = mounts::list()?;
        let device = all
            .iter()
            .filter(|m| m.fs_type == "btrfs" && path.starts_with(&m.point))
            .max_by_key(|m| m.point.as_os_str().len())
            .ok_or_else(|| EngineError::Damaged {
                what: "the mount of this folder is not listed".into(),
                path: path.clone(),
            })?;
        if device.read_only() {
            return Err(EngineError::Refused {
                why: format!(
                    "the file system of {} is mounted read-only",
                    text::shown_path(&path)
                ),
                path: Some(path),
                hint: Some("mount it writable: mount -o remount,rw".into()),
            });
        }
        let device = device.source.clone();
        prepare_folder(mnt_dir)?;
        let mount = mnt_dir.join(subvolume::hex(&fsid));
        if let Some(path) = Self::image_at(&device, &mount, &fsid)? {
            return Self::hold(mount, fsid, PoolKind::Image { path });
        }
        let lock = File::open(mnt_dir).map_err(EngineError::io("open", mnt_dir))?;
        rustix::fs::flock(&lock, FlockOperation::LockExclusive)
            .map_err(|e| EngineError::io("lock", mnt_dir)(e.into()))?;
        let fresh = !is_mounted(&mount, &fsid)?;
        if fresh {
            // never what is mounted there: the top level's owner and mode are not ours
            prepare_folder(&mount)?;
            // only options of the mount itself: those of the file system are its owner's
            mount_btrfs(&device, &mount, "subvolid=5")?;
        }
        if gone && !mount.join(OWN_FOLDER).exists() {
            if fresh {
                unmount_at(&mount)?;
            }
            return Err(EngineError::Damaged {
                what: "there is no pool on this file system".into(),
                path,
            });
        }
        Self::hold(mount, fsid, PoolKind::Existing { device })
    }

    /// The image behind a file system that is mounted as the pool of one.
    fn image_at(device: &Path, mount: &Path, fsid: &[u8; 16]) -> Result<Option<PathBuf>> {
        let image = attach::backing_file(device).filter(|_| mount.join(format::FORMAT_FILE).is_file());
        Ok(if is_mounted(mount, fsid)? { image } else { None })
    }

    /// Opens what is mounted and checks that it is what it must be.
    fn hold(mount: PathBuf, fsid: [u8; 16], kind: PoolKind) -> Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let root = rustix::fs::open(&mount, flags, Mode::empty())
            .map_err(|e| EngineError::io("open", &mount)(e.into()))?;
        if !is_top_level(&root, &fsid).map_err(EngineError::io("look at", &mount))? {
            return Err(EngineError::NotManaged { path: mount });
        }
        let (base, base_path) = match kind {
            PoolKind::Existing { .. } => {
                make_folder(&root, OWN_FOLDER, &mount)?;
                (subvolume::open_dir(&root, OWN_FOLDER), mount.join(OWN_FOLDER))
            }
            PoolKind::Image { .. } | PoolKind::Folder { .. } => {
                (subvolume::open_dir(&root, ""), mount.clone())
            }
        };
        let base = base.map_err(EngineError::io("open", &base_path))?;
        Self {
            mount,
            root,
            base,
            base_path,
            fsid,
            kind,
        }
        .laid_out()
    }

    /// Where it is mounted; of a [`PoolKind::Folder`] that folder.
    pub fn mount(&self) -> &Path {
        &self.mount
    }
    /// The top level of the file system; of a [`PoolKind::Folder`] that folder.
    pub fn root(&self) -> BorrowedFd<'_> {
        self.root.as_fd()
    }
    /// The folder that respool's data lies in.
    pub fn base(&self) -> BorrowedFd<'_> {
        self.base.as_fd()
    }
    /// The path of [`Pool::base`].
    pub fn base_path(&self) -> &Path {
        &self.base_path
    }
    /// The file system id.
    pub fn fsid(&self) -> [u8; 16] {
        self.fsid
    }
    /// Where it comes from.
    pub fn kind(&self) -> &PoolKind {
        &self.kind
    }
    /// The image, where it is one.
    pub fn image(&self) -> Option<&Path> {
        match &self.kind {
            PoolKind::Image { path } => Some(path),
            PoolKind::Existing { .. } | PoolKind::Folder { .. } => None,
        }
    }

    /// The guard that every writing action asks first.
    pub fn guard(&self) -> Result<space::Guard> {
        let root = self
            .root
            .try_clone()
            .map_err(EngineError::io("hold", &self.mount))?;
        Ok(space::Guard {
            image: self.image().map(Path::to_owned),
            root,
            mount: self.mount.clone(),
        })
    }

    /// Refuses where a write could end badly; see [`space::Guard::check`].
    pub fn guard_space(&self) -> Result<()> {
        self.guard()?.check()
    }

    /// Grows the image, and the file system in it, to `size` bytes while it is in use.
    pub fn grow(&self, size: u64) -> Result<()> {
        let PoolKind::Image { path } = &self.kind else {
            return Err(EngineError::Refused {
                why: "this pool is a file system of its own and no image".into(),
                path: Some(self.mount.clone()),
                hint: Some("add a device to it, or grow its partition: btrfs filesystem resize".into()),
            });
        };
        let size = size & !4095;
        let lock = ImageLock::take(path)?;
        let file = File::from(image::open(path)?);
        let now = file.metadata().map_err(EngineError::io("look at", path))?.len();
        if size < now {
            return Err(EngineError::Refused {
                why: format!("the image has {} already; it can only grow", text::size(now)),
                path: Some(path.clone()),
                hint: None,
            });
        }
        let device = lock.attach()?;
        if size > now && space::unwritten(path)? == 0 {
            preallocate(&file, path, now, size)?;
        } else {
            file.set_len(size).map_err(EngineError::io("grow", path))?;
        }
        file.sync_all().map_err(EngineError::io("sync", path))?;
        attach::grown(&device.device)?;
        ioctl::resize(&self.root, "max").map_err(EngineError::io("grow", &self.mount))
    }

    /// Unmounts it. [`EngineError::Busy`] while something uses it: then nothing was changed, or, where it
    /// is used in a way that cannot be seen from here, it says so. Waits until the loop device is free.
    pub fn unmount(self) -> Result<()> {
        let Self {
            mount,
            root,
            base,
            kind,
            ..
        } = self;
        drop((root, base));
        let path = match kind {
            PoolKind::Image { path } if path.exists() => path,
            PoolKind::Image { .. } | PoolKind::Existing { .. } => return unmount_at(&mount),
            PoolKind::Folder { .. } => return Ok(()),
        };
        let _lock = ImageLock::take(&path)?;
        if let Some(source) = mount_source(&mount)? {
            let others: Vec<PathBuf> = mounts::list()?
                .into_iter()
                .filter(|m| m.source == source && m.point != mount)
                .map(|m| m.point)
                .collect();
            if !others.is_empty() {
                return Err(EngineError::Busy {
                    path: mount,
                    mounts: others,
                });
            }
            unmount_at(&mount)?;
        }
        if attach::wait_free(&path, Duration::from_secs(5))? {
            return Ok(());
        }
        Err(EngineError::Busy {
            path,
            mounts: Vec::new(),
        })
    }
}
