//! The screens in a real terminal: what reaches it byte by byte, and how it is left.

use std::fmt::Write as _;
use std::io::{Read, Write};
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use portable_pty::{Child, CommandBuilder, MasterPty, PtySize, native_pty_system};

/// What is waited for must come within this time.
const LIMIT: Duration = Duration::from_secs(20);

/// The program that shows the screens on scripted data.
fn host() -> PathBuf {
    let test = std::env::current_exe().expect("this test's path");
    let profile = test
        .parent()
        .and_then(|p| p.parent())
        .expect("target/PROFILE/deps");
    let host = profile.join("examples/tui_host");
    // a runner that builds this test alone would leave an old one
    let mut build = std::process::Command::new(env!("CARGO"));
    build.args(["build", "--quiet", "--example", "tui_host"]);
    if profile.ends_with("release") {
        build.arg("--release");
    }
    let done = build
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .status()
        .expect("cargo runs");
    assert!(done.success() && host.exists(), "cannot build {}", host.display());
    host
}

type Bytes = Arc<(Mutex<Vec<u8>>, Condvar)>;

struct Pty {
    master: Box<dyn MasterPty + Send>,
    child: Box<dyn Child + Send + Sync>,
    keys: Box<dyn Write + Send>,
    bytes: Bytes,
    /// Columns and rows, and from which byte on.
    sizes: Vec<(usize, u16, u16)>,
}

impl Drop for Pty {
    fn drop(&mut self) {
        // the job's processes get a hangup when the terminal goes
        let _ended = self.child.kill();
        let _ended = self.child.wait();
    }
}

impl Pty {
    /// Runs a program in a terminal of its own.
    fn run(program: &str, args: &[&str], script: &str, size: (u16, u16)) -> Self {
        let (columns, rows) = size;
        let size = PtySize {
            rows,
            cols: columns,
            pixel_width: 0,
            pixel_height: 0,
        };
        let pair = native_pty_system().openpty(size).expect("a pseudo terminal");
        let mut command = CommandBuilder::new(program);
        command.args(args);
        command.cwd("/");
        command.env_clear();
        for (name, value) in [
            ("PATH", "/usr/bin:/bin"),
            ("HOME", "/home/ada"),
            ("TERM", "xterm-256color"),
            ("LANG", "C.UTF-8"),
            ("PS1", "prompt> "),
            ("RESPOOL_HOST", script),
        ] {
            command.env(name, value);
        }
        if script.contains("no_color") {
            command.env("NO_COLOR", "1");
        }
        let child = pair.slave.spawn_command(command).expect("started");
        drop(pair.slave);
        let mut reader = pair.master.try_clone_reader().expect("a reader");
        let bytes = Bytes::default();
        let sink = bytes.clone();
        std::thread::spawn(move || {
            let mut buffer = vec![0; 65536];
            while let Ok(n) = reader.read(&mut buffer) {
                if n == 0 {
                    break;
                }
                sink.0.lock().expect("bytes").extend_from_slice(&buffer[..n]);
                sink.1.notify_all();
            }
        });
        let keys = pair.master.take_writer().expect("a writer");
        Self {
            master: pair.master,
            child,
            keys,
            bytes,
            sizes: vec![(0, columns, rows)],
        }
    }
    fn resize(&mut self, columns: u16, rows: u16) {
        let size = PtySize {
            rows,
            cols: columns,
            pixel_width: 0,
            pixel_height: 0,
        };
        self.sizes.push((self.raw().len(), columns, rows));
        self.master.resize(size).expect("resized");
    }
    fn host(script: &str, size: (u16, u16)) -> Self {
        Self::run(&host().to_string_lossy(), &[], script, size)
    }
    fn raw(&self) -> Vec<u8> {
        self.bytes.0.lock().expect("bytes").clone()
    }
    /// The terminal as it is after everything that came.
    fn terminal(&self) -> vt100::Parser {
        // after a change of size everything is drawn anew
        let (from, columns, rows) = *self.sizes.last().expect("one size");
        let mut parser = vt100::Parser::new(rows, columns, 0);
        parser.process(&self.raw()[from..]);
        parser
    }
    fn text(&self) -> String {
        self.terminal().screen().contents()
    }
    fn until(&self, what: &str, wished: impl Fn(&Self) -> bool) {
        let end = Instant::now() + LIMIT;
        while !wished(self) {
            let left = end.checked_duration_since(Instant::now());
            let Some(left) = left else {
                panic!("never came: {what}\n{}", self.text())
            };
            let seen = self.bytes.0.lock().expect("bytes");
            let _more = self
                .bytes
                .1
                .wait_timeout(seen, left.min(Duration::from_millis(20)))
                .expect("bytes");
        }
    }
    fn wait(&self, text: &str) {
        self.until(text, |p| p.text().contains(text));
    }
    fn keys(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).expect("written");
        self.keys.flush().expect("written");
    }
    /// The first child of the shell that runs in the terminal.
    fn grandchild(&self) -> i32 {
        let shell = self.child.process_id().expect("a process");
        let list = format!("/proc/{shell}/task/{shell}/children");
        let text = std::fs::read_to_string(&list).expect("the kernel lists children");
        text.split_whitespace()
            .next()
            .and_then(|p| p.parse().ok())
            .expect("a child")
    }
}

