//! Two at once: one is stopped at a fault point while the other is started. One waits or is refused, nothing
//! is torn.

use std::io::Write;
use std::process::Stdio;

use serde_json::json;

use crate::lab::{Answer, Lab};
use crate::rounds::{rich, wreck};

fn lab() -> Lab {
    let lab = Lab::new(rich);
    lab.message(1);
    wreck(lab.ws());
    lab
}

/// One is in the middle; the other waits for the lock, in vain, and is refused.
#[test]
fn a_second_rewind_is_refused_while_one_is_under_way() {
    let lab = lab();
    let first = lab.stopped_at("restore-step-3", &["--yes", "rewind", "1"]);
    assert_eq!(
        lab.ok(&["--yes", "recover"]),
        json!([]),
        "it is left to the one that is at it"
    );
    let waiting = [
        &["--yes", "rewind", "start"][..],
        &["checkpoint"],
        &["--yes", "untrack", lab.ws_text()],
    ]
    .map(|args| {
        let mut c = lab.json_command(args);
        c.stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("start")
    });
    for child in waiting {
        let a = Answer::of(child.wait_with_output().expect("its end"));
        assert_eq!(a.code, Some(3), "{} {}", a.text(), a.err);
        assert!(
            a.text().contains("another respool") || a.text().contains("process"),
            "{}",
            a.text()
        );
    }
    let seen = lab.run(&["ls", "m1"]);
    assert!(
        seen.code == Some(0) && seen.err.contains("changing the files now"),
        "{}",
        seen.err
    );
    let done = first.go_on();
    assert_eq!(done.code, Some(0), "{}", done.err);
    assert_eq!(lab.ok(&["changes", "m1", "now", "--times"]), json!([]));
    assert_eq!(lab.log().len(), 2);
}

/// Two undos of the same rewind: one is done, the other finds nothing left to undo or is refused.
#[test]
fn two_undos_at_once_take_back_one_rewind_once() {
    let lab = lab();
    let bad = lab.manifest();
    lab.ok(&["--yes", "rewind", "1"]);
    let spawn = || {
        let mut c = lab.json_command(&["--yes", "undo"]);
        c.stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("start")
    };
    let codes: Vec<Option<i32>> = [spawn(), spawn(), spawn()]
        .map(|c| c.wait_with_output().expect("its end").status.code())
        .to_vec();
    assert_eq!(codes.iter().filter(|c| **c == Some(0)).count(), 1, "{codes:?}");
    assert!(codes.iter().all(|c| matches!(c, Some(0 | 3 | 4))), "{codes:?}");
    bad.assert_same(&lab.manifest(), "the tree");
    let log = lab.log();
    assert_eq!(log.iter().filter(|(k, _)| k == "undo").count(), 1, "{log:?}");
}

/// Rewinds to different states and checkpoints at once: each that says done left a whole state.
#[test]
fn rewinds_and_checkpoints_at_once_are_never_torn() {
    let lab = lab();
    let bad = lab.checkpoint();
    let all: Vec<_> = (0..9)
        .map(|i| {
            let args: &[&str] = match i % 3 {
                0 => &["--yes", "rewind", "1"],
                1 => &["--yes", "rewind", &bad],
                _ => &["checkpoint", "--label", "meanwhile"],
            };
            let mut c = lab.json_command(args);
            c.stdout(Stdio::piped())
                .stderr(Stdio::piped())
                .spawn()
                .expect("start")
        })
        .collect();
    for child in all {
        let out = child.wait_with_output().expect("its end");
        let text = String::from_utf8_lossy(&out.stdout).into_owned();
        assert!(matches!(out.status.code(), Some(0 | 3)), "{text}");
        if let Some(id) = text
            .split("\"checkpoint\":\"")
            .nth(1)
            .and_then(|t| t.split('"').next())
        {
            // a checkpoint taken meanwhile is one of the two states, whole
            let to_good = lab.ok(&["changes", "m1", id, "--times"]);
            let to_bad = lab.ok(&["changes", &bad, id, "--times"]);
            assert!(to_good == json!([]) || to_bad == json!([]), "{to_good}\n{to_bad}");
        }
    }
    let to_good = lab.ok(&["changes", "m1", "now", "--times"]);
    let to_bad = lab.ok(&["changes", &bad, "now", "--times"]);
    assert!(to_good == json!([]) || to_bad == json!([]), "{to_good}\n{to_bad}");
}

pub fn hook(lab: &Lab, session: &str, text: &str) -> std::process::Child {
    let mut c = lab.command();
    c.args(["hook", "openhands"]).stdin(Stdio::piped());
    let mut child = c
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("start");
    let input = json!({"event_type": "UserPromptSubmit", "message": text, "session_id": session, "working_dir": lab.ws_text()});
    let mut stdin = child.stdin.take().expect("its input");
    stdin.write_all(input.to_string().as_bytes()).expect("input");
    child
}

/// The hook waits for the rewind: its checkpoint is the state after it, whole.
#[test]
fn a_hook_during_a_rewind_takes_no_half_state() {
    let lab = lab();
    let rewind = lab.stopped_at("restore-step-5", &["--yes", "rewind", "1"]);
    let waiting = hook(&lab, "11111111-2222-4333-8444-555555555555", "hello");
    assert_eq!(rewind.go_on().code, Some(0));
    let out = Answer::of(waiting.wait_with_output().expect("its end"));
    assert_eq!(out.code, Some(0), "{}", out.err);
    let said = out.text();
    let at = said
        .find("cp-")
        .unwrap_or_else(|| panic!("no checkpoint: {said} {}", out.err));
    let id = &said[at..at + 13];
    assert_eq!(lab.ok(&["changes", "m1", id, "--times"]), json!([]));
}

