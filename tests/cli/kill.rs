//! SIGKILL at every fault point of every operation: read-only commands say so, then `recover`, or simply
//! the next command that writes, finishes it or takes it back, also after a restart of the machine. The tree
//! is the one before or the one after, nothing is left over, no program stays stopped.

#[path = "../docker/points.rs"]
mod containers;

use std::collections::BTreeSet;
use std::path::Path;

use crate::actors::{Holder, Writer};
use crate::kill_adopt::{EXCHANGE, TRACK, UNTRACK};
use crate::lab::Lab;
use crate::manifest::Manifest;
use crate::rounds::{rich, wreck};

const CHECKPOINT: &[&str] = &["checkpoint-made", "checkpoint-recorded", "checkpoint-taken"];
const LOOK: &[&str] = &["now-made", "now-taken"];
const REWIND: &[&str] = &[
    "rewind-planned",
    "rewind-frozen",
    "rewind-safety",
    "rewind-applying",
    "restore-step-1",
    "restore-step-2",
    "restore-step-9",
    "restore-step-17",
    "restore-above",
    "rewind-restored",
    "rewind-checked",
    "rewind-marked",
    "rewind-closed",
];
/// Reached only where something fails, on the copy vault, or by an ordinary user: in tests of their own.
const ELSEWHERE: &[&str] = &[
    "rewind-rolling-back",
    "checkpoint-read",
    "checkpoint-moved",
    "aside-removing",
    "restore-moving",
    "restore-written",
    "chat-alone",
];

/// What comes after the kill.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Then {
    Recover,
    Write,
    Reboot,
}

fn names_in(dir: &Path, out: &mut BTreeSet<String>) {
    for entry in std::fs::read_dir(dir).expect("sources").flatten() {
        let path = entry.path();
        if path.is_dir() {
            names_in(&path, out);
            continue;
        }
        let text = std::fs::read_to_string(&path).expect("source");
        for call in ["fault_point(\"", "fault_step(\""] {
            let names = text.split(call).skip(1).filter_map(|rest| rest.split('"').next());
            out.extend(names.map(ToOwned::to_owned));
        }
    }
}

/// A fault point that no test kills at would be no proof of anything.
#[test]
fn every_fault_point_of_the_sources_is_in_a_list() {
    let mut names = BTreeSet::new();
    names_in(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), &mut names);
    let chat = [
        crate::chat_kill::HEAD,
        crate::chat_kill::CUT,
        crate::chat_kill::BACK,
        crate::chat_kill::ELSEWHERE,
        crate::claude_kill::FORK,
        crate::claude_kill::UNFORK,
    ]
    .concat();
    let lists = [
        &chat[..],
        containers::POINTS,
        containers::LIVING,
        &[containers::LOST],
        CHECKPOINT,
        LOOK,
        REWIND,
        TRACK,
        EXCHANGE,
        UNTRACK,
        crate::exclusive::CLONE,
        crate::exclusive::CLONE_BESIDE,
        ELSEWHERE,
    ];
    // of all of Docker, in tests of their own
    let whole = concat!(
        include_str!("../docker/whole_kills.rs"),
        include_str!("../docker/whole_more.rs")
    );
    let known = |n: &String| {
        lists.iter().any(|l| l.iter().any(|k| k.starts_with(n.as_str())))
            || whole.contains(&format!("\"{n}\""))
    };
    let missing: Vec<&String> = names.iter().filter(|n| !known(n)).collect();
    assert!(names.len() > 30 && missing.is_empty(), "{missing:?}");
}

/// Recovers in one of three ways; what was said of it.
pub fn recover(lab: &Lab, then: Then) -> String {
    if then == Then::Reboot {
        lab.reboot();
    }
    if then == Then::Write {
        let a = lab.run(&["-s", lab.ws_text(), "checkpoint"]);
        assert_eq!(a.code, Some(0), "{}", a.err);
        return a.err;
    }
    lab.ok(&["--yes", "recover"]).to_string()
}

