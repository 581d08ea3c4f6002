//! A tree as the walk found it: nodes in one list, parents before children, no paths kept.

use std::os::fd::BorrowedFd;
use std::path::PathBuf;
use std::sync::Arc;

use rustix::fs::{AtFlags, IFlags, Statx, StatxAttributes, StatxFlags, StatxTimestamp};

use crate::engine::FileType;
use crate::engine::changes::attrs::Xattrs;
use crate::engine::changes::open::to_path;

/// An instant of the file system: seconds since 1970 and nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub(in crate::engine) struct Stamp {
    pub s: i64,
    pub ns: u32,
}

impl Stamp {
    fn of(t: StatxTimestamp) -> Self {
        Self {
            s: t.tv_sec,
            ns: t.tv_nsec,
        }
    }
}

/// What kind of identity a key stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(in crate::engine) enum KeyKind {
    /// The root: always the same.
    Root,
    /// A folder above a selected path: the same as the one at the same path of the other tree.
    Context,
    /// Inode number and birth time.
    Inode,
    /// A nested subvolume, a mount, or what is left out: no identity, known by its place alone.
    Place,
}

/// The identity of an inode. Numbers are used again on branches, so the birth time belongs to it, and the
/// type as a second guard.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(in crate::engine) struct Key {
    pub kind: KeyKind,
    pub ino: u64,
    pub born: Stamp,
    /// The type bits of the mode.
    pub format: u16,
}

impl Key {
    pub const ROOT: Self = Self {
        kind: KeyKind::Root,
        ino: 0,
        born: Stamp { s: 0, ns: 0 },
        format: 0,
    };
    /// The folder above a selected path with this number.
    pub fn context(number: u64) -> Self {
        Self {
            kind: KeyKind::Context,
            ino: number,
            ..Self::ROOT
        }
    }
}

/// One entry of a directory, and what `statx` says of its inode.
#[derive(Debug, Clone)]
pub(in crate::engine) struct Node {
    /// The index of its directory; the root's own is 0.
    pub parent: u32,
    /// Folders between it and the root; the root's own is 0.
    pub depth: u32,
    pub name: Box<[u8]>,
    /// What it is joined by with the other tree: its inode, unless noted otherwise.
    pub key: Key,
    /// Inode number and birth time.
    pub inode: (u64, Stamp),
    pub file_type: FileType,
    /// Permission bits.
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    pub nlink: u32,
    /// Major and minor number of a device.
    pub rdev: (u32, u32),
    pub size: u64,
    pub mtime: Stamp,
    pub atime: Stamp,
    pub ctime: Stamp,
    /// The immutable or the append-only flag is set.
    pub frozen: bool,
    /// Something is mounted here.
    pub mount: bool,
    pub dev: (u32, u32),
    /// Allocated bytes.
    pub allocated: u64,
    /// What only reading shows, where the tree is a record of one and not one on disk.
    pub facts: Option<Arc<Facts>>,
}

/// The hash of a file's content: see [`crate::engine::vault::copy`].
pub(in crate::engine) type Hash = [u8; 32];

/// What `statx` does not say of an inode.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::engine) struct Facts {
    pub xattrs: Xattrs,
    /// Those of [`FLAGS`](super::attrs::FLAGS).
    pub flags: IFlags,
    /// The target of a link.
    pub link: Vec<u8>,
    /// Of a regular file.
    pub hash: Option<Hash>,
}

/// The device of a tree's root, and whether the root is that of a Btrfs subvolume.
#[derive(Debug, Clone, Copy)]
pub(in crate::engine) struct Origin {
    dev: (u32, u32),
    subvolume: bool,
}

impl Origin {
    pub fn of(root: &Statx) -> Self {
        Self {
            dev: (root.stx_dev_major, root.stx_dev_minor),
            subvolume: root.stx_ino == 256,
        }
    }
    /// False for the place of a nested subvolume in a snapshot.
    pub fn owns(self, node: &Node) -> bool {
        !(self.subvolume && node.is_dir() && node.inode.0 == 2)
    }
}

impl Node {
    /// From what `statx` says; `origin` is the tree's root (None for the root itself).
    pub fn new(name: &[u8], parent: u32, depth: u32, st: &Statx, origin: Option<Origin>) -> Self {
        let file_type = type_of(u32::from(st.stx_mode));
        let dev = (st.stx_dev_major, st.stx_dev_minor);
        let mount = st.stx_attributes.contains(StatxAttributes::MOUNT_ROOT);
        // an overlay shows the files of its lower layers under devices of their own
        let foreign = mount || (file_type == FileType::Dir && origin.is_some_and(|o| o.dev != dev));
        // a snapshot shows a nested subvolume as an empty directory with inode 2
        let stub = file_type == FileType::Dir && st.stx_ino == 2 && origin.is_some_and(|o| o.subvolume);
        let kind = match origin {
            None => KeyKind::Root,
            Some(_) if foreign || stub => KeyKind::Place,
            Some(_) => KeyKind::Inode,
        };
        let inode = Key {
            kind,
            ino: st.stx_ino,
            born: Stamp::of(st.stx_btime),
            format: st.stx_mode & 0o170_000,
        };
        Self {
            parent,
            depth,
            name: name.into(),
            inode: (inode.ino, inode.born),
            key: if kind == KeyKind::Root { Key::ROOT } else { inode },
            file_type,
            mode: u32::from(st.stx_mode) & 0o7777,
            uid: st.stx_uid,
            gid: st.stx_gid,
            nlink: st.stx_nlink,
            rdev: (st.stx_rdev_major, st.stx_rdev_minor),
            size: st.stx_size,
            mtime: Stamp::of(st.stx_mtime),
            atime: Stamp::of(st.stx_atime),
            ctime: Stamp::of(st.stx_ctime),
            frozen: st
                .stx_attributes
                .intersects(StatxAttributes::IMMUTABLE | StatxAttributes::APPEND),
            mount,
            dev,
            allocated: st.stx_blocks.saturating_mul(512),
            facts: None,
        }
    }

