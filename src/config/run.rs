//! How the user's own commands (`[hooks]`) are run: word by word, without a shell, as the user that respool
//! works for. Their config file can be written by that user's programs: as root, they never run on behalf of
//! another's file.

use std::ffi::{OsStr, OsString};
use std::io::{self, Read, Seek};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::{Gid, Pid, Uid, User, initgroups, setgid, setgroups, setuid};

use super::{Config, ConfigFile};
use crate::paths::Who;
use crate::text::shown;

/// The hidden command that becomes the user and starts what is named after it.
pub const AS_COMMAND: &str = "__as";

/// How much of a command's output is looked at.
const OUTPUT: u64 = 64 << 10;

/// Variables that a command of another user's keeps from respool's surroundings.
const KEPT: [&str; 8] = [
    "PATH",
    "LANG",
    "LC_ALL",
    "LC_CTYPE",
    "TERM",
    "TZ",
    "RESPOOL_LOG",
    "NO_COLOR",
];

/// The user's commands, and as whom they run.
#[derive(Debug, Clone)]
pub struct UserHooks {
    /// Before a checkpoint; empty if there is none.
    pub pre_checkpoint: Vec<String>,
    /// After a rewind; empty if there is none.
    pub post_rewind: Vec<String>,
    who: Who,
    file: Option<ConfigFile>,
}

impl UserHooks {
    /// Those of a config that was read for `who`.
    pub fn of(config: &Config, who: &Who) -> Self {
        Self {
            pre_checkpoint: config.hooks.pre_checkpoint.clone(),
            post_rewind: config.hooks.post_rewind.clone(),
            who: who.clone(),
            file: config.file.clone(),
        }
    }

    /// Runs one of them in `folder` with these variables, for so long at most. The error is one line.
    pub fn run(
        &self,
        words: &[String],
        folder: &Path,
        variables: &[(&str, &OsStr)],
        limit: Duration,
    ) -> Result<(), String> {
        if let Some(why) = self.untrusted(Uid::effective().is_root()) {
            return Err(why);
        }
        let failed = |e: io::Error| format!("cannot be started: {e}");
        let mut output = tempfile::tempfile().map_err(failed)?;
        let mut command = Command::new("/proc/self/exe");
        command
            .arg(AS_COMMAND)
            .arg(self.who.uid.to_string())
            .arg(self.who.gid.to_string())
            .args(words)
            .current_dir(folder)
            .stdin(Stdio::null())
            .stdout(output.try_clone().map_err(failed)?)
            .stderr(output.try_clone().map_err(failed)?);
        self.surround(&mut command);
        command.envs(variables.iter().copied());
        let child = command.spawn().map_err(failed)?;
        let status = wait(child, limit).map_err(failed)?;
        match status {
            Some(status) if status.success() => Ok(()),
            Some(status) => Err(format!(
                "ended with {}{}",
                words_of(status),
                last_line(&mut output)
            )),
            None => Err(format!(
                "took more than {} seconds and was ended",
                limit.as_secs()
            )),
        }
    }

    /// Why the commands of this file are not run by this process.
    fn untrusted(&self, root: bool) -> Option<String> {
        let file = self.file.as_ref()?;
        let why = if root && file.uid != 0 && file.uid != self.who.uid {
            "belongs to another user"
        } else if root && file.shared {
            "can be written by others than its owner"
        } else {
            return None;
        };
        Some(format!(
            "is not run: {} {why}",
            crate::text::shown_path(&file.path)
        ))
    }

    /// Under sudo the surroundings are root's: next to nothing of them is passed on.
    fn surround(&self, command: &mut Command) {
        if !self.who.sudo {
            return;
        }
        command.env_clear();
        for name in KEPT {
            if let Some(value) = std::env::var_os(name) {
                command.env(name, value);
            }
        }
        command.env("HOME", &self.who.home);
        if let Ok(Some(user)) = User::from_uid(Uid::from_raw(self.who.uid)) {
            command.env("USER", &user.name).env("LOGNAME", &user.name);
        }
    }
}

