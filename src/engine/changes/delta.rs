//! What happened to each inode from one tree to the other.

use std::collections::BTreeMap;

use super::compare::{Pair, Whats};
use super::node::{Key, Walked};
use crate::engine::Result;

/// One inode that differs. Indices into the nodes of the first (`lost`) and the second tree (`won`).
#[derive(Debug, Default)]
pub(in crate::engine) struct Delta {
    /// Names that it has in the first tree only.
    pub lost: Vec<u32>,
    /// Names that it has in the second tree only.
    pub won: Vec<u32>,
    /// Names that it has in both: same directory (by identity), same name.
    pub kept: Vec<(u32, u32)>,
    /// What of the inode itself differs; empty if it is in one tree only.
    pub what: Whats,
    /// It is in both trees.
    pub both: bool,
}

impl Delta {
    /// One of its names in the second tree.
    pub fn in_b(&self) -> Option<u32> {
        self.kept.first().map(|k| k.1).or(self.won.first().copied())
    }
    /// One of its names in the first tree.
    pub fn in_a(&self) -> Option<u32> {
        self.kept.first().map(|k| k.0).or(self.lost.first().copied())
    }
    fn is_none(&self) -> bool {
        self.lost.is_empty() && self.won.is_empty() && self.what.is_empty()
    }
}

/// All inodes that differ, and all places of nested subvolumes that only one tree has.
pub(in crate::engine) fn deltas(pair: &Pair<'_>) -> Result<Vec<Delta>> {
    let mut found = Vec::new();
    let mut unsure = BTreeMap::new();
    for (left, right) in Groups::new(pair.a, pair.b) {
        let above = |tree: &Walked, i: Option<&u32>| i.is_some_and(|&i| tree.node(i).is_context());
        if above(pair.a, left.first()) || above(pair.b, right.first()) {
            continue; // not selected: neither compared nor changed
        }
        let delta = names(pair, left, right);
        let (Some(&ia), Some(&ib)) = (left.first(), right.first()) else {
            found.push(delta);
            continue;
        };
        let (x, y) = (pair.a.node(ia), pair.b.node(ib));
        if pair.is_settled(x, y) {
            if !delta.is_none() {
                found.push(delta);
            }
        } else {
            unsure.insert((ia, ib), delta);
        }
    }
    let pairs = unsure.keys().copied().collect();
    for (ia, ib, what) in pair.differ_all(pairs)? {
        if let Some(delta) = unsure.remove(&(ia, ib)) {
            let delta = Delta { what, ..delta };
            found.extend((!delta.is_none()).then_some(delta));
        }
    }
    found.extend(places(pair));
    Ok(found)
}

/// The names of one inode in both trees.
fn names(pair: &Pair<'_>, left: &[u32], right: &[u32]) -> Delta {
    let mut delta = Delta {
        both: !left.is_empty() && !right.is_empty(),
        ..Delta::default()
    };
    if let (&[a], &[b]) = (left, right) {
        // the root has no name to lose
        if a == 0 || place(pair.a, a) == place(pair.b, b) {
            delta.kept.push((a, b));
        } else {
            delta.lost.push(a);
            delta.won.push(b);
        }
        return delta;
    }
    merge(pair, left, right, &mut delta);
    delta
}

/// Where a name is: the identity of its directory, and the name.
fn place(tree: &Walked, i: u32) -> (Key, &[u8]) {
    (tree.parent_key(i), &tree.node(i).name)
}

/// Merges two lists of names by their places.
fn merge(pair: &Pair<'_>, left: &[u32], right: &[u32], delta: &mut Delta) {
    let (mut left, mut right) = (left.to_vec(), right.to_vec());
    left.sort_unstable_by(|&x, &y| place(pair.a, x).cmp(&place(pair.a, y)));
    right.sort_unstable_by(|&x, &y| place(pair.b, x).cmp(&place(pair.b, y)));
    let (mut i, mut j) = (0, 0);
    while let (Some(&a), Some(&b)) = (left.get(i), right.get(j)) {
        match place(pair.a, a).cmp(&place(pair.b, b)) {
            std::cmp::Ordering::Less => {
                delta.lost.push(a);
                i += 1;
            }
            std::cmp::Ordering::Greater => {
                delta.won.push(b);
                j += 1;
            }
            std::cmp::Ordering::Equal => {
                delta.kept.push((a, b));
                i += 1;
                j += 1;
            }
        }
    }
    delta.lost.extend(&left[i..]);
    delta.won.extend(&right[j..]);
}

/// Nested subvolumes and mounts have no identity: compared by place, no content.
fn places(pair: &Pair<'_>) -> Vec<Delta> {
    let uncovered = |tree: &Walked| -> Vec<u32> {
        (0..tree.nodes.len() as u32)
            .filter(|&i| !tree.node(i).covered())
            .collect()
    };
    let mut all = Delta::default();
    merge(pair, &uncovered(pair.a), &uncovered(pair.b), &mut all);
    let lost = all.lost.into_iter().map(|i| Delta {
        lost: vec![i],
        ..Delta::default()
    });
    let won = all.won.into_iter().map(|i| Delta {
        won: vec![i],
        ..Delta::default()
    });
    lost.chain(won).collect()
}

/// Walks two orders side by side, one identity at a time.
struct Groups<'a> {
    a: &'a Walked,
    b: &'a Walked,
    i: usize,
    j: usize,
}

impl<'a> Groups<'a> {
    fn new(a: &'a Walked, b: &'a Walked) -> Self {
        Self { a, b, i: 0, j: 0 }
    }
}

/// The nodes with the identity `key` at the front of `order[at..]`.
fn run<'a>(tree: &'a Walked, at: &mut usize, key: Key) -> &'a [u32] {
    let from = *at;
    while tree.order.get(*at).is_some_and(|&i| tree.node(i).key == key) {
        *at += 1;
    }
    &tree.order[from..*at]
}

impl<'a> Iterator for Groups<'a> {
    type Item = (&'a [u32], &'a [u32]);

    fn next(&mut self) -> Option<Self::Item> {
        let x = self.a.order.get(self.i).map(|&i| self.a.node(i).key);
        let y = self.b.order.get(self.j).map(|&i| self.b.node(i).key);
        let key = match (x, y) {
            (Some(x), Some(y)) => x.min(y),
            (x, y) => x.or(y)?,
        };
        Some((run(self.a, &mut self.i, key), run(self.b, &mut self.j, key)))
    }
}
