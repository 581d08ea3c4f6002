//! The parts of two trees that a selection of paths covers: the selected subtrees, and above each the
//! folders that lead there, which are neither compared nor changed unless they have to be made.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::PathBuf;

use rustix::io::Errno;

use super::apply::STAGE;
use crate::engine::changes::Tree;
use crate::engine::changes::node::{Key, Node, Origin, Walked, stat_at};
use crate::engine::changes::open::{components, open_chain, open_dir_at, to_path};
use crate::engine::changes::walk::{threads, walk_where};
use crate::engine::{EngineError, Result};
use crate::progress::Progress;

/// A path below the root, name by name.
pub(super) type Names = Vec<Box<[u8]>>;

/// The selected paths as names, sorted, without those below another one. None: the root is selected.
pub(super) fn paths(selected: &[PathBuf]) -> Result<Option<Vec<Names>>> {
    let all: BTreeSet<Names> = selected.iter().map(|p| components(p)).collect::<Result<_>>()?;
    let mut kept: Vec<Names> = Vec::new();
    for names in all {
        if names.is_empty() {
            return Ok(None);
        }
        if !kept.last().is_some_and(|above| names.starts_with(above)) {
            kept.push(names);
        }
    }
    Ok(Some(kept))
}

/// One of the two trees while it is put together: on disk or recorded.
pub(super) trait Side {
    /// The nodes put together so far.
    fn nodes(&mut self) -> &mut Vec<Node>;
    /// The entry with these names as a child of node `parent`; None if there is none.
    fn look(&self, names: &[Box<[u8]>], parent: u32) -> Result<Option<Node>>;
    /// Everything below an entry: parents are indices into the list (the entry itself is 0), depths count
    /// from it.
    fn below(&self, names: &[Box<[u8]>], progress: &dyn Progress) -> Result<Vec<Node>>;
    /// The names in the root.
    fn top(&self) -> Result<Vec<Box<[u8]>>>;

    /// Adds a node; its index.
    fn push(&mut self, node: Node) -> u32 {
        self.nodes().push(node);
        self.nodes().len() as u32 - 1
    }

    /// Adds an entry and everything below it.
    fn push_all(&mut self, names: &[Box<[u8]>], node: Node, progress: &dyn Progress) -> Result<()> {
        let enter = node.is_dir() && node.covered();
        let depth = node.depth;
        let top = self.push(node);
        if enter {
            for mut node in self.below(names, progress)?.into_iter().skip(1) {
                node.parent += top;
                node.depth += depth;
                self.nodes().push(node);
            }
        }
        Ok(())
    }
}

/// A tree on disk.
pub(super) struct Disk<'a> {
    root: BorrowedFd<'a>,
    origin: Origin,
    nodes: Vec<Node>,
}

impl<'a> Disk<'a> {
    pub fn new(tree: &Tree<'a>) -> Result<Self> {
        let st = stat_at(tree.root, b"")
            .map_err(io::Error::from)
            .map_err(EngineError::io("read", "."))?;
        let mut root = Node::new(b"", 0, 0, &st, None);
        root.key = Key::context(0);
        Ok(Self {
            root: tree.root,
            origin: Origin::of(&st),
            nodes: vec![root],
        })
    }

    /// Part of the tree, whatever the subtree's own root says.
    fn inside(&self, node: &Node) -> bool {
        node.covered() && self.origin.owns(node)
    }
}

