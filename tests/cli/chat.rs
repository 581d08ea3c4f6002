//! The conversation goes back with the files: the event tree offline, older stores, who holds a store.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use crate::common::wait_until;
use crate::lab::{Answer, Lab, SOON};

/// Four messages, each with its checkpoint, and the turn of each in the file `f`.
pub fn four(lab: &Lab) {
    lab.write("f", "0");
    for n in 1..=4 {
        lab.message(n);
        lab.write("f", n.to_string());
    }
}

pub fn base(lab: &Lab) -> String {
    std::fs::read_to_string(lab.store().join("base_state.json")).expect("state")
}

pub fn leaf(lab: &Lab) -> String {
    let base: Value = serde_json::from_str(&base(lab)).expect("state");
    base["leaf_event_id"].as_str().expect("never null").to_owned()
}

/// The events of the store in order.
pub fn events(lab: &Lab) -> Vec<Value> {
    let mut names: Vec<PathBuf> = std::fs::read_dir(lab.store().join("events"))
        .expect("events")
        .map(|e| e.expect("entry").path())
        .filter(|p| p.extension().is_some_and(|e| e == "json"))
        .collect();
    names.sort();
    let read = |p: &PathBuf| serde_json::from_slice(&std::fs::read(p).expect("event")).expect("JSON");
    names.iter().map(read).collect()
}

/// The ids of the human's messages.
pub fn messages(lab: &Lab) -> Vec<String> {
    let said = |e: &Value| e["kind"] == "MessageEvent" && e["source"] == "user";
    let all = events(lab);
    all.iter()
        .filter(|e| said(e))
        .map(|e| e["id"].as_str().expect("id").to_owned())
        .collect()
}

pub fn parent(lab: &Lab, id: &str) -> String {
    let all = events(lab);
    let event = all.iter().find(|e| e["id"] == id).expect("there");
    event["parent_id"].as_str().expect("a parent").to_owned()
}

/// Runs a command with conversations as they come.
pub fn whole(lab: &Lab, args: &[&str]) -> Answer {
    Answer::of(lab.whole_command(args).output().expect("run"))
}

pub fn done(lab: &Lab, args: &[&str]) -> Value {
    let a = whole(lab, args);
    assert_eq!(a.code, Some(0), "{args:?}: {}\n{}", a.text(), a.err);
    a.json()
}

/// The numbers of the rows, in the store's order.
fn numbers(lab: &Lab) -> Vec<Option<u64>> {
    let doc = lab.ok(&["timeline", lab.store().to_str().expect("UTF-8")]);
    let rows = doc["rows"].as_array().expect("rows");
    rows.iter().map(|r| r["message"].as_u64()).collect()
}

/// Only the head differs, byte for byte; nothing of the store is lost; undo and redo move it too.
#[test]
fn the_head_of_an_event_tree_moves_and_comes_back() {
    let lab = Lab::new(|_| {});
    four(&lab);
    let (before, at, ids) = (base(&lab), leaf(&lab), messages(&lab));
    let all = events(&lab);
    let plan = &done(&lab, &["--dry-run", "rewind", "2"])["plan"];
    assert_eq!(plan["chat"], "rewound");
    let steps = plan["steps"].to_string();
    assert!(steps.contains("move the conversation's head"), "{steps}");
    assert_eq!((base(&lab), lab.read("f")), (before.clone(), "4".into()));

    let doc = done(&lab, &["--yes", "rewind", "2"]);
    assert_eq!(
        (&doc["chat"], &doc["verified"]),
        (&json!("rewound"), &json!(true))
    );
    let goal = parent(&lab, &ids[1]);
    assert_eq!((leaf(&lab), lab.read("f")), (goal.clone(), "1".into()));
    let want = before.replacen(
        &format!("\"leaf_event_id\":\"{at}\""),
        &format!("\"leaf_event_id\":\"{goal}\""),
        1,
    );
    assert_eq!(base(&lab), want);
    assert_eq!(events(&lab), all);
    assert_eq!(numbers(&lab), [Some(1), None, None, None]);

    let doc = done(&lab, &["--yes", "undo"]);
    assert_eq!(doc["chat"], "rewound");
    assert_eq!((base(&lab), lab.read("f")), (before, "4".into()));
    done(&lab, &["--yes", "redo"]);
    assert_eq!((leaf(&lab), lab.read("f")), (goal, "1".into()));
    let left: Vec<_> = std::fs::read_dir(lab.store())
        .expect("store")
        .map(|e| e.expect("entry").file_name())
        .collect();
    assert!(
        !left.iter().any(|n| n.to_string_lossy().contains("respool")),
        "{left:?}"
    );
}

