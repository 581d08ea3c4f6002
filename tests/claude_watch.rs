//! Checkpoints at each message of Claude Code: by its hook, and by the watcher, on sessions that are written as it writes
//! them.

mod common;

use std::fs::OpenOptions;
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use common::{Tracked, with_input};
use serde_json::{Value, json};

const LIMIT: Duration = Duration::from_secs(20);
const SESSION: &str = "11111111-2222-4333-8444-555555555555";

/// A session of Claude Code in the workspace, written record by record.
struct Session<'a> {
    t: &'a Tracked,
    store: PathBuf,
    last: Option<String>,
    records: u32,
}

impl<'a> Session<'a> {
    fn new(t: &'a Tracked, id: &str) -> Self {
        let project = t.dir().join("home/.claude/projects/-w");
        Self {
            t,
            store: project.join(format!("{id}.jsonl")),
            last: None,
            records: 0,
        }
    }
    fn id(&self) -> &str {
        self.store.file_stem().and_then(|n| n.to_str()).expect("UTF-8")
    }
    fn raw(&self, line: &str) {
        std::fs::create_dir_all(self.store.parent().expect("a folder")).expect("folders");
        let mut file = OpenOptions::new()
            .create(true)
            .append(true)
            .open(&self.store)
            .expect("open");
        file.write_all(line.as_bytes()).expect("write");
    }
    fn line(&mut self, kind: &str, more: &Value) -> String {
        self.records += 1;
        let uuid = format!("{:08}-0000-4000-8000-000000000000", self.records);
        let mut record = json!({"parentUuid": self.last, "isSidechain": false, "type": kind, "uuid": uuid,
                                "timestamp": chrono::Utc::now(), "sessionId": self.id(), "cwd": self.t.workspace()});
        for (key, value) in more.as_object().expect("an object") {
            record[key] = value.clone();
        }
        self.raw(&format!("{record}\n"));
        self.last = Some(uuid.clone());
        uuid
    }
    fn says(&mut self, text: &str) -> String {
        self.line("user", &json!({"message": {"role": "user", "content": text}}))
    }
    fn calls(&mut self) {
        self.line(
            "assistant",
            &json!({"message": {"stop_reason": "tool_use", "content": [{"type": "tool_use"}]}}),
        );
    }
    fn result(&mut self) {
        self.line(
            "user",
            &json!({"toolUseResult": "x", "message": {"content": [{"type": "tool_result"}]}}),
        );
    }
    fn ends(&mut self) {
        self.line(
            "assistant",
            &json!({"message": {"stop_reason": "end_turn", "content": [{"type": "text", "text": "x"}]}}),
        );
    }
    fn input(&self, event: &str, prompt: Option<&str>) -> String {
        json!({"session_id": self.id(), "transcript_path": self.store, "cwd": self.t.workspace(),
               "hook_event_name": event, "prompt": prompt})
        .to_string()
    }
    /// The hook, as Claude Code calls it.
    fn hook(&self, event: &str, prompt: Option<&str>) -> Output {
        let mut c = self.t.command();
        c.args(["hook", "claude"]);
        with_input(c, self.input(event, prompt).as_bytes())
    }
    fn rows(&self) -> Vec<Value> {
        let (code, timeline) = self.t.run(&["timeline", self.id()]);
        assert_eq!(code, 0, "{timeline}");
        timeline["rows"].as_array().expect("rows").clone()
    }
}

/// It says nothing, and lets the agent go on.
fn silent(out: &Output) {
    assert!(out.status.success() && out.stdout.is_empty(), "{out:?}");
}

fn write(t: &Tracked, text: &str) {
    std::fs::write(t.workspace().join("first.txt"), text).expect("write");
}

fn first(t: &Tracked) -> String {
    std::fs::read_to_string(t.workspace().join("first.txt")).expect("read")
}

