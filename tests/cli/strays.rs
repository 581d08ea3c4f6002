//! Writers that hold no file open, programs that stand in a tree that goes away, helpers that are killed.

use std::io::Write;
use std::process::{Child, Command, Stdio};

use crate::actors::Holder;
use crate::common::wait_until;
use crate::lab::{Lab, SOON};

/// A shell in a session of its own. Killed when dropped.
struct Shell(Child);

impl Shell {
    fn start(lab: &Lab, folder: &std::path::Path, script: &str) -> Self {
        let child = Command::new("setsid")
            .args(["sh", "-c", script, "shell"])
            .arg(lab.ws())
            .env("HOME", lab.dir().join("home"))
            .current_dir(folder)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        Self(child.expect("setsid"))
    }
}

impl Drop for Shell {
    fn drop(&mut self) {
        let _ended = self.0.kill();
        let _status = self.0.wait();
    }
}

/// It opens, writes and closes all the time, or leaves that to short-lived others: at most moments it holds
/// nothing.
#[test]
fn writers_that_hold_nothing_open_are_stopped_all_the_same() {
    let alone = r#"i=0; while :; do i=$((i+1)); echo $i > "$1/f$((i % 7))"; done"#;
    let others = r"while :; do touch f0; mv f0 f1; cp f1 f2; rm f1; done";
    for (script, inside) in [(alone, false), (others, true)] {
        let lab = Lab::new(|ws| {
            for i in 0..40 {
                std::fs::write(ws.join(format!("f{i}")), "good").expect("write");
            }
        });
        let folder = if inside { lab.ws() } else { lab.dir() };
        let writer = Shell::start(&lab, folder, script);
        let writes = |what: &str| {
            let now = std::fs::read(lab.at("f2")).ok();
            let moved = || {
                std::fs::metadata(lab.at("f2"))
                    .ok()
                    .map(|m| m.modified().expect("time"))
            };
            let was = moved();
            assert!(
                wait_until(SOON, || moved() != was),
                "{what}: {now:?} it does not write"
            );
        };
        writes("before");
        for args in [
            &["--yes", "rewind", "start", "-s", lab.ws_text()][..],
            &["--yes", "undo", "-s", lab.ws_text()],
            &["--yes", "redo", "-s", lab.ws_text()],
        ] {
            lab.ok(args);
            writes(&args.join(" "));
        }
        drop(writer);
    }
}

/// What is in no checkpoint would stay behind: refused, and both are still there.
#[test]
fn untrack_leaves_no_subvolume_and_no_mount_behind() {
    let lab = Lab::new(|ws| std::fs::create_dir(ws.join("point")).expect("folder"));
    let inner = lab.at("inner");
    let made = Command::new("btrfs")
        .args(["-q", "subvolume", "create"])
        .arg(&inner)
        .status();
    assert!(made.expect("btrfs").success());
    lab.write("inner/f", "precious");
    let why = lab.fails(3, &["--yes", "untrack", lab.ws_text()]);
    assert!(why.contains("inner is a subvolume or a mount inside it"), "{why}");
    assert_eq!(lab.read("inner/f"), "precious");
    let removed = Command::new("btrfs")
        .args(["-q", "subvolume", "delete"])
        .arg(&inner)
        .status();
    assert!(removed.expect("btrfs").success());

    let other = lab.dir().join("other");
    std::fs::create_dir(&other).expect("folder");
    std::fs::write(other.join("f"), "theirs").expect("write");
    rustix::mount::mount_bind(&other, lab.at("point")).expect("mount");
    let why = lab.fails(3, &["--yes", "untrack", lab.ws_text()]);
    assert!(why.contains("point is a subvolume or a mount inside it"), "{why}");
    assert_eq!(lab.read("point/f"), "theirs");
    rustix::mount::unmount(lab.at("point"), rustix::mount::UnmountFlags::empty()).expect("unmount");
    lab.ok(&["--yes", "untrack", lab.ws_text()]);
}

/// A shell that stands in the tree that was tracked: what it writes afterwards must not vanish unseen.
#[test]
fn a_shell_left_in_an_untracked_tree_gets_an_error() {
    let lab = Lab::new(|ws| std::fs::write(ws.join("f"), "1").expect("write"));
    let script = r#"read _; if echo lost > late; then echo wrote; else echo refused; fi > "$1.said""#;
    let mut shell = Shell::start(&lab, lab.ws(), script);
    let cwd = format!("/proc/{}/cwd", shell.0.id());
    assert!(wait_until(SOON, || std::fs::read_link(&cwd).is_ok_and(|p| p == lab.ws())));
    lab.ok(&["--yes", "untrack", lab.ws_text()]);
    let mut pipe = shell.0.stdin.take().expect("pipe");
    pipe.write_all(b"go\n").expect("go");
    shell.0.wait().expect("its end");
    let said = std::fs::read_to_string(format!("{}.said", lab.ws_text())).expect("said");
    assert_eq!(said, "refused\n");
    assert_eq!(lab.read("f"), "1");
    lab.write("f", "2");
}

