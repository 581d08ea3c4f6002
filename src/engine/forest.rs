//! A tree with the Btrfs subvolumes nested in it, as one thing: kept as a set of read-only snapshots, and made again
//! with each at its place. A snapshot of the outer one alone has an empty folder where another was.

use std::collections::BTreeSet;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use nix::libc;
use rustix::fs::{AtFlags, Timespec, Timestamps};
use serde::{Deserialize, Serialize};

use super::restore::copy::copy_without_nested;
use super::subvolume::{nested, open_dir, root_info};
use super::{EngineError, Result, ioctl};
use crate::process::fault_point;
use crate::progress::Progress;

/// The snapshot of the outer one; those of the nested ones are numbers.
const ROOT: &str = "root";
/// How often a set is taken again because subvolumes came or went meanwhile.
const ATTEMPTS: u32 = 8;
/// So deep may subvolumes be nested.
const DEEP: usize = 64;

/// A subvolume inside another.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Inner {
    /// Its path, relative to the outermost.
    #[serde(with = "crate::text::exact")]
    pub path: PathBuf,
    /// Nothing can be written to it.
    pub read_only: bool,
}

fn io_at(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> EngineError {
    EngineError::io(what, path)
}

/// All subvolumes inside the tree below `root`, outer ones first. `root` need not be a subvolume itself.
pub fn inner(root: BorrowedFd<'_>) -> Result<Vec<Inner>> {
    let mut out = Vec::new();
    if root_info(root)
        .map_err(io_at("look at", Path::new(".")))?
        .is_some()
    {
        below(root, Path::new(""), &mut out, 0)?;
    }
    out.sort();
    Ok(out)
}

fn below(root: BorrowedFd<'_>, at: &Path, out: &mut Vec<Inner>, depth: usize) -> Result<()> {
    if depth > DEEP {
        return Err(io_at("enter", at)(io::Error::from_raw_os_error(libc::ELOOP)));
    }
    for one in nested(root).map_err(io_at("list the subvolumes in", at))? {
        let path = at.join(&one.path);
        let fd = open_dir(root, &one.path).map_err(io_at("open", &path))?;
        let info = root_info(&fd).map_err(io_at("look at", &path))?;
        // one whose place was hidden or taken meanwhile is not it
        let Some(info) = info.filter(|i| i.tree_id == one.tree_id) else {
            return Err(io_at("open", &path)(io::Error::from_raw_os_error(libc::ESTALE)));
        };
        out.push(Inner {
            path: path.clone(),
            read_only: info.read_only,
        });
        below(fd.as_fd(), &path, out, depth + 1)?;
    }
    Ok(())
}

/// True for an error that says that a subvolume came or went meanwhile.
fn raced(e: &EngineError) -> bool {
    let EngineError::Io { source, .. } = e else {
        return false;
    };
    matches!(
        source.raw_os_error(),
        Some(libc::ENOENT | libc::ESTALE | libc::EINVAL)
    )
}

/// Takes read-only snapshots of `live` and all in it into the empty folder `dir`. What is nested is listed before and
/// after: a set in which one is missing is taken again.
pub fn keep(live: BorrowedFd<'_>, dir: BorrowedFd<'_>) -> Result<Vec<Inner>> {
    for attempt in 1.. {
        match keep_once(live, dir) {
            Ok(Some(list)) => return Ok(list),
            Ok(None) if attempt < ATTEMPTS => {}
            Err(e) if raced(&e) && attempt < ATTEMPTS => {}
            Err(e) => return Err(e),
            Ok(None) => break,
        }
        drop_set(dir)?;
    }
    Err(EngineError::Refused {
        why: "subvolumes come and go all the time".into(),
        path: None,
        hint: Some("wait until images are pulled and built, then try again".into()),
    })
}

fn keep_once(live: BorrowedFd<'_>, dir: BorrowedFd<'_>) -> Result<Option<Vec<Inner>>> {
    let list = inner(live)?;
    // what names them is in the outer one: it goes first
    ioctl::snap_create(live, dir, ROOT.as_bytes(), true).map_err(io_at("snapshot", Path::new(".")))?;
    for (i, one) in list.iter().enumerate() {
        let fd = open_dir(live, &one.path).map_err(io_at("open", &one.path))?;
        ioctl::snap_create(&fd, dir, i.to_string().as_bytes(), true).map_err(io_at("snapshot", &one.path))?;
    }
    Ok((inner(live)? == list).then_some(list))
}

/// Removes what [`keep`] put into `dir`.
pub fn drop_set(dir: BorrowedFd<'_>) -> Result<()> {
    let here = Path::new(".");
    let again = open_dir(dir, "").map_err(io_at("open", here))?;
    for name in super::catalog::names(&again, here)? {
        let Ok(name) = String::from_utf8(name) else {
            continue;
        };
        if name == ROOT || name.bytes().all(|b| b.is_ascii_digit()) {
            super::subvolume::destroy(dir, &name).map_err(io_at("remove", Path::new(&name)))?;
        }
    }
    Ok(())
}

fn member(dir: BorrowedFd<'_>, name: &str) -> Result<OwnedFd> {
    open_dir(dir, name).map_err(io_at("open", Path::new(name)))
}

/// The snapshot of the outer one in a set.
pub fn root_of(dir: BorrowedFd<'_>) -> Result<OwnedFd> {
    member(dir, ROOT)
}

/// What is missing of a set, one harmless line; `None` if it is whole.
pub fn missing(dir: BorrowedFd<'_>, list: &[Inner]) -> Option<String> {
    let names = std::iter::once(ROOT.to_owned()).chain((0..list.len()).map(|i| i.to_string()));
    let there = |name: &String| {
        let info = open_dir(dir, name).and_then(root_info);
        info.is_ok_and(|i| i.is_some_and(|i| i.read_only))
    };
    let gone = names.filter(|n| !there(n)).count();
    (gone > 0).then(|| format!("{gone} of its snapshots are missing"))
}

/// Makes a writable subvolume `name` in `parent` of a set, with all in it.
pub fn make(dir: BorrowedFd<'_>, list: &[Inner], parent: BorrowedFd<'_>, name: &str) -> Result<()> {
    let at = Path::new(name);
    ioctl::snap_create(member(dir, ROOT)?, parent, name.as_bytes(), false)
        .map_err(io_at("take a writable snapshot for", at))?;
    fault_point("forest-rooted");
    let root = member(parent, name)?;
    for (i, one) in list.iter().enumerate() {
        plant(member(dir, &i.to_string())?.as_fd(), root.as_fd(), one)?;
    }
    seal(root.as_fd(), list)
}

/// Makes a writable subvolume `name` in `parent` of the tree below `from`, which is on the same file system, with all
/// subvolumes in it.
pub fn share(
    from: BorrowedFd<'_>,
    parent: BorrowedFd<'_>,
    name: &str,
    progress: &dyn Progress,
) -> Result<Vec<Inner>> {
    let at = Path::new(name);
    let is_root = root_info(from).map_err(io_at("look at", at))?.is_some();
    let list = if is_root {
        ioctl::snap_create(from, parent, name.as_bytes(), false)
            .map_err(io_at("take a writable snapshot for", at))?;
        inner(from)?
    } else {
        ioctl::subvol_create(parent, name.as_bytes()).map_err(io_at("make the subvolume", at))?;
        let to = member(parent, name)?;
        copy_without_nested(from, to.as_fd(), progress)?;
        in_folder(from)?
    };
    let root = member(parent, name)?;
    for one in &list {
        let source = open_dir(from, &one.path).map_err(io_at("open", &one.path))?;
        plant(source.as_fd(), root.as_fd(), one)?;
    }
    seal(root.as_fd(), &list)?;
    Ok(list)
}

/// As [`share`], into an empty folder on the same file system that stays one.
pub fn share_into(from: BorrowedFd<'_>, to: BorrowedFd<'_>, progress: &dyn Progress) -> Result<()> {
    copy_without_nested(from, to, progress)?;
    let list = inner(from)?;
    for one in &list {
        let source = open_dir(from, &one.path).map_err(io_at("open", &one.path))?;
        plant(source.as_fd(), to, one)?;
    }
    seal(to, &list)
}

/// The subvolumes below a folder that is none: found in the subvolume that it is in.
fn in_folder(folder: BorrowedFd<'_>) -> Result<Vec<Inner>> {
    let here = Path::new(".");
    let size = super::restore::measure(folder, &crate::progress::Silent)?;
    let mut out = Vec::new();
    for path in size.subvolumes {
        let fd = open_dir(folder, &path).map_err(io_at("open", here))?;
        let info = root_info(&fd).map_err(io_at("look at", here))?;
        out.push(Inner {
            path,
            read_only: info.is_some_and(|i| i.read_only),
        });
    }
    out.sort();
    out.dedup();
    Ok(out)
}

/// Puts a writable snapshot of `source` in the place of the empty folder that stands for it. The folder that it is in
/// keeps its times.
fn plant(source: BorrowedFd<'_>, root: BorrowedFd<'_>, one: &Inner) -> Result<()> {
    let err = |what| io_at(what, &one.path);
    let name = one.path.file_name().unwrap_or_default();
    let parent = one.path.parent().unwrap_or(Path::new(""));
    let folder = open_dir(root, parent).map_err(err("open the folder of"))?;
    let was = rustix::fs::fstat(&folder).map_err(|e| err("look at the folder of")(e.into()))?;
    match rustix::fs::unlinkat(&folder, name, AtFlags::REMOVEDIR) {
        Ok(()) | Err(rustix::io::Errno::NOENT) => {}
        Err(e) => return Err(err("make room for")(e.into())),
    }
    ioctl::snap_create(source, &folder, name.as_encoded_bytes(), false).map_err(err("snapshot"))?;
    let time = |s, ns| Timespec {
        tv_sec: s,
        tv_nsec: ns,
    };
    let times = Timestamps {
        last_access: time(was.st_atime, was.st_atime_nsec as _),
        last_modification: time(was.st_mtime, was.st_mtime_nsec as _),
    };
    rustix::fs::futimens(&folder, &times).map_err(|e| err("set the times above")(e.into()))
}

/// Makes those read-only that were, the innermost first.
fn seal(root: BorrowedFd<'_>, list: &[Inner]) -> Result<()> {
    for one in list.iter().rev().filter(|o| o.read_only) {
        let fd = open_dir(root, &one.path).map_err(io_at("open", &one.path))?;
        ioctl::set_read_only(&fd, true).map_err(io_at("make read-only", &one.path))?;
    }
    ioctl::fs_sync(root).map_err(io_at("sync", Path::new(".")))
}

/// What tells that `live` was not made of this set, one harmless line: a subvolume that is no snapshot of the one in
/// the set, or one too many or few. `None` if it was.
pub fn differs(live: BorrowedFd<'_>, dir: BorrowedFd<'_>, list: &[Inner]) -> Result<Option<String>> {
    let now: BTreeSet<PathBuf> = inner(live)?.into_iter().map(|i| i.path).collect();
    let then: BTreeSet<PathBuf> = list.iter().map(|i| i.path.clone()).collect();
    if now != then {
        return Ok(Some(format!(
            "it has {} subvolumes and not {}",
            now.len(),
            then.len()
        )));
    }
    let of = |fd: &OwnedFd, what: &Path| root_info(fd).map_err(io_at("look at", what));
    let pairs = std::iter::once((Path::new(""), ROOT.to_owned())).chain(
        list.iter()
            .enumerate()
            .map(|(i, o)| (o.path.as_path(), i.to_string())),
    );
    for (path, name) in pairs {
        let fd = open_dir(live, path).map_err(io_at("open", path))?;
        let (is, should) = (of(&fd, path)?, of(&member(dir, &name)?, path)?);
        let parent = is.map(|i| i.parent_uuid);
        if parent.is_none() || parent != should.map(|s| s.uuid) {
            return Ok(Some(format!(
                "{} is no snapshot of the one that was kept",
                crate::text::shown_path(path)
            )));
        }
    }
    Ok(None)
}
