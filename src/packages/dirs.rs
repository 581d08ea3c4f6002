//! A tree in folders of this machine: one, or the layers of an overlay file system, read as the kernel would show them
//! without mounting it (kernel documentation, filesystems/overlayfs: whiteouts, opaque directories).

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Component, Path};

use rustix::fs::{Mode, OFlags, ResolveFlags, Stat};
use rustix::io::Errno;

use super::tree::{Kind, Node, Stamp, Tree, TreeError};

/// One component at a time: no link, no other file system, nothing above.
const BENEATH: ResolveFlags = ResolveFlags::BENEATH
    .union(ResolveFlags::NO_SYMLINKS)
    .union(ResolveFlags::NO_MAGICLINKS)
    .union(ResolveFlags::NO_XDEV);
/// A folder with more entries is no database.
const MOST: usize = 100_000;

/// The namespace of an overlay's marks. Those of the other one are the container's own to set, and mean nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Marks {
    /// `trusted.overlay.`: mounted by root.
    Trusted,
    /// `user.overlay.`: mounted with the option `userxattr`.
    User,
}

/// Folders of this machine as one tree.
#[derive(Debug)]
pub struct Dirs {
    layers: Vec<OwnedFd>,
    marks: Option<Marks>,
}

/// What is at a path in one layer.
struct At {
    fd: OwnedFd,
    stat: Stat,
}

impl Dirs {
    /// One folder, as it is.
    pub fn one(root: OwnedFd) -> Self {
        Self {
            layers: vec![root],
            marks: None,
        }
    }

    /// The layers of an overlay, the upper one first.
    pub fn overlay(layers: Vec<OwnedFd>, marks: Marks) -> Self {
        Self {
            layers,
            marks: Some(marks),
        }
    }

    /// What is at a path, the uppermost first; more than one only where folders are merged.
    fn find(&self, path: &Path) -> Result<Vec<At>, TreeError> {
        let mut at = Vec::new();
        for root in &self.layers {
            let fd = open_at(root.as_fd(), OsStr::new("."), OFlags::PATH).map_err(io::Error::from)?;
            let stat = rustix::fs::fstat(&fd).map_err(io::Error::from)?;
            at.push(At { fd, stat });
            if self.is_opaque(at.last())? {
                break;
            }
        }
        for part in path.components() {
            match part {
                Component::CurDir => {}
                Component::Normal(name) => {
                    match at.first().map(|a| kind(&a.stat)) {
                        None => return Ok(at),
                        Some(Kind::Dir) => {}
                        Some(Kind::Link) => return Err(TreeError::Link),
                        Some(_) => return Ok(Vec::new()),
                    }
                    at = self.step(&at, name)?;
                }
                _ => return Ok(Vec::new()),
            }
        }
        Ok(at)
    }

    fn step(&self, folders: &[At], name: &OsStr) -> Result<Vec<At>, TreeError> {
        let mut out: Vec<At> = Vec::new();
        for folder in folders {
            let fd = match open_at(folder.fd.as_fd(), name, OFlags::PATH) {
                Ok(fd) => fd,
                // another file system is another part's
                Err(Errno::NOENT | Errno::NOTDIR | Errno::XDEV | Errno::NAMETOOLONG) => continue,
                Err(e) => return Err(io::Error::from(e).into()),
            };
            let stat = rustix::fs::fstat(&fd).map_err(io::Error::from)?;
            if self.marks.is_some() && is_whiteout(&stat) {
                break;
            }
            let is_dir = kind(&stat) == Kind::Dir;
            if !is_dir && !out.is_empty() {
                break;
            }
            out.push(At { fd, stat });
            if !is_dir || self.is_opaque(out.last())? {
                break;
            }
        }
        Ok(out)
    }

    /// True if what lies below this folder in other layers is hidden by it.
    fn is_opaque(&self, at: Option<&At>) -> Result<bool, TreeError> {
        let Some(at) = at.filter(|a| kind(&a.stat) == Kind::Dir) else {
            return Ok(false);
        };
        if self.mark(at, "redirect")?.is_some() {
            return Err(TreeError::Overlay("a renamed folder"));
        }
        Ok(self.mark(at, "opaque")?.is_some_and(|v| v == b"y"))
    }

    /// The value of an overlay's mark.
    fn mark(&self, at: &At, what: &str) -> Result<Option<Vec<u8>>, TreeError> {
        let Some(marks) = self.marks else { return Ok(None) };
        let space = match marks {
            Marks::Trusted => "trusted",
            Marks::User => "user",
        };
        let mut value = [0; 256];
        // a handle without access has no attributes of its own
        match rustix::fs::getxattr(handle(&at.fd), format!("{space}.overlay.{what}"), &mut value[..]) {
            Ok(n) => Ok(Some(value[..n].to_vec())),
            Err(Errno::NODATA | Errno::NOTSUP) => Ok(None),
            // longer than any of "y"
            Err(Errno::RANGE) => Ok(Some(Vec::new())),
            Err(e) => Err(io::Error::from(e).into()),
        }
    }
}

