//! Sends a message to a conversation, with the pictures that an earlier one had.

use std::path::Path;

use serde_json::{Value, json};

use super::error::{ChatError, Result};
use super::holder::{Access, holder};
use super::shelf::Shelf;
use super::{Hand, stand};

/// What is to be sent.
#[derive(Debug, Clone, PartialEq)]
pub struct Letter {
    /// The text.
    pub text: String,
    /// The pictures, as the agent keeps them: parts of a message's content.
    pub pictures: Vec<Value>,
}

impl Letter {
    /// The text, with the pictures that this message of the store has. `event`: its native id.
    pub fn instead_of(store: &Path, event: &str, text: String, hand: Hand) -> Result<Self> {
        let pictures = hand.run(|| pictures(store, event))?;
        Ok(Self { text, pictures })
    }
}

/// The picture parts of a message. Formats that keep messages in another way have none here.
fn pictures(store: &Path, event: &str) -> Result<Vec<Value>> {
    let Some(events) = Shelf::open(store)?.sub("events")? else {
        return Ok(Vec::new());
    };
    let end = format!("-{event}.json");
    let Some(name) = events.files()?.into_iter().find(|n| n.ends_with(&end)) else {
        return Ok(Vec::new());
    };
    let damaged = |reason: String| ChatError::Damaged {
        path: events.path.join(&name),
        reason,
    };
    let read: Value = serde_json::from_slice(&events.read(&name)?).map_err(|e| damaged(e.to_string()))?;
    let parts = read["llm_message"]["content"].as_array().cloned();
    let is_picture = |part: &Value| part["type"] == "image";
    Ok(parts.unwrap_or_default().into_iter().filter(is_picture).collect())
}

/// Sends it through the server that holds the conversation, and lets the agent work on it; that server, in words.
/// `None`: no server holds it, and nothing was sent.
pub fn by_server(store: &Path, letter: &Letter, access: &Access, hand: Hand) -> Result<Option<String>> {
    hand.run(|| {
        let stand = stand(store)?;
        let Some(server) = holder(store, &stand, access)? else {
            return Ok(None);
        };
        let mut content = vec![json!({"type": "text", "text": letter.text})];
        content.extend(letter.pictures.iter().cloned());
        let begun = server.send(&stand.id, &content)?;
        let words = server.words();
        Ok(Some(if begun {
            words
        } else {
            format!(
                "{words}: it works on as many conversations as it may, and begins when you tell it to go on"
            )
        }))
    })
}
