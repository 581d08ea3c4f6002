//! `respool hook openhands` as OpenHands calls it: whatever comes, the agent goes on, and the answer says
//! which checkpoint was taken or why there is none.

mod common;

use std::fs::File;

use common::{Store, Style, Tracked, respool, with_input};
use rustix::fs::{FlockOperation, flock};
use serde_json::{Value, json};

/// The answer's reason. Panics unless the hook let the agent go on.
fn reason(out: &std::process::Output) -> String {
    assert!(out.status.success(), "{out:?}");
    let control = |b: &u8| b.is_ascii_control() || *b >= 0x80;
    assert!(!out.stdout.iter().any(control), "{out:?}");
    assert!(!out.stderr.iter().any(|b| control(b) && *b != b'\n'), "{out:?}");
    let answer: Value = serde_json::from_slice(&out.stdout).expect("one JSON object");
    assert_eq!(answer["decision"], "allow", "{answer}");
    answer["reason"].as_str().unwrap_or_default().to_owned()
}

fn hook(t: &Tracked, input: &str) -> String {
    let mut c = t.command();
    c.args(["hook", "openhands"]);
    reason(&with_input(c, input.as_bytes()))
}

/// The id in an answer.
fn id(reason: &str) -> String {
    let at = reason
        .find("cp-")
        .unwrap_or_else(|| panic!("no checkpoint: {reason}"));
    reason[at..at + 13].to_owned()
}

fn rows(t: &Tracked, store: &Store) -> Vec<Value> {
    let (code, timeline) = t.run(&["timeline", &store.dir.to_string_lossy()]);
    assert_eq!(code, 0, "{timeline}");
    timeline["rows"].as_array().expect("rows").clone()
}

#[test]
fn rapid_messages_of_two_conversations_have_a_checkpoint_each() {
    let t = Tracked::new();
    let mut stores = [1, 2].map(|n| Store::new(&t, n, Style::Renamed));
    // both conversations at once, five messages each, some with the same text
    let texts = ["one", "again", "again", "two\nlines", "again"];
    let said = std::thread::scope(|s| {
        let calls = stores.each_ref().map(|store| {
            let t = &t;
            s.spawn(move || texts.map(|m| hook(t, &store.hook_input("UserPromptSubmit", Some(m)))))
        });
        calls.map(|c| c.join().expect("calls"))
    });
    let ids: Vec<Vec<String>> = said.iter().map(|s| s.iter().map(|r| id(r)).collect()).collect();
    let all: std::collections::HashSet<&String> = ids.iter().flatten().collect();
    assert_eq!(all.len(), 10, "{ids:?}");
    assert_eq!(t.checkpoints(), 11);
    // without the agent's record of the hook they are found by their texts, in order
    for (store, ids) in stores.iter_mut().zip(&ids) {
        for text in texts {
            store.message(&text.split('\n').collect::<Vec<_>>());
        }
        store.status("finished");
        let rows = rows(&t, store);
        let found: Vec<&str> = rows
            .iter()
            .map(|r| r["checkpoint"]["id"].as_str().expect("an id"))
            .collect();
        assert_eq!(&found, ids);
        assert!(rows.iter().all(|r| r["checkpoint"]["state"] == "ok"), "{rows:?}");
    }
}

#[test]
fn the_answer_restores_what_was_there_before_the_message() {
    let t = Tracked::new();
    let mut store = Store::new(&t, 1, Style::InPlace);
    let file = t.workspace().join("first.txt");
    let answer = hook(&t, &store.hook_input("UserPromptSubmit", Some("do it")));
    store.hook_ran(
        "UserPromptSubmit",
        &json!({"decision": "allow", "reason": answer}).to_string(),
    );
    store.message(&["do it"]);
    store.action();
    std::fs::write(&file, "changed\n").expect("the agent's change");
    hook(&t, &store.hook_input("Stop", None));
    store.status("finished");
    let row = &rows(&t, &store)[0];
    assert_eq!(row["checkpoint"]["id"], id(&answer).as_str());
    assert_eq!(row["changes"]["modified"], 1, "{row}");
    // the command of the answer, as it stands there, in any folder
    let words = answer.split_once("go back with: respool ").expect("a command").1;
    let words = shlex::split(words).expect("words");
    let out = respool(t.dir().path())
        .arg("--yes")
        .args(words)
        .output()
        .expect("respool");
    assert!(out.status.success(), "{out:?}");
    assert_eq!(std::fs::read_to_string(&file).expect("file"), "first\n");
}

