//! The containers of one sandbox, opened, and their share of a checkpoint.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use super::part::{Part, Shelf};
use super::pause::Paused;
use super::record::ContainerRecord;
use crate::engine::catalog::lock_dir;
use crate::engine::vault::Vault;
use crate::engine::{
    Checkpoint, CheckpointId, CheckpointKind, Elsewhere, EngineError, NewCheckpoint, PartKind, Result,
};
use crate::progress::Silent;
use crate::sandbox::bind;
use crate::sandbox::docker::Engine;
use crate::sandbox::docker::Inspect;
use crate::sandbox::docker::inspect::State as Does;
use crate::sandbox::whole::Keep;
use crate::text::shown;

/// How long another process that takes a checkpoint of the same containers is waited for.
const PATIENCE: Duration = Duration::from_secs(30);

/// The containers of one sandbox.
#[derive(Debug, Clone)]
pub struct Parts {
    records: Vec<ContainerRecord>,
    shelf: Shelf,
    /// The folder of the sandbox.
    dir: PathBuf,
    /// All of Docker's data, while that is in a pool.
    docker: Option<Arc<Keep>>,
}

/// A container of a sandbox as it was found.
pub struct Found {
    /// As it is recorded.
    pub record: ContainerRecord,
    /// The container, or why it cannot be reached, one harmless line.
    pub part: std::result::Result<Part, String>,
}

/// A connection to each engine is made once.
#[derive(Default)]
struct Engines(BTreeMap<String, std::result::Result<Arc<Engine>, String>>);

impl Engines {
    fn at(&mut self, host: &str) -> std::result::Result<Arc<Engine>, String> {
        let connect = || {
            Engine::connect(Some(host))
                .map(Arc::new)
                .map_err(|e| e.to_string())
        };
        self.0.entry(host.to_owned()).or_insert_with(connect).clone()
    }
}

/// What a container's own checkpoint is made of.
fn own(new: &NewCheckpoint, id: &CheckpointId) -> NewCheckpoint {
    NewCheckpoint {
        id: Some(id.clone()),
        label: None,
        like: None,
        elsewhere: Vec::new(),
        ..new.clone()
    }
}

/// Docker's data, for the sandbox whose folder is `dir`, by the state folder that has `mnt` in it.
fn docker(dir: &Path, mnt: &Path) -> Option<Arc<Keep>> {
    Keep::find(mnt.parent()?, dir.file_name()?.to_str()?).map(Arc::new)
}

impl Parts {
    /// Of the sandbox whose folder is `dir`; `mnt`: where file systems are mounted.
    pub fn new(records: Vec<ContainerRecord>, dir: &Path, mnt: &Path) -> Self {
        Self {
            records,
            shelf: Shelf {
                mnt: mnt.to_owned(),
                copies: dir.join("containers"),
            },
            docker: docker(dir, mnt),
            dir: dir.to_owned(),
        }
    }

    /// True if there are none, and Docker's data is in no pool.
    pub fn is_empty(&self) -> bool {
        self.records.is_empty() && self.docker.is_none()
    }

    /// All of Docker's data, while that is in a pool.
    pub fn docker(&self) -> Option<&Keep> {
        self.docker.as_deref()
    }

    /// The records.
    pub fn records(&self) -> &[ContainerRecord] {
        &self.records
    }

    /// Where their checkpoints are kept.
    pub fn shelf(&self) -> &Shelf {
        &self.shelf
    }

    /// Finds and opens all of them.
    pub fn open(&self) -> Vec<Found> {
        let mut engines = Engines::default();
        let each = |record: &ContainerRecord| Found {
            record: record.clone(),
            part: engines
                .at(&record.host)
                .and_then(|engine| Part::open(&self.shelf, &engine, record)),
        };
        self.records.iter().map(each).collect()
    }

    /// Finds and opens one.
    pub fn open_one(&self, part: &str) -> std::result::Result<Part, String> {
        let record = self.records.iter().find(|r| r.part == part);
        let record = record.ok_or("the sandbox has no such container any more")?;
        let engine = Engines::default().at(&record.host)?;
        Part::open(&self.shelf, &engine, record)
    }

    /// The right to add and remove checkpoints of these containers; ends with the value.
    pub(super) fn lock(&self) -> Result<File> {
        let folder = bind::open_folder(&self.dir).map_err(EngineError::io("open", &self.dir))?;
        // a folder of its own: others lock that of the sandbox
        crate::engine::pool::make_folder(&folder, "containers", &self.dir)?;
        let path = self.dir.join("containers");
        let folder = bind::open_folder(&path).map_err(EngineError::io("open", &path))?;
        lock_dir(folder, &path, PATIENCE)
    }

