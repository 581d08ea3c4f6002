//! The real backend of the screens: the rooms below, joined.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use super::backend::{
    Backend, Direction, Failure, Opening, Resent, Result, Reversal, RowCounts, StateRef, Taken, TrackedHere,
    Version, WatchGuard, Writing, candidate, nothing,
};
use super::eyes;
use super::mail::Mail;
use super::tracking::{self, User};
use crate::chat::{Access, Kept, Talk};
use crate::conversation::Summary;
use crate::conversation::elsewhere::{self, Shelf, Stamp};
use crate::diff::{FileDiff, Limits, file_diff};
use crate::engine::{
    Change, CheckpointId, CheckpointKind, Content, Counts, FileType, How, NewCheckpoint, PartKind, Selection,
    State,
};
use crate::failure::Kind;
use crate::progress::{CancelFlag, Progress, Silent};
use crate::rewind::journal::Record;
use crate::rewind::offer::{Offer, VaultKind};
use crate::rewind::run::Order;
use crate::rewind::survey::{Scope, own_changes, survey};
use crate::rewind::talk::{hear, undone};
use crate::rewind::tools::{Tools, hand};
use crate::rewind::{Operation, OperationKind, Outcome, Plan, Reach};
use crate::sandbox::inside::refuse_inside;
use crate::sandbox::remote::{Ask, Remote};
use crate::sandbox::site::Site;
use crate::timeline::desk::{Desk, Opened, spans};
use crate::timeline::select::{self, Selected};
use crate::timeline::{Row, Timeline};

/// Joins the rooms below for the screens.
pub struct RealBackend {
    desk: Desk,
    user: User,
    access: Option<Access>,
    mail: Option<Mail>,
    last: Mutex<HashMap<PathBuf, Arc<Opened>>>,
}

impl RealBackend {
    /// At this desk.
    pub fn new(desk: Desk) -> Self {
        Self {
            desk,
            user: User::default(),
            access: None,
            mail: None,
            last: Mutex::new(HashMap::new()),
        }
    }

    /// For this user.
    #[must_use]
    pub fn working_for(mut self, user: User) -> Self {
        self.user = user;
        self
    }

    /// Moves conversations, too, with what is known of the servers of agents.
    #[must_use]
    pub fn reaching(mut self, access: Option<Access>) -> Self {
        self.access = access;
        self
    }

    /// Keeps and sends messages, too.
    #[must_use]
    pub fn mailing(mut self, mail: Option<Mail>) -> Self {
        self.mail = mail;
        self
    }

    /// Where messages are kept; an error where they cannot be sent from here.
    fn mail(&self) -> Result<&Mail> {
        self.mail.as_ref().filter(|_| self.access.is_some()).ok_or_else(|| {
            let what = "messages can only be sent again on the machine of their conversation, and not in the demo";
            Failure::new(Kind::Refused, what, None)
        })
    }

    /// The place of what is written instead of a message.
    fn kept(&self, store: &Path, row: &str) -> Result<Kept> {
        Ok(self.mail()?.kept(&self.known(store)?.conversation.summary, row))
    }

    /// What a crash left is finished or taken back.
    fn recover(&self, tools: &Tools<'_>, progress: &dyn Progress) -> Result<()> {
        match &self.access {
            Some(access) => tools.recover_with(access, false, progress)?,
            None => tools.recover(progress)?,
        };
        Ok(())
    }

    /// How far a plan reaches. An agent at work is interrupted: that takes the typed word.
    fn scope(&self, reach: Reach) -> Scope {
        Scope {
            reach,
            interrupt: true,
            access: self.access.clone(),
            ..Scope::default()
        }
    }

    /// As [`RealBackend::scope`], of an undo or a redo.
    fn reverse_scope(&self, tools: &Tools<'_>, order: &Order) -> Result<Scope> {
        let alone = matches!(&order.selection, Selection::Paths(p) if p.is_empty());
        Ok(Scope {
            undone: undone(tools, order)?,
            whole_docker: order.whole_docker,
            ..self.scope(if alone { Reach::Chat } else { Reach::Auto })
        })
    }

    fn read(&self, store: &Path, progress: &dyn Progress) -> Result<Arc<Opened>> {
        let found = self.desk.library.at(store)?;
        let opened = Arc::new(self.desk.open(&found, progress)?);
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        last.insert(store.to_owned(), Arc::clone(&opened));
        Ok(opened)
    }

