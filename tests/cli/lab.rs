//! A workspace, a real conversation's store that grows message by message, a state folder, and the program.
//! When it goes away, nothing of it may be left: no mount, loop device, process or folder beside.

use std::ffi::OsStr;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use serde_json::{Value, json};

use crate::actors::Stopped;
use crate::common::{self, TestDir, wait_until};
use crate::manifest::Manifest;

const FIXTURE: &str = "tests/fixtures/openhands/v1_sdk_1.58/conversations/11111111222243338444555555555555";
/// The position of each message's event in the fixture, and the end.
pub const CUTS: [usize; 5] = [1, 10, 18, 25, 30];
/// Patience with things that other processes do.
pub const SOON: Duration = Duration::from_secs(10);

/// What a command answered.
pub struct Answer {
    pub code: Option<i32>,
    pub out: Vec<u8>,
    pub err: String,
}

impl Answer {
    pub fn of(o: Output) -> Self {
        Self {
            code: o.status.code(),
            out: o.stdout,
            err: String::from_utf8_lossy(&o.stderr).into_owned(),
        }
    }

    /// The one JSON document on stdout.
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.out).unwrap_or_else(|e| {
            let out = String::from_utf8_lossy(&self.out);
            panic!("no JSON document: {e}\nstdout: {out}\nstderr: {}", self.err)
        })
    }

    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.out).into_owned()
    }
}

pub struct Lab {
    dir: TestDir,
    ws: PathBuf,
    /// The Btrfs that the workspace is on, where it is on one of its own: image and mount point.
    host: Option<(PathBuf, PathBuf)>,
}

/// Gives an event's file the time at which it was written: the fixture's clock was three hours behind UTC. With
/// the time of the copy, the zone that is inferred from it would depend on when the test runs.
fn set_written(file: &Path, event: &Value) {
    let stamp = event["timestamp"].as_str().expect("a timestamp");
    let stamp = chrono::NaiveDateTime::parse_from_str(stamp, "%Y-%m-%dT%H:%M:%S%.f").expect("naive time");
    let written = stamp.and_utc() + chrono::TimeDelta::hours(3);
    let file = std::fs::File::options()
        .write(true)
        .open(file)
        .expect("the event's file");
    file.set_modified(written.into()).expect("its time");
}

/// Fills a conversation's store with its first `messages` messages and their turns.
pub fn cut(to: &Path, messages: usize, workspace: &str) {
    let from = Path::new(env!("CARGO_MANIFEST_DIR")).join(FIXTURE);
    let mut last = Value::Null;
    let mut names: Vec<_> = std::fs::read_dir(from.join("events"))
        .expect("the fixture")
        .map(|e| e.expect("entry").file_name().into_string().expect("name"))
        .filter(|n| n.starts_with("event-"))
        .collect();
    names.sort();
    for name in names.iter().take(CUTS[messages]) {
        let bytes = std::fs::read(from.join("events").join(name)).expect("event");
        let event: Value = serde_json::from_slice(&bytes).expect("event");
        last = event["id"].clone();
        std::fs::write(to.join("events").join(name), bytes).expect("event");
        set_written(&to.join("events").join(name), &event);
    }
    let bytes = std::fs::read(from.join("base_state.json")).expect("state");
    let mut base: Value = serde_json::from_slice(&bytes).expect("state");
    base["workspace"]["working_dir"] = json!(workspace);
    base["leaf_event_id"] = last;
    base["execution_status"] = json!("finished");
    std::fs::write(to.join("base_state.json"), base.to_string()).expect("state");
}

impl Lab {
    /// A workspace that is not tracked, with a conversation without messages.
    pub fn plain(fill: impl FnOnce(&Path)) -> Self {
        common::need_root();
        let dir = TestDir::new();
        let ws = dir.join("ws");
        Self::filled(Self { dir, ws, host: None }, fill)
    }

