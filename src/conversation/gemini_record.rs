//! One line of a Gemini CLI chat: the few facts of it that matter here. Field names as in files of Gemini CLI 0.61.0;
//! unknown record types are passed over.

use serde::Deserialize;

use super::MessageKind;
use super::claude_record::{Said, Stage};
use super::copilot_record::time;
use super::json::{List, Object, Word, with_object};
use super::jsonl::Line;
use super::torn::{Parsed, salvaged};

/// A message of whoever.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) id: String,
    /// The human's words, if they are.
    pub(super) said: Option<Said>,
    /// How far the agent is with it.
    pub(super) stage: Option<Stage>,
    /// The agent uses a tool.
    pub(super) call: bool,
}

/// What a record tells.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Event {
    /// The session that it names.
    pub(super) session: Option<String>,
    /// It is a sub-agent's chat.
    pub(super) side: bool,
    /// The agent's own title.
    pub(super) summary: Option<String>,
    /// All messages that there are from now on.
    pub(super) list: Option<Vec<Entry>>,
    /// This message and all after it are taken back.
    pub(super) rewind: Option<String>,
    /// A message that is added, or stands for the one of the same id.
    pub(super) entry: Option<Entry>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Raw<'a> {
    #[serde(borrow, default)]
    session_id: Word<'a>,
    #[serde(borrow, default)]
    kind: Word<'a>,
    #[serde(borrow, default)]
    summary: Word<'a>,
    #[serde(borrow, default)]
    messages: Option<List<'a, RawMessage<'a>>>,
    #[serde(borrow, default, rename = "$set")]
    set: Object<RawSet<'a>>,
    #[serde(borrow, default, rename = "$rewindTo")]
    rewind: Word<'a>,
    #[serde(borrow, default)]
    id: Word<'a>,
    #[serde(borrow, default, rename = "type")]
    by: Word<'a>,
    #[serde(borrow, default)]
    timestamp: Word<'a>,
    #[serde(borrow, default)]
    content: List<'a, RawPart<'a>>,
    #[serde(borrow, default)]
    display_content: List<'a, RawPart<'a>>,
    #[serde(borrow, default)]
    tool_calls: List<'a, Empty>,
}

#[derive(Deserialize)]
struct RawSet<'a> {
    #[serde(borrow, default)]
    summary: Word<'a>,
    #[serde(borrow, default)]
    messages: Option<List<'a, RawMessage<'a>>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawMessage<'a> {
    #[serde(borrow, default)]
    id: Word<'a>,
    #[serde(borrow, default, rename = "type")]
    by: Word<'a>,
    #[serde(borrow, default)]
    timestamp: Word<'a>,
    #[serde(borrow, default)]
    content: List<'a, RawPart<'a>>,
    #[serde(borrow, default)]
    display_content: List<'a, RawPart<'a>>,
    #[serde(borrow, default)]
    tool_calls: List<'a, Empty>,
}

#[derive(Deserialize)]
struct Empty {}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawPart<'a> {
    #[serde(borrow, default)]
    text: Word<'a>,
    #[serde(default)]
    function_response: Object<Empty>,
    #[serde(borrow, default)]
    inline_data: Object<RawData<'a>>,
    #[serde(borrow, default)]
    file_data: Object<RawData<'a>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawData<'a> {
    #[serde(borrow, default)]
    mime_type: Word<'a>,
}

/// What a record may begin with that stands behind a torn line.
const BEGINNINGS: [&[u8]; 4] = [b"{\"id\"", b"{\"$set\"", b"{\"$rewindTo\"", b"{\"sessionId\""];
/// What the program says in the human's name.
const NOISE: [&str; 2] = ["<session_context>", "<state_snapshot>"];
/// What it makes of a shell line of the human's.
const SHELL: (&str, &str) = (
    "I ran the following shell command:\n```sh\n",
    "\n```\n\nThis produced",
);

/// Reads a line: its position, and what it tells.
pub(super) fn parse(line: Line<'_>) -> (u64, Parsed<Event>) {
    (line.end.saturating_sub(1), salvaged(line, &BEGINNINGS, event))
}

