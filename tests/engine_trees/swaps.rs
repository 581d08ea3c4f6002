//! Whoever owns the folder puts a thing of root's at a name while a restore is under way: it gets nothing.

use std::fs;
use std::os::fd::AsFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt, chown, lchown, symlink};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use respool::engine::restore::restore;
use respool::engine::{Selection, ioctl, subvolume};
use respool::progress::Progress;

use crate::scratch::{Scratch, open_dir};

const USER: u32 = 1000;

/// Does something after the first step of a restore.
struct AfterOne<F>(F, AtomicBool);

impl<F: Fn() + Sync> Progress for AfterOne<F> {
    fn step(&self, what: &str, done: u64, _total: u64) {
        if what == "restoring" && done == 1 && !self.1.swap(true, Ordering::Relaxed) {
            (self.0)();
        }
    }
}

/// Owner, group, mode, names, modification time.
fn facts(path: &Path) -> (u32, u32, u32, u64, i64, i64) {
    let m = fs::symlink_metadata(path).expect("done");
    (m.uid(), m.gid(), m.mode(), m.nlink(), m.mtime(), m.mtime_nsec())
}

/// `make` and `damage` a folder of the user's, then restore it; after the first step the user exchanges `at` and a file
/// or folder of root's.
fn swapped(what: &str, make: impl Fn(&Path), damage: impl Fn(&Path), at: &str, victim: &str) {
    let scratch = Scratch::new();
    let live = scratch.subvolume("live");
    fs::write(live.join("secret"), "of root").expect("done");
    fs::set_permissions(live.join("secret"), fs::Permissions::from_mode(0o600)).expect("done");
    fs::DirBuilder::new()
        .mode(0o700)
        .create(live.join("closed"))
        .expect("done");
    make(&live);
    let target = scratch.snapshot("live", "target");
    damage(&live);
    let safety = scratch.snapshot("live", "safety");
    let before = facts(&live.join(victim));
    let swap = AfterOne(
        || {
            fs::rename(live.join(at), live.join("theirs")).expect("done");
            fs::rename(live.join(victim), live.join(at)).expect("done");
        },
        AtomicBool::new(false),
    );
    let root = open_dir(&live).expect("done");
    let done = restore(
        root.as_fd(),
        &safety.tree(),
        &target.tree(),
        &Selection::All,
        &swap,
    );
    assert!(swap.1.into_inner(), "{what}: nothing was exchanged");
    let e = done.expect_err(what).to_string();
    assert!(e.contains("changed after the safety checkpoint"), "{what}: {e}");
    assert_eq!(facts(&live.join(at)), before, "{what}");
    if victim == "secret" {
        assert_eq!(fs::read(live.join(at)).expect("done"), b"of root", "{what}");
    } else {
        assert_eq!(fs::read_dir(live.join(at)).expect("done").count(), 0, "{what}");
    }
}

fn own(path: &Path) {
    lchown(path, Some(USER), Some(USER)).expect("done");
}

fn remove(name: &'static str) -> impl Fn(&Path) {
    move |p| fs::remove_file(p.join(name)).expect("done")
}

#[test]
fn what_is_put_at_the_name_of_a_new_file_gets_neither_data_nor_owner() {
    let file = |p: &Path| {
        fs::write(p.join("f"), "of the user").expect("done");
        chown(p, Some(USER), Some(USER)).expect("done");
        own(&p.join("f"));
    };
    swapped("file", file, remove("f"), "f", "secret");
    let link = |p: &Path| {
        symlink("secret", p.join("f")).expect("done");
        own(&p.join("f"));
    };
    swapped("link", link, remove("f"), "f", "secret");
    let pipe = |p: &Path| {
        nix::unistd::mkfifo(&p.join("f"), nix::sys::stat::Mode::from_bits_truncate(0o666)).expect("done");
        chown(p, Some(USER), Some(USER)).expect("done");
        own(&p.join("f"));
    };
    swapped("pipe", pipe, remove("f"), "f", "secret");
}

#[test]
fn a_folder_put_at_the_name_of_a_new_one_gets_neither_an_owner_nor_files() {
    let empty = |p: &Path| {
        fs::create_dir(p.join("d")).expect("done");
        own(&p.join("d"));
    };
    swapped(
        "empty",
        empty,
        |p| fs::remove_dir(p.join("d")).expect("done"),
        "d",
        "closed",
    );
    let full = |p: &Path| {
        empty(p);
        fs::write(p.join("d/in"), "x").expect("done");
        own(&p.join("d/in"));
    };
    // the first step is to remove the file in the folder that stays
    swapped(
        "full",
        |p| {
            full(p);
            fs::remove_file(p.join("d/in")).expect("done");
            fs::write(p.join("d/other"), "x").expect("done");
        },
        |p| {
            fs::remove_file(p.join("d/other")).expect("done");
            fs::write(p.join("d/new"), "x").expect("done");
        },
        "d",
        "closed",
    );
}

#[test]
fn what_is_put_at_the_name_of_a_file_that_gets_a_mode_only_keeps_its_own() {
    let make = |p: &Path| {
        chown(p, Some(USER), Some(USER)).expect("done");
        for name in ["a", "f"] {
            fs::write(p.join(name), "x").expect("done");
            own(&p.join(name));
        }
        fs::set_permissions(p.join("f"), fs::Permissions::from_mode(0o666)).expect("done");
    };
    let damage = |p: &Path| {
        fs::remove_file(p.join("a")).expect("done");
        fs::set_permissions(p.join("f"), fs::Permissions::from_mode(0o600)).expect("done");
    };
    swapped("mode", make, damage, "f", "secret");
}

#[test]
fn no_further_name_is_given_to_what_was_put_at_a_name() {
    let make = |p: &Path| {
        chown(p, Some(USER), Some(USER)).expect("done");
        fs::write(p.join("f"), "x").expect("done");
        own(&p.join("f"));
        fs::hard_link(p.join("f"), p.join("g")).expect("done");
    };
    let damage = |p: &Path| {
        fs::remove_file(p.join("f")).expect("done");
        fs::remove_file(p.join("g")).expect("done");
    };
    swapped("names", make, damage, "f", "secret");
}

#[test]
fn the_subvolume_that_is_open_goes_and_not_the_one_at_its_name() {
    let scratch = Scratch::new();
    let ours = scratch.subvolume("ours");
    fs::write(ours.join("in"), "x").expect("done");
    let root = open_dir(&ours).expect("done");
    ioctl::subvol_create(&root, b"inner").expect("done");
    fs::rename(&ours, scratch.path("moved")).expect("done");
    let theirs = scratch.subvolume("ours");
    fs::write(theirs.join("in"), "of root").expect("done");
    subvolume::destroy_open(scratch.root(), "ours", root).expect("done");
    assert!(!scratch.path("moved").exists());
    assert_eq!(fs::read(theirs.join("in")).expect("done"), b"of root");
}