/// P127: the first message, and the last; the agent's own instructions stay.
#[test]
fn the_first_message_and_the_last() {
    let lab = Lab::new(|_| {});
    four(&lab);
    let ids = messages(&lab);
    done(&lab, &["--yes", "rewind", "m4"]);
    assert_eq!((leaf(&lab), lab.read("f")), (parent(&lab, &ids[3]), "3".into()));
    done(&lab, &["--yes", "rewind", "m1"]);
    let first = leaf(&lab);
    let all = events(&lab);
    assert_eq!(
        all.iter().find(|e| e["id"] == *first).expect("there")["kind"],
        "SystemPromptEvent"
    );
    assert_eq!(lab.read("f"), "0");
    assert_eq!(numbers(&lab), [None, None, None, None]);
}

/// P133: what was rewound is a branch that can be gone back to, with its files: to before any message of it, and to
/// its end.
#[test]
fn an_old_branch_can_be_gone_back_to_with_its_files() {
    let lab = Lab::new(|_| {});
    four(&lab);
    let hook = |event: &str| {
        let doc = lab.ok(&["checkpoint"]);
        assert!(doc["checkpoint"].is_string(), "{event}");
    };
    hook("end");
    let (ids, end) = (messages(&lab), leaf(&lab));
    done(&lab, &["--yes", "rewind", "2"]);
    let old = format!("id:{}", ids[3]);
    done(&lab, &["--yes", "rewind", &old]);
    assert_eq!((leaf(&lab), lab.read("f")), (parent(&lab, &ids[3]), "3".into()));
    done(&lab, &["--yes", "undo"]);
    done(&lab, &["--yes", "undo"]);
    assert_eq!((leaf(&lab), lab.read("f")), (end, "4".into()));
}

#[test]
fn files_alone_and_the_conversation_alone() {
    let lab = Lab::new(|_| {});
    four(&lab);
    let (before, ids) = (base(&lab), messages(&lab));
    let doc = done(&lab, &["--yes", "rewind", "3", "--files"]);
    assert_eq!(
        (&doc["chat"], lab.read("f"), base(&lab)),
        (&json!("kept"), "2".into(), before.clone())
    );
    done(&lab, &["--yes", "undo"]);
    assert_eq!((lab.read("f"), base(&lab)), ("4".into(), before.clone()));

    let doc = done(&lab, &["--yes", "rewind", "3", "--chat"]);
    assert_eq!(
        (&doc["chat"], &doc["restored"]["workspace"]["changed"]),
        (&json!("rewound"), &json!(0))
    );
    assert_eq!((leaf(&lab), lab.read("f")), (parent(&lab, &ids[2]), "4".into()));
    lab.write("f", "later");
    let doc = done(&lab, &["--yes", "undo"]);
    assert_eq!(doc["chat"], "rewound");
    assert_eq!((base(&lab), lab.read("f")), (before.clone(), "later".into()));
    // a part of the files says nothing about the conversation
    let doc = done(&lab, &["--yes", "rewind", "3", "--path", "f"]);
    assert_eq!((&doc["chat"], base(&lab)), (&json!("kept"), before.clone()));
    assert!(
        doc["chat_reason"]
            .as_str()
            .expect("a reason")
            .contains("part of the files"),
        "{doc}"
    );
    // undo --files leaves the conversation where it is
    done(&lab, &["--yes", "rewind", "2"]);
    let moved = base(&lab);
    let doc = done(&lab, &["--yes", "undo", "--files"]);
    assert_eq!((&doc["chat"], base(&lab) == moved), (&json!("kept"), true));
}

