//! The recorded conversation that the program carries in itself: assets/demo, made by tests/recorder with
//! the real OpenHands SDK. The form of turns.json stands at the head of tests/recorder/trace_tree.py.

use std::collections::BTreeMap;
use std::path::PathBuf;

use base64::Engine as _;
use include_dir::{Dir, include_dir};
use serde::{Deserialize, Deserializer, de::Error as _};
use serde_json::Value;

use super::{DemoError, Result};

static ASSETS: Dir<'static> = include_dir!("$CARGO_MANIFEST_DIR/assets/demo");

/// One change of one path. Paths are relative to the workspace.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(tag = "op", rename_all = "lowercase")]
pub enum Op {
    /// Makes a folder.
    Mkdir {
        /// The folder.
        path: PathBuf,
        /// Its permission bits.
        #[serde(deserialize_with = "octal")]
        mode: u32,
    },
    /// Moves a file, or a folder with everything below it, keeping its inode.
    Rename {
        /// The old path.
        from: PathBuf,
        /// The new path; must not exist.
        to: PathBuf,
    },
    /// Removes a file, a link or an empty folder.
    Remove {
        /// The path.
        path: PathBuf,
    },
    /// Sets all of a file's content and its permission bits.
    Write {
        /// The file.
        path: PathBuf,
        /// Its permission bits.
        #[serde(deserialize_with = "octal")]
        mode: u32,
        /// As a new inode in place of the old one (`sed -i` and most editors do that).
        #[serde(default)]
        replace: bool,
        /// The content.
        #[serde(flatten)]
        content: Content,
    },
    /// Makes a symbolic link.
    Symlink {
        /// The link.
        path: PathBuf,
        /// What it says, taken as it is.
        target: PathBuf,
    },
    /// Sets the permission bits of a file or folder.
    Chmod {
        /// The path.
        path: PathBuf,
        /// The bits.
        #[serde(deserialize_with = "octal")]
        mode: u32,
    },
}

/// The content of a file.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Content {
    /// Text in UTF-8.
    Text(String),
    /// Any bytes.
    #[serde(deserialize_with = "base64_bytes")]
    Base64(Vec<u8>),
}

impl Content {
    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        match self {
            Self::Text(t) => t.as_bytes(),
            Self::Base64(b) => b,
        }
    }
}

fn octal<'de, D: Deserializer<'de>>(d: D) -> std::result::Result<u32, D::Error> {
    let text = String::deserialize(d)?;
    u32::from_str_radix(&text, 8)
        .ok()
        .filter(|mode| *mode <= 0o7777)
        .ok_or_else(|| D::Error::custom(format!("{text} is no octal mode")))
}

fn base64_bytes<'de, D: Deserializer<'de>>(d: D) -> std::result::Result<Vec<u8>, D::Error> {
    base64::engine::general_purpose::STANDARD
        .decode(String::deserialize(d)?)
        .map_err(D::Error::custom)
}

/// Which events of the store a turn made: `first..end`, its message among them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub struct Span {
    /// The first event.
    pub first: usize,
    /// The event of the message itself.
    pub message: usize,
    /// One past the last event.
    pub end: usize,
}

/// One message and what came of it.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Turn {
    /// Its number, from 1.
    #[serde(rename = "message")]
    pub number: u32,
    /// The native id of the message.
    pub id: String,
    /// The message.
    pub text: String,
    /// Its events.
    pub events: Span,
    /// What the user changed with his own hands since the turn before.
    pub before: Vec<Op>,
    /// The [`super::digest`] of the workspace after that: the state that a rewind to this message gives.
    pub before_tree: String,
    /// What the agent changed.
    pub ops: Vec<Op>,
    /// The digest of the workspace after that.
    pub tree: String,
}

/// turns.json.
#[derive(Deserialize)]
struct Played {
    project: String,
    conversation: String,
    initial: Vec<Op>,
    initial_tree: String,
    turns: Vec<Turn>,
}

/// An event file of the recorded store.
#[derive(Debug, Clone, PartialEq)]
pub struct Event {
    /// The name of its file.
    pub file: String,
    /// What is in it.
    pub json: Value,
}

/// The recording.
#[derive(Debug, Clone)]
pub struct Recording {
    /// The name of the project: `skylog`.
    pub project: String,
    /// The native id of the conversation, which is the name of the store's folder.
    pub conversation: String,
    /// Makes the workspace as it is before the first message, of an empty folder.
    pub initial: Vec<Op>,
    /// The digest of that.
    pub initial_tree: String,
    /// The messages, in order.
    pub turns: Vec<Turn>,
    /// All events, in the store's order.
    pub events: Vec<Event>,
    /// The store's base_state.json at the end of the recording.
    pub base_state: Value,
}

