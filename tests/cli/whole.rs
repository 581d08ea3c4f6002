//! All or nothing: paths that cannot be written, repositories that are damaged or killed in the middle.

use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::mount::{MountFlags, UnmountFlags, mount_bind, mount_remount, unmount};
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

pub fn zone(ws: &Path) {
    for i in 0..20 {
        std::fs::write(ws.join(format!("f{i}")), "old").expect("write");
    }
    std::fs::create_dir(ws.join("zone")).expect("folder");
    std::fs::write(ws.join("zone/locked"), "old").expect("write");
}

pub fn agent(lab: &Lab) {
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
