//! Whether an operation is changing the tree of a sandbox now. A checkpoint taken meanwhile would keep a
//! state that never was. Reads the log and the lock that the room `rewind` writes, in the sandbox's folder.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};
use serde::Deserialize;

use crate::failure::{Explain, Kind};
use crate::process;
use crate::text::{shown, shown_path};

/// How often the lock is tried while somebody holds it.
const HELD: Duration = Duration::from_millis(1);
/// The same while a conversation is moved: that takes the lock itself, and must find it free.
const MOVING: Duration = Duration::from_millis(20);

/// Why no checkpoint can be taken now.
#[derive(Debug, thiserror::Error)]
pub enum NotQuiet {
    /// An operation changes the tree.
    #[error("{} {} is under way", article(kind), shown(kind))]
    UnderWay {
        /// `rewind`, `undo`, ...
        kind: String,
    },
    /// An operation was cut short.
    #[error("{} {} was interrupted: run respool recover", article(kind), shown(kind))]
    Interrupted {
        /// `rewind`, `undo`, ...
        kind: String,
    },
    /// The lock or the log cannot be read.
    #[error("cannot read {}: {source}", shown_path(path))]
    Io {
        /// The path.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
}

fn article(kind: &str) -> &'static str {
    if kind.starts_with(['a', 'e', 'i', 'o', 'u']) {
        "an"
    } else {
        "a"
    }
}

impl Explain for NotQuiet {
    fn kind(&self) -> Kind {
        match self {
            Self::UnderWay { .. } | Self::Interrupted { .. } => Kind::Refused,
            Self::Io { .. } => Kind::Failed,
        }
    }
    fn path(&self) -> Option<&Path> {
        match self {
            Self::Io { path, .. } => Some(path),
            _ => None,
        }
    }
    fn hint(&self) -> Option<String> {
        match self {
            Self::Io { source, .. } => crate::engine::error::io_hint(source),
            _ => None,
        }
    }
}

/// No operation begins while it lives.
#[derive(Debug)]
pub struct Quiet {
    _lock: File,
}

/// The fields of a log entry that matter here.
#[derive(Deserialize)]
struct Entry {
    phase: String,
    kind: String,
    #[serde(default)]
    mover: Option<(i32, u64)>,
}

impl Entry {
    /// The files are done, and a program that lives moves the conversation; it need not hold the lock.
    fn moving(&self) -> bool {
        self.phase == "chat" && self.mover.is_some_and(|(pid, start)| process::alive(pid, start))
    }
}

fn io_at(path: &Path) -> impl FnOnce(io::Error) -> NotQuiet + '_ {
    move |source| NotQuiet::Io {
        path: path.to_owned(),
        source,
    }
}

/// The newest operation, if it is not closed. None can begin before the one before it is closed,
/// so no other needs to be read.
fn open_operation(dir: &Path) -> Result<Option<Entry>, NotQuiet> {
    let ops = dir.join("ops");
    let entries = match fs::read_dir(&ops) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        other => other.map_err(io_at(&ops))?,
    };
    let newest = entries
        .filter_map(Result::ok)
        .map(|e| e.file_name())
        .filter(|n| Path::new(n).extension().is_some_and(|x| x == "json"))
        .max();
    let Some(name) = newest else { return Ok(None) };
    let path = ops.join(name);
    let bytes = fs::read(&path).map_err(io_at(&path))?;
    // one that cannot be read is named by the commands that write
    let entry = serde_json::from_slice::<Entry>(&bytes).ok();
    Ok(entry.filter(|e| e.phase != "closed"))
}

fn try_lock(path: &Path, file: &File) -> Result<bool, NotQuiet> {
    match flock(file, FlockOperation::NonBlockingLockShared) {
        Ok(()) => Ok(true),
        Err(rustix::io::Errno::WOULDBLOCK) => Ok(false),
        Err(e) => Err(io_at(path)(e.into())),
    }
}

