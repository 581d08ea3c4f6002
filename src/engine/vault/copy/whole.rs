//! The vault's whole trait.

use std::path::{Path, PathBuf};

use chrono::Utc;

use super::CopyVault;
use super::look::lost;
use super::object::allocated;
use crate::engine::changes::node::{Node, Walked};
use crate::engine::changes::recorded_changes;
use crate::engine::changes::walk::{threads, walk_where};
use crate::engine::restore::Recorded;
use crate::engine::vault::btrfs::look::{entries_in, read_in};
use crate::engine::vault::{Vault, no_right};
use crate::engine::{
    Change, Checkpoint, CheckpointId, Content, Difference, EngineError, Entry, NewCheckpoint, PartKind,
    Restored, Result, Selection, State,
};
use crate::progress::{Progress, Silent};

impl CopyVault {
    fn planned(
        &self,
        from: &State,
        target: &CheckpointId,
        selection: &Selection,
        progress: &dyn Progress,
    ) -> Result<Recorded> {
        let target = self.manifest(target)?.walked();
        let from = self.state(from, progress)?.walked();
        Recorded::new(from, target, selection, progress)
    }
}

impl Vault for CopyVault {
    fn kind(&self) -> &'static str {
        "copy"
    }

    fn checkpoint(&self, new: &NewCheckpoint) -> Result<Checkpoint> {
        self.checkpoint_at(new, Utc::now())
    }

    fn checkpoints(&self) -> Result<Vec<Checkpoint>> {
        self.list()
    }

    fn label(&self, id: &CheckpointId, label: &str) -> Result<()> {
        self.set_label(id, label)
    }

    fn pin(&self, id: &CheckpointId, pinned: bool) -> Result<()> {
        self.change(id, |meta| meta.pinned = pinned)
    }

    fn mark_late(&self, id: &CheckpointId, paths: u64) -> Result<()> {
        self.change(id, |meta| meta.late = Some(paths))
    }

    fn guard(&self) -> Result<()> {
        self.room()
    }

    fn used(&self) -> Result<u64> {
        allocated(&self.path).map_err(EngineError::io("look at", &self.path))
    }

    fn sweep(&self) -> Result<()> {
        self.clean()
    }

    fn not_covered(&self) -> Result<Vec<PathBuf>> {
        let nodes = walk_where(self.live()?, threads(1), &Silent, &Node::covered)?;
        let tree = Walked {
            nodes,
            order: Vec::new(),
        };
        let mut paths: Vec<PathBuf> = (0..)
            .zip(&tree.nodes)
            .filter(|(_, n)| !n.covered())
            .map(|(i, _)| tree.path(i))
            .collect();
        paths.sort();
        Ok(paths)
    }

    fn remove(&self, ids: &[CheckpointId], progress: &dyn Progress) -> Result<()> {
        self.remove_all(ids, progress)
    }

    fn changes(&self, a: &State, b: &State, times: bool, progress: &dyn Progress) -> Result<Vec<Change>> {
        let (a, b) = (self.state(a, progress)?, self.state(b, progress)?);
        recorded_changes(&a.walked(), &b.walked(), times, PartKind::Workspace, progress)
    }

    fn read(&self, state: &State, path: &Path, limit: u64) -> Result<Content> {
        match state {
            State::Now => read_in(self.live()?, path, limit),
            State::Checkpoint(id) => self.read_kept(id, path, limit),
        }
    }

    fn entries(&self, state: &State, path: &Path) -> Result<Vec<Entry>> {
        match state {
            State::Now => entries_in(self.live()?, path),
            State::Checkpoint(id) => self.entries_kept(id, path),
        }
    }

    fn restore(
        &self,
        from: &State,
        target: &CheckpointId,
        selection: &Selection,
        progress: &dyn Progress,
    ) -> Result<Restored> {
        let live = self.live()?;
        // no content goes away meanwhile
        let _lock = self.lock()?;
        let planned = self.planned(from, target, selection, progress)?;
        if let Some(first) = planned.denied()?.first() {
            return Err(no_right(first));
        }
        let damaged = |path: PathBuf, e: std::io::Error| lost(target, &path, &e);
        let restored = planned.run(live, &self.objects, &damaged, progress)?;
        rustix::fs::syncfs(live).map_err(|e| EngineError::io("sync", &self.workspace)(e.into()))?;
        Ok(restored)
    }

    fn denied(
        &self,
        target: &CheckpointId,
        selection: &Selection,
        progress: &dyn Progress,
    ) -> Result<Vec<Difference>> {
        if rustix::process::geteuid().is_root() {
            return Ok(Vec::new());
        }
        self.planned(&State::Now, target, selection, progress)?.denied()
    }

    fn verify(
        &self,
        target: &CheckpointId,
        selection: &Selection,
        progress: &dyn Progress,
    ) -> Result<Vec<Difference>> {
        self.compare(&self.manifest(target)?, selection, progress)
    }

    fn warm(&self) -> Result<()> {
        // what a copy reads is in memory already if it is dirty
        Ok(())
    }
}
