//! Writing the attributes of an entry: owner, extended attributes, mode, times, inode flags, in that order,
//! because a later one would be lost by an earlier one.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::fs::{
    AtFlags, Gid, IFlags, Mode, OFlags, Timespec, Timestamps, Uid, XattrFlags, chmod, chownat, fchmod, fstat,
    ioctl_getflags, ioctl_setflags, lremovexattr, lsetxattr, utimensat,
};
use rustix::io::Errno;

use super::plan::OPEN;
use crate::engine::FileType;
use crate::engine::changes::attrs::{FLAGS, Xattrs, proc_path, xattrs};
use crate::engine::changes::node::{Node, stat_at};
use crate::engine::changes::open::open_at;

/// FS_NOCOMP_FL (include/uapi/linux/fs.h): Btrfs sets it itself on files that do not get smaller.
const NOT_COMPRESSED: IFlags = IFlags::from_bits_retain(0x400);

/// What an entry shall have.
pub(super) struct Attrs<'a> {
    /// Owner, mode and times.
    pub node: &'a Node,
    pub xattrs: Xattrs,
    pub flags: IFlags,
}

/// Opens an entry of any type only to name it; never starts a device or waits for a pipe.
fn handle(dir: BorrowedFd<'_>, name: &[u8]) -> io::Result<OwnedFd> {
    open_at(dir, name, OFlags::PATH)
}

/// Writes everything but the inode flags that freeze (see [`set_flags`]).
pub(super) fn write(dir: BorrowedFd<'_>, name: &[u8], want: &Attrs<'_>) -> io::Result<()> {
    let entry = handle(dir, name)?;
    let now = stat_at(entry.as_fd(), b"")?;
    let node = want.node;
    let is_dir = now.stx_mode & 0o170_000 == 0o040_000;
    if is_dir != node.is_dir() {
        // what is right for a folder may be fatal for a program
        return Err(io::Error::other("something else was put in its place"));
    }
    if (now.stx_uid, now.stx_gid) != (node.uid, node.gid) {
        let (uid, gid) = (Uid::from_raw(node.uid), Gid::from_raw(node.gid));
        chownat(&entry, "", Some(uid), Some(gid), AtFlags::EMPTY_PATH)?;
    }
    match write_xattrs(dir, name, &want.xattrs) {
        Err(e) if e.kind() == io::ErrorKind::PermissionDenied && node.is_file() => {
            open_up(&entry)?;
            write_xattrs(dir, name, &want.xattrs)?;
        }
        other => other?,
    }
    if node.file_type != FileType::Link {
        let now = stat_at(entry.as_fd(), b"")?;
        if u32::from(now.stx_mode) & 0o7777 != node.mode {
            let path = format!("/proc/self/fd/{}", entry.as_raw_fd());
            chmod(path, Mode::from_raw_mode(node.mode))?;
        }
    }
    let mtime = stat_at(entry.as_fd(), b"")?.stx_mtime;
    if (mtime.tv_sec, mtime.tv_nsec) == (node.mtime.s, node.mtime.ns) {
        return Ok(()); // setting it again would change the change time
    }
    write_times(dir, name, node)
}

/// Sets access and modification time.
pub(super) fn write_times(dir: BorrowedFd<'_>, name: &[u8], node: &Node) -> io::Result<()> {
    let spec = |t: crate::engine::changes::node::Stamp| Timespec {
        tv_sec: t.s,
        tv_nsec: t.ns.into(),
    };
    let times = Timestamps {
        last_access: spec(node.atime),
        last_modification: spec(node.mtime),
    };
    Ok(utimensat(dir, name, &times, AtFlags::SYMLINK_NOFOLLOW)?)
}

/// Removes the extended attributes that are not wanted and sets those that differ.
fn write_xattrs(dir: BorrowedFd<'_>, name: &[u8], want: &Xattrs) -> io::Result<()> {
    let path = proc_path(dir, name);
    let have = xattrs(dir, name)?;
    for key in have.keys().filter(|k| !want.contains_key(*k)) {
        lremovexattr(&path[..], &key[..])?;
    }
    for (key, value) in want {
        if have.get(key) == Some(value) {
            continue;
        }
        match lsetxattr(&path[..], &key[..], value, XattrFlags::empty()) {
            // a property of Btrfs (compression) that another file system does not have
            Err(Errno::OPNOTSUPP) if key.starts_with(b"btrfs.") => {}
            other => other?,
        }
    }
    Ok(())
}

