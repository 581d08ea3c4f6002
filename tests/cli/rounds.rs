//! Going back and forth: nothing more, nothing less than what was.

use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;

use crate::lab::Lab;
use crate::manifest::Manifest;

pub fn mode(path: &Path, mode: u32) {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).expect("chmod");
}

/// P001 P003 P004: what shell commands made, changed and removed comes back, for each message.
#[test]
fn p001_p003_p004_every_message_can_be_gone_back_to() {
    let lab = Lab::new(|ws| std::fs::write(ws.join("x.py"), "a\n").expect("write"));
    let mut states = Vec::new();
    for n in 1..=4 {
        lab.message(n);
        states.push(lab.manifest());
        match n {
            1 => {
                lab.write("x.py", "b\n");
                lab.write("y.py", "made\n");
                lab.write("t.txt", "v1");
            }
            2 => {
                std::fs::remove_file(lab.at("y.py")).expect("remove");
                lab.write("t.txt", "v2");
            }
            _ => lab.write("t.txt", format!("v{n}")),
        }
    }
    let list = lab.ok(&["changes", "m1", "now"]);
    assert_eq!(list.as_array().map(Vec::len), Some(2), "{list}");
    for n in [3, 2, 4, 1] {
        let done = lab.ok(&["--yes", "rewind", &n.to_string(), "--files"]);
        assert_eq!(
            (&done["verified"], &done["chat"]),
            (&true.into(), &"kept".into()),
            "{done}"
        );
        states[n - 1].assert_same(&lab.manifest(), &format!("message {n}"));
    }
}

/// P005: what `.gitignore` names, and what is large, is no exception.
#[test]
fn p005_ignored_and_large_files_come_back() {
    let lab = Lab::new(|ws| {
        std::fs::create_dir(ws.join("dist")).expect("mkdir");
        std::fs::write(ws.join(".gitignore"), "*.log\ndist/\n").expect("write");
        std::fs::write(ws.join("run.log"), "long log\n".repeat(1000)).expect("write");
        std::fs::write(ws.join("dist/app.js"), "js").expect("write");
        std::fs::write(ws.join("data.bin"), vec![7u8; 5 << 20]).expect("write");
    });
    lab.message(1);
    let before = lab.manifest();
    lab.write("run.log", "");
    std::fs::remove_dir_all(lab.at("dist")).expect("remove");
    lab.write("data.bin", vec![8u8; 5 << 20]);
    lab.ok(&["--yes", "rewind", "1"]);
    before.assert_same(&lab.manifest(), "the tree");
}

pub fn rich(ws: &Path) {
    for i in 0..60 {
        let f = ws.join(format!("d{}/f{i}", i % 7));
        std::fs::create_dir_all(f.parent().expect("parent")).expect("mkdir");
        std::fs::write(&f, format!("content {i}\n").repeat(i + 1)).expect("write");
        let old =
            std::time::SystemTime::UNIX_EPOCH + std::time::Duration::new(981_173_106, 789_012_345 + i as u32);
        std::fs::File::open(&f)
            .and_then(|f| f.set_modified(old))
            .expect("utime");
    }
    for (name, bits) in [("w", 0o666), ("r", 0o444), ("sgid", 0o2755), ("suid", 0o4755)] {
        std::fs::write(ws.join(name), name).expect("write");
        if name == "sgid" {
            std::os::unix::fs::chown(ws.join(name), Some(1234), Some(4242)).expect("chown");
        }
        mode(&ws.join(name), bits);
    }
    std::fs::create_dir(ws.join("sticky")).expect("mkdir");
    mode(&ws.join("sticky"), 0o1777);
    symlink("w", ws.join("s")).expect("link");
    symlink("../nowhere", ws.join("dangling")).expect("link");
    std::fs::hard_link(ws.join("w"), ws.join("hard")).expect("hard link");
    let flags = rustix::fs::XattrFlags::empty();
    rustix::fs::setxattr(ws.join("w"), "user.note", b"hello", flags).expect("xattr");
}

pub fn wreck(ws: &Path) {
    std::fs::remove_dir_all(ws.join("d0")).expect("remove");
    std::fs::write(ws.join("d1/f1"), "changed").expect("write");
    std::fs::rename(ws.join("d2"), ws.join("moved")).expect("rename");
    for name in ["w", "r", "sgid", "suid", "sticky"] {
        mode(&ws.join(name), 0o700);
    }
    std::os::unix::fs::chown(ws.join("sgid"), Some(0), Some(0)).expect("chown");
    std::fs::remove_file(ws.join("s")).expect("remove");
    std::fs::create_dir(ws.join("s")).expect("mkdir");
    std::fs::remove_file(ws.join("hard")).expect("remove");
    std::fs::write(ws.join("hard"), "alone").expect("write");
    rustix::fs::setxattr(ws.join("w"), "user.note", b"bye", rustix::fs::XattrFlags::empty()).expect("xattr");
    std::fs::write(ws.join("extra.txt"), "x").expect("write");
    std::fs::create_dir_all(ws.join("newdir/deep")).expect("mkdir");
    std::fs::write(ws.join("newdir/deep/f"), "x").expect("write");
}

