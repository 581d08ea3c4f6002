//! The vault in memory: the fake that behaves as the real one for everything above the engine, without
//! root, with its clock and its failures in the hand of the test.

mod compare;
mod edit;
mod tree;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use chrono::{DateTime, Utc};

use super::super::{
    Change, Checkpoint, CheckpointId, CheckpointMeta, Content, Difference, EngineError, Entry, FileType,
    Health, NewCheckpoint, PartKind, Reader, Restored, Result, Selection, State,
};
use super::Vault;
use crate::progress::Progress;

pub use tree::{Body, Node, Tree};

/// A call that a test lets fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Op {
    /// Taking a checkpoint.
    Checkpoint,
    /// Listing them.
    List,
    /// Comparing.
    Changes,
    /// Restoring, before anything was changed.
    Restore,
    /// Restoring, after half of the paths were changed.
    RestoreHalfway,
    /// The check: it reports one difference.
    Verify,
    /// Removing checkpoints.
    Remove,
    /// Label and pin.
    Record,
}

#[derive(Debug)]
struct Inner {
    now: Tree,
    kept: Vec<(Checkpoint, Tree)>,
    next_inode: u64,
    next_id: u64,
    clock: DateTime<Utc>,
    fail: HashMap<Op, u32>,
    warmed: u64,
}

/// The vault in memory. Clones are handles of the same one.
#[derive(Debug, Clone)]
pub struct MemoryVault(Arc<Mutex<Inner>>);

impl Default for MemoryVault {
    fn default() -> Self {
        Self::new()
    }
}

impl MemoryVault {
    /// An empty tree. Its clock stands at 2026-01-01 00:00 UTC and moves one second at every edit and
    /// checkpoint; ids count up from `cp-0000000001`.
    pub fn new() -> Self {
        let clock = DateTime::from_timestamp(1_767_225_600, 0).unwrap_or_default();
        let root = Node {
            inode: 1,
            body: Body::Dir,
            mode: 0o755,
            uid: 1000,
            gid: 1000,
            mtime: clock,
        };
        Self(Arc::new(Mutex::new(Inner {
            now: Tree::new(root),
            kept: Vec::new(),
            next_inode: 2,
            next_id: 1,
            clock,
            fail: HashMap::new(),
            warmed: 0,
        })))
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        // a test that panicked elsewhere does not make this tree wrong
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The present tree.
    pub fn tree(&self) -> Tree {
        self.inner().now.clone()
    }

    /// The tree of a checkpoint, as it was kept.
    pub fn tree_of(&self, id: &CheckpointId) -> Option<Tree> {
        let inner = self.inner();
        inner
            .kept
            .iter()
            .find(|(c, _)| c.meta.id == *id)
            .map(|(_, t)| t.clone())
    }

    /// Sets the clock.
    pub fn set_clock(&self, time: DateTime<Utc>) {
        self.inner().clock = time;
    }

    /// The number in the next checkpoint's id.
    pub fn set_next_id(&self, number: u64) {
        self.inner().next_id = number;
    }

    /// Lets the next call of this kind fail (called twice: the next two).
    pub fn fail_next(&self, op: Op) {
        *self.inner().fail.entry(op).or_default() += 1;
    }

    /// Gives a checkpoint this health from now on.
    pub fn set_health(&self, id: &CheckpointId, health: Health) {
        if let Some((c, _)) = self.inner().kept.iter_mut().find(|(c, _)| c.meta.id == *id) {
            c.health = health;
        }
    }

    /// How often [`Vault::warm`] was called.
    pub fn warmed(&self) -> u64 {
        self.inner().warmed
    }
}

impl Inner {
    fn fails(&mut self, op: Op) -> bool {
        match self.fail.get_mut(&op) {
            Some(n) if *n > 0 => {
                *n -= 1;
                true
            }
            _ => false,
        }
    }

    fn may_fail(&mut self, op: Op, what: &'static str) -> Result<()> {
        if self.fails(op) {
            return Err(injected(what));
        }
        Ok(())
    }

    fn checkpoint(&mut self, id: &CheckpointId) -> Result<&mut (Checkpoint, Tree)> {
        self.kept
            .iter_mut()
            .find(|(c, _)| c.meta.id == *id)
            .ok_or_else(|| EngineError::NoCheckpoint {
                id: crate::text::shown(id.as_str()),
            })
    }