    /// What was read last; the whole conversation is not read again for every question about a row.
    fn known(&self, store: &Path) -> Result<Arc<Opened>> {
        let known = self
            .last
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .get(store)
            .cloned();
        known.map_or_else(|| self.read(store, &Silent), Ok)
    }

    /// The sandbox, opened and checked anew: before anything is written.
    fn fresh_site(&self, opened: &Opened) -> Result<Site> {
        Ok(self.desk.site(&opened.conversation)?)
    }
}

fn site(opened: &Opened) -> Result<&Site> {
    opened.site.as_ref().ok_or_else(|| {
        let hint = Some("track the workspace first: sudo respool track DIR".to_owned());
        Failure::new(
            Kind::Refused,
            "the workspace is not tracked: there are no checkpoints",
            hint,
        )
    })
}

fn selected(opened: &Opened, state: &StateRef) -> Result<Selected> {
    let words = match state {
        StateRef::Now => "now".to_owned(),
        StateRef::Start => "start".to_owned(),
        StateRef::Before(id) => format!("id:{id}"),
        StateRef::End(id) => format!("id:{id}.end"),
        StateRef::Checkpoint(id) => id.to_string(),
    };
    // checkpoints may have been taken since the conversation was read
    let checkpoints = site(opened)?.vault.checkpoints()?;
    Ok(select::state(Some(&opened.timeline), &checkpoints, &words)?)
}

fn row_of<'a>(opened: &'a Opened, id: &str) -> Result<&'a Row> {
    let found = opened.timeline.rows.iter().rfind(|r| r.id == id);
    found.ok_or_else(|| Failure::new(Kind::NotFound, "this message is no longer there", None))
}

fn content(
    site: &Site,
    state: &State,
    path: &Path,
    is: Option<FileType>,
    limit: u64,
) -> Result<Option<Content>> {
    match is {
        None => Ok(None),
        Some(FileType::Dir) => Ok(Some(Content::Other(FileType::Dir))),
        Some(_) => Ok(Some(site.vault.read(state, path, limit)?)),
    }
}

fn order(plan: &Plan) -> Order {
    Order {
        kind: OperationKind::Rewind,
        target: plan.target.clone(),
        words: format!("to {}", plan.target_words),
        selection: if plan.reach == Reach::Chat {
            Selection::Paths(Vec::new())
        } else {
            Selection::All
        },
        of: None,
        chat: None,
        mover: None,
        whole_docker: false,
    }
}

impl Backend for RealBackend {
    fn conversations(&self) -> Result<Vec<Summary>> {
        let mut listing = self.desk.library.list(None);
        if self.desk.registry.far() && listing.conversations.is_empty() && !listing.damaged.is_empty() {
            return Err(listing.damaged.swap_remove(0).into());
        }
        Ok(listing.conversations)
    }

    fn tail(&self, store: &Path, rows: usize) -> Result<Timeline> {
        let found = self.desk.library.at(store)?;
        Ok(self.desk.tail(&found, rows)?.timeline)
    }

    fn timeline(&self, store: &Path, progress: &dyn Progress) -> Result<Timeline> {
        Ok(self.read(store, progress)?.timeline.clone())
    }

    fn counts(&self, store: &Path, id: &str, progress: &dyn Progress) -> Result<RowCounts> {
        let opened = self.known(store)?;
        let site = site(&opened)?;
        let at = opened.timeline.rows.iter().position(|r| r.id == id);
        let Some(span) = at.and_then(|i| spans(&opened.timeline.rows).into_iter().nth(i)) else {
            return Ok(RowCounts::default());
        };
        let count = |pair: Option<_>| -> Result<_> {
            Ok(pair
                .map(|(a, b)| self.desk.counted(site, &a, &b, progress))
                .transpose()?)
        };
        let own = match &span.between {
            Some((a, b)) => own_changes(site, a, &State::Checkpoint(b.clone()), progress)?,
            None => None,
        };
        let turn = count(span.turn)?;
        let mut counts = RowCounts {
            changes: turn.as_ref().map(|t| t.counts),
            between: match own {
                Some(list) => Some(Counts::of(&list)),
                None => count(span.between)?.map(|t| t.counts),
            },
            packages: turn.and_then(|t| t.packages),
        };
        let rows = &opened.timeline.rows;
        let newest = rows.iter().rfind(|r| r.active).filter(|r| r.id == id);
        let end = newest.and_then(|r| r.checkpoint.as_ref()?.turn_end.clone());
        if let Some(end) = end.filter(|_| !opened.timeline.at_work) {
            let list = match own_changes(site, &end, &State::Now, progress)? {
                Some(list) => list,
                None => site
                    .vault
                    .changes(&State::Checkpoint(end), &State::Now, false, progress)?,
            };
            counts.between = Some(Counts::of(&list));
        }
        Ok(counts)
    }

