//! The desk at which conversations and sandboxes meet: what the command line, the TUI and the watcher ask.

use std::path::Path;
use std::time::{Duration, Instant};

use super::counts::{Known, Tally};
use super::join::{self, Background};
use super::kin::{self, Kin};
use super::notes::{Notes, notes};
use super::{Row, Timeline};
use crate::conversation::{Conversation, ConversationError, Found, Library, Message};
use crate::engine::{Change, Checkpoint, CheckpointId, EngineError};
use crate::progress::Progress;
use crate::sandbox::mapped::on_this_machine;
use crate::sandbox::registry::{Earlier, Registry};
use crate::sandbox::site::Site;

/// Conversations and sandboxes.
pub struct Desk {
    /// The conversations.
    pub library: Library,
    /// The sandboxes.
    pub registry: Registry,
    counts: Known,
    kin: Kin,
}

/// A conversation that was read, its sandbox if there is one, and the two joined.
pub struct Opened {
    /// The conversation.
    pub conversation: Conversation,
    /// Its sandbox.
    pub site: Option<Site>,
    /// Sandboxes that its workspace was in before, the newest first, where that was asked: if there is no
    /// sandbox now, or messages are older than it.
    pub earlier: Vec<Earlier>,
    /// All checkpoints of the sandbox, oldest first.
    pub checkpoints: Vec<Checkpoint>,
    /// Joined.
    pub timeline: Timeline,
}

impl Desk {
    /// A desk.
    pub fn new(library: Library, registry: Registry) -> Self {
        Self {
            library,
            registry,
            counts: Known::default(),
            kin: Kin::default(),
        }
    }

    /// Reads a conversation and joins it. A sandbox that cannot be opened is a notice, not a failure: the
    /// messages can still be read. Use [`Desk::site`] where the sandbox is needed.
    pub fn open(&self, found: &Found, progress: &dyn Progress) -> Result<Opened, ConversationError> {
        let conversation = found.0.read(&found.1, progress)?;
        Ok(self.join(conversation, found))
    }

    /// As [`Desk::open`], of a conversation that the user says works in this folder: it counts where the store names
    /// none.
    pub fn open_in(
        &self,
        found: &Found,
        workspace: &Path,
        progress: &dyn Progress,
    ) -> Result<Opened, ConversationError> {
        let mut conversation = found.0.read(&found.1, progress)?;
        let own = &mut conversation.summary.workspace;
        own.get_or_insert_with(|| workspace.to_owned());
        Ok(self.join(conversation, found))
    }

    /// The newest messages alone, quickly.
    pub fn tail(&self, found: &Found, rows: usize) -> Result<Opened, ConversationError> {
        Ok(self.join(found.0.tail(&found.1, rows)?, found))
    }

    /// Joins a conversation that was read from this store.
    fn join(&self, conversation: Conversation, found: &Found) -> Opened {
        let mut notices = conversation.notices.clone();
        let site = match self.site_of(&conversation) {
            Ok(site) => site,
            Err(e) => {
                notices.push(format!("no checkpoints can be shown: {e}"));
                None
            }
        };
        let listed = site.as_ref().map(|s| s.vault.checkpoints());
        let checkpoints = match listed {
            Some(Ok(list)) => Some(list),
            Some(Err(e)) => {
                notices.push(format!("the checkpoints cannot be listed: {e}"));
                None
            }
            None => None,
        };
        let notes = match site.as_ref().map(notes) {
            Some(Ok(notes)) => notes,
            Some(Err(e)) => {
                notices.push(e.to_string());
                Notes::default()
            }
            None => Notes::default(),
        };
        notices.extend(notes.interrupted);
        if site.is_none() && self.registry.hidden().is_some() {
            notices.push(HIDDEN.into());
        }
        let tracked_since = site.as_ref().map(|s| s.record.created);
        let older = |m: &Message| m.time.is_none_or(|t| tracked_since.is_none_or(|since| t < since));
        let earlier = match &conversation.summary.workspace {
            Some(w) if w.is_absolute() && conversation.messages.iter().any(older) => self.registry.earlier(w),
            _ => Vec::new(),
        };
        let listed = checkpoints.as_deref().filter(|c| !c.is_empty());
        let kin = listed.map_or_else(Vec::new, |_| self.kin.of(found, &notes.anew));
        let background = Background {
            kin: kin::taken(&kin, listed.unwrap_or_default(), &notes.thinned),
            tracked_since,
            earlier: earlier.clone(),
            thinned: notes.thinned,
            missed: notes.missed,
        };
        let mut rows = join::rows(&conversation, checkpoints.as_deref(), &background);
        if !conversation.partial {
            kin::add(&mut rows, &kin, listed.unwrap_or_default(), &background);
        }
        let timeline = Timeline {
            rows,
            sandbox: site.as_ref().map(|s| s.record.id.clone()),
            at_work: conversation.at_work,
            partial: conversation.partial,
            conversation: conversation.summary.clone(),
            notices,
        };
        Opened {
            conversation,
            site,
            earlier,
            checkpoints: checkpoints.unwrap_or_default(),
            timeline,
        }
    }

