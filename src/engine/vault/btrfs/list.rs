//! Which checkpoints there are, and whether each can be used.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use chrono::{DateTime, Utc};
use nix::libc;

use super::super::super::catalog::{SandboxDir, names, parse_record, read_xattr};
use super::super::super::subvolume::{open_dir, root_info};
use super::super::super::{
    Checkpoint, CheckpointId, CheckpointKind, CheckpointMeta, EngineError, Health, How, PartKind, Result,
};
use super::{BtrfsVault, CHECKPOINT_XATTR, part_name};

/// All kinds of parts, to see which a checkpoint has.
pub(super) const PARTS: [PartKind; 5] = [
    PartKind::Workspace,
    PartKind::Container,
    PartKind::DockerVolume,
    PartKind::Conversation,
    PartKind::Docker,
];

/// The name of a checkpoint's directory.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::engine::vault) struct Name {
    pub seq: u64,
    pub id: CheckpointId,
}

impl Name {
    pub fn of(meta: &CheckpointMeta) -> Self {
        Self {
            seq: meta.seq,
            id: meta.id.clone(),
        }
    }

    pub fn text(&self) -> String {
        format!("{:08}-{}", self.seq, self.id)
    }

    /// `None` for a directory that is no checkpoint's.
    pub fn read(bytes: &[u8]) -> Option<Self> {
        let (seq, id) = std::str::from_utf8(bytes).ok()?.split_once('-')?;
        let digits = seq.len() >= 8 && seq.bytes().all(|b| b.is_ascii_digit());
        let name = Self {
            seq: seq.parse().ok()?,
            id: CheckpointId(id.to_owned()),
        };
        (digits && CheckpointId::looks_like(id) && name.text().as_bytes() == bytes).then_some(name)
    }

    /// The record in this directory's attribute, or what is wrong with it.
    pub fn parse(&self, value: Option<&[u8]>) -> std::result::Result<CheckpointMeta, String> {
        let meta: CheckpointMeta = parse_record(value)?;
        if meta.id == self.id && meta.seq == self.seq {
            Ok(meta)
        } else {
            Err("its record is that of another checkpoint".into())
        }
    }
}

/// What is found under the name of a part.
enum Found {
    /// A read-only snapshot, and when it was made.
    Snapshot(DateTime<Utc>),
    Nothing,
    /// Something else.
    Other,
}

fn look(dir: &OwnedFd, part: PartKind, path: &Path) -> Result<Found> {
    let fd = match open_dir(dir, part_name(part)) {
        Ok(fd) => fd,
        Err(e) => {
            return match e.raw_os_error() {
                Some(libc::ENOENT) => Ok(Found::Nothing),
                // a file, a link
                Some(libc::ENOTDIR | libc::ELOOP) => Ok(Found::Other),
                _ => Err(EngineError::io("look at", path.join(part_name(part)))(e)),
            };
        }
    };
    let info = root_info(&fd).map_err(EngineError::io("look at", path.join(part_name(part))))?;
    Ok(match info {
        Some(i) if i.read_only => {
            Found::Snapshot(DateTime::from_timestamp(i.otime.0, i.otime.1).unwrap_or_default())
        }
        _ => Found::Other,
    })
}

/// The checkpoints of a sandbox by what their records say, oldest first, without looking at the snapshots: for
/// sandboxes whose live tree is given back. `None` for a record that cannot be read.
pub fn records(sandbox: &SandboxDir) -> Result<Vec<(CheckpointId, Option<CheckpointMeta>)>> {
    let path = sandbox.path().join("snaps");
    let snaps = open_dir(sandbox.fd(), "snaps").map_err(EngineError::io("open", &path))?;
    let mut all: Vec<Name> = names(&snaps, &path)?
        .iter()
        .filter_map(|n| Name::read(n))
        .collect();
    all.sort();
    let read = |name: Name| {
        let value = open_dir(&snaps, name.text()).and_then(|dir| read_xattr(&dir, CHECKPOINT_XATTR));
        let meta = value.ok().and_then(|v| name.parse(v.as_deref()).ok());
        (name.id, meta)
    };
    Ok(all.into_iter().map(read).collect())
}

