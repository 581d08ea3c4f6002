//! SIGKILL at every fault point of a rewind, an undo and a redo that move the conversation, too: the next command that
//! writes looks at the store, and files and conversation are both as before, or both as wanted.

use crate::chat::{base, done, events, four, leaf, linear, whole};
use crate::lab::Lab;

/// Where the head of an event tree moves.
pub const HEAD: &[&str] = &[
    "chat-prepared",
    "rewind-held",
    "chat-held",
    "chat-head",
    "chat-head-written",
    "chat-moved",
    "rewind-settled",
];
/// Where events go to an archive, and come back.
pub const CUT: &[&str] = &[
    "chat-prepared",
    "rewind-held",
    "chat-cut-begun",
    "chat-cut-1",
    "chat-cut-3",
    "chat-cut-taken",
    "chat-moved",
];
pub const BACK: &[&str] = &[
    "chat-cut-begun",
    "chat-cut-taken",
    "chat-back-1",
    "chat-back-4",
    "chat-moved",
];
/// Reached by an agent server, or when something fails: in tests of their own.
pub const ELSEWHERE: &[&str] = &[
    "chat-navigated",
    "chat-interrupted",
    "chat-reverted",
    "chat-revert-1",
    "chat-unrevert-1",
];

fn killed(lab: &Lab, point: &str, args: &[&str]) {
    let out = lab
        .whole_command(args)
        .env("RESPOOL_KILL_AT", point)
        .output()
        .expect("run");
    let signal = std::os::unix::process::ExitStatusExt::signal(&out.status);
    assert_eq!(
        signal,
        Some(9),
        "{point}: {}",
        String::from_utf8_lossy(&out.stdout)
    );
}

/// What recovery said; nothing where nothing was open.
fn recovered(lab: &Lab) -> Option<String> {
    let doc = done(lab, &["--yes", "recover"]);
    doc[0]["outcome"].as_str().map(str::to_owned)
}

#[test]
fn killed_while_the_head_moves() {
    let lab = Lab::new(|_| {});
    four(&lab);
    let (old, all) = (base(&lab), events(&lab));
    done(&lab, &["--yes", "rewind", "2"]);
    let new = base(&lab);
    done(&lab, &["--yes", "undo"]);
    for args in [
        &["--yes", "rewind", "2"][..],
        &["--yes", "undo"],
        &["--yes", "redo"],
    ] {
        for point in HEAD {
            let before = (base(&lab), lab.read("f"));
            killed(&lab, point, args);
            if base(&lab) != before.0 && *point != "rewind-settled" {
                // commands that only read say so, and leave it
                let a = whole(&lab, &["ls", "start"]);
                assert!(a.err.contains("respool recover"), "{point}: {}", a.err);
            }
            let said = recovered(&lab);
            let now = (base(&lab), lab.read("f"));
            assert!(
                now == (old.clone(), "4".into()) || now == (new.clone(), "1".into()),
                "{args:?} at {point}: {said:?}: {} and f = {}",
                leaf(&lab),
                now.1
            );
            match said.as_deref() {
                Some("finished") => assert_ne!(now, before, "{args:?} at {point}"),
                Some("rolled-back") => assert_eq!(now, before, "{args:?} at {point}"),
                None => assert!(["chat-prepared", "rewind-settled"].contains(point), "{point}"),
                Some(other) => panic!("{point}: {other}"),
            }
            assert_eq!(events(&lab), all, "{point}");
            let left = std::fs::read_dir(lab.store()).expect("store").flatten();
            let temp: Vec<_> = left
                .map(|e| e.file_name())
                .filter(|n| n.to_string_lossy().contains("respool"))
                .collect();
            assert!(
                temp.is_empty() || *point == "chat-head-written",
                "{point}: {temp:?}"
            );
            // to the state before, for the next point
            if now != before {
                let back = if args[1] == "undo" { "redo" } else { "undo" };
                done(&lab, &["--yes", back]);
            }
            assert_eq!((base(&lab), lab.read("f")), before, "{args:?} at {point}");
        }
        done(&lab, args);
    }
}

