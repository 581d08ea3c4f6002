//! All of Docker in a pool: there, back to a checkpoint, and out again.

use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::engine::{Engine, Layout};
use crate::manifest::Manifest;
use crate::rewinds::{frozen, id_of};

/// What only a root file system can have.
const NASTY: &str = r"
rm -f /usr/share/doc/gone; rm -rf /usr/share/doc/old; mkdir /usr/share/doc/old; echo new > /usr/share/doc/old/x
mkdir -p /opt/pk; cp /bin/cat /opt/pk/capcat; setcap cap_net_raw+ep /opt/pk/capcat; ln /opt/pk/capcat /opt/pk/hard
ln /usr/bin/cat /opt/pk/hardcat; mknod /opt/pk/null c 1 3; mkfifo /opt/pk/fifo; chmod 4755 /usr/bin/head
echo a > /opt/pk/a; setfacl -m u:1000:rwx /opt/pk/a; touch -d '2001-02-03 04:05:06.789' /opt/pk/a
";

const SETTINGS: &str = "{\n   \"log-level\" : \"warn\" ,\n   \"max-concurrent-downloads\": 3 }\n";

/// A daemon that is told its driver by nobody, with these settings.
pub fn untold(layout: Layout, text: &str) -> Engine {
    let mut engine = Engine::start(layout);
    engine.down();
    engine.told = false;
    std::fs::write(config(&engine), text).expect("settings");
    engine.up();
    engine
}

pub fn config(engine: &Engine) -> PathBuf {
    engine.dir().join("daemon.json")
}

/// A daemon with two containers, an image of its own and a volume.
pub fn populated(layout: Layout) -> Engine {
    let engine = untold(layout, SETTINGS);
    engine.docker(&["volume", "create", "v1"]);
    engine.run("agent", &["-v", "v1:/vol"]);
    engine.run("other", &["--restart", "always"]);
    engine.docker(&[
        "create",
        "--name",
        "still",
        "--network",
        "none",
        "box:1",
        "/bin/true",
    ]);
    engine.sh("agent", NASTY);
    engine.sh("agent", "echo one > /vol/f");
    engine.docker(&["commit", "agent", "mine:1"]);
    engine
}

pub fn enable(engine: &Engine) -> Value {
    let args = ["docker", "enable", "--size", "3G"];
    let args = if engine.layout == Layout::OverlayOnExt4 {
        &args[..]
    } else {
        &args[..2]
    };
    engine.ok(args)
}

pub fn workspace(engine: &Engine) -> String {
    let ws = engine.dir().join("ws");
    std::fs::create_dir(&ws).expect("the workspace");
    std::fs::write(ws.join("file"), "one\n").expect("a file");
    let ws = ws.to_str().expect("UTF-8").to_owned();
    engine.ok(&["track", &ws, "--size", "3G", "--container", "agent"]);
    ws
}

fn names(engine: &Engine, what: &[&str]) -> Vec<String> {
    let mut all: Vec<String> = engine.docker(what).lines().map(str::to_owned).collect();
    all.sort();
    all
}

pub fn everything(engine: &Engine) -> Vec<Vec<String>> {
    vec![
        names(
            engine,
            &["ps", "-a", "--format", "{{.ID}} {{.Names}} {{.Image}} {{.State}}"],
        ),
        names(
            engine,
            &["images", "-a", "--format", "{{.ID}} {{.Repository}}:{{.Tag}}"],
        ),
        names(engine, &["volume", "ls", "-q"]),
        names(engine, &["info", "--format", "{{.Driver}} {{.DockerRootDir}}"]),
    ]
}

pub fn settings(engine: &Engine) -> String {
    std::fs::read_to_string(config(engine)).expect("settings")
}

/// The folder of the data shows a subvolume.
pub fn in_pool(engine: &Engine) -> bool {
    use std::os::unix::fs::MetadataExt;
    let root = std::fs::metadata(engine.disk().join("data")).expect("data");
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").expect("mounts");
    let at = format!(" {} ", engine.disk().join("data").display());
    root.ino() == 256
        && mounts
            .lines()
            .any(|l| l.contains(&at) && l.contains("/docker/dk-"))
}

