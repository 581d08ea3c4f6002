//! Gathers the facts of a plan: what differs, what of it is the user's own, who holds files.

use std::collections::BTreeSet;
use std::ops::Bound;
use std::path::{Path, PathBuf};

use super::journal::Record;
use super::others::others;
use super::plan::{Facts, narrowed, plan, within};
use super::talk::hear;
use super::tools::Tools;
use super::{OperationKind, OperationState, Plan, Reach, Result, RewindError};
use crate::chat::{self, Access};
use crate::engine::{Change, Checkpoint, CheckpointId, EngineError, Selection, State};
use crate::packages::Summary;
use crate::progress::Progress;
use crate::sandbox::site::Site;
use crate::timeline::Timeline;
use crate::timeline::desk::spans;
use crate::timeline::packages::{of_sandbox, of_workspace};
use crate::timeline::select::Selected;

/// What of a rewind is wanted.
#[derive(Debug, Clone, Default)]
pub struct Scope {
    /// These paths only.
    pub paths: Option<Vec<PathBuf>>,
    /// Leave what the user changed between turns.
    pub keep_mine: bool,
    /// Only what the message's own turn changed.
    pub only_turn: bool,
    /// All of Docker's data goes back.
    pub whole_docker: bool,
    /// Files, conversation, or both.
    pub reach: Reach,
    /// Interrupt the agent, if it is at work.
    pub interrupt: bool,
    /// What is known of the agent's servers; `None` where conversations cannot be moved from here.
    pub access: Option<Access>,
    /// Undo and redo: what the operation that is taken back did to the conversation.
    pub undone: Option<chat::Change>,
}

/// A plan, and what it selects.
#[derive(Debug, Clone)]
pub struct Seen {
    /// The plan.
    pub plan: Plan,
    /// What is restored.
    pub selection: Selection,
}

/// The operations that changed the tree, each with the sequence number of its safety checkpoint.
struct Operations {
    checkpoints: Vec<Checkpoint>,
    done: Vec<(u64, Record)>,
}

impl Operations {
    fn of(site: &Site) -> Result<Self> {
        let mut records = Tools::of(site)?.records()?;
        records.retain(|r| {
            matches!(
                r.kind,
                OperationKind::Rewind | OperationKind::Undo | OperationKind::Redo
            ) && matches!(r.state, OperationState::Done | OperationState::Undone)
        });
        let mut it = Self {
            checkpoints: Vec::new(),
            done: Vec::new(),
        };
        if records.is_empty() {
            return Ok(it);
        }
        it.checkpoints = site.vault.checkpoints()?;
        for record in records {
            let there = record.target.as_ref().is_some_and(|t| it.seq(t).is_some());
            if let Some(seq) = record.safety.as_ref().and_then(|s| it.seq(s)).filter(|_| there) {
                it.done.push((seq, record));
            }
        }
        Ok(it)
    }

    /// Those between two states, the newest first.
    fn between<'a>(&'a self, a: &CheckpointId, b: &State) -> impl Iterator<Item = &'a Record> {
        let from = self.seq(a).unwrap_or(u64::MAX);
        let to = match b {
            State::Checkpoint(id) => self.seq(id).unwrap_or(u64::MAX),
            State::Now => u64::MAX,
        };
        let all = self.done.iter().rev();
        all.filter(move |(s, _)| *s > from && *s < to).map(|(_, r)| r)
    }

    fn seq(&self, id: &CheckpointId) -> Option<u64> {
        let found = self.checkpoints.iter().find(|c| c.meta.id == *id);
        found.map(|c| c.meta.seq)
    }

    /// What differs from `a` to `b`, without what rewinds, undos and redos between the two did: what one of
    /// them covered is compared with its target, which is what it left.
    fn own(&self, site: &Site, a: &CheckpointId, b: &State, progress: &dyn Progress) -> Result<Vec<Change>> {
        let (mut covered, mut out): (Vec<PathBuf>, _) = (Vec::new(), Vec::new());
        let mut compare = |a: &CheckpointId, paths: Option<&[PathBuf]>, covered: &[PathBuf]| -> Result<()> {
            let list = site
                .vault
                .changes(&State::Checkpoint(a.clone()), b, false, progress)?;
            let list = narrowed(list, paths);
            out.extend(list.into_iter().filter(|c| !within(&c.path, covered)));
            Ok(())
        };
        for record in self.between(a, b) {
            let Some(target) = &record.target else { continue };
            match record.selection() {
                Selection::All => {
                    compare(target, None, &covered)?;
                    if self.seq(target) > self.seq(a) {
                        // what was own when the target was taken came back with it
                        let before = self.own(site, a, &State::Checkpoint(target.clone()), progress)?;
                        out.extend(before.into_iter().filter(|c| !within(&c.path, &covered)));
                    }
                    return Ok(out);
                }
                Selection::Paths(paths) => {
                    compare(target, Some(&paths), &covered)?;
                    covered.extend(paths);
                }
            }
        }
        compare(a, None, &covered)?;
        Ok(out)
    }
}

