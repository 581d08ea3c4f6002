//! `respool watch` on stores that are written as OpenHands writes them, through the program.

mod common;

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use common::{Store, Style, Tracked, respool, with_input};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use rustix::fs::{FlockOperation, flock};
use serde_json::{Value, json};

const LIMIT: Duration = Duration::from_secs(20);

/// A running watcher and what it told.
struct Watcher {
    child: Child,
    lines: Receiver<Value>,
    told: Vec<Value>,
}

impl Watcher {
    fn start(t: &Tracked, words: &[&str]) -> Self {
        Self::of(t.command().arg("watch").args(words))
    }
    fn of(command: &mut std::process::Command) -> Self {
        let mut child = command
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("respool");
        let stdout = BufReader::new(child.stdout.take().expect("stdout"));
        let (send, lines) = channel();
        std::thread::spawn(move || {
            for line in stdout.lines().map_while(Result::ok) {
                let value = serde_json::from_str(&line).unwrap_or(Value::String(line));
                if send.send(value).is_err() {
                    return;
                }
            }
        });
        Self {
            child,
            lines,
            told: Vec::new(),
        }
    }
    /// In the workspace, until it waits for conversations.
    fn here(t: &Tracked) -> Self {
        let mut it = Self::start(t, &[]);
        it.until("waiting");
        it
    }
    /// The next event of this name; all others are kept in `told`.
    fn until(&mut self, event: &str) -> Value {
        let start = Instant::now();
        while let Ok(line) = self.lines.recv_timeout(LIMIT.saturating_sub(start.elapsed())) {
            self.told.push(line.clone());
            if line["event"] == event {
                return line;
            }
        }
        let stderr = self.stderr();
        panic!("no {event} after {:?}; stderr: {stderr}", self.told);
    }
    fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.child.id() as i32), signal).expect("signal");
    }
    fn stderr(&mut self) -> String {
        let _dead_already = self.child.kill();
        let mut text = String::new();
        if let Some(mut e) = self.child.stderr.take() {
            e.read_to_string(&mut text).expect("stderr");
        }
        text
    }
    /// Waits for its end by itself; its exit code.
    fn end(&mut self) -> i32 {
        let start = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().expect("wait") {
                self.told.extend(self.lines.iter());
                return status.code().unwrap_or(-1);
            }
            assert!(start.elapsed() < LIMIT, "it does not end: {:?}", self.told);
            std::thread::sleep(Duration::from_millis(5));
        }
    }
    fn stop(&mut self) -> i32 {
        self.signal(Signal::SIGTERM);
        self.end()
    }
    fn named(&self, event: &str) -> usize {
        self.told.iter().filter(|e| e["event"] == event).count()
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        let _dead_already = self.child.kill();
        let _reaped_already = self.child.wait();
    }
}

fn rows(t: &Tracked, store: &Store) -> Vec<Value> {
    let (code, timeline) = t.run(&["timeline", &store.dir.to_string_lossy()]);
    assert_eq!(code, 0, "{timeline}");
    timeline["rows"].as_array().expect("rows").clone()
}

fn hook(t: &Tracked, input: &str) -> String {
    let mut c = t.command();
    c.args(["hook", "openhands"]);
    let out = with_input(c, input.as_bytes());
    let text = String::from_utf8(out.stdout).expect("text");
    assert!(text.contains("respool: checkpoint cp-"), "{text}");
    text
}

#[test]
fn a_conversation_that_begins_later_is_followed_however_it_is_written() {
    for style in [Style::Renamed, Style::InPlace] {
        let t = Tracked::new();
        let mut w = Watcher::here(&t);
        assert_eq!(w.told.len(), 1, "{:?}", w.told);
        let mut store = Store::new(&t, 1, style);
        for turn in 1..=3 {
            let message = store.message(&[&format!("message {turn}")]);
            // the base state does not name it yet: it is off the branch, and must not be missed for that
            let taken = w.until("checkpoint");
            assert_eq!(
                (&taken["message"], &taken["how"], &taken["late"]),
                (&json!(message), &json!("watch"), &Value::Null),
                "{style:?} {taken}"
            );
            assert_eq!(taken["number"], turn, "{style:?} {taken}");
            let restore = taken["restore"].as_str().expect("a command");
            assert!(
                restore.contains(" rewind cp-") && restore.contains(" -s sb-"),
                "{taken}"
            );
            store.status("running");
            store.action();
            std::fs::write(t.workspace().join(format!("{turn}.txt")), "made\n").expect("the agent's");
            store.status("finished");
            let end = w.until("turn-end");
            assert_eq!((&end["message"], &end["how"]), (&json!(message), &json!("watch")));
            std::fs::write(t.workspace().join("mine.txt"), format!("{turn}\n")).expect("the user's");
        }
        let rows = rows(&t, &store);
        for (i, row) in rows.iter().enumerate() {
            assert_eq!(row["checkpoint"]["state"], "ok", "{style:?} {row}");
            assert_eq!(row["changes"]["added"], 1, "{style:?} {row}");
            assert!(row["checkpoint"]["turn_end"].is_string(), "{style:?} {row}");
            let between = row["between"]["added"]
                .as_u64()
                .zip(row["between"]["modified"].as_u64());
            assert_eq!(between, [Some((1, 0)), Some((0, 1)), None][i], "{style:?} {row}");
        }
        assert_eq!(w.stop(), 0);
        assert_eq!(t.checkpoints(), 7);
    }
}

