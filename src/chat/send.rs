//! Sends a message to a conversation, with the pictures that an earlier one had.

use std::path::Path;

use serde_json::{Value, json};

use super::error::{ChatError, Result};
use super::holder::{Access, holder};
use super::shelf::Shelf;
use super::{Hand, fork, stand};
use crate::text::{first_line, size};

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
    /// Claude Code is resumed with text alone: a message with pictures is refused.
    pub fn instead_of(store: &Path, event: &str, text: String, hand: Hand) -> Result<Self> {
        if fork::is_ours(store) {
            let pictures = hand.run(|| fork::pictures(store, event))?;
            if pictures > 0 {
                return Err(ChatError::Pictures(pictures));
            }
            return Ok(Self {
                text,
                pictures: Vec::new(),
            });
        }
        let pictures = hand.run(|| pictures(store, event))?;
        Ok(Self { text, pictures })
    }
}

impl Letter {
    /// What goes with the text, each in words: `picture 1: image/png, 12.0 KiB`.
    pub fn attachments(&self) -> Vec<String> {
        let words = |(n, url): (usize, &Value)| format!("picture {}: {}", n + 1, picture_words(url));
        self.pictures
            .iter()
            .flat_map(urls)
            .enumerate()
            .map(words)
            .collect()
    }

    /// Leaves away those that are not to go with it: one word for each of [`Letter::attachments`], in that order.
    /// What is not told of goes with it.
    pub fn keep_only(&mut self, keep: &[bool]) {
        let mut next = keep.iter();
        for part in &mut self.pictures {
            if let Some(list) = part["image_urls"].as_array_mut() {
                list.retain(|_| next.next().copied().unwrap_or(true));
            }
        }
        self.pictures.retain(|part| urls(part).next().is_some());
    }
}

/// The pictures of a part (`{"type":"image","image_urls":[...]}`, SDK 1.58).
fn urls(part: &Value) -> impl Iterator<Item = &Value> {
    part["image_urls"].as_array().into_iter().flatten()
}

/// A picture in words, harmless: of one in a `data:` address its type and size, of another one the address.
fn picture_words(url: &Value) -> String {
    let url = url.as_str().unwrap_or("in a form that is not known");
    let Some((head, data)) = url.strip_prefix("data:").and_then(|rest| rest.split_once(',')) else {
        return first_line(url);
    };
    let (kind, encoded) = match head.strip_suffix(";base64") {
        Some(kind) => (kind, true),
        None => (head, false),
    };
    let bytes = if encoded { data.len() / 4 * 3 } else { data.len() };
    format!("{}, {}", first_line(kind), size(bytes as u64))
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
    if fork::is_ours(store) {
        return Ok(None);
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    /// P128: each picture can be left away; the others stay as they are.
    #[test]
    fn p128_pictures_are_told_and_left_away_one_by_one() {
        let evil = "https://x.example/\u{1b}[2J.png";
        let letter = |urls: [&[&str]; 2]| Letter {
            text: "look".into(),
            pictures: urls
                .map(|u| json!({"type": "image", "image_urls": u, "cache_prompt": false}))
                .to_vec(),
        };
        let all = letter([&["data:image/png;base64,AAAABBBB", evil], &["data:image/gif,xyz"]]);
        assert_eq!(
            all.attachments(),
            [
                "picture 1: image/png, 6 B",
                "picture 2: https://x.example/^[[2J.png",
                "picture 3: image/gif, 3 B"
            ]
        );
        let kept = |keep: &[bool]| {
            let mut some = all.clone();
            some.keep_only(keep);
            some.pictures
        };
        assert_eq!(kept(&[]), all.pictures);
        assert_eq!(kept(&[true, true, true]), all.pictures);
        assert_eq!(kept(&[false, true, false]), letter([&[evil], &[]]).pictures[..1]);
        assert_eq!(kept(&[false, false, true]), all.pictures[1..]);
        assert_eq!(kept(&[false; 3]), Vec::<Value>::new());
    }
}
