//! `respool run`: an agent under protection. It is started here, in this terminal; a watcher in this process takes
//! a checkpoint at each of its messages; at its end one line says what there is to look at.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::Duration;

use serde_json::json;

use super::app::{App, CANCEL};
use super::args::VaultChoice;
use super::operations::{recover_adoptions_first, recover_first};
use super::output::{Done, Failure, complain};
use super::run_claude::Hooked;
use super::track::exclusive::opened;
use super::track::{asked, plan_text};
use crate::config::VaultSetting;
use crate::engine::{CheckpointKind, How, NewCheckpoint, random_id};
use crate::failure::Kind;
use crate::paths;
use crate::progress::{Silent, Until};
use crate::rewind::offer::{VaultKind, Wish, folder, offer, preferred};
use crate::rewind::track::Means;
use crate::sandbox::exclusive::{clone_of, template};
use crate::sandbox::foreground::{Account, Signals, Start, find_program, start};
use crate::sandbox::inside::{RUN_MARKER, remember_agent};
use crate::sandbox::site::Site;
use crate::sandbox::starter::Starter;
use crate::text::{count, shell_word, shown, shown_path};
use crate::watch::watcher::{Event, Scope, watch};

/// The watcher must be ready within this time; the agent waits for it.
const READY: Duration = Duration::from_secs(10);
/// After the agent's end the watcher goes on for so long: the end of the last turn is told by quiet.
const REST: Duration = Duration::from_millis(1200);

/// What the watcher did.
#[derive(Debug, Default)]
struct Tally {
    checkpoints: u64,
    failures: Vec<String>,
}

/// Runs the agent; ends this process with its exit code.
pub fn run(app: &App, vault: Option<VaultChoice>, words: &[OsString]) -> Done {
    let Some(name) = words.first() else {
        return Err(Failure::new(Kind::Usage, "no agent is named").hint("respool run -- openhands"));
    };
    let mut starter = starter(app);
    let program = find_program(name, &starter.folders, &app.cwd).ok_or_else(|| no_program(name))?;
    let signals = Signals::take(&CANCEL, Kind::Cancelled.exit_code())
        .map_err(|e| Failure::new(Kind::Failed, format!("signals cannot be taken: {e}")))?;
    let mut path = folder(&app.cwd)?;
    super::docker::as_set(app);
    let Some(mut site) = protected(app, vault, &path)? else {
        return Ok(());
    };
    if template(&site.record).is_some() {
        (site, path) = in_a_clone(app, &site, &path)?;
    }
    let agent = program_name(name);
    let known = app.desk.library.agents().contains(&agent.as_str());
    if !known {
        app.out.say(format!(
            "respool: the messages of {} cannot be read yet: one checkpoint is taken now, before it begins",
            shown(&agent)
        ));
        let mut new = NewCheckpoint::of(CheckpointKind::Manual, How::Command);
        new.label = Some(format!("before {}", shown(&agent)));
        site.checkpoint(&new)?;
    }
    let hooked = match agent.as_str() {
        "claude" => Hooked::claude(app, words)?,
        _ => Hooked::plain(words),
    };
    let marker = (RUN_MARKER, Some(OsString::from(&agent)));
    starter.environment.push(marker);
    let what = Start {
        program,
        arguments: hooked.words.clone(),
        account: starter.account,
        environment: starter.environment,
        folder: path,
    };
    let clone = clone_of(&site.record).map(|_| site.path().to_owned());
    let (code, tally) = under_watch(app, site, &what, signals, &agent)?;
    told(app, &tally, known, clone.as_deref());
    drop(hooked);
    std::process::exit(code)
}

/// In a template the agent starts in a clone of it: a fresh one, or that of the conversation which `-c` names. Where in
/// the template the user stands, there in the clone the agent starts.
fn in_a_clone(app: &App, template: &Site, path: &Path) -> Result<(Site, PathBuf), Failure> {
    let name = match &app.global.conversation {
        Some(name) => name.to_string_lossy().into_owned(),
        None => random_id("ws"),
    };
    let workspace = opened(app, template, &name)?;
    let below = path.strip_prefix(template.path()).unwrap_or(Path::new(""));
    let inside = workspace.path.join(below);
    std::env::set_current_dir(&inside).map_err(|e| {
        let what = format!("{} cannot be entered: {e}", shown_path(&inside));
        Failure::new(Kind::Failed, what)
    })?;
    let what = if workspace.made {
        "starts in a fresh clone"
    } else {
        "goes on in its clone"
    };
    app.out.say(format!(
        "respool: the agent {what} of {}: {}",
        shown_path(template.path()),
        shown_path(&workspace.path)
    ));
    Ok((app.desk.site_at(&workspace.path)?, inside))
}

