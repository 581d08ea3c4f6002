//! One line of a Copilot session: the few facts of it that matter here. Field names as in files of Copilot CLI 1.0.102
//! and in the event schema of its SDK; unknown event types are passed over.

use chrono::{DateTime, Utc};
use serde::Deserialize;

use super::MessageKind;
use super::claude_record::{Fact, Node, Record, Said, Stage};
use super::json::{List, Object, Word, with_object};
use super::jsonl::Line;
use super::torn::{Parsed, salvaged};

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Raw<'a> {
    #[serde(borrow, default, rename = "type")]
    kind: Word<'a>,
    #[serde(borrow, default)]
    id: Word<'a>,
    #[serde(borrow, default)]
    parent_id: Word<'a>,
    #[serde(borrow, default)]
    timestamp: Word<'a>,
    #[serde(borrow, default)]
    agent_id: Word<'a>,
    #[serde(borrow, default)]
    data: Object<RawData<'a>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawData<'a> {
    #[serde(borrow, default)]
    content: Word<'a>,
    #[serde(borrow, default)]
    source: Word<'a>,
    #[serde(borrow, default)]
    agent_mode: Word<'a>,
    #[serde(borrow, default)]
    delivery: Word<'a>,
    #[serde(borrow, default)]
    is_autopilot_continuation: Word<'a>,
    #[serde(borrow, default)]
    parent_tool_call_id: Word<'a>,
    #[serde(borrow, default)]
    attachments: List<'a, RawAttachment<'a>>,
    #[serde(default)]
    tool_requests: List<'a, Empty>,
    #[serde(borrow, default)]
    context: Object<RawContext<'a>>,
    #[serde(borrow, default)]
    title: Word<'a>,
}

#[derive(Deserialize)]
struct Empty {}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawAttachment<'a> {
    #[serde(borrow, default)]
    mime_type: Word<'a>,
    #[serde(borrow, default)]
    path: Word<'a>,
}

#[derive(Deserialize)]
struct RawContext<'a> {
    #[serde(borrow, default)]
    cwd: Word<'a>,
}

/// What an event may begin with that stands behind a torn line.
const BEGINNINGS: [&[u8]; 3] = [b"{\"type\"", b"{\"id\"", b"{\"data\""];

