//! Commands that are done on the service's side as a whole: what puts folders under respool, gives them back, and
//! looks after pools. The service runs its own program for it, as root and with words of its own making; what it
//! prints goes back to the client.

use std::io::{self, Read};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, Uid, User};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::answer::View;
use crate::failure::{Kind, Report};
use crate::progress::Progress;
use crate::text;

/// What is printed at most.
const MOST: u64 = 64 << 20;

/// The command.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verb {
    /// `track DIR`, with the size of a new image.
    Track(#[serde(with = "text::exact")] PathBuf, String),
    /// `untrack DIR`.
    Untrack(#[serde(with = "text::exact")] PathBuf),
    /// `sandboxes`.
    Sandboxes,
    /// `space`.
    Space,
    /// `recover`.
    Recover,
    /// `pool status`.
    PoolStatus,
    /// `pool mount`.
    PoolMount,
    /// `pool unmount`.
    PoolUnmount,
    /// `prune`, with its sandbox, and the values of `--keep`, `--keep-within`, `--max-bytes`.
    Prune(String, Option<usize>, Option<String>, Option<String>),
}

impl Verb {
    /// True for what any user may order in the service's own state. In a state of the user's own all may be ordered.
    fn for_all(&self) -> bool {
        matches!(
            self,
            Self::Track(..) | Self::Sandboxes | Self::Space | Self::Recover | Self::PoolStatus
        )
    }

    fn words(&self, command: &mut Command) {
        match self {
            Self::Track(dir, size) => {
                let command = command.args(["track", "--vault", "btrfs", "--size"]).arg(size);
                command.arg("--").arg(dir)
            }
            Self::Untrack(dir) => command.args(["untrack", "--"]).arg(dir),
            Self::Sandboxes => command.arg("sandboxes"),
            Self::Space => command.arg("space"),
            Self::Recover => command.arg("recover"),
            Self::PoolStatus => command.args(["pool", "status"]),
            Self::PoolMount => command.args(["pool", "mount"]),
            Self::PoolUnmount => command.args(["pool", "unmount"]),
            Self::Prune(sandbox, keep, within, bytes) => {
                command.args(["prune", "--sandbox"]).arg(sandbox);
                for (flag, value) in [
                    ("--keep", keep.map(|k| k.to_string())),
                    ("--keep-within", within.clone()),
                    ("--max-bytes", bytes.clone()),
                ] {
                    value.map(|v| command.arg(format!("{flag}={v}")));
                }
                command
            }
        };
    }

    fn name(&self) -> &'static str {
        match self {
            Self::Track(..) => "track",
            Self::Untrack(_) => "untrack",
            Self::Sandboxes => "sandboxes",
            Self::Space => "space",
            Self::Recover => "recover",
            Self::PoolStatus | Self::PoolMount | Self::PoolUnmount => "pool",
            Self::Prune(..) => "prune",
        }
    }
}

/// A command, and how its output is wanted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manage {
    /// The command.
    pub verb: Verb,
    /// `--json`.
    pub json: bool,
    /// `--yes`: the user was asked.
    pub yes: bool,
    /// `--dry-run`.
    pub dry_run: bool,
}

/// What it printed, and its exit code.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Printed {
    /// The exit code.
    pub code: u8,
    /// Standard output.
    #[serde(with = "text::base64_bytes")]
    pub out: Vec<u8>,
    /// Standard error.
    #[serde(with = "text::base64_bytes")]
    pub err: Vec<u8>,
}

impl Printed {
    /// The same with every unsafe character visible: what another machine printed promises nothing. In JSON they are
    /// escaped in strings, and stand nowhere else.
    #[must_use]
    pub fn harmless(self, json: bool) -> Self {
        let lines = |bytes: &[u8]| -> Vec<u8> {
            let text = |line: &[u8]| text::shown_bytes(line).into_bytes();
            bytes
                .split(|b| *b == b'\n')
                .map(text)
                .collect::<Vec<_>>()
                .join(&b'\n')
        };
        let document = || -> Option<Vec<u8>> {
            let value: Value = serde_json::from_slice(&self.out).ok()?;
            Some((text::json_line(&value).ok()? + "\n").into_bytes())
        };
        Self {
            out: json.then(document).flatten().unwrap_or_else(|| lines(&self.out)),
            err: lines(&self.err),
            code: self.code,
        }
    }
}

