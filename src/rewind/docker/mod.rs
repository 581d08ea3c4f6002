//! Docker's data into a pool, and back. The order of it: containers and daemon stopped, data copied and compared, journal,
//! folder and settings exchanged, daemon started, everything checked to be there, containers started. What was there
//! before is set aside and stays until the data comes back. A failure anywhere puts everything back; so does `recover`
//! after a crash, or it finishes.

mod disable;
mod enable;
mod plan;
mod plan_out;
mod recover;

use std::fs::File;
use std::os::fd::AsFd;
use std::path::Path;

use rustix::fs::FlockOperation;

use super::error::{Restarted, Result, RewindError};
use crate::engine::changes::Tree;
use crate::engine::restore::check::{Trust, differences};
use crate::engine::restore::copy::copy_tree;
use crate::engine::{EngineError, Selection};
use crate::progress::Progress;
use crate::sandbox::docker::{DockerError, Engine};
use crate::sandbox::parts::part::as_engine;
use crate::sandbox::whole::{Home, Phase, Record, place};
use crate::text::shown;

pub use disable::disable;
pub use enable::enable;
pub use plan::{EnablePlan, Wanted, enable_plan};
pub use plan_out::{DisablePlan, disable_plan};
pub use recover::{interrupted, recover};

/// An error of the engine's as one of this room.
fn of(e: DockerError) -> RewindError {
    as_engine(e).into()
}

/// The right to move Docker's data; ends with the value.
fn lock(state: &Path) -> Result<File> {
    let path = state.join("docker.lock");
    let log = |what| {
        let path = path.clone();
        move |source| RewindError::Log { what, path, source }
    };
    let file = File::create(&path).map_err(log("open"))?;
    match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(file),
        Err(rustix::io::Errno::WOULDBLOCK) => Err(RewindError::Busy {
            path: "Docker's data".into(),
            holder: "not known".into(),
        }),
        Err(e) => Err(log("lock")(e.into())),
    }
}

/// Copies a tree and compares the copy, every byte and attribute.
fn copied(from: impl AsFd, to: impl AsFd, progress: &dyn Progress) -> Result<()> {
    let (from, to) = (from.as_fd(), to.as_fd());
    copy_tree(from, to, progress)?;
    crate::process::fault_point("docker-copied");
    let tree = |root| Tree { root, made: None };
    let found = differences(
        &tree(to),
        &tree(from),
        &Selection::All,
        Trust::NothingShared,
        progress,
    )?;
    if found.is_empty() {
        return Ok(());
    }
    Err(RewindError::NotEqual(found))
}

/// After a move: the daemon has its data where it was, with the same driver, and nothing is missing.
fn check(engine: &Engine, record: &Record) -> Result<()> {
    let now = engine.facts().map_err(of)?;
    let wrong = |why: String| RewindError::Refused {
        why: format!("after the move {why}"),
        path: Some(record.root().to_owned()),
        hint: None,
    };
    if now.data_root != record.root() {
        let at = crate::text::shown_path(&now.data_root);
        return Err(wrong(format!("Docker has its data at {at}")));
    }
    if now.driver != record.driver {
        let why = format!(
            "Docker uses the storage driver {} and not {}",
            shown(&now.driver),
            shown(&record.driver)
        );
        return Err(wrong(why));
    }
    let there = engine.inventory().map_err(of)?;
    match record.before.iter().find(|b| there.binary_search(b).is_err()) {
        None => Ok(()),
        Some(gone) => Err(wrong(format!("Docker misses something: {}", shown(gone)))),
    }
}

/// The daemon is not to be on the pool any more, or not yet: everything as before it came there. Safe to do again.
fn out_of_pool(state: &Path, record: &mut Record, home: Option<Home>) -> Result<()> {
    if let Some(home) = &home
        && record.shows(home).unwrap_or(false)
    {
        quiet(state, record)?;
        record.hide(home)?;
    }
    if record.phase != Phase::Copying {
        record.put_back()?;
    }
    unpin(record)?;
    let engine = record.start_daemon(state).map_err(of)?;
    let ran = record.ran.clone();
    start(&engine, &ran, false)?;
    if let Some(home) = home {
        home.destroy()?;
    }
    Record::forget(state)?;
    Ok(())
}

/// Stops all containers and the daemon, if it is up.
fn quiet(state: &Path, record: &mut Record) -> Result<()> {
    if let Ok(engine) = Engine::reach(&record.host) {
        crate::sandbox::whole::back::stop_all(&engine).map_err(of)?;
    }
    record.stop_daemon(state).map_err(of)
}

/// Starts the containers that ran. `strict`: one that cannot be is an error.
fn start(engine: &Engine, ran: &[crate::sandbox::whole::Ran], strict: bool) -> Result<Vec<String>> {
    let needed = ran.iter().filter(|_| strict).map(|r| r.id.clone()).collect();
    crate::sandbox::whole::back::start_all(engine, ran, &needed).map_err(of)
}

fn pin(record: &Record) -> Result<()> {
    let done = record
        .pin
        .as_ref()
        .map_or(Ok(()), crate::sandbox::whole::Pin::set);
    done.map_err(|why| refused(why, ""))
}

/// Takes the edit of the settings back; what could not be is told.
fn unpin(record: &Record) -> Result<Option<String>> {
    match &record.pin {
        None => Ok(None),
        Some(pin) => pin.unset().map_err(|why| refused(why, "")),
    }
}

fn refused(why: String, hint: &str) -> RewindError {
    RewindError::Refused {
        why,
        path: None,
        hint: (!hint.is_empty()).then(|| hint.to_owned()),
    }
}

/// The error to show after everything was put back, or could not be.
fn after(cause: RewindError, back: Result<()>) -> RewindError {
    match back {
        Ok(()) => RewindError::RolledBack {
            cause: Box::new(cause),
            restarted: Restarted::default(),
        },
        Err(second) => RewindError::DockerStuck {
            cause: Box::new(cause),
            second: Box::new(second),
        },
    }
}

/// Removes a folder that was set aside.
fn remove_beside(record: &Record, which: place::Beside) -> Result<()> {
    let path = record.beside(which);
    place::remove_all(&path).map_err(|e: EngineError| e.into())
}