    /// As [`Lab::plain`], with the workspace on a Btrfs of its own.
    pub fn on_btrfs(fill: impl FnOnce(&Path)) -> Self {
        common::need_root();
        let dir = TestDir::new();
        let (image, point) = (dir.join("host.img"), dir.join("host"));
        let file = std::fs::File::create(&image).expect("image");
        file.set_len(512 << 20).expect("image");
        std::fs::create_dir(&point).expect("mkdir");
        let made = Command::new("mkfs.btrfs").arg("-q").arg(&image).output();
        assert!(made.expect("mkfs.btrfs").status.success());
        let ws = point.join("ws");
        let host = Some((image, point));
        let lab = Self { dir, ws, host };
        lab.mount_host();
        Self::filled(lab, fill)
    }

    /// As [`Lab::on_btrfs`], the workspace being a subvolume already.
    pub fn on_subvolume(fill: impl FnOnce(&Path)) -> Self {
        let lab = Self::on_btrfs(|_| {});
        std::fs::remove_dir(&lab.ws).expect("remove");
        let made = Command::new("btrfs")
            .args(["subvolume", "create"])
            .arg(&lab.ws)
            .output();
        assert!(made.expect("btrfs").status.success());
        fill(&lab.ws);
        lab
    }

    fn mount_host(&self) {
        if let Some((image, point)) = &self.host {
            let status = Command::new("mount")
                .args(["-o", "loop"])
                .args([image, point])
                .status();
            assert!(status.expect("mount").success());
        }
    }

    fn filled(lab: Self, fill: impl FnOnce(&Path)) -> Self {
        std::fs::create_dir(&lab.ws).expect("the workspace");
        fill(&lab.ws);
        lab.copy_store(&lab.store());
        lab
    }

    /// A tracked workspace.
    pub fn new(fill: impl FnOnce(&Path)) -> Self {
        let lab = Self::plain(fill);
        lab.track();
        lab
    }

    /// A tracked workspace whose checkpoints are copies.
    pub fn copies(fill: impl FnOnce(&Path)) -> Self {
        let lab = Self::plain(fill);
        let doc = lab.ok(&["--yes", "track", lab.ws_text(), "--vault", "copy"]);
        assert_eq!(doc["vault"], "copy");
        lab
    }

    pub fn track(&self) -> Value {
        self.ok(&["--yes", "track", self.ws_text(), "--size", "512M"])
    }

    pub fn dir(&self) -> &Path {
        self.dir.path()
    }
    pub fn ws(&self) -> &Path {
        &self.ws
    }
    pub fn ws_text(&self) -> &str {
        self.ws.to_str().expect("UTF-8")
    }
    pub fn at(&self, path: impl AsRef<Path>) -> PathBuf {
        self.ws.join(path)
    }
    pub fn state(&self) -> PathBuf {
        self.dir.join("state")
    }
    pub fn store(&self) -> PathBuf {
        self.dir
            .join("home/.openhands/conversations/11111111222243338444555555555555")
    }
    pub fn manifest(&self) -> Manifest {
        Manifest::of(&self.ws)
    }
    pub fn write(&self, path: impl AsRef<Path>, content: impl AsRef<[u8]>) {
        let path = self.at(path);
        std::fs::create_dir_all(path.parent().expect("parent")).expect("folders");
        std::fs::write(path, content).expect("write");
    }
    pub fn read(&self, path: impl AsRef<Path>) -> String {
        String::from_utf8(std::fs::read(self.at(path)).expect("read")).expect("UTF-8")
    }

    /// Copies the fixture without its events.
    pub fn copy_store(&self, to: &Path) {
        std::fs::create_dir_all(to.join("events")).expect("folders");
        self.cut(to, 0);
    }

    /// The store with its first `messages` messages and their turns.
    pub fn cut(&self, to: &Path, messages: usize) {
        cut(to, messages, self.ws_text());
    }

    /// The store again, with so many messages only.
    pub fn cut_again(&self, messages: usize) {
        std::fs::remove_dir_all(self.store().join("events")).expect("remove");
        self.copy_store(&self.store());
        self.cut(&self.store(), messages);
    }