/// What was changed from the checkpoint of a turn's end to a later state, but for what rewinds, undos and redos
/// did; `None` if there was none of them, and it is simply what differs.
pub fn own_changes(
    site: &Site,
    end: &CheckpointId,
    later: &State,
    progress: &dyn Progress,
) -> Result<Option<Vec<Change>>> {
    let operations = Operations::of(site)?;
    if operations.between(end, later).next().is_none() {
        return Ok(None);
    }
    operations.own(site, end, later, progress).map(Some)
}

/// The lists of the stretches between a turn's end and the next message, from the target's message on.
fn between(
    timeline: &Timeline,
    site: &Site,
    target: &CheckpointId,
    progress: &dyn Progress,
) -> Result<Vec<Change>> {
    let at = timeline.rows.iter().position(|r| {
        r.checkpoint
            .as_ref()
            .is_some_and(|c| c.id.as_ref() == Some(target) || c.turn_end.as_ref() == Some(target))
    });
    let Some(at) = at else { return Ok(Vec::new()) };
    let operations = Operations::of(site)?;
    let mut out = Vec::new();
    let mut last_end = None;
    for (row, span) in timeline
        .rows
        .iter()
        .zip(spans(&timeline.rows))
        .skip(at)
        .filter(|(r, _)| r.active)
    {
        if let Some((a, b)) = span.between {
            out.extend(operations.own(site, &a, &State::Checkpoint(b), progress)?);
        }
        last_end = row.checkpoint.as_ref().and_then(|c| c.turn_end.clone());
    }
    // what was changed since the newest turn ended
    if let Some(end) = last_end.filter(|_| !timeline.at_work) {
        out.extend(operations.own(site, &end, &State::Now, progress)?);
    }
    Ok(out)
}

/// The paths of a list, old names too.
fn both_names(changes: &[Change]) -> BTreeSet<PathBuf> {
    changes
        .iter()
        .flat_map(|c| [c.path.clone(), c.old_path().to_owned()])
        .collect()
}

/// The changes without those to be spared, and without the folders that hold one of them: a folder is restored
/// with everything below it. (What else differs in such a folder has changes of its own.)
fn without(changes: Vec<Change>, spared: impl Fn(&Change) -> bool) -> Vec<Change> {
    let (gone, mut rest): (Vec<_>, Vec<_>) = changes.into_iter().partition(spared);
    let gone = both_names(&gone);
    let holds = |folder: &Path| {
        let mut from = gone.range::<Path, _>((Bound::Excluded(folder), Bound::Unbounded));
        from.next().is_some_and(|next| next.starts_with(folder))
    };
    rest.retain(|c| !holds(&c.path) && !holds(c.old_path()));
    rest
}

