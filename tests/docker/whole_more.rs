//! All of Docker in a pool: what fails, what is refused, and other ways in which a daemon is run.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use crate::common::wait_until;
use crate::engine::{Engine, Layout};
use crate::rewinds::id_of;
use crate::whole::{beside, config, enable, everything, in_pool, populated, settings, untold, workspace};
use crate::whole_kills::killed;

/// Runs the program until it stops itself there, does something, and lets it go on: exit code and answer.
fn disturbed(engine: &Engine, args: &[&str], at: &str, disturb: impl FnOnce()) -> (Option<i32>, String) {
    let mut child: Child = engine
        .respool()
        .args(["--json", "--yes"])
        .args(args)
        .env("RESPOOL_STOP_AT", at)
        .stdout(Stdio::piped())
        .spawn()
        .expect("respool");
    let pid = Pid::from_child(&child);
    let is_stopped = || {
        let text =
            std::fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).unwrap_or_default();
        text.rsplit(')')
            .next()
            .is_some_and(|r| r.trim_start().starts_with('T'))
    };
    let stopped = wait_until(Duration::from_secs(120), is_stopped);
    assert!(stopped, "{at} is never reached by {args:?}");
    disturb();
    // it comes by there again on its way back
    let ended = wait_until(Duration::from_secs(120), || {
        if is_stopped() {
            kill_process(pid, Signal::CONT).expect("go on");
        }
        child.try_wait().expect("its state").is_some()
    });
    assert!(ended, "{args:?} does not end");
    let out = child.wait_with_output().expect("an end");
    (
        out.status.code(),
        String::from_utf8_lossy(&out.stdout).into_owned(),
    )
}

/// No daemon comes up on data like this.
fn spoil(root: &Path) {
    std::fs::rename(root.join("volumes"), root.join("volumes.away")).expect("volumes");
    std::fs::write(root.join("volumes"), "").expect("no folder");
}

fn does_not_come_up(layout: Layout) {
    let engine = populated(layout);
    let (before, text) = (everything(&engine), settings(&engine));
    let data = engine.disk().join("data");
    let (code, said) = disturbed(
        &engine,
        &["docker", "enable", "--size", "3G"],
        "docker-mounted",
        || spoil(&data),
    );
    assert_eq!(code, Some(1), "{said}");
    assert!(
        said.contains("dockerd did not come up") && said.contains("everything is as it was before"),
        "{said}"
    );
    assert_eq!((everything(&engine), settings(&engine)), (before.clone(), text));
    assert!(!in_pool(&engine));
    assert_eq!(beside(&engine), ["data"]);

    enable(&engine);
    let ws = workspace(&engine);
    let at = id_of(&engine.ok(&["-s", &ws, "checkpoint"]));
    engine.sh("agent", "echo later > /opt/state");
    engine.run("late", &[]);
    let now = everything(&engine);
    let args = ["-s", &ws, "rewind", &at, "--files", "--whole-docker"];
    let (code, said) = disturbed(&engine, &args, "docker-shown", || spoil(&data));
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("everything is as it was before"), "{said}");
    assert_eq!(everything(&engine), now);
    assert_eq!(engine.sh("agent", "cat /opt/state"), "later");

    let (code, said) = disturbed(&engine, &["docker", "disable"], "docker-given", || spoil(&data));
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("everything is as it was before"), "{said}");
    assert!(in_pool(&engine));
    assert_eq!(everything(&engine), now);
    engine.ok(&["docker", "disable"]);
    assert_eq!(
        (everything(&engine), beside(&engine)),
        (now, vec!["data".to_owned()])
    );
}

#[test]
fn a_daemon_that_does_not_come_up_has_its_data_back_on_ext4() {
    does_not_come_up(Layout::OverlayOnExt4);
}

#[test]
fn a_daemon_that_does_not_come_up_has_its_data_back_on_the_btrfs_driver() {
    does_not_come_up(Layout::Btrfs);
}

/// Data on a mount of its own, as in most dev containers; containers that outlive their daemon; a driver that the command
/// line names.
fn mounted_and_live(layout: Layout) {
    let mut engine = Engine::start(layout);
    engine.down();
    let data = engine.disk().join("data");
    let bound = Command::new("mount")
        .arg("--bind")
        .arg(&data)
        .arg(&data)
        .status()
        .expect("mount");
    assert!(bound.success());
    let text = "{\"live-restore\": true}";
    std::fs::write(config(&engine), text).expect("settings");
    engine.up();
    engine.run("agent", &[]);
    engine.run("paused", &[]);
    engine.docker(&["pause", "paused"]);
    let before = everything(&engine);
    let all = ["docker", "enable", "--size", "3G"];
    let args = if layout == Layout::OverlayOnExt4 {
        &all
    } else {
        &all[..2]
    };
    killed(&engine, args, "docker-moving");
    engine.ok(&["recover"]);
    assert_eq!(everything(&engine), before);
    if !in_pool(&engine) {
        engine.ok(args);
    }
    assert!(in_pool(&engine));
    assert_eq!(settings(&engine), text, "the command line names the driver");
    assert_eq!(everything(&engine), before);
    engine.sh("agent", "echo x > /opt/new");
    let ws = workspace(&engine);
    let at = id_of(&engine.ok(&["-s", &ws, "checkpoint"]));
    engine.sh("agent", "echo y > /opt/new");
    engine.ok(&["-s", &ws, "rewind", &at, "--files", "--whole-docker"]);
    assert_eq!(everything(&engine), before, "the paused one is paused again");
    assert_eq!(engine.sh("agent", "cat /opt/new"), "x");
    engine.ok(&["docker", "disable"]);
    assert_eq!(everything(&engine), before);
    assert_eq!(engine.sh("agent", "cat /opt/new"), "x");
    assert_eq!(settings(&engine), text);
    let left = std::fs::read_dir(&data).expect("data").flatten();
    let left: Vec<_> = left
        .map(|e| e.file_name())
        .filter(|n| n.to_string_lossy().contains("respool"))
        .collect();
    assert!(left.is_empty(), "{left:?}");
    engine.docker(&["rm", "-f", "agent", "paused"]);
}

