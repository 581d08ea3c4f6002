//! Other processes: one that stopped itself, one that holds a file, one that writes all the time.

use std::process::{Child, Command, Stdio};

use crate::common::wait_until;
use crate::lab::{Answer, Lab, SOON};

/// A process that stopped itself. Killed when dropped.
pub struct Stopped(pub Option<Child>);

impl Stopped {
    pub fn state(&self) -> Option<char> {
        state_of(self.0.as_ref()?)
    }
    fn signal(&self, signal: nix::sys::signal::Signal) {
        let pid = self.0.as_ref().expect("a child").id() as i32;
        nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), signal).expect("signal");
    }
    /// Its process.
    pub fn id(&self) -> u32 {
        self.0.as_ref().expect("a child").id()
    }
    /// Lets it go on to its end.
    pub fn go_on(mut self) -> Answer {
        self.signal(nix::sys::signal::Signal::SIGCONT);
        let child = self.0.take().expect("a child");
        Answer::of(child.wait_with_output().expect("its end"))
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        if let Some(child) = &mut self.0 {
            let _ended = child.kill();
            let _status = child.wait();
        }
    }
}

/// A process in a session of its own that has a file of the workspace open and does nothing. Killed when
/// dropped.
pub struct Holder(Child);

impl Holder {
    pub fn start(lab: &Lab, file: &str) -> Self {
        let child = Command::new("setsid")
            .args(["sh", "-c", "exec 7<\"$1\"; echo ready; exec cat", "holder"])
            .arg(lab.at(file))
            .env("HOME", lab.dir().join("home"))
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn();
        let mut child = child.expect("setsid");
        wait_ready(&mut child);
        Self(child)
    }
    /// It runs, or will soon.
    pub fn assert_runs(&self, what: &str) {
        let runs = || matches!(state_of(&self.0), Some('R' | 'S' | 'D'));
        assert!(
            wait_until(SOON, runs),
            "{what}: the holder is {:?}",
            state_of(&self.0)
        );
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        let _ended = self.0.kill();
        let _status = self.0.wait();
    }
}

fn wait_ready(child: &mut Child) {
    let mut line = String::new();
    let out = child.stdout.take().expect("its output");
    std::io::BufRead::read_line(&mut std::io::BufReader::new(out), &mut line).expect("ready");
    assert_eq!(line.trim(), "ready");
}

/// R, S, T...; `None` if it is gone.
fn state_of(child: &Child) -> Option<char> {
    let text = std::fs::read_to_string(format!("/proc/{}/stat", child.id())).ok()?;
    text.rsplit(')').next()?.trim().chars().next()
}

/// A process in a session of its own that holds a file of the workspace open and writes a number to it all
/// the time. Killed when dropped.
pub struct Writer(Child);

impl Writer {
    /// In a session of its own: it is stopped during a rewind.
    pub fn start(lab: &Lab, file: &str) -> Self {
        Self::run(lab, file, "setsid")
    }
    /// In the session of the test and so of the program: it is never stopped.
    pub fn own(lab: &Lab, file: &str) -> Self {
        Self::run(lab, file, "env")
    }
    fn run(lab: &Lab, file: &str, with: &str) -> Self {
        let script = "exec 7>>\"$1\"; echo ready; while :; do echo x >&7; sleep 0.003 7>&-; done";
        let child = Command::new(with)
            .args(["sh", "-c", script, "writer"])
            .arg(lab.at(file))
            .env("HOME", lab.dir().join("home"))
            .current_dir("/")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn();
        let mut child = child.expect("a shell");
        wait_ready(&mut child);
        Self(child)
    }
    /// It runs, or will soon.
    pub fn assert_runs(&self, what: &str) {
        let runs = || matches!(state_of(&self.0), Some('R' | 'S' | 'D'));
        assert!(
            wait_until(SOON, runs),
            "{what}: the writer is {:?}",
            state_of(&self.0)
        );
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        let _ended = self.0.kill();
        let _status = self.0.wait();
    }
}
