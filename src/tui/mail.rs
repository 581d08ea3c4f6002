//! How the real backend keeps and sends messages that were edited.

use std::collections::BTreeMap;
use std::path::Path;

use super::backend::{Failure, Opening, Resent, Result, Unsent, Writing};
use crate::chat::{Drafts, Hand, Kept, Letter, Program, Resume, Talk, by_server};
use crate::conversation::Summary;
use crate::failure::{Explain, Kind};
use crate::rewind::Outcome;
use crate::text::count;
use crate::timeline::Row;

/// Where messages are kept, and what sends them where no server does.
#[derive(Debug, Clone)]
pub struct Mail {
    /// Where they are kept until they were sent.
    pub drafts: Drafts,
    /// The user's own commands that open a conversation again, by agent.
    pub own: BTreeMap<String, Vec<String>>,
    /// The words before such a command, see [`Resume::under`].
    pub under: Vec<String>,
}

/// A message that is to be sent, before anything was done.
pub struct Post {
    letter: Letter,
    kept: Kept,
    resume: Option<Resume>,
}

impl Mail {
    /// The place of what is written instead of a message.
    pub fn kept(&self, conversation: &Summary, row: &str) -> Kept {
        self.drafts.instead_of(conversation, row)
    }

    /// What a message, one of these rows, is edited from.
    pub fn opening(&self, conversation: &Summary, row: &Row, rows: &[Row], hand: Hand) -> Result<Opening> {
        let said = rows.iter().map(|r| (&*r.text, r.time));
        Ok(Opening {
            kept: self.kept(conversation, &row.id).unsent(said)?,
            attachments: letter(conversation, row, String::new(), hand)?.attachments(),
        })
    }

    /// How a conversation is gone on with in the agent's own program.
    pub fn resume(&self, conversation: &Summary, folder: &Path) -> Option<Resume> {
        let own = self.own.get(conversation.agent).map_or(&[][..], Vec::as_slice);
        Resume::of(conversation, folder, own).map(|r| Resume {
            under: self.under.clone(),
            ..r
        })
    }

    /// Keeps a message, and gets it ready to be sent.
    pub fn post(
        &self,
        conversation: &Summary,
        row: &Row,
        folder: &Path,
        (writing, hand): (&Writing, Hand),
    ) -> Result<Post> {
        let mut letter = letter(conversation, row, writing.text.to_string(), hand)?;
        letter.keep_only(&writing.keep);
        let kept = self.kept(conversation, &row.id);
        kept.keep(&writing.text)?;
        let resume = self.resume(conversation, folder);
        if let Some(resume) = &resume {
            resume.carries(&writing.text)?;
        }
        Ok(Post { letter, kept, resume })
    }
}

/// The message with all that went with it.
fn letter(conversation: &Summary, row: &Row, text: String, hand: Hand) -> Result<Letter> {
    let letter = Letter::instead_of(&conversation.store, &row.id, text, hand)?;
    if (letter.pictures.len() as u64) < u64::from(row.pictures) {
        let what = format!(
            "the message has {}, and they cannot be found",
            count(row.pictures.into(), "picture")
        );
        let hint = "rewind, and send it in the agent".to_owned();
        return Err(Failure::new(Kind::Refused, what, Some(hint)));
    }
    Ok(letter)
}

impl Post {
    /// Sends it, after a rewind that was done.
    pub fn send(mut self, talk: &Talk, mut outcome: Outcome) -> Resent {
        match by_server(&talk.store, &self.letter, &talk.access, talk.hand) {
            Ok(Some(server)) => {
                outcome.resent = true;
                outcome.notes.push(format!("the message was sent, by {server}"));
                if let Err(e) = self.kept.remove() {
                    outcome.notes.push(e.to_string());
                }
                Resent {
                    outcome,
                    unsent: None,
                }
            }
            Ok(None) => {
                if let Some(id) = &outcome.conversation {
                    let there = |r: Resume| r.goes_on_in(id, &talk.store, talk.hand);
                    self.resume = self.resume.take().map(there);
                }
                Resent {
                    outcome,
                    unsent: Some(self.by_its_own_program()),
                }
            }
            Err(e) => {
                let mut why = vec![format!("The message was not sent: {e}")];
                why.extend(e.hint());
                Resent {
                    outcome,
                    unsent: Some(self.unsent(why)),
                }
            }
        }
    }

    fn unsent(&self, why: Vec<String>) -> Unsent {
        Unsent {
            why,
            kept: self.kept.path().to_owned(),
            command: None,
            line: None,
        }
    }

    fn by_its_own_program(&self) -> Unsent {
        let why = match &self.resume {
            Some(r) if r.program == Program::Claude => "Claude Code takes the message when it is resumed.",
            _ => "The message was not sent: no agent server has the conversation open.",
        };
        let mut unsent = self.unsent(vec![why.to_owned()]);
        let made = self.resume.as_ref().map(|r| {
            let words = r.argv(&self.letter.text, true)?;
            Ok::<_, crate::chat::ChatError>((words, r.folder.clone(), r.line(self.kept.path())?))
        });
        match made {
            None => {}
            Some(Err(e)) => unsent.why.push(e.to_string()),
            Some(Ok((words, folder, line))) => {
                unsent.command = Some((words, folder));
                unsent.line = Some(line);
                if !self.letter.pictures.is_empty() {
                    let lost = "Its pictures do not go with it: the agent's command takes text alone.";
                    unsent.why.push(lost.to_owned());
                }
            }
        }
        unsent
    }
}
