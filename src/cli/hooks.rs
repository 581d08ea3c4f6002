//! `respool hooks`.

mod container;
mod each;

use std::path::PathBuf;

use serde_json::json;

use super::app::App;
use super::args::{HooksArgs, HooksCommand};
use super::output::{Done, Failure};
use crate::engine::EngineError;
use crate::failure::Kind;
use crate::sandbox::exclusive::clone_of;
use crate::sandbox::site::Site;
use crate::service::door;
use crate::text::{shown, shown_path};
use crate::watch::agent::{Agent, Spot};
use crate::watch::hook::NEEDS_ROOT;
use crate::watch::hooks::{Edit, State, Status, install, status, uninstall};
use crate::watch::is_watched;

/// Puts the hook in, takes it out, shows where it is.
pub fn run(app: &App, command: &HooksCommand) -> Done {
    let (HooksCommand::Install(args) | HooksCommand::Uninstall(args) | HooksCommand::Status(args)) = command;
    let agent = match (&args.agent, command) {
        (Some(name), _) => Agent::named(name).ok_or_else(|| {
            Failure::new(Kind::Usage, format!("{} has no hook here", shown(name))).hint(Agent::names())
        })?,
        (None, HooksCommand::Status(_)) => {
            Agent::named(app.desk.agent_of(&app.cwd)).unwrap_or(Agent::OpenHands)
        }
        (None, _) => Agent::OpenHands,
    };
    match command {
        HooksCommand::Install(args) if args.container => container::edit(app, agent, true),
        HooksCommand::Uninstall(args) if args.container => container::edit(app, agent, false),
        HooksCommand::Install(args) => edit(app, agent, args, true),
        HooksCommand::Uninstall(args) => edit(app, agent, args, false),
        HooksCommand::Status(_) => show(app, agent),
    }
}

/// The program that a hook calls: this one.
pub fn binary() -> Result<PathBuf, Failure> {
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

/// Where the agent's own configuration of this user is.
pub fn of_user(app: &App, agent: Agent) -> Spot {
    // under sudo the variable is root's
    let moved = std::env::var_os("CLAUDE_CONFIG_DIR").filter(|_| !app.who.sudo);
    agent.in_home(&app.who.home, moved.as_deref())
}

fn edit(app: &App, agent: Agent, args: &HooksArgs, put: bool) -> Done {
    let spot = if args.user {
        of_user(app, agent)
    } else {
        agent.in_project(&workspace(app)?)
    };
    let file = spot.file(agent);
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
        install(agent, &spot, &binary()?, app.desk.registry.named())?
    } else {
        uninstall(agent, &spot)?
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

fn show(app: &App, agent: Agent) -> Done {
    let dir = workspace(app)?;
    let (project, user) = (agent.in_project(&dir), of_user(app, agent));
    let all = status(
        agent,
        Some(&project),
        &user,
        &binary()?,
        app.desk.registry.named(),
    )?;
    let site = app.desk.registry.find(&dir);
    let tracked = matches!(&site, Ok(Some(_)));
    let watched = matches!(&site, Ok(Some(s)) if watched(app, s));
    let without_watcher = || {
        if all.iter().any(|s| container::is_ours(&s.state)) {
            let door = site
                .as_ref()
                .ok()?
                .as_ref()
                .map(|s| door::state(&app.desk.registry, &s.record.id));
            return container::unheard(door);
        }
        lacking(agent, &all).or_else(|| {
            (app.who.uid != 0).then(|| {
                format!(
                    "{NEEDS_ROOT} (user id {}): start the agent as root, or use: sudo respool watch",
                    app.who.uid
                )
            })
        })
    };
    let lacking = without_watcher();
    let each = match &site {
        Ok(Some(site)) => {
            let lacking = lacking.clone();
            each::rows(app, site, &each::Common { watched, lacking })
        }
        _ => Vec::new(),
    };
    let reason = untracked(&site).or(if watched { None } else { lacking });
    let rows: Vec<_> = each.iter().map(each::Row::json).collect();
    let doc = json!({"agent": agent.name(), "workspace": shown_path(&dir), "files": all, "tracked": tracked,
                     "watcher": watched, "will_checkpoint": reason.is_none(), "reason": reason,
                     "conversations": rows});
    app.out.result(&doc, || {
        let mut out = String::new();
        for s in &all {
            out += &format!("{}: {}\n", shown_path(&s.path), word(agent, &s.state));
        }
        let will = format!(
            "messages of {} in this workspace will have checkpoints",
            agent.title()
        );
        out += &match &reason {
            None if watched => format!("{will}: a respool watch is running"),
            None if rustix::process::geteuid().is_root() => format!("{will} (as long as it runs as root)"),
            None => will,
            Some(r) => format!("messages will have no checkpoint: {}", shown(r)),
        };
        out += "\n";
        out + &each.iter().map(each::Row::line).collect::<String>()
    })
}

/// A watcher of a template follows the conversations of its clones, too.
fn watched(app: &App, site: &Site) -> bool {
    let registry = &app.desk.registry;
    let above = clone_of(&site.record).map(|o| o.template);
    is_watched(registry, &site.record.id) || above.is_some_and(|id| is_watched(registry, &id))
}

/// Why the workspace is in no sandbox.
fn untracked(site: &Result<Option<Site>, EngineError>) -> Option<String> {
    match site {
        Ok(Some(_)) => None,
        _ if !rustix::process::geteuid().is_root() => {
            Some("only root can see whether the workspace is tracked: run it with sudo".into())
        }
        Ok(None) => Some("the workspace is not tracked".into()),
        Err(e) => Some(e.to_string()),
    }
}

/// Why the files that the agent reads do not call this program.
fn lacking(agent: Agent, all: &[Status]) -> Option<String> {
    if let Some(off) = all.iter().find(|s| s.state == State::SwitchedOff) {
        return Some(format!("{}: {}", shown_path(&off.path), word(agent, &off.state)));
    }
    if all.iter().any(|s| s.state == State::Installed) {
        return None;
    }
    let telling = all.iter().find(|s| s.state != State::Absent);
    Some(telling.map_or_else(
        || {
            format!(
                "the hook is not installed: respool hooks install {}",
                agent.name()
            )
        },
        |s| format!("{}: {}", shown_path(&s.path), word(agent, &s.state)),
    ))
}

fn word(agent: Agent, state: &State) -> String {
    match state {
        state if container::is_ours(state) => "installed for an agent inside a container".into(),
        State::Installed => "installed".into(),
        State::Absent => "not installed".into(),
        State::OtherBinary(b) => format!(
            "calls another respool, or another state folder: {}; respool hooks install {} changes it",
            shown(b),
            agent.name()
        ),
        State::Incomplete(events) => format!("incomplete: {} lacks it", events.join(", ")),
        State::Shadowed => "installed, but the project's own file is read instead of it".into(),
        State::SwitchedOff => "installed, but \"disableAllHooks\" in it switches all hooks off".into(),
        State::Unreadable(why) => format!("cannot be read: {}", shown(why)),
    }
}