fn turn(timeline: Option<&Timeline>, target: &CheckpointId) -> Result<(CheckpointId, CheckpointId)> {
    let rows = timeline.map_or(&[][..], |t| &t.rows);
    let found = spans(rows)
        .into_iter()
        .filter_map(|s| s.turn)
        .find(|(a, _)| a == target);
    found.ok_or_else(|| RewindError::Refused {
        why: "the end of that turn is not known".into(),
        path: None,
        hint: Some("--only-turn needs a message whose turn has ended".into()),
    })
}

/// The packages that go back. With a selection of paths the containers stay as they are.
fn packages(
    site: &Site,
    id: &CheckpointId,
    selection: &Selection,
    changes: &[Change],
    progress: &dyn Progress,
) -> Result<Summary> {
    let of = if *selection == Selection::All {
        of_sandbox
    } else {
        of_workspace
    };
    let then = State::Checkpoint(id.clone());
    Ok(of(site, &then, &State::Now, changes, progress)?)
}

/// Looks at everything and makes the plan. Nothing is changed but for a temporary snapshot of now.
pub fn survey(
    timeline: Option<&Timeline>,
    site: &Site,
    target: &Selected,
    id: &CheckpointId,
    scope: &Scope,
    progress: &dyn Progress,
) -> Result<Seen> {
    let all = site
        .vault
        .changes(&State::Checkpoint(id.clone()), &State::Now, true, progress)?;
    let between = timeline.map_or_else(|| Ok(Vec::new()), |t| between(t, site, id, progress))?;
    let mut changes = narrowed(all, scope.paths.as_deref());
    if scope.reach == Reach::Chat {
        changes.clear();
    }
    if scope.keep_mine {
        let own = both_names(&between);
        changes = without(changes, |c| own.contains(&c.path) || own.contains(c.old_path()));
    }
    if scope.only_turn {
        let (a, b) = turn(timeline, id)?;
        let own = both_names(&site.vault.changes(
            &State::Checkpoint(a),
            &State::Checkpoint(b),
            false,
            progress,
        )?);
        changes = without(changes, |c| !own.contains(&c.path) && !own.contains(c.old_path()));
    }
    let selection = if scope.reach == Reach::Chat {
        Selection::Paths(Vec::new())
    } else if scope.keep_mine || scope.only_turn {
        Selection::Paths(both_names(&changes).into_iter().collect())
    } else {
        scope.paths.clone().map_or(Selection::All, Selection::Paths)
    };
    let mut holders = site.holders()?;
    holders.retain(|h| !h.window);
    // a store may say "running" long after its agent was killed: somebody must be there, too
    let somebody = holders.iter().any(|h| !h.own);
    let heard = hear(timeline, site, target, id, scope)?;
    let pids: Vec<i32> = holders.iter().map(|h| h.pid).collect();
    // those of an agent that lives are its own affair
    let shells = if heard.at_work.is_some() {
        Vec::new()
    } else {
        chat::shells(&pids)
    };
    let others = timeline.map_or_else(|| Ok(Vec::new()), |t| others(t, site, id, &changes, progress))?;
    let facts = Facts {
        sandbox: site.record.id.clone(),
        workspace: site.path().to_owned(),
        target: Some(id.clone()),
        target_words: target.words.clone(),
        message: target.message,
        packages: packages(site, id, &selection, &changes, progress)?,
        changes,
        between,
        holders,
        not_covered: site.not_covered_by(id)?,
        at_work: heard.at_work.is_none() && timeline.is_some_and(|t| t.at_work) && somebody,
        heard,
        reach: scope.reach,
        others,
        shells,
        denied: site.vault.denied(id, &selection, progress)?,
        copied: site.copied(),
        low_space: None,
        paths: scope.paths.clone(),
        docker: if scope.whole_docker {
            site.fates(id)?
        } else {
            (Vec::new(), Vec::new())
        },
        containers: match selection {
            _ if scope.whole_docker => Vec::new(),
            Selection::All => site.outlook(Some(id))?,
            Selection::Paths(_) => Vec::new(),
        },
    };
    let plan = plan(&facts).ok_or_else(|| EngineError::NoCheckpoint { id: id.to_string() })?;
    Ok(Seen { plan, selection })
}
