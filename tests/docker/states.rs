//! Containers in all states and of all kinds.

use std::path::Path;

use std::time::Duration;

use serde_json::Value;

use crate::common::wait_until;

use crate::engine::{Engine, Layout};
use crate::rewinds::{frozen, id_of, same_but_for_making, tracked};

fn checkpoint(engine: &Engine, ws: &str) -> String {
    id_of(&engine.ok(&["-s", ws, "checkpoint"]))
}

fn rewind(engine: &Engine, ws: &str, at: &str) -> Value {
    engine.ok(&["-s", ws, "rewind", at, "--files"])
}

#[test]
fn a_paused_one_stays_paused_and_a_stopped_one_stopped() {
    let engine = Engine::start(Layout::Btrfs);
    engine.run("agent", &[]);
    let ws = tracked(&engine);
    engine.sh("agent", "echo then > /opt/state");
    engine.docker(&["pause", "agent"]);
    let doc = engine.ok(&["-s", &ws, "checkpoint"]);
    assert_eq!(
        (engine.state("agent").as_str(), &doc["pause_ms"]),
        ("paused", &Value::Null)
    );
    engine.docker(&["unpause", "agent"]);
    engine.sh("agent", "echo later > /opt/state");
    engine.docker(&["pause", "agent"]);
    rewind(&engine, &ws, &id_of(&doc));
    assert_eq!(engine.state("agent"), "paused");
    engine.docker(&["unpause", "agent"]);
    assert_eq!(engine.sh("agent", "cat /opt/state"), "then");
    // stopped: its checkpoint and its rewind need no process of it
    engine.docker(&["stop", "agent"]);
    let stopped = checkpoint(&engine, &ws);
    engine.docker(&["start", "agent"]);
    engine.sh("agent", "echo again > /opt/state");
    engine.docker(&["stop", "agent"]);
    rewind(&engine, &ws, &stopped);
    assert_eq!(engine.state("agent"), "exited");
    engine.docker(&["start", "agent"]);
    assert_eq!(engine.sh("agent", "cat /opt/state"), "then");
}

#[test]
fn one_that_is_always_restarted_and_one_that_was_renamed() {
    let engine = Engine::start(Layout::OverlayOnExt4);
    engine.run("agent", &["--restart", "always", "--network", "host"]);
    let ws = tracked(&engine);
    engine.sh("agent", "echo then > /opt/state");
    let at = checkpoint(&engine, &ws);
    engine.sh("agent", "echo later > /opt/state");
    engine.docker(&["rename", "agent", "moved"]);
    rewind(&engine, &ws, &at);
    assert_eq!(engine.state("moved"), "running");
    assert_eq!(engine.sh("moved", "cat /opt/state"), "then");
    assert_eq!(
        engine.inspect("moved")["HostConfig"]["RestartPolicy"]["Name"],
        "always"
    );
}

#[test]
fn one_that_was_made_again_of_the_same_image_gets_the_files() {
    let engine = Engine::start(Layout::OverlayOnBtrfs);
    engine.run("agent", &[]);
    let ws = tracked(&engine);
    engine.sh("agent", "echo then > /opt/state; rm /usr/bin/ls");
    let at = checkpoint(&engine, &ws);
    engine.docker(&["rm", "-f", "agent"]);
    engine.run("agent", &[]);
    engine.sh("agent", "echo fresh > /opt/state");
    rewind(&engine, &ws, &at);
    assert_eq!(
        engine.sh("agent", "cat /opt/state; [ ! -e /usr/bin/ls ] && echo gone"),
        "then\ngone"
    );
    // of another image: its files fit it no more
    engine.docker(&["commit", "agent", "box:2"]);
    engine.docker(&["rm", "-f", "agent"]);
    engine.docker(&[
        "run",
        "-d",
        "--name",
        "agent",
        "--network",
        "none",
        "box:2",
        "/bin/sleep",
        "1000",
    ]);
    let (code, doc, _) = engine.answer(&["-s", &ws, "rewind", &at, "--files"]);
    assert_eq!(code, Some(3), "{doc}");
    let text = doc["error"]["message"].as_str().expect("a message");
    assert!(text.contains("made again from another image"), "{text}");
    // and a checkpoint says so
    let doc = engine.ok(&["-s", &ws, "checkpoint"]);
    let row = doc["parts"]
        .as_array()
        .expect("parts")
        .iter()
        .find(|p| p["kind"] == "container")
        .cloned();
    let row = row.expect("a row");
    assert_eq!(row["covered"], false, "{row}");
    assert!(
        row["reason"].as_str().expect("why").contains("another image"),
        "{row}"
    );
}