    fn changes(
        &self,
        store: &Path,
        a: &StateRef,
        b: &StateRef,
        progress: &dyn Progress,
    ) -> Result<Vec<Change>> {
        let opened = self.known(store)?;
        let (a, b) = (selected(&opened, a)?, selected(&opened, b)?);
        Ok(site(&opened)?
            .vault
            .changes(&a.state, &b.state, false, progress)?)
    }

    fn file_diff(&self, store: &Path, a: &StateRef, b: &StateRef, change: &Change) -> Result<FileDiff> {
        let opened = self.known(store)?;
        let (a, b) = (selected(&opened, a)?, selected(&opened, b)?);
        let (site, limits) = (site(&opened)?, Limits::default());
        let x = content(site, &a.state, change.old_path(), change.type_a, limits.bytes + 1)?;
        let y = content(site, &b.state, &change.path, change.type_b, limits.bytes + 1)?;
        Ok(file_diff(x.as_ref(), y.as_ref(), limits))
    }

    fn file_versions(
        &self,
        store: &Path,
        _part: PartKind,
        path: &Path,
        progress: &dyn Progress,
    ) -> Result<Vec<Version>> {
        let opened = self.known(store)?;
        let site = site(&opened)?;
        let mut out = Vec::new();
        for (row, span) in opened.timeline.rows.iter().zip(spans(&opened.timeline.rows)) {
            let words = select::row_words(row);
            for (pair, words) in [
                (span.turn, words.clone()),
                (span.between, format!("after {words}")),
            ] {
                let Some((a, b)) = pair else { continue };
                let (sa, sb) = (State::Checkpoint(a.clone()), State::Checkpoint(b.clone()));
                let list = site.vault.changes(&sa, &sb, false, progress)?;
                if let Some(change) = list.into_iter().find(|c| c.path == path || c.old_path() == path) {
                    out.push(Version {
                        words,
                        a: StateRef::Checkpoint(a),
                        b: StateRef::Checkpoint(b),
                        change,
                    });
                }
            }
        }
        Ok(out)
    }

    fn plan(&self, store: &Path, target: &StateRef, reach: Reach, progress: &dyn Progress) -> Result<Plan> {
        let opened = self.read(store, progress)?;
        let target = selected(&opened, target)?;
        let State::Checkpoint(id) = target.state.clone() else {
            return Err(Failure::new(Kind::Usage, "now is where you are", None));
        };
        let site = self.fresh_site(&opened)?;
        Ok(survey(
            Some(&opened.timeline),
            &site,
            &target,
            &id,
            &self.scope(reach),
            progress,
        )?
        .plan)
    }

    fn rewind(&self, store: &Path, plan: &Plan, progress: &dyn Progress) -> Result<Outcome> {
        let mut outcome = self.went_back(store, plan, progress)?;
        let opened = self.known(store)?;
        let next = self.next(site(&opened)?, plan.talk.as_deref(), &outcome);
        outcome.notes.extend(next);
        Ok(outcome)
    }

    fn undo(&self, store: &Path, operation: &str, progress: &dyn Progress) -> Result<Outcome> {
        self.reverse(store, OperationKind::Undo, operation, progress)
    }

    fn redo(&self, store: &Path, operation: &str, progress: &dyn Progress) -> Result<Outcome> {
        self.reverse(store, OperationKind::Redo, operation, progress)
    }

    fn reversal(&self, store: &Path, direction: Direction, progress: &dyn Progress) -> Result<Reversal> {
        let operations = self.operations(store)?;
        let operation = candidate(&operations, direction)
            .cloned()
            .ok_or_else(|| nothing(direction))?;
        let opened = self.read(store, progress)?;
        let site = self.fresh_site(&opened)?;
        let tools = Tools::of(&site)?;
        let kind = match direction {
            Direction::Undo => OperationKind::Undo,
            Direction::Redo => OperationKind::Redo,
        };
        let order = tools.reversal(kind, Some(&operation.id))?;
        let scope = self.reverse_scope(&tools, &order)?;
        let timeline = Some(&opened.timeline);
        let plan = survey(
            timeline,
            &site,
            &target_of(&order),
            &order.target,
            &scope,
            progress,
        )?
        .plan;
        Ok(Reversal { operation, plan })
    }

