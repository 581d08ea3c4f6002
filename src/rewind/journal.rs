//! The operation log and the journal: one file an operation, written whole and made durable before each
//! step that it announces. An operation that is not closed and whose lock is free was cut short.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use chrono::{DateTime, Utc};
use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};

use super::error::{Result, RewindError};
use super::{Operation, OperationKind, OperationState};
use crate::durable::replace_file;
use crate::engine::{CheckpointId, Selection, random_id};
use crate::sandbox::parts::Turn;
use crate::text::ExactPath;

/// How far an operation has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Phase {
    /// Announced; nothing was changed yet.
    Planned,
    /// The safety checkpoint exists; the tree is being changed (track: content is being copied).
    Applying,
    /// The files are done and checked, the writers go on; the conversation is being moved.
    Chat,
    /// Track and untrack: the folder is being exchanged.
    Switching,
    /// Track and untrack: what is no longer needed is being removed.
    Cleaning,
    /// It failed; the tree is being put back.
    RollingBack,
    /// Over.
    Closed,
}

/// The record of one operation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// Version.
    pub v: u32,
    /// Its id.
    pub id: String,
    /// Its place in the log.
    pub seq: u64,
    /// What is done.
    pub kind: OperationKind,
    /// When it began.
    pub time: DateTime<Utc>,
    /// How far it came.
    pub phase: Phase,
    /// Done, undone, rolled back; `interrupted` while it is not closed.
    pub state: OperationState,
    /// The target in words.
    #[serde(default)]
    pub words: Option<String>,
    /// The target.
    #[serde(default)]
    pub target: Option<CheckpointId>,
    /// The safety checkpoint.
    #[serde(default)]
    pub safety: Option<CheckpointId>,
    /// The paths covered; `None` = all.
    #[serde(default)]
    pub paths: Option<Vec<ExactPath>>,
    /// Undo and redo: the operation that it takes back.
    #[serde(default)]
    pub of: Option<String>,
    /// What the conversation was and is to be; what stands in it belongs to the room `chat`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chat: Option<serde_json::Value>,
    /// Track and untrack: the folder beside that holds the content meanwhile: path, file system id, inode.
    #[serde(default)]
    pub aside: Option<(ExactPath, u64, u64)>,
    /// Track: the folder whose content was set aside, and that gets it back: file system id, inode.
    #[serde(default)]
    pub folder: Option<(u64, u64)>,
    /// Why it failed.
    #[serde(default)]
    pub error: Option<String>,
    /// The containers that go through it, as they were before.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub containers: Vec<Turn>,
}

impl Record {
    /// A new record, not yet in a log.
    pub fn new(kind: OperationKind) -> Self {
        Self {
            v: 1,
            id: random_id("op"),
            seq: 0,
            kind,
            time: Utc::now(),
            phase: Phase::Planned,
            state: OperationState::Interrupted,
            words: None,
            target: None,
            safety: None,
            paths: None,
            of: None,
            chat: None,
            aside: None,
            folder: None,
            error: None,
            containers: Vec::new(),
        }
    }

    /// What it covers.
    pub fn selection(&self) -> Selection {
        match &self.paths {
            None => Selection::All,
            Some(paths) => Selection::Paths(paths.iter().map(|p| p.0.clone()).collect()),
        }
    }

    /// Remembers what it covers.
    pub fn set_selection(&mut self, selection: &Selection) {
        self.paths = match selection {
            Selection::All => None,
            Selection::Paths(p) => Some(p.iter().cloned().map(ExactPath).collect()),
        };
    }

    /// The entry as users see it.
    pub fn operation(&self) -> Operation {
        Operation {
            id: self.id.clone(),
            kind: self.kind,
            time: self.time,
            message: self.words.clone(),
            state: self.state,
            safety: self.safety.clone(),
            target: self.target.clone(),
        }
    }
}

/// The operation log of a sandbox: a folder.
#[derive(Debug, Clone)]
pub struct Log {
    dir: PathBuf,
}

/// The lock of a sandbox: held while its state is being changed. Freed when it is dropped or its holder dies.
#[derive(Debug)]
pub struct Lock {
    _file: File,
}

