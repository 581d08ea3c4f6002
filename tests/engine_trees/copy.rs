//! Copies across file systems.

use std::fs;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use respool::engine::EngineError;
use respool::engine::restore::{copy_tree, measure};
use respool::progress::Silent;

use crate::mutate::Rng;
use crate::nasty::{chmod, nasty, put, xattr};
use crate::scratch::{Manifest, Scratch, assert_same, change_flags, manifest, open_dir, tool};

fn copy(from: &Path, to: &Path) -> Result<respool::engine::restore::CopyStats, EngineError> {
    let (from, to) = (open_dir(from).unwrap(), open_dir(to).unwrap());
    copy_tree(from.as_fd(), to.as_fd(), &Silent)
}

/// Holes must still be holes.
fn allocated(path: &Path) -> u64 {
    fs::metadata(path).unwrap().blocks() * 512
}

#[test]
fn a_copy_has_every_attribute_on_any_file_system() {
    let (one, two) = (Scratch::new(), Scratch::new());
    let source = one.subvolume("source");
    nasty(&source, &mut Rng::new(4));
    xattr(&source.join("src0/f0.txt"), "trusted.t", b"v");
    xattr(
        &source.join("src0/f0.txt"),
        "security.capability",
        &[1, 0, 0, 2, 0, 32, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
    );
    change_flags(&source.join("src0/f1.txt"), 0x40, 0);
    chmod(&source, 0o750);
    let want = manifest(&source);
    let host = tempfile::tempdir().unwrap();
    let plain = host.path().join("copy");
    fs::create_dir(&plain).unwrap();
    let stats = copy(&source, &plain).unwrap();
    assert_eq!(stats.entries, want.len() as u64 - 1);
    assert_same(
        &manifest(&plain),
        &want,
        "to the file system of the temporary folder",
    );
    assert!(allocated(&plain.join("sparse")) < 1 << 20);
    let back = two.subvolume("back");
    copy(&plain, &back).unwrap();
    assert_same(&manifest(&back), &want, "and back to Btrfs");
    assert!(allocated(&back.join("sparse")) < 1 << 20);
    let refused = copy(&plain, &back).unwrap_err();
    assert!(
        matches!(refused, EngineError::Refused { .. }),
        "a folder that is not empty: {refused}"
    );
}

#[test]
fn flags_survive_a_copy() {
    let (one, two) = (Scratch::new(), Scratch::new());
    let (source, to) = (one.subvolume("source"), two.subvolume("to"));
    put(&source.join("frozen/f"), "kept", 0o444);
    fs::hard_link(source.join("frozen/f"), source.join("second")).unwrap();
    put(&source.join("nocow"), "", 0o644);
    assert!(change_flags(&source.join("nocow"), 0x80_0000, 0));
    fs::write(source.join("nocow"), Rng::new(9).bytes(50_000)).unwrap();
    put(&source.join("log"), "x", 0o644);
    for (name, flag) in [("frozen/f", 0x10), ("frozen", 0x10), ("log", 0x20)] {
        assert!(change_flags(&source.join(name), flag, 0));
    }
    copy(&source, &to).unwrap();
    assert_same(&manifest(&to), &manifest(&source), "flags");
}

/// Unmounts when the test ends, however it ends.
struct Mounted(PathBuf);

impl Drop for Mounted {
    fn drop(&mut self) {
        let done = Command::new("umount").arg("-l").arg(&self.0).status();
        if !std::thread::panicking() {
            assert!(done.unwrap().success());
        }
    }
}

#[test]
fn mounts_are_listed_and_not_entered() {
    let host = tempfile::tempdir().unwrap();
    let tree = host.path().join("tree");
    put(&tree.join("a/f"), "12345", 0o644);
    fs::hard_link(tree.join("a/f"), tree.join("a/g")).unwrap();
    fs::create_dir(tree.join("a/mnt")).unwrap();
    tool(
        Command::new("mount")
            .args(["-t", "tmpfs", "none"])
            .arg(tree.join("a/mnt")),
    );
    let mounted = Mounted(tree.join("a/mnt"));
    put(&tree.join("a/mnt/secret"), "not covered", 0o644);
    let root = open_dir(&tree).unwrap();
    let size = measure(root.as_fd(), &Silent).unwrap();
    assert_eq!((size.entries, size.bytes), (4, 5));
    assert_eq!(size.mounts, [PathBuf::from("a/mnt")]);
    assert!(size.subvolumes.is_empty());
    let to = host.path().join("to");
    fs::create_dir(&to).unwrap();
    copy(&tree, &to).unwrap();
    let names: Vec<Vec<u8>> = manifest(&to).into_keys().collect();
    assert_eq!(names, [&b""[..], b"a", b"a/f", b"a/g", b"a/mnt"]);
    drop(mounted);
}

#[test]
fn subvolumes_are_listed_and_copied() {
    let fs = Scratch::new();
    let source = fs.subvolume("source");
    put(&source.join("f"), "x", 0o644);
    let parent = open_dir(&source).unwrap();
    respool::engine::ioctl::subvol_create(&parent, b"nested").unwrap();
    put(&source.join("nested/inner"), "inner", 0o644);
    let size = measure(parent.as_fd(), &Silent).unwrap();
    assert_eq!(size.subvolumes, [PathBuf::from("nested")]);
    assert_eq!((size.entries, size.bytes), (4, 6));
    let to = fs.subvolume("to");
    copy(&source, &to).unwrap();
    let strip = |m: Manifest| -> Vec<(Vec<u8>, u64)> { m.into_iter().map(|(p, f)| (p, f.hash)).collect() };
    assert_eq!(strip(manifest(&to)), strip(manifest(&source)));
}
