//! What a checkpoint covers, and what a restore must leave where it is: what was left out by patterns, mounts,
//! nested subvolumes, and the folders around them.

use std::collections::HashMap;
use std::path::PathBuf;

use super::manifest::Manifest;
use crate::engine::changes::node::{Key, Node};
use crate::engine::changes::open::{components, to_path};
use crate::engine::{Difference, EngineError, Result};
use crate::patterns::Patterns;

impl Manifest {
    /// The same tree, without what these patterns leave out.
    pub fn masked(self, patterns: &Patterns) -> Self {
        if patterns.is_empty() || *patterns == self.patterns {
            return self;
        }
        // where a node is now, if it is still there and something below it can be
        let mut places: Vec<Option<(u32, PathBuf)>> = Vec::with_capacity(self.nodes.len());
        let mut nodes: Vec<Node> = Vec::new();
        for (i, mut node) in (0..).zip(self.nodes) {
            let above = if i == 0 {
                Some((0, PathBuf::new()))
            } else {
                places[node.parent as usize].clone()
            };
            let Some((parent, folder)) = above else {
                places.push(None);
                continue;
            };
            let path = folder.join(to_path(&node.name));
            if i > 0 && patterns.leaves_out(&path, node.is_dir()) {
                node.leave_out();
                node.facts = None;
            }
            node.parent = parent;
            let open = node.is_dir() && node.covered();
            let at = nodes.len() as u32;
            places.push(open.then_some((at, if i == 0 { PathBuf::new() } else { path })));
            nodes.push(node);
        }
        Self { nodes, ..self }
    }

    /// The folders' entries, by folder and name.
    fn names(&self) -> HashMap<(u32, &[u8]), u32> {
        let all = (0..).zip(&self.nodes).skip(1);
        all.map(|(i, n)| ((n.parent, &n.name[..]), i)).collect()
    }

    /// An error if this path, or a folder above it, is in no checkpoint.
    pub fn must_cover(&self, path: &std::path::Path) -> Result<()> {
        let (names, mut at) = (self.names(), 0);
        for name in components(path)? {
            let Some(&i) = names.get(&(at, &name[..])) else {
                break;
            };
            if !self.nodes[i as usize].covered() {
                return Err(EngineError::Refused {
                    why: format!(
                        "{} is left out of the checkpoint, or a mount: it stays as it is",
                        crate::text::shown_path(path)
                    ),
                    path: Some(path.to_owned()),
                    hint: None,
                });
            }
            at = i;
        }
        Ok(())
    }
}

/// Puts into `target` the folders of `live` that hold what no checkpoint covers and that it does not have: they
/// stay. What stands where the target wants something else is told: it cannot be brought back.
pub(super) fn keep_places(live: &Manifest, target: &mut Manifest) -> Vec<Difference> {
    let mut folders: Vec<u32> = Vec::new();
    let mut needed = vec![false; live.nodes.len()];
    let places: Vec<u32> = (0..)
        .zip(&live.nodes)
        .filter(|(_, n)| !n.covered())
        .map(|(i, _)| i)
        .collect();
    let mut graft = Graft::new(live, target);
    for &i in &places {
        let mut at = live.nodes[i as usize].parent;
        while !std::mem::replace(&mut needed[at as usize], true) {
            folders.push(at);
            // one that the target has goes to its own place there, out of the folders above it
            if graft.in_target.contains_key(&live.nodes[at as usize].key) {
                break;
            }
            at = live.nodes[at as usize].parent;
        }
    }
    folders.sort_unstable_by_key(|&i| (live.nodes[i as usize].depth, i));
    for i in folders {
        graft.folder(i);
    }
    for i in places {
        graft.place(i);
    }
    let (made, found) = (graft.made, graft.found);
    target.nodes.extend(made);
    found
}

struct Graft<'a> {
    live: &'a Manifest,
    target: &'a Manifest,
    names: HashMap<(u32, &'a [u8]), u32>,
    in_live: std::collections::HashSet<Key>,
    in_target: HashMap<Key, u32>,
    /// The folder of the target that a folder of the live tree becomes; None: it is in the way of another.
    becomes: HashMap<u32, Option<u32>>,
    made: Vec<Node>,
    found: Vec<Difference>,
}

impl<'a> Graft<'a> {
    fn new(live: &'a Manifest, target: &'a Manifest) -> Self {
        let folders = |m: &'a Manifest| (0..).zip(&m.nodes).filter(|(_, n)| n.is_dir() && n.covered());
        Self {
            live,
            target,
            names: target.names(),
            in_live: folders(live).map(|(_, n)| n.key).collect(),
            in_target: folders(target).map(|(i, n)| (n.key, i)).collect(),
            becomes: HashMap::new(),
            made: Vec::new(),
            found: Vec::new(),
        }
    }

    fn node(&self, i: u32) -> &Node {
        let own = self.target.nodes.len();
        self.target
            .nodes
            .get(i as usize)
            .unwrap_or_else(|| &self.made[i as usize - own])
    }

    fn path(&self, mut i: u32) -> PathBuf {
        let mut names = Vec::new();
        while i != 0 {
            let node = &self.live.nodes[i as usize];
            names.push(&node.name[..]);
            i = node.parent;
        }
        names.reverse();
        to_path(&names.join(&b'/'))
    }

    /// Tells that what is there stays, though the target has something else in its place.
    fn in_the_way(&mut self, i: u32) {
        let path = self.path(i);
        let what = "what is there now is left out of checkpoints, or a mount: it stays".to_owned();
        self.found.push(Difference { path, what });
    }

    fn folder(&mut self, i: u32) {
        let node = &self.live.nodes[i as usize];
        let found = if i == 0 {
            Some(0)
        } else if let Some(&same) = self.in_target.get(&node.key) {
            Some(same)
        } else {
            match self.becomes.get(&node.parent).copied().flatten() {
                None => None,
                Some(parent) => self.below(i, parent),
            }
        };
        self.becomes.insert(i, found);
    }

    /// The folder with its name in this folder of the target; made where there is none.
    fn below(&mut self, i: u32, parent: u32) -> Option<u32> {
        let node = &self.live.nodes[i as usize];
        let Some(&there) = self.names.get(&(parent, &node.name[..])) else {
            let at = (self.target.nodes.len() + self.made.len()) as u32;
            self.made.push(Node {
                parent,
                depth: self.node(parent).depth + 1,
                ..node.clone()
            });
            return Some(at);
        };
        let other = &self.target.nodes[there as usize];
        // one of that name that was deleted and made again is taken for the same
        if other.is_dir() && other.covered() && !self.in_live.contains(&other.key) {
            return Some(there);
        }
        self.in_the_way(i);
        None
    }

    fn place(&mut self, i: u32) {
        let node = &self.live.nodes[i as usize];
        let Some(Some(parent)) = self.becomes.get(&node.parent).copied() else {
            return; // told already
        };
        if !self.target.patterns.leaves_out(&self.path(i), node.is_dir()) {
            return; // a mount; it may be gone by the time of the restore, or else that fails and is taken back
        }
        if let Some(&there) = self.names.get(&(parent, &node.name[..]))
            && self.target.nodes[there as usize].covered()
        {
            self.in_the_way(i);
        }
    }
}