fn killed_while_events_move(points: &[&str], start: &[&[&str]], args: &[&str]) {
    for point in points {
        let lab = Lab::new(|_| {});
        linear(&lab);
        let full = events(&lab);
        for step in start {
            done(&lab, step);
        }
        let before = (events(&lab), lab.read("f"));
        killed(&lab, point, args);
        let said = recovered(&lab);
        let now = (events(&lab), lab.read("f"));
        let far = if start.is_empty() {
            now.0.len() < full.len()
        } else {
            now.0 == full
        };
        match said.as_deref() {
            Some("finished") => assert!(far && now != before, "{point}: {}", now.1),
            Some("rolled-back") => assert_eq!(now, before, "{point}"),
            None => assert_eq!((now, *point), (before.clone(), "chat-prepared"), "{point}"),
            Some(other) => panic!("{point}: {other}"),
        }
        // where nothing is to come back, all is done once the events are in the archive
        let last = *point == "chat-moved" || (start.is_empty() && *point == "chat-cut-taken");
        assert_eq!(said.as_deref() == Some("finished"), last, "{point}");
        // and it works the next time
        if said.as_deref() != Some("finished") {
            done(&lab, args);
        }
    }
}

#[test]
fn killed_while_events_go_to_the_archive() {
    killed_while_events_move(CUT, &[], &["--yes", "rewind", "2"]);
}

#[test]
fn killed_while_events_come_back() {
    killed_while_events_move(BACK, &[&["--yes", "rewind", "2"]], &["--yes", "undo"]);
}

/// Who cannot see the store leaves the operation open and says why; who can settles it later.
#[test]
fn a_store_that_cannot_be_seen_leaves_it_open() {
    let lab = Lab::new(|_| {});
    four(&lab);
    killed(&lab, "chat-moved", &["--yes", "rewind", "2"]);
    let away = lab.dir().join("away");
    std::fs::rename(lab.store(), &away).expect("rename");
    for _ in 0..2 {
        let doc = done(&lab, &["-s", lab.ws_text(), "--yes", "recover"]);
        assert_eq!(doc[0]["outcome"], "waits", "{doc}");
        assert!(
            doc[0]["why"].as_str().expect("a reason").contains("No such file"),
            "{doc}"
        );
        let a = whole(&lab, &["-s", lab.ws_text(), "--yes", "checkpoint"]);
        assert_eq!(a.code, Some(3), "{}", a.text());
    }
    std::fs::rename(&away, lab.store()).expect("rename");
    assert_eq!(recovered(&lab).as_deref(), Some("finished"));
    assert_eq!(lab.read("f"), "1");
    // a conversation that is gone for good is given up
    done(&lab, &["--yes", "undo"]);
    killed(&lab, "chat-moved", &["--yes", "rewind", "2"]);
    std::fs::remove_dir_all(lab.store()).expect("remove");
    let doc = done(&lab, &["-s", lab.ws_text(), "--yes", "recover", "--files"]);
    assert_eq!(
        (&doc[0]["outcome"], lab.read("f")),
        (&"rolled-back".into(), "4".into()),
        "{doc}"
    );
    done(&lab, &["-s", lab.ws_text(), "--yes", "checkpoint"]);
}

/// Recovery itself is killed, and goes on where it was.
#[test]
fn killed_while_it_is_mended() {
    for (start, args, first, second) in [
        (
            &[][..],
            &["--yes", "rewind", "2"][..],
            "chat-cut-3",
            "chat-unrevert-1",
        ),
        (
            &[&["--yes", "rewind", "2"][..]],
            &["--yes", "undo"],
            "chat-back-4",
            "chat-revert-1",
        ),
    ] {
        let lab = Lab::new(|_| {});
        linear(&lab);
        for step in start {
            done(&lab, step);
        }
        let before = (events(&lab), lab.read("f"));
        killed(&lab, first, args);
        killed(&lab, second, &["--yes", "recover"]);
        assert_eq!(
            recovered(&lab).as_deref(),
            Some("rolled-back"),
            "{first}, {second}"
        );
        assert_eq!((events(&lab), lab.read("f")), before, "{first}, {second}");
        done(&lab, args);
    }
}
