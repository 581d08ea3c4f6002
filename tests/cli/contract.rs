//! The contract of the command line: exit codes with an error object each, selectors, dry runs, refusals,
//! labels and pins, what retention may remove.

use serde_json::{Value, json};

use crate::common::respool;
use crate::lab::{Answer, Lab, error_text};
use crate::rounds::rich;

fn ids(lab: &Lab) -> Vec<String> {
    let rows = lab.ok(&["timeline", lab.store().to_str().expect("UTF-8")]);
    rows["rows"]
        .as_array()
        .expect("rows")
        .iter()
        .filter_map(|r| r["checkpoint"]["id"].as_str())
        .map(ToOwned::to_owned)
        .collect()
}

pub fn small() -> Lab {
    let lab = Lab::new(|ws| std::fs::write(ws.join("f"), "0").expect("write"));
    for n in 1..=3 {
        lab.write("f", n.to_string());
        lab.message(n);
    }
    lab.write("f", "now");
    lab.cut(&lab.store(), 4);
    lab
}

/// Each code has a way to it, and with `--json` exactly one error object.
#[test]
fn exit_codes_and_error_objects() {
    let lab = small();
    lab.fails(2, &["no-such-command"]);
    lab.fails(2, &["rewind"]);
    lab.fails(2, &["rewind", "x"]);
    lab.fails(2, &["rewind", "now"]);
    lab.fails(2, &["label", "not-an-id", "x"]);
    lab.fails(2, &["prune"]);
    lab.fails(2, &["prune", "--keep-within", "soon"]);
    let said = lab.fails(3, &["rewind", "2"]);
    assert!(said.contains("--yes") && said.contains("message 2"), "{said}");
    lab.fails(
        4,
        &[
            "-c",
            lab.dir().join("none").to_str().expect("UTF-8"),
            "changes",
            "m1",
            "m2",
        ],
    );
    lab.fails(4, &["rewind", "99"]);
    lab.fails(4, &["rewind", "id:none"]);
    lab.fails(4, &["rewind", "cp-0000000000"]);
    lab.fails(4, &["cat", "m1", "none"]);
    lab.fails(4, &["cat", "m1", "../../etc/passwd"]);
    lab.fails(4, &["-s", "sb-0000000000", "checkpoint"]);
    lab.fails(4, &["why", "none"]);
    lab.fails(4, &["--yes", "redo"]);
    let torn = lab.dir().join("torn");
    std::fs::create_dir_all(torn.join("events")).expect("mkdir");
    std::fs::write(torn.join("base_state.json"), "{").expect("write");
    let said = lab.fails(5, &["timeline", torn.to_str().expect("UTF-8")]);
    assert!(said.contains("base_state.json"), "{said}");
    // a state file that cannot be written
    std::fs::write(lab.dir().join("file"), "").expect("write");
    let a = Answer::of(
        respool(lab.dir())
            .args([
                "--json",
                "--state-dir",
                lab.dir().join("file/state").to_str().expect("UTF-8"),
                "pool",
                "create",
                "--size",
                "512M",
            ])
            .output()
            .expect("run"),
    );
    assert_eq!(a.code, Some(1), "{}", a.text());
    error_text(&a.json(), 1);
}

