//! Where a pool is mounted, and the calls that mount and unmount it.

use std::ffi::CString;
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use nix::libc;
use rustix::fs::{Mode, OFlags};
use rustix::mount::{MountFlags, UnmountFlags};

use super::super::attach::ImageLock;
use super::super::{EngineError, Result, ioctl, mounts, space, subvolume};
use crate::text;

/// True if the open directory is the top level of this file system.
pub(super) fn is_top_level(root: impl AsFd, fsid: &[u8; 16]) -> std::io::Result<bool> {
    Ok(subvolume::root_info(root.as_fd())?.is_some_and(|i| i.tree_id == 5) && ioctl::fs_id(root)? == *fsid)
}

/// True if this file system is mounted at this place.
pub(super) fn is_mounted(mount: &Path, fsid: &[u8; 16]) -> Result<bool> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    match rustix::fs::open(mount, flags, Mode::empty()) {
        Ok(fd) => is_top_level(fd, fsid).map_err(EngineError::io("look at", mount)),
        Err(rustix::io::Errno::NOENT) => Ok(false),
        Err(e) => Err(EngineError::io("open", mount)(e.into())),
    }
}

/// The device that is mounted at this place.
pub(super) fn mount_source(mount: &Path) -> Result<Option<PathBuf>> {
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

pub(super) fn mount_image(lock: &ImageLock, image: &Path, mount: &Path) -> Result<()> {
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

pub(super) fn mount_btrfs(device: &Path, mount: &Path, options: &str) -> Result<()> {
    let data = CString::new(options).map_err(|e| EngineError::io("mount", device)(e.into()))?;
    rustix::mount::mount(device, mount, "btrfs", MountFlags::NOATIME, data.as_c_str())
        .map_err(|e| EngineError::io("mount", device)(e.into()))
}

pub(super) fn unmount_at(mount: &Path) -> Result<()> {
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
pub(super) fn prepare_folder(path: &Path) -> Result<()> {
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
pub(super) fn check_owner(fd: &OwnedFd, path: &Path) -> Result<()> {
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

pub(super) fn preallocate(file: &File, path: &Path, from: u64, to: u64) -> Result<()> {
    rustix::fs::fallocate(file, rustix::fs::FallocateFlags::empty(), from, to - from)
        .map_err(|e| EngineError::io("take the space for", path)(e.into()))
}
