//! What the formats have in common that keep their messages in lines and name no parents: the rows of a timeline from
//! messages of which each follows another one, and what is noted while lines are read.

use super::Message;
use super::branch::branches;
use super::claude_record::Said;
use super::torn::{Parsed, notice};
use crate::text;

/// Lines that cannot be read are named up to this many.
const NAMED: u64 = 20;

/// A message, and the one that it follows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Row {
    pub(super) id: String,
    /// Its position in the store.
    pub(super) index: u64,
    pub(super) said: Said,
    /// The message that it follows, by its place among the rows.
    pub(super) follows: Option<usize>,
    pub(super) active: bool,
}

/// The messages of these rows, in the store's order. `whole`: these are all, so that numbers are known.
pub(super) fn messages(rows: Vec<Row>, whole: bool) -> Vec<Message> {
    let active: Vec<bool> = rows.iter().map(|r| r.active).collect();
    let branches = branches(&active, |i| rows[i].follows, |_| true, |_| true);
    let mut number = 0;
    rows.into_iter()
        .enumerate()
        .map(|(i, row)| {
            number += u32::from(row.active);
            Message {
                id: row.id,
                index: row.index,
                number: (row.active && whole).then_some(number),
                kind: row.said.kind,
                time: row.said.time,
                text: row.said.text,
                pictures: row.said.pictures,
                active: row.active,
                branch: branches.get(&i).copied().unwrap_or(0),
                parent: None,
                hooks: Vec::new(),
            }
        })
        .collect()
}

/// What is noted of the lines that were read.
#[derive(Debug, Default)]
pub(super) struct Notes {
    /// The position after the newest complete record.
    pub(super) end: u64,
    pub(super) notices: Vec<String>,
    /// How many records were read.
    pub(super) records: u64,
    /// How many lines could not be.
    pub(super) unreadable: u64,
}

impl Notes {
    /// The record of a line that ends at `at`, if it has one.
    pub(super) fn take<R>(&mut self, at: u64, parsed: Parsed<R>) -> Option<R> {
        let record = match parsed {
            Parsed::Unfinished => return None,
            Parsed::Whole(record) => Some(record),
            Parsed::Torn(record) => {
                self.named(notice(at));
                Some(record)
            }
            Parsed::Unreadable(why) => {
                let why = text::shown(&why);
                self.named(format!("the line that ends at byte {at} is left out: {why}"));
                None
            }
        };
        self.end = self.end.max(at + 1);
        self.records += u64::from(record.is_some());
        record
    }

    fn named(&mut self, notice: String) {
        self.unreadable += 1;
        if self.unreadable <= NAMED {
            self.notices.push(notice);
        }
    }

    /// All notices. `skipped`: so many lines were too long to be read.
    pub(super) fn close(mut self, skipped: u64) -> Vec<String> {
        super::claude_gather::too_long(skipped, &mut self.notices);
        if self.unreadable > NAMED {
            let more = self.unreadable - NAMED;
            self.notices.push(format!("{more} more lines are left out"));
        }
        self.notices
    }
}

#[cfg(test)]
mod tests {
    use super::super::MessageKind;
    use super::*;

    #[test]
    fn branches_begin_where_another_message_follows_the_same_one() {
        let row = |id: &str, follows: Option<usize>, active: bool| Row {
            id: id.into(),
            index: 0,
            said: Said {
                kind: MessageKind::Prompt,
                text: String::new(),
                pictures: 0,
                time: None,
            },
            follows,
            active,
        };
        let rows = vec![
            row("1", None, true),
            row("2", Some(0), false),
            row("3", Some(1), false),
            row("2b", Some(0), false),
            row("2c", Some(0), true),
        ];
        let got: Vec<_> = messages(rows, true)
            .into_iter()
            .map(|m| (m.id, m.number, m.branch))
            .collect();
        let want = [
            ("1", Some(1), 0),
            ("2", None, 1),
            ("3", None, 1),
            ("2b", None, 2),
            ("2c", Some(2), 0),
        ];
        assert_eq!(got, want.map(|(id, n, b)| (id.to_owned(), n, b)));
    }
}
