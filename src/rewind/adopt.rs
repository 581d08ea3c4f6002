//! The way back of `track`, `untrack`, and what a crash of either left.

use std::path::Path;
use std::time::Duration;

use super::aside::{Beside, move_entries};
use super::error::Result;
use super::journal::{Log, Phase, Record};
use super::recover::{How, Recovered};
use super::{OperationKind, OperationState, track};
use crate::engine::catalog::{Place, SandboxDir, SandboxRecord};
use crate::engine::pool::Pool;
use crate::engine::restore::remove;
use crate::engine::{EngineError, subvolume};
use crate::sandbox::bind;

/// True if the workspace shows the live tree of this record.
pub fn shows(record: &SandboxRecord) -> bool {
    bind::open_folder(&record.path)
        .ok()
        .and_then(|f| subvolume::root_info(&f).ok().flatten())
        .is_some_and(|i| subvolume::hex(&i.uuid) == record.live_uuid)
}

/// Removes the folder beside with all that is in it, if it is the one of the record.
pub(super) fn remove_aside(beside: &Beside, journal: &Record) -> Result<()> {
    if journal.aside.is_none() {
        return beside.remove_unknown();
    }
    let Some(aside) = beside.again(journal) else {
        return Ok(());
    };
    let is_root = subvolume::root_info(&aside)
        .map_err(EngineError::io("look at", &beside.path))?
        .is_some();
    if is_root {
        let name = beside.aside.to_string_lossy().into_owned();
        drop(aside);
        subvolume::destroy(&beside.parent, &name).map_err(EngineError::io("remove", &beside.path))?;
        return Ok(());
    }
    remove::empty(&aside, &beside.path)?;
    beside.remove_empty()
}

/// Takes a `track` back: the folder as it was, the sandbox gone.
pub(super) fn back(
    pool: &Pool,
    dir: SandboxDir,
    log: &Log,
    journal: &mut Record,
    record: &SandboxRecord,
) -> Result<()> {
    let path = &record.path;
    let beside = Beside::of(path, &record.id)?;
    if record.place == Place::Pool && journal.phase == Phase::Switching {
        if shows(record) {
            bind::unmount(path, true).map_err(EngineError::io("unmount", path))?;
        }
        let folder = bind::open_folder(path).map_err(EngineError::io("open", path))?;
        bind::unseal(&folder).map_err(EngineError::io("unseal", path))?;
        if let Some(aside) = beside.again(journal) {
            move_entries(&aside, &folder, &beside.path)?;
            track::times_back(&folder, dir.live()?, path)?;
            beside.remove_empty()?;
        }
    } else {
        if record.place == Place::Own && journal.aside.is_some() && shows(record) {
            beside.exchange()?;
        }
        remove_aside(&beside, journal)?;
    }
    log.close(journal, OperationState::RolledBack)?;
    Ok(dir.destroy(pool)?)
}

/// Finishes or takes back an interrupted `track` or `untrack` of this sandbox. [`RewindError::Busy`] if
/// another process is at it.
///
/// [`RewindError::Busy`]: super::RewindError::Busy
pub fn recover_adoption(pool: &Pool, id: &str) -> Result<Option<Recovered>> {
    let dir = SandboxDir::open(pool, id)?;
    if dir.is_unmade()? {
        // it was killed before it began: there is no operation to name but the sandbox itself
        let operation = id.to_owned();
        dir.destroy(pool)?;
        let outcome = How::RolledBack;
        return Ok(Some(Recovered { operation, outcome }));
    }
    let log = Log::open(dir.path())?;
    let adopts = |r: &Record| matches!(r.kind, OperationKind::Track | OperationKind::Untrack);
    if log.interrupted()?.as_ref().is_none_or(|r| !adopts(r)) {
        return Ok(None);
    }
    let lock = log.lock(&dir.record()?.path, Duration::ZERO)?;
    // both are read again: another process may have come to the end just before the lock was free
    let (Some(mut journal), record) = (log.interrupted()?.filter(adopts), dir.record()?) else {
        return Ok(None);
    };
    let operation = journal.id.clone();
    let outcome = match journal.kind {
        OperationKind::Track => track_again(pool, dir, &log, &mut journal, &record)?,
        _ => super::untrack::again(&dir, &log, &mut journal, &record)?,
    };
    drop(lock);
    Ok(Some(Recovered { operation, outcome }))
}

fn track_again(
    pool: &Pool,
    dir: SandboxDir,
    log: &Log,
    journal: &mut Record,
    record: &SandboxRecord,
) -> Result<How> {
    // `tracked` is written only after all was moved and compared: from there it goes forward
    if !record.tracked {
        back(pool, dir, log, journal, record)?;
        return Ok(How::RolledBack);
    }
    show_again(&dir, record)?;
    remove_aside(&Beside::of(&record.path, &record.id)?, journal)?;
    log.close(journal, OperationState::Done)?;
    Ok(How::Finished)
}

fn show_again(dir: &SandboxDir, record: &SandboxRecord) -> Result<()> {
    let path = &record.path;
    if shows(record) {
        return Ok(());
    }
    let not_managed = || EngineError::NotManaged { path: path.clone() };
    let live = dir.live()?.ok_or_else(not_managed)?;
    let folder = bind::open_folder(path).map_err(EngineError::io("open", path))?;
    let stub = record.stub.as_ref().ok_or_else(not_managed)?;
    if !bind::is_stub(&folder, stub).map_err(EngineError::io("look at", path))? {
        return Err(not_managed().into());
    }
    bind::mount_over(live, folder).map_err(EngineError::io("mount the live tree at", path))?;
    if shows(record) {
        Ok(())
    } else {
        Err(not_managed().into())
    }
}

/// True if `path` is the emptied folder of this record, with nothing mounted over it.
pub(super) fn is_own_stub(path: &Path, record: &SandboxRecord) -> bool {
    let Some(stub) = &record.stub else { return false };
    bind::open_folder(path).is_ok_and(|f| bind::is_stub(f, stub).unwrap_or(false))
}
