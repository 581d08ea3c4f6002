//! A restart of the machine: everything is back before somebody can write, and what lies beneath takes no write.

use std::path::Path;
use std::process::{Child, Command, Stdio};

use crate::common::{self, TestDir, run};
use crate::lab::{Answer, Lab, SOON};
use crate::rounds::rich;

/// The new namespace holds what other tests have mounted at that moment: it lets go of it at once.
const LET_GO: &str = r#"
import re, subprocess
for line in reversed(open("/proc/self/mountinfo", "rb").read().splitlines()):
    point = re.sub(rb"\\([0-7]{3})", lambda m: bytes([int(m[1], 8)]), line.split(b" ")[4])
    if b"/respool-test-" in point:
        subprocess.run([b"umount", b"-l", point], stderr=subprocess.DEVNULL)
"#;

/// Runs the script in a mount namespace of its own, as after a start of the machine: nothing that it mounts is seen
/// elsewhere, and all of it goes away with it.
fn fresh(lab: &Lab, script: &str) -> Answer {
    let mut c = Command::new("unshare");
    let script = format!("python3 -c \"$4\"\n{script}");
    let program = env!("CARGO_BIN_EXE_respool");
    c.args([
        "--mount",
        "--propagation",
        "private",
        "sh",
        "-euc",
        &script,
        "sh",
        program,
    ])
    .arg(lab.state())
    .arg(lab.ws())
    .arg(LET_GO)
    .env_clear()
    .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
    .env("HOME", lab.dir().join("home"))
    .env("TMPDIR", lab.dir())
    .stdin(Stdio::null());
    Answer::of(c.output().expect("unshare"))
}

/// P013: the checkpoints are listed and can be gone back to after a restart.
#[test]
fn p013_checkpoints_are_there_after_a_restart() {
    let labs: [fn() -> Lab; 3] = [
        || Lab::plain(rich),
        || Lab::on_btrfs(rich),
        || Lab::on_subvolume(rich),
    ];
    for lab in labs {
        let lab = lab();
        lab.track();
        let mut states = Vec::new();
        for n in 1..=3 {
            lab.write("f", n.to_string());
            let id = lab.message(n);
            states.push((id, lab.manifest()));
        }
        lab.write("f", "after");
        lab.reboot();
        lab.ok(&["pool", "mount"]);
        let rows = lab.ok(&["timeline", lab.store().to_str().expect("UTF-8")]);
        let rows = rows["rows"].as_array().expect("rows");
        let ids: Vec<&str> = rows
            .iter()
            .filter_map(|r| r["checkpoint"]["id"].as_str())
            .collect();
        assert_eq!(ids, states.iter().map(|s| s.0.as_str()).collect::<Vec<_>>());
        for (id, manifest) in &states {
            lab.ok(&["--yes", "rewind", id, "--files"]);
            manifest.assert_same(&lab.manifest(), id);
        }
    }
}

/// A shell that stands in the folder since before it was tracked. Killed when dropped.
struct Stale(Child);