#[test]
fn the_hook_says_nothing_and_its_checkpoints_are_found_again() {
    let t = Tracked::new();
    let mut s = Session::new(&t, SESSION);
    let pasted = "<pasted_content id=\"1\">\nagain\n</pasted_content id=\"1\">";
    for (n, (told, stored)) in [("one\nmore", "one\nmore"), ("again", "again"), ("again", pasted)]
        .into_iter()
        .enumerate()
    {
        silent(&s.hook("UserPromptSubmit", Some(told)));
        s.says(stored);
        s.calls();
        write(&t, &format!("turn {n}\n"));
        s.result();
        s.ends();
        silent(&s.hook("Stop", None));
    }
    // what is no message or turn end takes none
    let before = t.checkpoints();
    for other in ["SubagentStop", "PreToolUse", "SessionStart", "SessionEnd"] {
        silent(&s.hook(other, None));
    }
    assert_eq!(t.checkpoints(), before);
    let rows = s.rows();
    assert_eq!(rows.len(), 3);
    let states: Vec<&Value> = rows.iter().map(|r| &r["checkpoint"]["state"]).collect();
    assert_eq!(states, ["ok", "ok", "ok"], "{rows:?}");
    assert!(rows.iter().all(|r| r["changes"]["modified"] == 1), "{rows:?}");
    for (state, want) in [
        ("m2", "turn 0\n"),
        ("m1", "first\n"),
        ("m3", "turn 1\n"),
        ("m3.end", "turn 2\n"),
    ] {
        let (code, said) = t.run(&["--yes", "-c", SESSION, "rewind", state, "--files"]);
        assert_eq!((code, first(&t).as_str()), (0, want), "{state}: {said}");
    }
}

/// Nothing but the text ties a hook's checkpoint to its message: where retention removed one, none of a later message with
/// the same text is taken for it, and the row says what became of it.
#[test]
fn the_checkpoint_of_a_message_said_again_is_not_taken_for_a_removed_one() {
    let t = Tracked::new();
    let mut s = Session::new(&t, SESSION);
    for n in 0..4 {
        silent(&s.hook("UserPromptSubmit", Some("go on")));
        s.says("go on");
        s.calls();
        write(&t, &format!("turn {n}\n"));
        s.result();
        s.ends();
        silent(&s.hook("Stop", None));
    }
    let id = |row: &Value| row["checkpoint"]["id"].as_str().map(str::to_owned);
    let before: Vec<_> = s.rows().iter().map(id).collect();
    let (code, done) = t.run(&["pin", before[1].as_deref().expect("an id")]);
    assert_eq!(code, 0, "{done}");
    let (code, done) = t.run(&["--yes", "prune", "--keep", "3"]);
    assert_eq!(code, 0, "{done}");
    let rows = s.rows();
    let after: Vec<_> = rows.iter().map(id).collect();
    assert_eq!(
        after,
        [None, before[1].clone(), None, before[3].clone()],
        "{rows:?}"
    );
    for gone in [&rows[0], &rows[2]] {
        assert_eq!(
            (&gone["checkpoint"]["state"], &gone["checkpoint"]["reason"]),
            (&json!("thinned"), &json!("removed by retention"))
        );
    }
}

/// Whatever goes wrong: exit code 0, nothing on stdout, one harmless line on stderr.
#[test]
fn a_hook_that_cannot_take_a_checkpoint_lets_the_agent_go_on() {
    let t = Tracked::new();
    let before = t.checkpoints();
    let elsewhere =
        json!({"session_id": "x", "cwd": "/", "hook_event_name": "UserPromptSubmit", "prompt": "\u{1b}[31m"});
    for input in [
        "",
        "{",
        "[]",
        "{\"hook_event_name\":\"Stop\"}",
        &elsewhere.to_string(),
    ] {
        let mut c = t.command();
        c.args(["hook", "claude"]);
        let out = with_input(c, input.as_bytes());
        silent(&out);
        let said = String::from_utf8(out.stderr).expect("text");
        assert!(
            said.starts_with("respool: no checkpoint: ") && said.lines().count() == 1,
            "{input}: {said}"
        );
        assert!(!said.trim_end().contains(char::is_control), "{said:?}");
    }
    assert_eq!(t.checkpoints(), before);
    // an agent without a hook here is no refusal of a message: never 2
    let mut c = t.command();
    c.args(["hook", "somebody"]);
    assert_eq!(with_input(c, b"{}").status.code(), Some(1));
}

