//! What copies leave out, from outside.

use std::path::Path;

use serde_json::Value;

use crate::config::{config, fill, with};
use crate::lab::{Answer, Lab};

fn kind_of(doc: &Value, path: &str) -> Option<String> {
    let rows = doc.as_array().expect("rows").iter();
    let mut found = rows.filter(|r| r["path"] == path);
    found
        .next()
        .and_then(|r| r["kind"].as_str())
        .map(ToOwned::to_owned)
}

/// Tracked with copies, under this config, which is not used by later commands unless they name it.
fn tracked(fill: impl FnOnce(&Path), text: &str) -> (Lab, String) {
    let lab = Lab::plain(fill);
    let file = config(&lab, text);
    let words = [
        "--json",
        "--config",
        &file,
        "--dry-run",
        "track",
        lab.ws_text(),
        "--vault",
        "copy",
    ];
    let plan = Answer::of(lab.command().args(words).output().expect("run")).json();
    assert!(
        plan["plan"]["steps"].to_string().contains("leave out what fits"),
        "{plan}"
    );
    let mut c = lab.command();
    let words = [
        "--config",
        &file,
        "--yes",
        "track",
        lab.ws_text(),
        "--vault",
        "copy",
    ];
    let out = c.args(words).output().expect("run");
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    (lab, file)
}

const LEAVES_OUT: &str = "[sandbox]\nexclude = [\"node_modules/\", \"*.log\"]\ninclude = [\"keep.log\"]\n";

fn with_modules(ws: &Path) {
    std::fs::create_dir_all(ws.join("app/node_modules/x")).expect("folders");
    for (path, text) in [
        ("app/node_modules/x/y", "1"),
        ("app/main", "main"),
        ("a.log", "log"),
        ("keep.log", "kept"),
    ] {
        std::fs::write(ws.join(path), text).expect("write");
    }
}

/// What is left out is in no checkpoint, and named.
#[test]
fn what_is_left_out_is_in_no_checkpoint_and_named() {
    let (lab, file) = tracked(with_modules, LEAVES_OUT);
    let a = with(&lab, &file, &["checkpoint"], &[]);
    let id = a.json()["checkpoint"].as_str().expect("an id").to_owned();
    let parts = a.json()["parts"].to_string();
    assert!(
        parts.contains("app/node_modules") && parts.contains("left out by exclude"),
        "{parts}"
    );
    let ls = lab.ok(&["-s", lab.ws_text(), "ls", &id]).to_string();
    assert!(ls.contains("keep.log") && !ls.contains("a.log"), "{ls}");
    lab.fails(4, &["-s", lab.ws_text(), "cat", &id, "a.log"]);
    lab.fails(4, &["-s", lab.ws_text(), "cat", &id, "app/node_modules/x/y"]);
    // a path that is left out is not asked for in vain
    let path = ["--path", "app/node_modules"];
    let rewind = ["-s", lab.ws_text(), "--yes", "rewind", &id, "--files"];
    let said = lab.fails(3, &[&rewind[..], &path[..]].concat());
    assert!(said.contains("left out"), "{said}");
}

/// What is left out stays as it is in rewind and undo, wherever the folders around it went.
#[test]
fn what_is_left_out_stays_as_it_is() {
    let (lab, file) = tracked(with_modules, LEAVES_OUT);
    let a = with(&lab, &file, &["checkpoint"], &[]);
    let id = a.json()["checkpoint"].as_str().expect("an id").to_owned();
    // changed, in folders that were made again, and new ones in folders that are new
    std::fs::rename(lab.at("app/node_modules"), lab.dir().join("aside")).expect("rename");
    std::fs::remove_dir_all(lab.at("app")).expect("remove");
    lab.write("app/main", "again");
    std::fs::rename(lab.dir().join("aside"), lab.at("app/node_modules")).expect("rename");
    for (path, text) in [
        ("app/node_modules/x/y", "2"),
        ("a.log", "longer log"),
        ("keep.log", "changed"),
        ("new/deep/node_modules/z", "z"),
        ("new/deep/gone", "gone"),
        ("new/sub/gone", "gone"),
        ("other/b.log", "b"),
    ] {
        lab.write(path, text);
    }
    let after = lab.manifest();
    let list = lab.ok(&["-s", lab.ws_text(), "changes", &id, "now"]);
    assert_eq!(kind_of(&list, "keep.log").as_deref(), Some("modified"), "{list}");
    assert_eq!(
        kind_of(&list, "new/deep/gone").as_deref(),
        Some("added"),
        "{list}"
    );
    assert!(
        kind_of(&list, "a.log").is_none() && kind_of(&list, "other/b.log").is_none(),
        "{list}"
    );
    // the checkpoint's own record counts, whatever the config says by now
    let plan = lab.ok(&["-s", lab.ws_text(), "--dry-run", "rewind", &id, "--files"]);
    let not_covered = plan["plan"]["not_covered"].to_string();
    assert!(
        not_covered.contains("app/node_modules") && not_covered.contains("other/b.log"),
        "{plan}"
    );
    let done = lab.ok(&["-s", lab.ws_text(), "--yes", "rewind", &id, "--files"]);
    assert_eq!(done["verified"], true);
    for (path, content) in [
        ("app/node_modules/x/y", "2"),
        ("a.log", "longer log"),
        ("keep.log", "kept"),
        ("app/main", "main"),
        ("new/deep/node_modules/z", "z"),
        ("other/b.log", "b"),
    ] {
        assert_eq!(lab.read(path), content, "{path}");
    }
    assert!(!lab.at("new/deep/gone").exists() && !lab.at("new/sub").exists());
    assert_eq!(lab.ok(&["-s", lab.ws_text(), "--yes", "undo"])["verified"], true);
    after.assert_same(&lab.manifest(), "undone");
}

