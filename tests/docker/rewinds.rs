//! Checkpoint, rewind, undo, redo of a workspace with a container.

use std::path::Path;

use serde_json::Value;

use crate::engine::{Engine, Layout};
use crate::manifest::Manifest;

/// What exists when the checkpoint is taken.
const PREPARE: &str = r"
mkdir -p /opt/pk/bin /opt/pk/lib
rm -f /usr/share/doc/gone
rm -rf /usr/share/doc/old; mkdir /usr/share/doc/old; echo new > /usr/share/doc/old/only-this
echo changed >> /etc/issue
chmod 4755 /usr/bin/head; chown 33:33 /usr/bin/cut
for i in 1 2 3 4 5 6 7 8; do echo pkg $i > /opt/pk/lib/f$i; done
cp /bin/cat /opt/pk/bin/capcat; setcap cap_net_raw+ep /opt/pk/bin/capcat
setfattr -n user.note -v hello /opt/pk/lib/f1; setfacl -m u:1000:rwx,g:33:r /opt/pk/lib/f2
ln /opt/pk/lib/f1 /opt/pk/hard1; ln /usr/bin/cat /opt/pk/hardcat
ln -s ../x/y /opt/pk/dangling; mknod /opt/pk/null c 1 3; mkfifo /opt/pk/fifo
touch -d '2001-02-03 04:05:06.789' /opt/pk/lib/f3; mkdir -m 1777 /opt/pk/sticky; chmod 000 /opt/pk/lib/f4
";

/// What the agent does to it afterwards.
const MUTATE: &str = r"
rm -rf /opt/pk/lib; mkdir /opt/pk/lib; echo other > /opt/pk/lib/f1
setcap -r /opt/pk/bin/capcat; rm /opt/pk/fifo /opt/pk/null /opt/pk/dangling; ln -s new /opt/pk/dangling
mknod /opt/pk/null c 1 5; rm -rf /opt/pk/sticky; echo file > /opt/pk/sticky
echo back > /usr/share/doc/gone; rm -rf /usr/share/doc/old; rm -f /usr/bin/ls
mkdir -p /usr/lib/new/a/b; echo m > /usr/lib/new/a/b/m; chmod 0755 /usr/bin/head; chmod 6777 /usr/bin/cut
echo appended >> /opt/pk/hard1; echo more >> /etc/passwd; chmod 777 /; touch /newtop
";

pub fn id_of(doc: &Value) -> String {
    doc["checkpoint"].as_str().expect("an id").to_owned()
}

/// A tracked workspace with one file, and the container `agent` with it.
pub fn tracked(engine: &Engine) -> String {
    let ws = engine.dir().join("ws");
    std::fs::create_dir(&ws).expect("the workspace");
    std::fs::write(ws.join("file"), "one\n").expect("a file");
    let ws = ws.to_str().expect("UTF-8").to_owned();
    let doc = engine.ok(&["track", &ws, "--size", "512M", "--container", "agent"]);
    assert_eq!(
        doc["containers"][0]["technique"],
        engine.layout.technique(),
        "{doc}"
    );
    ws
}

/// The root of a paused container.
pub fn frozen(engine: &Engine, name: &str) -> Manifest {
    engine.docker(&["pause", name]);
    // what an engine mounts in it
    let mounted = [
        "proc",
        "sys",
        "dev",
        "etc/hosts",
        "etc/hostname",
        "etc/resolv.conf",
        "vol",
    ];
    let out = Manifest::without(&engine.root(name), &mounted);
    engine.docker(&["unpause", name]);
    out
}

/// Compares the roots of two states of a container that was started with `--rm`: one that its engine lost was made again,
/// and has what an engine puts below a new container's files anew.
pub fn same_but_for_making(a: &Manifest, b: &Manifest, what: &str) {
    let own = [".dockerenv", "etc", "etc/mtab"];
    let without = |m: &Manifest| {
        let kept =
            m.0.iter()
                .filter(|(path, _)| !own.iter().any(|o| Path::new(o) == *path));
        Manifest(kept.map(|(p, f)| (p.clone(), f.clone())).collect())
    };
    without(a).assert_same(&without(b), what);
}

fn there_and_back(layout: Layout) {
    let engine = Engine::start(layout);
    engine.run("agent", &[]);
    engine.run("other", &[]);
    engine.sh("other", "echo mine > /opt/mine");
    let ws = tracked(&engine);
    let file = Path::new(&ws).join("file");
    engine.sh("agent", PREPARE);
    let then = frozen(&engine, "agent");
    let doc = engine.ok(&["-s", &ws, "checkpoint"]);
    let rows = doc["parts"].as_array().expect("parts");
    assert!(
        rows.iter()
            .any(|p| p["kind"] == "container" && p["covered"] == true),
        "{doc}"
    );
    assert!(doc["pause_ms"].is_u64(), "{doc}");
    assert_eq!(engine.state("agent"), "running");
    let at = id_of(&doc);
    let files = Manifest::of(Path::new(&ws));
    std::fs::write(&file, "two\n").expect("a change");
    engine.sh("agent", MUTATE);
    let later = frozen(&engine, "agent");
    let (agent, other, others_pid) = (
        engine.id("agent"),
        engine.id("other"),
        engine.inspect("other")["State"]["Pid"].clone(),
    );

    let doc = engine.ok(&["-s", &ws, "rewind", &at, "--files"]);
    assert_eq!(doc["verified"], true, "{doc}");
    assert!(doc["restored"]["container"]["agent"].is_object(), "{doc}");
    files.assert_same(&Manifest::of(Path::new(&ws)), "the workspace");
    assert_eq!(
        (engine.state("agent"), engine.id("agent")),
        ("running".into(), agent.clone())
    );
    then.assert_same(&frozen(&engine, "agent"), "after the rewind");
    // nobody else's
    assert_eq!(
        (
            engine.id("other"),
            engine.inspect("other")["State"]["Pid"].clone()
        ),
        (other, others_pid)
    );
    assert_eq!(engine.sh("other", "cat /opt/mine"), "mine");
    // the engine still manages it
    assert!(engine.docker(&["diff", "agent"]).contains("/opt/pk"));
    engine.docker(&["commit", "agent", "kept:1"]);

    engine.ok(&["-s", &ws, "undo", "--files"]);
    assert_eq!(std::fs::read_to_string(&file).expect("the file"), "two\n");
    later.assert_same(&frozen(&engine, "agent"), "after the undo");
    engine.ok(&["-s", &ws, "redo", "--files"]);
    then.assert_same(&frozen(&engine, "agent"), "after the redo");
    assert_eq!(engine.id("agent"), agent);
    engine.docker(&["rm", "-f", "agent"]);
}

#[test]
fn there_and_back_on_the_btrfs_driver() {
    there_and_back(Layout::Btrfs);
}

#[test]
fn there_and_back_on_overlay2_on_btrfs() {
    there_and_back(Layout::OverlayOnBtrfs);
}

#[test]
fn there_and_back_on_overlay2_on_ext4() {
    there_and_back(Layout::OverlayOnExt4);
}