/// The agent has gone to another folder since: the project's is the workspace.
#[test]
fn the_workspace_is_the_projects_folder() {
    let t = Tracked::new();
    let s = Session::new(&t, SESSION);
    let before = t.checkpoints();
    let input = json!({"session_id": "x", "cwd": "/usr", "hook_event_name": "Stop"}).to_string();
    let mut c = t.command();
    c.args(["hook", "claude"])
        .env("CLAUDE_PROJECT_DIR", t.workspace());
    silent(&with_input(c, input.as_bytes()));
    assert_eq!(t.checkpoints(), before + 1);
    // who calls it so is an agent, and may not rewind
    let (code, said) = t.run(&["--yes", "-s", ".", "rewind", "start", "--files"]);
    assert_eq!(code, 3, "{said}");
    assert!(said.to_string().contains("started by the agent"), "{said}");
    // without the variable the input says it, and a folder in the workspace is as good
    std::fs::create_dir(t.workspace().join("sub")).expect("folder");
    let mut c: Command = t.command();
    c.args(["hook", "claude"]).env_remove("CLAUDE_PROJECT_DIR");
    let input = s.input("Stop", None).replace("/w\"", "/w/sub\"");
    silent(&with_input(c, input.as_bytes()));
    assert_eq!(t.checkpoints(), before + 2);
}

struct Watcher {
    child: Child,
    lines: Receiver<Value>,
    told: Vec<Value>,
}

impl Watcher {
    fn here(t: &Tracked) -> Self {
        let mut c = t.command();
        let mut child = c.arg("watch").stdout(Stdio::piped()).spawn().expect("respool");
        let stdout = BufReader::new(child.stdout.take().expect("stdout"));
        let (send, lines) = channel();
        std::thread::spawn(move || {
            for line in stdout.lines().map_while(Result::ok) {
                if send
                    .send(serde_json::from_str(&line).unwrap_or(Value::String(line)))
                    .is_err()
                {
                    return;
                }
            }
        });
        let mut it = Self {
            child,
            lines,
            told: Vec::new(),
        };
        it.until("waiting");
        it
    }
    fn until(&mut self, event: &str) -> Value {
        let start = Instant::now();
        while let Ok(line) = self.lines.recv_timeout(LIMIT.saturating_sub(start.elapsed())) {
            self.told.push(line.clone());
            if line["event"] == event {
                return line;
            }
        }
        panic!("no {event} after {:?}", self.told);
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        let _dead_already = self.child.kill();
        let _reaped_already = self.child.wait();
    }
}

/// A project's folder and its first session appear while it watches; no hook is there.
#[test]
fn a_session_that_begins_later_is_followed() {
    let t = Tracked::new();
    let mut w = Watcher::here(&t);
    let mut s = Session::new(&t, SESSION);
    for turn in 1..=3 {
        s.raw(&format!(
            "{{\"type\":\"queue-operation\",\"operation\":\"enqueue\",\"sessionId\":\"{SESSION}\"}}\n"
        ));
        let message = s.says(&format!("message {turn}"));
        let taken = w.until("checkpoint");
        assert_eq!(
            (&taken["message"], &taken["how"]),
            (&json!(message), &json!("watch")),
            "{taken}"
        );
        assert_eq!(
            (&taken["number"], &taken["late"]),
            (&json!(turn), &Value::Null),
            "{taken}"
        );
        s.calls();
        write(&t, &format!("turn {turn}\n"));
        s.result();
        s.ends();
        let end = w.until("turn-end");
        assert_eq!(
            (&end["message"], &end["how"]),
            (&json!(message), &json!("watch")),
            "{end}"
        );
    }
    let rows = s.rows();
    assert!(
        rows.iter()
            .all(|r| r["checkpoint"]["state"] == "ok" && r["changes"]["modified"] == 1),
        "{rows:?}"
    );
    // the second session of a project that is there
    let mut other = Session::new(&t, "22222222-2222-4333-8444-555555555555");
    other.says("another");
    let taken = w.until("checkpoint");
    assert_eq!(
        (&taken["conversation"], &taken["number"]),
        (&json!(other.id()), &json!(1)),
        "{taken}"
    );
    assert_eq!(
        w.told.iter().filter(|e| e["event"] == "failed").count(),
        0,
        "{:?}",
        w.told
    );
}

