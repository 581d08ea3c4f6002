//! The open conversation: timeline, marks, changed files, diff.

use std::collections::{HashMap, HashSet};
use std::path::PathBuf;

use super::{Awaited, Loading, Position};
use crate::diff::FileDiff;
use crate::engine::{Change, Counts, PartKind};
use crate::packages::Summary;
use crate::timeline::{Row, Timeline};
use crate::tui::backend::{Failure, RowCounts, StateRef, Version};
use crate::tui::message::JobId;

/// A marked state: a row, and which end of its turn.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Mark {
    /// Just before this message.
    Before(String),
    /// The end of its turn.
    End(String),
    /// When tracking began.
    Start,
    /// Now.
    Now,
}

impl Mark {
    /// The state that it names.
    pub fn state(&self) -> StateRef {
        match self {
            Self::Before(id) => StateRef::Before(id.clone()),
            Self::End(id) => StateRef::End(id.clone()),
            Self::Start => StateRef::Start,
            Self::Now => StateRef::Now,
        }
    }
    /// The row that it is on.
    pub fn row(&self) -> Option<&str> {
        match self {
            Self::Before(id) | Self::End(id) => Some(id),
            Self::Start | Self::Now => None,
        }
    }
}

/// Two states that are compared.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pair {
    /// The first.
    pub a: StateRef,
    /// The second.
    pub b: StateRef,
}

/// What the diff pane is to show.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DiffKey {
    /// The states.
    pub pair: Pair,
    /// The path.
    pub change: Change,
    /// If it is one of the file's versions: which, of how many, in words.
    pub version: Option<(usize, usize, String)>,
}

/// A diff and where its rows are.
#[derive(Debug, Clone)]
pub struct ShownDiff {
    /// The diff.
    pub diff: FileDiff,
    /// For each row on the screen: the hunk, and the line in it (`None` = the hunk's head).
    pub rows: Vec<(u32, Option<u32>)>,
}

/// The changed files pane.
#[derive(Debug, Default)]
pub struct Files {
    /// The list.
    pub load: Loading<Pair, Vec<Change>>,
    /// Why there is none to ask for.
    pub unable: Option<String>,
    /// The selection.
    pub at: Position,
}

/// The diff pane.
#[derive(Debug, Default)]
pub struct Diff {
    /// The diff.
    pub load: Loading<DiffKey, ShownDiff>,
    /// First row on the screen.
    pub top: usize,
    /// First column on the screen.
    pub left: usize,
    /// The versions of the file.
    pub versions: Loading<(PartKind, PathBuf), Vec<Version>>,
    /// The version that is shown.
    pub version: Option<usize>,
    /// Steps to take as soon as the versions are known.
    pub step: i32,
}

/// The open conversation.
#[derive(Debug)]
pub struct Open {
    /// Its store.
    pub store: PathBuf,
    /// The one that a rewind led here from.
    pub from: Option<PathBuf>,
    /// The timeline; the wish is whether all of it was asked for.
    pub load: Loading<bool, ()>,
    /// The work for the last screenful.
    pub tail: Option<JobId>,
    /// What is shown of it.
    pub timeline: Option<Timeline>,
    /// Numbers that came later than the rows, by the message's id.
    pub counts: HashMap<String, RowCounts>,
    /// Work on numbers that is under way, and for which rows.
    pub counting: Option<(JobId, Vec<String>)>,
    /// A turn that was counted changed packages: there is a line for them.
    pub packages: bool,
    /// Rows whose numbers cannot be had.
    pub uncounted: HashSet<String>,
    /// Rows that pass the filter; `None` = all.
    pub order: Option<Vec<usize>>,
    /// The selection, an index into the rows that are shown.
    pub at: Position,
    /// The filter that is applied.
    pub filter: String,
    /// The last thing searched for.
    pub search: String,
    /// The first mark.
    pub a: Option<Mark>,
    /// The second mark.
    pub b: Option<Mark>,
    /// The changed files.
    pub files: Files,
    /// The diff.
    pub diff: Diff,
    /// The store changed while it was read: read it again.
    pub again: bool,
    /// A refresh is on its way.
    pub refresh_soon: bool,
    /// The store can no longer be read.
    pub gone: Option<Failure>,
    /// A message that the agent's own program is to send: kept until it is seen here.
    pub awaited: Option<Awaited>,
    /// The newest operation that is known, once the log was looked at.
    pub newest: Option<Option<String>>,
    /// The look at the log that is under way.
    pub looking: Option<JobId>,
}

impl Open {
    /// A conversation of which nothing is known yet.
    pub fn new(store: PathBuf) -> Self {
        Self {
            store,
            from: None,
            load: Loading::default(),
            tail: None,
            timeline: None,
            counts: HashMap::new(),
            counting: None,
            packages: false,
            uncounted: HashSet::new(),
            order: None,
            at: Position::default(),
            filter: String::new(),
            search: String::new(),
            a: None,
            b: None,
            files: Files::default(),
            diff: Diff::default(),
            again: false,
            refresh_soon: false,
            gone: None,
            awaited: None,
            newest: None,
            looking: None,
        }
    }
    /// All rows.
    pub fn rows(&self) -> &[Row] {
        self.timeline.as_ref().map_or(&[], |t| &t.rows)
    }
    /// How many rows are shown.
    pub fn len(&self) -> usize {
        self.order.as_ref().map_or(self.rows().len(), Vec::len)
    }
    /// True if no row is shown.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// The row index shown at this place.
    pub fn index(&self, place: usize) -> Option<usize> {
        match &self.order {
            Some(order) => order.get(place).copied(),
            None => (place < self.rows().len()).then_some(place),
        }
    }
    /// The row shown at this place.
    pub fn row(&self, place: usize) -> Option<&Row> {
        self.rows().get(self.index(place)?)
    }
    /// The selected row.
    pub fn selected(&self) -> Option<&Row> {
        self.row(self.at.selected)
    }
    /// The numbers of a row, wherever they come from: of its turn, and of the time after it.
    pub fn counts_of(&self, row: &Row) -> (Option<Counts>, Option<Counts>) {
        let late = self.counts.get(&row.id);
        (
            row.changes.or(late.and_then(|l| l.changes)),
            row.between.or(late.and_then(|l| l.between)),
        )
    }
    /// The packages that a row's turn changed, if it is known that there are any.
    pub fn packages_of<'a>(&'a self, row: &'a Row) -> Option<&'a Summary> {
        let late = || self.counts.get(&row.id).and_then(|l| l.packages.as_ref());
        row.packages.as_ref().or_else(late).filter(|p| !p.is_empty())
    }
    /// The selected change.
    pub fn change(&self) -> Option<&Change> {
        self.files.load.ready()?.get(self.files.at.selected)
    }
}