/// Takes the right to take a checkpoint in the sandbox with this folder; operations wait for its end. One
/// that is under way is waited for as long as `patience`.
pub fn enter(dir: &Path, patience: Duration) -> Result<Quiet, NotQuiet> {
    let path = dir.join("lock");
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(&path)
        .map_err(io_at(&path))?;
    let start = Instant::now();
    loop {
        let free = try_lock(&path, &file)?;
        let kind = match (open_operation(dir)?, free) {
            (None, true) => return Ok(Quiet { _lock: file }),
            (Some(e), true) if !e.moving() => return Err(NotQuiet::Interrupted { kind: e.kind }),
            (Some(e), _) => e.kind,
            (None, false) => "command that writes".into(),
        };
        if start.elapsed() >= patience {
            return Err(NotQuiet::UnderWay { kind });
        }
        // whoever moves a conversation takes the lock again at the end
        flock(&file, FlockOperation::Unlock).map_err(|e| io_at(&path)(e.into()))?;
        std::thread::sleep(if free { MOVING } else { HELD });
    }
}

/// Whether an operation is under way or was cut short; waits for nothing.
pub fn look(dir: &Path) -> Result<(), NotQuiet> {
    let Some(entry) = open_operation(dir)? else {
        return Ok(());
    };
    let path = dir.join("lock");
    let free = match File::open(&path) {
        Ok(file) => try_lock(&path, &file)?,
        Err(_) => true,
    };
    let moving = entry.moving();
    let kind = entry.kind;
    Err(if free && !moving {
        NotQuiet::Interrupted { kind }
    } else {
        NotQuiet::UnderWay { kind }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_are_told_from_quiet() {
        let dir = tempfile::tempdir().expect("tempdir");
        let entry = |n: u32, phase: &str, kind: &str| {
            fs::create_dir_all(dir.path().join("ops")).expect("ops");
            let text = format!(r#"{{"v":1,"phase":"{phase}","kind":"{kind}"}}"#);
            fs::write(dir.path().join(format!("ops/{n:08}-op-x.json")), text).expect("entry");
        };
        let said = || {
            enter(dir.path(), Duration::ZERO)
                .map(|_| ())
                .map_err(|e| e.to_string())
        };
        assert_eq!(said(), Ok(()));
        entry(1, "applying", "rewind");
        assert_eq!(
            said(),
            Err("a rewind was interrupted: run respool recover".into())
        );
        let held = File::open(dir.path().join("lock")).expect("lock");
        flock(&held, FlockOperation::LockExclusive).expect("held");
        assert_eq!(said(), Err("a rewind is under way".into()));
        assert!(matches!(look(dir.path()), Err(NotQuiet::UnderWay { .. })));
        drop(held);
        entry(2, "closed", "undo");
        let inside = enter(dir.path(), Duration::ZERO).expect("quiet");
        // several may take checkpoints at once, and no operation begins meanwhile
        let second = enter(dir.path(), Duration::ZERO).expect("quiet");
        let other = File::open(dir.path().join("lock")).expect("lock");
        assert!(flock(&other, FlockOperation::NonBlockingLockExclusive).is_err());
        drop((inside, second));
        flock(&other, FlockOperation::NonBlockingLockExclusive).expect("free");
        entry(3, "planned", "undo");
        assert_eq!(said(), Err("an undo is under way".into()));
        drop(other);
        // its conversation is moved, by a program that lives; then that is gone
        let own = std::process::id() as i32;
        let start = process::stat(own).expect("stat").start;
        let held = |start: u64| {
            let text = format!(r#"{{"v":1,"phase":"chat","kind":"undo","mover":[{own},{start}]}}"#);
            fs::write(dir.path().join("ops/00000004-op-x.json"), text).expect("entry");
        };
        held(start);
        assert_eq!(said(), Err("an undo is under way".into()));
        assert!(matches!(look(dir.path()), Err(NotQuiet::UnderWay { .. })));
        held(start + 1);
        assert_eq!(said(), Err("an undo was interrupted: run respool recover".into()));
    }
}
