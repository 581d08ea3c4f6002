//! Which checkpoints there are, reading them, and removing them.

use std::collections::HashSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use chrono::{DateTime, Utc};

use super::dir::write_atomic;
use super::manifest::Manifest;
use super::object::object_name;
use super::{CopyVault, MANIFEST, META, TEMP};
use crate::engine::vault::btrfs::list::{Name, bare, never_made};
use crate::engine::vault::btrfs::{record_bytes, short_label};
use crate::engine::{Checkpoint, CheckpointId, CheckpointMeta, EngineError, Health, PartKind, Result};
use crate::progress::Progress;

/// The bytes of a file; `None` if it is not there.
fn read(path: &Path) -> io::Result<Option<Vec<u8>>> {
    match fs::read(path) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(e),
    }
}

fn damaged(id: &CheckpointId, reason: impl Into<String>) -> EngineError {
    EngineError::DamagedCheckpoint {
        id: id.to_string(),
        reason: reason.into(),
    }
}

impl CopyVault {
    /// The names of all checkpoints, in order.
    pub(super) fn names(&self) -> Result<Vec<Name>> {
        let io = || EngineError::io("list", &self.snaps);
        let mut all = Vec::new();
        for entry in fs::read_dir(&self.snaps).map_err(io())? {
            let name = entry.map_err(io())?.file_name();
            all.extend(Name::read(name.as_encoded_bytes()));
        }
        all.sort();
        Ok(all)
    }

    pub(super) fn place(&self, name: &Name) -> PathBuf {
        self.snaps.join(name.text())
    }

    fn find(&self, id: &CheckpointId) -> Result<Name> {
        let found = self.names()?.into_iter().find(|n| n.id == *id);
        found.ok_or_else(|| EngineError::NoCheckpoint {
            id: crate::text::shown(id.as_str()),
        })
    }

    fn meta(&self, name: &Name) -> Result<std::result::Result<CheckpointMeta, String>> {
        let path = self.place(name).join(META);
        let bytes = read(&path).map_err(EngineError::io("read", &path))?;
        Ok(name.parse(bytes.as_deref()))
    }

    /// The newest checkpoint's name, and the time of its record if that can be read.
    pub(super) fn last(&self) -> Result<Option<(Name, Option<DateTime<Utc>>)>> {
        let Some(name) = self.names()?.pop() else {
            return Ok(None);
        };
        let time = self.meta(&name)?.ok().map(|m| m.time);
        Ok(Some((name, time)))
    }

    /// All checkpoints, oldest first, damaged ones included.
    pub(super) fn list(&self) -> Result<Vec<Checkpoint>> {
        self.names()?.iter().map(|name| self.examine(name)).collect()
    }

    fn examine(&self, name: &Name) -> Result<Checkpoint> {
        let folder = self.place(name);
        // a power cut may leave an empty one
        let manifest = fs::metadata(folder.join(MANIFEST)).is_ok_and(|m| m.is_file() && m.len() > 0);
        Ok(match self.meta(name)? {
            Ok(meta) => Checkpoint {
                meta,
                health: if manifest {
                    Health::Ok
                } else {
                    Health::Damaged("its manifest is missing".into())
                },
            },
            Err(reason) => {
                let time = fs::metadata(&folder)
                    .and_then(|m| m.modified())
                    .map_or_else(|_| DateTime::default(), DateTime::<Utc>::from);
                let (parts, health) = if manifest {
                    (vec![PartKind::Workspace], Health::Damaged(reason))
                } else {
                    (Vec::new(), Health::Incomplete(never_made()))
                };
                Checkpoint {
                    meta: bare(name, time, parts),
                    health,
                }
            }
        })
    }

    /// The tree of a checkpoint.
    pub(super) fn manifest(&self, id: &CheckpointId) -> Result<Manifest> {
        let name = self.find(id)?;
        match self.examine(&name)?.health {
            Health::Ok => self.manifest_of(&name),
            Health::Incomplete(reason) | Health::Damaged(reason) => Err(damaged(id, reason)),
        }
    }