impl Stale {
    fn start(lab: &Lab) -> Self {
        let script = "echo ready; read go; echo lost > f 2>/dev/null && echo wrote; mkdir d 2>/dev/null && echo wrote; \
                      touch . 2>/dev/null && echo wrote; echo end";
        let child = Command::new("setsid")
            .args(["sh", "-c", script])
            .current_dir(lab.ws())
            .env("HOME", lab.dir().join("home"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn();
        Self(child.expect("setsid"))
    }

    /// Lets it write; what it said.
    fn writes(mut self) -> String {
        use std::io::{Read, Write};
        self.0
            .stdin
            .take()
            .expect("stdin")
            .write_all(b"go\n")
            .expect("write");
        let mut said = String::new();
        let mut out = self.0.stdout.take().expect("stdout");
        out.read_to_string(&mut said).expect("read");
        said
    }
}

impl Drop for Stale {
    fn drop(&mut self) {
        let _ended = self.0.kill();
        let _status = self.0.wait();
    }
}

/// The stub beneath never takes a write: not from one who stood there before, not while the pool is not mounted, not
/// from root; and then everything is there again in a fresh mount namespace, and in this one.
#[test]
fn after_a_restart_nothing_is_written_beneath() {
    let lab = Lab::plain(|ws| {
        rich(ws);
        std::fs::write(ws.join("f"), "one").expect("write");
    });
    let (before, mounted) = (Stale::start(&lab), Stale::start(&lab));
    lab.track();
    lab.message(1);
    let manifest = lab.manifest();
    assert_eq!(mounted.writes(), "ready\nend\n", "while it is mounted over");
    manifest.assert_same(&lab.manifest(), "the live tree");
    lab.reboot();
    assert_eq!(before.writes(), "ready\nend\n", "while nothing is mounted");
    for path in [lab.at("new"), lab.at("src/new")] {
        let e = std::fs::write(&path, "x").expect_err("no write");
        assert!(matches!(e.raw_os_error(), Some(1 | 2)), "{e}");
    }
    let e = std::fs::create_dir(lab.at("d")).expect_err("no folder");
    assert_eq!(e.raw_os_error(), Some(1), "EPERM, to root too");
    assert!(
        std::fs::remove_dir(lab.ws()).is_err() && std::fs::rename(lab.ws(), lab.dir().join("x")).is_err()
    );
    assert_eq!(std::fs::read_dir(lab.ws()).expect("list").count(), 0);
    // the machine starts: in a mount namespace that never saw the pool
    let a = fresh(
        &lab,
        r#""$1" --state-dir "$2" --json pool mount; cat "$3/f"; echo two > "$3/f"; "$1" --state-dir "$2" --json -s "$3" log"#,
    );
    assert_eq!(a.code, Some(0), "{} {}", a.text(), a.err);
    assert!(
        a.text().contains("\"mounted\":true") && a.text().contains("\none"),
        "{}",
        a.text()
    );
    assert!(common::wait_until(SOON, || common::loops_below(lab.dir()).is_empty()));
    assert_eq!(
        std::fs::read_dir(lab.ws()).expect("list").count(),
        0,
        "still the stub here"
    );
    // a command that only reads brings it up here
    let rows = lab.ok(&["changes", "m1", "now"]);
    assert_eq!(
        (rows[0]["path"].as_str(), lab.read("f")),
        (Some("f"), "two\n".into())
    );
}

/// One pool that is gone does not keep the others away, and the exit code tells the unit.
#[test]
fn pool_mount_goes_on_after_one_that_fails() {
    let lab = Lab::new(rich);
    let second = lab.dir().join("second");
    std::fs::create_dir(&second).expect("mkdir");
    let image = lab.dir().join("second.img");
    let (second, image) = (second.to_str().expect("UTF-8"), image.to_str().expect("UTF-8"));
    lab.ok(&["--yes", "track", second, "--size", "512M", "--image", image]);
    let manifest = lab.manifest();
    lab.reboot();
    let (default, away) = (lab.state().join("pool.img"), lab.dir().join("away"));
    std::fs::rename(&default, &away).expect("rename");
    let a = lab.run(&["pool", "mount"]);
    let rows = a.json();
    assert_eq!(a.code, Some(1), "{rows}");
    assert!(rows.to_string().contains("pool.img"), "{rows}");
    let shown = rows
        .as_array()
        .expect("rows")
        .iter()
        .find(|r| r["path"] == second);
    assert_eq!(shown.expect("the second")["mounted"], true, "{rows}");
    std::fs::rename(&away, &default).expect("rename");
    lab.ok(&["pool", "mount"]);
    manifest.assert_same(&lab.manifest(), "the first");
}

/// P032: the workspace was moved and another folder is in its place: refused, with the recorded root and the one that
/// is there now.
#[test]
fn p032_another_root_at_the_path_is_refused() {
    let lab = Lab::on_btrfs(|ws| std::fs::write(ws.join("f"), "one").expect("write"));
    lab.track();
    let id = lab.message(1);
    let shown = run(
        "btrfs",
        &["subvolume".as_ref(), "show".as_ref(), lab.ws().as_os_str()],
    );
    let uuid = shown
        .lines()
        .find(|l| l.trim().starts_with("UUID:"))
        .expect("a uuid");
    let uuid = uuid.split_whitespace().nth(1).expect("a uuid").replace('-', "");
    let moved = lab.ws().with_file_name("moved");
    std::fs::rename(lab.ws(), &moved).expect("move");
    let e = lab.fails(3, &["--yes", "rewind", &id, "--files"]);
    assert!(e.contains(&uuid) && e.contains("now it is at /moved"), "{e}");
    assert!(!lab.ws().exists(), "nothing was made in its place");
    for subvolume in [false, true] {
        if subvolume {
            std::fs::remove_dir_all(lab.ws()).expect("remove");
            run(
                "btrfs",
                &[
                    "-q".as_ref(),
                    "subvolume".as_ref(),
                    "create".as_ref(),
                    lab.ws().as_os_str(),
                ],
            );
        } else {
            std::fs::create_dir(lab.ws()).expect("mkdir");
        }
        lab.write("f", "unrelated");
        let now = if subvolume {
            "now it is the uuid"
        } else {
            "now it is a folder and no subvolume"
        };
        for args in [
            &["--yes", "rewind", &id, "--files"][..],
            &["-s", lab.ws_text(), "checkpoint"],
            &["-s", moved.to_str().expect("UTF-8"), "checkpoint"],
        ] {
            let e = lab.fails(3, args);
            assert!(
                e.contains(lab.ws_text()) && e.contains(&uuid) && e.contains(now),
                "{args:?}: {e}"
            );
        }
        assert_eq!(lab.read("f"), "unrelated");
    }
    run(
        "btrfs",
        &[
            "-q".as_ref(),
            "subvolume".as_ref(),
            "delete".as_ref(),
            lab.ws().as_os_str(),
        ],
    );
    std::fs::rename(&moved, lab.ws()).expect("back");
    lab.write("f", "two");
    lab.ok(&["--yes", "rewind", &id, "--files"]);
    assert_eq!(lab.read("f"), "one");
}

/// P107: somebody stands in the tree and has a file of it mapped: the plan names the process, the rewind in place goes
/// through, and the mapping shows the restored bytes.
#[test]
fn p107_a_busy_tree_is_rewound_in_place() {
    let lab = Lab::new(|ws| std::fs::write(ws.join("f"), "one").expect("write"));
    let id = lab.message(1);
    lab.write("f", "two");
    let python = "import mmap, sys\nf = open('f', 'r+b')\nm = mmap.mmap(f.fileno(), 0)\nf.close()\n\
                  print('ready', flush=True)\nsys.stdin.readline()\nprint(m[:3].decode(), flush=True)\n";
    let mut child = Command::new("setsid")
        .args(["python3", "-c", python])
        .current_dir(lab.ws())
        .env("HOME", lab.dir().join("home"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("python3");
    let mut out = std::io::BufReader::new(child.stdout.take().expect("stdout"));
    let mut line = String::new();
    std::io::BufRead::read_line(&mut out, &mut line).expect("ready");
    let busy = Stale(child);
    let plan = lab.ok(&["--dry-run", "rewind", &id, "--files"]);
    assert!(
        plan["plan"].to_string().contains(&busy.0.id().to_string()),
        "{plan}"
    );
    let done = lab.ok(&["--yes", "rewind", &id, "--files"]);
    assert_eq!(done["verified"], true);
    let mut busy = busy;
    std::io::Write::write_all(busy.0.stdin.as_mut().expect("stdin"), b"go\n").expect("write");
    line.clear();
    std::io::BufRead::read_line(&mut out, &mut line).expect("its answer");
    assert_eq!(line, "one\n");
}

/// The program in a mount namespace with folders of its own in place of those of the system, and a systemctl that
/// only notes what it is told.
const MACHINE: &str = r#"
for d in /var/lib /etc/systemd/system /run/systemd /usr/local/bin; do mkdir -p $d; mount -t tmpfs -o mode=755 none $d; done
mkdir -p /run/systemd/system /etc/systemd/system/multi-user.target.wants
cat > "$TMPDIR/systemctl" <<'END'
#!/bin/sh
PATH=/usr/bin:/bin
echo "$*" >> LOG
wants=/etc/systemd/system/multi-user.target.wants
case "$3" in
enable) ln -s "../$4" "$wants/$4" ;;
disable) rm "$wants/$4" ;;
esac
END
sed -i "s|LOG|$TMPDIR/log|" "$TMPDIR/systemctl"
chmod 755 "$TMPDIR/systemctl"
install -m 755 "$1" /usr/local/bin/respool
mount --bind "$TMPDIR/systemctl" /usr/bin/systemctl
unit=/etc/systemd/system/respool-pools.service
r() { /usr/local/bin/respool --json --yes "$@"; }
"#;

/// `track` as root with the default state folder writes and enables the unit, with the program's own path; `untrack`
/// of the last workspace takes it out again; a named state folder is nobody's business.
#[test]
fn track_sets_the_unit_and_the_last_untrack_takes_it_out() {
    let lab = Lab::plain(rich);
    let script = format!(
        "{MACHINE}{}",
        r#"
mkdir "$TMPDIR/b"
r --state-dir "$TMPDIR/other" track "$3" --size 512M
[ ! -e $unit ]
r --state-dir "$TMPDIR/other" untrack "$3"
r --state-dir "$TMPDIR/other" pool unmount
r --dry-run track "$3" | grep -F respool-pools.service
[ ! -e $unit ] && [ ! -e "$TMPDIR/log" ]
r track "$3" --size 512M
grep -Fx 'ExecStart=/usr/local/bin/respool pool mount' $unit
r track "$TMPDIR/b" --size 512M
r untrack "$3"
[ -e $unit ]
r --dry-run untrack "$TMPDIR/b" | grep -F 'take the systemd unit'
r untrack "$TMPDIR/b"
[ ! -e $unit ]
r pool unmount
cat "$TMPDIR/log"
"#
    );
    let a = fresh(&lab, &script);
    assert_eq!(a.code, Some(0), "{} {}", a.text(), a.err);
    let calls: Vec<String> = std::fs::read_to_string(lab.dir().join("log"))
        .expect("the calls")
        .lines()
        .map(|l| l.trim_start_matches("--no-ask-password --quiet ").to_owned())
        .collect();
    let unit = "respool-pools.service";
    assert_eq!(
        calls,
        [
            "daemon-reload".into(),
            format!("enable {unit}"),
            format!("disable {unit}"),
            "daemon-reload".into()
        ]
    );
}

/// A program that others can change is never what root starts; without systemd it is told how to mount.
#[test]
fn without_a_unit_it_is_told_once_how_to_mount() {
    let lab = Lab::plain(rich);
    let script = format!(
        "{MACHINE}{}",
        r#"
mkdir "$TMPDIR/b"
chmod 777 /usr/local/bin
r track "$3" --size 512M
r track "$TMPDIR/b" --size 512M
[ ! -e $unit ] && [ ! -e "$TMPDIR/log" ]
r untrack "$3"; r untrack "$TMPDIR/b"; r pool unmount
chmod 755 /usr/local/bin
rmdir /run/systemd/system
r track "$3" --size 512M
[ ! -e $unit ] && [ ! -e "$TMPDIR/log" ]
r untrack "$3"; r pool unmount
"#
    );
    let a = fresh(&lab, &script);
    assert_eq!(a.code, Some(0), "{} {}", a.text(), a.err);
    assert_eq!(a.err.matches("respool pool mount (").count(), 2, "{}", a.err);
    assert!(
        a.err.contains("users other than root can change /usr/local/bin"),
        "{}",
        a.err
    );
    assert!(a.err.contains("no systemd runs here"), "{}", a.err);
}

const UNITS: [&str; 3] = ["respool-pools.service", "respool.service", "respool.socket"];

/// The units as they ship say nothing that systemd does not know.
#[test]
fn the_units_are_well_formed() {
    let tool = Path::new("/usr/bin/systemd-analyze");
    assert!(
        tool.exists(),
        "this test needs systemd-analyze: install the package systemd"
    );
    let dir = TestDir::new();
    for unit in UNITS {
        let text = std::fs::read_to_string(
            Path::new(env!("CARGO_MANIFEST_DIR"))
                .join("assets/units")
                .join(unit),
        );
        // the program need not be installed
        let text = text.expect("the unit").replace("/usr/bin/respool", "/bin/true");
        std::fs::write(dir.join(unit), text).expect("write");
    }
    let verify = || {
        let out = Command::new(tool)
            .args(["verify", "--man=no"])
            .args(UNITS.map(|u| dir.join(u)))
            .output()
            .expect("systemd-analyze");
        (
            out.status.success(),
            String::from_utf8_lossy(&out.stderr).into_owned(),
        )
    };
    assert_eq!(verify(), (true, String::new()));
    // it would tell
    let service = dir.join("respool.service");
    let text = std::fs::read_to_string(&service)
        .expect("read")
        .replace("KillMode", "KilMode");
    std::fs::write(&service, text).expect("write");
    assert!(verify().1.contains("KilMode"));
}

/// What gives a service a mount namespace of its own would hide its mounts from everybody (systemd.exec(5)).
#[test]
fn the_service_mounts_where_all_see_it() {
    let text = include_str!("../../assets/units/respool.service");
    let keys: Vec<&str> = text
        .lines()
        .filter(|l| !l.starts_with('#'))
        .filter_map(|l| l.split_once('='))
        .map(|(k, _)| k)
        .collect();
    assert!(keys.contains(&"NoNewPrivileges"));
    for bad in [
        "Private",
        "Protect",
        "ReadOnlyPaths",
        "ReadWritePaths",
        "InaccessiblePaths",
        "ExecPaths",
        "NoExecPaths",
        "Bind",
        "TemporaryFileSystem",
        "Root",
        "MountFlags",
        "DynamicUser",
        "MountAPIVFS",
        "ProcSubset",
        "RestrictSUIDSGID",
        "RestrictNamespaces",
        "Device",
    ] {
        assert!(!keys.iter().any(|k| k.starts_with(bad)), "{bad}");
    }
}