/// What people read: the number, a command that they can type, one end a turn.
#[test]
fn the_lines_for_people() {
    let t = Tracked::new();
    let mut c = respool(t.dir().path());
    c.current_dir(t.workspace()).arg("--state-dir").arg(t.state());
    let mut w = Watcher::of(c.arg("watch"));
    let line = |w: &mut Watcher, what: &str| loop {
        let line = w
            .lines
            .recv_timeout(LIMIT)
            .unwrap_or_else(|_| panic!("no {what}: {:?}", w.told));
        let text = line.as_str().expect("text").to_owned();
        w.told.push(line);
        if text.contains(what) {
            return text;
        }
    };
    line(&mut w, "waiting");
    let mut store = Store::new(&t, 1, Style::Renamed);
    for turn in 1..=2 {
        store.message(&["do it"]);
        let said = line(&mut w, "go back with");
        assert!(said.starts_with(&format!("message {turn}: cp-")), "{said}");
        assert!(said.ends_with(&format!(" rewind m{turn}")), "{said}");
        let mut work = || {
            store.status("running");
            store.action();
            store.status("finished");
        };
        work();
        line(&mut w, "the turn ended");
        // it goes on without a new message: another checkpoint, no other line
        let before = t.checkpoints();
        work();
        assert!(common::wait_until(LIMIT, || t.checkpoints() == before + 1));
    }
    assert_eq!(w.stop(), 0);
    let ends = w
        .told
        .iter()
        .filter(|l| l.as_str().is_some_and(|l| l.starts_with("the turn ended")));
    assert_eq!(ends.count(), 2, "{:?}", w.told);
}

#[test]
fn rapid_messages_of_several_conversations_have_one_each() {
    let t = Tracked::new();
    let mut w = Watcher::here(&t);
    let mut stores = [1, 2, 3].map(|n| Store::new(&t, n, Style::Renamed));
    for store in &mut stores {
        store.message(&["first"]);
        store.status("running");
        w.until("checkpoint");
    }
    // many before the watcher can look
    w.signal(Signal::SIGSTOP);
    let mut ids = Vec::new();
    for n in 0..12 {
        ids.push(stores[n % 3].message(&["again"]));
    }
    w.signal(Signal::SIGCONT);
    let mut told: Vec<Value> = (0..12)
        .map(|_| w.until("checkpoint")["message"].clone())
        .collect();
    told.sort_by_key(Value::to_string);
    ids.sort();
    assert_eq!(told, ids);
    assert_eq!(t.checkpoints(), 1 + 3 + 12);
    for store in &stores {
        store.status("finished");
    }
    for store in &stores {
        let rows = rows(&t, store);
        let seen: std::collections::HashSet<_> =
            rows.iter().map(|r| r["checkpoint"]["id"].to_string()).collect();
        assert_eq!((rows.len(), seen.len()), (5, 5), "{rows:?}");
    }
    w.signal(Signal::SIGINT);
    assert_eq!(w.end(), 0);
}

#[test]
fn hook_and_watcher_take_one_checkpoint_a_message() {
    let t = Tracked::new();
    let mut store = Store::new(&t, 1, Style::Renamed);
    let mut w = Watcher::here(&t);
    for n in 1..=3 {
        // the same text each time; the agent's record of the hook is missing the last time
        let said = hook(&t, &store.hook_input("UserPromptSubmit", Some("go on")));
        if n < 3 {
            store.hook_ran("UserPromptSubmit", &said);
        }
        store.message(&["go", " on"]);
        store.status("running");
        let taken = w.until("checkpoint");
        assert_eq!(
            (&taken["how"], &taken["ms"]),
            (&json!("hook"), &json!(0)),
            "{taken}"
        );
        assert!(
            said.contains(taken["checkpoint"].as_str().expect("id")),
            "{said} {taken}"
        );
        store.action();
        hook(&t, &store.hook_input("Stop", None));
        store.status("finished");
        assert_eq!(w.until("turn-end")["how"], "hook");
    }
    // a message that no hook was called for is the watcher's, whatever text it has
    store.message(&["go", " on"]);
    assert_eq!(w.until("checkpoint")["how"], "watch");
    assert_eq!(w.stop(), 0);
    assert_eq!(t.checkpoints(), 1 + 3 * 2 + 1);
    assert!(rows(&t, &store).iter().all(|r| r["checkpoint"]["state"] == "ok"));
}

