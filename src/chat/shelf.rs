//! The folder of a store, opened once: names are looked up in it, no link is followed, files move by rename.

use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, FileType, FlockOperation, Gid, Mode, OFlags, RenameFlags, Uid};

use super::error::{ChatError, Result};

/// The largest file of settings that is changed.
const MOST: u64 = 64 << 20;

const FOLDER: OFlags = OFlags::RDONLY
    .union(OFlags::DIRECTORY)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::CLOEXEC);

/// A lock of the agent's.
pub(super) enum AgentsLock {
    /// It is ours until this is dropped.
    Taken(OwnedFd),
    /// There is no such file, so nothing to hold.
    Absent,
    /// The agent has it.
    Busy,
}

/// An open folder.
#[derive(Debug)]
pub(super) struct Shelf {
    fd: OwnedFd,
    /// Its path, for messages.
    pub(super) path: PathBuf,
}

impl Shelf {
    /// Opens a store's folder; the last part of its path is no link.
    pub(super) fn open(path: &Path) -> Result<Self> {
        let fd = rustix::fs::open(path, FOLDER, Mode::empty()).map_err(ChatError::io("open", path))?;
        Ok(Self {
            fd,
            path: path.to_owned(),
        })
    }

    /// A folder in it; `None` if there is none.
    pub(super) fn sub(&self, name: &str) -> Result<Option<Self>> {
        let path = self.path.join(name);
        match rustix::fs::openat(&self.fd, name, FOLDER, Mode::empty()) {
            Ok(fd) => Ok(Some(Self { fd, path })),
            Err(rustix::io::Errno::NOENT) => Ok(None),
            Err(e) => Err(ChatError::io("open", &path)(e)),
        }
    }

    /// A folder in it, made where there is none, for the store's owner alone.
    pub(super) fn made(&self, name: &str) -> Result<Self> {
        let path = self.path.join(name);
        match rustix::fs::mkdirat(&self.fd, name, Mode::RWXU) {
            Ok(()) => {
                self.give_away(name)?;
                self.sync()?;
            }
            Err(rustix::io::Errno::EXIST) => {}
            Err(e) => return Err(ChatError::io("make", &path)(e)),
        }
        let gone = ChatError::Damaged {
            path,
            reason: "it is no folder".into(),
        };
        self.sub(name)?.ok_or(gone)
    }

    /// What root makes belongs to the owner of the folder that it is in.
    fn give_away(&self, name: &str) -> Result<()> {
        let own = rustix::fs::fstat(&self.fd).map_err(ChatError::io("look at", &self.path))?;
        if !rustix::process::geteuid().is_root() || own.st_uid == 0 {
            return Ok(());
        }
        let (uid, gid) = (Uid::from_raw(own.st_uid), Gid::from_raw(own.st_gid));
        rustix::fs::chownat(&self.fd, name, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW)
            .map_err(ChatError::io("give to its owner", &self.path.join(name)))
    }

    /// The names of the regular files in it.
    pub(super) fn files(&self) -> Result<Vec<String>> {
        let fail = || ChatError::io::<rustix::io::Errno>("read", &self.path);
        let mut names = Vec::new();
        for entry in rustix::fs::Dir::read_from(&self.fd).map_err(fail())? {
            let entry = entry.map_err(fail())?;
            let Ok(name) = entry.file_name().to_str() else {
                continue;
            };
            if self.is(name, FileType::RegularFile)? {
                names.push(name.to_owned());
            }
        }
        Ok(names)
    }

    /// True if there is such an entry of this type.
    fn is(&self, name: &str, wanted: FileType) -> Result<bool> {
        match rustix::fs::statat(&self.fd, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => Ok(FileType::from_raw_mode(stat.st_mode) == wanted),
            Err(rustix::io::Errno::NOENT) => Ok(false),
            Err(e) => Err(ChatError::io("look at", &self.path.join(name))(e)),
        }
    }

    /// True if there is a regular file of this name.
    pub(super) fn has_file(&self, name: &str) -> Result<bool> {
        self.is(name, FileType::RegularFile)
    }

    /// Moves an entry to another folder of the same store; nothing there is replaced.
    pub(super) fn move_to(&self, name: &str, to: &Self, new: &str) -> Result<()> {
        rustix::fs::renameat_with(&self.fd, name, &to.fd, new, RenameFlags::NOREPLACE)
            .map_err(ChatError::io("move", &self.path.join(name)))
    }

