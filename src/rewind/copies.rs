//! `track` and `untrack` of a folder whose checkpoints are copies: nothing is moved or mounted.

use std::os::fd::AsFd;
use std::path::Path;
use std::time::Duration;

use chrono::Utc;

use super::error::{Restarted, Result, RewindError};
use super::guard::{occupants, told_only};
use super::journal::{Log, Record};
use super::recover::{How, Recovered};
use super::run::PATIENCE;
use super::track::{Means, TrackPlan, Tracked};
use super::{OperationKind, OperationState};
use crate::config::project::Project;
use crate::engine::catalog::{Place, RECORD_VERSION, SandboxRecord};
use crate::engine::restore::measure_without;
use crate::engine::vault::copy::{CopyDir, root_id};
use crate::engine::{CheckpointKind, EngineError, How as By, NewCheckpoint, random_id};
use crate::process::fault_point;
use crate::progress::Progress;
use crate::sandbox::bind;
use crate::sandbox::settings::Settings;
use crate::sandbox::site::Site;
use crate::text::{shown, shown_path, size};

/// Makes the plan. Nothing is changed.
pub fn copy_plan(
    path: &Path,
    copies: &Path,
    settings: &Settings,
    progress: &dyn Progress,
) -> Result<TrackPlan> {
    let folder = bind::open_folder(path).map_err(EngineError::io("open", path))?;
    let patterns = settings.patterns(&Project::read(folder.as_fd()));
    let measured = measure_without(folder.as_fd(), &patterns, progress)?;
    let mut blockers = occupants(path)?;
    for b in &mut blockers {
        b.stops = false;
        told_only(b);
    }
    // nobody has to enter it anew: it stays where it is
    blockers.retain(|b| b.kind != "cwd");
    let (entries, bytes) = (measured.entries, measured.bytes);
    let mut steps = vec![
            format!("{} stays as it is: nothing is moved", shown_path(path)),
            format!(
                "copy {entries} files and folders ({}) into {}; later checkpoints add what changed",
                size(bytes),
                shown_path(copies)
            ),
            "a checkpoint is taken file by file: it is not atomic; what writes meanwhile is stopped where possible"
                .into(),
    ];
    if !patterns.is_empty() {
        let list = patterns
            .lines()
            .iter()
            .map(|l| shown(l))
            .collect::<Vec<_>>()
            .join(", ");
        steps.push(format!(
            "leave out what fits: {list}; no checkpoint has it, and no rewind touches it"
        ));
    }
    Ok(TrackPlan {
        path: path.to_owned(),
        means: Means::Keep,
        entries,
        bytes,
        steps,
        blockers,
        only_of: None,
    })
}

/// Does it. The caller has shown the plan and was told yes.
pub fn track_copy(
    copies: &Path,
    plan: &TrackPlan,
    settings: &Settings,
    progress: &dyn Progress,
) -> Result<Tracked> {
    let path = &plan.path;
    enough_space(copies, plan)?;
    let folder = bind::open_folder(path).map_err(EngineError::io("open", path))?;
    let owner = bind::stat(&folder).map_err(EngineError::io("look at", path))?;
    let root = root_id(&folder).map_err(EngineError::io("look at", path))?;
    let mut record = SandboxRecord {
        v: RECORD_VERSION,
        id: random_id("sb"),
        path: path.clone(),
        created: Utc::now(),
        live_uuid: String::new(),
        place: Place::Copy,
        uid: owner.st_uid,
        gid: owner.st_gid,
        tracked: false,
        stub: None,
        root: Some(root),
        extra: serde_json::Map::new(),
    };
    let dir = CopyDir::create(copies, &record)?;
    let log = Log::open(dir.path())?;
    let lock = log.lock(path, Duration::ZERO)?;
    let mut journal = Record::new(OperationKind::Track);
    journal.words = Some(format!("track {}", shown_path(path)));
    log.begin(&mut journal)?;
    fault_point("track-begun");
    progress.step("copying", 0, 0);
    record.tracked = true;
    let done = first_checkpoint(copies, &record, settings).and_then(|()| {
        fault_point("track-copied");
        Ok(dir.write_record(&record)?)
    });
    if let Err(cause) = done {
        drop(lock);
        return Err(match dir.destroy() {
            Ok(()) => RewindError::RolledBack {
                cause: Box::new(cause),
                restarted: Restarted::default(),
            },
            Err(second) => RewindError::Stuck {
                cause: Box::new(cause),
                second: Box::new(second.into()),
                safety: record.id,
            },
        });
    }
    fault_point("track-cleaning");
    log.close(&mut journal, OperationState::Done)?;
    Ok(Tracked {
        record,
        hints: Vec::new(),
    })
}

