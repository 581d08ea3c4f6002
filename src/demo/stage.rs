//! The scratch sandbox of the demo: a folder with a workspace, a conversation's store and a state folder of
//! its own, on a pool of its own; all of it gone at the end.

use std::fs;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use chrono::{Local, TimeDelta};
use rustix::fs::{FlockOperation, flock};

use super::recording::{Recording, Turn};
use super::store::Until;
use super::{DemoError, Result, digest, replay};
use crate::conversation::Library;
use crate::engine::catalog;
use crate::engine::pool::Pool;
use crate::engine::{CheckpointKind, EngineError, How, NewCheckpoint, Result as EngineResult, image};
use crate::paths::Env;
use crate::progress::Progress;
use crate::rewind::adopt::shows;
use crate::rewind::copies::{copy_plan, track_copy};
use crate::rewind::track::{track, track_plan};
use crate::sandbox::bind;
use crate::sandbox::registry::Registry;
use crate::sandbox::site::Site;
use crate::timeline::desk::Desk;

/// The size of the scratch pool; the file is sparse and takes a few megabytes.
const POOL_BYTES: u64 = 1 << 30;
/// The turns are shown as this far apart.
const TURN_MINUTES: i64 = 7;
/// How scratch folders are called.
const PREFIX: &str = "respool-demo-";
/// The file in it that is locked as long as the demo runs.
const LOCK: &str = "lock";

/// Who keeps the checkpoints of the scratch sandbox.
#[derive(Clone)]
pub enum Keeper {
    /// A pool of its own; needs root.
    Pool,
    /// They are copies; needs nothing.
    Copies,
    /// The service, for a user who is not root.
    Service(Arc<dyn Helper>),
}

/// Does what needs root, where this process may not.
pub trait Helper: Send + Sync {
    /// The sandboxes of this state folder.
    fn registry(&self, state: &Path) -> EngineResult<Registry>;
    /// Puts a folder under respool.
    fn track(&self, registry: &Registry, dir: &Path) -> EngineResult<()>;
    /// Gives it back, with no checkpoint kept. `state` is gone after it.
    fn clear(&self, registry: &Registry, dir: &Path) -> EngineResult<()>;
}

/// The scratch sandbox.
pub struct Stage {
    root: PathBuf,
    keep: bool,
    keeper: Keeper,
    /// The recording.
    pub recording: Recording,
    /// The workspace.
    pub workspace: PathBuf,
    /// The conversation's store.
    pub store: PathBuf,
    registry: Registry,
    _lock: fs::File,
}

/// Removes what demos that were killed left in the temporary folder: those of this user whose lock is free.
fn sweep() {
    let own = rustix::process::geteuid().as_raw();
    let entries = fs::read_dir(std::env::temp_dir())
        .into_iter()
        .flatten()
        .filter_map(std::result::Result::ok);
    for path in entries.map(|e| e.path()).filter(|p| {
        p.file_name()
            .is_some_and(|n| n.as_encoded_bytes().starts_with(PREFIX.as_bytes()))
    }) {
        let ours = fs::symlink_metadata(&path).is_ok_and(|m| m.is_dir() && m.uid() == own);
        let Ok(lock) = fs::File::open(path.join(LOCK)) else {
            continue;
        };
        if ours
            && flock(&lock, FlockOperation::NonBlockingLockExclusive).is_ok()
            && let Err(e) = clear(&path, &Registry::new(&path.join("state"), true), false)
        {
            tracing::warn!("what an earlier demo left in {} stays: {e}", path.display());
        }
    }
}

impl Stage {
    /// Makes the folder and the workspace's initial state. In `dir` (made if it is not there), or in the
    /// temporary folder.
    pub fn set(dir: Option<&Path>, keep: bool, keeper: Keeper) -> Result<Self> {
        let recording = Recording::load()?;
        let root = match dir {
            Some(dir) => {
                let made = fs::DirBuilder::new().mode(0o700).create(dir);
                made.map_err(DemoError::io("make the new folder", dir))?;
                dir.canonicalize().map_err(DemoError::io("find", dir))?
            }
            None => {
                sweep();
                tempfile::Builder::new()
                    .prefix(PREFIX)
                    .permissions(fs::Permissions::from_mode(0o700))
                    .tempdir()
                    .map_err(DemoError::io("make a folder in", &std::env::temp_dir()))?
                    .keep()
            }
        };
        let root = root.canonicalize().map_err(DemoError::io("find", &root))?;
        let lock = root.join(LOCK);
        let lock = fs::File::create(&lock).map_err(DemoError::io("make", &lock))?;
        flock(&lock, FlockOperation::NonBlockingLockExclusive).map_err(DemoError::io("lock", &root))?;
        let state = root.join("state");
        let registry = match &keeper {
            Keeper::Service(helper) => {
                fs::create_dir(&state).map_err(DemoError::io("make", &state))?;
                helper.registry(&state)?
            }
            Keeper::Pool | Keeper::Copies => Registry::new(&state, true),
        };
        let stage = Self {
            workspace: root.join(&recording.project),
            store: root
                .join("conversations")
                .join(recording.conversation.replace('-', "")),
            registry,
            root,
            keep,
            keeper,
            recording,
            _lock: lock,
        };
        fs::create_dir(&stage.workspace).map_err(DemoError::io("make", &stage.workspace))?;
        stage.apply(&stage.recording.initial)?;
        Ok(stage)
    }

