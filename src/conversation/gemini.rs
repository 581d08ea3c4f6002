//! Gemini CLI: one file of JSON lines a chat, `tmp/<project>/chats/session-<minute>-<id's beginning>.jsonl` below
//! `.gemini` in the home or in `GEMINI_CLI_HOME`; `tmp/<project>/.project_root` names the workspace. A chat that is
//! resumed leaves a second file of the same id behind that holds no message. Older versions kept a chat in one object
//! (`.json`). Sub-agents' chats are in folders of their own, and are none.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use rustix::fs::FileType;

use super::claude_code::word;
use super::claude_gather::HEAD;
use super::folder::Folder;
use super::gemini_record::{Event, event, parse};
use super::gemini_replay::Replay;
use super::jsonl::{Jsonl, split};
use super::openhands_lease::Held;
use super::rows::{Notes, messages};
use super::stage::at_work;
use super::{Conversation, ConversationError, Message, Result, Roots, Source, Summary};
use crate::progress::{Progress, Silent};
use crate::text;

/// The first message is looked for in so much of the start.
const HEAD_MOST: u64 = 1 << 20;
/// A tail begins with so much, and reads at most so much.
const TAIL: u64 = 256 << 10;
const TAIL_MOST: u64 = 32 << 20;
/// A path is not longer.
const LONGEST_PATH: usize = 4096;

/// The source of Gemini CLI's chats.
#[derive(Debug, Clone, Copy, Default)]
pub struct Gemini;

/// The folder of the projects.
fn projects(roots: &Roots) -> PathBuf {
    let named = roots.env.get("GEMINI_CLI_HOME").filter(|d| !d.is_empty());
    let home = named.map_or_else(|| roots.home.clone(), |dir| roots.cwd.join(dir));
    home.join(".gemini/tmp")
}

/// The folders of chats, whether they exist or not.
fn chats(roots: &Roots) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(projects(roots)) else {
        return Vec::new();
    };
    let folders = entries
        .flatten()
        .filter(|e| e.file_type().is_ok_and(|t| t.is_dir()));
    let mut all: Vec<PathBuf> = folders.map(|e| e.path().join("chats")).collect();
    all.sort();
    all
}

/// The chats in a folder, by the beginning of the id that their names end with.
fn listed(folder: &Path) -> BTreeMap<String, Vec<PathBuf>> {
    let mut all: BTreeMap<String, Vec<PathBuf>> = BTreeMap::new();
    // a link is not followed
    let Ok(Some(open)) =
        Folder::open(folder.parent().unwrap_or(folder)).map(|f| f.and_then(|f| f.sub("chats").ok()?))
    else {
        return all;
    };
    let list = open.each(FileType::RegularFile, |name| {
        let Ok(name) = std::str::from_utf8(name) else {
            return;
        };
        let stem = name.strip_suffix(".jsonl").or_else(|| name.strip_suffix(".json"));
        if let Some(stem) = stem.filter(|s| s.starts_with("session-")) {
            let id = stem.rsplit('-').next().unwrap_or(stem).to_owned();
            all.entry(id).or_default().push(folder.join(name));
        }
    });
    if let Err(e) = list {
        tracing::debug!("{e}");
    }
    all
}

fn open(store: &Path) -> Result<Jsonl> {
    Jsonl::open(store)?.ok_or_else(|| ConversationError::NotFound {
        what: format!("at {}", text::shown_path(store)),
    })
}

/// An older version's chat, in one object.
fn is_object(store: &Path) -> bool {
    store.extension().is_some_and(|e| e == "json")
}

/// The folder that the agent works in.
fn workspace(store: &Path) -> Option<PathBuf> {
    let folder = Folder::open(store.parent()?.parent()?).ok()??;
    let mut bytes = Vec::new();
    folder.read_named(".project_root", &mut bytes).ok()??;
    use std::os::unix::ffi::OsStrExt;
    let path = Path::new(std::ffi::OsStr::from_bytes(bytes.trim_ascii()));
    let fits = path.is_absolute() && bytes.len() <= LONGEST_PATH && !bytes.contains(&0);
    fits.then(|| path.to_owned())
}

/// What was read of a chat.
struct Read {
    replay: Replay,
    notes: Notes,
    skipped: u64,
    /// It is all of it.
    whole: bool,
}

impl Read {
    fn new(start: u64) -> Self {
        Self {
            replay: Replay::new(start > 0),
            notes: Notes {
                end: start,
                ..Notes::default()
            },
            skipped: 0,
            whole: start == 0,
        }
    }