    /// The next message arrives: the store grows, then its checkpoint is taken.
    pub fn message(&self, n: usize) -> String {
        self.cut(&self.store(), n);
        let doc = self.ok(&["checkpoint", "--message", &n.to_string()]);
        doc["checkpoint"].as_str().expect("an id").to_owned()
    }

    pub fn checkpoint(&self) -> String {
        let doc = self.ok(&["-s", self.ws_text(), "checkpoint"]);
        doc["checkpoint"].as_str().expect("an id").to_owned()
    }

    /// The program with this lab's state folder; its current folder is the lab's.
    pub fn command(&self) -> Command {
        let mut c = common::respool(self.dir.path());
        c.arg("--state-dir").arg(self.state());
        c
    }

    /// With `--json` and the conversation, unless another subject is named. Rewinds are of the files alone where
    /// nothing else is asked for: the store grows from a fixture, message by message.
    pub fn json_command<S: AsRef<OsStr>>(&self, args: &[S]) -> Command {
        let mut c = self.whole_command(args);
        let word = |w: &str| args.iter().any(|a| a.as_ref() == w);
        if (word("rewind") || word("restore")) && !["--files", "--both", "--chat"].iter().any(|f| word(f)) {
            c.arg("--files");
        }
        c
    }

    /// As [`Lab::json_command`], with conversations as they come.
    pub fn whole_command<S: AsRef<OsStr>>(&self, args: &[S]) -> Command {
        let mut c = self.command();
        c.arg("--json");
        if !args
            .iter()
            .any(|a| matches!(a.as_ref().to_str(), Some("-s" | "-c" | "timeline")))
        {
            c.arg("-c").arg(self.store());
        }
        c.args(args);
        c
    }

    pub fn run<S: AsRef<OsStr>>(&self, args: &[S]) -> Answer {
        Answer::of(self.json_command(args).output().expect("run"))
    }

    /// Runs it as it is.
    pub fn bare<S: AsRef<OsStr>>(&self, args: &[S]) -> Answer {
        Answer::of(self.command().args(args).output().expect("run"))
    }

    /// Must succeed.
    pub fn ok<S: AsRef<OsStr> + std::fmt::Debug>(&self, args: &[S]) -> Value {
        let a = self.run(args);
        assert_eq!(a.code, Some(0), "{args:?}: {}\n{}", a.text(), a.err);
        a.json()
    }

    /// Must fail so, with an error object; gives its message and hint.
    pub fn fails<S: AsRef<OsStr> + std::fmt::Debug>(&self, code: i32, args: &[S]) -> String {
        let a = self.run(args);
        assert_eq!(a.code, Some(code), "{args:?}: {}\n{}", a.text(), a.err);
        error_text(&a.json(), code)
    }

    /// Runs it so that it kills itself at a fault point; false if it did not come there.
    pub fn killed_at<S: AsRef<OsStr>>(&self, point: &str, args: &[S]) -> bool {
        let out = self
            .json_command(args)
            .env("RESPOOL_KILL_AT", point)
            .output()
            .expect("run");
        let killed = out.status.signal() == Some(9);
        if !killed {
            eprintln!("{point}: {}", Answer::of(out).text());
        }
        killed
    }

    /// Starts it so that it stops itself at a fault point, and waits until it has.
    pub fn stopped_at<S: AsRef<OsStr>>(&self, point: &str, args: &[S]) -> Stopped {
        let child = self
            .json_command(args)
            .env("RESPOOL_STOP_AT", point)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("start");
        let stopped = Stopped(Some(child));
        assert!(
            wait_until(SOON, || matches!(stopped.state(), Some('T' | 'Z'))),
            "{point}: it neither stopped nor ended"
        );
        assert_eq!(stopped.state(), Some('T'), "it did not come to {point}");
        stopped
    }

    /// The ids and kinds of the log's operations with their states, newest first.
    pub fn log(&self) -> Vec<(String, String)> {
        let word = |v: &Value| v.as_str().expect("a word").to_owned();
        let rows = self.ok(&["-s", self.ws_text(), "log"]);
        let rows = rows.as_array().expect("rows");
        rows.iter()
            .map(|r| (word(&r["kind"]), word(&r["state"])))
            .collect()
    }

