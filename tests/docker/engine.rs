//! A Docker daemon of a test's own: its data on a file system of its own, no network, gone afterwards even on panic.

use std::ffi::OsStr;
use std::fs::File;
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::OnceLock;
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};
use serde_json::Value;

use crate::common::{self, TestDir, wait_until};

/// Where the data of the daemon is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Layout {
    /// The btrfs driver.
    Btrfs,
    /// The overlay2 driver, on Btrfs.
    OverlayOnBtrfs,
    /// The overlay2 driver, on ext4.
    OverlayOnExt4,
}

impl Layout {
    fn driver(self) -> &'static str {
        match self {
            Self::Btrfs => "btrfs",
            Self::OverlayOnBtrfs | Self::OverlayOnExt4 => "overlay2",
        }
    }
}

/// So many daemons at a time, whatever runs the tests: they are heavy.
const SLOTS: usize = 2;

/// The right to start a daemon; ends with the value.
fn slot() -> File {
    let slots: Vec<File> = (0..SLOTS)
        .map(|i| File::create(Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("docker-{i}.lock"))))
        .collect::<Result<_, _>>()
        .expect("lock files");
    let mut free = None;
    wait_until(Duration::from_secs(3600), || {
        free = slots
            .iter()
            .position(|f| flock(f, FlockOperation::NonBlockingLockExclusive).is_ok());
        free.is_some()
    });
    slots.into_iter().nth(free.expect("a slot")).expect("that slot")
}

/// The packed root file system of the image, made once.
pub fn rootfs() -> &'static [u8] {
    static TAR: OnceLock<Vec<u8>> = OnceLock::new();
    TAR.get_or_init(|| {
        let dir = TestDir::new();
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/docker/rootfs.sh");
        let made = Command::new("bash")
            .arg(script)
            .arg(dir.join("root"))
            .output()
            .expect("bash");
        assert!(
            made.status.success(),
            "rootfs.sh: {}",
            String::from_utf8_lossy(&made.stderr)
        );
        let packed = Command::new("tar")
            .arg("-C")
            .arg(dir.join("root"))
            .args(["-c", "."])
            .output();
        let packed = packed.expect("tar");
        assert!(
            packed.status.success(),
            "tar: {}",
            String::from_utf8_lossy(&packed.stderr)
        );
        packed.stdout
    })
}

pub struct Engine {
    pub layout: Layout,
    dir: TestDir,
    daemon: Option<Child>,
    /// The daemon is told its driver on the command line.
    pub told: bool,
    _slot: File,
}

fn tool(name: &str, args: &[&OsStr]) {
    let out = Command::new(name)
        .args(args)
        .output()
        .unwrap_or_else(|e| panic!("{name}: {e}"));
    assert!(
        out.status.success(),
        "{name}: {}",
        String::from_utf8_lossy(&out.stderr)
    );
}

impl Engine {
    /// A running daemon with the image `box:1`.
    pub fn start(layout: Layout) -> Self {
        common::need_root();
        let slot = slot();
        let dir = TestDir::new();
        let mut engine = Self {
            layout,
            dir,
            daemon: None,
            told: true,
            _slot: slot,
        };
        engine.make_disk();
        engine.up();
        engine.import("box:1", rootfs());
        engine
    }

    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// The file system that the data is on.
    pub fn disk(&self) -> PathBuf {
        self.dir.join("disk")
    }

    fn host(&self) -> String {
        format!("unix://{}", self.dir.join("d.sock").display())
    }

    fn cgroup(&self) -> String {
        let name = self
            .dir
            .path()
            .file_name()
            .expect("a name")
            .to_string_lossy()
            .into_owned();
        format!("/{name}")
    }

    fn make_disk(&self) {
        let (image, point) = (self.dir.join("disk.img"), self.disk());
        let file = std::fs::File::create(&image).expect("image");
        file.set_len(4 << 30).expect("image");
        std::fs::create_dir(&point).expect("mkdir");
        match self.layout {
            Layout::OverlayOnExt4 => tool("mkfs.ext4", &["-q".as_ref(), image.as_os_str()]),
            _ => tool("mkfs.btrfs", &["-q".as_ref(), image.as_os_str()]),
        }
        tool(
            "mount",
            &[
                "-o".as_ref(),
                "loop".as_ref(),
                image.as_os_str(),
                point.as_os_str(),
            ],
        );
        std::fs::create_dir(point.join("data")).expect("data");
        std::fs::write(self.dir.join("daemon.json"), "{}").expect("config");
        std::fs::create_dir_all(self.dir.join("exec")).expect("exec");
        std::fs::create_dir_all(self.dir.join("client")).expect("client");
    }

