use std::path::Path;

use chrono::TimeDelta;

use super::*;
use crate::engine::{ChangeKind, CheckpointKind, How, What};
use crate::failure::{Explain, Kind};
use crate::progress::Silent;

fn take(v: &MemoryVault) -> CheckpointId {
    v.checkpoint(&NewCheckpoint::of(CheckpointKind::Manual, How::Own))
        .expect("checkpoint")
        .meta
        .id
}

fn rows(v: &MemoryVault, a: &CheckpointId, times: bool) -> Vec<(ChangeKind, String, Option<String>)> {
    let text = |p: &Path| p.to_string_lossy().into_owned();
    v.changes(&State::Checkpoint(a.clone()), &State::Now, times, &Silent)
        .expect("changes")
        .iter()
        .map(|c| (c.kind, text(&c.path), c.from.as_deref().map(text)))
        .collect()
}

fn row(kind: ChangeKind, path: &str, from: Option<&str>) -> (ChangeKind, String, Option<String>) {
    (kind, path.into(), from.map(Into::into))
}

#[test]
fn every_kind_of_change_has_its_row() {
    let v = MemoryVault::new();
    for f in [
        "keep",
        "edit",
        "gone",
        "meta",
        "type",
        "dir/a",
        "dir/b",
        "old/x",
        "old/sub/y",
    ] {
        v.write(f, f);
    }
    let a = take(&v);
    v.write("edit", "new");
    v.remove_path("gone");
    v.chmod("meta", 0o600);
    v.remove_path("type");
    v.symlink("type", "keep");
    v.remove_path("dir");
    v.write("made/c", "c");
    v.rename("old", "new");
    v.write("new/x", "inside a renamed folder");
    assert_eq!(
        rows(&v, &a, false),
        [
            row(ChangeKind::Deleted, "dir", None),
            row(ChangeKind::Deleted, "dir/a", None),
            row(ChangeKind::Deleted, "dir/b", None),
            row(ChangeKind::Modified, "edit", None),
            row(ChangeKind::Deleted, "gone", None),
            row(ChangeKind::Added, "made", None),
            row(ChangeKind::Added, "made/c", None),
            row(ChangeKind::Meta, "meta", None),
            row(ChangeKind::Renamed, "new", Some("old")),
            row(ChangeKind::Modified, "new/x", Some("old/x")),
            row(ChangeKind::Type, "type", None),
        ]
    );
}

#[test]
fn a_rename_over_another_file_tells_both() {
    let v = MemoryVault::new();
    v.write("a", "1");
    v.write("b", "2");
    let before = take(&v);
    v.rename("a", "b");
    assert_eq!(
        rows(&v, &before, false),
        [
            row(ChangeKind::Deleted, "b", None),
            row(ChangeKind::Renamed, "b", Some("a"))
        ]
    );
}

#[test]
fn times_are_told_only_if_asked_for_and_never_of_folders() {
    let v = MemoryVault::new();
    v.write("d/f", "x");
    let a = take(&v);
    v.write("d/f", "x");
    v.edit("d", |n| n.mtime += TimeDelta::seconds(9));
    assert_eq!(rows(&v, &a, false), []);
    assert_eq!(rows(&v, &a, true), [row(ChangeKind::Meta, "d/f", None)]);
    let all = v
        .changes(&State::Checkpoint(a), &State::Now, true, &Silent)
        .expect("changes");
    assert_eq!(all[0].what, [What::Time]);
}

#[test]
fn restore_brings_back_every_attribute_and_verify_says_so() {
    let v = MemoryVault::new();
    v.write("f", "one");
    v.write("d/g", "g");
    v.chmod("f", 0o755);
    let target = take(&v);
    let tree = v.tree();
    v.write("f", "two");
    v.rename("d", "e");
    v.write("extra", "x");
    v.edit("e/g", |n| n.uid = 0);
    assert_eq!(
        v.verify(&target, &Selection::All, &Silent).expect("verify").len(),
        8
    );
    let safety = take(&v);
    let done = v
        .restore(
            &State::Checkpoint(safety.clone()),
            &target,
            &Selection::All,
            &Silent,
        )
        .expect("restore");
    assert_eq!(done.changed, 5, "root, f, d, g, extra");
    assert_eq!(v.tree(), tree);
    assert_eq!(
        v.verify(&target, &Selection::All, &Silent).expect("verify"),
        vec![]
    );
    let safety_tree = v.tree_of(&safety).expect("kept");
    let again = take(&v);
    v.restore(
        &State::Checkpoint(again.clone()),
        &safety,
        &Selection::All,
        &Silent,
    )
    .expect("undo");
    assert_eq!(v.tree(), safety_tree);
}