/// A state that is no message's: the files alone, said so; `--both` and `--chat` are refused.
#[test]
fn a_state_that_is_no_place_in_the_conversation() {
    let lab = Lab::new(|_| {});
    four(&lab);
    let id = lab.checkpoint();
    let before = base(&lab);
    for flag in ["--both", "--chat"] {
        let a = whole(&lab, &["--yes", "rewind", &id, flag]);
        assert_eq!((a.code, base(&lab)), (Some(3), before.clone()), "{}", a.text());
    }
    let doc = done(&lab, &["--yes", "rewind", &id]);
    assert_eq!((&doc["chat"], base(&lab)), (&json!("kept"), before));
    assert!(
        doc["chat_reason"]
            .as_str()
            .expect("a reason")
            .contains("no message's"),
        "{doc}"
    );
}

/// P130: a message that came while a tool was at work. The call without its result does not stay.
#[test]
fn no_tool_call_stays_open() {
    let lab = Lab::new(|_| {});
    lab.write("f", "0");
    lab.message(1);
    // message 2 is stored between a call and its result
    let all = events(&lab);
    let call = json!({"id": "aaaaaaaa-0000-4000-8000-000000000001", "timestamp": "2026-11-29T17:06:00.0", "source": "agent",
        "parent_id": leaf(&lab), "tool_call_id": "call_open", "kind": "ActionEvent"});
    let said = json!({"id": "aaaaaaaa-0000-4000-8000-000000000002", "timestamp": "2026-11-29T17:06:01.0", "source": "user",
        "parent_id": call["id"], "llm_message": {"role": "user", "content": [{"type": "text", "text": "queued"}]}, "kind": "MessageEvent"});
    let result = json!({"id": "aaaaaaaa-0000-4000-8000-000000000003", "timestamp": "2026-11-29T17:06:02.0", "source": "environment",
        "parent_id": said["id"], "tool_call_id": "call_open", "kind": "ObservationEvent"});
    let closed = leaf(&lab);
    for (n, e) in (all.len()..).zip([&call, &said, &result]) {
        let name = format!("events/event-{n:05}-{}.json", e["id"].as_str().expect("id"));
        std::fs::write(lab.store().join(name), e.to_string()).expect("event");
    }
    let mut state: Value = serde_json::from_str(&base(&lab)).expect("state");
    state["leaf_event_id"] = result["id"].clone();
    std::fs::write(lab.store().join("base_state.json"), state.to_string()).expect("state");
    lab.ok(&["checkpoint", "--message", "2"]);
    lab.write("f", "2");
    done(&lab, &["--yes", "rewind", "2"]);
    assert_eq!((leaf(&lab), lab.read("f")), (closed, "0".into()));
}

/// P125: to before a compaction: its event is off the branch then, and the messages before it are there in full.
#[test]
fn a_rewind_to_before_a_compaction() {
    let lab = Lab::new(|_| {});
    four(&lab);
    let n = events(&lab).len();
    let event = json!({"id": "cccccccc-0000-4000-8000-000000000001", "timestamp": "2026-11-29T17:09:00.0", "source": "environment",
        "parent_id": leaf(&lab), "forgotten_event_ids": messages(&lab)[..2], "summary": "short", "kind": "Condensation"});
    let name = format!("events/event-{n:05}-cccccccc-0000-4000-8000-000000000001.json");
    std::fs::write(lab.store().join(name), event.to_string()).expect("event");
    let mut state: Value = serde_json::from_str(&base(&lab)).expect("state");
    state["leaf_event_id"] = event["id"].clone();
    std::fs::write(lab.store().join("base_state.json"), state.to_string()).expect("state");
    let ids = messages(&lab);
    done(&lab, &["--yes", "rewind", "3"]);
    assert_eq!(leaf(&lab), parent(&lab, &ids[2]));
    assert_eq!(numbers(&lab), [Some(1), Some(2), None, None]);
}

