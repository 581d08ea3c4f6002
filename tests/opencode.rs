//! opencode's sessions: every recorded one is read as the reference reader reads it; a database in use is seen as it stands,
//! and stays byte for byte; damaged and hostile ones give rows and notices, never a crash.

mod common;
mod told;
#[path = "told/watcher.rs"]
mod watcher;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::SystemTime;

use common::Tracked;
use proptest::prelude::*;
use respool::conversation::{
    Conversation, ConversationError, Library, MessageKind, Opencode, OpencodeTree, Source,
};
use respool::progress::Silent;
use rusqlite::{Connection, params};
use serde_json::{Value, json};
use told::{Fixture, append, at_least, roots};
use watcher::Watcher;

const FIRST: &str = "ses_dd7b5bae2ffenK7DHMH4NYTK4j";
const REVERTED: &str = "ses_dd7aa74feffeE0NFda6MwAy2Cd";

fn source() -> Opencode {
    Opencode::default()
}

fn fixture() -> Fixture {
    Fixture::of("opencode")
}

fn recorded() -> PathBuf {
    fixture().home().join(".local/share/opencode/opencode.db")
}

fn read(store: &Path) -> Conversation {
    source().read(store, &Silent).expect("read")
}

/// A database as opencode uses it: with a write-ahead log, and somebody who has it open.
struct Used {
    path: PathBuf,
    db: Connection,
    made: i64,
}

impl Used {
    fn below(home: &Path, cwd: &Path) -> Self {
        let path = home.join(".local/share/opencode/opencode.db");
        fs::create_dir_all(path.parent().expect("a folder")).expect("folders");
        let db = Connection::open(&path).expect("open");
        db.pragma_update(None, "journal_mode", "WAL").expect("WAL");
        db.execute_batch(
            "CREATE TABLE session (id text PRIMARY KEY, parent_id text, directory text NOT NULL, title text NOT NULL,
               revert text, time_created integer NOT NULL, time_updated integer NOT NULL);
             CREATE TABLE message (id text PRIMARY KEY, session_id text NOT NULL, time_created integer NOT NULL,
               time_updated integer NOT NULL, data text NOT NULL);
             CREATE INDEX message_session ON message (session_id, time_created, id);
             CREATE TABLE part (id text PRIMARY KEY, message_id text NOT NULL, session_id text NOT NULL, data text NOT NULL);
             CREATE INDEX part_message ON part (message_id, id);",
        )
        .expect("tables");
        let it = Self {
            path,
            db,
            made: chrono::Utc::now().timestamp_millis(),
        };
        it.session("ses_1", None, cwd);
        it
    }
    fn session(&self, id: &str, parent: Option<&str>, cwd: &Path) {
        self.db
            .execute(
                "INSERT INTO session VALUES (?, ?, ?, 'New session - now', NULL, ?, ?)",
                params![id, parent, cwd.to_string_lossy(), self.made, self.made],
            )
            .expect("insert");
    }
    fn message(&mut self, session: &str, data: &Value, parts: &[Value]) -> String {
        self.made += 1;
        let id = format!("msg_{}", self.made);
        let all = self.db.transaction().expect("begin");
        for (i, part) in parts.iter().enumerate() {
            all.execute(
                "INSERT INTO part VALUES (?, ?, ?, ?)",
                params![format!("prt_{}_{i}", self.made), id, session, part.to_string()],
            )
            .expect("insert");
        }
        all.execute(
            "INSERT INTO message VALUES (?, ?, ?, ?, ?)",
            params![id, session, self.made, self.made, data.to_string()],
        )
        .expect("insert");
        all.execute(
            "UPDATE session SET time_updated = ? WHERE id = ?",
            params![self.made, session],
        )
        .expect("update");
        all.commit().expect("commit");
        id
    }
    fn says(&mut self, session: &str, text: &str) -> String {
        self.message(
            session,
            &json!({"role": "user"}),
            &[json!({"type": "text", "text": text})],
        )
    }
    fn works(&mut self, session: &str, finish: Option<&str>) -> String {
        let done = finish.map(|_| self.made + 1);
        let data = json!({"role": "assistant", "finish": finish, "time": {"completed": done}});
        self.message(session, &data, &[json!({"type": "tool", "tool": "bash"})])
    }
    fn store(&self) -> PathBuf {
        self.path.join("ses_1")
    }
    /// Everything about the files that could change.
    fn files(&self) -> BTreeMap<PathBuf, (Vec<u8>, SystemTime)> {
        let folder = fs::read_dir(self.path.parent().expect("a folder")).expect("read");
        folder
            .map(|e| e.expect("entry").path())
            .map(|p| {
                let modified = fs::metadata(&p).and_then(|m| m.modified()).expect("a time");
                (p.clone(), (fs::read(&p).expect("read"), modified))
            })
            .collect()
    }
}

