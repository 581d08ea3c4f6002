//! `--host` as an ordinary user of the other machine, whose sandbox is in the hands of the service there; and in a
//! real terminal.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use portable_pty::{CommandBuilder, PtySize, native_pty_system};

use crate::common::wait_until;
use crate::host::{Desk, HOST, id, project};
use crate::lab::{Answer, Lab, SOON};

const OWNER: u32 = 65534;

struct Service(Child);

impl Service {
    fn start(lab: &Lab) -> Self {
        let mut c = lab.command();
        c.args(["service", "--socket"]).arg(lab.dir().join("sock"));
        let mut child = c.stderr(Stdio::piped()).spawn().expect("the service");
        let mut said = BufReader::new(child.stderr.take().expect("stderr"));
        let mut line = String::new();
        said.read_line(&mut line).expect("its first line");
        let it = Self(child);
        assert!(line.contains("serving at"), "{line}");
        std::thread::spawn(move || std::io::copy(&mut said, &mut std::io::sink()));
        it
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        let _ended = self.0.kill();
        let _status = self.0.wait();
    }
}

fn give(path: &Path) {
    chown(path, Some(OWNER), Some(OWNER)).expect("chown");
    if path.is_dir() {
        for entry in fs::read_dir(path).expect("folder") {
            give(&entry.expect("entry").path());
        }
    }
}

#[test]
fn an_ordinary_user_there_goes_on_through_the_service_there() {
    let desk = Desk::new(
        Lab::plain(|ws| fs::write(ws.join("f"), "one").expect("write")),
        "exec \"$@\"",
    );
    let lab = &desk.lab;
    let program = lab.dir().join("respool");
    fs::copy(env!("CARGO_BIN_EXE_respool"), &program).expect("the program");
    fs::set_permissions(lab.dir(), fs::Permissions::from_mode(0o755)).expect("open to all");
    lab.cut(&lab.store(), 1);
    give(&lab.dir().join("home"));
    give(lab.ws());
    let service = Service::start(lab);
    let (dir, id) = (lab.dir().display().to_string(), id(lab));
    let user = format!(
        "cd {dir}/home && exec env -i PATH=/usr/bin:/bin HOME={dir}/home RESPOOL_SOCKET={dir}/sock setpriv \
         --reuid {OWNER} --regid {OWNER} --clear-groups {dir}/respool"
    );
    desk.script(&format!("#!/bin/sh\nshift 3\n{user} \"$@\"\n"));
    let there = |words: &str| {
        let line = format!("{user} {words}");
        let a = Answer::of(Command::new("sh").args(["-c", &line]).output().expect("run"));
        assert_eq!(a.code, Some(0), "{words}: {}{}", a.text(), a.err);
        a
    };
    there(&format!("--yes track --size 300M {}", lab.ws_text()));
    assert_eq!(desk.ok(&["conversations"])[0]["workspace"], lab.ws_text());
    let all = desk.ok(&["sandboxes"]);
    assert_eq!(all[0]["path"], lab.ws_text(), "{all}");
    desk.ok(&["-c", &id, "checkpoint", "--message", "m1"]);
    fs::write(lab.at("f"), "two").expect("write");
    assert_eq!(desk.ok(&["-c", &id, "changes", "m1", "now"])[0]["path"], "f");
    assert_eq!(desk.ok(&["-c", &id, "cat", "m1", "f"])["text"], "one");
    desk.ok(&["--yes", "-c", &id, "rewind", "m1"]);
    assert_eq!(lab.read("f"), "one");
    desk.ok(&["--yes", "-c", &id, "undo"]);
    assert_eq!(lab.read("f"), "two");
    assert_eq!(desk.ok(&["-c", &id, "log"]).as_array().map(Vec::len), Some(3));
    // what is root's alone stays so
    let said = desk.fails(3, &["--yes", "-c", &id, "prune", "--keep", "1"]);
    assert!(said.contains("root"), "{said}");
    // without the service there it is said what is missing
    drop(service);
    let said = desk.fails(3, &["--yes", "-c", &id, "rewind", "m1"]);
    assert!(said.contains("tracked"), "{said}");
    assert_eq!(lab.read("f"), "two");
}

