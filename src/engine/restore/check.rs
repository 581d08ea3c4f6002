//! The independent check after a restore: both trees are read path by path and every attribute is compared.
//! It shares no step with the change list, only the readers of single attributes.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{RawDir, Statx, StatxAttributes};
use rustix::io::Errno;

use super::entry::Side;
use super::select;
use crate::engine::changes::Tree;
use crate::engine::changes::node::stat_at;
use crate::engine::changes::open::{open_chain, to_path};
use crate::engine::{Difference, EngineError, Result, Selection};
use crate::progress::Progress;

/// What is taken for equal without reading it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trust {
    /// The same inode number, birth time and change time, older than the racy margin, is the same inode with
    /// the same content: true of snapshots of one lineage.
    Lineage,
    /// As [`Trust::Lineage`]; but files may have names outside of the tree, so that numbers of links may differ.
    LineageShared,
    /// Nothing: every byte and attribute is read.
    Nothing,
    /// Nothing, either; but files may have names outside of the tree, so that numbers of links may differ.
    /// (That the names inside belong together is checked in any case.)
    NothingShared,
}

/// Most differences that are reported.
const MOST: usize = 100;

/// A directory whose entries are still to be compared: the names that lead to it.
struct Todo {
    names: Vec<Box<[u8]>>,
}

struct Check<'a> {
    is: &'a Tree<'a>,
    should: &'a Tree<'a>,
    devs: [(u32, u32); 2],
    /// Equal change times before this are proof.
    proof: Option<(i64, u32)>,
    /// Everything is compared and no file has a name outside, so that numbers of links must agree.
    counted: bool,
    first: [HashMap<u64, Vec<u8>>; 2],
    todo: Vec<Todo>,
    found: Vec<Difference>,
    seen: u64,
    progress: &'a dyn Progress,
}

/// How `is` differs from `should`, path by path: type, mode, owner, size, times, device, link target,
/// extended attributes, inode flags, content, hard-link groups. At most 100 differences; nested subvolumes
/// and mounts are not compared. `is.made` is None for the live tree: it is newer than any snapshot.
pub fn differences(
    is: &Tree<'_>,
    should: &Tree<'_>,
    selection: &Selection,
    trust: Trust,
    progress: &dyn Progress,
) -> Result<Vec<Difference>> {
    let selected = match selection {
        Selection::All => None,
        Selection::Paths(list) => select::paths(list)?,
    };
    let older = match (is.made, should.made) {
        (Some(x), Some(y)) => Some(x.min(y)),
        (None, y) => y,
        (Some(_), None) => None,
    };
    let roots = [root(is)?, root(should)?];
    let mut check = Check {
        is,
        should,
        devs: [dev(&roots[0]), dev(&roots[1])],
        proof: older
            .filter(|_| matches!(trust, Trust::Lineage | Trust::LineageShared))
            .map(|(s, ns)| (s.saturating_sub(1), ns)),
        counted: selected.is_none() && !matches!(trust, Trust::NothingShared | Trust::LineageShared),
        first: [HashMap::new(), HashMap::new()],
        todo: Vec::new(),
        found: Vec::new(),
        seen: 0,
        progress,
    };
    match selected {
        None => {
            let dirs = [is.root, should.root];
            check.compare(&[], b".", dirs, &roots)?;
            check.todo.push(Todo { names: Vec::new() });
        }
        Some(paths) => {
            for names in &paths {
                check.selected(names)?;
            }
        }
    }
    check.run()?;
    Ok(check.found)
}

fn root(tree: &Tree<'_>) -> Result<Statx> {
    stat_at(tree.root, b"")
        .map_err(io::Error::from)
        .map_err(EngineError::io("read", "."))
}

fn dev(st: &Statx) -> (u32, u32) {
    (st.stx_dev_major, st.stx_dev_minor)
}

fn is_dir(st: &Statx) -> bool {
    st.stx_mode & 0o170_000 == 0o040_000
}

