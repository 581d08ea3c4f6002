//! The event tree of an OpenHands V1 conversation: which messages are on the active branch, which branch
//! the others are on, what each one's head before it is.

use std::collections::HashMap;

use super::branch::{branches, path_of};
use super::openhands_event::{Event, Fact, Parent, Said};
use super::{HookNote, Message, MessageKind};

/// Where the conversation's head is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Head {
    /// At this event.
    At(String),
    /// Before the first event.
    Empty,
    /// Not recorded (before SDK 1.31): at the newest event of the tree.
    Newest,
}

/// The messages of a run of events that begins at index `first` (0: all of them, so that numbers are known).
#[derive(Debug)]
pub(super) struct Grown {
    pub(super) messages: Vec<Message>,
    pub(super) notices: Vec<String>,
    /// The index of the newest tool call.
    pub(super) acted: Option<u64>,
}

/// Makes the messages of `events`, in the store's order.
pub(super) fn grow(events: &[Event], first: u64, head: &Head, running: bool) -> Grown {
    let tree = Tree::new(events);
    let mut notices = Vec::new();
    let active = tree.active(head, first == 0, &mut notices);
    let branches = tree.branches(&active);
    let mut hooks = hook_notes(events);
    let queued = queued(events, running);
    let mut number = 0;
    let messages = tree
        .said()
        .map(|(at, said)| {
            let event = &events[at];
            number += u32::from(active[at]);
            Message {
                id: event.id.clone(),
                index: first + at as u64,
                number: (active[at] && first == 0).then_some(number),
                kind: if queued[at] {
                    MessageKind::Queued
                } else {
                    MessageKind::Prompt
                },
                time: said.time,
                text: said.text.clone(),
                pictures: said.pictures,
                active: active[at],
                branch: branches.get(&at).copied().unwrap_or(0),
                parent: tree.parent_id(at),
                hooks: hooks.remove(event.id.as_str()).unwrap_or_default(),
            }
        })
        .collect();
    let acted = events.iter().rposition(|e| matches!(e.fact, Fact::Call(_)));
    Grown {
        messages,
        notices,
        acted: acted.map(|i| first + i as u64),
    }
}

struct Tree<'a> {
    events: &'a [Event],
    at: HashMap<&'a str, usize>,
}

impl<'a> Tree<'a> {
    fn new(events: &'a [Event]) -> Self {
        let at = events
            .iter()
            .enumerate()
            .map(|(i, e)| (e.id.as_str(), i))
            .collect();
        Self { events, at }
    }

    fn said(&self) -> impl Iterator<Item = (usize, &'a Said)> {
        self.events.iter().enumerate().filter_map(|(i, e)| match &e.fact {
            Fact::Message(said) => Some((i, &**said)),
            _ => None,
        })
    }

    /// The id of the event before `i`, whether it is here or not.
    fn parent_id(&self, i: usize) -> Option<String> {
        match &self.events[i].parent {
            Parent::Root => None,
            Parent::Id(id) => Some(id.clone()),
            Parent::Previous => i.checked_sub(1).map(|p| self.events[p].id.clone()),
        }
    }

    fn parent(&self, i: usize) -> Option<usize> {
        match &self.events[i].parent {
            Parent::Root => None,
            Parent::Id(id) => self.at.get(id.as_str()).copied(),
            Parent::Previous => i.checked_sub(1),
        }
    }

    fn newest(&self) -> Option<usize> {
        self.events.iter().rposition(Event::may_be_head)
    }

    /// For each event whether it is on the path from the head to the root.
    fn active(&self, head: &Head, whole: bool, notices: &mut Vec<String>) -> Vec<bool> {
        let head = match head {
            Head::Empty => None,
            Head::Newest => self.newest(),
            Head::At(id) => match self.at.get(id.as_str()) {
                Some(&i) => Some(i),
                None if whole => {
                    notices.push(format!(
                        "base_state.json: the head {} is no readable event; the newest one is taken for it",
                        crate::text::shown(id)
                    ));
                    self.newest()
                }
                None => None,
            },
        };
        path_of(self.events.len(), head, |i| self.parent(i))
    }

    /// The branch of each message off the active one.
    fn branches(&self, active: &[bool]) -> HashMap<usize, u32> {
        let is_message = |i: usize| matches!(self.events[i].fact, Fact::Message(_));
        branches(active, |i| self.parent(i), is_message, |_| true)
    }
}

/// The runs of prompt hooks by the id of their message.
fn hook_notes(events: &[Event]) -> HashMap<&str, Vec<HookNote>> {
    let mut notes: HashMap<&str, Vec<HookNote>> = HashMap::new();
    for event in events {
        if let Fact::Hook {
            message,
            stdout,
            blocked,
        } = &event.fact
        {
            let note = HookNote {
                stdout: stdout.clone(),
                blocked: *blocked,
            };
            notes.entry(message).or_default().push(note);
        }
    }
    notes
}

