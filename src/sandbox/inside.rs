//! Is a process inside an agent's process tree? A rewind that the agent itself starts is refused. An agent is
//! known by what was recorded of it (by `respool run` and by the hook), by the name of its program, or by what it
//! sets in the environment of its commands.
//!
//! The names of programs and markers: Claude Code 2.1, Codex 0.171, Gemini CLI, opencode 1.18, Cursor's agent
//! and OpenHands 1.16 / SDK 1.58, as seen in their processes or in their sources.

use std::ffi::{OsStr, OsString};
use std::io::{self, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::remote::Ask;
use super::site::Site;
use crate::engine::EngineError;
use crate::failure::{Explain, Kind};
use crate::process;
use crate::text::shown;

/// Set by `respool run` for the agent that it starts; its value is the agent's name.
pub const RUN_MARKER: &str = "RESPOOL_RUN";
/// Where the processes of agents are recorded, in the sandbox's folder.
const FILE: &str = "agents.jsonl";
/// A longer record is cleaned of processes that have ended.
const LONG: usize = 64;
/// So many ancestors are looked at.
const DEPTH: usize = 256;

/// The programs that are agents, by base name.
pub const PROGRAMS: &[&str] = &[
    "openhands",
    "claude",
    "codex",
    "gemini",
    "opencode",
    "copilot",
    "aider",
    "goose",
    "cursor-agent",
];
const SHELLS: &[&str] = &["sh", "bash", "dash", "zsh", "ksh", "fish", "busybox", "ash"];
const INTERPRETERS: &[&str] = &["python", "pypy", "node", "nodejs", "bun", "deno", "uv", "ruby"];
/// Variables that agents set for the commands that they run, and whose each is.
const MARKERS: &[(&str, &str)] = &[
    ("CLAUDECODE", "claude"),
    ("CODEX_SANDBOX", "codex"),
    ("CODEX_SANDBOX_NETWORK_DISABLED", "codex"),
    ("GEMINI_CLI", "gemini"),
    ("OPENCODE", "opencode"),
    ("CURSOR_AGENT", "cursor-agent"),
    ("OPENHANDS_SESSION_ID", "openhands"),
    ("OPENHANDS_EVENT_TYPE", "openhands"),
];
/// Programs that keep all terminals of a user, or start everything: none is an agent. A hook of an agent that has
/// ended becomes the child of such a one.
const KEEPERS: &[&str] = &[
    "systemd",
    "init",
    "tmux",
    "tmux:",
    "screen",
    "SCREEN",
    "sshd",
    "sshd:",
    "login",
    "sudo",
    "su",
    "xterm",
    "gnome-terminal-server",
    "konsole",
    "dbus-daemon",
];
/// What OpenHands and Claude Code set for their hooks.
const HOOK_MARKERS: [&str; 2] = ["OPENHANDS_EVENT_TYPE", "CLAUDE_PROJECT_DIR"];

/// What is asked of the processes of this machine; tests have a table of their own.
pub trait Processes {
    /// Parent and start time (clock ticks since boot); `None` if there is no such process.
    fn parent(&self, pid: i32) -> Option<(i32, u64)>;
    /// Its arguments.
    fn arguments(&self, pid: i32) -> Vec<OsString>;
    /// The environment that it was started with: `NAME=value`. Empty where it may not be read.
    fn environment(&self, pid: i32) -> Vec<OsString>;
}

/// The processes of this machine.
#[derive(Debug, Clone, Copy)]
pub struct Proc;

fn list(pid: i32, what: &str) -> Vec<OsString> {
    // gone, or another user's
    let bytes = std::fs::read(format!("/proc/{pid}/{what}")).unwrap_or_default();
    let parts = bytes.split(|b| *b == 0).map(|p| OsString::from_vec(p.to_vec()));
    let mut parts: Vec<OsString> = parts.collect();
    if parts.last().is_some_and(|l| l.is_empty()) {
        parts.pop();
    }
    parts
}

impl Processes for Proc {
    fn parent(&self, pid: i32) -> Option<(i32, u64)> {
        process::stat(pid).map(|s| (s.ppid, s.start))
    }
    fn arguments(&self, pid: i32) -> Vec<OsString> {
        list(pid, "cmdline")
    }
    fn environment(&self, pid: i32) -> Vec<OsString> {
        list(pid, "environ")
    }
}

/// The process of an agent, as recorded.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Recorded {
    /// The process.
    pub pid: i32,
    /// Its start time in clock ticks since boot: with the pid, names one process until the next boot.
    pub start: u64,
    /// The agent's name (hostile).
    pub agent: String,
}

