//! A watcher, as the tests of the agents' sources use it.

use std::io::{BufRead, BufReader};
use std::process::{Child, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::common::Tracked;

const LIMIT: Duration = Duration::from_secs(20);

/// `respool watch` in the workspace.
pub struct Watcher {
    child: Child,
    lines: Receiver<Value>,
    pub told: Vec<Value>,
}

impl Watcher {
    pub fn here(t: &Tracked) -> Self {
        let mut child = t
            .command()
            .arg("watch")
            .stdout(Stdio::piped())
            .spawn()
            .expect("respool");
        let stdout = BufReader::new(child.stdout.take().expect("stdout"));
        let (send, lines) = channel();
        std::thread::spawn(move || {
            for line in stdout.lines().map_while(Result::ok) {
                let line = serde_json::from_str(&line).unwrap_or(Value::String(line));
                if send.send(line).is_err() {
                    return;
                }
            }
        });
        let mut it = Self {
            child,
            lines,
            told: Vec::new(),
        };
        it.until("waiting");
        it
    }
    pub fn until(&mut self, event: &str) -> Value {
        let start = Instant::now();
        while let Ok(line) = self.lines.recv_timeout(LIMIT.saturating_sub(start.elapsed())) {
            self.told.push(line.clone());
            if line["event"] == event {
                return line;
            }
        }
        panic!("no {event} after {:?}", self.told);
    }
    pub fn failures(&self) -> usize {
        self.told.iter().filter(|e| e["event"] == "failed").count()
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        let _dead_already = self.child.kill();
        let _reaped_already = self.child.wait();
    }
}
