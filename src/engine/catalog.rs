//! The catalog: which sandboxes a pool keeps. It is the pool itself: each sandbox is a directory whose
//! extended attribute holds its record.

mod record;

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use super::pool::Pool;
use super::subvolume::{self, hex, open_dir, root_info};
use super::{EngineError, Result, ioctl};
use crate::process::fault_point;
use crate::text;
use chrono::DateTime;
use nix::libc;
use rustix::fs::{Mode, OFlags, XattrFlags};

pub(crate) use record::parse_record;
pub use record::{Place, RECORD_VERSION, RootId, SandboxRecord, Stub};

/// The attribute of a sandbox's directory.
pub const SANDBOX_XATTR: &str = "user.respool.sandbox";
/// The name of the live subvolume in a sandbox's directory.
pub const LIVE: &str = "live";
/// A sandbox as the catalog lists it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listed {
    /// The name of its directory, which is its id.
    pub id: String,
    /// Its record, or why it cannot be read, one harmless line.
    pub record: std::result::Result<SandboxRecord, String>,
    /// The uuid of its live subvolume in the pool, as it is now.
    pub live_uuid: Option<String>,
}

/// The directory of one sandbox in a pool, held open.
#[derive(Debug)]
pub struct SandboxDir {
    id: String,
    fd: OwnedFd,
    path: PathBuf,
}

pub(crate) fn valid_id(id: &str) -> bool {
    let rest = id.strip_prefix("sb-").unwrap_or_default();
    !rest.is_empty() && rest.len() <= 64 && rest.bytes().all(|b| b.is_ascii_alphanumeric())
}

fn sandboxes(pool: &Pool) -> Result<(OwnedFd, PathBuf)> {
    let path = pool.base_path().join("s");
    let fd = open_dir(pool.base(), "s").map_err(EngineError::io("open", &path))?;
    Ok((fd, path))
}

/// Makes the directory of a new sandbox and its record, durable. Its `live` subvolume is made here too where
/// its place is the pool (owned by root and empty; the caller fills it), and `live_uuid` set from it.
pub fn create_sandbox(pool: &Pool, mut record: SandboxRecord) -> Result<(SandboxDir, SandboxRecord)> {
    pool.guard_space()?;
    if !valid_id(&record.id) {
        return Err(EngineError::Damaged {
            what: "this is no id of a sandbox".into(),
            path: PathBuf::from(text::shown(&record.id)),
        });
    }
    let (all, path) = sandboxes(pool)?;
    let path = path.join(&record.id);
    rustix::fs::mkdirat(&all, record.id.as_str(), Mode::RWXU)
        .map_err(|e| EngineError::io("make", &path)(e.into()))?;
    fault_point("sandbox-made");
    let dir = SandboxDir::open(pool, &record.id)?;
    // tells others that somebody is at it, as long as the value lives
    dir.claim()?;
    for folder in ["snaps", "tmp"] {
        super::pool::make_folder(&dir.fd, folder, &dir.path)?;
    }
    if record.place == Place::Pool {
        ioctl::subvol_create(&dir.fd, LIVE.as_bytes())
            .map_err(EngineError::io("make", dir.path.join(LIVE)))?;
        record.live_uuid = dir.live_uuid()?.unwrap_or_default();
    }
    fault_point("sandbox-filled");
    dir.write_record(&record)?;
    fault_point("sandbox-recorded");
    Ok((dir, record))
}

/// All sandboxes of the pool, sorted by id, damaged ones included.
pub fn list_sandboxes(pool: &Pool) -> Result<Vec<Listed>> {
    let (all, path) = sandboxes(pool)?;
    let mut out = Vec::new();
    for name in names(&all, &path)? {
        let Ok(id) = String::from_utf8(name) else { continue };
        if !valid_id(&id) {
            continue;
        }
        let dir = match SandboxDir::open(pool, &id) {
            Ok(dir) => dir,
            // removed meanwhile
            Err(EngineError::Io { source, .. }) if source.raw_os_error() == Some(libc::ENOENT) => continue,
            Err(e) => return Err(e),
        };
        let mut record = dir.record().map_err(|e| e.to_string());
        let live_uuid = dir.live_uuid().unwrap_or_else(|e| {
            // what the disk cannot give must not hide the other sandboxes
            record = Err(e.to_string());
            None
        });
        out.push(Listed {
            id,
            record,
            live_uuid,
        });
    }
    out.sort_by(|a, b| a.id.cmp(&b.id));
    Ok(out)
}

