//! The folder of Docker's data: what was in it set aside, the pool shown at the same path, and back. What is set aside is
//! never removed on the way in. The emptied folder takes no write: a daemon that comes up without the pool fails.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, CWD, RenameFlags};

use super::home::Home;
use super::record::Record;
use crate::engine::mounts::{self, Mount};
use crate::engine::{EngineError, Result, subvolume};
use crate::process::fault_point;
use crate::sandbox::bind;
use crate::text::shown_path;

/// How long a mount may be in use by what is just ending.
const PATIENCE: Duration = Duration::from_secs(5);

/// The two folders beside the data: what it was, and what it becomes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Beside {
    /// As it was before it came into the pool.
    Old,
    /// The copy that comes out of the pool.
    Back,
}

fn failed(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> EngineError {
    EngineError::io(what, path)
}

/// How many mounts are at this very path.
pub fn mounts_at(path: &Path) -> Result<usize> {
    Ok(mounts::list()?.iter().filter(|m| m.point == path).count())
}

/// What is mounted below, the last one first.
fn mounted_below(path: &Path) -> Result<Vec<Mount>> {
    let all = mounts::list()?.into_iter().rev();
    Ok(all
        .filter(|m| m.point != path && m.point.starts_with(path))
        .collect())
}

/// Disks of others that are mounted below the data: the daemon does not unmount them. Those of its own containers are
/// gone once it is stopped.
pub fn foreign_below(path: &Path) -> Result<Vec<PathBuf>> {
    let all = mounts::list()?;
    let own = mounts::find(&all, path).map(|m| m.device.clone());
    let ours = |m: &Mount| {
        Some(&m.device) == own.as_ref() || matches!(m.fs_type.as_str(), "overlay" | "tmpfs" | "nsfs" | "proc")
    };
    let mut out: Vec<PathBuf> = mounted_below(path)?
        .into_iter()
        .filter(|m| !ours(m))
        .map(|m| m.point)
        .collect();
    out.sort();
    out.dedup();
    Ok(out)
}

impl Record {
    /// Where a folder beside the data is.
    pub fn beside(&self, which: Beside) -> PathBuf {
        let root = self.root();
        let word = match which {
            Beside::Old => "old",
            Beside::Back => "back",
        };
        if self.inner {
            return root.join(format!(".respool-{word}-{}", self.id));
        }
        let mut name = root.file_name().unwrap_or_default().to_owned();
        name.push(format!(".respool-{word}-{}", self.id));
        root.with_file_name(name)
    }

    /// Sets the content aside and leaves an empty folder that takes no write. The daemon must be stopped.
    pub fn set_aside(&mut self, which: Beside) -> Result<()> {
        let (root, beside) = (self.root().to_owned(), self.beside(which));
        self.drop_leftovers()?;
        if let Some(m) = mounted_below(&root)?.first() {
            return Err(EngineError::Busy {
                path: root,
                mounts: vec![m.point.clone()],
            });
        }
        if self.inner {
            match std::fs::create_dir(&beside) {
                Err(e) if e.kind() != io::ErrorKind::AlreadyExists => return Err(failed("make", &beside)(e)),
                _ => close(&beside)?,
            }
            move_all(&root, &beside, &beside)?;
        } else {
            rename(&root, &beside)?;
            fault_point("docker-renamed");
        }
        self.reseal()
    }

    /// A daemon that could not come up, or was killed, leaves its folder mounted over itself: that goes. The daemon must be
    /// stopped, and the pool hidden.
    pub fn drop_leftovers(&self) -> Result<()> {
        let root = self.root();
        let all = mounts::list()?;
        let own = mounts::find(&all, root).map(|m| m.device.clone());
        let below = all
            .iter()
            .rev()
            .filter(|m| m.point != root && m.point.starts_with(root));
        for m in below.filter(|m| Some(&m.device) == own.as_ref()) {
            unmount(&m.point)?;
        }
        for _ in self.mounts..mounts_at(root)? {
            unmount(root)?;
        }
        Ok(())
    }

    /// The emptied folder takes no write; made where it is missing.
    pub fn reseal(&mut self) -> Result<()> {
        let root = self.root().to_owned();
        if !root.exists() {
            std::fs::create_dir(&root).map_err(failed("make", &root))?;
            let mode = std::fs::Permissions::from_mode(0o710);
            std::fs::set_permissions(&root, mode).map_err(failed("set the mode of", &root))?;
        }
        let folder = bind::open_exact(&root).map_err(failed("open", &root))?;
        self.stub = Some(bind::seal(&folder, &self.id).map_err(failed("seal", &root))?);
        sync_above(&root);
        Ok(())
    }

    /// Puts what was set aside back, from wherever [`Record::set_aside`] had come to. Nothing may be mounted.
    pub fn put_back(&self) -> Result<()> {
        self.take_in(Beside::Old)
    }

    /// Puts the copy that came out of the pool in its place.
    pub fn put_copy(&self) -> Result<()> {
        self.take_in(Beside::Back)
    }

    fn take_in(&self, which: Beside) -> Result<()> {
        let (root, from) = (self.root(), self.beside(which));
        if let Ok(folder) = bind::open_exact(root) {
            bind::unseal(&folder).map_err(failed("unseal", root))?;
        }
        if from.exists() {
            if self.inner {
                move_all(&from, root, &from)?;
                std::fs::remove_dir(&from).map_err(failed("remove", &from))?;
            } else {
                match std::fs::remove_dir(root) {
                    Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(failed("remove", root)(e)),
                    _ => {}
                }
                fault_point("docker-unstubbed");
                rename(&from, root)?;
            }
        }
        sync_above(root);
        Ok(())
    }

    /// True if the folder shows the data in the pool.
    pub fn shows(&self, home: &Home) -> Result<bool> {
        let at = bind::open_folder(self.root()).and_then(subvolume::root_info);
        let uuid = home.live_uuid()?;
        Ok(at.is_ok_and(|i| i.is_some_and(|i| Some(i.uuid) == uuid)))
    }

    /// Shows the data in the pool at its folder, where it does not yet. Anything else there is refused.
    pub fn show(&self, home: &Home) -> Result<()> {
        if self.shows(home)? {
            return Ok(());
        }
        let root = self.root();
        let folder = bind::open_exact(root).map_err(failed("open", root))?;
        if !self.is_stub(&folder) {
            return Err(EngineError::Refused {
                why: format!(
                    "{} is not the folder that was emptied for the pool",
                    shown_path(root)
                ),
                path: Some(root.to_owned()),
                hint: Some("something else was put there or mounted over it".into()),
            });
        }
        bind::mount_over(home.live()?, &folder).map_err(failed("mount", root))?;
        if self.shows(home)? {
            return Ok(());
        }
        Err(EngineError::NotManaged {
            path: root.to_owned(),
        })
    }

    fn is_stub(&self, folder: &OwnedFd) -> bool {
        let mut mark = [0u8; 64];
        match rustix::fs::fgetxattr(folder, bind::STUB_XATTR, &mut mark[..]) {
            Ok(n) => mark[..n] == *self.id.as_bytes(),
            Err(_) => bind::stat(folder).is_ok_and(|s| {
                self.stub
                    .as_ref()
                    .is_some_and(|k| (k.dev, k.ino) == (s.st_dev, s.st_ino))
            }),
        }
    }

    /// Takes the pool's mount away, and what a stopped daemon left below it.
    pub fn hide(&self, home: &Home) -> Result<()> {
        let root = self.root();
        let device = bind::stat(home.live()?).map_err(failed("look at", root))?;
        for below in mounted_below(root)? {
            unmount(&below.point)?;
        }
        // a daemon may have mounted it over itself
        for _ in 0..64 {
            let Ok(folder) = bind::open_folder(root) else {
                break;
            };
            let now = bind::stat(&folder).map_err(failed("look at", root))?;
            let ours = now.st_dev == device.st_dev && now.st_ino == device.st_ino;
            drop(folder);
            if !ours && !self.stale(home)? {
                break;
            }
            unmount(root)?;
        }
        Ok(())
    }

    /// True if the folder shows a subvolume of this pool's that was exchanged meanwhile.
    fn stale(&self, home: &Home) -> Result<bool> {
        let all = mounts::list()?;
        let Some(top) = all.iter().rev().find(|m| m.point == self.root()) else {
            return Ok(false);
        };
        let pool = mounts::find(&all, home.pool.mount());
        let inside = PathBuf::from("docker").join(&self.id);
        let text = top.root.strip_prefix("/").unwrap_or(&top.root).to_owned();
        let within = text.starts_with(&inside) || text.starts_with(Path::new(".respool").join(&inside));
        Ok(within && pool.is_some_and(|p| p.device == top.device))
    }
}

fn close(path: &Path) -> Result<()> {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o700))
        .map_err(failed("close to others", path))
}