#[test]
fn selectors() {
    let lab = small();
    let cps = ids(&lab);
    let rows = lab.ok(&["timeline", lab.store().to_str().expect("UTF-8")]);
    let native = rows["rows"][1]["id"].as_str().expect("id").to_owned();
    let cat = |state: &str| {
        lab.ok(&["cat", state, "f"])["text"]
            .as_str()
            .expect("text")
            .to_owned()
    };
    assert_eq!(cat("start"), "0");
    assert_eq!(cat("now"), "now");
    for selector in ["2", "m2", &format!("id:{native}"), &native, &native[..8], &cps[1]] {
        assert_eq!(cat(selector), "2", "{selector}");
    }
    // message 4 has no checkpoint: its neighbours are named, and not taken
    let said = lab.fails(4, &["--yes", "rewind", "4"]);
    assert!(said.contains("message 4") && said.contains("m3, start"), "{said}");
    let said = lab.fails(4, &["--yes", "rewind", "m2.end"]);
    assert!(said.contains("the end of message 2"), "{said}");
    assert_eq!(lab.read("f"), "now");
    // a turn's end, by the hook
    let input = json!({"event_type": "Stop", "session_id": "11111111-2222-4333-8444-555555555555", "working_dir": lab.ws_text()});
    std::fs::write(lab.dir().join("stop.json"), input.to_string()).expect("write");
    let stop = std::fs::File::open(lab.dir().join("stop.json")).expect("open");
    lab.write("f", "ended");
    let out = lab
        .command()
        .args(["hook", "openhands"])
        .stdin(stop)
        .output()
        .expect("run");
    assert!(out.status.success());
    lab.write("f", "after");
    lab.cut_again(3);
    assert_eq!(cat("m3.end"), "ended");
    let plan = lab.ok(&["--dry-run", "rewind", "3"]);
    assert_eq!(plan["plan"]["yours"], json!(["f"]), "{plan}");
}

/// `-s` by id and by path, the current folder, a folder in the workspace, the conversation of this folder.
#[test]
fn subjects() {
    let lab = small();
    let id = lab.ok(&["sandboxes"])[0]["id"].as_str().expect("id").to_owned();
    for s in [id.as_str(), lab.ws_text(), "ws", "./ws/."] {
        assert_eq!(lab.ok(&["-s", s, "cat", "start", "f"])["text"], "0", "{s}");
        // the newest conversation of that workspace
        assert_eq!(lab.ok(&["-s", s, "cat", "m2", "f"])["text"], "2", "{s}");
    }
    std::fs::create_dir_all(lab.at("sub/deep")).expect("mkdir");
    for dir in [lab.ws().to_owned(), lab.at("sub/deep")] {
        let run = |args: &[&str]| {
            let mut c = lab.command();
            Answer::of(
                c.arg("--json")
                    .args(args)
                    .current_dir(&dir)
                    .output()
                    .expect("run"),
            )
        };
        // the newest conversation of this folder or a parent
        let a = run(&["cat", "m2", "f"]);
        assert_eq!((a.code, &a.json()["text"]), (Some(0), &json!("2")), "{}", a.err);
        let a = run(&["--yes", "rewind", "1", "--path", "f"]);
        assert_eq!(a.code, Some(0), "{}", a.text());
        assert_eq!(lab.read("f"), "1");
        lab.write("f", "now");
    }
    // no conversation at all: the sandbox of this folder
    std::fs::rename(lab.store(), lab.dir().join("elsewhere")).expect("rename");
    let mut c = lab.command();
    let a = Answer::of(
        c.args(["--json", "checkpoint"])
            .current_dir(lab.at("sub"))
            .output()
            .expect("run"),
    );
    assert_eq!(a.code, Some(0), "{}", a.text());
    let said = lab.fails(4, &["-s", lab.ws_text(), "cat", "m2", "f"]);
    assert!(said.contains("name it: -c CONVERSATION"), "{said}");
    // a folder that nobody knows
    let mut c = lab.command();
    let a = Answer::of(
        c.args(["--json", "checkpoint"])
            .current_dir("/")
            .output()
            .expect("run"),
    );
    assert!(matches!(a.code, Some(3 | 4)), "{:?} {}", a.code, a.text());
}

