//! The way back of `track`, `untrack`, and what a crash of either left.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::aside::{Beside, identity, move_entries};
use super::copies::recover_copy;
use super::error::{Result, RewindError};
use super::journal::{Lock, Log, Phase, Record};
use super::recover::{How, Recovered};
use super::{OperationKind, OperationState, track};
use crate::engine::EngineError;
use crate::engine::catalog::{Place, SandboxDir, SandboxRecord};
use crate::engine::pool::Pool;
use crate::engine::restore::remove;
use crate::sandbox::bind;
use crate::sandbox::exclusive::clone_of;
use crate::sandbox::registry::{Census, Registry};
use crate::sandbox::site::show;
pub use crate::sandbox::site::shows;
use crate::text::shown_path;

/// Removes the folder beside with all that is in it, if it is the one of the record.
pub(super) fn remove_aside(beside: &Beside, journal: &Record) -> Result<()> {
    if journal.aside.is_none() {
        return beside.remove_unknown();
    }
    let Some(aside) = beside.again(journal) else {
        return Ok(());
    };
    remove::empty(&aside, &beside.path)?;
    beside.remove_empty()
}

/// True if the workspace was a subvolume before it was tracked.
pub(super) fn was_subvolume(record: &SandboxRecord) -> bool {
    record.extra.contains_key("was_subvolume")
}

/// The folder whose content was set aside. Another one that stands at its path by now, be it root's, is neither opened up
/// nor filled.
fn emptied(path: &Path, beside: &Beside, journal: &Record) -> Result<OwnedFd> {
    let folder = bind::open_exact(path).map_err(EngineError::io("open", path))?;
    let is = identity(&folder).map_err(|e| EngineError::io("look at", path)(e.into()))?;
    if journal.folder.is_none_or(|was| was == is) {
        return Ok(folder);
    }
    let (path, content) = (shown_path(path), shown_path(&beside.path));
    Err(RewindError::Refused {
        why: format!("somebody put another folder at {path}"),
        path: Some(beside.path.clone()),
        hint: Some(format!(
            "the content is in {content}: put the folder back that was at {path}, then: respool recover"
        )),
    })
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
        while shows(record) {
            bind::unmount(path, true).map_err(EngineError::io("unmount", path))?;
        }
        let folder = emptied(path, &beside, journal)?;
        bind::unseal(&folder).map_err(EngineError::io("unseal", path))?;
        if let Some(aside) = beside.again(journal) {
            move_entries(&aside, &folder, &beside.path)?;
            track::times_back(&folder, dir.live()?, path)?;
            beside.remove_empty()?;
        }
    } else if record.place == Place::Own {
        // one that was a subvolume before stays what it is
        if !was_subvolume(record) {
            if shows(record) {
                beside.exchange()?;
            }
            beside.remove_subvolume(&record.live_uuid)?;
        }
    } else {
        remove_aside(&beside, journal)?;
    }
    if let Some(origin) = clone_of(record) {
        super::exclusive::unmade(record, &origin)?;
    }
    log.close(journal, OperationState::RolledBack)?;
    Ok(dir.destroy(pool)?)
}

/// The `track` or `untrack` that was cut short, if there is one, under the sandbox's lock. The caller reads the
/// sandbox's record after this: both may have changed until the lock was free. Busy if
/// another process is at it.
pub(super) fn cut_short(
    log: &Log,
    workspace: impl FnOnce() -> Result<PathBuf>,
) -> Result<Option<(Lock, Record)>> {
    let adoption = || -> Result<Option<Record>> {
        let adopts = |r: &Record| matches!(r.kind, OperationKind::Track | OperationKind::Untrack);
        Ok(log.interrupted()?.filter(adopts))
    };
    if adoption()?.is_none() {
        return Ok(None);
    }
    let lock = log.lock(&workspace()?, Duration::ZERO)?;
    // read again: another process may have come to the end just before the lock was free
    Ok(adoption()?.map(|journal| (lock, journal)))
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
        return Ok(Some(Recovered::new(operation, outcome)));
    }
    let log = Log::open(dir.path())?;
    let Some((lock, mut journal)) = cut_short(&log, || Ok(dir.record()?.path))? else {
        return Ok(None);
    };
    let record = dir.record()?;
    let operation = journal.id.clone();
    let outcome = match journal.kind {
        OperationKind::Track => track_again(pool, dir, &log, &mut journal, &record)?,
        _ => super::untrack::again(&dir, &log, &mut journal, &record)?,
    };
    drop(lock);
    Ok(Some(Recovered::new(operation, outcome)))
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
    let path = &record.path;
    let live = match record.place {
        Place::Pool => dir
            .live()?
            .ok_or_else(|| EngineError::NotManaged { path: path.clone() })?,
        Place::Own | Place::Copy => bind::open_folder(path).map_err(EngineError::io("open", path))?,
    };
    show(&dir, &live, record)?;
    track::start_checkpoint(pool, record, live)?;
    remove_aside(&Beside::of(&record.path, &record.id)?, journal)?;
    log.close(journal, OperationState::Done)?;
    Ok(How::Finished)
}

/// What [`recover_adoptions`] found.
#[derive(Debug, Default)]
pub struct Swept {
    /// What was finished or taken back.
    pub recovered: Vec<Recovered>,
    /// Why sandboxes were left alone: their records cannot be read.
    pub unreadable: Vec<String>,
}

/// Finishes or takes back what interrupted `track` and `untrack` left in any pool. One that another process is
/// at is left to it, but [`RewindError::Busy`] if it is about `path`.
pub fn recover_adoptions(registry: &Registry, path: Option<&Path>) -> Result<Swept> {
    let Census {
        pools,
        sandboxes,
        copies,
        trouble: _,
    } = registry.all()?;
    let mut out = Swept::default();
    let sandboxes = sandboxes
        .into_iter()
        .map(|(i, l)| (recover_adoption(&pools[i], &l.id), l));
    let copies = copies.into_iter().map(|(dir, l)| (recover_copy(&dir, &l.id), l));
    for (recovered, listed) in sandboxes.chain(copies) {
        match (recovered, listed.record) {
            (Ok(recovered), Ok(_)) => out.recovered.extend(recovered),
            (Ok(Some(recovered)), Err(_)) => out.recovered.push(recovered),
            (_, Err(why)) => out.unreadable.push(why),
            (Err(e @ RewindError::Busy { .. }), Ok(r)) => {
                if path.is_some_and(|p| p.starts_with(&r.path) || r.path.starts_with(p)) {
                    return Err(e);
                }
            }
            (Err(e), Ok(_)) => return Err(e),
        }
    }
    Ok(out)
}
