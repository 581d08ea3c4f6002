//! What is known of Docker's data in a pool: one file of the state folder, which is also the journal of bringing it
//! there and back; and a second one while containers and daemon are stopped for a rewind.

use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::pin::Pin;
use super::recipe::Recipe;
use crate::durable::replace_file;
use crate::engine::catalog::Stub;
use crate::engine::{EngineError, Result};
use crate::sandbox::docker::Inspect;
use crate::sandbox::docker::inspect::State;
use crate::sandbox::registry::PoolEntry;
use crate::text::ExactPath;

const FILE: &str = "docker.json";
const STOPPED: &str = "docker-stopped.json";

/// How far it has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Phase {
    /// On the way in: the daemon is being stopped, its data copied.
    Copying,
    /// Settings and folder are being exchanged.
    Switching,
    /// The pool is shown; the daemon is coming up on it.
    Starting,
    /// The data is in the pool.
    On,
    /// On the way out: the daemon is being stopped, its data copied.
    Returning,
    /// The copy is whole and takes its place.
    GivingBack,
    /// What is no longer needed is being removed.
    Cleaning,
}

/// A container that lived when it had to be stopped.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ran {
    /// Its full id.
    pub id: String,
    /// Its name (hostile).
    pub name: String,
    /// It was paused.
    #[serde(default)]
    pub paused: bool,
}

impl Ran {
    /// Those of these containers that live.
    pub fn of(all: &[Inspect]) -> Vec<Self> {
        let live = all.iter().filter(|c| c.state.lives());
        live.map(|c| Self {
            id: c.id.clone(),
            name: c.name.clone(),
            paused: c.state == State::Paused,
        })
        .collect()
    }
}

/// Docker's data in a pool.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// Version.
    pub v: u32,
    /// Its id, `dk-` and ten characters.
    pub id: String,
    /// How far it has come.
    pub phase: Phase,
    /// The pool.
    pub pool: PoolEntry,
    /// Where the engine listens.
    pub host: String,
    /// The folder of its data, the same before and after.
    pub data_root: ExactPath,
    /// Something is mounted there already: what was in it is set aside inside of it, not beside it.
    pub inner: bool,
    /// So many mounts are at that very path without the pool's.
    pub mounts: usize,
    /// The emptied folder below the mount.
    pub stub: Option<Stub>,
    /// The storage driver.
    pub driver: String,
    /// The edit of the daemon's settings, where one was needed.
    pub pin: Option<Pin>,
    /// How the daemon is started.
    pub recipe: Recipe,
    /// The containers that live, while it is not on.
    pub ran: Vec<Ran>,
    /// What must be there afterwards as before.
    pub before: Vec<String>,
}

/// What was stopped for a rewind of everything.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stopped {
    /// The sandbox whose rewind it is.
    pub sandbox: String,
    /// The containers that lived.
    pub ran: Vec<Ran>,
    /// Those that are to live afterwards, once the data was exchanged.
    pub wanted: Option<Vec<Ran>>,
}

/// What a file of a state folder says; nothing where there is none, or its owner is another user.
fn read<T: DeserializeOwned>(path: &Path) -> Result<Option<T>> {
    use std::io::ErrorKind::{NotFound, PermissionDenied};
    let bytes = match crate::paths::read_file(path) {
        Ok(bytes) => bytes,
        Err(e) if matches!(e.kind(), NotFound | PermissionDenied) => return Ok(None),
        Err(e) => return Err(EngineError::io("read", path)(e)),
    };
    serde_json::from_slice(&bytes)
        .map(Some)
        .map_err(|e| EngineError::Damaged {
            what: format!(
                "what is known of Docker's data cannot be read ({})",
                crate::text::shown(&e.to_string())
            ),
            path: path.to_owned(),
        })
}

fn write<T: Serialize>(path: &Path, value: &T) -> Result<()> {
    let bytes = serde_json::to_vec_pretty(value).map_err(|e| EngineError::io("write", path)(e.into()))?;
    replace_file(path, &path.with_extension("new"), &bytes).map_err(EngineError::io("write", path))
}

fn remove(path: &Path) -> Result<()> {
    match std::fs::remove_file(path) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(EngineError::io("remove", path)(e)),
        _ => Ok(()),
    }
}

impl Record {
    /// That of a state folder; nothing where its owner is another user.
    pub fn load(state: &Path) -> Result<Option<Self>> {
        read(&state.join(FILE))
    }

    /// Writes it, durably.
    pub fn save(&self, state: &Path) -> Result<()> {
        write(&state.join(FILE), self)
    }

    /// Moves it to a phase, durably.
    pub fn advance(&mut self, state: &Path, phase: Phase) -> Result<()> {
        self.phase = phase;
        self.save(state)
    }

    /// Removes it.
    pub fn forget(state: &Path) -> Result<()> {
        remove(&state.join(FILE))
    }

    /// The folder of the data.
    pub fn root(&self) -> &Path {
        &self.data_root.0
    }

    /// Where the daemon's output goes that went to no file before.
    pub fn log(state: &Path) -> PathBuf {
        state.join("dockerd.log")
    }
}

impl Stopped {
    /// That of a state folder.
    pub fn load(state: &Path) -> Result<Option<Self>> {
        read(&state.join(STOPPED))
    }

    /// Writes it, durably.
    pub fn save(&self, state: &Path) -> Result<()> {
        write(&state.join(STOPPED), self)
    }

    /// Removes it.
    pub fn forget(state: &Path) -> Result<()> {
        remove(&state.join(STOPPED))
    }
}