    /// Names beside the workspace that should not be there, and temporary snapshots that nobody uses.
    pub fn leftovers(&self) -> Vec<String> {
        let beside = std::fs::read_dir(self.ws.parent().expect("parent")).expect("the folder");
        let mut out: Vec<String> = beside
            .map(|e| e.expect("entry").file_name().to_string_lossy().into_owned())
            .filter(|n| n.starts_with(".respool-"))
            .collect();
        for sandbox in self.sandboxes() {
            let tmp = std::fs::read_dir(sandbox.join("tmp")).map_or(0, Iterator::count);
            if tmp > 0 {
                out.push(format!("{tmp} temporary snapshots"));
            }
        }
        out
    }

    /// The folders of the sandboxes in the mounted pools.
    pub fn sandboxes(&self) -> Vec<PathBuf> {
        let Ok(pools) = std::fs::read_dir(self.state().join("mnt")) else {
            return Vec::new();
        };
        pools
            .flatten()
            .flat_map(|p| [p.path().join("s"), p.path().join(".respool/s")])
            .filter_map(|s| std::fs::read_dir(s).ok())
            .flatten()
            .flatten()
            .map(|e| e.path())
            .collect()
    }

    /// Unmounts and detaches everything by hand, as a restart of the machine would.
    pub fn reboot(&self) {
        for point in common::mounts_below(self.dir.path()).iter().rev() {
            rustix::mount::unmount(point, rustix::mount::UnmountFlags::empty()).expect("unmount");
        }
        assert!(
            wait_until(SOON, || self.dir.left().is_empty()),
            "{:?}",
            self.dir.left()
        );
        self.mount_host();
    }

    fn processes(&self) -> Vec<String> {
        let own = std::process::id().to_string();
        let mark = format!("HOME={}", self.dir.path().join("home").display());
        let mut out = Vec::new();
        for entry in std::fs::read_dir("/proc").expect("proc").flatten() {
            let pid = entry.file_name().to_string_lossy().into_owned();
            if pid == own || !pid.bytes().all(|b| b.is_ascii_digit()) {
                continue;
            }
            let environ = std::fs::read(entry.path().join("environ")).unwrap_or_default();
            if environ.split(|b| *b == 0).any(|v| v == mark.as_bytes()) {
                let line = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
                out.push(format!(
                    "{pid} {}",
                    String::from_utf8_lossy(&line).replace('\0', " ")
                ));
            }
        }
        out
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        let gone = wait_until(SOON, || self.processes().is_empty());
        let left = self.processes();
        // a test that makes a mount namespace of its own holds the mounts of all others for a moment
        let mut unmounted = self.bare(&["--json", "--yes", "pool", "unmount"]);
        wait_until(Duration::from_secs(20), || {
            if unmounted.code != Some(0) {
                unmounted = self.bare(&["--json", "--yes", "pool", "unmount"]);
            }
            unmounted.code == Some(0)
        });
        if let Some((_, point)) = &self.host {
            let _gone = rustix::mount::unmount(point, rustix::mount::UnmountFlags::empty());
        }
        if !std::thread::panicking() {
            assert!(gone, "processes are left: {left:?}");
            assert_eq!(
                unmounted.code,
                Some(0),
                "unmount: {} {}",
                unmounted.text(),
                unmounted.err
            );
        }
    }
}

/// The message and hint of an error object, whose kind must fit the exit code.
pub fn error_text(doc: &Value, code: i32) -> String {
    let e = &doc["error"];
    let kind = match code {
        1 => "failed",
        2 => "usage",
        3 => "refused",
        4 => "not-found",
        5 => "damaged",
        _ => "cancelled",
    };
    assert_eq!(e["kind"], kind, "{doc}");
    assert!(e.get("path").is_some() && e.get("hint").is_some(), "{doc}");
    let message = e["message"].as_str().expect("a message");
    assert!(!message.is_empty());
    format!("{message} | {}", e["hint"].as_str().unwrap_or_default())
}
