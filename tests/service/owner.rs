//! What the owner of a sandbox may do without root.

use std::os::unix::fs::PermissionsExt;

use respool::sandbox::remote::{Ask as About, Request};

use crate::served::{OTHER, OWNER, Served};

#[test]
fn the_owner_tracks_looks_goes_back_and_forth() {
    let s = Served::new();
    let ws = s.tracked();
    let first = s.ok(&["checkpoint", "--label", "first"])["checkpoint"].clone();
    let first = first.as_str().expect("an id").to_owned();
    assert!(
        s.shell("cd project && echo two > a && rm src/b && mkdir new && echo n > new/f")
            .status
            .success()
    );
    let changes = s.ok(&["changes", &first, "now"]);
    let paths: Vec<&str> = changes
        .as_array()
        .expect("list")
        .iter()
        .filter_map(|c| c["path"].as_str())
        .collect();
    assert_eq!(paths, ["a", "new", "new/f", "src/b"]);
    assert_eq!(s.ok(&["cat", &first, "a"])["text"], "one\n");
    assert_eq!(s.ok(&["cat", "now", "a"])["text"], "two\n");
    assert_eq!(s.ok(&["ls", &first, "src"])[0]["name"], "b");
    s.ok(&["pin", &first]);
    s.ok(&["label", &first, "better"]);
    let plan = s.ok(&["--dry-run", "rewind", &first]);
    assert_eq!(plan["plan"]["changes"].as_array().map(Vec::len), Some(4));
    let done = s.ok(&["--yes", "rewind", &first]);
    assert_eq!(
        (&done["verified"], std::fs::read(ws.join("a")).expect("a")),
        (&true.into(), b"one\n".to_vec())
    );
    assert!(ws.join("src/b").exists() && !ws.join("new").exists());
    s.ok(&["--yes", "undo"]);
    assert_eq!(std::fs::read(ws.join("new/f")).expect("f"), b"n\n");
    s.ok(&["--yes", "redo"]);
    assert!(!ws.join("new").exists());
    s.ok(&["--yes", "rewind", &first, "--path", "a"]);
    let kinds: Vec<String> = s
        .ok(&["log"])
        .as_array()
        .expect("log")
        .iter()
        .map(|o| o["kind"].to_string())
        .collect();
    assert_eq!(
        kinds,
        ["\"rewind\"", "\"redo\"", "\"undo\"", "\"rewind\"", "\"track\""]
    );
    let rows = s.run_as(OWNER, &["sandboxes"]).1;
    assert_eq!(
        (rows.as_array().map(Vec::len), &rows[0]["vault"]),
        (Some(1), &"btrfs".into())
    );
    assert!(s.run_as(OWNER, &["space"]).1["sandboxes"][0]["checkpoints"].as_u64() >= Some(2));
    assert_eq!(s.run_as(OWNER, &["recover"]), (0, serde_json::json!([])));
    // root sees the same sandbox, in process
    let (code, doc) = s.root(&["-s", ws.to_str().expect("UTF-8"), "log"]);
    assert_eq!((code, doc.as_array().map(Vec::len)), (0, Some(5)));
}

/// Packages are told through the service, and nothing that the owner may not read.
#[test]
fn the_owner_is_told_of_packages() {
    let s = Served::new();
    let ws = s.tracked();
    let first = s.ok(&["checkpoint"])["checkpoint"].clone();
    let first = first.as_str().expect("an id").to_owned();
    let place = "v/lib/python3.11/site-packages";
    let made = s.shell(&format!(
        "cd project && for n in one two; do mkdir -p {place}/$n-1.dist-info && \
         printf 'Name: %s\nVersion: 1\n' $n > {place}/$n-1.dist-info/METADATA; done"
    ));
    assert!(made.status.success());
    let secret = ws.join(place).join("two-1.dist-info/METADATA");
    std::fs::set_permissions(&secret, std::fs::Permissions::from_mode(0o600)).expect("mode");
    std::os::unix::fs::chown(&secret, Some(0), Some(0)).expect("owner");
    let plan = s.ok(&["--dry-run", "rewind", &first])["plan"].clone();
    let one = serde_json::json!([
        {"manager": "pip", "name": "one", "from": null, "to": "1", "where": place}
    ]);
    assert_eq!(plan["packages"], one, "{plan}");
    let unread = &plan["packages_unread"][0];
    assert_eq!(unread["where"], format!("{place}/two-1.dist-info"), "{plan}");
}

