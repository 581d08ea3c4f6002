//! Taking a checkpoint for an agent: never while an operation is changing the tree.

use std::path::Path;
use std::time::Duration;

use crate::engine::{Checkpoint, CheckpointId, EngineError, NewCheckpoint};
use crate::failure::{Explain, Kind};
use crate::sandbox::quiet::{self, NotQuiet};
use crate::sandbox::registry::Registry;
use crate::sandbox::site::Site;
use crate::text::shell_word;

/// Why there is no checkpoint.
#[derive(Debug, thiserror::Error)]
pub enum TakeError {
    /// An operation is in the way.
    #[error(transparent)]
    NotQuiet(#[from] NotQuiet),
    /// The engine.
    #[error(transparent)]
    Engine(#[from] EngineError),
}

impl TakeError {
    fn inner(&self) -> &dyn Explain {
        match self {
            Self::NotQuiet(e) => e,
            Self::Engine(e) => e,
        }
    }
}

impl Explain for TakeError {
    fn kind(&self) -> Kind {
        self.inner().kind()
    }
    fn path(&self) -> Option<&Path> {
        self.inner().path()
    }
    fn hint(&self) -> Option<String> {
        self.inner().hint()
    }
}

/// The command that goes back to a checkpoint, for logs: it works in any folder.
pub fn restore_command(registry: &Registry, checkpoint: &CheckpointId, sandbox: &str) -> String {
    let state = registry
        .named()
        .map_or_else(String::new, |dir| format!(" --state-dir {}", shell_word(dir)));
    format!(
        "respool{state} rewind {checkpoint} -s {}",
        shell_word(Path::new(sandbox))
    )
}

/// How long an operation that is under way is waited for: a message that comes meanwhile gets its checkpoint
/// right after.
const PATIENCE: Duration = Duration::from_secs(10);

/// Takes a checkpoint of the sandbox as it is now; operations wait for its end.
pub fn take(site: &Site, new: &NewCheckpoint) -> Result<Checkpoint, TakeError> {
    let here = site.remote().is_none();
    if here {
        // first what its own message explains best: a pool that cannot be written
        site.vault.guard()?;
    }
    if let Some(warning) = site.before_checkpoint(new.kind) {
        tracing::warn!("{warning}");
    }
    if !here {
        // the service asks the same, and waits for operations, too
        return Ok(site.checkpoint(new)?);
    }
    let _quiet = quiet::enter(site.dir()?, PATIENCE)?;
    Ok(site.checkpoint(new)?)
}