    fn apply(&self, ops: &[super::recording::Op]) -> Result<()> {
        let folder = bind::open_folder(&self.workspace).map_err(DemoError::io("open", &self.workspace))?;
        replay::apply(ops, std::os::fd::AsFd::as_fd(&folder))
    }

    /// The digest of the workspace as it is.
    pub fn digest(&self) -> Result<String> {
        let folder = bind::open_folder(&self.workspace).map_err(DemoError::io("open", &self.workspace))?;
        digest::digest(std::os::fd::AsFd::as_fd(&folder))
    }

    /// Puts the workspace under respool, on a new pool or with copies.
    pub fn track(&self, progress: &dyn Progress) -> Result<()> {
        self.registry.prepare()?;
        if let Keeper::Service(helper) = &self.keeper {
            return Ok(helper.track(&self.registry, &self.workspace)?);
        }
        if matches!(self.keeper, Keeper::Copies) {
            let copies = self.registry.copies();
            let plan = copy_plan(&self.workspace, &copies, self.registry.settings(), progress)?;
            track_copy(&copies, &plan, self.registry.settings(), progress)?;
            return Ok(());
        }
        let file = self.registry.default_image();
        image::create(&file, POOL_BYTES, false)?;
        let pool = self.registry.open_image(&file)?;
        let plan = track_plan(&self.workspace, Some(&file), progress)?;
        track(&pool, &plan, progress)?;
        Ok(())
    }

    /// The sandbox.
    pub fn site(&self) -> Result<Site> {
        let none = || EngineError::NotManaged {
            path: self.workspace.clone(),
        };
        Ok(self.registry.find(&self.workspace)?.ok_or_else(none)?)
    }

    /// Plays one turn: the user's own changes, the checkpoint of the message, the message, what the agent
    /// did, the checkpoint of the end.
    pub fn play(&self, site: &Site, turn: &Turn) -> Result<()> {
        let after = self.recording.turns.len() as i64 - i64::from(turn.number);
        let now = Local::now() - TimeDelta::minutes(1 + after * TURN_MINUTES);
        self.apply(&turn.before)?;
        let mut new = NewCheckpoint::of(CheckpointKind::Message, How::Own);
        new.conversation = Some(self.recording.conversation.clone());
        new.message = Some(turn.id.clone());
        site.checkpoint(&new)?;
        self.recording
            .play_events(turn, Until::Message, &self.store, &self.workspace, now)?;
        self.apply(&turn.ops)?;
        self.recording
            .play_events(turn, Until::TurnEnd, &self.store, &self.workspace, now)?;
        new.kind = CheckpointKind::TurnEnd;
        site.checkpoint(&new)?;
        Ok(())
    }

    /// A desk that knows this sandbox and this conversation only.
    pub fn desk(&self) -> Desk {
        let roots = crate::conversation::Roots {
            home: self.root.clone(),
            env: Env::new(),
            cwd: self.workspace.clone(),
        };
        Desk::new(Library::new(roots), self.registry.clone())
    }

    /// The state folder of the scratch sandbox.
    pub fn state_dir(&self) -> &Path {
        self.registry.state_dir()
    }

    /// The folder that holds all of it.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Unmounts everything and removes the folder, unless it is to be kept.
    pub fn clear(&self) -> Result<()> {
        if let Keeper::Service(helper) = &self.keeper
            && !self.keep
        {
            helper.clear(&self.registry, &self.workspace)?;
        }
        clear(&self.root, &self.registry, self.keep)
    }
}

fn clear(root: &Path, registry: &Registry, keep: bool) -> Result<()> {
    let image = registry.default_image();
    if image.exists() {
        let pool = Pool::open_image(&image, &registry.mnt_dir())?;
        for record in catalog::list_sandboxes(&pool)?
            .into_iter()
            .filter_map(|l| l.record.ok())
        {
            while shows(&record) {
                // a shell that stands in it does not hold the demo up
                bind::unmount(&record.path, true).map_err(EngineError::io("unmount", &record.path))?;
            }
            if let Ok(folder) = bind::open_folder(&record.path)
                && !keep
            {
                bind::unseal(&folder).map_err(EngineError::io("unseal", &record.path))?;
            }
        }
        pool.unmount()?;
    }
    if keep {
        // what has no lock file is not what a killed demo left: the next demo leaves it
        let lock = root.join(LOCK);
        fs::remove_file(&lock).map_err(DemoError::io("remove", &lock))?;
    } else {
        fs::remove_dir_all(root).map_err(DemoError::io("remove", root))?;
    }
    Ok(())
}
