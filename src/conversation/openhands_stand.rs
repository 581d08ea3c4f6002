//! How an OpenHands conversation stands: its format, its head, what comes before and after each message. What
//! is needed to move it; nothing is moved here.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};

use super::folder::Folder;
use super::openhands_base::Base;
use super::openhands_event::{Event, Fact, Parent};
use super::openhands_lease::{self, Owner};
use super::openhands_store::Store;
use super::openhands_tree::Head;
use super::{ConversationError, OpenHandsV0, OpenHandsV1, Result, Source};
use crate::progress::Silent;

/// How events are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// A tree with a head (SDK 1.31 on).
    Tree,
    /// One after the other (SDK before 1.31).
    Line,
    /// One after the other, `<n>.json` (0.20 to 0.62).
    V0,
}

/// A place between two events.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// The event before it; `None` before the first one.
    pub head: Option<String>,
    /// The index of the first event after it, in the store's order.
    pub next: u64,
}

struct Spot {
    id: String,
    parent: Option<usize>,
    message: bool,
    head: bool,
    /// The id of the tool call that begins here, or ends here.
    call: Option<String>,
    outcome: Option<String>,
}

/// How a conversation stands.
pub struct Stand {
    /// How its events are kept.
    pub format: Format,
    /// Its id, as the agent writes it.
    pub id: String,
    /// The folder that the agent works in, as the store says.
    pub workspace: Option<PathBuf>,
    /// The status as stored.
    pub status: Option<String>,
    /// The head: the newest event where none is recorded; `None` before the first one.
    pub head: Option<String>,
    /// Who holds or held it, as its lease says.
    pub owner: Option<Owner>,
    spots: Vec<Spot>,
    first: u64,
    at: HashMap<String, usize>,
}

impl Stand {
    /// Reads all of it. A store of another kind is [`ConversationError::NotFound`].
    pub fn read(store: &Path) -> Result<Self> {
        if OpenHandsV1.recognises(store) {
            return Self::v1(store);
        }
        if OpenHandsV0.recognises(store) {
            return Self::v0(store);
        }
        Err(ConversationError::NotFound {
            what: format!("of OpenHands at {}", crate::text::shown_path(store)),
        })
    }

    fn v1(path: &Path) -> Result<Self> {
        let mut store = Store::open(path)?;
        let base = Base::read(&store.folder)?;
        store.list()?;
        let mut events = store.read(0..store.names.len());
        store.settle_newest(&mut events);
        let tree = base.leaf.is_some()
            || base.head() == Head::Empty
            || events.iter().any(|e| e.parent != Parent::Previous);
        let newest = || events.iter().rfind(|e| e.may_be_head()).map(|e| e.id.clone());
        let head = match base.head() {
            Head::At(id) => Some(id),
            Head::Empty => None,
            Head::Newest => newest(),
        };
        let at: HashMap<String, usize> = events
            .iter()
            .enumerate()
            .map(|(i, e)| (e.id.clone(), i))
            .collect();
        let spots = events.iter().enumerate().map(|(i, e)| spot(i, e, &at)).collect();
        Ok(Self {
            format: if tree { Format::Tree } else { Format::Line },
            id: base.id.clone().unwrap_or_else(|| name(path)),
            workspace: base.workspace.clone(),
            status: base.status.clone(),
            head,
            owner: openhands_lease::owner(&store.folder),
            spots,
            first: 0,
            at,
        })
    }

    fn v0(path: &Path) -> Result<Self> {
        let conversation = OpenHandsV0.read(path, &Silent)?;
        let said: HashSet<u64> = conversation.messages.iter().map(|m| m.index).collect();
        let last = super::openhands_v0::numbers(path)?;
        let spots: Vec<Spot> = last
            .iter()
            .enumerate()
            .map(|(i, n)| Spot {
                id: n.to_string(),
                parent: i.checked_sub(1),
                message: said.contains(n),
                head: true,
                call: None,
                outcome: None,
            })
            .collect();
        let at = spots.iter().enumerate().map(|(i, s)| (s.id.clone(), i)).collect();
        Ok(Self {
            format: Format::V0,
            id: name(path),
            workspace: None,
            status: conversation.status,
            head: spots.last().map(|s| s.id.clone()),
            owner: None,
            first: last.first().copied().unwrap_or(0),
            spots,
            at,
        })
    }

    /// True if there is an event of this id.
    pub fn has(&self, id: &str) -> bool {
        self.at.contains_key(id)
    }

    fn index(&self, spot: usize) -> u64 {
        match self.format {
            Format::V0 => self.spots[spot].id.parse().unwrap_or(self.first + spot as u64),
            _ => spot as u64,
        }
    }

    /// The place just before a message; `None` if there is no such message.
    pub fn before(&self, message: &str) -> Option<Place> {
        let spot = *self.at.get(message)?;
        Some(self.place(self.spots[spot].parent, spot))
    }

