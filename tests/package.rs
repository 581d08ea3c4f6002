//! The Debian package: what Cargo.toml puts into it, its units, and its maintainer scripts with a systemd and a
//! respool that only note what they are told.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

const UNITS: [&str; 3] = ["respool-pools.service", "respool.service", "respool.socket"];
const STATE: &str = "/var/lib/respool";

fn top() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn read(path: impl AsRef<Path>) -> String {
    let path = top().join(path);
    fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

fn manifest() -> toml::Table {
    read("Cargo.toml").parse().expect("Cargo.toml")
}

/// Source, and the path that it is installed at.
fn assets() -> Vec<(String, String)> {
    let manifest = manifest();
    let assets = manifest["package"]["metadata"]["deb"]["assets"].as_array();
    let word = |v: &toml::Value| v.as_str().expect("a word").to_owned();
    let one = |a: &toml::Value| {
        let (from, to) = (word(&a[0]), word(&a[1]));
        let name = from.rsplit('/').next().expect("a name");
        let to = if to.ends_with('/') { to + name } else { to };
        (from, format!("/{to}"))
    };
    assets.expect("assets").iter().map(one).collect()
}

#[test]
fn what_is_packaged_is_there_or_made() {
    let script = read(".ci/deb");
    let all = assets();
    assert!(all.len() > UNITS.len());
    for (from, _) in &all {
        let Some(made) = from.strip_prefix("target/release/") else {
            assert!(top().join(from).is_file(), "{from}");
            continue;
        };
        let name = made.strip_prefix("made/").unwrap_or(made);
        let by_shell = ["bash", "zsh", "fish"]
            .iter()
            .any(|s| name == format!("respool.{s}"));
        assert!(
            name == "respool" || by_shell && script.contains("respool.$shell") || script.contains(name),
            ".ci/deb does not make {from}"
        );
    }
    // what is compiled in must be in the crate, too
    let manifest = manifest();
    let include = manifest["package"]["include"].as_array().expect("include");
    for needed in ["/src/**", "/assets/**", "/README.md", "/LICENSE"] {
        assert!(include.iter().any(|i| i.as_str() == Some(needed)), "{needed}");
    }
}

#[test]
fn units_name_what_the_package_installs() {
    let all = assets();
    for unit in UNITS {
        let from = format!("assets/units/{unit}");
        let to = format!("/usr/lib/systemd/system/{unit}");
        assert!(all.contains(&(from.clone(), to)), "{unit} is not installed");
        let text = read(&from);
        let programs: Vec<&str> = text
            .lines()
            .filter_map(|l| l.strip_prefix("ExecStart="))
            .map(|l| l.split(' ').next().expect("a program"))
            .collect();
        assert_eq!(programs.is_empty(), unit.ends_with(".socket"), "{unit}");
        for program in programs {
            assert!(
                all.iter().any(|(_, to)| to == program),
                "{unit} calls {program}, which is not installed"
            );
        }
        for script in ["postinst", "prerm", "postrm"] {
            assert!(
                read(format!("assets/debian/{script}")).contains(unit),
                "{script}: {unit}"
            );
        }
    }
    assert_eq!(
        fs::read_dir(top().join("assets/units")).expect("units").count(),
        UNITS.len()
    );
}

/// systemd takes a job out where the order has a circle, and nobody says which.
#[test]
fn the_order_at_the_start_has_no_circle() {
    let dir = tempfile::tempdir().expect("a folder");
    let write = |name: &str, text: &str| fs::write(dir.path().join(name), text).expect("write");
    for unit in UNITS {
        // the program need not be installed here
        let text = read(format!("assets/units/{unit}"));
        write(unit, &text.replace("=/usr/bin/respool", "=/usr/bin/env"));
    }
    let wants = dir.path().join("sockets.target.wants");
    fs::create_dir(&wants).expect("folder");
    for socket in ["respool.socket", "docker.socket"] {
        std::os::unix::fs::symlink(format!("../{socket}"), wants.join(socket)).expect("link");
    }
    write("docker.socket", "[Socket]\nListenStream=/run/no-docker.sock\n");
    write(
        "docker.service",
        "[Unit]\nRequires=docker.socket\nAfter=docker.socket\n[Service]\nExecStart=/usr/bin/env\n",
    );
    write(
        "start.target",
        "[Unit]\nWants=basic.target respool-pools.service respool.service docker.service\n",
    );
    let verify = || {
        let out = Command::new("systemd-analyze")
            .args(["verify", "--man=no", "start.target"])
            .env("SYSTEMD_UNIT_PATH", format!("{}:", dir.path().display()))
            .output()
            .expect("this test needs systemd-analyze (package systemd)");
        said(&out)
    };
    assert!(!verify().contains("ordering cycle"), "{}", verify());
    // it would tell
    let pools = read("assets/units/respool-pools.service").replace("=/usr/bin/respool", "=/usr/bin/env");
    write(
        "respool-pools.service",
        &pools.replace("Before=cron.service", "Before=docker.socket cron.service"),
    );
    assert!(verify().contains("ordering cycle"), "{}", verify());
}

/// The maintainer scripts in a machine of their own.
struct Machine {
    dir: tempfile::TempDir,
}

impl Machine {
    /// `respool`: what that program does, as a shell script.
    fn new(respool: &str) -> Self {
        let dir = tempfile::tempdir().expect("a folder");
        let m = Self { dir };
        for folder in ["bin", "state", "units"] {
            fs::create_dir(m.path(folder)).expect("folder");
        }
        let log = m.path("log");
        let note = format!("printf '%s\\n' \"${{0##*/}} $*\" >>'{}'", log.display());
        for name in ["systemctl", "deb-systemd-helper", "deb-systemd-invoke"] {
            m.program(name, &note);
        }
        m.program("respool", &format!("{note}\n{respool}"));
        m
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn program(&self, name: &str, text: &str) {
        let path = self.path("bin").join(name);
        fs::write(&path, format!("#!/bin/sh\n{text}\n")).expect("write");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("mode");
    }

    /// A maintainer script, as dpkg calls it. `more`: a variable of the environment.
    fn run(&self, script: &str, words: &[&str], more: Option<(&str, &str)>) -> Output {
        let text = read(format!("assets/debian/{script}"))
            .replace(STATE, self.path("state").to_str().expect("text"))
            .replace("/etc/systemd/system", self.path("units").to_str().expect("text"));
        let path = self.path(script);
        fs::write(&path, text).expect("write");
        Command::new("sh")
            .arg(&path)
            .args(words)
            .env_clear()
            .env("PATH", format!("{}:/usr/bin:/bin", self.path("bin").display()))
            .envs(more)
            .current_dir("/")
            .output()
            .expect("sh")
    }

    fn log(&self) -> String {
        fs::read_to_string(self.path("log")).unwrap_or_default()
    }
}

fn said(out: &Output) -> String {
    String::from_utf8_lossy(&out.stderr).into_owned()
}

#[test]
fn scripts_are_sound() {
    let ours = ["postinst", "prerm", "postrm"].map(|s| format!("assets/debian/{s}"));
    for script in ours.into_iter().chain([".devcontainer/start-docker".to_owned()]) {
        let path = top().join(&script);
        let mode = path.metadata().expect("there").permissions().mode();
        assert_eq!(mode & 0o111, 0o111, "{script} can be started");
        let shell = if script.starts_with("assets") {
            "sh"
        } else {
            "bash"
        };
        let parsed = Command::new(shell).arg("-n").arg(&path).output().expect("sh");
        assert!(parsed.status.success(), "{}", said(&parsed));
        let checked = Command::new("shellcheck").arg(&path).output();
        let checked = checked.expect("this test needs shellcheck (package shellcheck)");
        assert!(
            checked.status.success(),
            "{}",
            String::from_utf8_lossy(&checked.stdout)
        );
    }
}

const TRACKED: &str = "cat <<'EOF'
sb-aaaaaaaaaa  mounted        3 checkpoints  /home/dev/my project's
sb-bbbbbbbbbb  untracked     12 checkpoints  /home/dev/old
sb-cccccccccc  not mounted     1 checkpoint  /srv/x
EOF";

#[test]
fn nothing_is_removed_while_a_workspace_is_tracked() {
    let m = Machine::new(TRACKED);
    let out = m.run("prerm", &["remove"], None);
    assert_eq!(out.status.code(), Some(1));
    let text = said(&out);
    assert!(
        text.contains("\n    respool untrack '/home/dev/my project'\\''s'\n"),
        "{text}"
    );
    assert!(text.contains("\n    respool untrack '/srv/x'\n"), "{text}");
    assert!(!text.contains("/home/dev/old"), "{text}");
    assert!(!text.contains("nobody can tell"), "{text}");
    let log = m.log();
    assert!(
        !log.contains("unmount") && !log.contains("stop"),
        "nothing was done: {log}"
    );
}

#[test]
fn nothing_is_removed_while_docker_is_in_a_pool() {
    let m = Machine::new("echo 'nothing is tracked'");
    fs::write(m.path("state").join("docker.json"), "{}").expect("a record");
    let out = m.run("prerm", &["remove"], None);
    assert_eq!(out.status.code(), Some(1));
    assert!(
        said(&out).contains("\n    respool docker disable\n"),
        "{}",
        said(&out)
    );
}

#[test]
fn nothing_is_removed_while_nobody_can_tell() {
    for (program, word) in [
        (
            "echo 'respool: /d/pool.img is no pool' >&2; echo 'nothing is tracked'",
            "is no pool",
        ),
        ("exit 5", "ended with 5"),
        (
            "echo 'sb-dddddddddd  not mounted     1 checkpoint  ?'",
            "sb-dddddddddd",
        ),
        ("exec /nowhere/respool", "/nowhere/respool"),
        ("echo 'a list of another form'", "another form"),
    ] {
        let m = Machine::new(program);
        let out = m.run("prerm", &["remove"], None);
        assert_eq!(out.status.code(), Some(1), "{program}");
        let text = said(&out);
        assert!(
            text.contains("nobody can tell") && text.contains(word),
            "{program}: {text}"
        );
        assert!(!m.log().contains("unmount"), "{program}");
        let out = m.run("prerm", &["remove"], Some(("RESPOOL_REMOVE", "anyway")));
        assert!(out.status.success(), "{}", said(&out));
        assert!(!m.log().contains("unmount"), "what is mounted stays: {program}");
    }
}

#[test]
fn an_upgrade_asks_nothing() {
    let m = Machine::new(TRACKED);
    for words in [
        &["upgrade", "0.2.0"][..],
        &["failed-upgrade", "0.1.0"],
        &["deconfigure", "in-favour", "x", "1"],
    ] {
        assert!(m.run("prerm", words, None).status.success(), "{words:?}");
    }
    assert_eq!(m.log(), "");
}

#[test]
fn with_nothing_tracked_pools_are_unmounted() {
    let m = Machine::new(
        "[ \"$3\" = sandboxes ] && echo 'sb-bbbbbbbbbb  untracked     12 checkpoints  /home/dev/old'; :",
    );
    let users = m.path("state/users/1000/ab");
    fs::create_dir_all(&users).expect("folders");
    let out = m.run("prerm", &["remove"], None);
    assert!(out.status.success(), "{}", said(&out));
    assert_eq!(said(&out), "");
    for dir in [m.path("state"), users] {
        let call = format!("respool --state-dir {} --yes pool unmount\n", dir.display());
        assert!(m.log().contains(&call), "{}", m.log());
    }
    // a machine that never had a state folder
    let m = Machine::new("exit 5");
    fs::remove_dir(m.path("state")).expect("removed");
    assert!(m.run("prerm", &["remove"], None).status.success());
    assert!(!m.log().contains("respool --"), "{}", m.log());
}

/// The scripts read what the program prints: here it is the real one.
#[test]
fn the_real_list_is_understood() {
    let program = env!("CARGO_BIN_EXE_respool");
    let m = Machine::new(&format!("exec '{program}' \"$@\""));
    let out = m.run("prerm", &["remove"], None);
    assert!(out.status.success(), "nothing is tracked yet: {}", said(&out));
    let (state, work) = (m.path("state/users/1000/ab"), m.path("a b"));
    fs::create_dir(&work).expect("workspace");
    let real = |words: &[&str]| {
        let done = Command::new(program)
            .arg("--state-dir")
            .arg(&state)
            .args(["--yes"])
            .args(words)
            .current_dir("/")
            .env_clear()
            .env("HOME", m.path("home"))
            .output()
            .expect("respool");
        assert!(done.status.success(), "{words:?}: {}", said(&done));
    };
    let work = work.to_str().expect("text");
    fs::create_dir_all(&state).expect("state");
    real(&["track", "--vault", "copy", work]);
    let out = m.run("prerm", &["remove"], None);
    assert_eq!(out.status.code(), Some(1), "{}", said(&out));
    let hint = format!(
        "\n    respool --state-dir '{}' untrack '{work}'\n",
        state.display()
    );
    assert!(
        said(&out).contains(&hint) && !said(&out).contains("nobody can tell"),
        "{}",
        said(&out)
    );
    real(&["untrack", work]);
    let out = m.run("prerm", &["remove"], None);
    assert!(out.status.success(), "{}", said(&out));
}

#[test]
fn a_purge_keeps_checkpoints() {
    let m = Machine::new("");
    fs::create_dir_all(m.path("state/mnt/x")).expect("folders");
    fs::write(m.path("state/pool.img"), "checkpoints").expect("image");
    assert!(m.run("postrm", &["remove"], None).status.success());
    assert!(m.path("state/mnt/x").is_dir(), "only a purge looks there");
    let out = m.run("postrm", &["purge"], None);
    assert!(out.status.success());
    assert_eq!(
        fs::read_to_string(m.path("state/pool.img")).ok().as_deref(),
        Some("checkpoints")
    );
    let hint = format!("\n    rm -r --one-file-system {}\n", m.path("state").display());
    assert!(said(&out).contains(&hint), "{}", said(&out));
    // nothing but empty folders
    fs::remove_file(m.path("state/pool.img")).expect("removed");
    fs::create_dir_all(m.path("state/mnt/y")).expect("folders");
    let out = m.run("postrm", &["purge"], None);
    assert!(out.status.success() && said(&out).is_empty(), "{}", said(&out));
    assert!(!m.path("state").exists());
}

#[test]
fn the_unit_that_track_wrote_makes_room() {
    let m = Machine::new("");
    let unit = m.path("units/respool-pools.service");
    for (text, stays) in [
        (
            "# Written by respool: untrack of the last workspace takes it out again.\n[Unit]\n",
            false,
        ),
        ("[Service]\nExecStart=/mine\n", true),
    ] {
        fs::write(&unit, text).expect("write");
        let link = m.path("units/multi-user.target.wants/respool-pools.service");
        fs::create_dir_all(link.parent().expect("wants")).expect("folder");
        std::os::unix::fs::symlink(&unit, &link).expect("link");
        let out = m.run("postinst", &["configure", ""], None);
        assert_eq!(link.symlink_metadata().is_ok(), stays, "{text}");
        assert!(m.log().contains("deb-systemd-helper"), "{}", m.log());
        assert!(out.status.success(), "{}", said(&out));
        assert_eq!(unit.exists(), stays, "{text}");
    }
}

/// The dev container asks for what `doctor` names, and starts what is there.
#[test]
fn the_dev_container_has_the_rights_that_doctor_names() {
    let text = fs::read_to_string(top().join(".devcontainer/devcontainer.json")).expect("there");
    let plain: Vec<&str> = text
        .lines()
        .filter(|l| !l.trim_start().starts_with("//"))
        .collect();
    let config: serde_json::Value = serde_json::from_str(&plain.join(
        "
",
    ))
    .expect("JSON with comments");
    assert_eq!(config["privileged"], true);
    let start = config["postStartCommand"].as_str().expect("a command");
    assert!(top().join(start).is_file());
    assert!(
        top()
            .join(".devcontainer")
            .join(config["build"]["dockerfile"].as_str().expect("a file"))
            .is_file()
    );
    // the other way, in a comment
    let line = text
        .lines()
        .find(|l| l.contains("\"runArgs\""))
        .expect("the other way");
    let words: Vec<&str> = line.split('"').skip(3).step_by(2).collect();
    let flags = respool::engine::attach::CONTAINER_FLAGS;
    assert!(flags.starts_with("--privileged"));
    let other = flags.split("refused: ").nth(1).expect("the other way");
    assert_eq!(shlex::split(other).expect("words"), words);
}
