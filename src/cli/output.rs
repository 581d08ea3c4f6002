//! How results and failures are printed: text for people, one JSON document for scripts.

use std::io::{IsTerminal, Write};
use std::path::PathBuf;

use serde::Serialize;
use serde_json::{Value, json};

use super::args::{Color, Global};
use crate::failure::{Explain, Kind};
use crate::progress::Progress;
use crate::text::{json_line, json_path, shown};

/// A failure ready to be shown.
#[derive(Debug)]
pub struct Failure {
    /// Its kind, and so the exit code.
    pub kind: Kind,
    /// One harmless line.
    pub message: String,
    /// The path that it is about.
    pub path: Option<PathBuf>,
    /// What helps.
    pub hint: Option<String>,
}

impl Failure {
    /// A failure of the command line itself.
    pub fn new(kind: Kind, message: impl Into<String>) -> Self {
        Self {
            kind,
            message: message.into(),
            path: None,
            hint: None,
        }
    }
    /// With what helps.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }
    /// With the path that it is about.
    #[must_use]
    pub fn path(mut self, path: impl Into<PathBuf>) -> Self {
        self.path = Some(path.into());
        self
    }
    fn json(&self) -> Value {
        let path = self.path.as_deref().map(|p| json_path(p).0);
        json!({"error": {"kind": self.kind.word(), "message": self.message, "path": path, "hint": self.hint}})
    }
}

impl<E: Explain> From<E> for Failure {
    fn from(e: E) -> Self {
        Self {
            kind: e.kind(),
            message: e.to_string(),
            path: e.path().map(ToOwned::to_owned),
            hint: e.hint(),
        }
    }
}

/// The result of a command.
pub type Done = Result<(), Failure>;

/// Where and how output goes.
#[derive(Debug, Clone, Copy)]
pub struct Output {
    /// One JSON document on stdout.
    pub json: bool,
    /// Colour on stdout.
    pub color: bool,
    quiet: bool,
}

impl Output {
    /// From the options and the environment.
    pub fn new(global: &Global) -> Self {
        let no_color = std::env::var_os("NO_COLOR").is_some_and(|v| !v.is_empty()) || dumb();
        let color = match global.color {
            Color::Always => true,
            Color::Never => false,
            Color::Auto => std::io::stdout().is_terminal() && !no_color,
        };
        Self {
            json: global.json,
            color,
            quiet: global.quiet,
        }
    }

    /// Without any option.
    pub fn plain(json: bool) -> Self {
        Self {
            json,
            color: false,
            quiet: false,
        }
    }

    /// Prints `value` as the one JSON document, or `text` for people. A closed pipe is no failure.
    pub fn result(&self, value: &impl Serialize, text: impl FnOnce() -> String) -> Done {
        let out = if self.json {
            let mut s = json_line(value)
                .map_err(|e| Failure::new(Kind::Failed, format!("cannot write JSON: {e}")))?;
            s.push('\n');
            s
        } else {
            text()
        };
        raw(out.as_bytes())
    }

    /// A message for people, on stderr.
    pub fn say(&self, text: impl AsRef<str>) {
        if !self.quiet {
            complain(format_args!("{}\n", text.as_ref()));
        }
    }

    /// Text in a colour (an SGR number), where there is colour.
    pub fn paint(&self, sgr: &str, text: &str) -> String {
        if self.color {
            format!("\x1b[{sgr}m{text}\x1b[0m")
        } else {
            text.to_owned()
        }
    }

    /// Prints a failure: JSON on stdout where asked for, always a line on stderr.
    pub fn failure(&self, failure: &Failure) {
        if self.json {
            // nothing is left to report a broken stdout to
            let line = json_line(&failure.json()).unwrap_or_default();
            drop(raw(format!("{line}\n").as_bytes()));
        }
        complain(format_args!("respool: {}\n", failure.message));
        if let Some(hint) = &failure.hint {
            complain(format_args!("  hint: {}\n", shown(hint)));
        }
    }
}

/// True on a terminal that obeys no escape sequences.
fn dumb() -> bool {
    std::env::var_os("TERM").is_some_and(|t| t == "dumb")
}

/// Writes to stderr. One that is closed, or a terminal that was hung up in the middle of a rewind, is no
/// reason to stop.
pub fn complain(text: std::fmt::Arguments<'_>) {
    drop(std::io::stderr().lock().write_fmt(text));
}

/// Writes bytes to stdout as they are. A closed pipe is no failure.
pub fn raw(bytes: &[u8]) -> Done {
    let mut stdout = std::io::stdout().lock();
    match stdout.write_all(bytes).and_then(|()| stdout.flush()) {
        Err(e) if e.kind() != std::io::ErrorKind::BrokenPipe => Err(Failure::new(
            Kind::Failed,
            format!("cannot write the output: {e}"),
        )),
        _ => Ok(()),
    }
}

/// Progress as one line on stderr, silent for the first 250 ms, at most 30 lines a second; Ctrl-C cancels.
#[derive(Debug)]
pub struct Bar {
    started: std::time::Instant,
    last: std::sync::Mutex<Option<std::time::Instant>>,
    on: bool,
    cancel: &'static crate::progress::CancelFlag,
}

impl Bar {
    /// A bar that shows only on a terminal.
    pub fn new(output: &Output, cancel: &'static crate::progress::CancelFlag) -> Self {
        Self {
            started: std::time::Instant::now(),
            last: std::sync::Mutex::new(None),
            on: !output.quiet && !dumb() && std::io::stderr().is_terminal(),
            cancel,
        }
    }
}

impl Progress for Bar {
    fn step(&self, what: &'static str, done: u64, total: u64) {
        if !self.on || self.started.elapsed().as_millis() < 250 {
            return;
        }
        let Ok(mut last) = self.last.lock() else { return };
        if last.is_some_and(|l| l.elapsed().as_millis() < 33) {
            return;
        }
        *last = Some(std::time::Instant::now());
        let count = match (done, total) {
            (0, 0) => String::new(),
            (d, 0) => format!(" {d}"),
            (d, t) => format!(" {d} of {t}"),
        };
        complain(format_args!("\r\x1b[K{what}{count}"));
    }
    fn cancelled(&self) -> bool {
        self.cancel.is_set()
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        if self.on && self.last.lock().is_ok_and(|l| l.is_some()) {
            complain(format_args!("\r\x1b[K"));
        }
    }
}
