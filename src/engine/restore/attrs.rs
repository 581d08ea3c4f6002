//! Writing the attributes of an entry: owner, extended attributes, mode, times, inode flags, in that order,
//! because a later one would be lost by an earlier one. All is done to the inode of a handle, never to a name: whoever
//! owns the folder may put another inode there at any moment.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{
    AtFlags, Gid, IFlags, Mode, OFlags, Timespec, Timestamps, Uid, XattrFlags, chmod, chownat, fchmod, fstat,
    ioctl_getflags, ioctl_setflags, removexattr, setxattr, utimensat,
};
use rustix::io::Errno;

use super::plan::OPEN;
use crate::engine::FileType;
use crate::engine::changes::attrs::{FLAGS, Xattrs, xattrs_of};
use crate::engine::changes::node::{Node, stat_at};
use crate::engine::changes::open::{handle_path, reopen};

/// FS_NOCOMP_FL (include/uapi/linux/fs.h): Btrfs sets it itself on files that do not get smaller.
const NOT_COMPRESSED: IFlags = IFlags::from_bits_retain(0x400);

/// What an entry shall have.
pub(super) struct Attrs<'a> {
    /// Owner, mode and times.
    pub node: &'a Node,
    pub xattrs: Xattrs,
    pub flags: IFlags,
}

/// Writes everything but the inode flags that freeze (see [`set_flags_of`]) to the inode of a handle, which may be one
/// that only names it (`O_PATH`).
pub(super) fn write(entry: impl AsFd, want: &Attrs<'_>) -> io::Result<()> {
    let (entry, node) = (entry.as_fd(), want.node);
    let now = stat_at(entry, b"")?;
    if now.stx_mode & 0o170_000 != node.format() {
        // what is right for a folder may be fatal for a program
        return Err(io::Error::other("something else was put in its place"));
    }
    let mut mode_stays = true;
    if (now.stx_uid, now.stx_gid) != (node.uid, node.gid) {
        let (uid, gid) = (Uid::from_raw(node.uid), Gid::from_raw(node.gid));
        chownat(entry, "", Some(uid), Some(gid), AtFlags::EMPTY_PATH)?;
        mode_stays = false;
    }
    mode_stays &= match write_xattrs(entry, &want.xattrs) {
        Err(e) if e.kind() == io::ErrorKind::PermissionDenied && node.is_file() => {
            open_up(entry)?;
            write_xattrs(entry, &want.xattrs)?;
            false
        }
        other => other?,
    };
    if node.file_type != FileType::Link {
        let now = if mode_stays { now } else { stat_at(entry, b"")? };
        if u32::from(now.stx_mode) & 0o7777 != node.mode {
            chmod(handle_path(entry), Mode::from_raw_mode(node.mode))?;
        }
    }
    if (now.stx_mtime.tv_sec, now.stx_mtime.tv_nsec) == (node.mtime.s, node.mtime.ns) {
        return Ok(()); // setting it again would change the change time
    }
    write_times(entry, node)
}

/// Sets access and modification time of the inode of a handle.
pub(super) fn write_times(entry: impl AsFd, node: &Node) -> io::Result<()> {
    let spec = |t: crate::engine::changes::node::Stamp| Timespec {
        tv_sec: t.s,
        tv_nsec: t.ns.into(),
    };
    let times = Timestamps {
        last_access: spec(node.atime),
        last_modification: spec(node.mtime),
    };
    Ok(utimensat(entry, "", &times, AtFlags::EMPTY_PATH)?)
}

