//! The vault's whole trait.

use std::path::{Path, PathBuf};

use chrono::Utc;

use super::CopyVault;
use super::cover::keep_places;
use super::look::lost;
use super::object::allocated;
use crate::engine::changes::node::{Node, Walked};
use crate::engine::changes::recorded_changes;
use crate::engine::changes::walk::{threads, walk_without};
use crate::engine::restore::Recorded;
use crate::engine::vault::btrfs::look::{entries_in, entries_in_for, read_in, read_in_for};
use crate::engine::vault::{Vault, no_right};
use crate::engine::{
    Change, Checkpoint, CheckpointId, Content, Difference, EngineError, Entry, FileType, NewCheckpoint,
    PartKind, Reader, Restored, Result, Selection, State,
};
use crate::patterns::Patterns;
use crate::progress::{Progress, Silent};

/// What a restore would do, and what it cannot.
struct Planned {
    recorded: Recorded,
    in_the_way: Vec<Difference>,
}

/// Whether a restore of this selection has to do with a path.
fn touches(selection: &Selection, path: &Path) -> bool {
    match selection {
        Selection::All => true,
        Selection::Paths(paths) => paths.iter().any(|p| path.starts_with(p) || p.starts_with(path)),
    }
}

impl Planned {
    /// What cannot be brought back.
    fn denied(&self) -> Result<Vec<Difference>> {
        let mut all = self.in_the_way.clone();
        if !rustix::process::geteuid().is_root() {
            all.extend(self.recorded.denied()?);
        }
        all.truncate(100);
        Ok(all)
    }
}

impl CopyVault {
    /// What is not covered, each with whether the patterns say so.
    fn places(&self, patterns: &Patterns) -> Result<Vec<(PathBuf, bool)>> {
        let nodes = walk_without(self.live()?, threads(1), &Silent, patterns)?;
        let tree = Walked {
            nodes,
            order: Vec::new(),
        };
        let of = |(i, n): (u32, &Node)| {
            let path = tree.path(i);
            let left_out = patterns.leaves_out(&path, n.is_dir());
            (path, left_out)
        };
        let all = (0..).zip(&tree.nodes).filter(|(_, n)| !n.covered());
        let mut paths: Vec<(PathBuf, bool)> = all.map(of).collect();
        paths.sort();
        Ok(paths)
    }

    fn planned(
        &self,
        from: &State,
        target: &CheckpointId,
        selection: &Selection,
        progress: &dyn Progress,
    ) -> Result<Planned> {
        let mut target = self.manifest(target)?;
        let from = match from {
            State::Now => self.now(&target.patterns, progress)?,
            State::Checkpoint(id) => {
                let from = self.manifest(id)?;
                if !from.patterns.is_empty() && from.patterns != target.patterns {
                    // nothing is changed that it does not keep
                    return Err(EngineError::Refused {
                        why: format!("checkpoint {id} leaves out other paths than the one to go back to"),
                        path: None,
                        hint: None,
                    });
                }
                from.masked(&target.patterns)
            }
        };
        if let Selection::Paths(paths) = selection {
            for path in paths {
                from.must_cover(path)?;
                target.must_cover(path)?;
            }
        }
        let in_the_way = keep_places(&from, &mut target);
        Ok(Planned {
            recorded: Recorded::new(from.walked(), target.walked(), selection, progress)?,
            in_the_way: in_the_way
                .into_iter()
                .filter(|d| touches(selection, &d.path))
                .collect(),
        })
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
        Ok(self.places(&self.patterns)?.into_iter().map(|(p, _)| p).collect())
    }

    fn not_covered_by(&self, id: &CheckpointId) -> Result<Vec<PathBuf>> {
        let patterns = self.manifest(id)?.patterns;
        Ok(self.places(&patterns)?.into_iter().map(|(p, _)| p).collect())
    }

    fn left_out(&self) -> Result<Vec<PathBuf>> {
        if self.patterns.is_empty() {
            return Ok(Vec::new());
        }
        let all = self.places(&self.patterns)?.into_iter();
        Ok(all.filter(|(_, left_out)| *left_out).map(|(p, _)| p).collect())
    }

    fn remove(&self, ids: &[CheckpointId], progress: &dyn Progress) -> Result<()> {
        self.remove_all(ids, progress)
    }

    fn changes(&self, a: &State, b: &State, times: bool, progress: &dyn Progress) -> Result<Vec<Change>> {
        let (a, b) = self.pair(a, b, progress)?;
        let patterns = [a.patterns.clone(), b.patterns.clone()];
        let mut all = recorded_changes(&a.walked(), &b.walked(), times, PartKind::Workspace, progress)?;
        // a folder that only one state has is listed with all that is in it
        all.retain(|c| {
            let folder = c.type_b.or(c.type_a) == Some(FileType::Dir);
            !patterns.iter().any(|p| p.leaves_out(&c.path, folder))
        });
        Ok(all)
    }

    fn read(&self, state: &State, path: &Path, limit: u64) -> Result<Content> {
        match state {
            State::Now => read_in(self.live()?, path, limit),
            State::Checkpoint(id) => self.read_kept(id, path, limit),
        }
    }

    fn read_for(&self, reader: &Reader, state: &State, path: &Path, limit: u64) -> Result<Content> {
        match state {
            State::Now => read_in_for(reader, self.live()?, path, limit),
            State::Checkpoint(id) => {
                self.allows(reader, id, path)?;
                self.read_kept(id, path, limit)
            }
        }
    }

    fn entries_for(&self, reader: &Reader, state: &State, path: &Path) -> Result<Vec<Entry>> {
        match state {
            State::Now => entries_in_for(reader, self.live()?, path),
            State::Checkpoint(id) => {
                self.allows(reader, id, path)?;
                self.entries_kept(id, path)
            }
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
        let restored = planned.recorded.run(live, &self.objects, &damaged, progress)?;
        rustix::fs::syncfs(live).map_err(|e| EngineError::io("sync", &self.workspace)(e.into()))?;
        Ok(restored)
    }

    fn denied(
        &self,
        target: &CheckpointId,
        selection: &Selection,
        progress: &dyn Progress,
    ) -> Result<Vec<Difference>> {
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
