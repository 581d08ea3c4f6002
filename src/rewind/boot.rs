//! What `track` and `untrack` do for the next start of the machine.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::track::Means;
use crate::engine::catalog::{Place, SandboxRecord};
use crate::sandbox::boot::{Systemd, UNIT};
use crate::sandbox::registry::Registry;
use crate::sandbox::whole::Record;
use crate::text::shown_path;

/// How a workspace comes back after a restart.
#[derive(Debug, Clone)]
pub enum Boot {
    /// It needs nothing: nothing of it is mounted, or the state folder was named and is the user's own affair.
    Nothing,
    /// By this unit, with this program; `true` if that is done already.
    Unit(Systemd, PathBuf, bool),
    /// By a command of the user's, because of this.
    ByHand(String),
}

impl Boot {
    /// For a folder that is tracked in this way.
    pub fn of(registry: &Registry, way: Means) -> Self {
        if way != Means::Copy || registry.named().is_some() {
            return Self::Nothing;
        }
        let Some(systemd) = Systemd::here() else {
            return Self::ByHand("no systemd runs here".into());
        };
        match std::env::current_exe() {
            Err(e) => Self::ByHand(format!("the program's own path is not known: {e}")),
            Ok(program) => match not_roots(&program) {
                Some(path) => Self::ByHand(format!(
                    "users other than root can change {}: install the program first, as in the README",
                    shown_path(&path)
                )),
                None => {
                    let set = systemd.is_set();
                    Self::Unit(systemd, program, set)
                }
            },
        }
    }

    /// The step of the plan.
    pub fn step(&self) -> Option<String> {
        match self {
            Self::Unit(_, _, false) => Some(format!(
                "mount it again whenever the machine starts (systemd unit {UNIT})"
            )),
            _ => None,
        }
    }

    /// Does it. That it fails is no reason to give the workspace back: what is to be told is answered.
    pub fn set(&self, registry: &Registry) -> Option<String> {
        match self {
            Self::Nothing => None,
            Self::Unit(systemd, program, _) => systemd.set(program).err().map(|e| {
                format!(
                    "it will not come back by itself after a restart of the machine: {e}; mount it by: respool pool mount"
                )
            }),
            Self::ByHand(why) => (others(registry, None) == 1).then(|| {
                format!(
                    "after a restart of the machine, before the agent starts, mount it by: respool pool mount ({why})"
                )
            }),
        }
    }
}

/// The program, or a folder above it, if somebody else than root can change it: at the start of the machine it would
/// run as root.
fn not_roots(program: &Path) -> Option<PathBuf> {
    let safe = |path: &Path| {
        std::fs::symlink_metadata(path).is_ok_and(|m| {
            let group = m.mode() & 0o020 == 0 || m.gid() < 1000;
            m.uid() == 0 && group && m.mode() & 0o002 == 0
        })
    };
    program.ancestors().find(|p| !safe(p)).map(Path::to_owned)
}

/// How many workspaces need a mount, this one left out; Docker's data counts as one.
fn others(registry: &Registry, but: Option<&str>) -> usize {
    let docker = Record::load(registry.state_dir()).map_or(true, |r| r.is_some());
    usize::from(docker) + workspaces(registry, but)
}

fn workspaces(registry: &Registry, but: Option<&str>) -> usize {
    registry.all().map_or(usize::MAX, |census| {
        let unknown = census.trouble.len();
        let records = census.sandboxes.into_iter().filter_map(|(_, l)| l.record.ok());
        let mounted = records.filter(|r| r.tracked && r.place == Place::Pool && Some(r.id.as_str()) != but);
        mounted.count() + unknown
    })
}

fn last(registry: &Registry, record: &SandboxRecord) -> Option<Systemd> {
    if record.place != Place::Pool || registry.named().is_some() {
        return None;
    }
    let systemd = Systemd::here().filter(Systemd::is_set)?;
    (others(registry, Some(&record.id)) == 0).then_some(systemd)
}

/// The step of `untrack`'s plan.
pub fn last_step(registry: &Registry, record: &SandboxRecord) -> Option<String> {
    last(registry, record)
        .map(|_| format!("take the systemd unit {UNIT} out again: no other workspace needs it"))
}

/// Takes the unit out after the last workspace was given back. What is to be told is answered.
pub fn unset_after(registry: &Registry, record: &SandboxRecord) -> Option<String> {
    let unset = last(registry, record)?.unset();
    unset
        .err()
        .map(|e| format!("the systemd unit {UNIT} could not be taken out: {e}"))
}

/// Takes the unit out if nothing needs it any more; that it cannot be is told in the log.
pub fn unset_unneeded(registry: &Registry) {
    let unneeded = registry.named().is_none() && others(registry, None) == 0;
    if let Some(systemd) = Systemd::here().filter(|s| unneeded && s.is_set())
        && let Err(e) = systemd.unset()
    {
        tracing::warn!("the systemd unit {UNIT} could not be taken out: {e}");
    }
}
