//! The pool: the Btrfs file system that holds the checkpoints; an image of ours or one that exists.
//!
//! # Layout below the base
//! The base is the top level of the file system for an image, `<top level>/.respool` for an existing one.
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
//! <base>/s/<sandbox id>/ops/ journal lock cache/      the operations of the room `rewind`
//! ```
//! The pool is mounted at `<state dir>/mnt/<file system id>`, a folder that only root may enter.

use std::ffi::CString;
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::libc;
use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::mount::{MountFlags, UnmountFlags};
use serde::Serialize;

use super::attach::{self, ImageLock};
use super::{EngineError, Result, image, ioctl, mounts, space, subvolume};
use crate::text;

/// The version of the layout that this program writes and reads.
pub const FORMAT: u32 = 1;
const FORMAT_FILE: &str = "format";
const FORMAT_WORD: &str = "respool-pool";
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

/// A pool's state for people and JSON. Sizes are bytes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PoolStatus {
    /// The file system id.
    pub fsid: String,
    /// Whether it is mounted.
    pub mounted: bool,
    /// Where it is mounted, or would be; a path as text.
    pub mount: String,
    /// The image, where it is one; a path as text.
    pub image: Option<String>,
    /// Size of the file system.
    pub size: u64,
    /// In use.
    pub used: u64,
    /// What can still be written.
    pub available: u64,
    /// Not allocated to anything yet.
    pub free_unallocated: u64,
    /// What the image takes of its host now.
    pub image_allocated: Option<u64>,
    /// Free space of the disk that the image is on.
    pub host_free: Option<u64>,
    /// True if nothing can be written: mounted so, or forced by an error.
    pub read_only: bool,
    /// What is wrong, if anything, one line.
    pub trouble: Option<String>,
}

impl Pool {
    /// Opens the pool in an image: attaches and mounts it if that is not done yet, finishes a growth that
    /// was cut short. Any number of processes may call it at once.
    pub fn open_image(image: &Path, mnt_dir: &Path) -> Result<Self> {
        let image = image
            .canonicalize()
            .map_err(EngineError::io("find the image", image))?;
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
    /// data lies in its folder `.respool`.
    pub fn open_existing(path: &Path, mnt_dir: &Path) -> Result<Self> {
        let path = path.canonicalize().map_err(EngineError::io("find", path))?;
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
            .map(|m| m.source.clone())
            .ok_or_else(|| EngineError::Damaged {
                what: "the mount of this folder is not listed".into(),
                path: path.clone(),
            })?;
        prepare_folder(mnt_dir)?;
        let mount = mnt_dir.join(subvolume::hex(&fsid));
        prepare_folder(&mount)?;
        let lock = File::open(mnt_dir).map_err(EngineError::io("open", mnt_dir))?;
        rustix::fs::flock(&lock, FlockOperation::LockExclusive)
            .map_err(|e| EngineError::io("lock", mnt_dir)(e.into()))?;
        if !is_mounted(&mount, &fsid)? {
            // only options of the mount itself: those of the file system are its owner's
            mount_btrfs(&device, &mount, "subvolid=5")?;
        }
        Self::hold(mount, fsid, PoolKind::Existing { device })
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
            PoolKind::Image { .. } => (subvolume::open_dir(&root, ""), mount.clone()),
            PoolKind::Existing { .. } => {
                make_folder(&root, OWN_FOLDER, &mount)?;
                (subvolume::open_dir(&root, OWN_FOLDER), mount.join(OWN_FOLDER))
            }
        };
        let base = base.map_err(EngineError::io("open", &base_path))?;
        check_owner(&base, &base_path)?;
        check_format(&base, &base_path)?;
        make_folder(&base, "s", &base_path)?;
        Ok(Self {
            mount,
            root,
            base,
            base_path,
            fsid,
            kind,
        })
    }

    /// Where it is mounted.
    pub fn mount(&self) -> &Path {
        &self.mount
    }
    /// The top level of the file system.
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
            PoolKind::Existing { .. } => None,
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

