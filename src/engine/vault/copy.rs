//! The vault of copies: works everywhere and without root. A checkpoint is a manifest of the tree, and the
//! contents of its files, shared between checkpoints. It is not atomic: what changes under the look is looked at
//! again, and then an error.

mod cover;
mod dir;
mod kept;
mod look;
mod manifest;
mod object;
mod scan;
mod verify;
mod whole;

use std::fs::{self, DirBuilder, File};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use chrono::{DateTime, Utc};
use rustix::fs::{Mode, OFlags};

use super::btrfs::list::Name;
use super::btrfs::{PATIENCE, new_meta, record_bytes};
use crate::engine::catalog::{lock_dir, reopen};
use crate::engine::{Checkpoint, EngineError, Health, NewCheckpoint, Result, State};
use crate::patterns::Patterns;
use crate::process::fault_point;
use crate::progress::{Progress, Silent};

pub use dir::{COPIES, CopyDir, list_copies, root_id};
pub use look::LayerMark;
use manifest::Manifest;
use object::{Store, sync_files};
use scan::Scan;

const MANIFEST: &str = "manifest";
const META: &str = "meta.json";
/// How the names of folders begin that are no checkpoints (yet, or any more).
const TEMP: &str = ".tmp-";
/// What must stay free on the disk of the copies, in bytes.
const RESERVE: u64 = 64 << 20;

/// Keeps the checkpoints of the workspace of one sandbox.
#[derive(Debug)]
pub struct CopyVault {
    path: PathBuf,
    snaps: PathBuf,
    objects: Store,
    workspace: PathBuf,
    live: Option<OwnedFd>,
    patterns: Patterns,
    /// Files may have names outside of it.
    layer: bool,
}

impl CopyVault {
    /// Opens the vault of a sandbox. `live` is its workspace; the caller has checked that it is the one that
    /// was tracked. Without it, only what is kept can be looked at and removed.
    pub fn open(dir: &CopyDir, workspace: &Path, live: Option<OwnedFd>) -> Self {
        let path = dir.path().to_owned();
        Self {
            snaps: path.join("snaps"),
            objects: Store::new(path.join("objects")),
            workspace: workspace.to_owned(),
            live,
            path,
            patterns: Patterns::default(),
            layer: false,
        }
    }

    /// It keeps a layer of an overlay: whiteouts have a name in its work folder, too.
    #[must_use]
    pub fn layer(self) -> Self {
        Self { layer: true, ..self }
    }

    /// The same checkpoints, with another live tree.
    #[must_use]
    pub fn on(&self, workspace: &Path, live: OwnedFd) -> Self {
        Self {
            path: self.path.clone(),
            snaps: self.snaps.clone(),
            objects: Store::new(self.path.join("objects")),
            workspace: workspace.to_owned(),
            live: Some(live),
            patterns: self.patterns.clone(),
            layer: self.layer,
        }
    }

    /// New checkpoints leave out what these say.
    #[must_use]
    pub fn without(self, patterns: Patterns) -> Self {
        Self { patterns, ..self }
    }