/// This was started by an agent.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("this was started by the agent ({}, process {pid})", shown(agent))]
pub struct InsideAgent {
    /// The agent (hostile).
    pub agent: String,
    /// Its process, or the one that carries its mark.
    pub pid: i32,
}

impl Explain for InsideAgent {
    fn kind(&self) -> Kind {
        Kind::Refused
    }
    fn hint(&self) -> Option<String> {
        Some("run it in a terminal of your own".into())
    }
}

/// The agent in whose process tree `pid` is. `recorded`: see [`recorded`].
pub fn agent_above(pid: i32, table: &dyn Processes, recorded: &[Recorded]) -> Option<InsideAgent> {
    let mut marked = None;
    for (pid, start) in ancestors(pid, table) {
        let known = recorded.iter().find(|r| (r.pid, r.start) == (pid, start));
        let named = known
            .map(|r| r.agent.clone())
            .or_else(|| program(&table.arguments(pid)).map(ToOwned::to_owned));
        if let Some(agent) = named {
            return Some(InsideAgent { agent, pid });
        }
        // the agent itself says more than a command that it started
        if marked.is_none() {
            marked = marker(&table.environment(pid)).map(|agent| InsideAgent { agent, pid });
        }
    }
    marked
}

/// Refuses what a process inside an agent's tree asks for, about this sandbox. What was recorded of one behind
/// the service is looked at there.
pub fn refuse_inside(pid: i32, site: &Site) -> Result<(), InsideAgent> {
    let recorded = site.dir().map(recorded).unwrap_or_default();
    agent_above(pid, &Proc, &recorded).map_or(Ok(()), Err)
}

/// The process and its ancestors, each with its start time.
fn ancestors(pid: i32, table: &dyn Processes) -> Vec<(i32, u64)> {
    let mut out: Vec<(i32, u64)> = Vec::new();
    let mut next = pid;
    while out.len() < DEPTH && next > 0 && !out.iter().any(|(p, _)| *p == next) {
        let Some((parent, start)) = table.parent(next) else {
            break;
        };
        out.push((next, start));
        next = parent;
    }
    out
}

fn base(argument: &OsStr) -> &[u8] {
    let bytes = argument.as_bytes();
    let name = bytes.rsplit(|b| *b == b'/').next().unwrap_or(bytes);
    // a login shell
    name.strip_prefix(b"-").unwrap_or(name)
}

fn is_shell(name: &[u8]) -> bool {
    SHELLS.iter().any(|s| s.as_bytes() == name)
}

fn interprets(name: &[u8]) -> bool {
    // python3.12, node22
    let end = name.iter().position(u8::is_ascii_digit).unwrap_or(name.len());
    is_shell(name) || INTERPRETERS.iter().any(|i| i.as_bytes() == &name[..end])
}

/// The agent that a program with these arguments is, if it is one.
fn program(arguments: &[OsString]) -> Option<&'static str> {
    let first = base(arguments.first()?);
    // a program may write its title there: "claude --resume"
    let first = first.split(|b| *b == b' ').next().unwrap_or(first);
    if let Some(agent) = agent_named(first) {
        return Some(agent);
    }
    if !interprets(first) {
        return None;
    }
    let mut rest = arguments[1..].iter();
    while let Some(argument) = rest.next() {
        match argument.as_bytes() {
            // python -m openhands.core.main
            b"-m" if !is_shell(first) => {
                let module = rest.next()?.as_bytes().split(|b| *b == b'.').next()?;
                return agent_named(module);
            }
            // the next one is a text of commands
            b"-c" | b"-e" | b"--eval" => return None,
            [b'-', ..] => {}
            // `uv run openhands`
            b"run" if first == b"uv" => {}
            _ => return agent_named(base(argument)),
        }
    }
    None
}

