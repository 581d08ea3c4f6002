//! One file and one folder of a state. Nothing but regular files and directories is opened, no link is
//! followed, nothing outside the tree is reached.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use nix::libc;
use rustix::fs::{AtFlags, OFlags};

use super::super::super::changes::open::components;
use super::super::super::subvolume::{open_beneath, open_dir};
use super::super::super::{CheckpointId, Content, EngineError, Entry, FileType, Reader, Result, State};
use super::BtrfsVault;

/// The tree to look into: for "now" the live one itself, as no snapshot is needed to look at one file.
enum Tree {
    State(super::StateRoot),
    Live(OwnedFd),
}

impl AsFd for Tree {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        match self {
            Self::State(s) => s.fd(),
            Self::Live(fd) => fd.as_fd(),
        }
    }
}

/// The file type in `st_mode`; `None` for one that Linux does not have.
pub(super) fn file_type(mode: u32) -> Option<FileType> {
    Some(match mode & libc::S_IFMT {
        libc::S_IFREG => FileType::File,
        libc::S_IFDIR => FileType::Dir,
        libc::S_IFLNK => FileType::Link,
        libc::S_IFIFO => FileType::Fifo,
        libc::S_IFSOCK => FileType::Socket,
        libc::S_IFCHR => FileType::CharDevice,
        libc::S_IFBLK => FileType::BlockDevice,
        _ => return None,
    })
}

/// "There is no such path" for every way in which a path leads nowhere in the tree: missing, through a
/// file, through a link, out of the tree.
pub(in crate::engine::vault) fn lookup(path: &Path) -> impl FnOnce(io::Error) -> EngineError {
    let path = path.to_owned();
    move |e| match e.raw_os_error() {
        Some(
            libc::ENOENT
            | libc::ENOTDIR
            | libc::ELOOP
            | libc::EXDEV
            | libc::EINVAL
            | libc::ENAMETOOLONG
            | libc::ENXIO,
        ) => EngineError::NoPath { path },
        _ => EngineError::io("open", path)(e),
    }
}

impl BtrfsVault {
    fn tree(&self, state: &State) -> Result<Tree> {
        match state {
            State::Now => self.part_fd().map(Tree::Live),
            State::Checkpoint(_) => self.open_state(state).map(Tree::State),
        }
    }

    /// The content of one path, at most `limit` bytes of a regular file.
    pub fn read(&self, state: &State, path: &Path, limit: u64) -> Result<Content> {
        read_in(self.tree(state)?.as_fd(), path, limit)
    }

    /// The entries of one folder, sorted by name.
    pub fn entries(&self, state: &State, path: &Path) -> Result<Vec<Entry>> {
        entries_in(self.tree(state)?.as_fd(), path)
    }

    /// As [`BtrfsVault::read`], if this user may.
    pub fn read_for(&self, reader: &Reader, state: &State, path: &Path, limit: u64) -> Result<Content> {
        read_in_for(reader, self.tree(state)?.as_fd(), path, limit)
    }

    /// As [`BtrfsVault::entries`], if this user may.
    pub fn entries_for(&self, reader: &Reader, state: &State, path: &Path) -> Result<Vec<Entry>> {
        entries_in_for(reader, self.tree(state)?.as_fd(), path)
    }
}

/// An inode changed this long before a snapshot cannot have been changed again after it with the same time.
const SETTLED_S: i64 = 2;

/// What of an inode tells that nothing of it changed: any change of content or attributes sets the change time.
type Stamp = (u64, u32, u64, i64, i64);

/// The stamp of a path below an open directory; `None` where there is no such path.
fn stamp_of(root: impl AsFd, path: &Path) -> Result<Option<Stamp>> {
    let stat = match open_beneath(root, path, OFlags::PATH).map_err(lookup(path)) {
        Ok(handle) => rustix::fs::fstat(&handle).map_err(|e| EngineError::io("look at", path)(e.into()))?,
        Err(EngineError::NoPath { .. }) => return Ok(None),
        Err(e) => return Err(e),
    };
    let size = u64::try_from(stat.st_size).unwrap_or(0);
    let nanos = i64::try_from(stat.st_ctime_nsec).unwrap_or(0);
    Ok(Some((stat.st_ino, stat.st_mode, size, stat.st_ctime, nanos)))
}

