//! Claude Code's sessions: every recorded one is read as the reference reader reads it, also while it grows; damaged
//! and hostile ones give rows and notices, never a crash.

use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

use proptest::prelude::*;
use respool::conversation::{
    ClaudeCode, Conversation, ConversationError, Library, Message, MessageKind, Roots, Source,
};
use respool::progress::{CancelFlag, Progress, Silent};
use serde_json::{Value, json};

fn home() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/claude/home")
}

fn roots(home: &Path, cwd: &Path) -> Roots {
    Roots {
        home: home.into(),
        env: BTreeMap::new(),
        cwd: cwd.into(),
    }
}

fn source() -> ClaudeCode {
    ClaudeCode::default()
}

/// Every recorded session with what the reference reader made of it.
fn recorded() -> Vec<(PathBuf, Value)> {
    let expected = fs::read(home().join("../EXPECTED.json")).expect("fixture");
    let expected: Vec<Value> = serde_json::from_slice(&expected).expect("JSON");
    assert_eq!(expected.len(), 13, "all recorded sessions are there");
    let stores = source().find(&roots(&home(), Path::new("/")));
    let of = |session: &str| {
        let is = |s: &&PathBuf| s.file_stem().is_some_and(|n| n == session);
        stores.iter().find(is).expect("its file").clone()
    };
    expected
        .into_iter()
        .map(|e| (of(e["session"].as_str().expect("an id")), e))
        .collect()
}

fn recorded_store(session: &str) -> PathBuf {
    let is = |(store, _): &(PathBuf, Value)| store.to_string_lossy().contains(session);
    recorded().into_iter().find(is).expect("a recorded session").0
}

fn read(store: &Path) -> Conversation {
    source().read(store, &Silent).expect("read")
}

/// A session that a test writes, in a project of its own.
struct Session {
    dir: tempfile::TempDir,
    store: PathBuf,
    last: Option<String>,
    records: u32,
}

impl Session {
    fn new() -> Self {
        let dir = tempfile::tempdir().expect("temp dir");
        let project = dir.path().join(".claude/projects/-w");
        fs::create_dir_all(&project).expect("folders");
        Self {
            store: project.join("11111111-2222-4333-8444-555555555555.jsonl"),
            dir,
            last: None,
            records: 0,
        }
    }
    fn raw(&self, bytes: impl AsRef<[u8]>) {
        let mut file = OpenOptions::new()
            .create(true)
            .append(true)
            .open(&self.store)
            .expect("open");
        file.write_all(bytes.as_ref()).expect("write");
    }
    fn line(&mut self, kind: &str, more: &Value) -> String {
        self.records += 1;
        let uuid = format!("00000000-0000-4000-8000-{:012}", self.records);
        let mut record = json!({"parentUuid": self.last, "isSidechain": false, "type": kind, "uuid": uuid,
                                "timestamp": "2026-11-29T17:05:13.139Z", "sessionId": "s", "cwd": "/w"});
        for (key, value) in more.as_object().expect("an object") {
            record[key] = value.clone();
        }
        self.raw(format!("{record}\n"));
        self.last = Some(uuid.clone());
        uuid
    }
    fn says(&mut self, text: &str) -> String {
        self.line("user", &json!({"message": {"role": "user", "content": text}}))
    }
    fn answers(&mut self, stop: &str, block: &str) -> String {
        let block = json!({"type": block, "text": "x"});
        self.line(
            "assistant",
            &json!({"message": {"stop_reason": stop, "content": [block]}}),
        )
    }
    fn read(&self) -> Conversation {
        read(&self.store)
    }
}

