//! A tree with all that is hard to keep, and damage to it with the rows that must be listed.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::{self, File, Permissions};
use std::io::{Seek, SeekFrom, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};

use respool::engine::ChangeKind::{self, Added, Deleted, Meta, Modified, Renamed, Type};
use rustix::fs::{CWD, FileType, Mode, XattrFlags, lsetxattr};

use crate::mutate::{Rng, set_mtime};

/// A path of any bytes below `root`.
pub fn at(root: &Path, name: impl AsRef<[u8]>) -> PathBuf {
    root.join(OsStr::from_bytes(name.as_ref()))
}

/// Writes a file, its folders too.
pub fn put(path: &Path, data: impl AsRef<[u8]>, mode: u32) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, data).unwrap();
    chmod(path, mode);
}

pub fn chmod(path: &Path, mode: u32) {
    fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

pub fn special(path: &Path, kind: FileType, mode: u32, device: u64) {
    rustix::fs::mknodat(CWD, path, kind, Mode::from_raw_mode(mode), device).unwrap();
}

pub fn xattr(path: &Path, name: &str, value: &[u8]) {
    lsetxattr(path, name, value, XattrFlags::empty()).unwrap();
}

/// Names that break those who split, quote or decode.
pub const NAMES: [&[u8]; 10] = [
    b"with space",
    b"new\nline",
    b"-dash",
    "emoji\u{1f600}.txt".as_bytes(),
    "公共.txt".as_bytes(),
    "naïve.md".as_bytes(),
    b"quote'\"",
    b"tab\there",
    b"bad\xff\xfename",
    &[b'x'; 255],
];

/// Makes the tree.
pub fn nasty(ws: &Path, rng: &mut Rng) {
    for d in 0..12 {
        for f in 0..3 + rng.below(12) {
            let line = format!("line {d} {f}\n").repeat(1 + rng.below(400));
            put(&ws.join(format!("src{d}/f{f}.txt")), line, 0o644);
        }
    }
    put(&ws.join("big.bin"), rng.bytes(3 << 20), 0o644);
    put(&ws.join("bin/tool"), "#!/bin/sh\necho 1\n", 0o4755);
    put(&ws.join("ro/secret"), "s", 0o400);
    chmod(&ws.join("ro"), 0o555);
    for name in NAMES {
        put(&at(&ws.join("names"), name), name, 0o644);
    }
    fs::hard_link(ws.join("big.bin"), ws.join("src0/hard")).unwrap();
    fs::hard_link(ws.join("bin/tool"), ws.join("hard-tool")).unwrap();
    symlink("../nowhere", ws.join("dangling")).unwrap();
    symlink("/etc", ws.join("abs")).unwrap();
    special(&ws.join("fifo"), FileType::Fifo, 0o644, 0);
    special(&ws.join("sock"), FileType::Socket, 0o755, 0);
    special(
        &ws.join("chr"),
        FileType::CharacterDevice,
        0o644,
        rustix::fs::makedev(1, 3),
    );
    fs::create_dir_all(ws.join("empty/dir")).unwrap();
    chmod(&ws.join("empty"), 0o1777);
    chown(ws.join("src1/f0.txt"), Some(1234), Some(4321)).unwrap();
    xattr(&ws.join("src2/f0.txt"), "user.note", b"hello");
    let mut sparse = File::create(ws.join("sparse")).unwrap();
    sparse.set_len(64 << 20).unwrap();
    sparse.seek(SeekFrom::Start(40 << 20)).unwrap();
    sparse.write_all(b"tail").unwrap();
    set_mtime(&ws.join("src3/f0.txt"), (981_173_106, 789_012_345)).unwrap();
    put(
        &ws.join(format!("deep/{}leaf", format!("{}/", "d".repeat(60)).repeat(8))),
        "deep",
        0o644,
    );
}

/// (kind, path, old path).
pub type Row = (ChangeKind, Vec<u8>, Option<Vec<u8>>);

fn row(kind: ChangeKind, path: impl AsRef<[u8]>) -> Row {
    (kind, path.as_ref().to_vec(), None)
}

fn renamed(path: &str, from: &str) -> Row {
    (Renamed, path.into(), Some(from.into()))
}

/// Damages the tree; returns the rows that a change list must have, all of them.
pub fn damage(ws: &Path) -> BTreeSet<Row> {
    let mut rows = BTreeSet::new();
    put(&ws.join("src0/f0.txt"), "changed\n", 0o644);
    rows.insert(row(Modified, "src0/f0.txt"));
    for entry in fs::read_dir(ws.join("src4")).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        rows.insert(row(Deleted, format!("src4/{name}")));
    }
    rows.insert(row(Deleted, "src4"));
    fs::remove_dir_all(ws.join("src4")).unwrap();
    rows.extend(moves(ws));
    rows.extend(types(ws));
    rows.extend(contents(ws));
    rows.extend(attributes(ws));
    rows
}

