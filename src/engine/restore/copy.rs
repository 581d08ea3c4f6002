//! A whole tree copied into an empty directory, across file systems, with every attribute.

use std::collections::HashMap;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};

use rayon::prelude::*;
use rustix::fs::{AtFlags, IFlags, OFlags, RawDir, linkat, symlinkat};

use super::apply::{make, on};
use super::attrs::{Attrs, set_flags_of, write};
use super::file::fill;
use super::measure::bytes_of;
pub use super::measure::{TreeSize, measure};
use crate::engine::changes::attrs::{flags, target, xattrs};
use crate::engine::changes::node::{Node, Walked};
use crate::engine::changes::open::{Dirs, open_at, open_dir_at, open_file_at};
use crate::engine::changes::walk::{threads, walk_where};
use crate::engine::{EngineError, FileType, Result};
use crate::progress::Progress;

/// What a copy made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CopyStats {
    /// Files and folders, the root not counted.
    pub entries: u64,
    /// Bytes of files, holes not counted.
    pub bytes: u64,
}

struct Copy<'a> {
    tree: &'a Walked,
    from: BorrowedFd<'a>,
    to: BorrowedFd<'a>,
    /// Files that get frozen at the very end, when all their links are made.
    frozen: std::sync::Mutex<Vec<(u32, IFlags)>>,
    bytes: AtomicU64,
    done: AtomicU64,
    progress: &'a dyn Progress,
}

/// Copies everything below `from`, and the attributes of `from` itself, into the empty directory `to`: data
/// (holes stay holes), owner, mode, times, extended attributes, ACLs, capabilities, inode flags, hard links,
/// pipes, sockets and devices. What is mounted below `from` is not entered: an empty folder or file stands
/// for it. Btrfs subvolumes below it are copied as folders. Whatever cannot be kept is an error that names
/// the path, but for what only Btrfs has (no copy-on-write, compression property). Not durable until synced.
///
/// Nobody else may be able to enter `to`: what was made there is known by its name until the end, when `to` gets its
/// owner and mode.
pub fn copy_tree(from: BorrowedFd<'_>, to: BorrowedFd<'_>, progress: &dyn Progress) -> Result<CopyStats> {
    copy_where(from, to, &|n: &Node| !n.mount, progress)
}

/// As [`copy_tree`], where an empty folder stands for each Btrfs subvolume below `from`.
pub fn copy_without_nested(
    from: BorrowedFd<'_>,
    to: BorrowedFd<'_>,
    progress: &dyn Progress,
) -> Result<CopyStats> {
    copy_where(from, to, &Node::covered, progress)
}

fn copy_where(
    from: BorrowedFd<'_>,
    to: BorrowedFd<'_>,
    enter: &(dyn Fn(&Node) -> bool + Sync),
    progress: &dyn Progress,
) -> Result<CopyStats> {
    must_be_empty(to)?;
    let nodes = walk_where(from, threads(1), progress, enter)?;
    let tree = Walked {
        nodes,
        order: Vec::new(),
    };
    let copy = Copy {
        tree: &tree,
        from,
        to,
        frozen: std::sync::Mutex::default(),
        bytes: AtomicU64::new(0),
        done: AtomicU64::new(0),
        progress,
    };
    let dirs = copy.directories()?;
    let links = copy.files()?;
    copy.links(&links)?;
    copy.freeze()?;
    copy.finish(&dirs)?;
    Ok(CopyStats {
        entries: tree.nodes.len() as u64 - 1,
        bytes: copy.bytes.into_inner(),
    })
}

fn must_be_empty(to: BorrowedFd<'_>) -> Result<()> {
    let mut buffer = vec![std::mem::MaybeUninit::uninit(); 4096];
    let dir = crate::engine::changes::open::open_dir_at(to, b".").map_err(EngineError::io("open", "."))?;
    let mut entries = RawDir::new(&dir, &mut buffer);
    while let Some(entry) = entries.next() {
        let entry = entry
            .map_err(io::Error::from)
            .map_err(EngineError::io("read", "."))?;
        if !matches!(entry.file_name().to_bytes(), b"." | b"..") {
            return Err(EngineError::Refused {
                why: "the folder to copy into is not empty".into(),
                path: None,
                hint: None,
            });
        }
    }
    Ok(())
}