    fn track_plan(&self, dir: &Path, vault: Option<VaultKind>, progress: &dyn Progress) -> Result<Offer> {
        tracking::plan(&self.desk, &self.user, dir, vault, progress)
    }

    fn track(&self, offer: &Offer, progress: &dyn Progress) -> Result<TrackedHere> {
        tracking::track(&self.desk, &self.user, offer, progress)
    }

    fn checkpoint(&self, store: &Path) -> Result<Taken> {
        let opened = self.known(store)?;
        let site = self.fresh_site(&opened)?;
        let tools = Tools::of(&site)?;
        self.recover(&tools, &Silent)?;
        let mut new = NewCheckpoint::of(CheckpointKind::Manual, How::Command);
        new.conversation = Some(opened.conversation.summary.id.clone());
        let warning = site.before_checkpoint(new.kind);
        let started = Instant::now();
        let taken = tools.checkpoint(&new)?;
        Ok(Taken {
            id: taken.meta.id,
            ms: started.elapsed().as_millis() as u64,
            warning,
        })
    }

    fn operations(&self, store: &Path) -> Result<Vec<Operation>> {
        let opened = self.known(store)?;
        let Some(site) = &opened.site else {
            return Ok(Vec::new());
        };
        let records = Tools::of(site)?.records()?;
        Ok(records.iter().rev().map(Record::operation).collect())
    }

    fn opening(&self, store: &Path, row: &str) -> Result<Opening> {
        let (mail, opened) = (self.mail()?, self.known(store)?);
        let summary = &opened.conversation.summary;
        let rows = &opened.timeline.rows;
        mail.opening(summary, row_of(&opened, row)?, rows, hand(site(&opened)?))
    }

    fn keep(&self, store: &Path, row: &str, text: Option<&str>) -> Result<()> {
        let kept = self.kept(store, row)?;
        match text {
            Some(text) => kept.keep(text)?,
            None => kept.remove()?,
        }
        Ok(())
    }

    fn to_editor(&self, store: &Path, row: &str, text: &str) -> Result<PathBuf> {
        Ok(self.kept(store, row)?.for_editor(text)?)
    }

    fn edited(&self, store: &Path, row: &str, file: &Path, before: &str) -> Result<String> {
        Ok(self.kept(store, row)?.edited(file, before)?)
    }

    fn resend(
        &self,
        store: &Path,
        plan: &Plan,
        writing: &Writing,
        progress: &dyn Progress,
    ) -> Result<Resent> {
        let (mail, opened) = (self.mail()?, self.known(store)?);
        let talk = plan.talk.as_deref().ok_or_else(|| {
            let what = "the conversation stays as it is, so the message would come last of all";
            Failure::new(Kind::Refused, what, None)
        })?;
        let (summary, site) = (&opened.conversation.summary, site(&opened)?);
        let row = row_of(&opened, &writing.row)?;
        let post = mail.post(summary, row, site.path(), (writing, hand(site)))?;
        let outcome = self.went_back(store, plan, progress)?;
        progress.step("sending the message", 0, 0);
        Ok(post.send(talk, outcome))
    }

    fn watch(&self, store: &Path, changed: Box<dyn Fn() + Send + Sync>) -> Result<WatchGuard> {
        let found = self.desk.library.at(store)?;
        let mut paths = found.0.watched(&found.1);
        let changed: Arc<dyn Fn() + Send + Sync> = Arc::from(changed);
        let mut far = Vec::new();
        if let Some(shelf) = self.desk.library.shelf() {
            far.push(Awaited::of_store(Arc::clone(shelf), store, Arc::clone(&changed))?);
        }
        if let Ok(opened) = self.known(store)
            && let Some(site) = &opened.site
        {
            // a hook's checkpoint and another window's rewind show up too
            match (site.dir(), site.remote()) {
                (Ok(dir), _) => paths.extend([dir.join("snaps"), dir.join("ops")]),
                (_, Some(remote)) => far.push(Awaited::of_sandbox(remote.clone(), Arc::clone(&changed))?),
                (Err(e), None) => return Err(e.into()),
            }
        }
        let failed =
            |e: notify::Error| Failure::new(Kind::Failed, format!("the store cannot be followed: {e}"), None);
        let eyes = eyes::follow(paths, changed).map_err(failed)?;
        Ok(Box::new((eyes, far)))
    }
}

/// Asks the service again and again what changed, until it is dropped.
struct Awaited(Arc<CancelFlag>);

