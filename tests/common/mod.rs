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
        .env("TERM", "dumb");
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
