//! Commands that the service does as a whole for an ordinary user: what puts folders under respool, gives them back,
//! and looks after pools. Here are their words; the service runs its own program for them.

use std::path::PathBuf;
use std::process::Command;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::registry::Registry;
use super::remote::{Request, typed};
use crate::engine::{EngineError, Result};
use crate::failure::{Kind, Report};
use crate::progress::Progress;
use crate::text;

/// The command.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verb {
    /// `track DIR`, with the size of a new image.
    Track(#[serde(with = "text::exact")] PathBuf, String),
    /// `track --per-conversation DIR`, of one that is tracked: makes it a template, or opens the workspace of a
    /// conversation.
    Exclusive {
        /// The template.
        #[serde(with = "text::exact")]
        dir: PathBuf,
        /// The conversation.
        conversation: Option<String>,
        /// The folder that its workspaces share.
        shared: Option<String>,
    },
    /// `untrack DIR`.
    Untrack(#[serde(with = "text::exact")] PathBuf),
    /// `sandboxes`.
    Sandboxes,
    /// `space`.
    Space,
    /// `recover`.
    Recover,
    /// `pool status`.
    PoolStatus,
    /// `pool mount`.
    PoolMount,
    /// `pool unmount`.
    PoolUnmount,
    /// `prune`, with its sandbox, and the values of `--keep`, `--keep-within`, `--max-bytes`.
    Prune(String, Option<usize>, Option<String>, Option<String>),
}

impl Verb {
    /// True for what any user may order in the service's own state. In a state of the user's own all may be ordered.
    pub fn for_all(&self) -> bool {
        matches!(
            self,
            Self::Track(..)
                | Self::Exclusive { .. }
                | Self::Sandboxes
                | Self::Space
                | Self::Recover
                | Self::PoolStatus
        )
    }

    /// Adds the words of the command line.
    pub fn words(&self, command: &mut Command) {
        match self {
            Self::Track(dir, size) => {
                let command = command.args(["track", "--vault", "btrfs", "--size"]).arg(size);
                command.arg("--").arg(dir)
            }
            Self::Exclusive {
                dir,
                conversation,
                shared,
            } => {
                command.args(["track", "--per-conversation"]);
                for (flag, value) in [("--conversation", conversation), ("--shared", shared)] {
                    value.as_ref().map(|v| command.arg(format!("{flag}={v}")));
                }
                command.arg("--").arg(dir)
            }
            Self::Untrack(dir) => command.args(["untrack", "--"]).arg(dir),
            Self::Sandboxes => command.arg("sandboxes"),
            Self::Space => command.arg("space"),
            Self::Recover => command.arg("recover"),
            Self::PoolStatus => command.args(["pool", "status"]),
            Self::PoolMount => command.args(["pool", "mount"]),
            Self::PoolUnmount => command.args(["pool", "unmount"]),
            Self::Prune(sandbox, keep, within, bytes) => {
                command.args(["prune", "--sandbox"]).arg(sandbox);
                for (flag, value) in [
                    ("--keep", keep.map(|k| k.to_string())),
                    ("--keep-within", within.clone()),
                    ("--max-bytes", bytes.clone()),
                ] {
                    value.map(|v| command.arg(format!("{flag}={v}")));
                }
                command
            }
        };
    }

    /// Its first word.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Track(..) | Self::Exclusive { .. } => "track",
            Self::Untrack(_) => "untrack",
            Self::Sandboxes => "sandboxes",
            Self::Space => "space",
            Self::Recover => "recover",
            Self::PoolStatus | Self::PoolMount | Self::PoolUnmount => "pool",
            Self::Prune(..) => "prune",
        }
    }
}

/// A command, and how its output is wanted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manage {
    /// The command.
    pub verb: Verb,
    /// `--json`.
    pub json: bool,
    /// `--yes`: the user was asked.
    pub yes: bool,
    /// `--dry-run`.
    pub dry_run: bool,
}

/// What it printed, and its exit code.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Printed {
    /// The exit code.
    pub code: u8,
    /// Standard output.
    #[serde(with = "text::base64_bytes")]
    pub out: Vec<u8>,
    /// Standard error.
    #[serde(with = "text::base64_bytes")]
    pub err: Vec<u8>,
}

impl Printed {
    /// The same with every unsafe character visible: what another machine printed promises nothing. In JSON they are
    /// escaped in strings, and stand nowhere else.
    #[must_use]
    pub fn harmless(self, json: bool) -> Self {
        let lines = |bytes: &[u8]| -> Vec<u8> {
            let text = |line: &[u8]| text::shown_bytes(line).into_bytes();
            bytes
                .split(|b| *b == b'\n')
                .map(text)
                .collect::<Vec<_>>()
                .join(&b'\n')
        };
        let document = || -> Option<Vec<u8>> {
            let value: Value = serde_json::from_slice(&self.out).ok()?;
            Some((text::json_line(&value).ok()? + "\n").into_bytes())
        };
        Self {
            out: json.then(document).flatten().unwrap_or_else(|| lines(&self.out)),
            err: lines(&self.err),
            code: self.code,
        }
    }
}

fn failed(message: String, hint: Option<&str>) -> EngineError {
    EngineError::Remote(Report {
        kind: Kind::Failed,
        message,
        path: None,
        hint: hint.map(str::to_owned),
    })
}

/// Has the service run a command.
pub fn call(registry: &Registry, order: &Manage, progress: &dyn Progress) -> Result<Printed> {
    let none = || {
        failed(
            "there is no service".into(),
            Some("start it: sudo respool service"),
        )
    };
    let line = registry.line().ok_or_else(none)?;
    let value = serde_json::to_value(order).map_err(|e| failed(e.to_string(), None))?;
    let printed: Printed = typed(line.call(&Request::Manage(value), progress)?)?;
    Ok(if line.far() {
        printed.harmless(order.json)
    } else {
        printed
    })
}

/// Has the service do it without a question, or show what it would do; the document that it prints.
pub fn order(registry: &Registry, verb: Verb, dry_run: bool, progress: &dyn Progress) -> Result<Value> {
    let order = Manage {
        verb,
        json: true,
        yes: true,
        dry_run,
    };
    document(&call(registry, &order, progress)?)
}

/// The document that was printed, or the error that it holds.
pub fn document(printed: &Printed) -> Result<Value> {
    let value: Value = serde_json::from_slice(&printed.out)
        .map_err(|e| failed(format!("the service's answer cannot be read: {e}"), None))?;
    if printed.code == 0 {
        return Ok(text::harmless(value));
    }
    let report: std::result::Result<Report, _> = serde_json::from_value(value["error"].clone());
    Err(report.map_or_else(
        |e| failed(format!("the service failed: {e}"), None),
        |r| EngineError::Remote(r.harmless()),
    ))
}
