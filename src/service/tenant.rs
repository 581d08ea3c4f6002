//! Which state a request is about. Without `--state-dir` it is the service's own. A state folder that an ordinary user
//! names is kept in a folder of the service's, one for each user and name: no path of the user's is written to as root.
//! What is in it was made for that user alone, who may also remove it.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::peer::Peer;
use crate::sandbox::registry::Registry;

/// The folder of users' states, in the service's own state folder.
const USERS: &str = "users";
/// The name that the user gave it.
const ORIGIN: &str = "origin";

/// The state that a connection works on.
#[derive(Clone)]
pub struct Realm {
    /// Its sandboxes.
    pub registry: Registry,
    /// Its folder.
    pub dir: PathBuf,
    /// It is one user's own.
    pub own: bool,
    /// The name that the user gave it.
    origin: Option<PathBuf>,
}

impl Realm {
    /// The realm of a peer that named this state folder, or none. `state`: the service's own state folder.
    pub fn of(peer: &Peer, state: &Registry, named: Option<&Path>) -> Self {
        let dir = match named {
            Some(named) if named != state.state_dir() => named,
            _ => {
                return Self {
                    registry: state.clone(),
                    dir: state.state_dir().to_owned(),
                    own: false,
                    origin: None,
                };
            }
        };
        let place = if peer.uid == 0 {
            dir.to_owned()
        } else {
            let name = blake3::hash(dir.as_os_str().as_bytes()).to_hex();
            let users = state.state_dir().join(USERS).join(peer.uid.to_string());
            users.join(&name.as_str()[..32])
        };
        Self {
            registry: Registry::new(&place, true),
            dir: place,
            own: peer.uid != 0,
            origin: Some(dir.to_owned()),
        }
    }

    /// Of a process that works for its own user alone: what it may do it may do itself.
    pub fn mine(registry: Registry) -> Self {
        Self {
            dir: registry.state_dir().to_owned(),
            registry,
            own: false,
            origin: None,
        }
    }

    /// Makes its folder, before something is put there.
    pub fn prepare(&self) -> io::Result<()> {
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&self.dir)?;
        let Some(origin) = self.origin.as_ref().filter(|_| self.own) else {
            return Ok(());
        };
        let path = self.dir.join(ORIGIN);
        let mut file = fs::OpenOptions::new();
        let mut file = file
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(path)?;
        file.write_all(origin.as_os_str().as_bytes())
    }

    /// While it is held, nothing of this realm is swept: a command works there.
    pub fn hold(&self) -> Held {
        *held().entry(self.dir.clone()).or_default() += 1;
        Held(self.dir.clone())
    }

    /// Removes it, if it is a user's own and nothing is tracked or mounted in it, and the folder that it stands for
    /// is no more. Called when a user is done with it. Its image may have the only copy of what is tracked: one that
    /// cannot be looked into is kept.
    pub fn sweep(&self) -> io::Result<bool> {
        let Some(origin) = self.origin.as_ref().filter(|_| self.own) else {
            return Ok(false);
        };
        let held = held();
        // a home may be a disk that is not there now, or one that root may not enter
        let gone = origin
            .symlink_metadata()
            .is_err_and(|e| e.kind() == io::ErrorKind::NotFound);
        if !gone || held.contains_key(&self.dir) || mounted_below(&self.dir)? || !self.dir.exists() {
            return Ok(false);
        }
        if !self.unused() || mounted_below(&self.dir)? {
            return Ok(false);
        }
        remove(&self.dir)?;
        Ok(true)
    }

    /// True if its pools could be looked into and nothing is tracked there. They are unmounted afterwards.
    fn unused(&self) -> bool {
        let Ok(census) = self.registry.all() else {
            return false;
        };
        let free = census.trouble.is_empty()
            && census.copies.is_empty()
            && census
                .sandboxes
                .iter()
                .all(|(_, listed)| listed.record.as_ref().is_ok_and(|r| !r.tracked));
        let mut unmounted = true;
        for pool in census.pools {
            unmounted &= pool.unmount().is_ok();
        }
        free && unmounted
    }
}