/// The path of the very inode of a handle (proc(5)).
fn handle(fd: &OwnedFd) -> String {
    format!("/proc/self/fd/{}", fd.as_raw_fd())
}

fn open_at(dir: BorrowedFd<'_>, name: &OsStr, flags: OFlags) -> Result<OwnedFd, Errno> {
    let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    // EAGAIN: a rename anywhere on the system raced with the look-up (openat2(2))
    for _ in 0..64 {
        match rustix::fs::openat2(dir, name.as_bytes(), flags, Mode::empty(), BENEATH) {
            Err(Errno::AGAIN | Errno::INTR) => {}
            other => return other,
        }
    }
    Err(Errno::AGAIN)
}

/// Opens for reading what a handle holds; the caller knows that it is a regular file or a folder.
fn reopen(fd: &OwnedFd) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    Ok(rustix::fs::open(handle(fd), flags, Mode::empty())?)
}

fn kind(stat: &Stat) -> Kind {
    match rustix::fs::FileType::from_raw_mode(stat.st_mode) {
        rustix::fs::FileType::RegularFile => Kind::File,
        rustix::fs::FileType::Directory => Kind::Dir,
        rustix::fs::FileType::Symlink => Kind::Link,
        _ => Kind::Other,
    }
}

fn is_whiteout(stat: &Stat) -> bool {
    let is = rustix::fs::FileType::from_raw_mode(stat.st_mode);
    is == rustix::fs::FileType::CharacterDevice && stat.st_rdev == 0
}

fn node(stat: &Stat) -> Node {
    let size = u64::try_from(stat.st_size).unwrap_or(0);
    Node {
        kind: kind(stat),
        size,
        stamp: Some(Stamp {
            ino: stat.st_ino,
            ctime: (stat.st_ctime, i64::try_from(stat.st_ctime_nsec).unwrap_or(0)),
            size,
        }),
    }
}

impl Tree for Dirs {
    fn node(&self, path: &Path) -> Result<Option<Node>, TreeError> {
        Ok(self.find(path)?.first().map(|a| node(&a.stat)))
    }

    fn names(&self, path: &Path) -> Result<Option<Vec<(OsString, Kind)>>, TreeError> {
        let merged = self.find(path)?;
        match merged.first().map(|a| kind(&a.stat)) {
            None => return Ok(None),
            Some(Kind::Dir) => {}
            Some(Kind::Link) => return Err(TreeError::Link),
            Some(_) => return Err(TreeError::NotADir),
        }
        let mut seen = std::collections::BTreeMap::new();
        for layer in &merged {
            for name in names_of(layer)? {
                if seen.contains_key(&name) {
                    continue;
                }
                if seen.len() >= MOST {
                    return Err(TreeError::TooMany(MOST));
                }
                let flags = rustix::fs::AtFlags::SYMLINK_NOFOLLOW;
                let is = match rustix::fs::statat(&layer.fd, name.as_bytes(), flags) {
                    Ok(stat) if self.marks.is_some() && is_whiteout(&stat) => None,
                    Ok(stat) => Some(kind(&stat)),
                    // removed meanwhile
                    Err(Errno::NOENT) => continue,
                    Err(e) => return Err(io::Error::from(e).into()),
                };
                seen.insert(name, is);
            }
        }
        Ok(Some(
            seen.into_iter().filter_map(|(n, k)| Some((n, k?))).collect(),
        ))
    }

    fn read(&self, path: &Path, limit: u64) -> Result<Option<Vec<u8>>, TreeError> {
        let found = self.find(path)?;
        let Some(at) = found.first() else { return Ok(None) };
        match kind(&at.stat) {
            Kind::File => {}
            Kind::Link => return Err(TreeError::Link),
            Kind::Dir | Kind::Other => return Err(TreeError::NotAFile),
        }
        if self.mark(at, "metacopy")?.is_some() {
            return Err(TreeError::Overlay("attributes without content"));
        }
        let mut bytes = Vec::new();
        File::from(reopen(&at.fd)?).take(limit).read_to_end(&mut bytes)?;
        Ok(Some(bytes))
    }
}

fn names_of(folder: &At) -> io::Result<Vec<OsString>> {
    let mut out = Vec::new();
    for entry in rustix::fs::Dir::new(reopen(&folder.fd)?)? {
        let name = entry?.file_name().to_bytes().to_vec();
        if name != b"." && name != b".." {
            out.push(OsString::from_vec(name));
        }
        if out.len() > MOST {
            break;
        }
    }
    Ok(out)
}
