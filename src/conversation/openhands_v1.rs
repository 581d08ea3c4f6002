//! OpenHands V1 (SDK 1.x: the CLI, the agent server, Agent Canvas): one folder a conversation,
//! `base_state.json` and `events/event-NNNNN-<id>.json`, a tree since SDK 1.31. Read as the SDK's own
//! `event_store.py` and `state.py` read it.

use std::path::{Path, PathBuf};
use std::time::Duration;

use chrono::{DateTime, Utc};
use rayon::prelude::*;
use rustix::fs::FileType;
use serde::Deserialize;

use super::folder::{Folder, damaged};
use super::json::{Object, Word, with_object};
use super::openhands_event::{self, Event, Fact};
use super::openhands_lease as lease;
use super::openhands_tree::{Head, grow};
use super::{Conversation, ConversationError, Message, Result, Roots, Source, Summary, openhands_roots};
use crate::progress::Progress;
use crate::text;

/// Event files read between two looks at the cancel flag.
const CHUNK: usize = 4096;
/// Event files that [`Source::tail`] reads at most, in runs of [`TAIL_STEP`].
const TAIL_MOST: usize = 4096;
const TAIL_STEP: usize = 256;
/// Events before the oldest row of a tail in which its hook's run is looked for.
const HOOK_REACH: usize = 16;
/// A newest file that is younger than this may still be being written.
const FRESH: Duration = Duration::from_secs(2);
const RETRIES: u32 = 5;
const RETRY_PAUSE: Duration = Duration::from_millis(15);
/// Conversations with at most this many events are counted for a list.
const COUNTED: usize = 128;

/// The source of OpenHands V1 stores.
#[derive(Debug, Clone, Copy, Default)]
pub struct OpenHandsV1;

/// A name in `events/`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Listed {
    index: u64,
    name: String,
}

impl Listed {
    /// Parses `event-00017-<id>.json`, five or more digits, as the SDK's own pattern.
    fn parse(name: &[u8]) -> Option<Self> {
        let name = std::str::from_utf8(name).ok()?;
        let (digits, id) = name
            .strip_prefix("event-")?
            .strip_suffix(".json")?
            .split_once('-')?;
        let id_fits = id.len() >= 8 && id.bytes().all(|b| b.is_ascii_hexdigit() || b == b'-');
        let fits = digits.len() >= 5 && digits.bytes().all(|b| b.is_ascii_digit()) && id_fits;
        fits.then(|| digits.parse().ok()).flatten().map(|index| Self {
            index,
            name: name.to_owned(),
        })
    }

    fn id(&self) -> &str {
        let from = self.name[6..].find('-').map_or(self.name.len(), |i| i + 7);
        self.name[from..].trim_end_matches(".json")
    }
}

/// What `base_state.json` says.
#[derive(Debug, Default)]
struct Base {
    id: Option<String>,
    workspace: Option<PathBuf>,
    status: Option<String>,
    leaf: Option<String>,
    head_is_empty: bool,
}

#[derive(Deserialize)]
struct RawBase<'a> {
    #[serde(borrow, default)]
    id: Word<'a>,
    #[serde(borrow, default)]
    workspace: Object<RawWorkspace<'a>>,
    #[serde(borrow, default)]
    execution_status: Word<'a>,
    #[serde(borrow, default)]
    leaf_event_id: Word<'a>,
    #[serde(borrow, default)]
    head_is_empty: Word<'a>,
}

#[derive(Deserialize)]
struct RawWorkspace<'a> {
    #[serde(borrow, default)]
    working_dir: Word<'a>,
}

/// What `meta.json` of the agent server says.
#[derive(Deserialize)]
struct RawMeta<'a> {
    #[serde(borrow, default)]
    title: Word<'a>,
}

impl Base {
    fn of(raw: &RawBase<'_>) -> Self {
        Self {
            id: raw.id.owned(),
            workspace: raw
                .workspace
                .0
                .as_ref()
                .and_then(|w| w.working_dir.owned())
                .map(PathBuf::from),
            status: raw.execution_status.owned(),
            leaf: raw.leaf_event_id.owned(),
            head_is_empty: raw.head_is_empty.is("true"),
        }
    }

    fn head(&self) -> Head {
        match &self.leaf {
            Some(id) => Head::At(id.clone()),
            None if self.head_is_empty => Head::Empty,
            None => Head::Newest,
        }
    }

    /// Reads it; a store without one (never saved) is as one with nothing in it.
    fn read(store: &Folder) -> Result<Self> {
        let mut buffer = Vec::new();
        for attempt in 0.. {
            let Some(mtime) = store.read_named("base_state.json", &mut buffer)? else {
                return Ok(Self::default());
            };
            let mut repaired = Vec::new();
            match with_object(&buffer, &mut repaired, |raw: RawBase<'_>| Self::of(&raw)) {
                Ok(base) => return Ok(base),
                Err(_) if attempt < RETRIES && is_fresh(mtime) => std::thread::sleep(RETRY_PAUSE),
                Err(reason) => return Err(damaged(&store.path.join("base_state.json"), reason)),
            }
        }
        Ok(Self::default())
    }
}