    /// By its workspace; where that is a path inside a container, by what the sandboxes heard of it, or where the engine
    /// says that the path is on this machine.
    fn site_of(&self, conversation: &Conversation) -> Result<Option<Site>, EngineError> {
        let workspace = conversation
            .summary
            .workspace
            .as_deref()
            .filter(|w| w.is_absolute());
        if let Some(site) = workspace.map_or(Ok(None), |w| self.registry.find(w))? {
            return Ok(Some(site));
        }
        let inside = conversation.summary.agent == "openhands" && workspace.is_none_or(|w| !w.exists());
        if !inside {
            return Ok(None);
        }
        let id = &conversation.summary.id;
        if let Some(site) = self.registry.of_conversation(id)? {
            return Ok(Some(site));
        }
        match workspace.and_then(|w| on_this_machine(id, w)) {
            Some(real) => self.registry.find(&real),
            None => Ok(None),
        }
    }

    /// The sandbox of a conversation, or why it cannot be used.
    pub fn site(&self, conversation: &Conversation) -> Result<Site, EngineError> {
        if let Some(site) = self.site_of(conversation)? {
            return Ok(site);
        }
        let workspace = conversation.summary.workspace.clone().unwrap_or_default();
        self.site_at(&workspace)
    }

    /// The sandbox that covers a path, or why there is none.
    pub fn site_at(&self, path: &Path) -> Result<Site, EngineError> {
        let untracked = || EngineError::Refused {
            why: format!("{} is not tracked", crate::text::shown_path(path)),
            path: Some(path.to_owned()),
            hint: Some(format!(
                "track it first: sudo respool track {}",
                crate::text::shell_word(path)
            )),
        };
        let found = self.registry.find(path)?;
        found.ok_or_else(|| self.registry.hidden().unwrap_or_else(untracked))
    }

    /// The agent of the newest conversation of a folder; `openhands` where there is none.
    pub fn agent_of(&self, folder: &Path) -> &'static str {
        let newest = self.library.newest_of(folder);
        newest.map_or("openhands", |(source, _)| source.agent())
    }

    /// Counts the changes of each row's turn and of the stretch after it, where both ends are known, the
    /// newest rows first. Lists between two checkpoints never change, so the numbers are kept; what was not
    /// counted before is counted for as long as `patience`. The number of rows that are left.
    pub fn count(
        &self,
        site: &Site,
        rows: &mut [Row],
        patience: Duration,
        progress: &dyn Progress,
    ) -> Result<usize, EngineError> {
        let start = Instant::now();
        let mut left = 0;
        let spans = spans(rows);
        let pairs = spans.iter().flat_map(|s| [s.turn.clone(), s.between.clone()]);
        self.counts.fetch(site, pairs.flatten())?;
        for (row, span) in rows.iter_mut().zip(spans).rev() {
            if progress.cancelled() {
                return Err(EngineError::Cancelled);
            }
            let mut count = |pair: Option<(CheckpointId, CheckpointId)>| match pair {
                None => Ok(None),
                Some((a, b)) if start.elapsed() < patience => self.counted(site, &a, &b, progress).map(Some),
                Some((a, b)) => {
                    let known = self.known(site, &a, &b);
                    left += usize::from(known.is_none());
                    Ok(known)
                }
            };
            let turn = count(span.turn)?;
            row.changes = turn.as_ref().map(|t| t.counts);
            row.packages = turn.and_then(|t| t.packages);
            row.between = count(span.between)?.map(|t| t.counts);
        }
        Ok(left)
    }

    /// The numbers of the list from one checkpoint to another.
    pub fn counted(
        &self,
        site: &Site,
        a: &CheckpointId,
        b: &CheckpointId,
        progress: &dyn Progress,
    ) -> Result<Tally, EngineError> {
        self.counts.counted(site, &(a.clone(), b.clone()), progress)
    }

    /// The numbers of the list from one checkpoint to another, if they were counted before.
    pub fn known(&self, site: &Site, a: &CheckpointId, b: &CheckpointId) -> Option<Tally> {
        self.counts.get(site, &(a.clone(), b.clone()))
    }

    /// The list from one checkpoint to another. Its numbers are kept.
    pub fn listed(
        &self,
        site: &Site,
        a: &CheckpointId,
        b: &CheckpointId,
        progress: &dyn Progress,
    ) -> Result<Vec<Change>, EngineError> {
        self.counts.listed(site, &(a.clone(), b.clone()), progress)
    }
}

/// The two stretches of a row.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Span {
    /// The turn: from the message's checkpoint to its end.
    pub turn: Option<(CheckpointId, CheckpointId)>,
    /// From there to the next message.
    pub between: Option<(CheckpointId, CheckpointId)>,
}

/// The stretches of each row. Without a turn-end the turn goes on to the next message, and nothing is
/// between.
pub fn spans(rows: &[Row]) -> Vec<Span> {
    let usable = |r: &Row| {
        r.checkpoint
            .as_ref()
            .filter(|c| c.state.usable())
            .and_then(|c| c.id.clone())
    };
    let mut spans = vec![Span::default(); rows.len()];
    for (i, row) in rows.iter().enumerate() {
        let next = rows[i + 1..]
            .iter()
            .find(|r| r.branch == row.branch)
            .and_then(usable);
        let end = row.checkpoint.as_ref().and_then(|c| c.turn_end.clone());
        spans[i].turn = usable(row).zip(end.clone().or_else(|| next.clone()));
        spans[i].between = end.zip(next);
    }
    spans
}

/// What is said where no sandbox is found, and root may know one.
pub const HIDDEN: &str = "what is tracked here can be seen by root: sudo respool";
