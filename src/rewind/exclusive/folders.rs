//! The folder of a template's workspaces, and the folders in it: the owner's, and no links.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::fs::{AtFlags, Gid, Mode, OFlags, Uid};
use rustix::io::Errno;

use super::refused;
use crate::engine::EngineError;
use crate::engine::catalog::SandboxRecord;
use crate::rewind::aside::names;
use crate::rewind::error::Result;
use crate::sandbox::bind;
use crate::sandbox::exclusive::folder_of;
use crate::text::shown_path;

/// The folder of the workspaces, made if it is not there. It must belong to the owner of the template.
pub(super) fn workspaces(template: &SandboxRecord) -> Result<OwnedFd> {
    let path = folder_of(&template.path);
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(EngineError::NoPath { path }.into());
    };
    let above = bind::open_exact(parent).map_err(EngineError::io("open", parent))?;
    made(&above, name, template).map_err(EngineError::io("make", &path))?;
    entered(&above, Path::new(name), template, &path)
}

/// Makes a folder like the template's; true if it was not there.
fn made(parent: impl AsFd, name: impl AsRef<Path>, template: &SandboxRecord) -> std::io::Result<bool> {
    let name = name.as_ref();
    match rustix::fs::mkdirat(parent.as_fd(), name, Mode::from_raw_mode(0o755)) {
        Ok(()) => {}
        Err(Errno::EXIST) => return Ok(false),
        Err(e) => return Err(e.into()),
    }
    if rustix::process::geteuid().is_root() {
        let (uid, gid) = (Uid::from_raw(template.uid), Gid::from_raw(template.gid));
        rustix::fs::chownat(parent, name, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW)?;
    }
    Ok(true)
}

/// Opens a folder of the owner's: no link, nobody else's.
fn entered(parent: impl AsFd, name: &Path, template: &SandboxRecord, path: &Path) -> Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let fd = match rustix::fs::openat(parent, name, flags, Mode::empty()) {
        Ok(fd) => fd,
        Err(Errno::LOOP | Errno::NOTDIR) => {
            let why = format!("{} is a link or no folder", shown_path(path));
            return Err(refused(path, why, "move it away"));
        }
        Err(e) => return Err(EngineError::io("open", path)(e.into()).into()),
    };
    let uid = bind::stat(&fd).map_err(EngineError::io("look at", path))?.st_uid;
    if uid != template.uid {
        let why = format!("{} belongs to user {uid}", shown_path(path));
        return Err(refused(path, why, "it must belong to the owner of the template"));
    }
    Ok(fd)
}

/// A folder in that of the workspaces, made if it is not there; true if it was made.
pub(super) fn member(folder: &OwnedFd, template: &SandboxRecord, name: &str) -> Result<(OwnedFd, bool)> {
    let path = folder_of(&template.path).join(name);
    let fresh = made(folder, name, template).map_err(EngineError::io("make", &path))?;
    Ok((entered(folder, Path::new(name), template, &path)?, fresh))
}

/// Refuses a folder that holds something.
pub(super) fn free(folder: &OwnedFd, template: &SandboxRecord, name: &str, path: &Path) -> Result<()> {
    if rustix::fs::statat(folder, name, AtFlags::SYMLINK_NOFOLLOW).is_err() {
        return Ok(());
    }
    let there = entered(folder, Path::new(name), template, path)?;
    let held = names(&there).map_err(EngineError::io("list", path))?;
    if held.is_empty() {
        return Ok(());
    }
    let why = format!("{} is there, and is not empty", shown_path(path));
    let hint = format!(
        "move it away; or track it as it is: respool track {}",
        crate::text::shell_word(path)
    );
    Err(refused(path, why, &hint))
}