fn kill(pid: i32, signal: i32) {
    let pid = rustix::process::Pid::from_raw(pid).expect("a pid");
    let signal = rustix::process::Signal::from_named_raw(signal).expect("a signal");
    rustix::process::kill_process(pid, signal).expect("sent");
}

/// The terminal is as a shell wants it.
fn assert_given_back(pty: &Pty) {
    let terminal = pty.terminal();
    let screen = terminal.screen();
    assert!(!screen.alternate_screen(), "main screen");
    assert!(!screen.hide_cursor(), "cursor");
    assert!(!screen.bracketed_paste(), "paste");
    assert_eq!(screen.mouse_protocol_mode(), vt100::MouseProtocolMode::None);
}

/// Runs the host in a shell that writes down the terminal's modes before and after.
fn in_shell(script: &str) -> Pty {
    let host = host();
    let line = format!(
        "echo before=$(stty -g).; {}; echo after=$(stty -g).end",
        host.display()
    );
    let pty = Pty::run("sh", &["-c", &line], script, (200, 30));
    pty.wait("Add tags to notes");
    assert!(pty.terminal().screen().alternate_screen());
    pty
}

fn assert_same_modes(pty: &Pty) {
    let text = pty.text().replace('\n', "");
    let value = |name: &str| {
        let at = text.rfind(name).unwrap_or_else(|| panic!("no {name} in {text}")) + name.len();
        text[at..]
            .chars()
            .take_while(|c| c.is_ascii_hexdigit() || *c == ':')
            .collect::<String>()
    };
    let (before, after) = (value("before="), value("after="));
    assert!(before.len() > 20 && before == after, "{before}\n{after}");
}

/// P147: after TERM, INT, HUP and QUIT.
#[test]
fn every_signal_leaves_the_terminal_as_it_was() {
    for (signal, name) in [(15, "TERM"), (2, "INT"), (1, "HUP"), (3, "QUIT")] {
        let pty = in_shell("");
        kill(pty.grandchild(), signal);
        pty.wait(".end");
        assert_given_back(&pty);
        assert_same_modes(&pty);
        assert!(
            pty.text().contains(&format!("ended: Signal({signal})")),
            "{name}: {}",
            pty.text()
        );
    }
}

#[test]
fn quitting_leaves_the_terminal_as_it_was() {
    for keys in ["q", "\x03"] {
        let mut pty = in_shell("");
        pty.keys(keys);
        pty.wait(".end");
        assert_given_back(&pty);
        assert_same_modes(&pty);
        assert!(pty.text().contains("ended: Quit"), "{}", pty.text());
    }
}

/// P147: after a panic.
#[test]
fn a_panic_leaves_the_terminal_as_it_was_and_is_readable() {
    let pty = in_shell("panic");
    pty.wait(".end");
    assert_given_back(&pty);
    assert_same_modes(&pty);
    assert!(pty.text().contains("forced"), "{}", pty.text());
}

/// P147: Ctrl-Z and fg.
#[test]
fn stopped_and_continued() {
    let mut pty = Pty::run("sh", &["-i"], "", (100, 30));
    pty.wait("prompt>");
    let host = host();
    pty.keys(&format!("stty -g; {}\n", host.display()));
    pty.wait("Add tags to notes");
    pty.keys("\x1a");
    pty.wait("Stopped");
    assert_given_back(&pty);
    // the shell has the keys now
    pty.keys("echo shell-$((1+1))\n");
    pty.wait("shell-2");
    pty.keys("fg\n");
    pty.until("the screens again", |p| {
        p.terminal().screen().alternate_screen() && p.text().contains("Add tags to notes")
    });
    // keys still work, exactly once each
    pty.keys("gj");
    pty.wait("Files  message 2");
    pty.keys("q");
    pty.wait("ended: Quit");
    pty.until("the shell", |p| !p.terminal().screen().alternate_screen());
    assert_given_back(&pty);
    pty.keys("stty -g; exit\n");
    pty.until("both modes", |p| modes(&p.text()).len() >= 2);
    let modes = modes(&pty.text());
    assert_eq!(modes.first(), modes.last());
}

