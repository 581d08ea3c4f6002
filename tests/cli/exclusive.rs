//! `track --per-conversation`: each conversation has a clone of the template, with checkpoints of its own. P118: what
//! one conversation does, and its rewind, never touches another's work.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use serde_json::Value;

use crate::common::wait_until;
use crate::kill::Then;
use crate::lab::{Answer, Lab, SOON, cut, error_text};
use crate::manifest::Manifest;
use crate::rounds::rich;
use crate::run::script;

/// SIGKILL at each of them while a clone is made in the pool, and while it is made beside the template.
pub const CLONE: &[&str] = &[
    "sandbox-made",
    "sandbox-filled",
    "sandbox-recorded",
    "clone-begun",
    "clone-made",
    "checkpoint-made",
    "checkpoint-recorded",
    "checkpoint-taken",
    "clone-switching",
    "clone-sealed",
    "clone-shown",
];
pub const CLONE_BESIDE: &[&str] = &[
    "sandbox-made",
    "sandbox-recorded",
    "clone-begun",
    "clone-made",
    "clone-switching",
    "clone-exchanged",
    "checkpoint-made",
    "checkpoint-taken",
    "clone-shown",
];

fn ask(lab: &Lab, args: &[&str]) -> Answer {
    lab.bare(&[&["--json", "--yes"], args].concat())
}

fn ok(lab: &Lab, args: &[&str]) -> Value {
    let a = ask(lab, args);
    assert_eq!(a.code, Some(0), "{args:?}: {}\n{}", a.text(), a.err);
    a.json()
}

fn refused(lab: &Lab, args: &[&str]) -> String {
    let a = ask(lab, args);
    assert_eq!(a.code, Some(3), "{args:?}: {}\n{}", a.text(), a.err);
    error_text(&a.json(), 3)
}

/// The workspace is a template now, with a folder that its clones share.
fn template(lab: &Lab) -> Value {
    let args = [
        "track",
        "--per-conversation",
        "--shared",
        "archive",
        "--size",
        "512M",
    ];
    ok(lab, &[&args[..], &[lab.ws_text()]].concat())
}

/// The workspace of a conversation, opened.
fn open(lab: &Lab, id: &str) -> (PathBuf, Value) {
    let doc = ok(lab, &["track", "--per-conversation", lab.ws_text(), "-c", id]);
    (doc["path"].as_str().expect("a path").into(), doc)
}

fn text(path: &Path) -> &str {
    path.to_str().expect("UTF-8")
}

fn two_of_them(lab: &Lab) {
    let doc = template(lab);
    assert_eq!(doc["per_conversation"], true, "{doc}");
    let before = lab.manifest();
    let (a, made) = open(lab, "conv-a");
    let (b, _) = open(lab, "conv-b");
    assert_eq!(
        (&made["made"], &made["template"]),
        (&true.into(), &doc["sandbox"])
    );
    assert_eq!(a, PathBuf::from(format!("{}.workspaces/conv-a", lab.ws_text())));
    for clone in [&a, &b] {
        before.assert_same(&Manifest::of(clone), "a clone is what the template is");
    }
    // each does its work, at the same names
    for (clone, word) in [(&a, "a"), (&b, "b")] {
        ok(lab, &["-s", text(clone), "checkpoint"]);
        std::fs::write(clone.join("both"), word).expect("write");
        std::fs::write(clone.join("../archive").join(word), word).expect("write");
    }
    let of_b = Manifest::of(&b);
    let outcome = ok(lab, &["-s", text(&a), "rewind", "start", "--files"]);
    assert_eq!(outcome["verified"], true, "{outcome}");
    before.assert_same(&Manifest::of(&a), "the one that went back");
    of_b.assert_same(&Manifest::of(&b), "the other");
    before.assert_same(&lab.manifest(), "the template");
    let shared = a.parent().expect("parent").join("archive");
    assert_eq!(std::fs::read_to_string(shared.join("a")).expect("shared"), "a");
    // what is in no checkpoint is said
    let taken = ok(lab, &["-s", text(&a), "checkpoint"]);
    let parts = taken["parts"].as_array().expect("parts");
    let said =
        |p: &Value| p["covered"] == false && p["path"].as_str().expect("path").ends_with("/../archive");
    assert!(parts.iter().any(said), "{taken}");
    // the one that is there is opened, not made anew
    let (again, doc) = open(lab, "conv-b");
    assert_eq!((again, &doc["made"]), (b.clone(), &false.into()));
    of_b.assert_same(&Manifest::of(&b), "opened again");
    // what the template is now goes into those that begin now
    lab.write("later", "x");
    let (c, _) = open(lab, "conv-c");
    assert!(c.join("later").exists() && !b.join("later").exists());
    let rows = ok(lab, &["sandboxes"]);
    let row = |path: &Path| {
        let rows = rows.as_array().expect("rows").iter();
        let mut fit = rows.filter(|r| r["path"] == text(path));
        fit.next()
            .unwrap_or_else(|| panic!("{rows_text}", rows_text = path.display()))
            .clone()
    };
    assert_eq!(row(lab.ws())["per_conversation"], true);
    assert_eq!(row(&b)["conversation"], "conv-b");
    assert_eq!(row(&b)["template"], row(lab.ws())["id"]);
    // given back: the clone a plain folder, the template only when no clone is left
    let said = refused(lab, &["untrack", lab.ws_text()]);
    assert!(
        said.contains("cloned from it") && said.contains("give it back first"),
        "{said}"
    );
    for clone in [&a, &b, &c] {
        let before = Manifest::of(clone);
        ok(lab, &["untrack", text(clone)]);
        before.assert_same(&Manifest::of(clone), "given back");
    }
    let said = refused(
        lab,
        &["track", "--per-conversation", lab.ws_text(), "-c", "conv-a"],
    );
    assert!(said.contains("is not empty"), "{said}");
    ok(lab, &["untrack", lab.ws_text()]);
    assert_eq!(lab.leftovers(), Vec::<String>::new());
}

