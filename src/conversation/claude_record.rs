//! One line of a Claude Code session: the few facts of it that matter here. Field names as in files of Claude Code
//! 2.1.197 and 2.1.332, and of older ones as far as they are known; unknown record types are passed over.

use chrono::{DateTime, Utc};
use serde::Deserialize;
use serde::de::{Deserialize as De, Deserializer, IgnoredAny};

use super::MessageKind;
use super::claude_text::{self as text, Wrapped};
use super::json::{List, Object, Word, with_object};
use super::jsonl::Line;

/// A message of the human's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Said {
    pub(super) kind: MessageKind,
    pub(super) text: String,
    pub(super) pictures: u32,
    pub(super) time: Option<DateTime<Utc>>,
}

/// How far the agent is, as this record shows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stage {
    /// It works.
    Running,
    /// It has answered.
    Finished,
    /// The human stopped it.
    Interrupted,
    /// The model could not be reached.
    Failed,
}

/// What a record tells.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Fact {
    /// A message of the human's.
    Message(Box<Said>),
    /// The agent uses a tool.
    Call,
    /// Another record.
    Other,
    /// The title that the human gave.
    Title(String),
    /// A title that the agent made.
    Summary(String),
    /// It cannot be read; why.
    Unreadable(String),
    /// The line is half written.
    Unfinished,
}

/// Where a record hangs in the tree.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Node {
    pub(super) uuid: String,
    /// The records that it may follow, the best first. Empty: it is a root.
    pub(super) parents: Vec<String>,
    /// A sub-agent's: no head of the conversation is there.
    pub(super) side: bool,
}

/// One record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Record {
    /// Its position: that of its last byte.
    pub(super) at: u64,
    /// Its place in the tree; not every record has one.
    pub(super) node: Option<Node>,
    pub(super) fact: Fact,
    pub(super) stage: Option<Stage>,
    /// The agent's folder at that moment.
    pub(super) cwd: Option<String>,
}

impl Record {
    /// The message, if it is one.
    pub(super) fn said(&self) -> Option<&Said> {
        match &self.fact {
            Fact::Message(said) => Some(said),
            _ => None,
        }
    }
}

/// True where a field stands, whatever it holds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct There(bool);

impl<'de> De<'de> for There {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        IgnoredAny::deserialize(d).map(|_| Self(true))
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Raw<'a> {
    #[serde(borrow, default, rename = "type")]
    kind: Word<'a>,
    #[serde(borrow, default)]
    subtype: Word<'a>,
    #[serde(borrow, default)]
    uuid: Word<'a>,
    #[serde(borrow, default)]
    parent_uuid: Word<'a>,
    #[serde(borrow, default)]
    logical_parent_uuid: Word<'a>,
    #[serde(borrow, default)]
    timestamp: Word<'a>,
    #[serde(borrow, default)]
    session_id: Word<'a>,
    #[serde(borrow, default)]
    cwd: Word<'a>,
    #[serde(borrow, default)]
    is_sidechain: Word<'a>,
    #[serde(borrow, default)]
    is_meta: Word<'a>,
    #[serde(borrow, default)]
    is_compact_summary: Word<'a>,
    #[serde(borrow, default)]
    is_visible_in_transcript_only: Word<'a>,
    #[serde(borrow, default)]
    is_api_error_message: Word<'a>,
    #[serde(default)]
    tool_use_result: There,
    #[serde(default, rename = "sourceToolAssistantUUID")]
    source_tool: There,
    #[serde(borrow, default)]
    message: Object<RawMessage<'a>>,
    #[serde(borrow, default)]
    attachment: Object<RawAttachment<'a>>,
    #[serde(borrow, default)]
    compact_metadata: Object<RawCompact<'a>>,
    #[serde(borrow, default)]
    summary: Word<'a>,
    #[serde(borrow, default)]
    custom_title: Word<'a>,
    #[serde(borrow, default)]
    ai_title: Word<'a>,
}

