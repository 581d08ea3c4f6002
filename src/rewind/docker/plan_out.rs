//! What bringing Docker's data back out of its pool will do, before it does anything.

use std::os::fd::AsFd;

use serde::Serialize;

use super::super::Blocker;
use super::super::error::Result;
use super::plan::{live_names, stops, tracked, vanishing};
use super::{of, refused};
use crate::engine::forest;
use crate::engine::restore::measure;
use crate::progress::Progress;
use crate::sandbox::docker::Engine;
use crate::sandbox::registry::{PoolEntry, Registry};
use crate::sandbox::whole::{Beside, Home, Phase, Ran, Record};
use crate::text::{count, shown, shown_path, size};

/// What `docker disable` will do.
#[derive(Debug, Clone, Serialize)]
pub struct DisablePlan {
    /// The folder of Docker's data.
    pub path: String,
    /// Bytes that are copied.
    pub bytes: u64,
    /// The steps, one line each.
    pub steps: Vec<String>,
    /// The containers that are stopped meanwhile.
    pub containers: Vec<String>,
    /// What is lost with it, one line each.
    pub lost: Vec<String>,
    /// What stands in the way.
    pub blockers: Vec<Blocker>,
}

/// Makes the plan of bringing Docker's data back out of its pool. Nothing is changed.
pub fn disable_plan(registry: &Registry, progress: &dyn Progress) -> Result<(Record, DisablePlan)> {
    let state = registry.state_dir();
    let record = Record::load(state)?;
    let record = record.ok_or_else(|| {
        refused(
            "Docker's data is in no pool".into(),
            "respool docker status tells more",
        )
    })?;
    if record.phase != Phase::On {
        return Err(refused(
            "moving Docker's data was interrupted".into(),
            "run: respool recover",
        ));
    }
    let home = Home::open(state, &record)?;
    let live = home.live()?;
    let bytes = measure(live.as_fd(), progress)?.bytes;
    let engine = Engine::reach(&record.host).map_err(of)?;
    let all = engine.all().map_err(of)?;
    let mut blockers: Vec<Blocker> = vanishing(&all).collect();
    let same = matches!(record.pool, PoolEntry::Existing(_));
    if !same {
        blockers.extend(cannot_leave(&record, &live, bytes)?);
    }
    let ran = Ran::of(&all);
    let root = shown_path(record.root());
    let old = shown_path(&record.beside(Beside::Old));
    let mut steps = vec![format!(
        "stop {} and Docker",
        count(ran.len() as u64, "container")
    )];
    steps.push(if same {
        format!("share the present content into a plain place on its file system, and put it at {root}")
    } else {
        format!(
            "copy the present content ({}) out of the pool to {root}, and compare it",
            size(bytes)
        )
    });
    if let Some(pin) = &record.pin {
        steps.push(format!(
            "take the storage driver out of {} again",
            shown_path(&pin.path.0)
        ));
    }
    steps.push(
        "start Docker, check that every image, container and volume is there, start the containers".into(),
    );
    steps.push(format!(
        "remove {old}, which is from before, and the data in the pool"
    ));
    let kept = home.count()?;
    let mut lost = Vec::new();
    if kept > 0 {
        lost.push(format!(
            "{} of all of Docker: rewind --whole-docker goes to none of them any more",
            count(kept as u64, "checkpoint")
        ));
    }
    lost.extend(tracked(registry).into_iter().map(|name| {
        format!(
            "container {}: its share of the checkpoints taken since then, which only fits Docker in the pool",
            shown(&name)
        )
    }));
    Ok((
        record,
        DisablePlan {
            path: root,
            bytes,
            steps,
            containers: live_names(&ran),
            lost,
            blockers,
        },
    ))
}

/// Why the data cannot leave the pool for another file system.
fn cannot_leave(record: &Record, live: &std::os::fd::OwnedFd, bytes: u64) -> Result<Vec<Blocker>> {
    let mut out = Vec::new();
    let inner = forest::inner(live.as_fd())?.len();
    if inner > 0 {
        let what = count(inner as u64, "Btrfs subvolume");
        out.push(stops(
            "nested",
            format!("{what} came into it, and can be nowhere but on Btrfs: remove what made them"),
        ));
    }
    let above = record.root().parent().unwrap_or(record.root());
    let at = if record.inner {
        record.beside(Beside::Old)
    } else {
        above.to_owned()
    };
    let free = rustix::fs::statvfs(&at).map_or(u64::MAX, |s| s.f_bavail * s.f_frsize);
    if !record.inner && free < bytes + bytes / 10 {
        let old = shown_path(&record.beside(Beside::Old));
        out.push(stops(
            "space",
            format!(
                "it needs {}, {} has {} free; {old} is from before, and may be removed",
                size(bytes),
                shown_path(above),
                size(free)
            ),
        ));
    }
    Ok(out)
}