/// Waits for its end; None if it took too long: it and its process group were ended then.
fn wait(mut child: Child, limit: Duration) -> io::Result<Option<ExitStatus>> {
    let start = Instant::now();
    let mut pause = Duration::from_millis(1);
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        if start.elapsed() >= limit {
            break;
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(20));
    }
    let pid = Pid::from_raw(child.id() as i32);
    for target in [Pid::from_raw(-pid.as_raw()), pid] {
        // gone meanwhile, or another user's by now: nothing more can be done to it
        let _ended = kill(target, Signal::SIGKILL);
    }
    let until = Instant::now() + Duration::from_secs(1);
    while Instant::now() < until && child.try_wait()?.is_none() {
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(None)
}

fn words_of(status: ExitStatus) -> String {
    use std::os::unix::process::ExitStatusExt;
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exit code {code}"),
        (None, signal) => format!("signal {}", signal.unwrap_or_default()),
    }
}

/// The last line that it said, harmless.
fn last_line(output: &mut std::fs::File) -> String {
    let mut bytes = Vec::new();
    let len = output.metadata().map_or(0, |m| m.len());
    let read = output
        .seek(io::SeekFrom::Start(len.saturating_sub(OUTPUT)))
        .and_then(|_| output.take(OUTPUT).read_to_end(&mut bytes));
    let text = String::from_utf8_lossy(&bytes);
    let line = text.lines().rfind(|l| !l.trim().is_empty());
    match (read, line) {
        (Ok(_), Some(line)) => {
            let line: String = line.trim().chars().take(300).collect();
            format!(": {}", shown(&line))
        }
        _ => String::new(),
    }
}

/// The hidden command: `UID GID PROGRAM ARG...`. Becomes that user with all groups of theirs, leaves the
/// terminal, and turns into the program. Gives what went wrong.
pub fn become_and_run(words: &[OsString]) -> io::Error {
    match become_user(words) {
        Ok(()) => Command::new(&words[2]).args(&words[3..]).exec(),
        Err(e) => e,
    }
}

fn become_user(words: &[OsString]) -> io::Result<()> {
    let number = |i: usize| words.get(i).and_then(|w| w.to_str()?.parse::<u32>().ok());
    let (Some(uid), Some(gid), true) = (number(0), number(1), words.len() > 2) else {
        return Err(io::Error::from(io::ErrorKind::InvalidInput));
    };
    // no terminal of ours can be typed into from there
    rustix::process::setsid()?;
    if uid == Uid::effective().as_raw() {
        return Ok(());
    }
    let (uid, gid) = (Uid::from_raw(uid), Gid::from_raw(gid));
    match User::from_uid(uid)? {
        Some(user) => initgroups(&std::ffi::CString::new(user.name)?, gid)?,
        None => setgroups(&[gid])?,
    }
    setgid(gid)?;
    setuid(uid)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hooks(uid: u32, shared: bool) -> UserHooks {
        UserHooks {
            pre_checkpoint: Vec::new(),
            post_rewind: Vec::new(),
            who: Who {
                home: "/home/dev".into(),
                uid: 1000,
                gid: 1000,
                sudo: true,
            },
            file: Some(ConfigFile {
                path: "/c".into(),
                uid,
                shared,
                text: String::new(),
            }),
        }
    }

    #[test]
    fn as_root_nothing_of_a_third_users_file_is_run() {
        assert_eq!(hooks(1000, false).untrusted(true), None);
        assert_eq!(hooks(0, false).untrusted(true), None);
        let why = hooks(1001, false).untrusted(true).expect("another's");
        assert!(why.contains("another user"), "{why}");
        let why = hooks(1000, true).untrusted(true).expect("shared");
        assert!(why.contains("written by others"), "{why}");
        assert_eq!(hooks(1000, true).untrusted(false), None);
        let mut own = hooks(1000, false);
        own.who = Who {
            uid: 0,
            gid: 0,
            sudo: false,
            ..own.who
        };
        assert!(
            own.untrusted(true).is_some(),
            "root itself, with the config of a user"
        );
    }

    #[test]
    fn the_last_line_is_harmless() {
        use std::io::Write;
        let mut file = tempfile::tempfile().expect("file");
        file.write_all(b"one\n\x1b[2Jtwo\n\n").expect("write");
        let said = last_line(&mut file);
        assert!(said.ends_with("two") && !said.contains('\x1b'), "{said:?}");
    }

    #[test]
    fn nonsense_is_an_error() {
        for words in [&["0"][..], &["0", "0"], &["x", "0", "true"], &["-1", "0", "true"]] {
            let words: Vec<OsString> = words.iter().map(OsString::from).collect();
            assert!(become_user(&words).is_err(), "{words:?}");
        }
    }
}
