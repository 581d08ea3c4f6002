//! Which change leads a conversation to where it is to go.

use std::path::Path;

use super::cut;
use super::error::{ChatError, Result};
use super::{Aim, Change, Way};
use crate::conversation::{Format, Place, Stand};
use crate::text::ExactPath;

/// The step of a plan, one harmless line.
pub(super) fn step(change: &Change, by: &str) -> String {
    match &change.way {
        Way::Head { .. } => {
            format!("move the conversation's head there{by}: later messages stay as a branch")
        }
        Way::Cut { back: None, .. } => format!(
            "move the conversation's later events to an archive beside it ({})",
            cut::FOLDER
        ),
        Way::Cut { .. } => format!(
            "bring the conversation's events back from the archive beside it ({})",
            cut::FOLDER
        ),
        Way::Fork(_) | Way::Unfork(_) => "go on in another conversation".into(),
    }
}

/// The change that leads from how a conversation stands to where it is to go.
pub(super) fn change(store: &Path, stand: &Stand, aim: &Aim) -> Result<Change> {
    let made = |way| Change {
        v: 1,
        agent: "openhands".into(),
        conversation: stand.id.clone(),
        store: ExactPath(store.to_owned()),
        way,
        stale: false,
    };
    let archive = || crate::engine::random_id("cut");
    let unknown = |id: &str| {
        let id = crate::text::shown(id);
        ChatError::Unmovable(format!("the conversation has no message {id} any more"))
    };
    let place = match aim {
        Aim::Undone(done) => {
            let way = match &done.way {
                Way::Head { before, .. } => {
                    if !stand.has(before) {
                        return Err(unknown(before));
                    }
                    head(stand, Some(before.clone()))?
                }
                Way::Cut {
                    from, archive: old, ..
                } => Way::Cut {
                    from: *from,
                    archive: archive(),
                    back: Some(old.clone()),
                },
                Way::Fork(_) | Way::Unfork(_) => {
                    return Err(ChatError::Unmovable("it was changed in another way".into()));
                }
            };
            return Ok(made(way));
        }
        Aim::Before(id) => stand.before(id).ok_or_else(|| unknown(id))?,
        Aim::EndOf(id) => stand.end_of(id).ok_or_else(|| unknown(id))?,
    };
    let Place { head: to, next } = place;
    let way = match stand.format {
        Format::Tree => head(stand, to)?,
        Format::Line if to.is_none() => return Err(rootless()),
        Format::Line | Format::V0 => Way::Cut {
            from: next,
            archive: archive(),
            back: None,
        },
    };
    Ok(made(way))
}

/// An empty head would lose the system prompt.
fn rootless() -> ChatError {
    ChatError::Unmovable(
        "nothing comes before that message, not even the agent's own instructions: they would be lost".into(),
    )
}

fn head(stand: &Stand, to: Option<String>) -> Result<Way> {
    let before = stand.head.clone().ok_or_else(rootless)?;
    let after = to.ok_or_else(rootless)?;
    Ok(Way::Head { before, after })
}
