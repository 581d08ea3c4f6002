//! What opencode keeps of a message: the same objects in its database (1.18) and in files of their own (before 1.2).

use chrono::{DateTime, Utc};
use serde::Deserialize;

use super::MessageKind;
use super::claude_record::{Said, Stage};
use super::json::{Object, Word, with_object};
use super::rows::Row;

/// A message of whoever.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Info {
    pub(super) by_user: bool,
    /// When it was made, in milliseconds since 1970.
    pub(super) created: Option<i64>,
    /// When it was complete.
    pub(super) completed: Option<i64>,
    pub(super) stage: Stage,
    /// It says that tools were used.
    pub(super) tools: bool,
    /// It ended.
    pub(super) ended: bool,
}

/// A part of a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Part {
    /// Words of the human's.
    Text(String),
    /// A file; true for a picture.
    File(bool),
    /// A tool was used.
    Tool,
    /// The conversation was made shorter: no message.
    Compaction,
    /// Another one.
    Other,
}

#[derive(Deserialize)]
struct RawInfo<'a> {
    #[serde(borrow, default)]
    role: Word<'a>,
    #[serde(borrow, default)]
    time: Object<RawTime<'a>>,
    #[serde(borrow, default)]
    finish: Word<'a>,
    #[serde(borrow, default)]
    error: Object<RawError<'a>>,
}

#[derive(Deserialize)]
struct RawTime<'a> {
    #[serde(borrow, default)]
    created: Word<'a>,
    #[serde(borrow, default)]
    completed: Word<'a>,
    #[serde(borrow, default)]
    updated: Word<'a>,
}

#[derive(Deserialize)]
struct RawError<'a> {
    #[serde(borrow, default)]
    name: Word<'a>,
}

#[derive(Deserialize)]
struct RawPart<'a> {
    #[serde(borrow, default, rename = "type")]
    kind: Word<'a>,
    #[serde(borrow, default)]
    text: Word<'a>,
    #[serde(borrow, default)]
    synthetic: Word<'a>,
    #[serde(borrow, default)]
    ignored: Word<'a>,
    #[serde(borrow, default)]
    mime: Word<'a>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawRevert<'a> {
    #[serde(borrow, default, rename = "messageID")]
    message_id: Word<'a>,
}

/// A session, as a file of its own keeps it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Session {
    pub(super) side: bool,
    pub(super) directory: Option<String>,
    pub(super) title: Option<String>,
    pub(super) revert: Option<String>,
    pub(super) updated: Option<i64>,
}

#[derive(Deserialize)]
struct RawSession<'a> {
    #[serde(borrow, default, rename = "parentID")]
    parent: Word<'a>,
    #[serde(borrow, default)]
    directory: Word<'a>,
    #[serde(borrow, default)]
    title: Word<'a>,
    #[serde(borrow, default)]
    revert: Object<RawRevert<'a>>,
    #[serde(borrow, default)]
    time: Object<RawTime<'a>>,
}

fn millis(word: &Word<'_>) -> Option<i64> {
    let text = word.text()?;
    text.parse()
        .ok()
        .or_else(|| text.parse::<f64>().ok().map(|f| f as i64))
}

/// The instant of a time in milliseconds.
pub(super) fn instant(millis: i64) -> Option<DateTime<Utc>> {
    DateTime::from_timestamp_millis(millis)
}

/// Reads a message.
pub(super) fn info(bytes: &[u8]) -> Result<Info, String> {
    let mut repaired = Vec::new();
    with_object(bytes, &mut repaired, |raw: RawInfo<'_>| {
        let time = raw.time.0.as_ref();
        let completed = time.and_then(|t| millis(&t.completed));
        let by_user = raw.role.is("user");
        let finish = raw.finish.text();
        let stage = match &raw.error.0 {
            Some(e) if e.name.text().is_some_and(|n| n.contains("Abort")) => Stage::Interrupted,
            Some(_) => Stage::Failed,
            None if by_user || completed.is_none() || finish == Some("tool-calls") => Stage::Running,
            None => Stage::Finished,
        };
        Info {
            by_user,
            created: time.and_then(|t| millis(&t.created)),
            completed,
            stage,
            tools: finish == Some("tool-calls"),
            ended: finish.is_some(),
        }
    })
}

