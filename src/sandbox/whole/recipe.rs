//! How a daemon is started again in the same way: by its unit of systemd, or with the same program, words, environment and
//! folder.

use std::ffi::{OsStr, OsString};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::daemon::{STEP, daemons_of, refused};
use crate::sandbox::boot::Systemd;
use crate::sandbox::docker::{Engine, Result};
use crate::text::{ExactPath, shown, shown_path};

/// How long it is waited for until it answers.
const UP: Duration = Duration::from_secs(90);
/// Where it looks for its settings if it is not told.
const CONFIG: &str = "/etc/docker/daemon.json";
/// The hidden command that becomes the daemon.
pub const DAEMON_COMMAND: &str = "__daemon";

/// How the daemon is run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Runs {
    /// By this unit of systemd; the sockets that would start it again.
    Systemd {
        /// `docker.service`.
        unit: String,
        /// `docker.socket`.
        sockets: Vec<String>,
    },
    /// By hand, or by another program.
    ByHand,
}

/// All that is needed to start it again; for root alone, as its environment may hold secrets.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Recipe {
    /// How it is run.
    pub runs: Runs,
    /// Its program.
    pub program: ExactPath,
    /// Its arguments, the name that it was called by first.
    pub words: Vec<ExactPath>,
    /// Its environment, `NAME=value` each.
    pub environment: Vec<ExactPath>,
    /// Its current folder.
    pub folder: ExactPath,
    /// Where its output and its errors go, where those are files.
    pub output: [Option<ExactPath>; 2],
}

fn words(pid: i32, what: &str) -> io::Result<Vec<ExactPath>> {
    let bytes = std::fs::read(format!("/proc/{pid}/{what}"))?;
    let each = bytes.strip_suffix(b"\0").unwrap_or(&bytes).split(|b| *b == 0);
    Ok(each
        .map(|w| ExactPath(OsString::from_vec(w.to_vec()).into()))
        .collect())
}

fn link(pid: i32, what: &str) -> io::Result<PathBuf> {
    std::fs::read_link(format!("/proc/{pid}/{what}"))
}

/// The file that a process writes this to; `None` for what is no file, or a deleted one.
fn file_of(pid: i32, fd: u8) -> Option<ExactPath> {
    let path = link(pid, &format!("fd/{fd}")).ok()?;
    let meta = std::fs::metadata(&path).ok()?;
    let same = std::fs::metadata(format!("/proc/{pid}/fd/{fd}")).ok()?;
    let is = meta.is_file() && (meta.dev(), meta.ino()) == (same.dev(), same.ino());
    is.then_some(ExactPath(path))
}

/// The service unit that a process is in, from the text of its `/proc/PID/cgroup`.
fn unit_in(text: &str) -> Option<&str> {
    let of_systemd = |l: &&str| l.starts_with("0::") || l.contains(":name=systemd:");
    let line = text.lines().find(of_systemd)?;
    let last = line.rsplit('/').next()?;
    let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.' | b'@' | b'\\' | b':');
    (last.ends_with(".service") && last.bytes().all(plain)).then_some(last)
}

fn runs(pid: i32) -> Runs {
    let Some(systemd) = Systemd::here() else {
        return Runs::ByHand;
    };
    let text = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
    let Some(unit) = unit_in(&text) else {
        return Runs::ByHand;
    };
    let show = |what: &str| systemd.show(unit, what).unwrap_or_default();
    if show("MainPID") != pid.to_string() {
        return Runs::ByHand;
    }
    let sockets = show("TriggeredBy");
    Runs::Systemd {
        unit: unit.to_owned(),
        sockets: sockets.split_whitespace().map(str::to_owned).collect(),
    }
}

/// How a process is started again.
pub(super) fn recipe(pid: i32) -> io::Result<Recipe> {
    Ok(Recipe {
        runs: runs(pid),
        program: ExactPath(link(pid, "exe")?),
        words: words(pid, "cmdline")?,
        environment: words(pid, "environ")?,
        folder: ExactPath(link(pid, "cwd")?),
        output: [file_of(pid, 1), file_of(pid, 2)],
    })
}