/// Stopped programs go on although the helper that would do it was killed or stopped.
#[test]
fn programs_go_on_without_the_helper() {
    for signal in ["KILL", "STOP"] {
        let lab = Lab::new(|ws| std::fs::write(ws.join("f"), "1").expect("write"));
        lab.write("f", "2");
        let holder = Holder::start(&lab, "f");
        let stopped = lab.stopped_at(
            "rewind-frozen",
            &["--yes", "rewind", "start", "-s", lab.ws_text()],
        );
        let hit = Command::new("pkill")
            .args([
                "--signal",
                signal,
                "-f",
                "--parent",
                &stopped.id().to_string(),
                "__thaw",
            ])
            .status();
        assert!(hit.expect("pkill").success(), "there is no helper");
        assert_eq!(stopped.go_on().code, Some(0), "{signal}");
        holder.assert_runs(signal);
        assert_eq!(lab.read("f"), "1");
    }
}

/// A user who may not read the list of pools is not told that nothing is tracked.
#[test]
fn another_user_is_told_to_become_root() {
    use std::os::unix::fs::PermissionsExt;
    let lab = Lab::new(|ws| std::fs::write(ws.join("f"), "1").expect("write"));
    std::fs::set_permissions(lab.dir(), PermissionsExt::from_mode(0o755)).expect("mode");
    // the folder of the build may be closed to others
    let program = lab.dir().join("program");
    std::fs::copy(env!("CARGO_BIN_EXE_respool"), &program).expect("copy");
    for words in [
        &["sandboxes"][..],
        &["--yes", "recover"],
        &["--yes", "rewind", "start", "-s", lab.ws_text()],
    ] {
        let own = lab.json_command(words);
        let mut other = Command::new("setpriv");
        other.args(["--reuid=65534", "--regid=65534", "--clear-groups"]);
        other
            .arg(&program)
            .args(own.get_args())
            .env("HOME", "/nonexistent")
            .env("RESPOOL_SOCKET", "/nonexistent/no-service")
            .current_dir("/");
        let out = other.output().expect("setpriv");
        let said = String::from_utf8_lossy(&out.stdout);
        assert_eq!(out.status.code(), Some(3), "{words:?}: {said}");
        assert!(
            said.contains("what is tracked cannot be seen") && said.contains("sudo respool"),
            "{said}"
        );
    }
}

/// A link in the place of a folder above the workspace, put there between the plan and the work: nothing that
/// it points to is touched.
#[test]
fn a_link_put_above_the_workspace_leads_nowhere() {
    let lab = Lab::plain(|_| {});
    let (above, victim) = (lab.dir().join("above"), lab.dir().join("victim"));
    for (folder, text) in [(&above, "mine"), (&victim, "theirs")] {
        std::fs::create_dir_all(folder.join("w")).expect("folder");
        std::fs::write(folder.join("w/f"), text).expect("write");
    }
    let path = above.join("w").to_string_lossy().into_owned();
    let swap = || {
        std::fs::rename(&above, lab.dir().join("kept")).expect("rename");
        std::os::unix::fs::symlink(&victim, &above).expect("link");
    };
    let back = || {
        std::fs::remove_file(&above).expect("remove");
        std::fs::rename(lab.dir().join("kept"), &above).expect("rename");
    };
    let theirs = |what: &str| {
        let names: Vec<_> = std::fs::read_dir(&victim)
            .expect("victim")
            .map(|e| e.expect("entry").file_name())
            .collect();
        assert_eq!(names, ["w"], "{what}");
        assert_eq!(
            std::fs::read_to_string(victim.join("w/f")).expect("theirs"),
            "theirs",
            "{what}"
        );
    };
    let tracking = lab.stopped_at("track-begun", &["--yes", "track", &path]);
    swap();
    assert_eq!(tracking.go_on().code, Some(1));
    theirs("track");
    back();
    lab.ok(&["--yes", "recover"]);
    lab.ok(&["--yes", "track", &path]);
    let untracking = lab.stopped_at("untrack-begun", &["--yes", "untrack", &path]);
    swap();
    assert_eq!(untracking.go_on().code, Some(1));
    theirs("untrack");
    back();
    lab.ok(&["--yes", "recover"]);
    assert_eq!(std::fs::read_to_string(above.join("w/f")).expect("mine"), "mine");
    lab.ok(&["--yes", "untrack", &path]);
    assert_eq!(std::fs::read_to_string(above.join("w/f")).expect("mine"), "mine");
}
