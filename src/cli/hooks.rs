//! `respool hooks`.

use std::path::PathBuf;

use serde_json::json;

use super::app::App;
use super::args::{HooksArgs, HooksCommand};
use super::output::{Done, Failure};
use crate::failure::Kind;
use crate::text::{shown, shown_path};
use crate::watch::hooks::{Edit, State, file_in, install, status, uninstall};

/// Puts the hook in, takes it out, shows where it is.
pub fn run(app: &App, command: &HooksCommand) -> Done {
    let (HooksCommand::Install(args) | HooksCommand::Uninstall(args) | HooksCommand::Status(args)) = command;
    if args.agent != "openhands" {
        return Err(
            Failure::new(Kind::Usage, format!("{} has no hook here", shown(&args.agent))).hint("openhands"),
        );
    }
    match command {
        HooksCommand::Install(args) => edit(app, args, true),
        HooksCommand::Uninstall(args) => edit(app, args, false),
        HooksCommand::Status(_) => show(app),
    }
}

fn binary() -> Result<PathBuf, Failure> {
    std::env::current_exe()
        .map_err(|e| Failure::new(Kind::Failed, format!("respool's own path is not known: {e}")))
}

/// The workspace: that of the named conversation or sandbox, else the tracked one that this folder is in, else
/// this folder.
fn workspace(app: &App) -> Result<PathBuf, Failure> {
    if let Some(site) = app.named_site()? {
        return Ok(site.path().to_owned());
    }
    if app.global.conversation.is_some() {
        let opened = app.opened(None)?;
        return opened.conversation.summary.workspace.ok_or_else(|| {
            Failure::new(Kind::NotFound, "the conversation names no workspace").hint("name it: -s PATH")
        });
    }
    let site = app.desk.registry.find(&app.cwd).ok().flatten();
    Ok(site.map_or_else(|| app.cwd.clone(), |s| s.path().to_owned()))
}

fn edit(app: &App, args: &HooksArgs, put: bool) -> Done {
    let dir = if args.user {
        app.who.home.clone()
    } else {
        workspace(app)?
    };
    let file = file_in(&dir);
    let verb = if put {
        "put the hook into"
    } else {
        "take the hook out of"
    };
    if app.global.dry_run {
        let step = format!("{verb} {}", shown_path(&file));
        return app
            .out
            .result(&json!({"plan": {"steps": [step]}}), || format!("would {step}\n"));
    }
    let done = if put {
        install(&dir, &binary()?, app.global.state_dir.as_deref())?
    } else {
        uninstall(&dir)?
    };
    let word = match done {
        Edit::Unchanged => "nothing was to be done",
        Edit::Written => "written",
        Edit::Deleted => "deleted: it held nothing else",
    };
    app.out
        .result(&json!({"file": shown_path(&file), "done": done}), || {
            format!("{}: {word}\n", shown_path(&file))
        })
}

fn show(app: &App) -> Done {
    let dir = workspace(app)?;
    let all = status(
        Some(&dir),
        &app.who.home,
        &binary()?,
        app.global.state_dir.as_deref(),
    )?;
    let site = app.desk.registry.find(&dir);
    let (tracked, why) = match &site {
        Ok(Some(_)) => (true, None),
        Ok(None) => (false, Some("the workspace is not tracked".to_owned())),
        Err(e) => (false, Some(e.to_string())),
    };
    let installed = all.iter().any(|s| s.state == State::Installed);
    let root = rustix::process::geteuid().is_root();
    let works = tracked && installed;
    let reason = why.or_else(|| (!installed).then(|| "the hook is not installed".to_owned()));
    let doc = json!({"agent": "openhands", "workspace": shown_path(&dir), "files": all, "tracked": tracked,
                     "will_checkpoint": works, "reason": reason});
    app.out.result(&doc, || {
        let mut out = String::new();
        for s in &all {
            out += &format!("{}: {}\n", shown_path(&s.path), word(&s.state));
        }
        out += &match &reason {
            None => "messages of OpenHands in this workspace will have checkpoints".to_owned(),
            Some(r) => format!("messages will have no checkpoint: {r}"),
        };
        if works && root {
            out += " (as long as the agent runs as root)";
        }
        out + "\n"
    })
}

fn word(state: &State) -> String {
    match state {
        State::Installed => "installed".into(),
        State::Absent => "not installed".into(),
        State::OtherBinary(b) => format!("calls another respool: {}", shown(b)),
        State::Incomplete(events) => format!("incomplete: {} lacks it", events.join(", ")),
        State::Shadowed => "installed, but the project's own file is read instead of it".into(),
        State::Unreadable(why) => format!("cannot be read: {}", shown(why)),
    }
}