/// P140: a session whose file is replaced by another one of it goes on, with one checkpoint a message; a deleted one is
/// gone, and followed again when it comes back.
#[test]
fn p140_a_session_that_is_replaced_or_deleted() {
    let t = Tracked::new();
    let mut w = Watcher::here(&t);
    let mut s = Session::new(&t, SESSION);
    s.says("one");
    w.until("checkpoint");
    s.calls();
    s.ends();
    w.until("turn-end");
    for text in ["two", "three"] {
        let old = std::fs::read(&s.store).expect("read");
        let new = s.store.with_extension("new");
        std::fs::rename(&s.store, &new).expect("rename");
        std::fs::write(&s.store, old).expect("write");
        std::fs::rename(&new, &s.store).expect("rename");
        let message = s.says(text);
        let taken = w.until("checkpoint");
        assert_eq!(taken["message"], json!(message), "{:?}", w.told);
        s.ends();
        w.until("turn-end");
    }
    assert_eq!(w.told.iter().filter(|e| e["event"] == "checkpoint").count(), 3);
    let whole = std::fs::read(&s.store).expect("read");
    std::fs::remove_file(&s.store).expect("remove");
    assert_eq!(w.until("gone")["conversation"], SESSION);
    std::fs::write(&s.store, whole).expect("write");
    w.until("watching");
    let message = s.says("four");
    while w.until("checkpoint")["message"] != json!(message) {}
    let taken: Vec<&Value> = w.told.iter().filter(|e| e["event"] == "checkpoint").collect();
    assert_eq!(taken.len(), 4, "one a message: {taken:?}");
}

/// With hook and watcher each message has one checkpoint, also where the watcher starts in the middle: `respool run` does so
/// for each run of the agent.
#[test]
fn a_watcher_that_starts_later_takes_none_beside_the_hooks() {
    let t = Tracked::new();
    let mut s = Session::new(&t, SESSION);
    for turn in 1..=4 {
        let mut w = Watcher::here(&t);
        let text = format!("message {turn}");
        silent(&s.hook("UserPromptSubmit", Some(&text)));
        // the agent is quick: the watcher sees the message when all is done
        write(&t, &format!("turn {turn}\n"));
        s.says(&text);
        s.calls();
        s.result();
        let taken = w.until("checkpoint");
        assert_eq!(
            (&taken["how"], &taken["late"]),
            (&json!("hook"), &Value::Null),
            "{turn}: {taken}"
        );
        s.ends();
        silent(&s.hook("Stop", None));
        let end = w.until("turn-end");
        assert_eq!(end["how"], "hook", "{turn}: {end}");
    }
    // a start, and two a turn
    assert_eq!(t.checkpoints(), 9);
    assert!(
        s.rows().iter().all(|r| r["checkpoint"]["state"] == "ok"),
        "{:?}",
        s.rows()
    );
}

/// P118: two sessions in one workspace have a timeline each, and a rewind of one names what the other did.
#[test]
fn two_sessions_in_one_workspace() {
    let t = Tracked::new();
    let mut all = [SESSION, "22222222-2222-4333-8444-555555555555"].map(|id| Session::new(&t, id));
    for (s, file) in all.iter_mut().zip(["a.txt", "b.txt"]) {
        silent(&s.hook("UserPromptSubmit", Some("same words")));
        s.says("same words");
        s.calls();
        std::fs::write(t.workspace().join(file), "x").expect("write");
        s.result();
        s.ends();
        silent(&s.hook("Stop", None));
    }
    let ids: Vec<Value> = all
        .iter()
        .map(|s| s.rows()[0]["checkpoint"]["id"].clone())
        .collect();
    assert_ne!(ids[0], ids[1]);
    let (code, plan) = t.run(&["--dry-run", "-c", SESSION, "rewind", "m1", "--files"]);
    assert_eq!(code, 0, "{plan}");
    let plan = &plan["plan"];
    assert!(
        plan["yours"].to_string().contains("b.txt"),
        "what another did is no doing of this turn: {plan}"
    );
    assert!(!plan["yours"].to_string().contains("a.txt"), "{plan}");
    let told = plan["blockers"].as_array().expect("blockers");
    let told: Vec<_> = told.iter().filter(|b| b["kind"] == "conversation").collect();
    let line = "another conversation (22222222-2222-4333-8444-555555555555) changed 1 path of these meanwhile: b.txt";
    assert_eq!(
        told.iter().map(|b| &b["what"]).collect::<Vec<_>>(),
        [line],
        "{plan}"
    );
    let (code, said) = t.run(&["--yes", "-c", SESSION, "rewind", "m1", "--files"]);
    assert_eq!(code, 0, "{said}");
    assert_eq!(t.run(&["--yes", "undo"]).0, 0);
    assert!(t.workspace().join("a.txt").exists() && t.workspace().join("b.txt").exists());
}

