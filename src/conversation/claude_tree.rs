//! The tree of a Claude Code session: each record names the one that it follows. The active branch is the path from
//! the newest record of the conversation itself to its root. A rewind leaves no trace but the next message's
//! parent; a conversation that was made shorter goes on across the boundary, so that the messages before stay.

use std::collections::HashMap;

use super::Message;
use super::branch::{branches, path_of};
use super::claude_record::Record;

/// The messages of `records`, in the file's order. `whole`: these are all records of the file, so that numbers are
/// known, and a parent that is not there is lost (the record before stands for it) rather than not read.
pub(super) fn grow(records: &[Record], whole: bool) -> Vec<Message> {
    let tree = Tree::new(records, whole);
    let active = tree.active();
    let branches = tree.branches(&active);
    let mut number = 0;
    tree.messages()
        .filter_map(|i| {
            let (record, said) = (&records[i], records[i].said()?);
            number += u32::from(active[i]);
            Some(Message {
                id: record.node.as_ref()?.uuid.clone(),
                index: record.at,
                number: (active[i] && whole).then_some(number),
                kind: said.kind,
                time: said.time,
                text: said.text.clone(),
                pictures: said.pictures,
                active: active[i],
                branch: branches.get(&i).copied().unwrap_or(0),
                parent: tree.parent_id(i),
                hooks: Vec::new(),
            })
        })
        .collect()
}

pub(super) struct Tree<'a> {
    records: &'a [Record],
    /// Where each record stands; the first of several with one id counts.
    at: HashMap<&'a str, usize>,
    /// The record of the conversation itself that stands before.
    before: Vec<Option<usize>>,
    whole: bool,
}

impl<'a> Tree<'a> {
    pub(super) fn new(records: &'a [Record], whole: bool) -> Self {
        let mut at = HashMap::with_capacity(records.len());
        let mut before = Vec::with_capacity(records.len());
        let mut last = None;
        for (i, record) in records.iter().enumerate() {
            before.push(last);
            if let Some(node) = &record.node {
                at.entry(node.uuid.as_str()).or_insert(i);
                if !node.side {
                    last = Some(i);
                }
            }
        }
        Self {
            records,
            at,
            before,
            whole,
        }
    }

    /// True where this record is the one that its id stands for.
    pub(super) fn counts(&self, i: usize) -> bool {
        let node = self.records[i].node.as_ref();
        node.is_some_and(|n| self.at.get(n.uuid.as_str()) == Some(&i))
    }

    fn messages(&self) -> impl Iterator<Item = usize> {
        (0..self.records.len()).filter(|&i| self.records[i].said().is_some() && self.counts(i))
    }

    pub(super) fn parent(&self, i: usize) -> Option<usize> {
        let node = self.records[i].node.as_ref()?;
        let named = node.parents.iter().find_map(|p| self.at.get(p.as_str()).copied());
        let lost = || self.before[i].filter(|_| self.whole && !node.side && !node.parents.is_empty());
        named.or_else(lost)
    }

    /// The id of the record before `i`, whether it is here or not.
    fn parent_id(&self, i: usize) -> Option<String> {
        let here = self
            .parent(i)
            .and_then(|p| self.records[p].node.as_ref())
            .map(|n| n.uuid.clone());
        let named = || {
            self.records[i]
                .node
                .as_ref()?
                .parents
                .iter()
                .find(|p| !p.is_empty())
                .cloned()
        };
        here.or_else(named)
    }

    /// All records that it may follow and that are here.
    pub(super) fn parents(&self, i: usize) -> Vec<usize> {
        let named = self.records[i].node.iter().flat_map(|n| &n.parents);
        named.filter_map(|p| self.at.get(p.as_str()).copied()).collect()
    }

    /// The message with this id.
    pub(super) fn message(&self, id: &str) -> Option<usize> {
        let at = self.at.get(id).copied();
        at.filter(|&i| self.records[i].said().is_some())
    }