    /// The place with this head, before that event. A message may have come while a tool was at work: its call without
    /// its result would be done again, or refused by the model, so the place is the one before the call then.
    fn place(&self, head: Option<usize>, next: usize) -> Place {
        let closed = self.closed(head);
        let next = match closed {
            Some(c) if closed != head && self.format == Format::Line => c + 1,
            _ => next,
        };
        let last = self
            .spots
            .len()
            .checked_sub(1)
            .filter(|_| next == self.spots.len());
        Place {
            head: closed.map(|h| self.spots[h].id.clone()),
            next: last.map_or_else(
                || self.index(next.min(self.spots.len() - 1)),
                |l| self.index(l) + 1,
            ),
        }
    }

    /// The nearest event from this one up that no tool call is open at.
    fn closed(&self, head: Option<usize>) -> Option<usize> {
        let mut head = head;
        while let Some(from) = head {
            let (mut here, mut done, mut open) = (Some(from), HashSet::new(), None);
            while let Some(i) = here {
                done.extend(self.spots[i].outcome.as_deref());
                if self.spots[i].call.as_deref().is_some_and(|c| !done.contains(c)) {
                    open = Some(i);
                }
                here = self.spots[i].parent.filter(|p| *p < i);
            }
            match open {
                None => return head,
                Some(call) => head = self.spots[call].parent.filter(|p| *p < call),
            }
        }
        None
    }

    /// The place at the end of a message's turn, on the message's own branch.
    pub fn end_of(&self, message: &str) -> Option<Place> {
        let spot = *self.at.get(message)?;
        let turn = self.turns();
        let active = self.path();
        let of = |i: usize| turn[i] == Some(spot);
        // the message that came next, the one on the active branch before others
        let mut next: Vec<usize> = (0..self.spots.len())
            .filter(|&i| self.spots[i].message && self.spots[i].parent.is_some_and(of))
            .collect();
        next.sort_by_key(|i| !active[*i]);
        let last = match next.first() {
            Some(&n) => self.spots[n].parent,
            None => {
                let head = self.head.as_ref().and_then(|h| self.at.get(h)).copied();
                let newest = (0..self.spots.len()).rfind(|&i| of(i) && self.spots[i].head);
                head.filter(|&h| of(h)).or(newest)
            }
        };
        Some(self.place(last, next.first().copied().unwrap_or(self.spots.len())))
    }

    /// Which of two events is met first on the way from the head to the root.
    pub fn first_met<'a>(&self, a: &'a str, b: &'a str) -> Option<&'a str> {
        let mut here = self.head.as_ref().and_then(|h| self.at.get(h)).copied();
        let mut steps = 0;
        while let Some(i) = here.filter(|_| steps <= self.spots.len()) {
            let id = self.spots[i].id.as_str();
            if let Some(met) = [a, b].into_iter().find(|w| *w == id) {
                return Some(met);
            }
            here = self.spots[i].parent;
            steps += 1;
        }
        None
    }

    /// For each event the message whose turn it belongs to.
    fn turns(&self) -> Vec<Option<usize>> {
        let mut turns: Vec<Option<usize>> = vec![None; self.spots.len()];
        for (i, s) in self.spots.iter().enumerate() {
            turns[i] = if s.message {
                Some(i)
            } else {
                s.parent.filter(|p| *p < i).and_then(|p| turns[p])
            };
        }
        turns
    }

    fn path(&self) -> Vec<bool> {
        let mut path = vec![false; self.spots.len()];
        let mut here = self.head.as_ref().and_then(|h| self.at.get(h)).copied();
        while let Some(i) = here {
            if std::mem::replace(&mut path[i], true) {
                break;
            }
            here = self.spots[i].parent;
        }
        path
    }
}

fn spot(i: usize, event: &Event, at: &HashMap<String, usize>) -> Spot {
    Spot {
        id: event.id.clone(),
        parent: match &event.parent {
            Parent::Root => None,
            Parent::Id(id) => at.get(id).copied(),
            Parent::Previous => i.checked_sub(1),
        },
        message: matches!(event.fact, Fact::Message(_)),
        head: event.may_be_head(),
        call: match &event.fact {
            Fact::Call(id) => Some(id.clone()),
            _ => None,
        },
        outcome: match &event.fact {
            Fact::Outcome(id) => Some(id.clone()),
            _ => None,
        },
    }
}

fn name(path: &Path) -> String {
    path.file_name()
        .map(|n| n.to_string_lossy().into_owned())
        .unwrap_or_default()
}

/// True while the lease of a store holds: a server has it, or has just taken it.
pub fn leased_now(store: &Path) -> bool {
    let folder = Folder::open(store).ok().flatten();
    folder.is_some_and(|f| openhands_lease::of(&f) == openhands_lease::Held::Yes)
}

/// The head and the status that `base_state.json` names now.
pub fn head_now(store: &Path) -> Result<(Option<String>, Option<String>)> {
    let folder = Folder::open(store)?.ok_or_else(|| ConversationError::NotFound {
        what: format!("at {}", crate::text::shown_path(store)),
    })?;
    let base = Base::read(&folder)?;
    Ok((base.leaf, base.status))
}
