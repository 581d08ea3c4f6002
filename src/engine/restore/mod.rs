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
mod measure;
mod plan;
pub mod remove;
mod select;
mod split;
pub mod stamp;

use std::os::fd::BorrowedFd;

pub use check::{Trust, differences};
pub use copy::{CopyStats, TreeSize, copy_tree, measure};

use super::changes::compare::{Pair, settled};
use super::changes::delta::deltas;
use super::changes::{Tree, walk_both};
use super::{EngineError, Restored, Result, Selection};
use crate::progress::Progress;

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
    let selected = match selection {
        Selection::All => None,
        Selection::Paths(list) => select::paths(list)?,
    };
    let (a, b) = match &selected {
        None => walk_both(safety, target, progress)?,
        Some(paths) => select::trees(safety, target, paths, progress)?,
    };
    let a = align::align(a, &b);
    let pair = Pair {
        a: &a,
        b: &b,
        settled: settled(safety.made, target.made),
        progress,
    };
    let found = split::split(&a, deltas(&pair, safety, target)?);
    let plan = plan::plan(&a, &b, &found);
    if progress.cancelled() {
        return Err(EngineError::Cancelled);
    }
    if !plan.is_empty() {
        apply::Apply::new(live, &a, (target, &b), progress).run(&plan)?;
    }
    Ok(Restored { changed: plan.inodes })
}
