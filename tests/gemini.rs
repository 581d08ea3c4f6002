//! Gemini CLI's chats: every recorded one is read as the reference reader reads it, also while it grows; damaged and
//! hostile ones give rows and notices, never a crash.

mod common;
#[path = "told/grown.rs"]
mod grown;
mod told;
#[path = "told/watcher.rs"]
mod watcher;

use std::fs;
use std::path::{Path, PathBuf};

use common::Tracked;
use grown::followed;
use proptest::prelude::*;
use respool::conversation::{Conversation, ConversationError, Gemini, Library, MessageKind, Source};
use respool::progress::Silent;
use serde_json::{Value, json};
use told::{Fixture, append, at_least, roots};
use watcher::Watcher;

const MAIN: &str = "332d9107-e970-4d34-b633-2ac61bdb7852";

fn fixture() -> Fixture {
    Fixture::of("gemini")
}

fn stores() -> Vec<PathBuf> {
    Gemini.find(&roots(fixture().home(), Path::new("/")))
}

fn recorded(id: &str) -> PathBuf {
    let is = |s: &PathBuf| Gemini.id(s) == id;
    stores().into_iter().find(is).expect("a recorded chat")
}

fn read(store: &Path) -> Conversation {
    Gemini.read(store, &Silent).expect("read")
}

/// A chat that a test writes.
struct Chat {
    dir: tempfile::TempDir,
    store: PathBuf,
    records: u32,
}

impl Chat {
    fn new() -> Self {
        let dir = tempfile::tempdir().expect("temp dir");
        let project = dir.path().join(".gemini/tmp/w");
        append(&project.join(".project_root"), b"/w\n");
        let it = Self {
            store: project.join("chats/session-2026-11-29T17-24-11111111.jsonl"),
            dir,
            records: 0,
        };
        it.record(&json!({"sessionId": "11111111-2222-4333-8444-555555555555", "kind": "main"}));
        it
    }
    fn raw(&self, bytes: impl AsRef<[u8]>) {
        append(&self.store, bytes.as_ref());
    }
    fn record(&self, record: &Value) {
        self.raw(format!("{record}\n"));
    }
    fn message(&mut self, by: &str, more: &Value) -> String {
        self.records += 1;
        let id = format!("message-{}", self.records);
        let mut record = json!({"id": id, "timestamp": "2026-11-29T17:24:41.700Z", "type": by});
        for (key, value) in more.as_object().expect("an object") {
            record[key] = value.clone();
        }
        self.record(&record);
        id
    }
    fn says(&mut self, text: &str) -> String {
        self.message("user", &json!({"content": [{"text": text}]}))
    }
    fn read(&self) -> Conversation {
        read(&self.store)
    }
    fn find(&self) -> Vec<PathBuf> {
        Gemini.find(&roots(self.dir.path(), Path::new("/")))
    }
}

#[test]
fn every_recorded_chat_is_read_as_the_reference_reads_it() {
    fixture().check(&Gemini, &stores());
    for store in stores() {
        let c = read(&store);
        assert!(c.notices.is_empty() && !c.at_work, "{:?}", c.notices);
        assert_eq!(c.status.as_deref(), Some("finished"), "{}", store.display());
    }
    // what resuming left behind holds no message, and is listed no more than what sub-agents did
    let all = fs::read_dir(recorded(MAIN).parent().expect("a folder")).expect("read");
    assert!(all.count() > stores().len());
    let main = read(&recorded(MAIN));
    let branches: Vec<u32> = main.messages.iter().map(|m| m.branch).collect();
    assert_eq!(branches, [0, 1, 1, 0]);
}

#[test]
fn the_library_finds_chats_by_id_path_and_folder() {
    let library = Library::new(roots(fixture().home(), Path::new("/home/dev/ws/tui/sub")));
    let listing = library.list(Some("gemini"));
    assert_eq!((listing.conversations.len(), listing.damaged.len()), (5, 0));
    let store = recorded(MAIN);
    for selector in [MAIN, &MAIN[..8], store.to_str().expect("UTF-8")] {
        assert_eq!(library.find(Some(selector)).expect("found").1, store);
    }
    let (_, newest) = library.find(None).expect("the newest of this folder");
    assert_eq!(Gemini.id(&newest), "3889fd3c-1a7f-494f-ab55-7875eb0f96ef");
    let mut chat = Chat::new();
    chat.says("one");
    let mut moved = roots(Path::new("/nowhere"), Path::new("/"));
    moved.env.insert("GEMINI_CLI_HOME".into(), chat.dir.path().into());
    assert_eq!(Gemini.find(&moved), [chat.store.clone()]);
    let places = Gemini.places(&moved);
    assert!(
        places.contains(&chat.store.parent().expect("a folder").to_owned()),
        "{places:?}"
    );
}

