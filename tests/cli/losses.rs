//! What must never be lost by going back: the user's own results, other projects in the same folder, files that
//! the agent's changes made look like rubbish. On both vaults.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::lab::Lab;
use crate::plans::{turn_ends, typed};
use crate::screen::Screen;

/// A lab on each vault.
fn both(fill: impl Fn(&Path)) -> [(&'static str, Lab); 2] {
    [("btrfs", Lab::new(&fill)), ("copy", Lab::copies(&fill))]
}

fn paths(list: &Value) -> Vec<&str> {
    let rows = list.as_array().expect("rows");
    rows.iter().filter_map(|r| r["path"].as_str()).collect()
}

/// P015: results that the user made before are not touched, whatever git would call them: not their inodes, not
/// their times, not even the times of their folder.
#[test]
fn p015_results_that_git_does_not_know_are_untouched_by_a_rewind() {
    for (vault, lab) in both(|ws| {
        std::fs::create_dir(ws.join("output")).expect("folder");
        for i in 0..100 {
            std::fs::write(ws.join(format!("output/{i}.bin")), vec![i; 4096]).expect("write");
        }
        std::fs::write(ws.join("a.py"), "one").expect("write");
        for args in [&["init", "-q"][..], &["add", "a.py"]] {
            let git = std::process::Command::new("git")
                .args(args)
                .current_dir(ws)
                .status();
            assert!(git.expect("git").success());
        }
    }) {
        lab.message(1);
        let look = || -> Vec<(u64, i64, i64, i64, i64)> {
            let names = std::fs::read_dir(lab.at("output")).expect("output");
            let mut all: Vec<PathBuf> = names.map(|e| e.expect("entry").path()).collect();
            all.sort();
            all.push(lab.at("output"));
            assert_eq!(all.len(), 101, "{vault}");
            let fact = |p: &PathBuf| {
                let m = p.metadata().expect("stat");
                (m.ino(), m.mtime(), m.mtime_nsec(), m.ctime(), m.ctime_nsec())
            };
            all.iter().map(fact).collect()
        };
        let (before, tree) = (look(), lab.manifest());
        lab.write("a.py", "two");
        for step in ["rewind", "undo", "redo"] {
            let args: &[&str] = if step == "rewind" {
                &["--yes", "rewind", "1", "--files"]
            } else {
                &["--yes", step]
            };
            assert_eq!(lab.ok(args)["verified"], true, "{vault} {step}");
            assert_eq!(look(), before, "{vault} {step}");
        }
        tree.assert_same(&lab.manifest(), vault);
    }
}

/// The conversation's own folder is one of two projects in the workspace.
fn two_projects(ws: &Path) {
    for p in ["p1", "p2"] {
        std::fs::create_dir_all(ws.join(p)).expect("folder");
        std::fs::write(ws.join(p).join("old"), p).expect("write");
    }
}

/// The agent works in that folder of the workspace.
fn works_in(lab: &Lab, folder: &str) {
    let file = lab.store().join("base_state.json");
    let mut base: Value = serde_json::from_slice(&std::fs::read(&file).expect("state")).expect("JSON");
    base["workspace"]["working_dir"] = json!(lab.at(folder));
    std::fs::write(file, base.to_string()).expect("state");
}

fn message_in(lab: &Lab, folder: &str, n: usize) {
    lab.cut(&lab.store(), n);
    works_in(lab, folder);
    lab.ok(&["checkpoint", "--message", &n.to_string()]);
}

/// P017: a rewind of a conversation in one project names every path of the other that it would change, in the
/// plan of the command and in that of the screens; and it can be told to leave the other alone.
#[test]
fn p017_other_projects_in_the_workspace_are_in_the_plan() {
    for (vault, lab) in both(two_projects) {
        message_in(&lab, "p1", 1);
        lab.write("p1/old", "by the agent");
        lab.write("p2/old", "mine");
        lab.write("p2/new/file", "mine too");
        let before = lab.manifest();
        let plan = lab.ok(&["--dry-run", "rewind", "1", "--files"]);
        let listed = paths(&plan["plan"]["changes"]);
        assert_eq!(
            listed,
            ["p1/old", "p2/new", "p2/new/file", "p2/old"],
            "{vault}: {plan}"
        );
        let store = lab.store();
        let asked = lab.bare(&["-c", store.to_str().expect("UTF-8"), "rewind", "1", "--files"]);
        assert_eq!(asked.code, Some(3), "{vault}");
        for path in listed {
            assert!(asked.err.contains(path), "{vault}: {path}: {}", asked.err);
        }
        let mut screen = Screen::open(&lab, &[]);
        screen.keys("r");
        screen.wait("Rewind to");
        for path in ["p1/old", "p2/new/file", "p2/old"] {
            screen.wait(path);
        }
        screen.keys("\x1b");
        screen.gone("Rewind to");
        screen.quit();
        before.assert_same(&lab.manifest(), "only looked at");
        lab.ok(&["--yes", "rewind", "1", "--files", "--path", "p1"]);
        assert_eq!(
            (lab.read("p1/old"), lab.read("p2/old"), lab.read("p2/new/file")),
            ("p1".into(), "mine".into(), "mine too".into()),
            "{vault}"
        );
    }
}

/// P025: a rewind of the session's folder leaves the one beside it, which the user has changed, as it is.
#[test]
fn p025_a_rewind_of_one_folder_leaves_the_others() {
    for (vault, lab) in both(|ws| {
        for d in ["frontend", "backend"] {
            std::fs::create_dir(ws.join(d)).expect("folder");
            std::fs::write(ws.join(d).join("x"), "old").expect("write");
        }
    }) {
        message_in(&lab, "frontend", 1);
        let front = crate::manifest::Manifest::of(&lab.at("frontend"));
        lab.write("frontend/x", "agent");
        lab.write("frontend/made/y", "agent");
        lab.write("backend/x", "user");
        lab.write("backend/z", "user");
        let back = crate::manifest::Manifest::of(&lab.at("backend"));
        let mut c = lab.command();
        // from within the folder, relative to it
        let out = c
            .args(["--json", "--yes", "rewind", "1", "--files", "--path", "."])
            .current_dir(lab.at("frontend"))
            .output()
            .expect("run");
        let a = crate::lab::Answer::of(out);
        assert_eq!(a.code, Some(0), "{vault}: {} {}", a.text(), a.err);
        front.assert_same(&crate::manifest::Manifest::of(&lab.at("frontend")), vault);
        back.assert_same(&crate::manifest::Manifest::of(&lab.at("backend")), vault);
        lab.ok(&["--yes", "undo"]);
        assert_eq!(lab.read("frontend/x"), "agent", "{vault}");
        back.assert_same(&crate::manifest::Manifest::of(&lab.at("backend")), vault);
    }
}

/// P018: a file of the user's in a folder that only the agent's ignore file protected: its deletion is listed as
/// the user's own and needs the word, and it is in the safety checkpoint.
#[test]
fn p018_what_an_ignore_file_protected_is_asked_for_and_kept() {
    for (vault, lab) in both(|ws| std::fs::write(ws.join(".gitignore"), "").expect("write")) {
        lab.message(1);
        lab.write(".gitignore", "secrets/\n");
        lab.write("secrets/k", "agent");
        turn_ends(&lab);
        lab.write("secrets/mine", "precious");
        let plan = lab.ok(&["--dry-run", "rewind", "1", "--files"]);
        assert_eq!(plan["plan"]["yours"], json!(["secrets/mine"]), "{vault}: {plan}");
        let rows = plan["plan"]["changes"].as_array().expect("rows");
        let row = rows.iter().find(|r| r["path"] == "secrets/mine");
        assert_eq!(row.expect("listed")["kind"], "added", "{vault}: {plan}");
        let store = lab.store();
        let args = ["-c", store.to_str().expect("UTF-8"), "rewind", "1", "--files"];
        assert_eq!(lab.bare(&args).code, Some(3), "{vault}");
        let a = typed(&lab, &args, "y\n");
        assert_eq!(a.code, Some(130), "{vault}: {}", a.text());
        assert!(
            a.text().contains("secrets/mine")
                && a.text().contains("YOURS")
                && a.text().contains("type rewind:"),
            "{vault}: {}",
            a.text()
        );
        assert_eq!(lab.read("secrets/mine"), "precious", "{vault}");
        // the screens ask for the word as well
        let mut screen = Screen::open(&lab, &[]);
        screen.keys("r");
        screen.wait("your own edit");
        screen.wait("type rewind");
        screen.keys("y");
        screen.keys("\x1b");
        screen.gone("your own edit");
        screen.quit();
        assert_eq!(lab.read("secrets/mine"), "precious", "{vault}");
        // left where it is, if so wished
        let done = lab.ok(&["--yes", "rewind", "1", "--files", "--keep-mine"]);
        assert_eq!(lab.read("secrets/mine"), "precious", "{vault}: {done}");
        assert!(!lab.at("secrets/k").exists(), "{vault}: {done}");
        lab.ok(&["--yes", "undo"]);
        let done = lab.ok(&["--yes", "rewind", "1", "--files"]);
        assert!(!lab.at("secrets").exists(), "{vault}");
        let safety = done["safety"].as_str().expect("an id");
        assert_eq!(
            lab.ok(&["cat", safety, "secrets/mine"])["text"],
            "precious",
            "{vault}"
        );
        lab.ok(&["--yes", "undo"]);
        assert_eq!(lab.read("secrets/mine"), "precious", "{vault}");
    }
}

/// P031: the early events of the conversation were archived: its files still go back, by the snapshot, and
/// nothing is deleted for want of an event.
#[test]
fn p031_a_condensed_conversation_goes_back_by_its_snapshots() {
    for (vault, lab) in both(|ws| std::fs::write(ws.join("before"), "kept").expect("write")) {
        let mut ids = Vec::new();
        let mut states = Vec::new();
        for n in 1..=3 {
            ids.push(lab.message(n));
            states.push(lab.manifest());
            lab.write(format!("made{n}"), "x");
            lab.write("before", format!("turn {n}"));
        }
        // the events of the first two messages and their turns leave the store
        let events = lab.store().join("events");
        let mut names: Vec<PathBuf> = std::fs::read_dir(&events)
            .expect("events")
            .map(|e| e.expect("entry").path())
            .collect();
        names.sort();
        let archive = lab.dir().join("archive");
        std::fs::create_dir(&archive).expect("folder");
        let third = crate::lab::CUTS[2];
        for event in &names[..third] {
            std::fs::rename(event, archive.join(event.file_name().expect("name"))).expect("rename");
        }
        let a = lab.run(&["timeline", lab.store().to_str().expect("UTF-8")]);
        assert!(matches!(a.code, Some(0 | 5)), "{vault}: {} {}", a.text(), a.err);
        for n in [2, 1, 0, 2] {
            let done = lab.ok(&["-s", lab.ws_text(), "--yes", "rewind", &ids[n], "--files"]);
            assert_eq!(done["verified"], true, "{vault}: {done}");
            states[n].assert_same(&lab.manifest(), &format!("{vault}, checkpoint {n}"));
        }
        // also where the conversation is named, as by a script that has the id from its log
        if a.code == Some(0) {
            lab.ok(&["--yes", "rewind", &ids[0], "--files"]);
            states[0].assert_same(&lab.manifest(), vault);
        }
        // and where the store is gone altogether
        std::fs::remove_dir_all(lab.store()).expect("remove");
        lab.ok(&["-s", lab.ws_text(), "--yes", "rewind", &ids[1], "--files"]);
        states[1].assert_same(&lab.manifest(), vault);
    }
}

/// A folder of the agent's with files of the user's in it, whichever way it changed: `--keep-mine` leaves each of
/// the user's as it is and takes the agent's back; `--only-turn` leaves what others did in the turn's folders.
#[test]
fn p018_nothing_of_the_users_goes_with_the_folder_around_it() {
    for (vault, lab) in both(|ws| {
        for d in ["chmodded", "deleted", "moved"] {
            std::fs::create_dir(ws.join(d)).expect("folder");
            for f in ["a", "b"] {
                std::fs::write(ws.join(d).join(f), "old").expect("write");
            }
        }
    }) {
        lab.message(1);
        lab.write("made/deep/agents", "agent");
        turn_ends(&lab);
        lab.write("made/deep/users", "mine");
        lab.write("chmodded/a", "mine");
        std::fs::remove_file(lab.at("deleted/a")).expect("remove");
        lab.write("moved/a", "mine");
        lab.message(2);
        crate::rounds::mode(&lab.at("chmodded"), 0o700);
        lab.write("chmodded/b", "agent");
        std::fs::remove_dir_all(lab.at("deleted")).expect("remove");
        std::fs::rename(lab.at("moved"), lab.at("elsewhere")).expect("rename");
        lab.write("made/deep/second", "agent");
        turn_ends(&lab);
        let after = lab.manifest();
        let plan = lab.ok(&["--dry-run", "rewind", "1", "--files", "--keep-mine"]);
        let done = lab.ok(&["--yes", "rewind", "1", "--files", "--keep-mine"]);
        assert_eq!(done["verified"], true, "{vault}");
        let said = format!("{vault}: {plan}");
        assert_eq!(lab.read("made/deep/users"), "mine", "{said}");
        assert_eq!(
            (lab.read("chmodded/a"), lab.read("chmodded/b")),
            ("mine".into(), "old".into()),
            "{said}"
        );
        assert!(
            !lab.at("made/deep/agents").exists() && !lab.at("made/deep/second").exists(),
            "{said}"
        );
        assert!(!lab.at("deleted/a").exists(), "the user removed it: {said}");
        assert_eq!(lab.read("deleted/b"), "old", "{said}");
        let moved = ["moved/a", "elsewhere/a"].map(|p| std::fs::read_to_string(lab.at(p)).ok());
        assert!(moved.contains(&Some("mine".into())), "{moved:?} {said}");
        lab.ok(&["--yes", "undo"]);
        after.assert_same(&lab.manifest(), vault);
        // the first turn alone: what came into its folder later is not its
        lab.ok(&["--yes", "rewind", "1", "--files", "--only-turn"]);
        assert!(!lab.at("made/deep/agents").exists(), "{vault}");
        assert_eq!(
            (lab.read("made/deep/users"), lab.read("made/deep/second")),
            ("mine".into(), "agent".into()),
            "{vault}"
        );
        lab.ok(&["--yes", "undo"]);
        after.assert_same(&lab.manifest(), vault);
    }
}
