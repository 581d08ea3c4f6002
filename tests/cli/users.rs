//! An ordinary user on a Btrfs that exists: no root, no service, no mount option that helps.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::common::{HostBtrfs, USER, as_user, run};
use crate::lab::error_text;
use crate::manifest::Manifest;

/// A user with a home and a project on a Btrfs that is mounted for all.
struct Someone {
    host: HostBtrfs,
    home: PathBuf,
    ws: PathBuf,
}

impl Someone {
    /// With the home on another file system than the project.
    fn new(options: &str) -> Self {
        let host = HostBtrfs::new(options);
        let home = host.dir.join("home");
        std::fs::create_dir(&home).expect("mkdir");
        std::os::unix::fs::chown(&home, Some(USER), Some(USER)).expect("owner");
        Self::with(host, home)
    }

    /// With the home on the same file system.
    fn at_home(options: &str) -> Self {
        let host = HostBtrfs::new(options);
        let home = host.of_user("me");
        Self::with(host, home)
    }

    fn with(host: HostBtrfs, home: PathBuf) -> Self {
        std::fs::copy(env!("CARGO_BIN_EXE_respool"), host.dir.join("respool")).expect("the program");
        let ws = host.of_user("me").join("project");
        let it = Self { host, home, ws };
        it.shell(
            "mkdir -p project/src; cd project; echo one > f; echo s > src/s; ln f src/link; \
             mkdir shut; echo x > shut/x; echo k > closed; chmod 400 closed; chmod 500 shut",
        );
        it
    }

    /// Runs it as the user, in the folder of the project.
    fn shell(&self, script: &str) {
        let out = as_user(Path::new("/bin/sh"))
            .args(["-ec", script])
            .current_dir(self.host.point().join("me"))
            .output()
            .expect("sh");
        assert!(
            out.status.success(),
            "{script}: {}",
            String::from_utf8_lossy(&out.stderr)
        );
    }

    fn command(&self) -> Command {
        let mut c = as_user(&self.host.dir.join("respool"));
        c.env("HOME", &self.home)
            .env("TMPDIR", &self.home)
            .current_dir(self.host.dir.path());
        c
    }

    fn answer(&self, args: &[&str]) -> (Option<i32>, Value, String) {
        let out = self.command().arg("--json").args(args).output().expect("setpriv");
        let err = String::from_utf8_lossy(&out.stderr).into_owned();
        let doc = serde_json::from_slice(&out.stdout).unwrap_or_else(|e| panic!("{args:?}: {e}: {err}"));
        (out.status.code(), doc, err)
    }

    fn ok(&self, args: &[&str]) -> Value {
        let (code, doc, err) = self.answer(args);
        assert_eq!(code, Some(0), "{args:?}: {doc} {err}");
        doc
    }