/// Keys that come at the same moment as a change of size: both are seen, at once.
#[test]
fn keys_and_changes_of_size_together() {
    let mut pty = Pty::host("", (100, 30));
    pty.wait("Add tags to notes");
    for round in 0..60 {
        let (keys, shown) = if round % 2 == 0 {
            ("gj", "Files  message 2")
        } else {
            ("g", "Files  message 1")
        };
        let columns = 101 + round % 7;
        pty.resize(columns, 30);
        pty.keys(keys);
        pty.until(shown, |p| {
            let text = p.text();
            // the frame fills the width that there is now
            text.contains(shown) && text.lines().any(|l| l.chars().count() == usize::from(columns))
        });
    }
    pty.keys("q");
    pty.wait("ended: Quit");
}

/// The lines that `stty -g` printed.
fn modes(text: &str) -> Vec<String> {
    let joined = text.replace('\n', " ");
    let long = |w: &&str| w.len() > 40 && w.chars().all(|c| c.is_ascii_hexdigit() || c == ':');
    joined.split(' ').filter(long).map(str::to_owned).collect()
}

/// All escape sequences and control characters of a stream, each as text.
fn controls(raw: &[u8]) -> Vec<String> {
    let text = String::from_utf8(raw.to_vec()).expect("UTF-8 only");
    let mut found = Vec::new();
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            '\x1b' => {
                let mut sequence = String::new();
                let kind = chars.next().unwrap_or(' ');
                sequence.push(kind);
                if kind == '[' {
                    for c in chars.by_ref() {
                        sequence.push(c);
                        if ('@'..='~').contains(&c) {
                            break;
                        }
                    }
                }
                found.push(sequence);
            }
            c if respool::text::is_unsafe_char(c) => {
                let mut code = String::new();
                write!(code, "U+{:04x}", c as u32).expect("written");
                found.push(code);
            }
            _ => {}
        }
    }
    found
}

/// P141: the raw bytes hold no sequence of the content.
#[test]
fn no_control_byte_of_content_reaches_the_terminal() {
    let mut pty = Pty::host("hostile", (100, 30));
    pty.wait("^[]52;c;");
    let steps = [
        ("\r", "id  event", ""),
        ("\x1b", "", "id  event"),
        ("\t", "older", ""),
        ("\r", "", "Messages"),
        ("\x1b", "Messages", ""),
        ("r", "type rewind", ""),
        ("\x1b", "", "type rewind"),
        ("l", "Operations", ""),
        ("\x1b", "", "Operations"),
        ("u", "Undo the", ""),
        ("\x1b", "", "Undo the"),
        ("\x0f", "Conversations", ""),
    ];
    for (keys, there, gone) in steps {
        pty.keys(keys);
        pty.until(&format!("{there:?} and no {gone:?}"), |p| {
            let text = p.text();
            text.contains(there) && (gone.is_empty() || !text.contains(gone))
        });
    }
    // what is typed or pasted is shown, too
    pty.keys("\x1b[200~\x1b]0;typed\x07\u{202e}\x1b[201~");
    pty.keys("z");
    pty.wait("z▏");
    pty.keys("\x03");
    pty.wait("ended: Quit");
    let moves = ["H", "m"];
    let modes = ["?1049", "?25", "?2004", "?1000", "?1006", "?2026"];
    for sequence in controls(&pty.raw()) {
        let body = sequence.strip_prefix('[').unwrap_or("");
        let (parameters, last) = body.split_at(body.len().saturating_sub(1));
        let plain = parameters.chars().all(|c| c.is_ascii_digit() || c == ';');
        let move_or_colour = moves.contains(&last) && plain;
        let mode = ["h", "l"].contains(&last) && modes.contains(&parameters);
        let line_end = ["U+000d", "U+000a"].contains(&sequence.as_str());
        assert!(
            move_or_colour || mode || line_end,
            "{sequence:?} reached the terminal"
        );
    }
}

#[test]
fn without_colours_nothing_is_coloured_and_the_selection_is_reversed() {
    let pty = Pty::host("no_color", (100, 30));
    let cells = |p: &Pty| {
        let terminal = p.terminal();
        let all = (0..30).flat_map(|row| (0..100).map(move |column| (row, column)));
        all.map(|(row, column)| terminal.screen().cell(row, column).expect("a cell").clone())
            .collect::<Vec<_>>()
    };
    pty.until("the selected row", |p| {
        cells(p).iter().filter(|c| c.inverse()).count() > 20
    });
    pty.wait("something_10");
    for cell in cells(&pty) {
        assert_eq!(cell.fgcolor(), vt100::Color::Default);
        assert_eq!(cell.bgcolor(), vt100::Color::Default);
    }
}

/// P145: real resizes.
#[test]
fn resizing_redraws_and_keeps_the_state() {
    let mut pty = Pty::host("", (100, 30));
    pty.wait("Add tags to notes");
    pty.keys("?");
    pty.wait("half a page down");
    for (columns, rows) in [(1, 1), (7, 2), (14, 50), (200, 5), (100, 30)] {
        let before = pty.raw().len();
        pty.resize(columns, rows);
        pty.until("a frame", |p| p.raw().len() > before);
    }
    pty.wait("half a page down");
    pty.keys("\x1b");
    pty.until("no help", |p| !p.text().contains("half a page down"));
    pty.keys("q");
    pty.wait("ended: Quit");
}

