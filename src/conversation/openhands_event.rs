//! One event file of OpenHands V1: the few facts of it that matter here. Field names are the SDK's
//! (`openhands.sdk.event`, versions 1.21 to 1.58).

use chrono::{DateTime, Utc};
use serde::Deserialize;

use super::clock;
use super::json::{List, Object, Word, with_object};

/// The event before this one in the tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Parent {
    /// It has none.
    Root,
    /// This one.
    Id(String),
    /// Not recorded (before SDK 1.31, or unreadable): the one before it in the store.
    Previous,
}

/// A user message's own facts.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Said {
    pub(super) text: String,
    pub(super) pictures: u32,
    pub(super) time: Option<DateTime<Utc>>,
}

/// What an event tells.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Fact {
    /// A message of the human's.
    Message(Box<Said>),
    /// A prompt hook ran for the message of this id.
    Hook {
        message: String,
        stdout: String,
        blocked: bool,
    },
    /// The agent server noted this execution status.
    Status(String),
    /// A tool call began.
    Call(String),
    /// A tool call's result was stored.
    Outcome(String),
    /// Another event of the tree.
    Node,
    /// An event that is no node of the tree.
    Aside,
    /// It cannot be read; why.
    Unreadable(String),
}

/// One event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Event {
    pub(super) id: String,
    pub(super) parent: Parent,
    pub(super) fact: Fact,
}

impl Event {
    /// Stands for an event that cannot be read: its id is in its file's name, so that the chain holds.
    pub(super) fn unreadable(id: &str, reason: String) -> Self {
        Self {
            id: id.to_owned(),
            parent: Parent::Previous,
            fact: Fact::Unreadable(reason),
        }
    }
    /// True if the conversation's head may be it (as in the SDK's search for the last event).
    pub(super) fn may_be_head(&self) -> bool {
        !matches!(self.fact, Fact::Aside | Fact::Status(_))
    }
}

#[derive(Deserialize)]
struct Raw<'a> {
    #[serde(borrow, default)]
    id: Word<'a>,
    #[serde(borrow, default)]
    timestamp: Word<'a>,
    #[serde(borrow, default)]
    source: Word<'a>,
    #[serde(borrow, default)]
    parent_id: Word<'a>,
    #[serde(borrow, default)]
    kind: Word<'a>,
    #[serde(borrow, default)]
    sender: Word<'a>,
    #[serde(borrow, default)]
    llm_message: Object<RawMessage<'a>>,
    #[serde(borrow, default)]
    hook_event_type: Word<'a>,
    #[serde(borrow, default)]
    message_id: Word<'a>,
    #[serde(borrow, default)]
    stdout: Word<'a>,
    #[serde(borrow, default)]
    blocked: Word<'a>,
    #[serde(borrow, default)]
    key: Word<'a>,
    #[serde(borrow, default)]
    value: Word<'a>,
    #[serde(borrow, default)]
    tool_call_id: Word<'a>,
}

#[derive(Deserialize)]
struct RawMessage<'a> {
    #[serde(borrow, default)]
    role: Word<'a>,
    #[serde(borrow, default)]
    content: List<'a, RawPart<'a>>,
}

#[derive(Deserialize)]
struct RawPart<'a> {
    #[serde(borrow, default, rename = "type")]
    kind: Word<'a>,
    #[serde(borrow, default)]
    text: Word<'a>,
    #[serde(borrow, default)]
    image_urls: List<'a, serde::de::IgnoredAny>,
}

/// How messages begin that the framework itself writes in the user's name (SDK 1.58: `agent.py`, critic,
/// `/goal` loop).
const SYNTHETIC: [&str; 4] = [
    "Your previous response was blocked by the model's content filter.",
    "The task appears incomplete (iteration ",
    "The goal is NOT yet complete (audit iteration ",
    "Resuming a goal that was paused or interrupted.",
];

/// Reads an event file. `name_id` is the id in the file's name. The error is one harmless line.
pub(super) fn parse(bytes: &[u8], name_id: &str, mtime: Option<DateTime<Utc>>) -> Result<Event, String> {
    let mut repaired = Vec::new();
    with_object(bytes, &mut repaired, |raw: Raw<'_>| Event {
        id: raw.id.owned().unwrap_or_else(|| name_id.to_owned()),
        parent: match raw.parent_id.text() {
            Some("__root__") => Parent::Root,
            Some(id) => Parent::Id(id.to_owned()),
            None => Parent::Previous,
        },
        fact: fact(&raw, mtime),
    })
}

/// The timestamp of an event as it stands there (sorts as text within one store).
pub(super) fn stamp(bytes: &[u8]) -> String {
    #[derive(Deserialize)]
    struct Stamp<'a> {
        #[serde(borrow, default)]
        timestamp: Word<'a>,
    }
    let mut repaired = Vec::new();
    with_object(bytes, &mut repaired, |s: Stamp<'_>| s.timestamp.owned())
        .ok()
        .flatten()
        .unwrap_or_default()
}