impl Recipe {
    /// The values of an argument, as `--name VALUE`, `--name=VALUE`.
    fn argument(&self, name: &str) -> Option<&OsStr> {
        let mut words = self.words.iter().skip(1).map(|w| w.0.as_os_str());
        while let Some(word) = words.next() {
            let bytes = word.as_bytes();
            let bytes = bytes.strip_prefix(b"-").unwrap_or(bytes);
            let bytes = bytes.strip_prefix(b"-").unwrap_or(bytes);
            if bytes == name.as_bytes() && word.as_bytes().starts_with(b"-") {
                return words.next();
            }
            let rest = bytes.strip_prefix(name.as_bytes());
            if let Some(value) = rest.and_then(|r| r.strip_prefix(b"=")) {
                return Some(OsStr::from_bytes(value));
            }
        }
        None
    }

    fn path_argument(&self, name: &str) -> Option<PathBuf> {
        self.argument(name).map(|v| self.folder.0.join(v))
    }

    /// The file of its settings.
    pub fn config(&self) -> PathBuf {
        self.path_argument("config-file").unwrap_or_else(|| CONFIG.into())
    }

    /// The storage driver that it was told on the command line.
    pub fn driver(&self) -> Option<String> {
        let value = self.argument("storage-driver").or_else(|| self.argument("s"));
        value.map(|v| v.to_string_lossy().into_owned())
    }

    /// The folder of its data, as command line and settings have it.
    pub(super) fn data_root(&self) -> PathBuf {
        let told = self
            .path_argument("data-root")
            .or_else(|| self.path_argument("graph"))
            .or_else(|| self.path_argument("g"));
        let set = || {
            let bytes = crate::paths::read_file(&self.config()).ok()?;
            let doc: serde_json::Value = serde_json::from_slice(&bytes).ok()?;
            Some(PathBuf::from(doc["data-root"].as_str()?))
        };
        told.or_else(set).unwrap_or_else(|| "/var/lib/docker".into())
    }

    /// In words for a plan.
    pub fn said(&self) -> String {
        match &self.runs {
            Runs::Systemd { unit, .. } => format!("systemd runs it: {}", shown(unit)),
            Runs::ByHand => {
                let first = self.words.first().map_or_else(String::new, |w| shown_path(&w.0));
                format!("started by hand: {first}; it is started again with the same words")
            }
        }
    }
}

/// The engine, once it answers; `child`: the daemon, where it is this process's to watch.
fn answering(host: &str, mut child: Option<Child>, log: &Path) -> Result<Engine> {
    let began = Instant::now();
    loop {
        match Engine::connect(Some(host)).and_then(|e| e.all().map(|_| e)) {
            Ok(engine) => return Ok(engine),
            Err(e) if began.elapsed() >= UP => return Err(e),
            Err(_) => {}
        }
        if let Some(Ok(Some(status))) = child.as_mut().map(Child::try_wait) {
            return Err(refused(
                format!("dockerd did not come up ({status}): {}", last_line(log)),
                "",
            ));
        }
        std::thread::sleep(STEP);
    }
}

/// The last line of a log that says what went wrong, harmless.
fn last_line(log: &Path) -> String {
    let bytes = crate::paths::read_file(log).unwrap_or_default();
    let text = String::from_utf8_lossy(&bytes);
    let line = text.lines().rev().find(|l| !l.trim().is_empty());
    line.map_or_else(
        || format!("nothing in {}", shown_path(log)),
        |l| shown(&l.chars().take(300).collect::<String>()),
    )
}

