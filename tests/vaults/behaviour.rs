use std::path::{Path, PathBuf};

use respool::engine::{
    ChangeKind, CheckpointId, CheckpointKind, Content, FileType, Health, How, NewCheckpoint, Selection,
    State, What,
};
use respool::failure::{Explain, Kind};
use respool::progress::{CancelFlag, Progress, Silent};

use crate::ground::{Ground, manual, row};

pub fn checkpoints_are_listed_in_order_with_all_that_was_said(g: &impl Ground) {
    let mut new = NewCheckpoint::of(CheckpointKind::Message, How::Hook);
    new.conversation = Some("conv\u{1b}[31m".into());
    new.message = Some("13".into());
    new.text_hash = Some("0123456789abcdef".into());
    new.label = Some("  before the change ".into());
    new.late = Some(3);
    new.operation = Some("op-0123456789".into());
    g.write("f", "one");
    let one = g.vault().checkpoint(&new).expect("one");
    g.write("f", "two");
    let two = g.vault().checkpoint(&manual()).expect("two");
    assert_eq!((one.meta.seq, two.meta.seq), (1, 2));
    assert_eq!(one.meta.label.as_deref(), Some("before the change"));
    assert_eq!(one.meta.message.as_deref(), Some("13"));
    let listed = g.vault().checkpoints().expect("list");
    assert_eq!(listed, [one, two]);
    assert!(listed.iter().all(|c| c.health == Health::Ok));
}

pub fn labels_pins_and_lateness_are_kept(g: &impl Ground) {
    let id = g.take();
    let v = g.vault();
    v.label(&id, &"\u{e9}".repeat(500)).expect("label");
    v.pin(&id, true).expect("pin");
    v.mark_late(&id, 7).expect("late");
    let meta = v.checkpoints().expect("list").remove(0).meta;
    assert_eq!(meta.label.map(|l| l.chars().count()), Some(200));
    assert_eq!((meta.pinned, meta.late), (true, Some(7)));
    v.label(&id, "  ").expect("label");
    v.pin(&id, false).expect("unpin");
    let meta = v.checkpoints().expect("list").remove(0).meta;
    assert_eq!((meta.label, meta.pinned), (None, false));
    let none = CheckpointId("cp-0000000000".into());
    assert_eq!(v.label(&none, "x").expect_err("none").kind(), Kind::NotFound);
}

pub fn every_kind_of_change_has_its_row(g: &impl Ground) {
    for f in ["keep", "edit", "gone", "meta", "type", "dir/a", "dir/b"] {
        g.write(f, f);
    }
    let a = g.take();
    g.write("edit", "edited");
    g.remove("gone");
    g.chmod("meta", 0o600);
    g.remove("type");
    g.symlink("type", "keep");
    g.remove("dir");
    g.write("made/c", "c");
    let want = [
        row(ChangeKind::Deleted, "dir", None),
        row(ChangeKind::Deleted, "dir/a", None),
        row(ChangeKind::Deleted, "dir/b", None),
        row(ChangeKind::Modified, "edit", None),
        row(ChangeKind::Deleted, "gone", None),
        row(ChangeKind::Added, "made", None),
        row(ChangeKind::Added, "made/c", None),
        row(ChangeKind::Meta, "meta", None),
        row(ChangeKind::Type, "type", None),
    ];
    assert_eq!(g.rows(&a, &State::Now), want);
    let b = State::Checkpoint(g.take());
    assert_eq!(g.rows(&a, &b), want);
    let changes = g.changes(&a, &b);
    let of = |path: &str| changes.iter().find(|c| c.path == Path::new(path)).expect("a row");
    assert_eq!(of("meta").what, [What::Mode]);
    assert_eq!((of("edit").size_a, of("edit").size_b), (Some(4), Some(6)));
    assert_eq!(of("type").type_b, Some(FileType::Link));
    assert!(g.rows(&a, &State::Checkpoint(a.clone())).is_empty());
}