#[test]
fn every_recorded_session_is_read_as_the_reference_reads_it() {
    for (store, expected) in recorded() {
        let got = read(&store);
        let name = store.display();
        assert_eq!(
            got.summary.workspace.as_deref(),
            expected["workspace"].as_str().map(Path::new),
            "{name}"
        );
        let wanted = expected["messages"].as_array().expect("messages");
        assert_eq!(got.messages.len(), wanted.len(), "{name}");
        for (m, e) in got.messages.iter().zip(wanted) {
            let kind = match e["kind"].as_str().expect("kind") {
                "shell" => MessageKind::Shell,
                "queued" => MessageKind::Queued,
                // the reference tells commands that are prompts from others; here each is a command
                "local-command" => MessageKind::Command,
                _ if m.text.starts_with("/mycmd") => MessageKind::Command,
                _ => MessageKind::Prompt,
            };
            assert_eq!(m.kind, kind, "{name}: {}", m.text);
            assert_eq!(m.id, e["id"].as_str().expect("id"), "{name}");
            assert_eq!(m.text, e["text"].as_str().expect("text"), "{name}");
            assert_eq!(Value::from(m.parent.clone()), e["parent"], "{name}: {}", m.text);
            assert_eq!(
                m.active,
                e["active"].as_bool().expect("active"),
                "{name}: {}",
                m.text
            );
            assert_eq!(
                u64::from(m.pictures),
                e["images"].as_u64().expect("images"),
                "{name}"
            );
            let time = m
                .time
                .expect("a time")
                .to_rfc3339_opts(chrono::SecondsFormat::Millis, true);
            assert_eq!(time, e["ts"].as_str().expect("ts"), "{name}");
        }
        let numbers: Vec<u32> = got.messages.iter().filter_map(|m| m.number).collect();
        assert_eq!(numbers, (1..=numbers.len() as u32).collect::<Vec<_>>(), "{name}");
    }
}

#[test]
fn the_traps_are_in_the_recorded_sessions() {
    let all: Vec<Conversation> = recorded().iter().map(|(store, _)| read(store)).collect();
    let messages = || all.iter().flat_map(|c| &c.messages);
    for kind in [
        MessageKind::Prompt,
        MessageKind::Queued,
        MessageKind::Shell,
        MessageKind::Command,
    ] {
        assert!(messages().any(|m| m.kind == kind), "{kind:?}");
    }
    assert!(messages().any(|m| !m.active && m.branch > 0), "branches");
    assert!(
        messages().any(|m| m.pictures > 0 && !m.text.is_empty()),
        "a picture"
    );
    // the torn line holds the next record: nothing is lost, and nothing is said of it
    let torn = read(&recorded_store("99999999-8888-4777-8666-777777777777"));
    assert!(
        torn.messages.iter().any(|m| m.text == "after torn line"),
        "{:?}",
        torn.messages
    );
}

/// P125: a message before the conversation was made shorter is on the active branch, with its number and parent.
#[test]
fn a_conversation_that_was_made_shorter_keeps_its_messages() {
    for session in ["66f01d77", "9f5c081a"] {
        let c = read(&recorded_store(session));
        let at = c
            .messages
            .iter()
            .position(|m| m.text.starts_with("/compact"))
            .expect("it was made shorter");
        assert!(c.messages[at].active, "{session}");
        assert!(c.messages[..at].iter().any(|m| m.number == Some(1)), "{session}");
        assert!(
            !c.messages
                .iter()
                .any(|m| m.text.contains("This session is being continued")),
            "{session}"
        );
    }
}

/// P130: what stands before an interrupted message and before a queued one is known.
#[test]
fn interrupted_and_queued_messages_have_a_parent() {
    let c = read(&recorded_store("66f01d77"));
    let of = |text: &str| {
        c.messages
            .iter()
            .find(|m| m.text.starts_with(text))
            .expect("the message")
    };
    let interrupted = of("Interrupted one\nInterrupted in tool");
    assert!(interrupted.active && interrupted.parent.is_some());
    assert!(!of("Interrupted one\n@slow 8").active);
    let queued = c
        .messages
        .iter()
        .find(|m| m.kind == MessageKind::Queued)
        .expect("queued");
    assert!(queued.parent.is_some() && !queued.text.is_empty());
    assert_eq!(c.status.as_deref(), Some("interrupted"));
    assert!(!c.at_work);
}

