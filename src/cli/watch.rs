//! `respool watch`.

use std::ffi::OsString;

use super::app::App;
use super::output::Done;
use crate::text::shown;
use crate::watch::watcher::{Event, watch};

/// Takes a checkpoint at each message until it is stopped.
pub fn run(app: &App, conversations: &[OsString]) -> Done {
    let mut stores = Vec::new();
    for c in conversations {
        stores.push(app.found(Some(c))?);
    }
    if stores.is_empty() {
        stores.push(app.found(app.global.conversation.as_deref())?);
    }
    super::signals::cancel_on_signals();
    let bar = app.bar();
    let mut broken = None;
    watch(&app.desk, stores, &bar, &mut |event| {
        if let Err(e) = app.out.result(&event, || text(&event)) {
            broken.get_or_insert(e);
        }
    })?;
    broken.map_or(Ok(()), Err)
}

fn text(event: &Event) -> String {
    match event {
        Event::Watching {
            conversation,
            sandbox,
        } => format!("watching {} in {sandbox}\n", shown(conversation)),
        Event::Checkpoint {
            message,
            number,
            checkpoint,
            ms,
            how,
            late,
            restore,
            ..
        } => {
            let what = number.map_or_else(
                || format!("message id:{}", shown(message)),
                |n| format!("message {n}"),
            );
            let how = format!("{how:?}").to_lowercase();
            let late = late.map_or_else(String::new, |n| format!(", late: {n} paths had changed"));
            format!("{what}: {checkpoint} ({how}, {ms} ms{late}); go back with: {restore}\n")
        }
        Event::TurnEnd { checkpoint, .. } => format!("the turn ended: {checkpoint}\n"),
        Event::Failed { message, reason, .. } => {
            let what = message
                .as_ref()
                .map_or_else(String::new, |m| format!("message id:{}: ", shown(m)));
            format!("{what}no checkpoint: {}\n", shown(reason))
        }
    }
}
