//! A `/dev` as a container has it: its own, without a node for any loop device.

use std::process::{Command, Stdio};

use crate::lab::{Answer, Lab};

/// What a container's `/dev` has at the least; then the script, in which `r` is the program.
const OWN_DEV: &str = r#"
set -e
mount -t tmpfs -o mode=755 tmpfs /dev
mknod -m 666 /dev/null c 1 3
mknod -m 666 /dev/urandom c 1 9
program=$1 state=$2 ws=$3
r() { "$program" --state-dir "$state" --json --yes "$@"; }
nodes() { ls -A /dev | grep -v -e null -e urandom | tr '\n' ' '; }
attached() { grep -l "$state" /sys/block/loop*/loop/backing_file 2>/dev/null | wc -l; }
"#;

/// Runs a script in a mount namespace of its own, with such a `/dev`; what it mounts goes with it.
fn in_container(lab: &Lab, script: &str) -> Answer {
    let program = lab.command();
    let mut c = Command::new("unshare");
    c.args(["-m", "--propagation", "private", "bash", "-c"])
        .arg(format!("{OWN_DEV}{script}"))
        .arg("bash")
        .arg(program.get_program())
        .arg(lab.state())
        .arg(lab.ws())
        .env_clear()
        .current_dir(lab.dir())
        .stdin(Stdio::null());
    for (name, value) in program.get_envs() {
        if let Some(value) = value {
            c.env(name, value);
        }
    }
    Answer::of(c.output().expect("unshare"))
}

fn ok(lab: &Lab, script: &str) -> Vec<String> {
    let answer = in_container(lab, script);
    assert_eq!(answer.code, Some(0), "{}\n{}", answer.text(), answer.err);
    answer.text().lines().map(str::to_owned).collect()
}

#[test]
fn nodes_are_made_and_the_main_job_works() {
    let lab = Lab::plain(|ws| std::fs::write(ws.join("f"), "one").expect("write"));
    let said = ok(
        &lab,
        r#"
        r track "$ws" --size 512M >/dev/null
        r -s "$ws" checkpoint >/dev/null
        echo two > "$ws/f"
        id=$(r -s "$ws" checkpoint | sed 's/.*"checkpoint":"\([^"]*\)".*/\1/')
        echo three > "$ws/f"
        rm "$ws/f"
        r -s "$ws" rewind "$id" --files >/dev/null
        cat "$ws/f"
        r untrack "$ws" >/dev/null
        r pool unmount >/dev/null
        cat "$ws/f"
        attached
        nodes
        "#,
    );
    assert_eq!(said[..3], ["two", "two", "0"], "{said:?}");
    let nodes: Vec<&str> = said[3].split_whitespace().collect();
    assert!(nodes.contains(&"loop-control"), "{nodes:?}");
    assert!(
        nodes.iter().all(|n| n.starts_with("loop")),
        "no other node is left: {nodes:?}"
    );
    assert!(nodes.len() >= 2, "a device, and what gives them out: {nodes:?}");
}

/// An image that is attached already, by a device whose node is not here, is never attached a second time.
#[test]
fn an_attached_image_is_found_without_its_node() {
    let lab = Lab::plain(|ws| std::fs::write(ws.join("f"), "one").expect("write"));
    let said = ok(
        &lab,
        r#"
        r track "$ws" --size 512M >/dev/null
        # the device lives on when its mounts go
        exec 9<"$(ls /dev/loop[0-9]*)"
        umount "$ws"
        umount "$state"/mnt/*
        rm /dev/loop*
        attached
        r pool mount >/dev/null
        attached
        r -s "$ws" checkpoint >/dev/null
        rm /dev/loop*
        r -s "$ws" checkpoint >/dev/null
        cat "$ws/f"
        echo
        exec 9<&-
        r untrack "$ws" >/dev/null
        r pool unmount >/dev/null
        attached
        "#,
    );
    assert_eq!(said, ["1", "1", "one", "0"]);
}

/// Without the right to make nodes the error says what to give.
#[test]
fn without_the_right_it_is_said() {
    let lab = Lab::plain(|_| {});
    let answer = in_container(
        &lab,
        r#"
        program="setpriv --bounding-set -mknod $program"
        r() { $program --state-dir "$state" --json --yes "$@"; }
        r doctor | tr '}' '\n' | grep -e '"loop"' -e '"container"' || true
        r track "$ws" --size 512M
        "#,
    );
    assert_eq!(answer.code, Some(3), "{}\n{}", answer.text(), answer.err);
    let text = answer.text();
    assert!(
        text.contains("there are no loop devices here") && text.contains("--vault copy"),
        "{text}"
    );
    assert!(text.contains(r#""check":"loop","ok":false"#), "{text}");
}
