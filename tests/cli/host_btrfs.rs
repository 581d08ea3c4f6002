//! Root on a Btrfs that exists and is not respool's: quotas, snapshots of others, subvolumes inside, and users who
//! can see the top level.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::common::{HostBtrfs, TestDir, USER, as_user, respool, run};
use crate::lab::{Answer, error_text};
use crate::manifest::Manifest;

/// A workspace on such a file system, and the program with a state folder elsewhere.
struct Disk {
    host: HostBtrfs,
    away: TestDir,
    ws: PathBuf,
}

impl Disk {
    fn new(options: &str, subvolume: bool) -> Self {
        let host = HostBtrfs::new(options);
        let ws = host.point().join("ws");
        if subvolume {
            run(
                "btrfs",
                &[
                    "-q".as_ref(),
                    "subvolume".as_ref(),
                    "create".as_ref(),
                    ws.as_os_str(),
                ],
            );
        } else {
            std::fs::create_dir(&ws).expect("mkdir");
        }
        std::fs::create_dir(ws.join("src")).expect("mkdir");
        for (name, content) in [("f", "one"), ("src/s", "s")] {
            std::fs::write(ws.join(name), content).expect("write");
        }
        let status = Command::new("chown")
            .args(["-R", &format!("{USER}:{USER}")])
            .arg(&ws)
            .status();
        assert!(status.expect("chown").success());
        let away = TestDir::new();
        Self { host, away, ws }
    }

    fn answer(&self, args: &[&str]) -> Answer {
        let mut c = respool(self.away.path());
        c.arg("--state-dir")
            .arg(self.away.join("state"))
            .arg("--json")
            .args(args);
        Answer::of(c.output().expect("run"))
    }

    fn ok(&self, args: &[&str]) -> Value {
        let a = self.answer(args);
        assert_eq!(a.code, Some(0), "{args:?}: {} {}", a.text(), a.err);
        a.json()
    }

    fn fails(&self, code: i32, args: &[&str]) -> String {
        let a = self.answer(args);
        assert_eq!(a.code, Some(code), "{args:?}: {} {}", a.text(), a.err);
        error_text(&a.json(), code)
    }

    fn text(&self) -> &str {
        self.ws.to_str().expect("UTF-8")
    }

    fn checkpoint(&self) -> String {
        let doc = self.ok(&["-s", self.text(), "checkpoint"]);
        doc["checkpoint"].as_str().expect("an id").to_owned()
    }

    fn manifest(&self) -> Manifest {
        Manifest::of(&self.ws)
    }

    fn btrfs(&self, args: &str) -> String {
        let args: Vec<&std::ffi::OsStr> = args.split(' ').map(AsRef::as_ref).collect();
        let out = Command::new("btrfs")
            .args(&args)
            .current_dir(self.host.point())
            .output()
            .expect("btrfs");
        let wrong = String::from_utf8_lossy(&out.stderr).into_owned();
        assert!(out.status.success(), "{args:?}: {wrong}");
        String::from_utf8_lossy(&out.stdout).into_owned()
    }

    /// Runs it as the user of the workspace, at the top level; true if it was a success.
    fn user(&self, script: &str) -> bool {
        let mut c = as_user(Path::new("/bin/sh"));
        let out = c
            .args(["-c", script])
            .current_dir(self.host.point())
            .output()
            .expect("sh");
        eprintln!("{script}: {}", String::from_utf8_lossy(&out.stderr));
        out.status.success()
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let a = self.answer(&["--yes", "pool", "unmount"]);
        if !std::thread::panicking() {
            assert_eq!(a.code, Some(0), "{} {}", a.text(), a.err);
        }
    }
}

/// P049: a folder with a subvolume in it is refused with its name, and nothing of it is lost or emptied.
#[test]
fn p049_a_folder_with_a_subvolume_inside_is_refused() {
    let disk = Disk::new("noatime", false);
    disk.btrfs("-q subvolume create ws/cache");
    std::fs::write(disk.ws.join("cache/i.txt"), "i").expect("write");
    let before = disk.manifest();
    let plan = disk.ok(&["--dry-run", "track", disk.text()]);
    assert!(
        plan.to_string().contains("cache is a subvolume inside it"),
        "{plan}"
    );
    let e = disk.fails(3, &["--yes", "track", disk.text()]);
    assert!(e.contains("cache is a subvolume inside it"), "{e}");
    before.assert_same(&disk.manifest(), "nothing was changed");
    assert!(!disk.host.point().join(".respool").exists(), "nothing was made");
}

