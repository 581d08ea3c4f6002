//! What a container sees of a folder that comes, goes or is another one now; and the words around its stop.

use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::common::wait_until;
use crate::engine::{Engine, Layout};
use crate::rewinds::{id_of, tracked};

const SOON: Duration = Duration::from_secs(60);

/// A plain folder.
fn folder(engine: &Engine) -> String {
    let ws = engine.dir().join("ws");
    std::fs::create_dir(&ws).expect("the workspace");
    std::fs::write(ws.join("file"), "one\n").expect("a file");
    ws.to_str().expect("UTF-8").to_owned()
}

/// It must be refused, with these words in it.
fn refused(engine: &Engine, args: &[&str], words: &[&str]) {
    let (code, doc, said) = engine.answer(args);
    assert_eq!(code, Some(3), "{args:?}: {doc}\n{said}");
    for word in words {
        assert!(doc.to_string().contains(word), "{word}: {doc}");
    }
}

/// The mounts of a container in `docker status`.
fn mounts(engine: &Engine, name: &str) -> Value {
    let rows = engine.ok(&["docker", "status"]);
    let rows = rows.as_array().expect("rows").clone();
    let row = rows.into_iter().find(|r| r["name"] == name);
    row.expect("the container")["mounts"].clone()
}

#[test]
fn a_folder_that_a_container_has_mounted_is_neither_tracked_nor_given_back() {
    let engine = Engine::start(Layout::OverlayOnExt4);
    let ws = folder(&engine);
    let mount = format!("{ws}:/w");
    engine.run("late", &["-v", &mount, "--workdir", "/w"]);
    let track = ["track", &ws, "--size", "512M"];
    let late = [
        "container late has it mounted at /w",
        "docker stop late, then try again, then docker start late",
    ];
    refused(&engine, &track, &late);
    engine.docker(&["stop", "late"]);
    engine.ok(&track);
    engine.docker(&["start", "late"]);
    assert_eq!(mounts(&engine, "late")[0]["covered"], true);
    engine.docker(&["pause", "late"]);
    refused(&engine, &["untrack", &ws], &late);
    engine.docker(&["unpause", "late"]);
    refused(&engine, &["untrack", &ws], &late);
    engine.docker(&["stop", "late"]);
    engine.ok(&["untrack", &ws]);
    engine.docker(&["start", "late"]);
    assert_eq!(engine.sh("late", "echo two > /w/file; cat /w/file"), "two");
    let here = std::fs::read_to_string(Path::new(&ws).join("file")).expect("file");
    assert_eq!(here, "two\n");
}

#[test]
fn an_older_folder_at_that_place_is_not_covered() {
    let engine = Engine::start(Layout::OverlayOnExt4);
    let ws = folder(&engine);
    engine.run("box", &["-v", &format!("{ws}:/w")]);
    std::fs::rename(&ws, engine.dir().join("old")).expect("rename");
    std::fs::create_dir(&ws).expect("another folder");
    engine.ok(&["track", &ws, "--size", "512M"]);
    let older = "sees an older folder at that place: docker restart box";
    let seen = mounts(&engine, "box");
    assert_eq!(seen[0]["covered"], false, "{seen}");
    assert!(
        seen[0]["why"].as_str().is_some_and(|w| w.contains(older)),
        "{seen}"
    );
    let doc = engine.ok(&["track", &ws, "--container", "box"]);
    assert!(
        doc["containers"][0]["not_covered"].to_string().contains(older),
        "{doc}"
    );
    let parts = engine.ok(&["-s", &ws, "checkpoint"])["parts"].to_string();
    assert!(parts.contains(older), "{parts}");
    let out = engine
        .respool()
        .args(["docker", "status"])
        .output()
        .expect("respool");
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    assert!(
        text.contains(&format!("at /w: not covered: it {older}")),
        "{text}"
    );
    let enable = format!(
        "respool --state-dir {} docker enable",
        engine.dir().join("state").display()
    );
    assert!(text.contains(&enable), "{text}");
    let doctor = engine.respool().args(["doctor"]).output().expect("respool");
    let doctor = String::from_utf8_lossy(&doctor.stdout).into_owned();
    assert!(doctor.contains(older), "{doctor}");

    engine.docker(&["restart", "box"]);
    let seen = mounts(&engine, "box");
    assert_eq!(
        (&seen[0]["covered"], &seen[0]["why"]),
        (&json!(true), &Value::Null)
    );
    let parts = engine.ok(&["-s", &ws, "checkpoint"])["parts"].to_string();
    assert!(!parts.contains(older), "{parts}");
}

