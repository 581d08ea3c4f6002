//! A service of its own for each test, and ordinary users who call it.

use std::io::{BufRead, BufReader};
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::Value;

use crate::common::{TestDir, need_root, wait_until};

/// The owner of the workspace, and somebody else.
pub const OWNER: u32 = 65534;
pub const OTHER: u32 = 64321;

/// A running service, with the home of the owner beside it.
pub struct Served {
    service: Option<Child>,
    dir: TestDir,
}

impl Served {
    pub fn new() -> Self {
        Self::with(&[])
    }

    /// The service with these variables.
    pub fn with(env: &[(&str, &str)]) -> Self {
        need_root();
        let dir = TestDir::new();
        std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o755)).expect("open to all");
        std::fs::copy(env!("CARGO_BIN_EXE_respool"), dir.join("respool")).expect("the program");
        for (name, uid) in [("home", OWNER), ("other", OTHER)] {
            std::fs::create_dir(dir.join(name)).expect("home");
            chown(dir.join(name), Some(uid), Some(uid)).expect("owner");
        }
        let mut it = Self { service: None, dir };
        it.start(env);
        it
    }

    pub fn start(&mut self, env: &[(&str, &str)]) {
        let mut c = Command::new(self.dir.join("respool"));
        c.env_clear()
            .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
            .env("HOME", self.dir.join("root"))
            .envs(env.iter().copied())
            .arg("--state-dir")
            .arg(self.state())
            .args(["service", "--socket"])
            .arg(self.socket())
            .current_dir("/")
            .stdin(Stdio::null())
            .stderr(Stdio::piped());
        let mut child = c.spawn().expect("the service");
        let mut line = String::new();
        let mut said = BufReader::new(child.stderr.take().expect("stderr"));
        // warnings may come first
        while !line.contains("serving at") {
            line.clear();
            assert!(said.read_line(&mut line).expect("its lines") > 0, "it ended");
        }
        // it goes on talking
        std::thread::spawn(move || std::io::copy(&mut said, &mut std::io::sink()));
        self.service = Some(child);
    }

    pub fn pid(&self) -> u32 {
        self.service.as_ref().map(Child::id).expect("running")
    }

    pub fn service(&mut self) -> &mut Child {
        self.service.as_mut().expect("running")
    }

    /// Ends the service as its manager would.
    pub fn stop(&mut self) -> std::process::ExitStatus {
        let mut child = self.service.take().expect("running");
        let pid = nix::unistd::Pid::from_raw(child.id() as i32);
        nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM).expect("SIGTERM");
        child.wait().expect("its end")
    }

    pub fn dir(&self) -> &TestDir {
        &self.dir
    }
    pub fn state(&self) -> PathBuf {
        self.dir.join("state")
    }
    pub fn socket(&self) -> PathBuf {
        self.dir.join("sock")
    }
    pub fn home(&self) -> PathBuf {
        self.dir.join("home")
    }
    pub fn ws(&self) -> PathBuf {
        self.dir.join("home/project")
    }

    /// Any program as this user, in the owner's home.
    pub fn user(&self, uid: u32, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut c = Command::new("setpriv");
        let id = uid.to_string();
        let home = self.dir.join(if uid == OTHER { "other" } else { "home" });
        c.args(["--reuid", &id, "--regid", &id, "--clear-groups"])
            .arg(program)
            .current_dir(&home)
            .env_clear()
            .env("PATH", "/usr/bin:/bin")
            .env("TMPDIR", &home)
            .env("HOME", &home)
            .env("RESPOOL_SOCKET", self.socket())
            .stdin(Stdio::null());
        c
    }

    /// A script of the owner's.
    pub fn shell(&self, script: &str) -> std::process::Output {
        self.user(OWNER, "sh").args(["-c", script]).output().expect("sh")
    }

    /// respool as this user: the exit code, and the document.
    pub fn run_as(&self, uid: u32, args: &[&str]) -> (i32, Value) {
        let mut c = self.user(uid, self.dir.join("respool"));
        let out = c.arg("--json").args(args).output().expect("respool");
        let doc = serde_json::from_slice(&out.stdout).unwrap_or_else(|e| {
            panic!(
                "{args:?}: {e}: {}: {}{}",
                out.status,
                String::from_utf8_lossy(&out.stdout),
                String::from_utf8_lossy(&out.stderr)
            )
        });
        (out.status.code().unwrap_or(-1), doc)
    }

    /// respool as the owner, on the workspace.
    pub fn run(&self, args: &[&str]) -> (i32, Value) {
        let ws = self.ws();
        let mut all = vec!["-s", ws.to_str().expect("UTF-8")];
        all.extend(args);
        self.run_as(OWNER, &all)
    }

    pub fn ok(&self, args: &[&str]) -> Value {
        let (code, doc) = self.run(args);
        assert_eq!(code, 0, "{args:?}: {doc}");
        doc
    }

    /// respool as the owner, on the workspace; it must be refused.
    pub fn refused(&self, args: &[&str]) -> String {
        let (code, doc) = self.run(args);
        assert_eq!(code, 3, "{args:?}: {doc}");
        doc["error"]["message"].as_str().expect("a message").to_owned()
    }

    /// A workspace of the owner's with a few files, tracked by him.
    pub fn tracked(&self) -> PathBuf {
        let made =
            self.shell("mkdir -p project/src && cd project && echo one > a && echo x > src/b && ln -s a l");
        assert!(made.status.success());
        let ws = self.ws();
        let (code, doc) = self.run_as(
            OWNER,
            &["--yes", "track", ws.to_str().expect("UTF-8"), "--size", "300M"],
        );
        assert_eq!(code, 0, "{doc}");
        assert_eq!(doc["vault"], "btrfs");
        ws
    }

    /// respool as root in the service's state.
    pub fn root(&self, args: &[&str]) -> (i32, Value) {
        let mut c = crate::common::respool(&self.dir.join("root"));
        c.args(["--json", "--yes", "--state-dir"]).arg(self.state());
        let out = c.args(args).output().expect("respool");
        let doc = serde_json::from_slice(&out.stdout).unwrap_or_default();
        (out.status.code().unwrap_or(-1), doc)
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        if let Some(mut child) = self.service.take() {
            let _ended_already = child.kill();
            let _status = child.wait();
        }
        let ws = self.ws();
        if is_mounted(&ws) {
            self.root(&["untrack", ws.to_str().expect("UTF-8")]);
        }
        self.root(&["pool", "unmount"]);
        let gone = wait_until(Duration::from_secs(3), || self.dir.left().is_empty());
        assert!(gone || std::thread::panicking(), "{:?}", self.dir.left());
    }
}

fn is_mounted(path: &Path) -> bool {
    crate::common::mounts_below(path).iter().any(|m| m == path)
}
