//! The order of work of a restore in place: take away bottom-up, put back top-down, then links, then data
//! and attributes, directories last.

use std::collections::BTreeSet;

use crate::engine::What;
use crate::engine::changes::delta::Delta;
use crate::engine::changes::node::Walked;

/// A name to take away from the live tree. Indices into the safety tree.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Away {
    pub node: u32,
    /// Moved aside under this number, as the inode gets another name; else removed.
    pub stage: Option<usize>,
}

/// A name to put into the live tree. Indices into the target tree.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Put {
    pub node: u32,
    /// Moved back from this number; else made.
    pub stage: Option<usize>,
}

/// A further name of an inode.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Link {
    /// An existing name (target tree).
    pub from: u32,
    /// The new one (target tree).
    pub to: u32,
}

/// A file whose data or attributes are set.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Sync {
    /// One of its names (target tree).
    pub node: u32,
    /// Its node in the safety tree, if it has one.
    pub was: Option<u32>,
    /// All its names in the target tree.
    pub names: Vec<u32>,
    /// Its bytes are written: it is new, or they differ.
    pub content: bool,
    /// Its inode flags differ.
    pub flags: bool,
}

/// Everything that a restore does, in this order.
#[derive(Debug, Default)]
pub(super) struct Plan {
    /// Nodes of the safety tree whose immutable or append-only flag stands in the way, or, of folders and without
    /// root, whose mode.
    pub thaw: Vec<u32>,
    pub away: Vec<Away>,
    pub put: Vec<Put>,
    pub links: Vec<Link>,
    pub files: Vec<Sync>,
    /// Directories whose attributes are set (target tree), deepest first.
    pub dirs: Vec<u32>,
    /// Those of them that stay outside the selection (folders above it, files with further names): their
    /// flags are set again.
    pub refreeze: BTreeSet<u32>,
    /// Inodes changed, made, moved or removed.
    pub inodes: u64,
}

/// The mode bits with which the owner may change what is in a folder.
pub(super) const OPEN: u32 = 0o700;

/// Makes the plan that turns the safety tree `a` into the target tree `b`.
pub(super) fn plan(a: &Walked, b: &Walked, deltas: &[Delta]) -> Plan {
    let mut plan = Plan::default();
    let mut dirs = BTreeSet::from([0]);
    let mut thaw = BTreeSet::from([0]);
    let uncovered = |t: &Walked, i: Option<u32>| i.is_some_and(|i| !t.node(i).covered());
    for (number, delta) in deltas.iter().enumerate() {
        if uncovered(a, delta.in_a()) || uncovered(b, delta.in_b()) {
            continue; // a nested subvolume or a mount: left as it is
        }
        plan.inodes += 1;
        plan.names(number, delta);
        touched(a, b, delta, &mut thaw, &mut dirs);
        plan.content(a, b, delta);
    }
    let root = rustix::process::geteuid().is_root();
    let can_thaw = |i: &u32| {
        let node = a.node(*i);
        let closed = !root && node.is_dir() && node.mode & OPEN != OPEN;
        closed || node.frozen && (node.is_dir() || node.is_file())
    };
    plan.thaw = thaw.into_iter().filter(can_thaw).collect();
    for &i in &plan.thaw {
        let node = a.node(i);
        if node.is_context() || (!node.is_dir() && node.nlink as usize > a.find(node.key).len()) {
            plan.refreeze.insert(i);
        } else {
            dirs.extend(b.find(node.key).first().filter(|&&j| b.node(j).is_dir()));
        }
    }
    plan.sort(a, b, dirs);
    plan
}

/// Notes the inodes that must not be frozen, and the directories whose times the work will change.
fn touched(a: &Walked, b: &Walked, delta: &Delta, thaw: &mut BTreeSet<u32>, dirs: &mut BTreeSet<u32>) {
    thaw.extend(delta.in_a());
    for &i in &delta.lost {
        let parent = a.node(i).parent;
        thaw.insert(parent);
        dirs.extend(b.find(a.node(parent).key).first());
    }
    for &i in &delta.won {
        let parent = b.node(i).parent;
        thaw.extend(a.find(b.node(parent).key).first());
        dirs.insert(parent);
    }
    dirs.extend(delta.in_b().filter(|&i| b.node(i).is_dir()));
}

impl Plan {
    fn names(&mut self, number: usize, delta: &Delta) {
        let moves = delta.both && delta.kept.is_empty();
        for (i, &node) in delta.lost.iter().enumerate() {
            let stage = (moves && i == 0).then_some(number);
            self.away.push(Away { node, stage });
        }
        let mut existing = delta.kept.first().map(|k| k.1);
        for &node in &delta.won {
            if let Some(from) = existing {
                self.links.push(Link { from, to: node });
            } else {
                let stage = moves.then_some(number);
                self.put.push(Put { node, stage });
                existing = Some(node);
            }
        }
    }

    fn content(&mut self, a: &Walked, b: &Walked, delta: &Delta) {
        let Some(node) = delta.in_b().filter(|&i| !b.node(i).is_dir()) else {
            return;
        };
        let was = delta.in_a().filter(|_| delta.both);
        let made = !delta.both;
        if made || !delta.what.is_empty() || was.is_some_and(|i| a.node(i).frozen) {
            let kept = delta.kept.iter().map(|k| k.1);
            self.files.push(Sync {
                node,
                was,
                names: kept.chain(delta.won.iter().copied()).collect(),
                content: made || delta.what.has(What::Content),
                flags: delta.what.has(What::Flags),
            });
        }
    }

    fn sort(&mut self, a: &Walked, b: &Walked, dirs: BTreeSet<u32>) {
        let deep = |t: &Walked, i: u32| (t.node(i).depth, t.node(i).parent, i);
        self.away.sort_by_key(|x| std::cmp::Reverse(deep(a, x.node)));
        self.put.sort_by_key(|x| deep(b, x.node));
        self.links.sort_by_key(|x| deep(b, x.to));
        self.files.sort_by_key(|x| deep(b, x.node));
        self.dirs = dirs.into_iter().filter(|&i| !b.node(i).is_context()).collect();
        self.dirs.sort_by_key(|&i| std::cmp::Reverse(deep(b, i)));
    }

    /// The regular files (target tree) whose bytes are read.
    pub fn needed<'a>(&'a self, b: &'a Walked) -> impl Iterator<Item = u32> + 'a {
        let reads = |s: &&Sync| (s.content || s.flags) && b.node(s.node).is_file();
        self.files.iter().filter(reads).map(|s| s.node)
    }

    /// True if there is nothing to do.
    pub fn is_empty(&self) -> bool {
        self.inodes == 0
    }
    /// True if anything is made.
    pub fn makes(&self) -> bool {
        self.put.iter().any(|x| x.stage.is_none())
    }
    /// True if anything is moved aside on its way.
    pub fn stages(&self) -> bool {
        self.away.iter().any(|x| x.stage.is_some())
    }
}
