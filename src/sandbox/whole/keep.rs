//! Docker's data as a share of a sandbox's checkpoints, while it is in a pool.

use std::collections::BTreeSet;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::home::Home;
use super::look::Inventory;
use super::record::{Phase, Ran, Record, Stopped};
use crate::engine::{CheckpointId, Elsewhere, EngineError, PartKind, Result};
use crate::sandbox::docker::{Engine, Inspect};
use crate::text::{shown, shown_path};

/// How long another rewind of everything is waited for.
const PATIENCE: Duration = Duration::from_secs(10);

/// Docker's data, for one sandbox.
#[derive(Debug, Clone)]
pub struct Keep {
    pub(super) state: PathBuf,
    pub(super) record: Record,
    pub(super) sandbox: String,
    /// Held from the first container that is stopped until all are up again.
    pub(super) lock: Arc<Mutex<Option<File>>>,
}

/// What becomes of one container when everything goes back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fate {
    /// Its id.
    pub id: String,
    /// Its name (hostile).
    pub name: String,
    /// What becomes of it, one harmless line that goes on after its name.
    pub what: String,
}

impl Keep {
    /// That of a state folder, for a sandbox; `None` while Docker's data is in no pool.
    pub fn find(state: &Path, sandbox: &str) -> Option<Self> {
        match Record::load(state) {
            Ok(Some(record)) if record.phase == Phase::On => Some(Self {
                state: state.to_owned(),
                record,
                sandbox: sandbox.to_owned(),
                lock: Arc::default(),
            }),
            Ok(_) => None,
            Err(e) => {
                tracing::warn!("{e}");
                None
            }
        }
    }

    /// What is known of it.
    pub fn record(&self) -> &Record {
        &self.record
    }

    pub(super) fn home(&self) -> Result<Home> {
        Home::open(&self.state, &self.record)
    }

    /// The engine, if it answers.
    pub fn engine(&self) -> std::result::Result<Arc<Engine>, String> {
        let engine = Engine::reach(&self.record.host).map_err(|e| e.to_string())?;
        Ok(Arc::new(engine))
    }

    /// Takes the lock, unless it is held by this value.
    pub(super) fn hold(&self, home: &Home) -> Result<()> {
        let mut held = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        if held.is_none() {
            *held = Some(home.lock(PATIENCE)?);
        }
        Ok(())
    }

