//! A workspace of its own for each conversation: a writable snapshot of the template's live tree, in constant time,
//! beside the template. Each step is announced in the journal; killed anywhere, the workspace is there or it is not.

use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use chrono::Utc;
use rustix::fs::{AtFlags, Gid, Mode, OFlags, Uid};
use rustix::io::Errno;

use super::adopt::{back, shows};
use super::aside::{Beside, names};
use super::error::{Restarted, Result, RewindError};
use super::journal::{Log, Phase, Record};
use super::track::start_checkpoint;
use super::{OperationKind, OperationState};
use crate::engine::catalog::{self, LIVE, Place, RECORD_VERSION, SandboxDir, SandboxRecord};
use crate::engine::pool::Pool;
use crate::engine::{EngineError, ioctl, random_id, subvolume};
use crate::process::fault_point;
use crate::progress::Progress;
use crate::sandbox::bind;
use crate::sandbox::exclusive::{
    Origin, Template, check_name, clone_of, folder_of, must_be_template, set_clone, set_template,
};
use crate::sandbox::manage::{Verb, order};
use crate::sandbox::site::Site;
use crate::text::shown_path;
use crate::timeline::desk::Desk;

/// A conversation's workspace, opened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Workspace {
    /// Its sandbox.
    pub sandbox: String,
    /// Where it is.
    pub path: PathBuf,
    /// False if it was there already.
    pub made: bool,
    /// What of the template is not in it, relative to it.
    pub missing: Vec<PathBuf>,
}

fn refused(path: &Path, why: String, hint: &str) -> RewindError {
    RewindError::Refused {
        why,
        path: Some(path.to_owned()),
        hint: Some(hint.to_owned()),
    }
}

/// Makes a tracked workspace the template of its conversations' workspaces, here. `shared`: the name of a folder that
/// all of them share, in no checkpoint. Doing it again changes nothing but a shared folder that was not there.
pub fn make_template(site: &mut Site, shared: Option<&str>) -> Result<Template> {
    let path = site.path().to_owned();
    if site.copied() {
        let hint = "track it with --vault btrfs";
        let why = format!(
            "{} has copies: a workspace is cloned by a snapshot",
            shown_path(&path)
        );
        return Err(refused(&path, why, hint));
    }
    if clone_of(&site.record).is_some() {
        let why = format!("{} is the workspace of a conversation", shown_path(&path));
        return Err(refused(&path, why, "name the folder that it was cloned from"));
    }
    let mut mark = crate::sandbox::exclusive::template(&site.record).unwrap_or_default();
    if let Some(name) = shared {
        check_name(name)?;
        mark.shared = Some(name.to_owned());
    }
    let folder = workspaces(&site.record)?;
    if let Some(name) = &mark.shared {
        member(&folder, &site.record, name)?;
    }
    let mut record = site.record.clone();
    set_template(&mut record, &mark)?;
    if record != site.record {
        site.write_record(record)?;
    }
    Ok(mark)
}

/// The folder of the workspaces, made if it is not there. It must belong to the owner of the template.
fn workspaces(template: &SandboxRecord) -> Result<OwnedFd> {
    let path = folder_of(&template.path);
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(EngineError::NoPath { path }.into());
    };
    let above = bind::open_exact(parent).map_err(EngineError::io("open", parent))?;
    made(&above, name, template).map_err(EngineError::io("make", &path))?;
    entered(&above, Path::new(name), template, &path)
}

/// Makes a folder like the template's; true if it was not there.
fn made(parent: impl AsFd, name: impl AsRef<Path>, template: &SandboxRecord) -> std::io::Result<bool> {
    let name = name.as_ref();
    match rustix::fs::mkdirat(parent.as_fd(), name, Mode::from_raw_mode(0o755)) {
        Ok(()) => {}
        Err(Errno::EXIST) => return Ok(false),
        Err(e) => return Err(e.into()),
    }
    if rustix::process::geteuid().is_root() {
        let (uid, gid) = (Uid::from_raw(template.uid), Gid::from_raw(template.gid));
        rustix::fs::chownat(parent, name, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW)?;
    }
    Ok(true)
}