/// P049 P052, and snapper's snapshots: what lies inside as a subvolume stays with its content, told before; read-only
/// snapshots of others are not touched; the checkpoints lie outside of what is rewound.
#[test]
fn p049_p052_subvolumes_and_snapshots_of_others_stay() {
    let disk = Disk::new("noatime", true);
    for args in [
        "-q subvolume create ws/cache",
        "-q subvolume create ws/.snapshots",
        "-q subvolume create .snapshots",
    ] {
        disk.btrfs(args);
    }
    std::fs::create_dir(disk.ws.join(".snapshots/1")).expect("mkdir");
    std::fs::create_dir(disk.host.point().join(".snapshots/1")).expect("mkdir");
    std::fs::write(disk.ws.join("cache/i.txt"), "i").expect("write");
    disk.btrfs("-q subvolume snapshot -r ws ws/.snapshots/1/snapshot");
    disk.btrfs("-q subvolume snapshot -r ws .snapshots/1/snapshot");
    let list = || -> Vec<String> {
        let all = disk.btrfs("subvolume list -u .");
        let others = all.lines().filter(|l| !l.contains("path .respool/"));
        others
            .map(|l| l.split_once(" uuid ").expect("a uuid").1.to_owned())
            .collect()
    };
    let others = list();
    disk.ok(&["--yes", "track", disk.text()]);
    let first = disk.checkpoint();
    std::fs::write(disk.ws.join("f"), "two").expect("write");
    std::fs::write(disk.ws.join("cache/i.txt"), "j").expect("write");
    let plan = disk.ok(&["-s", disk.text(), "--dry-run", "rewind", &first, "--files"]);
    for inside in ["cache is not covered", ".snapshots is not covered"] {
        assert!(plan.to_string().contains(inside), "{plan}");
    }
    disk.ok(&["-s", disk.text(), "--yes", "rewind", &first, "--files"]);
    assert_eq!(std::fs::read_to_string(disk.ws.join("f")).expect("read"), "one");
    assert_eq!(
        std::fs::read_to_string(disk.ws.join("cache/i.txt")).expect("read"),
        "j"
    );
    // all checkpoints are there, and a new one works
    let second = disk.checkpoint();
    for id in ["start", &first, &second] {
        disk.ok(&["-s", disk.text(), "ls", id]);
    }
    disk.ok(&["-s", disk.text(), "--yes", "undo"]);
    assert_eq!(std::fs::read_to_string(disk.ws.join("f")).expect("read"), "two");
    disk.ok(&["--yes", "untrack", disk.text()]);
    assert_eq!(
        std::fs::read_to_string(disk.ws.join("cache/i.txt")).expect("read"),
        "j"
    );
    assert_eq!(list(), others);
    assert_eq!(
        std::fs::read_to_string(disk.ws.join(".snapshots/1/snapshot/f")).expect("read"),
        "one"
    );
    assert!(
        disk.btrfs("property get ws/.snapshots/1/snapshot ro")
            .contains("ro=true")
    );
}

/// A snapshot of somebody's, read-only, is no workspace.
#[test]
fn a_read_only_subvolume_is_refused() {
    let disk = Disk::new("noatime", true);
    disk.btrfs("-q subvolume snapshot -r ws ro");
    let ro = disk.host.point().join("ro");
    let e = disk.fails(3, &["--yes", "track", ro.to_str().expect("UTF-8")]);
    assert!(e.contains("read-only subvolume"), "{e}");
}

/// Quotas of the file system stay as they are, and a full one is a clear error that leaves everything as it was.
#[test]
fn quotas_stay_and_a_full_one_is_told() {
    for subvolume in [false, true] {
        let disk = Disk::new("noatime", subvolume);
        disk.btrfs("quota enable .");
        disk.btrfs("quota rescan -w .");
        std::fs::write(disk.ws.join("big"), vec![1; 6 << 20]).expect("write");
        disk.ok(&["--yes", "track", disk.text()]);
        let first = disk.checkpoint();
        std::fs::write(disk.ws.join("big"), vec![2; 1 << 20]).expect("write");
        std::fs::write(disk.ws.join("f"), "two").expect("write");
        disk.ok(&["-s", disk.text(), "--yes", "rewind", &first, "--files"]);
        assert_eq!(disk.ws.join("big").metadata().expect("there").len(), 6 << 20);
        disk.ok(&["-s", disk.text(), "--yes", "undo"]);
        assert!(disk.btrfs("qgroup show .").contains("0/5"), "quotas are on");
        assert!(
            disk.btrfs("quota rescan -s .").contains("no rescan"),
            "none was started"
        );
        // full: what comes back does not fit
        disk.btrfs("qgroup limit 1M ws");
        disk.btrfs("filesystem sync .");
        let before = disk.manifest();
        disk.checkpoint();
        let e = disk.fails(1, &["-s", disk.text(), "--yes", "rewind", &first, "--files"]);
        assert!(e.contains("quota") && e.contains("qgroup limit"), "{e}");
        before.assert_same(&disk.manifest(), "everything is as it was before");
        let tree = disk.btrfs("inspect-internal rootid ws");
        disk.btrfs(&format!("qgroup limit none 0/{} .", tree.trim()));
        disk.ok(&["-s", disk.text(), "--yes", "rewind", &first, "--files"]);
        assert_eq!(std::fs::read_to_string(disk.ws.join("f")).expect("read"), "one");
    }
}