    /// The state of it.
    pub fn status(&self) -> Result<PoolStatus> {
        let s = space::of(&self.root, &self.mount)?;
        let vfs = rustix::fs::fstatvfs(&self.root)
            .map_err(|e| EngineError::io("look at", &self.mount)(e.into()))?;
        let mut status = PoolStatus {
            fsid: image::uuid_text(&self.fsid),
            mounted: true,
            mount: text::json_path(&self.mount).0,
            image: None,
            size: s.size,
            used: s.used,
            available: s.available,
            free_unallocated: s.unallocated,
            image_allocated: None,
            host_free: None,
            read_only: vfs.f_flag.contains(rustix::fs::StatVfsMountFlags::RDONLY),
            trouble: self.guard_space().err().map(|e| e.to_string()),
        };
        if let Some(image) = self.image() {
            of_image(&mut status, image)?;
        }
        Ok(status)
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
        if space::unwritten(path)? == 0 {
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
        let PoolKind::Image { path } = kind else {
            return unmount_at(&mount);
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

    /// Reads every block of the mounted pool and compares checksums (`btrfs scrub`, if it is installed).
    pub fn check(&self) -> Result<CheckReport> {
        run_check(&["scrub", "start", "-B", "-r"], &self.mount)
    }
}

/// The result of a check by an external tool.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct CheckReport {
    /// True if the tool ran and found nothing; false if it found something; `None` if there is no tool.
    pub clean: Option<bool>,
    /// What it said, or what to install; lines without control characters.
    pub lines: Vec<String>,
}

/// Checks the structures of an image that is not mounted (`btrfs check --readonly`, if it is installed).
pub fn check_image(path: &Path) -> Result<CheckReport> {
    let _lock = ImageLock::take(path)?;
    image::read_fsid(path)?;
    if attach::attached(path)?.is_some() {
        return Err(EngineError::Refused {
            why: "the image is in use".into(),
            path: Some(path.to_owned()),
            hint: Some("unmount it first: respool pool unmount".into()),
        });
    }
    run_check(&["check", "--readonly"], path)
}

/// The state of an image whose pool is perhaps not mounted; mounts nothing.
pub fn peek(image: &Path, mnt_dir: &Path) -> Result<PoolStatus> {
    let fsid = image::read_fsid(image)?;
    let mount = mnt_dir.join(subvolume::hex(&fsid));
    if is_mounted(&mount, &fsid)? {
        return Pool::open_image(image, mnt_dir)?.status();
    }
    let size = image.metadata().map_err(EngineError::io("look at", image))?.len();
    let mut status = PoolStatus {
        fsid: image::uuid_text(&fsid),
        mounted: false,
        mount: text::json_path(&mount).0,
        image: None,
        size,
        used: 0,
        available: 0,
        free_unallocated: 0,
        image_allocated: None,
        host_free: None,
        read_only: false,
        trouble: None,
    };
    of_image(&mut status, image)?;
    Ok(status)
}

fn of_image(status: &mut PoolStatus, image: &Path) -> Result<()> {
    let size = image.metadata().map_err(EngineError::io("look at", image))?.len();
    status.image_allocated = Some(size.saturating_sub(space::unwritten(image)?));
    status.host_free = Some(space::host(image)?.0);
    status.image = Some(text::json_path(image).0);
    Ok(())
}

fn run_check(args: &[&str], target: &Path) -> Result<CheckReport> {
    let places = [
        "/usr/bin/btrfs",
        "/usr/sbin/btrfs",
        "/sbin/btrfs",
        "/bin/btrfs",
        "/usr/local/bin/btrfs",
    ];
    let Some(tool) = places.iter().find(|p| Path::new(p).exists()) else {
        return Ok(CheckReport {
            clean: None,
            lines: vec!["not checked: the tool btrfs is not installed (package btrfs-progs)".into()],
        });
    };
    let out = std::process::Command::new(tool)
        .args(args)
        .arg(target)
        .env_clear()
        .stdin(std::process::Stdio::null())
        .output()
        .map_err(EngineError::io("run", *tool))?;
    let text = [out.stdout, out.stderr].concat();
    Ok(CheckReport {
        clean: Some(out.status.success()),
        lines: text
            .split(|b| *b == b'\n')
            .filter(|l| !l.is_empty())
            .map(text::shown_bytes)
            .collect(),
    })
}

/// True if the open directory is the top level of this file system.
fn is_top_level(root: impl AsFd, fsid: &[u8; 16]) -> std::io::Result<bool> {
    Ok(subvolume::root_info(root.as_fd())?.is_some_and(|i| i.tree_id == 5) && ioctl::fs_id(root)? == *fsid)
}

/// True if this file system is mounted at this place.
fn is_mounted(mount: &Path, fsid: &[u8; 16]) -> Result<bool> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    match rustix::fs::open(mount, flags, Mode::empty()) {
        Ok(fd) => is_top_level(fd, fsid).map_err(EngineError::io("look at", mount)),
        Err(rustix::io::Errno::NOENT) => Ok(false),
        Err(e) => Err(EngineError::io("open", mount)(e.into())),
    }
}

/// The device that is mounted at this place.
fn mount_source(mount: &Path) -> Result<Option<PathBuf>> {
    let mount = match mount.canonicalize() {
        Ok(m) => m,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(EngineError::io("find", mount)(e)),
    };
    let all = mounts::list()?;
    Ok(all
        .iter()
        .rev()
        .find(|m| m.point == mount)
        .map(|m| m.source.clone()))
}

fn mount_image(lock: &ImageLock, image: &Path, mount: &Path) -> Result<()> {
    let device = lock.attach()?;
    // a preallocated image keeps its space: discard would give it back to the host
    let discard = if space::unwritten(image)? == 0 {
        "nodiscard"
    } else {
        "discard=async"
    };
    let options = format!("compress=zstd:1,commit=5,{discard}");
    mount_btrfs(&device.device, mount, &options).map_err(|e| match e {
        EngineError::Io { source, .. } => EngineError::io("mount the image", image)(source),
        other => other,
    })?;
    let root = File::open(mount).map_err(EngineError::io("open", mount))?;
    let grown = ioctl::resize(&root, "max").map_err(EngineError::io("size the pool in", image));
    if grown.is_err() {
        drop(root);
        unmount_at(mount)?;
    }
    grown
}

fn mount_btrfs(device: &Path, mount: &Path, options: &str) -> Result<()> {
    let data = CString::new(options).map_err(|e| EngineError::io("mount", device)(e.into()))?;
    rustix::mount::mount(device, mount, "btrfs", MountFlags::NOATIME, data.as_c_str())
        .map_err(|e| EngineError::io("mount", device)(e.into()))
}

fn unmount_at(mount: &Path) -> Result<()> {
    match rustix::mount::unmount(mount, UnmountFlags::NOFOLLOW) {
        // EINVAL: it is no mount point any more
        Ok(()) | Err(rustix::io::Errno::INVAL) => {}
        Err(rustix::io::Errno::BUSY) => {
            return Err(EngineError::Busy {
                path: mount.to_owned(),
                mounts: Vec::new(),
            });
        }
        Err(e) => return Err(EngineError::io("unmount", mount)(e.into())),
    }
    match std::fs::remove_dir(mount) {
        Ok(()) => Ok(()),
        Err(e)
            if matches!(
                e.raw_os_error(),
                Some(libc::ENOENT | libc::ENOTEMPTY | libc::EBUSY)
            ) =>
        {
            Ok(())
        }
        Err(e) => Err(EngineError::io("remove", mount)(e)),
    }
}

/// Makes a folder that only its owner may enter, and checks that it is one.
fn prepare_folder(path: &Path) -> Result<()> {
    use std::os::unix::fs::DirBuilderExt;
    let made = std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(path);
    made.map_err(EngineError::io("make", path))?;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let fd =
        rustix::fs::open(path, flags, Mode::empty()).map_err(|e| EngineError::io("open", path)(e.into()))?;
    check_owner(&fd, path)
}

/// Refuses a folder that another user owns; closes it to others where it is open.
fn check_owner(fd: &OwnedFd, path: &Path) -> Result<()> {
    let stat = rustix::fs::fstat(fd).map_err(|e| EngineError::io("look at", path)(e.into()))?;
    if stat.st_uid != rustix::process::geteuid().as_raw() {
        return Err(EngineError::Refused {
            why: format!("{} belongs to another user", text::shown_path(path)),
            path: Some(path.to_owned()),
            hint: Some("run it as root, or choose another state dir: --state-dir DIR".into()),
        });
    }
    if stat.st_mode & 0o077 != 0 {
        rustix::fs::fchmod(fd, Mode::RWXU).map_err(|e| EngineError::io("close to others", path)(e.into()))?;
    }
    Ok(())
}

/// Makes a directory below an open one unless it is there.
pub(crate) fn make_folder(dir: impl AsFd, name: &str, path: &Path) -> Result<()> {
    match rustix::fs::mkdirat(dir, name, Mode::RWXU) {
        // a read-only pool can still be read: what is missing is found out where it is needed
        Ok(()) | Err(rustix::io::Errno::EXIST | rustix::io::Errno::ROFS) => Ok(()),
        Err(e) => Err(EngineError::io("make", path.join(name))(e.into())),
    }
}

fn preallocate(file: &File, path: &Path, from: u64, to: u64) -> Result<()> {
    rustix::fs::fallocate(file, rustix::fs::FallocateFlags::empty(), from, to - from)
        .map_err(|e| EngineError::io("take the space for", path)(e.into()))
}

/// Reads the marker of the layout; writes it into a new pool, or anew where a crash left it empty.
fn check_format(base: &OwnedFd, path: &Path) -> Result<()> {
    use std::io::{Read, Write};
    let file = path.join(FORMAT_FILE);
    let mut text = String::new();
    match subvolume::open_beneath(base, Path::new(FORMAT_FILE), OFlags::RDONLY | OFlags::NONBLOCK) {
        Ok(fd) => {
            let mut bytes = Vec::new();
            File::from(fd)
                .take(256)
                .read_to_end(&mut bytes)
                .map_err(EngineError::io("read", &file))?;
            text.push_str(String::from_utf8_lossy(&bytes).trim_matches(['\0', '\n', ' ']));
        }
        Err(e) if e.raw_os_error() == Some(libc::ENOENT) => {}
        Err(e) => return Err(EngineError::io("read", &file)(e)),
    }
    if !text.is_empty() {
        return known_format(&text, &file);
    }
    let temp = format!("{FORMAT_FILE}.{}", super::random_id("new"));
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    let made = match rustix::fs::openat(base, temp.as_str(), flags, Mode::RUSR | Mode::WUSR) {
        Ok(fd) => File::from(fd),
        Err(rustix::io::Errno::ROFS) => return Ok(()),
        Err(e) => return Err(EngineError::io("write", &file)(e.into())),
    };
    let mut made = made;
    made.write_all(format!("{FORMAT_WORD} {FORMAT}\n").as_bytes())
        .and_then(|()| made.sync_all())
        .map_err(EngineError::io("write", &file))?;
    rustix::fs::renameat(base, temp.as_str(), base, FORMAT_FILE)
        .map_err(|e| EngineError::io("write", &file)(e.into()))
}

fn known_format(text: &str, file: &Path) -> Result<()> {
    let version = text
        .strip_prefix(FORMAT_WORD)
        .and_then(|v| v.trim().parse::<u32>().ok());
    match version {
        Some(v) if v <= FORMAT => Ok(()),
        Some(v) => Err(EngineError::Refused {
            why: format!("the pool has format {v}, this respool knows formats up to {FORMAT}"),
            path: Some(file.to_owned()),
            hint: Some("use a newer respool".into()),
        }),
        None => Err(EngineError::Damaged {
            what: "the format marker of the pool cannot be read".into(),
            path: file.to_owned(),
        }),
    }
}