/// The names in an open directory, in no order.
pub(crate) fn names(dir: &OwnedFd, path: &Path) -> Result<Vec<Vec<u8>>> {
    let mut out = Vec::new();
    let read = rustix::fs::Dir::read_from(dir).map_err(|e| EngineError::io("list", path)(e.into()))?;
    for entry in read {
        let entry = entry.map_err(|e| EngineError::io("list", path)(e.into()))?;
        let name = entry.file_name().to_bytes();
        if name != b"." && name != b".." {
            out.push(name.to_vec());
        }
    }
    Ok(out)
}

/// Reads an extended attribute of an open file; `None` if it has none of this name.
pub(crate) fn read_xattr(fd: impl AsFd, name: &str) -> io::Result<Option<Vec<u8>>> {
    let mut value = Vec::with_capacity(16 << 10);
    match rustix::fs::fgetxattr(fd, name, rustix::buffer::spare_capacity(&mut value)) {
        Ok(_) => Ok(Some(value)),
        Err(rustix::io::Errno::NODATA) => Ok(None),
        Err(e) => Err(e.into()),
    }
}

/// True for the id of a vault of another part than a workspace: `ct-` and letters and digits. It lies beside the
/// sandboxes, and is none.
pub(crate) fn valid_part(id: &str) -> bool {
    let rest = id.strip_prefix("ct-").unwrap_or_default();
    !rest.is_empty() && rest.len() <= 64 && rest.bytes().all(|b| b.is_ascii_alphanumeric())
}

impl SandboxDir {
    /// The vault of another part than a workspace; `None` if there is none.
    pub fn open_part(pool: &Pool, id: &str) -> Result<Option<Self>> {
        let (all, path) = sandboxes(pool)?;
        let path = path.join(id);
        if !valid_part(id) {
            return Err(EngineError::NoPath { path });
        }
        match open_dir(&all, id) {
            Ok(fd) => Ok(Some(Self {
                id: id.to_owned(),
                fd,
                path,
            })),
            Err(e) if e.raw_os_error() == Some(libc::ENOENT) => Ok(None),
            Err(e) => Err(EngineError::io("open", &path)(e)),
        }
    }

    /// As [`SandboxDir::open_part`], made if it is not there.
    pub fn make_part(pool: &Pool, id: &str) -> Result<Self> {
        if let Some(dir) = Self::open_part(pool, id)? {
            return Ok(dir);
        }
        let (all, path) = sandboxes(pool)?;
        super::pool::make_folder(&all, id, &path)?;
        Self::open_part(pool, id)?.ok_or_else(|| EngineError::NoPath { path: path.join(id) })
    }

    /// Opens the directory of a sandbox.
    pub fn open(pool: &Pool, id: &str) -> Result<Self> {
        let path = pool.base_path().join("s").join(id);
        if !valid_id(id) {
            return Err(EngineError::NoPath { path });
        }
        let (all, _) = sandboxes(pool)?;
        let fd = open_dir(&all, id).map_err(EngineError::io("open the sandbox", &path))?;
        Ok(Self {
            id: id.to_owned(),
            fd,
            path,
        })
    }

    /// The sandbox's id.
    pub fn id(&self) -> &str {
        &self.id
    }
    /// The open directory.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
    /// Its path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Opens a directory in it (`snaps`, `tmp`, `ops`), making it if it is not there.
    pub fn folder(&self, name: &str) -> Result<OwnedFd> {
        super::pool::make_folder(&self.fd, name, &self.path)?;
        open_dir(&self.fd, name).map_err(EngineError::io("open", self.path.join(name)))
    }

    /// The root of the live subvolume, where it is in the pool.
    pub fn live(&self) -> Result<Option<OwnedFd>> {
        let path = self.path.join(LIVE);
        let fd = match open_dir(&self.fd, LIVE) {
            Ok(fd) => fd,
            Err(e) if e.raw_os_error() == Some(libc::ENOENT) => return Ok(None),
            Err(e) => return Err(EngineError::io("open", &path)(e)),
        };
        match root_info(&fd).map_err(EngineError::io("look at", &path))? {
            Some(_) => Ok(Some(fd)),
            None => Err(EngineError::NotManaged { path }),
        }
    }

