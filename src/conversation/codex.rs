//! Codex CLI: a thread is a conversation, stored under the path of its first rollout.

use std::path::{Path, PathBuf};

use chrono::Utc;

use super::claude_code::word;
use super::claude_gather::HEAD;
use super::codex_files::{Lately, Name, Rollouts, home, home_of, newest};
use super::codex_record::is_ours;
use super::codex_thread::{Reading, Thread, head};
use super::jsonl::{Jsonl, split};
use super::openhands_lease::Held;
use super::rows::messages;
use super::stage::at_work;
use super::{Conversation, ConversationError, Message, Result, Roots, Source, Summary};
use crate::progress::{Progress, Silent};
use crate::text;

/// A tail begins with so much, and reads at most so much.
const TAIL: u64 = 256 << 10;
const TAIL_MOST: u64 = 32 << 20;
/// So much before is read too: a message in the middle of a turn is told by the turn's first one.
const BACK: u64 = 256 << 10;
/// What the first record says of a thread that another one began stands in so much of it.
const SIDE: u64 = 4 << 10;

/// The source of Codex's threads.
#[derive(Default)]
pub struct Codex {
    lately: Lately,
}

fn not_found(store: &Path) -> ConversationError {
    ConversationError::NotFound {
        what: format!("at {}", text::shown_path(store)),
    }
}

/// A sub-agent's thread.
fn is_side(rollout: &Path) -> bool {
    let read = || {
        let file = Jsonl::open(rollout).ok()??;
        file.bytes(0..file.len.min(SIDE)).ok()
    };
    let marks = [
        &b"\"thread_source\":\"subagent\""[..],
        &b"\"source\":{\"subagent\""[..],
    ];
    read().is_some_and(|bytes| {
        let line = bytes.split(|b| *b == b'\n').next().unwrap_or_default();
        marks.iter().any(|m| memchr::memmem::find(line, m).is_some())
    })
}

fn summary_of(store: &Path, thread: &Thread, stage: Option<super::claude_record::Stage>) -> (Summary, bool) {
    let changed = thread.changed();
    let at_work = at_work(stage, Held::Unknown, changed.unwrap_or_else(Utc::now));
    let summary = Summary {
        id: Codex::thread(store),
        agent: "codex",
        store: store.to_owned(),
        workspace: thread.cwd(),
        title: None,
        messages: None,
        updated_at: changed,
        live: at_work,
    };
    (summary, at_work)
}

fn conversation(store: &Path, thread: &Thread, mut reading: Reading) -> Conversation {
    let (mut summary, at_work) = summary_of(store, thread, reading.stage);
    let messages = messages(reading.rows(), reading.whole);
    let first = messages.first().filter(|_| reading.whole);
    summary.title = first.map(|m| text::first_line(&m.text));
    summary.messages = reading.whole.then_some(messages.len() as u64);
    Conversation {
        summary,
        messages,
        status: reading.stage.map(|s| word(s).to_owned()),
        at_work,
        events: reading.end,
        acted: reading.acted,
        notices: reading.notices,
        partial: !reading.whole,
    }
}

impl Codex {
    fn thread(store: &Path) -> String {
        Name::of(store).map_or_else(|| super::lookup::name(store), |n| n.thread)
    }

    /// With all rollouts as they are now.
    fn open(store: &Path) -> Result<Thread> {
        Jsonl::open(store)?.ok_or_else(|| not_found(store))?;
        Thread::open(store, &Rollouts::around(store))?.ok_or_else(|| not_found(store))
    }
}

