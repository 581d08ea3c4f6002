//! `respool demo`.

use std::io::IsTerminal;
use std::path::Path;
use std::sync::Arc;

use super::app::with_service;
use super::app::{App, CANCEL};
use super::args::VaultChoice;
use super::open::{end, options, show};
use super::output::{Done, Failure};
use crate::demo::run::{headless, play_all};
use crate::demo::stage::{Helper, Keeper, Stage};
use crate::engine::{EngineError, Result as EngineResult};
use crate::failure::{Kind, Report};
use crate::paths;
use crate::progress::Silent;
use crate::sandbox::manage::{Verb, order};
use crate::sandbox::registry::Registry;
use crate::text::{shell_word, shown_path};
use crate::tui::real::RealBackend;
use crate::tui::state::End;

/// Shows the main job in a scratch sandbox.
pub fn run(app: &App, without_terminal: bool, vault: VaultChoice, dir: Option<&Path>, keep: bool) -> Done {
    let keeper = match vault {
        VaultChoice::Copy => Keeper::Copies,
        VaultChoice::Btrfs if rustix::process::geteuid().is_root() => Keeper::Pool,
        VaultChoice::Btrfs if app.desk.registry.line().is_some() => Keeper::Service(Arc::new(ByService)),
        VaultChoice::Btrfs => {
            return Err(
                Failure::new(Kind::Refused, "the demo needs root: it mounts a file system")
                    .hint("run: sudo respool demo; or, without root: respool demo --vault copy"),
            );
        }
    };
    let terminal = std::io::stdin().is_terminal() && std::io::stdout().is_terminal();
    if !without_terminal && !terminal {
        return Err(Failure::new(Kind::Usage, "the demo needs a terminal")
            .hint("without one: respool demo --headless --json"));
    }
    super::signals::cancel_on_signals();
    let dir = dir.map(|d| app.cwd.join(d));
    let stage = Stage::set(dir.as_deref(), keep, keeper)?;
    let done = if without_terminal {
        report(app, &stage).map(|()| End::Quit)
    } else {
        screens(app, &stage)
    };
    // whatever happened, nothing is left behind
    let cleared = stage.clear();
    let how = done?;
    cleared?;
    if keep {
        let program = format!("respool --state-dir {}", shell_word(stage.state_dir()));
        app.out.say(format!(
            "kept: {}\nlook at it: {program} -c {} timeline\nremove it: {program} --yes untrack {} && {program} --yes pool unmount && rm -r {}",
            shown_path(&stage.workspace),
            shell_word(&stage.store),
            shell_word(&stage.workspace),
            shell_word(stage.root())
        ));
    }
    end(&how)
}

fn report(app: &App, stage: &Stage) -> Done {
    let bar = app.bar();
    let report = headless(stage, &bar)?;
    drop(bar);
    let good = report.verified && report.undone && report.checkpoints == report.messages;
    app.out.result(&report, || {
        format!(
            "{} messages, {} with a checkpoint\nwent back to just before {}: {}\ntook it back: {}\n",
            report.messages,
            report.checkpoints,
            report.rewound_to,
            if report.verified {
                "checked, every file as it was"
            } else {
                "NOT as it was"
            },
            if report.undone {
                "checked, every file as it was"
            } else {
                "NOT as it was"
            }
        )
    })?;
    if good {
        Ok(())
    } else {
        Err(Failure::new(Kind::Failed, "the demo's check failed"))
    }
}

fn screens(app: &App, stage: &Stage) -> Result<End, Failure> {
    let bar = app.bar();
    play_all(stage, &bar)?;
    drop(bar);
    if CANCEL.is_set() {
        return Err(Failure::new(Kind::Cancelled, "cancelled"));
    }
    let options = options(app, Some(stage.store.clone()))?;
    show(RealBackend::new(stage.desk()), options)
}

/// The scratch sandbox of a user who is not root, by the service.
struct ByService;

fn plain(e: Failure) -> EngineError {
    EngineError::Remote(Report {
        kind: e.kind,
        message: e.message,
        path: e.path,
        hint: e.hint,
    })
}

impl Helper for ByService {
    fn registry(&self, state: &Path) -> EngineResult<Registry> {
        with_service(Registry::new(state, true), &paths::environment()).map_err(plain)
    }

    fn track(&self, registry: &Registry, dir: &Path) -> EngineResult<()> {
        let track = Verb::Track(dir.to_owned(), "1G".into());
        order(registry, track, false, &Silent).map(drop)
    }

    fn clear(&self, registry: &Registry, dir: &Path) -> EngineResult<()> {
        let Some(site) = registry.find(dir)? else {
            return Ok(());
        };
        let sandbox = site.record.id.clone();
        drop(site);
        order(registry, Verb::Untrack(dir.to_owned()), false, &Silent)?;
        order(registry, Verb::Prune(sandbox, None, None, None), false, &Silent)?;
        let state = registry.state_dir();
        std::fs::remove_dir_all(state).map_err(EngineError::io("remove", state))?;
        order(registry, Verb::PoolUnmount, false, &Silent).map(drop)
    }
}