    fn state(&mut self, state: &State) -> Result<Tree> {
        match state {
            State::Now => Ok(self.now.clone()),
            State::Checkpoint(id) => {
                let (checkpoint, tree) = self.checkpoint(id)?;
                match &checkpoint.health {
                    Health::Ok => Ok(tree.clone()),
                    Health::Incomplete(reason) | Health::Damaged(reason) => {
                        Err(EngineError::DamagedCheckpoint {
                            id: id.to_string(),
                            reason: reason.clone(),
                        })
                    }
                }
            }
        }
    }
}

fn injected(what: &'static str) -> EngineError {
    EngineError::io(what, "memory")(std::io::Error::from_raw_os_error(nix::libc::EIO))
}

fn no_path(path: &Path) -> EngineError {
    EngineError::NoPath {
        path: path.to_owned(),
    }
}

/// Whether a selection covers a path.
fn covers(selection: &Selection, path: &Path) -> bool {
    match selection {
        Selection::All => true,
        Selection::Paths(list) => list
            .iter()
            .filter_map(|p| tree::normal(p))
            .any(|p| path.starts_with(p)),
    }
}

impl Vault for MemoryVault {
    fn kind(&self) -> &'static str {
        "memory"
    }

    fn checkpoint(&self, new: &NewCheckpoint) -> Result<Checkpoint> {
        let mut inner = self.inner();
        inner.may_fail(Op::Checkpoint, "take the snapshot")?;
        let time = inner.tick();
        let seq = inner.kept.iter().map(|(c, _)| c.meta.seq).max().unwrap_or(0) + 1;
        let next = CheckpointId(format!("cp-{:010}", inner.next_id));
        let id = new.id.clone().unwrap_or(next);
        inner.next_id += 1;
        let label = new.label.as_deref().map(str::trim).filter(|l| !l.is_empty());
        let checkpoint = Checkpoint {
            meta: CheckpointMeta {
                v: 1,
                id,
                seq,
                kind: new.kind,
                time,
                parts: vec![PartKind::Workspace],
                how: new.how,
                conversation: new.conversation.clone(),
                message: new.message.clone(),
                text_hash: new.text_hash.clone(),
                label: label.map(|l| l.chars().take(200).collect()),
                pinned: false,
                late: new.late,
                operation: new.operation.clone(),
                clock_back: inner.kept.last().is_some_and(|(c, _)| time < c.meta.time),
                elsewhere: new.elsewhere.clone(),
                inner: None,
                pause_ms: None,
            },
            health: Health::Ok,
        };
        let tree = inner.now.clone();
        inner.kept.push((checkpoint.clone(), tree));
        Ok(checkpoint)
    }

    fn checkpoints(&self) -> Result<Vec<Checkpoint>> {
        let mut inner = self.inner();
        inner.may_fail(Op::List, "list")?;
        Ok(inner.kept.iter().map(|(c, _)| c.clone()).collect())
    }

    fn label(&self, id: &CheckpointId, label: &str) -> Result<()> {
        let mut inner = self.inner();
        inner.may_fail(Op::Record, "write the record of")?;
        let label: String = label.trim().chars().take(200).collect();
        inner.checkpoint(id)?.0.meta.label = (!label.is_empty()).then_some(label);
        Ok(())
    }

    fn pin(&self, id: &CheckpointId, pinned: bool) -> Result<()> {
        let mut inner = self.inner();
        inner.may_fail(Op::Record, "write the record of")?;
        inner.checkpoint(id)?.0.meta.pinned = pinned;
        Ok(())
    }

    fn remove(&self, ids: &[CheckpointId], progress: &dyn Progress) -> Result<()> {
        let mut inner = self.inner();
        inner.may_fail(Op::Remove, "remove the checkpoint")?;
        for id in ids {
            if inner.checkpoint(id)?.0.meta.pinned {
                return Err(EngineError::Refused {
                    why: format!("checkpoint {id} is pinned"),
                    path: None,
                    hint: Some(format!("respool unpin {id}")),
                });
            }
        }
        for (done, id) in ids.iter().enumerate() {
            progress.step("removing checkpoints", done as u64, ids.len() as u64);
            if progress.cancelled() {
                return Err(EngineError::Cancelled);
            }
            inner.kept.retain(|(c, _)| c.meta.id != *id);
        }
        Ok(())
    }

    fn changes(&self, a: &State, b: &State, times: bool, progress: &dyn Progress) -> Result<Vec<Change>> {
        let mut inner = self.inner();
        inner.may_fail(Op::Changes, "compare")?;
        let (a, b) = (inner.state(a)?, inner.state(b)?);
        progress.step("comparing", 1, 1);
        if progress.cancelled() {
            return Err(EngineError::Cancelled);
        }
        Ok(compare::changes(&a, &b, times))
    }

    fn read_for(&self, _reader: &Reader, state: &State, path: &Path, limit: u64) -> Result<Content> {
        // its files have no other owner
        self.read(state, path, limit)
    }

    fn entries_for(&self, _reader: &Reader, state: &State, path: &Path) -> Result<Vec<Entry>> {
        self.entries(state, path)
    }