fn texts(c: &Conversation) -> Vec<(&str, Option<u32>, u32)> {
    c.messages
        .iter()
        .map(|m| (m.text.as_str(), m.number, m.branch))
        .collect()
}

#[test]
fn every_recorded_session_is_read_as_the_reference_reads_it() {
    let stores = source().find(&roots(fixture().home(), Path::new("/")));
    fixture().check(&source(), &stores);
    let reverted = read(&recorded().join(REVERTED));
    assert_eq!(reverted.messages[0].branch, 1);
    assert!(read(&recorded().join(FIRST)).acted.is_some());
    for store in &stores {
        at_least(&source(), store, 1);
        let c = read(store);
        assert!(c.notices.is_empty() && !c.at_work, "{:?}", c.notices);
    }
}

#[test]
fn the_library_finds_sessions_by_id_path_and_folder() {
    let library = Library::new(roots(fixture().home(), Path::new("/home/dev/ws/proj/sub")));
    let listing = library.list(Some("opencode"));
    assert_eq!((listing.conversations.len(), listing.damaged.len()), (5, 0));
    let store = recorded().join(FIRST);
    for selector in [FIRST, &FIRST[..12], store.to_str().expect("UTF-8")] {
        assert_eq!(library.find(Some(selector)).expect("found").1, store);
    }
    // they share a file: what changed last is told by each
    let (_, newest) = library.find(None).expect("the newest of this folder");
    assert_eq!(source().id(&newest), "ses_dd7aaa189ffepTn4ijQsQ06Cbx");
    let mut moved = roots(Path::new("/nowhere"), Path::new("/"));
    moved.env.insert(
        "XDG_DATA_HOME".into(),
        fixture().home().join(".local/share").into(),
    );
    assert_eq!(source().find(&moved).len(), 5);
    for none in ["ses_none", "msg_1", "../opencode.db"] {
        let e = source().read(&recorded().join(none), &Silent).expect_err("none");
        assert!(matches!(e, ConversationError::NotFound { .. }), "{e}");
        assert!(!source().recognises(&recorded().join(none)));
    }
}

/// What stands in the log alone is seen, and neither bytes nor times of the files change, nor is a file made.
#[test]
fn a_database_in_use_is_read_as_it_stands_and_stays_as_it_is() {
    let dir = tempfile::tempdir().expect("temp dir");
    let mut used = Used::below(dir.path(), Path::new("/w"));
    let source = source();
    used.says("ses_1", "one");
    used.db
        .pragma_update(None, "wal_checkpoint", "TRUNCATE")
        .expect("checkpoint");
    used.says("ses_1", "two");
    let open = used.db.unchecked_transaction().expect("begin");
    open.execute("UPDATE session SET title = 'not yet'", [])
        .expect("update");
    let before = used.files();
    assert!(
        before.len() >= 3,
        "the log and its index are there: {:?}",
        before.keys()
    );
    let c = source.read(&used.store(), &Silent).expect("read");
    assert_eq!(texts(&c), [("one", Some(1), 0), ("two", Some(2), 0)]);
    assert_eq!(
        c.summary.title.as_deref(),
        Some("one"),
        "what is not committed is not there"
    );
    let _all = (
        source.find(&roots(dir.path(), Path::new("/"))),
        source.tail(&used.store(), 1),
    );
    assert!(before == used.files(), "nothing was written");
    // and nobody waits
    open.commit().expect("commit");
    used.says("ses_1", "three");
    assert_eq!(
        source.read(&used.store(), &Silent).expect("read").messages.len(),
        3
    );
    // the last one who closes it takes the log away
    let path = used.path.clone();
    drop(used);
    assert!(!path.with_file_name("opencode.db-wal").exists());
    let c = source.read(&path.join("ses_1"), &Silent).expect("read");
    assert_eq!(
        (c.messages.len(), c.summary.title.as_deref()),
        (3, Some("not yet"))
    );
    let left = fs::read_dir(path.parent().expect("a folder"))
        .expect("read")
        .count();
    assert_eq!(left, 1, "nothing was made");
}

