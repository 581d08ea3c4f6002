//! SIGKILL at every fault point of a rewind, an undo and a redo that go by a fork of Claude Code's: the next command that
//! writes looks into the folder, and files and conversations are both as before, or both as wanted.

use crate::claude_chat::{BRANCHED, PROJECT, Recorded};
use crate::lab::Lab;

/// Where a fork's file is written.
pub const FORK: &[&str] = &[
    "chat-prepared",
    "rewind-held",
    "chat-held",
    "chat-fork",
    "chat-fork-half",
    "chat-fork-written",
    "chat-forked",
    "chat-moved",
    "rewind-settled",
];
/// Where it is taken away.
pub const UNFORK: &[&str] = &[
    "chat-held",
    "chat-unfork",
    "chat-unforked",
    "chat-moved",
    "rewind-settled",
];

fn killed(s: &Recorded<'_>, point: &str, args: &[&str]) {
    let store = s.store.to_str().expect("UTF-8");
    let out = s
        .lab
        .whole_command(&[&["-c", store, "--yes"], args].concat())
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

fn recovered(s: &Recorded<'_>) -> Option<String> {
    let doc = s.ok(&["--yes", "recover"]);
    doc[0]["outcome"].as_str().map(str::to_owned)
}

/// The forks that are there, whole or in parts, and the files.
fn state(s: &Recorded<'_>) -> (Vec<String>, String) {
    let names = s.all().into_keys().filter(|n| !n.starts_with(BRANCHED));
    (names.collect(), s.lab.read("f"))
}

#[test]
fn killed_while_a_fork_is_written() {
    for point in FORK {
        let lab = Lab::new(|_| {});
        let s = Recorded::new(&lab, PROJECT, BRANCHED);
        killed(&s, point, &["rewind", "m2"]);
        let said = recovered(&s);
        let (forks, f) = state(&s);
        assert!(forks.iter().all(|n| !n.starts_with('.')), "{point}: {forks:?}");
        match said.as_deref() {
            Some("finished") => assert_eq!((forks.len(), f.as_str()), (1, "3"), "{point}"),
            Some("rolled-back") => assert_eq!((forks.len(), f.as_str()), (0, "end"), "{point}"),
            None => assert!(["chat-prepared", "rewind-settled"].contains(point), "at {point}"),
            Some(other) => panic!("{point}: {other}"),
        }
        let last = ["chat-forked", "chat-moved"].contains(point);
        assert_eq!(said.as_deref() == Some("finished"), last, "{point}");
        assert_eq!(std::fs::read_to_string(&s.store).expect("old"), s.text);
        if !last && *point != "rewind-settled" {
            s.fork("m2");
        }
        // and back
        s.ok(&["--yes", "undo"]);
        assert_eq!(state(&s), (Vec::new(), "end".into()), "{point}");
    }
}

#[test]
fn killed_while_a_fork_is_taken_away_or_comes_back() {
    for (start, args, points) in [
        (&[][..], &["undo"][..], UNFORK),
        (
            &["undo"],
            &["redo"],
            &["chat-fork-half", "chat-fork-written", "chat-forked"],
        ),
    ] {
        for point in points {
            let lab = Lab::new(|_| {});
            let s = Recorded::new(&lab, PROJECT, BRANCHED);
            let (id, file) = s.fork("m2");
            let text = std::fs::read_to_string(&file).expect("the fork");
            if let Some(step) = start.first() {
                s.ok(&["--yes", step]);
            }
            let before = state(&s);
            killed(&s, point, args);
            let said = recovered(&s);
            let now = state(&s);
            assert!(
                now == (vec![format!("{id}.jsonl")], "3".into()) || now == (Vec::new(), "end".into()),
                "{args:?} at {point}: {said:?}: {now:?}"
            );
            if said.as_deref() == Some("rolled-back") {
                assert_eq!(now, before, "{args:?} at {point}");
            }
            if file.exists() {
                assert_eq!(std::fs::read_to_string(&file).expect("the fork"), text, "{point}");
            }
        }
    }
}

/// What the agent wrote while the fork was on its way out comes back; a failure takes the files back, too.
#[test]
fn what_is_written_meanwhile_is_not_lost() {
    let lab = Lab::new(|_| {});
    let s = Recorded::new(&lab, PROJECT, BRANCHED);
    let (id, file) = s.fork("m2");
    killed(&s, "chat-unforked", &["undo"]);
    let away = file.with_file_name(format!(".{id}.jsonl.respool"));
    let text = std::fs::read_to_string(&away).expect("on its way out") + "{}\n";
    std::fs::write(&away, &text).expect("write");
    assert_eq!(recovered(&s).as_deref(), Some("finished"));
    assert_eq!(std::fs::read_to_string(&file).expect("back"), text);
    assert_eq!(lab.read("f"), "end");
}

/// No room for the fork: the files go back, and nothing of it is left.
#[test]
fn a_fork_that_cannot_be_written_takes_the_files_back() {
    let lab = Lab::new(|_| {});
    let s = Recorded::new(&lab, PROJECT, BRANCHED);
    let mut stopped = lab.whole_command(&["-c", s.store.to_str().expect("UTF-8"), "--yes", "rewind", "m2"]);
    let child = stopped
        .env("RESPOOL_STOP_AT", "chat-held")
        .stdout(std::process::Stdio::piped())
        .spawn()
        .expect("start");
    let stat = format!("/proc/{}/stat", child.id());
    let stops = || std::fs::read_to_string(&stat).is_ok_and(|s| s.contains(") T "));
    assert!(crate::common::wait_until(crate::lab::SOON, stops), "it stops");
    // what comes before the place is another than planned
    let other = s.text.replace("first message", "other message");
    assert_ne!(other, s.text);
    std::fs::write(&s.store, &other).expect("write");
    let pid = rustix::process::Pid::from_raw(child.id() as i32).expect("a pid");
    rustix::process::kill_process(pid, rustix::process::Signal::CONT).expect("go on");
    let out = child.wait_with_output().expect("end");
    let said = String::from_utf8_lossy(&out.stdout).into_owned();
    assert!(
        !out.status.success() && said.contains("not what it was"),
        "{said}"
    );
    assert_eq!(state(&s), (Vec::new(), "end".into()));
}
