//! `untrack`: the folder is a plain one again, with its present content. The checkpoints stay.

use std::os::fd::AsFd;

use serde::Serialize;

use super::adopt::{remove_aside, was_subvolume};
use super::aside::Beside;
use super::error::{Restarted, Result, RewindError};
use super::guard::{elsewhere, occupant, stopped_by, with_containers};
use super::journal::{Log, Phase, Record};
use super::recover::How;
use super::run::PATIENCE;
use super::{Blocker, OperationKind, OperationState};
use crate::engine::catalog::{Place, SandboxDir, SandboxRecord};
use crate::engine::changes::Tree;
use crate::engine::restore::check::{Trust, differences};
use crate::engine::restore::copy::{copy_tree, measure};
use crate::engine::{
    CheckpointKind, EngineError, How as By, NewCheckpoint, Selection, State, ioctl, subvolume,
};
use crate::process::fault_point;
use crate::progress::Progress;
use crate::sandbox::bind;
use crate::sandbox::exclusive::{clones, template};
use crate::sandbox::freeze::Freeze;
use crate::sandbox::site::{Site, is_own_stub, shows};
use crate::text::{shown_path, size};

/// The mark of a workspace that was a subvolume before respool came: it stays one.
pub(super) const WAS_SUBVOLUME: &str = "was_subvolume";

/// Who stands in the way.
pub fn untrack_blockers(site: &Site) -> Result<Vec<Blocker>> {
    let clones = clones_of(site)?;
    if !clones.is_empty() {
        return Ok(clones);
    }
    if site.copied() || site.record.extra.contains_key(WAS_SUBVOLUME) {
        return Ok(Vec::new()); // nothing is moved
    }
    let held = site.holders()?;
    let held = held.iter().filter_map(|h| occupant(h, site.path())).collect();
    // what a container has mounted stays there, and would be another folder than the one here
    let mut all = with_containers(held, &elsewhere(site.path())?);
    all.extend(deleted_image(site));
    // what is in no checkpoint would not come along
    let inside = site.not_covered()?;
    // the folder that it shares is no part of it
    all.extend(
        inside
            .iter()
            .filter(|p| !p.starts_with(".."))
            .map(|inside| Blocker {
                kind: "nested",
                pid: None,
                what: format!("{} is a subvolume or a mount inside it", shown_path(inside)),
                stops: true,
            }),
    );
    Ok(all)
}

/// The workspaces that were cloned from it: first they are given back, else nobody could tell what they came from.
fn clones_of(site: &Site) -> Result<Vec<Blocker>> {
    if template(&site.record).is_none() {
        return Ok(Vec::new());
    }
    let all = clones(site.btrfs()?.0, &site.record)?;
    let blocker = |r: &SandboxRecord| Blocker {
        kind: "workspace",
        pid: None,
        what: format!("{} was cloned from it, and is tracked", shown_path(&r.path)),
        stops: true,
    };
    Ok(all.iter().map(blocker).collect())
}

/// What should be known of an image that was deleted.
fn deleted_image(site: &Site) -> Option<Blocker> {
    let image = site.btrfs().ok()?.0.image()?;
    (!image.exists()).then(|| Blocker {
        kind: "image",
        pid: None,
        what: format!(
            "the image {} was deleted: the checkpoints are gone as soon as it is unmounted",
            shown_path(image)
        ),
        stops: false,
    })
}

/// A blocker if the disk of the folder has no room for its content, which lies in the pool.
fn room(site: &Site, progress: &dyn Progress) -> Result<Option<Blocker>> {
    let path = site.path();
    if site.record.place != Place::Pool || was_subvolume(&site.record) {
        return Ok(None); // shared, or not moved
    }
    let live = bind::open_folder(path).map_err(EngineError::io("open", path))?;
    let measured = measure(live.as_fd(), progress)?;
    let above = path.parent().unwrap_or(path);
    let vfs = rustix::fs::statvfs(above).map_err(|e| EngineError::io("look at", above)(e.into()))?;
    let free = vfs.f_bavail.saturating_mul(vfs.f_frsize);
    // small files take whole blocks
    let need = measured.bytes + measured.entries * 4096;
    Ok((need > free).then(|| Blocker {
        kind: "space",
        pid: None,
        what: format!(
            "its content needs {}, the disk of {} has {} free",
            size(need),
            shown_path(above),
            size(free)
        ),
        stops: true,
    }))
}

