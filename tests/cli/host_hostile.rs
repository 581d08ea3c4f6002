//! `--host` with another end that lies: control characters in all that it says, frames that are none.

use std::fs;
use std::io::Write;

use respool::sandbox::remote::{Ask as Question, Request};
use respool::service::frame::{Answer, Ask, FROM_CLIENT, Hello, Outcome, read, write};
use serde_json::{Value, json};

use crate::host::Desk;
use crate::lab::Lab;

const EVIL: &str = "\u{1b}]52;c;x\u{7}\u{1b}[2J\u{9b}31m\u{202e}evil\u{0}\u{8}";

/// A far end that is this test: what it does with the two ends of the line.
fn with(desk: &Desk, far: impl FnOnce(&mut dyn std::io::Read, &mut fs::File) + Send + 'static) {
    let dir = desk.lab.dir().to_owned();
    for name in ["to", "from"] {
        drop(fs::remove_file(dir.join(name)));
        nix::unistd::mkfifo(&dir.join(name), nix::sys::stat::Mode::S_IRWXU).expect("a pipe");
    }
    desk.script(&format!(
        "#!/bin/sh\nprintf '\\033[2J\\007evil\\n' >&2\nexec 3<&0\ncat <&3 > {d}/from &\ncat {d}/to\nkill $!\n",
        d = dir.display()
    ));
    std::thread::spawn(move || {
        let mut from = fs::File::open(dir.join("from")).expect("from");
        let mut to = fs::OpenOptions::new()
            .write(true)
            .open(dir.join("to"))
            .expect("to");
        far(&mut from, &mut to);
    });
}

fn greet(from: &mut dyn std::io::Read, to: &mut fs::File) {
    let mut from = from;
    let _hello: Option<Hello> = read(&mut from, 1 << 16).expect("a greeting");
    write(to, &Hello::own(None)).expect("written");
}

fn message(n: u32) -> Value {
    json!({"id": format!("{EVIL}-{n}"), "index": n, "number": n, "kind": "prompt", "time": "2026-01-01T00:00:00Z",
        "text": EVIL, "pictures": 0, "active": true, "branch": 0, "parent": EVIL, "hooks": [{"stdout": EVIL,
        "blocked": false}]})
}

fn summary() -> Value {
    json!({"id": EVIL, "agent": EVIL, "store": format!("/s/{EVIL}"), "workspace": format!("/w/{EVIL}"), "title": EVIL,
        "messages": 1, "updated_at": "2026-01-01T00:00:00Z", "live": true})
}

fn report() -> Value {
    json!({"kind": "failed", "message": EVIL, "path": EVIL, "hint": EVIL})
}

fn checkpoint(id: &str) -> Value {
    json!({"meta": {"v": 1, "id": id, "seq": 1, "kind": "message", "time": "2026-01-01T00:00:01Z",
        "parts": ["workspace"], "how": "hook", "conversation": EVIL, "message": format!("{EVIL}-1"), "label": EVIL},
        "health": {"state": "damaged", "reason": EVIL}})
}

fn operation() -> Value {
    json!({"v": 1, "id": EVIL, "seq": 1, "kind": "rewind", "time": "2026-01-01T00:00:00Z", "phase": "closed",
        "state": "done", "words": EVIL, "target": EVIL, "safety": EVIL, "error": EVIL})
}

fn record() -> Value {
    json!({"v": 1, "id": EVIL, "path": format!("/w/{EVIL}"), "created": "2025-01-01T00:00:00Z", "live_uuid": EVIL,
        "place": "pool", "uid": 0, "gid": 0, "tracked": true})
}