fn is_fresh(mtime: DateTime<Utc>) -> bool {
    (Utc::now() - mtime).to_std().map_or(true, |age| age < FRESH)
}

/// An open store and the names of its events up to the first gap, in order.
struct Store {
    folder: Folder,
    events: Option<Folder>,
    names: Vec<Listed>,
    notices: Vec<String>,
}

impl Store {
    fn open(path: &Path) -> Result<Self> {
        let folder = Folder::open(path)?.ok_or_else(|| no_store(path))?;
        let events = folder.sub("events")?;
        if events.is_none() && !folder.has_file("base_state.json") {
            return Err(no_store(path));
        }
        Ok(Self {
            folder,
            events,
            names: Vec::new(),
            notices: Vec::new(),
        })
    }

    /// Lists the events. Read `base_state.json` before: an event is written before the state that names it.
    fn list(&mut self) -> Result<()> {
        let Some(events) = &self.events else { return Ok(()) };
        let mut names = Vec::new();
        events.each(FileType::RegularFile, |name| names.extend(Listed::parse(name)))?;
        names.par_sort_unstable();
        let before = names.len();
        names.dedup_by(|later, earlier| {
            let same = later.index == earlier.index;
            if same {
                std::mem::swap(later, earlier); // the last of several is kept
            }
            same
        });
        if names.len() < before {
            self.notices.push(format!(
                "{} events have the number of another one",
                before - names.len()
            ));
        }
        let whole = names.iter().zip(0..).take_while(|(n, i)| n.index == *i).count();
        if whole < names.len() {
            self.notices.push(format!(
                "event {whole} is missing: the {} after it are left out, as OpenHands does",
                names.len() - whole
            ));
            names.truncate(whole);
        }
        self.names = names;
        Ok(())
    }

    /// Reads the events of `range`, in parallel.
    fn read(&self, range: std::ops::Range<usize>) -> Vec<Event> {
        let Some(events) = &self.events else {
            return Vec::new();
        };
        self.names[range]
            .par_iter()
            .with_min_len(32)
            .map_init(Vec::new, |buffer, listed| read_event(events, listed, buffer))
            .collect()
    }

    /// Deals with a newest event that cannot be read: it may be half written. Drops it if it stays so.
    fn settle_newest(&mut self, read: &mut Vec<Event>) {
        let (Some(events), Some(listed)) = (&self.events, self.names.last()) else {
            return;
        };
        if !read.last().is_some_and(|e| matches!(e.fact, Fact::Unreadable(_))) {
            return;
        }
        let mut buffer = Vec::new();
        for _ in 0..RETRIES {
            if !events.mtime(&listed.name).is_some_and(is_fresh) {
                break;
            }
            std::thread::sleep(RETRY_PAUSE);
            let again = read_event(events, listed, &mut buffer);
            if !matches!(again.fact, Fact::Unreadable(_)) {
                read.pop();
                read.push(again);
                return;
            }
        }
    }
}

fn read_event(events: &Folder, listed: &Listed, buffer: &mut Vec<u8>) -> Event {
    let read = events
        .read_listed(listed.name.as_bytes(), buffer)
        .map_err(|e| e.to_string());
    read.and_then(|mtime| openhands_event::parse(buffer, listed.id(), Some(mtime)))
        .unwrap_or_else(|reason| Event::unreadable(listed.id(), reason))
}