/// What `untrack` will do.
#[derive(Debug, Clone, Serialize)]
pub struct UntrackPlan {
    /// The steps, one line each.
    pub steps: Vec<String>,
    /// How many checkpoints stay.
    pub kept: usize,
    /// What stands in the way.
    pub blockers: Vec<Blocker>,
}

/// Makes the plan. Nothing is changed.
pub fn untrack_plan(site: &Site, progress: &dyn Progress) -> Result<UntrackPlan> {
    let shown = shown_path(site.path());
    let mut kept = site.vault.checkpoints()?.len();
    let steps = if site.copied() {
        vec![format!("forget {shown}: the folder stays as it is")]
    } else if was_subvolume(&site.record) {
        vec![format!(
            "{shown} was a Btrfs subvolume before respool came: nothing is moved"
        )]
    } else {
        kept += 1;
        vec![
            "take a last checkpoint, of the present content".into(),
            "copy the present content beside the workspace".into(),
            "compare it, every byte and attribute".into(),
            format!("put the copy in the place of {shown}, at the same path"),
        ]
    };
    let mut blockers = untrack_blockers(site)?;
    blockers.extend(room(site, progress)?);
    Ok(UntrackPlan {
        steps,
        kept,
        blockers,
    })
}

/// Does it. The caller was told yes.
pub fn untrack(site: &Site, progress: &dyn Progress) -> Result<()> {
    let path = site.path();
    if site.copied() {
        return super::copies::untrack_copy(site);
    }
    if let Some(e) = stopped_by(path, &untrack_blockers(site)?) {
        return Err(e);
    }
    site.btrfs()?.1.room()?;
    let dir = SandboxDir::open(site.btrfs()?.0, &site.record.id)?;
    let log = Log::open(site.dir()?)?;
    let _lock = log.lock(path, PATIENCE)?;
    let mut journal = Record::new(OperationKind::Untrack);
    journal.words = Some(format!("untrack {}", shown_path(path)));
    log.begin(&mut journal)?;
    fault_point("untrack-begun");
    let mut record = site.record.clone();
    let done = if was_subvolume(&record) {
        // it was a subvolume before respool came: it stays one
        record.tracked = false;
        dir.write_record(&record)
            .map_err(Into::into)
            .and_then(|()| log.close(&mut journal, OperationState::Done))
    } else {
        give_back(site, &dir, &log, &mut journal, &mut record, progress)
    };
    done.map_err(|cause| match again(&dir, &log, &mut journal, &record) {
        Ok(How::RolledBack) => RewindError::RolledBack {
            cause: Box::new(cause),
            restarted: Restarted::default(),
        },
        Ok(How::Finished | How::Waits) => cause,
        Err(second) => RewindError::Stuck {
            cause: Box::new(cause),
            second: Box::new(second),
            safety: record.id.clone(),
        },
    })
}

fn give_back(
    site: &Site,
    dir: &SandboxDir,
    log: &Log,
    journal: &mut Record,
    record: &mut SandboxRecord,
    progress: &dyn Progress,
) -> Result<()> {
    let path = site.path();
    let beside = Beside::of(path, &record.id)?;
    let aside = beside.make(journal)?;
    log.advance(journal, Phase::Applying)?;
    beside.sync();
    fault_point("untrack-applying");
    let mut new = NewCheckpoint::of(CheckpointKind::Safety, By::Own);
    new.operation = Some(journal.id.clone());
    let last = site.btrfs()?.1.last_checkpoint(&new)?.meta.id;
    let kept = site.btrfs()?.1.open_state(&State::Checkpoint(last.clone()))?;
    copy_tree(kept.fd(), aside.as_fd(), progress)?;
    fault_point("untrack-copied");
    let (is, should) = (
        Tree {
            root: aside.as_fd(),
            made: None,
        },
        Tree {
            root: kept.fd(),
            made: None,
        },
    );
    let differs = differences(&is, &should, &Selection::All, Trust::Nothing, progress)?;
    if !differs.is_empty() {
        return Err(RewindError::NotEqual(differs));
    }
    rustix::fs::syncfs(&aside).map_err(|e| EngineError::io("sync", &beside.path)(e.into()))?;
    drop(kept);
    // from here nothing may be written to the live tree any more
    let _frozen = site.freezer()?.freeze()?;
    freeze_live(dir, record, true)?;
    fault_point("untrack-read-only");
    let since = site.vault.verify(&last, &Selection::All, progress)?;
    if !since.is_empty() {
        return Err(RewindError::NotEqual(since));
    }
    log.advance(journal, Phase::Switching)?;
    fault_point("untrack-switching");
    switch(&beside, record)?;
    record.tracked = false;
    dir.write_record(record)?;
    log.advance(journal, Phase::Cleaning)?;
    fault_point("untrack-cleaning");
    clean(&beside, record)?;
    fault_point("untrack-cleaned");
    log.close(journal, OperationState::Done)
}

