//! The selectors of messages and states.

use super::{Row, Timeline};
use crate::engine::{Checkpoint, CheckpointId, CheckpointKind, Health, State};
use crate::failure::{Explain, Kind};
use crate::text::shown;

/// What can go wrong when something is selected.
#[derive(Debug, thiserror::Error)]
pub enum SelectError {
    /// No such message.
    #[error("there is no message {}", shown(.0))]
    NoMessage(String),
    /// More than one message fits.
    #[error("{} fits {count} messages", shown(what))]
    Ambiguous {
        /// What was asked for.
        what: String,
        /// How many fit.
        count: usize,
    },
    /// It is there, but has no checkpoint.
    #[error("{what} has no checkpoint: {reason}")]
    NoCheckpoint {
        /// The message in words.
        what: String,
        /// Why.
        reason: String,
        /// Neighbours that have one, as selectors.
        neighbours: Vec<String>,
    },
    /// Its checkpoint cannot be used.
    #[error("the checkpoint of {what} is damaged: {reason}")]
    Damaged {
        /// The message in words.
        what: String,
        /// What is wrong.
        reason: String,
    },
    /// The checkpoint with this id is not in this sandbox.
    #[error("there is no checkpoint {}", shown(.0))]
    NoSuchCheckpoint(String),
    /// A message is named, and there is no conversation that it could be of.
    #[error("no conversation is known that message {} could be of", shown(.0))]
    NoConversation(String),
    /// The form is none that is known.
    #[error("{} is no message and no state", shown(.0))]
    Form(String),
}

impl Explain for SelectError {
    fn kind(&self) -> Kind {
        match self {
            Self::NoMessage(_)
            | Self::NoConversation(_)
            | Self::NoCheckpoint { .. }
            | Self::NoSuchCheckpoint(_) => Kind::NotFound,
            Self::Ambiguous { .. } => Kind::Refused,
            Self::Damaged { .. } => Kind::Damaged,
            Self::Form(_) => Kind::Usage,
        }
    }

    fn hint(&self) -> Option<String> {
        Some(match self {
            Self::NoCheckpoint { neighbours, .. } if !neighbours.is_empty() => {
                format!("these have one: {}", neighbours.join(", "))
            }
            Self::NoConversation(_) => "name it: -c CONVERSATION".into(),
            Self::Form(_) => {
                "a message is 3, m3 or id:NATIVE; a state is a message, m3.end, a checkpoint id, now or start"
                    .into()
            }
            Self::Damaged { .. } => "nothing was touched; respool timeline shows the others".into(),
            _ => "respool timeline lists messages and checkpoints".into(),
        })
    }
}

/// A state that was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Selected {
    /// The state.
    pub state: State,
    /// It in words: "just before message 3".
    pub words: String,
    /// The number of the message, where it is one on the active branch.
    pub message: Option<u32>,
    /// The native id of the message.
    pub native: Option<String>,
}

/// How a row is called.
pub fn row_words(row: &Row) -> String {
    row.message.map_or_else(
        || format!("message id:{}", shown(&row.id)),
        |n| format!("message {n}"),
    )
}

/// Finds a message: `3`, `m3`, `id:NATIVE`, or a unique prefix of 6 or more characters of a native id.
pub fn message<'a>(rows: &'a [Row], selector: &str) -> Result<&'a Row, SelectError> {
    let digits = selector.strip_prefix('m').unwrap_or(selector);
    if !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit()) {
        let number: Option<u32> = digits.parse().ok();
        return rows
            .iter()
            .find(|r| number.is_some() && r.message == number)
            .ok_or_else(|| SelectError::NoMessage(selector.into()));
    }
    if let Some(native) = selector.strip_prefix("id:") {
        return rows
            .iter()
            .find(|r| r.id == native)
            .ok_or_else(|| SelectError::NoMessage(selector.into()));
    }
    if selector.len() < 6 {
        return Err(SelectError::Form(selector.into()));
    }
    let fits: Vec<&Row> = rows.iter().filter(|r| r.id.starts_with(selector)).collect();
    match fits.as_slice() {
        [row] => Ok(row),
        [] => Err(SelectError::NoMessage(selector.into())),
        more => Err(SelectError::Ambiguous {
            what: selector.into(),
            count: more.len(),
        }),
    }
}

fn neighbours(rows: &[Row], row: &Row) -> Vec<String> {
    let usable = |r: &&Row| {
        r.active
            && r.checkpoint
                .as_ref()
                .is_some_and(|c| c.id.is_some() && c.state.usable())
    };
    let name = |r: &Row| {
        r.message
            .map_or_else(|| format!("id:{}", r.id), |n| format!("m{n}"))
    };
    let Some(at) = rows.iter().position(|r| r.id == row.id) else {
        return Vec::new();
    };
    let before = rows[..at].iter().rev().find(usable);
    let after = rows[at + 1..].iter().find(usable);
    before.into_iter().chain(after).map(name).collect()
}

