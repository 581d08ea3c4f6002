//! One line of a Codex rollout: the few facts of it that matter here. Field names as in files of Codex 0.98.0 and
//! 0.171.0; unknown record types are passed over.

use serde::Deserialize;

use super::MessageKind;
use super::claude_record::{Said, Stage};
use super::copilot_record::time;
use super::json::{List, Object, Word, with_object};
use super::jsonl::Line;
use super::torn::{Parsed, salvaged};

/// A message of the human's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Sent {
    /// Older versions gave it none.
    pub(super) id: Option<String>,
    pub(super) said: Said,
}

/// The history that a rollout goes on from: another one, up to a record of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Base {
    /// The other rollout's own id, which is the last one in its name.
    pub(super) segment: String,
    /// The first record that is no part of it.
    pub(super) end: u64,
    /// So much of the file at most.
    pub(super) bytes: u64,
}

/// What a record tells.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Fact {
    /// The start of a rollout.
    Meta {
        /// The agent's folder.
        cwd: Option<String>,
        /// What it goes on from.
        base: Option<Base>,
    },
    /// A message of the human's.
    Message(Box<Sent>),
    /// So many turns were taken back (before there were segments).
    Back(u64),
    /// The agent, or the human's own shell line, uses a tool.
    Call,
    /// Another record.
    Other,
}

/// One record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Record {
    /// Its number in the thread, across rollouts; older versions have none.
    pub(super) ordinal: Option<u64>,
    /// Its stamp, as it stands.
    pub(super) stamp: String,
    /// The turn that it is of.
    pub(super) turn: Option<String>,
    pub(super) fact: Fact,
    pub(super) stage: Option<Stage>,
}

#[derive(Deserialize)]
struct Raw<'a> {
    #[serde(borrow, default)]
    timestamp: Word<'a>,
    #[serde(borrow, default)]
    ordinal: Word<'a>,
    #[serde(borrow, default, rename = "type")]
    kind: Word<'a>,
    #[serde(borrow, default)]
    payload: Object<RawPayload<'a>>,
}

#[derive(Deserialize)]
struct RawPayload<'a> {
    #[serde(borrow, default, rename = "type")]
    kind: Word<'a>,
    #[serde(borrow, default)]
    cwd: Word<'a>,
    #[serde(borrow, default)]
    role: Word<'a>,
    #[serde(borrow, default)]
    turn_id: Word<'a>,
    #[serde(borrow, default)]
    history_base: Object<RawBase<'a>>,
    #[serde(borrow, default)]
    item: Object<RawItem<'a>>,
    #[serde(borrow, default)]
    content: List<'a, RawBlock<'a>>,
    #[serde(borrow, default)]
    message: Word<'a>,
    #[serde(default)]
    images: List<'a, Empty>,
    #[serde(default)]
    local_images: List<'a, Empty>,
    #[serde(borrow, default)]
    num_turns: Word<'a>,
}

#[derive(Deserialize)]
struct Empty {}

#[derive(Deserialize)]
struct RawBase<'a> {
    #[serde(borrow, default)]
    thread_id: Word<'a>,
    #[serde(borrow, default)]
    end_ordinal_exclusive: Word<'a>,
    #[serde(borrow, default)]
    end_byte_offset: Word<'a>,
}

#[derive(Deserialize)]
struct RawItem<'a> {
    #[serde(borrow, default, rename = "type")]
    kind: Word<'a>,
    #[serde(borrow, default)]
    id: Word<'a>,
    #[serde(borrow, default)]
    content: List<'a, RawBlock<'a>>,
}

#[derive(Deserialize)]
struct RawBlock<'a> {
    #[serde(borrow, default, rename = "type")]
    kind: Word<'a>,
    #[serde(borrow, default)]
    text: Word<'a>,
}

/// What a record may begin with that stands behind a torn line.
const BEGINNINGS: [&[u8]; 2] = [b"{\"timestamp\"", b"{\"ordinal\""];

/// Reads a line: its position, and what it tells.
pub(super) fn parse(line: Line<'_>) -> (u64, Parsed<Record>) {
    let read = |bytes: &[u8]| {
        let mut repaired = Vec::new();
        with_object(bytes, &mut repaired, |raw: Raw<'_>| record(&raw))
    };
    (line.end.saturating_sub(1), salvaged(line, &BEGINNINGS, read))
}

/// True if a line is the start of a rollout.
pub(super) fn is_ours(line: &[u8]) -> bool {
    let mut repaired = Vec::new();
    with_object(line, &mut repaired, |raw: Raw<'_>| {
        raw.kind.is("session_meta") && raw.payload.0.is_some()
    })
    .unwrap_or(false)
}

