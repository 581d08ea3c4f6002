//! The program's screens on a terminal of its own: keys in, what stands on the screen and every byte out.

use std::io::{Read, Write};
use std::sync::{Arc, Mutex};

use portable_pty::{Child, CommandBuilder, MasterPty, PtySize, native_pty_system};

use crate::common::wait_until;
use crate::lab::{Lab, SOON};

const ROWS: u16 = 30;
const COLUMNS: u16 = 110;

/// The program on a terminal. Killed when dropped.
pub struct Screen {
    _master: Box<dyn MasterPty + Send>,
    child: Box<dyn Child + Send + Sync>,
    keys: Box<dyn Write + Send>,
    bytes: Arc<Mutex<Vec<u8>>>,
}

impl Drop for Screen {
    fn drop(&mut self) {
        let _ended = self.child.kill();
        let _status = self.child.wait();
    }
}

impl Screen {
    /// Opens the lab's conversation and waits for its timeline. An empty value takes a variable away.
    pub fn open(lab: &Lab, env: &[(&str, &str)]) -> Self {
        let screen = Self::run(lab, &[lab.store().to_str().expect("UTF-8")], env);
        // the message under the cursor, with its checkpoint
        screen.wait(" cp-");
        screen
    }

    /// Runs it with these words.
    pub fn run(lab: &Lab, words: &[&str], env: &[(&str, &str)]) -> Self {
        let size = PtySize {
            rows: ROWS,
            cols: COLUMNS,
            pixel_width: 0,
            pixel_height: 0,
        };
        let pair = native_pty_system().openpty(size).expect("a pseudo terminal");
        let template = lab.command();
        let mut c = CommandBuilder::new(template.get_program());
        c.args(template.get_args());
        c.args(words);
        c.cwd(lab.dir());
        c.env_clear();
        c.env("RESPOOL_SOCKET", "/nonexistent/no-service");
        for (name, value) in template.get_envs() {
            if let Some(value) = value {
                c.env(name, value);
            }
        }
        c.env("TERM", "xterm-256color");
        for (name, value) in env {
            if value.is_empty() {
                c.env_remove(name);
            } else {
                c.env(name, value);
            }
        }
        let child = pair.slave.spawn_command(c).expect("start");
        drop(pair.slave);
        let mut reader = pair.master.try_clone_reader().expect("a reader");
        let bytes = Arc::new(Mutex::new(Vec::new()));
        let sink = Arc::clone(&bytes);
        std::thread::spawn(move || {
            let mut buffer = [0; 8192];
            while let Ok(n) = reader.read(&mut buffer) {
                if n == 0 {
                    break;
                }
                sink.lock().expect("bytes").extend_from_slice(&buffer[..n]);
            }
        });
        let keys = pair.master.take_writer().expect("a writer");
        Self {
            _master: pair.master,
            child,
            keys,
            bytes,
        }
    }

    /// Every byte that reached the terminal.
    pub fn raw(&self) -> Vec<u8> {
        self.bytes.lock().expect("bytes").clone()
    }

    /// What stands on it now.
    pub fn text(&self) -> String {
        let mut parser = vt100::Parser::new(ROWS, COLUMNS, 0);
        parser.process(&self.raw());
        parser.screen().contents()
    }

    pub fn until(&self, what: &str, wished: impl Fn(&str) -> bool) {
        let came = wait_until(SOON, || wished(&self.text()));
        assert!(came, "never came: {what}\n{}", self.text());
    }
    pub fn wait(&self, text: &str) {
        self.until(text, |t| t.contains(text));
    }
    pub fn gone(&self, text: &str) {
        self.until(&format!("no {text}"), |t| !t.contains(text));
    }
    pub fn keys(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).expect("typed");
        self.keys.flush().expect("typed");
    }

    /// Waits for its end; the exit code.
    pub fn end(&mut self) -> u32 {
        let mut code = None;
        let ended = wait_until(SOON, || {
            code = self.child.try_wait().expect("its state");
            code.is_some()
        });
        assert!(ended, "it does not end\n{}", self.text());
        code.expect("a status").exit_code()
    }

    /// Quits it.
    pub fn quit(mut self) {
        self.keys("q");
        assert_eq!(self.end(), 0, "{}", self.text());
    }
}