/// Makes the live tree read-only, or writable again: a program that still stands in it gets an error instead
/// of writing where nobody looks.
fn freeze_live(dir: &SandboxDir, record: &SandboxRecord, read_only: bool) -> Result<()> {
    let path = &record.path;
    let live = match record.place {
        Place::Pool => dir
            .live()?
            .ok_or_else(|| EngineError::NotManaged { path: path.clone() })?,
        Place::Own | Place::Copy => bind::open_folder(path).map_err(EngineError::io("open", path))?,
    };
    let info = subvolume::root_info(&live).map_err(EngineError::io("look at", path))?;
    if info.is_none_or(|i| subvolume::hex(&i.uuid) != record.live_uuid) {
        return Err(EngineError::NotManaged { path: path.clone() }.into());
    }
    Ok(ioctl::set_read_only(&live, read_only).map_err(EngineError::io("lock or unlock", path))?)
}

/// The plain folder takes the place of the mount (or of the subvolume).
fn switch(beside: &Beside, record: &SandboxRecord) -> Result<()> {
    let path = &record.path;
    if record.place == Place::Pool {
        while shows(record) {
            bind::unmount(path, true).map_err(EngineError::io("unmount", path))?;
        }
        fault_point("untrack-unmounted");
        let stub = bind::open_exact(path).map_err(EngineError::io("open", path))?;
        if !is_own_stub(record) {
            return Err(EngineError::NotManaged { path: path.clone() }.into());
        }
        bind::unseal(&stub).map_err(EngineError::io("unseal", path))?;
    }
    beside.exchange()?;
    fault_point("untrack-exchanged");
    Ok(())
}

/// Removes what is left beside: the empty stub, or the old subvolume (its last state is a checkpoint).
fn clean(beside: &Beside, record: &SandboxRecord) -> Result<()> {
    if record.place == Place::Pool {
        return beside.remove_empty();
    }
    beside.remove_subvolume(&record.live_uuid)
}

/// Finishes or takes back an interrupted `untrack`.
pub(super) fn again(
    dir: &SandboxDir,
    log: &Log,
    journal: &mut Record,
    record: &SandboxRecord,
) -> Result<How> {
    if !record.tracked && was_subvolume(record) {
        log.close(journal, OperationState::Done)?;
        return Ok(How::Finished);
    }
    let beside = Beside::of(&record.path, &record.id)?;
    match journal.phase {
        Phase::Switching
            if !shows(record) || record.place == Place::Own && beside.again(journal).is_none() =>
        {
            // the exchange is done when the folder made beside is the workspace now
            let exchanged = beside.again(journal).is_none();
            if !exchanged {
                switch(&beside, record)?;
            }
            finish(dir, log, journal, record, &beside)
        }
        Phase::Cleaning => finish(dir, log, journal, record, &beside),
        _ => {
            freeze_live(dir, record, false)?;
            remove_aside(&beside, journal)?;
            log.close(journal, OperationState::RolledBack)?;
            Ok(How::RolledBack)
        }
    }
}

fn finish(
    dir: &SandboxDir,
    log: &Log,
    journal: &mut Record,
    record: &SandboxRecord,
    beside: &Beside,
) -> Result<How> {
    let mut record = record.clone();
    record.tracked = false;
    dir.write_record(&record)?;
    clean(beside, &record)?;
    fault_point("untrack-cleaned");
    log.close(journal, OperationState::Done)?;
    Ok(How::Finished)
}
