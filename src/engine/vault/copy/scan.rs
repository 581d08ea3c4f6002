//! A look at the live tree: what it is now, entry by entry. Not atomic: what changes under the look is looked
//! at again, and then an error.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use nix::libc;
use rayon::prelude::*;
use rustix::fs::Statx;

use super::manifest::Manifest;
use super::object::{Store, digest};
use crate::engine::changes::attrs::{flags, target, xattrs};
use crate::engine::changes::node::{Facts, Hash, Key, Node, Origin, Stamp, Walked, stat_at};
use crate::engine::changes::open::{Dirs, open_file_at};
use crate::engine::changes::walk::{threads, walk_without};
use crate::engine::{EngineError, FileType, Result};
use crate::patterns::Patterns;
use crate::progress::Progress;

/// How often what changes meanwhile is looked at.
const TRIES: usize = 4;
/// Up to so many files are written out one by one before they are read; else the file system as a whole.
const FEW: usize = 16;

/// What a look needs.
pub(super) struct Scan<'a> {
    pub live: BorrowedFd<'a>,
    /// An earlier look: what has not changed since is not read again.
    pub known: Option<&'a Manifest>,
    /// Where contents are kept; None: they are only hashed.
    pub keep: Option<&'a Store>,
    /// What is left out.
    pub patterns: &'a Patterns,
    pub progress: &'a dyn Progress,
}

fn clock() -> Stamp {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Stamp {
        s: now.as_secs() as i64,
        ns: now.subsec_nanos(),
    }
}

fn moving() -> io::Error {
    io::Error::other("it is being changed; stop the program that writes to it")
}

/// True if the tree was changed under the look.
fn changed(e: &EngineError) -> bool {
    let EngineError::Io { source, .. } = e else {
        return false;
    };
    matches!(
        source.raw_os_error(),
        Some(libc::ENOENT | libc::ENOTDIR | libc::ELOOP | libc::ESTALE)
    )
}

fn same(x: &Statx, y: &Statx) -> bool {
    let of = |s: &Statx| {
        let time = |t: rustix::fs::StatxTimestamp| (t.tv_sec, t.tv_nsec);
        let times = (time(s.stx_mtime), time(s.stx_ctime), time(s.stx_btime));
        (s.stx_ino, s.stx_mode, s.stx_size, s.stx_nlink, times)
    };
    of(x) == of(y)
}