/// A reader that follows a growing file sees each message once, whatever it was cut at, and the same as one that reads
/// it whole.
#[test]
fn a_growing_file_is_followed_by_its_tail() {
    for (store, _) in recorded() {
        let bytes = fs::read(&store).expect("read");
        let grown = Session::new();
        let (mut seen, mut events): (Vec<Message>, u64) = (Vec::new(), 0);
        for cut in (0..bytes.len()).step_by(701).chain([bytes.len()]) {
            let from = fs::metadata(&grown.store).map_or(0, |m| m.len() as usize);
            grown.raw(&bytes[from..cut]);
            let c = source()
                .since(&grown.store, events.saturating_sub(8))
                .expect("since");
            assert!(c.events >= events && c.events <= cut as u64);
            for m in c.messages {
                if !seen.iter().any(|s| s.id == m.id) {
                    seen.push(m);
                }
            }
            events = c.events;
        }
        let whole = read(&store);
        let key = |m: &Message| (m.id.clone(), m.index, m.text.clone(), m.kind);
        assert_eq!(
            seen.iter().map(key).collect::<Vec<_>>(),
            whole.messages.iter().map(key).collect::<Vec<_>>(),
            "{}",
            store.display()
        );
        assert_eq!(events, whole.events);
        assert_eq!(grown.read().messages, whole.messages);
    }
}

#[test]
fn a_tail_is_the_end_of_the_whole() {
    let mut s = Session::new();
    let filler = "y".repeat(20_000);
    for i in 0..60 {
        s.says(&format!("message {i}"));
        s.answers("end_turn", "text");
        s.line(
            "assistant",
            &json!({"message": {"content": [{"type": "text", "text": filler}]}}),
        );
    }
    let whole = s.read();
    assert_eq!(whole.messages.len(), 60);
    for rows in [1, 5, 50, 1000] {
        let tail = source().tail(&s.store, rows).expect("tail");
        assert!(
            tail.messages.len() >= rows.min(60),
            "{rows}: {}",
            tail.messages.len()
        );
        let same = &whole.messages[60 - tail.messages.len()..];
        for (a, b) in tail.messages.iter().zip(same) {
            assert_eq!(
                (&a.id, a.index, a.active, &a.parent),
                (&b.id, b.index, b.active, &b.parent)
            );
            assert_eq!(a.number, b.number.filter(|_| !tail.partial));
        }
        assert_eq!(tail.partial, tail.messages.len() < 60);
        assert_eq!((tail.events, tail.acted), (whole.events, whole.acted));
        assert_eq!(tail.summary.workspace.as_deref(), Some(Path::new("/w")));
    }
}

#[test]
fn a_message_counts_when_its_line_is_complete() {
    let mut s = Session::new();
    s.says("one");
    let before = s.read();
    let line = r#"{"type":"user","uuid":"two","parentUuid":null,"message":{"content":"two"}"#;
    s.raw(line);
    let half = s.read();
    assert_eq!((half.messages.len(), half.events), (1, before.events));
    assert!(half.notices.is_empty(), "{:?}", half.notices);
    // its last byte makes it a record, with its line feed or without
    s.raw("}");
    let without = s.read();
    s.raw("\n");
    let with = s.read();
    assert_eq!((&with.messages, with.events), (&without.messages, without.events));
    assert_eq!(without.messages.len(), 2);
    assert_eq!(
        without.messages[1].index + 1,
        without.events,
        "nothing came after it"
    );
}

#[test]
fn how_far_the_agent_is() {
    let mut s = Session::new();
    let stage = |s: &Session| {
        let c = s.read();
        (c.status.unwrap_or_default(), c.at_work, c.acted.is_some())
    };
    s.line("mode", &json!({}));
    assert_eq!(stage(&s), (String::new(), false, false));
    s.says("go");
    assert_eq!(stage(&s), ("running".into(), true, false));
    s.answers("tool_use", "text");
    assert_eq!(stage(&s), ("running".into(), true, false));
    s.answers("tool_use", "tool_use");
    s.line(
        "user",
        &json!({"toolUseResult": null, "message": {"content": [{"type": "tool_result"}]}}),
    );
    assert_eq!(stage(&s), ("running".into(), true, true));
    // a sub-agent's end is not the agent's
    s.line(
        "assistant",
        &json!({"isSidechain": true, "message": {"stop_reason": "end_turn", "content": []}}),
    );
    assert_eq!(stage(&s).0, "running");
    s.answers("end_turn", "text");
    assert_eq!(stage(&s), ("finished".into(), false, true));
    s.says("<bash-input>make</bash-input>");
    assert_eq!(s.read().acted, s.read().messages.last().map(|m| m.index));
    s.says("<bash-stdout>ok</bash-stdout><bash-stderr></bash-stderr>");
    assert_eq!(stage(&s).0, "finished");
    s.says("again");
    s.says("[Request interrupted by user]");
    assert_eq!(stage(&s), ("interrupted".into(), false, true));
    s.line(
        "assistant",
        &json!({"isApiErrorMessage": true, "message": {"stop_reason": "stop_sequence", "content": []}}),
    );
    assert_eq!(stage(&s).0, "error");
    assert_eq!(s.read().messages.len(), 3);
}