impl Recipe {
    /// Starts it, unless it runs already, and waits until it answers at `host`. `log`: where its output goes that went
    /// to no file before.
    pub fn start(&self, host: &str, data_root: &Path, log: &Path) -> Result<Engine> {
        if let Runs::Systemd { unit, sockets } = &self.runs {
            let systemd = Systemd::here().ok_or_else(|| refused("systemd is gone".into(), ""))?;
            let all: Vec<&str> = sockets.iter().chain([unit]).map(String::as_str).collect();
            systemd.act("start", &all)?;
            return answering(host, None, log);
        }
        if !daemons_of(data_root).is_empty() {
            return answering(host, None, log);
        }
        let log = self.output[1].as_ref().map_or(log, |p| p.0.as_path());
        let child = self
            .spawn(log)
            .map_err(|e| refused(format!("dockerd cannot be started: {e}"), ""))?;
        answering(host, Some(child), log)
    }

    fn spawn(&self, log: &Path) -> io::Result<Child> {
        let open = |path: Option<&ExactPath>| appended(path.map_or(log, |p| &p.0));
        let [out, err] = [open(self.output[0].as_ref())?, open(self.output[1].as_ref())?];
        let pairs = self.environment.iter().filter_map(|e| {
            let bytes = e.0.as_os_str().as_bytes();
            let at = bytes.iter().position(|b| *b == b'=')?;
            Some((
                OsStr::from_bytes(&bytes[..at]),
                OsStr::from_bytes(&bytes[at + 1..]),
            ))
        });
        let own = std::env::current_exe()?;
        Command::new(own)
            .arg(DAEMON_COMMAND)
            .arg(&self.program.0)
            .args(self.words.iter().map(|w| &w.0))
            .env_clear()
            .envs(pairs)
            .current_dir(&self.folder.0)
            .stdin(Stdio::null())
            .stdout(out)
            .stderr(err)
            .spawn()
    }
}

/// A regular file to write to the end of.
fn appended(path: &Path) -> io::Result<File> {
    let flags = nix::libc::O_NOFOLLOW | nix::libc::O_NONBLOCK;
    let file = OpenOptions::new()
        .append(true)
        .create(true)
        .mode(0o600)
        .custom_flags(flags)
        .open(path)?;
    if file.metadata()?.is_file() {
        return Ok(file);
    }
    Err(io::Error::other("it is no regular file"))
}

/// The hidden command: becomes the daemon, in a session of its own. `args`: the program, then what it is called with,
/// its own name first.
pub fn become_daemon(args: &[OsString]) -> io::Error {
    let [program, name, rest @ ..] = args else {
        return io::ErrorKind::InvalidInput.into();
    };
    if let Err(e) = rustix::process::setsid() {
        return e.into();
    }
    Command::new(program).arg0(name).args(rest).exec()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn called(words: &[&str]) -> Recipe {
        Recipe {
            runs: Runs::ByHand,
            program: ExactPath("/usr/bin/dockerd".into()),
            words: words.iter().map(|w| ExactPath(w.into())).collect(),
            environment: Vec::new(),
            folder: ExactPath("/srv".into()),
            output: [None, None],
        }
    }

    #[test]
    fn what_the_command_line_says_counts() {
        let r = called(&[
            "dockerd",
            "--data-root",
            "/d",
            "--config-file=c.json",
            "-s",
            "vfs",
        ]);
        assert_eq!(r.data_root(), Path::new("/d"));
        assert_eq!(r.config(), Path::new("/srv/c.json"));
        assert_eq!(r.driver().as_deref(), Some("vfs"));
        let r = called(&["dockerd", "-g=/g", "--storage-driver=btrfs"]);
        assert_eq!((r.data_root(), r.driver()), ("/g".into(), Some("btrfs".into())));
        let r = called(&["dockerd", "--config-file", "/nonexistent/daemon.json"]);
        assert_eq!(r.data_root(), Path::new("/var/lib/docker"));
    }

    #[test]
    fn the_unit_is_the_last_of_systemds_group() {
        let v2 = "0::/system.slice/docker.service\n";
        let v1 = "3:cpu:/x\n1:name=systemd:/system.slice/docker.service\n";
        assert_eq!(unit_in(v2), Some("docker.service"));
        assert_eq!(unit_in(v1), Some("docker.service"));
        assert_eq!(unit_in("0::/user.slice/session-3.scope\n"), None);
        assert_eq!(unit_in("0::/a/b c.service\n"), None);
    }
}
