//! Whether a tree was changed between two looks at it.

use std::collections::HashSet;
use std::os::fd::BorrowedFd;

use super::super::Result;
use super::super::changes::node::Node;
use super::super::changes::walk;
use crate::progress::Progress;

/// A fingerprint of all names, inodes, sizes and times below a root.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stamp(u64, u64);

fn line(path: &[u8], n: &Node, moved: bool) -> u64 {
    use std::hash::{DefaultHasher, Hash, Hasher};
    let mut h = DefaultHasher::new();
    path.hash(&mut h);
    (n.key.ino, n.mode, n.uid, n.gid, n.nlink, n.size, n.rdev).hash(&mut h);
    (n.mtime.s, n.mtime.ns).hash(&mut h);
    if !moved {
        (n.ctime.s, n.ctime.ns).hash(&mut h);
    }
    h.finish()
}

/// Looks at everything below `root`; the root's own attributes do not count, nor do the change times of
/// inodes that have a name in the root itself: moving that name to another folder changes them. Nothing but
/// folders is opened.
pub fn stamp(root: BorrowedFd<'_>, progress: &dyn Progress) -> Result<Stamp> {
    let walked = walk::walk(root, walk::threads(1), progress)?;
    let nodes = || walked.nodes.iter().zip(0u32..).skip(1);
    let top: HashSet<u64> = nodes()
        .filter(|(n, _)| n.parent == 0)
        .map(|(n, _)| n.key.ino)
        .collect();
    let mut out = Stamp(0, 0);
    for (node, i) in nodes() {
        // a sum does not depend on the order in which the threads found the entries
        out.0 = out
            .0
            .wrapping_add(line(&walked.bytes(i), node, top.contains(&node.key.ino)));
        out.1 += 1;
    }
    Ok(out)
}