#[test]
fn growing_chats_are_followed() {
    for store in stores() {
        let whole = fs::read(&store).expect("read");
        let chat = Chat::new();
        let grown = chat.store.with_file_name("session-grown-22222222.jsonl");
        followed(&Gemini, &grown, &whole, |from, to| {
            append(&grown, &whole[from..to]);
        });
        assert_eq!(read(&grown).messages, read(&store).messages);
        at_least(&Gemini, &grown, 2);
    }
}

/// Forks begin with the same message under the same id.
#[test]
fn forks_are_kin() {
    let kin: Vec<String> = Gemini.kin(&recorded(MAIN)).iter().map(|s| Gemini.id(s)).collect();
    assert_eq!(kin.len(), 2, "{kin:?}");
    assert!(
        kin.iter()
            .all(|k| k.starts_with("7536e966") || k.starts_with("aaaa9107")),
        "{kin:?}"
    );
}

#[test]
fn a_tail_is_the_end_of_the_whole() {
    let mut chat = Chat::new();
    let filler = "y".repeat(20_000);
    for i in 0..60 {
        chat.says(&format!("message {i}"));
        chat.message("gemini", &json!({"content": filler, "toolCalls": [{"id": "x"}]}));
    }
    for rows in [1, 5, 50, 1000] {
        at_least(&Gemini, &chat.store, rows);
    }
    let part = Gemini.tail(&chat.store, 1).expect("tail");
    assert!(part.partial && part.messages.iter().all(|m| m.number.is_none() && m.active));
    assert_eq!(part.summary.id, "11111111-2222-4333-8444-555555555555");
}

#[test]
fn how_far_the_agent_is() {
    let mut chat = Chat::new();
    let stage = |chat: &Chat| {
        let c = chat.read();
        (c.status.unwrap_or_default(), c.at_work, c.acted.is_some())
    };
    assert_eq!(stage(&chat), (String::new(), false, false));
    chat.says("go");
    assert_eq!(stage(&chat), ("running".into(), true, false));
    chat.message("gemini", &json!({"content": "", "toolCalls": [{"id": "x"}]}));
    chat.message("user", &json!({"content": [{"functionResponse": {"id": "x"}}]}));
    assert_eq!(stage(&chat), ("running".into(), true, true));
    chat.message("gemini", &json!({"content": "done"}));
    assert_eq!(stage(&chat), ("finished".into(), false, true));
    chat.message("info", &json!({"content": "Request cancelled."}));
    assert_eq!(stage(&chat), ("interrupted".into(), false, true));
    assert_eq!(chat.read().messages.len(), 1);
}

/// Older versions kept a chat in one object.
#[test]
fn a_chat_in_one_object_is_read() {
    let chat = Chat::new();
    let old = chat
        .store
        .with_file_name("session-2025-10-01T10-00-22222222.json");
    let whole = json!({"sessionId": "22222222-2222-4333-8444-555555555555", "projectHash": "x", "messages": [
        {"id": "a", "timestamp": "2025-10-01T10:00:00.000Z", "type": "user", "content": "one"},
        {"id": "b", "timestamp": "2025-10-01T10:00:01.000Z", "type": "gemini", "content": "x", "toolCalls": [{}]},
        {"id": "c", "timestamp": "2025-10-01T10:00:02.000Z", "type": "user", "content": "two"}]});
    append(
        &old,
        serde_json::to_string_pretty(&whole).expect("JSON").as_bytes(),
    );
    let c = read(&old);
    let rows: Vec<_> = c
        .messages
        .iter()
        .map(|m| (m.text.as_str(), m.index, m.number))
        .collect();
    assert_eq!(rows, [("one", 0, Some(1)), ("two", 2, Some(2))]);
    assert_eq!((c.events, c.acted, c.summary.messages), (3, Some(1), Some(2)));
    assert_eq!(c.summary.workspace.as_deref(), Some(Path::new("/w")));
    assert_eq!(Gemini.since(&old, 2).expect("since").messages.len(), 1);
    assert_eq!(chat.find().len(), 2);
    assert!(Gemini.recognises(&old));
    fs::write(&old, "{\"sessionId\":\"2222").expect("write");
    let e = Gemini.read(&old, &Silent).expect_err("damaged");
    assert!(matches!(e, ConversationError::Damaged { .. }), "{e}");
}