/// Removes the extended attributes that are not wanted and sets those that differ. True if all were as wanted.
fn write_xattrs(entry: BorrowedFd<'_>, want: &Xattrs) -> io::Result<bool> {
    let path = handle_path(entry);
    let have = xattrs_of(entry)?;
    for key in have.keys().filter(|k| !want.contains_key(*k)) {
        removexattr(&path[..], &key[..])?;
    }
    for (key, value) in want {
        if have.get(key) == Some(value) {
            continue;
        }
        match setxattr(&path[..], &key[..], value, XattrFlags::empty()) {
            // a property of Btrfs (compression) that another file system does not have
            Err(Errno::OPNOTSUPP) if key.starts_with(b"btrfs.") => {}
            other => other?,
        }
    }
    Ok(have == *want)
}

/// Makes the inode flags of an open regular file or directory equal to `want`. Comes last: a frozen file takes no other
/// change.
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

/// Takes away the flags that would refuse a change, and, of a folder and without root, the mode that would. The handle
/// holds a regular file or a directory.
pub(super) fn thaw(entry: impl AsFd) -> io::Result<Thawed> {
    let stat = fstat(&entry)?;
    let fd = usable(&entry, OFlags::RDONLY)?;
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

/// Opens for use the regular file or directory that a handle holds. If its mode refuses that to its owner, without
/// root, the mode is changed; it is set again later.
pub(super) fn usable(entry: impl AsFd, flags: OFlags) -> io::Result<OwnedFd> {
    match reopen(&entry, flags) {
        Err(e) if e.kind() == io::ErrorKind::PermissionDenied => {
            open_up(&entry)?;
            reopen(&entry, flags)
        }
        other => other,
    }
}

/// Lets the owner, where it is not root, write to a file or folder whose mode refuses it.
fn open_up(entry: impl AsFd) -> io::Result<()> {
    let mode = fstat(&entry)?.st_mode;
    let folder = rustix::fs::FileType::from_raw_mode(mode).is_dir();
    let more = if folder { OPEN } else { 0o600 };
    Ok(chmod(
        handle_path(entry),
        Mode::from_raw_mode(mode & 0o7777 | more),
    )?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::changes::open::open_at;

    #[test]
    fn a_handle_of_a_link_reaches_the_link_and_nothing_else() {
        assert!(
            rustix::process::geteuid().is_root(),
            "only root can give links attributes"
        );
        let dir = tempfile::tempdir_in("/var/tmp").expect("tempdir");
        let at = std::fs::File::open(dir.path()).expect("folder");
        std::fs::write(dir.path().join("file"), "").expect("file");
        std::os::unix::fs::symlink("file", dir.path().join("link")).expect("link");
        let (file, link) = (b"file".as_slice(), b"link".as_slice());
        let before = stat_at(at.as_fd(), file).expect("stat");
        let handle = open_at(at.as_fd(), link, OFlags::PATH).expect("handle");
        std::fs::rename(dir.path().join("link"), dir.path().join("moved")).expect("rename");
        std::fs::rename(dir.path().join("file"), dir.path().join("link")).expect("rename");
        let st = stat_at(handle.as_fd(), b"").expect("stat");
        let mut node = Node::new(link, 0, 0, &st, None);
        (node.uid, node.gid) = (12, 34);
        node.mtime.s = 77;
        let want = Attrs {
            node: &node,
            xattrs: Xattrs::from([(b"trusted.mark".to_vec(), b"on".to_vec())]),
            flags: IFlags::empty(),
        };
        write(&handle, &want).expect("written");
        let moved = stat_at(at.as_fd(), b"moved").expect("stat");
        assert_eq!(
            (moved.stx_uid, moved.stx_gid, moved.stx_mtime.tv_sec),
            (12, 34, 77)
        );
        assert_eq!(xattrs_of(&handle).expect("attributes"), want.xattrs);
        let after = stat_at(at.as_fd(), link).expect("stat");
        assert_eq!(
            (after.stx_ino, after.stx_uid, after.stx_mtime.tv_sec),
            (before.stx_ino, before.stx_uid, before.stx_mtime.tv_sec)
        );
        assert_eq!(
            crate::engine::changes::attrs::xattrs(at.as_fd(), link).expect("none"),
            Xattrs::new()
        );
    }
}
