//! The conversation that is meant where none is named.

use std::path::Path;
use std::time::SystemTime;

use crate::chat::Change;
use crate::conversation::{ConversationError, Found};
use crate::rewind::tools::Tools;
use crate::rewind::{OperationKind, OperationState};
use crate::timeline::desk::Desk;

/// The newest conversation of a folder; or the one to which the last rewind, undo or redo there led, as long as nothing
/// newer was written in another one: a fork that was left again is newer than what it was left for.
pub fn of_folder(desk: &Desk, folder: &Path) -> Result<Found, ConversationError> {
    let newest = desk.library.newest_of(folder)?;
    Ok(led_to(desk, folder, &newest).unwrap_or(newest))
}

/// What the log of the folder's sandbox says. One that cannot be read has no say: who uses it tells why.
fn led_to(desk: &Desk, folder: &Path, newest: &Found) -> Option<Found> {
    if desk.registry.far() {
        return None;
    }
    let site = desk.registry.find(folder).ok().flatten()?;
    let records = Tools::of(&site).and_then(|t| t.records()).ok()?;
    let last = records.iter().rfind(|r| {
        let moves = matches!(
            r.kind,
            OperationKind::Rewind | OperationKind::Undo | OperationKind::Redo
        );
        moves && r.state == OperationState::Done && r.chat.is_some()
    })?;
    let since = SystemTime::from(last.time);
    if newest.0.changed(&newest.1).is_none_or(|t| t > since) {
        return None;
    }
    let store = Change::of(last.chat.as_ref()?).ok()?.leads_to_store()?;
    desk.library.of_folder(&store, folder)
}