/// P020 P028 P044 P056 P066: there and back five times, every attribute, no leftovers; the words come from
/// a check.
#[test]
fn p020_p028_p044_p056_p066_rewind_undo_redo_again_and_again() {
    let lab = Lab::new(rich);
    lab.message(1);
    let before = lab.manifest();
    wreck(lab.ws());
    let after = lab.manifest();
    let done = lab.ok(&["--yes", "rewind", "1"]);
    assert_eq!(done["verified"], true);
    before.assert_same(&lab.manifest(), "rewind");
    for round in 0..5 {
        let undone = lab.ok(&["--yes", "undo"]);
        assert_eq!(undone["verified"], true);
        after.assert_same(&lab.manifest(), &format!("undo {round}"));
        let redone = lab.ok(&["--yes", "redo"]);
        assert_eq!(redone["verified"], true);
        before.assert_same(&lab.manifest(), &format!("redo {round}"));
    }
    let log = lab.log();
    assert_eq!(log.len(), 1 + 1 + 10, "track, rewind, five of each: {log:?}");
    assert_eq!(log[0], ("redo".into(), "done".into()));
    assert!(
        log[1..].iter().all(|(k, s)| (k == "track") == (s == "done")),
        "{log:?}"
    );
    assert_eq!(lab.leftovers(), Vec::<String>::new());
    lab.fails(4, &["--yes", "redo"]);
}

/// P022 P042: a checkpoint that is gone or damaged is named, nothing is touched, no other is taken for it.
#[test]
fn p022_p042_a_missing_or_damaged_checkpoint_is_named() {
    let lab = Lab::new(|ws| std::fs::write(ws.join("f"), "1").expect("write"));
    let ids: Vec<String> = (1..=3)
        .map(|n| {
            lab.write("f", n.to_string());
            lab.message(n)
        })
        .collect();
    lab.write("f", "now");
    let before = lab.manifest();
    let folder = |id: &str| {
        let snaps = lab.sandboxes()[0].join("snaps");
        let found = std::fs::read_dir(snaps).expect("snaps").flatten();
        let mut found = found.filter(|e| e.file_name().to_string_lossy().ends_with(id));
        found.next().expect("the checkpoint").path()
    };
    let status = std::process::Command::new("btrfs")
        .args(["subvolume", "delete"])
        .arg(folder(&ids[1]).join("workspace"))
        .stdout(std::process::Stdio::null())
        .status();
    assert!(status.expect("btrfs").success());
    let said = lab.fails(5, &["--yes", "rewind", "2"]);
    assert!(said.contains("message 2"), "{said}");
    // its record is unreadable: it is not message 3's any more, and no other is taken instead
    let name = "user.respool.checkpoint";
    rustix::fs::setxattr(folder(&ids[2]), name, b"\0\0", rustix::fs::XattrFlags::empty()).expect("xattr");
    let a = lab.run(&["--yes", "rewind", "3"]);
    assert!(matches!(a.code, Some(4 | 5)), "{:?} {}", a.code, a.err);
    let said = lab.fails(5, &["--yes", "rewind", &ids[2]]);
    assert!(said.contains(&ids[2]), "{said}");
    before.assert_same(&lab.manifest(), "nothing touched");
    lab.ok(&["--yes", "rewind", "1"]);
    assert_eq!(lab.read("f"), "1");
}

/// P024: each checkpoint is its own state.
#[test]
fn p024_five_checkpoints_are_five_states() {
    let lab = Lab::new(|_| {});
    let mut ids = Vec::new();
    for i in 0..5 {
        lab.write(format!("f{i}"), i.to_string());
        ids.push(lab.checkpoint());
    }
    for i in 1..5 {
        let list = lab.ok(&["-s", lab.ws_text(), "changes", &ids[i - 1], &ids[i]]);
        let paths: Vec<&str> = list
            .as_array()
            .expect("rows")
            .iter()
            .filter_map(|r| r["path"].as_str())
            .collect();
        assert_eq!(paths, [format!("f{i}")]);
    }
    // the newest is not the oldest, nor any other
    for (n, id) in ids.iter().enumerate().rev() {
        lab.ok(&["-s", lab.ws_text(), "--yes", "rewind", id, "--files"]);
        let there: Vec<bool> = (0..5).map(|i| lab.at(format!("f{i}")).exists()).collect();
        assert_eq!(there, (0..5).map(|i| i <= n).collect::<Vec<_>>(), "{id}");
    }
    ids.sort();
    ids.dedup();
    assert_eq!(ids.len(), 5);
}

