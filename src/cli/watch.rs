//! `respool watch`.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::sync::{Mutex, PoisonError};

use super::app::App;
use super::output::{Done, Failure};
use crate::failure::Kind;
use crate::progress::Until;
use crate::service::door::serve;
use crate::text::{count, shown};
use crate::watch::stream::listen;
use crate::watch::watcher::{Event, Scope, watch};

/// Takes a checkpoint at each message until it is stopped.
pub fn run(app: &App, conversations: &[OsString]) -> Done {
    super::signals::cancel_on_signals();
    super::docker::as_set(app);
    let scope = scope(app, conversations)?;
    let bar = app.bar();
    let sandbox = match &scope {
        Scope::Sandbox(site) if site.remote().is_none() => Some(site.record.id.clone()),
        _ => None,
    };
    let teller = Teller {
        program: app.program(),
        elsewhere: matches!(scope, Scope::These(_)) || app.global.sandbox.is_some(),
        conversations: BTreeSet::new(),
        ended: BTreeMap::new(),
    };
    let told = Mutex::new((teller, None));
    let tell = |event: Event| {
        let mut told = told.lock().unwrap_or_else(PoisonError::into_inner);
        let (teller, broken) = &mut *told;
        if let Err(e) = app.out.result(&event, || teller.text(&event)) {
            broken.get_or_insert(e);
        }
    };
    let end = Until::new(&bar);
    let watched = std::thread::scope(|threads| {
        if let Some(sandbox) = &sandbox {
            let registry = &app.desk.registry;
            threads.spawn(|| serve(registry, Some(sandbox), &end));
            threads.spawn(|| listen(registry, sandbox, &end, &mut |event| tell(event)));
        }
        let watched = watch(&app.desk, scope, &bar, &mut |event| tell(event));
        end.end();
        watched
    });
    let (_, broken) = told.into_inner().unwrap_or_else(PoisonError::into_inner);
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

/// Tells people what happens.
struct Teller {
    program: String,
    /// The conversation must be named in a command, as the current folder may not tell it.
    elsewhere: bool,
    conversations: BTreeSet<String>,
    /// The newest message of each conversation whose turn's end was told.
    ended: BTreeMap<String, String>,
}

impl Teller {
    fn text(&mut self, event: &Event) -> String {
        if let Event::Watching { conversation, .. } = event {
            self.conversations.insert(conversation.clone());
        }
        if let Event::TurnEnd {
            conversation,
            message,
            ..
        } = event
            && self.ended.insert(conversation.clone(), message.clone()).as_ref() == Some(message)
        {
            return String::new(); // one line a turn
        }
        if let Event::Checkpoint {
            conversation,
            number: Some(n),
            ..
        } = event
        {
            let which = if self.elsewhere || self.conversations.len() > 1 {
                format!(
                    " -c {}",
                    crate::text::shell_word(std::path::Path::new(conversation))
                )
            } else {
                String::new()
            };
            return text(event, Some(format!("{} rewind m{n}{which}", self.program)));
        }
        text(event, None)
    }
}

/// `command`: the short one that goes back.
fn text(event: &Event, command: Option<String>) -> String {
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
            let late = late.map_or_else(String::new, |n| {
                format!(", late: {} had changed", count(n, "path"))
            });
            let command = command.as_ref().unwrap_or(restore);
            format!("{what}: {checkpoint} ({how}, {ms} ms{late}); go back with: {command}\n")
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
