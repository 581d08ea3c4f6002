//! Whether a tree was changed between two looks at it.

use std::os::fd::BorrowedFd;

use super::super::Result;
use super::super::changes::node::Node;
use super::super::changes::walk;
use crate::progress::Progress;

/// A fingerprint of all names, inodes, sizes and times below a root.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stamp(u64, u64);

fn line(path: &[u8], n: &Node) -> u64 {
    use std::hash::{DefaultHasher, Hash, Hasher};
    let mut h = DefaultHasher::new();
    path.hash(&mut h);
    (n.key.ino, n.mode, n.uid, n.gid, n.nlink, n.size, n.rdev).hash(&mut h);
    (n.mtime.s, n.mtime.ns).hash(&mut h);
    // moving a top-level entry to another folder changes its own change time, and nothing below it
    if n.depth > 1 {
        (n.ctime.s, n.ctime.ns).hash(&mut h);
    }
    h.finish()
}

/// Looks at everything below `root`; the root's own attributes do not count. Nothing but folders is opened.
pub fn stamp(root: BorrowedFd<'_>, progress: &dyn Progress) -> Result<Stamp> {
    let walked = walk::walk(root, walk::threads(1), progress)?;
    let mut out = Stamp(0, 0);
    for i in 0..walked.nodes.len() as u32 {
        let node = walked.node(i);
        if node.depth == 0 {
            continue;
        }
        // a sum does not depend on the order in which the threads found the entries
        out.0 = out.0.wrapping_add(line(&walked.bytes(i), node));
        out.1 += 1;
    }
    Ok(out)
}
