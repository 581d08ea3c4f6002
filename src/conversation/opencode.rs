//! opencode (1.2 on): all sessions in one database, `opencode.db` below `~/.local/share/opencode` or `XDG_DATA_HOME`. A
//! session is stored under the database's path with its id behind it. What a rewind of opencode's takes back it
//! deletes at the next message: that cannot be shown.

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use rusqlite::{Connection, OptionalExtension, params};
use rustix::fs::FileType;

use super::claude_code::word;
use super::folder::Folder;
use super::frozen::beside;
use super::opencode_base::{Database, bytes, not_found, number, word_of};
use super::opencode_record::{Part, Told, info, instant, is_session, part, reverted, titled};
use super::openhands_lease::Held;
use super::rows::messages;
use super::stage::at_work;
use super::{Conversation, ConversationError, Message, Result, Roots, Source, Summary};
use crate::progress::{Progress, Silent};
use crate::text;

/// A longer value is left out, in bytes.
const LARGEST: i64 = 64 << 20;

/// The source of opencode's sessions in its database.
#[derive(Default)]
pub struct Opencode {
    database: Database,
}

/// opencode's folder of this user.
pub(super) fn home(roots: &Roots) -> PathBuf {
    let named = roots
        .env
        .get("XDG_DATA_HOME")
        .filter(|d| Path::new(d).is_absolute());
    let data = named.map_or_else(|| roots.home.join(".local/share"), PathBuf::from);
    data.join("opencode")
}

/// The databases: `opencode.db`, and `opencode-<channel>.db` of versions that are no releases.
fn databases(roots: &Roots) -> Vec<PathBuf> {
    let home = home(roots);
    let mut all = Vec::new();
    if let Ok(Some(folder)) = Folder::open(&home) {
        let listed = folder.each(FileType::RegularFile, |name| {
            if let Some(name) = std::str::from_utf8(name).ok().filter(|n| is_database(n)) {
                all.push(home.join(name));
            }
        });
        if let Err(e) = listed {
            tracing::debug!("{e}");
        }
    }
    all.sort();
    all
}

fn is_database(name: &str) -> bool {
    name.strip_suffix(".db")
        .is_some_and(|n| n == "opencode" || n.starts_with("opencode-"))
}

/// The database and the id of a session.
fn split(store: &Path) -> Option<(&Path, &str)> {
    let id = store.file_name()?.to_str().filter(|id| is_session(id))?;
    let db = store.parent()?;
    is_database(db.file_name()?.to_str()?).then_some((db, id))
}

/// A session's own row.
struct Session {
    directory: Option<String>,
    title: Option<String>,
    updated: Option<i64>,
    /// The place of the first message that is taken back, by time and id.
    revert: Option<(i64, String)>,
}

impl Opencode {
    /// Asks for a session.
    fn session<T>(
        &self,
        store: &Path,
        question: impl Fn(&Connection, &str, &Session) -> rusqlite::Result<T>,
    ) -> Result<T> {
        let (db, id) = split(store).ok_or_else(|| not_found(store))?;
        let answer = self.database.ask(db, |db| match session(db, id)? {
            Some(session) => question(db, id, &session).map(Some),
            None => Ok(None),
        });
        answer?.ok_or_else(|| not_found(store))
    }

    /// Reads the messages from a place on; with `rows`, from so far back that there are so many of the human's.
    fn conversation(
        &self,
        store: &Path,
        from: u64,
        rows: Option<usize>,
        progress: &dyn Progress,
    ) -> Result<Conversation> {
        let (session, told, count, whole) = self.session(store, |db, id, session| {
            let count: i64 =
                db.query_row("SELECT count(*) FROM message WHERE session_id = ?", [id], |r| {
                    r.get(0)
                })?;
            let count = count as u64;
            let mut some = rows.map_or(count.saturating_sub(from), |rows| {
                (rows as u64).saturating_mul(8).max(64)
            });
            loop {
                let from = count.saturating_sub(some);
                let told = tell(db, id, session, from, progress)?;
                if from == 0 || rows.is_none_or(|rows| told.rows.len() >= rows) {
                    return Ok((own(session), told, count, from == 0));
                }
                some = some.saturating_mul(4);
            }
        })?;
        if progress.cancelled() {
            return Err(ConversationError::Cancelled);
        }
        let messages = messages(told.rows, whole);
        let first = messages.first().filter(|_| whole).map(|m| m.text.as_str());
        let mut summary = summary_of(store, &session, first);
        summary.messages = whole.then_some(messages.len() as u64);
        let changed = summary.updated_at.unwrap_or_default();
        let at_work = at_work(told.stage, Held::Unknown, changed);
        summary.live = at_work;
        Ok(Conversation {
            summary,
            messages,
            status: told.stage.map(|s| word(s).to_owned()),
            at_work,
            events: count,
            acted: told.acted,
            notices: told.notices,
            partial: !whole,
        })
    }
}

