//! The files are in the hands of the service, the conversation is its owner's: both go back, or neither. The service
//! looks at no conversation.

use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::common::wait_until;
use crate::served::{OTHER, OWNER, Served};

const ID: &str = "00000000-0000-4000-8000-000000000007";

fn own(path: &Path, mode: u32) {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).expect("mode");
    chown(path, Some(OWNER), Some(OWNER)).expect("owner");
}

fn event(n: u32) -> String {
    format!("{n:08x}-0000-4000-8000-000000000000")
}

/// A conversation of the owner's with two messages, each with its checkpoint; `a` tells the turn.
fn conversation(s: &Served) -> PathBuf {
    s.tracked();
    let top = s.home().join(".openhands");
    let store = top.join("conversations").join(ID.replace('-', ""));
    std::fs::create_dir_all(store.join("events")).expect("store");
    for dir in [&top, &top.join("conversations"), &store, &store.join("events")] {
        own(dir, 0o700);
    }
    let put = |path: PathBuf, text: Value| {
        std::fs::write(&path, text.to_string()).expect("write");
        own(&path, 0o600);
    };
    for (n, kind, source, text) in [
        (0, "SystemPromptEvent", "agent", ""),
        (1, "MessageEvent", "user", "one"),
        (2, "MessageEvent", "agent", "done"),
        (3, "MessageEvent", "user", "two"),
        (4, "MessageEvent", "agent", "done"),
    ] {
        let parent = if n == 0 { "__root__".into() } else { event(n - 1) };
        let role = if source == "user" { "user" } else { "assistant" };
        let text = json!({"id": event(n), "timestamp": "2026-11-29T17:05:02.5", "source": source, "parent_id": parent,
            "llm_message": {"role": role, "content": [{"type": "text", "text": text}]}, "kind": kind});
        put(store.join(format!("events/event-{n:05}-{}.json", event(n))), text);
    }
    put(
        store.join("base_state.json"),
        json!({"id": ID, "workspace": {"working_dir": s.ws()}, "execution_status": "finished", "leaf_event_id": event(4),
            "head_is_empty": false}),
    );
    for n in 1..=2 {
        let (code, doc) = s.run_as(OWNER, &["-c", ID, "checkpoint", "--message", &n.to_string()]);
        assert_eq!(code, 0, "{doc}");
        assert!(s.shell(&format!("echo {n} > project/a")).status.success());
    }
    store
}

fn leaf(store: &Path) -> String {
    let text = std::fs::read_to_string(store.join("base_state.json")).expect("state");
    let base: Value = serde_json::from_str(&text).expect("JSON");
    base["leaf_event_id"].as_str().expect("a head").to_owned()
}

fn a(s: &Served) -> String {
    std::fs::read_to_string(s.ws().join("a")).expect("a")
}

fn killed(s: &Served, point: &str) {
    let mut c = s.user(OWNER, s.dir().join("respool"));
    c.args(["--json", "-c", ID, "--yes", "rewind", "2"])
        .env("RESPOOL_KILL_AT", point);
    let out = c.output().expect("respool");
    assert_eq!(
        out.status.signal(),
        Some(9),
        "{point}: {}",
        String::from_utf8_lossy(&out.stdout)
    );
}

#[test]
fn files_by_the_service_and_the_conversation_by_its_owner() {
    let s = Served::new();
    let store = conversation(&s);
    let before = std::fs::read(store.join("base_state.json")).expect("state");
    let (code, doc) = s.run_as(OWNER, &["-c", ID, "--yes", "rewind", "2"]);
    assert_eq!(
        (code, &doc["chat"], &doc["verified"]),
        (0, &json!("rewound"), &json!(true)),
        "{doc}"
    );
    assert_eq!((leaf(&store), a(&s)), (event(2), "1\n".into()));
    let meta = std::fs::metadata(store.join("base_state.json")).expect("meta");
    assert_eq!((meta.uid(), meta.mode() & 0o777), (OWNER, 0o600));
    let (code, doc) = s.run_as(OWNER, &["-c", ID, "--yes", "undo"]);
    assert_eq!((code, &doc["chat"]), (0, &json!("rewound")), "{doc}");
    assert_eq!(
        std::fs::read(store.join("base_state.json")).expect("state"),
        before
    );
    assert_eq!(a(&s), "2\n");
}

