//! Opening beneath a root: no link is followed, no mount crossed, any depth.

use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags, ResolveFlags, openat2};

use super::node::Walked;
use crate::engine::{EngineError, Result};

const BENEATH: ResolveFlags = ResolveFlags::BENEATH
    .union(ResolveFlags::NO_SYMLINKS)
    .union(ResolveFlags::NO_MAGICLINKS)
    .union(ResolveFlags::NO_XDEV);
const DIR: OFlags = OFlags::RDONLY
    .union(OFlags::DIRECTORY)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::NONBLOCK)
    .union(OFlags::CLOEXEC);
/// Longest piece of a path given to the kernel at once (its limit is 4096 with the final zero).
const PIECE: usize = 4000;

/// The path of a row; the root's is `.`.
pub(in crate::engine) fn to_path(bytes: &[u8]) -> PathBuf {
    PathBuf::from(OsStr::from_bytes(if bytes.is_empty() { b"." } else { bytes }))
}

/// Opens an entry of `dir` in this way, never following it and never leaving the mount.
pub(in crate::engine) fn open_at(dir: BorrowedFd<'_>, name: &[u8], flags: OFlags) -> io::Result<OwnedFd> {
    let mut flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    if !flags.contains(OFlags::PATH) {
        flags |= OFlags::NONBLOCK;
    }
    loop {
        match openat2(dir, name, flags, Mode::empty(), BENEATH) {
            Err(rustix::io::Errno::INTR | rustix::io::Errno::AGAIN) => {}
            other => return Ok(other?),
        }
    }
}

/// A path of this process's that leads to the very inode of a handle, links too, for calls that follow links
/// (proc(5), `/proc/self/fd`).
pub(in crate::engine) fn handle_path(handle: impl AsFd) -> String {
    format!("/proc/self/fd/{}", handle.as_fd().as_raw_fd())
}

/// Opens for use what a handle (`O_PATH`) holds: that inode, whatever is at its name by now. The caller knows that it is
/// a regular file or a directory.
pub(in crate::engine) fn reopen(handle: impl AsFd, flags: OFlags) -> io::Result<OwnedFd> {
    let flags = flags | OFlags::NONBLOCK | OFlags::CLOEXEC;
    Ok(rustix::fs::open(handle_path(handle), flags, Mode::empty())?)
}

/// Opens a directory, an entry of `dir`.
pub(in crate::engine) fn open_dir_at(dir: BorrowedFd<'_>, name: &[u8]) -> io::Result<OwnedFd> {
    open_at(dir, name, DIR)
}

/// Opens a regular file for reading. The caller knows from `statx` that it is one; that it still is one is
/// checked here.
pub(in crate::engine) fn open_file_at(dir: BorrowedFd<'_>, name: &[u8], write: bool) -> io::Result<OwnedFd> {
    let fd = open_at(dir, name, if write { OFlags::RDWR } else { OFlags::RDONLY })?;
    let mode = rustix::fs::fstat(&fd)?.st_mode;
    if rustix::fs::FileType::from_raw_mode(mode) != rustix::fs::FileType::RegularFile {
        return Err(io::Error::other("it is no longer a regular file"));
    }
    Ok(fd)
}

/// Opens the directory with these names below `root`, in pieces that the kernel takes.
pub(in crate::engine) fn open_chain(root: BorrowedFd<'_>, names: &[&[u8]]) -> io::Result<OwnedFd> {
    let mut at: Option<OwnedFd> = None;
    let mut piece: Vec<u8> = Vec::new();
    let from = |at: &Option<OwnedFd>, piece: &[u8]| match at {
        Some(fd) => open_dir_at(fd.as_fd(), piece),
        None => open_dir_at(root, piece),
    };
    for name in names {
        if piece.len() + 1 + name.len() > PIECE {
            at = Some(from(&at, &piece)?);
            piece.clear();
        }
        if !piece.is_empty() {
            piece.push(b'/');
        }
        piece.extend_from_slice(name);
    }
    if piece.is_empty() {
        piece.push(b'.');
    }
    from(&at, &piece)
}

/// Opens directories of a walked tree beneath a root (that of the tree itself, or of another one that has
/// the same directories); the last one stays open.
pub(in crate::engine) struct Dirs<'a> {
    root: BorrowedFd<'a>,
    tree: &'a Walked,
    last: Option<(u32, OwnedFd)>,
}

impl<'a> Dirs<'a> {
    pub fn new(root: BorrowedFd<'a>, tree: &'a Walked) -> Self {
        Self {
            root,
            tree,
            last: None,
        }
    }
    /// The directory with this index.
    pub fn dir(&mut self, i: u32) -> Result<BorrowedFd<'_>> {
        if i == 0 {
            return Ok(self.root);
        }
        if self.last.as_ref().is_none_or(|(at, _)| *at != i) {
            self.last = None;
            let fd = open_chain(self.root, &self.tree.chain(i))
                .map_err(EngineError::io("open", self.tree.path(i)))?;
            self.last = Some((i, fd));
        }
        // just set, or already there
        Ok(self.last.as_ref().map_or(self.root, |(_, fd)| fd.as_fd()))
    }
    /// The directory that `i` is in, and its name there; for the root itself `.`.
    pub fn place(&mut self, i: u32) -> Result<(BorrowedFd<'_>, &'a [u8])> {
        let node = self.tree.node(i);
        let name: &'a [u8] = if i == 0 { b"." } else { &node.name };
        Ok((self.dir(node.parent)?, name))
    }
}

/// The components of a path relative to a root. Refused: absolute ones and `..`.
pub(in crate::engine) fn components(path: &Path) -> Result<Vec<Box<[u8]>>> {
    let refused = || EngineError::Refused {
        why: format!("{} is not a path below the root", crate::text::shown_path(path)),
        path: Some(path.to_owned()),
        hint: None,
    };
    let bytes = path.as_os_str().as_bytes();
    if bytes.starts_with(b"/") || bytes.contains(&0) {
        return Err(refused());
    }
    let mut names: Vec<Box<[u8]>> = Vec::new();
    for name in bytes.split(|b| *b == b'/') {
        match name {
            b"" | b"." => {}
            b".." => return Err(refused()),
            name => names.push(name.into()),
        }
    }
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn components_stay_below_the_root() {
        let names = |p: &str| components(Path::new(p)).map(|n| n.join(&b'/'));
        assert_eq!(names("./a//b/.").expect("valid"), b"a/b");
        assert_eq!(names(".").expect("the root"), b"");
        for bad in ["/a", "..", "a/../b", "a/.."] {
            assert!(names(bad).is_err(), "{bad}");
        }
    }
}
