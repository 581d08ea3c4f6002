//! The conversation of Claude Code goes back by a fork: the records that lead there, byte for byte, in a new file; the
//! old one untouched. On recorded sessions (2.1.197), the workspace's path in them being the test's own.

use std::collections::BTreeMap;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::chat::{done, whole};
use crate::common::with_input;
use crate::lab::{Answer, Lab};

pub const PROJECT: &str = "-home-dev-ws-my-proj-v2";
/// Three messages, and the second again, edited, in the same file.
pub const BRANCHED: &str = "50b9b120-17a4-4d7c-974b-0dc3bf1cde97";
/// What the program itself made of it: `--resume-session-at`, before the second message.
const PROGRAMS_FORK: &str = "e1105b7e-2442-4d45-87cb-23519f4788d3";
/// What the program itself made of it: `--fork-session`, at the end of the third.
const PROGRAMS_COPY: &str = "f2fffa9b-1a3b-4a50-a3ad-3d17dce489e6";
const SECOND: &str = "56db52b2";
const THIRD: &str = "328d0cbd";

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/claude")
}

/// A recorded session's text, with this workspace.
fn recorded(lab: &Lab, project: &str, session: &str) -> String {
    let at = |dir: PathBuf| dir.join(format!("{session}.jsonl"));
    let file = at(fixtures().join("home/.claude/projects").join(project));
    let file = if file.exists() {
        file
    } else {
        at(fixtures().join("forks"))
    };
    let text = std::fs::read_to_string(file).expect("a fixture");
    [
        "/home/dev/ws/my_proj.v2",
        "/home/dev/ws/hk",
        "/home/dev/ws/tui",
        "/home/dev/ws/img",
    ]
    .iter()
    .fold(text, |t, w| t.replace(w, lab.ws_text()))
}

/// A recorded session in the lab's home.
pub struct Recorded<'a> {
    pub lab: &'a Lab,
    pub store: PathBuf,
    pub text: String,
}

impl<'a> Recorded<'a> {
    /// With a checkpoint at each message, its place in the file being what the file `f` holds.
    pub fn new(lab: &'a Lab, project: &str, session: &str) -> Self {
        let folder = lab.dir().join("home/.claude/projects").join(project);
        std::fs::create_dir_all(&folder).expect("folders");
        let text = recorded(lab, project, session);
        let store = folder.join(format!("{session}.jsonl"));
        std::fs::write(&store, &text).expect("the session");
        std::fs::set_permissions(&store, PermissionsExt::from_mode(0o640)).expect("mode");
        let it = Self { lab, store, text };
        for (n, row) in it.rows().iter().enumerate() {
            lab.write("f", n.to_string());
            let id = format!("id:{}", row["id"].as_str().expect("id"));
            it.ok(&["checkpoint", "--message", &id]);
            lab.write("f", format!("end of {n}"));
            it.stop();
        }
        lab.write("f", "end");
        it
    }

    /// The agent stops: the hook.
    fn stop(&self) {
        let session = self.store.file_stem().and_then(|n| n.to_str());
        let event = json!({"session_id": session, "transcript_path": self.store, "cwd": self.lab.ws(),
                           "hook_event_name": "Stop"});
        let mut hook = self.lab.command();
        hook.args(["hook", "claude"]);
        let out = with_input(hook, event.to_string().as_bytes());
        assert!(out.status.success(), "{out:?}");
    }

