//! How large a tree is, and what in it would not simply be copied.

use std::collections::HashMap;
use std::os::fd::BorrowedFd;
use std::path::PathBuf;

use crate::engine::Result;
use crate::engine::changes::node::{Node, Walked};
use crate::engine::changes::walk::{threads, walk_where, walk_without};
use crate::patterns::Patterns;
use crate::progress::Progress;

/// The size of a tree, mounts in it left out.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TreeSize {
    /// Files and folders, the root included.
    pub entries: u64,
    /// Bytes of its files; holes are not counted, hard links once.
    pub bytes: u64,
    /// What is mounted in it, relative to its root.
    pub mounts: Vec<PathBuf>,
    /// Btrfs subvolumes in it, relative to its root; their content counts.
    pub subvolumes: Vec<PathBuf>,
    /// Files that have a name outside of it, too: in a copy they are files of their own.
    pub shared: u64,
}

/// The bytes that a copy of this file writes.
pub(super) fn bytes_of(node: &Node) -> u64 {
    match node.allocated {
        // small files may be stored with the metadata
        n if n < node.size && node.size > 4096 => n,
        _ => node.size,
    }
}

/// Measures the tree below `root`. Does not enter what is mounted in it.
pub fn measure(root: BorrowedFd<'_>, progress: &dyn Progress) -> Result<TreeSize> {
    Ok(sized(
        walk_where(root, threads(1), progress, &|n: &Node| !n.mount)?,
        &|_| false,
    ))
}

/// As [`measure`], of what copies that leave this out would take.
pub fn measure_without(
    root: BorrowedFd<'_>,
    patterns: &Patterns,
    progress: &dyn Progress,
) -> Result<TreeSize> {
    let nodes = walk_without(root, threads(1), progress, patterns)?;
    Ok(sized(nodes, &|n| !n.covered() && !n.mount))
}

fn sized(nodes: Vec<Node>, left_out: &dyn Fn(&Node) -> bool) -> TreeSize {
    let tree = Walked {
        nodes,
        order: Vec::new(),
    };
    let mut size = TreeSize::default();
    let mut seen: HashMap<_, u32> = HashMap::new();
    for (i, node) in (0..).zip(&tree.nodes) {
        if node.mount && i != 0 {
            size.mounts.push(tree.path(i));
            continue;
        }
        if left_out(node) {
            continue;
        }
        size.entries += 1;
        let subvolume = node.is_dir() && node.inode.0 == 256 && node.dev != tree.node(node.parent).dev;
        if subvolume {
            size.subvolumes.push(tree.path(i));
        }
        if !node.is_dir() && node.nlink > 1 {
            let names = seen.entry((node.dev, node.inode.0)).or_insert(0);
            *names += 1;
            match *names {
                1 => size.shared += 1,
                _ => size.shared -= u64::from(*names == node.nlink),
            }
            if *names > 1 {
                continue;
            }
        }
        if node.is_file() {
            size.bytes += bytes_of(node);
        }
    }
    size.mounts.sort();
    size.subvolumes.sort();
    size
}
