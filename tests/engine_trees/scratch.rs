//! A Btrfs of its own for one test: an image file, mounted, detached from the name space at once and
//! unlinked. It lives as long as its open descriptor, and so leaves nothing behind even after SIGKILL.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::hash::{DefaultHasher, Hasher};
use std::io::Read;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use respool::engine::changes::Tree;
use respool::engine::ioctl;
use rustix::fs::{AtFlags, Mode, OFlags, StatxFlags};

/// Runs a tool of the system, or panics with what it said.
pub fn tool(command: &mut Command) {
    let out = command
        .output()
        .unwrap_or_else(|e| panic!("this test needs {command:?}: {e}"));
    let said = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "{command:?} failed: {said}");
}

/// The file system.
pub struct Scratch {
    root: OwnedFd,
}

impl Scratch {
    /// Makes it, mounts it and hides the mount. Needs root, mkfs.btrfs and a free loop device.
    pub fn new() -> Self {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let scratch = Self::mounted(dir.path());
        tool(Command::new("umount").arg("-l").arg(dir.path()));
        scratch
    }

    /// As [`Scratch::new`], but it stays mounted on `dir`; the caller unmounts it.
    pub fn mounted(dir: &Path) -> Self {
        assert!(
            rustix::process::geteuid().is_root(),
            "this test mounts a file system: run it as root"
        );
        let image = tempfile::NamedTempFile::new().expect("a temporary file");
        image.as_file().set_len(4 << 30).expect("a sparse file");
        tool(
            Command::new("mkfs.btrfs")
                .args(["-q", "-m", "single"])
                .arg(image.path()),
        );
        let options = "loop,noatime,compress=zstd:1";
        tool(
            Command::new("mount")
                .args(["-o", options])
                .arg(image.path())
                .arg(dir),
        );
        Self {
            root: open_dir(dir).expect("the mounted root"),
        }
    }

    /// From the descriptor that the parent process left open.
    pub fn inherited(root: OwnedFd) -> Self {
        Self { root }
    }

    pub fn root(&self) -> BorrowedFd<'_> {
        self.root.as_fd()
    }

    /// A path that `std::fs` can use, though the mount is in no name space.
    pub fn path(&self, name: &str) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}/{name}", self.root.as_raw_fd()))
    }

    pub fn subvolume(&self, name: &str) -> PathBuf {
        ioctl::subvol_create(self.root(), name.as_bytes()).expect("a subvolume");
        self.path(name)
    }

    /// A read-only snapshot.
    pub fn snapshot(&self, of: &str, name: &str) -> Snapshot {
        let source = open_dir(&self.path(of)).expect("it works on a scratch file system");
        ioctl::snap_create(&source, self.root(), name.as_bytes(), true).expect("a snapshot");
        self.open(name)
    }

    /// A writable snapshot.
    pub fn branch(&self, of: &str, name: &str) -> PathBuf {
        let source = open_dir(&self.path(of)).expect("it works on a scratch file system");
        ioctl::snap_create(&source, self.root(), name.as_bytes(), false).expect("a snapshot");
        self.path(name)
    }

    pub fn open(&self, name: &str) -> Snapshot {
        let path = self.path(name);
        let fd = open_dir(&path).expect("it works on a scratch file system");
        let made = ioctl::subvol_info(&fd).expect("a subvolume").otime;
        Snapshot { fd, made, path }
    }

    /// Returns when the coarse clock of the file system's time stamps has moved on.
    pub fn next_tick(&self) {
        let stamp = || {
            fs::write(self.path("tick"), "").expect("it works on a scratch file system");
            let m = fs::symlink_metadata(self.path("tick")).expect("it works on a scratch file system");
            (m.ctime(), m.ctime_nsec())
        };
        let before = stamp();
        while stamp() == before {
            std::thread::yield_now();
        }
    }

    pub fn remove(&self, name: &str) {
        ioctl::snap_destroy(self.root(), name.as_bytes()).expect("removed");
    }
}

pub fn open_dir(path: &Path) -> std::io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok(rustix::fs::open(path, flags, Mode::empty())?)
}

/// An open subvolume.
pub struct Snapshot {
    pub fd: OwnedFd,
    pub made: (i64, u32),
    pub path: PathBuf,
}

impl Snapshot {
    /// As the engine takes it.
    pub fn tree(&self) -> Tree<'_> {
        Tree {
            root: self.fd.as_fd(),
            made: Some(self.made),
        }
    }
    /// As if made so late that change times prove equality; for snapshots whose files were not changed in
    /// the clock tick of the snapshot.
    pub fn tree_later(&self) -> Tree<'_> {
        Tree {
            root: self.fd.as_fd(),
            made: Some((self.made.0 + 60, 0)),
        }
    }
}

/// Everything that is to be equal after a restore, and the identity.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Facts {
    pub kind: char,
    pub mode: u32,
    pub owner: (u32, u32),
    pub size: u64,
    pub mtime: (i64, i64),
    pub rdev: u64,
    pub nlink: u64,
    pub target: Option<PathBuf>,
    pub xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    pub flags: u32,
    /// Every byte went into it.
    pub hash: u64,
    /// The first path of its hard links.
    pub group: Option<Vec<u8>>,
    /// Inode number and birth time: not compared by [`Facts::same`].
    pub id: (u64, i64, u32),
    pub ctime: (i64, i64),
}

impl Facts {
    /// Equal in all that a restore brings back.
    pub fn same(&self, other: &Self) -> bool {
        let strip = |f: &Self| Self {
            id: (0, 0, 0),
            ctime: (0, 0),
            ..f.clone()
        };
        strip(self) == strip(other)
    }
}

