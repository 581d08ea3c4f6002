//! From a script everything can be done that the screens can do.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::lab::Lab;
use crate::manifest::{Fact, Manifest};
use crate::plans::turn_ends;

/// Two messages with their turns, something of the user's own after them, a rewind and its undo.
pub fn worked_on(fill: impl FnOnce(&Path)) -> Lab {
    let lab = Lab::new(|ws| {
        std::fs::write(ws.join("f"), "0\n").expect("write");
        fill(ws);
    });
    for n in 1..=2 {
        lab.message(n);
        lab.write("f", format!("{n}\n"));
        lab.write(format!("made{n}"), "x\n");
        turn_ends(&lab);
    }
    lab.write("mine", "x\n");
    lab.ok(&["--yes", "rewind", "2", "--files"]);
    lab.ok(&["--yes", "undo"]);
    lab
}

/// For each action of the keymap: the commands that do the same; none = it only moves about on the screen, or is
/// a way to find a row.
const ACTIONS: &[(&str, &[&[&str]])] = &[
    ("open", &[&["diff", "m1", "m1.end", "f"], &["cat", "m1", "f"]]),
    ("mark-a", &[&["changes", "m1", "m2"]]),
    ("mark-b", &[&["changes", "m1", "m2.end"]]),
    ("mark-now", &[&["changes", "m1", "now"], &["diff", "m1", "now"]]),
    ("mark-start", &[&["changes", "start", "m2"]]),
    ("show-between", &[&["changes", "m1.end", "m2"]]),
    ("older-version", &[&["why", "f"], &["cat", "m2", "f"]]),
    ("newer-version", &[&["cat", "m2.end", "f"]]),
    (
        "rewind",
        &[
            &["--dry-run", "rewind", "2", "--files"],
            &["--yes", "rewind", "2", "--files"],
        ],
    ),
    // the same with --resend TEXT, where the conversation can go back: tests/cli/resend.rs
    ("edit", &[&["--dry-run", "rewind", "2"]]),
    ("send", &[&["--dry-run", "rewind", "2"]]),
    ("rewind-end", &[&["--yes", "rewind", "m1.end", "--files"]]),
    ("checkpoint", &[&["checkpoint"]]),
    ("undo", &[&["--dry-run", "undo"], &["--yes", "undo"]]),
    ("track", &[&["sandboxes"]]),
    ("track-here", &[&["sandboxes"]]),
    ("other-vault", &[&["sandboxes"]]),
    ("redo", &[&["--dry-run", "redo"], &["--yes", "redo"]]),
    (
        "reach",
        &[
            &["--dry-run", "rewind", "2", "--both"],
            &["--dry-run", "rewind", "2", "--chat"],
        ],
    ),
    ("confirm", &[&["--yes", "rewind", "1", "--files"]]),
    ("switch", &[&["conversations"]]),
    ("filter", &[&["timeline"]]),
    ("log", &[&["log"]]),
    ("notices", &[&["timeline"]]),
    ("refresh", &[&["timeline"]]),
];

const MOVES: &[&str] = &[
    "down",
    "up",
    "half-down",
    "half-up",
    "page-down",
    "page-up",
    "first",
    "last",
    "left",
    "right",
    "next-pane",
    "previous-pane",
    "back",
    "clear-marks",
    "next-match",
    "previous-match",
    "palette",
    "help",
    "close",
    "cancel",
    "suspend",
    "quit",
    "force-quit",
    "pick-down",
    "pick-up",
    "accept",
    "dismiss",
    "rub-out",
    "clear-line",
    "editor",
    "old-text",
    "attachments",
    "drop-attachment",
    "leave-edit",
    "run-command",
    "window-command",
    "copy-command",
];

