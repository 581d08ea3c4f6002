//! Which operation `undo` and `redo` take back, without limit.
//!
//! `undo` takes back the newest rewind that stands; `redo` the newest undo that stands and that no newer
//! rewind followed. Both go to the safety checkpoint of what they take back, so nothing done in between is
//! lost either: it is in their own safety checkpoint.

use super::error::{Result, RewindError};
use super::journal::{Log, Record};
use super::run::Order;
use super::{OperationKind, OperationState};
use crate::engine::Selection;
use crate::sandbox::parts::turn::is_whole;

fn order(kind: OperationKind, taken: &Record, of: &Record) -> Result<Order> {
    let target = taken.safety.clone().ok_or_else(|| {
        RewindError::NoOperation(format!("operation {} has no safety checkpoint", taken.id))
    })?;
    let words = of.words.as_deref().unwrap_or("an operation");
    let words = match kind {
        OperationKind::Redo => format!("again {words}"),
        _ => format!("before the rewind {words}"),
    };
    Ok(Order {
        kind,
        target,
        words,
        // one that moved the conversation alone is taken back alone
        selection: match taken.paths.as_deref() {
            Some([]) => taken.selection(),
            _ => Selection::All,
        },
        chat: None,
        mover: None,
        whole_docker: is_whole(&taken.containers),
        of: Some(taken.id.clone()),
    })
}

/// The rewind at the root of a chain of undos and redos.
fn root<'a>(records: &'a [Record], record: &'a Record) -> &'a Record {
    let mut current = record;
    while let Some(next) = current
        .of
        .as_ref()
        .and_then(|id| records.iter().find(|r| r.id == *id))
    {
        if next.seq >= current.seq {
            break;
        }
        current = next;
    }
    current
}

/// What `undo` does now, or the named operation's undo.
pub fn undo_order(log: &Log, operation: Option<&str>) -> Result<Order> {
    let records = log.records()?;
    let can = |r: &&Record| {
        matches!(r.kind, OperationKind::Rewind | OperationKind::Redo) && r.state == OperationState::Done
    };
    let record = match operation {
        Some(id) => named(&records, id)?,
        None => records
            .iter()
            .rev()
            .find(can)
            .ok_or_else(|| RewindError::NoOperation("nothing to undo".into()))?,
    };
    if !can(&record) {
        return Err(RewindError::NoOperation(format!(
            "operation {} is not one that can be undone",
            record.id
        )));
    }
    order(OperationKind::Undo, record, root(&records, record))
}

/// What `redo` does now, or the named undo's redo.
pub fn redo_order(log: &Log, operation: Option<&str>) -> Result<Order> {
    let records = log.records()?;
    let can = |r: &&Record| r.kind == OperationKind::Undo && r.state == OperationState::Done;
    let record = match operation {
        Some(id) => named(&records, id)?,
        None => {
            // a rewind, even one that was undone later, ends what could be redone before it
            let went = |r: &&Record| {
                r.kind == OperationKind::Rewind
                    && matches!(r.state, OperationState::Done | OperationState::Undone)
            };
            let newest = records.iter().rev().find(|r| can(r) || went(r));
            newest
                .filter(can)
                .ok_or_else(|| RewindError::NoOperation("nothing to redo".into()))?
        }
    };
    if !can(&record) {
        return Err(RewindError::NoOperation(format!(
            "operation {} is not one that can be redone",
            record.id
        )));
    }
    order(OperationKind::Redo, record, root(&records, record))
}

fn named<'a>(records: &'a [Record], id: &str) -> Result<&'a Record> {
    records
        .iter()
        .find(|r| r.id == id)
        .ok_or_else(|| RewindError::NoOperation(format!("there is no operation {}", crate::text::shown(id))))
}

/// After `record` reached its target: what it took back no longer stands. Safe to run twice.
pub(super) fn mark_taken_back(log: &Log, record: &Record) -> Result<()> {
    let Some(of) = &record.of else { return Ok(()) };
    let records = log.records()?;
    let Some(mut taken) = records.into_iter().find(|r| r.id == *of) else {
        return Ok(());
    };
    if taken.state == OperationState::Done {
        log.close(&mut taken, OperationState::Undone)?;
    }
    Ok(())
}