/// The user sees the top level of the file system, owns the workspace and everything in it, and the file system is
/// mounted so that users may delete subvolumes: the checkpoints are out of his reach all the same.
#[test]
fn checkpoints_are_out_of_the_users_reach() {
    for subvolume in [false, true] {
        let disk = Disk::new("user_subvol_rm_allowed", subvolume);
        // even the top level is the user's
        std::os::unix::fs::chown(disk.host.point(), Some(USER), Some(USER)).expect("owner");
        disk.ok(&["--yes", "track", disk.text()]);
        let id = disk.checkpoint();
        let before = disk.manifest();
        let top = disk.host.point().metadata().expect("the top level");
        assert_eq!(
            top.permissions().mode() & 0o7777,
            0o755,
            "the top level stays as it was"
        );
        let all = disk.btrfs("subvolume list .");
        let snaps: Vec<&str> = all.lines().filter(|l| l.contains(".respool/s/")).collect();
        assert_eq!(snaps.len(), 2, "{all}");
        for line in snaps {
            let number = line.split(' ').nth(1).expect("an id");
            let path = line.split_once(" path ").expect("a path").1;
            for script in [
                format!("ls {path}"),
                format!("cat {path}/f"),
                format!("btrfs subvolume delete {path}"),
                format!("btrfs subvolume delete --subvolid {number} ."),
                format!("btrfs property set {path} ro false"),
                format!("btrfs subvolume snapshot {path} ws/mine"),
                format!("mv {path} ws/"),
            ] {
                assert!(!disk.user(&script), "{script}");
            }
        }
        // the control: his own he may
        assert!(disk.user("btrfs subvolume create ws/own && btrfs subvolume delete ws/own"));
        for script in [
            "rm -rf .respool",
            "mv .respool away",
            "ls .respool",
            "chmod 755 .respool",
            "btrfs subvolume set-default 5 .",
        ] {
            assert!(!disk.user(script), "{script}");
        }
        disk.user("rm -rf * .respool .[a-z]*");
        assert!(!disk.ws.exists(), "the live subvolume itself was his to remove");
        disk.ok(&["-s", disk.text(), "--yes", "rewind", &id, "--files"]);
        before.assert_same(&disk.manifest(), "back");
        disk.ok(&["-s", disk.text(), "--yes", "undo"]);
        assert_eq!(
            std::fs::read_dir(&disk.ws).expect("list").count(),
            0,
            "empty, as it was left"
        );
        disk.ok(&["-s", disk.text(), "--yes", "redo"]);
        before.assert_same(&disk.manifest(), "back again");
    }
}

/// Two workspaces on one file system are two in the list, and each has its own checkpoints.
#[test]
fn two_workspaces_on_one_disk() {
    let disk = Disk::new("noatime", true);
    let second = disk.host.point().join("second");
    std::fs::create_dir(&second).expect("mkdir");
    disk.ok(&["--yes", "track", disk.text()]);
    disk.ok(&["--yes", "track", second.to_str().expect("UTF-8")]);
    assert_eq!(disk.ok(&["sandboxes"]).as_array().map(Vec::len), Some(2));
    let space = disk.ok(&["space"]);
    assert_eq!(space["pools"].as_array().map(Vec::len), Some(1), "{space}");
    // a folder that goes away does not take the file system with it
    disk.ok(&["--yes", "untrack", disk.text()]);
    disk.btrfs("-q subvolume delete ws");
    disk.ok(&["-s", second.to_str().expect("UTF-8"), "checkpoint"]);
    assert_eq!(disk.ok(&["sandboxes"]).as_array().map(Vec::len), Some(2));
    disk.ok(&["pool", "mount"]);
}