    /// Starts the daemon.
    pub fn up(&mut self) {
        let log = std::fs::File::create(self.dir.join("dockerd.log")).expect("log");
        let child = Command::new("dockerd")
            .arg("--config-file")
            .arg(self.dir.join("daemon.json"))
            .arg("--data-root")
            .arg(self.disk().join("data"))
            .arg("--exec-root")
            .arg(self.dir.join("exec"))
            .arg("--pidfile")
            .arg(self.dir.join("docker.pid"))
            .args(["-H", &self.host()])
            .args(
                ["--storage-driver", self.layout.driver()]
                    .iter()
                    .filter(|_| self.told),
            )
            .args([
                "--bridge",
                "none",
                "--iptables=false",
                "--ip6tables=false",
                "--ip-forward=false",
                "--ip-masq=false",
            ])
            .args([
                "--exec-opt",
                "native.cgroupdriver=cgroupfs",
                "--cgroup-parent",
                &self.cgroup(),
            ])
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("log"))
            .stderr(log)
            .process_group(0)
            .spawn()
            .unwrap_or_else(|e| panic!("these tests need dockerd (Debian: docker.io): {e}"));
        self.daemon = Some(child);
        let ready = wait_until(Duration::from_secs(30), || {
            self.docker_raw(&["version"]).status.success()
        });
        assert!(ready, "dockerd does not answer: {}", self.log());
    }

    fn log(&self) -> String {
        let text = std::fs::read_to_string(self.dir.join("dockerd.log")).unwrap_or_default();
        text.lines().rev().take(8).collect::<Vec<_>>().join("\n")
    }

    /// The process of the daemon, whoever started it; 0 if there is none.
    pub fn pid(&self) -> i32 {
        let text = std::fs::read_to_string(self.dir.join("docker.pid")).unwrap_or_default();
        text.trim().parse().unwrap_or(0)
    }

    /// Ends a daemon that the program started, and waits.
    fn down_again(&self) {
        let Some(pid) = rustix::process::Pid::from_raw(self.pid()) else {
            return;
        };
        let line = std::fs::read(format!("/proc/{}/cmdline", pid.as_raw_nonzero())).unwrap_or_default();
        if !String::from_utf8_lossy(&line).contains(&self.host()) {
            return;
        }
        let _gone = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        let gone = wait_until(Duration::from_secs(60), || {
            rustix::process::test_kill_process(pid).is_err() || is_zombie(pid.as_raw_nonzero().get())
        });
        if !gone {
            eprintln!("dockerd {pid:?} does not end: {}", self.log());
        }
    }

    /// Ends the daemon, and waits; never kills it.
    pub fn down(&mut self) {
        let Some(mut child) = self.daemon.take() else {
            return;
        };
        let pid = rustix::process::Pid::from_child(&child);
        let _gone = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        let ended = wait_until(Duration::from_secs(60), || {
            child.try_wait().is_ok_and(|s| s.is_some())
        });
        if !ended {
            eprintln!("dockerd {pid:?} does not end: {}", self.log());
        }
    }

    fn docker_command<S: AsRef<OsStr>>(&self, args: &[S]) -> Command {
        let mut c = Command::new("docker");
        c.env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .env("HOME", self.dir.join("client"))
            .args(["-H", &self.host()])
            .args(args)
            .stdin(Stdio::null());
        c
    }

    pub fn docker_raw<S: AsRef<OsStr>>(&self, args: &[S]) -> Output {
        self.docker_command(args).output().expect("docker")
    }

    /// Runs the client, which must succeed; what it printed.
    pub fn docker<S: AsRef<OsStr> + std::fmt::Debug>(&self, args: &[S]) -> String {
        let out = self.docker_raw(args);
        let (said, wrong) = (
            String::from_utf8_lossy(&out.stdout),
            String::from_utf8_lossy(&out.stderr),
        );
        assert!(
            out.status.success(),
            "docker {args:?}: {said}{wrong}\n{}",
            self.log()
        );
        said.trim_end().to_owned()
    }

    pub fn import(&self, name: &str, tar: &[u8]) {
        let mut c = self.docker_command(&["import", "-", name]);
        let mut child = c
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .expect("docker");
        child
            .stdin
            .take()
            .expect("stdin")
            .write_all(tar)
            .expect("the image");
        assert!(child.wait().expect("import").success(), "import {name}");
    }

    /// A running container that ends when it is told to.
    pub fn run(&self, name: &str, more: &[&str]) {
        let mut args = vec!["run", "-d", "--name", name];
        if !more.contains(&"--network") {
            args.extend(["--network", "none"]);
        }
        args.extend(more);
        args.extend([
            "box:1",
            "/bin/sh",
            "-c",
            "trap exit TERM; while :; do sleep 0.1; done",
        ]);
        self.docker(&args);
    }

    /// Runs a script in a container.
    pub fn sh(&self, name: &str, script: &str) -> String {
        self.docker(&["exec", name, "/bin/sh", "-ec", script])
    }

    /// The program, with this engine.
    pub fn respool(&self) -> Command {
        let mut c = common::respool(self.dir.path());
        c.env("DOCKER_HOST", self.host())
            .arg("--state-dir")
            .arg(self.dir.join("state"));
        c
    }

    /// Runs it with `--json --yes`: exit code, the document, what it said.
    pub fn answer(&self, args: &[&str]) -> (Option<i32>, Value, String) {
        let out = self
            .respool()
            .args(["--json", "--yes"])
            .args(args)
            .output()
            .expect("respool");
        let said = String::from_utf8_lossy(&out.stderr).into_owned();
        let doc = serde_json::from_slice(&out.stdout).unwrap_or(Value::Null);
        (out.status.code(), doc, said)
    }

    /// As [`Engine::answer`]; it must succeed.
    pub fn ok(&self, args: &[&str]) -> Value {
        let (code, doc, said) = self.answer(args);
        assert_eq!(code, Some(0), "{args:?}: {doc}\n{said}");
        doc
    }

    /// Unmounts what a stopped daemon, or a test, left on the disk.
    fn unmount_below(&self) {
        let disk = self.disk();
        for point in common::mounts_below(&disk).iter().rev().filter(|p| **p != disk) {
            // containerd ends a moment after its daemon
            wait_until(Duration::from_secs(5), || {
                rustix::mount::unmount(point, rustix::mount::UnmountFlags::empty()).is_ok()
            });
        }
    }

    /// Ends what a test left in the daemon's cgroups and mounts.
    fn sweep(&self) {
        let marks = [self.dir.join("exec"), self.dir.join("d.sock")];
        for entry in std::fs::read_dir("/proc").expect("proc").flatten() {
            let line = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
            let line = String::from_utf8_lossy(&line).into_owned();
            let ours = marks.iter().any(|m| line.contains(&m.display().to_string()));
            let pid = entry
                .file_name()
                .to_string_lossy()
                .parse()
                .ok()
                .and_then(rustix::process::Pid::from_raw);
            if let (true, Some(pid)) = (ours, pid) {
                let _gone = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
            }
        }
        for point in common::mounts_below(self.dir.path()).iter().rev() {
            let _gone = rustix::mount::unmount(point, rustix::mount::UnmountFlags::DETACH);
        }
        let controllers = std::fs::read_dir("/sys/fs/cgroup").expect("cgroup").flatten();
        let mut tops: Vec<PathBuf> = controllers.map(|c| c.path()).collect();
        tops.push("/sys/fs/cgroup".into());
        for top in tops {
            let group = top.join(self.cgroup().trim_start_matches('/'));
            if let Ok(inner) = std::fs::read_dir(&group) {
                for one in inner.flatten().filter(|e| e.path().is_dir()) {
                    let _gone = std::fs::remove_dir(one.path());
                }
                let _gone = std::fs::remove_dir(&group);
            }
        }
    }
}

