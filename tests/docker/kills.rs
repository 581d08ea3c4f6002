//! Killed anywhere, and failing: `recover` brings the container up, as before or as wanted.

use std::os::unix::process::ExitStatusExt;
use std::path::Path;

use crate::engine::{Engine, Layout};
use crate::manifest::Manifest;
use crate::points::{LIVING, LOST, POINTS};
use crate::rewinds::{frozen, id_of, same_but_for_making, tracked};

/// Kills itself at a point; false if it did not come there.
fn killed_at(engine: &Engine, point: &str, args: &[&str]) -> bool {
    let mut c = engine.respool();
    let out = c
        .args(["--json", "--yes"])
        .args(args)
        .env("RESPOOL_KILL_AT", point)
        .output()
        .expect("respool");
    out.status.signal() == Some(9)
}

fn killed_anywhere(layout: Layout, elsewhere: &[&str], points: &[&str], run: &[&str]) {
    let engine = Engine::start(layout);
    engine.run("agent", run);
    let ws = tracked(&engine);
    let file = Path::new(&ws).join("file");
    engine.sh("agent", "echo then > /opt/state; mkdir /opt/d; echo x > /opt/d/x");
    let then = frozen(&engine, "agent");
    let at = id_of(&engine.ok(&["-s", &ws, "checkpoint"]));
    std::fs::write(&file, "two\n").expect("a change");
    engine.sh(
        "agent",
        "echo later > /opt/state; rm -r /opt/d; rm /usr/bin/ls; echo y > /opt/e",
    );
    let later = frozen(&engine, "agent");
    let (mut finished, mut rolled_back) = (0, 0);
    for point in points {
        eprintln!("killed at {point}");
        let came = killed_at(&engine, point, &["-s", &ws, "rewind", &at, "--files"]);
        assert_eq!(came, !elsewhere.contains(point), "{point}");
        if came {
            let doc = engine.ok(&["recover"]);
            let outcome = doc[0]["outcome"]
                .as_str()
                .unwrap_or_else(|| panic!("{point}: {doc}"))
                .to_owned();
            assert_eq!(engine.state("agent"), "running", "{point}");
            let (tree, text): (&Manifest, _) = if outcome == "finished" {
                finished += 1;
                (&then, "one\n")
            } else {
                rolled_back += 1;
                (&later, "two\n")
            };
            if run.contains(&"--rm") {
                same_but_for_making(tree, &frozen(&engine, "agent"), point);
            } else {
                tree.assert_same(&frozen(&engine, "agent"), point);
            }
            assert_eq!(std::fs::read_to_string(&file).expect("the file"), text, "{point}");
        }
        if std::fs::read_to_string(&file).expect("the file") == "one\n" {
            engine.ok(&["-s", &ws, "undo", "--files"]);
        }
        let left: Vec<String> = beside(&engine);
        assert!(left.is_empty(), "{point}: {left:?}");
    }
    same_but_for_making(&later, &frozen(&engine, "agent"), "at the end");
    assert!(
        finished > 3 && rolled_back > 0,
        "{finished} finished, {rolled_back} rolled back"
    );
}

/// Roots that were exchanged and are still there.
fn beside(engine: &Engine) -> Vec<String> {
    let all = std::fs::read_dir(engine.disk().join("data/btrfs/subvolumes"))
        .into_iter()
        .flatten()
        .flatten();
    let names = all.map(|e| e.file_name().to_string_lossy().into_owned());
    names.filter(|n| n.starts_with(".respool")).collect()
}

#[test]
fn killed_anywhere_on_the_btrfs_driver() {
    killed_anywhere(Layout::Btrfs, &["restore-step-4"], POINTS, &[]);
}

#[test]
fn killed_anywhere_on_overlay2_on_btrfs() {
    killed_anywhere(
        Layout::OverlayOnBtrfs,
        &["swap-made", "swap-exchanged"],
        POINTS,
        &[],
    );
}

#[test]
fn killed_anywhere_on_overlay2_on_ext4() {
    killed_anywhere(
        Layout::OverlayOnExt4,
        &["swap-made", "swap-exchanged"],
        POINTS,
        &[],
    );
}

#[test]
fn one_started_with_rm_survives_a_kill_anywhere_on_the_btrfs_driver() {
    let elsewhere = ["remount-copied", "remount-exchanged", "remount-unmounted"];
    killed_anywhere(Layout::Btrfs, &elsewhere, LIVING, &["--rm"]);
}

