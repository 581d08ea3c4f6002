//! Copilot CLI's sessions: the recorded one is read as the reference reader reads it, also while it grows; damaged and
//! hostile ones give rows and notices, never a crash; the watcher takes a checkpoint at each message.

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
use respool::conversation::{Conversation, ConversationError, Copilot, Library, MessageKind, Source};
use respool::progress::Silent;
use serde_json::{Value, json};
use told::{Fixture, append, at_least, roots};
use watcher::Watcher;

const ID: &str = "b44b1fa2-2661-4bb6-8452-2d9edd655a41";

fn fixture() -> Fixture {
    Fixture::of("copilot")
}

fn recorded() -> PathBuf {
    fixture().home().join(".copilot/session-state").join(ID)
}

fn read(store: &Path) -> Conversation {
    Copilot.read(store, &Silent).expect("read")
}

/// A session that a test writes.
struct Session {
    store: PathBuf,
    last: Option<String>,
    records: u32,
}

impl Session {
    fn below(home: &Path, cwd: &Path) -> Self {
        let store = home.join(".copilot/session-state/11111111-2222-4333-8444-555555555555");
        let mut it = Self {
            store,
            last: None,
            records: 0,
        };
        it.event(
            "session.start",
            &json!({"sessionId": "s", "context": {"cwd": cwd}}),
        );
        it
    }
    fn raw(&self, bytes: impl AsRef<[u8]>) {
        append(&self.store.join("events.jsonl"), bytes.as_ref());
    }
    fn event(&mut self, kind: &str, data: &Value) -> String {
        self.records += 1;
        let id = format!("{:08}-0000-4000-8000-000000000000", self.records);
        let event = json!({"type": kind, "data": data, "id": id, "timestamp": chrono::Utc::now(), "parentId": self.last});
        self.raw(format!("{event}\n"));
        self.last = Some(id.clone());
        id
    }
    fn says(&mut self, text: &str) -> String {
        self.event(
            "user.message",
            &json!({"content": text, "transformedContent": "more"}),
        )
    }
    fn calls(&mut self) {
        self.event(
            "assistant.message",
            &json!({"content": "", "toolRequests": [{"name": "bash"}]}),
        );
        self.event("tool.execution_start", &json!({"toolName": "bash"}));
    }
    fn ends(&mut self) {
        self.event(
            "assistant.message",
            &json!({"content": "done", "toolRequests": []}),
        );
        self.event("assistant.turn_end", &json!({"turnId": "0"}));
    }
    fn read(&self) -> Conversation {
        read(&self.store)
    }
}

#[test]
fn the_recorded_session_is_read_as_the_reference_reads_it() {
    let fixture = fixture();
    let stores = Copilot.find(&roots(fixture.home(), Path::new("/")));
    assert_eq!(stores, [recorded()]);
    fixture.check(&Copilot, &stores);
    let c = read(&recorded());
    assert_eq!(
        (c.status.as_deref(), c.at_work, c.summary.live),
        (Some("finished"), false, false)
    );
    assert!(c.acted.is_some() && c.notices.is_empty());
    assert_eq!(c.summary.title.as_deref(), Some("Héllo ✨ first copilot"));
}

#[test]
fn the_library_finds_it_by_id_path_and_folder() {
    let library = Library::new(roots(fixture().home(), Path::new("/home/dev/ws/proj/sub")));
    assert_eq!(library.list(Some("copilot")).conversations.len(), 1);
    let store = recorded();
    for selector in [ID, &ID[..8], store.to_str().expect("UTF-8")] {
        assert_eq!(library.find(Some(selector)).expect("found").1, store);
    }
    let moved = tempfile::tempdir().expect("temp dir");
    let s = Session::below(moved.path(), Path::new("/w"));
    let mut roots = roots(Path::new("/nowhere"), Path::new("/"));
    roots
        .env
        .insert("COPILOT_HOME".into(), moved.path().join(".copilot").into());
    assert_eq!(Copilot.find(&roots), [s.store]);
    assert_eq!(
        Copilot.places(&roots),
        [moved.path().join(".copilot/session-state")]
    );
}

#[test]
fn a_growing_file_is_followed() {
    let whole = fs::read(recorded().join("events.jsonl")).expect("read");
    let dir = tempfile::tempdir().expect("temp dir");
    let store = dir.path().join("s");
    followed(&Copilot, &store, &whole, |from, to| {
        append(&store.join("events.jsonl"), &whole[from..to]);
    });
    let last = read(&store);
    assert_eq!(last.messages, read(&recorded()).messages);
    at_least(&Copilot, &store, 2);
}

/// A rewind drops the later events from the file; where an older version keeps them, the newest chain counts.
#[test]
fn what_another_chain_left_is_a_branch() {
    let dir = tempfile::tempdir().expect("temp dir");
    let mut s = Session::below(dir.path(), Path::new("/w"));
    let one = s.says("one");
    s.ends();
    let fork = s.last.clone();
    s.says("two");
    s.ends();
    s.last = fork;
    s.says("two again");
    let c = s.read();
    let rows: Vec<_> = c
        .messages
        .iter()
        .map(|m| (m.text.as_str(), m.number, m.branch))
        .collect();
    assert_eq!(
        rows,
        [("one", Some(1), 0), ("two", None, 1), ("two again", Some(2), 0)]
    );
    assert_eq!(c.messages[0].id, one);
    assert!(c.at_work, "it has just been sent");
    // a sub-agent's messages and what skills put in are none
    s.event(
        "user.message",
        &json!({"content": "sub", "parentToolCallId": "call"}),
    );
    s.event(
        "user.message",
        &json!({"content": "skill", "source": "skill-pdf"}),
    );
    assert_eq!(s.read().messages.len(), 3);
    s.event("abort", &json!({"reason": "user"}));
    assert_eq!(
        (s.read().status.as_deref(), s.read().at_work),
        (Some("interrupted"), false)
    );
}