#[test]
fn the_hook_of_claude_code_without_root_takes_its_checkpoint() {
    let s = Served::new();
    let ws = s.tracked();
    let before = s.ok(&["sandboxes"])[0]["checkpoints"].as_u64().expect("a number");
    for event in ["UserPromptSubmit", "Stop", "SubagentStop"] {
        let input =
            serde_json::json!({"hook_event_name": event, "prompt": "do it", "session_id": "a-b", "cwd": ws});
        std::fs::write(s.home().join("in"), input.to_string()).expect("write");
        let out = s.shell("../respool hook claude < in");
        assert!(out.status.success() && out.stdout.is_empty(), "{out:?}");
    }
    assert_eq!(s.ok(&["sandboxes"])[0]["checkpoints"].as_u64(), Some(before + 2));
}

#[test]
fn the_hook_of_an_agent_without_root_takes_its_checkpoint() {
    let s = Served::new();
    let ws = s.tracked();
    let input = format!(
        r#"{{"event_type":"UserPromptSubmit","message":"do it","session_id":"a-b","working_dir":"{}"}}"#,
        ws.display()
    );
    std::fs::write(s.home().join("in"), input).expect("input");
    let out = s.shell("../respool hook openhands < in");
    let said = String::from_utf8_lossy(&out.stdout);
    assert!(
        said.contains("respool: checkpoint cp-") && said.contains("\"allow\""),
        "{said}"
    );
    assert_eq!(
        s.root(&["-s", ws.to_str().expect("UTF-8"), "sandboxes"]).1[0]["checkpoints"],
        2
    );
}

#[test]
fn a_user_sees_and_touches_nothing_of_another() {
    let s = Served::new();
    let ws = s.tracked();
    let ws = ws.to_str().expect("UTF-8");
    let id = s.run_as(OWNER, &["sandboxes"]).1[0]["id"]
        .as_str()
        .expect("id")
        .to_owned();
    assert_eq!(s.run_as(OTHER, &["sandboxes"]).1, serde_json::json!([]));
    for target in [ws, id.as_str()] {
        for words in [
            &["log"][..],
            &["checkpoint"],
            &["ls", "now"],
            &["cat", "start", "a"],
            &["--yes", "rewind", "start"],
            &["--yes", "undo"],
        ] {
            let mut all = vec!["-s", target];
            all.extend(words);
            let (code, doc) = s.run_as(OTHER, &all);
            assert_eq!(code, 3, "{all:?}: {doc}");
            assert!(
                doc["error"]["message"]
                    .as_str()
                    .expect("message")
                    .contains("belongs to user 65534"),
                "{doc}"
            );
        }
    }
    // a folder of somebody else's cannot be put under respool either
    let theirs = s.home().join("theirs");
    std::fs::create_dir(&theirs).expect("folder");
    let (code, doc) = s.run_as(
        OTHER,
        &[
            "--yes",
            "track",
            theirs.to_str().expect("UTF-8"),
            "--size",
            "300M",
        ],
    );
    assert_eq!(code, 3, "{doc}");
}

#[test]
fn contents_are_shown_only_to_whom_they_were_readable() {
    let s = Served::new();
    let ws = s.tracked();
    let secret = |name: &str, mode: u32| {
        std::fs::write(ws.join(name), "secret\n").expect("write");
        std::fs::set_permissions(ws.join(name), std::fs::Permissions::from_mode(mode)).expect("mode");
    };
    secret("for-root", 0o600);
    secret("for-all", 0o644);
    std::fs::create_dir(ws.join("shut")).expect("folder");
    secret("shut/inside", 0o644);
    std::fs::set_permissions(ws.join("shut"), std::fs::Permissions::from_mode(0o700)).expect("mode");
    let id = s.ok(&["checkpoint"])["checkpoint"]
        .as_str()
        .expect("id")
        .to_owned();
    for state in [id.as_str(), "now"] {
        assert_eq!(s.ok(&["cat", state, "for-all"])["text"], "secret\n");
        for path in ["for-root", "shut/inside"] {
            assert!(
                s.refused(&["cat", state, path]).contains("may not read"),
                "{state} {path}"
            );
        }
        assert!(s.refused(&["ls", state, "shut"]).contains("may not read"));
        s.ok(&["ls", state]);
    }
}