#[test]
fn p009_what_is_not_covered_is_listed_and_untouched() {
    let engine = Engine::start(Layout::Btrfs);
    let (bind, inside) = (engine.dir().join("bind"), engine.dir().join("ws"));
    std::fs::create_dir(&bind).expect("bind");
    std::fs::create_dir(&inside).expect("ws");
    engine.ok(&["track", inside.to_str().expect("UTF-8"), "--size", "512M"]);
    let ws = inside.to_str().expect("UTF-8").to_owned();
    let binds = [
        format!("{}:/w", bind.display()),
        format!("{ws}:/mnt/in"),
        "data:/data".to_owned(),
    ];
    engine.run(
        "agent",
        &[
            "-v", &binds[0], "-v", &binds[1], "-v", &binds[2], "--tmpfs", "/scratch",
        ],
    );
    engine.ok(&["track", &ws, "--container", "agent"]);
    let at = checkpoint(&engine, &ws);
    engine.sh(
        "agent",
        "for f in /w/b /data/a /usr/local/c /mnt/in/d /scratch/e; do echo x > $f; done",
    );
    let doc = engine.ok(&["-s", &ws, "rewind", &at, "--files", "--dry-run"]);
    let lines: Vec<&str> = doc["plan"]["blockers"]
        .as_array()
        .expect("list")
        .iter()
        .filter_map(|b| b["what"].as_str())
        .collect();
    for (at, word) in [
        ("/w", "not covered"),
        ("/data", "not covered"),
        ("/scratch", "not covered"),
    ] {
        let found = lines.iter().any(|l| l.contains(&format!(" at {at}: {word}")));
        assert!(found, "{at}: {lines:#?}");
    }
    // what is covered needs no word of warning
    assert!(!lines.iter().any(|l| l.contains("/mnt/in")), "{lines:#?}");
    rewind(&engine, &ws, &at);
    let left = engine.sh(
        "agent",
        "for f in /w/b /data/a /usr/local/c /mnt/in/d; do [ -e $f ] && echo $f; done; true",
    );
    assert_eq!(left, "/w/b\n/data/a");
}

#[test]
fn p055_a_rewind_of_the_workspace_alone_touches_no_container() {
    let engine = Engine::start(Layout::Btrfs);
    engine.run("agent", &[]);
    let ws = tracked(&engine);
    let at = checkpoint(&engine, &ws);
    std::fs::write(Path::new(&ws).join("file"), "two\n").expect("a change");
    engine.sh("agent", "echo later > /opt/state");
    let before = frozen(&engine, "agent");
    let pid = engine.inspect("agent")["State"]["Pid"].clone();
    let doc = engine.ok(&[
        "-s",
        &ws,
        "rewind",
        &at,
        "--files",
        "--path",
        &format!("{ws}/file"),
    ]);
    assert!(doc["restored"]["container"].is_null(), "{doc}");
    assert_eq!(engine.inspect("agent")["State"]["Pid"], pid);
    before.assert_same(&frozen(&engine, "agent"), "the container");
    engine.docker(&["run", "--rm", "--network", "none", "box:1", "/bin/true"]);
}

#[test]
fn p116_edit_and_rewind_three_times() {
    let engine = Engine::start(Layout::OverlayOnBtrfs);
    engine.run("agent", &[]);
    let ws = tracked(&engine);
    let mut at = Vec::new();
    for n in 0..3 {
        engine.sh("agent", &format!("echo {n} > /opt/n; echo {n} > /opt/only-{n}"));
        at.push(checkpoint(&engine, &ws));
        engine.sh("agent", "echo later > /opt/n");
        rewind(&engine, &ws, &at[n]);
        assert_eq!(engine.sh("agent", "cat /opt/n"), n.to_string());
    }
    rewind(&engine, &ws, &at[0]);
    assert_eq!(
        engine.sh("agent", "cat /opt/n; echo /opt/only-*"),
        "0\n/opt/only-0"
    );
    rewind(&engine, &ws, &at[2]);
    assert_eq!(
        engine.sh("agent", "cat /opt/n; echo /opt/only-*"),
        "2\n/opt/only-0 /opt/only-1 /opt/only-2"
    );
}

/// The id of the container after an operation: the same, or it was made again, and that was told.
fn kept(engine: &Engine, id: &str, doc: &Value) -> String {
    let now = engine.id("agent");
    assert!(
        now == id || doc["notes"].to_string().contains("was made again"),
        "{doc}"
    );
    now
}

