//! All or nothing: paths that cannot be written, a full disk under the state, repositories that are damaged or
//! killed in the middle.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::mount::{MountFlags, UnmountFlags, mount, mount_bind, mount_remount, unmount};
use serde_json::json;

use crate::copies::Plain;
use crate::lab::{Lab, error_text};
use crate::repo::{four, git, git_fine, git_names, turn};

fn both(fill: impl Fn(&Path)) -> [(&'static str, Lab); 2] {
    [("btrfs", Lab::new(&fill)), ("copy", Lab::copies(&fill))]
}

fn chattr(flag: &str, path: &Path) {
    let status = Command::new("chattr").arg(flag).arg(path).status();
    assert!(status.expect("chattr").success(), "{flag} {}", path.display());
}

/// Unmounts when dropped.
struct ReadOnly(PathBuf);

impl ReadOnly {
    /// A read-only bind of a path over itself.
    fn over(path: PathBuf) -> Self {
        mount_bind(&path, &path).expect("bind");
        mount_remount(&path, MountFlags::BIND | MountFlags::RDONLY, "").expect("read-only");
        Self(path)
    }
}

impl Drop for ReadOnly {
    fn drop(&mut self) {
        let _gone = unmount(&self.0, UnmountFlags::DETACH);
    }
}

fn zone(ws: &Path) {
    for i in 0..20 {
        std::fs::write(ws.join(format!("f{i}")), "old").expect("write");
    }
    std::fs::create_dir(ws.join("zone")).expect("folder");
    std::fs::write(ws.join("zone/locked"), "old").expect("write");
}

fn agent(lab: &Lab) {
    for i in 0..20 {
        lab.write(format!("f{i}"), "new");
    }
    lab.write("zone/locked", "new");
    lab.write("zone/extra", "new");
}

/// P038: an immutable file is no obstacle for root: it goes back with the others, and is as immutable as it was at
/// the checkpoint.
#[test]
fn p038_immutable_files_go_back_as_root() {
    for (vault, lab) in both(zone) {
        lab.message(1);
        agent(&lab);
        chattr("+i", &lab.at("zone/locked"));
        chattr("+a", &lab.at("f3"));
        chattr("+i", &lab.at("zone"));
        let store = lab.store();
        let a = lab.run(&[
            "-c",
            store.to_str().expect("UTF-8"),
            "--yes",
            "rewind",
            "1",
            "--files",
        ]);
        for p in ["zone", "zone/locked", "f3"] {
            if lab.at(p).exists() {
                chattr("-ia", &lab.at(p));
            }
        }
        assert_eq!(a.code, Some(0), "{vault}: {} {}", a.text(), a.err);
        assert_eq!(a.json()["verified"], true, "{vault}");
        assert_eq!(
            (
                lab.read("zone/locked"),
                lab.read("f3"),
                lab.at("zone/extra").exists()
            ),
            ("old".into(), "old".into(), false),
            "{vault}"
        );
    }
}

/// P038: without root it cannot: nothing at all is changed, the path is named, the exit code says so.
#[test]
fn p038_immutable_files_stop_a_rewind_without_root_before_it_begins() {
    for locked in ["project/f", "project/ro"] {
        let user = Plain::new();
        let ws = user.ws();
        let ws = ws.to_str().expect("UTF-8");
        user.ok(&["--yes", "track", ws, "--vault", "copy"]);
        let id = user.ok(&["-s", ws, "checkpoint"])["checkpoint"]
            .as_str()
            .expect("an id")
            .to_owned();
        user.shell(
            "cd home/project; echo two > f; echo x > another; chmod 755 ro; rm -f ro/secret",
            false,
        );
        chattr("+i", &user.ws().with_file_name("").join(locked));
        let before = user.manifest();
        let (code, doc) = user.run(&["-s", ws, "--yes", "rewind", &id, "--files"]);
        let now = user.manifest();
        chattr("-i", &user.ws().with_file_name("").join(locked));
        let code = code.expect("a code");
        assert!(matches!(code, 1 | 3), "{locked}: {doc}");
        let name = locked.rsplit('/').next().expect("a name");
        assert!(error_text(&doc, code).contains(name), "{locked}: {doc}");
        before.assert_same(&now, locked);
        // and with the flag gone it goes
        user.ok(&["-s", ws, "--yes", "rewind", &id, "--files"]);
    }
}

/// P038: a read-only bind over a file or a folder. On the copy vault it stops the rewind as a whole, the path is
/// named; on Btrfs the file system below it can be written: all goes back.
#[test]
fn p038_a_read_only_bind_is_all_or_nothing() {
    for over in ["zone/locked", "zone"] {
        for (vault, lab) in both(zone) {
            let id = lab.message(1);
            let target = lab.manifest();
            agent(&lab);
            let before = lab.manifest();
            let bind = ReadOnly::over(lab.at(over));
            let a = lab.run(&["--yes", "rewind", "1", "--files"]);
            let timeline = lab.ok(&["timeline", lab.store().to_str().expect("UTF-8")]);
            assert_eq!(
                timeline["rows"].as_array().map(Vec::len),
                Some(1),
                "the conversation is not cut"
            );
            drop(bind);
            let now = lab.manifest();
            if a.code == Some(0) {
                assert_eq!(a.json()["verified"], true, "{vault} {over}");
                target.assert_same(&now, &format!("{vault} {over}: it says that all is done"));
            } else {
                let code = a.code.expect("a code");
                assert!(matches!(code, 1 | 3), "{vault} {over}: {}", a.text());
                assert!(
                    error_text(&a.json(), code).contains("zone"),
                    "{vault}: {}",
                    a.text()
                );
                before.assert_same(&now, &format!("{vault} {over}: all or nothing"));
            }
            assert!(
                lab.log().iter().all(|(_, s)| s != "interrupted"),
                "{vault} {over}"
            );
            lab.ok(&["--yes", "rewind", &id, "--files"]);
            target.assert_same(&lab.manifest(), &format!("{vault} {over}: without the bind"));
        }
    }
}

/// All files of a folder with their contents, without mounts and without locks (which name who holds them).
fn files(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut out = BTreeMap::new();
    let mut todo = vec![folder.to_owned()];
    while let Some(folder) = todo.pop() {
        for entry in std::fs::read_dir(&folder).expect("list") {
            let entry = entry.expect("entry");
            let kind = entry.file_type().expect("type");
            if kind.is_dir() && entry.file_name() != "mnt" {
                todo.push(entry.path());
            } else if kind.is_file() && !["full", "lock"].iter().any(|n| entry.file_name() == *n) {
                out.insert(entry.path(), std::fs::read(entry.path()).expect("read"));
            }
        }
    }
    out
}

/// A small file system over the state folder; gone when dropped.
struct Small(PathBuf);

impl Small {
    fn at(state: PathBuf) -> Self {
        std::fs::create_dir_all(&state).expect("state");
        mount("none", &state, "tmpfs", MountFlags::empty(), c"size=70M").expect("mount");
        Self(state)
    }
    /// Takes its last free byte.
    fn fill(&self) {
        use std::io::Write;
        let mut file = std::fs::File::create(self.0.join("full")).expect("create");
        for block in [vec![7u8; 1 << 20], vec![7u8; 4096], vec![7u8; 1]] {
            while file.write_all(&block).is_ok() {}
        }
        let space = rustix::fs::statvfs(&self.0).expect("statvfs");
        assert_eq!(space.f_bavail, 0, "it is full");
    }
    fn free(&self) {
        std::fs::remove_file(self.0.join("full")).expect("remove");
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let _gone = unmount(&self.0, UnmountFlags::DETACH);
    }
}

/// P041: not one byte is free where the state is. Every command that writes says so; every file that was there is
/// there with its whole content, or with its whole new one, and nothing half written is left beside. With room it
/// all works on.
#[test]
fn p041_a_full_disk_under_the_state_destroys_nothing_copy_vault() {
    let lab = Lab::plain(zone);
    let small = Small::at(lab.state());
    lab.ok(&["--yes", "track", lab.ws_text(), "--vault", "copy"]);
    let id = lab.message(1);
    agent(&lab);
    lab.ok(&["--yes", "rewind", "1", "--files"]);
    lab.ok(&["--yes", "undo"]);
    let tree = lab.manifest();
    let before = files(&lab.state());
    let other = lab.dir().join("other");
    std::fs::create_dir(&other).expect("folder");
    let other = other.to_str().expect("UTF-8");
    let commands: [&[&str]; 9] = [
        &["checkpoint"],
        &["label", &id, "a name"],
        &["pin", &id],
        &["--yes", "rewind", "1", "--files"],
        &["--yes", "redo"],
        &["--yes", "untrack", lab.ws_text()],
        &["--yes", "track", other, "--vault", "copy"],
        &["--yes", "pool", "create", "--size", "512M"],
        &["-s", lab.ws_text(), "checkpoint", "--label", "x"],
    ];
    small.fill();
    for args in commands {
        let a = lab.run(args);
        let code = a.code.expect("a code");
        assert!(matches!(code, 1 | 3), "{args:?}: {} {}", a.text(), a.err);
        error_text(&a.json(), code);
        tree.assert_same(&lab.manifest(), &format!("{args:?}"));
        let now = files(&lab.state());
        for (path, content) in &before {
            assert_eq!(
                now.get(path).map(Vec::len),
                Some(content.len()),
                "{args:?}: {}",
                path.display()
            );
            assert!(now[path] == *content, "{args:?}: {}", path.display());
        }
        let junk: Vec<&PathBuf> = now
            .keys()
            .filter(|p| !before.contains_key(*p))
            // locks hold nothing
            .filter(|p| p.extension().is_none_or(|e| e != "lock") && !p.ends_with("lock"))
            .collect();
        assert!(junk.is_empty(), "{args:?} left {junk:?}");
    }
    // what only reads works
    lab.ok(&["timeline", lab.store().to_str().expect("UTF-8")]);
    assert_eq!(
        lab.ok(&["changes", "m1", "now"]).as_array().map(Vec::len),
        Some(22)
    );
    small.free();
    lab.ok(&["--yes", "recover"]);
    assert_eq!(lab.ok(&["--yes", "rewind", "1", "--files"])["verified"], true);
    lab.ok(&["--yes", "undo"]);
    tree.assert_same(&lab.manifest(), "with room again");
    drop(small);
}

/// P041: the same, with the checkpoints in an image elsewhere: the list of pools is whole, also when a second one
/// cannot be added.
#[test]
fn p041_a_full_disk_under_the_state_destroys_nothing_btrfs() {
    let lab = Lab::plain(zone);
    let small = Small::at(lab.state());
    let image = lab.dir().join("images/pool.img");
    std::fs::create_dir(image.parent().expect("folder")).expect("folder");
    let image = image.to_str().expect("UTF-8");
    lab.ok(&[
        "--yes",
        "track",
        lab.ws_text(),
        "--image",
        image,
        "--size",
        "512M",
    ]);
    lab.message(1);
    agent(&lab);
    let before = files(&lab.state());
    assert!(
        before.keys().any(|p| p.ends_with("pools.json")),
        "the list of pools: {:?}",
        before.keys()
    );
    let other = lab.dir().join("other");
    std::fs::create_dir(&other).expect("folder");
    let other = other.to_str().expect("UTF-8");
    let second = lab.dir().join("images/second.img");
    let second = second.to_str().expect("UTF-8");
    small.fill();
    for args in [
        &["--yes", "pool", "create", "--image", second, "--size", "512M"][..],
        &["--yes", "track", other, "--image", second, "--size", "512M"],
    ] {
        let a = lab.run(args);
        let code = a.code.expect("a code");
        assert!(matches!(code, 1 | 3), "{args:?}: {} {}", a.text(), a.err);
        error_text(&a.json(), code);
        let now = files(&lab.state());
        for (path, content) in &before {
            assert!(now.get(path) == Some(content), "{args:?}: {}", path.display());
        }
        let junk: Vec<&PathBuf> = now
            .keys()
            .filter(|p| !before.contains_key(*p) && !p.to_string_lossy().contains("lock"))
            .collect();
        assert!(junk.is_empty(), "{args:?} left {junk:?}");
    }
    // what is kept in the pool goes on
    assert_eq!(lab.ok(&["--yes", "rewind", "1", "--files"])["verified"], true);
    small.free();
    lab.ok(&["--yes", "track", other, "--image", second, "--size", "512M"]);
    lab.ok(&["--yes", "untrack", other]);
    lab.ok(&["--yes", "pool", "unmount"]);
    drop(small);
}

/// P041: the settings of the agent, in a workspace on a full disk, stay as they were.
#[test]
fn p041_a_full_disk_does_not_empty_the_hooks_file() {
    let lab = Lab::plain(|_| {});
    let home = lab.dir().join("home/.openhands");
    // the store stands there already; the settings stand beside it
    let file = home.join("hooks.json");
    let small = Small::at(home);
    std::fs::write(&file, "{\"stop\": [{\"matcher\": \"*\", \"hooks\": []}]}\n").expect("write");
    let before = std::fs::read(&file).expect("read");
    small.fill();
    let mut c = lab.command();
    let a = crate::lab::Answer::of(
        c.args(["--json", "--yes", "hooks", "install", "openhands", "--user"])
            .output()
            .expect("run"),
    );
    assert_eq!(a.code, Some(1), "{} {}", a.text(), a.err);
    assert!(error_text(&a.json(), 1).contains("hooks.json"), "{}", a.text());
    assert_eq!(std::fs::read(&file).expect("read"), before);
    let names: Vec<_> = std::fs::read_dir(&small.0)
        .expect("list")
        .map(|e| e.expect("entry").file_name())
        .collect();
    assert_eq!(names.len(), 2, "nothing half written: {names:?}");
    drop(small);
}

/// P045: a root repository, a nested one, a submodule and a worktree: SIGKILL at twenty fault points of a rewind
/// and its undo, on both vaults. Whatever came to be, all four are whole and no `.git` name ever changed.
#[test]
fn p045_repositories_survive_a_kill_at_every_fault_point() {
    let points = [
        "rewind-planned",
        "rewind-frozen",
        "rewind-safety",
        "rewind-applying",
        "restore-step-1",
        "restore-step-5",
        "restore-step-12",
        "restore-step-30",
        "rewind-restored",
        "rewind-checked",
    ];
    for (vault, lab) in both(four) {
        lab.message(1);
        let good = lab.manifest();
        turn(&lab);
        let bad = lab.manifest();
        let known = |p: &Path| good.0.contains_key(p) || bad.0.contains_key(p);
        let mut kills = 0;
        for point in points {
            for args in [&["--yes", "rewind", "1", "--files"][..], &["--yes", "undo"]] {
                let what = format!("{vault}: {args:?} killed at {point}");
                assert!(lab.killed_at(point, args), "{what}");
                kills += 1;
                let mid = lab.manifest();
                let renamed: Vec<&Path> = git_names(&mid).into_iter().filter(|p| !known(p)).collect();
                assert!(renamed.is_empty(), "{what}: {renamed:?}");
                lab.ok(&["--yes", "recover"]);
                let now = lab.manifest();
                assert!(
                    now == good || now == bad,
                    "{what}: {:?}",
                    good.differs(&now).first()
                );
                git_fine(&lab, &what);
                // on to the state that the next command starts from
                let wanted = if args.contains(&"undo") { &bad } else { &good };
                if now != *wanted {
                    lab.ok(args);
                }
                wanted.assert_same(&lab.manifest(), &what);
            }
        }
        assert_eq!(kills, 20);
    }
}

/// P047: repositories that git itself cannot read any more are content like any other.
#[test]
fn p047_damaged_repositories_stop_no_checkpoint() {
    for (vault, lab) in both(|ws| {
        four(ws);
        let x = ws.join("vendor/x/.git");
        std::fs::write(x.join("index"), "no index at all").expect("write");
        std::fs::write(x.join("HEAD"), [0u8; 41]).expect("write");
        std::fs::write(ws.join("module/.git"), "gitdir: /nowhere/at/all\n").expect("write");
        crate::rounds::mode(&ws.join(".git/objects"), 0o000);
    }) {
        let status = Command::new("git")
            .args(["-C", lab.at("vendor/x").to_str().expect("UTF-8"), "status"])
            .output()
            .expect("git");
        assert!(!status.status.success(), "git cannot read it");
        let doc = lab.ok(&["checkpoint"]);
        assert_eq!(doc["parts"][0]["covered"], json!(true), "{vault}: {doc}");
        lab.message(1);
        let before = lab.manifest();
        lab.write("vendor/x/.git/index", "another");
        std::fs::remove_dir_all(lab.at("module")).expect("remove");
        std::fs::remove_dir_all(lab.at(".git/objects")).expect("remove");
        lab.ok(&["changes", "m1", "now"]);
        assert_eq!(
            lab.ok(&["--yes", "rewind", "1", "--files"])["verified"],
            true,
            "{vault}"
        );
        before.assert_same(&lab.manifest(), vault);
    }
    // git works on what it could read before
    let lab = Lab::new(four);
    git_fine(&lab, "as it was made");
    assert!(git(lab.ws(), &["status", "--porcelain"]).contains("vendor/"));
}
