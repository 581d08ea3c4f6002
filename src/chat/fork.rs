//! Claude Code: a conversation goes back by a fork. What leads to the place is written to a new file beside the old one,
//! under a new id, as the program itself forks (2.1.197, 2.1.332): the records with their own ids, the new session's in
//! each. The old conversation is not touched, so that it may be open meanwhile.

use std::fmt::Write as _;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::error::{ChatError, Result, WORKING};
use super::prefix::{is_as_written, measured};
use super::shelf::Shelf;
use super::{Aim, Change, Draft, Talk, Way};
use crate::conversation::{Beginning, ClaudeCode, Source, Until, claude_open};
use crate::progress::{Progress, Silent};
use crate::text::{ExactPath, shown};

/// The agent whose conversations are forked.
pub(super) const AGENT: &str = "claude";
const ENDING: &str = "jsonl";

/// A conversation that begins as another one does.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Fork {
    /// Its id, a UUID.
    pub id: String,
    /// How far it goes.
    pub until: Until,
    /// Its file's length in bytes as it was written; 0: it is empty, and has no file before its first message.
    pub bytes: u64,
    /// Its file's BLAKE3, in hex.
    pub hash: String,
}

impl Fork {
    /// True if what a record says of it can be used as a file's name.
    pub(super) fn is_named(&self) -> bool {
        is_id(&self.id)
    }

    pub(super) fn name(&self) -> String {
        format!("{}.{ENDING}", self.id)
    }

    pub(super) fn temp(&self) -> String {
        format!(".{}.{ENDING}.respool", self.id)
    }

    pub(super) fn store(&self, of: &Path) -> PathBuf {
        of.with_file_name(self.name())
    }
}

/// True for the id of a session. Claude Code resumes no other one, and files of other names may be anybody's.
pub(super) fn is_id(id: &str) -> bool {
    id.len() == 36 && id.bytes().all(|b| b.is_ascii_hexdigit() || b == b'-')
}

/// A random UUID (version 4).
fn uuid() -> Result<String> {
    let mut b = [0_u8; 16];
    getrandom::fill(&mut b).map_err(|e| ChatError::Unmovable(format!("there are no random numbers: {e}")))?;
    b[6] = (b[6] & 0x0f) | 0x40;
    b[8] = (b[8] & 0x3f) | 0x80;
    let mut id = String::with_capacity(36);
    for (i, byte) in b.iter().enumerate() {
        if matches!(i, 4 | 6 | 8 | 10) {
            id.push('-');
        }
        write!(id, "{byte:02x}").unwrap_or_default();
    }
    Ok(id)
}

/// True for the file of a session of Claude Code.
pub(super) fn is_ours(store: &Path) -> bool {
    store.extension().is_some_and(|e| e == ENDING)
}

pub(super) fn folder(store: &Path) -> Result<Shelf> {
    Shelf::open(store.parent().unwrap_or(store))
}

/// Of several respools one changes the conversations of a folder.
pub(super) fn locked(store: &Path) -> Result<OwnedFd> {
    folder(store)?
        .lock()?
        .ok_or_else(|| ChatError::Busy(store.to_owned()))
}

/// The store, those that share messages with it, and then the others beside it, of which a rewind to the very first message
/// may have led here: a message's id is its own in all of them.
fn related(store: &Path) -> impl Iterator<Item = PathBuf> {
    let kin = ClaudeCode::default().kin(store);
    let near: Vec<PathBuf> = std::iter::once(store.to_owned()).chain(kin).collect();
    let known = near.clone();
    let folder = store.parent().map(Path::to_owned);
    let others = std::iter::once(()).flat_map(move |()| {
        let entries = folder.as_deref().and_then(|f| f.read_dir().ok());
        let mut all: Vec<PathBuf> = entries
            .into_iter()
            .flatten()
            .flatten()
            .map(|e| e.path())
            .collect();
        all.retain(|p| is_ours(p) && is_id(&id(p)) && !known.contains(p));
        // one that cannot be read has no say
        all.retain(|p| ClaudeCode::default().summary(p).is_ok());
        all.sort();
        all
    });
    near.into_iter().chain(others)
}

/// The conversation that has this message: the one of the store, or one that it is a fork of or that is a fork of it.
fn source(store: &Path, until: &Until, progress: &dyn Progress) -> Result<(PathBuf, Beginning)> {
    let (Until::Before(id) | Until::EndOf(id)) = until;
    for store in related(store) {
        if let Some(found) = Beginning::read(&store, until, progress)? {
            return Ok((store, found));
        }
    }
    let id = shown(id);
    Err(ChatError::Unmovable(format!(
        "the conversation has no message {id} any more"
    )))
}

/// The id of a session: its file's name.
fn id(store: &Path) -> String {
    store
        .file_stem()
        .map(|n| n.to_string_lossy().into_owned())
        .unwrap_or_default()
}

