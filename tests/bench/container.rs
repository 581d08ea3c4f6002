//! How long a running container stands still for a checkpoint, and how long its way back takes, with 50,000 files in
//! its upper layer: `cargo bench --bench container` (root, dockerd). `docker commit` of the same beside it.

#[path = "../common/mod.rs"]
mod common;
#[path = "../docker/engine.rs"]
mod engine;

use std::time::Instant;

use engine::{Engine, Layout};

const FILES: u32 = 50_000;
const ROUNDS: usize = 7;

fn median(mut all: Vec<u64>) -> u64 {
    all.sort_unstable();
    all[all.len() / 2]
}

fn measure(layout: Layout, whole: bool) {
    let engine = Engine::start(layout);
    engine.run("agent", &[]);
    if whole {
        engine.ok(&["docker", "enable", "--size", "3G"]);
    }
    let ws = engine.dir().join("ws");
    std::fs::create_dir(&ws).expect("the workspace");
    let ws = ws.to_str().expect("UTF-8").to_owned();
    engine.ok(&["track", &ws, "--size", "512M", "--container", "agent"]);
    let folders = FILES / 500;
    engine.sh(
        "agent",
        &format!(
            "d=0; while [ $d -lt {folders} ]; do mkdir -p /opt/n/$d; f=0; while [ $f -lt 500 ]; do echo $d $f > /opt/n/$d/$f; f=$((f+1)); done; d=$((d+1)); done"
        ),
    );
    engine.ok(&["-s", &ws, "checkpoint"]);
    let (mut taken, mut paused, mut back) = (Vec::new(), Vec::new(), Vec::new());
    let mut at = String::new();
    for round in 0..ROUNDS {
        engine.sh(
            "agent",
            &format!("echo {round} > /opt/round; echo {round} > /opt/n/7/7"),
        );
        let doc = engine.ok(&["-s", &ws, "checkpoint"]);
        taken.push(doc["ms"].as_u64().expect("ms"));
        paused.push(doc["pause_ms"].as_u64().expect("pause_ms"));
        doc["checkpoint"].as_str().expect("id").clone_into(&mut at);
    }
    for round in 0..3 {
        engine.sh(
            "agent",
            &format!("echo later {round} > /opt/round; rm -r /opt/n/{round}"),
        );
        let doc = engine.ok(&["-s", &ws, "rewind", &at, "--files"]);
        back.push(doc["restored"]["container"]["agent"]["ms"].as_u64().expect("ms"));
    }
    let began = Instant::now();
    engine.docker(&["commit", "agent", "kept:1"]);
    let commit = began.elapsed().as_millis() as u64;
    let (taken, paused, back) = (median(taken), median(paused), median(back));
    println!(
        "{layout:?}{}: checkpoint {taken} ms, paused {paused} ms; back {back} ms without stop and start; docker commit {commit} ms ({}x)",
        if whole { ", all of Docker in a pool" } else { "" },
        commit / taken.max(1)
    );
    if whole {
        engine.ok(&["docker", "disable"]);
    }
}

fn main() {
    for layout in [Layout::Btrfs, Layout::OverlayOnBtrfs, Layout::OverlayOnExt4] {
        measure(layout, false);
    }
    measure(Layout::OverlayOnExt4, true);
}
