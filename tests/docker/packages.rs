//! What was installed in a container, in the plan of a rewind.

use serde_json::{Value, json};

use crate::engine::{Engine, Layout};
use crate::rewinds::{id_of, tracked};

const PLACE: &str = "/usr/local/lib/python3.11/site-packages";

/// Adds a package of Python's, as pip would write it.
fn python(name: &str, version: &str) -> String {
    let dir = format!("{PLACE}/{name}-{version}.dist-info");
    format!(
        "mkdir -p {dir}; echo 'Name: {name}' > {dir}/METADATA; echo 'Version: {version}' >> {dir}/METADATA\n"
    )
}

/// Makes and installs a package of Debian's.
fn deb(name: &str, version: &str) -> String {
    format!(
        "rm -rf /tmp/p; mkdir -p /tmp/p/DEBIAN /tmp/p/opt/{name}; echo {version} > /tmp/p/opt/{name}/v
         for l in 'Package: {name}' 'Version: {version}' 'Architecture: all' 'Maintainer: a <a@a.invalid>' 'Description: it'; do
             echo \"$l\" >> /tmp/p/DEBIAN/control; done
         dpkg-deb --build /tmp/p /tmp/p.deb >/dev/null; dpkg --log=/dev/null -i /tmp/p.deb >/dev/null 2>&1\n"
    )
}

fn packages(engine: &Engine, ws: &str, to: &str) -> Value {
    let plan = engine.ok(&["-s", ws, "--dry-run", "rewind", to, "--files"])["plan"].clone();
    assert_eq!(plan["packages_unread"], json!([]), "{plan}");
    plan["packages"].clone()
}

fn change(manager: &str, name: &str, from: Option<&str>, to: Option<&str>) -> Value {
    let place = (manager == "pip").then_some(PLACE);
    json!({"manager": manager, "name": name, "from": from, "to": to, "where": place})
}

fn what_was_installed_is_told(layout: Layout) {
    let engine = Engine::start(layout);
    engine.run("maker", &[]);
    engine.sh("maker", &(python("one", "1") + &python("two", "1")));
    engine.docker(&["commit", "maker", "python:1"]);
    engine.docker(&["rm", "-f", "maker"]);
    let forever = "trap exit TERM; while :; do sleep 0.1; done";
    engine.docker(&[
        "run",
        "-d",
        "--name",
        "agent",
        "--network",
        "none",
        "python:1",
        "/bin/sh",
        "-c",
        forever,
    ]);
    let ws = tracked(&engine);
    let first = id_of(&engine.ok(&["-s", &ws, "checkpoint"]));
    assert_eq!(packages(&engine, &ws, &first), json!([]));

    engine.sh(
        "agent",
        &(deb("tool", "1.0") + &format!("rm -r {PLACE}/one-1.dist-info\n") + &python("three", "3")),
    );
    let second = id_of(&engine.ok(&["-s", &ws, "checkpoint"]));
    let dpkg = engine.sh("agent", "dpkg-query -W");
    // the folder made anew hides that of the image
    engine.sh(
        "agent",
        &(deb("tool", "1.1") + &deb("more", "2") + &format!("rm -rf {PLACE}\n") + &python("one", "2")),
    );
    assert_eq!(
        packages(&engine, &ws, &first),
        json!([
            change("dpkg", "more", None, Some("2")),
            change("dpkg", "tool", None, Some("1.1")),
            change("pip", "one", Some("1"), Some("2")),
            change("pip", "two", Some("1"), None),
        ])
    );
    assert_eq!(
        packages(&engine, &ws, &second),
        json!([
            change("dpkg", "more", None, Some("2")),
            change("dpkg", "tool", Some("1.0"), Some("1.1")),
            change("pip", "one", None, Some("2")),
            change("pip", "three", Some("3"), None),
            change("pip", "two", Some("1"), None),
        ])
    );
    // only paths of the workspace: the container stays as it is
    let plan = engine.ok(&[
        "-s",
        &ws,
        "--dry-run",
        "rewind",
        &first,
        "--files",
        "--path",
        "file",
    ]);
    assert_eq!(plan["plan"]["packages"], json!([]), "{plan}");

    let done = engine.ok(&["-s", &ws, "rewind", &second, "--files"]);
    assert_eq!(done["verified"], true, "{done}");
    assert_eq!(engine.sh("agent", "dpkg-query -W"), dpkg);
    assert_eq!(packages(&engine, &ws, &second), json!([]));
}

#[test]
fn on_the_btrfs_driver() {
    what_was_installed_is_told(Layout::Btrfs);
}

#[test]
fn on_overlay2_on_btrfs() {
    what_was_installed_is_told(Layout::OverlayOnBtrfs);
}

#[test]
fn on_overlay2_on_ext4() {
    what_was_installed_is_told(Layout::OverlayOnExt4);
}