    fn fails(&self, code: i32, args: &[&str]) -> String {
        let (got, doc, err) = self.answer(args);
        assert_eq!(got, Some(code), "{args:?}: {doc} {err}");
        error_text(&doc, code)
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

    /// Rewind, undo, prune: all that a user does.
    fn goes_back_and_forth(&self) {
        let id = self.checkpoint();
        let before = self.manifest();
        self.shell(
            "cd project; echo two > f; chmod 700 shut; rm -rf shut; mkdir -m 500 new; mv src moved; rm -f closed",
        );
        let after = self.manifest();
        let rows = self.ok(&["-s", self.text(), "changes", &id, "now"]);
        assert!(rows.to_string().contains("moved"), "{rows}");
        let done = self.ok(&["-s", self.text(), "--yes", "rewind", &id, "--files"]);
        assert_eq!(done["verified"], true);
        before.assert_same(&self.manifest(), "rewound");
        self.ok(&["-s", self.text(), "--yes", "undo"]);
        after.assert_same(&self.manifest(), "undone");
        self.ok(&["-s", self.text(), "--yes", "redo"]);
        before.assert_same(&self.manifest(), "redone");
        self.ok(&["-s", self.text(), "--yes", "prune", "--keep", "1"]);
        let listed = self.ok(&["sandboxes"]);
        assert_eq!(listed[0]["vault"], "btrfs", "{listed}");
        assert_eq!(listed[0]["mounted"], true, "{listed}");
        assert_eq!(self.ok(&["pool", "status"])[0]["trouble"], Value::Null);
        assert_eq!(self.ok(&["pool", "check"])[0]["clean"], Value::Null);
    }

    fn base(&self) -> PathBuf {
        self.host.point().join("me/.respool")
    }

    fn subvolumes(&self) -> usize {
        run(
            "btrfs",
            &[
                "subvolume".as_ref(),
                "list".as_ref(),
                self.host.point().as_os_str(),
            ],
        )
        .lines()
        .count()
    }
}

/// The whole way: the folder is exchanged, the checkpoints lie outside of it in a folder of the user's alone, and
/// it is said once that they are not protected from his own processes.
#[test]
fn a_plain_folder() {
    let user = Someone::new("noatime");
    let before = user.manifest();
    let plan = user.ok(&["--dry-run", "track", user.text()]);
    assert!(plan.to_string().contains("me/.respool"), "{plan}");
    assert!(!user.base().exists());
    let (code, doc, err) = user.answer(&["--yes", "track", user.text()]);
    assert_eq!((code, &doc["vault"]), (Some(0), &"btrfs".into()), "{doc} {err}");
    assert_eq!(err.matches("belong to you").count(), 1, "{err}");
    before.assert_same(&user.manifest(), "tracked");
    let meta = user.base().metadata().expect("the checkpoints");
    assert_eq!((meta.uid(), meta.mode() & 0o7777), (USER, 0o700));
    user.goes_back_and_forth();
    let e = user.fails(3, &["--yes", "track", user.text()]);
    assert!(e.contains("tracked already"), "{e}");
    let before = user.manifest();
    let id = user.ok(&["sandboxes"])[0]["id"]
        .as_str()
        .expect("an id")
        .to_owned();
    user.ok(&["--yes", "untrack", user.text()]);
    before.assert_same(&user.manifest(), "given back");
    user.ok(&["-s", &id, "--yes", "prune"]);
    assert_eq!(user.subvolumes(), 0, "nothing is left");
    let beside: Vec<_> = std::fs::read_dir(user.host.point().join("me"))
        .expect("list")
        .flatten()
        .collect();
    assert_eq!(beside.len(), 2, "{beside:?}");
}

/// Where the state folder is on the same file system, the checkpoints lie there.
#[test]
fn a_home_on_the_same_disk() {
    let user = Someone::at_home("noatime");
    user.ok(&["--yes", "track", user.text()]);
    assert!(user.home.join(".local/state/respool/btrfs/s").is_dir());
    assert!(!user.base().exists());
    user.goes_back_and_forth();
    // two of them are two in the list
    user.shell("mkdir second; echo x > second/x");
    let second = user.host.point().join("me/second");
    let second = second.to_str().expect("UTF-8");
    user.ok(&["--yes", "track", second]);
    assert_eq!(user.ok(&["sandboxes"]).as_array().map(Vec::len), Some(2));
    user.ok(&["-s", second, "checkpoint"]);
    user.ok(&["-s", user.text(), "checkpoint"]);
    // what holds checkpoints is never a workspace
    let state = user.home.join(".local");
    user.fails(3, &["--yes", "track", state.to_str().expect("UTF-8")]);
}

/// P049: a subvolume is adopted where it is; one inside it is named, and stays with its content.
#[test]
fn a_subvolume_with_another_one_inside() {
    let user = Someone::new("user_subvol_rm_allowed");
    user.shell(
        "chmod 700 project/shut; rm -rf project; btrfs -q subvolume create project; btrfs -q subvolume create project/cache; \
                echo i > project/cache/i.txt; echo one > project/f",
    );
    let ino = user.ws.metadata().expect("there").ino();
    user.ok(&["--yes", "track", user.text()]);
    let id = user.checkpoint();
    user.shell("cd project; echo two > f; echo j > cache/i.txt; echo new > g");
    let plan = user.ok(&["-s", user.text(), "--dry-run", "rewind", &id, "--files"]);
    assert!(plan.to_string().contains("cache is not covered"), "{plan}");
    user.ok(&["-s", user.text(), "--yes", "rewind", &id, "--files"]);
    let read = |p: &str| std::fs::read_to_string(user.ws.join(p)).expect("read");
    assert_eq!((read("f"), read("cache/i.txt")), ("one\n".into(), "j\n".into()));
    user.ok(&["-s", user.text(), "--yes", "prune", "--keep", "1"]);
    user.ok(&["--yes", "untrack", user.text()]);
    assert_eq!(
        (user.ws.metadata().expect("there").ino(), read("cache/i.txt")),
        (ino, "j\n".into())
    );
}

/// What the user has no right to is told in the plan, and nothing is changed.
#[test]
fn what_needs_root_is_named_before() {
    let user = Someone::new("noatime");
    std::fs::write(user.ws.join("roots"), "readable").expect("write");
    let before = user.manifest();
    let plan = user.ok(&["--dry-run", "track", user.text()]);
    assert!(
        plan.to_string().contains("roots cannot be copied: needs root"),
        "{plan}"
    );
    let e = user.fails(3, &["--yes", "track", user.text()]);
    assert!(e.contains("roots") && e.contains("--vault copy"), "{e}");
    before.assert_same(&user.manifest(), "nothing was changed");
    assert!(!user.base().exists());
    // a subvolume is not copied: it can be tracked, and the file of another is a blocker only where it must come back
    std::fs::remove_file(user.ws.join("roots")).expect("remove");
    user.ok(&["--yes", "track", user.text()]);
    std::fs::write(user.ws.join("roots"), "readable").expect("write");
    let id = user.checkpoint();
    user.shell("cd project; rm -f roots; echo two > f");
    let before = user.manifest();
    let plan = user.ok(&["-s", user.text(), "--dry-run", "rewind", &id, "--files"]);
    assert!(
        plan.to_string().contains("roots cannot be brought back"),
        "{plan}"
    );
    user.fails(3, &["-s", user.text(), "--yes", "rewind", &id, "--files"]);
    before.assert_same(&user.manifest(), "nothing was changed");
    user.ok(&[
        "-s",
        user.text(),
        "--yes",
        "rewind",
        &id,
        "--files",
        "--path",
        "f",
    ]);
    assert_eq!(std::fs::read_to_string(user.ws.join("f")).expect("read"), "one\n");
}

/// Folders that are not the user's: in one, a workspace cannot be exchanged; another's subvolume has snapshots
/// of its owner's alone; and no place for the checkpoints is one on another's path.
#[test]
fn folders_of_others_are_refused() {
    let user = Someone::new("noatime");
    let lone = user.host.of_user("lone");
    let e = user.fails(3, &["--yes", "track", lone.to_str().expect("UTF-8")]);
    assert!(e.contains("no folder of yours") && e.contains("--pool"), "{e}");
    let pool = user.host.point().join("me");
    let pool = pool.to_str().expect("UTF-8");
    let e = user.fails(
        3,
        &["--yes", "track", lone.to_str().expect("UTF-8"), "--pool", pool],
    );
    assert!(e.contains("may not exchange folders in"), "{e}");
    // a subvolume of the user's own there needs no exchange
    run(
        "btrfs",
        &[
            "-q".as_ref(),
            "subvolume".as_ref(),
            "create".as_ref(),
            user.host.point().join("sub").as_os_str(),
        ],
    );
    let sub = user.host.of_user("sub");
    let sub = sub.to_str().expect("UTF-8");
    let e = user.fails(3, &["--yes", "track", sub, "--pool", sub]);
    assert!(e.contains("lies in the workspace"), "{e}");
    user.ok(&["--yes", "track", sub, "--pool", pool]);
    let id = user.ok(&["-s", sub, "checkpoint"])["checkpoint"]
        .as_str()
        .expect("an id")
        .to_owned();
    user.ok(&["-s", sub, "--yes", "rewind", &id, "--files"]);
    // root's
    let roots = user.host.point().join("roots");
    run(
        "btrfs",
        &[
            "-q".as_ref(),
            "subvolume".as_ref(),
            "create".as_ref(),
            roots.as_os_str(),
        ],
    );
    let e = user.fails(
        3,
        &["--yes", "track", roots.to_str().expect("UTF-8"), "--pool", pool],
    );
    assert!(e.contains("belongs to user 0"), "{e}");
}

/// Killed while a checkpoint is emptied: it is never taken for one that can be used, and the next sweep ends it.
#[test]
fn killed_while_a_checkpoint_is_removed() {
    let user = Someone::new("noatime");
    user.ok(&["--yes", "track", user.text()]);
    for _ in 0..3 {
        user.checkpoint();
    }
    let out = user
        .command()
        .args(["--json", "-s", user.text(), "--yes", "prune", "--keep", "1"])
        .env("RESPOOL_KILL_AT", "checkpoint-moved")
        .output()
        .expect("run");
    assert_eq!(
        std::os::unix::process::ExitStatusExt::signal(&out.status),
        Some(9)
    );
    let id = user.checkpoint();
    user.shell("echo two > project/f");
    user.ok(&["-s", user.text(), "--yes", "rewind", &id, "--files"]);
    let sandbox = std::fs::read_dir(user.base().join("s"))
        .expect("list")
        .flatten()
        .next()
        .expect("one");
    let left = std::fs::read_dir(sandbox.path().join("tmp"))
        .expect("tmp")
        .count();
    assert_eq!(left, 0, "swept");
}

/// Killed anywhere in `track` and in `untrack`: the folder is as it was, or tracked, and nothing is left beside.
#[test]
fn killed_anywhere_while_it_is_tracked_or_given_back() {
    let user = Someone::new("noatime");
    let before = user.manifest();
    let killed = |point: &str, args: &[&str]| {
        let out = user
            .command()
            .args(["--json", "--yes"])
            .args(args)
            .env("RESPOOL_KILL_AT", point)
            .output()
            .expect("run");
        let signal = std::os::unix::process::ExitStatusExt::signal(&out.status);
        assert_eq!(
            signal,
            Some(9),
            "{point}: {}",
            String::from_utf8_lossy(&out.stderr)
        );
    };
    let tracked = || {
        let rows = user.ok(&["sandboxes"]);
        let rows = rows.as_array().expect("rows").clone();
        rows.iter().any(|r| r["tracked"] == true)
    };
    let beside = || {
        let all = std::fs::read_dir(user.host.point().join("me"))
            .expect("list")
            .flatten();
        all.filter(|e| e.file_name().to_string_lossy().starts_with(".respool-sb"))
            .count()
    };
    for point in [
        "sandbox-made",
        "sandbox-recorded",
        "track-begun",
        "aside-made",
        "track-copying",
        "track-copied",
        "track-compared",
        "track-switching",
        "track-exchanged",
        "track-cleaning",
        "track-emptied",
        "track-cleaned",
    ] {
        killed(point, &["track", user.text()]);
        user.ok(&["--yes", "recover"]);
        before.assert_same(&user.manifest(), point);
        assert_eq!(beside(), 0, "{point}");
        if tracked() {
            user.checkpoint();
            user.ok(&["--yes", "untrack", user.text()]);
        }
    }
    for point in [
        "untrack-begun",
        "untrack-applying",
        "untrack-copied",
        "untrack-read-only",
        "untrack-switching",
        "untrack-exchanged",
        "untrack-cleaning",
        "untrack-cleaned",
    ] {
        if !tracked() {
            user.ok(&["--yes", "track", user.text()]);
        }
        killed(point, &["untrack", user.text()]);
        user.ok(&["--yes", "recover"]);
        before.assert_same(&user.manifest(), point);
        assert_eq!(beside(), 0, "{point}");
        if tracked() {
            user.checkpoint();
        }
    }
}

/// The workspace was removed as a whole (`rm -rf`), or moved: an empty one takes the place of the first, and all comes
/// back; the second is named, and nothing is made.
#[test]
fn a_workspace_that_was_removed_or_moved() {
    let user = Someone::new("noatime");
    user.ok(&["--yes", "track", user.text()]);
    let id = user.checkpoint();
    let before = user.manifest();
    user.shell("mv project away");
    let e = user.fails(3, &["-s", user.text(), "--yes", "rewind", &id, "--files"]);
    assert!(e.contains("me/away") && !user.ws.exists(), "{e}");
    user.shell("mv away project; chmod 700 project/shut; rm -rf project");
    assert!(!user.ws.exists());
    let (code, doc, err) = user.answer(&["-s", user.text(), "changes", &id, "now"]);
    assert_eq!(code, Some(0), "{doc} {err}");
    assert!(
        err.contains("was removed: an empty folder is in its place"),
        "{err}"
    );
    user.ok(&["-s", user.text(), "--yes", "rewind", &id, "--files"]);
    before.assert_same(&user.manifest(), "back");
}

/// The agent's hook takes its checkpoint as the user: no root, no service.
#[test]
fn the_hook_needs_no_root() {
    let user = Someone::new("noatime");
    user.ok(&["--yes", "track", user.text()]);
    let input = serde_json::json!({"event_type": "UserPromptSubmit", "message": "go on", "working_dir": user.text(),
        "session_id": "11111111-2222-4333-8444-555555555555"});
    let mut command = user.command();
    command.args(["hook", "openhands"]);
    let out = crate::common::with_input(command, input.to_string().as_bytes());
    let said = String::from_utf8_lossy(&out.stdout).into_owned();
    assert!(
        out.status.success() && said.contains("respool: checkpoint cp-"),
        "{said}"
    );
}

/// A workspace for each conversation, without root and without the service.
#[test]
fn each_conversation_has_a_workspace_of_its_own() {
    let user = Someone::new("noatime");
    let before = user.manifest();
    user.ok(&["--yes", "track", "--per-conversation", user.text()]);
    let open = |id: &str| {
        let doc = user.ok(&["--yes", "track", "--per-conversation", user.text(), "-c", id]);
        PathBuf::from(doc["path"].as_str().expect("a path"))
    };
    let (a, b) = (open("conv-a"), open("conv-b"));
    before.assert_same(&Manifest::of(&a), "a clone");
    user.shell("cd project.workspaces; echo two > conv-a/f; echo three > conv-b/f");
    let done = user.ok(&[
        "--yes",
        "-s",
        a.to_str().expect("UTF-8"),
        "rewind",
        "start",
        "--files",
    ]);
    assert_eq!(done["verified"], true, "{done}");
    before.assert_same(&Manifest::of(&a), "rewound");
    assert_eq!(std::fs::read_to_string(b.join("f")).expect("f"), "three\n");
    user.ok(&["--yes", "untrack", b.to_str().expect("UTF-8")]);
    assert_eq!(std::fs::read_to_string(b.join("f")).expect("f"), "three\n");
}
