//! Claude Code: one file of JSON lines a session, `projects/<folder>/<session>.jsonl` below `~/.claude` or
//! `CLAUDE_CONFIG_DIR`. The folder's name is made from the workspace's path and does not give it back, so the
//! workspace is read from the records. Sub-agents have files of their own and are no conversations.

use std::fs;
use std::path::{Path, PathBuf};

use chrono::{TimeDelta, Utc};

use super::claude_gather::{Gathered, HEAD, all, head, part};
use super::claude_live::Sessions;
use super::claude_record::{Stage, is_ours};
use super::claude_tree::grow;
use super::jsonl::{Jsonl, split};
use super::openhands_lease::{Held, since_boot};
use super::{Conversation, ConversationError, Message, Result, Roots, Source, Summary};
use crate::progress::Progress;
use crate::text;

/// A tail begins with so much, and reads at most so much.
const TAIL: u64 = 256 << 10;
const TAIL_MOST: u64 = 32 << 20;
/// A file that did not change for so long is no sign of an agent at work.
const STALE: TimeDelta = TimeDelta::minutes(10);

/// The source of Claude Code's sessions.
#[derive(Default)]
pub struct ClaudeCode {
    sessions: Sessions,
}

/// The id of a session: its file's name.
fn id(store: &Path) -> String {
    store
        .file_stem()
        .map(|n| n.to_string_lossy().into_owned())
        .unwrap_or_default()
}

fn open(store: &Path) -> Result<Jsonl> {
    Jsonl::open(store)?.ok_or_else(|| ConversationError::NotFound {
        what: format!("at {}", text::shown_path(store)),
    })
}

/// Claude Code's folder, of a store in it.
fn config(store: &Path) -> &Path {
    store.ancestors().nth(3).unwrap_or(store)
}

impl ClaudeCode {
    /// Claude Code's own folder of this user.
    fn home(roots: &Roots) -> PathBuf {
        let named = roots.env.get("CLAUDE_CONFIG_DIR").filter(|d| !d.is_empty());
        named.map_or_else(|| roots.home.join(".claude"), |dir| roots.cwd.join(dir))
    }

    /// The folders of its projects.
    fn projects(roots: &Roots) -> Vec<PathBuf> {
        let Ok(entries) = fs::read_dir(Self::home(roots).join("projects")) else {
            return Vec::new();
        };
        let folders = entries
            .flatten()
            .filter(|e| e.file_type().is_ok_and(|t| t.is_dir()));
        let mut all: Vec<PathBuf> = folders.map(|e| e.path()).collect();
        all.sort();
        all
    }

    /// How far the agent is, and whether a living process has the session open.
    fn state(&self, store: &Path, file: &Jsonl, stage: Option<Stage>) -> (bool, Held) {
        let held = self.sessions.held(config(store), &id(store));
        let running = stage == Some(Stage::Running);
        let recent = || since_boot(Some(file.changed)) && Utc::now() - file.changed < STALE;
        let at_work = running
            && match held {
                Held::Yes => true,
                Held::No => false,
                Held::Unknown => recent(),
            };
        (at_work, held)
    }

    fn summary_of(
        &self,
        store: &Path,
        file: &Jsonl,
        title: Option<String>,
        read: &Gathered,
    ) -> (Summary, bool) {
        let (at_work, held) = self.state(store, file, read.stage);
        let summary = Summary {
            id: id(store),
            agent: "claude",
            store: store.to_owned(),
            workspace: read.cwd.clone().map(PathBuf::from),
            title: title.map(|t| text::first_line(&t)),
            messages: None,
            updated_at: Some(file.changed),
            live: at_work || held == Held::Yes,
        };
        (summary, at_work)
    }