#[test]
fn data_that_is_a_mount_and_containers_that_live_on_with_ext4() {
    mounted_and_live(Layout::OverlayOnExt4);
}

#[test]
fn data_that_is_a_mount_and_containers_that_live_on_with_btrfs() {
    mounted_and_live(Layout::OverlayOnBtrfs);
}

#[test]
fn the_setting_is_followed_where_somebody_answers() {
    // a driver that the settings name is the user's own
    let own = "{\"storage-driver\": \"overlay2\"}";
    let engine = untold(Layout::OverlayOnBtrfs, own);
    engine.run("agent", &[]);
    let config = engine.dir().join("config.toml");
    let named = config.to_str().expect("UTF-8");
    let ws = engine.dir().join("ws");
    std::fs::create_dir(&ws).expect("the workspace");
    let ws = ws.to_str().expect("UTF-8");
    std::fs::write(&config, "[sandbox]\ndocker_snapshots = true\n").expect("config");
    // without an answer it is said
    let out = engine
        .respool()
        .args(["--config", named, "track", ws, "--size", "1G"])
        .stdin(Stdio::null())
        .output()
        .expect("respool");
    let said = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(
        said.contains("docker_snapshots is true") && said.contains("docker enable"),
        "{said}"
    );
    assert!(!in_pool(&engine));
    engine.ok(&["--config", named, "track", ws, "--size", "1G"]);
    assert!(in_pool(&engine));
    assert_eq!(settings(&engine), own);
    engine.sh("agent", "echo x > /opt/new");
    std::fs::write(&config, "[sandbox]\ndocker_snapshots = false\n").expect("config");
    let other = engine.dir().join("ws2");
    std::fs::create_dir(&other).expect("the workspace");
    engine.ok(&[
        "--config",
        named,
        "track",
        other.to_str().expect("UTF-8"),
        "--size",
        "1G",
    ]);
    assert!(!in_pool(&engine));
    assert_eq!(engine.sh("agent", "cat /opt/new"), "x");
    assert_eq!(settings(&engine), own);
}

#[test]
fn what_would_be_lost_or_hidden_is_refused_before_anything_is_stopped() {
    let engine = populated(Layout::OverlayOnExt4);
    let pid = engine.pid();
    engine.run("gone", &["--rm"]);
    let why = |args: &[&str]| {
        let (code, doc, _) = engine.answer(args);
        assert_eq!(code, Some(3), "{doc}");
        doc["error"]["message"].as_str().expect("a message").to_owned()
    };
    assert!(why(&["docker", "enable"]).contains("container gone was started with --rm"));
    engine.docker(&["rm", "-f", "gone"]);
    let inside = engine.disk().join("data/pool.img");
    let said = why(&["docker", "enable", "--image", inside.to_str().expect("UTF-8")]);
    assert!(said.contains("lies in Docker's data"), "{said}");
    assert!(why(&["docker", "disable"]).contains("in no pool"));
    let volume = engine.disk().join("data/volumes/v1/_data");
    let mounted = Command::new("mount")
        .args(["-t", "ramfs", "x"])
        .arg(&volume)
        .status()
        .expect("mount");
    assert!(mounted.success());
    let said = why(&["docker", "enable"]);
    rustix::mount::unmount(&volume, rustix::mount::UnmountFlags::empty()).expect("unmount");
    assert!(said.contains("a file system of its own"), "{said}");
    std::fs::write(config(&engine), "{\"storage-driver\": \"vfs\"}").expect("settings");
    let said = why(&["docker", "enable"]);
    assert!(said.contains("names the storage driver vfs"), "{said}");
    // and a rewind of everything needs it in a pool
    let ws = workspace(&engine);
    let at = id_of(&engine.ok(&["-s", &ws, "checkpoint"]));
    let said = why(&["-s", &ws, "rewind", &at, "--files", "--whole-docker"]);
    assert!(said.contains("in no pool"), "{said}");
    assert_eq!(engine.pid(), pid, "nothing was stopped");
}