#[derive(Deserialize)]
struct RawMessage<'a> {
    #[serde(borrow, default)]
    id: Word<'a>,
    #[serde(borrow, default)]
    content: List<'a, RawBlock<'a>>,
    #[serde(borrow, default)]
    stop_reason: Word<'a>,
}

#[derive(Deserialize)]
struct RawBlock<'a> {
    #[serde(borrow, default, rename = "type")]
    kind: Word<'a>,
    #[serde(borrow, default)]
    id: Word<'a>,
    #[serde(borrow, default)]
    tool_use_id: Word<'a>,
    #[serde(borrow, default)]
    text: Word<'a>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawAttachment<'a> {
    #[serde(borrow, default, rename = "type")]
    kind: Word<'a>,
    #[serde(borrow, default)]
    prompt: List<'a, RawBlock<'a>>,
    #[serde(borrow, default)]
    command_mode: Word<'a>,
    #[serde(borrow, default)]
    is_meta: Word<'a>,
    #[serde(borrow, default)]
    origin: Object<RawOrigin<'a>>,
}

#[derive(Deserialize)]
struct RawOrigin<'a> {
    #[serde(borrow, default)]
    kind: Word<'a>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawCompact<'a> {
    #[serde(borrow, default)]
    preserved_segment: Object<RawSegment<'a>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawSegment<'a> {
    #[serde(borrow, default)]
    tail_uuid: Word<'a>,
}

/// What the first record begins with that may stand behind a torn line, on the same one.
const BEGINNINGS: [&[u8]; 6] = [
    b"{\"type\"",
    b"{\"parentUuid\"",
    b"{\"timestamp\"",
    b"{\"uuid\"",
    b"{\"sessionId\"",
    b"{\"logicalParentUuid\"",
];

/// Reads a line. Of a torn line with the next record glued to it that record is read.
pub(super) fn parse(line: Line<'_>) -> Record {
    let at = line.end.saturating_sub(1);
    read(line, |raw, _| record(raw, at)).unwrap_or_else(|reason| Record {
        at,
        node: None,
        fact: if line.whole {
            Fact::Unreadable(reason)
        } else {
            Fact::Unfinished
        },
        stage: None,
        cwd: None,
    })
}

/// What ties records together besides the tree.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Ties {
    /// Where the record begins.
    pub(super) start: u64,
    /// The agent's message that it is a part of.
    pub(super) message: Option<String>,
    /// The tools that are called in it, by the calls' ids.
    pub(super) calls: Vec<String>,
    /// The calls whose results are in it.
    pub(super) results: Vec<String>,
    /// The conversation was made shorter here.
    pub(super) boundary: bool,
}

/// As [`parse`], with the ties of the record; nothing of a line that is no record.
pub(super) fn parse_tied(line: Line<'_>) -> Option<(Record, Ties)> {
    let at = line.end.saturating_sub(1);
    let begins = line.end.saturating_sub(line.bytes.len() as u64);
    read(line, |raw, skipped| {
        (record(raw, at), ties(raw, begins + skipped as u64))
    })
    .ok()
}

fn ties(raw: &Raw<'_>, start: u64) -> Ties {
    let message = raw.message.0.as_ref();
    let blocks = match message.map(|m| &m.content) {
        Some(List::Objects(blocks, _)) => blocks.as_slice(),
        _ => &[],
    };
    let calls = blocks.iter().filter(|b| b.kind.is("tool_use"));
    let results = blocks.iter().filter(|b| b.kind.is("tool_result"));
    Ties {
        start,
        message: message
            .filter(|_| raw.kind.is("assistant"))
            .and_then(|m| m.id.owned()),
        calls: calls.filter_map(|b| b.id.owned()).collect(),
        results: results.filter_map(|b| b.tool_use_id.owned()).collect(),
        boundary: raw.subtype.is("compact_boundary"),
    }
}

