//! Bad places: file systems that are full or read-only, no loop devices.

use std::io::Write;
use std::path::Path;
use std::process::Command;

use serde_json::json;

use crate::common::respool;
use crate::lab::{Answer, Lab, error_text};
use crate::rounds::rich;

/// Bytes that do not compress.
fn noise(path: &Path, bytes: usize) -> std::io::Result<()> {
    let mut file = std::fs::File::create(path)?;
    let mut hasher = blake3::Hasher::new();
    hasher.update(path.as_os_str().as_encoded_bytes());
    let mut reader = hasher.finalize_xof();
    let mut block = vec![0u8; 1 << 20];
    let mut left = bytes;
    while left > 0 {
        let n = left.min(block.len());
        reader.fill(&mut block[..n]);
        file.write_all(&block[..n])?;
        left -= n;
    }
    file.sync_all()
}

fn tmpfs(at: &Path, options: &std::ffi::CStr, flags: rustix::mount::MountFlags) {
    std::fs::create_dir_all(at).expect("mkdir");
    rustix::mount::mount("none", at, "tmpfs", flags, options).expect("mount");
}

/// Unmounts when dropped, so that nothing is left when a test panics.
struct Mounted<'a>(&'a Path);

impl Drop for Mounted<'_> {
    fn drop(&mut self) {
        let _gone = rustix::mount::unmount(self.0, rustix::mount::UnmountFlags::DETACH);
    }
}

#[test]
fn a_state_folder_on_a_read_only_file_system() {
    let lab = Lab::plain(rich);
    let before = lab.manifest();
    let state = lab.state();
    tmpfs(&state, c"size=1M", rustix::mount::MountFlags::RDONLY);
    let mounted = Mounted(&state);
    let a = lab.run(&["--yes", "track", lab.ws_text(), "--size", "512M"]);
    assert!(matches!(a.code, Some(1 | 3)), "{:?} {}", a.code, a.text());
    let said = error_text(&a.json(), a.code.expect("code"));
    assert!(said.contains("state"), "{said}");
    before.assert_same(&lab.manifest(), "the folder");
    let seen = lab.run(&["timeline", lab.store().to_str().expect("UTF-8")]);
    assert_eq!(seen.code, Some(0), "what only reads works: {}", seen.err);
    drop(mounted);
}

#[test]
fn no_loop_devices() {
    let lab = Lab::plain(rich);
    let before = lab.manifest();
    let template = respool(lab.dir());
    let run = |args: &str| {
        let mut c = Command::new("unshare");
        let script = format!(
            "mount -t tmpfs none /dev && mknod -m 666 /dev/null c 1 3 && exec setpriv --bounding-set -mknod \"$0\" --json --state-dir \"$1\" {args}"
        );
        c.args(["--mount", "sh", "-c", &script])
            .arg(template.get_program())
            .arg(lab.state())
            .arg(lab.ws());
        for (name, value) in template.get_envs() {
            if let Some(value) = value {
                c.env(name, value);
            }
        }
        Answer::of(c.current_dir("/").output().expect("unshare"))
    };
    let a = run("--yes track \"$2\" --size 512M");
    assert!(
        matches!(a.code, Some(1 | 3)),
        "{:?} {} {}",
        a.code,
        a.text(),
        a.err
    );
    let said = error_text(&a.json(), a.code.expect("code"));
    assert!(
        said.contains("loop") && !said.ends_with("| "),
        "with a hint: {said}"
    );
    before.assert_same(&lab.manifest(), "the folder");
    let doctor = run("doctor");
    assert_eq!(doctor.code, Some(0), "copies do: {}", doctor.text());
    let rows = doctor.json();
    let row = |name: &str| {
        let rows = rows.as_array().expect("rows");
        rows.iter().find(|r| r["check"] == name).cloned().expect("a row")
    };
    assert_eq!(
        (&row("vault-copy")["ok"], &row("vault-btrfs")["ok"]),
        (&true.into(), &false.into())
    );
    assert!(
        row("loop")["hint"]
            .as_str()
            .is_some_and(|h| h.contains("modprobe loop"))
    );
    // with loop devices it works, with what the failed try left
    lab.track();
}

