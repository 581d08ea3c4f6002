//! Codex's threads: every recorded one is read as the reference reader reads it, segments and forks too, also while it
//! grows; damaged and hostile ones give rows and notices, never a crash.

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
use respool::conversation::{Codex, Conversation, ConversationError, Library, Source};
use respool::progress::Silent;
use serde_json::{Value, json};
use told::{Fixture, append, at_least, roots};
use watcher::Watcher;

const MAIN: &str = "01a22846-48df-72c1-80dd-3ed79d56c1a9";
const FORK: &str = "01a2286b-41d4-7a82-b90f-44760806b6cf";
const LEGACY: &str = "01a22849-89fb-7d20-83c1-2007c256c54c";

fn source() -> Codex {
    Codex::default()
}

fn fixture() -> Fixture {
    Fixture::of("codex")
}

fn stores() -> Vec<PathBuf> {
    source().find(&roots(fixture().home(), Path::new("/")))
}

fn recorded(id: &str) -> PathBuf {
    let is = |s: &PathBuf| source().id(s) == id;
    stores().into_iter().find(is).expect("a recorded thread")
}

fn read(store: &Path) -> Conversation {
    source().read(store, &Silent).expect("read")
}

fn texts(c: &Conversation) -> Vec<(&str, Option<u32>, u32)> {
    c.messages
        .iter()
        .map(|m| (m.text.as_str(), m.number, m.branch))
        .collect()
}

/// A thread that a test writes.
struct Written {
    home: PathBuf,
    day: &'static str,
    thread: String,
    file: PathBuf,
    ordinal: u64,
    cwd: PathBuf,
}

impl Written {
    fn below(home: &Path, number: u32, cwd: &Path) -> Self {
        let mut it = Self {
            home: home.join(".codex"),
            day: "2026/11/29",
            thread: id(number),
            file: PathBuf::new(),
            ordinal: 0,
            cwd: cwd.into(),
        };
        it.begin(number, &Value::Null);
        it
    }
    /// A rollout; one that goes on from another one has a segment id of its own.
    fn begin(&mut self, segment: u32, base: &Value) {
        let more = if base.is_null() {
            String::new()
        } else {
            format!("_{}", id(segment))
        };
        let name = format!("rollout-2026-11-29T17-00-00-{}{more}.jsonl", self.thread);
        self.file = self.home.join("sessions").join(self.day).join(name);
        let meta = json!({"id": self.thread, "cwd": self.cwd, "source": "exec", "history_base": base});
        self.record("session_meta", &meta);
    }
    fn raw(&self, bytes: impl AsRef<[u8]>) {
        append(&self.file, bytes.as_ref());
    }
    fn record(&mut self, kind: &str, payload: &Value) {
        let record = json!({"timestamp": chrono::Utc::now(), "ordinal": self.ordinal, "type": kind, "payload": payload});
        self.ordinal += 1;
        self.raw(format!("{record}\n"));
    }
    fn event(&mut self, kind: &str, turn: &str) {
        self.record("event_msg", &json!({"type": kind, "turn_id": turn}));
    }
    fn says(&mut self, text: &str, turn: &str) -> String {
        let id = format!("message-{}-{}", self.ordinal, self.thread);
        let item = json!({"type": "UserMessage", "id": id, "content": [{"type": "text", "text": text}]});
        self.record(
            "event_msg",
            &json!({"type": "item_completed", "turn_id": turn, "item": item}),
        );
        id
    }
    fn turn(&mut self, text: &str) -> String {
        let turn = format!("turn-{}", self.ordinal);
        self.event("task_started", &turn);
        let id = self.says(text, &turn);
        self.calls();
        self.event("task_complete", &turn);
        id
    }
    fn calls(&mut self) {
        self.record(
            "response_item",
            &json!({"type": "function_call", "name": "exec_command"}),
        );
    }
}

fn id(number: u32) -> String {
    format!("01a20000-0000-7000-8000-{number:012}")
}

