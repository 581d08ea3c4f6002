//! Commands of an ordinary user that the service does as a whole: what they print comes from there.

use std::io::{IsTerminal, Write};
use std::path::PathBuf;

use serde_json::Value;

use super::app::App;
use super::args::{Command, PoolCommand};
use super::host::absolute;
use super::output::{Done, Failure, complain, raw};
use crate::engine::catalog::SandboxRecord;
use crate::failure::Kind;
use crate::sandbox::manage::{Manage, Printed, Verb, call, document as parsed};

/// The command as the service knows it, if it is the service's to do.
pub fn verb(app: &App, command: &Command) -> Result<Option<Verb>, Failure> {
    let registry = &app.desk.registry;
    if registry.line().is_none() {
        return Ok(None);
    }
    Ok(match command {
        Command::Untrack { dir } if registry.far() => Some(Verb::Untrack(absolute("DIR", dir)?)),
        Command::Untrack { dir } => {
            let dir = folder(app, dir)?;
            let here = registry.without_line().find(&dir);
            matches!(here, Ok(None)).then_some(Verb::Untrack(dir))
        }
        Command::Prune {
            keep,
            keep_within,
            max_bytes,
        } => theirs(app)?.map(|id| Verb::Prune(id, *keep, keep_within.clone(), max_bytes.clone())),
        Command::Pool(command) if registry.listed().is_empty() => match command {
            PoolCommand::Status => Some(Verb::PoolStatus),
            PoolCommand::Mount => Some(Verb::PoolMount),
            PoolCommand::Unmount => Some(Verb::PoolUnmount),
            _ => None,
        },
        _ => None,
    })
}

/// A folder as it is named to the service: it has another current folder.
fn folder(app: &App, dir: &std::path::Path) -> Result<PathBuf, Failure> {
    let path = app.cwd.join(dir);
    let is_link = std::fs::symlink_metadata(&path).is_ok_and(|m| m.is_symlink());
    if is_link {
        return Ok(path); // it says so itself
    }
    path.canonicalize().map_err(|e| {
        Failure::new(
            Kind::NotFound,
            format!("there is no folder {}: {e}", crate::text::shown_path(dir)),
        )
        .path(dir)
    })
}

/// The sandbox of a `prune`, if the service has it.
fn theirs(app: &App) -> Result<Option<String>, Failure> {
    let named = app.global.sandbox.as_ref().and_then(|s| s.to_str());
    if let Some(id) = named.filter(|s| s.starts_with("sb-") && !s.contains('/')) {
        if app.far() {
            return Ok(Some(id.to_owned()));
        }
        // one that is no longer tracked cannot be opened, but removed
        let here = app.desk.registry.without_line().by_id(id);
        return Ok(matches!(here, Ok(None)).then(|| id.to_owned()));
    }
    let site = match app.named_site()? {
        Some(site) => Some(site),
        None => app.subject().ok().map(|s| s.site),
    };
    Ok(site.filter(|s| s.remote().is_some()).map(|s| s.record.id))
}

/// Has the service do it, and prints what it printed. Asks first, with its plan, where it would ask.
pub fn run(app: &App, verb: Verb) -> Done {
    let changes = !matches!(
        verb,
        Verb::PoolStatus | Verb::PoolMount | Verb::PoolUnmount | Verb::Recover
    );
    let mut order = Manage {
        verb,
        json: app.global.json,
        yes: app.global.yes,
        dry_run: app.global.dry_run,
    };
    if changes && !order.yes && !order.dry_run && std::io::stdin().is_terminal() {
        let plan = Manage {
            json: false,
            dry_run: true,
            ..order.clone()
        };
        let printed = ask(app, &plan)?;
        complain(format_args!(
            "{}{}",
            String::from_utf8_lossy(&printed.err),
            String::from_utf8_lossy(&printed.out)
        ));
        if printed.code != 0 {
            std::process::exit(i32::from(printed.code));
        }
        app.confirm("do it?")?;
        order.yes = true;
    }
    let printed = ask(app, &order)?;
    if let Err(e) = std::io::stderr().write_all(&printed.err) {
        tracing::debug!("{e}");
    }
    raw(&printed.out)?;
    if printed.code == 0 {
        return Ok(());
    }
    std::process::exit(i32::from(printed.code))
}

fn ask(app: &App, order: &Manage) -> Result<Printed, Failure> {
    Ok(call(&app.desk.registry, order, &app.bar())?)
}

/// The document that the service prints for a command that only lists; nothing without a service.
pub fn document(app: &App, verb: Verb) -> Result<Option<Value>, Failure> {
    if app.desk.registry.line().is_none() {
        return Ok(None);
    }
    let printed = ask(
        app,
        &Manage {
            verb,
            json: true,
            yes: app.global.yes,
            dry_run: app.global.dry_run,
        },
    )?;
    if let Err(e) = std::io::stderr().write_all(&printed.err) {
        tracing::debug!("{e}");
    }
    Ok(Some(parsed(&printed)?))
}

/// True if this process works for itself, or for the owner of this sandbox.
pub fn may(app: &App, record: &SandboxRecord) -> bool {
    app.global
        .behalf
        .is_none_or(|b| b.uid == 0 || b.uid == record.uid)
}

/// As [`may`], refused where it is false.
pub fn must(app: &App, record: &SandboxRecord) -> Done {
    if may(app, record) {
        return Ok(());
    }
    let what = format!(
        "{} belongs to user {}",
        crate::text::shown_path(&record.path),
        record.uid
    );
    Err(Failure::new(Kind::Refused, what).hint("its owner or root may"))
}