    /// Removes an empty folder; one that is not there is none.
    pub(super) fn remove_empty(&self, name: &str) -> Result<()> {
        match rustix::fs::unlinkat(&self.fd, name, AtFlags::REMOVEDIR) {
            Ok(()) | Err(rustix::io::Errno::NOENT) => Ok(()),
            Err(e) => Err(ChatError::io("remove", &self.path.join(name))(e)),
        }
    }

    /// Removes a folder if it is empty.
    pub(super) fn remove_if_empty(&self, name: &str) -> Result<()> {
        match rustix::fs::unlinkat(&self.fd, name, AtFlags::REMOVEDIR) {
            Ok(()) | Err(rustix::io::Errno::NOENT | rustix::io::Errno::NOTEMPTY) => Ok(()),
            Err(e) => Err(ChatError::io("remove", &self.path.join(name))(e)),
        }
    }

    /// Makes what moved in or out of it durable.
    pub(super) fn sync(&self) -> Result<()> {
        rustix::fs::fsync(&self.fd).map_err(ChatError::io("write", &self.path))
    }

    /// The bytes of a regular file.
    pub(super) fn read(&self, name: &str) -> Result<Vec<u8>> {
        let path = self.path.join(name);
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let fd =
            rustix::fs::openat(&self.fd, name, flags, Mode::empty()).map_err(ChatError::io("open", &path))?;
        let file = std::fs::File::from(fd);
        let read = || -> io::Result<Vec<u8>> {
            let meta = file.metadata()?;
            if !meta.is_file() || meta.len() > MOST {
                return Err(io::Error::other("it is no regular file, or too large"));
            }
            let mut bytes = Vec::new();
            (&file).take(MOST).read_to_end(&mut bytes)?;
            Ok(bytes)
        };
        read().map_err(ChatError::io("read", &path))
    }

    /// What is known of a regular file. The mode of a link is everybody's.
    fn stat_file(&self, name: &str) -> Result<rustix::fs::Stat> {
        let path = self.path.join(name);
        let stat = rustix::fs::statat(&self.fd, name, AtFlags::SYMLINK_NOFOLLOW)
            .map_err(ChatError::io("look at", &path))?;
        if FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile {
            return Ok(stat);
        }
        let reason = "it is no regular file".into();
        Err(ChatError::Damaged { path, reason })
    }

    /// Replaces a file in one step, durably, with the mode and owner that it had.
    pub(super) fn replace(&self, name: &str, bytes: &[u8]) -> Result<()> {
        let path = self.path.join(name);
        let temp = format!(".{name}.respool-{}", std::process::id());
        let stat = self.stat_file(name)?;
        let write = || -> io::Result<()> {
            let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let fd = rustix::fs::openat(&self.fd, &temp, flags, Mode::RUSR | Mode::WUSR)?;
            let mut file = std::fs::File::from(fd);
            file.write_all(bytes)?;
            if rustix::process::geteuid().is_root() {
                let (uid, gid) = (Uid::from_raw(stat.st_uid), Gid::from_raw(stat.st_gid));
                rustix::fs::fchown(&file, Some(uid), Some(gid))?;
            }
            rustix::fs::fchmod(&file, Mode::from_raw_mode(stat.st_mode & 0o7777))?;
            file.sync_all()?;
            crate::process::fault_point("chat-head-written");
            rustix::fs::renameat(&self.fd, &temp, &self.fd, name)?;
            rustix::fs::fsync(&self.fd)?;
            Ok(())
        };
        write().map_err(|e| {
            let removed = rustix::fs::unlinkat(&self.fd, &temp, AtFlags::empty());
            tracing::debug!(?removed, "took back a file that could not be written");
            ChatError::io("write", &path)(e)
        })
    }