/// Makes the inode flags of a regular file or directory equal to `want`. Comes last: a frozen file takes no
/// other change.
pub(super) fn set_flags(
    dir: BorrowedFd<'_>,
    name: &[u8],
    file_type: FileType,
    want: IFlags,
) -> io::Result<()> {
    if !matches!(file_type, FileType::File | FileType::Dir) {
        return Ok(());
    }
    set_flags_of(open_at(dir, name, OFlags::RDONLY)?, want)
}

/// As [`set_flags`], of an open file.
pub(super) fn set_flags_of(fd: impl AsFd, want: IFlags) -> io::Result<()> {
    let now = match ioctl_getflags(&fd) {
        Ok(now) => now,
        Err(Errno::NOTTY | Errno::OPNOTSUPP) if want.is_empty() => return Ok(()),
        Err(e) => return Err(e.into()),
    };
    if now & FLAGS == want {
        return Ok(());
    }
    let mut others = now - FLAGS;
    let compressed = IFlags::COMPRESSED | NOT_COMPRESSED;
    if want.contains(IFlags::NOCOW) && others.intersects(compressed) {
        // Btrfs refuses the one while the other is set
        others -= compressed;
        ioctl_setflags(&fd, others)?;
    }
    match ioctl_setflags(&fd, others | want) {
        // only Btrfs has files without copy-on-write; elsewhere every file is like that
        Err(Errno::OPNOTSUPP) if want.contains(IFlags::NOCOW) => {
            Ok(ioctl_setflags(&fd, others | (want - IFlags::NOCOW))?)
        }
        other => Ok(other?),
    }
}

/// An entry that was made changeable, and what it had before.
pub(super) struct Thawed {
    fd: OwnedFd,
    flags: IFlags,
    mode: Mode,
}

impl Thawed {
    /// Gives back what it had.
    pub fn refreeze(&self) -> io::Result<()> {
        if Mode::from_raw_mode(fstat(&self.fd)?.st_mode) != self.mode {
            fchmod(&self.fd, self.mode)?;
        }
        set_flags_of(&self.fd, self.flags)
    }
}

/// Takes away the flags that would refuse a change, and, of a folder and without root, the mode that would.
pub(super) fn thaw(dir: BorrowedFd<'_>, name: &[u8]) -> io::Result<Thawed> {
    let fd = open_at(dir, name, OFlags::RDONLY)?;
    let stat = fstat(&fd)?;
    let mode = Mode::from_raw_mode(stat.st_mode);
    let now = match ioctl_getflags(&fd) {
        Ok(now) => now,
        Err(Errno::NOTTY | Errno::OPNOTSUPP) => IFlags::empty(),
        Err(e) => return Err(e.into()),
    };
    let frozen = IFlags::IMMUTABLE | IFlags::APPEND;
    if now.intersects(frozen) {
        ioctl_setflags(&fd, now - frozen)?;
    }
    let open = mode | Mode::from_raw_mode(OPEN);
    let folder = rustix::fs::FileType::from_raw_mode(stat.st_mode).is_dir();
    if folder && open != mode && !rustix::process::geteuid().is_root() {
        fchmod(&fd, open)?;
    }
    Ok(Thawed {
        fd,
        flags: now & FLAGS,
        mode,
    })
}

/// Lets the owner, where it is not root, write to a file whose mode refuses it. The mode is set later.
pub(super) fn open_up(entry: impl AsFd) -> io::Result<()> {
    let mode = fstat(&entry)?.st_mode & 0o7777;
    let path = format!("/proc/self/fd/{}", entry.as_fd().as_raw_fd());
    Ok(chmod(path, Mode::from_raw_mode(mode | 0o600))?)
}