struct Until(Arc<CancelFlag>);

impl Progress for Until {
    fn step(&self, _what: &'static str, _done: u64, _total: u64) {}
    fn cancelled(&self) -> bool {
        self.0.is_set()
    }
}

impl Awaited {
    fn of_sandbox(remote: Remote, changed: Arc<dyn Fn() + Send + Sync>) -> Result<Self> {
        Self::start(move |until| match remote.ask(Ask::Wait, until) {
            Ok(value) => {
                if value == true {
                    changed();
                }
                true
            }
            // the screens ask themselves, and show what is wrong
            Err(_) => false,
        })
    }

    /// The store of a conversation on another machine.
    fn of_store(shelf: Arc<dyn Shelf>, store: &Path, changed: Arc<dyn Fn() + Send + Sync>) -> Result<Self> {
        let store = store.to_owned();
        let mut known: Option<Stamp> = None;
        Self::start(move |until| {
            let Ok(stamp) = elsewhere::wait(&*shelf, &store, known.clone(), until) else {
                // one that is deleted, or a line that broke: the screens ask, and show what is wrong
                if !until.cancelled() {
                    changed();
                }
                return false;
            };
            if known.as_ref().is_some_and(|k| *k != stamp) {
                changed();
            }
            known = Some(stamp);
            true
        })
    }

    /// Asks as long as the answer is true.
    fn start(mut ask: impl FnMut(&Until) -> bool + Send + 'static) -> Result<Self> {
        let flag = Arc::new(CancelFlag::new());
        let until = Until(Arc::clone(&flag));
        let work = move || while !until.cancelled() && ask(&until) {};
        let started = std::thread::Builder::new().spawn(work);
        started.map_err(|e| Failure::new(Kind::Failed, format!("cannot start: {e}"), None))?;
        Ok(Self(flag))
    }
}

impl Drop for Awaited {
    fn drop(&mut self) {
        self.0.cancel();
    }
}

impl RealBackend {
    fn went_back(&self, store: &Path, plan: &Plan, progress: &dyn Progress) -> Result<Outcome> {
        let opened = self.known(store)?;
        let site = self.fresh_site(&opened)?;
        refuse_inside(std::process::id() as i32, &site)?;
        let tools = Tools::of(&site)?;
        self.recover(&tools, progress)?;
        let outcome = tools.run_with(&order(plan), plan.talk.as_deref(), progress)?;
        Ok(finished(&site, outcome, &plan.target))
    }

    /// The agent's own command that goes on in the conversation that this led to, where that is another one.
    fn next(&self, site: &Site, talk: Option<&Talk>, outcome: &Outcome) -> Option<String> {
        let (id, talk) = (outcome.conversation.as_ref()?, talk?);
        let summary = self.desk.library.summary_at(&talk.store)?;
        let resume = self.mail.as_ref()?.resume(&summary, site.path())?;
        resume.goes_on_in(id, &talk.store, talk.hand).told()
    }

    fn reverse(
        &self,
        store: &Path,
        kind: OperationKind,
        operation: &str,
        progress: &dyn Progress,
    ) -> Result<Outcome> {
        let opened = self.known(store)?;
        let site = self.fresh_site(&opened)?;
        refuse_inside(std::process::id() as i32, &site)?;
        let tools = Tools::of(&site)?;
        self.recover(&tools, progress)?;
        let order = tools.reversal(kind, Some(operation))?;
        let scope = self.reverse_scope(&tools, &order)?;
        let target = target_of(&order);
        let heard = hear(None, &site, &target, &order.target, &scope)?;
        if let Some(b) = heard.blockers.iter().find(|b| b.stops) {
            return Err(Failure::new(Kind::Refused, b.what.clone(), None));
        }
        let outcome = tools.run_with(&order, heard.talk.as_ref(), progress)?;
        let mut outcome = finished(&site, outcome, &order.target);
        outcome
            .notes
            .extend(self.next(&site, heard.talk.as_ref(), &outcome));
        Ok(outcome)
    }
}

/// Where an undo or a redo goes.
fn target_of(order: &Order) -> Selected {
    Selected {
        state: State::Checkpoint(order.target.clone()),
        words: format!("the state {}", order.words),
        message: None,
        native: None,
    }
}

/// What is done once the files are back: the user's own command; its failure is a note.
fn finished(site: &Site, mut outcome: Outcome, target: &CheckpointId) -> Outcome {
    outcome
        .notes
        .extend(site.after_rewind(&outcome.operation, target));
    outcome
}
