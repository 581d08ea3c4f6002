//! Runs the commands that a client orders as a whole: the service's own program, as root and with words of its own
//! making. What it prints goes back to the client.

use std::io::{self, Read};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, Uid, User};
use serde_json::Value;

use super::answer::View;
use super::tenant::{all_of, sweep_all};
use crate::failure::{Kind, Report};
use crate::paths::SYSTEM_STATE;
use crate::progress::Progress;
use crate::sandbox::manage::{Manage, Printed, Verb};
use crate::sandbox::registry::Registry;

/// What is printed at most.
const MOST: u64 = 64 << 20;

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
        let hint = format!("run it as root: sudo respool {}", order.verb.name());
        return Err(failed(Kind::Refused, what, Some(&hint)));
    }
    if !view.peer.alive() {
        return Err(failed(Kind::Refused, "who asks is gone".into(), None));
    }
    if view.peer.uid != 0 && !own {
        modest(view, &order.verb)?;
    }
    let io = |e: io::Error| failed(Kind::Failed, format!("the command cannot be run: {e}"), None);
    let held = view.realm.hold();
    if matches!(order.verb, Verb::Track(..)) && !order.dry_run && !own {
        sweep_all(&view.state);
        view.realm.prepare().map_err(io)?;
    }
    view.found.close();
    let mut command = command(view, &order).map_err(io)?;
    let printed = collect(command.spawn().map_err(io)?, progress).map_err(io)?;
    drop(held);
    if matches!(order.verb, Verb::PoolUnmount)
        && let Err(e) = view.realm.sweep()
    {
        tracing::warn!("{}: {e}", view.realm.dir.display());
    }
    Ok(printed)
}

/// The largest image that an ordinary user may have made, in bytes; it is sparse.
const LARGEST: u64 = 256 << 30;
/// So many states of his own a user may have.
const STATES: usize = 16;

/// Refuses what one user would take from all others.
fn modest(view: &View, verb: &Verb) -> Result<(), Report> {
    let Verb::Track(_, size) = verb else { return Ok(()) };
    let too_large = crate::config::values::bytes(size).is_none_or(|bytes| bytes > LARGEST);
    if too_large {
        let what = format!("an image of {} is for root to make", crate::text::shown(size));
        return Err(failed(
            Kind::Refused,
            what,
            Some("run it as root: sudo respool track DIR"),
        ));
    }
    let users = all_of(&view.state);
    let own = users
        .iter()
        .filter(|d| d.parent() == view.realm.dir.parent())
        .count();
    if view.realm.own && !view.realm.dir.exists() && own >= STATES {
        let what = format!("there are {own} states of yours already");
        let hint =
            "remove the folder of one that you need no more, after: respool --state-dir DIR pool unmount";
        return Err(failed(Kind::Refused, what, Some(hint)));
    }
    Ok(())
}

/// Mounts the pools of the service's own state and of all users' states, and shows their workspaces again, as after a
/// start of the machine. One that cannot be mounted holds up no other.
pub fn mount_all(state: &Registry) {
    let users = all_of(state).into_iter().map(Some);
    for dir in std::iter::once(None).chain(users) {
        let dir = dir.unwrap_or_else(|| state.state_dir().to_owned());
        let mounted = own_program(&dir).and_then(|mut c| c.args(["pool", "mount"]).output());
        match mounted {
            Ok(out) if out.status.success() => {}
            Ok(out) => {
                // the list of what could not be mounted is its answer
                let said = [out.stderr, out.stdout].concat();
                for line in said.split(|b| *b == b'\n').filter(|l| !l.is_empty()) {
                    tracing::warn!("{}: {}", dir.display(), crate::text::shown_bytes(line));
                }
            }
            Err(e) => tracing::warn!("{}: {e}", dir.display()),
        }
    }
}

/// This program on a state folder, with nothing of the environment that the service was started in.
fn own_program(dir: &Path) -> io::Result<Command> {
    let mut command = Command::new(std::env::current_exe()?);
    command.env_clear().env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin");
    if dir != Path::new(SYSTEM_STATE) {
        command.arg("--state-dir").arg(dir);
    }
    command.current_dir("/").stdin(Stdio::null());
    Ok(command)
}

fn command(view: &View, order: &Manage) -> io::Result<Command> {
    let mut command = if view.library.is_some() {
        // the peer's own process: as if the peer had typed the command
        let mut command = Command::new(std::env::current_exe()?);
        command.current_dir("/").stdin(Stdio::null());
        if let Some(dir) = view.realm.registry.named() {
            command.arg("--state-dir").arg(dir);
        }
        command
    } else {
        for_another(view)?
    };
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
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    Ok(command)
}

/// As root, on behalf of the peer.
fn for_another(view: &View) -> io::Result<Command> {
    let mut command = own_program(&view.realm.dir)?;
    if let Ok(Some(user)) = User::from_uid(Uid::from_raw(view.peer.uid))
        && view.peer.uid != 0
    {
        command.env("SUDO_USER", user.name);
    }
    command.arg(format!("--behalf={}:{}", view.peer.uid, view.peer.pid));
    Ok(command)
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
