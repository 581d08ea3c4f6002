//! Docker's data back out of its pool.

use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use super::super::boot;
use super::super::error::{Result, RewindError};
use super::plan::vanishing;
use super::plan_out::DisablePlan;
use super::{after, check, copied, lock, of, pin, quiet, refused, remove_beside, start, unpin};
use crate::engine::{EngineError, forest};
use crate::process::fault_point;
use crate::progress::Progress;
use crate::sandbox::bind;
use crate::sandbox::boot::Systemd;
use crate::sandbox::docker::Engine;
use crate::sandbox::registry::{PoolEntry, Registry};
use crate::sandbox::whole::place::Beside;
use crate::sandbox::whole::{Home, Phase, Ran, Record, Runs};

/// Does it. The caller has shown the plan and was told yes. What the user should know, harmless lines.
pub fn disable(registry: &Registry, plan: &DisablePlan, progress: &dyn Progress) -> Result<Vec<String>> {
    if let Some(b) = plan.blockers.iter().find(|b| b.stops) {
        return Err(refused(b.what.clone(), ""));
    }
    let state = registry.state_dir();
    let _lock = lock(state)?;
    let mut record = Record::load(state)?
        .filter(|r| r.phase == Phase::On)
        .ok_or_else(|| refused("Docker's data is in no pool".into(), ""))?;
    let home = Home::open(state, &record)?;
    // a rewind of everything that is under way is waited for
    let held = home.lock(std::time::Duration::from_secs(10))?;
    let engine = Engine::reach(&record.host).map_err(of)?;
    let all = engine.all().map_err(of)?;
    if let Some(b) = vanishing(&all).next() {
        return Err(refused(b.what, ""));
    }
    record.ran = Ran::of(&all);
    record.before = engine.inventory().map_err(of)?;
    drop(engine);
    record.advance(state, Phase::Returning)?;
    fault_point("docker-leaving");
    let done = copy_out(state, &mut record, &home, progress).and_then(|()| give(state, &mut record));
    let told = match done {
        Ok(told) => told,
        Err(cause) => {
            let back = stay(state, &mut record, &home);
            return Err(after(cause, back));
        }
    };
    drop(held);
    clean(registry, &mut record, Some(home))?;
    Ok(told)
}

fn copy_out(state: &Path, record: &mut Record, home: &Home, progress: &dyn Progress) -> Result<()> {
    progress.step("stopping Docker", 0, 0);
    quiet(state, record)?;
    record.hide(home)?;
    fault_point("docker-left");
    let back = record.beside(Beside::Back);
    remove_beside(record, Beside::Back)?;
    if record.inner {
        // it is made inside of the emptied folder
        let folder = bind::open_exact(record.root()).map_err(EngineError::io("open", record.root()))?;
        bind::unseal(&folder).map_err(EngineError::io("unseal", record.root()))?;
    }
    let live = home.live()?;
    let whole = matches!(record.pool, PoolEntry::Existing(_));
    if whole && !record.inner {
        let above = back.parent().unwrap_or(Path::new("/"));
        let parent = bind::open_exact(above).map_err(EngineError::io("open", above))?;
        let name = back
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        forest::share(live.as_fd(), parent.as_fd(), &name, progress)?;
    } else {
        std::fs::create_dir(&back).map_err(EngineError::io("make", &back))?;
        let closed = std::fs::Permissions::from_mode(0o700);
        std::fs::set_permissions(&back, closed).map_err(EngineError::io("close to others", &back))?;
        let to = bind::open_exact(&back).map_err(EngineError::io("open", &back))?;
        if whole {
            forest::share_into(live.as_fd(), to.as_fd(), progress)?;
        } else {
            copied(&live, &to, progress)?;
        }
        rustix::fs::syncfs(&to).map_err(|e| EngineError::io("sync", &back)(e.into()))?;
    }
    if progress.cancelled() {
        return Err(RewindError::Cancelled);
    }
    record.advance(state, Phase::GivingBack)?;
    Ok(())
}

/// The copy in its place, and the daemon up on it. Safe to do again.
pub(super) fn give(state: &Path, record: &mut Record) -> Result<Vec<String>> {
    fault_point("docker-giving");
    record.put_copy()?;
    fault_point("docker-given");
    let mut told: Vec<String> = unpin(record)?.into_iter().collect();
    fault_point("docker-unpinned");
    let engine = record.start_daemon(state).map_err(of)?;
    check(&engine, record)?;
    let ran = record.ran.clone();
    told.extend(start(&engine, &ran, true)?);
    record.advance(state, Phase::Cleaning)?;
    fault_point("docker-cleaning");
    Ok(told)
}

/// What is no longer needed goes. Safe to do again.
pub(super) fn clean(registry: &Registry, record: &mut Record, home: Option<Home>) -> Result<()> {
    let state = registry.state_dir();
    remove_beside(record, Beside::Old)?;
    fault_point("docker-old-removed");
    if let Some(home) = home {
        home.destroy()?;
    }
    if let (Runs::Systemd { unit, .. }, Some(systemd), None) =
        (&record.recipe.runs, Systemd::here(), registry.named())
    {
        systemd.needs_no_pools(unit)?;
    }
    Record::forget(state)?;
    boot::unset_unneeded(registry);
    Ok(())
}

/// After a failure: the daemon up on the pool, as before. Safe to do again.
pub(super) fn stay(state: &Path, record: &mut Record, home: &Home) -> Result<()> {
    if !record.shows(home)? {
        if record.phase == Phase::GivingBack {
            // it may be up on the copy
            quiet(state, record)?;
            pin(record)?;
            if record.inner || !record.beside(Beside::Back).exists() {
                record.set_aside(Beside::Back)?;
            }
        }
        record.reseal()?;
        record.show(home)?;
    }
    let engine = record.start_daemon(state).map_err(of)?;
    let ran = record.ran.clone();
    start(&engine, &ran, false)?;
    if !record.inner {
        remove_beside(record, Beside::Back)?;
    }
    record.ran = Vec::new();
    record.before = Vec::new();
    record.advance(state, Phase::On)?;
    Ok(())
}
