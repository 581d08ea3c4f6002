//! What other programs do for the screens: the user's editor, the agent's own command, a window of tmux; and the
//! clipboard of the terminal.

use std::ffi::{OsStr, OsString};
use std::io::{self, Write};
use std::path::Path;

use base64::Engine as _;

use super::backend::Failure;
use super::effect::Outside;
use super::terminal::Terminal;
use crate::failure::Kind;
use crate::sandbox::foreground::Start;
use crate::sandbox::starter::{Starter, editor};
use crate::text::{first_line, shown};

/// Does it. Programs that need the terminal have it meanwhile.
pub fn perform(what: &Outside, starter: &Starter, tmux: bool) -> Result<(), Failure> {
    match what {
        Outside::Editor(file) => edit(file, starter),
        Outside::Run(words, folder) => run(words, folder, starter),
        Outside::Window(words, folder) => window(words, folder, starter),
        Outside::Copy(line) => copy(&mut io::stdout(), line, tmux)
            .map_err(|e| Failure::new(Kind::Failed, format!("it cannot be copied: {e}"), None)),
    }
}

fn found(words: &[OsString], folder: &Path, starter: &Starter) -> Result<Start, Failure> {
    starter.of(words, folder).ok_or_else(|| {
        let name = words
            .first()
            .map_or_else(String::new, |w| w.to_string_lossy().into_owned());
        Failure::new(Kind::NotFound, format!("there is no program {name}"), None)
    })
}

fn cannot_run(words: &[OsString], e: &io::Error) -> Failure {
    let name = words
        .first()
        .map_or_else(String::new, |w| w.to_string_lossy().into_owned());
    Failure::new(Kind::Failed, format!("{name} cannot be run: {e}"), None)
}

fn edit(file: &Path, starter: &Starter) -> Result<(), Failure> {
    let mut words = editor(|name| std::env::var_os(name)).ok_or_else(|| {
        let hint = Some("for example EDITOR=vi".to_owned());
        Failure::new(Kind::Usage, "EDITOR cannot be understood", hint)
    })?;
    words.push(file.as_os_str().to_owned());
    let folder = file.parent().unwrap_or(Path::new("/"));
    let status = found(&words, folder, starter)?.direct().status();
    match status.map_err(|e| cannot_run(&words, &e))? {
        status if status.success() => Ok(()),
        _ => Err(Failure::new(
            Kind::Failed,
            "the editor failed: the text stays as it was",
            None,
        )),
    }
}

/// What is started through `sudo` is started by this process, which is root then.
fn run(words: &[OsString], folder: &Path, starter: &Starter) -> Result<(), Failure> {
    let (words, starter) = match words.split_first() {
        Some((first, rest)) if first == "sudo" && starter.account.is_some() => {
            let as_root = Starter {
                folders: starter.folders.clone(),
                ..Starter::default()
            };
            (rest, as_root)
        }
        _ => (words, starter.clone()),
    };
    let status = found(words, folder, &starter)?.direct().status();
    let status = status.map_err(|e| cannot_run(words, &e))?;
    if status.success() {
        return Ok(());
    }
    let how = status
        .code()
        .map_or_else(|| status.to_string(), |c| format!("exit code {c}"));
    // what it said would be gone with the screens back
    if status.code().is_some_and(|c| c != 130) {
        wait_for_enter(&how).map_err(|e| cannot_run(words, &e))?;
    }
    let hint = "the message is kept, and the conversation is as it was left".to_owned();
    Err(Failure::new(
        Kind::Failed,
        format!("the agent's command failed: {how}"),
        Some(hint),
    ))
}

fn wait_for_enter(how: &str) -> io::Result<()> {
    let mut out = io::stdout();
    write!(out, "\nrespool: it failed: {how}. Press Enter to go back. ")?;
    out.flush()?;
    Terminal::drop_input();
    io::stdin().read_line(&mut String::new()).map(|_| ())
}

fn window(words: &[OsString], folder: &Path, starter: &Starter) -> Result<(), Failure> {
    // tmux has a PATH of its own
    let program = found(words, folder, starter)?.program.into_os_string();
    let words: Vec<OsString> = std::iter::once(program)
        .chain(words.iter().skip(1).cloned())
        .collect();
    let all = in_window(&words);
    let output = found(&all, folder, starter)?.direct().output();
    let output = output.map_err(|e| cannot_run(&all, &e))?;
    if output.status.success() {
        return Ok(());
    }
    let said = first_line(&String::from_utf8_lossy(&output.stderr));
    Err(Failure::new(
        Kind::Failed,
        format!("tmux opens no window: {said}"),
        None,
    ))
}