fn fact(raw: &Raw<'_>, mtime: Option<DateTime<Utc>>) -> Fact {
    let tool_call = || raw.tool_call_id.owned();
    match raw.kind.text().unwrap_or_default() {
        "MessageEvent" => said(raw, mtime).map_or(Fact::Node, |s| Fact::Message(Box::new(s))),
        "HookExecutionEvent" if raw.hook_event_type.is("UserPromptSubmit") => Fact::Hook {
            message: raw.message_id.owned().unwrap_or_default(),
            stdout: raw.stdout.owned().unwrap_or_default(),
            blocked: raw.blocked.is("true"),
        },
        "ConversationStateUpdateEvent" if raw.key.is("execution_status") => {
            Fact::Status(raw.value.owned().unwrap_or_default())
        }
        "ConversationStateUpdateEvent" | "ConversationErrorEvent" => Fact::Aside,
        "ActionEvent" => tool_call().map_or(Fact::Node, Fact::Call),
        "ObservationEvent" | "AgentErrorEvent" | "UserRejectObservation" => {
            tool_call().map_or(Fact::Node, Fact::Outcome)
        }
        _ => Fact::Node,
    }
}

/// The message, if it is one of the human's.
fn said(raw: &Raw<'_>, mtime: Option<DateTime<Utc>>) -> Option<Said> {
    let message = raw.llm_message.0.as_ref()?;
    if !raw.source.is("user") || !message.role.is("user") || raw.sender != Word::Absent {
        return None;
    }
    let said = match &message.content {
        List::Text(text) => Said {
            text: text.to_string(),
            ..Said::default()
        },
        List::Objects(parts, _) => Said {
            text: parts
                .iter()
                .filter(|p| p.kind.is("text"))
                .filter_map(|p| p.text.text())
                .collect::<Vec<_>>()
                .join("\n"),
            pictures: parts
                .iter()
                .filter(|p| p.kind.is("image"))
                .map(|p| p.image_urls.len() as u32)
                .sum(),
            time: None,
        },
    };
    if SYNTHETIC.iter().any(|s| said.text.starts_with(s)) {
        return None;
    }
    Some(Said {
        time: raw.timestamp.text().and_then(|t| clock::instant(t, mtime)),
        ..said
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(fields: &str) -> Fact {
        let json = format!(r#"{{"id":"a","kind":"MessageEvent",{fields}}}"#);
        parse(json.as_bytes(), "b", None).expect("valid").fact
    }

    #[test]
    fn only_the_humans_messages_count() {
        let llm = |role: &str, text: &str| {
            format!(r#""llm_message":{{"role":"{role}","content":[{{"type":"text","text":"{text}"}}]}}"#)
        };
        let hi = llm("user", "hi");
        assert!(matches!(
            message(&format!(r#""source":"user",{hi}"#)),
            Fact::Message(_)
        ));
        assert!(matches!(
            message(&format!(r#""sender":null,"source":"user",{hi}"#)),
            Fact::Message(_)
        ));
        for noise in [
            format!(r#""source":"environment",{hi}"#),
            format!(r#""source":"agent",{hi}"#),
            format!(r#""source":"hook",{hi}"#),
            format!(r#""source":"user",{}"#, llm("assistant", "hi")),
            format!(r#""source":"user","sender":"delegate",{hi}"#),
            format!(
                r#""source":"user",{}"#,
                llm("user", "The task appears incomplete (iteration 1)")
            ),
            format!(
                r#""source":"user",{}"#,
                llm("user", "Resuming a goal that was paused or interrupted. x")
            ),
            r#""source":"user","llm_message":"hi""#.to_owned(),
            r#""source":"user""#.to_owned(),
        ] {
            assert_eq!(message(&noise), Fact::Node, "{noise}");
        }
    }

    #[test]
    fn text_parts_are_joined_and_pictures_counted() {
        let fact = message(
            r#""source":"user","llm_message":{"role":"user","content":[
               {"type":"text","text":"one"},{"type":"image","image_urls":["a","b"]},7,
               {"type":"text","text":"two"},{"type":"text"},{"type":"image"}]}"#,
        );
        let Fact::Message(said) = fact else {
            panic!("{fact:?}")
        };
        assert_eq!((said.text.as_str(), said.pictures), ("one\ntwo", 2));
    }

    #[test]
    fn parents_and_unknown_kinds() {
        let parent = |json: &str| parse(json.as_bytes(), "name", None).map(|e| (e.id, e.parent));
        assert_eq!(
            parent(r#"{"kind":"New","parent_id":"p","id":"x"}"#),
            Ok(("x".into(), Parent::Id("p".into())))
        );
        assert_eq!(
            parent(r#"{"parent_id":"__root__","id":"x"}"#),
            Ok(("x".into(), Parent::Root))
        );
        assert_eq!(
            parent(r#"{"parent_id":null,"id":[]}"#),
            Ok(("name".into(), Parent::Previous))
        );
    }
}
