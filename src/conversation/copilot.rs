//! Copilot CLI: a folder a session, `session-state/<session>/` below `~/.copilot` or `COPILOT_HOME`, with its events
//! in `events.jsonl`, a tree in one file. A process that has a session open keeps `inuse.<pid>.lock` there. Very old
//! versions had `session-state/<session>.jsonl` alone.

use std::path::{Path, PathBuf};

use rustix::fs::FileType;

use super::claude_code::word;
use super::claude_gather::{Gathered, HEAD, too_long};
use super::claude_record::Record;
use super::claude_tree::grow;
use super::copilot_record::{is_ours, parse};
use super::folder::Folder;
use super::jsonl::{Jsonl, Line, split};
use super::openhands_lease::Held;
use super::stage::at_work;
use super::torn::notice;
use super::{Conversation, ConversationError, Message, Result, Roots, Source, Summary};
use crate::progress::{Progress, Silent};
use crate::{process, text};

/// The events of a session.
const EVENTS: &str = "events.jsonl";
/// A tail begins with so much, and reads at most so much.
const TAIL: u64 = 256 << 10;
const TAIL_MOST: u64 = 32 << 20;
/// The workspace and the first message are looked for in so much of the start.
const HEAD_MOST: u64 = 1 << 20;

/// The source of Copilot CLI's sessions.
#[derive(Debug, Clone, Copy, Default)]
pub struct Copilot;

fn home(roots: &Roots) -> PathBuf {
    let named = roots.env.get("COPILOT_HOME").filter(|d| !d.is_empty());
    let home = named.map_or_else(|| roots.home.join(".copilot"), |dir| roots.cwd.join(dir));
    home.join("session-state")
}

/// The id of a session: its folder's or file's name.
fn id(store: &Path) -> String {
    let name = if is_file(store) {
        store.file_stem()
    } else {
        store.file_name()
    };
    name.map(|n| n.to_string_lossy().into_owned()).unwrap_or_default()
}

fn is_file(store: &Path) -> bool {
    store.extension().is_some_and(|e| e == "jsonl")
}

/// The file of a session's events.
fn events(store: &Path) -> PathBuf {
    if is_file(store) {
        store.to_owned()
    } else {
        store.join(EVENTS)
    }
}

fn open(store: &Path) -> Result<Jsonl> {
    Jsonl::open(&events(store))?.ok_or_else(|| ConversationError::NotFound {
        what: format!("at {}", text::shown_path(store)),
    })
}

/// Whether a living process has the session open.
fn held(store: &Path) -> Held {
    let folder = (!is_file(store)).then(|| Folder::open(store).ok().flatten());
    let Some(folder) = folder.flatten() else {
        return Held::Unknown;
    };
    let mut locks = Vec::new();
    let listed = folder.each(FileType::RegularFile, |name| {
        let pid = name
            .strip_prefix(b"inuse.")
            .and_then(|n| n.strip_suffix(b".lock"));
        locks.extend(pid.and_then(|p| std::str::from_utf8(p).ok()?.parse::<i32>().ok()));
    });
    let lives = |pid: i32| process::stat(pid).is_some_and(|s| !matches!(s.state, 'Z' | 'X'));
    match listed {
        Err(_) => Held::Unknown,
        Ok(()) if locks.is_empty() => Held::Unknown,
        Ok(()) if locks.into_iter().any(lives) => Held::Yes,
        Ok(()) => Held::No,
    }
}

/// The title that the human gave, from the session's own record (YAML; a flow scalar on one line, or a block).
fn title(store: &Path) -> Option<String> {
    let folder = Folder::open(store).ok()??;
    let mut bytes = Vec::new();
    folder.read_named("workspace.yaml", &mut bytes).ok()??;
    let all = String::from_utf8_lossy(&bytes);
    let mut lines = all.lines();
    if !all.lines().any(|l| l.trim_end() == "user_named: true") {
        return None;
    }
    let name = lines.by_ref().find_map(|l| l.strip_prefix("name:"))?.trim();
    let name = if name.starts_with(['|', '>']) {
        lines.next()?.trim()
    } else {
        name.trim_matches(['"', '\''])
    };
    (!name.is_empty()).then(|| name.to_owned())
}

fn add(read: &mut Gathered, block: Vec<(Record, bool)>) {
    let torn = block.iter().filter(|(_, torn)| *torn);
    read.notices.extend(torn.map(|(record, _)| notice(record.at)));
    read.add(block.into_iter().map(|(record, _)| record).collect());
}

fn of(lines: Vec<Line<'_>>) -> Gathered {
    let mut read = Gathered::default();
    add(&mut read, lines.into_iter().map(parse).collect());
    read
}

/// The first records, as many as are needed for the workspace and (where it is `wanted`) the first message. Also
/// whether these are all.
fn head(file: &Jsonl, wanted: bool) -> Result<(Gathered, bool)> {
    let mut size = HEAD;
    loop {
        let bytes = file.bytes(0..size.min(file.len))?;
        let all = size >= file.len;
        let mut lines = split(&bytes, 0);
        if !all && lines.last().is_some_and(|l| !l.whole) {
            lines.pop();
        }
        let read = of(lines);
        let enough = read.cwd.is_some() && (!wanted || read.first().is_some());
        if all || enough || size >= HEAD_MOST {
            return Ok((read, all));
        }
        size *= 4;
    }
}