fn rename(from: &Path, to: &Path) -> Result<()> {
    rustix::fs::renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE)
        .map_err(|e| failed("move", from)(e.into()))
}

/// Moves every entry of a folder into another of the same file system, but for `but`. Safe to run again.
fn move_all(from: &Path, to: &Path, but: &Path) -> Result<()> {
    let source = bind::open_exact(from).map_err(failed("open", from))?;
    let target = bind::open_exact(to).map_err(failed("open", to))?;
    for name in crate::engine::catalog::names(
        &subvolume::open_dir(&source, "").map_err(failed("open", from))?,
        from,
    )? {
        let name: &std::ffi::OsStr = std::os::unix::ffi::OsStrExt::from_bytes(&name[..]);
        let full = from.join(name);
        if full == but
            || full
                .file_name()
                .is_some_and(|n| n.as_encoded_bytes().starts_with(b".respool-"))
        {
            continue;
        }
        rustix::fs::renameat_with(source.as_fd(), name, target.as_fd(), name, RenameFlags::NOREPLACE)
            .map_err(|e| failed("move", &full)(e.into()))?;
        fault_point("docker-moving");
    }
    Ok(())
}

/// Takes a mount away. What a daemon that has just ended held is let go a moment later.
fn unmount(path: &Path) -> Result<()> {
    let began = Instant::now();
    loop {
        match bind::unmount(path, false) {
            Err(e) if e.kind() == io::ErrorKind::ResourceBusy && began.elapsed() < PATIENCE => {
                std::thread::sleep(Duration::from_millis(20));
            }
            other => return other.map_err(failed("unmount", path)),
        }
    }
}