impl Copy<'_> {
    fn check_cancelled(&self) -> Result<()> {
        let done = self.done.fetch_add(1, Ordering::Relaxed) + 1;
        self.progress.step("copying", done, self.tree.nodes.len() as u64);
        if self.progress.cancelled() {
            return Err(EngineError::Cancelled);
        }
        Ok(())
    }

    /// Makes all directories; returns them, parents first.
    fn directories(&self) -> Result<Vec<u32>> {
        let all = 0..self.tree.nodes.len() as u32;
        let mut dirs: Vec<u32> = all.filter(|&i| self.tree.node(i).is_dir()).collect();
        dirs.sort_by_key(|&i| (self.tree.node(i).depth, self.tree.node(i).parent, i));
        let mut to = Dirs::new(self.to, self.tree);
        for &i in dirs.iter().filter(|&&i| i != 0) {
            let (dir, name) = to.place(i)?;
            make(dir, name, self.tree.node(i)).map_err(|e| on("create", self.tree, i)(e.into()))?;
        }
        Ok(dirs)
    }

    /// Copies every inode that is no directory under its first name; returns the further names.
    fn files(&self) -> Result<Vec<(u32, u32)>> {
        let mut first: HashMap<((u32, u32), u64), u32> = HashMap::new();
        let mut links = Vec::new();
        let mut groups: HashMap<u32, Vec<u32>> = HashMap::new();
        for (i, node) in (0..).zip(&self.tree.nodes) {
            if node.is_dir() {
                continue;
            }
            if node.nlink > 1 && !node.mount {
                let known = *first.entry((node.dev, node.inode.0)).or_insert(i);
                if known != i {
                    links.push((known, i));
                    continue;
                }
            }
            groups.entry(node.parent).or_default().push(i);
        }
        let work: Vec<u32> = groups.into_values().flatten().collect();
        work.par_iter()
            .map_init(
                || (Dirs::new(self.from, self.tree), Dirs::new(self.to, self.tree)),
                |(from, to), &i| self.file(i, from, to),
            )
            .collect::<Result<()>>()?;
        Ok(links)
    }

    fn file(&self, i: u32, from: &mut Dirs<'_>, to: &mut Dirs<'_>) -> Result<()> {
        self.check_cancelled()?;
        let node = self.tree.node(i);
        let err = |what| on(what, self.tree, i);
        let ((source, old), (dir, name)) = (from.place(i)?, to.place(i)?);
        if node.file_type == FileType::Link {
            let text = target(source, old).map_err(err("read"))?;
            symlinkat(&text[..], dir, name).map_err(|e| err("create")(e.into()))?;
        } else {
            make(dir, name, node).map_err(|e| err("create")(e.into()))?;
        }
        if node.mount {
            return Ok(());
        }
        let want = self.attrs(i, source, old)?;
        let copy = if node.is_file() && (node.size > 0 || !want.flags.is_empty()) {
            let source: OwnedFd = open_file_at(source, old, false).map_err(err("open"))?;
            let copy = open_file_at(dir, name, true).map_err(err("open"))?;
            fill(&copy, &source, want.flags, true).map_err(err("copy"))?;
            self.bytes.fetch_add(bytes_of(node), Ordering::Relaxed);
            copy
        } else {
            open_at(dir, name, OFlags::PATH).map_err(err("open"))?
        };
        if !want.flags.is_empty() {
            let mut frozen = self
                .frozen
                .lock()
                .unwrap_or_else(std::sync::PoisonError::into_inner);
            frozen.push((i, want.flags));
        }
        write(&copy, &want).map_err(err("set the attributes of"))
    }

    fn attrs(&self, i: u32, dir: BorrowedFd<'_>, name: &[u8]) -> Result<Attrs<'_>> {
        let node = self.tree.node(i);
        Ok(Attrs {
            node,
            xattrs: xattrs(dir, name).map_err(on("read the attributes of", self.tree, i))?,
            flags: flags(dir, name, node.file_type).map_err(on("read the flags of", self.tree, i))?,
        })
    }

    fn links(&self, links: &[(u32, u32)]) -> Result<()> {
        let (mut old, mut new) = (Dirs::new(self.to, self.tree), Dirs::new(self.to, self.tree));
        for &(first, i) in links {
            self.check_cancelled()?;
            let ((from, name), (to, link)) = (old.place(first)?, new.place(i)?);
            linkat(from, name, to, link, AtFlags::empty()).map_err(|e| on("link", self.tree, i)(e.into()))?;
        }
        Ok(())
    }

    fn freeze(&self) -> Result<()> {
        let mut to = Dirs::new(self.to, self.tree);
        let frozen = self
            .frozen
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        for &(i, flags) in frozen.iter() {
            let (dir, name) = to.place(i)?;
            let file = open_file_at(dir, name, false).map_err(on("open", self.tree, i))?;
            set_flags_of(&file, flags).map_err(on("set the flags of", self.tree, i))?;
        }
        Ok(())
    }

    /// Attributes of the directories, deepest first, as the work in them changed their times.
    fn finish(&self, dirs: &[u32]) -> Result<()> {
        let (mut from, mut to) = (Dirs::new(self.from, self.tree), Dirs::new(self.to, self.tree));
        for &i in dirs.iter().rev() {
            if self.tree.node(i).mount && i != 0 {
                continue;
            }
            self.check_cancelled()?;
            let (source, old) = from.place(i)?;
            let want = self.attrs(i, source, old)?;
            let (dir, name) = to.place(i)?;
            let dir = open_dir_at(dir, name).map_err(on("open", self.tree, i))?;
            write(&dir, &want).map_err(on("set the attributes of", self.tree, i))?;
            set_flags_of(&dir, want.flags).map_err(on("set the flags of", self.tree, i))?;
        }
        Ok(())
    }
}