/// Opens a folder of the owner's: no link, nobody else's.
fn entered(parent: impl AsFd, name: &Path, template: &SandboxRecord, path: &Path) -> Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let fd = match rustix::fs::openat(parent, name, flags, Mode::empty()) {
        Ok(fd) => fd,
        Err(Errno::LOOP | Errno::NOTDIR) => {
            let why = format!("{} is a link or no folder", shown_path(path));
            return Err(refused(path, why, "move it away"));
        }
        Err(e) => return Err(EngineError::io("open", path)(e.into()).into()),
    };
    let uid = bind::stat(&fd).map_err(EngineError::io("look at", path))?.st_uid;
    if uid != template.uid {
        let why = format!("{} belongs to user {uid}", shown_path(path));
        return Err(refused(path, why, "it must belong to the owner of the template"));
    }
    Ok(fd)
}

/// A folder in that of the workspaces, made if it is not there; true if it was made.
fn member(folder: &OwnedFd, template: &SandboxRecord, name: &str) -> Result<(OwnedFd, bool)> {
    let path = folder_of(&template.path).join(name);
    let fresh = made(folder, name, template).map_err(EngineError::io("make", &path))?;
    Ok((entered(folder, Path::new(name), template, &path)?, fresh))
}

/// Opens the workspace of a conversation: the one that it has, or a fresh clone of the template as it is now. Where the
/// template is behind the service, that does it.
pub fn open(desk: &Desk, template: &Site, name: &str, progress: &dyn Progress) -> Result<Workspace> {
    check_name(name)?;
    if template.remote().is_some() {
        let verb = Verb::Exclusive {
            dir: template.path().to_owned(),
            conversation: Some(name.to_owned()),
            shared: None,
        };
        let doc = order(&desk.registry, verb, false, progress)?;
        let text = |key: &str| doc[key].as_str().unwrap_or_default().to_owned();
        return Ok(Workspace {
            sandbox: text("sandbox"),
            path: folder_of(template.path()).join(name),
            made: doc["made"] == true,
            missing: Vec::new(),
        });
    }
    let mark = must_be_template(&template.record)?;
    if mark.shared.as_deref() == Some(name) {
        let path = folder_of(template.path()).join(name);
        let why = format!("{} is the shared folder", shown_path(&path));
        return Err(refused(&path, why, "name the conversation"));
    }
    let (pool, _) = template.btrfs()?;
    let dir = SandboxDir::open(pool, &template.record.id)?;
    // two that ask for the same one get the same
    let _lock = dir.lock()?;
    let path = folder_of(template.path()).join(name);
    if path.is_dir()
        && let Some(site) = desk.registry.without_line().find(&path)?
    {
        let of_it = clone_of(&site.record).is_some_and(|o| o.template == template.record.id);
        if of_it && site.path() == path {
            return Ok(Workspace {
                sandbox: site.record.id,
                path,
                made: false,
                missing: Vec::new(),
            });
        }
        let why = format!("{} is tracked, and no clone of the template", shown_path(&path));
        return Err(refused(&path, why, "choose another name"));
    }
    let missing = template.vault.not_covered()?;
    let record = cloned(pool, template, name, &mark)?;
    Ok(Workspace {
        sandbox: record.id,
        path,
        made: true,
        missing,
    })
}

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

fn cloned(pool: &Pool, template: &Site, name: &str, mark: &Template) -> Result<SandboxRecord> {
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

/// Refuses a folder that holds something.
fn free(folder: &OwnedFd, template: &SandboxRecord, name: &str, path: &Path) -> Result<()> {
    if rustix::fs::statat(folder, name, AtFlags::SYMLINK_NOFOLLOW).is_err() {
        return Ok(());
    }
    let there = entered(folder, Path::new(name), template, path)?;
    let held = names(&there).map_err(EngineError::io("list", path))?;
    if held.is_empty() {
        return Ok(());
    }
    let why = format!("{} is there, and is not empty", shown_path(path));
    let hint = format!(
        "move it away; or track it as it is: respool track {}",
        crate::text::shell_word(path)
    );
    Err(refused(path, why, &hint))
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
    start_checkpoint(work.pool, &work.record, live()?)?;
    let mounted = live()?;
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
pub(super) fn unmade(record: &SandboxRecord, origin: &Origin) -> Result<()> {
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
