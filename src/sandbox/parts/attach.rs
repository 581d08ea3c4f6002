//! Making a container a part of a sandbox.

use std::path::Path;
use std::sync::Arc;

use super::part::Part;
use super::record::{ContainerRecord, containers};
use crate::engine::catalog::SandboxDir;
use crate::engine::pool::Pool;
use crate::engine::{EngineError, random_id, subvolume};
use crate::sandbox::docker::locate::{Located, locate};
use crate::sandbox::docker::{DockerError, Engine, Inspect, Technique, rootfs};
use crate::sandbox::registry::{Census, PoolEntry, Registry};
use crate::sandbox::site::Site;
use crate::sandbox::{bind, mounts};
use crate::text::{ExactPath, shown, shown_path};

/// A container that can become a part.
pub struct Offer {
    engine: Arc<Engine>,
    /// The container.
    pub container: Inspect,
    /// Where its files are, and how they are kept.
    pub located: Located,
}

fn refused(why: String, hint: Option<String>) -> DockerError {
    DockerError::Refused {
        why,
        path: None,
        hint,
    }
}

/// Finds a container by its name or id, and how it would be kept. Refused where it cannot be.
pub fn offer(name: &str) -> Result<Offer, DockerError> {
    let engine = Arc::new(Engine::connect(None)?);
    let container = engine.inspect(name)?;
    let located = locate(&engine, &container, None).map_err(|v| {
        let why = format!(
            "container {} cannot be covered: {}",
            shown(&container.name),
            v.why
        );
        refused(why, v.better)
    })?;
    Ok(Offer {
        engine,
        container,
        located,
    })
}

/// The sandbox that a container belongs to already, other than this one.
fn owner(registry: &Registry, own: &str, engine: &str, c: &Inspect) -> Result<Option<String>, EngineError> {
    let Census {
        sandboxes, copies, ..
    } = registry.all()?;
    let all = sandboxes
        .into_iter()
        .map(|(_, l)| l)
        .chain(copies.into_iter().map(|(_, l)| l));
    let has = |r: &ContainerRecord| r.host == engine && (r.id == c.id || r.name == c.name);
    Ok(all
        .filter_map(|l| l.record.ok())
        .filter(|r| r.tracked && r.id != own)
        .find(|r| containers(r).iter().any(has))
        .map(|r| shown_path(&r.path)))
}

/// The mount through which the file system of a container's files is known.
fn pool_of(path: &Path) -> Result<PoolEntry, EngineError> {
    let own = mounts::mounts(None).map_err(EngineError::io("read the mounts at", path))?;
    let found = rootfs::within(path, &own);
    let (_, mount) = found.ok_or_else(|| EngineError::NoPath {
        path: path.to_owned(),
    })?;
    Ok(PoolEntry::Existing(ExactPath(mount.point.clone())))
}

/// Makes it a part of a sandbox: each checkpoint has it from now on. Nothing is done to the container itself.
pub fn attach(registry: &Registry, site: &mut Site, offer: &Offer) -> Result<ContainerRecord, DockerError> {
    let c = &offer.container;
    let mut list = containers(&site.record);
    if let Some(known) = list.iter().find(|r| r.id == c.id) {
        return Ok(known.clone());
    }
    if let Some(path) = owner(registry, &site.record.id, offer.engine.host(), c)? {
        return Err(refused(
            format!("container {} belongs to the sandbox of {path}", shown(&c.name)),
            Some("one conversation's rewind must not change another's container".into()),
        ));
    }
    let before = list.iter().position(|r| r.name == c.name);
    let chain = offer.located.chain();
    // what was kept of one of another image is of no use to it
    let same = before.filter(|&i| list[i].fits(c, &chain));
    let record = ContainerRecord {
        part: same.map_or_else(|| random_id("ct"), |i| list[i].part.clone()),
        name: c.name.clone(),
        id: c.id.clone(),
        image: c.image.clone(),
        chain,
        host: offer.engine.host().to_owned(),
        path: ExactPath(offer.located.path.clone()),
    };
    if offer.located.verdict.technique != Technique::OverlayCopy {
        let path = &offer.located.path;
        match Pool::open_existing(path, &registry.mnt_dir())?.image() {
            Some(image) => registry.remember(PoolEntry::Image(ExactPath(image.to_owned())))?,
            None => registry.remember(pool_of(path)?)?,
        }
    }
    // that it can be kept is known before it is promised
    let shelf = site.parts()?.shelf().clone();
    Part::at(&shelf, &offer.engine, &record, c.clone(), offer.located.clone())?;
    match before {
        Some(i) => list[i] = record.clone(),
        None => list.push(record.clone()),
    }
    site.set_containers(list)?;
    Ok(record)
}

/// Removes for good what is kept of the containers of a sandbox on their own file systems. What could not be, a line
/// each.
pub fn destroy(list: &[ContainerRecord], mnt: &Path) -> Vec<String> {
    let one = |r: &ContainerRecord| -> Result<(), EngineError> {
        let path = &r.path.0;
        // where that is no Btrfs, all of it is in the sandbox's own folder
        let there = path.ancestors().find(|p| p.exists()).unwrap_or(path);
        let folder = bind::open_folder(there).map_err(EngineError::io("open", there))?;
        if !subvolume::on_btrfs(&folder).map_err(EngineError::io("look at", there))? {
            return Ok(());
        }
        let pool = Pool::open_existing(there, mnt)?;
        match SandboxDir::open_part(&pool, &r.part)? {
            Some(dir) => dir.destroy(&pool),
            None => Ok(()),
        }
    };
    let failed = list.iter().filter_map(|r| Some((r, one(r).err()?)));
    failed
        .map(|(r, e)| format!("what is kept of container {} stays: {e}", shown(&r.name)))
        .collect()
}