#[test]
fn a_late_checkpoint_says_how_late() {
    let t = Tracked::new();
    let mut store = Store::new(&t, 1, Style::Renamed);
    let mut w = Watcher::here(&t);
    w.signal(Signal::SIGSTOP);
    let message = store.message(&["do it"]);
    store.action();
    for name in ["one", "two"] {
        std::fs::write(t.workspace().join(name), "made\n").expect("the agent's");
    }
    store.status("running");
    w.signal(Signal::SIGCONT);
    let taken = w.until("checkpoint");
    assert_eq!((&taken["message"], &taken["late"]), (&json!(message), &json!(2)));
    let row = &rows(&t, &store)[0];
    assert_eq!(row["checkpoint"]["state"], "late", "{row}");
    assert_eq!(
        row["checkpoint"]["reason"],
        "taken late: up to 2 paths had changed"
    );
    assert_eq!(w.stop(), 0);
}

#[test]
fn a_turn_without_tools_ends_too_and_an_old_conversation_is_no_news() {
    let t = Tracked::new();
    let mut w = Watcher::here(&t);
    let mut store = Store::new(&t, 1, Style::InPlace);
    store.message(&["hello"]);
    w.until("checkpoint");
    store.event(
        "MessageEvent",
        "agent",
        json!({"llm_message": {"role": "assistant", "content": []}}),
    );
    store.status("finished");
    w.until("turn-end");
    // a copy of an old conversation turns up
    let mut old = Store::new(&t, 2, Style::Renamed);
    let there = old.dir.clone();
    let hidden = t.dir().join("hidden");
    std::fs::rename(&there, &hidden).expect("away");
    old.dir.clone_from(&hidden);
    for text in ["a", "b"] {
        old.message(&[text]);
        old.action();
    }
    old.status("finished");
    let told = w.told.len();
    std::fs::rename(&hidden, &there).expect("back");
    let watching = w.until("watching");
    assert_eq!(watching["conversation"], old.id.as_str());
    old.dir = there;
    // its next message is one
    old.message(&["c"]);
    w.until("checkpoint");
    assert_eq!(w.told.len(), told + 2, "{:?}", w.told);
    assert_eq!(w.stop(), 0);
    let states: Vec<Value> = rows(&t, &old)
        .iter()
        .map(|r| r["checkpoint"]["state"].clone())
        .collect();
    assert_eq!(states, ["none", "none", "ok"]);
}

#[test]
fn a_watcher_that_starts_in_the_middle_takes_the_end_only() {
    let t = Tracked::new();
    let mut store = Store::new(&t, 1, Style::Renamed);
    store.message(&["before"]);
    store.action();
    store.status("running");
    let mut w = Watcher::start(&t, &[&store.id]);
    w.until("watching");
    store.action();
    store.status("finished");
    w.until("turn-end");
    assert_eq!((w.stop(), w.named("checkpoint")), (0, 0));
}

#[test]
fn a_store_that_goes_is_said_and_another_one_followed() {
    let t = Tracked::new();
    let mut store = Store::new(&t, 1, Style::Renamed);
    store.message(&["a"]);
    store.status("finished");
    let mut here = Watcher::here(&t);
    let mut named = Watcher::start(&t, &[&store.dir.to_string_lossy()]);
    named.until("watching");
    std::fs::rename(&store.dir, t.dir().join("elsewhere")).expect("rename");
    assert_eq!(here.until("gone")["conversation"], store.id.as_str());
    // the only one that it was to follow
    assert_eq!(named.end(), 4, "{:?}", named.told);
    let last = named.told.last().expect("an error");
    assert_eq!(last["error"]["kind"], "not-found", "{last}");
    assert!(
        last["error"]["message"]
            .as_str()
            .is_some_and(|m| m.contains("is gone")),
        "{last}"
    );
    // the same id anew, and a removal
    let mut again = Store::new(&t, 1, Style::Renamed);
    again.message(&["b"]);
    here.until("checkpoint");
    std::fs::remove_dir_all(&again.dir).expect("remove");
    here.until("gone");
    let mut other = Store::new(&t, 2, Style::InPlace);
    other.message(&["c"]);
    here.until("checkpoint");
    assert_eq!(here.stop(), 0);
}