#[test]
fn selected_paths_are_restored_and_nothing_else() {
    let v = MemoryVault::new();
    v.write("a/f", "one");
    v.write("b/g", "one");
    v.write("moved", "same file");
    let target = take(&v);
    v.remove_path("a");
    v.write("b/g", "two");
    v.write("b/new", "x");
    v.rename("moved", "elsewhere");
    let safety = take(&v);
    let selection = Selection::Paths(vec!["a/f".into(), "b/new".into(), "moved".into()]);
    v.restore(&State::Checkpoint(safety.clone()), &target, &selection, &Silent)
        .expect("restore");
    let now = v.tree();
    let text = |p: &str| match now.get(Path::new(p)).map(|n| n.body.clone()) {
        Some(Body::File(b)) => Some(String::from_utf8_lossy(&b).into_owned()),
        _ => None,
    };
    assert_eq!(text("a/f").as_deref(), Some("one"));
    assert_eq!(text("b/g").as_deref(), Some("two"));
    assert_eq!(text("b/new"), None);
    assert_eq!(
        (text("moved"), text("elsewhere")),
        (Some("same file".into()), Some("same file".into()))
    );
    assert_ne!(
        now.get(Path::new("moved")).map(|n| n.inode),
        now.get(Path::new("elsewhere")).map(|n| n.inode)
    );
    assert_eq!(v.verify(&target, &selection, &Silent).expect("verify"), vec![]);
}

#[test]
fn failures_come_once_and_leave_what_they_say() {
    let v = MemoryVault::new();
    for i in 0..10 {
        v.write(format!("f{i}"), "one");
    }
    let target = take(&v);
    v.write("f0", "two");
    let safety = take(&v);
    v.fail_next(Op::Checkpoint);
    assert!(
        v.checkpoint(&NewCheckpoint::of(CheckpointKind::Manual, How::Own))
            .is_err()
    );
    v.fail_next(Op::Restore);
    let before = v.tree();
    assert!(
        v.restore(
            &State::Checkpoint(safety.clone()),
            &target,
            &Selection::All,
            &Silent
        )
        .is_err()
    );
    assert_eq!(v.tree(), before, "nothing was changed");
    v.fail_next(Op::RestoreHalfway);
    assert!(
        v.restore(
            &State::Checkpoint(safety.clone()),
            &target,
            &Selection::All,
            &Silent
        )
        .is_err()
    );
    assert_ne!(v.tree(), before);
    let e = v
        .restore(
            &State::Checkpoint(safety.clone()),
            &target,
            &Selection::All,
            &Silent,
        )
        .expect_err("another safety is needed");
    assert_eq!(e.kind(), Kind::Damaged);
    let again = take(&v);
    v.restore(
        &State::Checkpoint(again.clone()),
        &target,
        &Selection::All,
        &Silent,
    )
    .expect("finished");
    v.fail_next(Op::Verify);
    assert_eq!(
        v.verify(&target, &Selection::All, &Silent).expect("verify").len(),
        1
    );
    assert_eq!(
        v.verify(&target, &Selection::All, &Silent).expect("verify"),
        vec![]
    );
}

#[test]
fn records_order_health_and_removal() {
    let v = MemoryVault::new();
    let (one, two) = (take(&v), take(&v));
    assert_eq!(one.as_str(), "cp-0000000001");
    assert!(CheckpointId::looks_like(two.as_str()));
    v.label(&one, " x ").expect("label");
    v.pin(&one, true).expect("pin");
    let first = &v.checkpoints().expect("list")[0];
    assert_eq!(
        (first.meta.label.as_deref(), first.meta.pinned),
        (Some("x"), true)
    );
    let e = v
        .remove(&[two.clone(), one.clone()], &Silent)
        .expect_err("pinned");
    assert_eq!(
        (e.kind(), v.checkpoints().expect("list").len()),
        (Kind::Refused, 2)
    );
    v.set_health(&two, Health::Incomplete("its workspace is missing".into()));
    let e = v
        .entries(&State::Checkpoint(two.clone()), Path::new(""))
        .expect_err("damaged");
    assert_eq!(e.kind(), Kind::Damaged);
    v.remove(&[two], &Silent).expect("remove");
    assert_eq!(take(&v).as_str(), "cp-0000000003");
    assert_eq!(
        v.checkpoints()
            .expect("list")
            .iter()
            .map(|c| c.meta.seq)
            .collect::<Vec<_>>(),
        [1, 2]
    );
    let early = DateTime::from_timestamp(0, 0).expect("time");
    v.set_clock(early);
    take(&v);
    assert!(v.checkpoints().expect("list")[2].meta.clock_back);
}

#[test]
fn content_and_entries_follow_no_link() {
    let v = MemoryVault::new();
    v.write("d/f", "0123456789");
    v.symlink("l", "d");
    v.special("p", FileType::Fifo);
    let read = |p: &str| v.read(&State::Now, Path::new(p), 4);
    assert_eq!(
        read("d/f").expect("file"),
        Content::File {
            bytes: b"0123".to_vec(),
            size: 10
        }
    );
    assert_eq!(read("l").expect("link"), Content::Link("d".into()));
    assert_eq!(read("p").expect("fifo"), Content::Other(FileType::Fifo));
    for bad in ["l/f", "/d/f", "../d/f", "none"] {
        assert_eq!(read(bad).expect_err(bad).kind(), Kind::NotFound);
    }
    let names: Vec<_> = v
        .entries(&State::Now, Path::new("."))
        .expect("entries")
        .into_iter()
        .map(|e| e.name)
        .collect();
    assert_eq!(names, [Path::new("d"), Path::new("l"), Path::new("p")]);
    assert!(v.entries(&State::Now, Path::new("l")).is_err());
}
