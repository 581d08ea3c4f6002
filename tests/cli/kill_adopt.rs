//! SIGKILL at every fault point of `track` and `untrack`: the folder is whole, nothing is left beside it, no
//! sandbox that never was is left in the pool.

use std::path::Path;

use crate::kill::{Then, recover};
use crate::lab::Lab;
use crate::rounds::{mode, rich};

pub const TRACK: &[&str] = &[
    "sandbox-made",
    "sandbox-filled",
    "sandbox-recorded",
    "track-begun",
    "track-copying",
    "track-copied",
    "track-compared",
    "checkpoint-made",
    "checkpoint-recorded",
    "checkpoint-taken",
    "aside-made",
    "track-switching",
    "entries-moving",
    "track-moved",
    "track-sealed",
    "track-mounted",
    "track-cleaning",
    "track-emptied",
    "track-cleaned",
];
pub const UNTRACK: &[&str] = &[
    "untrack-begun",
    "aside-made",
    "untrack-applying",
    "checkpoint-made",
    "checkpoint-recorded",
    "checkpoint-taken",
    "untrack-copied",
    "untrack-read-only",
    "untrack-switching",
    "untrack-unmounted",
    "untrack-exchanged",
    "untrack-cleaning",
    "untrack-cleaned",
];
/// Where the workspace is on Btrfs already and is exchanged.
pub const EXCHANGE: &[&str] = &[
    "sandbox-made",
    "sandbox-recorded",
    "track-begun",
    "aside-made",
    "track-copying",
    "track-compared",
    "track-switching",
    "track-exchanged",
    "checkpoint-made",
    "checkpoint-recorded",
    "checkpoint-taken",
    "track-cleaning",
    "track-emptied",
    "track-cleaned",
];
fn fixed(ws: &Path) {
    rich(ws);
    mode(ws, 0o2771);
    std::fs::create_dir(ws.join("fixed")).expect("mkdir");
    std::fs::write(ws.join("fixed/in"), "x").expect("write");
    std::fs::write(ws.join("fixed-file"), "x").expect("write");
    let status = std::process::Command::new("chattr")
        .arg("+i")
        .args([ws.join("fixed/in"), ws.join("fixed"), ws.join("fixed-file")])
        .status();
    assert!(status.expect("chattr").success());
}

/// P035 P037: killed anywhere, `track` again, `recover`, or a restart and `recover`: the folder is whole.
fn tracks(lab: &Lab, points: &[&str], then: Then) {
    let before = lab.manifest();
    for point in points {
        let what = format!("track killed at {point}, then {then:?}");
        let args = ["--yes", "track", lab.ws_text(), "--size", "512M"];
        assert!(lab.killed_at(point, &args), "{what}: it did not come there");
        if then == Then::Reboot {
            lab.reboot();
        }
        match then {
            Then::Write => {
                let a = lab.run(&args);
                assert!(matches!(a.code, Some(0 | 3)), "{what}: {:?} {}", a.code, a.err);
            }
            _ => drop(lab.ok(&["--yes", "recover"])),
        }
        before.assert_same(&lab.manifest(), &what);
        assert_eq!(lab.leftovers(), Vec::<String>::new(), "{what}");
        let list = lab.ok(&["sandboxes"]);
        let tracked: Vec<_> = list
            .as_array()
            .expect("rows")
            .iter()
            .map(|s| s["tracked"].clone())
            .collect();
        assert!(
            tracked.iter().filter(|t| **t == true).count() <= 1,
            "{what}: {list}"
        );
        let unmade = list
            .as_array()
            .expect("rows")
            .iter()
            .filter(|s| s["checkpoints"] == 0)
            .count();
        assert_eq!(unmade, 0, "{what}: a sandbox that never was is left: {list}");
        if tracked.contains(&true.into()) {
            lab.ok(&["--yes", "rewind", "-s", lab.ws_text(), "start"]);
            lab.ok(&["--yes", "untrack", lab.ws_text()]);
            before.assert_same(&lab.manifest(), &what);
        }
    }
}