#[test]
fn p118_one_conversations_rewind_never_touches_anothers_work() {
    two_of_them(&Lab::plain(rich));
    two_of_them(&Lab::on_btrfs(rich));
    two_of_them(&Lab::on_subvolume(rich));
}

#[test]
fn clones_are_shown_again_after_a_restart() {
    let lab = Lab::plain(rich);
    template(&lab);
    let (a, _) = open(&lab, "conv-a");
    std::fs::write(a.join("mine"), "x").expect("write");
    let before = Manifest::of(&a);
    lab.reboot();
    assert!(!a.join("mine").exists(), "the stub is empty");
    std::fs::write(a.join("lost"), "x").expect_err("nothing can be written there");
    ok(&lab, &["pool", "mount"]);
    before.assert_same(&Manifest::of(&a), "shown again");
}

fn killed(lab: &Lab, points: &[&str], then: Then) {
    template(lab);
    let before = lab.manifest();
    let (other, _) = open(lab, "other");
    let of_other = Manifest::of(&other);
    let folder = other.parent().expect("parent").to_owned();
    for (n, point) in points.iter().enumerate() {
        let what = format!("killed at {point}, then {then:?}");
        let id = format!("c{n}");
        let args = ["--yes", "track", "--per-conversation", lab.ws_text(), "-c", &id];
        assert!(lab.killed_at(point, &args), "{what}: it did not come there");
        if then == Then::Reboot {
            lab.reboot();
        }
        if then != Then::Write {
            ok(lab, &["recover"]);
            ok(lab, &["pool", "mount"]);
        }
        let tracked = |path: &Path| {
            let rows = ok(lab, &["sandboxes"]);
            let rows = rows.as_array().expect("rows");
            let unmade = rows.iter().filter(|r| r["tracked"] != true).count();
            assert_eq!(unmade, 0, "{what}: {rows:?}");
            rows.iter()
                .any(|r| r["path"] == text(path) && r["mounted"] == true)
        };
        let path = folder.join(&id);
        if then != Then::Write {
            assert_eq!(path.exists(), tracked(&path), "{what}: there, or not at all");
        }
        let (opened, _) = open(lab, &id);
        assert!(tracked(&opened), "{what}");
        before.assert_same(&Manifest::of(&opened), &what);
        std::fs::write(opened.join("mine"), "x").expect("write");
        ok(lab, &["-s", text(&opened), "rewind", "start", "--files"]);
        before.assert_same(&Manifest::of(&opened), &what);
        before.assert_same(&lab.manifest(), &what);
        of_other.assert_same(&Manifest::of(&other), &what);
        let left = std::fs::read_dir(&folder).expect("folder").flatten();
        let left: Vec<_> = left
            .map(|e| e.file_name())
            .filter(|n| n.as_encoded_bytes()[0] == b'.')
            .collect();
        assert!(left.is_empty(), "{what}: {left:?}");
    }
}