impl Recording {
    /// Reads the recording that is built in.
    pub fn load() -> Result<Self> {
        let played: Played = asset("turns.json")?;
        let recording = Self {
            project: played.project,
            conversation: played.conversation,
            initial: played.initial,
            initial_tree: played.initial_tree,
            turns: played.turns,
            events: events()?,
            base_state: asset("conversation/base_state.json")?,
        };
        recording.check()?;
        Ok(recording)
    }

    /// Every event belongs to one turn, and the message of each is where the turn says.
    fn check(&self) -> Result<()> {
        let wrong = |what: String| Err(DemoError::Recording { what });
        let mut at = 0;
        for turn in &self.turns {
            let Span { first, message, end } = turn.events;
            if first != at || message < first || end <= message || end > self.events.len() {
                return wrong(format!(
                    "the events of message {} do not follow those before",
                    turn.number
                ));
            }
            if self.events[message].json["id"] != turn.id.as_str() {
                return wrong(format!("event {message} is not message {}", turn.number));
            }
            at = end;
        }
        if at != self.events.len() || at == 0 {
            return wrong(format!("{} events, {at} of them in turns", self.events.len()));
        }
        Ok(())
    }
}

fn asset<T: for<'de> Deserialize<'de>>(path: &str) -> Result<T> {
    let file = ASSETS.get_file(path).ok_or_else(|| DemoError::Recording {
        what: format!("{path} is missing"),
    })?;
    serde_json::from_slice(file.contents()).map_err(DemoError::recording(path))
}

fn events() -> Result<Vec<Event>> {
    let folder = ASSETS.get_dir("conversation/events");
    let files: BTreeMap<&str, &[u8]> = folder
        .iter()
        .flat_map(|f| f.files())
        .filter_map(|f| Some((f.path().file_name()?.to_str()?, f.contents())))
        .collect();
    files
        .into_iter()
        .map(|(name, bytes)| {
            Ok(Event {
                file: name.to_owned(),
                json: serde_json::from_slice(bytes).map_err(DemoError::recording(name))?,
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_built_in_recording_tells_the_whole_story() {
        let r = Recording::load().expect("the recording loads");
        assert_eq!(
            r.turns.iter().map(|t| t.number).collect::<Vec<_>>(),
            [1, 2, 3, 4, 5, 6]
        );
        let renames = |t: &Turn| t.ops.iter().any(|o| matches!(o, Op::Rename { .. }));
        assert_eq!(
            r.turns.iter().map(renames).collect::<Vec<_>>(),
            [false, false, true, false, false, false]
        );
        let own: Vec<usize> = r.turns.iter().map(|t| t.before.len()).collect();
        assert_eq!(
            own,
            [0, 0, 0, 3, 0, 0],
            "the user's own edits come before message 4"
        );
        assert!(r.turns[3].ops.iter().any(|o| matches!(o, Op::Symlink { .. })));
        assert!(r.turns[4].ops.len() > 80, "message 5 makes the mess");
        assert_eq!(
            r.base_state["id"].as_str().expect("an id").replace('-', ""),
            r.conversation
        );
        for (n, e) in r.events.iter().enumerate() {
            assert!(
                e.file.starts_with(&format!("event-{n:05}-")),
                "{} is event {n}",
                e.file
            );
        }
    }

    #[test]
    fn an_operation_with_a_wrong_mode_or_without_content_is_refused() {
        for bad in [
            r#"{"op":"chmod","path":"a","mode":"0999"}"#,
            r#"{"op":"chmod","path":"a","mode":"200000"}"#,
            r#"{"op":"write","path":"a","mode":"0644"}"#,
            r#"{"op":"write","path":"a","mode":"0644","base64":"%"}"#,
            r#"{"op":"format","path":"a"}"#,
        ] {
            assert!(serde_json::from_str::<Op>(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_turn_whose_events_do_not_fit_is_refused() {
        let mut r = Recording::load().expect("the recording loads");
        r.turns[2].events.first += 1;
        assert!(r.check().is_err());
        let mut r = Recording::load().expect("the recording loads");
        r.turns.pop();
        assert!(r.check().is_err());
        let mut r = Recording::load().expect("the recording loads");
        r.turns[0].id = "another".into();
        assert!(r.check().is_err());
    }
}
