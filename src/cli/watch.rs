//! `respool watch`.

use std::ffi::OsString;

use super::app::App;
use super::output::{Done, Failure};
use crate::failure::Kind;
use crate::text::shown;
use crate::watch::watcher::{Event, Scope, watch};

/// Takes a checkpoint at each message until it is stopped.
pub fn run(app: &App, conversations: &[OsString]) -> Done {
    super::signals::cancel_on_signals();
    let scope = scope(app, conversations)?;
    let bar = app.bar();
    let mut broken = None;
    let watched = watch(&app.desk, scope, &bar, &mut |event| {
        if let Err(e) = app.out.result(&event, || text(&event)) {
            broken.get_or_insert(e);
        }
    });
    match (watched, broken) {
        // being stopped is how it ends
        (Err(e), None) if crate::failure::Explain::kind(&e) != Kind::Cancelled => Err(e.into()),
        (_, Some(e)) => Err(e),
        _ => Ok(()),
    }
}

/// The named conversations; else every one of the sandbox that is named or that this folder is in.
fn scope(app: &App, conversations: &[OsString]) -> Result<Scope, Failure> {
    let mut stores = Vec::new();
    for c in conversations.iter().chain(&app.global.conversation) {
        stores.push(app.found(Some(c))?);
    }
    if !stores.is_empty() {
        return Ok(Scope::These(stores));
    }
    if let Some(site) = app.named_site()? {
        return Ok(Scope::Sandbox(Box::new(site)));
    }
    if let Some(site) = app.desk.registry.find(&app.cwd)? {
        return Ok(Scope::Sandbox(Box::new(site)));
    }
    // one that is found here cannot be checkpointed: the watcher says why
    Ok(Scope::These(vec![app.found(None).map_err(|e| match e.kind {
        Kind::NotFound => e.hint("name a conversation, or go to a tracked folder: respool sandboxes"),
        _ => e,
    })?]))
}

fn text(event: &Event) -> String {
    match event {
        Event::Waiting { workspace, .. } => {
            format!("waiting for messages in {}; Ctrl-C ends it\n", shown(workspace))
        }
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
        Event::Gone { conversation } => format!("{}: its store is gone\n", shown(conversation)),
    }
}