#[test]
fn a_clone_killed_anywhere_then_recover() {
    killed(&Lab::plain(rich), CLONE, Then::Recover);
    killed(&Lab::on_btrfs(rich), CLONE_BESIDE, Then::Recover);
}
#[test]
fn a_clone_killed_anywhere_then_opened_again() {
    killed(&Lab::plain(rich), CLONE, Then::Write);
    killed(&Lab::on_btrfs(rich), CLONE_BESIDE, Then::Write);
}
#[test]
fn a_clone_killed_anywhere_then_a_restart() {
    killed(&Lab::plain(rich), CLONE, Then::Reboot);
    killed(&Lab::on_btrfs(rich), CLONE_BESIDE, Then::Reboot);
}

#[test]
fn names_and_folders_that_are_no_workspace_are_refused() {
    let lab = Lab::plain(rich);
    template(&lab);
    let folder = PathBuf::from(format!("{}.workspaces", lab.ws_text()));
    std::os::unix::fs::symlink(lab.dir(), folder.join("link")).expect("link");
    std::fs::create_dir(folder.join("full")).expect("mkdir");
    std::fs::write(folder.join("full/mine"), "x").expect("write");
    std::fs::create_dir(folder.join("theirs")).expect("mkdir");
    std::os::unix::fs::chown(folder.join("theirs"), Some(12345), None).expect("chown");
    for (name, why) in [
        ("../x", "cannot be the name"),
        (".hidden", "cannot be the name"),
        ("a\u{1b}[2J", "cannot be the name"),
        ("link", "a link or no folder"),
        ("full", "not empty"),
        ("theirs", "belongs to user 12345"),
        ("archive", "is the shared folder"),
    ] {
        let said = refused(&lab, &["track", "--per-conversation", lab.ws_text(), "-c", name]);
        assert!(said.contains(why) && !said.contains('\u{1b}'), "{name}: {said}");
    }
    // an empty folder of the owner's, as an agent server makes it, becomes the workspace
    std::fs::create_dir(folder.join("empty")).expect("mkdir");
    let (empty, _) = open(&lab, "empty");
    lab.manifest().assert_same(&Manifest::of(&empty), "made before");
    let said = refused(&lab, &["track", "--per-conversation", text(&empty)]);
    assert!(said.contains("is the workspace of a conversation"), "{said}");
    let rows = ok(&lab, &["sandboxes"]);
    assert_eq!(rows.as_array().expect("rows").len(), 2, "{rows}");
}

#[test]
fn copies_cannot_be_cloned() {
    let lab = Lab::copies(rich);
    let said = refused(&lab, &["track", "--per-conversation", lab.ws_text()]);
    assert!(said.contains("has copies"), "{said}");
    let said = refused(
        &lab,
        &["track", "--per-conversation", lab.ws_text(), "--vault", "copy"],
    );
    assert!(said.contains("copies cannot do that"), "{said}");
}

#[test]
fn a_dry_run_makes_nothing() {
    let lab = Lab::plain(rich);
    for tracked in [false, true] {
        let args = [
            "--dry-run",
            "track",
            "--per-conversation",
            lab.ws_text(),
            "-c",
            "x",
            "--size",
            "512M",
        ];
        let plan = ok(&lab, &args)["plan"].clone();
        let steps = plan["steps"].to_string();
        assert!(
            steps.contains("give each conversation a clone of it") && steps.contains("workspaces/x"),
            "{plan}"
        );
        assert!(!PathBuf::from(format!("{}.workspaces", lab.ws_text())).exists());
        if !tracked {
            lab.track();
        }
    }
}