/// The checkpoint that a row offers, or why it has none.
pub fn checkpoint_of(rows: &[Row], row: &Row) -> Result<CheckpointId, SelectError> {
    let what = row_words(row);
    let none = |reason: &str| SelectError::NoCheckpoint {
        what: what.clone(),
        reason: reason.to_owned(),
        neighbours: neighbours(rows, row),
    };
    let Some(c) = &row.checkpoint else {
        return Err(none("the workspace is not tracked"));
    };
    let reason = c.reason.clone().unwrap_or_default();
    match (&c.id, c.state.usable()) {
        (Some(id), true) => Ok(id.clone()),
        (Some(_), false) => Err(SelectError::Damaged { what, reason }),
        (None, _) if c.state == super::CheckpointState::Damaged => Err(SelectError::Damaged { what, reason }),
        (None, _) => Err(none(&reason)),
    }
}

fn turn_end_of(rows: &[Row], row: &Row) -> Result<CheckpointId, SelectError> {
    let end = row.checkpoint.as_ref().and_then(|c| c.turn_end.clone());
    end.ok_or_else(|| SelectError::NoCheckpoint {
        what: format!("the end of {}", row_words(row)),
        reason: "none was taken when the agent stopped".into(),
        neighbours: neighbours(rows, row),
    })
}

/// The start is a neighbour, too, where it has a checkpoint.
fn or_start(mut error: SelectError, checkpoints: &[Checkpoint]) -> SelectError {
    let is_start = |c: &Checkpoint| c.meta.kind == CheckpointKind::Start && c.health == Health::Ok;
    if let SelectError::NoCheckpoint { neighbours, .. } = &mut error
        && checkpoints.iter().any(is_start)
    {
        neighbours.push("start".into());
    }
    error
}

fn by_id(checkpoints: &[Checkpoint], id: &str) -> Result<State, SelectError> {
    let found = checkpoints.iter().find(|c| c.meta.id.as_str() == id);
    match found.map(|c| (&c.health, &c.meta.id)) {
        Some((Health::Ok, id)) => Ok(State::Checkpoint(id.clone())),
        Some((Health::Incomplete(r) | Health::Damaged(r), id)) => Err(SelectError::Damaged {
            what: id.to_string(),
            reason: r.clone(),
        }),
        None => Err(SelectError::NoSuchCheckpoint(id.into())),
    }
}

/// True if a selector of a state is a message's.
pub fn is_message(selector: &str) -> bool {
    !matches!(selector, "now" | "start") && !CheckpointId::looks_like(selector)
}

/// Finds a state. `timeline` may be missing where there is no conversation: then only `now`, `start` and
/// checkpoint ids are known.
pub fn state(
    timeline: Option<&Timeline>,
    checkpoints: &[Checkpoint],
    selector: &str,
) -> Result<Selected, SelectError> {
    let plain = |state, words: &str| Selected {
        state,
        words: words.into(),
        message: None,
        native: None,
    };
    if selector == "now" {
        return Ok(plain(State::Now, "now"));
    }
    if selector == "start" {
        // one that was cut while it was taken does not hide the one that was taken then
        let mut starts = checkpoints
            .iter()
            .filter(|c| c.meta.kind == CheckpointKind::Start);
        let torn = starts.clone().next();
        let first = starts.find(|c| c.health == Health::Ok).or(torn);
        let first = first.ok_or_else(|| SelectError::NoSuchCheckpoint("start".into()))?;
        return Ok(plain(by_id(checkpoints, first.meta.id.as_str())?, "the start"));
    }
    if CheckpointId::looks_like(selector) {
        return Ok(plain(
            by_id(checkpoints, selector)?,
            &format!("checkpoint {selector}"),
        ));
    }
    let rows = timeline.map_or(&[][..], |t| &t.rows);
    let (name, end) = selector
        .strip_suffix(".end")
        .map_or((selector, false), |n| (n, true));
    let row = message(rows, name).map_err(|e| match e {
        SelectError::NoMessage(m) if timeline.is_none() => SelectError::NoConversation(m),
        e => e,
    })?;
    let found = if end {
        turn_end_of(rows, row).map(|id| (id, format!("the end of {}", row_words(row))))
    } else {
        checkpoint_of(rows, row).map(|id| (id, format!("just before {}", row_words(row))))
    };
    let (id, words) = found.map_err(|e| or_start(e, checkpoints))?;
    // the checkpoint may have been damaged since the timeline was read
    let state = by_id(checkpoints, id.as_str())?;
    Ok(Selected {
        state,
        words,
        message: row.message,
        native: Some(row.id.clone()),
    })
}
