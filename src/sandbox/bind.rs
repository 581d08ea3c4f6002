//! The live tree over the workspace: mounting it there, and the emptied folder beneath that never takes a
//! write.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;

use rustix::fs::{AtFlags, CWD, Mode, OFlags, ResolveFlags, StatVfsMountFlags, XattrFlags};
use rustix::mount::{MoveMountFlags, OpenTreeFlags, UnmountFlags};

use crate::engine::catalog::Stub;
use crate::engine::flags::{IFlags, flags, set_flags};
use crate::engine::ioctl::{Forbidden, forbid};

/// The attribute on the emptied folder: the id of the sandbox that belongs over it.
pub const STUB_XATTR: &str = "trusted.respool.stub";

/// Opens a folder without following a link in its last component.
pub fn open_folder(path: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(rustix::fs::open(path, flags, Mode::empty())?)
}

/// As [`open_folder`], where no part of the path may be a link: of a path that was resolved before, and in
/// which somebody may have put a link since, to have something else changed.
pub fn open_exact(path: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let resolve = ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    loop {
        match rustix::fs::openat2(CWD, path, flags, Mode::empty(), resolve) {
            // a rename anywhere raced with the look-up (openat2(2))
            Err(rustix::io::Errno::AGAIN) => {}
            other => return other.map_err(Into::into),
        }
    }
}

/// Shows the tree `live` (a subvolume root) at the folder `over`. Both are open: no path is trusted again. What is
/// forbidden where the folder is (programs with rights of their owner's, devices, any programs) stays forbidden: the
/// content may come from a disk of an ordinary user's, who could put there what would make him root.
pub fn mount_over(live: impl AsFd, over: impl AsFd) -> io::Result<()> {
    let flags =
        OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::AT_EMPTY_PATH | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    let tree = rustix::mount::open_tree(live, c"", flags)?;
    let there = rustix::fs::fstatvfs(&over)?.f_flag;
    let forbidden = Forbidden {
        setuid: there.contains(StatVfsMountFlags::NOSUID),
        devices: there.contains(StatVfsMountFlags::NODEV),
        programs: there.contains(StatVfsMountFlags::NOEXEC),
    };
    forbid(&tree, forbidden)?;
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    Ok(rustix::mount::move_mount(tree, c"", over, c"", flags)?)
}

/// Takes the mount at `path` away. With `lazy`, programs that stand in it keep the tree that they have. No part of the
/// path may be a link: somebody may have put one there to have something else unmounted.
pub fn unmount(path: &Path, lazy: bool) -> io::Result<()> {
    let mut flags = UnmountFlags::NOFOLLOW;
    if lazy {
        flags |= UnmountFlags::DETACH;
    }
    let (Some(above), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    let parent = open_exact(above)?;
    let point = Path::new("/proc/self/fd").join(parent.as_raw_fd().to_string());
    Ok(rustix::mount::unmount(point.join(name), flags)?)
}

/// Marks an emptied folder as the stub of a sandbox and makes it immutable: a program that still stands in
/// it gets an error instead of writing where nobody looks. File systems without the flag go without.
pub fn seal(folder: impl AsFd, sandbox: &str) -> io::Result<Stub> {
    let fd = folder.as_fd();
    match rustix::fs::fsetxattr(fd, STUB_XATTR, sandbox.as_bytes(), XattrFlags::empty()) {
        Err(e) if e != rustix::io::Errno::NOTSUP && e != rustix::io::Errno::PERM => return Err(e.into()),
        _ => {}
    }
    if let Ok(now) = flags(fd) {
        match set_flags(fd, now | IFlags::IMMUTABLE) {
            Err(e) if !matches!(e.raw_os_error(), Some(nix::libc::EOPNOTSUPP | nix::libc::ENOTTY)) => {
                return Err(e);
            }
            _ => {}
        }
    }
    let stat = rustix::fs::fstat(fd)?;
    Ok(Stub {
        dev: stat.st_dev,
        ino: stat.st_ino,
    })
}

/// Undoes [`seal`].
pub fn unseal(folder: impl AsFd) -> io::Result<()> {
    let fd = folder.as_fd();
    if let Ok(now) = flags(fd)
        && now.contains(IFlags::IMMUTABLE)
    {
        set_flags(fd, now - IFlags::IMMUTABLE)?;
    }
    match rustix::fs::fremovexattr(fd, STUB_XATTR) {
        Err(e)
            if e != rustix::io::Errno::NODATA
                && e != rustix::io::Errno::NOTSUP
                && e != rustix::io::Errno::PERM =>
        {
            Err(e.into())
        }
        _ => Ok(()),
    }
}

/// True if the open folder is the emptied one of this sandbox: empty, and marked with its id, or, where marks
/// cannot be made, the same inode. (A device number may be another after a restart of the machine.)
pub fn is_stub(folder: impl AsFd, sandbox: &str, stub: Option<&Stub>) -> io::Result<bool> {
    let fd = folder.as_fd();
    let mut mark = [0u8; 64];
    let marked = match rustix::fs::fgetxattr(fd, STUB_XATTR, &mut mark[..]) {
        Ok(n) => mark[..n] == *sandbox.as_bytes(),
        Err(_) => {
            let stat = rustix::fs::fstat(fd)?;
            stub.is_some_and(|s| (stat.st_dev, stat.st_ino) == (s.dev, s.ino))
        }
    };
    if !marked {
        return Ok(false);
    }
    let again = rustix::fs::openat(
        fd,
        c".",
        OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC,
        Mode::empty(),
    )?;
    let mut dir = rustix::fs::Dir::read_from(&again)?;
    let empty = dir.all(|e| e.is_ok_and(|e| matches!(e.file_name().to_bytes(), b"." | b"..")));
    Ok(empty)
}

/// The mode, owner and device of an open folder.
pub fn stat(folder: impl AsFd) -> io::Result<rustix::fs::Stat> {
    Ok(rustix::fs::statat(folder, c"", AtFlags::EMPTY_PATH)?)
}