    pub fn is_dir(&self) -> bool {
        self.file_type == FileType::Dir
    }
    /// The type bits of the mode.
    pub fn format(&self) -> u16 {
        match self.file_type {
            FileType::File => 0o100_000,
            FileType::Dir => 0o040_000,
            FileType::Link => 0o120_000,
            FileType::Fifo => 0o010_000,
            FileType::Socket => 0o140_000,
            FileType::CharDevice => 0o020_000,
            FileType::BlockDevice => 0o060_000,
        }
    }
    pub fn is_file(&self) -> bool {
        self.file_type == FileType::File
    }
    /// Part of the tree (not the place of a nested subvolume or of a mount).
    pub fn covered(&self) -> bool {
        self.key.kind != KeyKind::Place
    }
    /// Makes it something that no checkpoint covers.
    pub fn leave_out(&mut self) {
        self.key.kind = KeyKind::Place;
    }
    /// Above a selected path, not selected itself.
    pub fn is_context(&self) -> bool {
        self.key.kind == KeyKind::Context
    }
    /// The size where it means something: of files and links.
    pub fn shown_size(&self) -> Option<u64> {
        matches!(self.file_type, FileType::File | FileType::Link).then_some(self.size)
    }
}

/// `statx` of an entry, never following it.
pub(in crate::engine) fn stat_at(dir: BorrowedFd<'_>, name: &[u8]) -> rustix::io::Result<Statx> {
    let mut flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT;
    if name.is_empty() {
        flags |= AtFlags::EMPTY_PATH;
    }
    rustix::fs::statx(dir, name, flags, StatxFlags::BASIC_STATS | StatxFlags::BTIME)
}

/// The type in a mode.
pub(in crate::engine) fn type_of(mode: u32) -> FileType {
    use rustix::fs::FileType as T;
    match T::from_raw_mode(mode) {
        T::Directory => FileType::Dir,
        T::Symlink => FileType::Link,
        T::Fifo => FileType::Fifo,
        T::Socket => FileType::Socket,
        T::CharacterDevice => FileType::CharDevice,
        T::BlockDevice => FileType::BlockDevice,
        _ => FileType::File,
    }
}

/// A whole tree.
#[derive(Debug, Default)]
pub(in crate::engine) struct Walked {
    /// The root first, every directory before its entries; otherwise in no order.
    pub nodes: Vec<Node>,
    /// The nodes that have an identity, sorted by it.
    pub order: Vec<u32>,
}

impl Walked {
    /// Sorts the nodes by identity.
    pub fn new(nodes: Vec<Node>) -> Self {
        // kind and number lie together for speed; they decide nearly always
        let mut keys: Vec<(KeyKind, u64, u32)> = (0..)
            .zip(&nodes)
            .filter(|(_, n)| n.covered())
            .map(|(i, n)| (n.key.kind, n.key.ino, i))
            .collect();
        let full = |i: u32| (nodes[i as usize].key, i);
        keys.sort_unstable_by(|x, y| {
            (x.0, x.1)
                .cmp(&(y.0, y.1))
                .then_with(|| full(x.2).cmp(&full(y.2)))
        });
        let order = keys.into_iter().map(|k| k.2).collect();
        Self { nodes, order }
    }
    pub fn node(&self, i: u32) -> &Node {
        &self.nodes[i as usize]
    }
    /// The identity of the directory that `i` is in.
    pub fn parent_key(&self, i: u32) -> Key {
        self.node(self.node(i).parent).key
    }
    /// All nodes (names) of an identity.
    pub fn find(&self, key: Key) -> &[u32] {
        let from = self.order.partition_point(|&i| self.node(i).key < key);
        let len = self.order[from..].partition_point(|&i| self.node(i).key == key);
        &self.order[from..from + len]
    }
    /// The names from the root down to `i`.
    pub fn chain(&self, i: u32) -> Vec<&[u8]> {
        let mut names = Vec::new();
        let mut at = i;
        while at != 0 {
            let n = self.node(at);
            names.push(&n.name[..]);
            at = n.parent;
        }
        names.reverse();
        names
    }
    /// The bytes of its path; the root's is empty.
    pub fn bytes(&self, i: u32) -> Vec<u8> {
        self.chain(i).join(&b'/')
    }
    /// Its path for people and rows; the root's is `.`.
    pub fn path(&self, i: u32) -> PathBuf {
        to_path(&self.bytes(i))
    }
}
