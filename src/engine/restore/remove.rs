//! Removing a tree for good.

use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;

use rustix::fs::{AtFlags, FileType, IFlags, Mode, OFlags};

use crate::engine::{EngineError, Result};

/// Opens a folder to empty it. Without root its mode may stand in the way: then it is opened up.
fn open(parent: impl AsFd, name: &CStr) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let opened = rustix::fs::openat(parent.as_fd(), name, flags, Mode::empty());
    if rustix::process::geteuid().is_root() {
        return Ok(opened?);
    }
    if let Err(rustix::io::Errno::ACCESS) = opened {
        let handle = rustix::fs::openat(parent.as_fd(), name, flags | OFlags::PATH, Mode::empty())?;
        let path = format!("/proc/self/fd/{}", handle.as_raw_fd());
        rustix::fs::chmod(path, Mode::RWXU)?;
        return Ok(rustix::fs::openat(parent, name, flags, Mode::empty())?);
    }
    let folder = opened?;
    let mode = rustix::fs::fstat(&folder)?.st_mode;
    if mode & 0o700 != 0o700 {
        rustix::fs::fchmod(&folder, Mode::RWXU)?;
    }
    Ok(folder)
}

/// Takes the immutable and append-only flags off a file or folder. Nothing else is ever opened.
fn unlock(parent: impl AsFd, name: &CStr) -> io::Result<()> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let kind =
        FileType::from_raw_mode(rustix::fs::statat(parent.as_fd(), name, AtFlags::SYMLINK_NOFOLLOW)?.st_mode);
    if !matches!(kind, FileType::RegularFile | FileType::Directory) {
        return Ok(());
    }
    let fd = rustix::fs::openat(parent, name, flags, Mode::empty())?;
    let now = rustix::fs::ioctl_getflags(&fd)?;
    Ok(rustix::fs::ioctl_setflags(
        &fd,
        now - IFlags::IMMUTABLE - IFlags::APPEND,
    )?)
}

fn unlink(parent: impl AsFd, name: &CStr, flags: AtFlags) -> io::Result<()> {
    match rustix::fs::unlinkat(parent.as_fd(), name, flags) {
        Err(rustix::io::Errno::PERM) => {
            unlock(parent.as_fd(), name)?;
            Ok(rustix::fs::unlinkat(parent, name, flags)?)
        }
        other => Ok(other?),
    }
}

fn names(folder: &OwnedFd) -> io::Result<Vec<(CString, FileType)>> {
    let mut out = Vec::new();
    for entry in rustix::fs::Dir::read_from(folder)? {
        let entry = entry?;
        if !matches!(entry.file_name().to_bytes(), b"." | b"..") {
            out.push((entry.file_name().to_owned(), entry.file_type()));
        }
    }
    Ok(out)
}

/// Removes everything in an open folder, the folder itself not. No link is followed, no other mount entered
/// (a mount point inside makes it fail).
pub fn empty(folder: &OwnedFd, path: &Path) -> Result<()> {
    clear(folder).map_err(EngineError::io("empty", path))
}

pub(in crate::engine) fn clear(folder: &OwnedFd) -> io::Result<()> {
    for (name, kind) in names(folder)? {
        let dir = match kind {
            FileType::Directory => true,
            FileType::Unknown => {
                let s = rustix::fs::statat(folder, &name, AtFlags::SYMLINK_NOFOLLOW)?;
                FileType::from_raw_mode(s.st_mode) == FileType::Directory
            }
            _ => false,
        };
        let removed = if dir {
            open(folder, &name)
                .and_then(|inner| {
                    if rustix::fs::fstat(&inner)?.st_dev != rustix::fs::fstat(folder)?.st_dev {
                        return Err(io::Error::from_raw_os_error(nix::libc::EBUSY));
                    }
                    clear(&inner)
                })
                .and_then(|()| unlink(folder, &name, AtFlags::REMOVEDIR))
        } else {
            unlink(folder, &name, AtFlags::empty())
        };
        match removed {
            // an immutable folder lets nothing in it go: take its flag off and go on
            Err(e) if e.raw_os_error() == Some(nix::libc::EPERM) => {
                let own = rustix::fs::ioctl_getflags(folder)?;
                rustix::fs::ioctl_setflags(folder, own - IFlags::IMMUTABLE - IFlags::APPEND)?;
                if dir {
                    unlink(folder, &name, AtFlags::REMOVEDIR)?;
                } else {
                    unlink(folder, &name, AtFlags::empty())?;
                }
            }
            other => other?,
        }
    }
    Ok(())
}
