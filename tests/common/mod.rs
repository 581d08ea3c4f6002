//! What the integration tests share: a real Btrfs pool on a loop image that leaves nothing behind, also
//! when a test panics, and the program in an environment of its own.
#![expect(dead_code, reason = "each test file uses a part of it")]

use std::ffi::OsString;
use std::fs::File;
use std::io::Write;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use chrono::DateTime;
use respool::engine::catalog::{Place, SandboxDir, SandboxRecord, create_sandbox};
use respool::engine::pool::Pool;
use respool::engine::vault::BtrfsVault;
use respool::engine::{image, mounts, random_id};

/// Panics with what is missing: these tests never pass without having run.
pub fn need_root() {
    assert!(
        rustix::process::geteuid().is_root() && Path::new("/dev/loop-control").exists(),
        "this test needs root and loop devices: run it as root, in a privileged container if in one"
    );
}

/// A folder for one test; on drop it checks that no mount and no loop device of it is left, removes those
/// that are, and removes the folder.
pub struct TestDir {
    dir: PathBuf,
}

impl TestDir {
    pub fn new() -> Self {
        let made = tempfile::Builder::new()
            .prefix("respool-test-")
            .tempdir()
            .expect("a folder");
        let dir = made.keep().canonicalize().expect("its path");
        Self { dir }
    }
    pub fn path(&self) -> &Path {
        &self.dir
    }
    pub fn join(&self, name: impl AsRef<Path>) -> PathBuf {
        self.dir.join(name)
    }
    /// What of this folder is mounted or attached, in words.
    pub fn left(&self) -> Vec<String> {
        let mounts = mounts_below(&self.dir)
            .into_iter()
            .map(|p| format!("mount {}", p.display()));
        let loops = loops_below(&self.dir)
            .into_iter()
            .map(|p| format!("loop device {}", p.display()));
        mounts.chain(loops).collect()
    }
}

impl Drop for TestDir {
    fn drop(&mut self) {
        // the kernel detaches a moment after the last user is gone
        let left = wait_until(Duration::from_secs(3), || self.left().is_empty());
        let what = self.left();
        clean(&self.dir);
        if !std::thread::panicking() {
            assert!(left, "left behind: {what:?}");
        }
    }
}

