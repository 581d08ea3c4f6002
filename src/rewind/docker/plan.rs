//! What bringing Docker's data into a pool, or back, will do, before it does anything.

use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use serde::Serialize;

use super::super::Blocker;
use super::super::error::Result;
use super::{of, refused};
use crate::engine::restore::{TreeSize, measure};
use crate::engine::{EngineError, random_id, subvolume};
use crate::progress::Progress;
use crate::sandbox::bind;
use crate::sandbox::docker::info::Info;
use crate::sandbox::docker::{Engine, Inspect};
use crate::sandbox::parts::containers;
use crate::sandbox::registry::{Census, PoolEntry, Registry};
use crate::sandbox::whole::{Beside, Daemon, Phase, Pin, Ran, Record, place};
use crate::text::{ExactPath, count, shown, shown_path, size};

/// What is wanted of the pool.
#[derive(Debug, Clone, Default)]
pub struct Wanted {
    /// The image; the default one if none is named.
    pub image: Option<PathBuf>,
    /// The size of a new image, bytes.
    pub size: Option<u64>,
}

/// What `docker enable` will do.
#[derive(Debug, Clone, Serialize)]
pub struct EnablePlan {
    /// The folder of Docker's data.
    pub path: String,
    /// Files and folders in it.
    pub entries: u64,
    /// Their bytes.
    pub bytes: u64,
    /// The steps, one line each.
    pub steps: Vec<String>,
    /// The containers that are stopped meanwhile.
    pub containers: Vec<String>,
    /// What cannot be gone back to as long as it is so, one line each.
    pub lost: Vec<String>,
    /// What stands in the way.
    pub blockers: Vec<Blocker>,
    /// What it will be.
    #[serde(skip)]
    pub record: Record,
    /// The size of the image, where one is to be made.
    #[serde(skip)]
    pub image_size: Option<u64>,
}

pub(super) fn stops(kind: &'static str, what: String) -> Blocker {
    Blocker {
        kind,
        pid: None,
        what,
        stops: true,
    }
}

/// The containers that belong to sandboxes, by name.
pub(super) fn tracked(registry: &Registry) -> Vec<String> {
    let Ok(Census {
        sandboxes, copies, ..
    }) = registry.all()
    else {
        return Vec::new();
    };
    let all = sandboxes
        .into_iter()
        .map(|(_, l)| l)
        .chain(copies.into_iter().map(|(_, l)| l));
    let records = all.filter_map(|l| l.record.ok()).filter(|r| r.tracked);
    records
        .flat_map(|r| containers(&r).into_iter().map(|c| c.name))
        .collect()
}

/// Containers that would be gone once they are stopped.
pub(super) fn vanishing(all: &[Inspect]) -> impl Iterator<Item = Blocker> {
    let gone = all.iter().filter(|c| c.auto_remove && c.state.lives());
    gone.map(|c| {
        let name = shown(&c.name);
        stops(
            "container",
            format!(
                "container {name} was started with --rm: it would be gone once it is stopped; end it first"
            ),
        )
    })
}

/// What of the daemon itself stands in the way.
fn of_daemon(info: &Info) -> Vec<Blocker> {
    let mut out = Vec::new();
    if info.swarm {
        let why = "it is a node of a swarm: its state must not go back in time";
        out.push(stops("swarm", why.into()));
    }
    if info.snapshotter && !info.data_root.join("containerd/daemon").is_dir() {
        let why = "images and containers are kept by a containerd of the system, in /var/lib/containerd, which is not \
                   Docker's alone: turn the containerd image store off (\"features\": {\"containerd-snapshotter\": false})";
        out.push(stops("containerd", why.into()));
    }
    out
}

pub(super) fn live_names(ran: &[Ran]) -> Vec<String> {
    ran.iter().map(|r| shown(&r.name)).collect()
}

fn of_place(registry: &Registry, root: &Path, entry: &PoolEntry) -> Result<Vec<Blocker>> {
    let mut out = Vec::new();
    for path in place::foreign_below(root)? {
        let path = shown_path(&path);
        out.push(stops(
            "mount",
            format!("{path} is a file system of its own, mounted in it: unmount it"),
        ));
    }
    let state = registry.state_dir();
    let inside = match entry {
        PoolEntry::Image(image) if image.0.starts_with(root) => Some(&*image.0),
        _ if state.starts_with(root) => Some(state),
        _ => None,
    };
    if let Some(path) = inside {
        let path = shown_path(path);
        out.push(stops(
            "pool",
            format!("{path} lies in Docker's data: name another place"),
        ));
    }
    Ok(out)
}