/// Reads a part of a message.
pub(super) fn part(bytes: &[u8]) -> Result<Part, String> {
    let mut repaired = Vec::new();
    with_object(bytes, &mut repaired, |raw: RawPart<'_>| {
        let own = !raw.synthetic.is("true") && !raw.ignored.is("true");
        match raw.kind.text().unwrap_or_default() {
            "text" if own => Part::Text(raw.text.owned().unwrap_or_default()),
            "file" if own => Part::File(raw.mime.text().is_none_or(|m| m.starts_with("image/"))),
            "tool" => Part::Tool,
            "compaction" => Part::Compaction,
            _ => Part::Other,
        }
    })
}

/// The message from which on all is taken back.
pub(super) fn reverted(bytes: &[u8]) -> Option<String> {
    let mut repaired = Vec::new();
    with_object(bytes, &mut repaired, |raw: RawRevert<'_>| raw.message_id.owned())
        .ok()
        .flatten()
}

/// Reads a session's own file.
pub(super) fn session(bytes: &[u8]) -> Result<Session, String> {
    let mut repaired = Vec::new();
    with_object(bytes, &mut repaired, |raw: RawSession<'_>| Session {
        side: raw.parent.text().is_some_and(|p| !p.is_empty()),
        directory: raw.directory.owned(),
        title: raw.title.owned(),
        revert: raw.revert.0.as_ref().and_then(|r| r.message_id.owned()),
        updated: raw.time.0.as_ref().and_then(|t| millis(&t.updated)),
    })
}

/// True for the id of a session: it is a path's last name too.
pub(super) fn is_session(id: &str) -> bool {
    let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-');
    id.starts_with("ses_") && id.len() <= 128 && id.bytes().all(plain)
}

/// A title, but not the one that every session begins with.
pub(super) fn titled(title: Option<&str>) -> Option<String> {
    let title = title.map(str::trim).filter(|t| !t.is_empty());
    title
        .filter(|t| !t.starts_with("New session - "))
        .map(str::to_owned)
}

/// A session's messages as they are read, in their order.
#[derive(Default)]
pub(super) struct Told {
    pub(super) rows: Vec<Row>,
    pub(super) stage: Option<Stage>,
    pub(super) acted: Option<u64>,
    /// The latest moment at which the agent was at work, as far as its messages tell.
    busy: i64,
    pub(super) notices: Vec<String>,
}

impl Told {
    /// The next message, at its place among all of the session. `parts` is asked only for those that matter.
    pub(super) fn take(
        &mut self,
        id: String,
        at: u64,
        (info, active): (Info, bool),
        parts: impl FnOnce() -> Vec<Part>,
    ) {
        if active {
            self.stage = Some(info.stage);
        }
        if !info.by_user {
            self.busy = self.busy.max(info.completed.unwrap_or(0));
            if info.tools || (!info.ended && parts().contains(&Part::Tool)) {
                self.acted = Some(at);
            }
            return;
        }
        let Some((text, pictures)) = words(parts()) else {
            return;
        };
        let created = info.created.unwrap_or(0);
        let kind = if created > 0 && created < self.busy {
            MessageKind::Queued
        } else {
            MessageKind::Prompt
        };
        self.rows.push(Row {
            id,
            index: at,
            said: Said {
                kind,
                text,
                pictures,
                time: info.created.and_then(instant),
            },
            follows: self.rows.len().checked_sub(1),
            active,
        });
    }

    /// What could not be read.
    pub(super) fn missed(&mut self, what: &str, why: &str) {
        use crate::text::shown;
        if self.notices.len() < 20 {
            self.notices
                .push(format!("{} is left out: {}", shown(what), shown(why)));
        }
    }
}

/// The human's words, and the number of pictures; `None` where there are none of the human's.
fn words(parts: Vec<Part>) -> Option<(String, u32)> {
    let (mut texts, mut pictures, mut files) = (Vec::new(), 0, false);
    for part in parts {
        match part {
            Part::Text(text) => texts.push(text),
            Part::File(picture) => {
                files = true;
                pictures += u32::from(picture);
            }
            Part::Compaction => return None,
            Part::Tool | Part::Other => {}
        }
    }
    let text = texts.join("\n");
    (files || !text.trim().is_empty()).then_some((text, pictures))
}
