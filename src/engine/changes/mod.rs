//! What differs between two states of a tree.
//!
//! Both trees are walked side by side (`walk`) and joined by the identity of their inodes, (inode number,
//! birth time), and the place of their names, (identity of the directory, name) (`delta`): a renamed folder
//! is one row, its unchanged children none. An inode whose change time is equal in both trees, and old enough,
//! is the same; everything else is read and compared.

pub(in crate::engine) mod attrs;
pub(in crate::engine) mod compare;
pub(in crate::engine) mod content;
pub(in crate::engine) mod delta;
pub(in crate::engine) mod node;
pub(in crate::engine) mod open;
mod rows;
pub(in crate::engine) mod walk;

use std::os::fd::BorrowedFd;

use super::{Change, PartKind, Result};
use crate::progress::Progress;
use compare::Pair;
use node::Walked;

/// A read-only tree to compare.
#[derive(Debug, Clone, Copy)]
pub struct Tree<'a> {
    /// Its root directory.
    pub root: BorrowedFd<'a>,
    /// When the snapshot was made: seconds since 1970, nanoseconds. None if not known: then every byte of
    /// the files that may differ is read.
    pub made: Option<(i64, u32)>,
}

/// Walks both trees at once.
pub(in crate::engine) fn walk_both(
    a: &Tree<'_>,
    b: &Tree<'_>,
    progress: &dyn Progress,
) -> Result<(Walked, Walked)> {
    let threads = walk::threads(2);
    std::thread::scope(|s| {
        let first = s.spawn(|| walk::walk(a.root, threads, progress));
        let second = walk::walk(b.root, threads, progress);
        match first.join() {
            Ok(first) => Ok((first?, second?)),
            Err(panic) => std::panic::resume_unwind(panic),
        }
    })
}

/// What differs from `a` to `b`, sorted by the bytes of the path. With `times`, also files whose
/// modification time alone differs (folders never). The rules of the rows: [`Change`].
pub fn changes(
    a: &Tree<'_>,
    b: &Tree<'_>,
    times: bool,
    part: PartKind,
    progress: &dyn Progress,
) -> Result<Vec<Change>> {
    let (wa, wb) = walk_both(a, b, progress)?;
    let pair = Pair {
        a: &wa,
        b: &wb,
        settled: compare::settled(a.made, b.made),
        disk: Some((*a, *b)),
        progress,
    };
    list(&pair, times, part)
}

/// As [`changes`], between two recorded trees.
pub(in crate::engine) fn recorded_changes(
    a: &Walked,
    b: &Walked,
    times: bool,
    part: PartKind,
    progress: &dyn Progress,
) -> Result<Vec<Change>> {
    let pair = Pair {
        a,
        b,
        settled: None,
        disk: None,
        progress,
    };
    list(&pair, times, part)
}

fn list(pair: &Pair<'_>, times: bool, part: PartKind) -> Result<Vec<Change>> {
    let mut rows = rows::Rows::new(pair, times, part);
    for delta in delta::deltas(pair)? {
        rows.add(&delta);
    }
    rows.finish()
}