impl Source for Codex {
    fn agent(&self) -> &'static str {
        "codex"
    }

    fn find(&self, roots: &Roots) -> Vec<PathBuf> {
        let all = self.lately.now(&home(roots));
        let first = all.threads.values().filter_map(|files| files.first());
        first.filter(|f| !is_side(f)).cloned().collect()
    }

    fn id(&self, store: &Path) -> String {
        Self::thread(store)
    }

    fn recognises(&self, store: &Path) -> bool {
        if Name::of(store).is_none() || is_side(store) {
            return false;
        }
        let Ok(Some(file)) = Jsonl::open(store) else {
            return false;
        };
        let Ok(bytes) = file.bytes(0..file.len.min(HEAD)) else {
            return false;
        };
        let lines = split(&bytes, 0);
        // the first line alone may be longer than what was read
        let cut = lines.len() == 1 && !lines[0].whole && file.len > HEAD;
        let named = || memchr::memmem::find(&bytes, b"\"session_meta\"").is_some();
        lines.first().is_some_and(|l| is_ours(l.bytes)) || (cut && named())
    }

    fn store_of(&self, path: &Path) -> PathBuf {
        let first = Rollouts::around(path).of(path).into_iter().next();
        first.unwrap_or_else(|| path.to_owned())
    }

    fn workspace(&self, store: &Path) -> Result<Option<PathBuf>> {
        let newest = self.lately.around(store).of(store).pop();
        let newest = newest.as_deref().unwrap_or(store);
        let file = Jsonl::open(newest)?.ok_or_else(|| not_found(store))?;
        Ok(head(&file, false)?.0.cwd.map(PathBuf::from))
    }

    fn summary(&self, store: &Path) -> Result<Summary> {
        let thread = Thread::open(store, &self.lately.around(store))?.ok_or_else(|| not_found(store))?;
        let (mut summary, _) = summary_of(store, &thread, thread.stage()?);
        summary.title = thread.first()?.map(|t| text::first_line(&t));
        Ok(summary)
    }

    fn read(&self, store: &Path, progress: &dyn Progress) -> Result<Conversation> {
        let thread = Self::open(store)?;
        let reading = thread.read(0, progress)?;
        if reading.records == 0 && reading.unreadable > 0 {
            let reason = "none of its lines is a record of Codex's";
            return Err(super::folder::damaged(store, reason));
        }
        Ok(conversation(store, &thread, reading))
    }

    fn tail(&self, store: &Path, rows: usize) -> Result<Conversation> {
        let thread = Self::open(store)?;
        let mut size = TAIL;
        loop {
            let reading = thread.read(thread.len().saturating_sub(size), &Silent)?;
            if reading.whole || reading.said() >= rows || size >= TAIL_MOST {
                return Ok(conversation(store, &thread, reading));
            }
            size *= 4;
        }
    }

    fn since(&self, store: &Path, index: u64) -> Result<Conversation> {
        let thread = Self::open(store)?;
        let mut reading = thread.read(index.saturating_sub(BACK), &Silent)?;
        reading.whole = false;
        let mut some = conversation(store, &thread, reading);
        some.messages.retain(|m: &Message| m.index >= index);
        Ok(some)
    }

    /// What a fork goes on from has its first messages, under the same ids.
    fn kin(&self, store: &Path) -> Vec<PathBuf> {
        let all = self.lately.around(store);
        let Ok(Some(thread)) = Thread::open(store, &all) else {
            return Vec::new();
        };
        let first = |segment: &String| all.of(all.segments.get(segment)?).into_iter().next();
        let mut kin: Vec<PathBuf> = thread.foreign().iter().filter_map(first).collect();
        kin.sort();
        kin.dedup();
        kin
    }

    fn places(&self, roots: &Roots) -> Vec<PathBuf> {
        newest(&home(roots))
    }

    /// A rewind begins another rollout, maybe in another day's folder.
    fn watched(&self, store: &Path) -> Vec<PathBuf> {
        let mut all = Rollouts::around(store).of(store);
        match home_of(store) {
            Some(home) => all.extend(newest(home)),
            None => all.extend(store.parent().map(Path::to_owned)),
        }
        all
    }

    fn concerns(&self, store: &Path, path: &Path) -> bool {
        match Name::of(path) {
            Some(name) => name.thread == Self::thread(store),
            // a new folder may hold one
            None => path.is_dir(),
        }
    }
}
