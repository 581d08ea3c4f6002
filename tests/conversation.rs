//! The timeline of every recorded store equals what OpenHands itself knows of it; damaged, torn, hostile and
//! huge stores give rows and notices, never a crash.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use proptest::prelude::*;
use respool::conversation::{
    Conversation, ConversationError, Library, MessageKind, OpenHandsApp, OpenHandsV0, OpenHandsV1, Roots,
    Source,
};
use respool::failure::Explain;
use respool::progress::{CancelFlag, Progress, Silent};
use serde_json::Value;

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/openhands")
}

/// Every recorded store with what the reference reader made of it.
fn recorded() -> Vec<(PathBuf, Value)> {
    fn walk(dir: &Path, found: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(dir).expect("fixtures").map(|e| e.expect("entry")) {
            let path = entry.path();
            if path.is_dir() {
                walk(&path, found);
            } else if path.to_string_lossy().ends_with(".expected.json") {
                found.push(path);
            }
        }
    }
    let mut found = Vec::new();
    walk(&fixtures(), &mut found);
    assert_eq!(found.len(), 7, "all recorded stores are there");
    found
        .into_iter()
        .map(|p| {
            let value = serde_json::from_slice(&fs::read(&p).expect("read")).expect("json");
            (
                PathBuf::from(p.to_string_lossy().trim_end_matches(".expected.json")),
                value,
            )
        })
        .collect()
}

fn recorded_store(name: &str) -> PathBuf {
    recorded()
        .into_iter()
        .map(|(store, _)| store)
        .find(|s| s.to_string_lossy().contains(name))
        .expect("a recorded store")
}

fn source(store: &Path) -> Box<dyn Source> {
    let all: [Box<dyn Source>; 3] = [
        Box::new(OpenHandsV1),
        Box::new(OpenHandsV0),
        Box::new(OpenHandsApp),
    ];
    all.into_iter()
        .find(|s| s.recognises(store))
        .expect("a source knows it")
}

fn read(store: &Path) -> Conversation {
    source(store).read(store, &Silent).expect("read")
}

fn roots(home: &Path, cwd: &Path) -> Roots {
    Roots {
        home: home.into(),
        env: BTreeMap::new(),
        cwd: cwd.into(),
    }
}

/// A V1 store that a test makes.
struct Made {
    dir: tempfile::TempDir,
    events: u64,
}

impl Made {
    fn new() -> Self {
        let dir = tempfile::tempdir().expect("temp dir");
        fs::create_dir(dir.path().join("events")).expect("mkdir");
        let made = Self { dir, events: 0 };
        made.base("{}");
        made
    }
    fn path(&self) -> &Path {
        self.dir.path()
    }
    fn base(&self, json: &str) {
        fs::write(self.path().join("base_state.json"), json).expect("write");
    }
    fn file(&self, index: u64) -> PathBuf {
        self.path().join(format!(
            "events/event-{index:05}-{:08x}-0000.json",
            index + 0x1000
        ))
    }
    fn raw(&mut self, bytes: impl AsRef<[u8]>) -> u64 {
        fs::write(self.file(self.events), bytes).expect("write");
        self.events += 1;
        self.events - 1
    }
    fn event(&mut self, kind: &str, source: &str, rest: &str) -> u64 {
        let id = format!("{:08x}-0000", self.events + 0x1000);
        self.raw(format!(
            r#"{{"id":"{id}","timestamp":"2026-11-29T10:00:00.5","source":"{source}"{rest},"kind":"{kind}"}}"#
        ))
    }
    fn says(&mut self, text: &str) -> u64 {
        self.event("MessageEvent", "user", &said("user", text))
    }
    fn texts(&self) -> Vec<String> {
        read(self.path()).messages.into_iter().map(|m| m.text).collect()
    }
    /// Makes all files old, so that nothing is taken for half written.
    fn age(&self) {
        for entry in fs::read_dir(self.path().join("events")).expect("events") {
            let file = fs::File::open(entry.expect("entry").path()).expect("open");
            file.set_modified(std::time::SystemTime::now() - Duration::from_secs(3600))
                .expect("utimens");
        }
    }
}