fn agent_named(name: &[u8]) -> Option<&'static str> {
    let stem = [&b".py"[..], b".js", b".mjs", b".cjs"]
        .iter()
        .find_map(|end| name.strip_suffix(*end))
        .unwrap_or(name);
    PROGRAMS.iter().copied().find(|p| p.as_bytes() == stem)
}

/// Whose mark this environment carries.
fn marker(environment: &[OsString]) -> Option<String> {
    environment.iter().find_map(|entry| {
        let bytes = entry.as_bytes();
        let at = bytes.iter().position(|b| *b == b'=')?;
        let (name, value) = (&bytes[..at], &bytes[at + 1..]);
        if value.is_empty() {
            return None;
        }
        if name == RUN_MARKER.as_bytes() {
            return Some(String::from_utf8_lossy(value).into_owned());
        }
        let known = MARKERS.iter().find(|(n, _)| n.as_bytes() == name);
        known.map(|(_, agent)| (*agent).to_owned())
    })
}

/// The agent that called a hook in the process `pid`: the nearest ancestor that is no shell; `None` where that is
/// the first process of all.
pub fn caller_of(pid: i32, table: &dyn Processes) -> Option<Recorded> {
    let above = ancestors(pid, table).into_iter().skip(1);
    let (pid, start, arguments) = above
        .map(|(pid, start)| (pid, start, table.arguments(pid)))
        .find(|(_, _, a)| program(a).is_some() || a.first().is_none_or(|first| !is_shell(base(first))))?;
    // some write more than their name there: "sshd: dev@pts/0"
    let title = arguments.first().map(|a| a.as_bytes()).unwrap_or_default();
    let title = title.split(|b| *b == b' ').next().unwrap_or(title);
    let title = base(OsStr::from_bytes(title));
    if KEEPERS.iter().any(|k| k.as_bytes() == title) {
        return None;
    }
    let name = || {
        let first = arguments.first().map(|a| base(a).to_vec()).unwrap_or_default();
        String::from_utf8_lossy(&first).into_owned()
    };
    let agent = program(&arguments).map_or_else(name, ToOwned::to_owned);
    (pid > 1).then_some(Recorded { pid, start, agent })
}

/// Records the agent that called the hook in the process `pid`. Only a call with the environment that agents give
/// to their hooks counts: a person or a script may call the hook too.
pub fn remember_caller(pid: i32, dir: &Path) -> io::Result<()> {
    let marked = |entry: &OsString| {
        let value = |marker: &&str| entry.as_bytes().strip_prefix(marker.as_bytes());
        let mut values = HOOK_MARKERS.iter().filter_map(value);
        values.any(|v| v.len() > 1 && v[0] == b'=')
    };
    if !Proc.environment(pid).iter().any(marked) {
        return Ok(());
    }
    match caller_of(pid, &Proc) {
        Some(caller) => remember(dir, &caller),
        None => Ok(()),
    }
}

/// Records the process of an agent, in the sandbox's folder or by the service.
pub fn remember_agent(site: &Site, agent: &Recorded) -> crate::engine::Result<()> {
    match site.remote() {
        Some(remote) => remote.get(Ask::Agent(agent.clone())),
        None => {
            let dir = site.dir()?;
            remember(dir, agent).map_err(EngineError::io("record the agent in", dir))
        }
    }
}

/// The agents that were recorded in a sandbox's folder. A line that cannot be read is left out.
pub fn recorded(dir: &Path) -> Vec<Recorded> {
    let text = crate::paths::read_file(&dir.join(FILE)).unwrap_or_default();
    text.split(|b| *b == b'\n')
        .filter_map(|line| serde_json::from_slice(line).ok())
        .collect()
}

