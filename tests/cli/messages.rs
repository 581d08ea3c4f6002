//! P123 P139: the timeline through the program: the human's messages and nothing else.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::common::respool;
use crate::lab::{Answer, Lab};

fn expectations(dir: &Path, out: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(dir).expect("fixtures").flatten() {
        let path = entry.path();
        if path.is_dir() {
            expectations(&path, out);
        } else if path.to_string_lossy().ends_with(".expected.json") {
            out.push(path);
        }
    }
}

#[test]
fn p123_every_recorded_conversation_has_its_messages_and_no_other() {
    let dir = tempfile::tempdir().expect("a folder");
    let mut all = Vec::new();
    expectations(
        &Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/openhands"),
        &mut all,
    );
    assert!(all.len() >= 6);
    for file in all {
        let expected: Value = serde_json::from_slice(&std::fs::read(&file).expect("read")).expect("JSON");
        let expected = expected.get(0).cloned().unwrap_or(expected);
        let store = file.to_string_lossy().replace(".expected.json", "");
        let out = respool(dir.path())
            .args(["--json", "timeline", &store])
            .output()
            .expect("run");
        let doc = Answer::of(out).json();
        let want: Vec<(String, Value, Value)> = expected["user_messages"]
            .as_array()
            .expect("messages")
            .iter()
            .filter(|m| m["synthetic"] != true)
            .map(|m| {
                let id = m["id"]
                    .as_str()
                    .map_or_else(|| m["id"].to_string(), ToOwned::to_owned);
                (
                    id,
                    m["text"].clone(),
                    m.get("active").cloned().unwrap_or(json!(true)),
                )
            })
            .collect();
        let rows = doc["rows"].as_array().unwrap_or_else(|| panic!("{store}: {doc}"));
        let got: Vec<(String, Value, Value)> = rows
            .iter()
            .map(|r| {
                (
                    r["id"].as_str().expect("id").to_owned(),
                    r["text"].clone(),
                    r["active"].clone(),
                )
            })
            .collect();
        assert_eq!(got, want, "{store}");
        // numbers count the active branch, in order
        let numbers: Vec<u64> = rows.iter().filter_map(|r| r["message"].as_u64()).collect();
        assert_eq!(numbers, (1..=numbers.len() as u64).collect::<Vec<_>>(), "{store}");
        assert!(
            rows.iter()
                .all(|r| r["message"].is_null() != (r["active"] == true)),
            "{store}"
        );
    }
}

/// Fourteen messages in the noise of thousands of tool calls: fourteen rows, soon.
#[test]
fn p139_messages_in_much_noise() {
    let lab = Lab::plain(|_| {});
    lab.cut(&lab.store(), 2);
    let events = lab.store().join("events");
    let mut names: Vec<String> = std::fs::read_dir(&events)
        .expect("events")
        .map(|e| e.expect("entry").file_name().into_string().expect("name"))
        .filter(|n| n.starts_with("event-"))
        .collect();
    names.sort();
    let load = |n: &str| -> Value {
        serde_json::from_slice(&std::fs::read(events.join(n)).expect("read")).expect("JSON")
    };
    let (message, action) = (load(&names[1]), load(&names[2]));
    let mut parent = load(names.last().expect("events"))["id"].clone();
    let (start, mut count) = (names.len(), 2);
    for i in start..start + 6000 {
        let mut event = if i % 500 == 0 {
            count += 1;
            message.clone()
        } else {
            action.clone()
        };
        let id = format!("{i:08x}-0000-4000-8000-000000000000");
        event["id"] = json!(id);
        event["parent_id"] = parent;
        parent = json!(id);
        std::fs::write(events.join(format!("event-{i:05}-{id}.json")), event.to_string()).expect("write");
    }
    let base = lab.store().join("base_state.json");
    let mut state: Value = serde_json::from_slice(&std::fs::read(&base).expect("read")).expect("JSON");
    state["leaf_event_id"] = parent;
    std::fs::write(&base, state.to_string()).expect("write");
    let started = std::time::Instant::now();
    let doc = lab.ok(&["timeline", lab.store().to_str().expect("UTF-8")]);
    let took = started.elapsed();
    let rows = doc["rows"].as_array().expect("rows");
    assert_eq!(
        (rows.len(), rows.iter().filter(|r| r["active"] == true).count()),
        (count, count)
    );
    assert_eq!(count, 14);
    assert!(took.as_secs() < 5, "{took:?} without optimisation");
}

/// A message is a text of any bytes: none of them reaches a terminal.
#[test]
fn no_control_byte_of_a_message_or_a_label_is_printed() {
    let lab = Lab::plain(|_| {});
    lab.cut(&lab.store(), 1);
    let events = lab.store().join("events");
    let file = std::fs::read_dir(&events)
        .expect("events")
        .flatten()
        .map(|e| e.path())
        .find(|p| p.to_string_lossy().contains("event-00001"));
    let file = file.expect("the message");
    let mut event: Value = serde_json::from_slice(&std::fs::read(&file).expect("read")).expect("JSON");
    event["llm_message"]["content"][0]["text"] =
        json!("\u{1b}]52;c;aGk=\u{7}\u{1b}[2J\u{9b}6n\u{202e}evil\r\n\u{0}x");
    std::fs::write(&file, event.to_string()).expect("write");
    let mut base: Value =
        serde_json::from_slice(&std::fs::read(lab.store().join("base_state.json")).expect("read"))
            .expect("JSON");
    base["title"] = json!("\u{1b}]0;title\u{7}");
    std::fs::write(lab.store().join("base_state.json"), base.to_string()).expect("write");
    for args in [&["timeline"][..], &["conversations"], &["-v", "timeline"]] {
        let a = lab.bare(
            &[
                &["--color", "never", "-c", lab.store().to_str().expect("UTF-8")],
                args,
            ]
            .concat(),
        );
        assert_eq!(a.code, Some(0), "{}", a.err);
        for text in [a.text(), a.err] {
            let bad = text
                .chars()
                .find(|c| (c.is_control() && *c != '\n') || *c == '\u{202e}');
            assert_eq!(bad, None, "{args:?}: {text:?}");
        }
    }
}