#[test]
fn every_recorded_thread_is_read_as_the_reference_reads_it() {
    fixture().check(&source(), &stores());
    for store in stores() {
        let c = read(&store);
        assert!(c.notices.is_empty() && !c.at_work, "{:?}", c.notices);
    }
    let main = read(&recorded(MAIN));
    let off: Vec<u32> = main
        .messages
        .iter()
        .filter(|m| !m.active)
        .map(|m| m.branch)
        .collect();
    assert_eq!(off, [1, 1, 1, 2]);
    assert_eq!(read(&recorded(LEGACY)).messages.len(), 4);
}

#[test]
fn the_library_finds_threads_by_id_path_and_folder() {
    let library = Library::new(roots(fixture().home(), Path::new("/home/dev/ws/p0.98.0/sub")));
    let listing = library.list(Some("codex"));
    assert_eq!((listing.conversations.len(), listing.damaged.len()), (8, 0));
    let store = recorded(MAIN);
    for selector in [MAIN, "01a22846-48df", store.to_str().expect("UTF-8")] {
        assert_eq!(library.find(Some(selector)).expect("found").1, store);
    }
    // a segment is known by its thread
    let folder = store.parent().expect("a folder");
    let name = "rollout-2026-11-29T17-47-21-01a22846-48df-72c1-80dd-3ed79d56c1a9_01a2286b-2a67-7430-8c09-c1d2e8da17ff.jsonl";
    assert_eq!(library.at(&folder.join(name)).expect("found").1, store);
    let (_, newest) = library.find(None).expect("the newest of this folder");
    assert_eq!(source().id(&newest), LEGACY);
    let dir = tempfile::tempdir().expect("temp dir");
    let mut w = Written::below(dir.path(), 1, Path::new("/w"));
    w.turn("one");
    let mut moved = roots(Path::new("/nowhere"), Path::new("/"));
    moved.env.insert("CODEX_HOME".into(), w.home.clone().into());
    assert_eq!(source().find(&moved), [w.file.clone()]);
    assert_eq!(
        source().places(&moved).last(),
        Some(&w.home.join("sessions/2026/11/29"))
    );
    // archived ones are there still
    fs::create_dir(w.home.join("archived_sessions")).expect("folder");
    let archived = w
        .home
        .join("archived_sessions")
        .join(w.file.file_name().expect("name"));
    fs::rename(&w.file, &archived).expect("rename");
    assert_eq!(source().find(&moved), std::slice::from_ref(&archived));
    assert_eq!(read(&archived).messages.len(), 1);
}

#[test]
fn growing_rollouts_are_followed() {
    for id in [LEGACY, "01a22848-eb80-7572-b0b5-0745233eed50"] {
        let store = recorded(id);
        let whole = fs::read(&store).expect("read");
        let dir = tempfile::tempdir().expect("temp dir");
        let grown = dir.path().join(store.file_name().expect("name"));
        followed(&source(), &grown, &whole, |from, to| {
            append(&grown, &whole[from..to]);
        });
        let key = |c: Conversation| {
            c.messages
                .into_iter()
                .map(|m| (m.id, m.index, m.number))
                .collect::<Vec<_>>()
        };
        assert_eq!(key(read(&grown)), key(read(&store)));
    }
    for store in stores() {
        at_least(&source(), &store, 2);
        at_least(&source(), &store, 1000);
    }
}