    pub(super) fn let_go(&self) {
        *self.lock.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// Takes its share of a checkpoint. `all`: the containers as they were before any was paused for it.
    pub fn take(&self, id: &CheckpointId, all: &[Inspect]) -> Result<Elsewhere> {
        let stopped = Stopped::load(&self.state)?;
        let (own, others) = match stopped {
            Some(s) if s.sandbox == self.sandbox => (Some(s), false),
            other => (None, other.is_some()),
        };
        let taken = if others {
            Err(EngineError::Refused {
                why: "it is being brought back to a checkpoint of another sandbox".into(),
                path: None,
                hint: None,
            })
        } else {
            self.take_as(id, all, own.as_ref())
        };
        let missing = match taken {
            Ok(()) => None,
            // what a rewind of everything is taken back by must be there
            Err(e) if own.is_some() => return Err(e),
            Err(e) => Some(e.to_string()),
        };
        if let Some(why) = &missing {
            tracing::warn!("Docker's data is not in this checkpoint: {why}");
        }
        Ok(Elsewhere {
            kind: PartKind::Docker,
            vault: self.record.id.clone(),
            name: shown_path(self.record.root()),
            missing,
        })
    }

    fn take_as(&self, id: &CheckpointId, all: &[Inspect], stopped: Option<&Stopped>) -> Result<()> {
        let home = self.home()?;
        if stopped.is_none() && !self.record.shows(&home)? {
            return Err(EngineError::NotManaged {
                path: self.record.root().to_owned(),
            });
        }
        let running = stopped.map_or_else(|| Ran::of(all), |s| s.ran.clone());
        home.keep(&self.sandbox, id, running)
    }

    /// Removes its share of one checkpoint.
    pub fn drop_one(&self, id: &CheckpointId) -> Result<()> {
        self.home()?.remove(&self.sandbox, id)
    }

    /// Removes its share of those checkpoints of this sandbox for which `gone` says so.
    pub fn remove(&self, gone: &dyn Fn(&CheckpointId) -> bool) -> Result<()> {
        let home = self.home()?;
        for id in home.kept_of(&self.sandbox)? {
            if gone(&id) {
                home.remove(&self.sandbox, &id)?;
            }
        }
        Ok(())
    }

    /// What a rewind of everything to this checkpoint does to each container, and to images and volumes: harmless lines.
    /// An error says why it cannot be done.
    pub fn fates(&self, id: &CheckpointId) -> Result<(Vec<Fate>, Vec<String>)> {
        let home = self.home()?;
        let (set, kept) = home.kept(&self.sandbox, id)?;
        let then = Inventory::of(
            crate::engine::forest::root_of(std::os::fd::AsFd::as_fd(&set))?,
            &self.record.driver,
        );
        let now = Inventory::of(home.live()?, &self.record.driver);
        let runs = |id: &str| kept.running.iter().find(|r| r.id == id);
        let up = |id: &str| match runs(id) {
            Some(r) if r.paused => "is paused, as it was then",
            Some(_) => "is started, as it ran then",
            None => "is stopped, as it was then",
        };
        let mut out = Vec::new();
        for (id, seen) in &now.containers {
            let what = match (then.containers.get(id), seen.auto_remove) {
                (None, _) => "was made since then: it is gone".to_owned(),
                (Some(_), true) => "was started with --rm: it is gone".to_owned(),
                (Some(_), false) => format!("loses what it changed since then, and {}", up(id)),
            };
            out.push(Fate {
                id: id.clone(),
                name: seen.name.clone(),
                what,
            });
        }
        for (id, seen) in then
            .containers
            .iter()
            .filter(|(id, _)| !now.containers.contains_key(*id))
        {
            let what = if seen.auto_remove {
                "was started with --rm: it does not come back".to_owned()
            } else {
                format!("was removed since then: it comes back, and {}", up(id))
            };
            out.push(Fate {
                id: id.clone(),
                name: seen.name.clone(),
                what,
            });
        }
        out.sort_by(|a, b| a.name.cmp(&b.name));
        let mut lines = Vec::new();
        lines.extend(compared("image", &then.tags, &now.tags));
        lines.extend(compared("volume", &then.volumes, &now.volumes));
        let both: Vec<String> = then
            .volumes
            .intersection(&now.volumes)
            .map(|v| shown(v))
            .collect();
        if !both.is_empty() {
            lines.push(format!(
                "volumes lose what was changed in them since then: {}",
                both.join(", ")
            ));
        }
        Ok((out, lines))
    }
}

/// Names that only one of two states has.
fn compared(what: &str, then: &BTreeSet<String>, now: &BTreeSet<String>) -> Vec<String> {
    let list = |names: Vec<&String>| names.into_iter().map(|n| shown(n)).collect::<Vec<_>>().join(", ");
    let (gone, back): (Vec<&String>, Vec<&String>) =
        (now.difference(then).collect(), then.difference(now).collect());
    let mut out = Vec::new();
    if !gone.is_empty() {
        out.push(format!("{what}s that came since then are gone: {}", list(gone)));
    }
    if !back.is_empty() {
        out.push(format!(
            "{what}s that were removed since then come back: {}",
            list(back)
        ));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_one_state_alone_are_told() {
        let set = |names: &[&str]| names.iter().map(|n| (*n).to_owned()).collect::<BTreeSet<_>>();
        assert_eq!(
            compared("image", &set(&["a:1", "b:1"]), &set(&["b:1", "c:1"])),
            [
                "images that came since then are gone: c:1",
                "images that were removed since then come back: a:1"
            ]
        );
        assert!(compared("volume", &set(&["v"]), &set(&["v"])).is_empty());
    }
}
