//! `track`: a folder becomes the live tree of a sandbox, at the same path, with nothing lost. Each step is
//! announced in the journal before it is taken; killed anywhere, the folder is as before or tracked.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use chrono::Utc;
use rustix::fs::Access;
use serde::{Deserialize, Serialize};

use super::aside::{Beside, identity, move_entries, times_like};
use super::error::{Restarted, Result, RewindError};
use super::guard::{occupants, stopped_by};
use super::journal::{Log, Phase, Record};
use super::{Blocker, OperationKind, OperationState};
use crate::engine::catalog::{self, Place, RECORD_VERSION, SandboxDir, SandboxRecord};
use crate::engine::changes::Tree;
use crate::engine::pool::{Pool, PoolKind};
use crate::engine::restore::check::{Trust, differences};
use crate::engine::restore::copy::{TreeSize, copy_tree, measure};
use crate::engine::restore::{remove, stamp, unmakable};
use crate::engine::vault::btrfs::BtrfsVault;
use crate::engine::{
    Checkpoint, CheckpointKind, EngineError, Health, How, NewCheckpoint, Selection, ioctl, random_id,
    subvolume,
};
use crate::process::fault_point;
use crate::progress::Progress;
use crate::sandbox::bind;
use crate::text::{shown_path, size};

/// How a folder is taken over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Means {
    /// Its content is copied into the pool, which is then shown at its path.
    Copy,
    /// It is on Btrfs: its content is shared into a subvolume that takes its place.
    Exchange,
    /// It is a subvolume already.
    Adopt,
    /// It stays as it is; checkpoints are copies of it.
    Keep,
}

/// What `track` will do.
#[derive(Debug, Clone, Serialize)]
pub struct TrackPlan {
    /// The folder.
    #[serde(serialize_with = "path_text")]
    pub path: PathBuf,
    /// How.
    pub means: Means,
    /// Files and folders in it.
    pub entries: u64,
    /// Their bytes.
    pub bytes: u64,
    /// The steps, one line each.
    pub steps: Vec<String>,
    /// What stands in the way.
    pub blockers: Vec<Blocker>,
    /// The user whose folder it must be, where it is tracked on behalf of one.
    #[serde(skip)]
    pub only_of: Option<u32>,
}

fn path_text<S: serde::Serializer>(path: &Path, s: S) -> std::result::Result<S::Ok, S::Error> {
    s.serialize_str(&crate::text::json_path(path).0)
}

/// How this folder would be taken over.
pub fn means(path: &Path) -> Result<Means> {
    let folder = bind::open_folder(path).map_err(EngineError::io("open", path))?;
    if !subvolume::on_btrfs(&folder).map_err(EngineError::io("look at", path))? {
        return Ok(Means::Copy);
    }
    let root = subvolume::root_info(&folder).map_err(EngineError::io("look at", path))?;
    Ok(if root.is_some() {
        Means::Adopt
    } else {
        Means::Exchange
    })
}

fn things(entries: u64) -> String {
    match entries {
        1 => "1 file or folder".into(),
        n => format!("{n} files and folders"),
    }
}

/// Makes the plan. Nothing is changed.
pub fn track_plan(path: &Path, image: Option<&Path>, progress: &dyn Progress) -> Result<TrackPlan> {
    let means = means(path)?;
    let folder = bind::open_folder(path).map_err(EngineError::io("open", path))?;
    let TreeSize {
        entries,
        bytes,
        subvolumes,
        shared,
        ..
    } = measure(folder.as_fd(), progress)?;
    let mut blockers = occupants(path)?;
    blockers.extend(no_rights(path, means, folder.as_fd(), progress)?);
    let shown = shown_path(path);
    if means != Means::Adopt {
        blockers.extend(subvolumes.iter().map(|p| Blocker {
            kind: "nested",
            pid: None,
            what: format!("{} is a subvolume inside it", shown_path(p)),
            stops: true,
        }));
    }
    if means != Means::Adopt && shared > 0 {
        let what = match shared {
            1 => "1 file has names outside of it, too: it will be a file of its own".to_owned(),
            n => format!("{n} files have names outside of it, too: those will be files of their own"),
        };
        blockers.push(Blocker {
            kind: "links",
            pid: None,
            what,
            stops: false,
        });
    }
    let mut steps = Vec::new();
    match (means, image) {
        (Means::Copy, Some(image)) => {
            steps.push(format!(
                "copy {} ({}) into {}",
                things(entries),
                size(bytes),
                shown_path(image)
            ));
            steps.push("compare the copy with the folder, every byte and attribute".into());
            steps.push(format!(
                "set the content of {shown} aside, show the copy at the same path"
            ));
            steps.push("take the first checkpoint, then remove what was set aside".into());
        }
        (Means::Adopt, _) => steps.push(format!("{shown} is a Btrfs subvolume already: nothing is moved")),
        _ => {
            steps.push(format!(
                "share the content of {shown} into a Btrfs subvolume beside it ({})",
                things(entries)
            ));
            steps.push("compare it with the folder, every byte and attribute".into());
            steps.push("exchange the two, atomically, then remove the old one".into());
        }
    }
    Ok(TrackPlan {
        path: path.to_owned(),
        means,
        entries,
        bytes,
        steps,
        blockers,
        only_of: None,
    })
}