/// A store that says `running` after its agent was killed: set to `idle`, and back by undo.
#[test]
fn a_stale_running_is_set_to_idle() {
    let lab = Lab::new(|_| {});
    four(&lab);
    let text = base(&lab);
    let running = text.replace(
        "\"execution_status\":\"finished\"",
        "\"execution_status\":\"running\"",
    );
    assert_ne!(running, text);
    std::fs::write(lab.store().join("base_state.json"), &running).expect("state");
    // a server had it, and is gone
    std::fs::write(lab.store().join(".owner_lease.lock"), "").expect("lock");
    done(&lab, &["--yes", "rewind", "2"]);
    let state: Value = serde_json::from_str(&base(&lab)).expect("state");
    assert_eq!(state["execution_status"], "idle");
}

/// Every file of a folder: content, inode and time of change.
fn picture(dir: &Path) -> BTreeMap<PathBuf, (Vec<u8>, u64, i64)> {
    let mut out = BTreeMap::new();
    let mut folders = vec![dir.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).expect("folder").flatten() {
            let (path, meta) = (entry.path(), entry.metadata().expect("meta"));
            if meta.is_dir() {
                folders.push(path);
            } else {
                let name = path.strip_prefix(dir).expect("below").to_owned();
                out.insert(
                    name,
                    (std::fs::read(&path).expect("read"), meta.ino(), meta.mtime_nsec()),
                );
            }
        }
    }
    out
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).expect("folder");
    for entry in std::fs::read_dir(from).expect("fixture").flatten() {
        let target = to.join(entry.file_name());
        if entry.metadata().expect("meta").is_dir() {
            copy(&entry.path(), &target);
        } else {
            std::fs::write(&target, std::fs::read(entry.path()).expect("read")).expect("write");
        }
    }
}

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/fixtures/openhands")
        .join(name)
}

/// The command line tool's store in place of the lab's: linear, with two or more messages.
pub fn linear(lab: &Lab) {
    std::fs::remove_dir_all(lab.store()).expect("remove");
    copy(
        &fixture("v1_cli_1.16/.openhands/conversations/6a6da85acc0c4fff87b5d27099b38daf"),
        &lab.store(),
    );
    let mut state: Value = serde_json::from_str(&base(lab)).expect("state");
    state["workspace"]["working_dir"] = json!(lab.ws_text());
    std::fs::write(lab.store().join("base_state.json"), state.to_string()).expect("state");
    for n in 1..=2 {
        lab.write("f", (n - 1).to_string());
        lab.ok(&["checkpoint", "--message", &n.to_string()]);
    }
    lab.write("f", "2");
}

/// The indexes of the events that are there.
fn indexes(lab: &Lab) -> Vec<u64> {
    let mut out: Vec<u64> = std::fs::read_dir(lab.store().join("events"))
        .expect("events")
        .filter_map(|e| {
            let name = e.expect("entry").file_name().into_string().expect("name");
            name.strip_prefix("event-")?.split('-').next()?.parse().ok()
        })
        .collect();
    out.sort_unstable();
    out
}

