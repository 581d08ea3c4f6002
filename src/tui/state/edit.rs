//! A message that is edited, to be sent again.

use std::collections::HashSet;
use std::path::PathBuf;

use super::Field;
use crate::tui::backend::{Opening, Unsent, Writing};
use crate::tui::message::JobId;

/// What is in the box.
#[derive(Debug, Clone)]
pub enum Content {
    /// It is being read.
    Reading(JobId),
    /// It is edited here.
    Field(Box<Field>),
    /// It is too long for that: the user's editor takes it.
    Long(String),
}

/// The box.
#[derive(Debug)]
pub struct EditBox {
    /// The message's native id.
    pub row: String,
    /// The message in words.
    pub name: String,
    /// Its text as it was sent.
    pub original: String,
    /// The text.
    pub content: Content,
    /// What goes with it, in words, and whether it does.
    pub parts: Vec<(String, bool)>,
    /// The selected one of them.
    pub chosen: usize,
    /// The keys go to them.
    pub on_parts: bool,
    /// The text is one that was kept from an earlier time.
    pub found: bool,
    /// What is kept now.
    pub kept: Option<String>,
    /// It will be kept in a moment.
    pub soon: bool,
    /// The text is in the user's editor: its file, or none yet.
    pub outside: Option<Option<PathBuf>>,
}

impl EditBox {
    /// Of a message, while its text is read.
    pub fn new(row: String, name: String, original: String, job: JobId) -> Self {
        Self {
            row,
            name,
            original,
            content: Content::Reading(job),
            parts: Vec::new(),
            chosen: 0,
            on_parts: false,
            found: false,
            kept: None,
            soon: false,
            outside: None,
        }
    }

    /// The text is there.
    pub fn open(&mut self, opening: Opening) {
        self.parts = opening
            .attachments
            .into_iter()
            .map(|words| (words, true))
            .collect();
        self.found = opening.kept.as_ref().is_some_and(|k| *k != self.original);
        let text = opening.kept.clone().unwrap_or_else(|| self.original.clone());
        self.kept = opening.kept;
        self.set(text);
    }

    /// Puts another text in.
    pub fn set(&mut self, text: String) {
        self.content = match Field::new(&text) {
            Some(field) => Content::Field(Box::new(field)),
            None => Content::Long(text),
        };
    }

    /// The text; `None` while it is not there.
    pub fn text(&self) -> Option<String> {
        match &self.content {
            Content::Reading(_) => None,
            Content::Field(field) => Some(field.text()),
            Content::Long(text) => Some(text.clone()),
        }
    }

    /// As it is to be sent.
    pub fn writing(&self) -> Option<Writing> {
        Some(Writing {
            row: self.row.clone(),
            text: self.text()?.into(),
            keep: self.parts.iter().map(|(_, keep)| *keep).collect(),
        })
    }
}

/// A message that waits to be sent by the agent's own program, for the conversation in which it is expected.
#[derive(Debug, Clone)]
pub struct Awaited {
    /// What was written.
    pub writing: Writing,
    /// What there is to do about it.
    pub unsent: Unsent,
    /// The messages that were there before it could come; `None` until the conversation was read.
    pub known: Option<HashSet<String>>,
}