impl BtrfsVault {
    /// The names of all checkpoints, in order.
    pub(super) fn names(&self) -> Result<Vec<Name>> {
        // its own open directory: the position in a shared one would be shared too
        let again = open_dir(&self.snaps, "").map_err(EngineError::io("open", &self.snaps_path))?;
        let mut all: Vec<Name> = names(&again, &self.snaps_path)?
            .iter()
            .filter_map(|n| Name::read(n))
            .collect();
        all.sort();
        Ok(all)
    }

    /// The newest checkpoint's name, and the time of its record if that can be read.
    pub(super) fn last(&self) -> Result<Option<(Name, Option<DateTime<Utc>>)>> {
        let Some(name) = self.names()?.pop() else {
            return Ok(None);
        };
        let path = self.snaps_path.join(name.text());
        let time = match self.open_checkpoint(&name)? {
            Some(dir) => {
                let value = read_xattr(&dir, CHECKPOINT_XATTR)
                    .map_err(EngineError::io("read the record of", &path))?;
                name.parse(value.as_deref()).ok().map(|m| m.time)
            }
            None => None,
        };
        Ok(Some((name, time)))
    }

    /// Opens a checkpoint's directory; `None` if it was removed meanwhile.
    pub(super) fn open_checkpoint(&self, name: &Name) -> Result<Option<OwnedFd>> {
        match open_dir(&self.snaps, name.text()) {
            Ok(fd) => Ok(Some(fd)),
            Err(e) if e.raw_os_error() == Some(libc::ENOENT) => Ok(None),
            Err(e) => Err(EngineError::io(
                "open the checkpoint",
                self.snaps_path.join(name.text()),
            )(e)),
        }
    }

    /// The directory of a checkpoint by its id.
    pub(super) fn find(&self, id: &CheckpointId) -> Result<(Name, OwnedFd)> {
        let none = || EngineError::NoCheckpoint {
            id: crate::text::shown(id.as_str()),
        };
        let name = self.names()?.into_iter().find(|n| n.id == *id).ok_or_else(none)?;
        let dir = self.open_checkpoint(&name)?.ok_or_else(none)?;
        Ok((name, dir))
    }

    /// All checkpoints, oldest first, damaged and incomplete ones included.
    pub fn checkpoints(&self) -> Result<Vec<Checkpoint>> {
        let mut out = self.list_all()?;
        if out.iter().any(|c| matches!(c.health, Health::Incomplete(_))) {
            // perhaps one is just being made: look again when nobody makes any
            match self.lock() {
                Ok(_lock) => out = self.list_all()?,
                Err(EngineError::Refused { .. }) => {}
                Err(e) => return Err(e),
            }
        }
        Ok(out)
    }

    fn list_all(&self) -> Result<Vec<Checkpoint>> {
        let mut out = Vec::new();
        for name in self.names()? {
            let examined = match self.open_checkpoint(&name) {
                Ok(Some(dir)) => self.examine(&name, &dir),
                Ok(None) => continue,
                Err(e) => Err(e),
            };
            out.push(match examined {
                Ok(checkpoint) => checkpoint,
                // what the disk cannot give must not hide the rest
                Err(e) if unreadable(&e) => Checkpoint {
                    meta: bare(&name, DateTime::default(), Vec::new()),
                    health: Health::Damaged(e.to_string()),
                },
                Err(e) => return Err(e),
            });
        }
        Ok(out)
    }