/// Reads from the line on that holds the byte at `from`.
fn part(file: &Jsonl, from: u64, progress: &dyn Progress) -> Result<(Gathered, bool)> {
    let start = file.line_start(from)?;
    let mut read = Gathered {
        end: start,
        ..Gathered::default()
    };
    let skipped = file.each(start, progress, parse, |block| add(&mut read, block))?;
    too_long(skipped, &mut read.notices);
    if start > 0 {
        read.cwd = head(file, false)?.0.cwd.or(read.cwd);
    }
    Ok((read, start == 0))
}

fn summary_of(store: &Path, file: &Jsonl, read: &Gathered, said: Option<String>) -> (Summary, bool) {
    let held = held(store);
    let at_work = at_work(read.stage, held, file.changed);
    let title = title(store).or_else(|| read.named()).or(said);
    let summary = Summary {
        id: id(store),
        agent: "copilot",
        store: store.to_owned(),
        workspace: read.cwd.clone().map(PathBuf::from),
        title: title.map(|t| text::first_line(&t)),
        messages: None,
        updated_at: Some(file.changed),
        live: at_work || held == Held::Yes,
    };
    (summary, at_work)
}

fn conversation(store: &Path, file: &Jsonl, mut read: Gathered, whole: bool) -> Conversation {
    let messages = grow(&read.records, whole);
    read.count_unnamed();
    let first = messages.first().filter(|_| whole).map(|m| m.text.clone());
    let (mut summary, at_work) = summary_of(store, file, &read, first);
    summary.messages = whole.then_some(messages.len() as u64);
    Conversation {
        summary,
        messages,
        status: read.stage.map(|s| word(s).to_owned()),
        at_work,
        events: read.end,
        acted: read.acted,
        notices: read.notices,
        partial: !whole,
    }
}

impl Source for Copilot {
    fn agent(&self) -> &'static str {
        "copilot"
    }

    fn find(&self, roots: &Roots) -> Vec<PathBuf> {
        let root = home(roots);
        let Ok(entries) = std::fs::read_dir(&root) else {
            return Vec::new();
        };
        let mut stores = Vec::new();
        for entry in entries.flatten() {
            let path = entry.path();
            let there = match entry.file_type() {
                Ok(t) if t.is_dir() => Jsonl::open(&path.join(EVENTS)).is_ok_and(|f| f.is_some()),
                Ok(t) => t.is_file() && is_file(&path),
                Err(_) => false,
            };
            if there {
                stores.push(path);
            }
        }
        stores.sort();
        stores
    }

    fn recognises(&self, store: &Path) -> bool {
        let Ok(Some(file)) = Jsonl::open(&events(store)) else {
            return false;
        };
        let Ok(bytes) = file.bytes(0..file.len.min(HEAD)) else {
            return false;
        };
        split(&bytes, 0).iter().take(16).any(|l| is_ours(l.bytes))
    }

    fn workspace(&self, store: &Path) -> Result<Option<PathBuf>> {
        Ok(head(&open(store)?, false)?.0.cwd.map(PathBuf::from))
    }

    fn summary(&self, store: &Path) -> Result<Summary> {
        let file = open(store)?;
        let (mut read, all) = head(&file, true)?;
        let first = read.first().map(|s| s.text.clone());
        if !all {
            let start = file.len.saturating_sub(HEAD);
            let bytes = file.bytes(start..file.len)?;
            let lines = split(&bytes, start);
            read.stage = of(lines.into_iter().skip(1).collect()).stage;
        }
        let (mut summary, _) = summary_of(store, &file, &read, first);
        summary.messages = all.then(|| grow(&read.records, true).len() as u64);
        Ok(summary)
    }

    fn read(&self, store: &Path, progress: &dyn Progress) -> Result<Conversation> {
        let file = open(store)?;
        let (read, _) = part(&file, 0, progress)?;
        if read.records.is_empty() && read.unreadable > 0 {
            return Err(file.damaged("none of its lines is an event of Copilot's"));
        }
        Ok(conversation(store, &file, read, true))
    }

    fn tail(&self, store: &Path, rows: usize) -> Result<Conversation> {
        let file = open(store)?;
        let mut size = TAIL;
        loop {
            let (read, whole) = part(&file, file.len.saturating_sub(size), &Silent)?;
            if whole || read.said() >= rows || size >= TAIL_MOST {
                return Ok(conversation(store, &file, read, whole));
            }
            size *= 4;
        }
    }

    fn since(&self, store: &Path, index: u64) -> Result<Conversation> {
        let file = open(store)?;
        let (read, _) = part(&file, index, &Silent)?;
        let mut some = conversation(store, &file, read, false);
        some.messages.retain(|m: &Message| m.index >= index);
        Ok(some)
    }

    fn places(&self, roots: &Roots) -> Vec<PathBuf> {
        vec![home(roots)]
    }

    fn watched(&self, store: &Path) -> Vec<PathBuf> {
        if is_file(store) {
            return vec![store.to_owned()];
        }
        vec![store.to_owned(), events(store)]
    }
}
