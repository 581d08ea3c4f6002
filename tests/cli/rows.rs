//! What the timeline offers where much goes on: many messages, several conversations in one workspace.

use std::path::PathBuf;

use serde_json::{Value, json};

use crate::common::{Store, Style, Tracked, with_input};

fn hook(t: &Tracked, store: &Store, event: &str, text: Option<&str>) -> String {
    let mut c = t.command();
    c.args(["hook", "openhands"]);
    let out = with_input(c, store.hook_input(event, text).as_bytes());
    let answer: Value = serde_json::from_slice(&out.stdout).expect("one JSON object");
    answer.to_string()
}

/// A message, with its hook, and the agent's turn, which writes this file.
fn turn(t: &Tracked, store: &mut Store, text: &str, file: &str) {
    let said = hook(t, store, "UserPromptSubmit", Some(text));
    store.hook_ran("UserPromptSubmit", &said);
    store.message(&[text]);
    store.action();
    std::fs::write(t.workspace().join(file), text).expect("the agent's");
    store.status("finished");
    hook(t, store, "Stop", None);
}

fn rows(t: &Tracked, store: &Store) -> Vec<Value> {
    let (code, timeline) = t.run(&["timeline", &store.id]);
    assert_eq!(code, 0, "{timeline}");
    timeline["rows"].as_array().expect("rows").clone()
}

fn snapshot(t: &Tracked, id: &str) -> PathBuf {
    let snaps = std::fs::read_dir(t.sandbox_dir().join("snaps")).expect("snaps");
    let mut found = snaps
        .map(|e| e.expect("entry").path())
        .filter(|p| p.to_string_lossy().ends_with(id));
    found.next().expect("the checkpoint").join("workspace")
}