/// The folder's sandbox, with the user's yes where it must be tracked first; `None` after a dry run.
fn protected(app: &App, vault: Option<VaultChoice>, path: &Path) -> Result<Option<Site>, Failure> {
    recover_adoptions_first(app, path)?;
    if let Some(site) = app.desk.registry.find(path)? {
        if app.global.dry_run {
            let plan = format!("{} is tracked as {}", shown_path(path), site.record.id);
            app.out
                .result(&json!({"plan": {"steps": [plan]}}), || plan.clone() + "\n")?;
            return Ok(None);
        }
        recover_first(app, &site)?;
        return Ok(Some(site));
    }
    if let Some(hidden) = app.desk.registry.hidden().filter(|_| vault.is_none()) {
        // it may be root's sandbox: a second one would be a mistake
        return Err(Failure::from(hidden).hint(
            "run: sudo respool run -- AGENT; or, for copies of your own: respool run --vault copy -- AGENT",
        ));
    }
    let vault = match (vault, app.config.sandbox.vault) {
        (Some(VaultChoice::Copy), _) | (None, VaultSetting::Copy) => VaultKind::Copy,
        (Some(VaultChoice::Btrfs), _) | (None, VaultSetting::Btrfs) => VaultKind::Btrfs,
        (None, VaultSetting::Auto) => preferred(&app.desk, path),
    };
    let offer = offer(&app.desk, &app.who.home, path, Wish::of(vault), &app.bar())?;
    if app.global.dry_run {
        app.out
            .result(&json!({"plan": offer.plan}), || plan_text(&offer.plan))?;
        return Ok(None);
    }
    let tracked = asked(app, &offer)?;
    app.out.say(format!("respool: tracked as {}", tracked.record.id));
    if offer.plan.means != Means::Adopt && offer.plan.means != Means::Keep {
        std::env::set_current_dir(path).map_err(|e| {
            Failure::new(
                Kind::Failed,
                format!("{} cannot be entered: {e}", shown_path(path)),
            )
        })?;
        app.out.say(
            "respool: when the agent has ended, run: cd \"$PWD\"   (your shell stands in the old folder)",
        );
    }
    Ok(Some(app.desk.site_at(path)?))
}

/// Starts the agent with the watcher beside it, until its end.
fn under_watch(
    app: &App,
    site: Site,
    what: &Start,
    signals: Signals,
    agent: &str,
) -> Result<(i32, Tally), Failure> {
    let again = app.desk.site_at(site.path())?;
    let ending = Until::new(&Silent);
    let (ready, waits) = mpsc::channel();
    std::thread::scope(|threads| {
        let watcher = threads.spawn(|| {
            let mut tally = Tally::default();
            let scope = Scope::Sandbox(Box::new(site));
            let watched = watch(&app.desk, scope, &ending, &mut |event| {
                tally.note(&event);
                if matches!(event, Event::Waiting { .. }) {
                    // nobody listens any more after the agent has begun
                    let _gone = ready.send(());
                }
            });
            if let Err(e) = watched {
                tally.failures.push(format!("the watcher ended: {e}"));
            }
            tally
        });
        // where it is not ready in time, the agent begins all the same: it looks at what it missed
        let _late = waits.recv_timeout(READY);
        let started = start(what, signals).and_then(|child| {
            for record in child.records(agent) {
                if let Err(e) = remember_agent(&again, &record) {
                    tracing::warn!("the agent's process is not recorded: {e}");
                }
            }
            child.wait()
        });
        if started.is_ok() {
            std::thread::sleep(REST);
        }
        ending.end();
        let tally = watcher.join().unwrap_or_default();
        let ended = started
            .map_err(|e| Failure::new(Kind::Failed, format!("{} cannot be run: {e}", shown(agent))))?;
        Ok((ended.code(), tally))
    })
}