    fn read(&self, state: &State, path: &Path, limit: u64) -> Result<Content> {
        let tree = self.inner().state(state)?;
        let node = tree.get(path).ok_or_else(|| no_path(path))?;
        Ok(match &node.body {
            Body::File(bytes) => Content::File {
                bytes: bytes[..bytes.len().min(usize::try_from(limit).unwrap_or(usize::MAX))].to_vec(),
                size: bytes.len() as u64,
            },
            Body::Link(target) => Content::Link(target.clone()),
            Body::Dir => Content::Other(FileType::Dir),
            Body::Other(t) => Content::Other(*t),
        })
    }

    fn entries(&self, state: &State, path: &Path) -> Result<Vec<Entry>> {
        let tree = self.inner().state(state)?;
        let folder = tree::normal(path).ok_or_else(|| no_path(path))?;
        if tree.0.get(&folder).is_none_or(|n| n.body != Body::Dir) {
            return Err(no_path(path));
        }
        let mut out: Vec<Entry> = tree
            .children(&folder)
            .filter_map(|(p, n)| {
                Some(Entry {
                    name: PathBuf::from(p.file_name()?),
                    file_type: n.file_type(),
                    size: n.size().unwrap_or(0),
                    mode: n.mode,
                    mtime_ns: i128::from(n.mtime.timestamp()) * 1_000_000_000
                        + i128::from(n.mtime.timestamp_subsec_nanos()),
                })
            })
            .collect();
        out.sort_by(|a, b| a.name.as_os_str().cmp(b.name.as_os_str()));
        Ok(out)
    }

    fn mark_late(&self, id: &CheckpointId, paths: u64) -> Result<()> {
        self.inner().checkpoint(id)?.0.meta.late = Some(paths);
        Ok(())
    }

    fn guard(&self) -> Result<()> {
        Ok(())
    }

    fn used(&self) -> Result<u64> {
        Ok(0)
    }

    fn sweep(&self) -> Result<()> {
        Ok(())
    }

    fn not_covered(&self) -> Result<Vec<PathBuf>> {
        Ok(Vec::new())
    }

    fn restore(
        &self,
        from: &State,
        target: &CheckpointId,
        selection: &Selection,
        progress: &dyn Progress,
    ) -> Result<Restored> {
        let mut inner = self.inner();
        inner.may_fail(Op::Restore, "restore")?;
        let safety = inner.state(from)?;
        let target = inner.state(&State::Checkpoint(target.clone()))?;
        if safety != inner.now {
            return Err(EngineError::Damaged {
                what: "the present state is not that of the safety checkpoint".into(),
                path: PathBuf::from("."),
            });
        }
        if progress.cancelled() {
            return Err(EngineError::Cancelled);
        }
        let wanted = inner.wanted(&target, selection);
        if inner.fails(Op::RestoreHalfway) {
            let half = wanted.0.len().div_ceil(2);
            inner.now.0 = wanted.0.into_iter().take(half).collect();
            return Err(injected("restore"));
        }
        let changed = compare::changed_inodes(&inner.now, &wanted);
        inner.now = wanted;
        progress.step("restoring", changed, changed);
        Ok(Restored { changed })
    }

    fn verify(
        &self,
        target: &CheckpointId,
        selection: &Selection,
        progress: &dyn Progress,
    ) -> Result<Vec<Difference>> {
        let mut inner = self.inner();
        let target = inner.state(&State::Checkpoint(target.clone()))?;
        progress.step("checking", 1, 1);
        if inner.fails(Op::Verify) {
            return Ok(vec![Difference {
                path: PathBuf::from("injected"),
                what: "content differs".into(),
            }]);
        }
        Ok(compare::differences(&inner.now, &target, |p| {
            covers(selection, p)
        }))
    }

    fn warm(&self) -> Result<()> {
        self.inner().warmed += 1;
        Ok(())
    }
}

impl Inner {
    /// The present tree with the selected paths as in `target`.
    fn wanted(&mut self, target: &Tree, selection: &Selection) -> Tree {
        let Selection::Paths(_) = selection else {
            return target.clone();
        };
        let mut wanted = self.now.clone();
        wanted
            .0
            .retain(|p, _| p.as_os_str().is_empty() || !covers(selection, p));
        for (path, node) in target.0.iter().filter(|(p, _)| covers(selection, p)) {
            for above in path.ancestors().skip(1).collect::<Vec<_>>().into_iter().rev() {
                let is_folder = wanted.0.get(above).is_some_and(|n| n.body == Body::Dir);
                if !is_folder && let Some(folder) = target.0.get(above) {
                    wanted.remove(above);
                    wanted.0.insert(above.to_owned(), folder.clone());
                }
            }
            let mut node = node.clone();
            // the same file may have another name now, outside of the selection: it stays there
            if wanted.0.iter().any(|(p, n)| n.inode == node.inode && p != path) {
                node.inode = self.next_inode;
                self.next_inode += 1;
            }
            wanted.0.insert(path.clone(), node);
        }
        wanted
    }
}

#[cfg(test)]
mod tests;