    fn live(&self) -> Result<BorrowedFd<'_>> {
        let none = || EngineError::Replaced {
            path: self.workspace.clone(),
        };
        self.live.as_ref().map(AsFd::as_fd).ok_or_else(none)
    }

    /// The right to add and remove checkpoints and contents; ends with the value.
    fn lock(&self) -> Result<File> {
        let io = || EngineError::io("open", &self.snaps);
        let dir = File::open(&self.snaps).map_err(io())?;
        lock_dir(reopen(&dir).map_err(io())?, &self.snaps, PATIENCE)
    }

    /// An error if there is no room to write safely.
    fn room(&self) -> Result<()> {
        let vfs =
            rustix::fs::statvfs(&self.path).map_err(|e| EngineError::io("look at", &self.path)(e.into()))?;
        let free = vfs.f_bavail.saturating_mul(vfs.f_frsize);
        if free >= RESERVE {
            return Ok(());
        }
        Err(EngineError::Refused {
            why: format!(
                "the disk of the checkpoints has {} free, {} are needed",
                crate::text::size(free),
                crate::text::size(RESERVE)
            ),
            path: Some(self.path.clone()),
            hint: Some("free space, or run: respool prune".into()),
        })
    }

    /// The newest manifest that can be read: what has not changed since need not be read again.
    fn newest(&self) -> Result<Option<Manifest>> {
        Ok(self
            .names()?
            .iter()
            .rev()
            .take(3)
            .find_map(|name| self.manifest_of(name).ok()))
    }

    /// The tree of now: looked at, not kept.
    fn now(&self, patterns: &Patterns, progress: &dyn Progress) -> Result<Manifest> {
        Scan {
            live: self.live()?,
            known: self.newest()?.as_ref(),
            keep: None,
            patterns,
            progress,
        }
        .run()
    }

    /// The trees of two states, with what both cover.
    fn pair(&self, a: &State, b: &State, progress: &dyn Progress) -> Result<(Manifest, Manifest)> {
        let kept = |state: &State| match state {
            State::Checkpoint(id) => self.manifest(id).map(Some),
            State::Now => Ok(None),
        };
        Ok(match (kept(a)?, kept(b)?) {
            (Some(a), Some(b)) => {
                let (of_a, of_b) = (a.patterns.clone(), b.patterns.clone());
                (a.masked(&of_b), b.masked(&of_a))
            }
            (Some(a), None) => {
                let b = self.now(&a.patterns, progress)?;
                (a, b)
            }
            (None, Some(b)) => (self.now(&b.patterns, progress)?, b),
            (None, None) => (
                self.now(&self.patterns, progress)?,
                self.now(&self.patterns, progress)?,
            ),
        })
    }

    /// Takes a checkpoint, with the clock given; durable when it returns.
    pub fn checkpoint_at(&self, new: &NewCheckpoint, time: DateTime<Utc>) -> Result<Checkpoint> {
        self.room()?;
        let _lock = self.lock()?;
        self.clean_after_a_crash()?;
        let patterns = match &new.like {
            Some(id) => &self.manifest(id)?.patterns,
            None => &self.patterns,
        };
        let last = self.last()?;
        let meta = new_meta(new, last.map(|(name, time)| (name.seq, time)), time);
        let name = Name::of(&meta);
        let temp = self.snaps.join(format!("{TEMP}{}", meta.id));
        DirBuilder::new()
            .mode(0o700)
            .create(&temp)
            .map_err(EngineError::io("make the checkpoint", &temp))?;
        fault_point("checkpoint-made");
        let json = record_bytes(&meta, &temp)?;
        if let Err(e) = self.fill(&temp, &json, &self.place(&name), patterns) {
            let removed = fs::remove_dir_all(&temp);
            tracing::debug!(?removed, "took back the folder of a failed checkpoint");
            self.objects.take_back();
            return Err(e);
        }
        Ok(Checkpoint {
            meta,
            health: Health::Ok,
        })
    }

    fn fill(&self, temp: &Path, json: &[u8], place: &Path, patterns: &Patterns) -> Result<()> {
        let known = self.newest()?;
        let scan = Scan {
            live: self.live()?,
            known: known.as_ref(),
            keep: Some(&self.objects),
            patterns,
            progress: &Silent,
        };
        let manifest = scan.run()?;
        fault_point("checkpoint-read");
        let (file, record) = (temp.join(MANIFEST), temp.join(META));
        fs::write(&record, json).map_err(EngineError::io("write", &record))?;
        // the contents come to the disk while the record of them is put together
        let (flushed, written) = rayon::join(
            || self.objects.flush(),
            || {
                drop(known);
                fs::write(&file, manifest.bytes())
            },
        );
        written.map_err(EngineError::io("write", &file))?;
        fault_point("checkpoint-recorded");
        let io = || EngineError::io("keep the checkpoint", place);
        flushed.map_err(io())?;
        sync_files(&[file, record]).map_err(io())?;
        fs::rename(temp, place).map_err(io())?;
        self.objects.settle();
        fault_point("checkpoint-taken");
        File::open(&self.snaps).and_then(|f| f.sync_all()).map_err(io())
    }
}

/// Opens a workspace if it is still the folder that was tracked.
pub fn open_root(path: &Path, root: Option<&crate::engine::catalog::RootId>) -> Result<OwnedFd> {
    let replaced = || EngineError::Replaced {
        path: path.to_owned(),
    };
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let fd = match rustix::fs::open(path, flags, Mode::empty()) {
        Ok(fd) => fd,
        Err(e @ rustix::io::Errno::ACCESS) => return Err(EngineError::io("open", path)(e.into())),
        Err(_) => return Err(replaced()),
    };
    let found = root_id(&fd).map_err(EngineError::io("look at", path))?;
    let words = |r: &crate::engine::catalog::RootId| {
        let born = DateTime::from_timestamp(r.born.0, r.born.1).unwrap_or_default();
        format!("inode {} of {}", r.ino, born.format("%Y-%m-%d %H:%M:%S UTC"))
    };
    match root {
        Some(root) if found == *root => Ok(fd),
        Some(root) => Err(EngineError::OtherRoot {
            path: path.to_owned(),
            what: "folder",
            recorded: words(root),
            present: words(&found),
        }),
        None => Err(replaced()),
    }
}