fn is_zombie(pid: i32) -> bool {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    text.rsplit(')')
        .next()
        .is_some_and(|r| r.trim_start().starts_with('Z'))
}

impl Drop for Engine {
    fn drop(&mut self) {
        if self.daemon.is_some() {
            let listed = self.docker_raw(&["ps", "-aq"]);
            let ids = String::from_utf8_lossy(&listed.stdout).into_owned();
            for id in ids.split_whitespace() {
                let _unpaused = self.docker_raw(&["unpause", id]);
                let _gone = self.docker_raw(&["rm", "-f", id]);
            }
        }
        // with all of Docker in it the pool is in use until that is stopped
        let whole = self.dir.join("state/docker.json").exists();
        if whole {
            self.down_again();
            self.down();
            self.unmount_below();
        }
        let out = self
            .respool()
            .args(["--json", "--yes", "pool", "unmount"])
            .output()
            .expect("respool");
        self.down_again();
        self.down();
        self.unmount_below();
        let mut disk = Ok(());
        wait_until(Duration::from_secs(5), || {
            disk = rustix::mount::unmount(self.disk(), rustix::mount::UnmountFlags::empty());
            disk.is_ok()
        });
        self.sweep();
        if !std::thread::panicking() {
            assert!(
                out.status.success(),
                "unmount: {}",
                String::from_utf8_lossy(&out.stdout)
            );
            assert!(disk.is_ok(), "the disk is in use: {disk:?}");
        }
    }
}