    /// The uuid of the live subvolume in the pool, if it is there and is one.
    pub fn live_uuid(&self) -> Result<Option<String>> {
        match self.live() {
            Ok(Some(fd)) => Ok(root_info(&fd)
                .map_err(EngineError::io("look at", self.path.join(LIVE)))?
                .map(|i| hex(&i.uuid))),
            Ok(None) | Err(EngineError::NotManaged { .. }) => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// The sandbox's record. [`EngineError::Damaged`] names its directory.
    pub fn record(&self) -> Result<SandboxRecord> {
        let value =
            read_xattr(&self.fd, SANDBOX_XATTR).map_err(EngineError::io("read the record of", &self.path))?;
        let damaged = |what: String| EngineError::Damaged {
            what: format!("sandbox {} is damaged, {what}", self.id),
            path: self.path.clone(),
        };
        let record: SandboxRecord = parse_record(value.as_deref()).map_err(damaged)?;
        if record.id == self.id {
            Ok(record)
        } else {
            Err(damaged("its record is that of another sandbox".into()))
        }
    }

    /// Writes the record; durable when it returns.
    pub fn write_record(&self, record: &SandboxRecord) -> Result<()> {
        let json = serde_json::to_vec(record)
            .map_err(|e| EngineError::io("write the record of", &self.path)(e.into()))?;
        rustix::fs::fsetxattr(&self.fd, SANDBOX_XATTR, &json, XattrFlags::empty())
            .map_err(|e| EngineError::io("write the record of", &self.path)(e.into()))?;
        ioctl::fs_sync(&self.fd).map_err(EngineError::io("sync", &self.path))
    }

    /// Locks the directory itself, for as long as this value lives; false if another process has it locked.
    fn claim(&self) -> Result<bool> {
        match rustix::fs::flock(&self.fd, rustix::fs::FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(true),
            Err(rustix::io::Errno::WOULDBLOCK) => Ok(false),
            Err(e) => Err(EngineError::io("lock", &self.path)(e.into())),
        }
    }

    /// Waits for the lock of the directory itself; ends with the value.
    pub fn lock(&self) -> Result<File> {
        let again = reopen(&self.fd).map_err(EngineError::io("open", &self.path))?;
        lock_dir(again, &self.path, std::time::Duration::from_secs(30))
    }

    /// True for what a process left that was killed while it made a sandbox: not tracked, nothing in it, no
    /// checkpoint, no operation, and nobody is at it.
    pub fn is_unmade(&self) -> Result<bool> {
        let record =
            read_xattr(&self.fd, SANDBOX_XATTR).map_err(EngineError::io("read the record of", &self.path))?;
        if record.is_some() && self.record().map_or(true, |r| r.tracked) {
            return Ok(false);
        }
        for folder in ["snaps", "ops", LIVE] {
            let path = self.path.join(folder);
            match open_dir(&self.fd, folder) {
                Ok(fd) if names(&fd, &path)?.is_empty() => {}
                Err(e) if e.raw_os_error() == Some(libc::ENOENT) => {}
                Ok(_) => return Ok(false),
                Err(e) => return Err(EngineError::io("open", &path)(e)),
            }
        }
        self.claim()
    }

    /// A record from what is on disk, for one that is damaged: the workspace's path must be known from
    /// elsewhere, the rest comes from the live subvolume. Not written.
    pub fn rebuild(&self, workspace: &Path, live: impl AsFd, place: Place) -> Result<SandboxRecord> {
        let not_managed = || EngineError::NotManaged {
            path: workspace.to_owned(),
        };
        let info = root_info(live.as_fd())
            .map_err(EngineError::io("look at", workspace))?
            .ok_or_else(not_managed)?;
        let stat = rustix::fs::fstat(live).map_err(|e| EngineError::io("look at", workspace)(e.into()))?;
        Ok(SandboxRecord {
            v: RECORD_VERSION,
            id: self.id.clone(),
            path: workspace.to_owned(),
            created: DateTime::from_timestamp(info.otime.0, 0).unwrap_or_default(),
            live_uuid: hex(&info.uuid),
            place,
            uid: stat.st_uid,
            gid: stat.st_gid,
            tracked: true,
            stub: None,
            root: None,
            extra: serde_json::Map::new(),
        })
    }

    /// Removes the sandbox for good: its checkpoints, its live subvolume in the pool with all inside it,
    /// its directory. The caller has asked.
    pub fn destroy(self, pool: &Pool) -> Result<()> {
        fn io(path: &Path) -> impl FnOnce(io::Error) -> EngineError {
            EngineError::io("remove", path)
        }
        for folder in ["snaps", "tmp"] {
            let dir = self.folder(folder)?;
            let path = self.path.join(folder);
            for name in names(&dir, &path)? {
                let one = path.join(OsString::from_vec(name.clone()));
                let inner = open_dir(&dir, OsString::from_vec(name.clone())).map_err(io(&one))?;
                for part in names(&inner, &one)? {
                    let part = String::from_utf8_lossy(&part).into_owned();
                    subvolume::destroy(&inner, &part).map_err(io(&one.join(&part)))?;
                }
                rustix::fs::unlinkat(&dir, name.as_slice(), rustix::fs::AtFlags::REMOVEDIR)
                    .map_err(|e| io(&one)(e.into()))?;
            }
        }
        if self.live()?.is_some() {
            subvolume::destroy(&self.fd, LIVE).map_err(io(&self.path.join(LIVE)))?;
        }
        let (all, _) = sandboxes(pool)?;
        remove_tree(&all, Path::new(&self.id), 0).map_err(io(&self.path))?;
        ioctl::fs_sync(pool.root()).map_err(EngineError::io("sync", pool.mount()))
    }
}

/// Removes a directory with plain files and directories in it (never a subvolume: that fails).
fn remove_tree(parent: &OwnedFd, name: &Path, depth: usize) -> io::Result<()> {
    if depth > 32 {
        return Err(io::Error::from_raw_os_error(libc::ELOOP));
    }
    let dir = open_dir(parent, name)?;
    if root_info(&dir)?.is_some() {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "a subvolume is in it",
        ));
    }
    for entry in rustix::fs::Dir::read_from(&dir)? {
        let entry = entry?;
        let inner = entry.file_name();
        if inner.to_bytes() == b"." || inner.to_bytes() == b".." {
            continue;
        }
        let stat = rustix::fs::statat(&dir, inner, rustix::fs::AtFlags::SYMLINK_NOFOLLOW)?;
        if rustix::fs::FileType::from_raw_mode(stat.st_mode).is_dir() {
            remove_tree(
                &dir,
                Path::new(std::ffi::OsStr::from_bytes(inner.to_bytes())),
                depth + 1,
            )?;
        } else {
            rustix::fs::unlinkat(&dir, inner, rustix::fs::AtFlags::empty())?;
        }
    }
    drop(dir);
    rustix::fs::unlinkat(parent, name, rustix::fs::AtFlags::REMOVEDIR).map_err(Into::into)
}