fn said(role: &str, text: &str) -> String {
    let text = Value::from(text);
    format!(r#","llm_message":{{"role":"{role}","content":[{{"type":"text","text":{text}}}]}}"#)
}

#[test]
fn recorded_stores_are_read_as_openhands_reads_them() {
    for (store, want) in recorded() {
        let name = store.display();
        let got = read(&store);
        let rows: Vec<&Value> = want["user_messages"]
            .as_array()
            .expect("rows")
            .iter()
            .filter(|m| m["synthetic"] != Value::Bool(true))
            .collect();
        assert_eq!(got.summary.id, want["id"].as_str().expect("id"), "{name}");
        assert_eq!(got.events, want["events"].as_u64().expect("events"), "{name}");
        assert_eq!(got.summary.messages, Some(rows.len() as u64), "{name}");
        assert!(
            got.notices.is_empty() && !got.partial,
            "{name}: {:?}",
            got.notices
        );
        if let Some(workspace) = want["workspace"].as_str() {
            assert_eq!(
                got.summary.workspace.as_deref(),
                Some(Path::new(workspace)),
                "{name}"
            );
            assert_eq!(got.status.as_deref(), want["status"].as_str(), "{name}");
        }
        assert_eq!(got.messages.len(), rows.len(), "{name}");
        let mut number = 0;
        for (message, row) in got.messages.iter().zip(rows) {
            let active = row["active"].as_bool().expect("active");
            number += u32::from(active);
            let id = row["id"]
                .as_str()
                .map_or_else(|| row["id"].to_string(), str::to_owned);
            assert_eq!(message.id, id, "{name}");
            assert_eq!(message.index, row["index"].as_u64().expect("index"), "{name}");
            assert_eq!(message.text, row["text"].as_str().expect("text"), "{name}");
            assert_eq!(
                u64::from(message.pictures),
                row["images"].as_u64().expect("images"),
                "{name}"
            );
            assert_eq!(message.active, active, "{name} {}", message.text);
            assert_eq!(message.number, active.then_some(number), "{name}");
            assert_eq!(message.branch == 0, active, "{name}");
            assert!(message.time.is_some(), "{name}");
            if want["format"] == "v1" {
                assert_eq!(message.parent.as_deref(), row["rewind_head"].as_str(), "{name}");
            }
            let hooks = row["hooks"].as_array().cloned().unwrap_or_default();
            assert_eq!(message.hooks.len(), hooks.len(), "{name}");
            for (got, want) in message.hooks.iter().zip(&hooks) {
                assert_eq!(Some(got.stdout.as_str()), want["stdout"].as_str(), "{name}");
                assert_eq!(Some(got.blocked), want["blocked"].as_bool(), "{name}");
            }
        }
    }
}

#[test]
fn a_message_sent_during_a_turn_is_queued() {
    let navigated = read(&recorded_store("navigated"));
    let queued: Vec<u64> = navigated
        .messages
        .iter()
        .filter(|m| m.kind == MessageKind::Queued)
        .map(|m| m.index)
        .collect();
    assert_eq!(
        queued,
        [81],
        "the one message that came while the server noted `running`"
    );
    let branches: Vec<u32> = navigated.messages.iter().map(|m| m.branch).collect();
    assert_eq!(branches.iter().filter(|&&b| b == 0).count(), 3);
    assert!(branches.iter().max() >= Some(&2), "{branches:?}");
}

#[test]
fn the_tail_is_the_end_of_the_whole() {
    for (store, _) in recorded() {
        let source = source(&store);
        let whole = source.read(&store, &Silent).expect("read");
        for rows in [0, 1, 2, 100] {
            let tail = source.tail(&store, rows).expect("tail");
            let skip = whole.messages.len().saturating_sub(rows);
            assert_eq!(tail.partial, skip > 0, "{}", store.display());
            for (a, b) in tail.messages.iter().zip(&whole.messages[skip..]) {
                assert_eq!(
                    (&a.id, &a.text, a.active, &a.parent),
                    (&b.id, &b.text, b.active, &b.parent)
                );
                assert_eq!(a.hooks, b.hooks);
            }
            assert_eq!(tail.messages.len(), whole.messages.len() - skip);
        }
    }
}

/// P123: only the human's messages make rows, and the head of the n-th is what stands before the n-th shown.
#[test]
fn p123_noise_makes_no_rows() {
    let mut made = Made::new();
    made.event("SystemPromptEvent", "agent", "");
    let first = made.says("first");
    made.event(
        "ObservationEvent",
        "environment",
        r#","tool_call_id":"c","observation":{"content":[]}"#,
    );
    made.event(
        "MessageEvent",
        "environment",
        &said("user", "[Stop hook feedback] go on"),
    );
    made.event(
        "MessageEvent",
        "environment",
        &said("user", "<system-reminder>be nice</system-reminder>"),
    );
    made.event(
        "MessageEvent",
        "user",
        &format!("{},\"sender\":\"delegate\"", said("user", "a sub-agent's task")),
    );
    made.event(
        "MessageEvent",
        "user",
        &said("user", "The goal is NOT yet complete (audit iteration 2)."),
    );
    made.event("MessageEvent", "agent", &said("assistant", "done"));
    made.event("MessageEvent", "user", &said("tool", "a tool's result"));
    made.event("Condensation", "environment", r#","summary":"all of it""#);
    made.event("InterruptEvent", "user", "");
    let before = made.event("PauseEvent", "user", "");
    let second = made.says("second");
    let got = read(made.path());
    let rows: Vec<_> = got
        .messages
        .iter()
        .map(|m| (m.number, m.index, m.text.as_str()))
        .collect();
    assert_eq!(rows, [(Some(1), first, "first"), (Some(2), second, "second")]);
    assert_eq!(
        got.messages[1].parent,
        Some(format!("{:08x}-0000", before + 0x1000))
    );
}

/// P139: 35,000 events of noise around 14 messages.
#[test]
fn p139_noise_is_read_in_no_time() {
    let mut made = Made::new();
    let noise = format!(
        r#","tool_call_id":"c","observation":{{"text":"{}"}}"#,
        "x".repeat(400)
    );
    for i in 0..14 {
        made.says(&format!("message {i}"));
        for _ in 0..2500 {
            made.event("ObservationEvent", "environment", &noise);
        }
    }
    let began = Instant::now();
    let got = read(made.path());
    let took = began.elapsed();
    assert_eq!((got.messages.len(), got.events), (14, 35_014));
    assert_eq!(got.messages[13].number, Some(14));
    // an unoptimised build on a busy machine is given three times the second
    let limit = if cfg!(debug_assertions) { 3 } else { 1 };
    assert!(took < Duration::from_secs(limit), "{took:?}");
    let tail = OpenHandsV1.tail(made.path(), 1).expect("tail");
    assert_eq!((tail.messages.len(), tail.partial), (1, true));
}

#[test]
fn odd_names_are_ignored_and_damaged_events_named() {
    let mut made = Made::new();
    made.says("one");
    let bad = made.raw([0u8; 300]);
    made.says("two");
    let unknown = made.event("QuantumEvent", "agent", r#","parent_id":{}"#);
    made.raw("[]");
    made.says("three");
    for name in [
        ".event-00001-aaaaaaaa.json.XX",
        "event-1-aaaaaaaa.json",
        "event-00009-zz.json",
        "notes.txt",
    ] {
        fs::write(made.path().join("events").join(name), "x").expect("write");
    }
    std::os::unix::fs::symlink(
        "/etc/hostname",
        made.path().join("events/event-00006-aaaaaaaa.json"),
    )
    .expect("link");
    made.age();
    let got = read(made.path());
    assert_eq!(made.texts(), ["one", "two", "three"]);
    assert!(got.messages.iter().all(|m| m.active) && got.events == 6 && unknown == 3);
    assert_eq!(got.notices.len(), 2, "{:?}", got.notices);
    let name = made
        .file(bad)
        .file_name()
        .expect("name")
        .to_string_lossy()
        .into_owned();
    assert!(
        got.notices[0].contains(&name) && got.notices[0].contains("NUL"),
        "{:?}",
        got.notices
    );
}

#[test]
fn a_gap_ends_the_conversation_with_a_notice() {
    let mut made = Made::new();
    made.says("one");
    made.says("two");
    made.says("three");
    made.base(r#"{"leaf_event_id":"00001002-0000"}"#);
    fs::remove_file(made.file(1)).expect("remove");
    let got = read(made.path());
    assert_eq!(
        got.messages.iter().map(|m| m.text.as_str()).collect::<Vec<_>>(),
        ["one"]
    );
    assert!(
        got.notices.iter().any(|n| n.contains("event 1 is missing")),
        "{:?}",
        got.notices
    );
    assert!(got.messages[0].active, "{:?}", got.notices);
}

#[test]
fn a_torn_newest_event_is_waited_for_or_left_out() {
    let mut made = Made::new();
    made.says("one");
    let torn = made.raw(r#"{"id":"00001001-0000","sou"#);
    assert_eq!(made.texts(), ["one"]);
    let notices = read(made.path()).notices;
    assert!(
        notices.len() == 1 && notices[0].contains("cut off"),
        "{notices:?}"
    );
    // its writer finishes while it is read
    let (path, mut whole) = (made.file(torn), Made::new());
    whole.events = torn;
    whole.says("two");
    let text = fs::read(whole.file(torn)).expect("read");
    let writer = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(20));
        fs::write(path, text).expect("write");
    });
    fs::write(made.file(torn), "").expect("write");
    let deadline = Instant::now() + Duration::from_secs(10);
    while made.texts() != ["one", "two"] {
        assert!(
            Instant::now() < deadline,
            "never whole: {:?}",
            read(made.path()).notices
        );
    }
    writer.join().expect("writer");
}

#[test]
fn a_store_that_cannot_be_read_is_named_and_the_rest_works() {
    let home = tempfile::tempdir().expect("temp dir");
    let places = home.path().join(".openhands/conversations");
    for (name, base) in [
        ("aaaa0000000000000000000000000001", "{}".to_owned()),
        ("aaaa0000000000000000000000000002", String::new()),
        ("bbbb0000000000000000000000000003", "{".to_owned()),
        ("bbbb0000000000000000000000000004", "\0".repeat(100)),
    ] {
        fs::create_dir_all(places.join(name).join("events")).expect("mkdir");
        fs::write(places.join(name).join("base_state.json"), base).expect("write");
    }
    let library = Library::new(roots(home.path(), home.path()));
    let own = |p: &Path| p.starts_with(home.path());
    let listing = library.list(Some("openhands"));
    assert_eq!(listing.conversations.iter().filter(|s| own(&s.store)).count(), 4);
    assert_eq!(
        listing
            .damaged
            .iter()
            .filter(|e| e.path().is_some_and(own))
            .count(),
        3
    );
    for error in listing.damaged.iter().filter(|e| e.path().is_some_and(own)) {
        assert!(
            error.to_string().contains("base_state.json") && error.kind().exit_code() == 5,
            "{error}"
        );
    }
    assert!(library.list(Some("nobody")).conversations.is_empty());
    let kind = |s: &str| {
        library
            .find(Some(s))
            .map(|_| ())
            .map_err(|e| e.kind().exit_code())
    };
    assert_eq!(kind("aaaa0000-0000-0000-0000-000000000001"), Ok(()));
    assert_eq!(kind("AAAA00000000000000000000000000001"), Err(4));
    assert_eq!(kind("aaaa"), Err(3));
    assert_eq!(kind("ccc"), Err(4));
    assert_eq!(kind("-"), Err(4));
    assert_eq!(
        kind("./.openhands/conversations/aaaa0000000000000000000000000001"),
        Ok(())
    );
    assert_eq!(
        kind("./.openhands/conversations/bbbb0000000000000000000000000003"),
        Err(5)
    );
    assert_eq!(kind("./.openhands/none"), Err(4));
    assert_eq!(kind("./.openhands"), Err(4));
}

#[test]
fn the_newest_conversation_of_the_folder_is_meant() {
    let home = tempfile::tempdir().expect("temp dir");
    let work = home.path().join("work");
    fs::create_dir_all(work.join("sub/deep")).expect("mkdir");
    let make = |id: &str, workspace: &Path, age: u64| {
        let store = home.path().join(".openhands/conversations").join(id);
        fs::create_dir_all(store.join("events")).expect("mkdir");
        let base = serde_json::json!({"id": id, "workspace": {"working_dir": workspace}});
        fs::write(store.join("base_state.json"), base.to_string()).expect("write");
        for dir in [store.join("events"), store] {
            let then = std::time::SystemTime::now() - Duration::from_secs(age);
            fs::File::open(dir)
                .expect("open")
                .set_modified(then)
                .expect("utimens");
        }
    };
    make("11110000000000000000000000000000", &work, 100);
    make("22220000000000000000000000000000", &work.join("sub"), 200);
    make(
        "33330000000000000000000000000000",
        &home.path().join("elsewhere"),
        10,
    );
    let at = |cwd: &Path| {
        let found = Library::new(roots(home.path(), cwd)).find(None);
        found
            .map(|(_, store)| store.file_name().map(|n| n.to_string_lossy()[..4].to_owned()))
            .ok()
            .flatten()
    };
    assert_eq!(at(&work).as_deref(), Some("1111"));
    assert_eq!(
        at(&work.join("sub/deep")).as_deref(),
        Some("1111"),
        "the newest, not the nearest"
    );
    assert_eq!(at(home.path()), None);
    let none = Library::new(roots(home.path(), home.path())).find(None);
    assert!(matches!(none, Err(ConversationError::NotFound { .. })));
}

#[test]
fn v0_as_it_was_in_0_20() {
    let dir = tempfile::tempdir().expect("temp dir");
    let store = dir.path().join(".openhands-state/sessions/demo-1a2b");
    fs::create_dir_all(store.join("events")).expect("mkdir");
    let event = |n: u64, json: &str| fs::write(store.join(format!("events/{n}.json")), json).expect("write");
    event(
        0,
        r#"{"id":0,"source":"environment","observation":"agent_state_changed","extras":{"agent_state":"loading"}}"#,
    );
    event(
        2,
        r#"{"id":2,"timestamp":"2025-01-17T10:00:00","source":"user","action":"message","args":{"content":"two","images_urls":["x","y"]}}"#,
    );
    event(
        9,
        r#"{"id":9,"source":"user","action":"message","args":{"content":"nine","image_urls":["x"],"wait_for_response":false},"timeout":120}"#,
    );
    event(
        10,
        r#"{"id":10,"source":"user","action":"message","args":{"content":"ten","image_urls":null}}"#,
    );
    event(
        11,
        r#"{"id":11,"source":"user","action":"recall","args":{"query":"no"}}"#,
    );
    event(
        12,
        r#"{"id":12,"source":"user","observation":"null","content":"","extras":{}}"#,
    );
    event(
        13,
        r#"{"id":13,"source":"agent","action":"message","args":{"content":"no"}}"#,
    );
    event(14, "\0\0\0");
    fs::write(store.join("events/x.json"), "{}").expect("write");
    let got = read(&store);
    let rows: Vec<_> = got
        .messages
        .iter()
        .map(|m| (m.number, m.id.as_str(), m.text.as_str(), m.pictures))
        .collect();
    assert_eq!(
        rows,
        [
            (Some(1), "2", "two", 2),
            (Some(2), "9", "nine", 1),
            (Some(3), "10", "ten", 0)
        ]
    );
    assert!(
        got.notices.len() == 1 && got.notices[0].contains("14.json"),
        "{:?}",
        got.notices
    );
    let library = Library::new(roots(dir.path(), dir.path()));
    let found = library.find(Some("demo-1a")).expect("by prefix");
    assert_eq!(found.1, store);
}

#[test]
fn the_apps_copies_are_ordered_by_their_timestamps() {
    let home = tempfile::tempdir().expect("temp dir");
    let store = home
        .path()
        .join(".openhands/v1_conversations/dddd0000000000000000000000000000");
    fs::create_dir_all(&store).expect("mkdir");
    let from = recorded_store("v1_cli_1.16").join("events");
    for entry in fs::read_dir(from).expect("events").map(|e| e.expect("entry")) {
        let name = entry.file_name().to_string_lossy().into_owned();
        if let Some(id) = name.strip_prefix("event-") {
            let value: Value = serde_json::from_slice(&fs::read(entry.path()).expect("read")).expect("json");
            let pretty = serde_json::to_string_pretty(&value).expect("json");
            fs::write(store.join(id[6..].replace('-', "")), pretty).expect("write");
        }
    }
    let (source, found) = Library::new(roots(home.path(), home.path()))
        .find(Some("dddd0000"))
        .expect("found");
    let got = source.read(&found, &Silent).expect("read");
    let want = read(&recorded_store("v1_cli_1.16"));
    let texts = |c: &Conversation| c.messages.iter().map(|m| m.text.clone()).collect::<Vec<_>>();
    assert_eq!(texts(&got), texts(&want));
    assert!(got.messages.iter().all(|m| m.active));
}

#[test]
fn a_reading_can_be_cancelled() {
    struct Stop(CancelFlag);
    impl Progress for Stop {
        fn step(&self, _: &'static str, _: u64, _: u64) {}
        fn cancelled(&self) -> bool {
            self.0.is_set()
        }
    }
    let stop = Stop(CancelFlag::default());
    let store = recorded_store("v1_sdk_1.58");
    assert!(OpenHandsV1.read(&store, &stop).is_ok());
    stop.0.cancel();
    assert!(matches!(
        OpenHandsV1.read(&store, &stop),
        Err(ConversationError::Cancelled)
    ));
}

#[test]
fn a_running_conversation_is_live_while_its_server_lives() {
    let mut made = Made::new();
    made.says("go");
    made.base(r#"{"execution_status":"running"}"#);
    assert!(
        read(made.path()).at_work,
        "no server ever held it: the state is all there is"
    );
    let lease = |pid: u32, expires: i64| {
        let host = fs::read_to_string("/proc/sys/kernel/hostname").expect("hostname");
        let json = serde_json::json!({"owner_host": host.trim(), "owner_pid": pid, "expires_at": expires});
        fs::write(made.path().join("owner_lease.json"), json.to_string()).expect("write");
        let got = read(made.path());
        (got.at_work, got.summary.live)
    };
    assert_eq!(lease(std::process::id(), i64::from(u32::MAX)), (true, true));
    assert_eq!(lease(i32::MAX as u32, i64::from(u32::MAX)), (false, false));
    assert_eq!(lease(std::process::id(), 1), (false, false));
    made.base(r#"{"execution_status":"idle"}"#);
    assert_eq!(lease(std::process::id(), i64::from(u32::MAX)), (false, true));
}

/// Nothing that stands in an event file can make a reader fail or lose the messages around it.
fn survives(bytes: &[u8]) {
    let mut made = Made::new();
    made.says("before");
    made.raw(bytes);
    made.says("after");
    made.age();
    let texts = made.texts();
    assert!(
        texts.first().is_some_and(|t| t == "before") && texts.last().is_some_and(|t| t == "after"),
        "{texts:?}"
    );
    OpenHandsV1.tail(made.path(), 5).expect("tail");
    OpenHandsV1.summary(made.path()).expect("summary");
    let session = tempfile::tempdir().expect("temp dir");
    fs::create_dir(session.path().join("events")).expect("mkdir");
    fs::write(session.path().join("events/0.json"), bytes).expect("write");
    OpenHandsV0.read(session.path(), &Silent).expect("V0");
    made.base("{}");
    fs::write(made.path().join("base_state.json"), bytes).expect("write");
    match OpenHandsV1.read(made.path(), &Silent) {
        Ok(_) | Err(ConversationError::Damaged { .. }) => {}
        Err(other) => panic!("{other}"),
    }
}

#[test]
fn deep_huge_and_odd_values_are_survived() {
    let deep = "[".repeat(50_000);
    survives(deep.as_bytes());
    survives(format!("{{\"llm_message\":{deep}{}}}", "]".repeat(50_000)).as_bytes());
    survives(format!("{{\"id\":{}}}", "9".repeat(10_000)).as_bytes());
    survives(br#"{"id":1e999,"kind":"MessageEvent"}"#);
    survives(
        br#"{"kind":"MessageEvent","source":"user","llm_message":{"role":"user","content":{"type":"text"}}}"#,
    );
    survives(br#"{"id":"x","id":"y"}"#);
    survives(b"\xff\xfe{\x00}\x00");
    survives(b"nan");
}

fn an_event() -> Vec<u8> {
    let store = recorded_store("v1_sdk_1.58").join("events");
    let mut names: Vec<_> = fs::read_dir(store)
        .expect("events")
        .map(|e| e.expect("entry").path())
        .collect();
    names.sort();
    let message = names
        .iter()
        .find(|p| p.to_string_lossy().contains("event-00001-"))
        .expect("a message");
    fs::read(message).expect("read")
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn mutated_events_are_survived(
        edits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>(), 0u8..4), 1..12),
        cut in prop::option::of(any::<prop::sample::Index>()),
    ) {
        let mut bytes = an_event();
        for (at, byte, how) in edits {
            let at = at.index(bytes.len());
            match how {
                0 => bytes[at] = byte,
                1 => bytes.insert(at, byte),
                2 => bytes[at] = b"{}[]\",:\\0nul"[byte as usize % 12],
                _ if bytes.len() > 1 => { bytes.remove(at); }
                _ => {}
            }
        }
        if let Some(cut) = cut {
            bytes.truncate(cut.index(bytes.len()));
        }
        survives(&bytes);
    }
}