fn failed(kind: Kind, message: String, hint: Option<&str>) -> Report {
    Report {
        kind,
        message,
        path: None,
        hint: hint.map(str::to_owned),
    }
}

/// Runs the command that a client orders.
pub(super) fn run(view: &View, order: Value, progress: &dyn Progress) -> Result<Printed, Report> {
    let order: Manage = serde_json::from_value(order)
        .map_err(|e| failed(Kind::Usage, format!("it cannot be understood: {e}"), None))?;
    let own = view.library.is_some();
    if view.peer.uid != 0 && !own && !view.realm.own && !order.verb.for_all() {
        let what = format!("{} is for root alone", order.verb.name());
        return Err(failed(
            Kind::Refused,
            what,
            Some("run it as root: sudo respool ..."),
        ));
    }
    if !view.peer.alive() {
        return Err(failed(Kind::Refused, "who asks is gone".into(), None));
    }
    let io = |e: io::Error| failed(Kind::Failed, format!("the command cannot be run: {e}"), None);
    if matches!(order.verb, Verb::Track(..)) && !order.dry_run && !own {
        view.realm.prepare().map_err(io)?;
    }
    let mut command = command(view, &order).map_err(io)?;
    let printed = collect(command.spawn().map_err(io)?, progress).map_err(io)?;
    if matches!(order.verb, Verb::PoolUnmount)
        && let Err(e) = view.realm.sweep()
    {
        tracing::warn!("{}: {e}", view.realm.dir.display());
    }
    Ok(printed)
}

fn command(view: &View, order: &Manage) -> io::Result<Command> {
    let mut command = Command::new(std::env::current_exe()?);
    if view.library.is_some() {
        // the peer's own process: as if the peer had typed the command
        if let Some(dir) = view.realm.registry.named() {
            command.arg("--state-dir").arg(dir);
        }
    } else {
        for_another(&mut command, view);
    }
    for (wanted, flag) in [
        (order.json, "--json"),
        (order.yes, "--yes"),
        (order.dry_run, "--dry-run"),
    ] {
        if wanted {
            command.arg(flag);
        }
    }
    order.verb.words(&mut command);
    command
        .current_dir(Path::new("/"))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    Ok(command)
}

/// As root, on behalf of the peer.
fn for_another(command: &mut Command, view: &View) {
    // nothing of the environment that the service was started in, and nothing of the client's
    command.env_clear().env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin");
    if let Ok(Some(user)) = User::from_uid(Uid::from_raw(view.peer.uid))
        && view.peer.uid != 0
    {
        command.env("SUDO_USER", user.name);
    }
    command.arg("--state-dir").arg(&view.realm.dir);
    command.arg(format!("--behalf={}:{}", view.peer.uid, view.peer.pid));
}

fn collect(mut child: Child, progress: &dyn Progress) -> io::Result<Printed> {
    let reader = |pipe: Option<Box<dyn Read + Send>>| {
        std::thread::spawn(move || {
            let mut bytes = Vec::new();
            let read = pipe.map(|p| p.take(MOST).read_to_end(&mut bytes));
            read.transpose().map(|_| bytes)
        })
    };
    let out = reader(child.stdout.take().map(|p| Box::new(p) as Box<dyn Read + Send>));
    let err = reader(child.stderr.take().map(|p| Box::new(p) as Box<dyn Read + Send>));
    let mut told = false;
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        if progress.cancelled() && !told {
            told = true;
            kill(Pid::from_raw(child.id() as i32), Signal::SIGINT)?;
        }
        std::thread::sleep(Duration::from_millis(2));
    };
    let joined = |t: std::thread::JoinHandle<io::Result<Vec<u8>>>| {
        t.join()
            .unwrap_or_else(|_| Err(io::Error::other("its output was lost")))
    };
    let code = status
        .code()
        .unwrap_or_else(|| 128 + status.signal().unwrap_or(0));
    Ok(Printed {
        code: u8::try_from(code).unwrap_or(1),
        out: joined(out)?,
        err: joined(err)?,
    })
}
