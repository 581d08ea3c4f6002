//! Files that were deleted and made again are other inodes, with the same name in the same folder. A restore
//! takes such a pair for one: the live inode stays and gets what it lacks, instead of being replaced by yet
//! another one each time.

use std::collections::{HashMap, HashSet};

use crate::engine::changes::node::{Key, KeyKind, Node, Walked};

/// Nodes whose identity the other tree does not have.
fn alone(tree: &Walked, other: &Walked) -> Vec<u32> {
    let mut found = Vec::new();
    let mut others = other.order.iter().map(|&i| other.node(i).key).peekable();
    for &i in &tree.order {
        let key = tree.node(i).key;
        while others.next_if(|k| *k < key).is_some() {}
        if key.kind == KeyKind::Inode && others.peek() != Some(&key) {
            found.push(i);
        }
    }
    found
}

/// Gives nodes of `a` that only it has the identity of the node of `b` with the same name, type and folder
/// that only `b` has.
pub(super) fn align(a: Walked, b: &Walked) -> Walked {
    let mut new = alone(b, &a);
    let place = |i: u32| ((a.parent_key(i), &a.node(i).name[..]), i);
    let old: HashMap<(Key, &[u8]), u32> = alone(&a, b).into_iter().map(place).collect();
    if new.is_empty() || old.is_empty() {
        return a;
    }
    // folders before what is in them
    new.sort_unstable_by_key(|&i| (b.node(i).depth, i));
    let mut to_a: HashMap<Key, Key> = HashMap::new();
    let mut taken: HashSet<Key> = HashSet::new();
    for i in new {
        let node = b.node(i);
        let folder = b.parent_key(i);
        let folder = to_a.get(&folder).copied().unwrap_or(folder);
        let Some(&j) = old.get(&(folder, &node.name[..])) else {
            continue;
        };
        let key = a.node(j).key;
        if key.format == node.key.format && !to_a.contains_key(&node.key) && taken.insert(key) {
            to_a.insert(node.key, key);
        }
    }
    let to_b: HashMap<Key, Key> = to_a.into_iter().map(|(b, a)| (a, b)).collect();
    let same = |node: Node| match to_b.get(&node.key) {
        Some(&key) => Node { key, ..node },
        None => node,
    };
    Walked::new(a.nodes.into_iter().map(same).collect())
}