/// Makes something of a line's record; `make` is told, too, how many bytes of the line stand before it.
fn read<T>(line: Line<'_>, make: impl Fn(&Raw<'_>, usize) -> T) -> Result<T, String> {
    let mut repaired = Vec::new();
    let whole = with_object(line.bytes, &mut repaired, |raw: Raw<'_>| make(&raw, 0));
    whole.or_else(|reason| glued(line.bytes, make).ok_or(reason))
}

fn glued<T>(bytes: &[u8], make: impl Fn(&Raw<'_>, usize) -> T) -> Option<T> {
    // a hostile line may hold as many beginnings as it likes
    let mut tries = 8;
    for i in memchr::memchr_iter(b'{', bytes).filter(|&i| i > 0) {
        if BEGINNINGS.iter().any(|b| bytes[i..].starts_with(b)) {
            let mut repaired = Vec::new();
            if let Ok(made) = with_object(&bytes[i..], &mut repaired, |raw: Raw<'_>| make(&raw, i)) {
                return Some(made);
            }
            tries -= 1;
            if tries == 0 {
                return None;
            }
        }
    }
    None
}

fn record(raw: &Raw<'_>, at: u64) -> Record {
    let (fact, stage) = fact(raw);
    Record {
        at,
        node: node(raw),
        fact,
        stage: stage.filter(|_| !raw.is_sidechain.is("true")),
        cwd: raw.cwd.owned().filter(|c| c.starts_with('/')),
    }
}

fn node(raw: &Raw<'_>) -> Option<Node> {
    let uuid = raw.uuid.owned().filter(|u| !u.is_empty())?;
    let boundary = raw.subtype.is("compact_boundary");
    let parents = match raw.parent_uuid.owned() {
        Some(parent) => vec![parent],
        // where a conversation was made shorter, the chain goes on at what was kept
        None if boundary => {
            let kept = raw.compact_metadata.0.as_ref();
            let kept = kept.and_then(|c| c.preserved_segment.0.as_ref());
            let tail = kept.and_then(|s| s.tail_uuid.owned());
            // an empty one stands for "the record before"
            let logical = raw.logical_parent_uuid.owned().unwrap_or_default();
            std::iter::once(logical).chain(tail).collect()
        }
        None => Vec::new(),
    };
    Some(Node {
        uuid,
        parents,
        side: raw.is_sidechain.is("true"),
    })
}

fn fact(raw: &Raw<'_>) -> (Fact, Option<Stage>) {
    let title = |word: &Word<'_>| word.owned().filter(|t| !t.trim().is_empty());
    match raw.kind.text().unwrap_or_default() {
        "user" => user(raw),
        "assistant" => assistant(raw),
        "attachment" => match queued(raw) {
            Some(said) => (Fact::Message(Box::new(said)), Some(Stage::Running)),
            None => (Fact::Other, None),
        },
        "custom-title" => (title(&raw.custom_title).map_or(Fact::Other, Fact::Title), None),
        "ai-title" => (title(&raw.ai_title).map_or(Fact::Other, Fact::Summary), None),
        "summary" => (title(&raw.summary).map_or(Fact::Other, Fact::Summary), None),
        _ => (Fact::Other, None),
    }
}

fn assistant(raw: &Raw<'_>) -> (Fact, Option<Stage>) {
    let Some(message) = &raw.message.0 else {
        return (Fact::Other, None);
    };
    let calls = match &message.content {
        List::Objects(blocks, _) => blocks.iter().any(|b| b.kind.is("tool_use")),
        List::Text(_) => false,
    };
    let stage = if raw.is_api_error_message.is("true") {
        Stage::Failed
    } else {
        match message.stop_reason.text() {
            _ if calls => Stage::Running,
            // one message is several records: the reason stands in each, and in older versions in none
            None | Some("tool_use" | "pause_turn") => Stage::Running,
            Some(_) => Stage::Finished,
        }
    };
    (if calls { Fact::Call } else { Fact::Other }, Some(stage))
}

/// A message of role `user`: most of them are none of the human's.
fn user(raw: &Raw<'_>) -> (Fact, Option<Stage>) {
    let Some(message) = &raw.message.0 else {
        return (Fact::Other, None);
    };
    let blocks = match &message.content {
        List::Objects(blocks, _) => blocks.as_slice(),
        List::Text(_) => &[],
    };
    let result =
        raw.tool_use_result.0 || raw.source_tool.0 || blocks.iter().any(|b| b.kind.is("tool_result"));
    let (words, pictures) = content(&message.content);
    if words.trim_start().starts_with(text::INTERRUPTED) {
        return (Fact::Other, Some(Stage::Interrupted));
    }
    if result {
        return (Fact::Other, Some(Stage::Running));
    }
    let injected = [
        &raw.is_sidechain,
        &raw.is_meta,
        &raw.is_compact_summary,
        &raw.is_visible_in_transcript_only,
    ];
    if raw.uuid.text().is_none_or(str::is_empty) || injected.iter().any(|flag| flag.is("true")) {
        return (Fact::Other, None);
    }
    let (kind, text, stage) = match text::unwrapped(&words) {
        Wrapped::Noise => return (Fact::Other, None),
        Wrapped::Output => return (Fact::Other, Some(Stage::Finished)),
        Wrapped::Shell(line) => (MessageKind::Shell, line, Stage::Running),
        Wrapped::Command(line) => (MessageKind::Command, line, Stage::Running),
        Wrapped::Plain(words) => (MessageKind::Prompt, words, Stage::Running),
    };
    let said = Said {
        kind,
        text,
        pictures,
        time: time(raw),
    };
    (Fact::Message(Box::new(said)), Some(stage))
}

/// A message that was typed while the agent was at work.
fn queued(raw: &Raw<'_>) -> Option<Said> {
    let attachment = raw.attachment.0.as_ref()?;
    let by_human = match &attachment.origin.0 {
        Some(origin) => origin.kind.is("human"),
        None => true,
    };
    let prompt = matches!(attachment.command_mode.text(), None | Some("prompt"));
    let wanted = attachment.kind.is("queued_command") && prompt && by_human;
    if !wanted || attachment.is_meta.is("true") || raw.is_sidechain.is("true") || raw.uuid.text().is_none() {
        return None;
    }
    let (text, pictures) = content(&attachment.prompt);
    Some(Said {
        kind: MessageKind::Queued,
        text: text::without_paste(&text).to_owned(),
        pictures,
        time: time(raw),
    })
}

/// The text of the text blocks, a line each, and the number of pictures.
fn content(content: &List<'_, RawBlock<'_>>) -> (String, u32) {
    match content {
        List::Text(text) => (text.to_string(), 0),
        List::Objects(blocks, _) => {
            let texts = blocks
                .iter()
                .filter(|b| b.kind == Word::Absent || b.kind.is("text"))
                .filter_map(|b| b.text.text());
            let pictures = blocks
                .iter()
                .filter(|b| b.kind.text().is_some_and(|k| k.contains("image")));
            (texts.collect::<Vec<_>>().join("\n"), pictures.count() as u32)
        }
    }
}

fn time(raw: &Raw<'_>) -> Option<DateTime<Utc>> {
    let stamp = DateTime::parse_from_rfc3339(raw.timestamp.text()?).ok()?;
    Some(stamp.with_timezone(&Utc))
}

/// True if a line is one of Claude Code's: it names the session and its type.
pub(super) fn is_ours(line: &[u8]) -> bool {
    let mut repaired = Vec::new();
    with_object(line, &mut repaired, |raw: Raw<'_>| {
        let typed = raw.kind.text().is_some();
        typed
            && (raw.session_id.text().is_some()
                || raw.kind.is("summary")
                || raw.kind.is("file-history-snapshot"))
    })
    .unwrap_or(false)
}
