//! A sandbox behind the service: the same questions, asked over a line. What is asked and answered is plain
//! data; the room `service` carries it and answers it.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::inside::Recorded;
use super::registry::Earlier;
use crate::engine::catalog::SandboxRecord;
use crate::engine::vault::Vault;
use crate::engine::{
    Change, Checkpoint, CheckpointId, Content, Difference, EngineError, Entry, NewCheckpoint, Reader,
    Restored, Result, Selection, State,
};
use crate::failure::{Kind, Report};
use crate::progress::{Progress, Silent};
use crate::text;

/// What is asked about one sandbox.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Ask {
    /// All checkpoints: a list of [`Checkpoint`].
    Checkpoints,
    /// Sets or clears a label.
    Label(CheckpointId, String),
    /// Pins or unpins.
    Pin(CheckpointId, bool),
    /// Records how late a checkpoint was.
    Late(CheckpointId, u64),
    /// Whether there is room to write.
    Guard,
    /// Nested subvolumes and mounts: a list of paths.
    NotCovered,
    /// As far as this checkpoint is concerned: a list of paths.
    NotCoveredBy(CheckpointId),
    /// What patterns leave out: a list of paths.
    LeftOut,
    /// A change list; `true`: with times.
    Changes(State, State, bool),
    /// The content of one path, up to so many bytes.
    Read(State, #[serde(with = "text::exact")] PathBuf, u64),
    /// The entries of one folder.
    Entries(State, #[serde(with = "text::exact")] PathBuf),
    /// See [`Vault::untouched`].
    Untouched(CheckpointId, CheckpointId, #[serde(with = "text::exact")] PathBuf),
    /// See [`Vault::denied`].
    Denied(CheckpointId, Selection),
    /// Starts writing dirty data out.
    Warm,
    /// Takes a checkpoint for an agent: waits for an operation that is under way.
    Take(NewCheckpoint),
    /// What will become of its containers in a rewind to this checkpoint; without one, in a checkpoint: a list of
    /// [`super::parts::outlook::Outlook`].
    Outlook(Option<CheckpointId>),
    /// The packages of its containers that differ between two states: a summary of the room `packages`.
    Packages(State, State),
    /// Who holds files in it.
    Holders,
    /// What is remembered of messages without a checkpoint, and whether an operation is open.
    Notes,
    /// Remembers why a message has no checkpoint: its id, the reason.
    Missed(String, String),
    /// Records a child of who asks as an agent.
    Agent(Recorded),
    /// The numbers of these pairs, where they are known.
    Known(Vec<(CheckpointId, CheckpointId)>),
    /// The numbers of this pair; counted where they are not known.
    Counts(CheckpointId, CheckpointId),
    /// Returns once the checkpoints or the log changed, or after half a minute.
    Wait,
    /// The log and what writes to it; what stands in it belongs to the room `rewind`.
    Operate(Value),
}

impl Ask {
    /// True if the files, or what is kept of them, may change by it.
    pub fn writes(&self) -> bool {
        matches!(
            self,
            Self::Label(..)
                | Self::Pin(..)
                | Self::Late(..)
                | Self::Take(_)
                | Self::Missed(..)
                | Self::Agent(_)
                | Self::Operate(_)
        )
    }
}

/// What is asked of the service.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Request {
    /// The sandbox that covers a path: a [`SandboxRecord`] or nothing.
    Find(#[serde(with = "text::exact")] PathBuf),
    /// The sandbox with this id: a [`SandboxRecord`] or nothing.
    ById(String),
    /// Sandboxes that the path was in before: a list of [`Earlier`].
    Earlier(#[serde(with = "text::exact")] PathBuf),
    /// About one sandbox, by its id.
    Of(String, Ask),
    /// A command that is done on the other side; what stands in it belongs to the room `service`.
    Manage(Value),
    /// Conversations of the other side; what stands in it belongs to the room `service`.
    Library(Value),
}

/// A line to the service.
pub trait Line: Send + Sync {
    /// Asks, and waits for the answer. Progress and cancelling go over the line, too.
    fn call(&self, request: &Request, progress: &dyn Progress) -> Result<Value>;
    /// True if the service is on another machine.
    fn far(&self) -> bool {
        false
    }
}

/// The value as what it must be.
pub fn typed<T: DeserializeOwned>(value: Value) -> Result<T> {
    serde_json::from_value(value).map_err(|e| {
        EngineError::Remote(Report {
            kind: Kind::Failed,
            message: format!("the service's answer cannot be understood: {e}"),
            path: None,
            hint: Some("it may be of another version: restart it".into()),
        })
    })
}

/// The sandbox that covers a path, as the service sees it.
pub fn find(line: &dyn Line, path: &Path) -> Result<Option<SandboxRecord>> {
    typed(line.call(&Request::Find(path.to_owned()), &Silent)?)
}

/// A sandbox by its id.
pub fn by_id(line: &dyn Line, id: &str) -> Result<Option<SandboxRecord>> {
    typed(line.call(&Request::ById(id.to_owned()), &Silent)?)
}

/// The sandboxes that a path was in before.
pub fn earlier(line: &dyn Line, path: &Path) -> Result<Vec<Earlier>> {
    typed(line.call(&Request::Earlier(path.to_owned()), &Silent)?)
}

/// One sandbox at the other end of a line.
#[derive(Clone)]
pub struct Remote {
    line: Arc<dyn Line>,
    sandbox: String,
    kind: &'static str,
}

impl Remote {
    /// The sandbox of this record.
    pub fn new(line: &Arc<dyn Line>, record: &SandboxRecord) -> Self {
        Self {
            line: Arc::clone(line),
            sandbox: record.id.clone(),
            kind: if record.place == crate::engine::catalog::Place::Copy {
                "copy"
            } else {
                "btrfs"
            },
        }
    }

    /// Asks about it.
    pub fn ask(&self, ask: Ask, progress: &dyn Progress) -> Result<Value> {
        self.line.call(&Request::Of(self.sandbox.clone(), ask), progress)
    }

    /// Asks what is quick.
    pub fn get<T: DeserializeOwned>(&self, ask: Ask) -> Result<T> {
        typed(self.ask(ask, &Silent)?)
    }

    fn paths(&self, ask: Ask) -> Result<Vec<PathBuf>> {
        let paths: Vec<text::ExactPath> = self.get(ask)?;
        Ok(paths.into_iter().map(|p| p.0).collect())
    }

    fn not_here<T>(what: &str) -> Result<T> {
        Err(EngineError::Refused {
            why: format!("{what} is done by the service as a whole"),
            path: None,
            hint: None,
        })
    }
}

impl Vault for Remote {
    fn kind(&self) -> &'static str {
        self.kind
    }

    fn checkpoint(&self, new: &NewCheckpoint) -> Result<Checkpoint> {
        self.get(Ask::Take(new.clone()))
    }

    fn checkpoints(&self) -> Result<Vec<Checkpoint>> {
        self.get(Ask::Checkpoints)
    }

    fn label(&self, id: &CheckpointId, label: &str) -> Result<()> {
        self.get(Ask::Label(id.clone(), label.to_owned()))
    }

    fn pin(&self, id: &CheckpointId, pinned: bool) -> Result<()> {
        self.get(Ask::Pin(id.clone(), pinned))
    }

    fn mark_late(&self, id: &CheckpointId, paths: u64) -> Result<()> {
        self.get(Ask::Late(id.clone(), paths))
    }

    fn guard(&self) -> Result<()> {
        self.get(Ask::Guard)
    }

    fn used(&self) -> Result<u64> {
        Self::not_here("measuring the pool")
    }

    fn sweep(&self) -> Result<()> {
        // the service sweeps when it recovers
        Ok(())
    }

    fn not_covered(&self) -> Result<Vec<PathBuf>> {
        self.paths(Ask::NotCovered)
    }

    fn not_covered_by(&self, id: &CheckpointId) -> Result<Vec<PathBuf>> {
        self.paths(Ask::NotCoveredBy(id.clone()))
    }

    fn left_out(&self) -> Result<Vec<PathBuf>> {
        self.paths(Ask::LeftOut)
    }

    fn remove(&self, _ids: &[CheckpointId], _progress: &dyn Progress) -> Result<()> {
        Self::not_here("removing checkpoints")
    }

    fn changes(&self, a: &State, b: &State, times: bool, progress: &dyn Progress) -> Result<Vec<Change>> {
        typed(self.ask(Ask::Changes(a.clone(), b.clone(), times), progress)?)
    }

    fn read(&self, state: &State, path: &Path, limit: u64) -> Result<Content> {
        self.get(Ask::Read(state.clone(), path.to_owned(), limit))
    }

    fn entries(&self, state: &State, path: &Path) -> Result<Vec<Entry>> {
        self.get(Ask::Entries(state.clone(), path.to_owned()))
    }

    fn read_for(&self, _reader: &Reader, _state: &State, _path: &Path, _limit: u64) -> Result<Content> {
        Self::not_here("reading for another user")
    }

    fn entries_for(&self, _reader: &Reader, _state: &State, _path: &Path) -> Result<Vec<Entry>> {
        Self::not_here("reading for another user")
    }

    fn untouched(&self, a: &CheckpointId, b: &CheckpointId, path: &Path) -> Result<bool> {
        self.get(Ask::Untouched(a.clone(), b.clone(), path.to_owned()))
    }

    fn restore(
        &self,
        _from: &State,
        _target: &CheckpointId,
        _selection: &Selection,
        _progress: &dyn Progress,
    ) -> Result<Restored> {
        Self::not_here("a restore")
    }

    fn denied(
        &self,
        target: &CheckpointId,
        selection: &Selection,
        progress: &dyn Progress,
    ) -> Result<Vec<Difference>> {
        typed(self.ask(Ask::Denied(target.clone(), selection.clone()), progress)?)
    }

    fn verify(
        &self,
        _target: &CheckpointId,
        _selection: &Selection,
        _progress: &dyn Progress,
    ) -> Result<Vec<Difference>> {
        Self::not_here("the check after a restore")
    }

    fn warm(&self) -> Result<()> {
        self.get(Ask::Warm)
    }
}