impl Scan<'_> {
    /// Looks at everything below the root.
    pub fn run(&self) -> Result<Manifest> {
        let mut tries = 1;
        loop {
            match self.once() {
                Err(e) if tries < TRIES && changed(&e) => tries += 1,
                other => return other,
            }
        }
    }

    fn once(&self) -> Result<Manifest> {
        let started = clock();
        let err = EngineError::io("read", ".");
        let root = stat_at(self.live, b"").map_err(|e| err(e.into()))?;
        let origin = Origin::of(&root);
        let nodes = walk_without(self.live, threads(1), self.progress, self.patterns)?;
        let mut tree = Walked {
            nodes,
            order: Vec::new(),
        };
        let todo = self.settled(&mut tree);
        let (first, further) = groups(&tree, todo);
        let each = self.protect(first.len())?;
        let done = AtomicU64::new(0);
        let read: Vec<(u32, Node)> = first
            .par_iter()
            .map_init(
                || Dirs::new(self.live, &tree),
                |dirs, &i| {
                    if self.progress.cancelled() {
                        return Err(EngineError::Cancelled);
                    }
                    let node = self.read(&tree, i, origin, each, dirs)?;
                    let n = done.fetch_add(1, Ordering::Relaxed) + 1;
                    self.progress.step("reading", n, first.len() as u64);
                    Ok((i, node))
                },
            )
            .collect::<Result<_>>()?;
        for (i, node) in read {
            tree.nodes[i as usize] = node;
        }
        for (i, of) in further {
            let (name, node) = (tree.node(i).name.clone(), tree.node(i));
            tree.nodes[i as usize] = Node {
                parent: node.parent,
                depth: node.depth,
                name,
                ..tree.node(of).clone()
            };
        }
        Ok(Manifest {
            started,
            nodes: tree.nodes,
            patterns: self.patterns.clone(),
        })
    }

    /// Takes over what an earlier look proves; returns what must be read.
    fn settled(&self, tree: &mut Walked) -> Vec<u32> {
        let known = self.known.map(|m| (m, m.by_inode()));
        let mut todo = Vec::new();
        for (i, node) in (0..).zip(&mut tree.nodes) {
            if !node.covered() {
                continue;
            }
            let recorded = known.as_ref().and_then(|(manifest, by_inode)| {
                let recorded = &manifest.nodes[*by_inode.get(&node.inode.0)? as usize];
                manifest.settles(recorded, node).then_some(recorded)
            });
            node.facts = recorded.and_then(|r| r.facts.clone());
            if node.facts.is_none() {
                todo.push(i);
            }
        }
        todo
    }

    /// What is written through a mapping changes no time as long as its page is dirty. Written out before it is
    /// read, a later write does. Says whether that is to be done file by file.
    fn protect(&self, files: usize) -> Result<bool> {
        let each = files <= FEW;
        if self.keep.is_some() && !each {
            rustix::fs::syncfs(self.live).map_err(|e| EngineError::io("sync", ".")(e.into()))?;
        }
        Ok(self.keep.is_some() && each)
    }

    fn read(&self, tree: &Walked, i: u32, origin: Origin, flush: bool, dirs: &mut Dirs<'_>) -> Result<Node> {
        let old = tree.node(i);
        let (dir, name) = dirs.place(i)?;
        for _ in 0..TRIES {
            let before =
                stat_at(dir, name).map_err(|e| EngineError::io("look at", tree.path(i))(e.into()))?;
            let origin = (i != 0).then_some(origin);
            let mut node = Node::new(&old.name, old.parent, old.depth, &before, origin);
            if node.file_type != old.file_type || node.covered() != old.covered() {
                // the tree is another one: all of it is looked at again
                let other = io::Error::from_raw_os_error(libc::ESTALE);
                return Err(EngineError::io("read", tree.path(i))(other));
            }
            let facts = match self.facts(&node, dir, name, flush) {
                Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => continue,
                other => other.map_err(EngineError::io("read", tree.path(i)))?,
            };
            let after = stat_at(dir, name).map_err(|e| EngineError::io("look at", tree.path(i))(e.into()))?;
            if same(&before, &after) {
                node.facts = Some(Arc::new(facts));
                return Ok(node);
            }
        }
        Err(EngineError::io("read", tree.path(i))(moving()))
    }

    fn facts(&self, node: &Node, dir: BorrowedFd<'_>, name: &[u8], flush: bool) -> io::Result<Facts> {
        Ok(Facts {
            xattrs: xattrs(dir, name)?,
            flags: flags(dir, name, node.file_type)?,
            link: if node.file_type == FileType::Link {
                target(dir, name)?
            } else {
                Vec::new()
            },
            hash: if node.is_file() {
                Some(self.content(dir, name, flush)?)
            } else {
                None
            },
        })
    }

    fn content(&self, dir: BorrowedFd<'_>, name: &[u8], flush: bool) -> io::Result<Hash> {
        let file = open_file_at(dir, name, false)?;
        if flush {
            rustix::fs::fdatasync(&file)?;
        }
        match self.keep {
            Some(store) => store.put(&file, self.known.is_some()),
            None => digest(file.as_fd(), &mut |_, _| Ok(())),
        }
    }
}

/// The first name of each inode, and the further ones with their first.
fn groups(tree: &Walked, todo: Vec<u32>) -> (Vec<u32>, Vec<(u32, u32)>) {
    let mut known: HashMap<Key, u32> = HashMap::new();
    let mut further = Vec::new();
    let first = todo
        .into_iter()
        .filter(|&i| {
            let node = tree.node(i);
            if node.is_dir() || node.nlink < 2 {
                return true;
            }
            let of = *known.entry(node.key).or_insert(i);
            if of != i {
                further.push((i, of));
            }
            of == i
        })
        .collect();
    (first, further)
}
