//! The vault of copies from outside: as root, as a user without rights, and killed anywhere.

use std::os::unix::fs::{MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

use crate::actors::Writer;
use crate::common::{self, TestDir};
use crate::lab::{Lab, SOON, error_text};
use crate::manifest::Manifest;

fn fill(ws: &Path) {
    std::fs::create_dir_all(ws.join("src/deep")).expect("folders");
    for i in 0..20 {
        std::fs::write(ws.join(format!("src/{i}.txt")), format!("{i}\n").repeat(50)).expect("write");
    }
    std::fs::write(ws.join("src/deep/leaf"), "leaf").expect("write");
    std::fs::hard_link(ws.join("src/1.txt"), ws.join("twin")).expect("link");
    symlink("src/2.txt", ws.join("link")).expect("symlink");
}

fn damage(lab: &Lab) {
    lab.write("src/0.txt", "changed\n");
    lab.write("made/new", "new\n");
    std::fs::remove_dir_all(lab.at("src/deep")).expect("remove");
    std::fs::remove_file(lab.at("twin")).expect("remove");
    std::fs::rename(lab.at("src/5.txt"), lab.at("src/moved")).expect("rename");
}

/// What lies in the store of the only sandbox, relative to it.
fn store(lab: &Lab) -> Vec<PathBuf> {
    let copies = lab.state().join("copies");
    let mut out = Vec::new();
    let mut todo = vec![copies.clone()];
    while let Some(folder) = todo.pop() {
        for entry in std::fs::read_dir(&folder).into_iter().flatten() {
            let path = entry.expect("entry").path();
            if path.is_dir() {
                todo.push(path.clone());
            }
            let below = path.strip_prefix(&copies).expect("below");
            out.push(below.iter().skip(1).collect());
        }
    }
    out.sort();
    out
}

/// The id of the only sandbox.
fn sandbox(lab: &Lab) -> String {
    lab.ok(&["sandboxes"])[0]["id"]
        .as_str()
        .expect("an id")
        .to_owned()
}

#[test]
fn nothing_is_moved_and_everything_says_so() {
    let lab = Lab::plain(fill);
    let (before, ino) = (lab.manifest(), lab.ws().metadata().expect("there").ino());
    let plan = lab.ok(&["--dry-run", "track", lab.ws_text(), "--vault", "copy"]);
    let steps = plan["plan"]["steps"].to_string();
    assert!(
        steps.contains("nothing is moved") && steps.contains("not atomic"),
        "{steps}"
    );
    assert!(!lab.state().join("copies").exists());
    lab.ok(&["--yes", "track", lab.ws_text(), "--vault", "copy"]);
    before.assert_same(&lab.manifest(), "tracked");
    assert_eq!(lab.ws().metadata().expect("there").ino(), ino);
    let listed = lab.ok(&["sandboxes"]);
    assert_eq!(
        (
            &listed[0]["vault"],
            &listed[0]["mounted"],
            &listed[0]["checkpoints"]
        ),
        (&json!("copy"), &json!(true), &json!(1))
    );
    let taken = lab.ok(&["-s", lab.ws_text(), "checkpoint"]);
    assert_eq!(taken["atomic"], false);
    let id = taken["checkpoint"].as_str().expect("an id");
    let plan = lab.ok(&["-s", lab.ws_text(), "--dry-run", "rewind", id, "--files"]);
    assert!(plan.to_string().contains("not atomic"), "{plan}");
    let e = lab.fails(3, &["--yes", "track", lab.ws_text(), "--vault", "copy"]);
    assert!(e.contains("tracked already"), "{e}");
    let e = lab.fails(
        3,
        &[
            "--yes",
            "track",
            lab.at("src").to_str().expect("UTF-8"),
            "--vault",
            "copy",
        ],
    );
    assert!(e.contains("lies in the workspace"), "{e}");
}

#[test]
fn back_undo_redo_and_untrack() {
    let lab = Lab::copies(fill);
    let id = lab.message(1);
    let before = lab.manifest();
    damage(&lab);
    let after = lab.manifest();
    let list = lab.ok(&["changes", &id, "now"]);
    let row = |path: &str| {
        let rows = list.as_array().expect("rows");
        rows.iter()
            .find(|r| r["path"] == path)
            .unwrap_or_else(|| panic!("{path}: {list}"))["kind"]
            .clone()
    };
    assert_eq!(
        (row("src/0.txt"), row("src/moved"), row("src/deep")),
        ("modified".into(), "renamed".into(), "deleted".into())
    );
    assert_eq!(lab.ok(&["--yes", "rewind", "1", "--files"])["verified"], true);
    before.assert_same(&lab.manifest(), "rewound");
    assert_eq!(lab.ok(&["--yes", "undo"])["verified"], true);
    after.assert_same(&lab.manifest(), "undone");
    assert_eq!(lab.ok(&["--yes", "redo"])["verified"], true);
    before.assert_same(&lab.manifest(), "redone");
    lab.ok(&["--yes", "untrack", lab.ws_text()]);
    before.assert_same(&lab.manifest(), "untracked");
    lab.fails(3, &["-s", lab.ws_text(), "checkpoint"]);
    assert_eq!(
        lab.ok(&["sandboxes"])[0]["tracked"],
        false,
        "the checkpoints stay"
    );
}

/// P013: what is kept outlives every process: each command here is one of its own, and nothing is mounted.
#[test]
fn p013_checkpoints_are_there_after_a_restart() {
    let lab = Lab::copies(fill);
    let mut states = Vec::new();
    for n in 1..=3 {
        lab.message(n);
        states.push(lab.manifest());
        lab.write("src/0.txt", format!("after {n}"));
    }
    lab.reboot();
    let rows = lab.ok(&["timeline", lab.store().to_str().expect("UTF-8")]);
    let usable = |r: &&Value| r["checkpoint"]["id"].is_string();
    assert_eq!(
        rows["rows"]
            .as_array()
            .expect("rows")
            .iter()
            .filter(usable)
            .count(),
        3
    );
    lab.ok(&["--yes", "rewind", "1", "--files"]);
    states[0].assert_same(&lab.manifest(), "the first");
}

/// P014: no size is left out.
#[test]
fn p014_huge_sparse_and_large_files_come_back() {
    let lab = Lab::copies(|ws| {
        let f = std::fs::File::create(ws.join("sparse")).expect("create");
        f.set_len(4 << 30).expect("size");
        std::fs::write(ws.join("large"), vec![7; 40 << 20]).expect("write");
    });
    lab.message(1);
    for file in ["sparse", "large"] {
        let f = std::fs::OpenOptions::new()
            .write(true)
            .open(lab.at(file))
            .expect("open");
        std::os::unix::fs::FileExt::write_all_at(&f, b"!", 33 << 20).expect("write");
    }
    lab.ok(&["--yes", "rewind", "1", "--files"]);
    let sparse = lab.at("sparse").metadata().expect("there");
    assert_eq!(sparse.len(), 4 << 30);
    assert!(sparse.blocks() * 512 < 1 << 20, "holes stay holes");
    assert!(std::fs::read(lab.at("large")).expect("read") == vec![7; 40 << 20]);
}

/// P015: what the user made before is not touched, times included.
#[test]
fn p015_results_made_before_are_untouched() {
    let lab = Lab::copies(|ws| {
        std::fs::create_dir(ws.join("output")).expect("folder");
        for i in 0..100 {
            std::fs::write(ws.join(format!("output/{i}")), "result").expect("write");
        }
        std::fs::write(ws.join("a.py"), "one").expect("write");
    });
    lab.message(1);
    let ctimes = || -> Vec<(i64, i64)> {
        let look = |i: i32| lab.at(format!("output/{i}")).metadata().expect("there");
        (0..100)
            .map(|i| (look(i).ctime(), look(i).ctime_nsec()))
            .collect()
    };
    let before = ctimes();
    lab.write("a.py", "two");
    lab.ok(&["--yes", "rewind", "1", "--files"]);
    assert_eq!((lab.read("a.py"), ctimes()), ("one".into(), before));
}

/// P032 P105: another folder in the place of the tracked one is never taken for it.
#[test]
fn p032_p105_a_replaced_workspace_is_refused() {
    let lab = Lab::copies(fill);
    let id = lab.checkpoint();
    let away = lab.dir().join("away");
    std::fs::rename(lab.ws(), &away).expect("move away");
    std::fs::create_dir(lab.ws()).expect("another");
    lab.write("f", "v1");
    for args in [
        &["-s", lab.ws_text(), "checkpoint"][..],
        &["-s", lab.ws_text(), "--yes", "rewind", &id, "--files"],
        &["-s", lab.ws_text(), "changes", &id, "now"],
    ] {
        let e = lab.fails(3, args);
        assert!(
            e.contains("is no longer the managed folder: recorded is inode "),
            "{e}"
        );
        let now = format!("now it is inode {}", lab.ws().metadata().expect("there").ino());
        assert!(e.contains(&now), "{e}");
    }
    assert_eq!(lab.read("f"), "v1");
    assert_eq!(lab.ok(&["sandboxes"])[0]["mounted"], false);
    std::fs::remove_dir_all(lab.ws()).expect("remove");
    std::fs::rename(&away, lab.ws()).expect("put back");
    lab.checkpoint();
}

/// P038: all or nothing, and the path is named.
#[test]
fn p038_one_unwritable_path_leaves_everything_as_it_was() {
    let lab = Lab::copies(|ws| {
        fill(ws);
        std::fs::create_dir(ws.join("zone")).expect("folder");
        std::fs::write(ws.join("zone/locked"), "one").expect("write");
    });
    lab.message(1);
    lab.write("src/0.txt", "changed");
    lab.write("zone/locked", "two");
    let before = lab.manifest();
    // a mount that refuses writes, over the very file
    rustix::mount::mount_bind(lab.at("zone/locked"), lab.at("zone/locked")).expect("bind");
    rustix::mount::mount_remount(
        lab.at("zone/locked"),
        rustix::mount::MountFlags::BIND | rustix::mount::MountFlags::RDONLY,
        "",
    )
    .expect("read-only");
    let answer = lab.run(&["--yes", "rewind", "1", "--files"]);
    rustix::mount::unmount(lab.at("zone/locked"), rustix::mount::UnmountFlags::empty()).expect("unmount");
    assert_eq!(answer.code, Some(1), "{} {}", answer.text(), answer.err);
    before.assert_same(&lab.manifest(), "all or nothing");
    assert!(answer.text().contains("locked"), "{}", answer.text());
    // without the mount it can
    lab.ok(&["--yes", "rewind", "1", "--files"]);
    assert_eq!(lab.read("zone/locked"), "one");
}

/// P114: a database that is being written is whole: its writer is stopped while it is copied.
#[test]
fn p114_a_live_database_is_whole() {
    let lab = Lab::copies(fill);
    let python = "import sqlite3, sys\n\
        db = sqlite3.connect(sys.argv[1])\n\
        db.execute('pragma journal_mode=wal')\n\
        db.execute('create table t (a, b)')\n\
        print('ready', flush=True)\n\
        n = 0\n\
        while True:\n\
        \x20   with db:\n\
        \x20       db.executemany('insert into t values (?, ?)', [(n, 'x' * 500)] * 50)\n\
        \x20   n += 1\n";
    let mut writer = Command::new("setsid")
        .args(["python3", "-c", python])
        .arg(lab.at("live.db"))
        .env("HOME", lab.dir().join("home"))
        .stdout(std::process::Stdio::piped())
        .spawn()
        .expect("python3");
    let mut line = String::new();
    let out = writer.stdout.take().expect("its output");
    std::io::BufRead::read_line(&mut std::io::BufReader::new(out), &mut line).expect("ready");
    let ids: Vec<String> = (0..3).map(|_| lab.checkpoint()).collect();
    writer.kill().expect("kill");
    writer.wait().expect("wait");
    for id in ids {
        lab.ok(&["-s", lab.ws_text(), "--yes", "rewind", &id, "--files"]);
        let check = "import sqlite3, sys\n\
            db = sqlite3.connect(sys.argv[1])\n\
            print(db.execute('pragma integrity_check').fetchone()[0])\n\
            print(all(c == 50 for (c,) in db.execute('select count(*) from t group by a')))\n";
        let out = Command::new("python3")
            .args(["-c", check])
            .arg(lab.at("live.db"))
            .output()
            .expect("python3");
        assert_eq!(
            String::from_utf8_lossy(&out.stdout),
            "ok\nTrue\n",
            "{}",
            String::from_utf8_lossy(&out.stderr)
        );
    }
}

/// A writer in another session is stopped while a checkpoint is copied, and goes on.
#[test]
fn a_writer_is_stopped_meanwhile_and_goes_on() {
    let lab = Lab::copies(fill);
    let writer = Writer::start(&lab, "log");
    for _ in 0..3 {
        lab.checkpoint();
    }
    writer.assert_runs("after the checkpoints");
    drop(writer);
}

/// Killed anywhere in a rewind: `recover` gives the state before or the one after.
#[test]
fn killed_anywhere_in_a_rewind() {
    for point in [
        "rewind-planned",
        "rewind-frozen",
        "checkpoint-made",
        "checkpoint-read",
        "checkpoint-recorded",
        "checkpoint-taken",
        "rewind-safety",
        "rewind-applying",
        "restore-step-1",
        "restore-step-3",
        "restore-step-6",
        "rewind-restored",
        "rewind-checked",
        "rewind-closed",
    ] {
        let lab = Lab::copies(fill);
        let id = lab.message(1);
        let target = lab.manifest();
        damage(&lab);
        let before = lab.manifest();
        assert!(
            lab.killed_at(point, &["--yes", "rewind", &id, "--files"]),
            "{point}"
        );
        lab.ok(&["--yes", "recover"]);
        let now = lab.manifest();
        if now.differs(&target).is_empty() {
            lab.ok(&["--yes", "undo"]);
            before.assert_same(&lab.manifest(), point);
        } else {
            before.assert_same(&now, point);
        }
        let left: Vec<PathBuf> = store(&lab)
            .into_iter()
            .filter(|p| p.to_string_lossy().contains("tmp-") || p.to_string_lossy().contains(".new"))
            .collect();
        assert!(left.is_empty(), "{point}: {left:?}");
    }
}

/// Killed anywhere in a checkpoint: it is there whole, or not at all, and the next one is.
#[test]
fn killed_anywhere_in_a_checkpoint() {
    for point in [
        "checkpoint-made",
        "checkpoint-read",
        "checkpoint-recorded",
        "checkpoint-taken",
    ] {
        let lab = Lab::copies(fill);
        lab.write("src/0.txt", "changed\n");
        assert!(
            lab.killed_at(point, &["-s", lab.ws_text(), "checkpoint"]),
            "{point}"
        );
        let listed = lab.ok(&["sandboxes"])[0]["checkpoints"]
            .as_u64()
            .expect("a count");
        assert_eq!(listed, if point == "checkpoint-taken" { 2 } else { 1 }, "{point}");
        if point != "checkpoint-taken" {
            // the power went too: what was kept never came to the disk
            for object in store(&lab) {
                let path = lab.state().join("copies").join(sandbox(&lab)).join(object);
                if path.is_file() && std::fs::read(&path).expect("read") == b"changed\n" {
                    std::fs::write(&path, "").expect("truncate");
                }
            }
        }
        let before = lab.manifest();
        let id = lab.checkpoint();
        lab.write("src/0.txt", "again\n");
        lab.ok(&["-s", lab.ws_text(), "--yes", "rewind", &id, "--files"]);
        before.assert_same(&lab.manifest(), point);
        lab.ok(&["--yes", "recover"]);
        let left = store(&lab);
        assert!(
            left.iter().all(|p| !p.to_string_lossy().contains("tmp-")),
            "{point}: {left:?}"
        );
    }
}

/// Killed anywhere in `track` and `untrack`: tracked or not, never half, and the folder as it was.
#[test]
fn killed_anywhere_in_track_and_untrack() {
    for point in [
        "sandbox-made",
        "sandbox-filled",
        "sandbox-recorded",
        "track-begun",
        "checkpoint-read",
        "track-copied",
        "track-cleaning",
    ] {
        let lab = Lab::plain(fill);
        let before = lab.manifest();
        let track = ["--yes", "track", lab.ws_text(), "--vault", "copy"];
        assert!(lab.killed_at(point, &track), "{point}");
        lab.ok(&["--yes", "recover"]);
        before.assert_same(&lab.manifest(), point);
        let listed = lab.ok(&["sandboxes"]);
        if point == "track-cleaning" {
            assert_eq!(listed[0]["tracked"], true, "{point}");
        } else {
            assert_eq!(listed, json!([]), "{point}");
            lab.ok(&track);
        }
        lab.checkpoint();
    }
    for point in ["untrack-begun", "untrack-cleaned"] {
        let lab = Lab::copies(fill);
        assert!(
            lab.killed_at(point, &["--yes", "untrack", lab.ws_text()]),
            "{point}"
        );
        lab.ok(&["--yes", "recover"]);
        let tracked = lab.ok(&["sandboxes"])[0]["tracked"].clone();
        assert_eq!(tracked, point == "untrack-begun", "{point}");
    }
}

#[test]
fn pruned_checkpoints_give_their_space_back() {
    let lab = Lab::copies(|ws| std::fs::write(ws.join("f"), "first").expect("write"));
    for n in 0..4_u8 {
        std::fs::write(lab.at("f"), vec![n + 1; 3 << 20]).expect("write");
        lab.checkpoint();
    }
    let doc = lab.ok(&["-s", lab.ws_text(), "--yes", "prune", "--keep", "1"]);
    assert!(doc["freed_bytes"].as_u64().expect("bytes") >= 9 << 20, "{doc}");
    assert_eq!(lab.ok(&["sandboxes"])[0]["checkpoints"], 1);
}

/// A user without rights, with a home of their own.
pub struct Plain {
    pub dir: TestDir,
}

const USER: &str = "12321";

impl Plain {
    pub fn new() -> Self {
        let dir = TestDir::new();
        std::fs::create_dir_all(dir.join("home/project/ro")).expect("folders");
        std::fs::write(dir.join("home/project/f"), "one").expect("write");
        std::fs::write(dir.join("home/project/ro/secret"), "s").expect("write");
        let program = dir.join("respool");
        std::fs::copy(env!("CARGO_BIN_EXE_respool"), &program).expect("the program");
        let s = Self { dir };
        s.shell(
            "chmod 400 home/project/ro/secret; chmod 555 home/project/ro",
            true,
        );
        s
    }
    pub fn ws(&self) -> PathBuf {
        self.dir.join("home/project")
    }
    pub fn manifest(&self) -> Manifest {
        Manifest::of(&self.ws())
    }
    pub fn command(&self, program: &str) -> Command {
        let mut c = Command::new("setpriv");
        c.args(["--reuid", USER, "--regid", USER, "--clear-groups", program])
            .current_dir(self.dir.path())
            .env_clear()
            .env("RESPOOL_SOCKET", "/nonexistent/no-service")
            .env("PATH", "/usr/bin:/bin")
            .env("TMPDIR", self.dir.join("home"))
            .env("HOME", self.dir.join("home"));
        c
    }
    /// Runs it in the folder, as that user, or as root with everything given to the user after.
    pub fn shell(&self, script: &str, root: bool) {
        let status = if root {
            let script = format!("{script}; chown -R {USER}:{USER} . && chmod 755 .");
            Command::new("sh")
                .args(["-ec", &script])
                .current_dir(self.dir.path())
                .status()
        } else {
            self.command("sh").args(["-ec", script]).status()
        };
        assert!(status.expect("sh").success(), "{script}");
    }
    pub fn run(&self, args: &[&str]) -> (Option<i32>, Value) {
        let program = self.dir.join("respool");
        let mut c = self.command(program.to_str().expect("UTF-8"));
        let out = c.arg("--json").args(args).output().expect("setpriv");
        let doc = serde_json::from_slice(&out.stdout)
            .unwrap_or_else(|e| panic!("{args:?}: {e}: {}", String::from_utf8_lossy(&out.stderr)));
        (out.status.code(), doc)
    }
    pub fn ok(&self, args: &[&str]) -> Value {
        let (code, doc) = self.run(args);
        assert_eq!(code, Some(0), "{args:?}: {doc}");
        doc
    }
}

/// Without root: the whole way, in the user's own state folder; modes that stand in the way are no hindrance.
#[test]
fn a_user_without_rights_goes_back_and_forth() {
    common::need_root();
    let user = Plain::new();
    let ws = user.ws();
    let ws = ws.to_str().expect("UTF-8");
    let (code, doc) = user.run(&["--yes", "track", ws]);
    let text = error_text(&doc, code.expect("a code"));
    assert!(
        text.contains("--vault copy"),
        "the way without root is named: {text}"
    );
    user.ok(&["--yes", "track", ws, "--vault", "copy"]);
    assert!(user.dir.join("home/.local/state/respool/copies").is_dir());
    let id = user.ok(&["-s", ws, "checkpoint"])["checkpoint"]
        .as_str()
        .expect("an id")
        .to_owned();
    let before = user.manifest();
    user.shell(
        "cd home/project; echo two > f; chmod 755 ro; rm -f ro/secret; mkdir new; echo x > new/y; chmod 500 new",
        false,
    );
    let after = user.manifest();
    let done = user.ok(&["-s", ws, "--yes", "rewind", &id, "--files"]);
    assert_eq!(done["verified"], true);
    before.assert_same(&user.manifest(), "rewound");
    user.ok(&["-s", ws, "--yes", "undo"]);
    after.assert_same(&user.manifest(), "undone");
    let demo = user.ok(&["demo", "--headless", "--vault", "copy"]);
    assert_eq!(
        (&demo["vault"], &demo["verified"], &demo["undone"]),
        (&json!("copy"), &json!(true), &json!(true))
    );
}

/// What this user has no right to bring back is a blocker of the plan, and nothing is changed.
#[test]
fn what_needs_root_is_named_before() {
    common::need_root();
    let user = Plain::new();
    let ws = user.ws();
    std::fs::write(ws.join("roots"), "readable").expect("write");
    let ws = ws.to_str().expect("UTF-8");
    user.ok(&["--yes", "track", ws, "--vault", "copy"]);
    let id = user.ok(&["-s", ws, "checkpoint"])["checkpoint"]
        .as_str()
        .expect("an id")
        .to_owned();
    user.shell("cd home/project; rm -f roots; echo two > f", false);
    let before = user.manifest();
    let plan = user.ok(&["-s", ws, "--dry-run", "rewind", &id, "--files"]);
    assert!(
        plan.to_string().contains("roots cannot be brought back"),
        "{plan}"
    );
    let (code, doc) = user.run(&["-s", ws, "--yes", "rewind", &id, "--files"]);
    assert_eq!(code, Some(3), "{doc}");
    assert!(doc.to_string().contains("roots"), "{doc}");
    before.assert_same(&user.manifest(), "nothing was changed");
    user.ok(&["-s", ws, "--yes", "rewind", &id, "--files", "--path", "f"]);
    assert_eq!(std::fs::read_to_string(user.ws().join("f")).expect("read"), "one");
    assert!(common::wait_until(SOON, || user.dir.left().is_empty()));
}
