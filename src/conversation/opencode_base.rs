//! opencode's database, asked as it stands at one moment (see [`Frozen`]). What its own schema could make of a question
//! is bounded: the tables must be tables, and no question takes longer than a minute.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rusqlite::Connection;
use rusqlite::types::ValueRef;

use super::folder::damaged;
use super::frozen::Frozen;
use super::frozen_vfs::connect;
use super::{ConversationError, Result};
use crate::text;

/// So often is read again what changed while it was read.
const TRIES: usize = 8;
/// So long is waited before that.
const PAUSE: Duration = Duration::from_millis(10);
/// A question takes no longer.
const LONGEST: Duration = Duration::from_secs(60);
/// So many steps of SQLite's are made between two looks at the clock.
const STEPS: i32 = 1_000_000;
/// Asks databases; the one that was read last is kept while it does not change.
#[derive(Default)]
pub(super) struct Database {
    last: Mutex<Option<Known>>,
}

/// The database that was read last.
struct Known {
    path: PathBuf,
    frozen: Arc<Frozen>,
    db: Connection,
    /// Set where a new question begins.
    asked: Arc<AtomicBool>,
}

/// The bytes of a text.
pub(super) fn bytes(value: ValueRef<'_>) -> Option<&[u8]> {
    match value {
        ValueRef::Text(bytes) | ValueRef::Blob(bytes) => Some(bytes),
        _ => None,
    }
}

/// A text.
pub(super) fn word_of(value: ValueRef<'_>) -> Option<String> {
    bytes(value).map(|b| String::from_utf8_lossy(b).into_owned())
}

/// A number.
pub(super) fn number(value: ValueRef<'_>) -> Option<i64> {
    match value {
        ValueRef::Integer(n) => Some(n),
        ValueRef::Real(n) => Some(n as i64),
        _ => None,
    }
}

/// What is said of a database that is never still.
const FASTER: &str = "it changes faster than it can be read";

impl Known {
    fn open(path: &Path) -> Result<Option<Self>> {
        let Some(frozen) = Frozen::open(path)?.map(Arc::new) else {
            return Ok(None);
        };
        let known = || {
            let mut db = connect(&frozen)?;
            let asked = Arc::new(AtomicBool::new(false));
            let seen = Arc::clone(&asked);
            let mut begun: Option<Instant> = None;
            let stop = move || {
                if seen.swap(false, Ordering::Relaxed) {
                    begun = None;
                }
                begun.get_or_insert_with(Instant::now).elapsed() > LONGEST
            };
            db.progress_handler(STEPS, Some(stop))?;
            let tables: i64 = db.query_row(
                "SELECT count(*) FROM sqlite_schema WHERE type = 'table' AND rootpage > 0 \
                 AND name IN ('session', 'message', 'part')",
                [],
                |row| row.get(0),
            )?;
            Ok((db, asked, tables == 3))
        };
        match known() {
            Ok((db, asked, true)) => Ok(Some(Self {
                path: path.to_owned(),
                frozen,
                db,
                asked,
            })),
            // what was read may be of two moments
            _ if !frozen.holds(path) => Err(damaged(path, FASTER)),
            Ok((_, _, false)) => Err(damaged(path, "it has no sessions of opencode")),
            Err(e) => Err(unreadable(path, &e)),
        }
    }
}

fn unreadable(path: &Path, e: &rusqlite::Error) -> ConversationError {
    damaged(path, text::shown(&e.to_string()))
}

/// The error of a database that is not there.
pub(super) fn not_found(path: &Path) -> ConversationError {
    ConversationError::NotFound {
        what: format!("at {}", text::shown_path(path)),
    }
}

impl Database {
    /// Asks the database as it stands now; again where it changed meanwhile in a way that mixes two moments.
    pub(super) fn ask<T>(
        &self,
        path: &Path,
        question: impl Fn(&Connection) -> rusqlite::Result<T>,
    ) -> Result<T> {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let mut failure = None;
        for again in 0..TRIES {
            if again > 0 {
                std::thread::sleep(PAUSE);
            }
            let known = last
                .take()
                .filter(|k| k.path == path && k.frozen.is_current(path));
            let known = match known {
                Some(known) => known,
                None => match Known::open(path) {
                    Ok(known) => known.ok_or_else(|| not_found(path))?,
                    // it may have been caught in the middle of a change
                    Err(e) => {
                        failure = Some(e);
                        continue;
                    }
                },
            };
            known.asked.store(true, Ordering::Relaxed);
            let answer = question(&known.db);
            if known.frozen.holds(path) {
                *last = Some(known);
                return answer.map_err(|e| unreadable(path, &e));
            }
            failure = None;
        }
        Err(failure.unwrap_or_else(|| damaged(path, FASTER)))
    }
}