fn own(session: &Session) -> Session {
    Session {
        directory: session.directory.clone(),
        title: session.title.clone(),
        updated: session.updated,
        revert: None,
    }
}

fn session(db: &Connection, id: &str) -> rusqlite::Result<Option<Session>> {
    let row = db
        .query_row(
            "SELECT directory, title, time_updated, revert FROM session WHERE id = ?",
            [id],
            |row| {
                let session = Session {
                    directory: word_of(row.get_ref(0)?),
                    title: word_of(row.get_ref(1)?),
                    updated: number(row.get_ref(2)?),
                    revert: None,
                };
                Ok((session, bytes(row.get_ref(3)?).and_then(reverted)))
            },
        )
        .optional()?;
    let Some((mut session, Some(revert))) = row else {
        return Ok(row.map(|(session, _)| session));
    };
    session.revert = db
        .query_row(
            "SELECT time_created, id FROM message WHERE id = ? AND session_id = ?",
            params![revert, id],
            |row| {
                Ok((
                    number(row.get_ref(0)?).unwrap_or(0),
                    word_of(row.get_ref(1)?).unwrap_or_default(),
                ))
            },
        )
        .optional()?;
    Ok(Some(session))
}

/// Reads the messages from a place on.
fn tell(
    db: &Connection,
    session: &str,
    own: &Session,
    from: u64,
    progress: &dyn Progress,
) -> rusqlite::Result<Told> {
    let mut told = Told::default();
    let mut list = db.prepare(
        "SELECT id, time_created, CASE WHEN octet_length(data) <= ?3 THEN data END FROM message \
         WHERE session_id = ?1 ORDER BY time_created, id LIMIT -1 OFFSET ?2",
    )?;
    let mut rows = list.query(params![session, from as i64, LARGEST])?;
    let mut at = from;
    while let Some(row) = rows.next()? {
        if progress.cancelled() {
            break;
        }
        let here = at;
        at += 1;
        let Some(id) = word_of(row.get_ref(0)?) else {
            continue;
        };
        let created = number(row.get_ref(1)?);
        let read = bytes(row.get_ref(2)?).ok_or_else(|| "it is no text, or too long".to_owned());
        match read.and_then(info) {
            Ok(mut info) => {
                info.created = created.or(info.created);
                let place = (created.unwrap_or(0), &id);
                let active = own.revert.as_ref().is_none_or(|(time, id)| place < (*time, id));
                let mut missed = Vec::new();
                let parts = || parts(db, &id, &mut missed);
                told.take(id.clone(), here, (info, active), parts);
                for why in missed {
                    told.missed(&format!("a part of message {id}"), &why);
                }
            }
            Err(why) => told.missed(&format!("message {id}"), &why),
        }
        progress.step("reading", at, 0);
    }
    Ok(told)
}

fn parts(db: &Connection, message: &str, missed: &mut Vec<String>) -> Vec<Part> {
    let mut all = Vec::new();
    let mut read = || -> rusqlite::Result<()> {
        let mut list = db.prepare(
            "SELECT CASE WHEN octet_length(data) <= ?2 THEN data END FROM part WHERE message_id = ?1 ORDER BY id",
        )?;
        let mut rows = list.query(params![message, LARGEST])?;
        while let Some(row) = rows.next()? {
            let data = bytes(row.get_ref(0)?).ok_or_else(|| "it is no text, or too long".to_owned());
            match data.and_then(part) {
                Ok(part) => all.push(part),
                Err(why) => missed.push(why),
            }
        }
        Ok(())
    };
    if let Err(e) = read() {
        missed.push(e.to_string());
    }
    all
}