/// What this process may not do with the folder, or nobody.
fn no_rights(
    path: &Path,
    means: Means,
    folder: BorrowedFd<'_>,
    progress: &dyn Progress,
) -> Result<Vec<Blocker>> {
    let blocker = |what: String| Blocker {
        kind: "rights",
        pid: None,
        what,
        stops: true,
    };
    let mut out = Vec::new();
    let look = || EngineError::io("look at", path);
    if subvolume::root_info(folder)
        .map_err(look())?
        .is_some_and(|i| i.read_only)
    {
        out.push(blocker(
            "it is a read-only subvolume: there is nothing to rewind".into(),
        ));
    }
    let own = rustix::process::geteuid();
    if own.is_root() {
        return Ok(out);
    }
    if means == Means::Adopt {
        let uid = bind::stat(folder).map_err(look())?.st_uid;
        if uid != own.as_raw() {
            out.push(blocker(format!(
                "it belongs to user {uid}: only its owner and root can take snapshots of it"
            )));
        }
        return Ok(out);
    }
    let parent = path.parent().unwrap_or(path);
    if rustix::fs::access(parent, Access::WRITE_OK | Access::EXEC_OK).is_err() {
        let parent = shown_path(parent);
        out.push(blocker(format!("you may not exchange folders in {parent}")));
    }
    out.extend(unmakable(folder, progress)?.iter().map(|d| {
        blocker(format!(
            "{} cannot be copied: {}",
            shown_path(&d.path),
            crate::text::shown(&d.what)
        ))
    }));
    Ok(out)
}

/// A folder that is tracked now.
#[derive(Debug, Clone)]
pub struct Tracked {
    /// Its record.
    pub record: SandboxRecord,
    /// What the user should know of files that have names elsewhere.
    pub hints: Vec<String>,
}

/// Everything that the steps need.
struct Work<'a> {
    pool: &'a Pool,
    dir: SandboxDir,
    log: Log,
    journal: Record,
    record: SandboxRecord,
    folder: OwnedFd,
}

/// Does it. The caller has shown the plan and was told yes.
pub fn track(pool: &Pool, plan: &TrackPlan, progress: &dyn Progress) -> Result<Tracked> {
    let path = &plan.path;
    if let Some(e) = stopped_by(path, &occupants(path)?) {
        return Err(e);
    }
    if plan.means == Means::Copy {
        enough_space(pool, plan)?;
    }
    let folder = bind::open_exact(path).map_err(EngineError::io("open", path))?;
    let owner = bind::stat(&folder).map_err(EngineError::io("look at", path))?;
    if plan.only_of.is_some_and(|uid| uid != owner.st_uid) {
        return Err(RewindError::Refused {
            why: format!("{} belongs to user {}", shown_path(path), owner.st_uid),
            path: Some(path.clone()),
            hint: Some("its owner or root may track it".into()),
        });
    }
    let record = SandboxRecord {
        v: RECORD_VERSION,
        id: random_id("sb"),
        path: path.clone(),
        created: Utc::now(),
        live_uuid: String::new(),
        place: if plan.means == Means::Copy {
            Place::Pool
        } else {
            Place::Own
        },
        uid: owner.st_uid,
        gid: owner.st_gid,
        tracked: false,
        stub: None,
        root: None,
        extra: serde_json::Map::new(),
    };
    let (dir, record) = catalog::create_sandbox(pool, record)?;
    let log = Log::open(dir.path())?;
    let lock = log.lock(path, Duration::ZERO)?;
    let mut journal = Record::new(OperationKind::Track);
    journal.words = Some(format!("track {}", shown_path(path)));
    log.begin(&mut journal)?;
    fault_point("track-begun");
    let mut work = Work {
        pool,
        dir,
        log,
        journal,
        record,
        folder,
    };
    let done = match plan.means {
        Means::Copy => copy(&mut work, progress),
        Means::Exchange => exchange(&mut work, progress),
        Means::Adopt => adopt(&mut work),
        Means::Keep => Err(RewindError::Refused {
            why: format!(
                "{} is tracked with copies, without a pool",
                shown_path(&work.record.path)
            ),
            path: None,
            hint: None,
        }),
    };
    drop(lock);
    if let Err(cause) = done {
        return Err(give_up(work, cause));
    }
    let hints = plan
        .blockers
        .iter()
        .filter(|b| b.kind == "links")
        .map(|b| b.what.clone())
        .collect();
    Ok(Tracked {
        record: work.record,
        hints,
    })
}