/// A rewind begins another rollout; who follows the thread sees what comes there, once.
#[test]
fn a_segment_goes_on_after_the_others() {
    let dir = tempfile::tempdir().expect("temp dir");
    let mut w = Written::below(dir.path(), 1, Path::new("/w"));
    let store = w.file.clone();
    w.turn("one");
    let end = w.ordinal;
    w.turn("two");
    w.turn("three");
    let before = read(&store);
    w.day = "2026/12/01";
    let second = w.ordinal;
    w.begin(
        2,
        &json!({"thread_id": id(1), "end_ordinal_exclusive": end, "end_byte_offset": 10}),
    );
    let two = w.turn("two again");
    let all = read(&store);
    let want = [
        ("one", Some(1), 0),
        ("two", None, 1),
        ("three", None, 1),
        ("two again", Some(2), 0),
    ];
    assert_eq!(texts(&all), want);
    let new = source().since(&store, before.events).expect("since");
    assert_eq!(new.messages.iter().map(|m| &m.id).collect::<Vec<_>>(), [&two]);
    assert_eq!(
        (new.events, new.messages[0].index),
        (all.events, all.messages[3].index)
    );
    let watched = source().watched(&store);
    assert!(
        watched.contains(&w.file) && watched.contains(&store),
        "{watched:?}"
    );
    assert!(
        watched.contains(&w.home.join("sessions/2026/12/01")),
        "{watched:?}"
    );
    assert!(source().concerns(&store, &w.file) && !source().concerns(&store, Path::new("/w/x")));
    // rewound again, to where the first rewind went
    w.begin(
        3,
        &json!({"thread_id": id(2), "end_ordinal_exclusive": second + 1}),
    );
    w.turn("anew");
    assert_eq!(texts(&read(&store)).last(), Some(&("anew", Some(2), 0)));
}

/// What a fork goes on from has its first messages under the same ids, as they were then.
#[test]
fn forks_have_what_they_go_on_from() {
    let kin: Vec<String> = source()
        .kin(&recorded(FORK))
        .iter()
        .map(|s| source().id(s))
        .collect();
    assert_eq!(kin, [MAIN]);
    let dir = tempfile::tempdir().expect("temp dir");
    let mut one = Written::below(dir.path(), 1, Path::new("/w"));
    one.turn("one");
    let (end, bytes) = (one.ordinal, fs::metadata(&one.file).expect("there").len());
    let mut fork = Written::below(dir.path(), 2, Path::new("/w"));
    fs::remove_file(&fork.file).expect("remove");
    fork.ordinal = end;
    let base = json!({"thread_id": id(1), "end_ordinal_exclusive": end, "end_byte_offset": bytes});
    let meta = json!({"id": id(2), "cwd": "/w", "history_base": base});
    fork.record("session_meta", &meta);
    let before = read(&fork.file);
    assert_eq!(texts(&before), [("one", Some(1), 0)]);
    // the other one goes on: nothing here moves
    one.turn("elsewhere");
    fork.turn("two");
    let all = read(&fork.file);
    assert_eq!(texts(&all), [("one", Some(1), 0), ("two", Some(2), 0)]);
    assert!(all.messages[1].index > before.events);
    // one that is gone is named, and the rest is read
    fs::remove_file(&one.file).expect("remove");
    let rest = read(&fork.file);
    assert_eq!((texts(&rest), rest.notices.len()), (vec![("two", Some(1), 0)], 1));
    // a circle ends
    let circle = json!({"thread_id": id(3), "end_ordinal_exclusive": 9});
    let mut odd = Written::below(dir.path(), 3, Path::new("/w"));
    fs::remove_file(&odd.file).expect("remove");
    odd.record(
        "session_meta",
        &json!({"id": id(3), "cwd": "/w", "history_base": circle}),
    );
    odd.turn("alone");
    assert_eq!(texts(&read(&odd.file)), [("alone", Some(1), 0)]);
}

