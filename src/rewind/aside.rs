//! The folder beside a workspace that holds its content while `track` and `untrack` exchange things. It is
//! known by file system and inode number, never by its name alone.

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Mode, OFlags, RenameFlags, Timespec, Timestamps};

use super::error::{Result, RewindError};
use super::journal::Record;
use crate::engine::flags::{IFlags, flags, set_flags};
use crate::engine::{EngineError, subvolume};
use crate::process::fault_point;
use crate::sandbox::bind;
use crate::text::{ExactPath, shown_path};

/// A folder and its parent, open.
pub struct Beside {
    /// The workspace's parent.
    pub parent: OwnedFd,
    /// The workspace's name in it.
    pub name: OsString,
    /// The path of the folder beside.
    pub path: PathBuf,
    /// Its name.
    pub aside: OsString,
}

fn io_error(what: &'static str, path: &Path) -> impl FnOnce(rustix::io::Errno) -> EngineError {
    let path = path.to_owned();
    move |e| EngineError::io(what, path)(e.into())
}

impl Beside {
    /// For this workspace and sandbox; nothing is made yet.
    pub fn of(workspace: &Path, sandbox: &str) -> Result<Self> {
        let (Some(parent), Some(name)) = (workspace.parent(), workspace.file_name()) else {
            return Err(EngineError::NoPath {
                path: workspace.to_owned(),
            }
            .into());
        };
        let fd = bind::open_exact(parent).map_err(EngineError::io("open", parent))?;
        let aside = OsString::from(format!(".respool-{sandbox}"));
        Ok(Self {
            parent: fd,
            name: name.to_owned(),
            path: parent.join(&aside),
            aside,
        })
    }

    /// Makes the folder, for root alone, and remembers in the record which inode it is.
    pub fn make(&self, record: &mut Record) -> Result<OwnedFd> {
        rustix::fs::mkdirat(&self.parent, &self.aside, Mode::RWXU).map_err(io_error("make", &self.path))?;
        fault_point("aside-made");
        let fd = self.fresh()?;
        self.remember(&fd, record)?;
        Ok(fd)
    }

    /// The folder beside that was just made. Whoever owns the parent can put another one in its place: what is not empty
    /// and this process's own is refused, for it will be written to and emptied. Nobody else may enter it.
    pub fn fresh(&self) -> Result<OwnedFd> {
        let fd = self.open()?;
        let stat = bind::stat(&fd).map_err(EngineError::io("look at", &self.path))?;
        let own = stat.st_uid == rustix::process::geteuid().as_raw();
        if own
            && names(&fd)
                .map_err(EngineError::io("list", &self.path))?
                .is_empty()
        {
            rustix::fs::fchmod(&fd, Mode::RWXU).map_err(io_error("close to others", &self.path))?;
            return Ok(fd);
        }
        Err(RewindError::Refused {
            why: format!("somebody put another folder at {}", shown_path(&self.path)),
            path: Some(self.path.clone()),
            hint: Some("stop what writes there, then try again".into()),
        })
    }

    /// Remembers in the record which inode is, or will be, the folder beside.
    pub fn remember(&self, folder: impl AsFd, record: &mut Record) -> Result<()> {
        let (fs, ino) = identity(folder).map_err(io_error("look at", &self.path))?;
        record.aside = Some((ExactPath(self.path.clone()), fs, ino));
        Ok(())
    }

    fn open(&self) -> Result<OwnedFd> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        Ok(
            rustix::fs::openat(&self.parent, &self.aside, flags, Mode::empty())
                .map_err(io_error("open", &self.path))?,
        )
    }

    /// The folder of the record, if it is still at its place and the same inode.
    pub fn again(&self, record: &Record) -> Option<OwnedFd> {
        let (_, fs, ino) = record.aside.as_ref()?;
        let fd = self.open().ok()?;
        (identity(&fd).ok()? == (*fs, *ino)).then_some(fd)
    }

    /// Removes the subvolume beside with all that is in it, if it has this uuid. One that was only just made,
    /// and is known by no record, is empty.
    pub fn remove_subvolume(&self, uuid: &str) -> Result<()> {
        let Ok(fd) = self.open() else { return Ok(()) };
        let info = subvolume::root_info(&fd).map_err(EngineError::io("look at", &self.path))?;
        if info.is_none_or(|i| subvolume::hex(&i.uuid) != uuid) {
            return self.remove_unknown();
        }
        fault_point("aside-removing");
        let name = self.aside.to_string_lossy().into_owned();
        Ok(
            subvolume::destroy_open(&self.parent, &name, fd)
                .map_err(EngineError::io("remove", &self.path))?,
        )
    }

    /// Swaps the workspace and the folder beside, atomically, and makes it durable.
    pub fn exchange(&self) -> Result<()> {
        rustix::fs::renameat_with(
            &self.parent,
            &self.aside,
            &self.parent,
            &self.name,
            RenameFlags::EXCHANGE,
        )
        .map_err(io_error("exchange", &self.path))?;
        self.sync();
        Ok(())
    }

    /// Makes the entries of the parent durable.
    pub fn sync(&self) {
        // a parent that cannot be synced (some network file systems) is no reason to fail
        if let Err(e) = rustix::fs::fsync(&self.parent) {
            tracing::debug!("sync of the folder above {}: {e}", self.path.display());
        }
    }

    /// Removes a folder beside that no record knows: made, and the process killed before it was noted.
    /// Nothing can have been put into it, and one with something in it stays.
    pub fn remove_unknown(&self) -> Result<()> {
        use rustix::io::Errno;
        match rustix::fs::unlinkat(&self.parent, &self.aside, AtFlags::REMOVEDIR) {
            Err(Errno::NOENT | Errno::NOTEMPTY | Errno::NOTDIR) | Ok(()) => Ok(()),
            Err(e) => Err(io_error("remove", &self.path)(e).into()),
        }
    }

    /// Removes the folder beside when it is empty.
    pub fn remove_empty(&self) -> Result<()> {
        match rustix::fs::unlinkat(&self.parent, &self.aside, AtFlags::REMOVEDIR) {
            Err(rustix::io::Errno::NOENT) | Ok(()) => Ok(()),
            Err(e) => Err(io_error("remove", &self.path)(e).into()),
        }
    }
}

