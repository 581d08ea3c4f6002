//! Which sessions of Claude Code are open: each process notes its own in `sessions/<pid>.json` and takes it away
//! when it ends (seen in 2.1.197 and 2.1.332; older versions have no such folder).

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::fs::FileType;
use serde::Deserialize;

use super::folder::Folder;
use super::json::{Word, with_object};
use super::openhands_lease::Held;
use crate::process;

/// So long the folder need not be read again; a list asks for each conversation.
const FRESH: Duration = Duration::from_millis(100);
/// More notes than this are not looked at.
const MOST: usize = 1024;

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Raw<'a> {
    #[serde(borrow, default)]
    pid: Word<'a>,
    #[serde(borrow, default)]
    session_id: Word<'a>,
    #[serde(borrow, default)]
    proc_start: Word<'a>,
}

/// A session, and the process that noted it, if it lives.
type Noted = (String, Option<i32>);

struct Read {
    folder: PathBuf,
    when: Instant,
    notes: Arc<Vec<Noted>>,
}

/// The notes that were read last.
#[derive(Default)]
pub(super) struct Sessions(Mutex<Option<Read>>);

impl Sessions {
    /// Whether a living process has this session open. `config`: Claude Code's folder.
    pub(super) fn held(&self, config: &Path, session: &str) -> Held {
        let notes = self.notes(&config.join("sessions"));
        let mut own = notes.iter().filter(|(s, _)| s == session).peekable();
        if own.peek().is_none() {
            return Held::Unknown;
        }
        if own.any(|(_, pid)| pid.is_some()) {
            Held::Yes
        } else {
            Held::No
        }
    }

    /// The living process that has this session open.
    pub(super) fn holder(&self, config: &Path, session: &str) -> Option<i32> {
        let notes = self.notes(&config.join("sessions"));
        notes
            .iter()
            .filter(|(s, _)| s == session)
            .find_map(|(_, pid)| *pid)
    }

    fn notes(&self, folder: &Path) -> Arc<Vec<Noted>> {
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(read) = last
            .as_ref()
            .filter(|r| r.folder == folder && r.when.elapsed() < FRESH)
        {
            return Arc::clone(&read.notes);
        }
        let notes = Arc::new(read(folder));
        *last = Some(Read {
            folder: folder.to_owned(),
            when: Instant::now(),
            notes: Arc::clone(&notes),
        });
        notes
    }
}

fn read(path: &Path) -> Vec<Noted> {
    let Ok(Some(folder)) = Folder::open(path) else {
        return Vec::new();
    };
    let mut names = Vec::new();
    let listed = folder.each(FileType::RegularFile, |name| {
        if name.ends_with(b".json") && names.len() < MOST {
            names.push(name.to_owned());
        }
    });
    if let Err(e) = listed {
        tracing::debug!("{e}");
    }
    let mut buffer = Vec::new();
    let mut notes = Vec::new();
    for name in names {
        // it may be gone by now
        if folder.read_listed(&name, &mut buffer).is_ok() {
            let mut repaired = Vec::new();
            notes.extend(
                with_object(&buffer, &mut repaired, |raw: Raw<'_>| noted(&raw))
                    .ok()
                    .flatten(),
            );
        }
    }
    notes
}

fn noted(raw: &Raw<'_>) -> Option<Noted> {
    let session = raw.session_id.owned()?;
    let pid: i32 = raw.pid.text()?.parse().ok()?;
    let lives = process::stat(pid).is_some_and(|s| {
        // the number may be another process's by now
        s.state != 'Z'
            && raw
                .proc_start
                .text()
                .is_none_or(|start| start == s.start.to_string())
    });
    Some((session, lives.then_some(pid)))
}
