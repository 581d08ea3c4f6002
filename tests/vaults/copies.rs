//! What only copies have: contents shared between checkpoints, and what damages them.

use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use respool::engine::{Health, Selection, State};
use respool::failure::{Explain, Kind};
use respool::progress::Silent;

use crate::ground::{Copies, Disk, Ground, manual};

#[test]
fn unchanged_files_cost_no_space_and_removed_ones_give_theirs_back() {
    let g = Copies::new();
    for i in 0..50 {
        g.write(&format!("f{i}"), &format!("content {i} ").repeat(1000));
    }
    g.write("twin", &"content 7 ".repeat(1000));
    g.take();
    assert_eq!(g.objects().len(), 50, "the same bytes are kept once");
    let (objects, before) = (g.objects(), g.vault().used().expect("used"));
    g.take();
    assert_eq!(g.objects(), objects);
    g.write("f7", "other");
    let c = g.take();
    assert_eq!(g.objects().len(), 51);
    let grown = g.vault().used().expect("used") - before;
    assert!(grown < 100 << 10, "{grown} bytes for two checkpoints");
    for object in g.objects() {
        let meta = object.metadata().expect("there");
        assert_eq!((meta.mode() & 0o7777, meta.uid()), (0o400, 0));
    }
    g.vault().remove(&[c], &Silent).expect("remove");
    assert_eq!(g.objects(), objects);
}

#[test]
fn the_store_is_for_its_owner_alone() {
    let g = Copies::new();
    g.take();
    for folder in ["", "snaps", "objects"] {
        let mode = g.store().join(folder).metadata().expect("there").mode();
        assert_eq!(mode & 0o777, 0o700, "{folder}");
    }
}

/// A content whose bytes are no longer what they were is named with its file and checkpoint, and nothing is
/// changed.
#[test]
fn a_damaged_content_is_found_before_anything_is_changed() {
    let g = Copies::new();
    g.write("a", "first");
    g.write("b", "second");
    let a = g.take();
    g.write("a", "first changed");
    g.write("b", "second changed");
    for object in g.objects() {
        if std::fs::read(&object).expect("read") == b"second" {
            std::fs::set_permissions(&object, std::fs::Permissions::from_mode(0o600)).expect("chmod");
            std::fs::write(&object, "Second").expect("damage");
        }
    }
    let e = g
        .vault()
        .restore(&State::Now, &a, &Selection::All, &Silent)
        .expect_err("damaged");
    assert_eq!(e.kind(), Kind::Damaged);
    let text = e.to_string();
    assert!(text.contains(a.as_str()) && text.contains("b:"), "{text}");
    assert_eq!(g.content(&State::Now, "a"), "first changed");
    assert_eq!(g.content(&State::Now, "b"), "second changed");
    let e = g.vault().read(&State::Checkpoint(a.clone()), Path::new("b"), 9);
    assert_eq!(e.expect_err("damaged").kind(), Kind::Damaged);
    // the others can be gone back to
    let some = Selection::Paths(vec!["a".into()]);
    g.vault()
        .restore(&State::Now, &a, &some, &Silent)
        .expect("the rest");
    assert_eq!(g.content(&State::Now, "a"), "first");
}

#[test]
fn a_damaged_manifest_is_named_and_hides_no_other() {
    let g = Copies::new();
    g.write("f", "one");
    let a = g.take();
    g.write("f", "two");
    let b = g.take();
    let folder = |id: &respool::engine::CheckpointId| {
        let all = std::fs::read_dir(g.store().join("snaps")).expect("list");
        all.map(|e| e.expect("entry").path())
            .find(|p| p.to_string_lossy().ends_with(id.as_str()))
            .expect("its folder")
    };
    let path = folder(&a).join("manifest");
    let mut bytes = std::fs::read(&path).expect("read");
    bytes[60] ^= 1;
    std::fs::write(&path, &bytes).expect("damage");
    let e = g.vault().read(&State::Checkpoint(a.clone()), Path::new("f"), 9);
    assert_eq!(e.expect_err("damaged").kind(), Kind::Damaged);
    assert_eq!(g.content(&State::Checkpoint(b.clone()), "f"), "two");
    // nothing that it may need is removed
    let before = g.objects();
    g.vault().sweep().expect("sweep");
    assert_eq!(g.objects(), before);
    std::fs::remove_file(path).expect("remove");
    std::fs::write(folder(&b).join("meta.json"), b"\0\0\0").expect("damage");
    let health: Vec<Health> = g
        .vault()
        .checkpoints()
        .expect("list")
        .into_iter()
        .map(|c| c.health)
        .collect();
    assert_eq!(
        health,
        [
            Health::Damaged("its manifest is missing".into()),
            Health::Damaged("its record holds zero bytes only".into()),
        ]
    );
}

#[test]
fn what_crashes_left_is_swept() {
    let g = Copies::new();
    g.write("f", "one");
    let a = g.take();
    let kept = g.objects();
    std::fs::create_dir(g.store().join("snaps/.tmp-cp-0123456789")).expect("left");
    std::fs::write(g.store().join("objects/tmp-0123456789"), "half").expect("left");
    let folder = kept[0].parent().expect("a folder").to_owned();
    std::fs::write(folder.join("0".repeat(64)), "nobody's").expect("left");
    assert_eq!(g.vault().checkpoints().expect("list").len(), 1);
    g.vault().sweep().expect("sweep");
    assert_eq!(g.objects(), kept);
    assert!(!g.store().join("snaps/.tmp-cp-0123456789").exists());
    assert_eq!(g.content(&State::Checkpoint(a), "f"), "one");
}

/// A file that never holds still is an error that names it, and leaves nothing.
#[test]
fn a_file_that_keeps_changing_is_named() {
    let g = Copies::new();
    g.write("calm", "calm");
    g.write("busy", &"x".repeat(64 << 20));
    let stop = std::sync::atomic::AtomicBool::new(false);
    let path = g.at("busy");
    let taken = std::thread::scope(|s| {
        s.spawn(|| {
            let f = std::fs::OpenOptions::new().write(true).open(&path).expect("open");
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                std::os::unix::fs::FileExt::write_all_at(&f, b"y", 5).expect("write");
            }
        });
        let taken = g.vault().checkpoint(&manual());
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        taken
    });
    let e = taken.expect_err("it never holds still");
    assert!(e.to_string().contains("busy"), "{e}");
    assert!(g.vault().checkpoints().expect("list").is_empty());
    assert!(g.objects().is_empty(), "{:?}", g.objects());
    g.take();
    assert!(g.dir().left().is_empty());
}