    /// The newest record of the conversation itself.
    pub(super) fn head(&self) -> Option<usize> {
        let own = |r: &Record| r.node.as_ref().is_some_and(|n| !n.side);
        let newest = self.records.iter().rposition(own);
        newest.and_then(|i| self.at.get(self.records[i].node.as_ref()?.uuid.as_str()).copied())
    }

    /// For each record whether it is on the path from the newest one to the root.
    fn active(&self) -> Vec<bool> {
        path_of(self.records.len(), self.head(), |i| self.parent(i))
    }

    /// The branch of each message off the active one.
    fn branches(&self, active: &[bool]) -> HashMap<usize, u32> {
        let is_message = |i: usize| self.records[i].said().is_some();
        branches(active, |i| self.parent(i), is_message, |i| self.counts(i))
    }
}

#[cfg(test)]
mod tests {
    use super::super::claude_record::parse;
    use super::super::jsonl::split;
    use super::*;

    fn rows(lines: &str, whole: bool) -> Vec<(String, Option<u32>, u32, Option<String>)> {
        let records: Vec<Record> = split(lines.as_bytes(), 0).into_iter().map(parse).collect();
        grow(&records, whole)
            .into_iter()
            .map(|m| (m.id, m.number, m.branch, m.parent))
            .collect()
    }

    fn said(id: &str, parent: &str) -> String {
        format!(
            "{{\"type\":\"user\",\"uuid\":\"{id}\",\"parentUuid\":{parent},\"message\":{{\"content\":\"x\"}}}}\n"
        )
    }

    fn row(
        id: &str,
        number: Option<u32>,
        branch: u32,
        parent: Option<&str>,
    ) -> (String, Option<u32>, u32, Option<String>) {
        (id.into(), number, branch, parent.map(Into::into))
    }

    #[test]
    fn branches_are_numbered_as_they_leave() {
        let lines = said("m1", "null")
            + &said("m2", "\"m1\"")
            + &said("m3", "\"m2\"")
            + &said("m4", "\"m2\"")
            + &said("m5", "\"m1\"")
            + &said("m5", "\"m4\"");
        assert_eq!(
            rows(&lines, true),
            [
                row("m1", Some(1), 0, None),
                row("m2", None, 1, Some("m1")),
                row("m3", None, 1, Some("m2")),
                row("m4", None, 2, Some("m2")),
                row("m5", Some(2), 0, Some("m1")),
            ]
        );
    }

    /// A boundary goes on at what it names, at what was kept, or at the record before it, in this order.
    #[test]
    fn a_boundary_is_crossed() {
        let boundary = |logical: &str, tail: &str| {
            format!(
                "{{\"type\":\"system\",\"subtype\":\"compact_boundary\",\"uuid\":\"b\",\"parentUuid\":null,\
                 \"logicalParentUuid\":{logical},\"compactMetadata\":{{\"preservedSegment\":{{\"tailUuid\":{tail}}}}}}}\n"
            )
        };
        let two = said("m1", "null") + &said("m2", "\"m1\"");
        for (logical, tail, second) in [
            ("\"m2\"", "null", Some(2)),
            ("\"m1\"", "\"m2\"", None),
            ("\"gone\"", "\"m1\"", None),
            ("\"gone\"", "\"gone\"", Some(2)),
            ("null", "null", Some(2)),
        ] {
            let lines = two.clone() + &boundary(logical, tail) + &said("m3", "\"b\"");
            let rows = rows(&lines, true);
            assert_eq!((rows[0].1, rows[1].1), (Some(1), second), "{logical} {tail}");
            assert!(rows[2].1.is_some());
        }
    }

    #[test]
    fn circles_end_and_lost_parents_are_the_record_before() {
        let circle = said("a", "\"b\"") + &said("b", "\"a\"");
        assert_eq!(rows(&circle, true).len(), 2);
        let lost = said("a", "null") + &said("b", "\"gone\"");
        assert_eq!(rows(&lost, true)[0], row("a", Some(1), 0, None));
        assert_eq!(rows(&lost, false)[0], row("a", None, 1, None));
        assert_eq!(rows(&lost, false)[1], row("b", None, 0, Some("gone")));
    }
}