    fn words<'b>(&'b self, args: &[&'b str]) -> Vec<&'b str> {
        let mut words = vec!["-c", self.store.to_str().expect("UTF-8")];
        words.extend(args);
        words
    }

    pub fn run(&self, args: &[&str]) -> Answer {
        whole(self.lab, &self.words(args))
    }

    pub fn ok(&self, args: &[&str]) -> Value {
        done(self.lab, &self.words(args))
    }

    /// The state before the message whose id begins so.
    fn state(&self, id: &str) -> String {
        let rows = self.rows();
        let mut ids = rows.iter().map(|r| r["id"].as_str().expect("id"));
        format!("id:{}", ids.find(|i| i.starts_with(id)).expect("the message"))
    }

    pub fn rows(&self) -> Vec<Value> {
        let doc = self.ok(&["timeline"]);
        doc["rows"].as_array().expect("rows").clone()
    }

    /// Every session of the folder with its text, and whatever else is there.
    pub fn all(&self) -> BTreeMap<String, String> {
        let entries = std::fs::read_dir(self.store.parent().expect("folder")).expect("folder");
        let read = |e: std::io::Result<std::fs::DirEntry>| {
            let e = e.expect("entry");
            let text = std::fs::read_to_string(e.path()).expect("text");
            (e.file_name().into_string().expect("UTF-8"), text)
        };
        entries.map(read).collect()
    }

    /// Goes to a state by a fork; its id and its file.
    pub fn fork(&self, state: &str) -> (String, PathBuf) {
        let doc = self.ok(&["--yes", "rewind", state]);
        assert_eq!(
            (&doc["chat"], &doc["verified"]),
            (&json!("forked"), &json!(true)),
            "{doc}"
        );
        let id = doc["conversation"].as_str().expect("an id").to_owned();
        assert!(doc["notes"].to_string().contains(&id), "{doc}");
        let file = self.store.with_file_name(format!("{id}.jsonl"));
        assert_eq!(
            std::fs::read_to_string(&self.store).expect("the old one"),
            self.text
        );
        (id, file)
    }

    /// Those records of the file, as a fork of this id has them.
    fn records(&self, ids: &[&str], fork: &str) -> String {
        let own = self.store.file_stem().and_then(|n| n.to_str()).expect("UTF-8");
        let session = |id: &str| format!("\"sessionId\":\"{id}\"");
        let is = |l: &&str| {
            let record: Value = serde_json::from_str(l).expect("JSON");
            let id = record["uuid"].as_str().unwrap_or_default().to_owned();
            ids.iter().any(|i| id.starts_with(i))
        };
        let lines: Vec<&str> = self.text.lines().filter(is).collect();
        assert_eq!(lines.len(), ids.len(), "each once");
        let lines: Vec<String> = lines
            .iter()
            .map(|l| l.replacen(&session(own), &session(fork), 1) + "\n")
            .collect();
        lines.concat()
    }
}

fn text(file: &Path) -> String {
    std::fs::read_to_string(file).expect("the fork")
}

/// The records of the tree of a session, but for the program's own later ones.
fn programs_own(lab: &Lab, session: &str, until: &str, new: &str) -> String {
    let text = recorded(lab, PROJECT, session);
    let tree = text.lines().filter(|l| l.contains("\"uuid\":"));
    let mut lines: Vec<&str> = tree
        .take_while(|l| !l.contains(&format!("\"uuid\":\"{until}")))
        .collect();
    lines.push("");
    lines.join("\n").replace(
        &format!("\"sessionId\":\"{session}\""),
        &format!("\"sessionId\":\"{new}\""),
    )
}

#[test]
fn a_fork_is_what_the_program_itself_writes() {
    let lab = Lab::new(|_| {});
    let s = Recorded::new(&lab, PROJECT, BRANCHED);
    let plan = &s.ok(&["--dry-run", "rewind", &s.state(SECOND)])["plan"];
    assert_eq!(plan["chat"], "forked");
    assert!(plan["steps"].to_string().contains("a fork"), "{plan}");
    assert_eq!(s.all().len(), 1);
    let (id, file) = s.fork(&s.state(SECOND));
    assert_eq!(text(&file), programs_own(&lab, PROGRAMS_FORK, "bd45d1bb", &id));
    let (old, new) = (s.store.metadata().expect("stat"), file.metadata().expect("stat"));
    assert_eq!((new.mode(), new.uid()), (old.mode(), old.uid()));
    assert_eq!(lab.read("f"), "1");
    s.ok(&["--yes", "undo"]);
    assert_eq!((s.all().len(), lab.read("f")), (1, "end".into()));
    let (id, file) = s.fork(&(s.state(THIRD) + ".end"));
    assert_eq!(text(&file), programs_own(&lab, PROGRAMS_COPY, "9a84bfe3", &id));
}

/// Undo takes away what nobody used, redo brings it back byte for byte; what was used stays as a branch.
#[test]
fn undo_and_redo() {
    let lab = Lab::new(|_| {});
    let s = Recorded::new(&lab, PROJECT, BRANCHED);
    let (id, file) = s.fork("m2");
    let fork = text(&file);
    let doc = s.ok(&["--yes", "undo"]);
    assert_eq!(
        (&doc["chat"], &doc["conversation"]),
        (&json!("rewound"), &json!(BRANCHED))
    );
    assert_eq!((s.all().len(), lab.read("f")), (1, "end".into()));
    let doc = s.ok(&["--yes", "redo"]);
    assert_eq!(
        (&doc["chat"], &doc["conversation"]),
        (&json!("forked"), &json!(id))
    );
    assert_eq!((text(&file), lab.read("f")), (fork.clone(), "3".into()));
    // the agent goes on in it
    let more = format!(
        "{{\"type\":\"user\",\"uuid\":\"0f\",\"parentUuid\":\"2d242a14-x\",\"sessionId\":\"{id}\",\"cwd\":{},\"message\":{{\"content\":\"again\"}}}}\n",
        json!(lab.ws_text())
    );
    std::fs::write(&file, fork.clone() + &more).expect("write");
    let plan = &s.ok(&["--dry-run", "undo"])["plan"];
    assert!(plan["steps"].to_string().contains("stays beside it"), "{plan}");
    let doc = s.ok(&["--yes", "undo"]);
    assert_eq!((&doc["chat"], lab.read("f")), (&json!("rewound"), "end".into()));
    assert_eq!(text(&file), fork.clone() + &more);
    let rows = s.rows();
    let its: Vec<&Value> = rows.iter().filter(|r| r["text"] == "again").collect();
    assert_eq!((its.len(), &its[0]["active"]), (1, &json!(false)), "{rows:?}");
    s.ok(&["--yes", "redo"]);
    assert_eq!((text(&file), lab.read("f")), (fork + &more, "3".into()));
}

/// A fork that was left by an undo is newer than what it was left for: what is meant where none is named is where the
/// last operation led, until somebody goes on elsewhere. The way there is told with what takes checkpoints.
#[test]
fn after_an_undo_the_conversation_that_it_led_to_is_meant() {
    let lab = Lab::new(|_| {});
    let s = Recorded::new(&lab, PROJECT, BRANCHED);
    let run = |args: &[&str]| {
        let mut c = lab.command();
        c.current_dir(lab.ws()).arg("--json").args(args);
        let a = Answer::of(c.output().expect("run"));
        assert_eq!(a.code, Some(0), "{args:?}: {}\n{}", a.text(), a.err);
        a.json()
    };
    let meant = || run(&["timeline"])["conversation"]["id"].clone();
    assert_eq!(meant(), BRANCHED);
    let (id, file) = s.fork(&s.state(SECOND));
    assert_eq!(meant(), json!(id));
    let more = |n: u32| {
        let line = json!({"type": "user", "uuid": format!("0f{n}"), "parentUuid": null, "sessionId": id,
            "cwd": lab.ws_text(), "message": {"content": "again"}});
        std::fs::write(&file, format!("{}{line}\n", text(&file))).expect("write");
    };
    more(1);
    let doc = run(&["--yes", "undo"]);
    let next = format!(" run -- claude --resume {BRANCHED}");
    assert!(doc["notes"].to_string().contains(&next), "{doc}");
    assert_eq!(meant(), BRANCHED);
    assert_eq!(run(&["--dry-run", "rewind", "m2"])["plan"]["chat"], "forked");
    let doc = run(&["--yes", "redo"]);
    let next = format!(" run -- claude --resume {id}");
    assert!(doc["notes"].to_string().contains(&next), "{doc}");
    assert_eq!(meant(), json!(id));
    run(&["--yes", "undo"]);
    assert_eq!(meant(), BRANCHED);
    more(2);
    assert_eq!(meant(), json!(id));
    // hints name the agent of this folder
    let doc = run(&["doctor"]);
    assert!(doc.to_string().contains("hooks install claude"), "{doc}");
}

/// P133: the messages of the conversation that was left are a branch of the fork, with their checkpoints, and can be
/// gone back to from there; its end is itself.
#[test]
fn p133_the_old_branch_can_be_gone_back_to() {
    let lab = Lab::new(|_| {});
    let s = Recorded::new(&lab, PROJECT, BRANCHED);
    let ids: Vec<Value> = s.rows().iter().map(|r| r["id"].clone()).collect();
    let (_, store) = s.fork(&s.state(SECOND));
    let text = text(&store);
    let fork = Recorded {
        lab: &lab,
        store,
        text,
    };
    let rows = fork.rows();
    let of = |i: usize| rows.iter().find(|r| r["id"] == ids[i]).expect("a row");
    assert_eq!(rows.len(), ids.len());
    for i in 0..ids.len() {
        assert_eq!(
            (&of(i)["active"], &of(i)["checkpoint"]["state"]),
            (&json!(i == 0), &json!("ok")),
            "{rows:?}"
        );
    }
    // the third followed the second, and the edited one neither
    assert_eq!(of(1)["branch"], of(2)["branch"]);
    assert_ne!(of(1)["branch"], of(3)["branch"]);
    let (_, third) = fork.fork(&s.state(THIRD));
    let count = |file: &Path| std::fs::read_to_string(file).expect("text").lines().count();
    assert_eq!(count(&third), 19);
    assert_eq!(lab.read("f"), "2");
    // the end of the other conversation: nothing is copied
    let before = s.all();
    let doc = fork.ok(&[
        "--yes",
        "rewind",
        &format!("id:{}.end", ids[3].as_str().expect("id")),
    ]);
    assert_eq!(
        (&doc["chat"], &doc["conversation"]),
        (&json!("forked"), &json!(BRANCHED)),
        "{doc}"
    );
    assert_eq!(s.all(), before);
}

/// P127: before the first message there is nothing, and nothing is written: the new id is told.
#[test]
fn p127_the_first_message() {
    let lab = Lab::new(|_| {});
    let s = Recorded::new(&lab, PROJECT, BRANCHED);
    let doc = s.ok(&["--yes", "rewind", "m1", "--resend", "better"]);
    let id = doc["conversation"].as_str().expect("an id");
    let notes = doc["notes"].to_string();
    assert!(
        notes.contains(&format!("--session-id {id}")) && !notes.contains("--resume"),
        "{notes}"
    );
    assert_eq!((s.all().len(), lab.read("f")), (1, "0".into()));
    s.ok(&["--yes", "undo"]);
    let doc = s.ok(&["--yes", "redo"]);
    assert_eq!((&doc["conversation"], lab.read("f")), (&json!(id), "0".into()));
    s.ok(&["--yes", "undo"]);
    // the last one, and its end, which is where the conversation is
    let (id, file) = s.fork("m2");
    assert_eq!(text(&file), programs_own(&lab, PROGRAMS_FORK, "bd45d1bb", &id));
    s.ok(&["--yes", "undo"]);
    let doc = s.ok(&["--yes", "rewind", "m2.end"]);
    assert_eq!(doc["chat"], "kept");
    assert!(
        doc["chat_reason"].to_string().contains("ends there already"),
        "{doc}"
    );
}

/// Nothing of the old conversation is in the one that begins anew; it is a branch of it all the same, and can be gone
/// back to.
#[test]
fn what_a_rewind_to_the_first_message_left_is_a_branch() {
    let lab = Lab::new(|_| {});
    let s = Recorded::new(&lab, PROJECT, BRANCHED);
    let ids: Vec<Value> = s.rows().iter().map(|r| r["id"].clone()).collect();
    let (id, store) = s.fork("m1");
    assert!(!store.exists());
    let line = json!({"type": "user", "uuid": "0f", "parentUuid": null, "sessionId": id, "cwd": lab.ws_text(),
        "timestamp": "2026-01-01T00:00:00.000Z", "message": {"role": "user", "content": "better"}});
    std::fs::write(&store, format!("{line}\n")).expect("write");
    let text = text(&store);
    let anew = Recorded {
        lab: &lab,
        store,
        text,
    };
    let rows = anew.rows();
    assert_eq!(rows.len(), ids.len() + 1, "{rows:?}");
    for row in &rows {
        let own = row["text"] == "better";
        assert_eq!(row["active"], json!(own), "{rows:?}");
        assert!(own || ids.contains(&row["id"]), "{rows:?}");
    }
    let third = anew.state(THIRD);
    assert_eq!(
        anew.ok(&["--dry-run", "rewind", &third])["plan"]["chat"],
        "forked"
    );
    let (_, file) = anew.fork(&third);
    assert!(file.exists());
    // and the other way round
    assert_eq!(s.rows().iter().filter(|r| r["text"] == "better").count(), 1);
}

/// P125: to before the conversation was made shorter; P130: to a message that was sent while a tool ran, and to one after
/// an interruption.
#[test]
fn p125_p130_what_the_model_gets_is_whole() {
    let lab = Lab::new(|_| {});
    let s = Recorded::new(&lab, "-home-dev-ws-tui", "66f01d77-3f01-4d59-9519-7cc358e110cb");
    let rows = s.rows();
    let state = |text: &str| {
        let row = rows
            .iter()
            .find(|r| r["text"].as_str().is_some_and(|t| t.starts_with(text)));
        format!("id:{}", row.expect("the message")["id"].as_str().expect("id"))
    };
    let first = [
        "ba226184", "b1275072", "5e220163", "142c3f54", "f0d7561f", "80a5c4fe", "71ce9a1b", "38b75ac5",
        "425f458b", "d2fcf335", "2f6f89e0", "a7147413", "4723fb95",
    ];
    let (id, file) = s.fork(&state("Second TUI msg\n@write"));
    assert_eq!(text(&file), s.records(&first, &id));
    s.ok(&["--yes", "undo"]);
    let edited = [
        "00e371a0", "4a279422", "e9b431e9", "3733814e", "44d0846c", "8a2b32ff", "44e5e3aa",
    ];
    let a = s.run(&["--yes", "rewind", &state("/compact"), "--resend", "better"]);
    assert_eq!(a.code, Some(2), "not a command: {}", a.text());
    let (id, file) = s.fork(&state("/compact"));
    assert_eq!(text(&file), s.records(&[&first[..], &edited].concat(), &id));
    s.ok(&["--yes", "undo"]);
    let shorter = [
        "f0525b2d", "60c23b02", "6efa896b", "d7c15b8e", "87d95270", "d5cbaa8a", "6ec54d95",
    ];
    let (id, file) = s.fork(&state("Interrupted one\nInterrupted"));
    assert_eq!(
        text(&file),
        s.records(&[&first[..], &edited, &shorter].concat(), &id)
    );
    s.ok(&["--yes", "undo"]);
    let queued = rows.iter().find(|r| r["kind"] == "queued").expect("queued");
    let (id, file) = s.fork(&format!("id:{}", queued["id"].as_str().expect("id")));
    let text = text(&file);
    let ends = text.lines().last().expect("a line");
    assert!(
        ends.contains("\"uuid\":\"211d4455") && ends.contains(&id),
        "{ends}"
    );
    let count = |kind: &str| text.matches(&format!("\"type\":\"{kind}\"")).count();
    assert_eq!(count("tool_use"), count("tool_result"));
}

/// A call that the agent never got an answer to is left out, and what follows it follows what it followed.
#[test]
fn p130_no_call_is_left_open() {
    let lab = Lab::new(|_| {});
    let s = Recorded::new(&lab, PROJECT, BRANCHED);
    // killed while the tool of the edited message ran, then gone on
    let session = json!(BRANCHED);
    let more = [
        json!({"parentUuid": "44fc5d", "isSidechain": false, "type": "assistant", "uuid": "open", "sessionId": session,
               "message": {"id": "msg_open", "content": [{"type": "tool_use", "id": "toolu_open", "name": "Bash"}]}}),
        json!({"parentUuid": "open", "isSidechain": false, "type": "user", "uuid": "next", "sessionId": session,
               "message": {"content": "go on"}}),
        json!({"parentUuid": "next", "isSidechain": false, "type": "assistant", "uuid": "said", "sessionId": session,
               "message": {"id": "msg_said", "stop_reason": "end_turn", "content": [{"type": "text", "text": "\u{1f600}"}]}}),
        json!({"parentUuid": "said", "isSidechain": false, "type": "user", "uuid": "last", "sessionId": session,
               "message": {"content": "lone: \u{0}"}}),
    ];
    let id_of = |part: &str| {
        let line = s
            .text
            .lines()
            .find(|l| l.contains(&format!("\"uuid\":\"{part}")))
            .expect("there");
        serde_json::from_str::<Value>(line).expect("JSON")["uuid"]
            .as_str()
            .expect("id")
            .to_owned()
    };
    let tail = id_of("44a7fc5d");
    // half a surrogate pair, as the program may write it
    let lines: String = more
        .iter()
        .map(|m| {
            m.to_string()
                .replace("44fc5d", &tail)
                .replace("\u{1f600}", "\\ud83d")
                + "\n"
        })
        .collect();
    std::fs::write(&s.store, s.text.clone() + &lines).expect("write");
    let s = Recorded {
        text: s.text.clone() + &lines,
        ..s
    };
    s.ok(&["checkpoint", "--message", "id:last"]);
    let (id, file) = s.fork("id:last");
    let text = text(&file);
    assert!(!text.contains("toolu_open"), "{text}");
    let last: Vec<&str> = text.lines().rev().take(3).collect();
    assert!(
        last[1].contains(&format!("\"parentUuid\":\"{tail}\"")) && last[1].contains("\"uuid\":\"next\""),
        "{}",
        last[1]
    );
    assert!(
        last[0].contains("\\ud83d") && last[0].contains(&id),
        "{}",
        last[0]
    );
    assert!(last[2].contains(&format!("\"uuid\":\"{tail}\"")));
}

/// A file beside it that is named as no session is, and begins as it does, leads nowhere: what a shell would do with its
/// name is never said, and undo and redo know the way.
#[test]
fn a_file_with_a_hostile_name_is_no_session() {
    let lab = Lab::new(|_| {});
    let s = Recorded::new(&lab, PROJECT, BRANCHED);
    // the edited one, in a file of its own that ends with its turn
    let (_, fork) = s.fork(&(s.state(THIRD) + ".end"));
    let evil = s.store.with_file_name("x; touch pwned #.jsonl");
    std::fs::rename(&fork, &evil).expect("rename");
    let doc = s.ok(&["--yes", "rewind", &(s.state(THIRD) + ".end")]);
    assert!(!doc.to_string().contains("pwned"), "{doc}");
    let id = doc["conversation"].as_str().expect("an id").to_owned();
    let new = s.store.with_file_name(format!("{id}.jsonl"));
    assert!(new.exists());
    s.ok(&["--yes", "undo"]);
    assert!(!new.exists());
    let there = Recorded {
        lab: &lab,
        text: text(&evil),
        store: evil,
    };
    let doc = there.ok(&["--yes", "rewind", "m2"]);
    assert_eq!(doc["chat"], "forked", "{doc}");
    let doc = there.ok(&["--yes", "undo"]);
    let notes = doc["notes"].to_string();
    assert!(notes.contains("--resume 'x; touch pwned #'"), "{notes}");
}

/// What was written for a message is there again from the fork, too: it is the same message.
#[test]
fn a_message_has_one_draft_in_all_forks() {
    let lab = Lab::new(|_| {});
    let s = Recorded::new(&lab, PROJECT, BRANCHED);
    let second = s.state(SECOND);
    let drafts = || -> Vec<String> {
        let kept = lab.state().join("drafts").read_dir().expect("drafts");
        kept.map(|e| text(&e.expect("entry").path())).collect()
    };
    let doc = s.ok(&["--yes", "rewind", &second, "--resend", "better"]);
    assert_eq!(drafts(), ["better"]);
    let told = doc["notes"].to_string();
    assert_eq!(told.matches("--resume").count(), 1, "one command: {told}");
    let store = s
        .store
        .with_file_name(format!("{}.jsonl", doc["conversation"].as_str().expect("an id")));
    let fork = Recorded {
        lab: &lab,
        text: text(&store),
        store,
    };
    fork.ok(&["--yes", "rewind", &second, "--resend", "best"]);
    assert_eq!(drafts(), ["best"]);
}

/// What its command line cannot carry is refused before anything is done; it is kept.
#[test]
fn what_cannot_be_sent_is_refused_first() {
    let lab = Lab::new(|_| {});
    let s = Recorded::new(&lab, PROJECT, BRANCHED);
    let file = lab.dir().join("text");
    for (text, why) in [("x".repeat(200 << 10), "too long"), ("a\0b".into(), "NUL")] {
        std::fs::write(&file, text).expect("text");
        let mut c = lab.whole_command(&s.words(&["--yes", "rewind", "m2", "--resend", "-"]));
        c.stdin(std::fs::File::open(&file).expect("text"));
        let a = Answer::of(c.output().expect("run"));
        assert_eq!((a.code, lab.read("f")), (Some(3), "end".into()), "{}", a.text());
        assert!(a.text().contains(why), "{}", a.text());
        assert_eq!(s.all().len(), 1);
    }
}

/// P128: what only text can be sent to is not sent less than there was.
#[test]
fn p128_pictures_are_not_dropped() {
    let lab = Lab::new(|_| {});
    let s = Recorded::new(&lab, "-home-dev-ws-img", "aaaaaaaa-bbbb-4ccc-8ddd-eeeeeeeeeeee");
    let rows = s.rows();
    let row = rows.iter().find(|r| r["pictures"] != 0).expect("a picture");
    let state = format!("id:{}", row["id"].as_str().expect("id"));
    let a = s.run(&["--yes", "rewind", &state, "--resend", "better"]);
    let error = &a.json()["error"];
    assert_eq!((a.code, lab.read("f")), (Some(3), "end".into()));
    assert!(error["message"].to_string().contains("picture"), "{error}");
    assert_eq!(s.all().len(), 1);
    // what was written is not lost with that
    let kept = lab.state().join("drafts").read_dir().expect("drafts");
    let kept: Vec<String> = kept.map(|e| text(&e.expect("entry").path())).collect();
    assert_eq!(kept, ["better"]);
    s.ok(&["--yes", "rewind", &state]);
}

/// A window that has the conversation open is told, and goes on in it; one whose agent is at work stands in the way.
#[test]
fn a_window_that_has_it_open() {
    let lab = Lab::new(|_| {});
    let s = Recorded::new(&lab, PROJECT, BRANCHED);
    let (pid, start) = (std::process::id(), own_start());
    let sessions = lab.dir().join("home/.claude/sessions");
    std::fs::create_dir_all(&sessions).expect("folder");
    let note = json!({"pid": pid, "sessionId": BRANCHED, "procStart": start, "status": "idle"});
    std::fs::write(sessions.join(format!("{pid}.json")), note.to_string()).expect("write");
    let plan = &s.ok(&["--dry-run", "rewind", "m2"])["plan"];
    let told: Vec<&Value> = plan["blockers"]
        .as_array()
        .expect("blockers")
        .iter()
        .filter(|b| b["kind"] == "chat")
        .collect();
    assert_eq!(
        (told.len(), &told[0]["pid"], &told[0]["stops"]),
        (1, &json!(pid), &json!(false)),
        "{plan}"
    );
    let (_, file) = s.fork("m2");
    s.ok(&["--yes", "undo"]);
    assert!(!file.exists());
    // at work
    let more = json!({"parentUuid": "x", "type": "user", "uuid": "now", "sessionId": BRANCHED, "message": {"content": "go"}});
    std::fs::write(&s.store, format!("{}{more}\n", s.text)).expect("write");
    let before = s.all();
    let a = s.run(&["--yes", "rewind", "m1"]);
    assert_eq!((a.code, lab.read("f")), (Some(3), "end".into()), "{}", a.text());
    assert!(
        a.text().contains("at work") && a.text().contains("Esc"),
        "{}",
        a.text()
    );
    assert_eq!(s.all(), before);
    // the files alone are another matter, as before
    let a = s.run(&["--yes", "rewind", "m1", "--chat"]);
    assert_eq!(a.code, Some(3), "{}", a.text());
}

fn own_start() -> String {
    let stat = std::fs::read_to_string("/proc/self/stat").expect("stat");
    let rest = stat.rsplit_once(')').expect("a name").1;
    rest.split_ascii_whitespace().nth(19).expect("a start").to_owned()
}

/// What cannot be forked stays, with the reason, or is refused where the conversation was asked for.
#[test]
fn what_cannot_be_forked() {
    let lab = Lab::new(|_| {});
    let s = Recorded::new(&lab, PROJECT, BRANCHED);
    // nothing is written where a link leads
    let (project, away) = (
        s.store.parent().expect("folder").to_owned(),
        lab.dir().join("away"),
    );
    std::fs::rename(&project, &away).expect("rename");
    std::os::unix::fs::symlink(&away, &project).expect("link");
    let a = s.run(&["--yes", "rewind", "m2", "--both"]);
    assert_eq!((a.code, lab.read("f")), (Some(1), "end".into()), "{}", a.text());
    let doc = s.ok(&["--yes", "rewind", "m2"]);
    assert_eq!((&doc["chat"], lab.read("f")), (&json!("kept"), "3".into()));
    assert!(doc["chat_reason"].to_string().contains("cannot open"), "{doc}");
    assert_eq!(s.all().len(), 1);
}

/// A long conversation is not held in memory as a whole.
#[test]
fn a_long_conversation_is_streamed() {
    let lab = Lab::new(|_| {});
    let s = Recorded::new(&lab, PROJECT, BRANCHED);
    let (mut text, mut parent) = (String::new(), String::from("44a7fc5d"));
    let long = "x".repeat(1 << 20);
    let tail = s
        .text
        .lines()
        .find(|l| l.contains("\"uuid\":\"44a7fc5d"))
        .expect("there");
    let tail: Value = serde_json::from_str(tail).expect("JSON");
    parent.replace_range(.., tail["uuid"].as_str().expect("id"));
    for n in 0..48 {
        let record = json!({"parentUuid": parent, "type": "assistant", "uuid": format!("long-{n}"), "sessionId": BRANCHED,
                            "message": {"id": format!("m{n}"), "stop_reason": "end_turn", "content": [{"type": "text", "text": long}]}});
        text += &format!("{record}\n");
        parent = format!("long-{n}");
    }
    let last = json!({"parentUuid": parent, "type": "user", "uuid": "last", "sessionId": BRANCHED, "message": {"content": "x"}});
    std::fs::write(&s.store, format!("{}{text}{last}\n", s.text)).expect("write");
    s.ok(&["checkpoint", "--message", "id:last"]);
    let mut c = lab.whole_command(&[
        "-c",
        s.store.to_str().expect("UTF-8"),
        "--yes",
        "rewind",
        "id:last",
    ]);
    let child = c.stdout(std::process::Stdio::piped()).spawn().expect("start");
    let status = format!("/proc/{}/status", child.id());
    let (mut most, peak) = (0_u64, |text: &str| {
        let line = text.lines().find_map(|l| l.strip_prefix("VmHWM:"))?;
        line.trim().trim_end_matches(" kB").parse::<u64>().ok()
    });
    while let Some(now) = std::fs::read_to_string(&status).ok().and_then(|t| peak(&t)) {
        most = most.max(now);
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    let out = child.wait_with_output().expect("end");
    let doc: Value = serde_json::from_slice(&out.stdout).expect("JSON");
    assert_eq!(doc["chat"], "forked", "{doc}");
    let file = s
        .store
        .with_file_name(format!("{}.jsonl", doc["conversation"].as_str().expect("id")));
    assert!(file.metadata().expect("stat").len() > 48 << 20);
    assert!(most > 0 && most < 40 << 10, "{most} KiB for 48 MiB");
}