#[test]
fn one_started_with_rm_survives_a_kill_anywhere_on_overlay2() {
    killed_anywhere(Layout::OverlayOnBtrfs, &[], LIVING, &["--rm"]);
}

#[test]
fn killed_while_it_is_paused_it_goes_on() {
    let engine = Engine::start(Layout::OverlayOnExt4);
    engine.run("agent", &[]);
    let ws = tracked(&engine);
    engine.sh("agent", "echo x > /opt/new");
    assert!(killed_at(&engine, "checkpoint-read", &["-s", &ws, "checkpoint"]));
    let on = crate::common::wait_until(std::time::Duration::from_secs(10), || {
        engine.state("agent") == "running"
    });
    assert!(on, "it stays {}", engine.state("agent"));
    engine.ok(&["-s", &ws, "checkpoint"]);
    assert_eq!(engine.state("agent"), "running");
}

/// The state of the checkpoint cannot be started: everything is as before, and both causes are told.
fn start_fails(layout: Layout) {
    let engine = Engine::start(layout);
    let good = "trap exit TERM; while :; do sleep 0.1; done";
    engine.docker(&[
        "run",
        "-d",
        "--name",
        "agent",
        "--network",
        "none",
        "box:1",
        "/bin/sh",
        "-c",
        "[ -e /opt/main ] && exec /bin/sh /opt/main; trap exit TERM; while :; do sleep 0.1; done",
    ]);
    let ws = tracked(&engine);
    let file = Path::new(&ws).join("file");
    engine.sh("agent", "echo 'exit 3' > /opt/main");
    let at = id_of(&engine.ok(&["-s", &ws, "checkpoint"]));
    engine.sh(
        "agent",
        &format!("echo '{good}' > /opt/main; echo kept > /opt/kept"),
    );
    std::fs::write(&file, "two\n").expect("a change");
    let before = frozen(&engine, "agent");
    let id = engine.id("agent");
    let (code, doc, said) = engine.answer(&["-s", &ws, "rewind", &at, "--files"]);
    assert_eq!(code, Some(1), "{doc}\n{said}");
    let message = doc["error"]["message"].as_str().expect("a message");
    assert!(message.contains("it ended at once with code 3"), "{message}");
    assert!(message.contains("everything is as it was before"), "{message}");
    assert_eq!(
        (engine.state("agent"), engine.id("agent")),
        ("running".into(), id)
    );
    before.assert_same(&frozen(&engine, "agent"), "after the failure");
    assert_eq!(std::fs::read_to_string(&file).expect("the file"), "two\n");
    let log = engine.ok(&["-s", &ws, "log"]);
    assert_eq!(log[0]["state"], "rolled-back", "{log}");
}

#[test]
fn one_that_cannot_start_is_exchanged_back_on_the_btrfs_driver() {
    start_fails(Layout::Btrfs);
}

#[test]
fn one_that_cannot_start_is_made_as_before_on_overlay2() {
    start_fails(Layout::OverlayOnBtrfs);
}

/// Its engine removed it, and nobody was there.
#[test]
fn one_started_with_rm_that_is_gone_is_made_again() {
    let engine = Engine::start(Layout::Btrfs);
    engine.run(
        "agent",
        &["--rm", "-e", "KEY=value", "-v", "data:/data", "-w", "/opt"],
    );
    let ws = tracked(&engine);
    engine.sh("agent", "echo then > /opt/state");
    let then = frozen(&engine, "agent");
    let at = id_of(&engine.ok(&["-s", &ws, "checkpoint"]));
    engine.sh("agent", "echo later > /opt/state");
    let args = ["-s", &ws, "rewind", &at, "--files"];
    assert!(killed_at(&engine, "living-kept", &args));
    engine.docker(&["rm", "-f", "agent"]);
    assert!(killed_at(&engine, LOST, &["recover"]));
    let doc = engine.ok(&["recover"]);
    assert_eq!(doc[0]["outcome"], "finished", "{doc}");
    assert_eq!(engine.state("agent"), "running");
    same_but_for_making(&then, &frozen(&engine, "agent"), "made again");
    assert_eq!(
        engine.sh("agent", "echo $KEY; pwd; ls -d /data; cat state"),
        "value\n/opt\n/data\nthen"
    );
    assert_eq!(engine.inspect("agent")["HostConfig"]["AutoRemove"], true);
    // no key of it stays behind
    let left = crate::common::run(
        "find",
        &[
            engine.dir().join("state").as_os_str(),
            "-name".as_ref(),
            "ct-*.json".as_ref(),
        ],
    );
    assert_eq!(left, "");
}
