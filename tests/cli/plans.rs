//! What plans and results say: whose changes they are, how they ask, what they offer next.

use std::io::Write;
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use crate::lab::{Answer, Lab};

/// The agent stops: its hook takes the checkpoint of the turn's end.
pub fn turn_ends(lab: &Lab) {
    let input = json!({"event_type": "Stop", "session_id": "11111111-2222-4333-8444-555555555555", "working_dir": lab.ws_text()});
    let file = lab.dir().join("stop.json");
    std::fs::write(&file, input.to_string()).expect("write");
    let out = lab
        .command()
        .args(["hook", "openhands"])
        .stdin(std::fs::File::open(&file).expect("open"))
        .output()
        .expect("run");
    assert!(out.status.success(), "{out:?}");
}

/// Two turns, each of one file of its own and with an end.
fn two_turns() -> Lab {
    let lab = Lab::new(|ws| std::fs::write(ws.join("f"), "0").expect("write"));
    for n in 1..=2 {
        lab.message(n);
        lab.write(format!("agent{n}"), n.to_string());
        turn_ends(&lab);
    }
    lab
}

fn yours(lab: &Lab, state: &str) -> Value {
    lab.ok(&["--dry-run", "rewind", state])["plan"]["yours"].clone()
}

/// Runs it on a terminal and types the lines.
pub fn typed(lab: &Lab, args: &[&str], lines: &str) -> Answer {
    let mut line = vec![env!("CARGO_BIN_EXE_respool").to_owned(), "--state-dir".into()];
    line.push(lab.state().to_str().expect("UTF-8").into());
    line.extend(args.iter().map(|a| (*a).to_owned()));
    let template = lab.command();
    let mut c = Command::new("script");
    c.args(["-qec", &line.join(" "), "/dev/null"])
        .current_dir(lab.ws())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    for (name, value) in template.get_envs() {
        if let Some(value) = value {
            c.env(name, value);
        }
    }
    let mut child = c.spawn().expect("script of util-linux");
    let mut stdin = child.stdin.take().expect("stdin");
    stdin.write_all(lines.as_bytes()).expect("type");
    let out = child.wait_with_output().expect("script");
    drop(stdin);
    Answer::of(out)
}

#[test]
fn what_a_rewind_did_is_not_the_users() {
    let lab = two_turns();
    assert_eq!(yours(&lab, "1"), json!([]));
    lab.ok(&["--yes", "rewind", "2"]);
    assert!(!lab.at("agent2").exists());
    assert_eq!(yours(&lab, "1"), json!([]));
    // what comes after it is
    lab.write("mine", "x");
    assert_eq!(yours(&lab, "1"), json!(["mine"]));
    lab.ok(&["--yes", "undo"]);
    assert_eq!(yours(&lab, "1"), json!([]));
    // a rewind of one path leaves the others the user's
    lab.write("mine", "y");
    lab.ok(&["--yes", "rewind", "2", "--path", "agent2"]);
    assert_eq!(yours(&lab, "1"), json!(["mine"]));
}

/// Nor is it in the stretch before a message that came after the rewind.
#[test]
fn what_a_rewind_did_before_a_message_is_not_the_users() {
    let lab = two_turns();
    lab.ok(&["--yes", "rewind", "2"]);
    lab.message(3);
    turn_ends(&lab);
    assert_eq!(yours(&lab, "1"), json!([]));
    lab.write("agent2", "mine now");
    assert_eq!(yours(&lab, "1"), json!(["agent2"]));
}

#[test]
fn the_users_own_edits_need_the_word() {
    let lab = two_turns();
    lab.write("mine", "x");
    let store = lab.store();
    let args = ["-c", store.to_str().expect("UTF-8"), "rewind", "2"];
    let a = typed(&lab, &args, "y\n");
    assert_eq!(a.code, Some(130), "{}", a.text());
    assert!(a.text().contains("type rewind:"), "{}", a.text());
    assert_eq!(lab.read("mine"), "x");
    let a = typed(&lab, &args, "rewind\n");
    assert_eq!(a.code, Some(0), "{}", a.text());
    assert!(!lab.at("mine").exists());
    // the agent's alone: a key
    let args = ["-c", store.to_str().expect("UTF-8"), "rewind", "1"];
    let a = typed(&lab, &args, "y\n");
    assert_eq!(a.code, Some(0), "{}", a.text());
}

/// What was the user's own before a rewind is so again after its undo; without a question it is told.
#[test]
fn own_edits_stay_own_after_an_undo() {
    let lab = two_turns();
    lab.write("mine", "x");
    let store = lab.store();
    let store = store.to_str().expect("UTF-8");
    let yours = || lab.ok(&["-c", store, "--dry-run", "rewind", "2"])["plan"]["yours"].clone();
    assert_eq!(yours(), serde_json::json!(["mine"]));
    let a = lab.bare(&["-c", store, "--yes", "rewind", "2"]);
    assert!(
        a.err.contains("1 path of your own is taken back, too") && a.err.contains(": mine"),
        "{}",
        a.err
    );
    lab.ok(&["-c", store, "--yes", "undo"]);
    assert_eq!(yours(), serde_json::json!(["mine"]));
}

/// Checkpoints of no message are listed, too.
#[test]
fn all_checkpoints_are_listed() {
    let lab = two_turns();
    let id = lab.ok(&["checkpoint", "--label", "by\u{1b}hand"])["checkpoint"].clone();
    let all = lab.ok(&["checkpoints"]);
    assert_eq!((&all[0]["checkpoint"], &all[0]["kind"]), (&id, &"manual".into()));
    assert_eq!(
        all.as_array().and_then(|a| a.last()).map(|c| c["kind"].clone()),
        Some("start".into())
    );
    let a = lab.bare(&["-s", lab.ws_text(), "checkpoints"]);
    assert!(a.text().contains("by^[hand"), "{}{}", a.text(), a.err);
}

#[test]
fn plan_and_result_count_alike_and_offer_the_way_back() {
    let lab = two_turns();
    let store = lab.store();
    let run = |args: &[&str]| {
        let a = lab.bare(&[&["-c", store.to_str().expect("UTF-8")], args].concat());
        assert_eq!(a.code, Some(0), "{}", a.err);
        a.text()
    };
    let plan = run(&["--dry-run", "rewind", "2"]);
    assert!(plan.contains(": 1 path changes\n"), "{plan}");
    let done = run(&["--yes", "rewind", "2"]);
    assert!(
        done.contains("done: 1 path changed") && done.contains("respool undo\n"),
        "{done}"
    );
    let plan = run(&["--dry-run", "undo"]);
    assert!(
        plan.contains("- agent2") && plan.contains("safety checkpoint"),
        "{plan}"
    );
    let done = run(&["--yes", "undo"]);
    assert!(
        done.contains("done: 1 path changed") && done.contains("respool redo\n"),
        "{done}"
    );
    let done = run(&["--yes", "redo"]);
    assert!(done.contains("respool undo\n"), "{done}");
    let a = typed(&lab, &["-c", store.to_str().expect("UTF-8"), "undo"], "n\n");
    assert_eq!(a.code, Some(130), "{}", a.text());
    assert!(a.text().contains("agent2"), "the plan comes first: {}", a.text());
}
