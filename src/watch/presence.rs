//! Whether a watcher is at work for a sandbox: a lock file in the state folder, held as long as it lives. (Not in
//! the sandbox's own folder: an open file there would keep the pool from being unmounted.)

use std::fs::{DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::PathBuf;

use rustix::fs::{FlockOperation, flock};

use crate::sandbox::registry::Registry;

/// Tells that a watcher is at work, until it is dropped or its process ends.
#[derive(Debug)]
pub(super) struct Presence {
    _file: File,
}

fn path(registry: &Registry, sandbox: &str) -> PathBuf {
    registry.state_dir().join("watch").join(format!("{sandbox}.lock"))
}

/// Tells that this process watches the workspace of a sandbox. Several may.
pub(super) fn announce(registry: &Registry, sandbox: &str) -> io::Result<Presence> {
    let path = path(registry, sandbox);
    if let Some(folder) = path.parent() {
        DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    }
    let mut options = OpenOptions::new();
    let file = options
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600);
    let file = file.open(&path)?;
    flock(&file, FlockOperation::NonBlockingLockShared)?;
    Ok(Presence { _file: file })
}

/// True if a watcher follows every conversation in the workspace of this sandbox now.
pub fn is_watched(registry: &Registry, sandbox: &str) -> bool {
    let Ok(file) = File::open(path(registry, sandbox)) else {
        return false;
    };
    matches!(
        flock(&file, FlockOperation::NonBlockingLockExclusive),
        Err(rustix::io::Errno::WOULDBLOCK)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_watcher_is_seen_as_long_as_it_lives() {
        let dir = tempfile::tempdir().expect("tempdir");
        let registry = Registry::new(&dir.path().join("state"), true);
        assert!(!is_watched(&registry, "sb-x"));
        let first = announce(&registry, "sb-x").expect("first");
        let second = announce(&registry, "sb-x").expect("second");
        assert!(is_watched(&registry, "sb-x") && !is_watched(&registry, "sb-y"));
        drop(first);
        assert!(is_watched(&registry, "sb-x"));
        drop(second);
        assert!(!is_watched(&registry, "sb-x"));
    }
}