/// The disk under the image: too small for the folder, or nearly full later. Refused with the numbers, before
/// anything is lost; works again once there is space.
#[test]
fn a_full_disk_under_the_image() {
    let lab = Lab::plain(|ws| noise(&ws.join("big"), 280 << 20).expect("write"));
    let state = lab.state();
    tmpfs(&state, c"size=300M", rustix::mount::MountFlags::empty());
    let mounted = Mounted(&state);
    let said = lab.fails(3, &["--yes", "track", lab.ws_text(), "--size", "1G"]);
    assert!(said.contains("needs") && said.contains("free"), "{said}");
    assert!(crate::common::mounts_below(lab.ws()).is_empty());
    noise(&lab.at("big"), 20 << 20).expect("write");
    lab.ok(&["--yes", "track", lab.ws_text(), "--size", "1G"]);
    lab.message(1);
    lab.write("f", "x");
    let before = lab.manifest();
    noise(&state.join("filler"), 230 << 20).expect("write");
    for args in [
        &["checkpoint"][..],
        &["--yes", "rewind", "1"],
        &["--yes", "untrack", lab.ws_text()],
    ] {
        let a = lab.run(args);
        assert_eq!(a.code, Some(3), "{args:?}: {} {}", a.text(), a.err);
        assert!(error_text(&a.json(), 3).contains("free"), "{}", a.text());
    }
    before.assert_same(&lab.manifest(), "nothing lost");
    lab.ok(&["ls", "m1"]);
    std::fs::remove_file(state.join("filler")).expect("remove");
    lab.ok(&["--yes", "recover"]);
    lab.ok(&["--yes", "rewind", "1"]);
    assert!(!lab.at("f").exists());
    lab.ok(&["--yes", "pool", "unmount"]);
    drop(mounted);
}

/// P095's kind: the pool is full to the last byte. A rewind works or everything is as it was; nothing is
/// lost; after it there is room again.
#[test]
fn a_full_pool() {
    let lab = Lab::plain(|ws| {
        rich(ws);
        noise(&ws.join("data"), 30 << 20).expect("write");
    });
    lab.ok(&["--yes", "track", lab.ws_text(), "--size", "300M"]);
    lab.message(1);
    let good = lab.manifest();
    // other content, then all the rest
    noise(&lab.at("data2"), 30 << 20).expect("write");
    std::fs::rename(lab.at("data2"), lab.at("data")).expect("rename");
    let mut n = 0;
    for size in [8 << 20, 1 << 20, 64 << 10, 4 << 10, 512] {
        while n < 4000 && noise(&lab.at(format!("fill{n}")), size).is_ok() {
            n += 1;
        }
    }
    assert!(n > 10);
    rustix::fs::syncfs(std::fs::File::open(lab.ws()).expect("open")).expect("sync");
    let bad = lab.manifest();
    let a = lab.run(&["--yes", "rewind", "1"]);
    if a.code == Some(0) {
        good.assert_same(&lab.manifest(), "rewind");
        let a = lab.run(&["--yes", "undo"]);
        if a.code == Some(0) {
            bad.assert_same(&lab.manifest(), "undo");
        } else {
            assert!(matches!(a.code, Some(1 | 3)), "{}", a.text());
            good.assert_same(&lab.manifest(), "a failed undo");
        }
    } else {
        assert!(matches!(a.code, Some(1 | 3)), "{}", a.text());
        bad.assert_same(&lab.manifest(), "a failed rewind");
    }
    let list = lab.log();
    assert!(list.iter().all(|(_, s)| s != "interrupted"), "{list:?}");
    // the present content is let go: room comes back without a new mount
    for entry in std::fs::read_dir(lab.ws()).expect("list").flatten() {
        if entry.file_name().to_string_lossy().starts_with("fill") {
            std::fs::remove_file(entry.path()).expect("remove");
        }
    }
    lab.ok(&["-s", lab.ws_text(), "--yes", "pool", "grow", "600M"]);
    lab.ok(&["--yes", "rewind", "1"]);
    good.assert_same(&lab.manifest(), "with room");
    assert_eq!(lab.ok(&["pool", "check"])[0]["clean"], json!(true));
}