/// The process that has a session open says so in a file; a left-over of a dead one, or of one whose number is another's
/// by now, counts nothing.
#[test]
fn an_open_session_is_live() {
    let mut s = Session::new();
    s.says("go");
    let id = s
        .store
        .file_stem()
        .and_then(|n| n.to_str())
        .expect("UTF-8")
        .to_owned();
    let folder = s.dir.path().join(".claude/sessions");
    fs::create_dir(&folder).expect("folder");
    let own = std::process::id();
    let stat = fs::read_to_string("/proc/self/stat").expect("stat");
    let start = stat
        .rsplit(')')
        .next()
        .expect("fields")
        .split_whitespace()
        .nth(19)
        .expect("start");
    let at = |pid: u32, start: &str, session: &str| {
        let note = json!({"pid": pid, "sessionId": session, "procStart": start, "cwd": "/w"});
        fs::write(folder.join("note.json"), note.to_string()).expect("write");
        let c = source().read(&s.store, &Silent).expect("read");
        (c.summary.live, c.at_work)
    };
    assert_eq!(at(own, start, &id), (true, true));
    assert_eq!(at(own, "1", &id), (false, false));
    assert_eq!(at(i32::MAX as u32, start, &id), (false, false));
    // nobody notes this one: the file itself has just changed
    assert_eq!(at(own, start, "other"), (true, true));
    s.answers("end_turn", "text");
    let idle = |session: &str| {
        let note = json!({"pid": own, "sessionId": session, "procStart": start});
        fs::write(folder.join("note.json"), note.to_string()).expect("write");
        let c = source().read(&s.store, &Silent).expect("read");
        (c.summary.live, c.at_work)
    };
    assert_eq!(idle(&id), (true, false), "open, but waiting");
    assert_eq!(idle("other"), (false, false));
}

#[test]
fn titles_and_lists() {
    let mut s = Session::new();
    s.line("queue-operation", &json!({"uuid": null, "operation": "enqueue"}));
    s.says("first words\nmore");
    let title = |s: &Session| source().summary(&s.store).expect("summary").title;
    assert_eq!(title(&s).as_deref(), Some("first words"));
    s.raw("{\"type\":\"summary\",\"summary\":\"made\",\"leafUuid\":\"x\"}\n");
    assert_eq!(title(&s).as_deref(), Some("made"));
    for _ in 0..40 {
        s.line(
            "assistant",
            &json!({"message": {"content": [{"type": "text", "text": "z".repeat(5000)}]}}),
        );
    }
    s.raw("{\"type\":\"custom-title\",\"customTitle\":\"mine\",\"sessionId\":\"s\"}\n");
    assert_eq!(title(&s).as_deref(), Some("mine"));
    assert_eq!(s.read().summary.title.as_deref(), Some("mine"));
    let summary = source().summary(&s.store).expect("summary");
    assert_eq!((summary.messages, summary.workspace), (None, Some("/w".into())));
    assert_eq!(summary.agent, "claude");
}