/// How often the process's threads gave the processor away.
fn switches(pid: u32) -> u64 {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).expect("threads");
    let of = |status: String| {
        let lines = status.lines().filter(|l| l.contains("ctxt_switches"));
        lines
            .filter_map(|l| l.split_whitespace().last()?.parse::<u64>().ok())
            .sum::<u64>()
    };
    let statuses = tasks.filter_map(|t| std::fs::read_to_string(t.ok()?.path().join("status")).ok());
    statuses.map(of).sum()
}

#[test]
fn nothing_is_drawn_and_nothing_wakes_when_idle() {
    let pty = Pty::host("", (100, 30));
    pty.wait("something_10");
    let pid = pty.child.process_id().expect("a process");
    // the timers of the work that has ended run out first
    pty.until("rest", |p| {
        let before = (p.raw().len(), switches(pid));
        std::thread::sleep(Duration::from_millis(700));
        before == (p.raw().len(), switches(pid))
    });
    let (bytes, woken) = (pty.raw().len(), switches(pid));
    std::thread::sleep(Duration::from_secs(3));
    assert_eq!(pty.raw().len(), bytes, "something was drawn");
    let woken = switches(pid) - woken;
    assert!(woken <= 3, "woke {woken} times in 3 s");
}

#[test]
fn a_key_is_on_the_screen_within_a_frame() {
    let mut pty = Pty::host("long", (120, 40));
    pty.wait("Files  message 10000");
    let mut times = Vec::new();
    for n in 0..60 {
        let before = pty.raw().len();
        let begin = Instant::now();
        pty.keys(if n % 2 == 0 { "k" } else { "j" });
        pty.until("a frame", |p| p.raw()[before..].ends_with(b"\x1b[?2026l"));
        times.push(begin.elapsed());
    }
    times.sort();
    let median = times[times.len() / 2];
    assert!(
        median < Duration::from_millis(16),
        "median {median:?}, worst {:?}",
        times.last()
    );
}

/// The program itself with this config; there is no conversation, so the start screen comes.
fn configured(dir: &tempfile::TempDir, config: &str) -> Pty {
    let file = dir.path().join("c.toml");
    std::fs::write(&file, config).expect("written");
    let (file, state) = (file.to_string_lossy(), dir.path().join("state"));
    let args = ["--config", &file, "--state-dir", &state.to_string_lossy()];
    Pty::run(env!("CARGO_BIN_EXE_respool"), &args, "", (120, 40))
}

/// The user's keys work, and footer and help show them.
#[test]
fn keys_and_theme_of_the_config() {
    let dir = tempfile::tempdir().expect("a folder");
    let config = "[keys]\nhelp = \"F\"\nquit = [\"X\"]\n[theme]\nname = \"dark\"\nkey = \"#123456\"\n";
    let mut pty = configured(&dir, config);
    pty.wait("X quit");
    assert!(pty.text().contains("F help"), "{}", pty.text());
    let raw = String::from_utf8_lossy(&pty.raw()).into_owned();
    assert!(raw.contains("38;2;18;52;86"), "the colour of keys");
    pty.keys("F");
    pty.wait("half a page down");
    pty.keys("\x1b");
    pty.until("the start screen", |p| !p.text().contains("half a page down"));
    pty.keys("qX");
    pty.until("the end", |p| !p.terminal().screen().alternate_screen());
    assert_given_back(&pty);
}

#[test]
fn what_is_wrong_with_keys_and_theme_is_named() {
    let dir = tempfile::tempdir().expect("a folder");
    for (config, said) in [
        (
            "[keys]\nup = \"k\"\nfly = \"f\"\n",
            "c.toml: line 3: keys.fly: there is no such action",
        ),
        ("[keys]\n\nup = \"j\"\n", "c.toml: line 3: keys.up: j is both"),
        (
            "[keys]\nconfirm = \"Enter\"\n",
            "line 2: keys.confirm: a rewind is confirmed",
        ),
        (
            "[theme]\nname = \"pink\"\n",
            "line 2: theme.name: there is no theme",
        ),
        (
            "[theme]\nbaad = \"red\"\n",
            "line 2: theme.baad: there is no role",
        ),
        ("[theme]\nbad = \"reddish\"\n", "line 2: theme.bad:"),
    ] {
        let pty = configured(&dir, config);
        let text = |p: &Pty| p.text().replace('\n', "");
        pty.until(said, |p| text(p).contains(said));
        assert!(!pty.terminal().screen().alternate_screen());
    }
}