/// Reads a line. True beside it: a torn record stands before it.
pub(super) fn parse(line: Line<'_>) -> (Record, bool) {
    let at = line.end.saturating_sub(1);
    let parsed = salvaged(line, &BEGINNINGS, |bytes| {
        let mut repaired = Vec::new();
        with_object(bytes, &mut repaired, |raw: Raw<'_>| record(&raw, at))
    });
    let fact = match parsed {
        Parsed::Whole(record) => return (record, false),
        Parsed::Torn(record) => return (record, true),
        Parsed::Unreadable(reason) => Fact::Unreadable(reason),
        Parsed::Unfinished => Fact::Unfinished,
    };
    let nothing = Record {
        at,
        node: None,
        fact,
        stage: None,
        cwd: None,
    };
    (nothing, false)
}

fn record(raw: &Raw<'_>, at: u64) -> Record {
    let data = raw.data.0.as_ref();
    // what a sub-agent does is no part of the conversation
    let side = raw.agent_id.text().is_some_and(|a| !a.is_empty())
        || data.is_some_and(|d| d.parent_tool_call_id.text().is_some_and(|c| !c.is_empty()));
    let (fact, stage) = data.map_or((Fact::Other, None), |data| fact(raw, data, side));
    let begins = raw.kind.is("session.start") || raw.kind.is("session.resume");
    let cwd = data.and_then(|d| d.context.0.as_ref()?.cwd.owned());
    Record {
        at,
        node: node(raw, side),
        fact,
        stage: stage.filter(|_| !side),
        cwd: cwd.filter(|c| begins && c.starts_with('/')),
    }
}

fn node(raw: &Raw<'_>, side: bool) -> Option<Node> {
    Some(Node {
        uuid: raw.id.owned().filter(|id| !id.is_empty())?,
        parents: raw.parent_id.owned().into_iter().collect(),
        side,
    })
}

fn fact(raw: &Raw<'_>, data: &RawData<'_>, side: bool) -> (Fact, Option<Stage>) {
    match raw.kind.text().unwrap_or_default() {
        "user.message" if !side && by_human(data) => {
            (Fact::Message(Box::new(said(raw, data))), Some(Stage::Running))
        }
        "user.message" | "assistant.turn_start" => (Fact::Other, Some(Stage::Running)),
        "assistant.message" if data.tool_requests.len() > 0 => (Fact::Call, Some(Stage::Running)),
        "assistant.message" | "session.idle" | "session.task_complete" => {
            (Fact::Other, Some(Stage::Finished))
        }
        "tool.execution_start" => (Fact::Call, Some(Stage::Running)),
        "abort" => (Fact::Other, Some(Stage::Interrupted)),
        "session.error" => (Fact::Other, Some(Stage::Failed)),
        "session.title_changed" => {
            let title = data.title.owned().filter(|t| !t.trim().is_empty());
            (title.map_or(Fact::Other, Fact::Summary), None)
        }
        _ => (Fact::Other, None),
    }
}

/// A message names its origin where it is not the human's: a skill's text, autopilot's own going on, another agent.
fn by_human(data: &RawData<'_>) -> bool {
    let others = ["skill", "autopilot", "agent", "system"];
    let source = data.source.text().unwrap_or_default();
    !data.is_autopilot_continuation.is("true") && !others.iter().any(|o| source.starts_with(o))
}

fn said(raw: &Raw<'_>, data: &RawData<'_>) -> Said {
    let delivery = data.delivery.text().unwrap_or_default();
    let kind = match delivery {
        _ if data.agent_mode.is("shell") => MessageKind::Shell,
        _ if data.source.text().is_some_and(|s| s.starts_with("command")) => MessageKind::Command,
        "steering" | "steer" | "immediate" => MessageKind::Steer,
        "queued" | "queue" | "enqueue" => MessageKind::Queued,
        _ => MessageKind::Prompt,
    };
    let pictures = match &data.attachments {
        List::Objects(all, _) => all.iter().filter(|a| is_picture(a)).count() as u32,
        List::Text(_) => 0,
    };
    Said {
        kind,
        text: data.content.owned().unwrap_or_default(),
        pictures,
        time: time(&raw.timestamp),
    }
}

fn is_picture(attachment: &RawAttachment<'_>) -> bool {
    let endings = [".png", ".jpg", ".jpeg", ".gif", ".webp", ".bmp", ".svg"];
    let path = attachment.path.text().unwrap_or_default().to_lowercase();
    let typed = attachment
        .mime_type
        .text()
        .is_some_and(|m| m.starts_with("image/"));
    typed || endings.iter().any(|e| path.ends_with(e))
}

/// The time of a stamp with its zone.
pub(super) fn time(stamp: &Word<'_>) -> Option<DateTime<Utc>> {
    let stamp = DateTime::parse_from_rfc3339(stamp.text()?).ok()?;
    Some(stamp.with_timezone(&Utc))
}

/// True if a line is one of Copilot's: an event with its data.
pub(super) fn is_ours(line: &[u8]) -> bool {
    let mut repaired = Vec::new();
    with_object(line, &mut repaired, |raw: Raw<'_>| {
        let named = raw.kind.text().is_some_and(|k| k.contains('.') || k == "abort");
        named && raw.data.0.is_some() && raw.id.text().is_some()
    })
    .unwrap_or(false)
}

#[cfg(test)]
mod tests {
    use super::super::jsonl::split;
    use super::*;

    fn kind(more: &str) -> Option<(MessageKind, u32)> {
        let line = format!("{{\"type\":\"user.message\",\"id\":\"a\",\"data\":{{\"content\":\"x\"{more}}}}}");
        let (record, _) = parse(split(line.as_bytes(), 0)[0]);
        record.said().map(|s| (s.kind, s.pictures))
    }

    #[test]
    fn the_humans_messages_are_told_from_others() {
        use MessageKind::{Command, Prompt, Queued, Shell, Steer};
        for (more, want) in [
            ("", Some((Prompt, 0))),
            (",\"source\":\"user\",\"delivery\":\"idle\"", Some((Prompt, 0))),
            (",\"source\":\"command-review\"", Some((Command, 0))),
            (",\"source\":\"skill-pdf\"", None),
            (",\"source\":\"agent-7\"", None),
            (",\"isAutopilotContinuation\":true", None),
            (",\"parentToolCallId\":\"call\"", None),
            (",\"agentMode\":\"shell\"", Some((Shell, 0))),
            (",\"delivery\":\"steering\"", Some((Steer, 0))),
            (",\"delivery\":\"queued\"", Some((Queued, 0))),
            (
                ",\"attachments\":[{\"type\":\"file\",\"path\":\"/a.PNG\"},{\"type\":\"blob\",\"mimeType\":\"image/x\"},\
                 {\"type\":\"file\",\"path\":\"/a.rs\"},7]",
                Some((Prompt, 2)),
            ),
        ] {
            assert_eq!(kind(more), want, "{more}");
        }
    }
}
