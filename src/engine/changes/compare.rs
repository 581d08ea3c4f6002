//! What differs between two nodes.

use std::sync::atomic::{AtomicU64, Ordering};

use rayon::prelude::*;

use super::Tree;
use super::attrs::{flags, target, xattrs};
use super::content::same_bytes;
use super::node::{Node, Stamp, Walked};
use super::open::{Dirs, open_file_at};
use crate::engine::{EngineError, FileType, Result, What};
use crate::progress::Progress;

/// A set of [`What`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(in crate::engine) struct Whats(u8);

const ALL: [What; 6] = [
    What::Content,
    What::Mode,
    What::Owner,
    What::Xattr,
    What::Flags,
    What::Time,
];

impl Whats {
    pub fn add(&mut self, what: What, differs: bool) {
        if differs {
            self.0 |= 1 << what as u8;
        }
    }
    pub fn has(self, what: What) -> bool {
        self.0 & (1 << what as u8) != 0
    }
    pub fn without(mut self, what: What) -> Self {
        self.0 &= !(1 << what as u8);
        self
    }
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }
    pub fn list(self) -> Vec<What> {
        ALL.into_iter().filter(|w| self.has(*w)).collect()
    }
}

/// The two trees as they are compared.
pub(in crate::engine) struct Pair<'a> {
    pub a: &'a Walked,
    pub b: &'a Walked,
    /// An inode whose change time is equal in both and before this is the same. None: trust nothing.
    pub settled: Option<Stamp>,
    /// Where they are on disk. None: both are records, and all is in their nodes.
    pub disk: Option<(Tree<'a>, Tree<'a>)>,
    pub progress: &'a dyn Progress,
}

/// Seconds that a snapshot may be older than a change time in it that proves nothing yet: the clock of the
/// kernel's time stamps is coarse, and the snapshot's own time is that of its transaction.
const RACY: i64 = 1;

/// The instant before which equal change times prove equality, for two trees made at these times.
pub(in crate::engine) fn settled(a: Option<(i64, u32)>, b: Option<(i64, u32)>) -> Option<Stamp> {
    let (s, ns) = a?.min(b?);
    Some(Stamp {
        s: s.saturating_sub(RACY),
        ns,
    })
}

/// What `statx` alone shows to differ.
pub(in crate::engine) fn by_stat(x: &Node, y: &Node) -> Whats {
    let mut what = Whats::default();
    what.add(What::Mode, x.mode != y.mode && x.file_type != FileType::Link);
    what.add(What::Owner, (x.uid, x.gid) != (y.uid, y.gid));
    what.add(What::Time, x.mtime != y.mtime);
    what
}

/// Everything that differs between two recorded nodes of one type.
fn recorded(x: &Node, y: &Node) -> Whats {
    let mut what = by_stat(x, y);
    let (old, new) = (x.facts.as_deref(), y.facts.as_deref());
    let content = match x.file_type {
        FileType::Dir | FileType::Fifo | FileType::Socket => false,
        FileType::CharDevice | FileType::BlockDevice => x.rdev != y.rdev,
        FileType::Link => old.map(|f| &f.link) != new.map(|f| &f.link),
        FileType::File => x.size != y.size || old.map(|f| f.hash) != new.map(|f| f.hash),
    };
    what.add(What::Content, content);
    what.add(What::Xattr, old.map(|f| &f.xattrs) != new.map(|f| &f.xattrs));
    what.add(What::Flags, old.map(|f| f.flags) != new.map(|f| f.flags));
    what
}

impl Pair<'_> {
    /// True if the inode is proven to be the same by its change time.
    pub fn is_settled(&self, x: &Node, y: &Node) -> bool {
        x.inode == y.inode && x.ctime == y.ctime && self.settled.is_some_and(|before| x.ctime < before)
    }

    /// Everything that differs between two nodes of one type, contents read where needed.
    fn differs(&self, ia: u32, ib: u32, da: &mut Dirs<'_>, db: &mut Dirs<'_>) -> Result<Whats> {
        let (x, y) = (self.a.node(ia), self.b.node(ib));
        let mut what = by_stat(x, y);
        let ((fa, na), (fb, nb)) = (da.place(ia)?, db.place(ib)?);
        let err = |what| EngineError::io(what, self.b.path(ib));
        let content = match x.file_type {
            FileType::Dir | FileType::Fifo | FileType::Socket => false,
            FileType::CharDevice | FileType::BlockDevice => x.rdev != y.rdev,
            FileType::Link => target(fa, na).map_err(err("read"))? != target(fb, nb).map_err(err("read"))?,
            FileType::File if x.size != y.size => true,
            FileType::File => {
                let old = open_file_at(fa, na, false).map_err(err("open"))?;
                let new = open_file_at(fb, nb, false).map_err(err("open"))?;
                let cancelled = || self.progress.cancelled();
                match same_bytes(&old, &new, &cancelled) {
                    Ok(same) => !same,
                    Err(_) if cancelled() => return Err(EngineError::Cancelled),
                    Err(error) => return Err(err("read")(error)),
                }
            }
        };
        what.add(What::Content, content);
        let old = xattrs(fa, na).map_err(err("read the attributes of"))?;
        let new = xattrs(fb, nb).map_err(err("read the attributes of"))?;
        what.add(What::Xattr, old != new);
        let old = flags(fa, na, x.file_type).map_err(err("read the flags of"))?;
        let new = flags(fb, nb, y.file_type).map_err(err("read the flags of"))?;
        what.add(What::Flags, old != new);
        Ok(what)
    }

    /// [`Pair::differs`] for many pairs, in parallel; in any order.
    pub fn differ_all(&self, pairs: Vec<(u32, u32)>) -> Result<Vec<(u32, u32, Whats)>> {
        let Some((a, b)) = self.disk else {
            let recorded = |(ia, ib)| (ia, ib, recorded(self.a.node(ia), self.b.node(ib)));
            return Ok(pairs.into_iter().map(recorded).collect());
        };
        let total = pairs.len() as u64;
        let done = AtomicU64::new(0);
        pairs
            .into_par_iter()
            .map_init(
                || (Dirs::new(a.root, self.a), Dirs::new(b.root, self.b)),
                |(da, db), (ia, ib)| {
                    if self.progress.cancelled() {
                        return Err(EngineError::Cancelled);
                    }
                    let what = self.differs(ia, ib, da, db)?;
                    let n = done.fetch_add(1, Ordering::Relaxed) + 1;
                    self.progress.step("reading", n, total);
                    Ok((ia, ib, what))
                },
            )
            .collect()
    }
}
