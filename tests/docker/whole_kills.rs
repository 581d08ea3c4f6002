//! All of Docker in a pool, killed anywhere on the way there, back, and out: `recover` brings Docker up with all that it
//! had.

use std::os::unix::process::ExitStatusExt;

use serde_json::Value;

use crate::engine::{Engine, Layout};
use crate::rewinds::id_of;
use crate::whole::{beside, enable, everything, in_pool, populated, settings, workspace};

/// Kills it there.
pub fn killed(engine: &Engine, args: &[&str], at: &str) {
    let out = engine
        .respool()
        .args(["--json", "--yes"])
        .args(args)
        .env("RESPOOL_KILL_AT", at)
        .output()
        .expect("respool");
    assert_eq!(
        out.status.signal(),
        Some(9),
        "{at} is never reached by {args:?}: {}",
        String::from_utf8_lossy(&out.stdout)
    );
}

/// Recovers; what became of it.
fn recovered(engine: &Engine, at: &str) -> String {
    let doc = engine.ok(&["recover"]);
    let one: Vec<&Value> = doc.as_array().expect("a list").iter().collect();
    assert_eq!(one.len(), 1, "{at}: {doc}");
    one[0]["outcome"].as_str().expect("an outcome").to_owned()
}

fn way_in_and_out(layout: Layout) {
    let engine = populated(layout);
    let (before, text) = (everything(&engine), settings(&engine));
    // on its own Btrfs nothing is copied
    let copied = (layout == Layout::OverlayOnExt4).then_some("docker-copied");
    let points = [
        "docker-begun",
        "docker-container-stopped",
        "docker-daemon-stopped",
        "docker-stopped",
        "docker-switching",
        "docker-pinned",
        "docker-renamed",
        "docker-aside",
        "docker-mounted",
        "docker-starting",
        "docker-daemon-started",
        "docker-checked",
        "docker-container-started",
    ];
    for at in points.into_iter().chain(copied) {
        killed(&engine, &["docker", "enable", "--size", "3G"], at);
        let outcome = recovered(&engine, at);
        assert_eq!(everything(&engine), before, "{at}: {outcome}");
        assert_eq!(in_pool(&engine), outcome == "finished", "{at}");
        if outcome == "finished" {
            engine.ok(&["docker", "disable"]);
        }
        assert_eq!(everything(&engine), before, "{at}");
        assert_eq!(
            (settings(&engine), beside(&engine)),
            (text.clone(), vec!["data".to_owned()]),
            "{at}"
        );
    }
    for at in [
        "docker-leaving",
        "docker-daemon-stopped",
        "docker-left",
        "docker-giving",
        "docker-unstubbed",
        "docker-given",
        "docker-unpinned",
        "docker-daemon-started",
        "docker-cleaning",
        "docker-old-removed",
    ] {
        if !in_pool(&engine) {
            engine.ok(&["docker", "enable", "--size", "3G"]);
        }
        engine.sh("agent", &format!("echo {at} > /opt/made"));
        killed(&engine, &["docker", "disable"], at);
        let outcome = recovered(&engine, at);
        assert_eq!(everything(&engine), before, "{at}: {outcome}");
        assert_eq!(in_pool(&engine), outcome == "rolled-back", "{at}");
        assert_eq!(engine.sh("agent", "cat /opt/made"), at);
    }
    if in_pool(&engine) {
        engine.ok(&["docker", "disable"]);
    }
    assert_eq!(
        (settings(&engine), beside(&engine)),
        (text, vec!["data".to_owned()])
    );
}

#[test]
fn killed_on_the_way_in_and_out_from_ext4() {
    way_in_and_out(Layout::OverlayOnExt4);
}

#[test]
fn killed_on_the_way_in_and_out_on_the_btrfs_driver() {
    way_in_and_out(Layout::Btrfs);
}

fn way_back(layout: Layout) {
    let engine = populated(layout);
    enable(&engine);
    let ws = workspace(&engine);
    engine.sh("agent", "echo then > /opt/state");
    killed(&engine, &["-s", &ws, "checkpoint"], "docker-kept");
    let at = id_of(&engine.ok(&["-s", &ws, "checkpoint"]));
    let then = everything(&engine);
    let made = [
        "docker-made",
        "docker-exchanged",
        "docker-shown",
        "docker-daemon-started",
    ];
    let first = ["docker-noted", "docker-container-stopped", "rewind-safety"];
    let later = ["docker-daemon-stopped", "docker-hidden", "forest-rooted"];
    for point in first
        .iter()
        .chain(&later)
        .chain(&made)
        .chain(&["docker-container-started"])
    {
        engine.sh("agent", "echo later > /opt/state");
        engine.run("late", &[]);
        let now = everything(&engine);
        killed(
            &engine,
            &["-s", &ws, "rewind", &at, "--files", "--whole-docker"],
            point,
        );
        let outcome = recovered(&engine, point);
        let finished = outcome == "finished";
        assert_eq!(finished, !first.contains(point), "{point}: {outcome}");
        assert_eq!(
            everything(&engine),
            if finished { then.clone() } else { now },
            "{point}"
        );
        let want = if finished { "then" } else { "later" };
        assert_eq!(engine.sh("agent", "cat /opt/state"), want, "{point}");
        assert!(in_pool(&engine), "{point}");
        if !finished {
            engine.docker(&["rm", "-f", "late"]);
        }
    }
    engine.ok(&["docker", "disable"]);
}

#[test]
fn killed_on_the_way_back_on_overlay2() {
    way_back(Layout::OverlayOnExt4);
}

#[test]
fn killed_on_the_way_back_on_the_btrfs_driver() {
    way_back(Layout::Btrfs);
}
