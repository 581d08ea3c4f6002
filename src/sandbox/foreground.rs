//! An agent as the foreground child of this process: it has this terminal, gets the signals that come here, runs
//! as the invoking user, and nothing of it is lost to sight: what it leaves behind becomes a child of this process.

use std::ffi::{CString, OsStr, OsString};
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};

use nix::sys::prctl;
use nix::sys::signal::{SigSet, SigmaskHow, Signal, kill, raise, sigprocmask};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{Gid, Pid, Uid, initgroups, setgid, setuid};

use super::inside::{Proc, Processes, Recorded};
use crate::process;
use crate::progress::CancelFlag;

/// The hidden command that becomes the agent.
pub const AGENT_COMMAND: &str = "__agent";
/// The exit code where the agent's program cannot be run, as of a shell.
pub const NOT_RUN: u8 = 127;
/// Signals that are passed on to the agent.
const PASSED: [Signal; 6] = [
    Signal::SIGINT,
    Signal::SIGQUIT,
    Signal::SIGTERM,
    Signal::SIGHUP,
    Signal::SIGUSR1,
    Signal::SIGUSR2,
];
/// What `si_code` says of a signal that the kernel made: the terminal's, which the agent has got too.
const FROM_KERNEL: i32 = 0x80;

/// Takes this process's signals, for its whole life: before an agent runs they cancel, then they are the agent's.
/// Must be made before other threads are.
#[derive(Debug)]
pub struct Signals {
    agent: Arc<AtomicI32>,
}

impl Signals {
    /// `cancel` is set by a signal that comes before there is an agent; a second one ends the process with the
    /// exit code `cancelled`.
    pub fn take(cancel: &'static CancelFlag, cancelled: u8) -> io::Result<Self> {
        let mut mask = SigSet::empty();
        mask.add(Signal::SIGCHLD);
        for signal in PASSED {
            mask.add(signal);
        }
        sigprocmask(SigmaskHow::SIG_BLOCK, Some(&mask), None)?;
        let signals = SignalFd::with_flags(&mask, SfdFlags::SFD_CLOEXEC)?;
        let agent = Arc::new(AtomicI32::new(0));
        let shared = Arc::clone(&agent);
        std::thread::Builder::new().spawn(move || {
            while let Ok(info) = signals.read_signal() {
                let Some(info) = info else { continue };
                let Ok(signal) = Signal::try_from(info.ssi_signo as i32) else {
                    continue;
                };
                match (signal, shared.load(Ordering::SeqCst)) {
                    (Signal::SIGCHLD, agent) => bury_adopted(agent),
                    (_, 0) if cancel.is_set() => std::process::exit(i32::from(cancelled)),
                    (_, 0) => cancel.cancel(),
                    (_, _) if info.ssi_code == FROM_KERNEL => {}
                    (signal, agent) => {
                        if let Err(e) = kill(Pid::from_raw(agent), signal) {
                            tracing::debug!("{signal} does not reach the agent: {e}");
                        }
                    }
                }
            }
        })?;
        Ok(Self { agent })
    }
}

/// Ends the wait of dead processes that the agent left to this one. Children of our own making are waited for
/// where they were made: they carry our name.
fn bury_adopted(agent: i32) {
    let own = std::process::id() as i32;
    let name = process::stat(own).map(|s| s.comm);
    let ours = |comm: &str| comm == "exe" || Some(comm) == name.as_deref();
    let dead = process::pids()
        .into_iter()
        .filter_map(process::stat)
        .filter(|s| s.ppid == own && s.state == 'Z' && s.pid != agent && !ours(&s.comm));
    for s in dead {
        if let Err(e) = waitpid(Pid::from_raw(s.pid), Some(WaitPidFlag::WNOHANG)) {
            tracing::debug!("process {}: {e}", s.pid);
        }
    }
}

/// The user that the agent runs as.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Account {
    /// The name.
    pub name: String,
    /// User id.
    pub uid: u32,
    /// Group id.
    pub gid: u32,
}

/// What to start.
#[derive(Debug)]
pub struct Start {
    /// The program's file.
    pub program: PathBuf,
    /// All arguments, the program's name as it was typed first.
    pub arguments: Vec<OsString>,
    /// Who it runs as; none = who this process is.
    pub account: Option<Account>,
    /// Variables that are set, or taken away.
    pub environment: Vec<(&'static str, Option<OsString>)>,
    /// Its working folder.
    pub folder: PathBuf,
}

/// How the agent ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// With this exit code.
    Code(i32),
    /// By this signal.
    Signal(i32),
}

impl Ended {
    /// The exit code that stands for it.
    pub const fn code(self) -> i32 {
        match self {
            Self::Code(code) => code,
            Self::Signal(number) => 128 + number,
        }
    }
}

/// A running agent.
#[derive(Debug)]
pub struct Agent {
    pid: i32,
    signals: Signals,
}

impl Start {
    /// The process itself where this one is who it runs as; else one that becomes it.
    pub fn direct(&self) -> Command {
        if self.account.is_some() {
            return self.command();
        }
        let mut command = Command::new(&self.program);
        if let Some((called, rest)) = self.arguments.split_first() {
            command.arg0(called).args(rest);
        }
        self.surroundings(&mut command);
        command
    }

    /// The process that becomes it.
    fn command(&self) -> Command {
        let mut command = Command::new("/proc/self/exe");
        command.arg(AGENT_COMMAND);
        match &self.account {
            Some(a) => command.args([a.uid.to_string(), a.gid.to_string(), a.name.clone()]),
            None => command.args(["", "", ""]),
        };
        command.arg(&self.program).args(&self.arguments);
        self.surroundings(&mut command);
        command
    }