fn moves(ws: &Path) -> Vec<Row> {
    fs::rename(ws.join("src5"), ws.join("renamed5")).unwrap();
    fs::rename(ws.join("src6/f0.txt"), ws.join("src7/moved.txt")).unwrap();
    fs::rename(ws.join("src8"), ws.join("swap-tmp")).unwrap();
    fs::rename(ws.join("src9"), ws.join("src8")).unwrap();
    fs::rename(ws.join("swap-tmp"), ws.join("src9")).unwrap();
    vec![
        renamed("renamed5", "src5"),
        renamed("src7/moved.txt", "src6/f0.txt"),
        renamed("src8", "src9"),
        renamed("src9", "src8"),
    ]
}

fn types(ws: &Path) -> Vec<Row> {
    fs::remove_file(ws.join("abs")).unwrap();
    put(&ws.join("abs/now-a-dir"), "x", 0o644);
    fs::remove_file(ws.join("names/new\nline")).unwrap();
    put(&ws.join("names/new\nfile"), "n", 0o644);
    fs::remove_file(ws.join("fifo")).unwrap();
    put(&ws.join("fifo"), "file now", 0o644);
    fs::remove_file(ws.join("sock")).unwrap();
    fs::remove_file(ws.join("chr")).unwrap();
    special(&ws.join("pipe2"), FileType::Fifo, 0o600, 0);
    put(&ws.join(".gitignore"), "*\n", 0o644);
    put(&ws.join("node_modules/x/index.js"), "js", 0o644);
    vec![
        row(Type, "abs"),
        row(Added, "abs/now-a-dir"),
        row(Deleted, "names/new\nline"),
        row(Added, "names/new\nfile"),
        row(Type, "fifo"),
        row(Deleted, "sock"),
        row(Deleted, "chr"),
        row(Added, "pipe2"),
        row(Added, ".gitignore"),
        row(Added, "node_modules"),
        row(Added, "node_modules/x"),
        row(Added, "node_modules/x/index.js"),
    ]
}

fn contents(ws: &Path) -> Vec<Row> {
    let mut big = File::options().write(true).open(ws.join("big.bin")).unwrap();
    big.seek(SeekFrom::Start(1 << 20)).unwrap();
    big.write_all(b"patched").unwrap();
    // same size, same modification time
    let path = ws.join("src10/f1.txt");
    let before = fs::metadata(&path).unwrap();
    let mut data = fs::read(&path).unwrap();
    let at = data.len() - 2;
    data[at] = b'Z';
    fs::write(&path, data).unwrap();
    set_mtime(&path, (before.mtime(), before.mtime_nsec())).unwrap();
    fs::remove_file(ws.join("hard-tool")).unwrap();
    put(&ws.join("hard-tool"), "no longer linked", 0o644);
    File::options()
        .write(true)
        .open(ws.join("sparse"))
        .unwrap()
        .set_len(10)
        .unwrap();
    put(&at_bad(ws), "other", 0o644);
    vec![
        row(Modified, "big.bin"),
        row(Modified, "src0/hard"),
        row(Modified, "src10/f1.txt"),
        row(Modified, "hard-tool"),
        row(Modified, "sparse"),
        row(Modified, b"names/bad\xff\xfename"),
    ]
}

fn at_bad(ws: &Path) -> PathBuf {
    at(ws, b"names/bad\xff\xfename")
}

fn attributes(ws: &Path) -> Vec<Row> {
    chmod(&ws.join("bin/tool"), 0o755);
    chmod(&ws.join("ro"), 0o755);
    fs::remove_file(ws.join("ro/secret")).unwrap();
    chown(ws.join("src1/f0.txt"), Some(0), Some(0)).unwrap();
    xattr(&ws.join("src2/f0.txt"), "user.note", b"bye");
    set_mtime(&ws.join("src3/f0.txt"), (1_000_000_000, 5)).unwrap(); // listed only if times are asked for
    vec![
        row(Meta, "bin/tool"),
        row(Meta, "ro"),
        row(Deleted, "ro/secret"),
        row(Meta, "src1/f0.txt"),
        row(Meta, "src2/f0.txt"),
    ]
}