/// A transaction is there wholly or not at all, whatever the writer does with its log meanwhile.
#[test]
fn what_is_read_is_of_one_moment() {
    let dir = tempfile::tempdir().expect("temp dir");
    let mut used = Used::below(dir.path(), Path::new("/w"));
    let store = used.store();
    used.db
        .pragma_update(None, "wal_autocheckpoint", 300)
        .expect("pragma");
    let stop = Arc::new(AtomicBool::new(false));
    let until = Arc::clone(&stop);
    let writer = std::thread::spawn(move || {
        let mut n = 0;
        while !until.load(Ordering::Relaxed) && n < 3000 {
            n += 1;
            let title = format!("{n}");
            used.db
                .execute("UPDATE session SET title = title || 'x'", [])
                .expect("update");
            let all = used.db.transaction().expect("begin");
            all.execute("UPDATE session SET title = ?", [&title])
                .expect("update");
            let (id, at) = (format!("msg_{n:05}"), used.made + n);
            let part = json!({"type": "text", "text": "x".repeat(3000)});
            all.execute(
                "INSERT INTO message VALUES (?, 'ses_1', ?, 0, '{\"role\":\"user\"}')",
                params![id, at],
            )
            .expect("insert");
            all.execute(
                "INSERT INTO part VALUES (?, ?, 'ses_1', ?)",
                params![id, id, part.to_string()],
            )
            .expect("insert");
            all.commit().expect("commit");
            // an agent that writes without a pause is read at its next pause only
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        n
    });
    let source = source();
    let mut seen = std::collections::BTreeSet::new();
    while seen.len() < 40 && !writer.is_finished() {
        match source.read(&store, &Silent) {
            Ok(c) => {
                let title = c.summary.title.unwrap_or_default();
                let count = c.messages.len();
                if count > 0 {
                    assert_eq!(title.trim_end_matches('x'), count.to_string(), "of two moments");
                    assert!(c.messages.iter().all(|m| m.text.len() == 3000));
                }
                seen.insert(count);
            }
            Err(ConversationError::Damaged { reason, .. }) => assert!(reason.contains("faster"), "{reason}"),
            Err(e) => panic!("{e}"),
        }
    }
    stop.store(true, Ordering::Relaxed);
    let written = writer.join().expect("the writer");
    assert!(seen.len() > 2, "{seen:?} of {written}");
    assert_eq!(read(&store).messages.len() as i64, written);
}

#[test]
fn how_far_the_agent_is_and_what_is_whose() {
    let dir = tempfile::tempdir().expect("temp dir");
    let mut used = Used::below(dir.path(), Path::new("/w"));
    let store = used.store();
    let stage = || {
        let c = read(&store);
        (c.status.unwrap_or_default(), c.at_work, c.acted.is_some())
    };
    assert_eq!(stage(), (String::new(), false, false));
    used.says("ses_1", "go");
    assert_eq!(stage(), ("running".into(), true, false));
    let running = used.works("ses_1", None);
    assert_eq!(stage(), ("running".into(), true, true));
    used.says("ses_1", "typed meanwhile");
    let done = json!({"role": "assistant", "finish": "tool-calls", "time": {"completed": used.made + 5}});
    used.db
        .execute(
            "UPDATE message SET data = ? WHERE id = ?",
            params![done.to_string(), running],
        )
        .expect("update");
    let kinds: Vec<MessageKind> = read(&store).messages.iter().map(|m| m.kind).collect();
    assert_eq!(kinds, [MessageKind::Prompt, MessageKind::Queued]);
    used.works("ses_1", Some("stop"));
    assert_eq!(stage().0, "finished");
    used.message(
        "ses_1",
        &json!({"role": "assistant", "error": {"name": "MessageAbortedError"}}),
        &[],
    );
    assert_eq!(stage(), ("interrupted".into(), false, true));
    // what the program says in the human's name, and what makes the conversation shorter, is none
    let synthetic = json!({"type": "text", "text": "x", "synthetic": true});
    used.message("ses_1", &json!({"role": "user"}), &[synthetic]);
    used.message(
        "ses_1",
        &json!({"role": "user"}),
        &[json!({"type": "compaction"})],
    );
    let picture = json!({"type": "file", "mime": "image/png", "url": "data:x"});
    let file = json!({"type": "file", "mime": "text/plain", "url": "file:///x"});
    used.message("ses_1", &json!({"role": "user"}), &[picture, file]);
    let c = read(&store);
    assert_eq!((c.messages.len(), c.messages[2].pictures), (3, 1));
    // a sub-agent's session is none
    used.session("ses_2", Some("ses_1"), Path::new("/w"));
    assert_eq!(source().find(&roots(dir.path(), Path::new("/"))), [store]);
}

#[test]
fn hostile_databases_are_refused_or_read_in_part() {
    let dir = tempfile::tempdir().expect("temp dir");
    let mut used = Used::below(dir.path(), Path::new("/w"));
    used.says("ses_1", "\u{1b}[2Jone");
    used.message("ses_1", &json!("no object"), &[]);
    used.message(
        "ses_1",
        &json!({"role": "user"}),
        &[json!(7), json!({"type": "text", "text": "two"})],
    );
    used.db
        .execute("INSERT INTO message VALUES (7, 'ses_1', 'late', 0, x'ff00')", [])
        .expect("insert");
    used.session("ses_../../etc", None, Path::new("/w"));
    used.session("ses_3", None, Path::new("relative"));
    let c = read(&used.store());
    assert_eq!(
        c.messages.iter().map(|m| m.text.as_str()).collect::<Vec<_>>(),
        ["\u{1b}[2Jone", "two"]
    );
    assert!(
        c.notices.len() >= 2 && c.notices.iter().all(|n| !n.contains(char::is_control)),
        "{:?}",
        c.notices
    );
    let found = source().find(&roots(dir.path(), Path::new("/")));
    assert_eq!(found, [used.path.join("ses_1"), used.path.join("ses_3")]);
    assert_eq!(read(&found[1]).summary.workspace, None);
    // a view that never ends in place of a table is not asked
    used.db
        .execute_batch(
            "ALTER TABLE session RENAME TO s; CREATE VIEW session AS
             WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i FROM n) SELECT i AS id, NULL AS parent_id FROM n;",
        )
        .expect("view");
    let e = source().read(&used.store(), &Silent).expect_err("refused");
    assert!(matches!(e, ConversationError::Damaged { .. }), "{e}");
    let listing = Library::new(roots(dir.path(), Path::new("/"))).list(Some("opencode"));
    assert_eq!(
        (listing.conversations.len(), listing.damaged.len()),
        (1, 1),
        "it is named"
    );
    // a change that was begun and not finished
    let plain = dir.path().join("opencode.db");
    fs::copy(recorded(), &plain).expect("copy");
    append(
        &dir.path().join("opencode.db-journal"),
        &[0xd9, 0xd5, 0x05, 0xf9, 0x20, 0xa1, 0x63, 0xd7, 0, 0],
    );
    let e = source().read(&plain.join(FIRST), &Silent).expect_err("refused");
    assert!(e.to_string().contains("not finished"), "{e}");
    // no link, no device
    let link = dir.path().join("opencode-link.db");
    std::os::unix::fs::symlink(recorded(), &link).expect("link");
    assert!(!source().recognises(&link.join(FIRST)));
    let fifo = dir.path().join("opencode-fifo.db");
    nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).expect("mkfifo");
    assert!(!source().recognises(&fifo.join(FIRST)));
}

