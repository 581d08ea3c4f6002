//! What the user's config says of sandboxes, the user's commands before a checkpoint and after a rewind, and
//! what a workspace sets for itself.

use std::ffi::OsStr;
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use super::bind;
use super::site::Site;
use crate::config::Config;
use crate::config::project::Project;
use crate::config::run::UserHooks;
use crate::engine::{CheckpointId, CheckpointKind};
use crate::paths::Who;
use crate::patterns::Patterns;
use crate::text::shown;

/// The agent waits meanwhile.
const BEFORE: Duration = Duration::from_secs(5);
const AFTER: Duration = Duration::from_secs(60);

/// What the user's config says of sandboxes; nothing by default.
#[derive(Debug, Clone, Default)]
pub struct Settings {
    /// What copies take although `exclude` leaves it out.
    pub include: Vec<String>,
    /// What copies leave out.
    pub exclude: Vec<String>,
    hooks: Option<Arc<UserHooks>>,
}

impl Settings {
    /// Those of the config of this user.
    pub fn of(config: &Config, who: &Who) -> Self {
        Self {
            include: config.sandbox.include.clone(),
            exclude: config.sandbox.exclude.clone(),
            hooks: Some(Arc::new(UserHooks::of(config, who))),
        }
    }

    /// What copies of this workspace leave out. What the user wants taken is, whatever the workspace says.
    pub fn patterns(&self, project: &Project) -> Patterns {
        let lists = [
            (&self.exclude, false),
            (&project.exclude, false),
            (&project.include, true),
            (&self.include, true),
        ];
        let all = lists
            .into_iter()
            .flat_map(|(list, taken)| list.iter().map(move |p| (p.as_str(), taken)));
        Patterns::new(all)
    }
}

/// What the workspace at this path sets for itself; nothing where it cannot be read.
pub fn project_at(path: &Path) -> Project {
    bind::open_folder(path).map_or_else(|_| Project::default(), |root| Project::read(root.as_fd()))
}

impl Site {
    /// What the workspace sets for itself; nothing where it cannot be read.
    pub fn project(&self) -> Project {
        project_at(self.path())
    }

    /// Runs the user's `pre_checkpoint` before a checkpoint of this kind, unless it is one that respool takes
    /// for itself. It failed: a line that says so; the checkpoint is taken all the same. Call it before the
    /// sandbox is locked.
    pub fn before_checkpoint(&self, kind: CheckpointKind) -> Option<String> {
        let kind = match kind {
            CheckpointKind::Message => "message",
            CheckpointKind::TurnEnd => "turn-end",
            CheckpointKind::Manual => "manual",
            CheckpointKind::Safety | CheckpointKind::Start => return None,
        };
        let words = &self.settings.hooks.as_ref()?.pre_checkpoint;
        self.hook(
            "pre_checkpoint",
            words,
            &[("RESPOOL_KIND", OsStr::new(kind))],
            BEFORE,
        )
    }

    /// Runs the user's `post_rewind` after an operation brought the files to `target` and that was checked. It
    /// failed: a line that says so. Call it when the sandbox is no longer locked.
    pub fn after_rewind(&self, operation: &str, target: &CheckpointId) -> Option<String> {
        let variables = [
            ("RESPOOL_OPERATION", OsStr::new(operation)),
            ("RESPOOL_CHECKPOINT", OsStr::new(target.as_str())),
        ];
        let words = &self.settings.hooks.as_ref()?.post_rewind;
        self.hook("post_rewind", words, &variables, AFTER)
    }

    fn hook(
        &self,
        name: &str,
        words: &[String],
        variables: &[(&str, &OsStr)],
        limit: Duration,
    ) -> Option<String> {
        let program = words.first()?;
        let mut all = vec![("RESPOOL_WORKSPACE", self.path().as_os_str())];
        all.extend(variables);
        let ran = self.settings.hooks.as_ref()?.run(words, self.path(), &all, limit);
        ran.err().map(|why| format!("{name} ({}) {why}", shown(program)))
    }
}