#[test]
fn the_library_finds_sessions_by_id_path_and_folder() {
    let library = Library::new(roots(&home(), Path::new("/home/dev/ws/my_proj.v2/sub2")));
    let listing = library.list(Some("claude"));
    assert_eq!(listing.conversations.len(), 13);
    assert!(listing.damaged.is_empty());
    for (store, expected) in recorded() {
        let id = expected["session"].as_str().expect("an id");
        for selector in [id, &id[..8], &id.replace('-', ""), store.to_str().expect("UTF-8")] {
            let found = library.find(Some(selector));
            match found {
                Ok((source, at)) => {
                    assert_eq!((source.agent(), at.file_name()), ("claude", store.file_name()));
                }
                Err(e) => panic!("{selector}: {e}"),
            }
        }
    }
    // the folder's name is lossy, and the session went to another folder: the first one counts
    let (_, newest) = library.find(None).expect("the newest of this folder");
    let workspace = source().workspace(&newest).expect("workspace");
    assert_eq!(workspace.as_deref(), Some(Path::new("/home/dev/ws/my_proj.v2")));
}

#[test]
fn damaged_lines_are_named_and_the_rest_is_read() {
    let mut s = Session::new();
    s.says("one");
    s.raw("{\"type\":\"user\",\"uuid\":\n");
    s.raw([0_u8; 64]);
    s.raw("\n\u{1b}[31m{\n[]\n7\n\n");
    s.says("two");
    let c = s.read();
    assert_eq!(c.messages.len(), 2);
    assert_eq!(c.notices.len(), 5, "{:?}", c.notices);
    assert!(c.notices.iter().all(|n| !n.contains(char::is_control)));
    for _ in 0..100 {
        s.raw("{\n");
    }
    assert_eq!(s.read().notices.len(), 21);
    let broken = Session::new();
    broken.raw("no JSON at all\n");
    let e = source().read(&broken.store, &Silent).expect_err("damaged");
    assert!(matches!(e, ConversationError::Damaged { .. }), "{e}");
}

/// Nothing but a regular file is opened, and no link at its end is followed.
#[test]
fn what_is_no_file_is_no_session() {
    let s = Session::new();
    nix::unistd::mkfifo(&s.store, nix::sys::stat::Mode::S_IRWXU).expect("mkfifo");
    let link = s.store.with_file_name("link.jsonl");
    std::os::unix::fs::symlink(recorded_store("50b9b120"), &link).expect("link");
    let stores = source().find(&roots(s.dir.path(), Path::new("/")));
    assert!(stores.is_empty(), "{stores:?}");
    for path in [&s.store, &link] {
        assert!(!source().recognises(path));
        let e = source().read(path, &Silent).expect_err("none");
        assert!(matches!(e, ConversationError::NotFound { .. }), "{e}");
    }
}

#[test]
fn a_long_line_is_read_and_a_reading_can_be_cancelled() {
    let mut s = Session::new();
    s.says(&"long ".repeat(2_500_000));
    s.says("short");
    let c = s.read();
    assert_eq!((c.messages.len(), c.messages[0].text.len()), (2, 12_500_000));
    struct Stopped(CancelFlag);
    impl Progress for Stopped {
        fn step(&self, _: &'static str, _: u64, _: u64) {}
        fn cancelled(&self) -> bool {
            self.0.is_set()
        }
    }
    let flag = CancelFlag::new();
    flag.cancel();
    let e = source().read(&s.store, &Stopped(flag)).expect_err("cancelled");
    assert!(matches!(e, ConversationError::Cancelled));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]
    /// Whatever stands in a file: rows, notices or an error, and the same by all ways of reading.
    #[test]
    fn anything_can_be_read(cuts in proptest::collection::vec((0_usize..60_000, any::<u8>()), 0..20)) {
        let mut bytes = fs::read(recorded_store("66f01d77")).expect("read");
        for (at, byte) in cuts {
            let at = at % bytes.len();
            if byte < 64 { bytes.truncate(at.max(1)); } else { bytes[at] = byte; }
        }
        let s = Session::new();
        s.raw(&bytes);
        if let Ok(c) = source().read(&s.store, &Silent) {
            let tail = source().tail(&s.store, usize::MAX).expect("tail");
            prop_assert_eq!(&tail.messages, &c.messages);
            let since = source().since(&s.store, 0).expect("since");
            prop_assert_eq!(since.messages.len(), c.messages.len());
            prop_assert_eq!(since.events, c.events);
        }
        let _any = source().summary(&s.store);
    }
}
