//! The pool behind it: restarts, damage, a workspace that was replaced, damaged records.

use serde_json::json;

use crate::common::loops_below;
use crate::lab::Lab;
use crate::rounds::rich;

/// P100: after a restart each command that reads brings it up again; the ids are the same.
#[test]
fn p100_after_a_restart_everything_is_there_again() {
    let lab = Lab::new(rich);
    let ids: Vec<String> = (1..=3)
        .map(|n| {
            lab.write("f", n.to_string());
            lab.message(n)
        })
        .collect();
    let store = lab.store();
    let store = store.to_str().expect("UTF-8");
    let commands: [&[&str]; 9] = [
        &["timeline", store],
        &["changes", "m1", "m2"],
        &["diff", "m1", "now"],
        &["cat", "m2", "f"],
        &["ls", "m2"],
        &["-s", lab.ws_text(), "log"],
        &["sandboxes"],
        &["why", "f"],
        &["space"],
    ];
    let before: Vec<_> = commands.iter().map(|c| lab.run(c).text()).collect();
    let manifest = lab.manifest();
    for (command, was) in commands.iter().zip(before) {
        lab.reboot();
        assert_eq!(lab.ok(&["pool", "status"])[0]["mounted"], false);
        let a = lab.run(command);
        assert_eq!(a.code, Some(0), "{command:?}: {} {}", a.text(), a.err);
        if command[0] != "space" {
            assert_eq!(
                a.text().replace("\"mounted\":false", "\"mounted\":true"),
                was,
                "{command:?}"
            );
        }
    }
    lab.ok(&["pool", "mount"]);
    manifest.assert_same(&lab.manifest(), "the workspace");
    let rows = lab.ok(&["timeline", store]);
    let again: Vec<&str> = rows["rows"]
        .as_array()
        .expect("rows")
        .iter()
        .filter_map(|r| r["checkpoint"]["id"].as_str())
        .collect();
    assert_eq!(again, ids);
}

/// P101: an image whose superblock is gone is named; ten tries leave no loop device.
#[test]
fn p101_a_damaged_image_is_named_and_leaks_nothing() {
    let lab = Lab::new(rich);
    lab.message(1);
    lab.reboot();
    let image = lab.state().join("pool.img");
    let whole = std::fs::read(&image).expect("image");
    let mut torn = whole.clone();
    for at in [64 << 10, 64 << 20] {
        torn[at..at + 4096].fill(0);
    }
    std::fs::write(&image, &torn).expect("image");
    for _ in 0..10 {
        let a = lab.run(&["checkpoint"]);
        assert!(matches!(a.code, Some(1 | 3 | 5)), "{:?} {}", a.code, a.err);
        assert!(a.text().contains("pool.img"), "{}", a.text());
        assert!(loops_below(lab.dir()).is_empty());
    }
    std::fs::write(&image, &whole).expect("image");
    lab.ok(&["--yes", "rewind", "1"]);
}

/// P105: the workspace was replaced by a plain folder: everything that would write refuses and says so.
#[test]
fn p105_a_replaced_workspace_is_refused() {
    let lab = Lab::new(rich);
    lab.message(1);
    rustix::mount::unmount(lab.ws(), rustix::mount::UnmountFlags::empty()).expect("unmount");
    let status = std::process::Command::new("chattr")
        .args(["-i", lab.ws_text()])
        .status();
    assert!(status.expect("chattr").success());
    std::fs::remove_dir(lab.ws()).expect("remove");
    std::fs::create_dir(lab.ws()).expect("mkdir");
    lab.write("f", "v1");
    let before = lab.manifest();
    for args in [
        &["checkpoint"][..],
        &["--yes", "rewind", "1"],
        &["--yes", "undo"],
        &["changes", "m1", "now"],
        &["--yes", "untrack", lab.ws_text()],
    ] {
        let a = lab.run(args);
        assert!(
            matches!(a.code, Some(1 | 3)),
            "{args:?}: {:?} {}",
            a.code,
            a.text()
        );
        assert!(a.text().contains("no longer"), "{args:?}: {}", a.text());
    }
    before.assert_same(&lab.manifest(), "nothing touched");
}

/// P039: records that a power cut emptied or filled with zeros: the rest works, the damaged ones are named,
/// what can be rebuilt is.
#[test]
fn p039_damaged_records_do_not_take_the_rest_with_them() {
    for junk in [&b""[..], &[0; 200], b"{\"v\":1", b"[]"] {
        let lab = Lab::new(|ws| std::fs::write(ws.join("f"), "1").expect("write"));
        lab.message(1);
        lab.write("f", "2");
        lab.message(2);
        lab.write("f", "3");
        lab.ok(&["--yes", "rewind", "2"]);
        lab.ok(&["--yes", "undo"]);
        let sandbox = lab.sandboxes().remove(0);
        let flags = rustix::fs::XattrFlags::REPLACE;
        // the list of pools
        std::fs::write(lab.state().join("pools.json"), junk).expect("write");
        lab.ok(&["changes", "m1", "now"]);
        // one checkpoint
        let mut snaps: Vec<_> = std::fs::read_dir(sandbox.join("snaps"))
            .expect("snaps")
            .flatten()
            .collect();
        snaps.sort_by_key(std::fs::DirEntry::file_name);
        rustix::fs::setxattr(snaps[1].path(), "user.respool.checkpoint", junk, flags).expect("xattr");
        let rows = lab.ok(&["timeline", lab.store().to_str().expect("UTF-8")]);
        assert_eq!(rows["rows"][1]["checkpoint"]["state"], "ok", "{rows}");
        assert_ne!(rows["rows"][0]["checkpoint"]["state"], "ok", "{rows}");
        // one operation
        let mut ops: Vec<_> = std::fs::read_dir(sandbox.join("ops"))
            .expect("ops")
            .flatten()
            .collect();
        ops.sort_by_key(std::fs::DirEntry::file_name);
        std::fs::write(ops[2].path(), junk).expect("write");
        let a = lab.run(&["log"]);
        assert_eq!(a.code, Some(0), "{}", a.err);
        assert!(a.err.contains("cannot be read"), "{}", a.err);
        assert_eq!(a.json().as_array().map(Vec::len), Some(2));
        lab.ok(&["--yes", "rewind", "2"]);
        let log = lab.log();
        assert_eq!(
            log[0],
            ("rewind".into(), "done".into()),
            "the newest is the newest: {log:?}"
        );
        lab.ok(&["--yes", "undo"]);
        assert_eq!(lab.read("f"), "3");
        // the sandbox's own record: rebuilt from what is there
        rustix::fs::setxattr(&sandbox, "user.respool.sandbox", junk, flags).expect("xattr");
        lab.ok(&["--yes", "rewind", "2"]);
        assert_eq!(lab.read("f"), "2");
        assert_eq!(lab.ok(&["sandboxes"])[0]["path"], json!(lab.ws_text()));
    }
}

/// A sandbox whose record was rebuilt can still be given back, and comes up after a restart.
#[test]
fn p039_a_rebuilt_record_is_a_whole_one() {
    let lab = Lab::new(rich);
    lab.message(1);
    let before = lab.manifest();
    let flags = rustix::fs::XattrFlags::REPLACE;
    rustix::fs::setxattr(&lab.sandboxes()[0], "user.respool.sandbox", b"", flags).expect("xattr");
    lab.ok(&["changes", "m1", "now"]);
    lab.reboot();
    lab.ok(&["pool", "mount"]);
    before.assert_same(&lab.manifest(), "after a restart");
    lab.ok(&["--yes", "untrack", lab.ws_text()]);
    before.assert_same(&lab.manifest(), "given back");
}