/// The words that open a window in the folder in which they are said. With `-c` tmux would expand the folder's name as
/// a format (3.3, `spawn_pane`), in which `#(...)` is a command for a shell.
fn in_window(words: &[OsString]) -> Vec<OsString> {
    let mut all: Vec<OsString> = ["tmux", "new-window", "--"].map(OsString::from).to_vec();
    all.extend(words.iter().map(|w| one_word(w)));
    all
}

/// tmux takes a `;` at the end of a word for the end of a command (3.3, `cmd_parse_from_arguments`).
fn one_word(word: &OsStr) -> OsString {
    let mut out = word.to_owned();
    if let Some(rest) = word.as_encoded_bytes().strip_suffix(b";") {
        use std::os::unix::ffi::OsStringExt;
        out = OsString::from_vec([rest, b"\\;"].concat());
    }
    out
}

/// Puts a line into the clipboard by OSC 52, which works over ssh; through tmux once more, wrapped for the terminal
/// around it.
fn copy(out: &mut impl Write, line: &str, tmux: bool) -> io::Result<()> {
    // what is pasted into a shell is one harmless line
    let encoded = base64::engine::general_purpose::STANDARD.encode(shown(line));
    write!(out, "\x1b]52;c;{encoded}\x07")?;
    if tmux {
        write!(out, "\x1bPtmux;\x1b\x1b]52;c;{encoded}\x07\x1b\\")?;
    }
    out.flush()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_copied_as_base64() {
        let mut out = Vec::new();
        copy(&mut out, "echo 'hi'", false).expect("written");
        assert_eq!(out, b"\x1b]52;c;ZWNobyAnaGkn\x07");
        out.clear();
        copy(&mut out, "a", true).expect("written");
        assert_eq!(out, b"\x1b]52;c;YQ==\x07\x1bPtmux;\x1b\x1b]52;c;YQ==\x07\x1b\\");
    }

    /// A tmux of its own gets each word as it is: no shell sees it, and no `;` ends it.
    #[test]
    fn a_window_of_tmux_gets_the_words_as_they_are() {
        let dir = tempfile::tempdir().expect("tempdir");
        let socket = dir.path().join("tmux");
        let folder = dir
            .path()
            .join("it's; #(touch pwned) #{version} ##[x] 100%d here;");
        std::fs::create_dir(&folder).expect("folder");
        let tmux = |at: &Path, words: &[&OsStr]| {
            let mut c = std::process::Command::new("tmux");
            c.env_clear()
                .env("PATH", "/usr/bin:/bin")
                .env("HOME", dir.path())
                .env("LANG", "C.UTF-8");
            c.current_dir(at);
            c.arg("-S").arg(&socket).args(["-f", "/dev/null"]).args(words);
            c.output().expect("this test needs tmux: apt-get install tmux")
        };
        let started = tmux(
            dir.path(),
            &["new-session", "-d", "-s", "t", "sleep 60"].map(OsStr::new),
        );
        assert!(started.status.success(), "{started:?}");
        let got = dir.path().join("got");
        let script = dir.path().join("stub");
        std::fs::write(&script, "#!/bin/sh\nfile=$1; shift\nprintf '%s\\0' \"$PWD\" \"$@\" > \"$file.new\"\nmv \"$file.new\" \"$file\"\n")
            .expect("stub");
        let texts = ["a;", "b\\;", ";", "$(id) `id`; \"q\" 'q'\nline -x", "\\", "x;;"];
        let mut words: Vec<OsString> = ["/bin/sh".into(), script.into(), got.clone().into()].to_vec();
        words.extend(texts.map(OsString::from));
        let all = in_window(&words);
        let all: Vec<&OsStr> = all[1..].iter().map(OsString::as_os_str).collect();
        let opened = tmux(&folder, &all);
        assert!(opened.status.success(), "{opened:?}");
        let until = std::time::Instant::now() + std::time::Duration::from_secs(20);
        while !got.exists() && std::time::Instant::now() < until {
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        let text = std::fs::read_to_string(&got);
        tmux(dir.path(), &["kill-server"].map(OsStr::new));
        let text = text.expect("the window ran the stub");
        let words: Vec<&str> = text.split_terminator('\0').collect();
        assert_eq!(Path::new(words[0]), folder);
        assert_eq!(words[1..], texts);
        let beside: Vec<_> = folder.read_dir().expect("folder").collect();
        assert!(
            beside.is_empty() && !dir.path().join("pwned").exists(),
            "{beside:?}"
        );
    }
}