#[test]
fn the_hook_is_put_into_the_settings_and_works_from_there() {
    let t = Tracked::new();
    let ok = |words: &[&str]| {
        let (code, said) = t.run(words);
        assert_eq!(code, 0, "{words:?}: {said}");
        said
    };
    let file = t.workspace().join(".claude/settings.json");
    std::fs::create_dir(t.workspace().join(".claude")).expect("folder");
    std::fs::write(&file, "{\"model\": \"opus\"}\n").expect("write");
    assert_eq!(ok(&["hooks", "status", "claude"])["will_checkpoint"], false);
    let dry = ok(&["--dry-run", "hooks", "install", "claude", "--project"]);
    assert!(
        dry["plan"]["steps"][0]
            .as_str()
            .is_some_and(|s| s.contains("settings.json")),
        "{dry}"
    );
    ok(&["hooks", "install", "claude", "--project"]);
    let status = ok(&["hooks", "status", "claude"]);
    assert_eq!(
        (&status["will_checkpoint"], &status["agent"]),
        (&json!(true), &json!("claude")),
        "{status}"
    );
    let settings: Value = serde_json::from_slice(&std::fs::read(&file).expect("read")).expect("JSON");
    assert_eq!(settings["model"], "opus");
    let s = Session::new(&t, SESSION);
    for event in ["UserPromptSubmit", "Stop"] {
        let command = settings["hooks"][event][0]["hooks"][0]["command"]
            .as_str()
            .expect("a command");
        let before = t.checkpoints();
        let mut c = Command::new("/bin/sh");
        c.args(["-c", command]).env_clear().current_dir("/");
        silent(&with_input(c, s.input(event, Some("x")).as_bytes()));
        assert_eq!(t.checkpoints(), before + 1, "{event}");
    }
    ok(&["hooks", "uninstall", "claude", "--project"]);
    assert_eq!(
        std::fs::read_to_string(&file).expect("read"),
        "{\"model\": \"opus\"}\n"
    );
    // of the user's own file nothing stays
    ok(&["hooks", "install", "claude", "--user"]);
    assert_eq!(ok(&["hooks", "status", "claude"])["will_checkpoint"], true);
    ok(&["hooks", "uninstall", "claude", "--user"]);
    assert!(!t.dir().join("home/.claude").exists());
}

/// P153, P155: the order is the file's and the checkpoints', whatever the clock says; no two share a name.
#[test]
fn a_clock_that_goes_back_changes_no_order() {
    let t = Tracked::new();
    let mut s = Session::new(&t, SESSION);
    // 02:30 twice on the night that summer time ends, then an hour back
    let times = [
        "2026-10-25T00:30:00.000Z",
        "2026-10-25T01:30:00.000Z",
        "2026-10-25T00:30:00.000Z",
    ];
    for (n, time) in times.iter().enumerate() {
        silent(&s.hook("UserPromptSubmit", Some("again")));
        s.line(
            "user",
            &json!({"timestamp": time, "message": {"role": "user", "content": "again"}}),
        );
        s.calls();
        write(&t, &format!("turn {n}\n"));
        s.ends();
        silent(&s.hook("Stop", None));
    }
    let rows = s.rows();
    let numbers: Vec<&Value> = rows.iter().map(|r| &r["message"]).collect();
    assert_eq!(numbers, [1, 2, 3]);
    let ids: std::collections::HashSet<String> =
        rows.iter().map(|r| r["checkpoint"]["id"].to_string()).collect();
    assert_eq!(ids.len(), 3, "{rows:?}");
    for (state, want) in [("m3", "turn 1\n"), ("m2", "turn 0\n"), ("m1", "first\n")] {
        let (code, said) = t.run(&["--yes", "-c", SESSION, "rewind", state, "--files"]);
        assert_eq!((code, first(&t).as_str()), (0, want), "{state}: {said}");
    }
}