    /// Makes a new file, complete before it has its name, durably, with the mode and owner of another one. Nothing is
    /// replaced. `temp`: the name that it has meanwhile.
    pub(super) fn create(
        &self,
        (name, temp, like): (&str, &str, &str),
        fill: impl FnOnce(&mut std::fs::File) -> Result<()>,
    ) -> Result<()> {
        let path = self.path.join(name);
        let fail = || ChatError::io::<io::Error>("write", &path);
        let stat = self.stat_file(like)?;
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = rustix::fs::openat(&self.fd, temp, flags, Mode::RUSR | Mode::WUSR)
            .map_err(ChatError::io("write", &path))?;
        let mut file = std::fs::File::from(fd);
        let made = || -> Result<()> {
            fill(&mut file)?;
            if rustix::process::geteuid().is_root() {
                let (uid, gid) = (Uid::from_raw(stat.st_uid), Gid::from_raw(stat.st_gid));
                rustix::fs::fchown(&file, Some(uid), Some(gid)).map_err(ChatError::io("write", &path))?;
            }
            rustix::fs::fchmod(&file, Mode::from_raw_mode(stat.st_mode & 0o666))
                .map_err(ChatError::io("write", &path))?;
            file.sync_all().map_err(fail())?;
            crate::process::fault_point("chat-fork-written");
            self.move_to(temp, self, name)?;
            self.sync()
        };
        made().inspect_err(|_| {
            let removed = rustix::fs::unlinkat(&self.fd, temp, AtFlags::empty());
            tracing::debug!(?removed, "took back a file that could not be written");
        })
    }

    /// Opens a regular file, never through a link; `None` if there is none.
    pub(super) fn file(&self, name: &str) -> Result<Option<std::fs::File>> {
        if !self.has_file(name)? {
            return Ok(None);
        }
        let path = self.path.join(name);
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        match rustix::fs::openat(&self.fd, name, flags, Mode::empty()) {
            Ok(fd) => Ok(Some(fd.into())),
            Err(rustix::io::Errno::NOENT) => Ok(None),
            Err(e) => Err(ChatError::io("open", &path)(e)),
        }
    }

    /// Removes a file.
    pub(super) fn unlink(&self, name: &str) -> Result<()> {
        rustix::fs::unlinkat(&self.fd, name, AtFlags::empty())
            .map_err(ChatError::io("remove", &self.path.join(name)))
    }

    /// Removes what a killed [`Shelf::replace`] of this file left.
    pub(super) fn sweep(&self, name: &str) -> Result<()> {
        let ours = format!(".{name}.respool-");
        for left in self.files()?.iter().filter(|n| n.starts_with(&ours)) {
            rustix::fs::unlinkat(&self.fd, left.as_str(), AtFlags::empty())
                .map_err(ChatError::io("remove", &self.path.join(left)))?;
        }
        Ok(())
    }

    /// Takes a lock on the folder itself: of several respools one changes a store. `None` if another has it.
    pub(super) fn lock(&self) -> Result<Option<OwnedFd>> {
        let fd = rustix::fs::openat(&self.fd, ".", FOLDER, Mode::empty())
            .map_err(ChatError::io("open", &self.path))?;
        Self::held(fd, &self.path)
    }

    /// Takes the lock that the agent itself takes when it writes.
    pub(super) fn agents_lock(&self, name: &str) -> Result<AgentsLock> {
        let path = self.path.join(name);
        let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        match rustix::fs::openat(&self.fd, name, flags, Mode::empty()) {
            Ok(fd) => Ok(Self::held(fd, &path)?.map_or(AgentsLock::Busy, AgentsLock::Taken)),
            Err(rustix::io::Errno::NOENT) => Ok(AgentsLock::Absent),
            Err(e) => Err(ChatError::io("open", &path)(e)),
        }
    }

    fn held(fd: OwnedFd, path: &Path) -> Result<Option<OwnedFd>> {
        match rustix::fs::flock(&fd, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Some(fd)),
            Err(rustix::io::Errno::WOULDBLOCK) => Ok(None),
            Err(e) => Err(ChatError::io("lock", path)(e)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A link in its place is neither followed nor replaced, and its mode is given to nothing.
    #[test]
    fn a_link_is_not_replaced() {
        let dir = tempfile::tempdir().expect("tempdir");
        let shelf = Shelf::open(dir.path()).expect("folder");
        let link = dir.path().join("link");
        std::os::unix::fs::symlink("/etc/hostname", &link).expect("link");
        shelf.replace("link", b"x").expect_err("a link");
        shelf
            .create(("new", "temp", "link"), |_| Ok(()))
            .expect_err("like a link");
        assert!(link.is_symlink());
        assert_eq!(dir.path().read_dir().expect("folder").count(), 1);
        std::fs::write(dir.path().join("file"), "a").expect("write");
        shelf.replace("file", b"x").expect("a file");
    }
}