/// P158: every action of the keymap that is more than a move on the screen has a command; each command works with
/// `--json` and without a terminal.
#[test]
fn p158_every_action_of_the_screens_has_a_command() {
    let keymap: toml::Table = include_str!("../../assets/keymap.toml").parse().expect("TOML");
    let actions: BTreeSet<&str> = keymap["binding"]
        .as_array()
        .expect("bindings")
        .iter()
        .filter_map(|b| b["action"].as_str())
        .collect();
    let told: BTreeSet<&str> = ACTIONS
        .iter()
        .map(|(a, _)| *a)
        .chain(MOVES.iter().copied())
        .collect();
    let missing: Vec<&&str> = actions.difference(&told).collect();
    assert!(
        missing.is_empty(),
        "say which command does the same, in this file: {missing:?}"
    );
    let lab = worked_on(|_| {});
    for (action, commands) in ACTIONS {
        for args in *commands {
            let mut args = args.to_vec();
            let store = lab.store();
            if args == ["timeline"] {
                args.push(store.to_str().expect("UTF-8"));
            }
            let doc = lab.ok(&args);
            if args.contains(&"--yes") {
                assert_eq!(doc["verified"], true, "{action}: {doc}");
            }
            assert!(doc.get("error").is_none(), "{action}: {doc}");
        }
    }
}

/// The document has everything that the template has, of that type (`?`: or null); it may have more. Every row of a
/// list must fit, and there must be one.
fn fits(template: &Value, doc: &Value, at: &str) {
    match (template, doc) {
        (Value::Object(fields), Value::Object(map)) => {
            for (name, template) in fields {
                let value = map
                    .get(name)
                    .unwrap_or_else(|| panic!("{at} has no {name}: {doc}"));
                fits(template, value, &format!("{at}.{name}"));
            }
        }
        (Value::Array(row), Value::Array(rows)) => {
            assert!(!rows.is_empty(), "{at} is empty");
            for doc in rows {
                fits(&row[0], doc, at);
            }
        }
        (Value::String(kind), doc) => {
            let is = match doc {
                Value::Null => "null",
                Value::Bool(_) => "bool",
                Value::Number(n) if n.is_u64() => "number",
                Value::String(_) => "text",
                Value::Array(_) => "list",
                _ => "something else",
            };
            let wanted = kind.trim_end_matches('?');
            assert!(
                is == wanted || (is == "null" && kind.ends_with('?')),
                "{at} is {doc}, not {kind}"
            );
        }
        _ => panic!("{at}: {doc} does not fit {template}"),
    }
}

/// P158: the documents that scripts read have every field that the contract names.
#[test]
fn p158_documents_have_what_the_contract_names() {
    let lab = worked_on(|_| {});
    let counts = json!({"added": "number", "modified": "number", "deleted": "number", "renamed": "number", "other": "number"});
    let change = json!({"path": "text", "kind": "text", "from": "text?", "what": "list", "size_a": "number?",
        "size_b": "number?", "part": "text"});
    let plan = json!({"plan": {"steps": ["text"], "changes": [change], "yours": "list", "blockers": "list"}});
    let outcome = json!({"operation": "text", "safety": "text", "restored": {"workspace": {"changed": "number"}},
        "verified": "bool", "chat": "text", "resent": "bool"});
    let row = json!({"message": "number?", "id": "text", "kind": "text", "time": "text?", "text": "text", "pictures": "number",
        "active": "bool", "branch": "number", "checkpoint": {"id": "text?", "state": "text", "reason": "text?",
        "label": "text?", "pinned": "bool"}});
    let store = lab.store();
    let store = store.to_str().expect("UTF-8");
    let cases: [(&[&str], Value); 14] = [
        (
            &["timeline", store],
            json!({"conversation": {"id": "text"}, "rows": [row]}),
        ),
        (&["changes", "m1", "m1.end"], json!([change])),
        (&["--dry-run", "rewind", "1", "--files"], plan.clone()),
        (&["--yes", "rewind", "1", "--files"], outcome.clone()),
        (&["--dry-run", "undo"], plan),
        (&["--yes", "undo"], outcome),
        (
            &["log"],
            json!([{"id": "text", "kind": "text", "time": "text", "message": "text?", "state": "text", "safety": "text?"}]),
        ),
        (
            &["sandboxes"],
            json!([{"id": "text", "path": "text", "vault": "text", "mounted": "bool", "checkpoints": "number", "bytes": "number?"}]),
        ),
        (
            &["conversations"],
            json!([{"id": "text", "agent": "text", "store": "text", "workspace": "text?", "title": "text?",
                "messages": "number?", "updated_at": "text?", "live": "bool"}]),
        ),
        (
            &["checkpoint"],
            json!({"checkpoint": "text", "parts": [{"kind": "text", "path": "text", "covered": "bool", "reason": "text?"}], "ms": "number"}),
        ),
        (
            &["cat", "m1", "f"],
            json!({"path": "text", "size": "number", "text": "text?"}),
        ),
        (
            &["ls", "m1"],
            json!([{"name": "text", "type": "text", "size": "number?", "mode": "text"}]),
        ),
        (
            &["why", "f"],
            json!([{"message": "number?", "checkpoint": "text", "kind": "text"}]),
        ),
        (&["--yes", "recover"], json!("list")),
    ];
    for (args, template) in cases {
        fits(&template, &lab.ok(args), &args.join(" "));
    }
    let rows = lab.ok(&["timeline", store])["rows"].clone();
    for field in ["changes", "between"] {
        fits(&counts, &rows[0][field], field);
    }
    let a = lab.run(&["rewind", "99"]);
    let error = json!({"error": {"kind": "text", "message": "text", "path": "text?", "hint": "text?"}});
    fits(&error, &a.json(), "rewind 99");
    // with --json stdout holds that one document, a single line
    assert_eq!(a.text().lines().count(), 1);
}

