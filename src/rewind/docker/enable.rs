//! Docker's data into a pool.

use std::os::fd::AsFd;

use super::super::boot::Boot;
use super::super::error::{Result, RewindError};
use super::super::track::Means;
use super::plan::{EnablePlan, vanishing};
use super::{after, check, copied, lock, of, out_of_pool, pin, quiet, refused, start};
use crate::engine::{EngineError, forest, image};
use crate::process::fault_point;
use crate::progress::Progress;
use crate::sandbox::bind;
use crate::sandbox::boot::Systemd;
use crate::sandbox::docker::Engine;
use crate::sandbox::registry::{PoolEntry, Registry};
use crate::sandbox::whole::{Home, Phase, Ran, Record, Runs, place};
use crate::text::{shown_path, size};

/// Does it. The caller has shown the plan and was told yes. What the user should know, harmless lines.
pub fn enable(registry: &Registry, plan: &EnablePlan, progress: &dyn Progress) -> Result<Vec<String>> {
    if let Some(b) = plan.blockers.iter().find(|b| b.stops) {
        return Err(refused(b.what.clone(), ""));
    }
    registry.prepare()?;
    let state = registry.state_dir();
    let _lock = lock(state)?;
    if Record::load(state)?.is_some() {
        return Err(refused("Docker's data is in a pool already".into(), ""));
    }
    let mut record = plan.record.clone();
    let pool = match &record.pool {
        PoolEntry::Image(path) => {
            if let Some(wanted) = plan.image_size.filter(|_| !path.0.exists()) {
                image::create(&path.0, wanted, false)?;
            }
            registry.open_image(&path.0)?
        }
        PoolEntry::Existing(path) | PoolEntry::Folder(path) => registry.open_existing(&path.0)?,
    };
    if matches!(record.pool, PoolEntry::Image(_)) {
        room(&pool, plan)?;
    }
    seen_now(&mut record)?;
    record.save(state)?;
    fault_point("docker-begun");
    let home = Home::make(pool, &record.id);
    let home = match home {
        Ok(home) => home,
        Err(e) => {
            let back = out_of_pool(state, &mut record, None);
            return Err(after(e.into(), back));
        }
    };
    match go(state, &mut record, &home, progress) {
        Ok(mut told) => {
            told.extend(at_boot(registry, &record));
            Ok(told)
        }
        Err(cause) => {
            let back = out_of_pool(state, &mut record, Some(home));
            Err(after(cause, back))
        }
    }
}

/// What runs, and what is there, just now: the plan may have been looked at for a while.
fn seen_now(record: &mut Record) -> Result<()> {
    let engine = Engine::reach(&record.host).map_err(of)?;
    let all = engine.all().map_err(of)?;
    if let Some(b) = vanishing(&all).next() {
        return Err(refused(b.what, ""));
    }
    record.ran = Ran::of(&all);
    record.before = engine.inventory().map_err(of)?;
    Ok(())
}

fn room(pool: &crate::engine::pool::Pool, plan: &EnablePlan) -> Result<()> {
    pool.guard_space()?;
    let status = pool.status()?;
    let need = plan.bytes + plan.bytes / 10 + plan.entries * 1024;
    let free = status.available.min(status.host_free.unwrap_or(u64::MAX));
    if need <= free {
        return Ok(());
    }
    Err(refused(
        format!(
            "Docker's data needs {}, the pool or its disk has {} free",
            size(need),
            size(free)
        ),
        "make it larger: respool pool grow SIZE; or name another disk: --image FILE",
    ))
}

fn go(
    state: &std::path::Path,
    record: &mut Record,
    home: &Home,
    progress: &dyn Progress,
) -> Result<Vec<String>> {
    progress.step("stopping Docker", 0, 0);
    quiet(state, record)?;
    // a daemon may have mounted its folder over itself
    record.mounts = place::mounts_at(record.root())?;
    record.inner = record.mounts > 0;
    record.save(state)?;
    fault_point("docker-stopped");
    let root = record.root().to_owned();
    let from = bind::open_exact(&root).map_err(EngineError::io("open", &root))?;
    if matches!(record.pool, PoolEntry::Image(_)) {
        copied(&from, home.empty_live()?, progress)?;
        crate::engine::ioctl::fs_sync(home.live()?).map_err(EngineError::io("sync", &root))?;
    } else {
        let (dir, name) = home.fresh()?;
        forest::share(from.as_fd(), dir.as_fd(), name, progress)?;
    }
    drop(from);
    if progress.cancelled() {
        return Err(RewindError::Cancelled);
    }
    record.advance(state, Phase::Switching)?;
    fault_point("docker-switching");
    pin(record)?;
    fault_point("docker-pinned");
    record.set_aside(place::Beside::Old)?;
    record.save(state)?;
    fault_point("docker-aside");
    record.show(home)?;
    fault_point("docker-mounted");
    record.advance(state, Phase::Starting)?;
    come_up(state, record)
}

/// The last steps, which a crash does not take back: the daemon up on the pool, checked, and the containers.
pub(super) fn come_up(state: &std::path::Path, record: &mut Record) -> Result<Vec<String>> {
    fault_point("docker-starting");
    let engine = record.start_daemon(state).map_err(of)?;
    check(&engine, record)?;
    fault_point("docker-checked");
    let ran = record.ran.clone();
    let told = start(&engine, &ran, true)?;
    record.ran = Vec::new();
    record.before = Vec::new();
    record.advance(state, Phase::On)?;
    Ok(told)
}

/// What must be done so that it comes back after a restart of the machine; what could not be is told.
fn at_boot(registry: &Registry, record: &Record) -> Vec<String> {
    let mut told: Vec<String> = Boot::of(registry, Means::Copy)
        .set(registry)
        .into_iter()
        .collect();
    if record.recipe.runs == Runs::ByHand && record.recipe.output[1].is_none() {
        let log = shown_path(&Record::log(registry.state_dir()));
        told.push(format!(
            "dockerd was started by hand without a file for its log: it is {log} now"
        ));
    }
    if registry.named().is_some() {
        return told;
    }
    match (&record.recipe.runs, Systemd::here()) {
        (Runs::Systemd { unit, .. }, Some(systemd)) => {
            if let Err(e) = systemd.needs_pools(unit) {
                told.push(format!("{e}; after a restart of the machine run respool pool mount before Docker starts"));
            }
        }
        _ => told.push(format!(
            "after a restart, before dockerd is started: respool pool mount (without it dockerd fails, as {} takes no \
             write then)",
            shown_path(record.root())
        )),
    }
    told
}