    fn conversation(&self, store: &Path, file: &Jsonl, mut read: Gathered, whole: bool) -> Conversation {
        let messages = grow(&read.records, whole);
        read.count_unnamed();
        let title = read.named().or_else(|| {
            let first = messages.first().filter(|_| whole);
            first.map(|m| m.text.clone())
        });
        let (mut summary, at_work) = self.summary_of(store, file, title, &read);
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
}

/// The sessions of a project.
fn sessions(project: &Path, stores: &mut Vec<PathBuf>) {
    let Ok(entries) = fs::read_dir(project) else {
        return;
    };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let name = name.as_encoded_bytes();
        // older versions kept sub-agents' files beside
        let session = name.ends_with(b".jsonl") && !name.starts_with(b"agent-");
        if session && entry.file_type().is_ok_and(|t| t.is_file()) {
            stores.push(entry.path());
        }
    }
}

/// The words of [`Conversation::status`].
pub(super) fn word(stage: Stage) -> &'static str {
    match stage {
        Stage::Running => "running",
        Stage::Finished => "finished",
        Stage::Interrupted => "interrupted",
        Stage::Failed => "error",
    }
}

impl Source for ClaudeCode {
    fn agent(&self) -> &'static str {
        "claude"
    }

    fn find(&self, roots: &Roots) -> Vec<PathBuf> {
        let mut stores = Vec::new();
        for project in Self::projects(roots) {
            sessions(&project, &mut stores);
        }
        stores
    }

    fn recognises(&self, store: &Path) -> bool {
        if store.extension().is_none_or(|e| e != "jsonl") {
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
        let named = || memchr::memmem::find(&bytes, b"\"sessionId\"").is_some();
        lines.iter().take(16).any(|l| is_ours(l.bytes)) || (cut && named())
    }

    fn workspace(&self, store: &Path) -> Result<Option<PathBuf>> {
        let (head, _) = head(&open(store)?, false)?;
        Ok(head.cwd.map(PathBuf::from))
    }

    fn summary(&self, store: &Path) -> Result<Summary> {
        let file = open(store)?;
        let (mut read, all) = head(&file, true)?;
        let first = read.first().map(|s| s.text.clone());
        if !all {
            let start = file.len.saturating_sub(HEAD);
            let bytes = file.bytes(start..file.len)?;
            let mut lines = split(&bytes, start);
            if start > 0 && !lines.is_empty() {
                lines.remove(0);
            }
            let tail = Gathered::of(lines);
            read.title = tail.title.or(read.title);
            read.summary = tail.summary.or(read.summary);
            read.stage = tail.stage;
        }
        let title = read.named().or(first);
        let (mut summary, _) = self.summary_of(store, &file, title, &read);
        summary.messages = all.then(|| grow(&read.records, true).len() as u64);
        Ok(summary)
    }

    fn read(&self, store: &Path, progress: &dyn Progress) -> Result<Conversation> {
        let file = open(store)?;
        let read = all(&file, progress)?;
        if read.records.is_empty() && read.unreadable > 0 {
            return Err(file.damaged("none of its lines is a record of Claude Code's"));
        }
        Ok(self.conversation(store, &file, read, true))
    }

    fn tail(&self, store: &Path, rows: usize) -> Result<Conversation> {
        let file = open(store)?;
        let mut size = TAIL;
        loop {
            let from = file.len.saturating_sub(size);
            let read = part(&file, from)?;
            let whole = file.line_start(from)? == 0;
            if whole || read.said() >= rows || size >= TAIL_MOST {
                return Ok(self.conversation(store, &file, read, whole));
            }
            size *= 4;
        }
    }

    fn since(&self, store: &Path, index: u64) -> Result<Conversation> {
        let file = open(store)?;
        let read = part(&file, index)?;
        let mut some = self.conversation(store, &file, read, false);
        some.messages.retain(|m: &Message| m.index >= index);
        Ok(some)
    }

    /// A fork begins with the same message, under the same id.
    fn kin(&self, store: &Path) -> Vec<PathBuf> {
        let first = |path: &Path| -> Option<String> {
            let (head, _) = head(&Jsonl::open(path).ok()??, true).ok()?;
            let said = head.records.iter().find(|r| r.said().is_some())?;
            said.node.as_ref().map(|n| n.uuid.clone())
        };
        let (Some(folder), Some(own)) = (store.parent(), first(store)) else {
            return Vec::new();
        };
        let mut others = Vec::new();
        sessions(folder, &mut others);
        others.retain(|o| o != store && first(o).as_ref() == Some(&own));
        others.sort();
        others
    }

    fn places(&self, roots: &Roots) -> Vec<PathBuf> {
        let mut places = Self::projects(roots);
        places.push(Self::home(roots).join("projects"));
        places
    }

    fn watched(&self, store: &Path) -> Vec<PathBuf> {
        vec![store.to_owned()]
    }
}

