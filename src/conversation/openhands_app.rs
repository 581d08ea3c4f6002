//! The copies that the OpenHands V1 app keeps on the host of conversations that live in its containers:
//! `v1_conversations/<id>/<event id>.json`, without an index, so in the order of their timestamps.

use std::path::{Path, PathBuf};

use chrono::{DateTime, Utc};
use rayon::prelude::*;
use rustix::fs::FileType;

use super::folder::Folder;
use super::openhands_event::{self, Event, Fact};
use super::openhands_tree::{Head, grow};
use super::{Conversation, ConversationError, Result, Roots, Source, Summary, openhands_roots};
use crate::progress::{Progress, Silent};
use crate::text;

/// The source of the V1 app's copies.
#[derive(Debug, Clone, Copy, Default)]
pub struct OpenHandsApp;

/// True for the name of an event's copy: its id, without dashes or with them.
fn is_event(name: &[u8]) -> bool {
    name.strip_suffix(b".json")
        .is_some_and(|id| id.iter().filter(|b| b.is_ascii_hexdigit()).count() == 32 && id.len() <= 36)
}

fn open(store: &Path) -> Result<(Folder, Vec<String>)> {
    let none = || ConversationError::NotFound {
        what: format!("at {}", text::shown_path(store)),
    };
    let folder = Folder::open(store)?.ok_or_else(none)?;
    let mut names = Vec::new();
    folder.each(FileType::RegularFile, |n| {
        if is_event(n) {
            names.push(String::from_utf8_lossy(n).into_owned());
        }
    })?;
    Ok((folder, names))
}

fn read_event(folder: &Folder, name: &str, buffer: &mut Vec<u8>) -> (String, Event) {
    let id = name.trim_end_matches(".json");
    let read = folder
        .read_listed(name.as_bytes(), buffer)
        .map_err(|e| e.to_string());
    let event = read.and_then(|mtime| {
        Ok((
            openhands_event::stamp(buffer),
            openhands_event::parse(buffer, id, Some(mtime))?,
        ))
    });
    event.unwrap_or_else(|reason| (String::new(), Event::unreadable(id, reason)))
}

fn summary(store: &Path, folder: &Folder) -> Summary {
    let updated: Option<DateTime<Utc>> = folder.mtime(".");
    Summary {
        id: store
            .file_name()
            .map(|n| n.to_string_lossy().into_owned())
            .unwrap_or_default(),
        agent: "openhands",
        store: store.to_owned(),
        workspace: None,
        title: None,
        messages: None,
        updated_at: updated,
        live: false,
    }
}

impl Source for OpenHandsApp {
    fn agent(&self) -> &'static str {
        "openhands"
    }

    fn find(&self, roots: &Roots) -> Vec<PathBuf> {
        openhands_roots::stores(&openhands_roots::app(roots), |s| self.recognises(s))
    }

    fn recognises(&self, store: &Path) -> bool {
        let Ok(Some(folder)) = Folder::open(store) else {
            return false;
        };
        !folder.has_file("base_state.json") && folder.any(FileType::RegularFile, is_event).unwrap_or(false)
    }

    fn workspace(&self, _store: &Path) -> Result<Option<PathBuf>> {
        Ok(None) // a path inside the container, and not in these copies
    }

    fn summary(&self, store: &Path) -> Result<Summary> {
        self.read(store, &Silent).map(|c| c.summary)
    }

    fn read(&self, store: &Path, progress: &dyn Progress) -> Result<Conversation> {
        let (folder, names) = open(store)?;
        if progress.cancelled() {
            return Err(ConversationError::Cancelled);
        }
        let mut read: Vec<(String, Event)> = names
            .par_iter()
            .with_min_len(32)
            .map_init(Vec::new, |buffer, name| read_event(&folder, name, buffer))
            .collect();
        read.sort_by(|a, b| (&a.0, &a.1.id).cmp(&(&b.0, &b.1.id)));
        progress.step("reading", read.len() as u64, read.len() as u64);
        let events: Vec<Event> = read.into_iter().map(|(_, event)| event).collect();
        let grown = grow(&events, 0, &Head::Newest, false);
        let bad = events.iter().filter_map(|e| match &e.fact {
            Fact::Unreadable(why) => Some(format!(
                "{}.json is left out: {}",
                text::shown(&e.id),
                text::shown(why)
            )),
            _ => None,
        });
        let mut summary = summary(store, &folder);
        summary.messages = Some(grown.messages.len() as u64);
        summary.title = grown.messages.first().map(|m| text::first_line(&m.text));
        Ok(Conversation {
            summary,
            status: None,
            at_work: false,
            acted: None,
            events: events.len() as u64,
            notices: grown.notices.into_iter().chain(bad.take(20)).collect(),
            messages: grown.messages,
            partial: false,
        })
    }

    fn tail(&self, store: &Path, rows: usize) -> Result<Conversation> {
        // without an index the order is known only when all were read
        let mut all = self.read(store, &Silent)?;
        let cut = all.messages.len().saturating_sub(rows);
        all.messages.drain(..cut);
        all.partial = cut > 0;
        Ok(all)
    }

    fn watched(&self, store: &Path) -> Vec<PathBuf> {
        vec![store.to_owned()]
    }
}