pub fn beside(engine: &Engine) -> Vec<String> {
    let all = std::fs::read_dir(engine.disk()).expect("disk").flatten();
    let mut out: Vec<String> = all
        .map(|e| e.file_name().to_string_lossy().into_owned())
        .collect();
    out.retain(|n| n != "lost+found" && n != ".respool");
    out.sort();
    out
}

/// Into the pool: nothing is missing, and the settings say one thing more.
fn moved_in(engine: &Engine) {
    let (before, agent) = (everything(engine), frozen(engine, "agent"));
    let dry = engine.ok(&["docker", "enable", "--dry-run"]);
    assert!(dry["plan"]["steps"].to_string().contains("aside as"), "{dry}");
    assert_eq!(
        dry["plan"]["containers"],
        serde_json::json!(["agent", "other"]),
        "{dry}"
    );
    assert_eq!(everything(engine), before, "a dry run changes nothing");
    let pid = engine.pid();
    let doc = enable(engine);
    assert_eq!(doc["enabled"], true, "{doc}");
    assert!(in_pool(engine));
    assert_ne!(engine.pid(), pid, "the daemon was started anew");
    assert_eq!(everything(engine), before, "after enable");
    agent.assert_same(&frozen(engine, "agent"), "the container after enable");
    assert_eq!(engine.sh("agent", "cat /vol/f"), "one");
    let driver = before[3][0].split(' ').next().expect("driver").to_owned();
    let added = format!("{{\n   \"storage-driver\": \"{driver}\",\n");
    assert_eq!(settings(engine), SETTINGS.replacen("{\n", &added, 1));
    // once is enough
    let (code, doc, _) = engine.answer(&["docker", "enable"]);
    assert_eq!(code, Some(3), "{doc}");
}

/// A checkpoint, and what is then.
struct Then {
    id: String,
    all: Vec<Vec<String>>,
    agent: Manifest,
    other: Manifest,
}

fn checkpoint(engine: &Engine, ws: &str) -> Then {
    let doc = engine.ok(&["-s", ws, "checkpoint"]);
    let rows = doc["parts"].as_array().expect("parts");
    let covered = |kind: &str| rows.iter().any(|p| p["kind"] == kind && p["covered"] == true);
    assert!(covered("docker") && covered("container"), "{doc}");
    assert_eq!(
        (engine.state("agent"), engine.state("other")),
        ("running".into(), "running".into())
    );
    Then {
        id: id_of(&doc),
        all: everything(engine),
        agent: frozen(engine, "agent"),
        other: frozen(engine, "other"),
    }
}

/// By default the sandbox's container goes back alone.
fn one_back(engine: &Engine, ws: &str, then: &Then) {
    engine.sh("agent", "rm -rf /opt/pk; echo x > /opt/new; echo two > /vol/f");
    engine.sh("other", "echo x > /opt/new");
    std::fs::write(Path::new(ws).join("file"), "two\n").expect("a change");
    let doc = engine.ok(&["-s", ws, "rewind", &then.id, "--files"]);
    assert!(doc["restored"]["container"]["agent"].is_object(), "{doc}");
    then.agent.assert_same(&frozen(engine, "agent"), "one container");
    assert_eq!(engine.sh("other", "cat /opt/new"), "x", "others stay");
    engine.ok(&["-s", ws, "undo", "--files"]);
    assert_eq!(engine.sh("agent", "cat /opt/new"), "x");
}

/// The plan of a rewind of everything names everybody's.
fn named(engine: &Engine, ws: &str, id: &str) {
    let plan = engine.ok(&["-s", ws, "rewind", id, "--files", "--whole-docker", "--dry-run"]);
    let told: Vec<&str> = plan["plan"]["blockers"]
        .as_array()
        .expect("blockers")
        .iter()
        .filter(|b| b["kind"] == "docker")
        .filter_map(|b| b["what"].as_str())
        .collect();
    for want in [
        "container agent loses what it changed since then, and is started, as it ran then",
        "container other loses what it changed since then, and is started, as it ran then",
        "container late was made since then: it is gone",
        "container still was removed since then: it comes back, and is stopped, as it was then",
        "images that came since then are gone: later:1",
        "volumes that came since then are gone: v2",
        "volumes lose what was changed in them since then: v1",
    ] {
        assert!(told.contains(&want), "{want}: {told:#?}");
    }
}