/// P132: of 30 messages each has a checkpoint that can be gone back to, or says why it has none, and which has one; the
/// newest are no worse off than the oldest.
#[test]
fn p132_each_of_thirty_messages_has_a_checkpoint_or_a_reason() {
    let t = Tracked::new();
    let mut store = Store::new(&t, 1, Style::Renamed);
    let mut failed = Vec::new();
    for n in 1..=30 {
        let (text, file) = (format!("message {n}"), format!("{n}.txt"));
        match n % 10 {
            // the hook was not there
            4 => {
                store.message(&[&text]);
                store.action();
                std::fs::write(t.workspace().join(&file), "x").expect("the agent's");
                store.status("finished");
            }
            // an operation was cut short before, and nobody has recovered it yet
            7 => {
                let entry = t.sandbox_dir().join("ops/99999999-op-0000000000.json");
                std::fs::write(&entry, r#"{"v":1,"phase":"applying","kind":"rewind"}"#).expect("entry");
                turn(&t, &mut store, &text, &file);
                std::fs::remove_file(entry).expect("remove");
                failed.push(n);
            }
            _ => turn(&t, &mut store, &text, &file),
        }
    }
    let before = rows(&t, &store);
    // retention took some of the oldest, somebody removed the snapshot of another
    let (code, pruned) = t.run(&["--yes", "prune", "--keep", "40", "-s", &sandbox(&t)]);
    assert_eq!(code, 0, "{pruned}");
    assert!(!pruned["removed"].as_array().expect("removed").is_empty());
    let harmed = before[24]["checkpoint"]["id"].as_str().expect("an id");
    let deleted = std::process::Command::new("btrfs")
        .args(["subvolume", "delete"])
        .arg(snapshot(&t, harmed))
        .output();
    assert!(deleted.expect("btrfs").status.success());

    let rows = rows(&t, &store);
    assert_eq!(rows.len(), 30);
    let mut seen = std::collections::BTreeMap::<String, Vec<u64>>::new();
    for row in &rows {
        let number = row["message"].as_u64().expect("a number");
        let state = row["checkpoint"]["state"].as_str().expect("a state");
        seen.entry(state.to_owned()).or_default().push(number);
        let (code, said) = t.run(&[
            "-c",
            &store.id,
            "--dry-run",
            "rewind",
            &format!("m{number}"),
            "--files",
        ]);
        if state == "ok" {
            assert_eq!(code, 0, "{row}: {said}");
            continue;
        }
        let reason = row["checkpoint"]["reason"].as_str().unwrap_or_default();
        assert!(!reason.is_empty(), "no reason: {row}");
        assert!(code == 4 || code == 5, "{row}: {said}");
        let error = &said["error"];
        let told = format!("{} {}", error["message"], error["hint"]);
        assert!(told.contains(&format!("message {number}")), "{told}");
        assert!(
            told.contains("these have one") || told.contains("shows the others"),
            "{told}"
        );
    }
    assert_eq!(seen["failed"], failed, "{seen:?}");
    assert_eq!(seen["incomplete"], [25], "{seen:?}");
    assert!(seen["thinned"].iter().all(|n| *n < 20), "{seen:?}");
    assert_eq!(seen["none"], [4, 14, 24], "{seen:?}");
    assert_eq!(seen["ok"].last(), Some(&30), "{seen:?}");
}

fn sandbox(t: &Tracked) -> String {
    t.run(&["sandboxes"]).1[0]["id"]
        .as_str()
        .expect("an id")
        .to_owned()
}

/// P118: two conversations in one workspace: the plan of one names what the other did, also where they worked at the
/// same time; that can be kept, and what was taken back comes back.
#[test]
fn p118_what_another_conversation_did_is_named() {
    let t = Tracked::new();
    let (mut a, mut b) = (
        Store::new(&t, 1, Style::Renamed),
        Store::new(&t, 2, Style::InPlace),
    );
    turn(&t, &mut a, "one", "a.txt");
    turn(&t, &mut b, "two", "b.txt");
    let plan = |flags: &[&str]| {
        let mut words = vec!["--dry-run", "-c", a.id.as_str(), "rewind", "m1", "--files"];
        words.extend(flags);
        let (code, doc) = t.run(&words);
        assert_eq!(code, 0, "{doc}");
        doc["plan"].clone()
    };
    let line = |id: &str, file: &str| {
        format!("another conversation ({id}) changed 1 path of these meanwhile: {file}")
    };
    let told = |plan: &Value| -> Vec<String> {
        let all = plan["blockers"].as_array().expect("blockers");
        let ours = all.iter().filter(|b| b["kind"] == "conversation");
        ours.map(|b| b["what"].as_str().expect("a line").to_owned())
            .collect()
    };
    let whole = plan(&[]);
    assert_eq!(told(&whole), [line(&b.id, "b.txt")]);
    assert_eq!(whole["yours"], json!(["b.txt"]));
    // its own turn alone, or what is not its own spared: then nothing of the other is lost
    assert_eq!(told(&plan(&["--only-turn"])), [""; 0]);
    assert_eq!(told(&plan(&["--keep-mine"])), [""; 0]);
    let (code, done) = t.run(&["--yes", "-c", &a.id, "rewind", "m1", "--files", "--keep-mine"]);
    assert_eq!(code, 0, "{done}");
    let there = |file: &str| t.workspace().join(file).exists();
    assert!(!there("a.txt") && there("b.txt"));
    assert_eq!(t.run(&["--yes", "undo"]).0, 0);
    let (code, done) = t.run(&["--yes", "-c", &a.id, "rewind", "m1", "--files"]);
    assert_eq!(code, 0, "{done}");
    assert!(!there("a.txt") && !there("b.txt"));
    assert_eq!(t.run(&["--yes", "undo"]).0, 0);
    assert!(there("a.txt") && there("b.txt"));

    // a turn of the other one in the middle of a turn of this one
    let said = hook(&t, &a, "UserPromptSubmit", Some("three"));
    a.hook_ran("UserPromptSubmit", &said);
    a.message(&["three"]);
    std::fs::write(t.workspace().join("a2.txt"), "x").expect("the agent's");
    turn(&t, &mut b, "four", "b2.txt");
    a.status("finished");
    hook(&t, &a, "Stop", None);
    let (code, doc) = t.run(&["--dry-run", "-c", &a.id, "rewind", "m2", "--files"]);
    assert_eq!(code, 0, "{doc}");
    assert_eq!(told(&doc["plan"]), [line(&b.id, "b2.txt")]);
    // seen from the other: this one was at work already, and has done both
    let (code, doc) = t.run(&["--dry-run", "-c", &b.id, "rewind", "m2", "--files"]);
    assert_eq!(code, 0, "{doc}");
    assert_eq!(told(&doc["plan"]), [line(&a.id, "b2.txt")]);
}

/// P153 P155: the night that summer time ends, and a clock that is set back by an hour: OpenHands writes local time
/// without a zone. The order is the store's, each message has its own checkpoint, and goes back to what was before it.
#[test]
fn p153_p155_clocks_change_no_order() {
    for style in [Style::Renamed, Style::InPlace] {
        let t = Tracked::new();
        let mut store = Store::new(&t, 1, style);
        let times = ["01:30:00", "02:30:00", "02:30:00", "01:59:00", "02:30:00"];
        for (n, time) in times.iter().enumerate() {
            let said = hook(&t, &store, "UserPromptSubmit", Some("again"));
            store.hook_ran("UserPromptSubmit", &said);
            let content = json!([{"type": "text", "text": "again"}]);
            let message = json!({"timestamp": format!("2026-10-25T{time}.000000"),
                "llm_message": {"role": "user", "content": content}});
            store.event("MessageEvent", "user", message);
            store.action();
            std::fs::write(t.workspace().join("turn"), n.to_string()).expect("the agent's");
            store.status("finished");
            hook(&t, &store, "Stop", None);
        }
        let rows = rows(&t, &store);
        let numbers: Vec<&Value> = rows.iter().map(|r| &r["message"]).collect();
        assert_eq!(numbers, [1, 2, 3, 4, 5], "{rows:?}");
        let ids: std::collections::HashSet<String> =
            rows.iter().map(|r| r["checkpoint"]["id"].to_string()).collect();
        assert_eq!(ids.len(), 5, "{style:?} {rows:?}");
        for n in (2..=5).rev() {
            let (code, said) = t.run(&["--yes", "-c", &store.id, "rewind", &format!("m{n}"), "--files"]);
            assert_eq!(code, 0, "{style:?} m{n}: {said}");
            let turn = std::fs::read_to_string(t.workspace().join("turn")).expect("read");
            assert_eq!(turn, (n - 2).to_string(), "{style:?} m{n}");
        }
    }
}