impl Tally {
    fn note(&mut self, event: &Event) {
        match event {
            Event::Checkpoint { .. } => self.checkpoints += 1,
            Event::Failed { reason, .. } => self.failures.push(reason.clone()),
            Event::Waiting { .. } | Event::Watching { .. } | Event::TurnEnd { .. } | Event::Gone { .. } => {}
        }
    }
}

/// The last word, after the agent's own. `clone`: the workspace, where that is not the user's folder.
fn told(app: &App, tally: &Tally, known: bool, clone: Option<&Path>) {
    for reason in &tally.failures {
        app.out
            .say(format!("respool: a message has no checkpoint: {}", shown(reason)));
    }
    let sudo = if app.who.sudo { "sudo " } else { "" };
    let program = app.program();
    let what = match (tally.checkpoints, known) {
        (0, true) => "no message came, so there is no checkpoint of one".to_owned(),
        (0, false) => "1 checkpoint was taken, before it began".to_owned(),
        (n, _) => format!("{} of messages taken", count(n, "checkpoint")),
    };
    let there = clone.map_or_else(String::new, |c| format!("cd {} && ", shell_word(c)));
    app.out
        .say(format!("respool: {what}; look: {there}{sudo}{program}"));
}

/// The name of the agent: its program's, without the folder.
fn program_name(name: &OsStr) -> String {
    let base = Path::new(name).file_name().unwrap_or(name);
    base.to_string_lossy().into_owned()
}

/// The folders in which programs are looked for: those of `PATH`, and under sudo, which has another one, the
/// user's own too. One that is named from the current folder on leads into the workspace, where the agent writes: what
/// lies there under an agent's name, or this program's, is not run.
pub fn folders(app: &App) -> Vec<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_else(|| "/usr/local/bin:/usr/bin:/bin".into());
    let mut folders: Vec<PathBuf> = std::env::split_paths(&path).filter(|f| f.is_absolute()).collect();
    if app.who.sudo {
        for own in [".local/bin", "bin"] {
            let own = app.who.home.join(own);
            if own.is_dir() && !folders.contains(&own) {
                folders.push(own);
            }
        }
    }
    folders
}

/// Under sudo the agent is the invoking user's, not root's.
fn account(app: &App) -> Option<Account> {
    app.who.sudo.then(|| Account {
        name: paths::account_name(app.who.uid).unwrap_or_default(),
        uid: app.who.uid,
        gid: app.who.gid,
    })
}

/// How programs of the user's are started: under sudo as the invoking user.
pub fn starter(app: &App) -> Starter {
    let mut environment = Vec::new();
    let folders = folders(app);
    let account = account(app);
    if let Some(account) = &account {
        let name = OsString::from(&account.name);
        environment.extend([
            ("USER", Some(name.clone())),
            ("LOGNAME", Some(name)),
            ("HOME", Some(app.who.home.clone().into_os_string())),
        ]);
        for gone in [
            "SUDO_USER",
            "SUDO_UID",
            "SUDO_GID",
            "SUDO_COMMAND",
            "SUDO_HOME",
            "MAIL",
        ] {
            environment.push((gone, None));
        }
        match std::env::join_paths(&folders) {
            Ok(path) => environment.push(("PATH", Some(path))),
            Err(e) => complain(format_args!("respool: PATH stays as it is: {e}\n")),
        }
    }
    Starter {
        account,
        environment,
        folders,
    }
}

/// No program of this name.
pub fn no_program(name: &OsStr) -> Failure {
    let what = format!("there is no program {}", shown(&name.to_string_lossy()));
    Failure::new(Kind::NotFound, what).hint("name it with its path; respool doctor lists the agents found")
}

/// The words of `respool run` as this user would call it: by its name where that leads to this program.
pub fn under(app: &App) -> Vec<String> {
    let own = std::env::current_exe().unwrap_or_else(|_| "respool".into());
    let named = find_program(OsStr::new("respool"), &folders(app), &app.cwd);
    let same = named
        .and_then(|p| p.canonicalize().ok())
        .is_some_and(|p| p == own);
    let program = if same {
        "respool".into()
    } else {
        own.to_string_lossy().into_owned()
    };
    let mut words: Vec<String> = Vec::new();
    if app.who.sudo {
        words.push("sudo".into());
    }
    words.push(program);
    if let Some(dir) = app.desk.registry.named() {
        words.extend(["--state-dir".into(), dir.to_string_lossy().into_owned()]);
    }
    words.extend(["run", "--"].map(str::to_owned));
    words
}