/// Everything goes back, is undone, redone, and undone; what is at the end.
fn all_back(engine: &Engine, ws: &str, then: &Then) -> Vec<Vec<String>> {
    engine.docker(&["rm", "-f", "still"]);
    engine.docker(&["tag", "box:1", "later:1"]);
    engine.docker(&["volume", "create", "v2"]);
    engine.run("late", &[]);
    named(engine, ws, &then.id);
    let later = everything(engine);
    let doc = engine.ok(&["-s", ws, "rewind", &then.id, "--files", "--whole-docker"]);
    assert_eq!(doc["verified"], true, "{doc}");
    assert_eq!(doc["restored"]["docker"]["technique"], "whole-docker", "{doc}");
    assert_eq!(everything(engine), then.all, "after the rewind of everything");
    then.agent
        .assert_same(&frozen(engine, "agent"), "agent, with everything");
    then.other
        .assert_same(&frozen(engine, "other"), "other, with everything");
    assert_eq!(engine.sh("agent", "cat /vol/f"), "one");
    let file = Path::new(ws).join("file");
    assert_eq!(std::fs::read_to_string(file).expect("file"), "one\n");
    engine.ok(&["-s", ws, "undo", "--files"]);
    assert_eq!(everything(engine), later, "after the undo");
    assert_eq!(engine.sh("agent", "cat /opt/new /vol/f"), "x\ntwo");
    assert_eq!(engine.sh("other", "cat /opt/new"), "x");
    engine.ok(&["-s", ws, "redo", "--files"]);
    assert_eq!(everything(engine), then.all, "after the redo");
    engine.ok(&["-s", ws, "undo", "--files"]);
    later
}

/// Out of the pool: what was made meanwhile comes along.
fn moved_out(engine: &Engine, later: &[Vec<String>]) {
    let agent = frozen(engine, "agent");
    let plan = engine.ok(&["docker", "disable", "--dry-run"]);
    assert!(
        plan["plan"]["lost"].to_string().contains("of all of Docker"),
        "{plan}"
    );
    let doc = engine.ok(&["docker", "disable"]);
    assert_eq!(doc["enabled"], false, "{doc}");
    assert!(!in_pool(engine));
    assert_eq!(everything(engine), later, "after disable");
    agent.assert_same(&frozen(engine, "agent"), "the container after disable");
    assert_eq!(settings(engine), SETTINGS, "byte for byte");
    assert_eq!(beside(engine), ["data"], "nothing is left");
    let ran = engine.docker(&[
        "run",
        "--rm",
        "--network",
        "none",
        "mine:1",
        "/bin/cat",
        "/opt/pk/a",
    ]);
    assert_eq!(ran, "a");
}

fn there_and_back(layout: Layout) {
    let engine = populated(layout);
    moved_in(&engine);
    let ws = workspace(&engine);
    let then = checkpoint(&engine, &ws);
    one_back(&engine, &ws, &then);
    let later = all_back(&engine, &ws, &then);
    moved_out(&engine, &later);
    // the workspace goes on
    let at = id_of(&engine.ok(&["-s", &ws, "checkpoint"]));
    engine.sh("agent", "echo y > /opt/new");
    engine.ok(&["-s", &ws, "rewind", &at, "--files"]);
    assert_eq!(engine.sh("agent", "cat /opt/new"), "x");
}

#[test]
fn there_and_back_from_ext4() {
    there_and_back(Layout::OverlayOnExt4);
}

#[test]
fn there_and_back_on_the_btrfs_driver() {
    there_and_back(Layout::Btrfs);
}