/// A dry run of every command that writes changes nothing: not the tree, not the log, not the checkpoints, not
/// the state folder, not even what a crash left.
#[test]
fn dry_runs_change_nothing() {
    let lab = small();
    lab.ok(&["--yes", "rewind", "1"]);
    lab.write("f", "again");
    let cp = ids(&lab).remove(0);
    assert!(lab.killed_at("rewind-applying", &["--yes", "rewind", "2"]));
    let look = || {
        let sandbox = lab.sandboxes().remove(0);
        let mut names: Vec<(String, u64)> = ["snaps", "ops", "tmp"]
            .iter()
            .flat_map(|d| std::fs::read_dir(sandbox.join(d)).expect("folder").flatten())
            .map(|e| {
                (
                    e.file_name().to_string_lossy().into_owned(),
                    e.metadata().map_or(0, |m| m.len()),
                )
            })
            .collect();
        names.sort();
        let xattr = |n: &str| {
            let mut v = vec![0; 4096];
            let n = rustix::fs::getxattr(
                sandbox.join("snaps").join(n),
                "user.respool.checkpoint",
                &mut v[..],
            )
            .unwrap_or(0);
            v[..n].to_vec()
        };
        let records: Vec<Vec<u8>> = names.iter().map(|(n, _)| xattr(n)).collect();
        (
            lab.manifest(),
            names,
            records,
            crate::common::mounts_below(lab.dir()),
        )
    };
    let before = look();
    let commands: [&[&str]; 16] = [
        &["rewind", "1"],
        &["undo"],
        &["checkpoint"],
        &["checkpoint", "--message", "4"],
        &["recover"],
        &["label", &cp, "x"],
        &["pin", &cp],
        &["unpin", &cp],
        &["prune", "--keep", "1"],
        &["untrack", lab.ws_text()],
        &["hooks", "install", "openhands"],
        &["hooks", "install", "openhands", "--user"],
        &["pool", "unmount"],
        &["pool", "grow", "1G"],
        &["rewind", "2", "--path", "f"],
        &["pool", "create", "--image", "other.img"],
    ];
    for args in commands {
        let with: Vec<&str> = ["--dry-run", "--yes"]
            .into_iter()
            .chain(args.iter().copied())
            .collect();
        let doc = lab.ok(&with);
        assert!(doc.get("plan").is_some(), "{args:?}: {doc}");
        let after = look();
        before.0.assert_same(&after.0, &format!("{args:?}"));
        assert_eq!(
            (&before.1, &before.2, &before.3),
            (&after.1, &after.2, &after.3),
            "{args:?}"
        );
    }
    assert!(!lab.dir().join("other.img").exists() && !lab.dir().join("home/.openhands/hooks.json").exists());
    let other = lab.dir().join("other");
    std::fs::create_dir(&other).expect("mkdir");
    lab.ok(&["--dry-run", "--yes", "track", other.to_str().expect("UTF-8")]);
    assert_eq!(lab.ok(&["sandboxes"]).as_array().map(Vec::len), Some(1));
    assert_eq!(lab.log()[0].1, "interrupted");
    lab.ok(&["--yes", "recover"]);
}

/// Without `--yes` and without a terminal everything that must ask refuses, and says what it would ask.
#[test]
fn without_yes_and_terminal_it_refuses() {
    let lab = small();
    lab.ok(&["--yes", "rewind", "1"]);
    let before = lab.manifest();
    let other = lab.dir().join("other");
    std::fs::create_dir(&other).expect("mkdir");
    let commands: [&[&str]; 6] = [
        &["rewind", "2"],
        &["undo"],
        &["untrack", lab.ws_text()],
        &["track", other.to_str().expect("UTF-8")],
        &["prune", "--keep", "1"],
        &["pool", "unmount"],
    ];
    for args in commands {
        let said = lab.fails(3, args);
        assert!(said.contains("--yes") && said.contains('?'), "{args:?}: {said}");
    }
    before.assert_same(&lab.manifest(), "the tree");
}