/// Before it had a database, opencode kept a file for each of everything.
#[test]
fn the_older_tree_is_read() {
    let dir = tempfile::tempdir().expect("temp dir");
    let storage = dir.path().join(".local/share/opencode/storage");
    let file = |path: &str, value: &Value| append(&storage.join(path), value.to_string().as_bytes());
    let session = |id: &str, more: &Value| {
        let mut session =
            json!({"id": id, "directory": "/w", "title": "New session - x", "time": {"updated": 1000}});
        for (key, value) in more.as_object().expect("an object") {
            session[key] = value.clone();
        }
        file(&format!("session/p/{id}.json"), &session);
    };
    let message = |n: u32, role: &str, text: &str| {
        let data = json!({"role": role, "time": {"created": n, "completed": n}, "finish": "tool-calls"});
        file(&format!("message/ses_a/msg_{n}.json"), &data);
        file(
            &format!("part/msg_{n}/prt_1.json"),
            &json!({"type": "text", "text": text}),
        );
    };
    session("ses_a", &json!({"revert": {"messageID": "msg_3"}}));
    session("ses_b", &json!({"parentID": "ses_a"}));
    message(1, "user", "\none");
    message(2, "assistant", "x");
    message(3, "user", "two");
    append(&storage.join("message/ses_a/msg_4.json"), b"{\"role\":");
    let tree = OpencodeTree::default();
    let found = tree.find(&roots(dir.path(), Path::new("/")));
    let store = storage.join("session/p/ses_a.json");
    assert_eq!(found, std::slice::from_ref(&store));
    let c = tree.read(&store, &Silent).expect("read");
    assert_eq!(texts(&c), [("one", Some(1), 0), ("two", None, 1)]);
    assert_eq!(
        (c.events, c.acted, c.notices.len()),
        (3, Some(1), 1),
        "{:?}",
        c.notices
    );
    assert_eq!(
        (c.summary.id.as_str(), c.summary.title.as_deref()),
        ("ses_a", Some("one"))
    );
    at_least(&tree, &store, 1);
    told::agree(&tree, &store);
    assert_eq!(tree.since(&store, 2).expect("since").messages.len(), 1);
    assert!(tree.watched(&store).contains(&storage.join("part/msg_3")));
    let library = Library::new(roots(dir.path(), Path::new("/w")));
    assert_eq!(library.find(Some("ses_a")).expect("found").1, store);
    // what was moved to the database is there, not here
    let used = Used::below(dir.path(), Path::new("/w"));
    used.session("ses_a", None, Path::new("/w"));
    assert!(tree.find(&roots(dir.path(), Path::new("/"))).is_empty());
    assert_eq!(
        library.find(Some("ses_a")).expect("found").1,
        used.path.join("ses_a")
    );
}