/// With a state folder of his own a user may do everything, and what he is done with is removed.
#[test]
fn a_state_folder_of_ones_own_is_ones_own() {
    let s = Served::new();
    assert!(
        s.shell("mkdir project mine; echo one > project/a")
            .status
            .success()
    );
    let (ws, mine) = (s.ws(), s.home().join("mine"));
    let (ws, mine) = (ws.to_str().expect("UTF-8"), mine.to_str().expect("UTF-8"));
    let ok = |words: &[&str]| {
        let mut all = vec!["--state-dir", mine, "--yes"];
        all.extend(words);
        let (code, doc) = s.run_as(OWNER, &all);
        assert_eq!(code, 0, "{words:?}: {doc}");
        doc
    };
    let sandbox = ok(&["track", ws, "--size", "300M"])["sandbox"]
        .as_str()
        .expect("id")
        .to_owned();
    assert_eq!(s.run_as(OWNER, &["sandboxes"]).1, serde_json::json!([]));
    // nothing of it lies where the user could reach it
    assert_eq!(std::fs::read_dir(mine).expect("mine").count(), 0);
    ok(&["-s", ws, "checkpoint"]);
    ok(&["untrack", ws]);
    assert_eq!(std::fs::read(s.ws().join("a")).expect("a"), b"one\n");
    ok(&["prune", "-s", &sandbox]);
    std::fs::remove_dir(mine).expect("gone");
    ok(&["pool", "unmount"]);
    let users = s.state().join("users/65534");
    assert_eq!(std::fs::read_dir(users).expect("users").count(), 0);
}

/// Screens that are open ask the service what changes; that keeps nobody from giving the folder back.
#[test]
fn open_screens_do_not_hold_a_folder() {
    let s = Served::new();
    let ws = s.tracked();
    let id = s.run_as(OWNER, &["sandboxes"]).1[0]["id"]
        .as_str()
        .expect("id")
        .to_owned();
    let mut line = crate::attack::Raw::to(&s);
    line.begin(Request::Of(id, About::Wait));
    s.ok(&["checkpoint"]);
    let (code, doc) = s.root(&["untrack", ws.to_str().expect("UTF-8")]);
    assert_eq!(code, 0, "{doc}");
}

#[test]
fn what_one_user_may_take_is_limited() {
    let s = Served::new();
    assert!(s.shell("mkdir project").status.success());
    let ws = s.ws();
    let ws = ws.to_str().expect("UTF-8");
    let (code, doc) = s.run_as(OWNER, &["--yes", "track", ws, "--size", "1000T"]);
    assert_eq!(code, 3, "{doc}");
    for n in 0..17 {
        let state = s.home().join(format!("state{n}"));
        std::fs::create_dir(&state).expect("state");
        let dir = s.home().join(format!("ws{n}"));
        assert!(s.shell(&format!("mkdir ws{n}")).status.success());
        let (state, dir) = (state.to_str().expect("UTF-8"), dir.to_str().expect("UTF-8"));
        let (code, doc) = s.run_as(
            OWNER,
            &["--state-dir", state, "--yes", "track", dir, "--size", "256M"],
        );
        assert_eq!(code, if n < 16 { 0 } else { 3 }, "{n}: {doc}");
    }
    // root sees them all, and gives them back
    let (_, all) = s.root(&["sandboxes"]);
    let all = all.as_array().expect("a list").clone();
    assert_eq!(all.len(), 16);
    for row in all {
        assert_eq!(s.root(&["untrack", row["path"].as_str().expect("path")]).0, 0);
    }
}

/// Each conversation has a workspace of its own, without root; nobody else may have one made.
#[test]
fn the_owner_opens_a_workspace_for_each_conversation() {
    let s = Served::new();
    let ws = s.tracked();
    let ws = ws.to_str().expect("UTF-8");
    let told = |args: &[&str]| {
        let (code, doc) = s.run_as(
            OWNER,
            &[&["--yes", "track", "--per-conversation", ws], args].concat(),
        );
        assert_eq!(code, 0, "{doc}");
        doc
    };
    let template = told(&["--shared", "archive"]);
    assert_eq!(template["per_conversation"], true, "{template}");
    let (a, b) = (told(&["-c", "conv-a"]), told(&["-c", "conv-b"]));
    assert_eq!(
        (&a["made"], &told(&["-c", "conv-a"])["made"]),
        (&true.into(), &false.into())
    );
    let at = |doc: &serde_json::Value| doc["path"].as_str().expect("a path").to_owned();
    let script = "cd project.workspaces && echo two > conv-a/a && echo x > archive/kept && rm conv-b/a";
    assert!(s.shell(script).status.success(), "they are the owner's");
    let (code, done) = s.run_as(OWNER, &["--yes", "-s", &at(&a), "rewind", "start", "--files"]);
    assert_eq!((code, &done["verified"]), (0, &true.into()), "{done}");
    let read = |path: String| std::fs::read_to_string(path).ok();
    assert_eq!(read(format!("{}/a", at(&a))).as_deref(), Some("one\n"));
    assert_eq!(read(format!("{}/a", at(&b))), None, "the other one's work");
    let (code, doc) = s.run_as(OTHER, &["--yes", "track", "--per-conversation", ws, "-c", "mine"]);
    assert_ne!(code, 0, "{doc}");
    assert!(!std::path::Path::new(&format!("{ws}.workspaces/mine")).exists());
}