/// One that is a subvolume already stays what it is, whatever is killed.
#[test]
fn a_subvolume_is_adopted_and_given_back() {
    use std::os::unix::fs::MetadataExt;
    let lab = Lab::on_subvolume(fixed);
    let before = lab.manifest();
    let whole = |what: &str| {
        before.assert_same(&lab.manifest(), what);
        assert_eq!(std::fs::metadata(lab.ws()).expect("stat").ino(), 256, "{what}");
    };
    for point in [
        "sandbox-made",
        "sandbox-recorded",
        "track-begun",
        "checkpoint-made",
        "checkpoint-recorded",
        "checkpoint-taken",
    ] {
        for then in [Then::Recover, Then::Reboot] {
            let what = format!("adoption killed at {point}, then {then:?}");
            assert!(lab.killed_at(point, &["--yes", "track", lab.ws_text()]), "{what}");
            recover(&lab, then);
            whole(&what);
            if lab
                .ok(&["sandboxes"])
                .as_array()
                .expect("rows")
                .iter()
                .all(|s| s["tracked"] != true)
            {
                lab.track();
            }
            lab.write("extra", "x");
            lab.ok(&["--yes", "rewind", "-s", lab.ws_text(), "start"]);
            whole(&what);
            assert!(
                lab.killed_at("untrack-begun", &["--yes", "untrack", lab.ws_text()]),
                "{what}"
            );
            recover(&lab, then);
            lab.ok(&["--yes", "untrack", lab.ws_text()]);
            whole(&what);
            assert_eq!(lab.leftovers(), Vec::<String>::new(), "{what}");
        }
    }
}

#[test]
fn p035_p037_track_killed_anywhere_then_recover() {
    tracks(&Lab::plain(fixed), TRACK, Then::Recover);
    tracks(&Lab::on_btrfs(fixed), EXCHANGE, Then::Recover);
}
#[test]
fn p035_p037_track_killed_anywhere_then_track_again() {
    tracks(&Lab::plain(fixed), TRACK, Then::Write);
    tracks(&Lab::on_btrfs(fixed), EXCHANGE, Then::Write);
}
#[test]
fn p035_p037_track_killed_anywhere_then_a_restart() {
    tracks(&Lab::plain(fixed), TRACK, Then::Reboot);
    tracks(&Lab::on_btrfs(fixed), EXCHANGE, Then::Reboot);
}

fn untracks(lab: &Lab, then: Then) {
    let before = lab.manifest();
    let on_btrfs = lab.ws().ends_with("host/ws");
    for point in UNTRACK
        .iter()
        .filter(|p| !(on_btrfs && **p == "untrack-unmounted"))
    {
        let what = format!("untrack killed at {point}, then {then:?}");
        lab.track();
        assert!(
            lab.killed_at(point, &["--yes", "untrack", lab.ws_text()]),
            "{what}: it did not come there"
        );
        if then == Then::Reboot {
            lab.reboot();
        }
        match then {
            Then::Write => {
                let a = lab.run(&["--yes", "untrack", lab.ws_text()]);
                assert!(matches!(a.code, Some(0 | 3)), "{what}: {:?} {}", a.code, a.err);
            }
            _ => drop(lab.ok(&["--yes", "recover"])),
        }
        before.assert_same(&lab.manifest(), &what);
        assert_eq!(lab.leftovers(), Vec::<String>::new(), "{what}");
        if lab
            .ok(&["sandboxes"])
            .as_array()
            .expect("rows")
            .iter()
            .any(|s| s["tracked"] == true)
        {
            lab.ok(&["--yes", "untrack", lab.ws_text()]);
            before.assert_same(&lab.manifest(), &what);
        }
    }
}

#[test]
fn untrack_killed_anywhere_then_recover() {
    untracks(&Lab::plain(fixed), Then::Recover);
    untracks(&Lab::on_btrfs(fixed), Then::Recover);
}
#[test]
fn untrack_killed_anywhere_then_untrack_again() {
    untracks(&Lab::plain(fixed), Then::Write);
    untracks(&Lab::on_btrfs(fixed), Then::Write);
}
#[test]
fn untrack_killed_anywhere_then_a_restart() {
    untracks(&Lab::plain(fixed), Then::Reboot);
    untracks(&Lab::on_btrfs(fixed), Then::Reboot);
}