fn check_rewind(lab: &Lab, point: &str, then: Then, kind: &str, from: &Manifest, to: &Manifest) {
    let what = format!("{kind} killed at {point}, then {then:?}");
    let holder = Holder::start(lab, "w");
    let args: &[&str] = if kind == "rewind" {
        &["--yes", "rewind", "1"]
    } else {
        &["--yes", kind]
    };
    assert!(lab.killed_at(point, args), "{what}: it did not come there");
    holder.assert_runs(&what);
    drop(holder);
    let open = lab.log().first().is_some_and(|(_, s)| s == "interrupted");
    for read in [
        &["timeline", lab.store().to_str().expect("UTF-8")][..],
        &["changes", "m1", "m1"],
        &["ls", "m1"],
    ] {
        let a = lab.run(read);
        let said = a.err.contains("interrupted") && a.err.contains("respool recover");
        assert_eq!((a.code, said), (Some(0), open), "{what}: {read:?}: {}", a.err);
    }
    let said = recover(lab, then);
    let now = lab.manifest();
    let (log_kind, state) = lab.log().swap_remove(0);
    let new = log_kind == kind;
    match (new, state.as_str()) {
        (true, "done") => to.assert_same(&now, &what),
        (true, "rolled-back") | (false, _) => from.assert_same(&now, &what),
        (true, _) => panic!("{what}: {state}"),
    }
    let word = if then == Then::Write {
        "cut short"
    } else {
        "operation"
    };
    assert_eq!(said.contains(word), open, "{what}: {said}");
    if then == Then::Write && !open {
        // what a killed comparison left goes with the next one
        lab.ok(&["changes", "m1", "now"]);
    }
    assert_eq!(lab.leftovers(), Vec::<String>::new(), "{what}");
}

/// All points of a rewind, an undo and a redo, one after the other in one workspace.
fn rewinds(then: Then) {
    let lab = Lab::new(rich);
    lab.message(1);
    let good = lab.manifest();
    wreck(lab.ws());
    let bad = lab.manifest();
    let set = |to: &Manifest| {
        let now = lab.manifest();
        if now != *to {
            let start = if *to == good { "rewind" } else { "undo" };
            let args: &[&str] = if start == "rewind" {
                &["--yes", "rewind", "1"]
            } else {
                &["--yes", "undo"]
            };
            lab.ok(args);
            to.assert_same(&lab.manifest(), "set up");
        }
    };
    for point in LOOK
        .iter()
        .chain(CHECKPOINT)
        .chain(REWIND)
        .filter(|p| **p != "rewind-marked")
    {
        set(&bad);
        check_rewind(&lab, point, then, "rewind", &bad, &good);
    }
    for point in CHECKPOINT.iter().chain(REWIND) {
        set(&bad);
        set(&good);
        check_rewind(&lab, point, then, "undo", &good, &bad);
        if lab.manifest() == good {
            lab.ok(&["--yes", "undo"]);
        }
        check_rewind(&lab, point, then, "redo", &bad, &good);
    }
}

#[test]
fn rewind_undo_redo_killed_anywhere_then_recover() {
    rewinds(Then::Recover);
}
#[test]
fn rewind_undo_redo_killed_anywhere_then_a_command_that_writes() {
    rewinds(Then::Write);
}
#[test]
fn rewind_undo_redo_killed_anywhere_then_a_restart() {
    rewinds(Then::Reboot);
}

/// Killed while it goes back after a failure: `recover` goes on with that.
#[test]
fn a_roll_back_that_is_killed_is_finished() {
    let lab = Lab::new(|ws| {
        std::fs::write(ws.join("busy"), "").expect("write");
        std::fs::write(ws.join("f"), "good").expect("write");
    });
    lab.message(1);
    let writer = Writer::own(&lab, "busy");
    // a rewind in whose moments the writer happens to sleep succeeds
    let failed = (0..20).any(|_| {
        lab.write("f", "bad");
        lab.killed_at("rewind-rolling-back", &["--yes", "rewind", "1"])
    });
    assert!(failed, "no rewind was taken back");
    drop(writer);
    let done = lab.ok(&["--yes", "recover"]);
    assert_eq!(done[0]["outcome"], "rolled-back", "{done}");
    assert_eq!(lab.read("f"), "bad");
    assert_eq!(lab.log()[0], ("rewind".into(), "rolled-back".into()));
}

/// A checkpoint that is cut is never offered, and does not stand in the way of the next.
#[test]
fn checkpoint_killed_anywhere() {
    let lab = Lab::new(rich);
    lab.message(1);
    let before = lab.manifest();
    for (n, point) in (2..).zip(CHECKPOINT) {
        lab.cut(&lab.store(), n);
        let number = n.to_string();
        assert!(
            lab.killed_at(point, &["checkpoint", "--message", &number]),
            "{point}"
        );
        before.assert_same(&lab.manifest(), point);
        let rows = lab.ok(&["timeline", lab.store().to_str().expect("UTF-8")]);
        let state = &rows["rows"][n - 1]["checkpoint"]["state"];
        let code = lab.run(&["--dry-run", "rewind", &number]).code;
        let whole = *point == "checkpoint-taken";
        assert_eq!(
            (state == "ok", code == Some(0)),
            (whole, whole),
            "{point}: {rows}"
        );
        lab.message(n);
        assert_eq!(
            lab.ok(&["--dry-run", "rewind", &number])["plan"]["changes"],
            serde_json::json!([]),
            "{point}"
        );
    }
}
