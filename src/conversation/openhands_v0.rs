//! OpenHands V0 (0.20 to 0.62): one folder a session, `events/<n>.json` in the order of their numbers.

use std::path::{Path, PathBuf};

use chrono::{DateTime, Utc};
use rayon::prelude::*;
use rustix::fs::FileType;
use serde::Deserialize;
use serde::de::IgnoredAny;

use super::folder::{Folder, damaged};
use super::json::{List, Object, Word, with_object};
use super::{
    Conversation, ConversationError, Message, MessageKind, Result, Roots, Source, Summary, clock,
    openhands_lease, openhands_roots,
};
use crate::progress::Progress;
use crate::text;

const CHUNK: usize = 4096;
const TAIL_STEP: usize = 256;
const TAIL_MOST: usize = 4096;
/// Sessions with at most this many events are counted for a list.
const COUNTED: usize = 128;

/// The source of OpenHands V0 stores.
#[derive(Debug, Clone, Copy, Default)]
pub struct OpenHandsV0;

#[derive(Deserialize)]
struct Raw<'a> {
    #[serde(borrow, default)]
    source: Word<'a>,
    #[serde(borrow, default)]
    action: Word<'a>,
    #[serde(borrow, default)]
    timestamp: Word<'a>,
    #[serde(borrow, default)]
    args: Object<RawArgs<'a>>,
    #[serde(borrow, default)]
    observation: Word<'a>,
    #[serde(borrow, default)]
    extras: Object<RawExtras<'a>>,
}

#[derive(Deserialize)]
struct RawArgs<'a> {
    #[serde(borrow, default)]
    content: Word<'a>,
    #[serde(borrow, default)]
    image_urls: List<'a, IgnoredAny>,
    #[serde(borrow, default)]
    images_urls: List<'a, IgnoredAny>,
}

#[derive(Deserialize)]
struct RawExtras<'a> {
    #[serde(borrow, default)]
    agent_state: Word<'a>,
}

#[derive(Deserialize)]
struct RawMeta<'a> {
    #[serde(borrow, default)]
    title: Word<'a>,
}

enum Fact {
    Said {
        text: String,
        pictures: u32,
        time: Option<DateTime<Utc>>,
    },
    State(String),
    Nothing,
    Unreadable(String),
}

impl Fact {
    fn of(raw: &Raw<'_>, mtime: Option<DateTime<Utc>>) -> Self {
        if raw.source.is("user") && raw.action.is("message") {
            let args = raw.args.0.as_ref();
            let pictures = args.map_or(0, |a| match a.image_urls.len() {
                0 => a.images_urls.len(),
                n => n,
            });
            return Self::Said {
                text: args.and_then(|a| a.content.owned()).unwrap_or_default(),
                pictures: pictures as u32,
                time: raw.timestamp.text().and_then(|t| clock::instant(t, mtime)),
            };
        }
        let state = raw.extras.0.as_ref().and_then(|e| e.agent_state.owned());
        match state {
            Some(state) if raw.observation.is("agent_state_changed") => Self::State(state),
            _ => Self::Nothing,
        }
    }
}

/// The number of an event's file: `17.json`.
fn number(name: &[u8]) -> Option<u64> {
    let digits = std::str::from_utf8(name).ok()?.strip_suffix(".json")?;
    digits
        .bytes()
        .all(|b| b.is_ascii_digit())
        .then(|| digits.parse().ok())
        .flatten()
}

/// The numbers of a session's events, in order.
pub(super) fn numbers(path: &Path) -> Result<Vec<u64>> {
    Ok(Store::open(path)?.names.into_iter().map(|(n, _)| n).collect())
}

struct Store {
    folder: Folder,
    events: Folder,
    /// Number and name (`07.json` is the number 7), in order.
    names: Vec<(u64, String)>,
}

impl Store {
    fn open(path: &Path) -> Result<Self> {
        let none = || ConversationError::NotFound {
            what: format!("at {}", text::shown_path(path)),
        };
        let folder = Folder::open(path)?.ok_or_else(none)?;
        let events = folder.sub("events")?.ok_or_else(none)?;
        let mut names = Vec::new();
        events.each(FileType::RegularFile, |n| {
            names.extend(number(n).map(|i| (i, String::from_utf8_lossy(n).into_owned())));
        })?;
        names.par_sort_unstable();
        Ok(Self {
            folder,
            events,
            names,
        })
    }

