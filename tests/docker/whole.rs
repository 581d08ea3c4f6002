//! All of Docker in a pool: there, back to a checkpoint, and out again.

use std::path::Path;

use serde_json::Value;

use crate::engine::{Engine, Layout};
use crate::rewinds::{frozen, id_of};

/// What only a root file system can have.
const NASTY: &str = r"
rm -f /usr/share/doc/gone; rm -rf /usr/share/doc/old; mkdir /usr/share/doc/old; echo new > /usr/share/doc/old/x
mkdir -p /opt/pk; cp /bin/cat /opt/pk/capcat; setcap cap_net_raw+ep /opt/pk/capcat; ln /opt/pk/capcat /opt/pk/hard
ln /usr/bin/cat /opt/pk/hardcat; mknod /opt/pk/null c 1 3; mkfifo /opt/pk/fifo; chmod 4755 /usr/bin/head
echo a > /opt/pk/a; setfacl -m u:1000:rwx /opt/pk/a; touch -d '2001-02-03 04:05:06.789' /opt/pk/a
";

const SETTINGS: &str = "{\n   \"log-level\" : \"warn\" ,\n   \"max-concurrent-downloads\": 3 }\n";

/// A daemon with two containers, an image of its own and a volume.
fn populated(layout: Layout) -> Engine {
    let mut engine = Engine::start_untold(layout);
    engine.down();
    std::fs::write(engine.config(), SETTINGS).expect("settings");
    engine.up();
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

fn enable(engine: &Engine) -> Value {
    let args = ["docker", "enable", "--size", "3G"];
    let args = if engine.layout == Layout::OverlayOnExt4 {
        &args[..]
    } else {
        &args[..2]
    };
    engine.ok(args)
}

fn workspace(engine: &Engine) -> String {
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

fn everything(engine: &Engine) -> Vec<Vec<String>> {
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

fn settings(engine: &Engine) -> String {
    std::fs::read_to_string(engine.config()).expect("settings")
}

/// The folder of the data shows a subvolume.
fn in_pool(engine: &Engine) -> bool {
    use std::os::unix::fs::MetadataExt;
    let root = std::fs::metadata(engine.disk().join("data")).expect("data");
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").expect("mounts");
    let at = format!(" {} ", engine.disk().join("data").display());
    root.ino() == 256
        && mounts
            .lines()
            .any(|l| l.contains(&at) && l.contains("/docker/dk-"))
}

fn beside(engine: &Engine) -> Vec<String> {
    let all = std::fs::read_dir(engine.disk()).expect("disk").flatten();
    let mut out: Vec<String> = all
        .map(|e| e.file_name().to_string_lossy().into_owned())
        .collect();
    out.retain(|n| n != "lost+found" && n != ".respool");
    out.sort();
    out
}

/// There, and the rewind of one container, of everything, undone, and out again with what was made meanwhile.
fn there_and_back(layout: Layout) {
    let engine = populated(layout);
    let (before, agent) = (everything(&engine), frozen(&engine, "agent"));
    let dry = engine.ok(&["docker", "enable", "--dry-run"]);
    let steps = dry["plan"]["steps"].to_string();
    assert!(steps.contains("set aside") || steps.contains("aside as"), "{dry}");
    assert_eq!(
        dry["plan"]["containers"],
        serde_json::json!(["agent", "other"]),
        "{dry}"
    );
    assert_eq!(everything(&engine), before, "a dry run changes nothing");
    let pid = engine.pid();

    let doc = enable(&engine);
    assert_eq!(doc["enabled"], true, "{doc}");
    assert!(in_pool(&engine));
    assert_ne!(engine.pid(), pid, "the daemon was started anew");
    assert_eq!(everything(&engine), before, "after enable");
    agent.assert_same(&frozen(&engine, "agent"), "the container after enable");
    assert_eq!(engine.sh("agent", "cat /vol/f"), "one");
    let driver = before[3][0].split(' ').next().expect("driver").to_owned();
    assert_eq!(
        settings(&engine),
        SETTINGS.replacen("{\n", &format!("{{\n   \"storage-driver\": \"{driver}\",\n"), 1)
    );
    // once is enough
    let (code, doc, _) = engine.answer(&["docker", "enable"]);
    assert_eq!(code, Some(3), "{doc}");

    let ws = workspace(&engine);
    let doc = engine.ok(&["-s", &ws, "checkpoint"]);
    let rows = doc["parts"].as_array().expect("parts");
    let covered = |kind: &str| rows.iter().any(|p| p["kind"] == kind && p["covered"] == true);
    assert!(covered("docker") && covered("container"), "{doc}");
    assert_eq!(
        (engine.state("agent"), engine.state("other")),
        ("running".into(), "running".into())
    );
    let at = id_of(&doc);
    let then = everything(&engine);
    let (agent, other) = (frozen(&engine, "agent"), frozen(&engine, "other"));

    // by default the sandbox's container goes back alone
    engine.sh("agent", "rm -rf /opt/pk; echo x > /opt/new; echo two > /vol/f");
    engine.sh("other", "echo x > /opt/new");
    std::fs::write(Path::new(&ws).join("file"), "two\n").expect("a change");
    let doc = engine.ok(&["-s", &ws, "rewind", &at, "--files"]);
    assert!(doc["restored"]["container"]["agent"].is_object(), "{doc}");
    agent.assert_same(&frozen(&engine, "agent"), "one container");
    assert_eq!(engine.sh("other", "cat /opt/new"), "x", "others stay");
    engine.ok(&["-s", &ws, "undo", "--files"]);
    assert_eq!(engine.sh("agent", "cat /opt/new"), "x");

    // everything
    engine.docker(&["rm", "-f", "still"]);
    engine.docker(&["tag", "box:1", "later:1"]);
    engine.docker(&["volume", "create", "v2"]);
    engine.run("late", &[]);
    let plan = engine.ok(&["-s", &ws, "rewind", &at, "--files", "--whole-docker", "--dry-run"]);
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
    let later = everything(&engine);
    let doc = engine.ok(&["-s", &ws, "rewind", &at, "--files", "--whole-docker"]);
    assert_eq!(doc["verified"], true, "{doc}");
    assert_eq!(everything(&engine), then, "after the rewind of everything");
    agent.assert_same(&frozen(&engine, "agent"), "agent in the rewind of everything");
    other.assert_same(&frozen(&engine, "other"), "other in the rewind of everything");
    assert_eq!(engine.sh("agent", "cat /vol/f"), "one");
    assert_eq!(
        std::fs::read_to_string(Path::new(&ws).join("file")).expect("file"),
        "one\n"
    );

    engine.ok(&["-s", &ws, "undo", "--files"]);
    assert_eq!(everything(&engine), later, "after the undo");
    assert_eq!(engine.sh("agent", "cat /opt/new /vol/f"), "x\ntwo");
    assert_eq!(engine.sh("other", "cat /opt/new"), "x");
    engine.ok(&["-s", &ws, "redo", "--files"]);
    assert_eq!(everything(&engine), then, "after the redo");
    engine.ok(&["-s", &ws, "undo", "--files"]);

    // and out again: what was made meanwhile comes along
    let agent = frozen(&engine, "agent");
    let plan = engine.ok(&["docker", "disable", "--dry-run"]);
    assert!(
        plan["plan"]["lost"].to_string().contains("of all of Docker"),
        "{plan}"
    );
    let doc = engine.ok(&["docker", "disable"]);
    assert_eq!(doc["enabled"], false, "{doc}");
    assert!(!in_pool(&engine));
    assert_eq!(everything(&engine), later, "after disable");
    agent.assert_same(&frozen(&engine, "agent"), "the container after disable");
    assert_eq!(settings(&engine), SETTINGS, "byte for byte");
    assert_eq!(beside(&engine), ["data"], "nothing is left");
    assert_eq!(
        engine.docker(&[
            "run",
            "--rm",
            "--network",
            "none",
            "mine:1",
            "/bin/cat",
            "/opt/pk/a"
        ]),
        "a"
    );
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
