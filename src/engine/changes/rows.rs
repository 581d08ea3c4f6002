//! The rows of a change list, from the inode differences.

use std::collections::BTreeMap;
use std::os::unix::ffi::OsStrExt;

use super::compare::{Pair, Whats};
use super::delta::Delta;
use super::open::to_path;
use crate::engine::{Change, ChangeKind, PartKind, Result, What};

/// Collects rows. Deleted and added paths are kept apart until the end, as one path can be both.
pub(super) struct Rows<'a> {
    pair: &'a Pair<'a>,
    times: bool,
    part: PartKind,
    list: Vec<Change>,
    deleted: BTreeMap<Vec<u8>, u32>,
    added: BTreeMap<Vec<u8>, u32>,
}

impl<'a> Rows<'a> {
    pub fn new(pair: &'a Pair<'a>, times: bool, part: PartKind) -> Self {
        Self {
            pair,
            times,
            part,
            list: Vec::new(),
            deleted: BTreeMap::new(),
            added: BTreeMap::new(),
        }
    }

    /// Adds the rows of one inode.
    pub fn add(&mut self, delta: &Delta) {
        let old = |i: &u32| (self.pair.a.bytes(*i), *i);
        let new = |i: &u32| (self.pair.b.bytes(*i), *i);
        let mut lost: BTreeMap<Vec<u8>, u32> = delta.lost.iter().map(old).collect();
        let mut won: BTreeMap<Vec<u8>, u32> = delta.won.iter().map(new).collect();
        let mut kept = delta.kept.clone();
        if delta.both {
            // the same path in another folder of that name: for the reader nothing was renamed
            won.retain(|path, b| match lost.remove(path) {
                Some(a) => {
                    kept.push((a, *b));
                    false
                }
                None => true,
            });
            while let Some((to, b)) = won.first_key_value().map(|(p, b)| (p.clone(), *b)) {
                let Some((from, a)) = lost.pop_first() else { break };
                won.remove(&to);
                self.push(ChangeKind::Renamed, to, Some(from), delta.what, Some(a), Some(b));
            }
        }
        self.deleted.extend(lost);
        self.added.extend(won);
        for (a, b) in kept {
            self.kept(a, b, delta.what);
        }
    }

    fn visible(&self, what: Whats, dir: bool) -> Whats {
        if self.times && !dir {
            what
        } else {
            what.without(What::Time)
        }
    }

    /// A row for a name that stayed, if anything of it differs.
    fn kept(&mut self, a: u32, b: u32, what: Whats) {
        if self.visible(what, self.pair.b.node(b).is_dir()).is_empty() {
            return;
        }
        let kind = if what.has(What::Content) {
            ChangeKind::Modified
        } else {
            ChangeKind::Meta
        };
        let (from, to) = (self.pair.a.bytes(a), self.pair.b.bytes(b));
        let from = (from != to).then_some(from);
        self.push(kind, to, from, what, Some(a), Some(b));
    }

    fn push(
        &mut self,
        kind: ChangeKind,
        path: Vec<u8>,
        from: Option<Vec<u8>>,
        what: Whats,
        a: Option<u32>,
        b: Option<u32>,
    ) {
        let (a, b) = (a.map(|i| self.pair.a.node(i)), b.map(|i| self.pair.b.node(i)));
        let dir = b.is_some_and(super::node::Node::is_dir);
        self.list.push(Change {
            path: to_path(&path),
            kind,
            from: from.map(|p| to_path(&p)),
            what: self.visible(what, dir).list(),
            type_a: a.map(|n| n.file_type),
            type_b: b.map(|n| n.file_type),
            size_a: a.and_then(super::node::Node::shown_size),
            size_b: b.and_then(super::node::Node::shown_size),
            part: self.part,
        });
    }

    /// Joins what is deleted and added at one path, and sorts.
    pub fn finish(mut self) -> Result<Vec<Change>> {
        let mut added = std::mem::take(&mut self.added);
        let mut replaced = Vec::new();
        for (path, ia) in std::mem::take(&mut self.deleted) {
            let Some(ib) = added.remove(&path) else {
                self.push(ChangeKind::Deleted, path, None, Whats::default(), Some(ia), None);
                continue;
            };
            let (x, y) = (self.pair.a.node(ia), self.pair.b.node(ib));
            if x.file_type != y.file_type {
                let mut what = super::compare::by_stat(x, y);
                what.add(What::Content, true);
                self.push(ChangeKind::Type, path, None, what, Some(ia), Some(ib));
            } else if x.covered() && y.covered() {
                replaced.push((ia, ib));
            }
        }
        for (path, ib) in added {
            self.push(ChangeKind::Added, path, None, Whats::default(), None, Some(ib));
        }
        for (ia, ib, what) in self.pair.differ_all(replaced)? {
            self.kept(ia, ib, what);
        }
        let bytes = |c: &Change| c.path.as_os_str().as_bytes().to_vec();
        self.list.sort_by_cached_key(|c| (bytes(c), c.kind));
        Ok(self.list)
    }
}
