//! The contents of files, kept once under the hash of their bytes.
//!
//! The hash (BLAKE3) is that of the size, then of every block of 64 KiB that is not all zero, each after its
//! number: holes need not be read, and where they lie does not matter.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rayon::prelude::*;
use rustix::fs::{OFlags, fstat};

use crate::engine::changes::content::{next_data, read_at};
use crate::engine::changes::node::Hash;
use crate::engine::restore::Objects;
use crate::engine::{EngineError, Result, ioctl, random_id};

/// The unit of the hash in bytes.
const BLOCK: usize = 64 << 10;
/// Bytes read at once.
const STEP: usize = 16 * BLOCK;
/// From this size on a content is shared with the file system's help, where it can.
const SHARED: u64 = 1 << 20;
/// How the names of contents begin that are just being written.
const TEMP: &str = "tmp-";
/// Up to so many new files are flushed on their own, side by side, so that they share the journal's commits; else
/// the file system as a whole, with all that others wrote to it.
const FEW: usize = 64;

/// The contents of one sandbox's checkpoints.
#[derive(Debug)]
pub(super) struct Store {
    path: PathBuf,
    /// What was added for a checkpoint that is not there yet.
    fresh: Mutex<Vec<PathBuf>>,
}

/// Hashes the bytes of an open file, `each` block that is not all zero is handed on. Fails if it gets shorter
/// meanwhile.
pub(super) fn digest(
    fd: BorrowedFd<'_>,
    each: &mut dyn FnMut(u64, &[u8]) -> io::Result<()>,
) -> io::Result<Hash> {
    let size = u64::try_from(fstat(fd)?.st_size).unwrap_or(0);
    let mut hasher = blake3::Hasher::new();
    hasher.update(&size.to_le_bytes());
    let mut buffer = vec![0; STEP.min(size as usize)];
    let mut at = 0;
    while at < size {
        if size > STEP as u64 {
            let Some(data) = next_data(fd, at)? else { break };
            at = at.max(data - data % BLOCK as u64);
        }
        let wanted = (STEP as u64).min(size - at) as usize;
        if read_at(fd, &mut buffer[..wanted], at)? < wanted {
            return Err(io::Error::from(io::ErrorKind::UnexpectedEof));
        }
        for (n, block) in buffer[..wanted].chunks(BLOCK).enumerate() {
            if block.iter().any(|b| *b != 0) {
                let start = at + (n * BLOCK) as u64;
                hasher.update(&(start / BLOCK as u64).to_le_bytes());
                hasher.update(block);
                each(start, block)?;
            }
        }
        at += wanted as u64;
    }
    Ok(*hasher.finalize().as_bytes())
}

fn name(hash: &Hash) -> String {
    blake3::Hash::from_bytes(*hash).to_hex().to_string()
}

impl Store {
    pub fn new(path: PathBuf) -> Self {
        Self {
            path,
            fresh: Mutex::default(),
        }
    }

    fn fresh(&self) -> MutexGuard<'_, Vec<PathBuf>> {
        self.fresh.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn place(&self, hash: &Hash) -> PathBuf {
        let name = name(hash);
        self.path.join(&name[..2]).join(name)
    }

    /// The hash of a file's bytes; they are kept if they are not yet.
    pub fn put(&self, file: &OwnedFd, likely: bool) -> io::Result<Hash> {
        if likely {
            let hash = digest(file.as_fd(), &mut |_, _| Ok(()))?;
            if self.place(&hash).exists() {
                return Ok(hash);
            }
        }
        let temp = self.path.join(random_id(TEMP));
        let kept = self.write(file, &temp);
        if kept.is_err() {
            // the error is what matters; a leftover goes with the next sweep
            let removed = fs::remove_file(&temp);
            tracing::debug!(?removed, "took back a content that could not be kept");
        }
        kept
    }

    fn write(&self, file: &OwnedFd, temp: &Path) -> io::Result<Hash> {
        let to = OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(temp)?;
        let size = u64::try_from(fstat(file)?.st_size).unwrap_or(0);
        let shared = size >= SHARED && ioctl::clone_range(file.as_fd(), 0, 0, to.as_fd(), 0).is_ok();
        let hash = if shared {
            digest(to.as_fd(), &mut |_, _| Ok(()))?
        } else {
            to.set_len(size)?;
            digest(file.as_fd(), &mut |at, block| to.write_all_at(block, at))?
        };
        to.set_permissions(fs::Permissions::from_mode(0o400))?;
        let place = self.place(&hash);
        if place.exists() {
            fs::remove_file(temp)?;
            return Ok(hash);
        }
        let folder = place.parent().unwrap_or(&self.path);
        match DirBuilder::new().mode(0o700).create(folder) {
            Err(e) if e.kind() != io::ErrorKind::AlreadyExists => return Err(e),
            _ => {}
        }
        fs::rename(temp, &place)?;
        self.fresh().push(place);
        Ok(hash)
    }

    /// Makes durable what was added.
    pub fn flush(&self) -> io::Result<()> {
        let fresh = self.fresh().clone();
        if fresh.is_empty() {
            return Ok(());
        }
        let root = File::open(&self.path)?;
        if fresh.len() > FEW {
            return Ok(rustix::fs::syncfs(&root)?);
        }
        sync_files(&fresh)?;
        root.sync_all()
    }