pub type Manifest = BTreeMap<Vec<u8>, Facts>;

/// Reads a whole tree, every byte of it. The root is the empty path.
pub fn manifest(root: &Path) -> Manifest {
    let mut all = Manifest::new();
    let mut groups = BTreeMap::new();
    let mut todo = vec![Vec::new()];
    while let Some(rel) = todo.pop() {
        let path = root.join(std::ffi::OsStr::from_bytes(if rel.is_empty() {
            b"."
        } else {
            &rel
        }));
        let facts = facts(&path, &rel, &mut groups);
        if facts.kind == 'd' {
            let mut names: Vec<Vec<u8>> = fs::read_dir(&path)
                .expect("it works on a scratch file system")
                .map(|e| {
                    e.expect("it works on a scratch file system")
                        .file_name()
                        .as_bytes()
                        .to_vec()
                })
                .collect();
            names.sort();
            for name in names.into_iter().rev() {
                todo.push(if rel.is_empty() {
                    name
                } else {
                    [&rel[..], b"/", &name].concat()
                });
            }
        }
        all.insert(rel, facts);
    }
    all
}

fn facts(path: &Path, rel: &[u8], groups: &mut BTreeMap<u64, Vec<u8>>) -> Facts {
    let m = fs::symlink_metadata(path).expect("it works on a scratch file system");
    let t = m.file_type();
    let kind = match () {
        () if t.is_dir() => 'd',
        () if t.is_symlink() => 'l',
        () if t.is_fifo() => 'p',
        () if t.is_socket() => 's',
        () if t.is_char_device() => 'c',
        () if t.is_block_device() => 'b',
        () => 'f',
    };
    let birth = rustix::fs::statx(
        rustix::fs::CWD,
        path,
        AtFlags::SYMLINK_NOFOLLOW,
        StatxFlags::BTIME,
    )
    .expect("it works on a scratch file system")
    .stx_btime;
    let many = kind != 'd' && m.nlink() > 1;
    Facts {
        kind,
        mode: m.mode() & 0o7777,
        owner: (m.uid(), m.gid()),
        size: if matches!(kind, 'f' | 'l') { m.size() } else { 0 },
        mtime: (m.mtime(), m.mtime_nsec()),
        rdev: m.rdev(),
        nlink: if kind == 'd' { 0 } else { m.nlink() },
        target: (kind == 'l').then(|| fs::read_link(path).expect("it works on a scratch file system")),
        xattrs: xattrs(path),
        flags: if matches!(kind, 'f' | 'd') { flags(path) } else { 0 },
        hash: if kind == 'f' { hash(path) } else { 0 },
        group: many.then(|| groups.entry(m.ino()).or_insert_with(|| rel.to_vec()).clone()),
        id: (m.ino(), birth.tv_sec, birth.tv_nsec),
        ctime: (m.ctime(), m.ctime_nsec()),
    }
}

fn xattrs(path: &Path) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let mut list = vec![0; 65536];
    let n = rustix::fs::llistxattr(path, &mut list[..]).expect("it works on a scratch file system");
    let mut all = BTreeMap::new();
    for name in list[..n].split(|b| *b == 0).filter(|n| !n.is_empty()) {
        let mut value = vec![0; 65536];
        let n = rustix::fs::lgetxattr(path, name, &mut value[..]).expect("it works on a scratch file system");
        all.insert(name.to_vec(), value[..n].to_vec());
    }
    all
}

fn plain(path: &Path) -> File {
    let mut options = File::options();
    options.read(true).custom_flags(0o4000); // O_NONBLOCK
    options.open(path).expect("it works on a scratch file system")
}

/// The flags i, a, d and C of `chattr`.
pub fn flags(path: &Path) -> u32 {
    rustix::fs::ioctl_getflags(plain(path))
        .expect("it works on a scratch file system")
        .bits()
        & 0x80_0070
}

/// Sets and clears inode flags; says whether it could.
pub fn change_flags(path: &Path, set: u32, clear: u32) -> bool {
    let file = plain(path);
    let now = rustix::fs::ioctl_getflags(&file)
        .expect("it works on a scratch file system")
        .bits();
    let new = rustix::fs::IFlags::from_bits_retain(now & !clear | set);
    rustix::fs::ioctl_setflags(&file, new).is_ok()
}

fn hash(path: &Path) -> u64 {
    let mut file = plain(path);
    let mut hasher = DefaultHasher::new();
    let mut buffer = vec![0; 1 << 20];
    loop {
        let n = file.read(&mut buffer).expect("it works on a scratch file system");
        if n == 0 {
            return hasher.finish();
        }
        hasher.write(&buffer[..n]);
    }
}

/// Panics with the first differences if the trees differ.
pub fn assert_same(is: &Manifest, should: &Manifest, note: &str) {
    let bad = unequal(is, should);
    assert!(
        bad.is_empty(),
        "{note}: {} differences: {:#?}",
        bad.len(),
        &bad[..bad.len().min(4)]
    );
}

/// The paths that differ, with both sides.
pub fn unequal(is: &Manifest, should: &Manifest) -> Vec<(String, Option<Facts>, Option<Facts>)> {
    let mut bad = Vec::new();
    for path in is.keys().chain(should.keys().filter(|p| !is.contains_key(*p))) {
        let (x, y) = (is.get(path), should.get(path));
        if !matches!((x, y), (Some(x), Some(y)) if x.same(y)) {
            let name = String::from_utf8_lossy(path).into_owned();
            bad.push((name, x.cloned(), y.cloned()));
        }
    }
    bad
}