/// A fork of Claude Code's is made by its owner, and is the owner's; one that root has to settle, too.
#[test]
fn a_fork_is_its_owners() {
    let s = Served::new();
    s.tracked();
    let top = s.home().join(".claude");
    let project = top.join("projects/-project");
    std::fs::create_dir_all(&project).expect("folders");
    for dir in [&top, &top.join("projects"), &project] {
        own(dir, 0o700);
    }
    let store = project.join(format!("{ID}.jsonl"));
    let mut text = String::new();
    for (n, kind, words) in [
        (1, "user", "one"),
        (2, "assistant", "done"),
        (3, "user", "two"),
        (4, "assistant", "done"),
    ] {
        let parent = (n > 1).then(|| event(n - 1));
        let record = json!({"parentUuid": parent, "type": kind, "uuid": event(n), "sessionId": ID, "cwd": s.ws(),
            "message": {"role": kind, "stop_reason": "end_turn", "content": [{"type": "text", "text": words}]}});
        text += &format!("{record}\n");
    }
    std::fs::write(&store, &text).expect("write");
    own(&store, 0o600);
    for n in 1..=2 {
        let (code, doc) = s.run_as(OWNER, &["-c", ID, "checkpoint", "--message", &n.to_string()]);
        assert_eq!(code, 0, "{doc}");
        assert!(s.shell(&format!("echo {n} > project/a")).status.success());
    }
    let forks = || {
        let all = std::fs::read_dir(&project)
            .expect("folder")
            .map(|e| e.expect("entry").path());
        all.filter(|p| *p != store).collect::<Vec<PathBuf>>()
    };
    let (code, doc) = s.run_as(OWNER, &["-c", ID, "--yes", "rewind", "2"]);
    assert_eq!(
        (code, &doc["chat"], &doc["verified"]),
        (0, &json!("forked"), &json!(true)),
        "{doc}"
    );
    let made = forks();
    assert_eq!((made.len(), a(&s)), (1, "1\n".into()));
    let meta = std::fs::metadata(&made[0]).expect("meta");
    assert_eq!(
        (meta.uid(), meta.gid(), meta.mode() & 0o777),
        (OWNER, OWNER, 0o600)
    );
    assert_eq!(
        std::fs::read_to_string(&made[0]).expect("fork").lines().count(),
        2
    );
    let (code, doc) = s.run_as(OWNER, &["-c", ID, "--yes", "undo"]);
    assert_eq!(
        (code, &doc["chat"], forks().len()),
        (0, &json!("rewound"), 0),
        "{doc}"
    );
    // killed between the two: somebody else cannot know, the owner can
    for (point, outcome) in [("chat-fork-written", "rolled-back"), ("chat-forked", "finished")] {
        killed(&s, point);
        let (_, doc) = s.run_as(OTHER, &["recover"]);
        assert_eq!(doc, json!([]), "{point}");
        let (code, doc) = s.run_as(OWNER, &["--yes", "recover"]);
        assert_eq!((code, &doc[0]["outcome"]), (0, &json!(outcome)), "{point}: {doc}");
        assert_eq!(forks().len(), usize::from(outcome == "finished"), "{point}");
    }
}

/// The client is killed while the record is held open: the owner's next command that writes settles it.
#[test]
fn a_client_that_dies_between_files_and_conversation() {
    let s = Served::new();
    let store = conversation(&s);
    for (point, after) in [
        ("chat-held", false),
        ("chat-head-written", false),
        ("chat-moved", true),
    ] {
        killed(&s, point);
        assert_eq!(a(&s), "1\n", "{point}");
        // somebody else, and the service alone, cannot know
        let (_, doc) = s.run_as(OTHER, &["recover"]);
        assert_eq!(doc, json!([]), "{point}");
        let (code, doc) = s.run_as(OWNER, &["--yes", "recover"]);
        assert_eq!(code, 0, "{point}: {doc}");
        let outcome = if after { "finished" } else { "rolled-back" };
        assert_eq!(doc[0]["outcome"], outcome, "{point}: {doc}");
        let want = if after {
            (event(2), "1\n")
        } else {
            (event(4), "2\n")
        };
        assert_eq!((leaf(&store), a(&s)), (want.0, want.1.to_owned()), "{point}");
    }
    let (code, doc) = s.run_as(OWNER, &["-c", ID, "--yes", "undo"]);
    assert_eq!(
        (code, leaf(&store), a(&s)),
        (0, event(4), "2\n".to_owned()),
        "{doc}"
    );
}

/// The next command that writes does the same without being asked.
#[test]
fn the_next_command_that_writes_settles_it() {
    let s = Served::new();
    let store = conversation(&s);
    killed(&s, "chat-moved");
    let out = s
        .user(OWNER, s.dir().join("respool"))
        .args(["-c", ID, "checkpoint"])
        .output()
        .expect("respool");
    let said = String::from_utf8_lossy(&out.stderr);
    assert!(
        out.status.success() && said.contains("it is finished now"),
        "{said}"
    );
    assert_eq!((leaf(&store), a(&s)), (event(2), "1\n".into()));
}