fn enough_space(pool: &Pool, plan: &TrackPlan) -> Result<()> {
    pool.guard_space()?;
    let status = pool.status()?;
    // metadata of small files, and room to work in
    let need = plan.bytes + plan.bytes / 10 + plan.entries * 1024;
    let host = status.host_free.unwrap_or(u64::MAX);
    let (free, place) = if status.available < host {
        (status.available, "the pool")
    } else {
        (host, "the disk of the pool")
    };
    if need <= free {
        return Ok(());
    }
    Err(RewindError::Refused {
        why: format!(
            "{} needs {}, {place} has {} free",
            shown_path(&plan.path),
            size(need),
            size(free)
        ),
        path: Some(plan.path.clone()),
        hint: Some(
            "free space, or make the pool larger: respool pool grow SIZE; or name another disk: --image FILE"
                .into(),
        ),
    })
}

/// After a failure: the folder as it was, the sandbox gone. Gives the error to show.
fn give_up(work: Work<'_>, cause: RewindError) -> RewindError {
    let Work {
        pool,
        dir,
        log,
        mut journal,
        record,
        ..
    } = work;
    match super::adopt::back(pool, dir, &log, &mut journal, &record) {
        Ok(()) => RewindError::RolledBack {
            cause: Box::new(cause),
            restarted: Restarted::default(),
        },
        Err(second) => RewindError::Stuck {
            cause: Box::new(cause),
            second: Box::new(second),
            safety: record.id,
        },
    }
}

fn copied(work: &mut Work<'_>, to: &OwnedFd, progress: &dyn Progress) -> Result<stamp::Stamp> {
    work.log.advance(&mut work.journal, Phase::Applying)?;
    fault_point("track-copying");
    let before = stamp::stamp(work.folder.as_fd(), progress)?;
    copy_tree(work.folder.as_fd(), to.as_fd(), progress)?;
    fault_point("track-copied");
    let (is, should) = (
        Tree {
            root: to.as_fd(),
            made: None,
        },
        Tree {
            root: work.folder.as_fd(),
            made: None,
        },
    );
    let differs = differences(&is, &should, &Selection::All, Trust::NothingShared, progress)?;
    if !differs.is_empty() {
        return Err(RewindError::NotEqual(differs));
    }
    fault_point("track-compared");
    Ok(before)
}

/// The first checkpoint, if there is none yet.
pub(super) fn start_checkpoint(pool: &Pool, record: &SandboxRecord, live: OwnedFd) -> Result<()> {
    let vault = BtrfsVault::open(pool, &record.id, live)?;
    vault.sweep()?;
    let is_start = |c: &Checkpoint| c.meta.kind == CheckpointKind::Start && c.health == Health::Ok;
    if !vault.checkpoints()?.iter().any(is_start) {
        vault.checkpoint(&NewCheckpoint::of(CheckpointKind::Start, How::Own))?;
    }
    Ok(())
}

fn changed_meanwhile(path: &Path) -> RewindError {
    RewindError::Refused {
        why: format!("{} was changed while it was copied", shown_path(path)),
        path: Some(path.to_owned()),
        hint: Some("stop what writes there, then try again".into()),
    }
}