/// One line for each event that could not be read, at most twenty of them.
fn unreadable(events: &[Event], names: &[Listed], notices: &mut Vec<String>) {
    let mut more = 0;
    for (event, listed) in events.iter().zip(names) {
        if let Fact::Unreadable(reason) = &event.fact {
            if notices.len() < 20 {
                notices.push(format!(
                    "events/{} is left out: {}",
                    text::shown(&listed.name),
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

fn id_of(base: &Base, path: &Path) -> String {
    base.id.clone().unwrap_or_else(|| {
        path.file_name()
            .map(|n| n.to_string_lossy().into_owned())
            .unwrap_or_default()
    })
}

impl OpenHandsV1 {
    fn summary_of(store: &Store, path: &Path, base: &Base) -> Summary {
        let mtimes = [
            store.folder.mtime("base_state.json"),
            store.folder.mtime("events"),
        ];
        let held = lease::of(&store.folder);
        let at_work = at_work(base, held, mtimes[0]);
        let mut buffer = Vec::new();
        let mut repaired = Vec::new();
        let title = match store.folder.read_named("meta.json", &mut buffer) {
            Ok(Some(_)) => with_object(&buffer, &mut repaired, |m: RawMeta<'_>| m.title.owned())
                .ok()
                .flatten(),
            _ => None,
        };
        Summary {
            id: id_of(base, path),
            agent: "openhands",
            store: path.to_owned(),
            workspace: base.workspace.clone(),
            title: title.filter(|t| !t.trim().is_empty()),
            messages: None,
            updated_at: mtimes.into_iter().flatten().max(),
            live: at_work || held == lease::Held::Yes,
        }
    }

    fn conversation(
        store: Store,
        path: &Path,
        base: Base,
        messages: Vec<Message>,
        notices: Vec<String>,
        partial: bool,
    ) -> Conversation {
        let mut summary = Self::summary_of(&store, path, &base);
        if !partial {
            summary.messages = Some(messages.len() as u64);
            summary.title = summary
                .title
                .or_else(|| messages.first().map(|m| text::first_line(&m.text)));
        }
        let at_work = at_work(
            &base,
            lease::of(&store.folder),
            store.folder.mtime("base_state.json"),
        );
        Conversation {
            summary,
            messages,
            status: base.status,
            at_work,
            events: store.names.len() as u64,
            notices: store.notices.into_iter().chain(notices).collect(),
            partial,
        }
    }
}

/// The store says `running`, and nothing shows that this is a left-over of a killed process.
fn at_work(base: &Base, held: lease::Held, changed: Option<DateTime<Utc>>) -> bool {
    base.status.as_deref() == Some("running")
        && match held {
            lease::Held::Yes => true,
            lease::Held::No => false,
            lease::Held::Unknown => lease::since_boot(changed),
        }
}

impl Source for OpenHandsV1 {
    fn agent(&self) -> &'static str {
        "openhands"
    }

    fn find(&self, roots: &Roots) -> Vec<PathBuf> {
        openhands_roots::stores(&openhands_roots::v1(roots), |s| self.recognises(s))
    }

    fn recognises(&self, store: &Path) -> bool {
        let Ok(Some(folder)) = Folder::open(store) else {
            return false;
        };
        if folder.has_file("base_state.json") {
            return true;
        }
        let Ok(Some(events)) = folder.sub("events") else {
            return false;
        };
        events
            .any(FileType::RegularFile, |n| Listed::parse(n).is_some())
            .unwrap_or(false)
    }

    fn workspace(&self, store: &Path) -> Result<Option<PathBuf>> {
        Ok(Base::read(&Store::open(store)?.folder)?.workspace)
    }

    fn summary(&self, store: &Path) -> Result<Summary> {
        let mut opened = Store::open(store)?;
        let base = Base::read(&opened.folder)?;
        let mut summary = Self::summary_of(&opened, store, &base);
        opened.list()?;
        let first = opened.names.len().min(COUNTED);
        let messages = grow(&opened.read(0..first), 0, &base.head(), false).messages;
        if first == opened.names.len() {
            summary.messages = Some(messages.len() as u64);
        }
        summary.title = summary
            .title
            .or_else(|| messages.first().map(|m| text::first_line(&m.text)));
        Ok(summary)
    }

    fn read(&self, store: &Path, progress: &dyn Progress) -> Result<Conversation> {
        let mut opened = Store::open(store)?;
        let base = Base::read(&opened.folder)?;
        opened.list()?;
        let total = opened.names.len();
        let mut events = Vec::with_capacity(total);
        while events.len() < total {
            if progress.cancelled() {
                return Err(ConversationError::Cancelled);
            }
            events.extend(opened.read(events.len()..total.min(events.len() + CHUNK)));
            progress.step("reading", events.len() as u64, total as u64);
        }
        opened.settle_newest(&mut events);
        let grown = grow(
            &events,
            0,
            &base.head(),
            base.status.as_deref() == Some("running"),
        );
        let mut notices = grown.notices;
        unreadable(&events, &opened.names, &mut notices);
        Ok(Self::conversation(
            opened,
            store,
            base,
            grown.messages,
            notices,
            false,
        ))
    }

    fn tail(&self, store: &Path, rows: usize) -> Result<Conversation> {
        let mut opened = Store::open(store)?;
        let base = Base::read(&opened.folder)?;
        opened.list()?;
        let total = opened.names.len();
        let mut from = total.saturating_sub(TAIL_STEP);
        let mut events = opened.read(from..total);
        opened.settle_newest(&mut events);
        let said = |events: &[Event]| {
            events
                .iter()
                .filter(|e| matches!(e.fact, Fact::Message(_)))
                .count()
        };
        let mut found = said(&events);
        while found < rows && from > 0 && total - from < TAIL_MOST {
            let start = from.saturating_sub(TAIL_STEP * 2);
            let mut earlier = opened.read(start..from);
            found += said(&earlier);
            earlier.append(&mut events);
            (events, from) = (earlier, start);
        }
        if from > 0 {
            let start = from.saturating_sub(HOOK_REACH);
            let mut earlier = opened.read(start..from);
            earlier.append(&mut events);
            (events, from) = (earlier, start);
        }
        let running = base.status.as_deref() == Some("running");
        let mut grown = grow(&events, from as u64, &base.head(), running);
        // of the very first event read, what came before it is not known
        grown.messages.retain(|m| from == 0 || m.index > from as u64);
        let cut = grown.messages.len().saturating_sub(rows);
        grown.messages.drain(..cut);
        unreadable(&events, &opened.names[from..], &mut grown.notices);
        let partial = from > 0 || cut > 0;
        Ok(Self::conversation(
            opened,
            store,
            base,
            grown.messages,
            grown.notices,
            partial,
        ))
    }

    fn watched(&self, store: &Path) -> Vec<PathBuf> {
        vec![store.join("events"), store.to_owned()]
    }
}