#[test]
fn how_far_the_agent_is_and_what_was_taken_back() {
    let dir = tempfile::tempdir().expect("temp dir");
    let mut w = Written::below(dir.path(), 1, Path::new("/w"));
    let store = w.file.clone();
    let stage = || {
        let c = read(&store);
        (c.status.unwrap_or_default(), c.at_work, c.acted.is_some())
    };
    assert_eq!(stage(), (String::new(), false, false));
    w.event("task_started", "t");
    w.says("go", "t");
    assert_eq!(stage(), ("running".into(), true, false));
    // the human's own shell line changes files, and is no message
    let shell = json!([{"type": "input_text", "text": "<user_shell_command>\n<command>\nmake"}]);
    w.record(
        "response_item",
        &json!({"type": "message", "role": "user", "content": shell}),
    );
    assert_eq!(stage(), ("running".into(), true, true));
    w.says("and this", "t");
    w.event("turn_aborted", "t");
    assert_eq!(stage(), ("interrupted".into(), false, true));
    w.turn("next");
    w.record(
        "event_msg",
        &json!({"type": "thread_rolled_back", "num_turns": 2}),
    );
    w.turn("anew");
    let want = [
        ("go", None, 1),
        ("and this", None, 1),
        ("next", None, 1),
        ("anew", Some(1), 0),
    ];
    assert_eq!(texts(&read(&store)), want);
    // a sub-agent's thread is none
    let mut side = Written::below(dir.path(), 2, Path::new("/w"));
    fs::remove_file(&side.file).expect("remove");
    side.record(
        "session_meta",
        &json!({"id": id(2), "cwd": "/w", "source": {"subagent": "review"}}),
    );
    side.turn("do this");
    assert_eq!(source().find(&roots(dir.path(), Path::new("/"))), [store]);
    assert!(!source().recognises(&side.file));
}

#[test]
fn damaged_lines_are_named_and_the_rest_is_read() {
    let dir = tempfile::tempdir().expect("temp dir");
    let mut w = Written::below(dir.path(), 1, Path::new("/w"));
    w.turn("one");
    w.raw("{\"timestamp\":\"2026-11-29T17:07:04.683Z\",\"ordinal\":9,\"type\":\"ev");
    w.says("glued", "g");
    w.raw([0_u8; 64]);
    w.raw("\n\u{1b}[31m{\n[]\n7\n\n{\"type\":\"future\",\"payload\":[]}\n{}\n");
    w.turn("\u{1b}[2Jtwo");
    let c = read(&w.file);
    assert_eq!(
        c.messages.iter().map(|m| m.text.as_str()).collect::<Vec<_>>(),
        ["one", "glued", "\u{1b}[2Jtwo"]
    );
    assert_eq!(c.notices.len(), 5, "{:?}", c.notices);
    assert!(c.notices.iter().all(|n| !n.contains(char::is_control)));
    let broken = w.file.with_file_name(format!("rollout-x-{}.jsonl", id(9)));
    append(&broken, b"no JSON at all\n");
    let e = source().read(&broken, &Silent).expect_err("damaged");
    assert!(matches!(e, ConversationError::Damaged { .. }), "{e}");
}

/// Nothing but a regular file is opened, and no link is followed.
#[test]
fn what_is_no_file_is_no_thread() {
    let dir = tempfile::tempdir().expect("temp dir");
    let w = Written::below(dir.path(), 1, Path::new("/w"));
    let at = |n: u32| {
        w.file
            .with_file_name(format!("rollout-2026-11-29T17-00-00-{}.jsonl", id(n)))
    };
    nix::unistd::mkfifo(&at(2), nix::sys::stat::Mode::S_IRWXU).expect("mkfifo");
    std::os::unix::fs::symlink(recorded(LEGACY), at(3)).expect("link");
    let day = recorded(LEGACY).parent().expect("a folder").to_owned();
    std::os::unix::fs::symlink(day, w.home.join("sessions/2026/11/30")).expect("link");
    assert_eq!(
        source().find(&roots(dir.path(), Path::new("/"))),
        std::slice::from_ref(&w.file)
    );
    for n in [2, 3, 4] {
        assert!(!source().recognises(&at(n)));
        let e = source().read(&at(n), &Silent).expect_err("none");
        assert!(matches!(e, ConversationError::NotFound { .. }), "{e}");
    }
}