pub fn a_renamed_folder_is_one_row(g: &impl Ground) {
    for f in ["old/x", "old/sub/y", "keep/z"] {
        g.write(f, f);
    }
    let a = g.take();
    g.rename("old", "new");
    g.write("new/x", "inside a renamed folder");
    g.rename("keep/z", "keep/w");
    assert_eq!(
        g.rows(&a, &State::Now),
        [
            row(ChangeKind::Renamed, "keep/w", Some("keep/z")),
            row(ChangeKind::Renamed, "new", Some("old")),
            row(ChangeKind::Modified, "new/x", Some("old/x")),
        ]
    );
}

pub fn contents_and_entries_of_each_state(g: &impl Ground) {
    g.write("dir/b", "one");
    g.write("dir/a", "0123456789");
    g.symlink("dir/l", "../keep");
    let a = State::Checkpoint(g.take());
    g.write("dir/b", "two!");
    g.remove("dir/a");
    assert_eq!(g.content(&a, "dir/b"), "one");
    assert_eq!(g.content(&State::Now, "dir/b"), "two!");
    let some = g.vault().read(&a, Path::new("dir/a"), 4).expect("read");
    assert_eq!(
        some,
        Content::File {
            bytes: b"0123".to_vec(),
            size: 10
        }
    );
    let link = g.vault().read(&a, Path::new("dir/l"), 4).expect("link");
    assert_eq!(link, Content::Link("../keep".into()));
    let folder = g.vault().read(&a, Path::new("dir"), 4).expect("folder");
    assert_eq!(folder, Content::Other(FileType::Dir));
    let names = |state: &State| -> Vec<PathBuf> {
        let all = g.vault().entries(state, Path::new("dir")).expect("entries");
        all.into_iter().map(|e| e.name).collect()
    };
    assert_eq!(names(&a), ["a", "b", "l"].map(PathBuf::from));
    assert_eq!(names(&State::Now), ["b", "l"].map(PathBuf::from));
}

pub fn what_is_not_there_is_not_found(g: &impl Ground) {
    g.write("f", "f");
    let a = State::Checkpoint(g.take());
    for path in ["none", "f/x", "../f", "none/../f"] {
        for state in [&a, &State::Now] {
            let e = g.vault().read(state, Path::new(path), 1).expect_err(path);
            assert_eq!(e.kind(), Kind::NotFound, "{path}: {e}");
        }
    }
    let e = g.vault().entries(&a, Path::new("f")).expect_err("no folder");
    assert_eq!(e.kind(), Kind::NotFound);
    let none = CheckpointId("cp-0000000000".into());
    let all = Selection::All;
    let e = g.vault().restore(&State::Now, &none, &all, &Silent);
    assert_eq!(e.expect_err("none").kind(), Kind::NotFound);
    let e = g.vault().remove(&[none], &Silent).expect_err("none");
    assert_eq!(e.kind(), Kind::NotFound);
}

pub fn restore_brings_all_back_and_undo_too(g: &impl Ground) {
    for f in [
        "keep", "edit", "gone", "type", "dir/a", "old/x", "swap/1", "swap/2",
    ] {
        g.write(f, f);
    }
    let a = g.take();
    g.write("edit", "edited");
    g.remove("gone");
    g.remove("type");
    g.symlink("type", "keep");
    g.remove("dir");
    g.write("dir", "a file now");
    g.write("made/c", "c");
    g.rename("old", "new");
    g.rename("swap/1", "swap/t");
    g.rename("swap/2", "swap/1");
    g.rename("swap/t", "swap/2");
    let before = g.rows(&a, &State::Now);
    let safety = g.back(&a, &Selection::All);
    assert!(g.rows(&a, &State::Now).is_empty());
    g.back(&safety, &Selection::All);
    assert!(g.rows(&safety, &State::Now).is_empty());
    assert_eq!(g.rows(&a, &State::Now).len(), before.len());
    // as after a kill: the present state is looked at anew
    g.write("edit", "once more");
    g.vault()
        .restore(&State::Now, &a, &Selection::All, &Silent)
        .expect("restore");
    assert!(g.rows(&a, &State::Now).is_empty());
}

