//! Reads files of a store: by name within an open folder, no link followed, nothing but regular files
//! opened, nothing larger than [`LIMIT`].

use std::ffi::OsStr;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use chrono::{DateTime, Utc};
use rustix::fs::{AtFlags, FileType, Mode, OFlags, RawDir, SeekFrom};

use super::{ConversationError, Result};

/// The largest file that is read, in bytes; a message with many pictures is far below it.
pub(super) const LIMIT: u64 = 128 << 20;

/// An open folder.
#[derive(Debug)]
pub(super) struct Folder {
    fd: OwnedFd,
    /// Its path, for messages.
    pub(super) path: PathBuf,
}

const OPEN: OFlags = OFlags::RDONLY
    .union(OFlags::CLOEXEC)
    .union(OFlags::NONBLOCK)
    .union(OFlags::NOCTTY);

impl Folder {
    /// Opens the folder that the user or a root names; `None` if there is none.
    pub(super) fn open(path: &Path) -> Result<Option<Self>> {
        let opened = rustix::fs::open(path, OPEN | OFlags::DIRECTORY, Mode::empty());
        Self::from_opened(opened, path)
    }

    /// Opens a folder in this one, never through a link; `None` if there is none.
    pub(super) fn sub(&self, name: &str) -> Result<Option<Self>> {
        let flags = OPEN | OFlags::DIRECTORY | OFlags::NOFOLLOW;
        let opened = rustix::fs::openat(&self.fd, name, flags, Mode::empty());
        Self::from_opened(opened, &self.path.join(name))
    }

    fn from_opened(opened: rustix::io::Result<OwnedFd>, path: &Path) -> Result<Option<Self>> {
        use rustix::io::Errno;
        match opened {
            Ok(fd) => Ok(Some(Self {
                fd,
                path: path.to_owned(),
            })),
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => Ok(None),
            Err(e) => Err(failed(path, e.into())),
        }
    }

    /// Calls `f` with the name of each entry of type `wanted`, in no order.
    pub(super) fn each(&self, wanted: FileType, mut f: impl FnMut(&[u8])) -> Result<()> {
        self.any(wanted, |name| {
            f(name);
            false
        })
        .map(|_| ())
    }

    /// True if `f` is true for the name of an entry of type `wanted`; stops there.
    pub(super) fn any(&self, wanted: FileType, mut f: impl FnMut(&[u8]) -> bool) -> Result<bool> {
        let fail = |e: rustix::io::Errno| failed(&self.path, e.into());
        rustix::fs::seek(&self.fd, SeekFrom::Start(0)).map_err(fail)?;
        let mut buffer = vec![MaybeUninit::uninit(); 256 << 10];
        let mut entries = RawDir::new(&self.fd, &mut buffer);
        while let Some(entry) = entries.next() {
            let entry = entry.map_err(fail)?;
            let name = entry.file_name();
            let file_type = match entry.file_type() {
                FileType::Unknown => match rustix::fs::statat(&self.fd, name, AtFlags::SYMLINK_NOFOLLOW) {
                    Ok(stat) => FileType::from_raw_mode(stat.st_mode),
                    Err(_) => continue,
                },
                known => known,
            };
            if file_type == wanted && !matches!(name.to_bytes(), b"." | b"..") && f(name.to_bytes()) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// The modification time of an entry that is a regular file or folder; `None` if there is none.
    pub(super) fn mtime(&self, name: &str) -> Option<DateTime<Utc>> {
        let stat = rustix::fs::statat(&self.fd, name, AtFlags::SYMLINK_NOFOLLOW).ok()?;
        Some(time_of(&stat))
    }

    /// True if there is a regular file of this name.
    pub(super) fn has_file(&self, name: &str) -> bool {
        self.is_regular(name.as_bytes()).unwrap_or(false)
    }

    fn is_regular(&self, name: &[u8]) -> io::Result<bool> {
        let stat = rustix::fs::statat(&self.fd, OsStr::from_bytes(name), AtFlags::SYMLINK_NOFOLLOW)?;
        Ok(FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile)
    }

    /// Reads a file that may be missing (`None`) into `buffer`; returns its modification time.
    pub(super) fn read_named(&self, name: &str, buffer: &mut Vec<u8>) -> Result<Option<DateTime<Utc>>> {
        let path = self.path.join(name);
        match self.is_regular(name.as_bytes()) {
            Ok(true) => {}
            Ok(false) => return Err(damaged(&path, "it is no regular file")),
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(failed(&path, e)),
        }
        match self.read_listed(name.as_bytes(), buffer) {
            Ok(time) => Ok(Some(time)),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(e) => Err(failed(&path, e)),
        }
    }

    /// Reads a file that [`Folder::each`] listed as regular into `buffer` (emptied first); returns its
    /// modification time.
    pub(super) fn read_listed(&self, name: &[u8], buffer: &mut Vec<u8>) -> io::Result<DateTime<Utc>> {
        buffer.clear();
        let flags = OPEN | OFlags::NOFOLLOW;
        let file = rustix::fs::openat(&self.fd, OsStr::from_bytes(name), flags, Mode::empty())?;
        let stat = rustix::fs::fstat(&file)?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err(io::Error::other("it is no regular file"));
        }
        let size = u64::try_from(stat.st_size).unwrap_or(0);
        if size > LIMIT {
            return Err(io::Error::other("it is larger than 128 MiB"));
        }
        buffer.reserve(size as usize + 1);
        loop {
            // the room is larger than the file, so one call reads it all and knows that it did
            let room = buffer.capacity() - buffer.len();
            let n = rustix::io::read(&file, rustix::buffer::spare_capacity(buffer))?;
            if n < room || buffer.len() as u64 > LIMIT {
                return Ok(time_of(&stat));
            }
            buffer.reserve(64 << 10);
        }
    }
}

fn time_of(stat: &rustix::fs::Stat) -> DateTime<Utc> {
    u32::try_from(stat.st_mtime_nsec)
        .ok()
        .and_then(|nanos| DateTime::from_timestamp(stat.st_mtime, nanos))
        .unwrap_or_default()
}

/// An error of a system call on `path`.
pub(super) fn failed(path: &Path, source: io::Error) -> ConversationError {
    ConversationError::Io {
        path: path.to_owned(),
        source,
    }
}

/// A file that is not as it must be.
pub(super) fn damaged(path: &Path, reason: impl Into<String>) -> ConversationError {
    ConversationError::Damaged {
        path: path.to_owned(),
        reason: reason.into(),
    }
}