/// A fork is a file of its own with the same messages under the same ids: they have the checkpoints that were taken for them
/// in the first conversation, and no other message's of the same words.
#[test]
fn a_fork_has_the_checkpoints_of_what_it_shares() {
    let t = Tracked::new();
    let mut first_one = Session::new(&t, SESSION);
    let turn = |s: &mut Session<'_>, text: &str, content: &str| {
        silent(&s.hook("UserPromptSubmit", Some(text)));
        s.says(text);
        s.calls();
        write(&t, content);
        s.ends();
        silent(&s.hook("Stop", None));
    };
    turn(&mut first_one, "begin", "begun\n");
    let shared = std::fs::read_to_string(&first_one.store).expect("read");
    turn(&mut first_one, "again", "first way\n");
    let mut fork = Session::new(&t, "22222222-2222-4333-8444-555555555555");
    fork.raw(&shared.replace(SESSION, "22222222-2222-4333-8444-555555555555"));
    (fork.last, fork.records) = (first_one.last.clone(), 100);
    assert_eq!(fork.rows()[0]["checkpoint"]["state"], "ok");
    write(&t, "begun\n");
    turn(&mut fork, "again", "second way\n");
    let (old, new) = (first_one.rows(), fork.rows());
    // what only the other one has is a branch
    let of_both = |rows: &[Value]| {
        rows.iter()
            .filter(|r| r["active"] == false)
            .map(|r| r["id"].clone())
            .collect::<Vec<_>>()
    };
    let own = |rows: Vec<Value>| {
        rows.into_iter()
            .filter(|r| r["active"] == true)
            .collect::<Vec<_>>()
    };
    let others = (of_both(&old), of_both(&new));
    let (old, new) = (own(old), own(new));
    assert_eq!((old.len(), new.len()), (2, 2));
    assert_eq!(others, (vec![new[1]["id"].clone()], vec![old[1]["id"].clone()]));
    assert_eq!(old[0]["checkpoint"], new[0]["checkpoint"]);
    assert_eq!(new[0]["changes"]["modified"], 1, "{new:?}");
    assert!(new.iter().all(|r| r["checkpoint"]["state"] == "ok"), "{new:?}");
    assert_ne!(old[1]["checkpoint"]["id"], new[1]["checkpoint"]["id"]);
    for (state, want) in [
        ("m2", "begun\n"),
        ("m1", "first\n"),
        ("m1.end", "begun\n"),
        ("m2.end", "second way\n"),
    ] {
        let (code, said) = t.run(&["--yes", "-c", fork.id(), "rewind", state, "--files"]);
        assert_eq!((code, first(&t).as_str()), (0, want), "{state}: {said}");
    }
}

/// A fork whose last turn was cut off looks as if the agent were at work: its message has its checkpoint all the same,
/// where it was sent.
#[test]
fn a_fork_that_appears_is_no_message() {
    let t = Tracked::new();
    let mut s = Session::new(&t, SESSION);
    silent(&s.hook("UserPromptSubmit", Some("begin")));
    s.says("begin");
    s.calls();
    let mut watcher = Watcher::here(&t);
    let before = t.checkpoints();
    let id = "22222222-2222-4333-8444-555555555555";
    let text = std::fs::read_to_string(&s.store).expect("read");
    let mut fork = Session::new(&t, id);
    fork.raw(&text.replace(SESSION, id));
    assert_eq!(watcher.until("watching")["conversation"], id);
    assert_eq!(t.checkpoints(), before);
    // and the next one is
    (fork.last, fork.records) = (s.last.clone(), 100);
    let next = fork.says("go on");
    assert_eq!(watcher.until("checkpoint")["message"], next);
    assert_eq!(t.checkpoints(), before + 1);
}