    fn take(&mut self, (at, parsed): (u64, super::torn::Parsed<Event>)) {
        if let Some(event) = self.notes.take(at, parsed) {
            self.replay.take(at, event);
        }
    }

    /// From the line on that holds the byte at `from`.
    fn part(file: &Jsonl, from: u64, progress: &dyn Progress) -> Result<Self> {
        let start = file.line_start(from)?;
        let mut read = Self::new(start);
        read.skipped = file.each(start, progress, parse, |block| {
            for line in block {
                read.take(line);
            }
        })?;
        if start > 0 {
            let head = Self::head(file, false)?;
            read.replay.session = head.replay.session;
            read.replay.side |= head.replay.side;
        }
        Ok(read)
    }

    /// The first records, as many as are needed for the session's id and (where it is `wanted`) the first message.
    fn head(file: &Jsonl, wanted: bool) -> Result<Self> {
        let mut size = HEAD;
        loop {
            let bytes = file.bytes(0..size.min(file.len))?;
            let mut read = Self::new(0);
            read.whole = size >= file.len;
            for line in split(&bytes, 0) {
                if line.whole || read.whole {
                    read.take(parse(line));
                }
            }
            let named = read.replay.session.is_some();
            let enough = named && (!wanted || read.replay.said() > 0);
            if read.whole || enough || size >= HEAD_MOST {
                return Ok(read);
            }
            size *= 4;
        }
    }

    /// A chat in one object: the place of a message in its list is its position.
    fn object(store: &Path, file: &Jsonl) -> Result<Self> {
        if file.len > super::folder::LIMIT {
            return Err(file.damaged("it is larger than 128 MiB"));
        }
        let bytes = file.bytes(0..file.len)?;
        let chat = event(&bytes).map_err(|why| super::folder::damaged(store, text::shown(&why)))?;
        let mut read = Self::new(0);
        let entries = chat.list.clone().unwrap_or_default();
        read.notes.records = 1;
        read.notes.end = entries.len() as u64;
        read.replay.take(
            0,
            Event {
                list: None,
                entry: None,
                ..chat
            },
        );
        for (i, entry) in entries.into_iter().enumerate() {
            let entry = Event {
                entry: Some(entry),
                ..Event::default()
            };
            read.replay.take(i as u64, entry);
        }
        Ok(read)
    }

    fn all(store: &Path, file: &Jsonl, progress: &dyn Progress) -> Result<Self> {
        if is_object(store) {
            return Self::object(store, file);
        }
        Self::part(file, 0, progress)
    }

    fn summary(&self, store: &Path, file: &Jsonl) -> (Summary, bool) {
        let at_work = at_work(self.replay.stage, Held::Unknown, file.changed);
        let first = self.replay.first().filter(|_| self.whole);
        let title = self.replay.summary.as_deref().or(first);
        let id = self.replay.session.clone().unwrap_or_else(|| stem(store));
        let summary = Summary {
            id,
            agent: "gemini",
            store: store.to_owned(),
            workspace: workspace(store),
            title: title.map(text::first_line),
            messages: None,
            updated_at: Some(file.changed),
            live: at_work,
        };
        (summary, at_work)
    }

    fn conversation(mut self, store: &Path, file: &Jsonl) -> Conversation {
        let (mut summary, at_work) = self.summary(store, file);
        let messages = messages(self.replay.rows(), self.whole);
        summary.messages = self.whole.then_some(messages.len() as u64);
        Conversation {
            summary,
            messages,
            status: self.replay.stage.map(|s| word(s).to_owned()),
            at_work,
            events: self.notes.end,
            acted: self.replay.acted,
            notices: self.notes.close(self.skipped),
            partial: !self.whole,
        }
    }
}

fn stem(store: &Path) -> String {
    let stem = store.file_stem().unwrap_or_default();
    stem.to_string_lossy().into_owned()
}

/// The start of a chat.
fn start(store: &Path, wanted: bool) -> Option<Read> {
    let file = Jsonl::open(store).ok()??;
    if is_object(store) {
        return Read::object(store, &file).ok();
    }
    Read::head(&file, wanted).ok()
}

