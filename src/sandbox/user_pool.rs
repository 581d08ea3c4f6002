//! Where an ordinary user's checkpoints lie on a Btrfs that exists: in a folder of his own on the same file
//! system, outside the workspace, and on a path that no other user can change.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use super::bind;
use crate::engine::{EngineError, Result, ioctl};
use crate::text::shown_path;

/// The pool's folder in the state folder.
const IN_STATE: &str = "btrfs";
/// The pool's folder anywhere else.
const ELSEWHERE: &str = ".respool";

/// The folder for the checkpoints of `workspace`: in `named` if that is given; else in the state folder, if that
/// is on the same file system; else in the highest of the folders above the workspace that belong to this user.
/// Nothing is made.
pub fn place(workspace: &Path, state_dir: &Path, named: Option<&Path>) -> Result<PathBuf> {
    let fsid = fs_id(workspace)?;
    if let Some(folder) = named {
        return in_named(workspace, &fsid, folder);
    }
    let there = state_dir.ancestors().find(|p| p.exists());
    if there.is_some_and(|p| fs_id(p).is_ok_and(|id| id == fsid)) {
        return Ok(state_dir.join(IN_STATE));
    }
    let highest = workspace
        .ancestors()
        .skip(1)
        .take_while(|p| is_own(p) && fs_id(p).is_ok_and(|id| id == fsid))
        .last();
    match highest.filter(|p| nobody_elses(p)) {
        Some(folder) => Ok(folder.join(ELSEWHERE)),
        None => Err(EngineError::Refused {
            why: format!(
                "there is no folder of yours beside {} for its checkpoints, on the same file system",
                shown_path(workspace)
            ),
            path: Some(workspace.to_owned()),
            hint: Some(
                "name one: --pool FOLDER; or run it as root: sudo respool track ...; or: --vault copy".into(),
            ),
        }),
    }
}

fn in_named(workspace: &Path, fsid: &[u8; 16], folder: &Path) -> Result<PathBuf> {
    let folder = folder.canonicalize().map_err(EngineError::io("find", folder))?;
    let refused = |why: String| EngineError::Refused {
        why,
        path: Some(folder.clone()),
        hint: Some("name a folder of yours on the file system of the workspace, and outside it".into()),
    };
    let shown = shown_path(&folder);
    if folder.starts_with(workspace) {
        return Err(refused(format!(
            "{shown} lies in the workspace: a rewind would reach it"
        )));
    }
    if !fs_id(&folder).is_ok_and(|id| id == *fsid) {
        return Err(refused(format!(
            "{shown} is on another file system than the folder"
        )));
    }
    if !is_own(&folder) || !nobody_elses(&folder) {
        return Err(refused(format!(
            "{shown}, or a folder above it, belongs to another user"
        )));
    }
    Ok(folder.join(ELSEWHERE))
}

fn open(path: &Path) -> Result<OwnedFd> {
    bind::open_folder(path).map_err(EngineError::io("open", path))
}

fn fs_id(path: &Path) -> Result<[u8; 16]> {
    ioctl::fs_id(open(path)?).map_err(EngineError::io("read the file system id of", path))
}

fn owner(path: &Path) -> Option<u32> {
    rustix::fs::lstat(path).ok().map(|s| s.st_uid)
}

fn is_own(path: &Path) -> bool {
    owner(path) == Some(rustix::process::geteuid().as_raw())
}

/// True if every folder above belongs to this user or to root.
fn nobody_elses(path: &Path) -> bool {
    let own = rustix::process::geteuid().as_raw();
    path.ancestors()
        .skip(1)
        .all(|p| owner(p).is_some_and(|uid| uid == 0 || uid == own))
}