/// The file system (for Btrfs with the subvolume) and the inode of an open folder. Not its device number:
/// that may be another after a restart of the machine.
pub fn identity(folder: impl AsFd) -> rustix::io::Result<(u64, u64)> {
    let fs = rustix::fs::fstatvfs(folder.as_fd())?.f_fsid;
    Ok((fs, rustix::fs::fstat(folder)?.st_ino))
}

/// The names in an open folder.
pub fn names(folder: impl AsFd) -> io::Result<Vec<OsString>> {
    let again = rustix::fs::openat(
        folder,
        c".",
        OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC,
        Mode::empty(),
    )?;
    let mut out = Vec::new();
    for entry in rustix::fs::Dir::read_from(&again)? {
        let name = entry?.file_name().to_bytes().to_vec();
        if name != b"." && name != b".." {
            out.push(OsString::from_vec(name));
        }
    }
    Ok(out)
}

/// Moves every entry from one folder into another of the same file system. An immutable entry's flag is
/// taken off for the move and put back. Safe to run again after it was cut short.
pub fn move_entries(from: impl AsFd, to: impl AsFd, path: &Path) -> Result<()> {
    for (i, name) in names(from.as_fd())
        .map_err(EngineError::io("list", path))?
        .iter()
        .enumerate()
    {
        let full = path.join(name);
        let moved = rustix::fs::renameat_with(from.as_fd(), name, to.as_fd(), name, RenameFlags::NOREPLACE);
        match moved {
            Ok(()) => {}
            Err(rustix::io::Errno::PERM) => move_fixed(from.as_fd(), to.as_fd(), name, &full)?,
            Err(e) => return Err(io_error("move", &full)(e).into()),
        }
        if i == 0 {
            fault_point("entries-moving");
        }
    }
    Ok(())
}

fn move_fixed(from: impl AsFd, to: impl AsFd, name: &OsString, full: &Path) -> Result<()> {
    let how = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let fd = rustix::fs::openat(from.as_fd(), name, how, Mode::empty()).map_err(io_error("open", full))?;
    let was = flags(&fd).map_err(EngineError::io("read the flags of", full))?;
    set_flags(&fd, was - IFlags::IMMUTABLE - IFlags::APPEND).map_err(EngineError::io("unlock", full))?;
    let moved = rustix::fs::renameat_with(from.as_fd(), name, to.as_fd(), name, RenameFlags::NOREPLACE);
    set_flags(&fd, was).map_err(EngineError::io("lock", full))?;
    Ok(moved.map_err(io_error("move", full))?)
}

/// Gives a folder the times of another.
pub fn times_like(folder: impl AsFd, like: impl AsFd, path: &Path) -> Result<()> {
    let s = rustix::fs::fstat(like).map_err(io_error("look at", path))?;
    let times = Timestamps {
        last_access: Timespec {
            tv_sec: s.st_atime,
            tv_nsec: s.st_atime_nsec as _,
        },
        last_modification: Timespec {
            tv_sec: s.st_mtime,
            tv_nsec: s.st_mtime_nsec as _,
        },
    };
    Ok(rustix::fs::futimens(folder, &times).map_err(io_error("set the times of", path))?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_put_in_the_place_of_the_one_beside_is_not_taken() {
        let dir = tempfile::tempdir().expect("tempdir");
        let real = dir.path().canonicalize().expect("real");
        std::fs::create_dir(real.join("project")).expect("project");
        let beside = Beside::of(&real.join("project"), "sb-x").expect("beside");
        std::fs::create_dir(&beside.path).expect("folder");
        assert!(beside.fresh().is_ok());
        std::fs::write(beside.path.join("theirs"), "").expect("file");
        let e = beside.fresh().expect_err("not empty").to_string();
        assert!(e.contains("somebody put another folder"), "{e}");
    }
}