impl Check<'_> {
    fn full(&self) -> bool {
        self.found.len() >= MOST
    }

    fn report(&mut self, path: &[u8], what: impl Into<String>) {
        if !self.full() {
            self.found.push(Difference {
                path: to_path(path),
                what: what.into(),
            });
        }
    }

    /// The place of a nested subvolume or a mount.
    fn uncovered(&self, side: usize, st: &Statx) -> bool {
        st.stx_attributes.contains(StatxAttributes::MOUNT_ROOT)
            || dev(st) != self.devs[side]
            || (is_dir(st) && st.stx_ino == 2)
    }

    /// Compares one selected path: absent on both sides is equal.
    fn selected(&mut self, names: &[Box<[u8]>]) -> Result<()> {
        let Some((name, above)) = names.split_last() else {
            return Ok(());
        };
        let chain: Vec<&[u8]> = above.iter().map(|n| &n[..]).collect();
        let path = names.join(&b'/');
        let is = parent(self.is, &chain, &path)?;
        let should = parent(self.should, &chain, &path)?;
        let x = entry(is.as_ref(), name).map_err(EngineError::io("read", to_path(&path)))?;
        let y = entry(should.as_ref(), name).map_err(EngineError::io("read", to_path(&path)))?;
        let dirs = [
            is.as_ref().map_or(self.is.root, AsFd::as_fd),
            should.as_ref().map_or(self.should.root, AsFd::as_fd),
        ];
        self.pair(names, name, dirs, x.as_ref(), y.as_ref())
    }

    fn run(&mut self) -> Result<()> {
        while let Some(todo) = self.todo.pop() {
            if self.full() {
                break;
            }
            if self.progress.cancelled() {
                return Err(EngineError::Cancelled);
            }
            self.directory(&todo.names)?;
            self.progress.step("checking", self.seen, 0);
        }
        Ok(())
    }

    fn directory(&mut self, names: &[Box<[u8]>]) -> Result<()> {
        let chain: Vec<&[u8]> = names.iter().map(|n| &n[..]).collect();
        let path = names.join(&b'/');
        let open =
            |tree: &Tree<'_>| open_chain(tree.root, &chain).map_err(EngineError::io("open", to_path(&path)));
        let (is, should) = (open(self.is)?, open(self.should)?);
        let err = |e| EngineError::io("read", to_path(&path))(e);
        let (x, y) = rayon::join(|| list(&is), || list(&should));
        let (x, y) = (x.map_err(err)?, y.map_err(err)?);
        let all: BTreeSet<&Box<[u8]>> = x.keys().chain(y.keys()).collect();
        for name in all {
            let mut below = names.to_vec();
            below.push(name.clone());
            let dirs = [is.as_fd(), should.as_fd()];
            self.pair(&below, name, dirs, x.get(name), y.get(name))?;
        }
        Ok(())
    }

    /// Compares what the two trees have at one path.
    fn pair(
        &mut self,
        names: &[Box<[u8]>],
        name: &[u8],
        dirs: [BorrowedFd<'_>; 2],
        x: Option<&Statx>,
        y: Option<&Statx>,
    ) -> Result<()> {
        self.seen += 1;
        let away = |side, st: Option<&Statx>| st.is_none_or(|st| self.uncovered(side, st));
        if away(0, x) && away(1, y) {
            return Ok(());
        }
        let path = names.join(&b'/');
        match (x, y) {
            (Some(_), None) => self.report(&path, "should not be there"),
            (None, Some(_)) => self.report(&path, "is missing"),
            (Some(x), Some(y)) => {
                if self.compare(&path, name, dirs, &[*x, *y])? && is_dir(x) {
                    self.todo.push(Todo {
                        names: names.to_vec(),
                    });
                }
            }
            (None, None) => {}
        }
        Ok(())
    }

    /// Compares the attributes and the content of one path. True if both are of one type and covered.
    fn compare(
        &mut self,
        path: &[u8],
        name: &[u8],
        dirs: [BorrowedFd<'_>; 2],
        st: &[Statx; 2],
    ) -> Result<bool> {
        let [is, should] = [0, 1].map(|i| Side {
            dir: dirs[i],
            name,
            st: &st[i],
        });
        if path.is_empty() || !(self.uncovered(0, &st[0]) || self.uncovered(1, &st[1])) {
            let mut what = is.by_stat(&should, self.counted);
            if is.file_type() == should.file_type() {
                if !self.proven(&st[0], &st[1]) {
                    let cancelled = || self.progress.cancelled();
                    match is.by_reading(&should, &cancelled) {
                        Ok(more) => what.extend(more),
                        Err(_) if cancelled() => return Err(EngineError::Cancelled),
                        Err(e) => return Err(EngineError::io("read", to_path(path))(e)),
                    }
                }
                what.extend(self.links(path, st));
            }
            if !what.is_empty() {
                self.report(path, what.join("; "));
            }
            return Ok(is.file_type() == should.file_type());
        }
        if is_dir(&st[0]) != is_dir(&st[1]) {
            self.report(path, "a nested subvolume or a mount is in its place");
        }
        Ok(false)
    }

    fn proven(&self, x: &Statx, y: &Statx) -> bool {
        let time = |t: rustix::fs::StatxTimestamp| (t.tv_sec, t.tv_nsec);
        x.stx_ino == y.stx_ino
            && time(x.stx_btime) == time(y.stx_btime)
            && time(x.stx_ctime) == time(y.stx_ctime)
            && self.proof.is_some_and(|p| time(x.stx_ctime) < p)
    }

    /// The first path of an inode must be that of the same group on the other side.
    fn links(&mut self, path: &[u8], st: &[Statx; 2]) -> Option<String> {
        if is_dir(&st[0]) || st.iter().all(|s| s.stx_nlink < 2) {
            return None;
        }
        let [x, y] = [0, 1].map(|i| {
            let first = self.first[i].entry(st[i].stx_ino);
            first.or_insert_with(|| path.to_vec()).clone()
        });
        let name = |p: &[u8]| crate::text::shown_bytes(p);
        (x != y).then(|| format!("is a hard link of {}, should be of {}", name(&x), name(&y)))
    }
}

/// An entry of a directory that may not exist.
fn entry(dir: Option<&OwnedFd>, name: &[u8]) -> io::Result<Option<Statx>> {
    let Some(dir) = dir else { return Ok(None) };
    match stat_at(dir.as_fd(), name) {
        Ok(st) => Ok(Some(st)),
        Err(Errno::NOENT) => Ok(None),
        Err(e) => Err(e.into()),
    }
}

/// The entries of a directory.
pub(in crate::engine) fn list(dir: &OwnedFd) -> io::Result<BTreeMap<Box<[u8]>, Statx>> {
    let mut buffer = vec![std::mem::MaybeUninit::uninit(); 32 << 10];
    let mut all = BTreeMap::new();
    let mut entries = RawDir::new(dir, &mut buffer);
    while let Some(entry) = entries.next() {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if name != b"." && name != b".." {
            all.insert(name.into(), stat_at(dir.as_fd(), name)?);
        }
    }
    Ok(all)
}

/// The folder above a selected path; None if there is no such folder.
fn parent(tree: &Tree<'_>, chain: &[&[u8]], path: &[u8]) -> Result<Option<OwnedFd>> {
    match open_chain(tree.root, chain) {
        Ok(fd) => Ok(Some(fd)),
        Err(e) => match Errno::from_io_error(&e) {
            Some(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => Ok(None),
            _ => Err(EngineError::io("open", to_path(path))(e)),
        },
    }
}