fn already(state: &Path) -> Result<()> {
    match Record::load(state)? {
        None => Ok(()),
        Some(r) if r.phase == Phase::On => Err(refused(
            format!("Docker's data at {} is in a pool already", shown_path(r.root())),
            "respool docker disable brings it back",
        )),
        Some(_) => Err(refused(
            "moving Docker's data was interrupted".into(),
            "run: respool recover",
        )),
    }
}

/// Makes the plan of bringing Docker's data into a pool. Nothing is changed.
pub fn enable_plan(registry: &Registry, wanted: &Wanted, progress: &dyn Progress) -> Result<EnablePlan> {
    already(registry.state_dir())?;
    let engine = Engine::connect(None).map_err(of)?;
    if let Some(why) = engine.out_of_reach() {
        return Err(refused(why, "run it as root where dockerd runs"));
    }
    let info = engine.facts().map_err(of)?;
    let root = info
        .data_root
        .canonicalize()
        .unwrap_or_else(|_| info.data_root.clone());
    let daemon = Daemon::find(&engine, &root).map_err(of)?;
    let folder = bind::open_exact(&root).map_err(EngineError::io("open", &root))?;
    let on_btrfs = subvolume::on_btrfs(&folder).map_err(EngineError::io("look at", &root))?;
    let image = wanted.image.clone().unwrap_or_else(|| registry.default_image());
    let entry = if on_btrfs {
        PoolEntry::Existing(ExactPath(root.clone()))
    } else {
        PoolEntry::Image(ExactPath(image.clone()))
    };
    let TreeSize { entries, bytes, .. } = measure(folder.as_fd(), progress)?;
    let all = engine.all().map_err(of)?;
    let mut blockers = of_daemon(&info);
    blockers.extend(vanishing(&all));
    blockers.extend(of_place(registry, &root, &entry)?);
    if on_btrfs && wanted.image.is_some() {
        let why = "Docker's data is on a Btrfs already: it stays there, and no image is needed";
        blockers.push(stops("pool", why.into()));
    }
    let pinned = pin_plan(&daemon, &info).unwrap_or_else(|why| {
        blockers.push(stops("settings", why));
        None
    });
    let ran = Ran::of(&all);
    let record = Record {
        v: 1,
        id: random_id("dk"),
        phase: Phase::Copying,
        pool: entry,
        host: engine.host().to_owned(),
        data_root: ExactPath(root.clone()),
        inner: place::mounts_at(&root)? > 0,
        mounts: place::mounts_at(&root)?,
        stub: None,
        driver: info.driver,
        pin: pinned,
        recipe: daemon.recipe,
        ran,
        before: engine.inventory().map_err(of)?,
    };
    let fresh = !on_btrfs && !image.exists();
    let lost = tracked(registry).into_iter().map(|name| {
        format!(
            "container {}: its share of the checkpoints taken until now stays where it is, and cannot be brought back \
             while Docker is in the pool",
            shown(&name)
        )
    });
    Ok(EnablePlan {
        path: shown_path(&root),
        entries,
        bytes,
        steps: enable_steps(&record, bytes, entries),
        containers: live_names(&record.ran),
        lost: lost.collect(),
        blockers,
        image_size: fresh.then(|| wanted.size.unwrap_or_else(|| (20 << 30_u64).max(bytes * 2))),
        record,
    })
}

/// The edit of the settings. None where the command line names the driver, or containerd chooses.
fn pin_plan(daemon: &Daemon, info: &Info) -> std::result::Result<Option<Pin>, String> {
    if daemon.recipe.driver().is_some() || info.snapshotter {
        return Ok(None);
    }
    Pin::plan(&daemon.recipe.config(), &info.driver)
}

fn enable_steps(record: &Record, bytes: u64, entries: u64) -> Vec<String> {
    let root = shown_path(record.root());
    let mut out = vec![format!(
        "stop {} and Docker ({})",
        count(record.ran.len() as u64, "container"),
        record.recipe.said()
    )];
    match &record.pool {
        PoolEntry::Image(image) => {
            let at = shown_path(&image.0);
            out.push(format!(
                "copy {entries} files and folders ({}) into {at}",
                size(bytes)
            ));
            out.push("compare the copy with them, every byte and attribute".into());
        }
        _ => out.push(format!(
            "share the content of {root} into a Btrfs subvolume beside it"
        )),
    }
    if let Some(pin) = &record.pin {
        let (file, driver) = (shown_path(&pin.path.0), shown(&record.driver));
        out.push(format!(
            "name the storage driver in {file}: \"storage-driver\": \"{driver}\""
        ));
    }
    let old = shown_path(&record.beside(Beside::Old));
    out.push(format!(
        "set what is in {root} aside as {old}: it stays until docker disable"
    ));
    out.push(format!(
        "mount the copy at {root}: the same path, no other setting changes"
    ));
    out.push(
        "start Docker, check that every image, container and volume is there, start the containers".into(),
    );
    out
}