impl Side for Disk<'_> {
    fn nodes(&mut self) -> &mut Vec<Node> {
        &mut self.nodes
    }

    fn look(&self, names: &[Box<[u8]>], parent: u32) -> Result<Option<Node>> {
        let Some((name, above)) = names.split_last() else {
            return Ok(None);
        };
        let above: Vec<&[u8]> = above.iter().map(|n| &n[..]).collect();
        let err = || EngineError::io("read", to_path(&names.join(&b'/')));
        let dir = open_chain(self.root, &above).map_err(err())?;
        match stat_at(dir.as_fd(), name) {
            Ok(st) => Ok(Some(Node::new(
                name,
                parent,
                names.len() as u32,
                &st,
                Some(self.origin),
            ))),
            Err(Errno::NOENT) => Ok(None),
            Err(e) => Err(err()(e.into())),
        }
    }

    fn below(&self, names: &[Box<[u8]>], progress: &dyn Progress) -> Result<Vec<Node>> {
        let chain: Vec<&[u8]> = names.iter().map(|n| &n[..]).collect();
        let (name, above) = chain.split_last().map_or((&b"."[..], &[][..]), |(n, a)| (*n, a));
        let dir = open_chain(self.root, above)
            .and_then(|fd| open_dir_at(fd.as_fd(), name))
            .map_err(EngineError::io("open", to_path(&chain.join(&b'/'))))?;
        let mut below = walk_where(dir.as_fd(), threads(1), progress, &|n| self.inside(n))?;
        for node in &mut below {
            // only the root of a whole tree says whether an inode 2 is a nested subvolume
            if node.is_dir() && !self.inside(node) {
                node.key.kind = crate::engine::changes::node::KeyKind::Place;
            }
        }
        Ok(below)
    }

    fn top(&self) -> Result<Vec<Box<[u8]>>> {
        let mut buffer = vec![std::mem::MaybeUninit::uninit(); 32 << 10];
        let mut found = Vec::new();
        let err = || EngineError::io("read", ".");
        let dir = open_chain(self.root, &[]).map_err(err())?;
        let mut entries = rustix::fs::RawDir::new(&dir, &mut buffer);
        while let Some(entry) = entries.next() {
            found.push(entry.map_err(|e| err()(e.into()))?.file_name().to_bytes().into());
        }
        Ok(found)
    }
}

/// A recorded tree.
pub(super) struct Record<'a> {
    tree: &'a Walked,
    /// The entries of each folder.
    children: HashMap<u32, Vec<u32>>,
    nodes: Vec<Node>,
}

impl<'a> Record<'a> {
    pub fn new(tree: &'a Walked) -> Self {
        let mut children: HashMap<u32, Vec<u32>> = HashMap::new();
        for (i, node) in (0..).zip(&tree.nodes).skip(1) {
            children.entry(node.parent).or_default().push(i);
        }
        let mut root = tree.node(0).clone();
        root.key = Key::context(0);
        Self {
            tree,
            children,
            nodes: vec![root],
        }
    }

    fn entries(&self, i: u32) -> impl Iterator<Item = u32> {
        self.children.get(&i).into_iter().flatten().copied()
    }

    fn find(&self, names: &[Box<[u8]>]) -> Option<u32> {
        names.iter().try_fold(0, |at, name| {
            self.entries(at).find(|&i| self.tree.node(i).name == *name)
        })
    }
}

impl Side for Record<'_> {
    fn nodes(&mut self) -> &mut Vec<Node> {
        &mut self.nodes
    }

    fn look(&self, names: &[Box<[u8]>], parent: u32) -> Result<Option<Node>> {
        let found = self.find(names).filter(|&i| i != 0);
        Ok(found.map(|i| Node {
            parent,
            ..self.tree.node(i).clone()
        }))
    }

    fn below(&self, names: &[Box<[u8]>], _progress: &dyn Progress) -> Result<Vec<Node>> {
        let Some(top) = self.find(names) else {
            return Ok(Vec::new());
        };
        let depth = self.tree.node(top).depth;
        let mut nodes = vec![self.tree.node(top).clone()];
        let mut todo = vec![(top, 0)];
        while let Some((from, to)) = todo.pop() {
            for i in self.entries(from) {
                let node = self.tree.node(i);
                if node.is_dir() {
                    todo.push((i, nodes.len() as u32));
                }
                nodes.push(Node {
                    parent: to,
                    depth: node.depth - depth,
                    ..node.clone()
                });
            }
        }
        Ok(nodes)
    }

    fn top(&self) -> Result<Vec<Box<[u8]>>> {
        Ok(self.entries(0).map(|i| self.tree.node(i).name.clone()).collect())
    }
}

