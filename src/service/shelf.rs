//! Conversations over the line, at both ends.

use std::sync::Arc;

use serde_json::Value;

use super::answer::follow;
use crate::conversation::elsewhere::{Ask, Shelf, answer as answer_here, stamp};
use crate::conversation::{ConversationError, Library, Result};
use crate::failure::{Kind, Report};
use crate::progress::Progress;
use crate::sandbox::remote::{Line, Request};

/// Conversations at the other end of a line.
pub struct FarShelf(pub Arc<dyn Line>);

impl Shelf for FarShelf {
    fn ask(&self, ask: &Ask, progress: &dyn Progress) -> Result<Value> {
        let elsewhere = ConversationError::Elsewhere;
        let ask = serde_json::to_value(ask).map_err(|e| elsewhere(unclear(&e)))?;
        let answer = self.0.call(&Request::Library(ask), progress);
        answer.map_err(|e| elsewhere(Report::of(&e)))
    }
}

fn unclear(e: &serde_json::Error) -> Report {
    Report {
        kind: Kind::Usage,
        message: format!("it cannot be understood: {e}"),
        path: None,
        hint: None,
    }
}

/// Answers from this machine's conversations.
pub(super) fn answer(
    library: &Library,
    ask: Value,
    progress: &dyn Progress,
) -> std::result::Result<Value, Report> {
    let ask: Ask = serde_json::from_value(ask).map_err(|e| unclear(&e))?;
    let report = |e: ConversationError| Report::of(&e);
    if let Some(value) = answer_here(library, &ask, progress).map_err(report)? {
        return Ok(value);
    }
    let Ask::Wait(store, known) = ask else {
        return Ok(Value::Null);
    };
    let (source, store) = library.at(&store).map_err(report)?;
    let paths = source.watched(&store);
    if let Some(known) = known {
        follow(&paths, || stamp(&paths) != known, progress)?;
    }
    serde_json::to_value(stamp(&paths)).map_err(|e| unclear(&e))
}