/// Events from the message on go beside; the agent goes on; undo and redo bring each history back byte for byte.
#[test]
fn a_store_without_a_tree_is_cut_and_mended() {
    let lab = Lab::new(|_| {});
    linear(&lab);
    let before = picture(&lab.store());
    let ids = messages(&lab);
    let at = events(&lab)
        .iter()
        .position(|e| e["id"] == ids[1].as_str())
        .expect("there");
    let doc = done(&lab, &["--yes", "rewind", "2"]);
    assert_eq!((&doc["chat"], lab.read("f")), (&json!("rewound"), "1".into()));
    let want: Vec<u64> = (0..at as u64).collect();
    assert_eq!(indexes(&lab), want);
    assert_eq!(numbers(&lab), [Some(1)]);
    assert_eq!(picture(&lab.store()).len(), before.len(), "nothing is deleted");
    assert!(lab.store().join("_rewound").is_dir());

    // the agent goes on from there
    let new = lab.store().join(format!(
        "events/event-{at:05}-dddddddd-0000-4000-8000-000000000001.json"
    ));
    std::fs::write(&new, r#"{"id":"dddddddd-0000-4000-8000-000000000001","source":"user","llm_message":{"role":"user","content":[{"type":"text","text":"edited"}]},"kind":"MessageEvent"}"#).expect("event");
    let second = picture(&lab.store().join("events"));
    done(&lab, &["--yes", "undo"]);
    assert_eq!(lab.read("f"), "2");
    let mut now = picture(&lab.store());
    now.retain(|p, _| !p.starts_with("_rewound"));
    assert!(now == before, "byte for byte, and the same files");
    done(&lab, &["--yes", "redo"]);
    assert_eq!(
        (picture(&lab.store().join("events")) == second, lab.read("f")),
        (true, "1".into())
    );
    done(&lab, &["--yes", "undo"]);
    let mut now = picture(&lab.store());
    now.retain(|p, _| !p.starts_with("_rewound"));
    assert!(now == before);
}

/// V0: the events, the cache pages past the cut and the agent's stale state go; undo brings them back.
#[test]
fn a_session_of_v0_is_cut_and_mended() {
    let lab = Lab::new(|_| {});
    let store = lab
        .dir()
        .join("home/.openhands/sessions/b7e6d5c4a3f24819b0a1c2d3e4f50627");
    copy(
        &fixture("v0_0.62/sessions/b7e6d5c4a3f24819b0a1c2d3e4f50627"),
        &store,
    );
    let (store_text, ws) = (store.to_str().expect("UTF-8"), lab.ws_text());
    let timeline = lab.ok(&["timeline", store_text]);
    let rows = timeline["rows"].as_array().expect("rows");
    let id = rows[1]["id"].as_str().expect("id").to_owned();
    lab.write("f", "1");
    lab.ok(&["-s", ws, "-c", store_text, "checkpoint", "--message", "2"]);
    lab.write("f", "2");
    let before = picture(&store);
    let doc = done(&lab, &["-s", ws, "-c", store_text, "--yes", "rewind", "2"]);
    assert_eq!((&doc["chat"], lab.read("f")), (&json!("rewound"), "1".into()));
    let cut: u64 = id.parse().expect("a number");
    for (path, _) in picture(&store) {
        let number = path
            .file_stem()
            .and_then(|s| s.to_str())
            .and_then(|s| s.parse::<u64>().ok());
        if path.starts_with("events") {
            assert!(number.expect("a number") < cut, "{path:?}");
        }
        if path.starts_with("event_cache") {
            let end = path
                .file_stem()
                .and_then(|s| s.to_str())
                .and_then(|s| s.split('-').nth(1)?.parse::<u64>().ok());
            assert!(end.expect("a page") <= cut, "{path:?}");
        }
    }
    assert!(!store.join("agent_state.pkl").exists());
    assert_eq!(picture(&store).len(), before.len(), "nothing is deleted");
    done(&lab, &["-s", ws, "-c", store_text, "--yes", "undo"]);
    let mut now = picture(&store);
    now.retain(|p, _| !p.starts_with("_rewound"));
    assert!(now == before && lab.read("f") == "2");
}

/// A program under another name, which ends with this value.
struct Program(std::process::Child);

impl Program {
    fn named(name: &str, cwd: &Path) -> Self {
        let mut c = Command::new("bash");
        c.args(["-c", "exec -a \"$0\" sleep 600", name])
            .current_dir(cwd)
            .env_clear();
        c.env("PATH", "/usr/bin:/bin")
            .stdin(Stdio::null())
            .process_group(0);
        let it = Self(c.spawn().expect("bash"));
        let line = format!("/proc/{}/cmdline", it.0.id());
        let there = || std::fs::read(&line).is_ok_and(|l| l.starts_with(name.as_bytes()));
        assert!(wait_until(SOON, there));
        it
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ended = self.0.kill();
        self.0.wait().expect("its end");
    }
}

/// A program that has the conversation open keeps it in memory: the store is not changed under it.
#[test]
fn a_store_that_a_program_holds_is_never_changed() {
    let lab = Lab::new(|_| {});
    four(&lab);
    let before = base(&lab);
    for (name, cwd) in [
        ("python3 run_sdk.py 11111111-2222-4333-8444-555555555555", "/"),
        ("openhands", lab.ws_text()),
    ] {
        let program = Program::named(name, Path::new(cwd));
        let pid = program.0.id();
        let plan = &done(&lab, &["--dry-run", "rewind", "2"])["plan"];
        let blockers = plan["blockers"].as_array().expect("blockers");
        let held = blockers
            .iter()
            .find(|b| b["kind"] == "chat")
            .unwrap_or_else(|| panic!("{name}: {plan}"));
        assert_eq!(
            (&held["pid"], &held["stops"]),
            (&json!(pid), &json!(true)),
            "{name}"
        );
        let a = whole(&lab, &["--yes", "rewind", "2"]);
        assert_eq!(
            (a.code, base(&lab), lab.read("f")),
            (Some(3), before.clone(), "4".into()),
            "{name}"
        );
        assert!(
            a.text().contains(&pid.to_string()) && a.text().contains("--files"),
            "{name}: {}",
            a.text()
        );
        done(&lab, &["--yes", "rewind", "2", "--files"]);
        done(&lab, &["--yes", "undo"]);
    }
    // the same words of another program are none of its business
    let _other = Program::named("less 11111111-2222-4333-8444-555555555555", Path::new("/"));
    done(&lab, &["--yes", "rewind", "2"]);
}

/// The agent's own lock: while it writes nothing is changed, and the files go back.
#[test]
fn while_the_agent_holds_its_lock_nothing_is_changed() {
    let lab = Lab::new(|_| {});
    four(&lab);
    let before = base(&lab);
    let lock = std::fs::File::create(lab.store().join("events/.eventlog.lock")).expect("lock");
    rustix::fs::flock(&lock, rustix::fs::FlockOperation::LockExclusive).expect("held");
    let a = whole(&lab, &["--yes", "rewind", "2"]);
    assert_eq!(
        (a.code, base(&lab), lab.read("f")),
        (Some(1), before, "4".into()),
        "{}",
        a.text()
    );
    assert!(
        a.text().contains("everything is as it was before"),
        "{}",
        a.text()
    );
    assert_eq!(lab.log()[0], ("rewind".into(), "rolled-back".into()));
    drop(lock);
    done(&lab, &["--yes", "rewind", "2"]);
}

/// The tmux server and the shells that a killed agent leaves are listed.
#[test]
fn shells_that_outlive_their_agent_are_listed() {
    let lab = Lab::new(|_| {});
    four(&lab);
    // the mark in its command line is what counts; a real tmux is in the proof with the real programs
    let script = "cd \"$1\"; sleep 600 & echo $! > \"$2\"; wait";
    let pids = lab.dir().join("shell.pid");
    let mut server = Command::new("bash")
        .args([
            "-c",
            "exec -a tmux bash -c \"$0\" -Lopenhands-8aed \"$1\" \"$2\"",
            script,
            lab.ws_text(),
        ])
        .arg(&pids)
        .env_clear()
        .env("PATH", "/usr/bin:/bin")
        .process_group(0)
        .spawn()
        .expect("bash");
    assert!(wait_until(SOON, || std::fs::read_to_string(&pids)
        .is_ok_and(|t| t.ends_with('\n'))));
    let plan = done(&lab, &["--dry-run", "rewind", "2"])["plan"].clone();
    let shell: i32 = std::fs::read_to_string(&pids)
        .expect("pid")
        .trim()
        .parse()
        .expect("pid");
    nix::sys::signal::kill(
        nix::unistd::Pid::from_raw(shell),
        nix::sys::signal::Signal::SIGKILL,
    )
    .expect("kill");
    let _ended = server.kill();
    server.wait().expect("its end");
    let blockers = plan["blockers"].as_array().expect("blockers");
    let found = blockers
        .iter()
        .find(|b| b["kind"] == "shell")
        .unwrap_or_else(|| panic!("{plan}"));
    assert_eq!(found["pid"], server.id());
}

/// P134: an event that cannot be read, and a newest one that is torn: what is readable is shown, the conversation goes
/// back all the same, and neither file is touched.
#[test]
fn a_damaged_event_hinders_nothing() {
    let lab = Lab::new(|_| {});
    four(&lab);
    let n = events(&lab).len();
    let ids = messages(&lab);
    let goal = parent(&lab, &ids[1]);
    let name = |i: usize, id: &str| lab.store().join(format!("events/event-{i:05}-{id}.json"));
    let newest = name(n, "eeeeeeee-0000-4000-8000-000000000001");
    std::fs::write(&newest, "{\"id\":\"eeee").expect("torn");
    let all = std::fs::read_dir(lab.store().join("events"))
        .expect("events")
        .flatten();
    let middle = all
        .map(|e| e.path())
        .find(|p| p.to_string_lossy().contains("event-00020-"))
        .expect("an event in the middle");
    std::fs::write(&middle, b"\xff\x00 no JSON").expect("damage");
    done(&lab, &["--yes", "rewind", "2"]);
    assert_eq!((leaf(&lab), lab.read("f")), (goal, "1".into()));
    assert_eq!(std::fs::read(&middle).expect("read"), b"\xff\x00 no JSON");
    assert_eq!(std::fs::read_to_string(&newest).expect("read"), "{\"id\":\"eeee");
    done(&lab, &["--yes", "undo"]);
    assert_eq!(lab.read("f"), "4");
}

/// A base_state.json that is no JSON, or a pipe: the files alone, said so; with --both nothing.
#[test]
fn a_damaged_state_is_not_changed() {
    let lab = Lab::new(|_| {});
    four(&lab);
    let good = base(&lab);
    let id = lab.ok(&["timeline", lab.store().to_str().expect("UTF-8")])["rows"][1]["checkpoint"]["id"]
        .as_str()
        .expect("id")
        .to_owned();
    let twice = good.replacen('{', "{\"leaf_event_id\":\"x\",", 1);
    std::fs::write(lab.store().join("base_state.json"), &twice).expect("state");
    let a = whole(&lab, &["--yes", "rewind", &id, "--both"]);
    assert_ne!(a.code, Some(0), "{}", a.text());
    assert_eq!((base(&lab), lab.read("f")), (twice, "4".into()));
}

/// The conversation went on between the plan and the yes: it is read again, and goes back from where it is.
#[test]
fn a_conversation_that_went_on_meanwhile() {
    let lab = Lab::new(|_| {});
    lab.write("f", "0");
    for n in 1..=3 {
        lab.message(n);
        lab.write("f", n.to_string());
    }
    let stopped = lab.stopped_at("rewind-planned", &["--yes", "rewind", "2", "--both"]);
    // the head was read, the files are not touched yet
    lab.cut(&lab.store(), 4);
    let a = stopped.go_on();
    let said = format!("{}{}", a.text(), a.err);
    assert_eq!((a.code, lab.read("f")), (Some(1), "3".into()), "{said}");
    assert!(
        said.contains("changed meanwhile") && said.contains("as it was before"),
        "{said}"
    );
    assert_eq!(messages(&lab).len(), 4);
}

/// In the screens: the plan says so, a key takes the files alone, and the conversation goes back with the files.
#[test]
fn the_screens_move_the_conversation() {
    let lab = Lab::new(|_| {});
    four(&lab);
    let (before, ids) = (base(&lab), messages(&lab));
    let mut screen = crate::screen::Screen::open(&lab, &[]);
    screen.keys("r");
    screen.wait("move the conversation's head there");
    screen.keys("\t");
    screen.wait("files alone");
    screen.wait("the conversation is kept as it is");
    screen.keys("\t");
    screen.wait("No file is changed.");
    screen.keys("\t");
    screen.wait("move the conversation's head there");
    // a key that comes too early confirms nothing for a second
    let went = wait_until(SOON, || {
        screen.keys("y");
        std::thread::sleep(std::time::Duration::from_millis(1100));
        base(&lab) != before
    });
    assert!(went, "{}", screen.text());
    screen.wait("Rewind done");
    screen.wait("The conversation went back too");
    assert_eq!((leaf(&lab), lab.read("f")), (parent(&lab, &ids[3]), "3".into()));
    screen.keys("u");
    screen.wait("Undo the rewind");
    let back = wait_until(SOON, || {
        screen.keys("y");
        std::thread::sleep(std::time::Duration::from_millis(1100));
        base(&lab) == before
    });
    assert!(back && lab.read("f") == "4", "{}", screen.text());
    screen.wait("Undo done");
    screen.keys("\x1b");
    screen.gone("Undo done");
    screen.quit();
}