/// What is said to a question; an error where nothing fits.
fn evil(request: &Request) -> Outcome {
    use base64::Engine as _;
    let code = |s: String| base64::engine::general_purpose::STANDARD.encode(s);
    let value = match request {
        Request::Library(ask) => {
            let name = ask
                .as_object()
                .and_then(|o| o.keys().next())
                .map_or("", String::as_str);
            match name {
                "list" => json!({"conversations": [summary()], "damaged": [report()]}),
                "read" | "tail" | "since" => {
                    json!({"summary": summary(), "messages": [message(1), message(2)],
                    "status": EVIL, "at_work": true, "events": 2, "acted": null, "notices": [EVIL], "partial": false})
                }
                _ => json!({"agent": EVIL, "store": format!("/s/{EVIL}")}),
            }
        }
        Request::Manage(order) => {
            let rows = json!([{"id": EVIL, "path": EVIL, "vault": EVIL, "mounted": true, "tracked": true,
                "checkpoints": 1, "operation": EVIL, "outcome": "finished", "fsid": EVIL}]);
            let out = if order["json"] == true {
                rows.to_string()
            } else {
                EVIL.to_owned()
            };
            json!({"code": 0, "out": code(out), "err": code(format!("{EVIL}\r\n{EVIL}"))})
        }
        Request::Earlier(_) => json!([{"record": record(), "checkpoints": []}]),
        Request::Find(_) | Request::ById(_) => record(),
        Request::Of(_, question) => match question {
            Question::Checkpoints => json!([checkpoint(EVIL), checkpoint("cp-0000000000")]),
            Question::Notes => json!({"thinned": [EVIL], "missed": {EVIL: EVIL}, "interrupted": EVIL}),
            Question::NotCovered => json!([EVIL]),
            Question::Known(pairs) => json!(pairs.iter().map(|_| Value::Null).collect::<Vec<_>>()),
            Question::Changes(..) => {
                json!([{"path": EVIL, "kind": "renamed", "from": EVIL, "what": ["content"],
                "type_a": "file", "type_b": "file", "size_a": 1, "size_b": 1, "part": "workspace"}])
            }
            Question::Entries(..) => json!([{"name": EVIL, "file_type": "file", "size": 1, "mode": 420,
                "mtime_ns": "0"}]),
            Question::Holders => {
                json!([{"pid": 1, "start": 1, "comm": EVIL, "writes": true, "open": true, "cwd": true,
                "own": false}])
            }
            Question::Denied(..) => json!([{"path": EVIL, "what": EVIL}]),
            Question::Operate(v) if v == "records" => json!([operation()]),
            Question::Operate(v) if v == "damaged" => json!([EVIL]),
            Question::Operate(v) if v == "busy" => json!(false),
            Question::Operate(v) if v == "recover" => json!({"operation": EVIL, "outcome": "finished"}),
            Question::Operate(v) if v.get("reversal").is_some() => {
                json!({"kind": "undo", "target": EVIL, "words": EVIL, "selection": "all", "of": EVIL})
            }
            Question::Operate(v) if v.get("run").is_some() => {
                json!({"operation": EVIL, "safety": EVIL, "changed": 1,
                "verified": true, "chat": "kept", "resent": false, "notes": [EVIL]})
            }
            Question::Operate(_) | Question::Take(_) => checkpoint(EVIL),
            Question::Guard | Question::Pin(..) | Question::Label(..) | Question::Warm => Value::Null,
            _ => return Outcome::Error(serde_json::from_value(report()).expect("a report")),
        },
    };
    Outcome::Ok(value)
}

/// Answers until the line ends.
fn lie(from: &mut dyn std::io::Read, to: &mut fs::File) {
    greet(from, to);
    let mut from = from;
    while let Ok(Some(Ask {
        id,
        request: Some(request),
        ..
    })) = read(&mut from, FROM_CLIENT)
    {
        for outcome in [Outcome::Progress(EVIL.into(), 1, 2), evil(&request)] {
            write(to, &Answer { id, outcome }).expect("written");
        }
    }
}

/// No byte that a terminal acts on, but the end of a line.
fn assert_harmless(what: &str, text: &str) {
    let bad = text
        .chars()
        .find(|c| *c != '\n' && respool::text::is_unsafe_char(*c));
    assert_eq!(bad, None, "{what}: {text:?}");
}