/// Records the process of an agent in a sandbox's folder, which must be out of the agent's reach.
pub fn remember(dir: &Path, agent: &Recorded) -> io::Result<()> {
    let mut known = recorded(dir);
    if known.contains(agent) {
        return Ok(());
    }
    let path = dir.join(FILE);
    let mut options = std::fs::OpenOptions::new();
    if known.len() < LONG {
        let mut file = options.create(true).append(true).open(path)?;
        let line = format!("{}\n", serde_json::to_string(agent)?);
        return file.write_all(line.as_bytes());
    }
    known.retain(|r| process::alive(r.pid, r.start));
    known.push(agent.clone());
    let temp = dir.join(format!("{FILE}.{}", std::process::id()));
    let mut text = Vec::new();
    for r in &known {
        serde_json::to_writer(&mut text, r)?;
        text.push(b'\n');
    }
    std::fs::write(&temp, text)?;
    std::fs::rename(temp, path)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[derive(Default)]
    struct Table(BTreeMap<i32, (i32, Vec<OsString>, Vec<OsString>)>);

    impl Table {
        fn with(mut self, pid: i32, parent: i32, arguments: &str, environment: &str) -> Self {
            let words = |s: &str| s.split('|').map(OsString::from).collect();
            self.0.insert(pid, (parent, words(arguments), words(environment)));
            self
        }
        /// A terminal with a shell in it.
        fn new() -> Self {
            Self::default()
                .with(1, 0, "/sbin/init", "")
                .with(10, 1, "xterm", "HOME=/h")
                .with(11, 10, "-bash", "HOME=/h")
        }
        fn asks(&self, pid: i32) -> Option<(String, i32)> {
            agent_above(pid, self, &[]).map(|i| (i.agent, i.pid))
        }
    }

    impl Processes for Table {
        fn parent(&self, pid: i32) -> Option<(i32, u64)> {
            self.0.get(&pid).map(|(parent, ..)| (*parent, pid as u64 * 100))
        }
        fn arguments(&self, pid: i32) -> Vec<OsString> {
            self.0.get(&pid).map(|(_, a, _)| a.clone()).unwrap_or_default()
        }
        fn environment(&self, pid: i32) -> Vec<OsString> {
            self.0.get(&pid).map(|(.., e)| e.clone()).unwrap_or_default()
        }
    }

    #[test]
    fn a_terminal_of_ones_own_is_no_agent() {
        let table = Table::new()
            .with(12, 11, "sudo|respool|rewind|m3", "HOME=/h")
            .with(
                13,
                12,
                "respool|rewind|m3",
                "HOME=/h|CLAUDECODE=|NOT_CLAUDECODE=1",
            );
        assert_eq!(table.asks(13), None);
        // the name alone, or a text that names it, is not the program
        for words in [
            "vim|/home/dev/openhands",
            "bash|-c|openhands",
            "python3|-c|openhands",
            "/opt/openhands/bin/server",
            "my-openhands",
            "tail|-f|claude",
            "python3|manage.py|openhands",
        ] {
            let table = Table::new().with(12, 11, words, "").with(13, 12, "respool", "");
            assert_eq!(table.asks(13), None, "{words}");
        }
        assert_eq!(table.asks(999), None, "a process that is gone");
    }

    #[test]
    fn an_agents_program_is_known_by_its_name() {
        for (words, agent) in [
            ("/home/dev/.local/bin/openhands", "openhands"),
            (
                "/usr/bin/python3.12|-u|/home/dev/.local/bin/openhands|--headless",
                "openhands",
            ),
            ("python|-m|openhands.core.main|-n|x", "openhands"),
            ("uv|run|openhands", "openhands"),
            ("/bin/sh|/tmp/openhands", "openhands"),
            ("claude", "claude"),
            ("claude --resume", "claude"),
            (
                "node|--no-warnings|/usr/lib/node_modules/@openai/codex/bin/codex.js",
                "codex",
            ),
            ("node|/usr/bin/gemini", "gemini"),
            ("/home/dev/.local/bin/cursor-agent", "cursor-agent"),
        ] {
            let table = Table::new()
                .with(12, 11, words, "")
                .with(13, 12, "bash|-c|respool rewind", "")
                .with(14, 13, "respool|rewind", "");
            assert_eq!(table.asks(14), Some((agent.to_owned(), 12)), "{words}");
        }
    }

    #[test]
    fn an_agents_mark_is_enough_and_the_agent_itself_says_more() {
        let table = Table::new()
            .with(12, 11, "some-wrapper", "")
            .with(13, 12, "bash", "PATH=/bin|CLAUDECODE=1")
            .with(14, 13, "env|-i|respool", "");
        assert_eq!(table.asks(14), Some(("claude".into(), 13)));
        let table = table.with(12, 11, "claude", "");
        assert_eq!(table.asks(14), Some(("claude".into(), 12)));
        let run = Table::new().with(12, 1, "bash", "RESPOOL_RUN=my\u{1b}agent");
        let inside = agent_above(12, &run, &[]).expect("inside");
        assert_eq!(
            inside.to_string(),
            "this was started by the agent (my^[agent, process 12)"
        );
    }

    #[test]
    fn a_recorded_process_counts_until_its_number_is_used_again() {
        let table = Table::new()
            .with(12, 11, "python|my_sdk_script.py", "")
            .with(13, 12, "respool|undo", "");
        let mut record = Recorded {
            pid: 12,
            start: 1200,
            agent: "mine".into(),
        };
        let inside = agent_above(13, &table, std::slice::from_ref(&record)).expect("inside");
        assert_eq!((inside.agent.as_str(), inside.pid), ("mine", 12));
        record.start = 1199;
        assert_eq!(agent_above(13, &table, &[record]), None);
    }

    #[test]
    fn the_caller_of_a_hook_is_the_nearest_that_is_no_shell() {
        let table = Table::new()
            .with(12, 11, "python|my_sdk_script.py", "")
            .with(13, 12, "/bin/sh|-c|respool hook openhands", "")
            .with(14, 13, "respool|hook|openhands", "");
        let caller = caller_of(14, &table).expect("a caller");
        assert_eq!(
            (caller.pid, caller.start, caller.agent.as_str()),
            (12, 1200, "python")
        );
        let orphan = Table::new()
            .with(13, 1, "/bin/sh|-c|respool hook openhands", "")
            .with(14, 13, "respool|hook|openhands", "");
        assert_eq!(caller_of(14, &orphan), None, "never the first process of all");
        for keeper in [
            "tmux: server",
            "sshd: dev@pts/0",
            "/usr/lib/systemd/systemd|--user",
            "tmux|new",
        ] {
            let adopted = Table::new()
                .with(12, 1, keeper, "")
                .with(13, 12, "/bin/sh|-c|respool hook openhands", "")
                .with(14, 13, "respool|hook|openhands", "");
            assert_eq!(caller_of(14, &adopted), None, "{keeper}");
        }
    }

    #[test]
    fn records_are_kept_once_and_cleaned() {
        let dir = tempfile::tempdir().expect("a folder");
        let own = process::stat(std::process::id() as i32).expect("own");
        let own = Recorded {
            pid: own.pid,
            start: own.start,
            agent: "own".into(),
        };
        for _ in 0..2 {
            remember(dir.path(), &own).expect("remembered");
        }
        assert_eq!(recorded(dir.path()), std::slice::from_ref(&own));
        let dead = |start| Recorded {
            pid: own.pid,
            start,
            agent: "dead".into(),
        };
        for start in 1..=LONG as u64 {
            remember(dir.path(), &dead(start)).expect("remembered");
        }
        assert_eq!(recorded(dir.path()), [own.clone(), dead(LONG as u64)]);
        std::fs::write(dir.path().join(FILE), b"{\nnot json\n").expect("damage");
        assert_eq!(recorded(dir.path()), []);
    }
}
