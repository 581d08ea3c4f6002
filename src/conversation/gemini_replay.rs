//! A Gemini CLI chat, replayed: records add messages, stand for older ones, set the whole list anew or take its end
//! back. Every message of the human's that ever was is kept; those that are left at the end are the active branch.

use std::collections::HashMap;

use super::claude_record::Stage;
use super::gemini_record::{Entry, Event};
use super::rows::Row;

/// A message in the list as it is now.
struct Listed {
    id: String,
    /// The human's message that it is, or the last one before it.
    last: Option<usize>,
    call: bool,
}

/// What the records have told so far.
#[derive(Default)]
pub(super) struct Replay {
    pub(super) session: Option<String>,
    pub(super) side: bool,
    pub(super) summary: Option<String>,
    pub(super) stage: Option<Stage>,
    /// The position of the newest record by which the agent used a tool.
    pub(super) acted: Option<u64>,
    rows: Vec<Row>,
    row_of: HashMap<String, usize>,
    list: Vec<Listed>,
    at: HashMap<String, usize>,
    /// What a list sets anew was there before: nothing in it is new.
    part: bool,
}

impl Replay {
    /// `part`: the records begin in the middle of the file.
    pub(super) fn new(part: bool) -> Self {
        Self {
            part,
            ..Self::default()
        }
    }

    /// Takes the next record, which stands at `at`.
    pub(super) fn take(&mut self, at: u64, event: Event) {
        self.session = self.session.take().or(event.session);
        self.side |= event.side;
        self.summary = event.summary.or(self.summary.take());
        if let Some(list) = event.list {
            self.list.clear();
            self.at.clear();
            for entry in list {
                let fresh = !self.part;
                self.add(at, entry, fresh);
            }
        } else if let Some(id) = event.rewind {
            self.rewind(&id);
        } else if let Some(entry) = event.entry {
            self.add(at, entry, true);
        }
    }

    fn rewind(&mut self, id: &str) {
        // what is not known was taken back before, and everything with it
        let keep = self.listed(id).unwrap_or(0);
        self.list.truncate(keep);
        self.stage = Some(Stage::Interrupted);
    }

    fn listed(&self, id: &str) -> Option<usize> {
        let at = self.at.get(id).copied()?;
        self.list.get(at).filter(|l| l.id == id).map(|_| at)
    }

    fn add(&mut self, at: u64, entry: Entry, fresh: bool) {
        self.stage = entry.stage.or(self.stage);
        let place = self.listed(&entry.id);
        let known = place.is_some_and(|p| self.list[p].call);
        if entry.call && !known && fresh {
            self.acted = Some(at);
        }
        let before = match place {
            Some(place) => place.checked_sub(1),
            None => self.list.len().checked_sub(1),
        };
        let before = before.and_then(|b| self.list[b].last);
        let own = self.row(at, &entry, before, fresh);
        let last = own.or(before);
        let listed = Listed {
            id: entry.id,
            last,
            call: entry.call || known,
        };
        if let Some(place) = place {
            self.list[place] = listed;
        } else {
            self.at.insert(listed.id.clone(), self.list.len());
            self.list.push(listed);
        }
    }

    /// The row of a message, made where it is seen for the first time.
    fn row(&mut self, at: u64, entry: &Entry, follows: Option<usize>, fresh: bool) -> Option<usize> {
        if let Some(row) = self.row_of.get(&entry.id) {
            return Some(*row);
        }
        let said = entry.said.clone().filter(|_| fresh)?;
        self.row_of.insert(entry.id.clone(), self.rows.len());
        self.rows.push(Row {
            id: entry.id.clone(),
            index: at,
            said,
            follows,
            active: false,
        });
        Some(self.rows.len() - 1)
    }

    /// How many messages of the human's there are.
    pub(super) fn said(&self) -> usize {
        self.rows.len()
    }

    /// The text of the first one.
    pub(super) fn first(&self) -> Option<&str> {
        self.rows.first().map(|r| r.said.text.as_str())
    }

    /// The id of the first one.
    pub(super) fn first_id(&self) -> Option<&str> {
        self.rows.first().map(|r| r.id.as_str())
    }

    /// All of them.
    pub(super) fn rows(&mut self) -> Vec<Row> {
        let mut rows = std::mem::take(&mut self.rows);
        for listed in &self.list {
            if let Some(&row) = self.row_of.get(&listed.id) {
                rows[row].active = true;
            }
        }
        rows
    }
}

#[cfg(test)]
mod tests {
    use super::super::gemini_record::event;
    use super::*;

    fn rows(lines: &[&str], part: bool) -> Vec<(String, bool, Option<usize>)> {
        let mut replay = Replay::new(part);
        for (at, line) in lines.iter().enumerate() {
            replay.take(at as u64, event(line.as_bytes()).expect("JSON"));
        }
        let rows = replay.rows().into_iter();
        rows.map(|r| (r.id, r.active, r.follows)).collect()
    }

    fn row(id: &str, active: bool, follows: Option<usize>) -> (String, bool, Option<usize>) {
        (id.to_owned(), active, follows)
    }

    const ONE: &str = r#"{"id":"1","type":"user","content":"one"}"#;
    const TWO: &str = r#"{"id":"2","type":"user","content":"two"}"#;
    const THREE: &str = r#"{"id":"3","type":"user","content":"three"}"#;

    #[test]
    fn what_is_taken_back_is_a_branch() {
        let back = r#"{"$rewindTo":"2"}"#;
        let want = [
            row("1", true, None),
            row("2", false, Some(0)),
            row("3", true, Some(0)),
        ];
        assert_eq!(rows(&[ONE, TWO, back, THREE], false), want);
        let set = r#"{"$set":{"messages":[{"id":"1","type":"user","content":"one"}]}}"#;
        assert_eq!(rows(&[ONE, TWO, set, THREE], false), want);
        let unknown = r#"{"$rewindTo":"9"}"#;
        assert_eq!(
            rows(&[ONE, unknown, THREE], false),
            [row("1", false, None), row("3", true, None)]
        );
    }

    #[test]
    fn a_list_may_hold_new_messages_only_where_all_was_read() {
        let set = r#"{"$set":{"messages":[{"id":"1","type":"user","content":"one"}]}}"#;
        assert_eq!(rows(&[set, THREE], false).len(), 2);
        assert_eq!(rows(&[set, THREE], true), [row("3", true, None)]);
        assert_eq!(
            rows(&[ONE, TWO, TWO, ONE, THREE], false)[2],
            row("3", true, Some(1))
        );
    }
}