/// A session begins in a database that is there, and one in a database that is made meanwhile.
#[test]
fn sessions_that_begin_later_are_watched() {
    let t = Tracked::new();
    let mut w = Watcher::here(&t);
    let mut used = Used::below(&t.dir().join("home"), &t.workspace());
    for (turn, session) in [(1, "ses_1"), (2, "ses_1"), (1, "ses_2")] {
        if session == "ses_2" {
            used.session(session, None, &t.workspace());
        }
        let message = used.says(session, &format!("message {turn}"));
        let taken = w.until("checkpoint");
        assert_eq!(
            (&taken["message"], &taken["number"]),
            (&json!(message), &json!(turn)),
            "{taken}"
        );
        assert_eq!(taken["conversation"], session);
        used.works(session, Some("tool-calls"));
        fs::write(
            t.workspace().join("first.txt"),
            format!("turn {turn} {session}\n"),
        )
        .expect("write");
        used.works(session, Some("stop"));
        assert_eq!(w.until("turn-end")["message"], json!(message));
    }
    assert_eq!(w.failures(), 0, "{:?}", w.told);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]
    /// Whatever stands in the database and in its log: rows, notices or an error, and the same by all ways of reading.
    #[test]
    fn anything_can_be_read(cuts in told::cuts(), log in any::<bool>()) {
        let dir = tempfile::tempdir().expect("temp dir");
        let used = {
            let mut used = Used::below(dir.path(), Path::new("/w"));
            for i in 0..30 {
                used.says("ses_1", &format!("{i} {}", "y".repeat(500)));
            }
            used
        };
        let copy = dir.path().join("opencode.db");
        for ending in ["", "-wal"] {
            let from = PathBuf::from(format!("{}{ending}", used.path.display()));
            let bytes = fs::read(from).expect("read");
            let bytes = if log == (ending == "-wal") { told::damaged(bytes, &cuts) } else { bytes };
            append(&PathBuf::from(format!("{}{ending}", copy.display())), &bytes);
        }
        told::agree(&source(), &copy.join("ses_1"));
    }
}
