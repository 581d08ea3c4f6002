//! opencode before 1.2: a file for each session, message and part, below `storage` in its folder:
//! `session/<project>/<session>.json`, `message/<session>/<message>.json`, `part/<message>/<part>.json`.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use chrono::{DateTime, Utc};
use rustix::fs::FileType;

use super::claude_code::word;
use super::folder::{Folder, damaged};
use super::opencode::{Opencode, home};
use super::opencode_record::{Info, Part, Session, Told, info, instant, is_session, part, session, titled};
use super::openhands_lease::Held;
use super::rows::messages;
use super::stage::at_work;
use super::{Conversation, ConversationError, Message, Result, Roots, Source, Summary};
use crate::progress::{Progress, Silent};
use crate::text;

/// The source of opencode's sessions in files of their own.
#[derive(Default)]
pub struct OpencodeTree {
    /// What was moved to the database is read there.
    database: Arc<Opencode>,
}

/// The name of a file that cannot be read, and why.
type Missed = (String, String);

fn not_found(store: &Path) -> ConversationError {
    ConversationError::NotFound {
        what: format!("at {}", text::shown_path(store)),
    }
}

/// The id of a session's file.
fn id(store: &Path) -> Option<&str> {
    let name = store.file_name()?.to_str()?;
    name.strip_suffix(".json").filter(|id| is_session(id))
}

/// The folder that all is in, of a session's file in it.
fn storage(store: &Path) -> Option<&Path> {
    let kind = store.parent()?.parent()?;
    (kind.file_name()? == "session").then(|| kind.parent()).flatten()
}

/// The names of the JSON files in a folder, without the ending, in order.
fn names(folder: &Folder) -> Vec<String> {
    let mut all = Vec::new();
    let listed = folder.each(FileType::RegularFile, |name| {
        let name = std::str::from_utf8(name)
            .ok()
            .and_then(|n| n.strip_suffix(".json"));
        all.extend(name.map(str::to_owned));
    });
    if let Err(e) = listed {
        tracing::debug!("{e}");
    }
    all.sort();
    all
}

/// The folder `kind/name` in the storage; no link below it is followed.
fn folder(store: &Path, kind: &str, name: &str) -> Option<Folder> {
    let storage = Folder::open(storage(store)?).ok()??;
    storage.sub(kind).ok()??.sub(name).ok()?
}

fn own(store: &Path) -> Result<(Session, DateTime<Utc>)> {
    let found = || Some((Folder::open(store.parent()?).ok()??, id(store)?));
    let (folder, id) = found().ok_or_else(|| not_found(store))?;
    let mut buffer = Vec::new();
    let written = folder
        .read_named(&format!("{id}.json"), &mut buffer)?
        .ok_or_else(|| not_found(store))?;
    let session = session(&buffer).map_err(|why| damaged(store, text::shown(&why)))?;
    let updated = session.updated.and_then(instant).unwrap_or(written);
    Ok((session, updated))
}

/// The session's messages in their order, and the names of those that cannot be read, with the reasons.
fn infos(store: &Path) -> (Vec<(String, Info)>, Vec<Missed>) {
    let (mut all, mut bad) = (Vec::new(), Vec::new());
    let Some(folder) = id(store).and_then(|id| folder(store, "message", id)) else {
        return (all, bad);
    };
    let mut buffer = Vec::new();
    for name in names(&folder) {
        let read = folder.read_listed(format!("{name}.json").as_bytes(), &mut buffer);
        match read.map_err(|e| e.to_string()).and_then(|_| info(&buffer)) {
            Ok(info) => all.push((name, info)),
            Err(why) => bad.push((name, why)),
        }
    }
    all.sort_by(|(a, x), (b, y)| (x.created, a).cmp(&(y.created, b)));
    (all, bad)
}

fn parts(store: &Path, message: &str, bad: &mut Vec<Missed>) -> Vec<Part> {
    let mut all = Vec::new();
    let Some(folder) = folder(store, "part", message) else {
        return all;
    };
    let mut buffer = Vec::new();
    for name in names(&folder) {
        let read = folder.read_listed(format!("{name}.json").as_bytes(), &mut buffer);
        match read.map_err(|e| e.to_string()).and_then(|_| part(&buffer)) {
            Ok(part) => all.push(part),
            Err(why) => bad.push((name, why)),
        }
    }
    all
}

fn summary_of(store: &Path, session: &Session, updated: DateTime<Utc>, first: Option<&str>) -> Summary {
    let title = titled(session.title.as_deref()).or(first.map(str::to_owned));
    let workspace = session.directory.as_deref().map(PathBuf::from);
    Summary {
        id: id(store).unwrap_or_default().to_owned(),
        agent: "opencode",
        store: store.to_owned(),
        workspace: workspace.filter(|w| w.is_absolute()),
        title: title.map(|t| text::first_line(&t)),
        messages: None,
        updated_at: Some(updated),
        live: false,
    }
}