fn sync_above(path: &Path) {
    let above = path.parent().map(std::fs::File::open);
    let synced = above.map(|f| f.and_then(|f| f.sync_all()));
    tracing::debug!(?synced, "sync of the folder above {}", path.display());
}

/// Removes a folder with all that is in it: subvolumes too. Nothing that is mounted in it is entered.
pub fn remove_all(path: &Path) -> Result<()> {
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
        return Ok(());
    };
    if !path.exists() {
        return Ok(());
    }
    if let Some(m) = mounted_below(path)?.first() {
        return Err(EngineError::Busy {
            path: path.to_owned(),
            mounts: vec![m.point.clone()],
        });
    }
    let folder = bind::open_exact(parent).map_err(failed("open", parent))?;
    let own = bind::open_exact(path).map_err(failed("open", path))?;
    if subvolume::root_info(&own)
        .map_err(failed("look at", path))?
        .is_some()
    {
        let name = name.to_string_lossy();
        return subvolume::destroy(&folder, &name).map_err(failed("remove", path));
    }
    let size = crate::engine::restore::measure(own.as_fd(), &crate::progress::Silent)?;
    for inner in size.subvolumes.iter().rev() {
        let above = subvolume::open_dir(&own, inner.parent().unwrap_or(Path::new("")));
        let above = above.map_err(failed("open", inner))?;
        let name = inner
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        match subvolume::destroy(&above, &name) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(failed("remove", inner)(e)),
            _ => {}
        }
    }
    crate::engine::restore::remove::empty(&own, path)?;
    rustix::fs::unlinkat(&folder, name, AtFlags::REMOVEDIR).map_err(|e| failed("remove", path)(e.into()))
}