    /// Reads one checkpoint and says whether it can be used.
    pub(super) fn examine(&self, name: &Name, dir: &OwnedFd) -> Result<Checkpoint> {
        let path = self.snaps_path.join(name.text());
        let value = read_xattr(dir.as_fd(), CHECKPOINT_XATTR)
            .map_err(EngineError::io("read the record of", &path))?;
        let meta = match name.parse(value.as_deref()) {
            Ok(meta) => meta,
            Err(reason) => {
                let meta = rebuilt(name, dir, &path)?;
                // a directory without record and without snapshot was never a checkpoint
                let health = if meta.parts.is_empty() {
                    Health::Incomplete(never_made())
                } else {
                    Health::Damaged(reason)
                };
                return Ok(Checkpoint { meta, health });
            }
        };
        let mut health = Health::Ok;
        let here = |part: &&PartKind| !meta.elsewhere.iter().any(|e| e.kind == **part);
        for part in meta.parts.iter().filter(here) {
            match look(dir, *part, &path)? {
                Found::Snapshot(_) => {}
                Found::Nothing => {
                    health = Health::Incomplete(format!("its {} is missing", part_name(*part)));
                }
                Found::Other => {
                    let what = format!("its {} is no read-only snapshot", part_name(*part));
                    return Ok(Checkpoint {
                        meta,
                        health: Health::Damaged(what),
                    });
                }
            }
        }
        Ok(Checkpoint { meta, health })
    }
}

/// True if the disk, or the file system's structure there, is damaged.
pub(in crate::engine::vault) fn unreadable(e: &EngineError) -> bool {
    let code = match e {
        EngineError::Io { source, .. } => source.raw_os_error(),
        _ => None,
    };
    matches!(code, Some(libc::EIO | libc::EUCLEAN))
}

pub(in crate::engine::vault) fn never_made() -> String {
    "it was interrupted before its snapshot was made".into()
}

/// What can be known of a checkpoint whose record is lost: from its name and its snapshots.
fn rebuilt(name: &Name, dir: &OwnedFd, path: &Path) -> Result<CheckpointMeta> {
    let mut parts = Vec::new();
    let mut time = None;
    for part in PARTS {
        match look(dir, part, path)? {
            Found::Snapshot(made) => {
                parts.push(part);
                time = time.or(Some(made));
            }
            Found::Other => parts.push(part),
            Found::Nothing => {}
        }
    }
    let time = if let Some(time) = time {
        time
    } else {
        let stat = rustix::fs::fstat(dir).map_err(|e| EngineError::io("look at", path)(e.into()))?;
        DateTime::from_timestamp(stat.st_mtime as i64, stat.st_mtime_nsec as u32).unwrap_or_default()
    };
    Ok(bare(name, time, parts))
}

/// A record of which nothing is known but this.
pub(in crate::engine::vault) fn bare(
    name: &Name,
    time: DateTime<Utc>,
    parts: Vec<PartKind>,
) -> CheckpointMeta {
    CheckpointMeta {
        v: 1,
        id: name.id.clone(),
        seq: name.seq,
        kind: CheckpointKind::Manual,
        time,
        parts,
        how: How::Own,
        conversation: None,
        message: None,
        text_hash: None,
        label: None,
        pinned: false,
        late: None,
        operation: None,
        clock_back: false,
        elsewhere: Vec::new(),
        inner: None,
        pause_ms: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_strictly() {
        let n = Name::read(b"00000012-cp-0123456789").expect("a name");
        assert_eq!((n.seq, n.id.as_str()), (12, "cp-0123456789"));
        assert_eq!(n.text(), "00000012-cp-0123456789");
        let big = Name::read(b"123456789-cp-0123456789").expect("a big one");
        assert_eq!(big.seq, 123_456_789);
        for bad in [
            "12-cp-0123456789",
            "00000012-0123456789",
            "00000012-cp-01234",
            "x",
            "",
            "+0000012-cp-0123456789",
            "000000012-cp-0123456789",
        ] {
            assert!(Name::read(bad.as_bytes()).is_none(), "{bad}");
        }
    }
}