/// A terminal in which the program runs.
struct Screen {
    keys: Box<dyn Write + Send>,
    bytes: Arc<Mutex<Vec<u8>>>,
    child: Box<dyn portable_pty::Child + Send + Sync>,
    _master: Box<dyn portable_pty::MasterPty + Send>,
}

impl Screen {
    fn open(desk: &Desk, args: &[&str]) -> Self {
        let size = PtySize {
            rows: 40,
            cols: 140,
            pixel_width: 0,
            pixel_height: 0,
        };
        let pair = native_pty_system().openpty(size).expect("a pseudo terminal");
        let mut command = CommandBuilder::new(env!("CARGO_BIN_EXE_respool"));
        command.env_clear();
        let near = desk.lab.dir().join("near");
        fs::create_dir_all(&near).expect("near");
        let path = std::env::var("PATH").expect("PATH");
        command.env("PATH", format!("{}:{path}", desk.lab.dir().join("bin").display()));
        command.env("HOME", &near);
        command.env("TERM", "xterm-256color");
        command.env("LANG", "C.UTF-8");
        command.cwd(&near);
        command.args(["--host", HOST]);
        command.args(args);
        let child = pair.slave.spawn_command(command).expect("started");
        drop(pair.slave);
        let mut reader = pair.master.try_clone_reader().expect("a reader");
        let bytes = Arc::new(Mutex::new(Vec::new()));
        let sink = Arc::clone(&bytes);
        std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(n @ 1..) = reader.read(&mut buffer) {
                sink.lock().expect("bytes").extend_from_slice(&buffer[..n]);
            }
        });
        Self {
            keys: pair.master.take_writer().expect("keys"),
            bytes,
            child,
            _master: pair.master,
        }
    }

    fn text(&self) -> String {
        let mut parser = vt100::Parser::new(40, 140, 0);
        parser.process(&self.bytes.lock().expect("bytes"));
        parser.screen().contents()
    }

    fn wait(&self, text: &str) {
        assert!(
            wait_until(SOON, || self.text().contains(text)),
            "never came: {text}\n{}",
            self.text()
        );
    }

    fn press(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).expect("written");
        self.keys.flush().expect("written");
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        let _ended = self.child.kill();
        let _status = self.child.wait();
    }
}

#[test]
fn the_screens_show_and_rewind_what_is_there() {
    let desk = Desk::new(project(), "echo far away >&2; exec \"$@\"");
    let (lab, id) = (&desk.lab, id(&desk.lab));
    let rows = lab.ok(&["timeline", lab.store().to_str().expect("UTF-8")]);
    let words = |n: usize| {
        let text = rows["rows"][n]["text"].as_str().expect("a text");
        text.chars().take(12).collect::<String>()
    };
    let mut screen = Screen::open(&desk, &[&id]);
    screen.wait(&words(0));
    screen.wait(&words(2));
    // the store there goes on, and it shows
    lab.message(4);
    let rows = lab.ok(&["timeline", lab.store().to_str().expect("UTF-8")]);
    let fourth = rows["rows"][3]["text"].as_str().expect("a text");
    let fourth: String = fourth.chars().take(12).collect();
    screen.wait(&fourth);
    // and back to before the fourth one
    lab.write("d0/f0", "later\n");
    screen.press("r");
    screen.wait("Rewind to just before message 4?");
    screen.wait("d0/f0");
    // a yes counts only after a pause in which no key came
    let mut last = std::time::Instant::now();
    let back = wait_until(SOON, || {
        if last.elapsed() > Duration::from_secs(2) && screen.text().contains("y rewind") {
            screen.press("y");
            last = std::time::Instant::now();
        }
        lab.read("d0/f0") == "now\n"
    });
    assert!(back, "{}", screen.text());
    assert!(wait_until(SOON, || lab
        .log()
        .first()
        .is_some_and(|o| o.1 == "done")));
    screen.wait("Rewind done");
    screen.press("\u{3}");
    let gone = wait_until(SOON, || matches!(screen.child.try_wait(), Ok(Some(_))));
    assert!(gone, "{}", screen.text());
    // without a conversation it starts with all of them
    let mut screen = Screen::open(&desk, &[]);
    screen.wait(lab.ws_text().rsplit('/').next().expect("a name"));
    screen.press("\u{3}");
    assert!(
        wait_until(SOON, || matches!(screen.child.try_wait(), Ok(Some(_)))),
        "{}",
        screen.text()
    );
}
