//! Subvolumes: what they are known by, those inside others, and removal deepest first.

use std::fmt::Write as _;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use nix::libc;
use rustix::fs::{Mode, OFlags, ResolveFlags};

use super::flags::{IFlags, flags, set_flags};
use super::ioctl::{self, SubvolInfo};

/// The inode number of the root directory of every subvolume.
pub const ROOT_INODE: u64 = 256;

/// `f_type` of Btrfs, from include/uapi/linux/magic.h.
const BTRFS_MAGIC: i64 = 0x9123_683e;

/// How a path below an open directory is looked up: it cannot leave it, follows no link and no mount.
pub(crate) const BENEATH: ResolveFlags = ResolveFlags::BENEATH
    .union(ResolveFlags::NO_SYMLINKS)
    .union(ResolveFlags::NO_MAGICLINKS)
    .union(ResolveFlags::NO_XDEV);

/// Opens a path below `dir`; see [`BENEATH`]. An empty path is `dir` itself.
pub(crate) fn open_beneath(dir: impl AsFd, path: &Path, flags: OFlags) -> io::Result<OwnedFd> {
    let path = if path.as_os_str().is_empty() {
        Path::new(".")
    } else {
        path
    };
    let flags = flags | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    // EAGAIN: a rename anywhere on the system raced with the look-up (openat2(2))
    for _ in 0..64 {
        match rustix::fs::openat2(dir.as_fd(), path, flags, Mode::empty(), BENEATH) {
            Err(rustix::io::Errno::AGAIN) => {}
            other => return other.map_err(Into::into),
        }
    }
    Err(io::Error::from_raw_os_error(libc::EAGAIN))
}

/// Opens a directory below `dir`.
pub(crate) fn open_dir(dir: impl AsFd, path: impl AsRef<Path>) -> io::Result<OwnedFd> {
    open_beneath(dir, path.as_ref(), OFlags::RDONLY | OFlags::DIRECTORY)
}

/// True if the open file is on Btrfs.
pub fn on_btrfs(fd: impl AsFd) -> io::Result<bool> {
    // the field's width and sign differ between machines
    Ok(rustix::fs::fstatfs(fd)?.f_type as i64 & 0xffff_ffff == BTRFS_MAGIC)
}

/// What the kernel says of the subvolume that `fd` is the root directory of; `None` if it is no root
/// directory of a subvolume.
pub fn root_info(fd: impl AsFd) -> io::Result<Option<SubvolInfo>> {
    let stat = rustix::fs::fstat(fd.as_fd())?;
    let is_dir = rustix::fs::FileType::from_raw_mode(stat.st_mode).is_dir();
    if !is_dir || stat.st_ino != ROOT_INODE || !on_btrfs(fd.as_fd())? {
        return Ok(None);
    }
    ioctl::subvol_info(fd).map(Some)
}

/// A uuid as 32 hexadecimal digits.
pub fn hex(uuid: &[u8; 16]) -> String {
    uuid.iter().fold(String::with_capacity(32), |mut s, b| {
        let _written = write!(s, "{b:02x}");
        s
    })
}

/// A subvolume inside another one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Nested {
    /// Its path, relative to the root of the outer one.
    pub path: PathBuf,
    /// The id of its tree.
    pub tree_id: u64,
}

/// The subvolumes directly inside the one that `root` is the root directory of, sorted by path. A snapshot
/// of the outer one does not hold them: it has an empty directory there.
pub fn nested(root: impl AsFd) -> io::Result<Vec<Nested>> {
    let mut out: Vec<Nested> = ioctl::nested_subvolumes(root)?
        .into_iter()
        .map(|(tree_id, path)| Nested {
            path: std::ffi::OsString::from_vec(path).into(),
            tree_id,
        })
        .collect();
    out.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(out)
}

/// Removes the subvolume `name` of the directory `parent`, those inside it first. Its space comes back in
/// the background.
pub fn destroy(parent: impl AsFd, name: &str) -> io::Result<()> {
    let root = open_dir(parent.as_fd(), name)?;
    if root_info(&root)?.is_none() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is no subvolume"));
    }
    destroy_open(parent, name, root)
}

/// As [`destroy`], of the one whose root directory is open. As root it is that one that goes, whatever is at the name;
/// others have no more rights than whoever could exchange it.
pub fn destroy_open(parent: impl AsFd, name: &str, root: OwnedFd) -> io::Result<()> {
    destroy_nested(&root, 0)?;
    destroy_one(parent, name.as_bytes(), root)
}

/// Removes one subvolume. The kernel refuses to while its root directory is immutable or append-only, as an
/// agent that is root can make it: then the flag goes first.
fn destroy_one(parent: impl AsFd, name: &[u8], root: OwnedFd) -> io::Result<()> {
    if !rustix::process::geteuid().is_root() {
        return destroy_as_user(parent, name, &root);
    }
    let id = ioctl::subvol_info(&root)?.tree_id;
    match ioctl::snap_destroy_id(parent.as_fd(), id) {
        Err(e) if e.raw_os_error() == Some(libc::EPERM) => {
            let frozen = IFlags::IMMUTABLE | IFlags::APPEND;
            let now = flags(&root)?;
            if !now.intersects(frozen) {
                return Err(e);
            }
            let read_only = root_info(&root)?.is_some_and(|i| i.read_only);
            if read_only {
                ioctl::set_read_only(&root, false)?;
            }
            set_flags(&root, now - frozen)?;
            if read_only {
                ioctl::set_read_only(&root, true)?;
            }
            drop(root);
            ioctl::snap_destroy_id(parent, id)
        }
        other => other,
    }
}

/// As a user: read-only ones are refused by the call, and all of them where the file system is mounted without
/// `user_subvol_rm_allowed`. An empty one goes like a folder (Linux 4.18).
fn destroy_as_user(parent: impl AsFd, name: &[u8], root: &OwnedFd) -> io::Result<()> {
    if root_info(root)?.is_some_and(|i| i.read_only) {
        ioctl::set_read_only(root, false)?;
    }
    let mode = rustix::fs::fstat(root)?.st_mode;
    if mode & 0o700 != 0o700 {
        rustix::fs::fchmod(root, Mode::RWXU)?;
    }
    match ioctl::snap_destroy(parent.as_fd(), name) {
        Err(e) if e.raw_os_error() == Some(libc::EPERM) => {}
        other => return other,
    }
    super::restore::remove::clear(root)?;
    rustix::fs::unlinkat(parent, name, rustix::fs::AtFlags::REMOVEDIR).map_err(Into::into)
}

fn destroy_nested(root: &OwnedFd, depth: usize) -> io::Result<()> {
    use std::os::unix::ffi::OsStrExt;
    if depth > 64 {
        return Err(io::Error::from_raw_os_error(libc::ELOOP));
    }
    for inner in nested(root)? {
        let below = open_dir(root, &inner.path)?;
        if root_info(&below)?.is_none_or(|i| i.tree_id != inner.tree_id) {
            return Err(io::Error::from_raw_os_error(libc::ESTALE));
        }
        destroy_nested(&below, depth + 1)?;
        let folder = open_dir(root, inner.path.parent().unwrap_or(Path::new("")))?;
        let name = inner.path.file_name().unwrap_or_default();
        destroy_one(&folder, name.as_bytes(), below)?;
    }
    Ok(())
}