/// Reads a record; also a whole chat as older versions kept it, in one object.
pub(super) fn event(bytes: &[u8]) -> Result<Event, String> {
    let mut repaired = Vec::new();
    with_object(bytes, &mut repaired, |raw: Raw<'_>| told(raw))
}

fn told(raw: Raw<'_>) -> Event {
    let set = raw.set.0.as_ref();
    let list = raw.messages.as_ref().or(set.and_then(|s| s.messages.as_ref()));
    let list = list.and_then(|list| match list {
        List::Objects(all, _) => Some(all.iter().filter_map(entry).collect()),
        List::Text(_) => None,
    });
    let title = set.map_or(&raw.summary, |s| &s.summary);
    Event {
        session: raw.session_id.owned().filter(|s| !s.is_empty()),
        side: raw.kind.is("subagent"),
        summary: title.owned().filter(|t| !t.trim().is_empty()),
        list,
        rewind: raw.rewind.owned(),
        entry: entry(&RawMessage {
            id: raw.id,
            by: raw.by,
            timestamp: raw.timestamp,
            content: raw.content,
            display_content: raw.display_content,
            tool_calls: raw.tool_calls,
        }),
    }
}

fn entry(raw: &RawMessage<'_>) -> Option<Entry> {
    let id = raw.id.owned().filter(|id| !id.is_empty())?;
    let (text, pictures, response) = words(&raw.content);
    let call = raw.tool_calls.len() > 0;
    let (said, stage) = match raw.by.text()? {
        "user" if response => (None, Some(Stage::Running)),
        "user" => {
            let said = said(raw, text, pictures);
            let stage = said.is_some().then_some(Stage::Running);
            (said, stage)
        }
        "gemini" if call || text.trim().is_empty() => (None, Some(Stage::Running)),
        "gemini" => (None, Some(Stage::Finished)),
        "error" => (None, Some(Stage::Failed)),
        "info" if text.starts_with("Request cancelled") => (None, Some(Stage::Interrupted)),
        _ => (None, None),
    };
    Some(Entry {
        id,
        said,
        stage,
        call,
    })
}

/// The human's words, without what files they name, if there are any.
fn said(raw: &RawMessage<'_>, sent: String, pictures: u32) -> Option<Said> {
    let (shown, drawn, _) = words(&raw.display_content);
    let text = if shown.is_empty() { sent } else { shown };
    let pictures = pictures.max(drawn);
    let begins = text.trim_start();
    let nothing = text.trim().is_empty() && pictures == 0;
    if nothing || begins == "?" || NOISE.iter().any(|n| begins.starts_with(n)) {
        return None;
    }
    let shell = text.strip_prefix(SHELL.0).and_then(|t| t.split_once(SHELL.1));
    let (kind, text) = match shell {
        Some((line, _)) => (MessageKind::Shell, line.to_owned()),
        None if is_command(begins) => (MessageKind::Command, text),
        None => (MessageKind::Prompt, text),
    };
    Some(Said {
        kind,
        text,
        pictures,
        time: time(&raw.timestamp),
    })
}

/// `/name` with its arguments, and not a path.
fn is_command(text: &str) -> bool {
    let Some(rest) = text.strip_prefix('/') else {
        return false;
    };
    let name = rest.split_whitespace().next().unwrap_or_default();
    let plain = |c: char| c.is_alphanumeric() || matches!(c, '-' | '_' | ':');
    !name.is_empty() && rest.starts_with(name) && name.chars().all(plain)
}

/// The texts, a line each; the number of pictures; whether it is a tool's answer.
fn words(content: &List<'_, RawPart<'_>>) -> (String, u32, bool) {
    let parts = match content {
        List::Text(text) => return (text.to_string(), 0, false),
        List::Objects(parts, _) => parts,
    };
    let texts: Vec<&str> = parts.iter().filter_map(|p| p.text.text()).collect();
    let picture = |data: &Object<RawData<'_>>| {
        let data = data.0.as_ref();
        data.is_some_and(|d| d.mime_type.text().is_none_or(|m| m.starts_with("image/")))
    };
    let pictures = parts
        .iter()
        .filter(|p| picture(&p.inline_data) || picture(&p.file_data));
    let response = parts.iter().any(|p| p.function_response.0.is_some());
    (texts.join("\n"), pictures.count() as u32, response)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said_of(content: &str) -> Option<(MessageKind, String, u32)> {
        let line = format!("{{\"id\":\"a\",\"type\":\"user\",\"content\":{content}}}");
        let entry = event(line.as_bytes()).expect("JSON").entry.expect("a message");
        entry.said.map(|s| (s.kind, s.text, s.pictures))
    }

    #[test]
    fn the_humans_words_are_told_from_others() {
        use MessageKind::{Command, Prompt, Shell};
        for (content, want) in [
            ("\"plain\"", Some((Prompt, "plain", 0))),
            ("[{\"text\":\"a\"},{\"text\":\"b\"}]", Some((Prompt, "a\nb", 0))),
            (
                "[{\"text\":\"/etc/passwd is wrong\"}]",
                Some((Prompt, "/etc/passwd is wrong", 0)),
            ),
            ("[{\"text\":\"/go:it now\"}]", Some((Command, "/go:it now", 0))),
            ("[{\"text\":\"<session_context>\\nx\"}]", None),
            ("[{\"text\":\" \"}]", None),
            ("[]", None),
            ("[{\"functionResponse\":{},\"text\":\"x\"}]", None),
            (
                "[{\"inlineData\":{\"mimeType\":\"image/png\"}},{\"inlineData\":{\"mimeType\":\"audio/x\"}}]",
                Some((Prompt, "", 1)),
            ),
            (
                "[{\"text\":\"I ran the following shell command:\\n```sh\\nmake\\n```\\n\\nThis produced the following\"}]",
                Some((Shell, "make", 0)),
            ),
        ] {
            assert_eq!(
                said_of(content),
                want.map(|(k, t, p)| (k, t.to_owned(), p)),
                "{content}"
            );
        }
    }
}