fn failed(what: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> RewindError {
    let path = path.to_owned();
    move |source| RewindError::Log { what, path, source }
}

impl Log {
    /// The log in `sandbox_dir` (a folder that the agent cannot reach); made if it is not there.
    pub fn open(sandbox_dir: &Path) -> Result<Self> {
        let dir = sandbox_dir.join("ops");
        match fs::create_dir(&dir) {
            Err(e) if e.kind() != std::io::ErrorKind::AlreadyExists => Err(failed("make", &dir)(e)),
            _ => Ok(Self { dir }),
        }
    }

    /// The lock file beside it.
    fn lock_path(&self) -> PathBuf {
        self.dir.with_file_name("lock")
    }

    /// Takes the lock, waiting up to `patience`. `what` is named when it is busy.
    pub fn lock(&self, what: &Path, patience: Duration) -> Result<Lock> {
        let path = self.lock_path();
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(&path)
            .map_err(failed("open", &path))?;
        let until = Instant::now() + patience;
        while flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
            if Instant::now() >= until {
                let mut holder = String::new();
                let read = file.read_to_string(&mut holder).is_ok();
                let holder = if read {
                    holder.trim().to_owned()
                } else {
                    String::new()
                };
                return Err(RewindError::Busy {
                    path: what.to_owned(),
                    holder,
                });
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        // only told to those who wait: a full pool must not hinder what makes room
        let told = file
            .set_len(0)
            .and_then(|()| file.rewind())
            .and_then(|()| write!(file, "{}", std::process::id()));
        if let Err(e) = told {
            tracing::debug!("{}: {e}", path.display());
        }
        Ok(Lock { _file: file })
    }

    /// True while somebody holds the lock.
    pub fn busy(&self) -> bool {
        File::open(self.lock_path()).is_ok_and(|f| flock(&f, FlockOperation::NonBlockingLockShared).is_err())
    }

    fn path_of(&self, record: &Record) -> PathBuf {
        self.dir.join(format!("{:08}-{}.json", record.seq, record.id))
    }

    /// Adds a new operation as the newest. The caller holds the lock.
    pub fn begin(&self, record: &mut Record) -> Result<()> {
        record.seq = self.records()?.last().map_or(0, |r| r.seq) + 1;
        self.write(record)
    }

    /// Writes the record, durably: a temporary file, fsync, rename, fsync of the folder.
    pub fn write(&self, record: &Record) -> Result<()> {
        let path = self.path_of(record);
        let temp = path.with_extension("tmp");
        let bytes = serde_json::to_vec(record).map_err(|e| failed("write", &path)(e.into()))?;
        replace_file(&path, &temp, &bytes).map_err(failed("write", &path))
    }

    /// Moves the record to a phase, durably.
    pub fn advance(&self, record: &mut Record, phase: Phase) -> Result<()> {
        record.phase = phase;
        self.write(record)
    }

    /// Closes the record in a state, durably.
    pub fn close(&self, record: &mut Record, state: OperationState) -> Result<()> {
        record.phase = Phase::Closed;
        record.state = state;
        self.write(record)
    }

    /// All entries, oldest first. A damaged file is left out here; [`Log::damaged`] names it.
    pub fn records(&self) -> Result<Vec<Record>> {
        Ok(self.read_all()?.0)
    }

    /// The files that cannot be read.
    pub fn damaged(&self) -> Result<Vec<RewindError>> {
        Ok(self.read_all()?.1)
    }

    fn read_all(&self) -> Result<(Vec<Record>, Vec<RewindError>)> {
        let (mut records, mut damaged): (Vec<Record>, _) = (Vec::new(), Vec::new());
        for entry in fs::read_dir(&self.dir).map_err(failed("read", &self.dir))? {
            let path = entry.map_err(failed("read", &self.dir))?.path();
            if path.extension().is_none_or(|e| e != "json") {
                continue;
            }
            let bytes = fs::read(&path).map_err(failed("read", &path))?;
            match serde_json::from_slice(&bytes) {
                Ok(r) => records.push(r),
                Err(e) => damaged.push(RewindError::DamagedLog {
                    path,
                    reason: e.to_string(),
                }),
            }
        }
        records.sort_by_key(|r| r.seq);
        Ok((records, damaged))
    }

    /// The operation that was cut short, if there is one.
    pub fn interrupted(&self) -> Result<Option<Record>> {
        Ok(self
            .records()?
            .into_iter()
            .rev()
            .find(|r| r.phase != Phase::Closed))
    }
}

impl Log {
    /// Refuses if an operation was cut short. The caller holds the lock, so nobody is at it.
    pub fn none_interrupted(&self) -> Result<()> {
        match self.interrupted()? {
            None => Ok(()),
            Some(r) => Err(RewindError::Refused {
                why: format!("operation {} was interrupted", r.id),
                path: None,
                hint: Some("run: respool recover".into()),
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_survive_and_damaged_ones_are_named() {
        let dir = tempfile::tempdir().expect("tempdir");
        let log = Log::open(dir.path()).expect("open");
        let mut a = Record::new(OperationKind::Rewind);
        log.begin(&mut a).expect("begin");
        assert_eq!(log.interrupted().expect("read").map(|r| r.id), Some(a.id.clone()));
        log.close(&mut a, OperationState::Done).expect("close");
        let mut b = Record::new(OperationKind::Undo);
        log.begin(&mut b).expect("begin");
        assert_eq!((a.seq, b.seq), (1, 2));
        fs::write(dir.path().join("ops/00000009-op-x.json"), b"\0\0").expect("write");
        let log = Log::open(dir.path()).expect("again");
        assert_eq!(log.records().expect("records"), vec![a, b]);
        assert_eq!(log.damaged().expect("damaged").len(), 1);
    }

    #[test]
    fn the_lock_excludes() {
        let dir = tempfile::tempdir().expect("tempdir");
        let log = Log::open(dir.path()).expect("open");
        let lock = log.lock(dir.path(), Duration::ZERO).expect("first");
        assert!(log.busy());
        let e = log.lock(dir.path(), Duration::ZERO).expect_err("second");
        assert!(
            matches!(&e, RewindError::Busy { holder, .. } if *holder == std::process::id().to_string()),
            "{e}"
        );
        drop(lock);
        assert!(!log.busy());
        log.lock(dir.path(), Duration::ZERO).expect("free again");
    }
}