fn record(raw: &Raw<'_>) -> Record {
    let payload = raw.payload.0.as_ref();
    let (fact, stage) = payload.map_or((Fact::Other, None), |p| fact(raw, p));
    Record {
        ordinal: number(&raw.ordinal),
        stamp: raw.timestamp.owned().unwrap_or_default(),
        turn: payload.and_then(|p| p.turn_id.owned()),
        fact,
        stage,
    }
}

fn number(word: &Word<'_>) -> Option<u64> {
    word.text()?.parse().ok()
}

fn fact(raw: &Raw<'_>, p: &RawPayload<'_>) -> (Fact, Option<Stage>) {
    match (
        raw.kind.text().unwrap_or_default(),
        p.kind.text().unwrap_or_default(),
    ) {
        ("session_meta", _) => (meta(p), None),
        ("event_msg", "item_completed") => item(raw, p),
        ("event_msg", "user_message") => {
            let said = said(
                raw,
                p.message.owned().unwrap_or_default(),
                p.images.len() + p.local_images.len(),
            );
            (message(None, said), Some(Stage::Running))
        }
        ("event_msg", "task_started" | "turn_started") => (Fact::Other, Some(Stage::Running)),
        // older versions say no more of a turn's end than the last answer
        ("event_msg", "task_complete" | "turn_complete" | "agent_message") => {
            (Fact::Other, Some(Stage::Finished))
        }
        ("event_msg", "turn_aborted") => (Fact::Other, Some(Stage::Interrupted)),
        ("event_msg", "error") => (Fact::Other, Some(Stage::Failed)),
        ("event_msg", "thread_rolled_back") => (
            Fact::Back(number(&p.num_turns).unwrap_or(0)),
            Some(Stage::Interrupted),
        ),
        ("response_item", kind) if kind.ends_with("_call") => (Fact::Call, Some(Stage::Running)),
        ("response_item", "message") if p.role.is("user") && is_shell(&p.content) => (Fact::Call, None),
        _ => (Fact::Other, None),
    }
}

fn meta(p: &RawPayload<'_>) -> Fact {
    let base = p.history_base.0.as_ref();
    Fact::Meta {
        cwd: p.cwd.owned().filter(|c| c.starts_with('/')),
        base: base.and_then(|b| {
            Some(Base {
                segment: b.thread_id.owned()?,
                end: number(&b.end_ordinal_exclusive)?,
                bytes: number(&b.end_byte_offset).filter(|n| *n > 0).unwrap_or(u64::MAX),
            })
        }),
    }
}

fn item(raw: &Raw<'_>, p: &RawPayload<'_>) -> (Fact, Option<Stage>) {
    let Some(item) = p.item.0.as_ref().filter(|i| i.kind.is("UserMessage")) else {
        return (Fact::Other, None);
    };
    let (text, pictures) = match &item.content {
        List::Text(text) => (text.to_string(), 0),
        List::Objects(blocks, _) => {
            let texts: Vec<&str> = blocks.iter().filter_map(|b| b.text.text()).collect();
            let drawn = |b: &&RawBlock<'_>| b.kind.text().is_some_and(|k| k.contains("image"));
            (texts.join("\n"), blocks.iter().filter(drawn).count())
        }
    };
    let id = item.id.owned().filter(|id| !id.is_empty());
    (message(id, said(raw, text, pictures)), Some(Stage::Running))
}

fn message(id: Option<String>, said: Said) -> Fact {
    Fact::Message(Box::new(Sent { id, said }))
}

fn said(raw: &Raw<'_>, text: String, pictures: usize) -> Said {
    Said {
        kind: MessageKind::Prompt,
        text,
        pictures: pictures as u32,
        time: time(&raw.timestamp),
    }
}

/// A shell line of the human's, with what it printed: no message, but it changes files.
fn is_shell(content: &List<'_, RawBlock<'_>>) -> bool {
    let List::Objects(blocks, _) = content else {
        return false;
    };
    let shell = |b: &RawBlock<'_>| {
        b.text
            .text()
            .is_some_and(|t| t.starts_with("<user_shell_command>"))
    };
    blocks.iter().any(shell)
}