/// See [`Realm::hold`].
pub struct Held(PathBuf);

impl Drop for Held {
    fn drop(&mut self) {
        let mut held = held();
        if let Some(count) = held.get_mut(&self.0) {
            *count -= 1;
        }
        held.retain(|_, count| *count > 0);
    }
}

/// The realms in which commands work now.
fn held() -> MutexGuard<'static, BTreeMap<PathBuf, usize>> {
    static HELD: Mutex<BTreeMap<PathBuf, usize>> = Mutex::new(BTreeMap::new());
    HELD.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Removes the folder of a realm. It never goes down into what may be mounted there meanwhile.
fn remove(dir: &Path) -> io::Result<()> {
    let mut folders = Vec::new();
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            folders.push(entry.path());
        } else {
            fs::remove_file(entry.path())?;
        }
    }
    for folder in folders {
        for point in fs::read_dir(&folder)? {
            fs::remove_dir(point?.path())?;
        }
        fs::remove_dir(folder)?;
    }
    fs::remove_dir(dir)
}

fn mounted_below(dir: &Path) -> io::Result<bool> {
    let all = crate::engine::mounts::list().map_err(io::Error::other)?;
    Ok(all.iter().any(|m| m.point.starts_with(dir)))
}

/// The name that its user gave this state; none if it is no user's.
pub fn origin(dir: &Path) -> Option<PathBuf> {
    let bytes = fs::read(dir.join(ORIGIN)).ok()?;
    Some(PathBuf::from(std::ffi::OsStr::from_bytes(&bytes)))
}

/// The folders of all users' states.
pub fn all_of(state: &Registry) -> Vec<PathBuf> {
    let users = state.state_dir().join(USERS);
    let dirs = |path: &Path| -> Vec<PathBuf> {
        let entries = fs::read_dir(path).into_iter().flatten();
        entries.filter_map(|e| Some(e.ok()?.path())).collect()
    };
    dirs(&users).iter().flat_map(|user| dirs(user)).collect()
}

/// Removes the states of all users whose own folder is gone and of which nothing is mounted.
pub fn sweep_all(state: &Registry) {
    for dir in all_of(state) {
        let Ok(bytes) = fs::read(dir.join(ORIGIN)) else {
            continue;
        };
        let realm = Realm {
            registry: Registry::new(&dir, true),
            origin: Some(PathBuf::from(std::ffi::OsStr::from_bytes(&bytes))),
            own: true,
            dir,
        };
        if let Err(e) = realm.sweep() {
            tracing::warn!("{}: {e}", realm.dir.display());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(uid: u32) -> Peer {
        Peer {
            pid: 1,
            start: 1,
            uid,
            groups: vec![],
            handle: None,
        }
    }

    #[test]
    fn a_users_state_folder_is_never_written_to_as_root() {
        let dir = tempfile::tempdir().expect("tempdir");
        let state = Registry::new(&dir.path().join("state"), true);
        let named = dir.path().join("mine");
        let realm = Realm::of(&peer(1000), &state, Some(&named));
        assert!(realm.own && realm.dir.starts_with(state.state_dir()));
        assert_ne!(realm.dir, Realm::of(&peer(1001), &state, Some(&named)).dir);
        assert_eq!(Realm::of(&peer(0), &state, Some(&named)).dir, named);
        assert_eq!(Realm::of(&peer(1000), &state, None).dir, state.state_dir());
        fs::create_dir(&named).expect("named");
        realm.prepare().expect("made");
        assert!(!realm.sweep().expect("kept while the folder is there"));
        fs::remove_dir(&named).expect("gone");
        sweep_all(&state);
        assert!(!realm.dir.exists());
    }
}
