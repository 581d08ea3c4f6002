//! P071: what must never be tracked, each with a reason, and nothing made.

use std::path::Path;

use crate::common::respool;
use crate::lab::{Lab, error_text};

fn refused(lab: &Lab, dir: &Path, word: &str) {
    let a = lab.run(&["--yes", "track", dir.to_str().expect("UTF-8"), "--size", "512M"]);
    assert_eq!(a.code, Some(3), "{}: {} {}", dir.display(), a.text(), a.err);
    let said = error_text(&a.json(), 3);
    assert!(said.contains(word), "{}: {said}", dir.display());
    assert!(
        !lab.state().join("pool.img").exists(),
        "{}: a pool was made",
        dir.display()
    );
}

#[test]
fn p071_folders_of_the_system_homes_and_respools_own() {
    let lab = Lab::plain(|_| {});
    for dir in [
        "/", "/etc", "/usr", "/var", "/tmp", "/root", "/home", "/proc/1", "/sys", "/dev",
    ] {
        refused(&lab, Path::new(dir), "system");
    }
    // the invoking user's home, wherever it is
    refused(&lab, &lab.dir().join("home"), "your home");
    let home = lab.dir().join("home");
    let said = lab.fails(
        3,
        &["--yes", "track", home.to_str().expect("UTF-8"), "--vault", "copy"],
    );
    assert!(said.contains("is your home"), "{said}");
    // and how much that would be
    std::fs::write(lab.dir().join("home/large"), vec![1; 3 << 20]).expect("write");
    refused(&lab, &lab.dir().join("home"), "files and folders, 3.");
    refused(&lab, Path::new("/"), "(");
    // an agent's conversations
    refused(&lab, &lab.store(), "conversation");
    refused(&lab, &lab.dir().join("home/.openhands"), "conversation");
    // the state folder, and what holds it
    refused(&lab, lab.dir(), "contains respool");
    let above = lab.dir().join("above");
    std::fs::create_dir(&above).expect("mkdir");
    std::fs::rename(lab.ws(), above.join("ws")).expect("rename");
    let image = above.join("ws/p.img");
    let a = lab.run(&[
        "--yes",
        "track",
        above.to_str().expect("UTF-8"),
        "--image",
        image.to_str().expect("UTF-8"),
    ]);
    assert_eq!(
        (a.code, a.text().contains("contains the image")),
        (Some(3), true),
        "{}",
        a.text()
    );
    std::fs::rename(above.join("ws"), lab.ws()).expect("rename");
    std::fs::create_dir_all(lab.state().join("in")).expect("mkdir");
    refused(&lab, &lab.state(), "state folder");
    refused(&lab, &lab.state().join("in"), "state folder");
    // a link, a file
    std::os::unix::fs::symlink("ws", lab.dir().join("link")).expect("link");
    refused(&lab, &lab.dir().join("link"), "link");
    std::fs::write(lab.dir().join("file"), "x").expect("write");
    refused(&lab, &lab.dir().join("file"), "no folder");
    lab.fails(
        4,
        &["--yes", "track", lab.dir().join("none").to_str().expect("UTF-8")],
    );
}

#[test]
fn p071_a_folder_that_holds_the_image() {
    let lab = Lab::plain(|_| {});
    let image = lab.at("pool.img");
    let args = [
        "--yes",
        "track",
        lab.ws_text(),
        "--size",
        "512M",
        "--image",
        image.to_str().expect("UTF-8"),
    ];
    let said = lab.fails(3, &args);
    assert!(said.contains("image"), "{said}");
    assert!(!image.exists());
}

#[test]
fn p071_mounts_and_other_workspaces() {
    let lab = Lab::plain(|ws| std::fs::create_dir(ws.join("in")).expect("mkdir"));
    let (point, flags) = (lab.dir().join("m"), rustix::mount::MountFlags::empty());
    std::fs::create_dir(&point).expect("mkdir");
    rustix::mount::mount("none", &point, "tmpfs", flags, c"size=1M").expect("mount");
    refused(&lab, &point, "mount point");
    rustix::mount::unmount(&point, rustix::mount::UnmountFlags::empty()).expect("unmount");
    rustix::mount::mount("none", lab.at("in"), "tmpfs", flags, c"size=1M").expect("mount");
    refused(&lab, lab.ws(), "mount point");
    rustix::mount::unmount(lab.at("in"), rustix::mount::UnmountFlags::empty()).expect("unmount");
    lab.track();
    for (dir, word) in [
        (lab.ws().to_owned(), "tracked already"),
        (lab.at("in"), "lies in"),
        (lab.dir().to_owned(), "contains"),
    ] {
        let said = lab.fails(
            3,
            &["--yes", "track", dir.to_str().expect("UTF-8"), "--size", "512M"],
        );
        assert!(said.contains(word), "{}: {said}", dir.display());
    }
}