/// Where what is left out stands in the way of what the checkpoint has, nothing is changed at all.
#[test]
fn what_is_left_out_and_in_the_way_is_named_before() {
    let fill = |ws: &Path| std::fs::write(ws.join("build"), "a file").expect("write");
    let (lab, file) = tracked(fill, "[sandbox]\nexclude = [\"build/\", \"*.o\"]\n");
    lab.write("d", "a file too");
    let a = with(&lab, &file, &["checkpoint"], &[]);
    let id = a.json()["checkpoint"].as_str().expect("an id").to_owned();
    std::fs::remove_file(lab.at("build")).expect("remove");
    std::fs::remove_file(lab.at("d")).expect("remove");
    lab.write("build/out", "out");
    lab.write("d/x.o", "object");
    let before = lab.manifest();
    let plan = lab.ok(&["-s", lab.ws_text(), "--dry-run", "rewind", &id, "--files"]);
    for path in ["build cannot be brought back", "d cannot be brought back"] {
        assert!(plan["plan"]["blockers"].to_string().contains(path), "{plan}");
    }
    let said = lab.fails(3, &["-s", lab.ws_text(), "--yes", "rewind", &id, "--files"]);
    assert!(said.contains("cannot be brought back"), "{said}");
    before.assert_same(&lab.manifest(), "nothing was changed");
    // other paths can
    lab.write("c", "new");
    lab.ok(&[
        "-s",
        lab.ws_text(),
        "--yes",
        "rewind",
        &id,
        "--files",
        "--path",
        "c",
    ]);
    assert!(!lab.at("c").exists());
}

/// P018: rules that change between checkpoint and rewind never delete what they once protected: what the
/// checkpoint covered is listed, and kept in the safety checkpoint; what it left out is not touched.
#[test]
fn p018_rules_that_change_delete_nothing() {
    let lab = Lab::copies(fill);
    let id = lab.checkpoint();
    lab.write(".respool.toml", "[sandbox]\nexclude = [\"secrets/\"]\n");
    lab.write("secrets/k", "the agent's");
    lab.write("secrets/mine", "the user's");
    let meanwhile = lab.checkpoint();
    lab.fails(4, &["-s", lab.ws_text(), "cat", &meanwhile, "secrets/mine"]);
    let after = lab.manifest();
    let plan = lab.ok(&["-s", lab.ws_text(), "--dry-run", "rewind", &id, "--files"]);
    assert_eq!(
        kind_of(&plan["plan"]["changes"], "secrets/mine").as_deref(),
        Some("added"),
        "{plan}"
    );
    let done = lab.ok(&["-s", lab.ws_text(), "--yes", "rewind", &id, "--files"]);
    assert!(!lab.at("secrets").exists());
    let safety = done["safety"].as_str().expect("an id");
    assert_eq!(
        lab.ok(&["-s", lab.ws_text(), "cat", safety, "secrets/mine"])["text"],
        "the user's"
    );
    assert_eq!(lab.ok(&["-s", lab.ws_text(), "--yes", "undo"])["verified"], true);
    after.assert_same(&lab.manifest(), "undone");
    // the other way round: it protected then, and does not now
    std::fs::remove_file(lab.at(".respool.toml")).expect("remove");
    lab.write("secrets/more", "more");
    lab.write("f", "two");
    let plan = lab.ok(&["-s", lab.ws_text(), "--dry-run", "rewind", &meanwhile, "--files"]);
    assert_eq!(kind_of(&plan["plan"]["changes"], "secrets/more"), None, "{plan}");
    lab.ok(&["-s", lab.ws_text(), "--yes", "rewind", &meanwhile, "--files"]);
    assert_eq!(
        (lab.read("secrets/mine"), lab.read("secrets/more"), lab.read("f")),
        ("the user's".into(), "more".into(), "one".into())
    );
    lab.ok(&["-s", lab.ws_text(), "--yes", "undo"]);
    assert_eq!(
        (lab.read("secrets/more"), lab.read("f")),
        ("more".into(), "two".into())
    );
    // killed in the middle with rules that changed since: nothing is lost either
    lab.write(".respool.toml", "[sandbox]\nexclude = [\"*\"]\n");
    let before = lab.manifest();
    assert!(lab.killed_at(
        "rewind-restored",
        &["-s", lab.ws_text(), "--yes", "rewind", &id, "--files"]
    ));
    lab.ok(&["recover"]);
    lab.ok(&["-s", lab.ws_text(), "--yes", "undo"]);
    before.assert_same(&lab.manifest(), "undone after a crash");
}
