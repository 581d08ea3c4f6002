//! The branches of a tree whose nodes are numbered in the store's order and name their parents: what every format
//! that keeps one has in common.

use std::collections::{HashMap, HashSet};

/// For each of `len` nodes whether it is on the path from `head` to the root.
pub(super) fn path_of(len: usize, head: Option<usize>, parent: impl Fn(usize) -> Option<usize>) -> Vec<bool> {
    let mut active = vec![false; len];
    let mut here = head;
    while let Some(i) = here {
        if std::mem::replace(&mut active[i], true) {
            break; // a circle, which no agent writes
        }
        here = parent(i);
    }
    active
}

/// The branch of each message off the active one, from 1: the first message after another goes on its branch, any
/// further one begins a new branch. `counts`: the node is one of the tree.
pub(super) fn branches(
    active: &[bool],
    parent: impl Fn(usize) -> Option<usize>,
    is_message: impl Fn(usize) -> bool,
    counts: impl Fn(usize) -> bool,
) -> HashMap<usize, u32> {
    let mut branches = HashMap::new();
    let mut before: Vec<Option<usize>> = vec![None; active.len()];
    let mut continued = HashSet::new();
    let mut last = 0;
    for i in (0..active.len()).filter(|&i| !active[i] && counts(i)) {
        let parent = parent(i).filter(|&p| p < i && !active[p]);
        before[i] = parent.and_then(|p| if is_message(p) { Some(p) } else { before[p] });
        if is_message(i) {
            let goes_on = before[i].filter(|&m| continued.insert(m));
            let branch = goes_on.and_then(|m| branches.get(&m).copied());
            let branch = branch.unwrap_or_else(|| {
                last += 1;
                last
            });
            branches.insert(i, branch);
        }
    }
    branches
}
