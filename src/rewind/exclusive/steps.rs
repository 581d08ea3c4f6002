//! Making a clone, step by step.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::Duration;

use chrono::Utc;
use rustix::fs::{AtFlags, Gid, Mode, Uid};
use rustix::io::Errno;

use super::folders::{free, member, workspaces};
use crate::engine::catalog::{self, LIVE, Place, RECORD_VERSION, SandboxDir, SandboxRecord};
use crate::engine::pool::Pool;
use crate::engine::{EngineError, ioctl, random_id, subvolume};
use crate::process::fault_point;
use crate::rewind::adopt::{back, shows};
use crate::rewind::aside::{Beside, times_like};
use crate::rewind::error::{Restarted, Result, RewindError};
use crate::rewind::journal::{Log, Phase, Record};
use crate::rewind::track::start_checkpoint;
use crate::rewind::{OperationKind, OperationState};
use crate::sandbox::bind;
use crate::sandbox::exclusive::{Origin, Template, folder_of, set_clone};
use crate::sandbox::site::Site;
use crate::text::shown_path;

/// Everything that the steps need.
struct Work<'a> {
    pool: &'a Pool,
    dir: SandboxDir,
    log: Log,
    journal: Record,
    record: SandboxRecord,
    source: OwnedFd,
    folder: OwnedFd,
    template: &'a SandboxRecord,
}

pub(super) fn cloned(pool: &Pool, template: &Site, name: &str, mark: &Template) -> Result<SandboxRecord> {
    let of = &template.record;
    let path = folder_of(&of.path).join(name);
    let folder = workspaces(of)?;
    free(&folder, of, name, &path)?;
    let source = live_of(template)?;
    let mut record = SandboxRecord {
        v: RECORD_VERSION,
        id: random_id("sb"),
        path: path.clone(),
        created: Utc::now(),
        live_uuid: String::new(),
        place: of.place,
        uid: of.uid,
        gid: of.gid,
        tracked: false,
        stub: None,
        root: None,
        extra: serde_json::Map::new(),
    };
    let flags = AtFlags::SYMLINK_NOFOLLOW;
    let there = rustix::fs::statat(&folder, name, flags).is_ok();
    let origin = Origin {
        template: of.id.clone(),
        conversation: name.to_owned(),
        source: of.live_uuid.clone(),
        made: !there,
        shared: mark.shared.clone(),
    };
    set_clone(&mut record, &origin)?;
    let (dir, record) = catalog::create_sandbox(pool, record)?;
    let log = Log::open(dir.path())?;
    let lock = log.lock(&path, Duration::ZERO)?;
    let mut journal = Record::new(OperationKind::Track);
    journal.words = Some(format!("clone {} to {}", shown_path(&of.path), shown_path(&path)));
    log.begin(&mut journal)?;
    fault_point("clone-begun");
    let mut work = Work {
        pool,
        dir,
        log,
        journal,
        record,
        source,
        folder,
        template: of,
    };
    let done = match of.place {
        Place::Pool => in_the_pool(&mut work, name),
        Place::Own | Place::Copy => beside(&mut work, name),
    };
    drop(lock);
    done.map_err(
        |cause| match back(pool, work.dir, &work.log, &mut work.journal, &work.record) {
            Ok(()) => RewindError::RolledBack {
                cause: Box::new(cause),
                restarted: Restarted::default(),
            },
            Err(second) => RewindError::Stuck {
                cause: Box::new(cause),
                second: Box::new(second),
                safety: work.record.id.clone(),
            },
        },
    )?;
    Ok(work.record)
}

/// The root of the template's live tree.
fn live_of(template: &Site) -> Result<OwnedFd> {
    let path = template.path();
    let not_managed = || EngineError::NotManaged {
        path: path.to_owned(),
    };
    let live = match template.record.place {
        Place::Pool => SandboxDir::open(template.btrfs()?.0, &template.record.id)?
            .live()?
            .ok_or_else(not_managed)?,
        Place::Own | Place::Copy => bind::open_exact(path).map_err(EngineError::io("open", path))?,
    };
    let info = subvolume::root_info(&live).map_err(EngineError::io("look at", path))?;
    if info.is_none_or(|i| subvolume::hex(&i.uuid) != template.record.live_uuid) {
        return Err(not_managed().into());
    }
    Ok(live)
}

/// The clone is in the pool, and mounted over its folder.
fn in_the_pool(work: &mut Work<'_>, name: &str) -> Result<()> {
    let path = work.record.path.clone();
    let at = work.dir.path().join(LIVE);
    // what a new sandbox begins with is empty
    subvolume::destroy(work.dir.fd(), LIVE).map_err(EngineError::io("remove", &at))?;
    ioctl::snap_create(&work.source, work.dir.fd(), LIVE.as_bytes(), false)
        .map_err(EngineError::io("make", &at))?;
    fault_point("clone-made");
    work.record.live_uuid = work.dir.live_uuid()?.unwrap_or_default();
    work.dir.write_record(&work.record)?;
    let live = || -> Result<OwnedFd> {
        let live = work.dir.live()?;
        Ok(live.ok_or_else(|| EngineError::NotManaged { path: path.clone() })?)
    };
    let mounted = live()?;
    without_stubs(work, &mounted)?;
    start_checkpoint(work.pool, &work.record, live()?)?;
    let (stub, _) = member(&work.folder, work.template, name)?;
    work.log.advance(&mut work.journal, Phase::Switching)?;
    fault_point("clone-switching");
    work.record.stub = Some(bind::seal(&stub, &work.record.id).map_err(EngineError::io("seal", &path))?);
    work.record.tracked = true;
    work.dir.write_record(&work.record)?;
    fault_point("clone-sealed");
    bind::mount_over(&mounted, &stub).map_err(EngineError::io("mount the live tree at", &path))?;
    shown(work)
}