/// P118: two agents that are started in the same folder work in two.
#[test]
fn run_starts_each_agent_in_a_clone_and_says_where() {
    let lab = Lab::plain(|ws| std::fs::create_dir(ws.join("sub")).expect("mkdir"));
    template(&lab);
    let agent = lab.dir().join("openhands");
    script(&agent, "pwd >> ../made; pwd; echo x > mine\n");
    let mut seen = Vec::new();
    for _ in 0..2 {
        let mut c = lab.command();
        let out = c
            .args(["run", "--", text(&agent)])
            .current_dir(lab.at("sub"))
            .stdin(Stdio::null())
            .output();
        let a = Answer::of(out.expect("run"));
        assert_eq!(a.code, Some(0), "{}", a.err);
        let at = PathBuf::from(a.text().trim());
        let clone = at.parent().expect("parent");
        assert!(
            at.ends_with("sub") && clone.starts_with(format!("{}.workspaces", lab.ws_text())),
            "{at:?}"
        );
        assert!(
            a.err
                .contains(&format!("starts in a fresh clone of {}", lab.ws_text())),
            "{}",
            a.err
        );
        assert!(
            a.err
                .contains(&format!("look: cd {} && respool", clone.display())),
            "{}",
            a.err
        );
        assert!(at.join("mine").exists());
        seen.push(at);
    }
    assert_ne!(seen[0], seen[1]);
    assert!(!lab.at("sub/mine").exists(), "the template is as it was");
    // a conversation that is named goes on in its own
    let id = seen[0]
        .parent()
        .and_then(Path::file_name)
        .expect("name")
        .to_str()
        .expect("UTF-8");
    let mut c = lab.command();
    let out = c
        .args(["-c", id, "run", "--", text(&agent)])
        .current_dir(lab.ws())
        .stdin(Stdio::null())
        .output();
    let a = Answer::of(out.expect("run"));
    assert!(a.err.contains("goes on in its clone"), "{}", a.err);
    assert_eq!(a.text().trim(), text(seen[0].parent().expect("parent")));
}

/// Ends the watcher, also when the test fails.
struct Watcher(std::process::Child);

impl Drop for Watcher {
    fn drop(&mut self) {
        let pid = rustix::process::Pid::from_child(&self.0);
        let _gone = rustix::process::kill_process(pid, rustix::process::Signal::INT);
        let ended = wait_until(SOON, || self.0.try_wait().is_ok_and(|s| s.is_some()));
        assert!(ended || std::thread::panicking(), "the watcher does not end");
    }
}

/// The watcher of the template takes the checkpoints of all its clones.
#[test]
fn the_watcher_of_the_template_follows_the_clones() {
    let lab = Lab::plain(rich);
    template(&lab);
    let (a, doc) = open(&lab, "conv-a");
    let store = lab
        .dir()
        .join("home/.openhands/conversations/22222222222243338444555555555555");
    let events = lab.dir().join("events.jsonl");
    let said = std::fs::File::create(&events).expect("a file");
    let mut c = lab.command();
    c.args(["--json", "-s", lab.ws_text(), "watch"]).stdout(said);
    let _watcher = Watcher(c.spawn().expect("watch"));
    let seen = |event: &str, sandbox: &Value| {
        let text = std::fs::read_to_string(&events).expect("events");
        let all = text.lines().filter_map(|l| serde_json::from_str::<Value>(l).ok());
        let mut fit = all.filter(|e| e["event"] == event && (sandbox.is_null() || e["sandbox"] == *sandbox));
        fit.next()
    };
    assert!(wait_until(SOON, || seen("waiting", &Value::Null).is_some()));
    std::fs::create_dir_all(store.join("events")).expect("folders");
    cut(&store, 0, text(&a));
    let followed = || seen("watching", &doc["sandbox"]).is_some();
    assert!(
        wait_until(SOON, followed),
        "{:?}",
        std::fs::read_to_string(&events)
    );
    cut(&store, 1, text(&a));
    let taken = || seen("checkpoint", &Value::Null);
    assert!(
        wait_until(SOON, || taken().is_some()),
        "{:?}",
        std::fs::read_to_string(&events)
    );
    let id = taken().expect("a checkpoint")["checkpoint"]
        .as_str()
        .expect("id")
        .to_owned();
    let list = ok(&lab, &["-s", text(&a), "checkpoints"]);
    assert!(list.to_string().contains(&id), "{list}");
}

/// P049: a subvolume inside the template is in no snapshot of it. It is said, and its place can be written to.
#[test]
fn p049_what_of_the_template_is_not_in_a_clone_is_said() {
    let lab = Lab::plain(rich);
    template(&lab);
    let made = std::process::Command::new("btrfs")
        .args(["subvolume", "create"])
        .arg(lab.at("nested"))
        .output();
    assert!(made.expect("btrfs").status.success());
    lab.write("nested/i.txt", "x");
    let a = ask(
        &lab,
        &["track", "--per-conversation", lab.ws_text(), "-c", "conv-a"],
    );
    assert_eq!(a.code, Some(0), "{}", a.err);
    assert!(a.err.contains("nested is not in the clone"), "{}", a.err);
    let path = PathBuf::from(a.json()["path"].as_str().expect("a path"));
    assert!(!path.join("nested/i.txt").exists());
    std::fs::write(path.join("nested/own"), "x").expect("it is a folder like any other");
    ok(&lab, &["-s", text(&path), "rewind", "start", "--files"]);
    assert!(!path.join("nested/own").exists());
}