/// The process that has a session open says so by a file; one of a dead process counts nothing.
#[test]
fn an_open_session_is_live() {
    let dir = tempfile::tempdir().expect("temp dir");
    let mut s = Session::below(dir.path(), Path::new("/w"));
    s.says("go");
    let live = |s: &Session| (s.read().summary.live, s.read().at_work);
    assert_eq!(
        live(&s),
        (true, true),
        "nobody says so, but it has just been written"
    );
    fs::write(s.store.join(format!("inuse.{}.lock", i32::MAX)), "").expect("write");
    assert_eq!(live(&s), (false, false));
    fs::write(s.store.join(format!("inuse.{}.lock", std::process::id())), "").expect("write");
    assert_eq!(live(&s), (true, true));
    s.ends();
    assert_eq!(live(&s), (true, false));
}

#[test]
fn a_title_that_the_human_gave_is_the_title() {
    let dir = tempfile::tempdir().expect("temp dir");
    let mut s = Session::below(dir.path(), Path::new("/w"));
    s.says("first words\nmore");
    let title = |yaml: &str| {
        fs::write(s.store.join("workspace.yaml"), yaml).expect("write");
        let (listed, read) = (Copilot.summary(&s.store).expect("summary"), s.read().summary);
        assert_eq!(listed, read);
        listed.title.unwrap_or_default()
    };
    assert_eq!(title("name: made\nuser_named: false\n"), "first words");
    assert_eq!(title("cwd: /w\nname: mine\nuser_named: true\n"), "mine");
    assert_eq!(title("name: \"mine: it\"\nuser_named: true\n"), "mine: it");
    assert_eq!(title("name: |-\n  a\n  b\nuser_named: true\n"), "a");
    assert_eq!(title("user_named: true\nname"), "first words");
}

#[test]
fn damaged_lines_are_named_and_the_rest_is_read() {
    let dir = tempfile::tempdir().expect("temp dir");
    let mut s = Session::below(dir.path(), Path::new("/w"));
    s.says("one");
    s.raw("{\"type\":\"user.message\",\"data\":{\"content\":\"to");
    s.says("glued");
    s.raw([0_u8; 64]);
    s.raw("\n\u{1b}[31m{\n[]\n7\n\n");
    s.says("\u{1b}[2Jtwo");
    let c = s.read();
    let texts: Vec<&str> = c.messages.iter().map(|m| m.text.as_str()).collect();
    assert_eq!(texts, ["one", "glued", "\u{1b}[2Jtwo"]);
    assert_eq!(c.notices.len(), 5, "{:?}", c.notices);
    assert!(c.notices.iter().all(|n| !n.contains(char::is_control)));
    s.raw("{\"type\":\"user.message\",\"id\":\"x\",\"data\":{\"content\":\"half");
    assert_eq!((s.read().messages.len(), s.read().notices.len()), (3, 5));
    let broken = dir.path().join("broken");
    append(&broken.join("events.jsonl"), b"no JSON at all\n");
    let e = Copilot.read(&broken, &Silent).expect_err("damaged");
    assert!(matches!(e, ConversationError::Damaged { .. }), "{e}");
}

/// Nothing but a regular file in a folder of the user's own is read, and no link is followed.
#[test]
fn what_is_no_file_is_no_session() {
    let dir = tempfile::tempdir().expect("temp dir");
    let root = dir.path().join(".copilot/session-state");
    for name in ["fifo", "link", "empty"] {
        fs::create_dir_all(root.join(name)).expect("folders");
    }
    let all = nix::sys::stat::Mode::S_IRWXU;
    nix::unistd::mkfifo(&root.join("fifo/events.jsonl"), all).expect("mkfifo");
    std::os::unix::fs::symlink(recorded().join("events.jsonl"), root.join("link/events.jsonl"))
        .expect("link");
    std::os::unix::fs::symlink(recorded(), root.join("linked")).expect("link");
    assert!(Copilot.find(&roots(dir.path(), Path::new("/"))).is_empty());
    for name in ["fifo", "link", "empty", "none"] {
        assert!(!Copilot.recognises(&root.join(name)), "{name}");
        let e = Copilot.read(&root.join(name), &Silent).expect_err("none");
        assert!(matches!(e, ConversationError::NotFound { .. }), "{e}");
    }
}

#[test]
fn a_session_that_begins_later_is_watched() {
    let t = Tracked::new();
    let mut w = Watcher::here(&t);
    let mut s = Session::below(&t.dir().join("home"), &t.workspace());
    for turn in 1..=2 {
        let message = s.says(&format!("message {turn}"));
        let taken = w.until("checkpoint");
        assert_eq!(
            (&taken["message"], &taken["number"]),
            (&json!(message), &json!(turn)),
            "{taken}"
        );
        s.calls();
        fs::write(t.workspace().join("first.txt"), format!("turn {turn}\n")).expect("write");
        s.ends();
        assert_eq!(w.until("turn-end")["message"], json!(message));
    }
    assert_eq!(s.read().messages[0].kind, MessageKind::Prompt);
    assert_eq!(w.failures(), 0, "{:?}", w.told);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]
    /// Whatever stands in a file: rows, notices or an error, and the same by all ways of reading.
    #[test]
    fn anything_can_be_read(cuts in told::cuts()) {
        let dir = tempfile::tempdir().expect("temp dir");
        let bytes = told::damaged(fs::read(recorded().join("events.jsonl")).expect("read"), &cuts);
        append(&dir.path().join("events.jsonl"), &bytes);
        told::agree(&Copilot, dir.path());
    }
}
