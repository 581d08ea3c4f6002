//! P137: very many conversations, some of them huge: lists and look-ups read the ends of the files, and never all of
//! them.

use std::fs::File;
use std::io::{Seek, SeekFrom, Write};
use std::path::Path;

use serde_json::{Value, json};

use crate::common::{TestDir, respool};

const SESSIONS: u64 = 3000;
const HUGE: u64 = 500 << 20;
/// 2 GiB together: what no list may read.
const TOTAL: u64 = 2 << 30;
/// The most that the program may read, all together, and the most address space that it gets, in KiB.
const READ: u64 = 200 << 20;
const SPACE: u64 = 400 << 10;

fn id(n: u64) -> String {
    format!("{n:08x}-2222-4333-8444-555555555555")
}

fn line(n: u64, uuid: u64, text: &str) -> String {
    let record = json!({"parentUuid": null, "isSidechain": false, "type": "user",
        "uuid": format!("{uuid:08x}-0000-4000-8000-000000000000"), "timestamp": "2026-11-29T17:05:02Z",
        "sessionId": id(n), "cwd": "/nowhere", "message": {"role": "user", "content": text}});
    format!("{record}\n")
}

/// A session of this size: two messages, and between them a hole, which nobody who reads the ends comes to.
fn session(project: &Path, n: u64, size: u64) {
    let mut file = File::create(project.join(format!("{}.jsonl", id(n)))).expect("create");
    let mut put = |text: String| file.write_all(text.as_bytes()).expect("write");
    put(line(n, 1, &format!("first of {n}")));
    put("{\"type\":\"x\"}\n".repeat(2000));
    let last = line(n, 2, &format!("last of {n}"));
    file.seek(SeekFrom::Start(size - last.len() as u64 - 1))
        .expect("seek");
    file.write_all(format!("\n{last}").as_bytes()).expect("write");
}

/// Runs it with little memory; its document, and how many bytes it has read.
fn measured(dir: &TestDir, words: &[&str]) -> (Value, u64) {
    let template = respool(dir.path());
    let mut c = std::process::Command::new("sh");
    let script = format!("ulimit -v {SPACE}; \"$@\" && cat /proc/$$/io >&2");
    c.arg("-c").arg(script).arg("sh").arg(template.get_program());
    c.arg("--json").args(words).env_clear().current_dir(dir.path());
    for (name, value) in template.get_envs() {
        c.env(name, value.expect("a value"));
    }
    let out = c.output().expect("sh");
    let told = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(out.status.success(), "{words:?}: {told}");
    let read = told.lines().find_map(|l| l.strip_prefix("rchar: "));
    let read = read.expect("the kernel counts").trim().parse().expect("a number");
    (serde_json::from_slice(&out.stdout).expect("JSON"), read)
}

#[test]
fn p137_three_thousand_conversations_are_listed_by_their_ends() {
    let dir = TestDir::new();
    let project = dir.join("home/.claude/projects/-nowhere");
    std::fs::create_dir_all(&project).expect("folders");
    let each = (TOTAL - HUGE) / (SESSIONS - 1);
    for n in 1..SESSIONS {
        session(&project, n, each);
    }
    session(&project, SESSIONS, HUGE);

    let (list, read) = measured(&dir, &["conversations"]);
    let list = list.as_array().expect("a list");
    assert_eq!(list.len() as u64, SESSIONS);
    let titled = |n: u64| {
        let own = list.iter().find(|c| c["id"] == id(n).as_str()).expect("listed");
        own["title"].as_str().expect("a title").to_owned()
    };
    assert_eq!(titled(7), "first of 7");
    assert_eq!(titled(SESSIONS), format!("first of {SESSIONS}"));
    assert!(read < READ, "{} MiB were read for the list", read >> 20);

    // one of them is found by the beginning of its id without a look into the others
    let (shown, read) = measured(&dir, &["timeline", &id(42)[..8]]);
    let rows = shown["rows"].as_array().expect("rows");
    assert_eq!(rows.last().expect("a row")["text"], "last of 42", "{shown}");
    assert!(read < READ, "{} MiB were read for one", read >> 20);
}
