//! Lets SQLite read a [`Frozen`] database: a file system of its own in which there is one file, which cannot be written.

use std::borrow::Cow;
use std::collections::HashMap;
use std::ffi::CString;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex, OnceLock, PoisonError};

use rusqlite::{Connection, OpenFlags};
use sqlite_plugin::flags::{AccessFlags, LockLevel, OpenOpts};
use sqlite_plugin::vars;
use sqlite_plugin::vfs::{RegisterOpts, Vfs, VfsHandle, VfsResult, register_static};

use super::frozen::Frozen;

const NAME: &str = "respool-frozen";

/// The databases that are being opened, by the names that they are opened with.
static OPENING: LazyLock<Mutex<HashMap<String, Arc<Frozen>>>> = LazyLock::new(Mutex::default);
static NEXT: AtomicU64 = AtomicU64::new(0);
static REGISTERED: OnceLock<bool> = OnceLock::new();

struct Files;

struct Handle(Arc<Frozen>);

impl VfsHandle for Handle {
    fn readonly(&self) -> bool {
        true
    }
    fn in_memory(&self) -> bool {
        false
    }
}

impl Vfs for Files {
    type Handle = Handle;

    fn canonical_path<'a>(&self, path: Cow<'a, str>) -> VfsResult<Cow<'a, str>> {
        Ok(path)
    }

    fn open(&self, path: Option<&str>, _: OpenOpts) -> VfsResult<Handle> {
        let opening = OPENING.lock().unwrap_or_else(PoisonError::into_inner);
        let frozen = path.and_then(|p| opening.get(p));
        frozen.map(|f| Handle(Arc::clone(f))).ok_or(vars::SQLITE_CANTOPEN)
    }

    fn delete(&self, _: &str) -> VfsResult<()> {
        Err(vars::SQLITE_READONLY)
    }

    fn access(&self, _: &str, _: AccessFlags) -> VfsResult<bool> {
        // no log and no journal
        Ok(false)
    }

    fn file_size(&self, handle: &mut Handle) -> VfsResult<usize> {
        Ok(handle.0.len() as usize)
    }

    fn truncate(&self, _: &mut Handle, _: usize) -> VfsResult<()> {
        Err(vars::SQLITE_READONLY)
    }

    fn write(&self, _: &mut Handle, _: usize, _: &[u8]) -> VfsResult<usize> {
        Err(vars::SQLITE_READONLY)
    }

    fn read(&self, handle: &mut Handle, offset: usize, data: &mut [u8]) -> VfsResult<usize> {
        handle
            .0
            .read(offset as u64, data)
            .map_err(|_| vars::SQLITE_IOERR_READ)
    }

    fn lock(&self, _: &mut Handle, _: LockLevel) -> VfsResult<()> {
        Ok(())
    }

    fn unlock(&self, _: &mut Handle, _: LockLevel) -> VfsResult<()> {
        Ok(())
    }

    fn check_reserved_lock(&self, _: &mut Handle) -> VfsResult<bool> {
        Ok(false)
    }

    fn close(&self, _: Handle) -> VfsResult<()> {
        Ok(())
    }
}

/// Opens a database. Nothing that its own schema names is trusted, and nothing is kept outside memory.
pub(super) fn connect(frozen: &Arc<Frozen>) -> rusqlite::Result<Connection> {
    let registered = REGISTERED.get_or_init(|| {
        let name = CString::new(NAME).unwrap_or_default();
        let options = RegisterOpts { make_default: false };
        register_static(name, Files, options).is_ok()
    });
    if !registered {
        return Err(rusqlite::Error::InvalidPath(NAME.into()));
    }
    let name = format!("frozen-{}", NEXT.fetch_add(1, Ordering::Relaxed));
    let opening = || OPENING.lock().unwrap_or_else(PoisonError::into_inner);
    opening().insert(name.clone(), Arc::clone(frozen));
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let opened = Connection::open_with_flags_and_vfs(&name, flags, NAME);
    opening().remove(&name);
    let db = opened?;
    for (pragma, value) in [
        ("temp_store", "MEMORY"),
        ("query_only", "ON"),
        ("trusted_schema", "OFF"),
        ("cell_size_check", "ON"),
    ] {
        db.pragma_update(None, pragma, value)?;
    }
    Ok(db)
}