/// Whether somebody has a session open now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClaudeOpen {
    /// The process of Claude Code that has it open (it noted so itself).
    pub pid: i32,
    /// It works on it.
    pub at_work: bool,
}

/// Who has the session of this file open; `None` if nobody is known to. The file may not be there yet.
pub fn claude_open(store: &Path) -> Result<Option<ClaudeOpen>> {
    let source = ClaudeCode::default();
    let Some(pid) = source.sessions.holder(config(store), &id(store)) else {
        return Ok(None);
    };
    let at_work = match Jsonl::open(store)? {
        Some(_) => source.tail(store, 1)?.at_work,
        None => false,
    };
    Ok(Some(ClaudeOpen { pid, at_work }))
}

/// What is stored of a text that the prompt hook got: the same words, so that both have the same hash.
pub fn claude_words(prompt: &str) -> String {
    super::claude_text::without_paste(prompt).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_projects_are_where_the_variable_says() {
        let dir = tempfile::tempdir().expect("a folder");
        let at = |folder: &str| {
            let folder = dir.path().join(folder).join("projects/-w");
            fs::create_dir_all(&folder).expect("folders");
            for name in ["a.jsonl", "agent-b.jsonl", "c.json"] {
                fs::write(folder.join(name), "{}\n").expect("write");
            }
            fs::create_dir(folder.join("d.jsonl")).expect("folder");
            folder.join("a.jsonl")
        };
        let (usual, moved) = (at(".claude"), at("moved"));
        let mut roots = Roots {
            home: dir.path().into(),
            env: std::collections::BTreeMap::new(),
            cwd: dir.path().into(),
        };
        assert_eq!(ClaudeCode::default().find(&roots), [usual]);
        roots.env.insert("CLAUDE_CONFIG_DIR".into(), "moved".into());
        assert_eq!(ClaudeCode::default().find(&roots), [moved]);
        assert_eq!(ClaudeCode::default().places(&roots).len(), 2);
    }

    #[test]
    fn a_file_of_another_kind_is_no_session() {
        let dir = tempfile::tempdir().expect("a folder");
        let is = |name: &str, text: &str| {
            let path = dir.path().join(name);
            fs::write(&path, text).expect("write");
            ClaudeCode::default().recognises(&path)
        };
        assert!(is("a.jsonl", "{\"type\":\"mode\",\"sessionId\":\"a\"}\n"));
        assert!(is(
            "b.jsonl",
            "{\"type\":\"summary\",\"summary\":\"x\",\"leafUuid\":\"y\"}\n"
        ));
        assert!(!is("c.jsonl", "{\"type\":\"session_meta\",\"payload\":{}}\n"));
        assert!(!is("d.json", "{\"type\":\"mode\",\"sessionId\":\"a\"}\n"));
        assert!(!is("e.jsonl", ""));
        let long = format!(
            "{{\"type\":\"user\",\"sessionId\":\"a\",\"x\":\"{}\"}}\n",
            "y".repeat(40_000)
        );
        assert!(is("f.jsonl", &long));
    }
}
