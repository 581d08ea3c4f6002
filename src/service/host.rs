//! The service of another machine, through ssh: `ssh -- HOST respool service --stdio`. How to get there (user, port,
//! keys, jumps) is the business of the user's ssh configuration.

use std::ffi::OsStr;
use std::io::{self, Read};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::client::Client;
use super::{Result, ServiceError};
use crate::text::{is_unsafe_char, shell_word, shown, shown_bytes};

/// The longest line of the other end's that is passed on, in bytes.
const LINE: usize = 2000;
/// The most lines that are kept while none may be passed on.
const KEPT: usize = 100;
/// How long ssh may take to end once its line has.
const LAST: Duration = Duration::from_secs(5);

/// What the other end says on its standard error, and ssh itself.
#[derive(Clone)]
pub struct Talk(Arc<Mutex<Held>>);

struct Held {
    held: bool,
    lines: Vec<String>,
    say: fn(&str),
}

impl Talk {
    /// `say` gets each line, without any unsafe character.
    pub fn new(say: fn(&str)) -> Self {
        Self(Arc::new(Mutex::new(Held {
            held: false,
            lines: Vec::new(),
            say,
        })))
    }

    fn pass(&self, line: &[u8]) {
        let line = shown_bytes(line.strip_suffix(b"\r").unwrap_or(line));
        let mut it = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if !it.held {
            (it.say)(&line);
        } else if it.lines.len() < KEPT {
            it.lines.push(line);
        }
    }

    /// While it is held, lines are kept: the terminal is in other hands. Those kept are said when it is let go.
    pub fn hold(&self, held: bool) {
        let mut it = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        it.held = held;
        if !held {
            let lines = std::mem::take(&mut it.lines);
            for line in &lines {
                (it.say)(line);
            }
        }
    }
}

/// Connects to the service of this host. `state_dir`: a state folder there.
pub fn connect(host: &OsStr, state_dir: Option<&Path>, talk: &Talk) -> Result<Client> {
    let name = named(host)?;
    let mut child = start(host).map_err(|e| not_started(&e))?;
    let (Some(to), Some(from), Some(said)) = (child.stdin.take(), child.stdout.take(), child.stderr.take())
    else {
        return Err(ServiceError::Line("ssh has no pipes".into()));
    };
    let talk = talk.clone();
    let listening = std::thread::Builder::new()
        .name("ssh".into())
        .spawn(move || listen(said, &talk))
        .map_err(|e| ServiceError::Line(e.to_string()))?;
    match Client::over(from, to, state_dir, true) {
        Ok(client) => Ok(client),
        Err(e) => {
            // as it can be pasted after ssh
            let word = shell_word(Path::new(host));
            let name = if name.starts_with('-') {
                format!("-- {word}")
            } else {
                word
            };
            // its pipes are closed: it ends
            let code = ended(&mut child);
            if code.is_some() {
                // what it said comes before what we make of it
                drop(listening.join());
            }
            Err(explained(e, code, &name))
        }
    }
}

/// The host as it is shown, if it can be one.
fn named(host: &OsStr) -> Result<String> {
    let wrong = |why: &str| ServiceError::Host {
        what: format!("--host: {why}"),
        hint: "name it as for ssh: HOST or USER@HOST".into(),
        usage: true,
    };
    let name = host.to_str().ok_or_else(|| wrong("it is not text"))?;
    if name.is_empty() {
        return Err(wrong("it is empty"));
    }
    if name.chars().any(|c| is_unsafe_char(c) || c.is_whitespace()) {
        return Err(wrong("no host has such a name"));
    }
    Ok(shown(name))
}

fn start(host: &OsStr) -> io::Result<Child> {
    Command::new("ssh")
        .args([OsStr::new("--"), host])
        // words without any character that the shell there could take for something else
        .args(["respool", "service", "--stdio"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
}

/// Passes on line by line; a very long one is cut.
fn listen(mut from: impl Read, talk: &Talk) {
    let (mut line, mut buffer) = (Vec::new(), [0; 4096]);
    while let Ok(n @ 1..) = from.read(&mut buffer) {
        for byte in &buffer[..n] {
            match byte {
                b'\n' => talk.pass(&std::mem::take(&mut line)),
                _ if line.len() < LINE => line.push(*byte),
                _ => {}
            }
        }
    }
    if !line.is_empty() {
        talk.pass(&line);
    }
}

/// The exit code of ssh, if it ends soon; one that does not is ended.
fn ended(child: &mut Child) -> Option<i32> {
    let until = Instant::now() + LAST;
    while Instant::now() < until {
        if let Ok(Some(status)) = child.try_wait() {
            return status.code();
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    // it may have ended just now
    drop(child.kill());
    drop(child.wait());
    None
}

fn not_started(e: &io::Error) -> ServiceError {
    ServiceError::Host {
        what: format!("ssh cannot be started: {e}"),
        hint: "install it: sudo apt-get install openssh-client".into(),
        usage: false,
    }
}

/// What a line that did not come about means.
fn explained(e: ServiceError, code: Option<i32>, host: &str) -> ServiceError {
    let of = |what: String, hint: String| ServiceError::Host {
        what,
        hint,
        usage: false,
    };
    match code {
        // as shells say it
        Some(126 | 127) => of(
            format!("there is no respool on {host}"),
            format!("install respool there, in the PATH of: ssh {host} command -v respool"),
        ),
        // ssh(1)
        Some(255) => of(
            format!("ssh does not get to {host}"),
            format!("try: ssh {host} true"),
        ),
        Some(2) => of(
            format!("the respool on {host} knows no service --stdio"),
            format!("it may be older than this one: ssh {host} respool --version"),
        ),
        Some(n @ 1..) => of(
            format!("respool on {host} ended with exit code {n}"),
            format!("try: ssh {host} respool sandboxes"),
        ),
        _ => of(
            format!("no respool answers on {host}: {e}"),
            format!(
                "what a login there prints must not go to its standard output; try: ssh {host} respool --version"
            ),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_host_is_refused() {
        use std::os::unix::ffi::OsStrExt;
        for bad in [
            &b""[..],
            b"a\x1b[2J",
            b"a b",
            b"a\nb",
            b"\xff",
            "a\u{202e}b".as_bytes(),
        ] {
            let e = named(OsStr::from_bytes(bad)).expect_err("refused");
            assert!(matches!(e, ServiceError::Host { usage: true, .. }), "{bad:?}");
        }
        assert_eq!(
            named(OsStr::new("-oProxyCommand=x")).expect("a name"),
            "-oProxyCommand=x"
        );
    }

    #[test]
    fn lines_are_passed_on_harmless_and_kept_while_held() {
        static SAID: Mutex<Vec<String>> = Mutex::new(Vec::new());
        let talk = Talk::new(|line| SAID.lock().expect("said").push(line.to_owned()));
        talk.hold(true);
        listen(&b"one\x1b[2J\r\ntwo"[..], &talk);
        assert!(SAID.lock().expect("said").is_empty());
        talk.hold(false);
        listen(vec![b'x'; 10_000].as_slice(), &talk);
        let said = SAID.lock().expect("said").clone();
        assert_eq!(said[..2], ["one^[[2J", "two"]);
        assert_eq!(said[2].len(), LINE);
    }
}