#[test]
fn labels_and_pins_survive_and_prune_spares_what_it_must() {
    let lab = small();
    let cps = ids(&lab);
    lab.ok(&["label", &cps[0], "before the \u{1b}[2J mess"]);
    lab.ok(&["pin", &cps[0]]);
    lab.ok(&["--yes", "rewind", "2"]);
    lab.reboot();
    let rows = lab.ok(&["timeline", lab.store().to_str().expect("UTF-8")]);
    let row = &rows["rows"][0]["checkpoint"];
    assert_eq!(
        (&row["pinned"], row["label"].is_string()),
        (&json!(true), true),
        "{row}"
    );
    let text = lab.bare(&["timeline", lab.store().to_str().expect("UTF-8")]);
    assert!(!text.out.contains(&0x1b), "{}", text.text());
    let pruned = lab.ok(&["--yes", "prune", "--keep", "1"]);
    let gone: Vec<&str> = pruned["removed"]
        .as_array()
        .expect("ids")
        .iter()
        .filter_map(Value::as_str)
        .collect();
    assert!(!gone.contains(&cps[0].as_str()), "pinned: {gone:?}");
    assert!(pruned["freed_bytes"].is_u64(), "{pruned}");
    // the young safety checkpoint is there: the rewind can be taken back
    lab.ok(&["--yes", "undo"]);
    assert_eq!(lab.read("f"), "now");
    let rows = lab.ok(&["timeline", lab.store().to_str().expect("UTF-8")]);
    assert_eq!(rows["rows"][1]["checkpoint"]["state"], "thinned", "{rows}");
    let said = lab.fails(4, &["--yes", "rewind", "2"]);
    assert!(said.contains("m1"), "its neighbours: {said}");
    lab.ok(&["unpin", &cps[0]]);
    lab.ok(&["label", &cps[0], ""]);
    let rows = lab.ok(&["timeline", lab.store().to_str().expect("UTF-8")]);
    assert_eq!(
        (
            &rows["rows"][0]["checkpoint"]["pinned"],
            &rows["rows"][0]["checkpoint"]["label"]
        ),
        (&json!(false), &Value::Null)
    );
    lab.fails(4, &["pin", "cp-0000000000"]);
}

#[test]
fn why_and_log_and_space_and_ls() {
    let lab = Lab::new(rich);
    for n in 1..=3 {
        lab.message(n);
        if n != 2 {
            lab.write("w", format!("turn {n}"));
        }
    }
    lab.message(4);
    let why = lab.ok(&["why", "w"]);
    let messages: Vec<&Value> = why
        .as_array()
        .expect("rows")
        .iter()
        .map(|r| &r["message"])
        .collect();
    assert_eq!(messages, [&json!(3), &json!(1)], "newest first: {why}");
    let ls = lab.ok(&["ls", "m1", "d1"]);
    assert!(
        ls.as_array().is_some_and(|r| r.iter().any(|e| e["name"] == "f1")),
        "{ls}"
    );
    let space = lab.ok(&["space"]);
    assert!(
        space["pools"][0]["used"].is_u64() && space["sandboxes"][0]["checkpoints"] == 5,
        "{space}"
    );
    let log = lab.ok(&["log"]);
    assert_eq!(
        (&log[0]["kind"], &log[0]["state"]),
        (&json!("track"), &json!("done")),
        "{log}"
    );
    let check = lab.ok(&["pool", "check"]);
    assert_eq!(check[0]["clean"], true, "{check}");
}

/// The conversation of a timeline is its word, or that of `-c`; two that differ are a mistake.
#[test]
fn a_timeline_is_named_by_word_or_by_c() {
    let lab = Lab::new(|_| {});
    let store = lab.store();
    let store = store.to_str().expect("UTF-8");
    let rows = lab.ok(&["timeline", store])["rows"].clone();
    assert_eq!(lab.ok(&["timeline", "-c", store])["rows"], rows);
    assert_eq!(lab.ok(&["-c", store, "timeline"])["rows"], rows);
    assert_eq!(lab.ok(&["timeline", store, "-c", store])["rows"], rows);
    lab.fails(2, &["timeline", store, "-c", "another"]);
}