/// Both trees, cut down to the selection.
pub(super) fn trees<S: Side>(
    a: &mut S,
    b: &mut S,
    selected: &[Names],
    progress: &dyn Progress,
) -> Result<(Walked, Walked)> {
    let mut known: BTreeMap<Names, (Option<u32>, Option<u32>)> = BTreeMap::new();
    known.insert(Names::new(), (Some(0), Some(0)));
    let mut all: Vec<Names> = selected.to_vec();
    all.extend(left_over(a, b, selected)?);
    for names in &all {
        let mut at = (Some(0), Some(0));
        for n in 1..names.len() {
            at = match known.get(&names[..n]) {
                Some(found) => *found,
                None => above(a, b, &names[..n], at)?,
            };
            known.insert(names[..n].to_vec(), at);
        }
        if let Some(parent) = at.0
            && let Some(node) = a.look(names, parent)?
        {
            a.push_all(names, node, progress)?;
        }
        if let Some(parent) = at.1
            && let Some(node) = b.look(names, parent)?
        {
            b.push_all(names, node, progress)?;
        }
    }
    let take = |side: &mut S| Walked::new(std::mem::take(side.nodes()));
    Ok((take(a), take(b)))
}

/// Adds a folder above a selected path to both sides. Returns its index where it is a folder.
fn above<S: Side>(
    safety: &mut S,
    target: &mut S,
    names: &[Box<[u8]>],
    parents: (Option<u32>, Option<u32>),
) -> Result<(Option<u32>, Option<u32>)> {
    let old = parents.0.map(|p| safety.look(names, p)).transpose()?.flatten();
    let new = parents.1.map(|p| target.look(names, p)).transpose()?.flatten();
    let uncovered = |n: &Option<Node>| n.as_ref().is_some_and(|n| !n.covered());
    if uncovered(&old) || uncovered(&new) {
        return Err(not_covered(names));
    }
    // numbers of pairs: the count of nodes is new for each
    let key = Key::context((safety.nodes().len() + target.nodes().len()) as u64);
    let new = new.filter(Node::is_dir);
    Ok(match (old, new) {
        (Some(old), new) if old.is_dir() => {
            let i = safety.push(Node { key, ..old });
            (Some(i), new.map(|new| target.push(Node { key, ..new })))
        }
        // it has to be made; what is in its place goes
        (old, Some(new)) => {
            if let Some(old) = old {
                safety.push(old);
            }
            (None, Some(target.push(new)))
        }
        _ => (None, None),
    })
}

fn not_covered(names: &[Box<[u8]>]) -> EngineError {
    let path = to_path(&names.join(&b'/'));
    EngineError::Refused {
        why: format!(
            "{} is a nested subvolume, a mount or left out, which no checkpoint covers",
            crate::text::shown_path(&path)
        ),
        path: Some(path),
        hint: None,
    }
}

/// What a killed restore left in the live root.
fn left_over<S: Side>(a: &S, b: &S, selected: &[Names]) -> Result<Vec<Names>> {
    let mut found = Vec::new();
    for name in a.top()? {
        let names = vec![name];
        if names[0].starts_with(STAGE.as_bytes())
            && !selected.iter().any(|s| s[0] == names[0])
            && b.look(&names, 0)?.is_none()
        {
            found.push(names);
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_below_a_selected_one_are_dropped() {
        let list = |p: &[&str]| -> Option<Vec<Vec<u8>>> {
            let all: Vec<PathBuf> = p.iter().map(PathBuf::from).collect();
            let names = paths(&all).expect("valid");
            names.map(|l| l.iter().map(|n| n.join(&b'/')).collect())
        };
        let want = |p: &[&str]| Some(p.iter().map(|s| s.as_bytes().to_vec()).collect());
        assert_eq!(
            list(&["a/b", "a.b", "a", "a/z/c", "ab"]),
            want(&["a", "a.b", "ab"])
        );
        assert_eq!(list(&["x", "."]), None);
        assert_eq!(list(&[]), want(&[]));
    }
}
