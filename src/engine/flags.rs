//! Inode flags (chattr): immutable, append-only and the like. ENOTTY or EOPNOTSUPP where the file system has
//! none.

use std::io;
use std::os::fd::AsFd;

pub use rustix::fs::IFlags;

/// The flags of an open file or folder.
pub fn flags(fd: impl AsFd) -> io::Result<IFlags> {
    Ok(rustix::fs::ioctl_getflags(fd)?)
}

/// Sets the flags of an open file or folder.
pub fn set_flags(fd: impl AsFd, flags: IFlags) -> io::Result<()> {
    Ok(rustix::fs::ioctl_setflags(fd, flags)?)
}