/// Checkpoints that are older than the container say nothing of packages that nobody could read; and what changed in
/// its files is counted.
fn later_than_a_checkpoint(layout: Layout) {
    let engine = Engine::start(layout);
    let ws = folder(&engine);
    engine.ok(&["track", &ws, "--size", "512M"]);
    let early = id_of(&engine.ok(&["-s", &ws, "checkpoint"]));
    engine.run("box", &["-v", &format!("{ws}:/w")]);
    engine.ok(&["track", &ws, "--container", "box"]);
    let plan = engine.ok(&["-s", &ws, "--dry-run", "rewind", &early, "--files"])["plan"].clone();
    assert_eq!(
        (&plan["packages_unread"], &plan["packages"]),
        (&json!([]), &json!([])),
        "{plan}"
    );
    let told = plan["blockers"].to_string();
    assert_eq!(told.matches("added later").count(), 1, "{told}");

    let at = id_of(&engine.ok(&["-s", &ws, "checkpoint"]));
    engine.sh("box", "mkdir /opt/new; echo a > /opt/new/a; echo b > /opt/new/b");
    let plan = engine.ok(&["-s", &ws, "--dry-run", "rewind", &at, "--files"])["plan"].clone();
    let steps = plan["steps"].to_string();
    // an upper layer has copies of the folders above, too
    let count = match layout {
        Layout::Btrfs => "container box: 3 paths changed since then",
        _ => "paths changed since then: its files go back",
    };
    assert!(steps.contains(count), "{steps}");
    assert!(
        !plan["blockers"].to_string().contains(" at /w"),
        "good news is no warning: {plan}"
    );
    let doc = engine.ok(&["-s", &ws, "rewind", &at, "--files"]);
    assert!(
        doc["restored"]["container"]["box"]["changed"].as_u64() >= Some(3),
        "{doc}"
    );
    assert_eq!(engine.sh("box", "ls /opt"), "");
}

#[test]
fn a_container_that_came_later_with_copies() {
    later_than_a_checkpoint(Layout::OverlayOnExt4);
}

#[test]
fn a_container_that_came_later_with_snapshots() {
    later_than_a_checkpoint(Layout::Btrfs);
}

/// One that notes that it is to end, and does not.
fn deaf(engine: &Engine, name: &str, seconds: &str) {
    engine.docker(&[
        "run",
        "-d",
        "--name",
        name,
        "--network",
        "none",
        "--stop-timeout",
        seconds,
        "box:1",
        "/bin/sh",
        "-c",
        "trap 'touch /opt/told' TERM; touch /opt/ready; while :; do sleep 0.1; done",
    ]);
    let ready = engine.root(name).join("opt/ready");
    assert!(wait_until(SOON, || ready.exists()), "{name} does not start");
}

#[test]
fn several_are_stopped_at_the_same_time() {
    let engine = Engine::start(Layout::Btrfs);
    deaf(&engine, "agent", "12");
    deaf(&engine, "second", "12");
    let ws = tracked(&engine);
    engine.ok(&["track", &ws, "--container", "second"]);
    let at = id_of(&engine.ok(&["-s", &ws, "checkpoint"]));
    let began = Instant::now();
    engine.ok(&["-s", &ws, "rewind", &at, "--files"]);
    let took = began.elapsed();
    assert!(
        took > Duration::from_secs(11) && took < Duration::from_secs(22),
        "{took:?}"
    );
}

#[test]
fn one_that_was_stopped_for_nothing_is_named() {
    let engine = Engine::start(Layout::Btrfs);
    deaf(&engine, "agent", "5");
    let ws = tracked(&engine);
    let at = id_of(&engine.ok(&["-s", &ws, "checkpoint"]));
    let told = engine.root("agent").join("opt/told");
    let child = engine
        .respool()
        .args(["--json", "--yes", "-s", &ws, "rewind", &at, "--files"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("respool");
    assert!(wait_until(SOON, || told.exists()), "it is not told to end");
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).expect("SIGINT");
    let out = child.wait_with_output().expect("respool");
    let doc = String::from_utf8_lossy(&out.stdout).into_owned() + &String::from_utf8_lossy(&out.stderr);
    assert_eq!(out.status.code(), Some(130), "{}: {doc}", out.status);
    assert!(
        doc.contains("everything is as it was before; container agent was restarted"),
        "{doc}"
    );
    assert_eq!(engine.state("agent"), "running");
}
