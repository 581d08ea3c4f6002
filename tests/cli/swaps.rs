//! Whoever owns the folder exchanges things in the middle of one step.

use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::Path;
use std::time::Duration;

use crate::common::wait_until;
use crate::lab::Lab;

const USER: u32 = 1000;
const SOON: Duration = Duration::from_secs(60);

fn fill(ws: &Path) {
    chown(ws, Some(USER), Some(USER)).expect("owner");
    std::fs::write(ws.join("secret"), "of root").expect("write");
    std::fs::set_permissions(ws.join("secret"), std::fs::Permissions::from_mode(0o600)).expect("mode");
    std::fs::write(ws.join("f"), "one").expect("write");
    chown(ws.join("f"), Some(USER), Some(USER)).expect("owner");
}

/// Owner, mode, modification time.
fn facts(path: &Path) -> (u32, u32, i64, i64) {
    let m = std::fs::symlink_metadata(path).expect("stat");
    (m.uid(), m.mode(), m.mtime(), m.mtime_nsec())
}

/// Stops a rewind at `point`, exchanges `name` and a file of root's, and lets it go on to `end`, where it is killed, or
/// to where it stops again as it takes all back.
fn swapped(lab: &Lab, point: &str, name: &str, end: &str) {
    let secret = facts(&lab.at("secret"));
    let stopped = {
        let mut command = lab.json_command(&["-s", lab.ws_text(), "--yes", "rewind", "start"]);
        command.env("RESPOOL_STOP_AT", point).env("RESPOOL_KILL_AT", end);
        crate::actors::Stopped(Some(command.spawn().expect("start")))
    };
    let rests = || matches!(stopped.state(), Some('T' | 'Z'));
    assert!(wait_until(SOON, rests), "{point}");
    assert_eq!(stopped.state(), Some('T'), "it did not come to {point}");
    std::fs::rename(lab.at(name), lab.at("theirs")).expect("rename");
    std::fs::rename(lab.at("secret"), lab.at(name)).expect("rename");
    let pid = nix::unistd::Pid::from_raw(stopped.id() as i32);
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGCONT).expect("SIGCONT");
    // it is awake when the call returns
    assert!(wait_until(SOON, rests), "{point}: it hangs");
    assert_eq!(facts(&lab.at(name)), secret, "{point}");
    assert_eq!(lab.read(name), "of root", "{point}");
}

#[test]
fn a_file_gets_its_attributes_by_the_handle_that_got_its_data() {
    let lab = Lab::plain(fill);
    lab.track();
    let before = facts(&lab.at("f"));
    lab.write("f", "two, and longer");
    swapped(&lab, "restore-written-1", "f", "restore-step-1");
    assert_eq!(lab.read("theirs"), "one");
    assert_eq!(facts(&lab.at("theirs")), before);
    lab.ok(&["--yes", "recover"]);
    lab.ok(&["-s", lab.ws_text(), "--yes", "rewind", "start"]);
    assert_eq!(
        (lab.read("f"), lab.read("secret")),
        ("one".into(), "of root".into())
    );
    assert!(!lab.at("theirs").exists());
}

#[test]
fn what_is_put_at_the_name_of_a_file_that_is_moved_is_put_back() {
    let lab = Lab::plain(fill);
    lab.track();
    std::fs::rename(lab.at("f"), lab.at("g")).expect("rename");
    swapped(&lab, "restore-moving-1", "g", "restore-step-1");
    lab.ok(&["--yes", "recover"]);
}

#[test]
fn a_folder_put_in_the_place_of_the_emptied_one_is_not_filled() {
    let lab = Lab::plain(fill);
    let before = lab.manifest();
    let args = ["--yes", "track", lab.ws_text(), "--size", "512M"];
    assert!(lab.killed_at("track-moved", &args));
    let kept = lab.dir().join("kept");
    std::fs::rename(lab.ws(), &kept).expect("rename");
    std::fs::create_dir(lab.ws()).expect("theirs");
    let ino = |p: &Path| std::fs::metadata(p).expect("stat").ino();
    let theirs = ino(lab.ws());
    let a = lab.run(&["--yes", "recover"]);
    let said = a.text() + &a.err;
    assert!(said.contains("somebody put another folder at"), "{said}");
    assert_eq!(
        (ino(lab.ws()), std::fs::read_dir(lab.ws()).expect("list").count()),
        (theirs, 0)
    );
    std::fs::remove_dir(lab.ws()).expect("removed");
    std::fs::rename(&kept, lab.ws()).expect("rename");
    lab.ok(&["--yes", "recover"]);
    before.assert_same(&lab.manifest(), "put back");
    assert_eq!(lab.leftovers(), Vec::<String>::new());
}