fn copy(work: &mut Work<'_>, progress: &dyn Progress) -> Result<()> {
    let path = work.record.path.clone();
    let live = work
        .dir
        .live()?
        .ok_or_else(|| EngineError::NotManaged { path: path.clone() })?;
    let before = copied(work, &live, progress)?;
    let again =
        bind::open_folder(&work.dir.path().join(catalog::LIVE)).map_err(EngineError::io("open", &path))?;
    start_checkpoint(work.pool, &work.record, again)?;
    if let Some(e) = stopped_by(&path, &occupants(&path)?) {
        return Err(e);
    }
    let beside = Beside::of(&path, &work.record.id)?;
    let aside = beside.make(&mut work.journal)?;
    work.journal.folder =
        Some(identity(&work.folder).map_err(|e| EngineError::io("look at", &path)(e.into()))?);
    work.log.advance(&mut work.journal, Phase::Switching)?;
    beside.sync();
    fault_point("track-switching");
    move_entries(&work.folder, &aside, &path)?;
    fault_point("track-moved");
    if stamp::stamp(aside.as_fd(), progress)? != before {
        return Err(changed_meanwhile(&path));
    }
    work.record.stub =
        Some(bind::seal(&work.folder, &work.record.id).map_err(EngineError::io("seal", &path))?);
    work.record.tracked = true;
    work.dir.write_record(&work.record)?;
    fault_point("track-sealed");
    bind::mount_over(&live, &work.folder).map_err(EngineError::io("mount the live tree at", &path))?;
    fault_point("track-mounted");
    if !super::adopt::shows(&work.record) {
        return Err(EngineError::NotManaged { path }.into());
    }
    work.log.advance(&mut work.journal, Phase::Cleaning)?;
    fault_point("track-cleaning");
    remove::empty(&aside, &beside.path)?;
    fault_point("track-emptied");
    beside.remove_empty()?;
    fault_point("track-cleaned");
    work.log.close(&mut work.journal, OperationState::Done)
}

fn exchange(work: &mut Work<'_>, progress: &dyn Progress) -> Result<()> {
    let path = work.record.path.clone();
    let beside = Beside::of(&path, &work.record.id)?;
    let name = beside.aside.as_encoded_bytes().to_vec();
    ioctl::subvol_create(&beside.parent, &name).map_err(EngineError::io("make", &beside.path))?;
    fault_point("aside-made");
    let fresh = beside.fresh()?;
    let info = subvolume::root_info(&fresh).map_err(EngineError::io("look at", &beside.path))?;
    let info = info.ok_or_else(|| EngineError::NotManaged { path: path.clone() })?;
    work.record.live_uuid = subvolume::hex(&info.uuid);
    work.dir.write_record(&work.record)?;
    let before = copied(work, &fresh, progress)?;
    if let Some(e) = stopped_by(&path, &occupants(&path)?) {
        return Err(e);
    }
    if stamp::stamp(work.folder.as_fd(), progress)? != before {
        return Err(changed_meanwhile(&path));
    }
    beside.remember(&work.folder, &mut work.journal)?;
    work.log.advance(&mut work.journal, Phase::Switching)?;
    fault_point("track-switching");
    beside.exchange()?;
    fault_point("track-exchanged");
    let Some(old) = beside.again(&work.journal) else {
        // not the folder that was copied: it is put back where it was
        beside.exchange()?;
        return Err(changed_meanwhile(&path));
    };
    work.record.tracked = true;
    work.dir.write_record(&work.record)?;
    if !super::adopt::shows(&work.record) {
        return Err(EngineError::NotManaged { path }.into());
    }
    start_checkpoint(work.pool, &work.record, fresh)?;
    work.log.advance(&mut work.journal, Phase::Cleaning)?;
    fault_point("track-cleaning");
    remove::empty(&old, &beside.path)?;
    fault_point("track-emptied");
    beside.remove_empty()?;
    fault_point("track-cleaned");
    work.log.close(&mut work.journal, OperationState::Done)
}

fn adopt(work: &mut Work<'_>) -> Result<()> {
    let path = work.record.path.clone();
    let info = subvolume::root_info(&work.folder).map_err(EngineError::io("look at", &path))?;
    let info = info.ok_or_else(|| EngineError::NotManaged { path: path.clone() })?;
    work.record.live_uuid = subvolume::hex(&info.uuid);
    work.record
        .extra
        .insert(super::untrack::WAS_SUBVOLUME.into(), true.into());
    work.record.tracked = true;
    work.dir.write_record(&work.record)?;
    let live = work.folder.try_clone().map_err(EngineError::io("open", &path))?;
    start_checkpoint(work.pool, &work.record, live)?;
    work.log.close(&mut work.journal, OperationState::Done)
}

/// True if this pool can hold the live tree of a folder that is on Btrfs.
pub fn fits(pool: &Pool, means: Means) -> bool {
    (means == Means::Copy) == matches!(pool.kind(), PoolKind::Image { .. })
}

/// Restores the folder's own times after its entries were moved back.
pub(super) fn times_back(folder: &OwnedFd, live: Option<OwnedFd>, path: &Path) -> Result<()> {
    live.map_or(Ok(()), |live| times_like(folder, live, path))
}