impl BtrfsVault {
    /// True if it is certain that nothing of this path differs between two checkpoints.
    pub fn untouched(&self, a: &CheckpointId, b: &CheckpointId, path: &Path) -> Result<bool> {
        let (a, b) = (State::Checkpoint(a.clone()), State::Checkpoint(b.clone()));
        let (a, b) = (self.open_state(&a)?, self.open_state(&b)?);
        let settled = |s: &Stamp| s.3 < a.made().0.min(b.made().0) - SETTLED_S;
        Ok(match (stamp_of(a.fd(), path)?, stamp_of(b.fd(), path)?) {
            (None, None) => true,
            (Some(one), Some(other)) => one == other && settled(&one),
            _ => false,
        })
    }
}

/// As [`BtrfsVault::read`], below an open directory.
pub(crate) fn read_in(root: impl AsFd, path: &Path, limit: u64) -> Result<Content> {
    read_if(root, path, limit, |_| Ok(()))
}

/// As [`read_in`], if this user may.
pub(crate) fn read_in_for(reader: &Reader, root: impl AsFd, path: &Path, limit: u64) -> Result<Content> {
    let (folder, name) = passed(reader, root, path)?;
    let may = |fd: &OwnedFd| match access(fd, path)? {
        (uid, gid, mode, shut) if reader.may_read(uid, gid, mode, shut) => Ok(()),
        _ => Err(reader_refused(path)),
    };
    read_if(folder, &name, limit, may)
}

/// As [`entries_in`], if this user may.
pub(crate) fn entries_in_for(reader: &Reader, root: impl AsFd, path: &Path) -> Result<Vec<Entry>> {
    let (folder, name) = passed(reader, root, path)?;
    let dir = open_dir(folder, &name).map_err(lookup(path))?;
    let (uid, gid, mode, shut) = access(&dir, path)?;
    if !reader.may_read(uid, gid, mode, shut) || !reader.may_pass(uid, gid, mode, shut) {
        return Err(reader_refused(path));
    }
    entries_of(&dir, path)
}

/// The error for a path that this user may not see.
pub(in crate::engine::vault) fn reader_refused(path: &Path) -> EngineError {
    EngineError::Refused {
        why: format!("you may not read {}", crate::text::shown_path(path)),
        path: Some(path.to_owned()),
        hint: Some("its owner or root may".into()),
    }
}

/// Owner, group, permission bits, and whether there is an access list.
fn access(fd: &OwnedFd, path: &Path) -> Result<(u32, u32, u32, bool)> {
    let failed = |e: rustix::io::Errno| EngineError::io("look at", path)(e.into());
    let stat = rustix::fs::fstat(fd).map_err(failed)?;
    let name = format!("/proc/self/fd/{}", fd.as_raw_fd());
    let shut = match rustix::fs::getxattr(name, "system.posix_acl_access", &mut [0u8; 0]) {
        Ok(n) => n > 0,
        Err(rustix::io::Errno::NODATA | rustix::io::Errno::OPNOTSUPP) => false,
        Err(e) => return Err(failed(e)),
    };
    Ok((stat.st_uid, stat.st_gid, stat.st_mode & 0o7777, shut))
}