/// Of the files of one chat those that count: the longest, and any other that holds a message. Sub-agents' are none.
fn counting(mut files: Vec<PathBuf>) -> Vec<PathBuf> {
    if files.len() > 1 {
        let len = |p: &PathBuf| std::fs::symlink_metadata(p).map_or(0, |m| m.len());
        files.sort_by_key(|p| (std::cmp::Reverse(len(p)), p.clone()));
        let mut known = Vec::new();
        files.retain(|p| {
            let Some(read) = start(p, true) else { return true };
            let first = !known.contains(&read.replay.session);
            known.push(read.replay.session.clone());
            first || read.replay.said() > 0
        });
    }
    files
}

impl Source for Gemini {
    fn agent(&self) -> &'static str {
        "gemini"
    }

    fn find(&self, roots: &Roots) -> Vec<PathBuf> {
        let groups = chats(roots).into_iter().flat_map(|c| listed(&c).into_values());
        groups.flat_map(counting).collect()
    }

    fn id(&self, store: &Path) -> String {
        let session = start(store, false).and_then(|r| r.replay.session);
        session.unwrap_or_else(|| stem(store))
    }

    fn recognises(&self, store: &Path) -> bool {
        let named = is_object(store) || store.extension().is_some_and(|e| e == "jsonl");
        let in_chats = store.parent().is_some_and(|p| p.ends_with("chats"));
        named && in_chats && start(store, false).is_some_and(|r| r.replay.session.is_some() && !r.replay.side)
    }

    fn workspace(&self, store: &Path) -> Result<Option<PathBuf>> {
        open(store).map(|_| workspace(store))
    }

    fn summary(&self, store: &Path) -> Result<Summary> {
        let file = open(store)?;
        if is_object(store) {
            return Ok(Read::object(store, &file)?.conversation(store, &file).summary);
        }
        let mut read = Read::head(&file, true)?;
        if read.whole {
            return Ok(read.conversation(store, &file).summary);
        }
        let from = file.len.saturating_sub(HEAD);
        let mut tail = Read::new(from);
        for line in split(&file.bytes(from..file.len)?, from).into_iter().skip(1) {
            tail.take(parse(line));
        }
        read.replay.stage = tail.replay.stage;
        read.replay.summary = tail.replay.summary.or(read.replay.summary);
        read.whole = true;
        Ok(read.summary(store, &file).0)
    }

    fn read(&self, store: &Path, progress: &dyn Progress) -> Result<Conversation> {
        let file = open(store)?;
        let read = Read::all(store, &file, progress)?;
        if read.notes.records == 0 && read.notes.unreadable > 0 {
            return Err(file.damaged("none of its lines is a record of Gemini CLI's"));
        }
        Ok(read.conversation(store, &file))
    }

    fn tail(&self, store: &Path, rows: usize) -> Result<Conversation> {
        let file = open(store)?;
        let mut size = TAIL;
        loop {
            let read = if is_object(store) || size >= file.len {
                Read::all(store, &file, &Silent)?
            } else {
                Read::part(&file, file.len - size, &Silent)?
            };
            if read.whole || read.replay.said() >= rows || size >= TAIL_MOST {
                return Ok(read.conversation(store, &file));
            }
            size *= 4;
        }
    }

    fn since(&self, store: &Path, index: u64) -> Result<Conversation> {
        let file = open(store)?;
        let read = if is_object(store) {
            Read::object(store, &file)?
        } else {
            Read::part(&file, index, &Silent)?
        };
        let mut some = read.conversation(store, &file);
        some.messages.retain(|m: &Message| m.index >= index);
        some.partial = true;
        for message in &mut some.messages {
            message.number = None;
        }
        Ok(some)
    }

    /// A fork begins with the same message, under the same id.
    fn kin(&self, store: &Path) -> Vec<PathBuf> {
        let first = |path: &Path| start(path, true)?.replay.first_id().map(str::to_owned);
        let (Some(folder), Some(own)) = (store.parent(), first(store)) else {
            return Vec::new();
        };
        let mut others: Vec<PathBuf> = listed(folder).into_values().flatten().collect();
        others.retain(|o| o != store && first(o).as_ref() == Some(&own));
        others
    }

    fn places(&self, roots: &Roots) -> Vec<PathBuf> {
        let mut places = chats(roots);
        places.extend(
            places
                .clone()
                .iter()
                .filter_map(|c| c.parent().map(Path::to_owned)),
        );
        places.push(projects(roots));
        places
    }

    fn watched(&self, store: &Path) -> Vec<PathBuf> {
        vec![store.to_owned()]
    }
}