pub fn restore_of_a_selection_leaves_the_rest(g: &impl Ground) {
    for f in ["a/x", "a/y", "b/x", "top"] {
        g.write(f, f);
    }
    let a = g.take();
    for f in ["a/x", "a/y", "b/x", "top"] {
        g.write(f, "changed");
    }
    g.write("a/made", "made");
    g.write("b/made", "made");
    let some = Selection::Paths(vec!["a".into(), "b/made".into(), "b/none".into()]);
    g.back(&a, &some);
    assert_eq!(
        g.rows(&a, &State::Now),
        [
            row(ChangeKind::Modified, "b/x", None),
            row(ChangeKind::Modified, "top", None),
        ]
    );
    g.remove("b");
    g.back(&a, &Selection::Paths(vec!["b/x".into()]));
    assert_eq!(g.content(&State::Now, "b/x"), "b/x");
}

pub fn pinned_ones_are_not_removed_and_the_rest_stays_whole(g: &impl Ground) {
    let v = g.vault();
    let mut ids = Vec::new();
    for text in ["one", "two", "three"] {
        g.write("f", text);
        ids.push(g.take());
    }
    v.pin(&ids[0], true).expect("pin");
    let e = v.remove(&ids[..2], &Silent).expect_err("pinned");
    assert_eq!(e.kind(), Kind::Refused);
    assert_eq!(v.checkpoints().expect("list").len(), 3, "none is removed");
    v.remove(&ids[1..2], &Silent).expect("remove");
    v.sweep().expect("sweep");
    for (id, text) in [(&ids[0], "one"), (&ids[2], "three")] {
        assert_eq!(g.content(&State::Checkpoint(id.clone()), "f"), text);
    }
    let gone = State::Checkpoint(ids[1].clone());
    assert_eq!(
        v.read(&gone, Path::new("f"), 1).expect_err("gone").kind(),
        Kind::NotFound
    );
    g.write("f", "four");
    assert_eq!(v.checkpoint(&manual()).expect("next").meta.seq, 4);
}

pub fn verify_names_what_differs(g: &impl Ground) {
    for f in ["same", "edit", "gone", "meta", "dir/x"] {
        g.write(f, f);
    }
    let a = g.take();
    g.write("edit", "tide");
    g.remove("gone");
    g.chmod("meta", 0o600);
    g.write("dir/new", "new");
    let differs = g.vault().verify(&a, &Selection::All, &Silent).expect("verify");
    let of = |path: &str| {
        let found = differs.iter().find(|d| d.path == Path::new(path));
        found
            .unwrap_or_else(|| panic!("{path}: {differs:?}"))
            .what
            .clone()
    };
    assert!(of("edit").contains("content differs"), "{}", of("edit"));
    assert!(of("gone").contains("is missing"));
    assert!(of("meta").contains("mode 600"));
    assert!(of("dir/new").contains("should not be there"));
    assert!(differs.iter().all(|d| d.path != Path::new("same")));
    let some = Selection::Paths(vec!["same".into(), "dir/x".into(), "none".into()]);
    let differs = g.vault().verify(&a, &some, &Silent).expect("verify");
    assert!(differs.is_empty(), "{differs:?}");
}

struct Cancelled;

impl Progress for Cancelled {
    fn step(&self, _what: &str, _done: u64, _total: u64) {}
    fn cancelled(&self) -> bool {
        true
    }
}

pub fn cancelling_changes_nothing(g: &impl Ground) {
    g.write("f", "one");
    let a = g.take();
    g.write("f", "two");
    let done = g.vault().restore(&State::Now, &a, &Selection::All, &Cancelled);
    assert_eq!(done.expect_err("cancelled").kind(), Kind::Cancelled);
    let list = g
        .vault()
        .changes(&State::Checkpoint(a.clone()), &State::Now, false, &Cancelled);
    assert_eq!(list.expect_err("cancelled").kind(), Kind::Cancelled);
    let removed = g.vault().remove(&[a], &Cancelled);
    assert_eq!(removed.expect_err("cancelled").kind(), Kind::Cancelled);
    assert_eq!(g.content(&State::Now, "f"), "two");
    assert_eq!(g.vault().checkpoints().expect("list").len(), 1);
    let flag = CancelFlag::new();
    assert!(!flag.is_set());
}