/// The change that leads to a place. The fork's file is not written. Its length and hash are found out only where
/// they are `wanted`: that takes as long as writing it.
fn planned(store: &Path, until: Until, wanted: bool, progress: &dyn Progress) -> Result<Change> {
    let (from, start) = source(store, &until, progress)?;
    let mut fork = Fork {
        id: uuid()?,
        until,
        bytes: 0,
        hash: String::new(),
    };
    if start.whole && from == store {
        return Err(ChatError::Unmovable("it ends there already".into()));
    } else if start.whole && is_id(&id(&from)) {
        // another one that ends there is gone on with as it is
        fork.id = id(&from);
    } else if start.messages > 0 && wanted {
        (fork.bytes, fork.hash) = measured(&start, &fork.id, &from)?;
    } else if start.messages > 0 {
        fork.bytes = u64::MAX;
    }
    Ok(changed(id(store), from, Way::Fork(fork)))
}

fn changed(conversation: String, store: PathBuf, way: Way) -> Change {
    Change {
        v: 1,
        agent: AGENT.into(),
        conversation,
        store: ExactPath(store),
        way,
        stale: false,
    }
}

/// The change that leads to where the conversation is to go.
fn change(talk: &Talk, wanted: bool, progress: &dyn Progress) -> Result<Change> {
    let until = match &talk.aim {
        Aim::Undone(done) => {
            let way = match &done.way {
                Way::Fork(fork) => Way::Unfork(fork.clone()),
                Way::Unfork(fork) => Way::Fork(fork.clone()),
                _ => return Err(ChatError::Unmovable("it was changed in another way".into())),
            };
            return Ok(changed(done.conversation.clone(), talk.store.clone(), way));
        }
        Aim::Before(id) => Until::Before(id.clone()),
        Aim::EndOf(id) => Until::EndOf(id.clone()),
    };
    planned(&talk.store, until, wanted, progress)
}

/// The file of the conversation that the user leaves: its agent must not be at work.
fn left(change: &Change) -> PathBuf {
    let store = change.path();
    match &change.way {
        Way::Unfork(fork) => fork.store(store),
        _ => beside(store, &change.conversation),
    }
}

/// See [`super::draft`].
pub(super) fn draft(talk: &Talk) -> Result<Draft> {
    folder(&talk.store)?;
    let change = change(talk, false, &Silent)?;
    let open = claude_open(&left(&change))?;
    let step = match &change.way {
        Way::Unfork(fork) if fork.bytes == 0 => {
            "go on in the old conversation; the newer one stays beside it"
        }
        Way::Unfork(fork) if is_as_written(change.path(), fork)? == Some(false) => {
            "go on in the old conversation; the newer one has been used since and stays beside it"
        }
        Way::Unfork(_) => {
            "go on in the old conversation; the newer one, in which nothing was said, is taken away"
        }
        Way::Fork(fork) if fork.bytes == 0 && has_begun(change.path(), &fork.id) => {
            "go on in the conversation that ends there; the present one stays as it is beside it"
        }
        Way::Fork(fork) if fork.bytes == 0 => {
            "go on in a new, empty conversation; the old one stays as it is beside it"
        }
        _ => "go on in a new conversation that ends there (a fork); the old one stays as it is beside it",
    };
    let mut told = Vec::new();
    if let Some(open) = open {
        told.push(if open.at_work {
            let what = format!("the agent is at work on this conversation (Claude Code): {WORKING}");
            (open.pid, what, true)
        } else {
            let what = "Claude Code has this conversation open, and its window goes on in it: leave it, then resume the \
                        other one";
            (open.pid, what.to_owned(), false)
        });
    }
    Ok(Draft {
        server: None,
        at_work: open.is_some_and(|o| o.at_work),
        interrupt: None,
        step: step.into(),
        becomes: change.word(),
        told,
    })
}

/// See [`super::prepare`].
pub(super) fn prepare(talk: &Talk, progress: &dyn Progress) -> Result<Change> {
    let change = change(talk, true, progress)?;
    match claude_open(&left(&change))? {
        Some(open) if open.at_work => Err(ChatError::Working(open.pid)),
        _ => Ok(change),
    }
}

/// How many pictures a message has.
pub(super) fn pictures(store: &Path, message: &str) -> Result<u32> {
    let source = ClaudeCode::default();
    for store in related(store) {
        let read = source.read(&store, &Silent)?;
        if let Some(found) = read.messages.iter().find(|m| m.id == message) {
            return Ok(found.pictures);
        }
    }
    Ok(0)
}

/// True if a conversation beside this one has a file.
pub(super) fn has_begun(store: &Path, id: &str) -> bool {
    beside(store, id).exists()
}

/// The file of a conversation beside this one.
pub(super) fn beside(store: &Path, id: &str) -> PathBuf {
    store.with_file_name(format!("{id}.{ENDING}"))
}