/// A writer in the folder is named with its process; one that only stands there is a hint.
#[test]
fn a_writer_stands_in_the_way_of_track_and_untrack() {
    let lab = Lab::plain(|ws| std::fs::write(ws.join("f"), "x").expect("write"));
    let writer = crate::actors::Writer::start(&lab, "f");
    let said = lab.fails(3, &["--yes", "track", lab.ws_text(), "--size", "512M"]);
    assert!(said.contains("process"), "{said}");
    assert!(!lab.state().join("pool.img").exists());
    writer.assert_runs("refused");
    drop(writer);
    lab.track();
    let writer = crate::actors::Writer::start(&lab, "f");
    lab.fails(3, &["--yes", "untrack", lab.ws_text()]);
    writer.assert_runs("refused");
}

/// Without root: one clear line and a hint, and nothing is made.
#[test]
fn without_root_it_says_so_and_makes_nothing() {
    let lab = Lab::plain(|_| {});
    // the build's folder may be closed to other users
    let program = lab.dir().join("respool");
    std::fs::copy(env!("CARGO_BIN_EXE_respool"), &program).expect("copy");
    let as_nobody = |args: &[&str]| {
        let template = respool(lab.dir());
        let mut c = std::process::Command::new("setpriv");
        c.args(["--reuid", "65534", "--regid", "65534", "--clear-groups", "--"]);
        c.arg(&program)
            .arg("--state-dir")
            .arg(lab.dir().join("nobody"))
            .arg("--json")
            .args(args);
        for (name, value) in template.get_envs() {
            if let Some(value) = value {
                c.env(name, value);
            }
        }
        c.current_dir("/").stdin(std::process::Stdio::null());
        c.output().expect("setpriv")
    };
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(lab.dir(), open).expect("chmod");
    let store = lab.store();
    let store = store.to_str().expect("UTF-8");
    let commands: [&[&str]; 5] = [
        &["--yes", "track", lab.ws_text()],
        &["--yes", "untrack", lab.ws_text()],
        &["-c", store, "checkpoint"],
        &["-c", store, "--yes", "rewind", "1"],
        &["pool", "create"],
    ];
    for args in commands {
        let out = as_nobody(args);
        let text = String::from_utf8_lossy(&out.stdout).into_owned();
        assert!(
            matches!(out.status.code(), Some(1 | 3 | 4)),
            "{args:?}: {:?} {text}",
            out.status
        );
        let doc: serde_json::Value =
            serde_json::from_str(&text).unwrap_or_else(|e| panic!("{args:?}: {e}: {text}"));
        assert!(doc["error"]["hint"].is_string(), "{args:?}: {text}");
    }
    assert!(!lab.dir().join("nobody/pool.img").exists());
    // what only reads needs no root
    let out = as_nobody(&["timeline", store]);
    assert_eq!(
        out.status.code(),
        Some(0),
        "{}",
        String::from_utf8_lossy(&out.stderr)
    );
    // a folder that this user cannot write is no place for checkpoints; with one of his own, copies do
    let out = as_nobody(&["doctor"]);
    assert_eq!(out.status.code(), Some(1));
    let own = lab.dir().join("nobody");
    std::fs::create_dir(&own).expect("mkdir");
    std::os::unix::fs::chown(&own, Some(65534), Some(65534)).expect("chown");
    let out = as_nobody(&["doctor"]);
    assert_eq!(
        out.status.code(),
        Some(0),
        "{}",
        String::from_utf8_lossy(&out.stdout)
    );
    let rows: serde_json::Value = serde_json::from_slice(&out.stdout).expect("JSON");
    let rows = rows.as_array().expect("rows");
    assert!(
        rows.iter().all(|r| r["ok"] == true || r["hint"].is_string()),
        "{rows:?}"
    );
    let btrfs = rows.iter().find(|r| r["check"] == "vault-btrfs").expect("a row");
    assert_eq!(
        (btrfs["ok"].as_bool(), btrfs["hint"].as_str()),
        (
            Some(false),
            Some("sudo respool track /   (or start the service, below)")
        )
    );
}
