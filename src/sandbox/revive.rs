//! A workspace on a Btrfs that exists was removed with all that was in it, as `rm -rf` of its owner does: an empty one
//! takes its place, so that its checkpoints can be looked at and gone back to.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{Gid, Mode, Uid};

use super::bind;
use crate::engine::catalog::{Place, SandboxDir, SandboxRecord};
use crate::engine::pool::Pool;
use crate::engine::{EngineError, Result, ioctl, subvolume};
use crate::text::shown_path;

/// Levels of subvolumes in subvolumes that are looked into.
const DEEPEST: usize = 16;

/// The record with the new live tree, where the old one was removed; `None` where it was not. Refused where it was only
/// moved.
pub(super) fn revived(
    pool: &Pool,
    dir: &SandboxDir,
    record: &SandboxRecord,
) -> Result<Option<SandboxRecord>> {
    let gone =
        |path: &Path| std::fs::symlink_metadata(path).is_err_and(|e| e.kind() == io::ErrorKind::NotFound);
    let path = &record.path;
    if record.place != Place::Own || !record.tracked || !gone(path) {
        return Ok(None);
    }
    let (Some(above), Some(name)) = (path.parent(), path.file_name()) else {
        return Ok(None);
    };
    let parent = match bind::open_exact(above) {
        Ok(parent) => parent,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(EngineError::io("open", above)(e)),
    };
    if !ioctl::fs_id(&parent).is_ok_and(|id| id == pool.fsid()) {
        return Ok(None); // not mounted
    }
    // of several processes one makes it
    let _lock = dir.lock()?;
    if !gone(path) {
        return dir.record().map(Some);
    }
    if let Some(now) = moved(pool, above, &record.live_uuid)? {
        return Err(EngineError::OtherRoot {
            path: path.clone(),
            what: "subvolume",
            recorded: format!("the uuid {}", record.live_uuid),
            present: format!("at {}", shown_path(&now)),
        });
    }
    pool.guard_space()?;
    let made = || -> io::Result<String> {
        ioctl::subvol_create(&parent, name.as_encoded_bytes())?;
        // not by its path, which may lead elsewhere by now
        let fresh = subvolume::open_dir(parent.as_fd(), Path::new(name))?;
        rustix::fs::fchmod(&fresh, Mode::from_raw_mode(0o755))?;
        rustix::fs::fchown(
            &fresh,
            Some(Uid::from_raw(record.uid)),
            Some(Gid::from_raw(record.gid)),
        )?;
        let info = subvolume::root_info(&fresh)?;
        Ok(info.map(|i| subvolume::hex(&i.uuid)).unwrap_or_default())
    };
    let mut record = record.clone();
    record.live_uuid = made().map_err(EngineError::io("make again", path))?;
    dir.write_record(&record)?;
    tracing::warn!(
        "{} was removed: an empty folder is in its place; respool rewind brings its content back",
        shown_path(path)
    );
    Ok(Some(record))
}

/// Where in the file system the subvolume with this uuid is, as far as this user can see: below the top level of a
/// mounted pool, else in the subvolume that `above` is in.
fn moved(pool: &Pool, above: &Path, uuid: &str) -> Result<Option<PathBuf>> {
    let look = |e: io::Error| EngineError::io("look for subvolumes in", above)(e);
    let top = subvolume::root_info(pool.root()).map_err(look)?;
    if top.is_some() {
        return below(pool.root(), Path::new("/"), uuid, 0).map_err(look);
    }
    for folder in above.ancestors() {
        let Ok(fd) = bind::open_folder(folder) else { break };
        if subvolume::root_info(&fd).map_err(look)?.is_some() {
            return below(&fd, folder, uuid, 0).map_err(look);
        }
    }
    Ok(None)
}

fn below(root: impl AsFd, path: &Path, uuid: &str, depth: usize) -> io::Result<Option<PathBuf>> {
    if depth == DEEPEST {
        return Ok(None);
    }
    let root = root.as_fd();
    // what this user may not see is not where this user's workspace is
    let nested = match subvolume::nested(root) {
        Err(e) if e.kind() == io::ErrorKind::PermissionDenied => return Ok(None),
        other => other?,
    };
    for inner in nested {
        let at = path.join(&inner.path);
        let Ok(fd) = subvolume::open_dir(root, &inner.path) else {
            continue; // removed meanwhile
        };
        if is(&fd, uuid)? {
            return Ok(Some(at));
        }
        if let Some(found) = below(&fd, &at, uuid, depth + 1)? {
            return Ok(Some(found));
        }
    }
    Ok(None)
}

fn is(fd: &OwnedFd, uuid: &str) -> io::Result<bool> {
    Ok(subvolume::root_info(fd)?.is_some_and(|i| subvolume::hex(&i.uuid) == uuid))
}
