//! OpenHands V1 (SDK 1.x: the CLI, the agent server, Agent Canvas): one folder a conversation,
//! `base_state.json` and `events/event-NNNNN-<id>.json`, a tree since SDK 1.31. Read as the SDK's own
//! `event_store.py` and `state.py` read it.

use std::path::{Path, PathBuf};

use chrono::{DateTime, Utc};
use rustix::fs::FileType;
use serde::Deserialize;

use super::folder::Folder;
use super::json::{Word, with_object};
use super::openhands_base::Base;
use super::openhands_event::{Event, Fact};
use super::openhands_lease as lease;
use super::openhands_store::{Store, event_name, unreadable};
use super::openhands_tree::{Grown, grow};
use super::{Conversation, ConversationError, Result, Roots, Source, Summary, openhands_roots};
use crate::progress::Progress;
use crate::text;

/// Event files read between two looks at the cancel flag.
const CHUNK: usize = 4096;
/// Event files that [`Source::tail`] reads at most, in runs of [`TAIL_STEP`].
const TAIL_MOST: usize = 4096;
const TAIL_STEP: usize = 256;
/// Events before the oldest row of a tail in which its hook's run is looked for.
const HOOK_REACH: usize = 16;
/// Conversations with at most this many events are counted for a list.
const COUNTED: usize = 128;

/// The source of OpenHands V1 stores.
#[derive(Debug, Clone, Copy, Default)]
pub struct OpenHandsV1;

/// What `meta.json` of the agent server says.
#[derive(Deserialize)]
struct RawMeta<'a> {
    #[serde(borrow, default)]
    title: Word<'a>,
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

    fn conversation(store: Store, path: &Path, base: Base, grown: Grown, partial: bool) -> Conversation {
        let Grown {
            messages,
            notices,
            acted,
        } = grown;
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
            acted,
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
            .any(FileType::RegularFile, |n| event_name(n).is_some())
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
        let mut grown = grow(
            &events,
            0,
            &base.head(),
            base.status.as_deref() == Some("running"),
        );
        unreadable(&events, &opened.names, 0, &mut grown.notices);
        Ok(Self::conversation(opened, store, base, grown, false))
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
        unreadable(&events, &opened.names, from, &mut grown.notices);
        let partial = from > 0 || cut > 0;
        Ok(Self::conversation(opened, store, base, grown, partial))
    }

    fn since(&self, store: &Path, index: u64) -> Result<Conversation> {
        let mut opened = Store::open(store)?;
        let base = Base::read(&opened.folder)?;
        opened.list()?;
        let total = opened.names.len();
        let from = usize::try_from(index)
            .unwrap_or(total)
            .min(total)
            .saturating_sub(HOOK_REACH);
        let mut events = opened.read(from..total);
        opened.settle_newest(&mut events);
        let running = base.status.as_deref() == Some("running");
        let mut grown = grow(&events, from as u64, &base.head(), running);
        grown.messages.retain(|m| m.index >= index);
        unreadable(&events, &opened.names, from, &mut grown.notices);
        Ok(Self::conversation(opened, store, base, grown, true))
    }

    fn places(&self, roots: &Roots) -> Vec<PathBuf> {
        openhands_roots::v1(roots)
    }

    fn watched(&self, store: &Path) -> Vec<PathBuf> {
        vec![store.join("events"), store.to_owned()]
    }
}