    fn read(&self, range: std::ops::Range<usize>) -> Vec<Fact> {
        self.names[range]
            .par_iter()
            .with_min_len(32)
            .map_init(Vec::new, |buffer, (_, name)| {
                let read = self
                    .events
                    .read_listed(name.as_bytes(), buffer)
                    .map_err(|e| e.to_string());
                let mut repaired = Vec::new();
                read.and_then(|mtime| {
                    with_object(buffer, &mut repaired, |raw: Raw<'_>| Fact::of(&raw, Some(mtime)))
                })
                .unwrap_or_else(Fact::Unreadable)
            })
            .collect()
    }

    fn title(&self) -> Result<Option<String>> {
        let mut buffer = Vec::new();
        let mut repaired = Vec::new();
        let Some(_) = self.folder.read_named("metadata.json", &mut buffer)? else {
            return Ok(None);
        };
        with_object(&buffer, &mut repaired, |m: RawMeta<'_>| m.title.owned())
            .map(|t| t.filter(|t| !t.trim().is_empty()))
            .map_err(|reason| damaged(&self.folder.path.join("metadata.json"), reason))
    }

    /// Builds the conversation of the facts from position `first` on.
    fn conversation(&self, path: &Path, first: usize, facts: Vec<Fact>, rows: Option<usize>) -> Conversation {
        let changed = self.folder.mtime("events");
        let mut notices = Vec::new();
        let title = self.title().unwrap_or_else(|e| {
            notices.push(e.to_string());
            None
        });
        let mut status: Option<String> = None;
        let mut messages = Vec::new();
        for ((index, name), fact) in self.names[first..].iter().zip(facts) {
            match fact {
                Fact::Said { text, pictures, time } => {
                    messages.push(message(*index, text, pictures, time, status.as_deref()));
                }
                Fact::State(state) => status = Some(state),
                Fact::Unreadable(reason) if notices.len() < 20 => {
                    notices.push(format!(
                        "events/{} is left out: {}",
                        text::shown(name),
                        text::shown(&reason)
                    ));
                }
                Fact::Nothing | Fact::Unreadable(_) => {}
            }
        }
        let cut = rows.map_or(0, |rows| messages.len().saturating_sub(rows));
        messages.drain(..cut);
        let partial = first > 0 || cut > 0;
        if !partial {
            (1..).zip(&mut messages).for_each(|(n, m)| m.number = Some(n));
        }
        let at_work = status.as_deref() == Some("running") && openhands_lease::since_boot(changed);
        let summary = Summary {
            id: path
                .file_name()
                .map(|n| n.to_string_lossy().into_owned())
                .unwrap_or_default(),
            agent: "openhands",
            store: path.to_owned(),
            workspace: None,
            title: title.or_else(|| {
                messages
                    .first()
                    .filter(|_| !partial)
                    .map(|m| text::first_line(&m.text))
            }),
            messages: (!partial).then_some(messages.len() as u64),
            updated_at: changed,
            live: at_work,
        };
        Conversation {
            summary,
            messages,
            status,
            at_work,
            acted: None,
            events: self.names.len() as u64,
            notices,
            partial,
        }
    }
}

fn message(
    index: u64,
    text: String,
    pictures: u32,
    time: Option<DateTime<Utc>>,
    status: Option<&str>,
) -> Message {
    Message {
        id: index.to_string(),
        index,
        number: None,
        kind: if status == Some("running") {
            MessageKind::Queued
        } else {
            MessageKind::Prompt
        },
        time,
        text,
        pictures,
        active: true,
        branch: 0,
        parent: index.checked_sub(1).map(|p| p.to_string()),
        hooks: Vec::new(),
    }
}

impl Source for OpenHandsV0 {
    fn agent(&self) -> &'static str {
        "openhands"
    }

    fn find(&self, roots: &Roots) -> Vec<PathBuf> {
        openhands_roots::stores(&openhands_roots::v0(roots), |s| self.recognises(s))
    }

    fn recognises(&self, store: &Path) -> bool {
        let Ok(Some(folder)) = Folder::open(store) else {
            return false;
        };
        let Ok(Some(events)) = folder.sub("events") else {
            return false;
        };
        !folder.has_file("base_state.json")
            && (folder.has_file("metadata.json")
                || events
                    .any(FileType::RegularFile, |n| number(n).is_some())
                    .unwrap_or(false))
    }

    fn workspace(&self, _store: &Path) -> Result<Option<PathBuf>> {
        Ok(None) // not recorded in a session
    }

    fn summary(&self, store: &Path) -> Result<Summary> {
        let opened = Store::open(store)?;
        let total = opened.names.len();
        if total <= COUNTED {
            return Ok(opened.conversation(store, 0, opened.read(0..total), None).summary);
        }
        let mut summary = opened
            .conversation(store, total - COUNTED, opened.read(total - COUNTED..total), None)
            .summary;
        if summary.title.is_none() {
            summary.title = opened.read(0..COUNTED).into_iter().find_map(|f| match f {
                Fact::Said { text, .. } => Some(text::first_line(&text)),
                _ => None,
            });
        }
        Ok(summary)
    }

    fn read(&self, store: &Path, progress: &dyn Progress) -> Result<Conversation> {
        let opened = Store::open(store)?;
        let total = opened.names.len();
        let mut facts = Vec::with_capacity(total);
        while facts.len() < total {
            if progress.cancelled() {
                return Err(ConversationError::Cancelled);
            }
            facts.extend(opened.read(facts.len()..total.min(facts.len() + CHUNK)));
            progress.step("reading", facts.len() as u64, total as u64);
        }
        Ok(opened.conversation(store, 0, facts, None))
    }

    fn tail(&self, store: &Path, rows: usize) -> Result<Conversation> {
        let opened = Store::open(store)?;
        let total = opened.names.len();
        let said = |facts: &[Fact]| facts.iter().filter(|f| matches!(f, Fact::Said { .. })).count();
        let (mut facts, mut from, mut found) = (Vec::new(), total, 0);
        while found < rows && from > 0 && total - from < TAIL_MOST {
            let start = from.saturating_sub(TAIL_STEP);
            let mut earlier = opened.read(start..from);
            found += said(&earlier);
            earlier.append(&mut facts);
            (facts, from) = (earlier, start);
        }
        Ok(opened.conversation(store, from, facts, Some(rows)))
    }

    fn watched(&self, store: &Path) -> Vec<PathBuf> {
        vec![store.join("events"), store.to_owned()]
    }
}