/// Takes an exclusive lock on an open directory, waiting for other processes at most `limit`.
pub(crate) fn lock_dir(dir: OwnedFd, path: &Path, limit: std::time::Duration) -> Result<File> {
    let file = File::from(dir);
    let start = std::time::Instant::now();
    loop {
        match rustix::fs::flock(&file, rustix::fs::FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(file),
            Err(rustix::io::Errno::WOULDBLOCK) if start.elapsed() < limit => {
                std::thread::sleep(std::time::Duration::from_micros(500));
            }
            Err(rustix::io::Errno::WOULDBLOCK) => {
                return Err(EngineError::Refused {
                    why: format!("another respool holds {}", text::shown_path(path)),
                    path: Some(path.to_owned()),
                    hint: Some("wait for it, or end it if it hangs".into()),
                });
            }
            Err(e) => return Err(EngineError::io("lock", path)(e.into())),
        }
    }
}

/// Opens a file for [`lock_dir`]: a new open file of the same directory.
pub(crate) fn reopen(dir: impl AsFd) -> io::Result<OwnedFd> {
    rustix::fs::openat(
        dir,
        ".",
        OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC,
        Mode::empty(),
    )
    .map_err(Into::into)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_cannot_leave_the_catalog() {
        for bad in ["", "sb-", "..", "sb-..", "sb-a/b", "x", "sb-\u{e9}"] {
            assert!(!valid_id(bad), "{bad}");
        }
        assert!(valid_id("sb-0123456789"));
    }
}
