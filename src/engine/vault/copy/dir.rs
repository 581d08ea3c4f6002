//! The folders of the sandboxes whose checkpoints are copies: `<state dir>/copies/<id>/`, each with its record,
//! for their owner alone.

use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};

use crate::durable::replace_file;
use crate::engine::catalog::{Listed, RootId, SandboxRecord, parse_record, valid_id, valid_part};
use crate::engine::changes::node::stat_at;
use crate::engine::{EngineError, Result, random_id};
use crate::process::fault_point;
use crate::text;

/// The name of the folder of all of them in a state folder.
pub const COPIES: &str = "copies";
const RECORD: &str = "record.json";

/// The folder of one sandbox.
#[derive(Debug)]
pub struct CopyDir {
    id: String,
    path: PathBuf,
    /// Held by who makes it, so that nobody takes it for what a crash left.
    claim: File,
}

/// Which folder this is; `None` if it is none.
pub fn root_id(folder: impl std::os::fd::AsFd) -> io::Result<RootId> {
    let st = stat_at(folder.as_fd(), b"")?;
    Ok(RootId {
        ino: st.stx_ino,
        born: (st.stx_btime.tv_sec, st.stx_btime.tv_nsec),
    })
}

/// Writes a file in one step, durably. Others may write it at the same time.
pub(super) fn write_atomic(path: &Path, bytes: &[u8]) -> io::Result<()> {
    replace_file(path, &path.with_file_name(random_id(".new")), bytes)
}

impl CopyDir {
    /// Makes the folder of a new sandbox in `copies` and its record, durably.
    pub fn create(copies: &Path, record: &SandboxRecord) -> Result<Self> {
        let path = copies.join(&record.id);
        let make = |path: &Path| {
            DirBuilder::new()
                .mode(0o700)
                .create(path)
                .map_err(EngineError::io("make", path))
        };
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(copies)
            .map_err(EngineError::io("make", copies))?;
        make(&path)?;
        fault_point("sandbox-made");
        let dir = Self::open(copies, &record.id)?;
        dir.claim()?;
        for folder in ["snaps", "objects"] {
            make(&path.join(folder))?;
        }
        fault_point("sandbox-filled");
        dir.write_record(record)?;
        File::open(copies)
            .and_then(|f| f.sync_all())
            .map_err(EngineError::io("sync", copies))?;
        fault_point("sandbox-recorded");
        Ok(dir)
    }

    /// The folder of another part than a workspace in `all`, made if it is not there.
    pub fn part(all: &Path, id: &str) -> Result<Self> {
        let path = all.join(id);
        if !valid_part(id) {
            return Err(EngineError::NoPath { path });
        }
        for folder in ["snaps", "objects"] {
            let folder = path.join(folder);
            DirBuilder::new()
                .recursive(true)
                .mode(0o700)
                .create(&folder)
                .map_err(EngineError::io("make", &folder))?;
        }
        let claim = File::open(&path).map_err(EngineError::io("open", &path))?;
        Ok(Self {
            id: id.to_owned(),
            path,
            claim,
        })
    }

    /// Opens the folder of a sandbox in `copies`.
    pub fn open(copies: &Path, id: &str) -> Result<Self> {
        let path = copies.join(id);
        if !valid_id(id) {
            return Err(EngineError::Damaged {
                what: "this is no id of a sandbox".into(),
                path: text::shown(id).into(),
            });
        }
        let claim = File::open(&path).map_err(EngineError::io("open", &path))?;
        Ok(Self {
            id: id.to_owned(),
            path,
            claim,
        })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The record. [`EngineError::Damaged`] names the folder.
    pub fn record(&self) -> Result<SandboxRecord> {
        let path = self.path.join(RECORD);
        let damaged = |what: String| EngineError::Damaged {
            what: format!("sandbox {} is damaged, {what}", self.id),
            path: self.path.clone(),
        };
        let bytes = match fs::read(&path) {
            Ok(bytes) => Some(bytes),
            Err(e) if e.kind() == io::ErrorKind::NotFound => None,
            Err(e) => return Err(EngineError::io("read", &path)(e)),
        };
        let record: SandboxRecord = parse_record(bytes.as_deref()).map_err(damaged)?;
        if record.id == self.id {
            Ok(record)
        } else {
            Err(damaged("its record is that of another sandbox".into()))
        }
    }

    /// Writes the record; durable when it returns.
    pub fn write_record(&self, record: &SandboxRecord) -> Result<()> {
        let path = self.path.join(RECORD);
        let bytes = serde_json::to_vec(record).map_err(|e| EngineError::io("write", &path)(e.into()))?;
        write_atomic(&path, &bytes).map_err(EngineError::io("write", &path))
    }

    fn claim(&self) -> Result<bool> {
        match flock(&self.claim, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(true),
            Err(rustix::io::Errno::WOULDBLOCK) => Ok(false),
            Err(e) => Err(EngineError::io("lock", &self.path)(e.into())),
        }
    }

    /// True for what a process left that was killed while it made a sandbox: not tracked, no checkpoint, no
    /// operation, and nobody is at it.
    pub fn is_unmade(&self) -> Result<bool> {
        if self.path.join(RECORD).exists() && self.record().map_or(true, |r| r.tracked) {
            return Ok(false);
        }
        let empty = |folder: &str| {
            fs::read_dir(self.path.join(folder)).map_or(true, |mut entries| entries.next().is_none())
        };
        Ok(empty("snaps") && empty("ops") && self.claim()?)
    }

    /// Removes the sandbox with its checkpoints for good. The caller has asked.
    pub fn destroy(self) -> Result<()> {
        fs::remove_dir_all(&self.path).map_err(EngineError::io("remove", &self.path))
    }
}

/// All sandboxes in `copies`, sorted by id, damaged ones included. None where the folder is not there, or
/// belongs to somebody else.
pub fn list_copies(copies: &Path) -> Result<Vec<Listed>> {
    let entries = match fs::read_dir(copies) {
        Ok(entries) => entries,
        Err(e)
            if matches!(
                e.kind(),
                io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied
            ) =>
        {
            return Ok(Vec::new());
        }
        Err(e) => return Err(EngineError::io("list", copies)(e)),
    };
    let mut out = Vec::new();
    for entry in entries {
        let name = entry.map_err(EngineError::io("list", copies))?.file_name();
        let Some(id) = name.to_str().filter(|id| valid_id(id)) else {
            continue;
        };
        let record = match CopyDir::open(copies, id) {
            Ok(dir) => dir.record().map_err(|e| e.to_string()),
            // removed meanwhile
            Err(_) => continue,
        };
        out.push(Listed {
            id: id.to_owned(),
            record,
            live_uuid: None,
        });
    }
    out.sort_by(|a, b| a.id.cmp(&b.id));
    Ok(out)
}