/// P059: what does not differ keeps its inode and its times to the nanosecond.
#[test]
fn p059_unchanged_files_keep_inode_and_times() {
    let lab = Lab::new(rich);
    lab.message(1);
    let facts = |lab: &Lab| -> Vec<(u64, i64, i64, i64, i64)> {
        (1..60)
            .map(|i| std::fs::metadata(lab.at(format!("d{}/f{i}", i % 7))).expect("stat"))
            .map(|m| (m.ino(), m.mtime(), m.mtime_nsec(), m.ctime(), m.ctime_nsec()))
            .collect()
    };
    let before = facts(&lab);
    lab.write("d0/f0", "changed");
    lab.ok(&["--yes", "rewind", "1", "--path", "d0/f0"]);
    lab.write("d0/f0", "changed");
    lab.ok(&["--yes", "rewind", "1"]);
    assert_eq!(before, facts(&lab));
}

/// P061: a change of mode, owner or attribute alone is listed; of time alone only with `--times`.
#[test]
fn p061_changes_of_attributes_alone_are_listed() {
    let lab = Lab::new(|ws| {
        for n in ["m", "o", "x", "t"] {
            std::fs::write(ws.join(n), n).expect("write");
            mode(&ws.join(n), 0o644);
        }
    });
    lab.message(1);
    mode(&lab.at("m"), 0o755);
    std::os::unix::fs::chown(lab.at("o"), Some(1000), None).expect("chown");
    rustix::fs::setxattr(lab.at("x"), "user.a", b"1", rustix::fs::XattrFlags::empty()).expect("xattr");
    let then = std::time::SystemTime::UNIX_EPOCH;
    std::fs::File::open(lab.at("t"))
        .and_then(|f| f.set_modified(then))
        .expect("utime");
    let rows = |args: &[&str]| -> Vec<String> {
        let list = lab.ok(args);
        let row =
            |r: &serde_json::Value| format!("{} {} {}", r["path"], r["kind"], r["what"]).replace('"', "");
        list.as_array().expect("rows").iter().map(row).collect()
    };
    let short = ["m meta [mode]", "o meta [owner]", "x meta [xattr]"];
    assert_eq!(rows(&["changes", "m1", "now"]), short);
    let all = [
        "m meta [mode]",
        "o meta [owner]",
        "t meta [time]",
        "x meta [xattr]",
    ];
    assert_eq!(rows(&["changes", "m1", "now", "--times"]), all);
    lab.ok(&["--yes", "rewind", "1"]);
    assert!(rows(&["changes", "m1", "now", "--times"]).is_empty());
}

/// P093: one byte changed, size and time as before.
#[test]
fn p093_a_change_behind_the_same_size_and_time_is_found() {
    let lab = Lab::new(|ws| std::fs::write(ws.join("f"), "aaaa").expect("write"));
    lab.message(1);
    let before = lab.manifest();
    let time = std::fs::metadata(lab.at("f"))
        .and_then(|m| m.modified())
        .expect("time");
    lab.write("f", "aaab");
    std::fs::File::open(lab.at("f"))
        .and_then(|f| f.set_modified(time))
        .expect("utime");
    let list = lab.ok(&["changes", "m1", "now"]);
    assert_eq!(
        (&list[0]["path"], &list[0]["kind"]),
        (&"f".into(), &"modified".into())
    );
    lab.ok(&["--yes", "rewind", "1"]);
    before.assert_same(&lab.manifest(), "the tree");
}

/// Track and untrack lose nothing: the same path, every attribute.
#[test]
fn track_and_untrack_lose_nothing() {
    let lab = Lab::plain(rich);
    let before = lab.manifest();
    lab.track();
    before.assert_same(&lab.manifest(), "tracked");
    assert_eq!(
        std::fs::metadata(lab.ws()).expect("stat").ino(),
        256,
        "the root of a subvolume"
    );
    wreck(lab.ws());
    let wrecked = lab.manifest();
    lab.ok(&["--yes", "untrack", lab.ws_text()]);
    wrecked.assert_same(&Manifest::of(lab.ws()), "untracked");
    assert_ne!(std::fs::metadata(lab.ws()).expect("stat").ino(), 256);
    assert_eq!(lab.leftovers(), Vec::<String>::new());
}