    /// Takes a checkpoint of the workspace and all containers: they are paused meanwhile, those that run. A container
    /// that cannot be reached is named in it, with the reason; before a rewind one that can must be in it.
    pub fn checkpoint(&self, primary: &dyn Vault, new: &NewCheckpoint) -> Result<Checkpoint> {
        let _lock = self.lock()?;
        let found = self.open();
        let mut paused = Paused::default();
        let others = self.others();
        let runs = |f: &&Found| f.part.as_ref().is_ok_and(|p| p.container.state == Does::Running);
        if found.iter().any(|f| runs(&f)) || others.iter().any(|(_, c)| c.state == Does::Running) {
            let ready = paused.prepare();
            ready.map_err(EngineError::io("start the helper for containers of", &self.dir))?;
        }
        // what is written out before they stand still need not be written while they do
        let warm = found
            .iter()
            .filter_map(|f| f.part.as_ref().ok())
            .map(|p| p.vault().warm());
        for e in warm.chain([primary.warm()]).filter_map(std::result::Result::err) {
            tracing::debug!("{e}");
        }
        for part in found.iter().filter(runs).filter_map(|f| f.part.as_ref().ok()) {
            if let Err(why) = paused.pause(&part.engine, &part.container) {
                // one that just ended, or is being started again
                tracing::warn!("the checkpoint is taken while it runs: {why}");
            }
        }
        self.pause_others(&others, &mut paused);
        let id = CheckpointId::random();
        let mut taken: Vec<&Part> = Vec::new();
        let mut done = keep(&found, new, &id, &mut taken).and_then(|mut elsewhere| {
            let all: Vec<Inspect> = others.iter().map(|(_, c)| c.clone()).collect();
            if let Some(docker) = &self.docker {
                elsewhere.push(docker.take(&id, &all)?);
            }
            primary.checkpoint(&NewCheckpoint {
                id: Some(id.clone()),
                elsewhere,
                ..new.clone()
            })
        });
        let (stood, wrong) = paused.resume();
        for why in wrong {
            tracing::warn!("{why}");
        }
        match &mut done {
            Ok(checkpoint) => checkpoint.meta.pause_ms = stood.map(|d| d.as_millis() as u64),
            Err(_) => {
                for part in taken {
                    let removed = part.vault().remove(std::slice::from_ref(&id), &Silent);
                    tracing::debug!(?removed, "took back the checkpoint of a container");
                }
                let removed = self.docker.as_ref().map(|d| d.drop_one(&id));
                tracing::debug!(?removed, "took back the snapshots of Docker's data");
            }
        }
        done
    }
}

impl Parts {
    /// Where all of Docker's data is kept: all containers.
    fn others(&self) -> Vec<(Arc<Engine>, Inspect)> {
        let Some(docker) = &self.docker else {
            return Vec::new();
        };
        let listed = docker.engine().and_then(|engine| {
            let all = engine.all().map_err(|e| e.to_string())?;
            Ok(all.into_iter().map(|c| (Arc::clone(&engine), c)).collect())
        });
        listed.unwrap_or_else(|why| {
            tracing::warn!("which containers run is not known: {why}");
            Vec::new()
        })
    }

    /// Pauses those that run and are not yet paused: all data is of one moment then.
    fn pause_others(&self, others: &[(Arc<Engine>, Inspect)], paused: &mut Paused) {
        let own = |c: &Inspect| self.records.iter().any(|r| r.id == c.id || r.name == c.name);
        for (engine, c) in others {
            if c.state == Does::Running
                && !own(c)
                && let Err(why) = paused.pause(engine, c)
            {
                tracing::warn!("the checkpoint is taken while it runs: {why}");
            }
        }
    }
}

/// The containers' share of a checkpoint.
fn keep<'a>(
    found: &'a [Found],
    new: &NewCheckpoint,
    id: &CheckpointId,
    taken: &mut Vec<&'a Part>,
) -> Result<Vec<Elsewhere>> {
    let mut out = Vec::new();
    for f in found {
        let missing = match &f.part {
            Err(why) => Some(why.clone()),
            Ok(part) => match part.vault().checkpoint(&own(new, id)) {
                Ok(_) => {
                    taken.push(part);
                    None
                }
                Err(e) if new.kind == CheckpointKind::Safety => return Err(e),
                Err(e) => Some(e.to_string()),
            },
        };
        if let Some(why) = &missing {
            let name = shown(&f.record.name);
            tracing::warn!("container {name} is not in this checkpoint: {why}");
        }
        out.push(Elsewhere {
            kind: PartKind::Container,
            vault: f.record.part.clone(),
            name: f.record.name.clone(),
            missing,
        });
    }
    Ok(out)
}