/// Where the template has a subvolume inside, a snapshot of it has something that is no folder: nothing can be made in it.
/// An empty folder takes its place, of the same owner and mode.
fn without_stubs(work: &Work<'_>, clone: &OwnedFd) -> Result<()> {
    let root = &work.record.path;
    for inside in subvolume::nested(&work.source).map_err(EngineError::io("look into", root))? {
        let at = root.join(&inside.path);
        let io = |e: std::io::Error| EngineError::io("make", &at)(e);
        let above = inside.path.parent().unwrap_or(Path::new(""));
        let name = inside.path.file_name().unwrap_or_default();
        let (from, to) = (
            subvolume::open_dir(&work.source, above).map_err(io)?,
            subvolume::open_dir(clone, above).map_err(io)?,
        );
        let was = rustix::fs::statat(&from, name, AtFlags::SYMLINK_NOFOLLOW).map_err(|e| io(e.into()))?;
        match rustix::fs::unlinkat(&to, name, AtFlags::REMOVEDIR) {
            Err(Errno::NOENT) | Ok(()) => {}
            Err(e) => return Err(io(e.into()).into()),
        }
        rustix::fs::mkdirat(&to, name, Mode::RWXU).map_err(|e| io(e.into()))?;
        if rustix::process::geteuid().is_root() {
            let (uid, gid) = (Uid::from_raw(was.st_uid), Gid::from_raw(was.st_gid));
            rustix::fs::chownat(&to, name, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW)
                .map_err(|e| io(e.into()))?;
        }
        let made = subvolume::open_dir(&to, name).map_err(io)?;
        rustix::fs::fchmod(&made, Mode::from_raw_mode(was.st_mode & 0o7777)).map_err(|e| io(e.into()))?;
        times_like(&to, &from, &at)?;
    }
    Ok(())
}

/// The clone takes the place of its folder, on the template's own file system.
fn beside(work: &mut Work<'_>, name: &str) -> Result<()> {
    let path = work.record.path.clone();
    let beside = Beside::of(&path, &work.record.id)?;
    ioctl::snap_create(
        &work.source,
        &beside.parent,
        beside.aside.as_encoded_bytes(),
        false,
    )
    .map_err(EngineError::io("make", &beside.path))?;
    fault_point("clone-made");
    let fresh = bind::open_exact(&beside.path).map_err(EngineError::io("open", &beside.path))?;
    let info = subvolume::root_info(&fresh).map_err(EngineError::io("look at", &beside.path))?;
    let info = info.ok_or_else(|| EngineError::NotManaged { path: path.clone() })?;
    if subvolume::hex(&info.parent_uuid) != work.template.live_uuid {
        return Err(EngineError::NotManaged { path }.into());
    }
    work.record.live_uuid = subvolume::hex(&info.uuid);
    work.dir.write_record(&work.record)?;
    without_stubs(work, &fresh)?;
    let (empty, _) = member(&work.folder, work.template, name)?;
    beside.remember(&empty, &mut work.journal)?;
    work.log.advance(&mut work.journal, Phase::Switching)?;
    fault_point("clone-switching");
    beside.exchange()?;
    fault_point("clone-exchanged");
    work.record.tracked = true;
    work.dir.write_record(&work.record)?;
    start_checkpoint(work.pool, &work.record, fresh)?;
    beside.remove_empty()?;
    shown(work)
}

fn shown(work: &mut Work<'_>) -> Result<()> {
    if !shows(&work.record) {
        let path = work.record.path.clone();
        return Err(EngineError::NotManaged { path }.into());
    }
    fault_point("clone-shown");
    work.log.close(&mut work.journal, OperationState::Done)
}

/// After a clone was taken back: what it left beside, and the folder that was made for it.
pub(in crate::rewind) fn unmade(record: &SandboxRecord, origin: &Origin) -> Result<()> {
    let beside = Beside::of(&record.path, &record.id)?;
    if record.place == Place::Own {
        remove_snapshot(&beside, record, origin)?;
    }
    if origin.made {
        match rustix::fs::unlinkat(&beside.parent, &beside.name, AtFlags::REMOVEDIR) {
            Err(Errno::NOENT | Errno::NOTEMPTY | Errno::NOTDIR) | Ok(()) => {}
            Err(e) => return Err(EngineError::io("remove", &record.path)(e.into()).into()),
        }
    }
    Ok(())
}

/// A snapshot that was made just before the process was killed is in no record yet: it is known by what it is a
/// snapshot of, besides its name.
fn remove_snapshot(beside: &Beside, record: &SandboxRecord, origin: &Origin) -> Result<()> {
    let Ok(fd) = bind::open_exact(&beside.path) else {
        return Ok(());
    };
    let info = subvolume::root_info(&fd).map_err(EngineError::io("look at", &beside.path))?;
    let ours = info.is_some_and(|i| {
        subvolume::hex(&i.parent_uuid) == origin.source && i.otime.0 >= record.created.timestamp()
    });
    if !ours {
        return Ok(());
    }
    let name = beside.aside.to_string_lossy().into_owned();
    Ok(
        subvolume::destroy_open(&beside.parent, &name, fd)
            .map_err(EngineError::io("remove", &beside.path))?,
    )
}