    fn surroundings(&self, command: &mut Command) {
        for (name, value) in &self.environment {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        command.current_dir(&self.folder);
    }
}

/// Starts the agent. What it leaves behind when its own processes end stays below this process while it lives.
pub fn start(what: &Start, signals: Signals) -> io::Result<Agent> {
    prctl::set_child_subreaper(true)?;
    // no `Child`: it is waited for by its number, with its stops
    let pid = what.command().spawn()?.id() as i32;
    signals.agent.store(pid, Ordering::SeqCst);
    Ok(Agent { pid, signals })
}

impl Agent {
    /// Its process and this one, for the record of agents.
    pub fn records(&self, agent: &str) -> Vec<Recorded> {
        let record = |pid: i32| {
            let (_, start) = Proc.parent(pid)?;
            Some(Recorded {
                pid,
                start,
                agent: agent.to_owned(),
            })
        };
        [self.pid, std::process::id() as i32]
            .into_iter()
            .filter_map(record)
            .collect()
    }

    /// Waits for its end. When the user stops it at the terminal, this process stops too, so that the shell is back.
    pub fn wait(self) -> io::Result<Ended> {
        let pid = Pid::from_raw(self.pid);
        let ended = loop {
            match waitpid(pid, Some(WaitPidFlag::WUNTRACED)) {
                Ok(WaitStatus::Exited(_, code)) => break Ended::Code(code),
                Ok(WaitStatus::Signaled(_, signal, _)) => break Ended::Signal(signal as i32),
                // SIGSTOP is what a checkpoint stops writers with: they go on by themselves
                Ok(WaitStatus::Stopped(_, Signal::SIGTSTP | Signal::SIGTTIN | Signal::SIGTTOU)) => {
                    raise(Signal::SIGSTOP)?;
                    kill(pid, Signal::SIGCONT)?;
                }
                Ok(_) | Err(nix::errno::Errno::EINTR) => {}
                Err(e) => return Err(e.into()),
            }
        };
        self.signals.agent.store(0, Ordering::SeqCst);
        Ok(ended)
    }
}

/// The hidden command: becomes the user, then the agent. Comes back only with an error. Arguments: uid, gid, name
/// (all empty = stay who you are), the program's file, its arguments with its name first.
pub fn become_agent(arguments: &[OsString]) -> io::Error {
    match prepare(arguments) {
        Ok(mut command) => command.exec(),
        Err(e) => e,
    }
}

fn prepare(arguments: &[OsString]) -> io::Result<Command> {
    let [uid, gid, name, program, called, rest @ ..] = arguments else {
        return Err(io::Error::other("it lacks arguments"));
    };
    if !uid.is_empty() {
        become_user(number(uid)?, number(gid)?, name)?;
    }
    // a mask is inherited
    sigprocmask(SigmaskHow::SIG_SETMASK, Some(&SigSet::empty()), None)?;
    let mut command = Command::new(program);
    command.arg0(called).args(rest);
    Ok(command)
}

fn number(text: &OsStr) -> io::Result<u32> {
    let parsed = text.to_str().and_then(|t| t.parse().ok());
    parsed.ok_or_else(|| io::Error::other("it is no number"))
}

fn become_user(uid: u32, gid: u32, name: &OsStr) -> io::Result<()> {
    let name = CString::new(name.as_encoded_bytes())?;
    let (uid, gid) = (Uid::from_raw(uid), Gid::from_raw(gid));
    initgroups(&name, gid)?;
    setgid(gid)?;
    setuid(uid)?;
    // real, effective and saved: there is no way back
    if Uid::current() == uid
        && Uid::effective() == uid
        && (uid.is_root() || setuid(Uid::from_raw(0)).is_err())
    {
        return Ok(());
    }
    Err(io::Error::other("the user could not be changed"))
}

/// The file of a program: a path as it is, a name by looking in these folders.
pub fn find_program(name: &OsStr, folders: &[PathBuf], from: &Path) -> Option<PathBuf> {
    let runs =
        |path: &PathBuf| path.is_file() && rustix::fs::access(path, rustix::fs::Access::EXEC_OK).is_ok();
    if name.as_encoded_bytes().contains(&b'/') {
        return Some(from.join(name)).filter(runs);
    }
    folders.iter().map(|f| from.join(f).join(name)).find(runs)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_found_by_name_or_by_path() {
        let dir = tempfile::tempdir().expect("a folder");
        let from = dir.path();
        std::fs::create_dir(from.join("bin")).expect("mkdir");
        let program = from.join("bin/tool");
        std::fs::write(&program, "#!/bin/sh\n").expect("write");
        let folders = [PathBuf::from("none"), from.join("bin")];
        assert_eq!(
            find_program(OsStr::new("tool"), &folders, from),
            None,
            "not executable"
        );
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(&program, mode).expect("chmod");
        for name in ["tool", "bin/tool"] {
            let found = find_program(OsStr::new(name), &folders, from);
            assert_eq!(found.as_ref(), Some(&program), "{name}");
        }
        assert_eq!(
            find_program(OsStr::new("bin"), &[from.to_owned()], from),
            None,
            "a folder"
        );
    }

    #[test]
    fn the_exit_code_of_a_signal_is_a_shells() {
        assert_eq!((Ended::Code(3).code(), Ended::Signal(15).code()), (3, 143));
    }
}