#[test]
fn damaged_lines_are_named_and_the_rest_is_read() {
    let mut chat = Chat::new();
    chat.says("one");
    chat.raw("{\"id\":\"torn\",\"type\":\"user\",\"content\":[{\"text\":\"to");
    chat.says("glued");
    chat.raw([0_u8; 64]);
    chat.raw("\n\u{1b}[31m{\n[]\n7\n\n{\"$rewindTo\":7}\n{\"$set\":{\"messages\":\"x\"}}\n{\"future\":1}\n");
    chat.says("/command it");
    let c = chat.read();
    let texts: Vec<&str> = c.messages.iter().map(|m| m.text.as_str()).collect();
    assert_eq!(texts, ["one", "glued", "/command it"]);
    assert_eq!(c.messages[2].kind, MessageKind::Command);
    assert_eq!(c.notices.len(), 5, "{:?}", c.notices);
    assert!(c.notices.iter().all(|n| !n.contains(char::is_control)));
    chat.raw("{\"id\":\"half\",\"type\":\"user\",\"content\":\"half");
    assert_eq!((chat.read().messages.len(), chat.read().notices.len()), (3, 5));
    for _ in 0..100 {
        chat.raw("\n{");
    }
    chat.raw("\n");
    assert_eq!(chat.read().notices.len(), 21);
}

/// Nothing but a regular file is opened, no link is followed, and no workspace is believed that is no path.
#[test]
fn what_is_no_file_is_no_chat() {
    let mut chat = Chat::new();
    chat.says("one");
    let at = |name: &str| chat.store.with_file_name(name);
    nix::unistd::mkfifo(&at("session-a-00000000.jsonl"), nix::sys::stat::Mode::S_IRWXU).expect("mkfifo");
    std::os::unix::fs::symlink(recorded(MAIN), at("session-b-00000001.jsonl")).expect("link");
    std::os::unix::fs::symlink(
        recorded(MAIN).ancestors().nth(2).expect("a folder"),
        chat.dir.path().join(".gemini/tmp/linked"),
    )
    .expect("link");
    fs::create_dir(chat.dir.path().join(".gemini/tmp/other")).expect("folder");
    std::os::unix::fs::symlink(
        recorded(MAIN).parent().expect("a folder"),
        chat.dir.path().join(".gemini/tmp/other/chats"),
    )
    .expect("link");
    assert_eq!(chat.find(), [chat.store.clone()]);
    for name in [
        "session-a-00000000.jsonl",
        "session-b-00000001.jsonl",
        "none.jsonl",
    ] {
        assert!(!Gemini.recognises(&at(name)), "{name}");
        let e = Gemini.read(&at(name), &Silent).expect_err("none");
        assert!(matches!(e, ConversationError::NotFound { .. }), "{e}");
    }
    let root = chat.dir.path().join(".gemini/tmp/w/.project_root");
    for (text, want) in [("/w", true), ("w", false), ("/a\0b", false), ("", false)] {
        fs::write(&root, text).expect("write");
        assert_eq!(chat.read().summary.workspace.is_some(), want, "{text:?}");
    }
}

/// The first chat of a project, whose folder does not exist when the watcher starts, and one more of it.
#[test]
fn chats_that_begin_later_are_watched() {
    let t = Tracked::new();
    let mut w = Watcher::here(&t);
    let project = t.dir().join("home/.gemini/tmp/w");
    let root = t.workspace().to_string_lossy().into_owned();
    append(&project.join(".project_root"), root.as_bytes());
    for n in 1..=2 {
        let id = format!("{n}1111111-2222-4333-8444-555555555555");
        let store = project.join(format!("chats/session-2026-11-29T17-2{n}-{n}1111111.jsonl"));
        let record = |r: &Value| append(&store, format!("{r}\n").as_bytes());
        record(&json!({"sessionId": id, "kind": "main"}));
        record(&json!({"$set": {"messages": [
            {"id": "context", "type": "user", "content": [{"text": "<session_context>\nx"}]}]}}));
        record(&json!({"id": format!("m{n}"), "type": "user", "content": [{"text": "go"}]}));
        let taken = w.until("checkpoint");
        assert_eq!(
            (&taken["message"], &taken["number"]),
            (&json!(format!("m{n}")), &json!(1)),
            "{taken}"
        );
        assert_eq!(taken["conversation"], json!(id));
        record(&json!({"id": "a", "type": "gemini", "content": "", "toolCalls": [{"id": "x"}]}));
        fs::write(t.workspace().join("first.txt"), format!("turn {n}\n")).expect("write");
        record(&json!({"id": "b", "type": "gemini", "content": "done"}));
        assert_eq!(w.until("turn-end")["message"], json!(format!("m{n}")));
    }
    assert_eq!(w.failures(), 0, "{:?}", w.told);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]
    /// Whatever stands in a file: rows, notices or an error, and the same by all ways of reading.
    #[test]
    fn anything_can_be_read(cuts in told::cuts(), object in any::<bool>()) {
        let dir = tempfile::tempdir().expect("temp dir");
        let name = if object { "session-x-1.json" } else { "session-x-1.jsonl" };
        let store = dir.path().join("p/chats").join(name);
        append(&store, &told::damaged(fs::read(recorded(MAIN)).expect("read"), &cuts));
        told::agree(&Gemini, &store);
    }
}