fn first_checkpoint(copies: &Path, record: &SandboxRecord, settings: &Settings) -> Result<()> {
    let site = Site::open_copy(copies, record.clone(), settings.clone())?;
    site.checkpoint(&NewCheckpoint::of(CheckpointKind::Start, By::Own))?;
    Ok(())
}

fn enough_space(copies: &Path, plan: &TrackPlan) -> Result<()> {
    let place = copies.ancestors().find(|p| p.exists()).unwrap_or(copies);
    let vfs = rustix::fs::statvfs(place).map_err(|e| EngineError::io("look at", place)(e.into()))?;
    let free = vfs.f_bavail.saturating_mul(vfs.f_frsize);
    // small files take whole blocks
    let need = plan.bytes + plan.entries * 4096 + (64 << 20);
    if need <= free {
        return Ok(());
    }
    Err(RewindError::Refused {
        why: format!(
            "copies of {} need {}, the disk of {} has {} free",
            shown_path(&plan.path),
            size(need),
            shown_path(place),
            size(free)
        ),
        path: Some(plan.path.clone()),
        hint: Some("free space, or name a folder on another disk: --state-dir DIR".into()),
    })
}

/// Gives the folder back: it was never changed. The checkpoints stay.
pub fn untrack_copy(site: &Site) -> Result<()> {
    let dir = copy_dir(site)?;
    let log = Log::open(site.dir()?)?;
    let _lock = log.lock(site.path(), PATIENCE)?;
    let mut journal = Record::new(OperationKind::Untrack);
    journal.words = Some(format!("untrack {}", shown_path(site.path())));
    log.begin(&mut journal)?;
    fault_point("untrack-begun");
    let mut record = site.record.clone();
    record.tracked = false;
    dir.write_record(&record)?;
    fault_point("untrack-cleaned");
    log.close(&mut journal, OperationState::Done)
}

fn copy_dir(site: &Site) -> Result<CopyDir> {
    let dir = site.dir()?;
    let copies = dir.parent().unwrap_or(dir);
    Ok(CopyDir::open(copies, &site.record.id)?)
}

/// Finishes or takes back an interrupted `track` or `untrack` of this sandbox. [`RewindError::Busy`] if
/// another process is at it.
pub fn recover_copy(copies: &Path, id: &str) -> Result<Option<Recovered>> {
    let dir = CopyDir::open(copies, id)?;
    if dir.is_unmade()? {
        dir.destroy()?;
        return Ok(Some(Recovered::new(id.to_owned(), How::RolledBack)));
    }
    let log = Log::open(dir.path())?;
    let Some((lock, mut journal)) = super::adopt::cut_short(&log, || Ok(dir.record()?.path))? else {
        return Ok(None);
    };
    let record = dir.record()?;
    let finished = record.tracked == (journal.kind == OperationKind::Track);
    let operation = journal.id.clone();
    let outcome = if finished {
        log.close(&mut journal, OperationState::Done)?;
        How::Finished
    } else if journal.kind == OperationKind::Track {
        dir.destroy()?;
        How::RolledBack
    } else {
        log.close(&mut journal, OperationState::RolledBack)?;
        How::RolledBack
    };
    drop(lock);
    Ok(Some(Recovered::new(operation, outcome)))
}