#[test]
fn nothing_that_it_says_reaches_the_terminal() {
    let desk = Desk::new(Lab::plain(|_| {}), "");
    let mut worked = 0;
    for words in [
        &["conversations"][..],
        &["timeline", "x"],
        &["sandboxes"],
        &["space"],
        &["recover"],
        &["pool", "status"],
        &["pool", "mount"],
        &["-s", "sb-0000000000", "log"],
        &["-s", "sb-0000000000", "checkpoint"],
        &["-s", "sb-0000000000", "label", "cp-0000000000", "x"],
        &["-s", "sb-0000000000", "changes", "start", "now"],
        &["-s", "sb-0000000000", "ls", "now"],
        &["-s", "sb-0000000000", "cat", "now", "f"],
        &["-c", "x", "changes", "m1", "now"],
        &["-c", "x", "rewind", "m1", "--dry-run"],
        &["-c", "x", "--yes", "rewind", "m1"],
        &["-c", "x", "--yes", "undo"],
        &["-c", "x", "undo", "--dry-run"],
        &["-c", "x", "why", "f"],
        &["-s", "sb-0000000000", "--dry-run", "prune", "--keep", "1"],
        &["untrack", "/w"],
        &["-s", "/w", "timeline", "x"],
    ] {
        for json in [false, true] {
            with(&desk, lie);
            let mut all = if json { vec!["--json"] } else { vec![] };
            all.extend(words);
            let a = desk.run(&all);
            let what = format!("{all:?}");
            assert!(a.code.is_some_and(|c| c < 128), "{what}: {:?}", a.code);
            assert_harmless(&what, &a.text());
            assert_harmless(&what, &a.err);
            if json {
                a.json();
            }
            worked += usize::from(a.code == Some(0));
        }
    }
    assert!(worked >= 20, "only {worked} went as far as to print what it said");
}

type Far = fn(&mut dyn std::io::Read, &mut fs::File);

#[test]
fn frames_that_are_none_end_the_line_and_nothing_else() {
    let desk = Desk::new(Lab::plain(|_| {}), "");
    let ends: [(&str, Far); 7] = [
        ("another version", |from, to| {
            let mut from = from;
            let _hello: Option<Hello> = read(&mut from, 1 << 16).expect("a greeting");
            let other = Hello {
                version: 99,
                program: EVIL.into(),
                state_dir: None,
            };
            write(to, &other).expect("written");
        }),
        ("a greeting that is huge", |_, to| {
            to.write_all(&[0xff; 64]).expect("written");
        }),
        ("a greeting that is none", |_, to| {
            write(to, &json!([EVIL])).expect("written");
        }),
        ("a frame that is huge", |from, to| {
            greet(from, to);
            to.write_all(&[0xff; 64]).expect("written");
        }),
        ("a frame that is cut", |from, to| {
            greet(from, to);
            to.write_all(&[0, 0, 1, 0, b'{']).expect("written");
        }),
        ("a frame that is no answer", |from, to| {
            greet(from, to);
            write(to, &json!({"id": 1, "ok": null, "error": EVIL, EVIL: 1})).expect("written");
        }),
        ("an answer of another kind", |from, to| {
            greet(from, to);
            let mut from = from;
            let ask: Option<Ask> = read(&mut from, FROM_CLIENT).expect("a question");
            let outcome = Outcome::Ok(json!({EVIL: EVIL}));
            write(
                to,
                &Answer {
                    id: ask.expect("one").id,
                    outcome,
                },
            )
            .expect("written");
        }),
    ];
    for (what, far) in ends {
        with(&desk, far);
        let a = desk.run(&["--json", "conversations"]);
        assert_eq!(a.code, Some(1), "{what}: {} {}", a.text(), a.err);
        assert_harmless(what, &a.text());
        assert_harmless(what, &a.err);
        assert!(a.json()["error"]["hint"].is_string(), "{what}: {}", a.text());
    }
}