/// What the record names is the owner's word: root, who recovers it, touches it with the owner's rights alone.
#[test]
fn root_is_not_led_into_a_store_that_is_not_the_owners() {
    let s = Served::new();
    let store = conversation(&s);
    killed(&s, "chat-held");
    // the owner puts root's own conversation in the place of his
    let secret = s.dir().join("roots-own");
    let conversations = store.parent().expect("parent");
    let done = std::process::Command::new("cp")
        .arg("-r")
        .arg(conversations)
        .arg(&secret)
        .status();
    assert!(done.expect("cp").success());
    let inside = secret.join(ID.replace('-', ""));
    for path in [&secret, &inside, &inside.join("events")] {
        chown(path, Some(0), Some(0)).expect("owner");
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o700)).expect("mode");
    }
    let mut base: Value =
        serde_json::from_slice(&std::fs::read(inside.join("base_state.json")).expect("state")).expect("JSON");
    base["leaf_event_id"] = json!(event(4));
    std::fs::write(inside.join("base_state.json"), base.to_string()).expect("state");
    let held = std::fs::read(inside.join("base_state.json")).expect("state");
    let away = s.home().join("away");
    std::fs::rename(conversations, &away).expect("rename");
    std::os::unix::fs::symlink(&secret, conversations).expect("link");
    let (_, doc) = s.root(&["recover"]);
    assert_eq!(doc[0]["outcome"], "waits", "{doc}");
    assert_eq!(
        std::fs::read(inside.join("base_state.json")).expect("state"),
        held
    );
    // and back: root settles it in the owner's name
    std::fs::remove_file(conversations).expect("link");
    std::fs::rename(&away, conversations).expect("rename");
    let (code, doc) = s.root(&["recover"]);
    assert_eq!((code, &doc[0]["outcome"]), (0, &json!("rolled-back")), "{doc}");
    assert_eq!((leaf(&store), a(&s)), (event(4), "2\n".into()));
}

/// A process that a test stopped; it goes on, and ends, with the test.
struct Stopped(Option<std::process::Child>);

impl Stopped {
    fn state(&self) -> Option<char> {
        let pid = self.0.as_ref()?.id();
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        stat.rsplit(')').next()?.trim_start().chars().next()
    }

    fn signal(&self, signal: nix::sys::signal::Signal) {
        if let Some(child) = &self.0 {
            let pid = nix::unistd::Pid::from_raw(child.id() as i32);
            nix::sys::signal::kill(pid, signal).expect("signal");
        }
    }

    fn ends(mut self) -> std::process::Output {
        let child = self.0.take().expect("running");
        child.wait_with_output().expect("its end")
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        if let Some(mut child) = self.0.take() {
            let _dead_already = child.kill();
            let _reaped_already = child.wait();
        }
    }
}

fn stopped_at(s: &Served, point: &str) -> Stopped {
    let mut c = s.user(OWNER, s.dir().join("respool"));
    c.args(["--json", "-c", ID, "--yes", "rewind", "2"])
        .env("RESPOOL_STOP_AT", point)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let it = Stopped(Some(c.spawn().expect("respool")));
    let there = wait_until(Duration::from_secs(20), || it.state() == Some('T'));
    assert!(there, "it did not come to {point}");
    it
}

fn prompt(s: &Served) -> std::process::Child {
    let ws = s.ws();
    let input =
        json!({"event_type": "UserPromptSubmit", "message": "three", "session_id": ID, "working_dir": ws});
    let mut c = s.user(OWNER, s.dir().join("respool"));
    c.args(["hook", "openhands"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    let mut hook = c.spawn().expect("respool");
    let mut stdin = hook.stdin.take().expect("stdin");
    std::io::Write::write_all(&mut stdin, input.to_string().as_bytes()).expect("input");
    hook
}

/// A message that comes between a rewind's files and its conversation waits for the rewind, and has its checkpoint;
/// whatever else writes waits, too. Where the rewind was killed nobody waits, and the reason is said.
#[test]
fn a_message_between_files_and_conversation_waits() {
    let s = Served::new();
    let store = conversation(&s);
    let rewind = stopped_at(&s, "chat-held");
    let mut hook = prompt(&s);
    // the plan only looks, and takes longer than a hook that does not wait
    let (code, doc) = s.run_as(OWNER, &["-c", ID, "--dry-run", "rewind", "2", "--files"]);
    assert_eq!(code, 0, "{doc}");
    assert!(hook.try_wait().expect("wait").is_none(), "it waits");
    rewind.signal(nix::sys::signal::Signal::SIGCONT);
    let out = hook.wait_with_output().expect("its end");
    let said = String::from_utf8_lossy(&out.stdout).into_owned();
    assert!(said.contains("respool: checkpoint cp-"), "{said}");
    let done = rewind.ends();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stdout));
    assert_eq!((leaf(&store), a(&s)), (event(2), "1\n".into()));

    let (code, doc) = s.run_as(OWNER, &["-c", ID, "--yes", "undo"]);
    assert_eq!(code, 0, "{doc}");
    let rewind = stopped_at(&s, "chat-held");
    rewind.signal(nix::sys::signal::Signal::SIGKILL);
    rewind.ends();
    let start = Instant::now();
    let out = prompt(&s).wait_with_output().expect("its end");
    let said = String::from_utf8_lossy(&out.stdout).into_owned();
    assert!(
        said.contains("no checkpoint: a rewind was interrupted: run respool recover"),
        "{said}"
    );
    assert!(start.elapsed() < Duration::from_secs(8), "it does not wait");
}
