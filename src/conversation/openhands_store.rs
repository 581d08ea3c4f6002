//! The event files of an OpenHands V1 conversation: their names, their order, their gaps, reading them.

use std::path::Path;

use rayon::prelude::*;
use rustix::fs::FileType;

use super::folder::Folder;
use super::openhands_base::{RETRIES, RETRY_PAUSE, is_fresh};
use super::openhands_event::{self, Event, Fact};
use super::{ConversationError, Result};
use crate::text;

/// The names in `events/` in the order of their numbers; all their text in one piece.
#[derive(Debug, Default)]
pub(super) struct Names {
    text: String,
    /// Number, where the name begins in `text`, where its id begins and where it ends.
    at: Vec<(u64, usize, usize, usize)>,
}

impl Names {
    /// Adds `event-00017-<id>.json`, five or more digits, as the SDK's own pattern; nothing else.
    fn add(&mut self, name: &[u8]) {
        let Some((index, id_at)) = event_name(name) else {
            return;
        };
        let start = self.text.len();
        self.text.extend(name.iter().map(|&b| b as char));
        self.at.push((index, start, start + id_at, self.text.len()));
    }

    fn name(&self, i: usize) -> &str {
        &self.text[self.at[i].1..self.at[i].3]
    }

    fn id(&self, i: usize) -> &str {
        &self.text[self.at[i].2..self.at[i].3 - ".json".len()]
    }

    pub(super) fn len(&self) -> usize {
        self.at.len()
    }

    /// Sorts; keeps one of several with the same number. Returns how many it left out.
    fn settle(&mut self) -> usize {
        let text = &self.text;
        self.at
            .par_sort_unstable_by(|a, b| a.0.cmp(&b.0).then_with(|| text[b.1..b.3].cmp(&text[a.1..a.3])));
        let before = self.at.len();
        self.at.dedup_by_key(|a| a.0);
        before - self.at.len()
    }
}

/// The number in an event file's name and where its id begins. The name is ASCII then.
pub(super) fn event_name(name: &[u8]) -> Option<(u64, usize)> {
    let rest = name.strip_prefix(b"event-")?.strip_suffix(b".json")?;
    let digits = rest.iter().take_while(|b| b.is_ascii_digit()).count();
    let id = rest[digits..].strip_prefix(b"-")?;
    let id_fits = id.len() >= 8 && id.iter().all(|&b| b.is_ascii_hexdigit() || b == b'-');
    if digits < 5 || !id_fits {
        return None;
    }
    let number = rest[..digits]
        .iter()
        .try_fold(0u64, |n, b| n.checked_mul(10)?.checked_add(u64::from(b - b'0')))?;
    Some((number, 6 + digits + 1))
}

/// An open store and the names of its events up to the first gap, in order.
pub(super) struct Store {
    pub(super) folder: Folder,
    events: Option<Folder>,
    pub(super) names: Names,
    pub(super) notices: Vec<String>,
}

impl Store {
    pub(super) fn open(path: &Path) -> Result<Self> {
        let folder = Folder::open(path)?.ok_or_else(|| no_store(path))?;
        let events = folder.sub("events")?;
        if events.is_none() && !folder.has_file("base_state.json") {
            return Err(no_store(path));
        }
        Ok(Self {
            folder,
            events,
            names: Names::default(),
            notices: Vec::new(),
        })
    }

    /// Lists the events. Read `base_state.json` before: an event is written before the state that names it.
    pub(super) fn list(&mut self) -> Result<()> {
        let Some(events) = &self.events else { return Ok(()) };
        let mut names = Names::default();
        events.each(FileType::RegularFile, |name| names.add(name))?;
        let twice = names.settle();
        if twice > 0 {
            self.notices
                .push(format!("{twice} events have the number of another one"));
        }
        let whole = names.at.iter().zip(0..).take_while(|(n, i)| n.0 == *i).count();
        if whole < names.len() {
            self.notices.push(format!(
                "event {whole} is missing: the {} after it are left out, as OpenHands does",
                names.len() - whole
            ));
            names.at.truncate(whole);
        }
        self.names = names;
        Ok(())
    }

    /// Reads the events of `range`, in parallel.
    pub(super) fn read(&self, range: std::ops::Range<usize>) -> Vec<Event> {
        let Some(events) = &self.events else {
            return Vec::new();
        };
        range
            .into_par_iter()
            .with_min_len(32)
            .map_init(Vec::new, |buffer, i| {
                read_event(events, self.names.name(i), self.names.id(i), buffer)
            })
            .collect()
    }

    /// Deals with a newest event that cannot be read: it may be half written. Drops it if it stays so.
    pub(super) fn settle_newest(&mut self, read: &mut Vec<Event>) {
        let (Some(events), Some(last)) = (&self.events, self.names.len().checked_sub(1)) else {
            return;
        };
        let name = self.names.name(last);
        if !read.last().is_some_and(|e| matches!(e.fact, Fact::Unreadable(_))) {
            return;
        }
        let mut buffer = Vec::new();
        for _ in 0..RETRIES {
            if !events.mtime(name).is_some_and(is_fresh) {
                break;
            }
            std::thread::sleep(RETRY_PAUSE);
            let again = read_event(events, name, self.names.id(last), &mut buffer);
            if !matches!(again.fact, Fact::Unreadable(_)) {
                read.pop();
                read.push(again);
                return;
            }
        }
    }
}

fn read_event(events: &Folder, name: &str, id: &str, buffer: &mut Vec<u8>) -> Event {
    let read = events
        .read_listed(name.as_bytes(), buffer)
        .map_err(|e| e.to_string());
    read.and_then(|mtime| openhands_event::parse(buffer, id, Some(mtime)))
        .unwrap_or_else(|reason| Event::unreadable(id, reason))
}

/// One line for each event that could not be read, at most twenty of them.
pub(super) fn unreadable(events: &[Event], names: &Names, from: usize, notices: &mut Vec<String>) {
    let mut more = 0;
    for (i, event) in events.iter().enumerate() {
        if let Fact::Unreadable(reason) = &event.fact {
            if notices.len() < 20 {
                notices.push(format!(
                    "events/{} is left out: {}",
                    names.name(from + i),
                    text::shown(reason)
                ));
            } else {
                more += 1;
            }
        }
    }
    if more > 0 {
        notices.push(format!("{more} more events cannot be read"));
    }
}

fn no_store(path: &Path) -> ConversationError {
    ConversationError::NotFound {
        what: format!("at {}", text::shown_path(path)),
    }
}
