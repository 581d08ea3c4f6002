//! P007, the whole of it: an agent in a container installs packages over several messages, and goes back to before the
//! second.

use std::path::Path;
use std::process::Command;

use crate::engine::{Engine, Layout};
use crate::manifest::Manifest;
use crate::rewinds::{frozen, id_of, tracked};

/// Makes a package of one program, outside of the container.
fn deb(engine: &Engine, name: &str, version: &str) -> String {
    let root = engine.dir().join(format!("deb/{name}-{version}"));
    let (control, bin) = (root.join("DEBIAN"), root.join("usr/bin"));
    std::fs::create_dir_all(&control).expect("folders");
    std::fs::create_dir_all(&bin).expect("folders");
    let text = format!(
        "Package: {name}\nVersion: {version}\nArchitecture: all\nMaintainer: nobody <n@example.invalid>\nDescription: a test\n"
    );
    std::fs::write(control.join("control"), text).expect("control");
    std::fs::write(
        control.join("postinst"),
        format!("#!/bin/sh\necho {name} {version} >> /var/log/installed\n"),
    )
    .expect("script");
    std::fs::write(bin.join(name), format!("#!/bin/sh\necho {name} {version}\n")).expect("program");
    for path in [control.join("postinst"), bin.join(name)] {
        use std::os::unix::fs::PermissionsExt;
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).expect("mode");
    }
    let file = engine.dir().join(format!("{name}_{version}.deb"));
    let made = Command::new("dpkg-deb")
        .args(["--root-owner-group", "-b"])
        .args([&root, &file])
        .output();
    let made = made.expect("dpkg-deb");
    assert!(
        made.status.success(),
        "dpkg-deb: {}",
        String::from_utf8_lossy(&made.stderr)
    );
    file.to_str().expect("UTF-8").to_owned()
}

fn install(engine: &Engine, files: &[String]) {
    for file in files {
        engine.docker(&["cp", file, "agent:/tmp/p.deb"]);
        engine.sh("agent", "dpkg -i /tmp/p.deb >/dev/null 2>/tmp/said || { cat /tmp/said; exit 1; }; rm /tmp/p.deb /tmp/said");
    }
}

/// What dpkg and the shell say of these packages.
fn installed(engine: &Engine) -> String {
    engine.sh(
        "agent",
        "dpkg -l | sed -n 's/^ii *\\([^ ]*\\) *\\([^ ]*\\) .*/\\1 \\2/p'; for p in six tree semver; do command -v $p || true; done; dpkg --audit; cat /var/log/installed",
    )
}

fn packages_go_back(layout: Layout) {
    let engine = Engine::start(layout);
    engine.run("agent", &[]);
    engine.run("other", &[]);
    engine.sh("other", "echo mine > /opt/mine");
    let ws = tracked(&engine);
    let src = Path::new(&ws).join("src");
    let message = |n: u32, files: &[String]| {
        let at = id_of(&engine.ok(&["-s", &ws, "checkpoint", "--label", &format!("message {n}")]));
        install(&engine, files);
        std::fs::create_dir_all(&src).expect("src");
        std::fs::write(src.join(format!("m{n}.py")), format!("import m{n}\n")).expect("a file");
        at
    };
    message(1, &[deb(&engine, "six", "1.0")]);
    let (before, tree, files) = (
        installed(&engine),
        frozen(&engine, "agent"),
        Manifest::of(Path::new(&ws)),
    );
    assert!(
        before.contains("six 1.0") && before.contains("/usr/bin/six"),
        "{before}"
    );
    let second = message(2, &[deb(&engine, "tree", "2.1"), deb(&engine, "semver", "7")]);
    message(3, &[deb(&engine, "six", "1.1")]);
    let (after, later, last) = (
        installed(&engine),
        frozen(&engine, "agent"),
        Manifest::of(Path::new(&ws)),
    );
    assert!(
        after.contains("six 1.1") && after.contains("/usr/bin/tree") && after.contains("semver 7"),
        "{after}"
    );
    let other = engine.inspect("other");

    engine.ok(&["-s", &ws, "rewind", &second, "--files"]);
    assert_eq!(installed(&engine), before);
    tree.assert_same(&frozen(&engine, "agent"), "the container");
    files.assert_same(&Manifest::of(Path::new(&ws)), "the workspace");
    assert_eq!(engine.inspect("other")["State"], other["State"]);
    assert_eq!(engine.sh("other", "cat /opt/mine"), "mine");
    // it is a working system: the same can be installed again
    install(&engine, &[deb(&engine, "tree", "2.2")]);
    assert!(installed(&engine).contains("tree 2.2"));
    engine.ok(&["-s", &ws, "undo", "--files"]);
    assert_eq!(installed(&engine), after);
    later.assert_same(&frozen(&engine, "agent"), "the container, undone");
    last.assert_same(&Manifest::of(Path::new(&ws)), "the workspace, undone");
}

#[test]
fn p007_packages_go_back_on_the_btrfs_driver() {
    packages_go_back(Layout::Btrfs);
}

#[test]
fn p007_packages_go_back_on_overlay2_on_btrfs() {
    packages_go_back(Layout::OverlayOnBtrfs);
}

#[test]
fn p007_packages_go_back_on_overlay2_on_ext4() {
    packages_go_back(Layout::OverlayOnExt4);
}
