//! Making a live tree equal to a snapshot, in place: inodes that both have stay the same inodes, so that
//! open files, working directories and bind mounts stay valid, and what does not differ is not touched.

mod align;
mod apply;
mod attrs;
pub mod check;
pub mod copy;
mod data;
mod entry;
mod file;
mod known;
mod measure;
mod plan;
pub mod remove;
mod rights;
mod select;
mod source;
mod split;
pub mod stamp;

use std::os::fd::BorrowedFd;

pub(in crate::engine) use source::Objects;

pub use check::{Trust, differences};
pub use copy::{CopyStats, TreeSize, copy_tree, measure};
pub use measure::measure_without;
pub use rights::unmakable;

use super::changes::compare::{Pair, settled};
use super::changes::delta::deltas;
use super::changes::node::Walked;
use super::changes::open::Dirs;
use super::changes::{Tree, walk_both};
use super::{Difference, EngineError, Restored, Result, Selection};
use crate::progress::Progress;
use source::Source;

/// Makes the live tree equal to `target`, or the selected paths of it.
///
/// `safety` is a read-only snapshot of `live` taken after all writers were stopped; a file that is not as it
/// says is an error, not a loss. Killed anywhere, or failed: take a new safety snapshot and call it again.
/// Nested subvolumes and mounts in the live tree stay as they are. Cancelling is possible until the first
/// change is made. Not durable until the file system is synced.
pub fn restore(
    live: BorrowedFd<'_>,
    safety: &Tree<'_>,
    target: &Tree<'_>,
    selection: &Selection,
    progress: &dyn Progress,
) -> Result<Restored> {
    let (a, b, plan) = planned_on_disk(safety, target, selection, progress)?;
    if progress.cancelled() {
        return Err(EngineError::Cancelled);
    }
    if !plan.is_empty() {
        let source = Source::Disk(Dirs::new(target.root, &b));
        apply::Apply::new(live, &a, (source, &b), progress).run(&plan)?;
    }
    Ok(Restored { changed: plan.inodes })
}

/// What of `target` this process has no right to bring back; at most 100. `safety` is a snapshot of the live tree.
pub fn denied(
    safety: &Tree<'_>,
    target: &Tree<'_>,
    selection: &Selection,
    progress: &dyn Progress,
) -> Result<Vec<Difference>> {
    let (a, b, plan) = planned_on_disk(safety, target, selection, progress)?;
    let (mut in_a, mut in_b) = (Dirs::new(safety.root, &a), Dirs::new(target.root, &b));
    rights::denied(&a, &b, &plan, &mut |target, i| {
        if target {
            rights::on_disk(&mut in_b, &b, i)
        } else {
            rights::on_disk(&mut in_a, &a, i)
        }
    })
}

fn planned_on_disk(
    safety: &Tree<'_>,
    target: &Tree<'_>,
    selection: &Selection,
    progress: &dyn Progress,
) -> Result<(Walked, Walked, plan::Plan)> {
    let (a, b) = match selected(selection)? {
        None => walk_both(safety, target, progress)?,
        Some(paths) => {
            let (mut a, mut b) = (select::Disk::new(safety)?, select::Disk::new(target)?);
            select::trees(&mut a, &mut b, &paths, progress)?
        }
    };
    let a = align::align(a, &b);
    let pair = Pair {
        a: &a,
        b: &b,
        settled: settled(safety.made, target.made),
        disk: Some((*safety, *target)),
        progress,
    };
    let plan = planned(&pair)?;
    Ok((a, b, plan))
}

fn selected(selection: &Selection) -> Result<Option<Vec<select::Names>>> {
    match selection {
        Selection::All => Ok(None),
        Selection::Paths(list) => select::paths(list),
    }
}

fn planned(pair: &Pair<'_>) -> Result<plan::Plan> {
    let found = split::split(pair.a, deltas(pair)?);
    Ok(plan::plan(pair.a, pair.b, &found))
}

/// Two recorded trees, cut down to a selection, and what turns the one into the other.
pub(in crate::engine) struct Recorded {
    a: Walked,
    b: Walked,
    plan: plan::Plan,
}

impl Recorded {
    /// `safety` is the record of the live tree made after all writers were stopped.
    pub fn new(
        safety: Walked,
        target: Walked,
        selection: &Selection,
        progress: &dyn Progress,
    ) -> Result<Self> {
        let (a, b) = match selected(selection)? {
            None => (safety, target),
            Some(paths) => {
                let (mut a, mut b) = (select::Record::new(&safety), select::Record::new(&target));
                select::trees(&mut a, &mut b, &paths, progress)?
            }
        };
        let a = align::align(a, &b);
        let pair = Pair {
            a: &a,
            b: &b,
            settled: None,
            disk: None,
            progress,
        };
        let plan = planned(&pair)?;
        Ok(Self { a, b, plan })
    }

    /// What this process has no right to bring back.
    pub fn denied(&self) -> Result<Vec<Difference>> {
        rights::denied(&self.a, &self.b, &self.plan, &mut |target, i| {
            Ok(rights::recorded(if target { &self.b } else { &self.a }, i))
        })
    }

    /// As [`restore`]. Before anything is changed, every content that is needed is compared with its hash;
    /// `damaged` makes the error for a path whose content is not what it must be.
    pub fn run(
        &self,
        live: BorrowedFd<'_>,
        objects: &dyn Objects,
        damaged: &(dyn Fn(std::path::PathBuf, std::io::Error) -> EngineError + Sync),
        progress: &dyn Progress,
    ) -> Result<Restored> {
        use rayon::prelude::*;
        let (b, plan) = (&self.b, &self.plan);
        let files: Vec<u32> = plan.needed(b).collect();
        files.par_iter().try_for_each(|&i| {
            if progress.cancelled() {
                return Err(EngineError::Cancelled);
            }
            let hash = source::hash(b, i)?;
            objects.check(hash).map_err(|e| damaged(b.path(i), e))
        })?;
        if progress.cancelled() {
            return Err(EngineError::Cancelled);
        }
        if !plan.is_empty() {
            apply::Apply::new(live, &self.a, (Source::Record(objects), b), progress).run(plan)?;
        }
        Ok(Restored { changed: plan.inodes })
    }
}