/// P140: another store of the same conversation in its place: what was known is known, what is new has its checkpoint.
#[test]
fn p140_a_store_that_is_replaced_is_followed_on() {
    for style in [Style::Renamed, Style::InPlace] {
        let t = Tracked::new();
        let mut store = Store::new(&t, 1, style);
        store.message(&["a"]);
        store.status("finished");
        let mut here = Watcher::here(&t);
        let mut named = Watcher::start(&t, &[&store.dir.to_string_lossy()]);
        named.until("watching");
        for text in ["b", "c"] {
            let copy = t.dir().join("copy");
            let copied = std::process::Command::new("cp")
                .arg("-r")
                .args([&store.dir, &copy])
                .status();
            assert!(copied.expect("cp").success());
            let at = rustix::fs::CWD;
            rustix::fs::renameat_with(at, &copy, at, &store.dir, rustix::fs::RenameFlags::EXCHANGE)
                .expect("exchange");
            std::fs::remove_dir_all(copy).expect("remove");
            let message = store.message(&[text]);
            for w in [&mut here, &mut named] {
                assert_eq!(
                    w.until("checkpoint")["message"],
                    json!(message),
                    "{style:?} {:?}",
                    w.told
                );
            }
            store.status("finished");
        }
        for w in [&mut here, &mut named] {
            assert_eq!((w.named("gone"), w.named("checkpoint")), (0, 2), "{:?}", w.told);
            assert_eq!(w.stop(), 0);
        }
    }
}

#[test]
fn an_events_folder_that_comes_later_is_followed() {
    let t = Tracked::new();
    let mut store = Store::new(&t, 1, Style::Renamed);
    let mut w = Watcher::start(&t, &[&store.dir.to_string_lossy()]);
    w.until("watching");
    store.message(&["a"]);
    w.until("checkpoint");
    store.status("running");
    store.message(&["b"]);
    w.until("checkpoint");
    assert_eq!(w.stop(), 0);
}

#[test]
fn a_message_during_a_rewind_has_none_and_says_why() {
    let t = Tracked::new();
    let mut store = Store::new(&t, 1, Style::Renamed);
    let mut w = Watcher::here(&t);
    let dir = t.sandbox_dir();
    let lock = File::create(dir.join("lock")).expect("lock");
    flock(&lock, FlockOperation::LockExclusive).expect("held");
    let entry = dir.join("ops/99999999-op-0000000000.json");
    std::fs::write(&entry, r#"{"v":1,"phase":"applying","kind":"undo"}"#).expect("entry");
    let message = store.message(&["a"]);
    let failed = w.until("failed");
    assert_eq!(
        (&failed["message"], &failed["reason"]),
        (&json!(message), &json!("an undo is under way"))
    );
    std::fs::remove_file(entry).expect("entry");
    drop(lock);
    store.status("running");
    store.message(&["b"]);
    w.until("checkpoint");
    let rows = rows(&t, &store);
    assert_eq!(rows[0]["checkpoint"]["state"], "failed", "{rows:?}");
    assert_eq!(rows[0]["checkpoint"]["reason"], "an undo is under way");
    assert_eq!(rows[1]["checkpoint"]["state"], "ok");
    assert_eq!(w.stop(), 0);
}

#[test]
fn where_nothing_is_to_be_watched_it_says_so() {
    let t = Tracked::new();
    let other = t.dir().join("other");
    std::fs::create_dir(&other).expect("folder");
    let watch = |words: &[&str]| {
        let mut c = respool(t.dir().path());
        c.args(["--json", "--state-dir"])
            .arg(t.state())
            .current_dir(&other)
            .arg("watch")
            .args(words);
        let out = c.output().expect("respool");
        let last = out
            .stdout
            .split(|b| *b == b'\n')
            .rfind(|l| !l.is_empty())
            .expect("a line")
            .to_owned();
        let error: Value = serde_json::from_slice(&last).expect("JSON");
        (
            out.status.code(),
            error["error"]["message"].as_str().unwrap_or_default().to_owned(),
        )
    };
    let (code, said) = watch(&[]);
    assert_eq!(code, Some(4));
    assert!(
        said.starts_with("there is no conversation whose workspace is"),
        "{said}"
    );
    let (code, said) = watch(&["nonsense"]);
    assert_eq!(code, Some(4), "{said}");
    // a conversation whose workspace is not tracked
    let mut store = Store::new(&t, 1, Style::Renamed);
    store.message(&["a"]);
    let base = json!({"id": store.id, "workspace": {"working_dir": other}, "execution_status": "idle"});
    std::fs::write(store.dir.join("base_state.json"), base.to_string()).expect("base");
    for words in [&[][..], &[&*store.id][..]] {
        let (code, said) = watch(words);
        assert_eq!(code, Some(3), "{said}");
        assert!(said.ends_with("other is not tracked"), "{said}");
    }
}