fn summary_of(store: &Path, session: &Session, first: Option<&str>) -> Summary {
    let title = titled(session.title.as_deref()).or(first.map(str::to_owned));
    let workspace = session.directory.as_deref().map(PathBuf::from);
    Summary {
        id: super::lookup::name(store),
        agent: "opencode",
        store: store.to_owned(),
        workspace: workspace.filter(|w| w.is_absolute()),
        title: title.map(|t| text::first_line(&t)),
        messages: None,
        updated_at: session.updated.and_then(instant),
        live: false,
    }
}

impl Source for Opencode {
    fn agent(&self) -> &'static str {
        "opencode"
    }

    /// The newest first: they share one file, whose time says nothing of each.
    fn find(&self, roots: &Roots) -> Vec<PathBuf> {
        let mut all = Vec::new();
        for path in databases(roots) {
            let listed = self.database.ask(&path, |db| {
                let mut list =
                    db.prepare("SELECT id FROM session WHERE parent_id IS NULL ORDER BY time_updated DESC")?;
                let mut rows = list.query([])?;
                let mut ids = Vec::new();
                while let Some(row) = rows.next()? {
                    ids.extend(word_of(row.get_ref(0)?).filter(|id| is_session(id)));
                }
                Ok(ids)
            });
            match listed {
                Ok(ids) => all.extend(ids.into_iter().map(|id| path.join(id))),
                // it is listed with what is wrong with it
                Err(e) => {
                    tracing::debug!("{e}");
                    all.push(path);
                }
            }
        }
        all
    }

    fn recognises(&self, store: &Path) -> bool {
        split(store).is_some() && self.session(store, |_, _, _| Ok(())).is_ok()
    }

    fn workspace(&self, store: &Path) -> Result<Option<PathBuf>> {
        let session = self.session(store, |_, _, session| Ok(own(session)))?;
        Ok(summary_of(store, &session, None).workspace)
    }

    fn summary(&self, store: &Path) -> Result<Summary> {
        if split(store).is_none()
            && store
                .file_name()
                .and_then(|n| n.to_str())
                .is_some_and(is_database)
        {
            // the reason why its sessions cannot be listed
            self.database.ask(store, |_| Ok(()))?;
        }
        let session = self.session(store, |_, _, session| Ok(own(session)))?;
        let named = titled(session.title.as_deref()).is_some();
        let mut newest = self.conversation(store, 0, if named { Some(1) } else { None }, &Silent)?;
        newest.summary.messages = newest.summary.messages.filter(|_| !newest.partial);
        Ok(newest.summary)
    }

    fn read(&self, store: &Path, progress: &dyn Progress) -> Result<Conversation> {
        self.conversation(store, 0, None, progress)
    }

    fn tail(&self, store: &Path, rows: usize) -> Result<Conversation> {
        self.conversation(store, 0, Some(rows), &Silent)
    }

    fn since(&self, store: &Path, index: u64) -> Result<Conversation> {
        let mut some = self.conversation(store, index, None, &Silent)?;
        some.messages.retain(|m: &Message| m.index >= index);
        some.partial = true;
        for message in &mut some.messages {
            message.number = None;
        }
        Ok(some)
    }

    fn changed(&self, store: &Path) -> Option<SystemTime> {
        let updated = self.session(store, |_, _, session| Ok(session.updated)).ok()??;
        Some(SystemTime::UNIX_EPOCH + Duration::from_millis(u64::try_from(updated).ok()?))
    }

    fn places(&self, roots: &Roots) -> Vec<PathBuf> {
        vec![home(roots)]
    }

    fn shared(&self, roots: &Roots) -> Vec<PathBuf> {
        let mut all = databases(roots);
        let usual = home(roots).join("opencode.db");
        if !all.contains(&usual) {
            all.push(usual);
        }
        let beside = |ending: &str| all.iter().map(|d| beside(d, ending)).collect::<Vec<_>>();
        let (log, index, journal) = (beside("-wal"), beside("-shm"), beside("-journal"));
        all.extend(log.into_iter().chain(index).chain(journal));
        all
    }

    fn watched(&self, store: &Path) -> Vec<PathBuf> {
        let Some((db, _)) = split(store) else {
            return Vec::new();
        };
        let folder = db.parent().map(Path::to_owned);
        folder
            .into_iter()
            .chain([db.to_owned(), beside(db, "-wal")])
            .collect()
    }

    fn concerns(&self, store: &Path, path: &Path) -> bool {
        split(store).is_some_and(|(db, _)| path == db || path == beside(db, "-wal"))
    }
}