/// A thread that begins in a new day's folder, goes on, and is rewound into another rollout on the next day.
#[test]
fn a_thread_is_watched_across_its_segments() {
    let t = Tracked::new();
    let mut w = Watcher::here(&t);
    let mut s = Written::below(&t.dir().join("home"), 1, &t.workspace());
    let mut turn = |s: &mut Written, n: u32| {
        s.event("task_started", &format!("t{n}"));
        let message = s.says(&format!("message {n}"), &format!("t{n}"));
        let taken = w.until("checkpoint");
        assert_eq!(
            (&taken["message"], &taken["conversation"]),
            (&json!(message), &json!(id(1))),
            "{taken}"
        );
        s.calls();
        fs::write(t.workspace().join("first.txt"), format!("turn {n}\n")).expect("write");
        s.event("task_complete", &format!("t{n}"));
        assert_eq!(w.until("turn-end")["message"], json!(message));
        taken["number"].clone()
    };
    assert_eq!(turn(&mut s, 1), json!(1));
    let end = s.ordinal;
    assert_eq!(turn(&mut s, 2), json!(2));
    s.day = "2026/11/30";
    s.begin(2, &json!({"thread_id": id(1), "end_ordinal_exclusive": end}));
    assert_eq!(turn(&mut s, 3), json!(2));
    assert_eq!(w.failures(), 0, "{:?}", w.told);
    let watching = w.told.iter().filter(|e| e["event"] == "watching").count();
    assert_eq!(watching, 1, "{:?}", w.told);
}

/// `respool run -- codex` takes a checkpoint at each message, by the watcher: there is no hook for it yet.
#[test]
fn an_agent_without_a_hook_runs_under_the_watcher() {
    use std::os::unix::fs::PermissionsExt;
    let t = Tracked::new();
    let mut s = Written::below(&t.dir().join("recorded"), 1, &t.workspace());
    s.event("task_started", "t1");
    let message = s.says("go", "t1");
    let day = t.dir().join("home/.codex/sessions/2026/11/29");
    let script = t.dir().join("codex");
    let text = format!(
        "#!/bin/sh\nmkdir -p {0} && cp {1} {0}/ && exit 7\n",
        day.display(),
        s.file.display()
    );
    fs::write(&script, text).expect("write");
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).expect("mode");
    let out = t
        .command()
        .arg("run")
        .arg("--")
        .arg(&script)
        .output()
        .expect("respool");
    let said = String::from_utf8_lossy(&out.stderr);
    assert_eq!(out.status.code(), Some(7), "{said}");
    assert!(said.contains("1 checkpoint of messages taken"), "{said}");
    let (code, timeline) = t.run(&["timeline", &id(1)]);
    assert_eq!(
        (code, &timeline["rows"][0]["id"]),
        (0, &json!(message)),
        "{timeline}"
    );
    assert_eq!(timeline["rows"][0]["checkpoint"]["state"], "ok", "{timeline}");
    // the files go back, the chat stays, and the result says so; there is no hook, and that is said too
    fs::write(t.workspace().join("first.txt"), "changed\n").expect("write");
    let (code, done) = t.run(&["--yes", "-c", &id(1), "rewind", "1"]);
    assert_eq!((code, &done["chat"]), (0, &json!("kept")), "{done}");
    assert_eq!(
        fs::read_to_string(t.workspace().join("first.txt")).expect("read"),
        "first\n"
    );
    let (code, refused) = t.run(&["hooks", "status", "codex"]);
    assert_eq!(code, 2, "{refused}");
    assert!(
        refused["error"]["message"]
            .to_string()
            .contains("has no hook here"),
        "{refused}"
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]
    /// Whatever stands in the files of a thread: rows, notices or an error, and the same by all ways of reading.
    #[test]
    fn anything_can_be_read(cuts in told::cuts(), which in 0_usize..3) {
        let dir = tempfile::tempdir().expect("temp dir");
        let main = recorded(MAIN);
        let mut files: Vec<PathBuf> = fs::read_dir(main.parent().expect("a folder"))
            .expect("read")
            .map(|e| e.expect("entry").path())
            .filter(|p| p.to_string_lossy().contains(MAIN))
            .collect();
        files.sort();
        prop_assert_eq!(files.len(), 3);
        for (i, file) in files.iter().enumerate() {
            let bytes = fs::read(file).expect("read");
            let bytes = if i == which { told::damaged(bytes, &cuts) } else { bytes };
            append(&dir.path().join(file.file_name().expect("name")), &bytes);
        }
        told::agree(&source(), &dir.path().join(main.file_name().expect("name")));
    }
}
