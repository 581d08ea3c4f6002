//! The vault of a sandbox with containers: that of the workspace, with their share in what is taken and removed.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::open::Parts;
use super::part::Part;
use crate::engine::vault::Vault;
use crate::engine::{
    Change, Checkpoint, CheckpointId, Content, Difference, Entry, Health, NewCheckpoint, Reader, Restored,
    Result, Selection, State,
};
use crate::progress::{Progress, Silent};
use crate::text::shown;

/// The vault of a workspace and of the containers that belong to it.
pub struct PartedVault {
    primary: Arc<dyn Vault>,
    parts: Parts,
}

impl PartedVault {
    /// Over the vault of the workspace.
    pub fn new(primary: Arc<dyn Vault>, parts: Parts) -> Self {
        Self { primary, parts }
    }

    /// Removes checkpoints from the containers' vaults, as far as those can be reached.
    fn remove_parts(&self, gone: &dyn Fn(&CheckpointId) -> bool, progress: &dyn Progress) -> Result<()> {
        for f in self.parts.open() {
            let part = match f.part {
                Ok(part) => part,
                Err(why) => {
                    let name = shown(&f.record.name);
                    tracing::warn!("the checkpoints of container {name} stay: {why}");
                    continue;
                }
            };
            remove_from(&part, gone, progress)?;
        }
        Ok(())
    }
}

/// Removes checkpoints from the vault of one container.
fn remove_from(part: &Part, gone: &dyn Fn(&CheckpointId) -> bool, progress: &dyn Progress) -> Result<()> {
    let listed = part.vault().checkpoints()?;
    let ids: Vec<CheckpointId> = listed.into_iter().map(|c| c.meta.id).filter(gone).collect();
    part.vault().remove(&ids, progress)
}

impl Vault for PartedVault {
    fn kind(&self) -> &'static str {
        self.primary.kind()
    }
    fn checkpoint(&self, new: &NewCheckpoint) -> Result<Checkpoint> {
        self.parts.checkpoint(&*self.primary, new)
    }
    fn checkpoints(&self) -> Result<Vec<Checkpoint>> {
        self.primary.checkpoints()
    }
    fn label(&self, id: &CheckpointId, label: &str) -> Result<()> {
        self.primary.label(id, label)
    }
    fn pin(&self, id: &CheckpointId, pinned: bool) -> Result<()> {
        self.primary.pin(id, pinned)
    }
    fn mark_late(&self, id: &CheckpointId, paths: u64) -> Result<()> {
        self.primary.mark_late(id, paths)
    }
    fn guard(&self) -> Result<()> {
        self.primary.guard()
    }
    fn used(&self) -> Result<u64> {
        self.primary.used()
    }
    fn new_data(&self) -> Result<Vec<(CheckpointId, u64)>> {
        self.primary.new_data()
    }
    fn sweep(&self) -> Result<()> {
        self.primary.sweep()?;
        // nobody is taking one meanwhile: what the workspace has no checkpoint of was cut short
        let _lock = self.parts.lock()?;
        let known: BTreeSet<CheckpointId> = self
            .primary
            .checkpoints()?
            .into_iter()
            .map(|c| c.meta.id)
            .collect();
        // what of one that cannot be reached was cut short is removed another time
        for part in self.parts.open().into_iter().filter_map(|f| f.part.ok()) {
            part.vault().sweep()?;
            remove_from(&part, &|id| !known.contains(id), &Silent)?;
        }
        if let Some(docker) = self.parts.docker() {
            docker.remove(&|id| !known.contains(id))?;
        }
        Ok(())
    }
    fn not_covered(&self) -> Result<Vec<PathBuf>> {
        self.primary.not_covered()
    }
    fn not_covered_by(&self, id: &CheckpointId) -> Result<Vec<PathBuf>> {
        self.primary.not_covered_by(id)
    }
    fn left_out(&self) -> Result<Vec<PathBuf>> {
        self.primary.left_out()
    }
    fn remove(&self, ids: &[CheckpointId], progress: &dyn Progress) -> Result<()> {
        if ids.is_empty() {
            return Ok(());
        }
        let _lock = self.parts.lock()?;
        self.primary.remove(ids, progress)?;
        if let Some(docker) = self.parts.docker() {
            docker.remove(&|id| ids.contains(id))?;
        }
        self.remove_parts(&|id| ids.contains(id), &Silent)
    }
    fn changes(&self, a: &State, b: &State, times: bool, progress: &dyn Progress) -> Result<Vec<Change>> {
        self.primary.changes(a, b, times, progress)
    }
    fn read(&self, state: &State, path: &Path, limit: u64) -> Result<Content> {
        self.primary.read(state, path, limit)
    }
    fn entries(&self, state: &State, path: &Path) -> Result<Vec<Entry>> {
        self.primary.entries(state, path)
    }
    fn read_for(&self, reader: &Reader, state: &State, path: &Path, limit: u64) -> Result<Content> {
        self.primary.read_for(reader, state, path, limit)
    }
    fn entries_for(&self, reader: &Reader, state: &State, path: &Path) -> Result<Vec<Entry>> {
        self.primary.entries_for(reader, state, path)
    }
    fn untouched(&self, a: &CheckpointId, b: &CheckpointId, path: &Path) -> Result<bool> {
        self.primary.untouched(a, b, path)
    }
    fn restore(
        &self,
        from: &State,
        target: &CheckpointId,
        selection: &Selection,
        progress: &dyn Progress,
    ) -> Result<Restored> {
        self.primary.restore(from, target, selection, progress)
    }
    fn denied(
        &self,
        target: &CheckpointId,
        selection: &Selection,
        progress: &dyn Progress,
    ) -> Result<Vec<Difference>> {
        self.primary.denied(target, selection, progress)
    }
    fn verify(
        &self,
        target: &CheckpointId,
        selection: &Selection,
        progress: &dyn Progress,
    ) -> Result<Vec<Difference>> {
        self.primary.verify(target, selection, progress)
    }
    fn warm(&self) -> Result<()> {
        self.primary.warm()
    }
}

/// What of a checkpoint is in the vault of a container, and usable.
pub(super) fn has(vault: &dyn Vault, id: &CheckpointId) -> Result<std::result::Result<(), String>> {
    let found = vault.checkpoints()?.into_iter().find(|c| c.meta.id == *id);
    Ok(match found.map(|c| c.health) {
        Some(Health::Ok) => Ok(()),
        Some(Health::Incomplete(why) | Health::Damaged(why)) => Err(why),
        None => Err("its share of the checkpoint is missing".into()),
    })
}
