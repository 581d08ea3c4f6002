//! What a tree is, exactly: its own reader, sharing no code with the program.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::fs::{lgetxattr, llistxattr};

/// One entry with everything that a rewind must bring back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fact {
    pub mode: u32,
    pub owner: (u32, u32),
    pub mtime: (i64, i64),
    pub rdev: u64,
    pub content: Vec<u8>,
    pub size: u64,
    pub xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    /// The first name of the same inode.
    pub linked: PathBuf,
}

/// All entries by relative path, the root as the empty path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Manifest(pub BTreeMap<PathBuf, Fact>);

fn xattrs(path: &Path) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let mut names = vec![0u8; 64 << 10];
    let n = llistxattr(path, &mut names[..]).unwrap_or(0);
    let mut out = BTreeMap::new();
    for name in names[..n].split(|b| *b == 0).filter(|n| !n.is_empty()) {
        let mut value = vec![0u8; 64 << 10];
        let n = lgetxattr(path, name, &mut value[..]).expect("an attribute");
        value.truncate(n);
        out.insert(name.to_vec(), value);
    }
    out
}

fn content(path: &Path, meta: &std::fs::Metadata) -> Vec<u8> {
    if meta.file_type().is_symlink() {
        return std::fs::read_link(path)
            .expect("a link")
            .as_os_str()
            .as_bytes()
            .to_vec();
    }
    if meta.is_file() {
        return blake3::hash(&std::fs::read(path).expect("a file"))
            .as_bytes()
            .to_vec();
    }
    Vec::new()
}

fn walk(
    path: &Path,
    rel: &Path,
    skip: &[&str],
    seen: &mut BTreeMap<u64, PathBuf>,
    out: &mut BTreeMap<PathBuf, Fact>,
) {
    if skip.iter().any(|s| Path::new(s) == rel) {
        return;
    }
    let meta = std::fs::symlink_metadata(path).expect("an entry");
    let linked = if meta.is_dir() {
        rel.to_owned()
    } else {
        seen.entry(meta.ino()).or_insert_with(|| rel.to_owned()).clone()
    };
    let device = meta.file_type().is_char_device() || meta.file_type().is_block_device();
    let fact = Fact {
        mode: meta.mode(),
        owner: (meta.uid(), meta.gid()),
        mtime: (meta.mtime(), meta.mtime_nsec()),
        rdev: if device { meta.rdev() } else { 0 },
        content: content(path, &meta),
        size: if meta.is_dir() { 0 } else { meta.len() },
        xattrs: xattrs(path),
        linked,
    };
    out.insert(rel.to_owned(), fact);
    if meta.is_dir() {
        let mut names: Vec<OsString> = std::fs::read_dir(path)
            .expect("a folder")
            .map(|e| e.expect("an entry").file_name())
            .collect();
        names.sort();
        for name in names {
            walk(&path.join(&name), &rel.join(&name), skip, seen, out);
        }
    }
}

impl Manifest {
    /// Reads a tree.
    pub fn of(root: &Path) -> Self {
        Self::without(root, &[])
    }

    /// Reads a tree, but for these paths and what is below them.
    pub fn without(root: &Path, skip: &[&str]) -> Self {
        let mut out = BTreeMap::new();
        walk(root, Path::new(""), skip, &mut BTreeMap::new(), &mut out);
        Self(out)
    }

    /// What differs, a line each.
    pub fn differs(&self, other: &Self) -> Vec<String> {
        let mut out = Vec::new();
        for (path, fact) in &self.0 {
            match other.0.get(path) {
                None => out.push(format!("- {}", path.display())),
                Some(f) if f != fact => out.push(format!("~ {}: {fact:?} -> {f:?}", path.display())),
                Some(_) => {}
            }
        }
        let new = other.0.keys().filter(|p| !self.0.contains_key(*p));
        out.extend(new.map(|p| format!("+ {}", p.display())));
        out
    }

    /// Panics with the first differences unless both are the same.
    pub fn assert_same(&self, other: &Self, what: &str) {
        let differs = self.differs(other);
        let first: Vec<&String> = differs.iter().take(4).collect();
        assert!(
            differs.is_empty(),
            "{what}: {} differ, first {first:#?}",
            differs.len()
        );
    }
}