fn started_with_rm(layout: Layout) {
    let engine = Engine::start(layout);
    engine.run("agent", &["--rm"]);
    let ws = tracked(&engine);
    engine.sh("agent", "echo then > /opt/state");
    let then = frozen(&engine, "agent");
    let at = checkpoint(&engine, &ws);
    engine.sh("agent", "echo later > /opt/state; rm /usr/bin/ls");
    let later = frozen(&engine, "agent");
    let id = engine.id("agent");
    let doc = rewind(&engine, &ws, &at);
    let id = kept(&engine, &id, &doc);
    assert_eq!(engine.state("agent"), "running");
    same_but_for_making(&then, &frozen(&engine, "agent"), "after the rewind");
    let doc = engine.ok(&["-s", &ws, "undo", "--files"]);
    kept(&engine, &id, &doc);
    same_but_for_making(&later, &frozen(&engine, "agent"), "after the undo");
    assert_eq!(engine.inspect("agent")["HostConfig"]["AutoRemove"], true);
    // its end is its end
    engine.docker(&["stop", "agent"]);
    assert!(wait_until(Duration::from_secs(10), || {
        !engine.docker_raw(&["inspect", "agent"]).status.success()
    }));
}

#[test]
fn one_started_with_rm_is_restarted_and_never_lost_on_the_btrfs_driver() {
    started_with_rm(Layout::Btrfs);
}

#[test]
fn one_started_with_rm_is_restarted_and_never_lost_on_overlay2_on_btrfs() {
    started_with_rm(Layout::OverlayOnBtrfs);
}

#[test]
fn one_started_with_rm_is_restarted_and_never_lost_on_overlay2_on_ext4() {
    started_with_rm(Layout::OverlayOnExt4);
}

#[test]
fn the_status_says_how_each_can_be_covered() {
    let engine = Engine::start(Layout::OverlayOnExt4);
    engine.run("agent", &[]);
    engine.run("other", &[]);
    let ws = tracked(&engine);
    let rows = engine.ok(&["docker", "status"]);
    let row = |name: &str| {
        rows.as_array()
            .expect("rows")
            .iter()
            .find(|r| r["name"] == name)
            .cloned()
            .expect("a row")
    };
    let (agent, other) = (row("agent"), row("other"));
    assert_eq!(
        (&agent["root_covered"], agent["sandbox"].as_str()),
        (&Value::Bool(true), Some(ws.as_str()))
    );
    assert_eq!(
        (&other["root_covered"], other["technique"].as_str()),
        (&Value::Bool(false), Some("overlay-copy"))
    );
    assert!(
        other["better"].as_str().expect("better").contains("Btrfs"),
        "{other}"
    );
    let checks = engine.ok(&["doctor"]);
    let docker = checks
        .as_array()
        .expect("checks")
        .iter()
        .find(|c| c["check"] == "docker")
        .cloned()
        .expect("docker");
    assert!(
        docker["detail"]
            .as_str()
            .expect("detail")
            .contains("agent: overlay-copy"),
        "{docker}"
    );
    // one sandbox's container is no other's
    let second = engine.dir().join("second");
    std::fs::create_dir(&second).expect("mkdir");
    let args = [
        "track",
        second.to_str().expect("UTF-8"),
        "--size",
        "512M",
        "--container",
        "agent",
    ];
    let (code, doc, _) = engine.answer(&args);
    assert_eq!(code, Some(3), "{doc}");
    assert!(
        doc["error"]["message"]
            .as_str()
            .expect("why")
            .contains("belongs to the sandbox"),
        "{doc}"
    );
}

#[test]
fn what_is_kept_of_it_goes_with_its_checkpoints() {
    let engine = Engine::start(Layout::Btrfs);
    engine.run("agent", &[]);
    let ws = tracked(&engine);
    let kept = || {
        let mnt = std::fs::read_dir(engine.dir().join("state/mnt"))
            .expect("mnt")
            .flatten();
        let all = mnt
            .filter_map(|p| std::fs::read_dir(p.path().join(".respool/s")).ok())
            .flatten()
            .flatten();
        let parts = all.filter(|e| e.file_name().to_string_lossy().starts_with("ct-"));
        let snaps = parts.filter_map(|p| std::fs::read_dir(p.path().join("snaps")).ok());
        snaps.map(Iterator::count).collect::<Vec<_>>()
    };
    for n in 0..3 {
        engine.sh("agent", &format!("echo {n} > /opt/n"));
        checkpoint(&engine, &ws);
    }
    // one at `track --container`
    assert_eq!(kept(), [4]);
    let doc = engine.ok(&["-s", &ws, "prune", "--keep", "1"]);
    assert_eq!(doc["removed"].as_array().map(Vec::len), Some(4), "{doc}");
    assert_eq!(kept(), [1]);
    let rows = engine.ok(&["sandboxes"]);
    let id = rows[0]["id"].as_str().expect("id").to_owned();
    engine.ok(&["untrack", &ws]);
    engine.ok(&["-s", &id, "prune"]);
    assert_eq!(kept(), [] as [usize; 0]);
    assert_eq!(engine.sh("agent", "cat /opt/n"), "2");
}