    /// Nothing of what was added is taken back any more: its checkpoint is there.
    pub fn settle(&self) {
        self.fresh().clear();
    }

    /// Removes what was added: its checkpoint failed.
    pub fn take_back(&self) {
        for path in std::mem::take(&mut *self.fresh()) {
            if let Err(e) = fs::remove_file(&path) {
                tracing::warn!("{} stays until the next sweep: {e}", path.display());
            }
        }
    }

    /// Removes every content for which `used` says no, and what was never finished.
    pub fn sweep(&self, used: &dyn Fn(&str) -> bool) -> Result<()> {
        let io = |path: PathBuf| EngineError::io("remove", path);
        for folder in list(&self.path)? {
            if !folder.is_dir() {
                fs::remove_file(&folder).map_err(io(folder.clone()))?;
                continue;
            }
            for object in list(&folder)? {
                let name = object.file_name().unwrap_or_default().to_string_lossy();
                if !used(&name) {
                    fs::remove_file(&object).map_err(io(object.clone()))?;
                }
            }
        }
        Ok(())
    }
}

fn list(folder: &Path) -> Result<Vec<PathBuf>> {
    fs::read_dir(folder)
        .and_then(|all| all.map(|e| Ok(e?.path())).collect())
        .map_err(EngineError::io("list", folder))
}

/// Makes these files and their folders durable.
pub(super) fn sync_files(all: &[PathBuf]) -> io::Result<()> {
    let mut folders: Vec<&Path> = all.iter().filter_map(|p| p.parent()).collect();
    folders.sort_unstable();
    folders.dedup();
    all.par_iter().try_for_each(|path| File::open(path)?.sync_all())?;
    folders.iter().try_for_each(|path| File::open(path)?.sync_all())
}

/// The name under which a content is kept.
pub(super) fn object_name(hash: &Hash) -> String {
    name(hash)
}

/// Bytes allocated for everything below a folder.
pub(super) fn allocated(folder: &Path) -> io::Result<u64> {
    let mut sum = 0;
    let mut todo = vec![folder.to_owned()];
    while let Some(folder) = todo.pop() {
        for entry in fs::read_dir(&folder)? {
            let entry = entry?;
            let meta = entry.metadata()?;
            sum += meta.blocks() * 512;
            if meta.is_dir() {
                todo.push(entry.path());
            }
        }
    }
    Ok(sum)
}

impl Objects for Store {
    fn open(&self, hash: &Hash) -> io::Result<OwnedFd> {
        let file = OpenOptions::new()
            .read(true)
            .custom_flags((OFlags::NOFOLLOW | OFlags::NONBLOCK).bits() as i32)
            .open(self.place(hash))?;
        if file.metadata()?.is_file() {
            Ok(file.into())
        } else {
            Err(io::Error::other("it is no regular file"))
        }
    }

    fn check(&self, hash: &Hash) -> io::Result<()> {
        let found = digest(self.open(hash)?.as_fd(), &mut |_, _| Ok(()))?;
        if found == *hash {
            return Ok(());
        }
        Err(io::Error::new(
            io::ErrorKind::InvalidData,
            "its kept content is damaged",
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(path: &Path) -> OwnedFd {
        File::open(path).expect("open").into()
    }

    #[test]
    fn contents_are_kept_once_sparse_and_checked() {
        let dir = tempfile::tempdir().expect("tempdir");
        let objects = dir.path().join("objects");
        fs::create_dir(&objects).expect("objects");
        let store = Store::new(objects);
        let file = dir.path().join("f");
        let f = File::create(&file).expect("create");
        f.set_len(64 << 20).expect("size");
        f.write_all_at(b"tail", 40 << 20).expect("write");
        let hash = store.put(&open(&file), false).expect("put");
        let place = store.place(&hash);
        let meta = fs::metadata(&place).expect("kept");
        assert_eq!((meta.len(), meta.mode() & 0o7777), (64 << 20, 0o400));
        assert!(meta.blocks() * 512 < 1 << 20, "holes stay holes");
        // the same bytes, written out, are the same content
        let mut bytes = vec![0; 64 << 20];
        bytes[40 << 20..(40 << 20) + 4].copy_from_slice(b"tail");
        fs::write(&file, &bytes).expect("write");
        assert_eq!(store.put(&open(&file), true).expect("again"), hash);
        fs::write(&file, &bytes[1..]).expect("write");
        assert_ne!(store.put(&open(&file), true).expect("other"), hash);
        store.check(&hash).expect("whole");
        fs::set_permissions(&place, fs::Permissions::from_mode(0o600)).expect("chmod");
        OpenOptions::new()
            .write(true)
            .open(&place)
            .and_then(|f| f.write_all_at(b"x", 7))
            .expect("damage");
        assert!(store.check(&hash).is_err());
        store.sweep(&|name| name == object_name(&hash)).expect("sweep");
        assert!(place.exists());
        store.sweep(&|_| false).expect("sweep");
        assert!(!place.exists());
    }
}