    pub(super) fn manifest_of(&self, name: &Name) -> Result<Manifest> {
        let path = self.place(name).join(MANIFEST);
        let bytes = fs::read(&path).map_err(EngineError::io("read", &path))?;
        Manifest::parse(&bytes).map_err(|why| damaged(&name.id, why))
    }

    pub(super) fn change(&self, id: &CheckpointId, edit: impl FnOnce(&mut CheckpointMeta)) -> Result<()> {
        self.room()?;
        let _lock = self.lock()?;
        let name = self.find(id)?;
        let path = self.place(&name).join(META);
        let mut meta = self.meta(&name)?.map_err(|reason| damaged(id, reason))?;
        edit(&mut meta);
        write_atomic(&path, &record_bytes(&meta, &path)?).map_err(EngineError::io("write", &path))
    }

    pub(super) fn set_label(&self, id: &CheckpointId, label: &str) -> Result<()> {
        self.change(id, |meta| meta.label = short_label(label))
    }

    pub(super) fn remove_all(&self, ids: &[CheckpointId], progress: &dyn Progress) -> Result<()> {
        if ids.is_empty() {
            return Ok(());
        }
        let _lock = self.lock()?;
        let mut found = Vec::new();
        for id in ids {
            let name = self.find(id)?;
            if self.meta(&name)?.is_ok_and(|m| m.pinned) {
                return Err(EngineError::Refused {
                    why: format!("checkpoint {id} is pinned"),
                    path: None,
                    hint: Some(format!("respool unpin {id}")),
                });
            }
            found.push(name);
        }
        let total = found.len() as u64;
        let mut outcome = Ok(());
        for (done, name) in (0..).zip(&found) {
            progress.step("removing checkpoints", done, total);
            if progress.cancelled() {
                outcome = Err(EngineError::Cancelled);
                break;
            }
            // first out of the list in one step, then bit by bit
            let (path, gone) = (self.place(name), self.snaps.join(format!("{TEMP}{}", name.id)));
            fs::rename(&path, &gone)
                .and_then(|()| fs::remove_dir_all(&gone))
                .map_err(EngineError::io("remove the checkpoint", &path))?;
        }
        self.collect()?;
        progress.step("removing checkpoints", total, total);
        outcome
    }

    /// Removes the contents that no checkpoint names. The caller holds the lock. Nothing is removed while a
    /// manifest cannot be read.
    fn collect(&self) -> Result<()> {
        let mut used = HashSet::new();
        for name in self.names()? {
            match self.manifest_of(&name) {
                Ok(manifest) => used.extend(
                    manifest
                        .nodes
                        .iter()
                        .filter_map(|n| Some(object_name(&n.facts.as_ref()?.hash?))),
                ),
                Err(e) => {
                    tracing::warn!("no contents are removed: {e}");
                    return Ok(());
                }
            }
        }
        self.objects.sweep(&|name| used.contains(name))
    }

    /// Removes what crashes left.
    pub(super) fn clean(&self) -> Result<()> {
        let _lock = self.lock()?;
        self.clear_left()?;
        self.collect()
    }

    /// Before a new checkpoint, with the lock held: contents that a killed process kept may not be on the disk
    /// yet, and must not be taken for kept ones.
    pub(super) fn clean_after_a_crash(&self) -> Result<()> {
        if self.clear_left()? {
            self.collect()
        } else {
            Ok(())
        }
    }

    /// Removes folders that are no checkpoints; whether there was one.
    fn clear_left(&self) -> Result<bool> {
        let mut found = false;
        for entry in fs::read_dir(&self.snaps).map_err(EngineError::io("list", &self.snaps))? {
            let entry = entry.map_err(EngineError::io("list", &self.snaps))?;
            if entry.file_name().as_encoded_bytes().starts_with(TEMP.as_bytes()) {
                found = true;
                fs::remove_dir_all(entry.path()).map_err(EngineError::io("remove", entry.path()))?;
            }
        }
        Ok(found)
    }
}
