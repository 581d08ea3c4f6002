//! Reading extended attributes, inode flags and link targets of an entry.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use rustix::fs::{IFlags, OFlags, getxattr, ioctl_getflags, lgetxattr, listxattr, llistxattr, readlinkat};
use rustix::io::Errno;

use super::open::{handle_path, open_at};
use crate::engine::FileType;

/// The inode flags that are compared and restored: immutable, append-only, no dump, no copy-on-write
/// (`chattr` i, a, d, C).
pub(in crate::engine) const FLAGS: IFlags = IFlags::IMMUTABLE
    .union(IFlags::APPEND)
    .union(IFlags::NODUMP)
    .union(IFlags::NOCOW);

/// Extended attributes by name.
pub(in crate::engine) type Xattrs = BTreeMap<Vec<u8>, Vec<u8>>;

/// A path that names the entry for calls that take no directory descriptor. The last name is not followed
/// by the `l...` calls. To read only: what is at the name may be another inode at each call.
fn proc_path(dir: BorrowedFd<'_>, name: &[u8]) -> Vec<u8> {
    let mut path = format!("/proc/self/fd/{}/", dir.as_raw_fd()).into_bytes();
    path.extend_from_slice(name);
    path
}

/// Calls with growing buffers until the answer fits.
fn grown(mut call: impl FnMut(&mut [u8]) -> rustix::io::Result<usize>) -> rustix::io::Result<Vec<u8>> {
    let mut size = 512;
    loop {
        let mut buffer = vec![0; size];
        match call(&mut buffer) {
            Ok(n) => {
                buffer.truncate(n);
                return Ok(buffer);
            }
            Err(Errno::RANGE) if size < 1 << 20 => size *= 8,
            Err(e) => return Err(e),
        }
    }
}

/// All extended attributes of an entry, ACLs and capabilities included.
pub(in crate::engine) fn xattrs(dir: BorrowedFd<'_>, name: &[u8]) -> io::Result<Xattrs> {
    let path = proc_path(dir, name);
    all(grown(|b| llistxattr(&path[..], b)), |key| {
        grown(|b| lgetxattr(&path[..], key, b))
    })
}

/// As [`xattrs`], of the very inode of a handle, that of a link too.
pub(in crate::engine) fn xattrs_of(handle: impl AsFd) -> io::Result<Xattrs> {
    let path = handle_path(handle);
    all(grown(|b| listxattr(&path[..], b)), |key| {
        grown(|b| getxattr(&path[..], key, b))
    })
}

fn all(
    list: rustix::io::Result<Vec<u8>>,
    value: impl Fn(&[u8]) -> rustix::io::Result<Vec<u8>>,
) -> io::Result<Xattrs> {
    let list = match list {
        Ok(list) => list,
        Err(Errno::OPNOTSUPP) => return Ok(Xattrs::new()),
        Err(e) => return Err(e.into()),
    };
    let mut all = Xattrs::new();
    for key in list.split(|b| *b == 0).filter(|k| !k.is_empty()) {
        all.insert(key.to_vec(), value(key)?);
    }
    Ok(all)
}

/// The inode flags of a regular file or directory; none for other types, which cannot have any.
pub(in crate::engine) fn flags(dir: BorrowedFd<'_>, name: &[u8], file_type: FileType) -> io::Result<IFlags> {
    if !matches!(file_type, FileType::File | FileType::Dir) {
        return Ok(IFlags::empty());
    }
    match ioctl_getflags(open_at(dir, name, OFlags::RDONLY)?) {
        Ok(flags) => Ok(flags & FLAGS),
        // a file system without inode flags
        Err(Errno::NOTTY | Errno::OPNOTSUPP) => Ok(IFlags::empty()),
        Err(e) => Err(e.into()),
    }
}

/// The target of a link.
pub(in crate::engine) fn target(dir: BorrowedFd<'_>, name: &[u8]) -> io::Result<Vec<u8>> {
    Ok(readlinkat(dir, name, Vec::new())?.into_bytes())
}