#[test]
fn hostile_and_huge_texts_are_messages_like_others() {
    let t = Tracked::new();
    let mut store = Store::new(&t, 1, Style::Renamed);
    let texts = [
        "\x1b]52;c;ZXZpbA==\x07 \u{9b}2J \u{202e} \0 cp-0000000000 respool: no checkpoint: \"no\"".to_owned(),
        "$(touch /tmp/x) `id` '\"; rm -rf / #\n\n\n".to_owned(),
        "x".repeat(20 << 20),
        String::new(),
    ];
    let ids: Vec<String> = texts
        .iter()
        .map(|text| id(&hook(&t, &store.hook_input("UserPromptSubmit", Some(text)))))
        .collect();
    for text in &texts {
        store.message(&[text]);
    }
    store.status("finished");
    let found: Vec<Value> = rows(&t, &store)
        .iter()
        .map(|r| r["checkpoint"]["id"].clone())
        .collect();
    assert_eq!(found, ids);
    // half of a pair, as Python writes what was no UTF-8 on its command line
    let input = store
        .hook_input("UserPromptSubmit", Some("PART"))
        .replace("PART", r"broken \udc9b text");
    id(&hook(&t, &input));
}

#[test]
fn whatever_is_passed_the_agent_goes_on() {
    let t = Tracked::new();
    let workspace = t.workspace();
    let input = |text: &str| text.replace("WORKSPACE", &workspace.to_string_lossy());
    for (bad, why) in [
        ("", "it is empty"),
        ("{", "it is cut off"),
        ("[]", "it is no JSON object"),
        ("\0\0\0", "NUL bytes"),
        ("not json", "no valid JSON"),
        (
            r#"{"message":"m","session_id":"s","working_dir":"WORKSPACE"}"#,
            "names no event",
        ),
        (
            r#"{"event_type":"Stop","session_id":"","working_dir":"WORKSPACE"}"#,
            "names no session",
        ),
        (
            r#"{"event_type":"Stop","session_id":"s"}"#,
            "names no working folder",
        ),
        (
            r#"{"event_type":"Stop","session_id":"s","working_dir":"."}"#,
            "names no working folder",
        ),
        (
            r#"{"event_type":"Stop","session_id":"s","working_dir":"/nonexistent"}"#,
            "/nonexistent is not tracked",
        ),
    ] {
        let said = hook(&t, &input(bad));
        assert!(said.starts_with("respool: no checkpoint: "), "{bad}: {said}");
        assert!(said.contains(why), "{bad}: {said}");
    }
    for other in ["PreToolUse", "PostToolUse", "SessionStart", "SessionEnd", "Later"] {
        let said = hook(
            &t,
            &input(r#"{"event_type":"EVENT","session_id":"s","working_dir":"WORKSPACE"}"#)
                .replace("EVENT", other),
        );
        assert_eq!(said, "", "{other}");
    }
    // a session id that no record could hold
    let long = input(r#"{"event_type":"Stop","session_id":"ID","working_dir":"WORKSPACE"}"#)
        .replace("ID", &"i".repeat(9000));
    let said = hook(&t, &long);
    assert!(said.contains("no checkpoint: the record"), "{said}");
    assert_eq!(t.checkpoints(), 1);
    // 2 would make the agent refuse the message
    for wrong in [
        &["hook"][..],
        &["hook", "nobody"],
        &["hook", "openhands", "--new-flag"],
    ] {
        let mut c = t.command();
        c.args(wrong);
        let out = with_input(c, b"{}");
        assert_eq!(out.status.code(), Some(1), "{wrong:?}: {out:?}");
    }
}

#[test]
fn a_folder_that_is_not_tracked_is_said_so_and_left_alone() {
    let t = Tracked::new();
    let other = t.dir().join("other");
    std::fs::create_dir(&other).expect("folder");
    for state in [t.state(), t.dir().join("none")] {
        let mut c = respool(t.dir().path());
        c.arg("--state-dir").arg(&state).args(["hook", "openhands"]);
        let input = json!({"event_type": "UserPromptSubmit", "message": "m", "session_id": "s",
            "working_dir": other});
        let said = reason(&with_input(c, input.to_string().as_bytes()));
        assert_eq!(
            said,
            format!("respool: no checkpoint: {} is not tracked", other.display())
        );
    }
    assert!(!t.dir().join("none").exists());
    assert_eq!(std::fs::read_dir(&other).expect("folder").count(), 0);
}

#[test]
fn an_agent_without_root_is_told_that() {
    let t = Tracked::new();
    let mut store = Store::new(&t, 1, Style::Renamed);
    // the program and the state folder's parents must be reachable for another user
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(t.dir().path(), open).expect("chmod");
    let program = t.dir().join("respool");
    std::fs::copy(env!("CARGO_BIN_EXE_respool"), &program).expect("copy");
    let mut c = std::process::Command::new(program);
    c.env_clear()
        .env("HOME", "/nonexistent")
        .current_dir("/")
        .arg("--state-dir")
        .arg(t.state())
        .args(["hook", "openhands"]);
    std::os::unix::process::CommandExt::uid(&mut c, 65534);
    std::os::unix::process::CommandExt::gid(&mut c, 65534);
    let said = reason(&with_input(
        c,
        store.hook_input("UserPromptSubmit", Some("m")).as_bytes(),
    ));
    assert_eq!(
        said,
        "respool: no checkpoint: the hook needs root, and the agent runs as another user"
    );
    store.hook_ran("UserPromptSubmit", &said);
    store.message(&["m"]);
    store.status("finished");
    let row = &rows(&t, &store)[0];
    assert_eq!(row["checkpoint"]["state"], "failed", "{row}");
    assert_eq!(
        row["checkpoint"]["reason"],
        "the hook needs root, and the agent runs as another user"
    );
}

#[test]
fn while_the_files_are_being_changed_there_is_none() {
    const {
        assert!(
            cfg!(debug_assertions),
            "this test needs the kill points of a debug build"
        );
    }
    let t = Tracked::new();
    let mut store = Store::new(&t, 1, Style::Renamed);
    let target = id(&hook(&t, &store.hook_input("UserPromptSubmit", Some("first"))));
    std::fs::write(t.workspace().join("first.txt"), "changed\n").expect("change");
    // a rewind that dies in the middle
    let killed = t
        .command()
        .env("RESPOOL_KILL_AT", "rewind-applying")
        .args(["--yes", "rewind", &target, "-s"])
        .arg(t.workspace())
        .output()
        .expect("respool");
    assert!(!killed.status.success(), "{killed:?}");
    let said = hook(&t, &store.hook_input("UserPromptSubmit", Some("second")));
    assert!(
        said.ends_with("a rewind was interrupted: run respool recover"),
        "{said}"
    );
    // the same one, alive
    let lock = File::open(t.sandbox_dir().join("lock")).expect("lock");
    flock(&lock, FlockOperation::LockExclusive).expect("held");
    let said = hook(&t, &store.hook_input("UserPromptSubmit", Some("second")));
    assert_eq!(said, "respool: no checkpoint: a rewind is under way");
    drop(lock);
    store.hook_ran(
        "UserPromptSubmit",
        &json!({"decision": "allow", "reason": said}).to_string(),
    );
    store.message(&["second"]);
    store.status("finished");
    let row = &rows(&t, &store)[0];
    assert_eq!(
        (&row["checkpoint"]["state"], &row["checkpoint"]["reason"]),
        (&json!("failed"), &json!("a rewind is under way"))
    );
    let (code, said) = t.run(&["-s", &t.workspace().to_string_lossy(), "recover"]);
    assert_eq!(code, 0, "{said}");
    id(&hook(&t, &store.hook_input("UserPromptSubmit", Some("third"))));
}