/// The messages that were stored while a turn ran: the agent server had noted `running` before them, or a
/// tool call that began before them ended after them. A call that never ends (a killed agent) proves
/// nothing, unless the agent is `running` still.
fn queued(events: &[Event], running: bool) -> Vec<bool> {
    let mut queued = vec![false; events.len()];
    let mut began: HashMap<&str, usize> = HashMap::new();
    // for each outcome, where its call began
    let mut spans = HashMap::new();
    let mut at_work = false;
    for (i, event) in events.iter().enumerate() {
        match &event.fact {
            Fact::Status(s) => at_work = s == "running",
            Fact::Call(id) => {
                began.insert(id, i);
            }
            Fact::Outcome(id) => {
                if let Some(start) = began.remove(id.as_str()) {
                    spans.insert(i, start);
                }
            }
            Fact::Message(_) => queued[i] = at_work,
            _ => {}
        }
    }
    let open = began.values().min().filter(|_| running);
    let mut earliest = open.copied().unwrap_or(events.len());
    for i in (0..events.len()).rev() {
        earliest = earliest.min(spans.get(&i).copied().unwrap_or(events.len()));
        queued[i] |= earliest < i;
    }
    queued
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(id: &str, parent: Parent, fact: Fact) -> Event {
        Event {
            id: id.into(),
            parent,
            fact,
        }
    }
    fn message() -> Fact {
        Fact::Message(Box::default())
    }
    fn at(id: &str) -> Parent {
        Parent::Id(id.into())
    }
    fn rows(events: &[Event], head: &str) -> Vec<(String, Option<u32>, u32)> {
        grow(events, 0, &Head::At(head.into()), false)
            .messages
            .into_iter()
            .map(|m| (m.id, m.number, m.branch))
            .collect()
    }
    fn row(id: &str, number: Option<u32>, branch: u32) -> (String, Option<u32>, u32) {
        (id.into(), number, branch)
    }

    #[test]
    fn branches_are_numbered_as_they_leave() {
        let events = [
            event("s", Parent::Root, Fact::Node),
            event("m1", at("s"), message()),
            event("a1", at("m1"), Fact::Node),
            event("m2", at("a1"), message()),
            event("a2", at("m2"), Fact::Node),
            event("m3", at("a2"), message()),
            event("m4", at("a2"), message()),
            event("m5", at("a1"), message()),
            event("m6", at("a1"), message()),
        ];
        assert_eq!(
            rows(&events, "m6"),
            [
                row("m1", Some(1), 0),
                row("m2", None, 1),
                row("m3", None, 1),
                row("m4", None, 2),
                row("m5", None, 3),
                row("m6", Some(2), 0)
            ]
        );
    }

    #[test]
    fn circles_and_unknown_parents_end() {
        let events = [
            event("a", at("b"), message()),
            event("b", at("a"), message()),
            event("c", at("c"), message()),
            event("d", at("nowhere"), message()),
        ];
        assert_eq!(rows(&events, "a")[0], row("a", Some(1), 0));
        assert_eq!(rows(&events, "c").len(), 4);
        assert_eq!(rows(&events, "d")[3], row("d", Some(1), 0));
    }

    #[test]
    fn without_a_head_the_newest_event_of_the_tree_is_it() {
        let events = [
            event("m1", Parent::Previous, message()),
            event("m2", Parent::Previous, message()),
            event("x", at("m1"), Fact::Aside),
        ];
        let grown = grow(&events, 0, &Head::Newest, false);
        assert!(grown.messages.iter().all(|m| m.active));
        assert_eq!(grown.messages[1].parent.as_deref(), Some("m1"));
        assert!(
            grow(&events, 0, &Head::Empty, false)
                .messages
                .iter()
                .all(|m| !m.active)
        );
        let lost = grow(&events, 0, &Head::At("gone".into()), false);
        assert!(lost.notices.len() == 1 && lost.messages[1].active);
    }

    #[test]
    fn a_message_during_a_turn_is_queued() {
        let call = |id: &str| Fact::Call(id.into());
        let done = |id: &str| Fact::Outcome(id.into());
        let run = |facts: Vec<Fact>, running| {
            let events: Vec<Event> = facts
                .into_iter()
                .enumerate()
                .map(|(i, f)| event(&i.to_string(), Parent::Previous, f))
                .collect();
            grow(&events, 0, &Head::Newest, running)
                .messages
                .pop()
                .map(|m| m.kind)
        };
        let status = |s: &str| Fact::Status(s.into());
        assert_eq!(
            run(vec![call("a"), message(), done("a")], false),
            Some(MessageKind::Queued)
        );
        assert_eq!(
            run(vec![call("a"), done("a"), message()], true),
            Some(MessageKind::Prompt)
        );
        assert_eq!(run(vec![call("a"), message()], false), Some(MessageKind::Prompt));
        assert_eq!(run(vec![call("a"), message()], true), Some(MessageKind::Queued));
        assert_eq!(
            run(vec![status("running"), message()], false),
            Some(MessageKind::Queued)
        );
        assert_eq!(
            run(vec![status("running"), status("idle"), message()], true),
            Some(MessageKind::Prompt)
        );
    }
}
