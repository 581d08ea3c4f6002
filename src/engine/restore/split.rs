//! Inodes that cannot become what the target has: their names get new ones.

use crate::engine::What;
use crate::engine::changes::delta::Delta;
use crate::engine::changes::node::{Node, Walked};

/// Splits such differences into one that goes and one that comes: links, pipes, sockets and devices whose
/// content differs, and files that also have names outside the selection, which must not change there.
pub(super) fn split(a: &Walked, deltas: Vec<Delta>) -> Vec<Delta> {
    let mut all = Vec::with_capacity(deltas.len());
    for delta in deltas {
        let in_a = delta.in_a().filter(|_| delta.both);
        if !in_a.is_some_and(|i| must_be_new(a, a.node(i), &delta)) {
            all.push(delta);
            continue;
        }
        let lost = delta.kept.iter().map(|k| k.0).chain(delta.lost).collect();
        let won = delta.kept.iter().map(|k| k.1).chain(delta.won).collect();
        all.push(Delta {
            lost,
            ..Delta::default()
        });
        all.push(Delta {
            won,
            ..Delta::default()
        });
    }
    all
}

fn must_be_new(a: &Walked, node: &Node, delta: &Delta) -> bool {
    if node.is_dir() {
        return false;
    }
    let shared = !delta.what.is_empty() && node.nlink as usize > a.find(node.key).len();
    shared || (delta.what.has(What::Content) && !node.is_file())
}