/// P158: a dry run of a rewind and of an undo leaves every path, attribute and time as it is, and the files that
/// respool keeps; its plan is what then happens.
#[test]
fn p158_a_dry_run_changes_nothing_and_tells_the_truth() {
    let lab = worked_on(|_| {});
    let tree = lab.manifest();
    let snaps = || {
        let folder = lab.sandboxes()[0].join("snaps");
        let mut names: Vec<_> = std::fs::read_dir(folder)
            .expect("snaps")
            .map(|e| e.expect("entry").file_name())
            .collect();
        names.sort();
        names
    };
    for args in [
        &["rewind", "1", "--files"][..],
        &["rewind", "m1.end", "--files"],
        &["rewind", "start", "--files"],
        &["rewind", "1", "--files", "--keep-mine"],
        &["rewind", "1", "--files", "--only-turn"],
        &["rewind", "1", "--files", "--path", "f"],
    ] {
        let (log, kept) = (lab.log(), snaps());
        let dry = lab.ok(&[&["--dry-run"], args].concat());
        tree.assert_same(&lab.manifest(), &format!("{args:?}"));
        assert_eq!((&log, &kept), (&lab.log(), &snaps()), "{args:?}");
        lab.ok(&[&["--yes"], args].concat());
        assert_eq!(planned(&dry), happened(&tree, &lab.manifest()), "{args:?}: {dry}");
        let rewound = lab.manifest();
        for (way, from, to) in [
            ("undo", &rewound, &tree),
            ("redo", &tree, &rewound),
            ("undo", &rewound, &tree),
        ] {
            let dry = lab.ok(&["--dry-run", way]);
            from.assert_same(&lab.manifest(), &format!("{args:?} {way}"));
            lab.ok(&["--yes", way]);
            to.assert_same(&lab.manifest(), &format!("{args:?} {way}"));
            assert_eq!(planned(&dry), happened(from, to), "{args:?} {way}: {dry}");
        }
    }
}

/// The paths of a plan.
fn planned(doc: &Value) -> BTreeSet<String> {
    let rows = doc["plan"]["changes"].as_array().expect("rows");
    rows.iter()
        .filter_map(|r| r["path"].as_str())
        .map(str::to_owned)
        .collect()
}

/// The paths that differ; of folders not those of which the time alone does.
fn happened(a: &Manifest, b: &Manifest) -> BTreeSet<String> {
    let all: BTreeSet<&PathBuf> = a.0.keys().chain(b.0.keys()).collect();
    let timeless = |m: &Manifest, p: &PathBuf| {
        m.0.get(p).map(|f| Fact {
            mtime: if f.mode & 0o170_000 == 0o040_000 {
                (0, 0)
            } else {
                f.mtime
            },
            ..f.clone()
        })
    };
    all.into_iter()
        .filter(|p| timeless(a, p) != timeless(b, p))
        .map(|p| p.to_string_lossy().into_owned())
        .collect()
}