/// Reads the messages from a place on.
fn conversation(store: &Path, from: u64, progress: &dyn Progress) -> Result<Conversation> {
    let (session, mut updated) = own(store)?;
    let (infos, mut bad) = infos(store);
    let count = infos.len() as u64;
    let reverted = session
        .revert
        .as_ref()
        .and_then(|r| infos.iter().position(|(id, _)| id == r));
    let mut told = Told::default();
    for (at, (id, info)) in infos.into_iter().enumerate().skip(from as usize) {
        if progress.cancelled() {
            return Err(ConversationError::Cancelled);
        }
        let active = reverted.is_none_or(|r| at < r);
        updated = updated.max(info.created.and_then(instant).unwrap_or(updated));
        let message = id.clone();
        told.take(id, at as u64, (info, active), || parts(store, &message, &mut bad));
        progress.step("reading", at as u64 + 1, count);
    }
    for (name, why) in bad {
        told.missed(&name, &why);
    }
    for row in &mut told.rows {
        // a prompt from standard input was stored with a line feed before it
        row.said.text = row.said.text.trim().to_owned();
    }
    let whole = from == 0;
    let messages = messages(told.rows, whole);
    let first = messages.first().filter(|_| whole).map(|m| m.text.as_str());
    let mut summary = summary_of(store, &session, updated, first);
    summary.messages = whole.then_some(messages.len() as u64);
    let at_work = at_work(told.stage, Held::Unknown, updated);
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

impl OpencodeTree {
    /// Beside the source of the database.
    pub fn beside(database: Arc<Opencode>) -> Self {
        Self { database }
    }
}

impl Source for OpencodeTree {
    fn agent(&self) -> &'static str {
        "opencode"
    }

    fn find(&self, roots: &Roots) -> Vec<PathBuf> {
        let Ok(Some(sessions)) = Folder::open(&home(roots).join("storage/session")) else {
            return Vec::new();
        };
        let mut projects = Vec::new();
        let listed = sessions.each(FileType::Directory, |name| {
            projects.extend(std::str::from_utf8(name).ok().map(str::to_owned));
        });
        if let Err(e) = listed {
            tracing::debug!("{e}");
        }
        projects.sort();
        let moved: HashSet<String> = self
            .database
            .find(roots)
            .iter()
            .map(|s| super::lookup::name(s))
            .collect();
        let mut all = Vec::new();
        for project in projects {
            let Ok(Some(folder)) = sessions.sub(&project) else {
                continue;
            };
            let ids = names(&folder)
                .into_iter()
                .filter(|n| is_session(n) && !moved.contains(n));
            all.extend(ids.map(|id| folder.path.join(format!("{id}.json"))));
        }
        // a sub-agent's session is none
        all.retain(|store| own(store).map_or(true, |(session, _)| !session.side));
        all
    }

    fn id(&self, store: &Path) -> String {
        id(store).map_or_else(|| super::lookup::name(store), str::to_owned)
    }

    fn recognises(&self, store: &Path) -> bool {
        storage(store).is_some() && id(store).is_some() && own(store).is_ok_and(|(session, _)| !session.side)
    }

    fn workspace(&self, store: &Path) -> Result<Option<PathBuf>> {
        let (session, updated) = own(store)?;
        Ok(summary_of(store, &session, updated, None).workspace)
    }

    fn summary(&self, store: &Path) -> Result<Summary> {
        Ok(conversation(store, 0, &Silent)?.summary)
    }

    fn read(&self, store: &Path, progress: &dyn Progress) -> Result<Conversation> {
        conversation(store, 0, progress)
    }

    fn tail(&self, store: &Path, rows: usize) -> Result<Conversation> {
        let count = infos(store).0.len() as u64;
        let mut some = (rows as u64).saturating_mul(8).max(64);
        loop {
            let from = count.saturating_sub(some);
            let tail = conversation(store, from, &Silent)?;
            if from == 0 || tail.messages.len() >= rows {
                return Ok(tail);
            }
            some = some.saturating_mul(4);
        }
    }

    fn since(&self, store: &Path, index: u64) -> Result<Conversation> {
        let mut some = conversation(store, index, &Silent)?;
        some.messages.retain(|m: &Message| m.index >= index);
        some.partial = true;
        for message in &mut some.messages {
            message.number = None;
        }
        Ok(some)
    }

    fn places(&self, roots: &Roots) -> Vec<PathBuf> {
        let sessions = home(roots).join("storage/session");
        let projects = std::fs::read_dir(&sessions).into_iter().flatten().flatten();
        let mut all: Vec<PathBuf> = projects
            .filter(|e| e.file_type().is_ok_and(|t| t.is_dir()))
            .map(|e| e.path())
            .collect();
        all.push(sessions);
        all
    }

    /// A message's parts come after it, in a folder of their own.
    fn watched(&self, store: &Path) -> Vec<PathBuf> {
        let mut all = vec![store.to_owned()];
        if let (Some(storage), Some(id)) = (storage(store), id(store)) {
            all.extend([
                storage.join("message"),
                storage.join("message").join(id),
                storage.join("part"),
            ]);
            let (messages, _) = infos(store);
            let newest = messages.iter().rev().take(2);
            all.extend(newest.map(|(id, _)| storage.join("part").join(id)));
        }
        all
    }

    fn concerns(&self, store: &Path, path: &Path) -> bool {
        let (Some(storage), Some(id)) = (storage(store), id(store)) else {
            return false;
        };
        let message = storage.join("message").join(id);
        path == store || path.starts_with(message) || path.starts_with(storage.join("part"))
    }
}