/// The folder that holds the last name of a path, if this user may go there. Each folder is checked on the very
/// handle that the next name is looked up in.
fn passed(reader: &Reader, root: impl AsFd, path: &Path) -> Result<(OwnedFd, PathBuf)> {
    let names = components(path).map_err(|_| EngineError::NoPath {
        path: path.to_owned(),
    })?;
    let mut folder =
        open_beneath(root, Path::new("."), OFlags::PATH | OFlags::DIRECTORY).map_err(lookup(path))?;
    let Some((last, above)) = names.split_last() else {
        return Ok((folder, PathBuf::from(".")));
    };
    let pass = |fd: &OwnedFd| match access(fd, path)? {
        (uid, gid, mode, shut) if reader.may_pass(uid, gid, mode, shut) => Ok(()),
        _ => Err(reader_refused(path)),
    };
    pass(&folder)?;
    for name in above {
        let next = open_beneath(
            &folder,
            Path::new(OsStr::from_bytes(name)),
            OFlags::PATH | OFlags::DIRECTORY,
        );
        folder = next.map_err(lookup(path))?;
        pass(&folder)?;
    }
    Ok((folder, PathBuf::from(OsStr::from_bytes(last))))
}

/// `may`: asked about the open file before it is read.
fn read_if(
    root: impl AsFd,
    path: &Path,
    limit: u64,
    may: impl FnOnce(&OwnedFd) -> Result<()>,
) -> Result<Content> {
    let handle = open_beneath(root.as_fd(), path, OFlags::PATH).map_err(lookup(path))?;
    let stat = rustix::fs::fstat(&handle).map_err(|e| EngineError::io("look at", path)(e.into()))?;
    match file_type(stat.st_mode) {
        Some(FileType::File) => {}
        Some(FileType::Link) => {
            let target = rustix::fs::readlinkat(&handle, "", Vec::new())
                .map_err(|e| EngineError::io("read the link", path)(e.into()))?;
            return Ok(Content::Link(PathBuf::from(std::ffi::OsString::from_vec(
                target.into_bytes(),
            ))));
        }
        Some(other) => return Ok(Content::Other(other)),
        None => {
            return Err(EngineError::Damaged {
                what: "a file of unknown type".into(),
                path: path.to_owned(),
            });
        }
    }
    // a fifo that takes the file's place meanwhile cannot block it, and is not read
    let fd = open_beneath(root, path, OFlags::RDONLY | OFlags::NONBLOCK).map_err(lookup(path))?;
    may(&fd)?;
    let stat = rustix::fs::fstat(&fd).map_err(|e| EngineError::io("look at", path)(e.into()))?;
    if file_type(stat.st_mode) != Some(FileType::File) {
        return Err(EngineError::NoPath {
            path: path.to_owned(),
        });
    }
    let size = u64::try_from(stat.st_size).unwrap_or(0);
    let mut bytes = Vec::with_capacity(size.min(limit).min(64 << 20) as usize);
    File::from(fd)
        .take(limit)
        .read_to_end(&mut bytes)
        .map_err(EngineError::io("read", path))?;
    let size = size.max(bytes.len() as u64);
    Ok(Content::File { bytes, size })
}

/// As [`BtrfsVault::entries`], below an open directory.
pub(crate) fn entries_in(root: impl AsFd, path: &Path) -> Result<Vec<Entry>> {
    entries_of(&open_dir(root, path).map_err(lookup(path))?, path)
}

fn entries_of(dir: &OwnedFd, path: &Path) -> Result<Vec<Entry>> {
    let mut out = Vec::new();
    for name in super::super::super::catalog::names(dir, path)? {
        let stat = match rustix::fs::statat(dir, name.as_slice(), AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => stat,
            // removed meanwhile
            Err(rustix::io::Errno::NOENT) => continue,
            Err(e) => {
                return Err(EngineError::io("look at", path.join(OsStr::from_bytes(&name)))(
                    e.into(),
                ));
            }
        };
        let Some(file_type) = file_type(stat.st_mode) else {
            continue;
        };
        out.push(Entry {
            name: PathBuf::from(OsStr::from_bytes(&name)),
            file_type,
            size: u64::try_from(stat.st_size).unwrap_or(0),
            mode: stat.st_mode & 0o7777,
            mtime_ns: i128::from(stat.st_mtime) * 1_000_000_000 + i128::from(stat.st_mtime_nsec),
        });
    }
    out.sort_by(|a, b| a.name.as_os_str().cmp(b.name.as_os_str()));
    Ok(out)
}