/// Waits for a condition; false if it did not come.
pub fn wait_until(limit: Duration, mut condition: impl FnMut() -> bool) -> bool {
    let start = Instant::now();
    loop {
        if condition() {
            return true;
        }
        if start.elapsed() > limit {
            return false;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

pub fn mounts_below(dir: &Path) -> Vec<PathBuf> {
    let all = mounts::list().expect("mountinfo");
    all.into_iter()
        .map(|m| m.point)
        .filter(|p| p.starts_with(dir))
        .collect()
}

/// The loop devices whose backing file is below `dir`.
pub fn loops_below(dir: &Path) -> Vec<PathBuf> {
    let mut out = Vec::new();
    for entry in std::fs::read_dir("/sys/block").expect("sys").flatten() {
        if let Ok(text) = std::fs::read(entry.path().join("loop/backing_file"))
            && PathBuf::from(OsString::from_vec(text)).starts_with(dir)
        {
            out.push(Path::new("/dev").join(entry.file_name()));
        }
    }
    out
}

/// Unmounts, detaches and removes everything of a folder.
fn clean(dir: &Path) {
    for point in mounts_below(dir).iter().rev() {
        let done = rustix::mount::unmount(point, rustix::mount::UnmountFlags::DETACH);
        if let Err(e) = done {
            eprintln!("cannot unmount {}: {e}", point.display());
        }
    }
    for device in loops_below(dir) {
        if let Ok(d) = loopdev::LoopDevice::open(&device) {
            let _gone_or_busy = d.detach();
        }
    }
    if std::fs::remove_dir_all(dir).is_err() {
        let _status = Command::new("chattr").args(["-R", "-i", "-a"]).arg(dir).status();
        if let Err(e) = std::fs::remove_dir_all(dir) {
            eprintln!("cannot remove {}: {e}", dir.display());
        }
    }
}

/// A mounted pool on a loop image in a folder of its own.
pub struct BtrfsBox {
    pool: Option<Pool>,
    dir: TestDir,
}

impl BtrfsBox {
    /// On a sparse image of 1 GiB.
    pub fn new() -> Self {
        Self::sized(1 << 30)
    }

    pub fn sized(bytes: u64) -> Self {
        need_root();
        let dir = TestDir::new();
        image::create(&dir.join("pool.img"), bytes, false).expect("make the image");
        let mut it = Self { pool: None, dir };
        it.mount();
        it
    }

    /// Opens the pool again, as another process would.
    pub fn mount(&mut self) {
        self.pool = None;
        self.pool = Some(self.open());
    }
    pub fn open(&self) -> Pool {
        Pool::open_image(&self.image(), &self.mnt()).expect("open the pool")
    }
    /// Drops the handle and leaves the mount as it is.
    pub fn forget(&mut self) {
        self.pool = None;
    }
    pub fn unmount(&mut self) {
        self.pool
            .take()
            .expect("a mounted pool")
            .unmount()
            .expect("unmount");
    }
    pub fn pool(&self) -> &Pool {
        self.pool.as_ref().expect("a mounted pool")
    }
    pub fn image(&self) -> PathBuf {
        self.dir.join("pool.img")
    }
    pub fn mnt(&self) -> PathBuf {
        self.dir.join("mnt")
    }
    pub fn dir(&self) -> &TestDir {
        &self.dir
    }

    /// Makes a sandbox with an empty live subvolume in the pool.
    pub fn sandbox(&self) -> TestSandbox {
        let (dir, record) = create_sandbox(self.pool(), test_record(Path::new("/w"))).expect("sandbox");
        TestSandbox {
            live: dir.path().join("live"),
            id: record.id,
        }
    }

    pub fn vault(&self, sandbox: &TestSandbox) -> BtrfsVault {
        vault(self.pool(), &sandbox.id)
    }
}

impl Drop for BtrfsBox {
    fn drop(&mut self) {
        if let Some(pool) = self.pool.take()
            && let Err(e) = pool.unmount()
        {
            assert!(std::thread::panicking(), "cannot unmount the pool: {e}");
        }
    }
}

/// A sandbox of a test.
pub struct TestSandbox {
    pub id: String,
    /// The path of its live tree.
    pub live: PathBuf,
}

impl TestSandbox {
    pub fn write(&self, path: &str, content: impl AsRef<[u8]>) {
        let path = self.live.join(path);
        std::fs::create_dir_all(path.parent().expect("parent")).expect("folders");
        File::create(&path)
            .and_then(|mut f| f.write_all(content.as_ref()))
            .expect("write");
    }
}

/// A record of a workspace at `path` in the pool.
pub fn test_record(path: &Path) -> SandboxRecord {
    SandboxRecord {
        v: 1,
        id: random_id("sb"),
        path: path.to_owned(),
        created: DateTime::from_timestamp(1_700_000_000, 0).expect("time"),
        live_uuid: String::new(),
        place: Place::Pool,
        uid: 0,
        gid: 0,
        tracked: true,
        stub: None,
        root: None,
        extra: serde_json::Map::new(),
    }
}

pub fn vault(pool: &Pool, sandbox: &str) -> BtrfsVault {
    let live: OwnedFd = SandboxDir::open(pool, sandbox)
        .and_then(|d| d.live())
        .expect("sandbox")
        .expect("a live tree");
    BtrfsVault::open(pool, sandbox, live).expect("vault")
}

/// The program with an environment of its own below `dir`.
pub fn respool(dir: &Path) -> Command {
    let mut c = Command::new(env!("CARGO_BIN_EXE_respool"));
    let path = std::env::var_os("PATH").unwrap_or_else(|| "/usr/sbin:/usr/bin:/sbin:/bin".into());
    c.env_clear()
        .env("PATH", path)
        .env("TZ", "UTC")
        .env("LANG", "C.UTF-8")
        .env("TERM", "dumb")
        // never the service of this machine
        .env("RESPOOL_SOCKET", dir.join("no-service"));
    for (name, folder) in [
        ("HOME", "home"),
        ("XDG_CONFIG_HOME", "home/.config"),
        ("XDG_DATA_HOME", "home/.local/share"),
        ("XDG_STATE_HOME", "home/.local/state"),
        ("XDG_CACHE_HOME", "home/.cache"),
        ("XDG_RUNTIME_DIR", "run"),
        ("TMPDIR", "tmp"),
    ] {
        let folder = dir.join(folder);
        std::fs::create_dir_all(&folder).expect("folders");
        c.env(name, folder);
    }
    c.current_dir(dir).stdin(std::process::Stdio::null());
    c
}

/// This test program again, to run one of its ignored tests in a process of its own. The child is killed
/// when the value is dropped.
pub struct Child(pub std::process::Child);

impl Child {
    pub fn run(test: &str, env: &[(&str, &Path)]) -> Self {
        let mut c = Command::new(std::env::current_exe().expect("this program"));
        c.args(["--exact", test, "--ignored", "--nocapture", "--test-threads=1"]);
        for (name, value) in env {
            c.env(name, value);
        }
        c.stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::null())
            .stderr(std::process::Stdio::null());
        Self(c.spawn().expect("start a child"))
    }
    /// SIGKILL, and waits for the end.
    pub fn kill(&mut self) {
        let _ended_already = self.0.kill();
        self.0.wait().expect("wait for the child");
    }
    /// Ends its input and waits for its end; true if it succeeded.
    pub fn finish(&mut self) -> bool {
        drop(self.0.stdin.take());
        self.0.wait().expect("wait for the child").success()
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        self.kill();
    }
}

/// The value that a parent gave to its [`Child`].
pub fn given(name: &str) -> PathBuf {
    std::env::var_os(name)
        .unwrap_or_else(|| panic!("{name} is not set: this is run by other tests in a child process"))
        .into()
}

/// A folder `w` that the program tracks, with its state in `state` beside it; both are taken away again.
pub struct Tracked {
    dir: TestDir,
}

impl Tracked {
    pub fn new() -> Self {
        need_root();
        let it = Self { dir: TestDir::new() };
        std::fs::create_dir(it.workspace()).expect("workspace");
        std::fs::write(it.workspace().join("first.txt"), "first\n").expect("a file");
        let (code, said) = it.run(&["--yes", "track", &it.workspace().to_string_lossy()]);
        assert_eq!(code, 0, "{said}");
        it
    }
    pub fn dir(&self) -> &TestDir {
        &self.dir
    }
    pub fn workspace(&self) -> PathBuf {
        self.dir.join("w")
    }
    pub fn state(&self) -> PathBuf {
        self.dir.join("state")
    }
    /// The program in the workspace, with `--json` and the state folder.
    pub fn command(&self) -> Command {
        let mut c = respool(self.dir.path());
        c.args(["--json", "--state-dir"]).arg(self.state());
        c.current_dir(self.workspace());
        c
    }
    /// Runs it to its end; the exit code and the document that it printed.
    pub fn run(&self, words: &[&str]) -> (i32, serde_json::Value) {
        let out = self.command().args(words).output().expect("respool");
        let document = serde_json::from_slice(&out.stdout).unwrap_or_else(|e| {
            panic!(
                "{words:?}: {e}: {}{}",
                String::from_utf8_lossy(&out.stdout),
                String::from_utf8_lossy(&out.stderr)
            )
        });
        (out.status.code().unwrap_or(-1), document)
    }
    /// The sandbox's own folder, in the pool.
    pub fn sandbox_dir(&self) -> PathBuf {
        let (_, all) = self.run(&["sandboxes"]);
        let id = all[0]["id"].as_str().expect("a sandbox");
        let pools: Vec<PathBuf> = std::fs::read_dir(self.state().join("mnt"))
            .expect("mnt")
            .map(|e| e.expect("pool").path())
            .collect();
        pools[0].join("s").join(id)
    }
    /// How many checkpoints there are.
    pub fn checkpoints(&self) -> u64 {
        self.run(&["sandboxes"]).1[0]["checkpoints"]
            .as_u64()
            .expect("a number")
    }
}

impl Drop for Tracked {
    fn drop(&mut self) {
        let workspace = self.workspace();
        let out = self
            .command()
            .current_dir(self.dir.path())
            .args(["--yes", "untrack"])
            .arg(&workspace)
            .output()
            .expect("respool");
        let done = out.status.success();
        let image = self.state().join("pool.img");
        let closed = !image.exists()
            || Pool::open_image(&image, &self.state().join("mnt")).is_ok_and(|p| p.unmount().is_ok());
        assert!(
            (done && closed) || std::thread::panicking(),
            "untrack: {}{}",
            String::from_utf8_lossy(&out.stdout),
            String::from_utf8_lossy(&out.stderr)
        );
    }
}

/// A conversation as OpenHands stores it, written event by event.
pub struct Store {
    pub dir: PathBuf,
    pub id: String,
    workspace: PathBuf,
    style: Style,
    events: usize,
    leaf: Option<String>,
}

/// How its files are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Style {
    /// SDK 1.58: a tree; each file under a temporary name, then renamed.
    Renamed,
    /// SDK 1.21: linear; each file opened and written in place.
    InPlace,
}

impl Store {
    /// `number` tells it from others of the test.
    pub fn new(t: &Tracked, number: u32, style: Style) -> Self {
        let id = format!("00000000-0000-4000-8000-{number:012}");
        let dir = t
            .dir
            .join("home/.openhands/conversations")
            .join(id.replace('-', ""));
        let it = Self {
            dir,
            id,
            workspace: t.workspace(),
            style,
            events: 0,
            leaf: None,
        };
        std::fs::create_dir_all(&it.dir).expect("store");
        it.status("idle");
        it
    }
    fn put(&self, path: &Path, bytes: &[u8]) {
        let folder = path.parent().expect("folder");
        std::fs::create_dir_all(folder).expect("folder");
        match self.style {
            Style::Renamed => {
                let temp = folder.join(format!(
                    ".{}.x1y2",
                    path.file_name().expect("name").to_string_lossy()
                ));
                let mut f = File::create(&temp).expect("temporary file");
                f.write_all(bytes).and_then(|()| f.sync_all()).expect("write");
                std::fs::rename(temp, path).expect("rename");
            }
            Style::InPlace => {
                let mut f = File::create(path).expect("file");
                let (a, b) = bytes.split_at(bytes.len() / 2);
                f.write_all(a).and_then(|()| f.flush()).expect("first half");
                f.write_all(b).expect("second half");
            }
        }
    }
    /// Writes base_state.json; its head is the newest event.
    pub fn status(&self, status: &str) {
        let mut base = serde_json::json!({"id": self.id, "workspace": {"working_dir": self.workspace},
            "execution_status": status});
        if let (Style::Renamed, Some(leaf)) = (self.style, &self.leaf) {
            base["leaf_event_id"] = leaf.as_str().into();
        }
        self.put(&self.dir.join("base_state.json"), base.to_string().as_bytes());
    }
    /// Adds an event and gives its id; base_state.json does not name it yet.
    pub fn event(&mut self, kind: &str, source: &str, more: serde_json::Value) -> String {
        let id = format!("{:08x}-{}", self.events, &self.id[9..]);
        let mut event =
            serde_json::json!({"id": id, "timestamp": "2026-11-29T17:05:02.516407", "source": source});
        if self.style == Style::Renamed {
            event["parent_id"] = self.leaf.as_deref().unwrap_or("__root__").into();
        }
        let map = event.as_object_mut().expect("object");
        map.extend(more.as_object().expect("object").clone());
        map.insert("kind".into(), kind.into());
        let name = format!("events/event-{:05}-{id}.json", self.events);
        self.put(&self.dir.join(name), event.to_string().as_bytes());
        self.events += 1;
        self.leaf = Some(id.clone());
        id
    }
    /// A message of the human's, of these parts.
    pub fn message(&mut self, parts: &[&str]) -> String {
        let content: Vec<_> = parts
            .iter()
            .map(|t| serde_json::json!({"type": "text", "text": t}))
            .collect();
        self.event(
            "MessageEvent",
            "user",
            serde_json::json!({"llm_message": {"role": "user", "content": content}}),
        )
    }
    /// The agent uses a tool.
    pub fn action(&mut self) -> String {
        let call = format!("call_{}", self.events);
        self.event("ActionEvent", "agent", serde_json::json!({"tool_call_id": call}))
    }
    /// What the agent records of its hook, before it stores the message. (The message's id is the next one.)
    pub fn hook_ran(&mut self, event: &str, stdout: &str) {
        let leaf = self.leaf.clone();
        let next = format!("{:08x}-{}", self.events + 1, &self.id[9..]);
        self.event(
            "HookExecutionEvent",
            "hook",
            serde_json::json!({"hook_event_type": event, "stdout": stdout, "message_id": next}),
        );
        // not on the branch
        self.leaf = leaf;
    }
    /// What OpenHands passes to a hook.
    pub fn hook_input(&self, event: &str, message: Option<&str>) -> String {
        serde_json::json!({"event_type": event, "tool_name": null, "tool_input": null, "tool_response": null,
            "message": message, "session_id": self.id, "working_dir": self.workspace, "metadata": {}})
        .to_string()
    }
}

/// Runs `command` with this input to its end.
pub fn with_input(mut command: Command, input: &[u8]) -> std::process::Output {
    use std::process::Stdio;
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("start");
    let mut stdin = child.stdin.take().expect("stdin");
    let input = input.to_owned();
    let writer = std::thread::spawn(move || {
        // it may end without reading all
        let _closed = stdin.write_all(&input);
    });
    let out = child.wait_with_output().expect("its end");
    writer.join().expect("writer");
    out
}

/// A user and group without any rights of root.
pub const USER: u32 = 12321;

/// A Btrfs that is not respool's, mounted at `disk` in a folder of its own that every user may enter.
pub struct HostBtrfs {
    pub dir: TestDir,
}

impl HostBtrfs {
    /// Mounted with these options beside `loop`.
    pub fn new(options: &str) -> Self {
        need_root();
        let it = Self { dir: TestDir::new() };
        let image = it.dir.join("disk.img");
        let file = File::create(&image).expect("image");
        file.set_len(512 << 20).expect("image");
        std::fs::create_dir(it.point()).expect("mkdir");
        run("mkfs.btrfs", &["-q".as_ref(), image.as_os_str()]);
        it.mount(options);
        std::os::unix::fs::chown(it.point(), Some(0), Some(0)).expect("owner");
        for folder in [it.dir.path(), &it.point()] {
            use std::os::unix::fs::PermissionsExt;
            std::fs::set_permissions(folder, std::fs::Permissions::from_mode(0o755)).expect("mode");
        }
        it
    }
    pub fn mount(&self, options: &str) {
        let options = format!("loop,{options}");
        let image = self.dir.join("disk.img");
        run(
            "mount",
            &[
                "-o".as_ref(),
                options.as_ref(),
                image.as_os_str(),
                self.point().as_os_str(),
            ],
        );
    }
    pub fn point(&self) -> PathBuf {
        self.dir.join("disk")
    }
    /// A folder of the user's on it.
    pub fn of_user(&self, name: &str) -> PathBuf {
        let path = self.point().join(name);
        std::fs::create_dir_all(&path).expect("mkdir");
        std::os::unix::fs::chown(&path, Some(USER), Some(USER)).expect("owner");
        path
    }
}

impl Drop for HostBtrfs {
    fn drop(&mut self) {
        let mut points = mounts_below(self.dir.path());
        points.retain(|p| *p == self.point());
        for point in points {
            if let Err(e) = rustix::mount::unmount(&point, rustix::mount::UnmountFlags::empty()) {
                eprintln!("cannot unmount {}: {e}", point.display());
            }
        }
    }
}

/// Runs a tool to its end, which must be a success.
pub fn run(program: &str, args: &[&std::ffi::OsStr]) -> String {
    let out = Command::new(program).args(args).output().expect(program);
    let (said, wrong) = (
        String::from_utf8_lossy(&out.stdout),
        String::from_utf8_lossy(&out.stderr),
    );
    assert!(out.status.success(), "{program} {args:?}: {said}{wrong}");
    said.into_owned()
}

/// `program` as [`USER`], with that group alone and an empty environment.
pub fn as_user(program: &Path) -> Command {
    let id = USER.to_string();
    let mut c = Command::new("setpriv");
    c.args(["--reuid", &id, "--regid", &id, "--clear-groups"])
        .arg(program)
        .env_clear()
        .env("RESPOOL_SOCKET", "/nonexistent/no-service")
        .env("PATH", "/usr/bin:/bin")
        .stdin(std::process::Stdio::null());
    c
}
