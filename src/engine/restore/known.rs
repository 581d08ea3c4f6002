//! Which inodes the restore means. A name alone says nothing: whoever owns the folder may put another inode there at any
//! moment, root's too, which must get neither data nor an owner.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{OFlags, Statx, fstatfs};

use super::apply::{on, refuse_changed};
use crate::engine::Result;
use crate::engine::changes::node::{Key, Stamp, Walked, stat_at};
use crate::engine::changes::open::{Dirs, open_at};

/// OVERLAYFS_SUPER_MAGIC (include/uapi/linux/magic.h).
const OVERLAY: i64 = 0x794c_7630;

/// Inode number and birth time.
type Inode = (u64, Stamp);

/// The inodes of the live tree: those that the safety tree has, and those that this restore made.
pub(super) struct Known<'a> {
    safety: &'a Walked,
    target: &'a Walked,
    made: HashMap<Key, Inode>,
    /// A change gives a file of a lower layer another birth time, with the same number.
    overlay: bool,
}

/// Whose indices are meant.
#[derive(Clone, Copy)]
pub(super) enum By {
    Safety,
    Target,
}

impl<'a> Known<'a> {
    pub fn new(live: BorrowedFd<'a>, safety: &'a Walked, target: &'a Walked) -> Self {
        Self {
            safety,
            target,
            made: HashMap::new(),
            overlay: fstatfs(live).is_ok_and(|s| s.f_type == OVERLAY),
        }
    }

    /// Remembers the inode that was made for entry `i` of the target.
    pub fn made(&mut self, i: u32, st: &Statx) {
        let born = Stamp {
            s: st.stx_btime.tv_sec,
            ns: st.stx_btime.tv_nsec,
        };
        self.made.insert(self.target.node(i).key, (st.stx_ino, born));
    }

    /// True if the inode of entry `i` of the target was made by this restore.
    pub fn has_made(&self, i: u32) -> bool {
        self.made.contains_key(&self.target.node(i).key)
    }

    fn tree(&self, by: By) -> &'a Walked {
        match by {
            By::Safety => self.safety,
            By::Target => self.target,
        }
    }

    fn inode(&self, by: By, i: u32) -> Option<Inode> {
        if let By::Safety = by {
            return Some(self.safety.node(i).inode);
        }
        let key = self.target.node(i).key;
        let before = || {
            let i = self.safety.find(key).first()?;
            Some(self.safety.node(*i).inode)
        };
        self.made.get(&key).copied().or_else(before)
    }

    /// True if this is the inode of entry `i`. The root is that which was given.
    fn is(&self, st: &Statx, by: By, i: u32) -> bool {
        let same = |(ino, born): Inode| {
            let time = (st.stx_btime.tv_sec, st.stx_btime.tv_nsec);
            st.stx_ino == ino && (self.overlay || time == (born.s, born.ns))
        };
        let format = self.tree(by).node(i).format();
        i == 0 || st.stx_mode & 0o170_000 == format && self.inode(by, i).is_some_and(same)
    }
}

/// Directories of the live tree by the paths of one of the trees, each the inode that is meant.
pub(super) struct Places<'a> {
    dirs: Dirs<'a>,
    by: By,
    /// The one that is open, and was looked at.
    sure: u32,
}

impl<'a> Places<'a> {
    pub fn new(live: BorrowedFd<'a>, known: &Known<'a>, by: By) -> Self {
        Self {
            dirs: Dirs::new(live, known.tree(by)),
            by,
            sure: 0,
        }
    }

    /// The directory that `i` is in, and its name there.
    pub fn place(&mut self, known: &Known<'a>, i: u32) -> Result<(BorrowedFd<'_>, &'a [u8])> {
        let tree = known.tree(self.by);
        let above = tree.node(i).parent;
        if above != 0 && above != self.sure {
            // the one that was open before is closed by this
            self.sure = 0;
            let dir = self.dirs.dir(above)?;
            let st = stat_at(dir, b"").map_err(|e| on("read", tree, above)(e.into()))?;
            if !known.is(&st, self.by, above) {
                return Err(refuse_changed(tree, above));
            }
            self.sure = above;
        }
        self.dirs.place(i)
    }

    /// A handle (`O_PATH`) of the inode of entry `i`, and what `statx` says of it.
    pub fn entry(&mut self, known: &Known<'a>, i: u32) -> Result<(OwnedFd, Statx)> {
        let (tree, by) = (known.tree(self.by), self.by);
        let (dir, name) = self.place(known, i)?;
        let entry = open_at(dir, name, OFlags::PATH).map_err(on("open", tree, i))?;
        let st = stat_at(entry.as_fd(), b"")
            .map_err(io::Error::from)
            .map_err(on("read", tree, i))?;
        if known.is(&st, by, i) {
            return Ok((entry, st));
        }
        Err(refuse_changed(tree, i))
    }
}