/// P122: five checkpoints within a moment, from two conversations: five, in order, none lost.
#[test]
fn p122_checkpoints_of_two_conversations_at_once_keep_their_order() {
    let lab = Lab::new(rich);
    let other = lab
        .dir()
        .join("home/.openhands/conversations/99999999222243338444555555555555");
    lab.copy_store(&other);
    let children: Vec<_> = (0..6)
        .map(|i| {
            let session = if i % 2 == 0 {
                "11111111-2222-4333-8444-555555555555"
            } else {
                "99999999-2222-4333-8444-555555555555"
            };
            hook(&lab, session, &format!("message {i}"))
        })
        .collect();
    let mut ids: Vec<String> = Vec::new();
    for c in children {
        let said = String::from_utf8(c.wait_with_output().expect("end").stdout).expect("UTF-8");
        let at = said
            .find("cp-")
            .unwrap_or_else(|| panic!("no checkpoint: {said}"));
        ids.push(said[at..at + 13].to_owned());
    }
    ids.sort();
    ids.dedup();
    assert_eq!(ids.len(), 6);
    let snaps = lab.sandboxes()[0].join("snaps");
    let mut names: Vec<String> = std::fs::read_dir(snaps)
        .expect("snaps")
        .map(|e| e.expect("entry").file_name().into_string().expect("name"))
        .collect();
    names.sort();
    let numbers: Vec<u64> = names
        .iter()
        .filter_map(|n| n.split('-').next()?.parse().ok())
        .collect();
    assert_eq!(numbers, (1..=7).collect::<Vec<u64>>(), "start and six: {names:?}");
}

/// Two tracks of one folder: one does it, the other is refused, and says by whom.
#[test]
fn two_tracks_of_one_folder() {
    let lab = Lab::plain(rich);
    let before = lab.manifest();
    let args = ["--yes", "track", lab.ws_text(), "--size", "512M"];
    for point in [
        "sandbox-recorded",
        "track-copying",
        "track-compared",
        "track-moved",
        "track-cleaning",
    ] {
        let first = lab.stopped_at(point, &args);
        let second = lab.run(&args);
        assert_eq!(second.code, Some(3), "{point}: {} {}", second.text(), second.err);
        // it looks at what was interrupted, and leaves what is not
        assert_eq!(lab.ok(&["--yes", "recover"]), json!([]), "{point}");
        let done = first.go_on();
        assert_eq!(done.code, Some(0), "{point}: {} {}", done.text(), done.err);
        before.assert_same(&lab.manifest(), point);
        assert_eq!(lab.leftovers(), Vec::<String>::new(), "{point}");
        lab.ok(&["--yes", "untrack", lab.ws_text()]);
    }
}

/// Tracks of two folders do not stand in each other's way.
#[test]
fn tracks_of_two_folders_at_once() {
    let lab = Lab::plain(rich);
    let other = lab.dir().join("other");
    std::fs::create_dir(&other).expect("mkdir");
    std::fs::write(other.join("f"), "x").expect("write");
    let first = lab.stopped_at(
        "track-copied",
        &["--yes", "track", lab.ws_text(), "--size", "512M"],
    );
    lab.ok(&["--yes", "track", other.to_str().expect("UTF-8"), "--size", "512M"]);
    assert_eq!(first.go_on().code, Some(0));
    assert_eq!(lab.ok(&["sandboxes"]).as_array().map(Vec::len), Some(2));
    // and both of two images are remembered
    let images: Vec<_> = (0..4)
        .map(|i| {
            let image = format!("images/{i}.img");
            std::fs::create_dir_all(lab.dir().join("images")).expect("mkdir");
            let mut c = lab.json_command(&["pool", "create", "--size", "512M", "--image", &image]);
            c.stdout(Stdio::piped())
                .stderr(Stdio::piped())
                .spawn()
                .expect("start")
        })
        .collect();
    for c in images {
        let a = Answer::of(c.wait_with_output().expect("its end"));
        assert_eq!(a.code, Some(0), "{}", a.text());
    }
    assert_eq!(lab.ok(&["pool", "status"]).as_array().map(Vec::len), Some(5));
}

/// P103: two processes open the pool of one image at once: one attaches it, all use that.
#[test]
fn p103_an_image_is_attached_once() {
    let lab = lab();
    for _ in 0..5 {
        lab.reboot();
        let children: Vec<_> = (0..4)
            .map(|_| {
                let mut c = lab.json_command(&["ls", "m1"]);
                c.stdout(Stdio::piped())
                    .stderr(Stdio::piped())
                    .spawn()
                    .expect("start")
            })
            .collect();
        for c in children {
            let a = Answer::of(c.wait_with_output().expect("its end"));
            assert_eq!(a.code, Some(0), "{} {}", a.text(), a.err);
        }
        assert_eq!(crate::common::loops_below(lab.dir()).len(), 1);
        let mounts = crate::common::mounts_below(lab.dir());
        assert_eq!(
            mounts.len(),
            2,
            "the pool and the workspace, once each: {mounts:?}"
        );
    }
}
