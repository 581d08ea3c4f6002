//! The part of a Claude Code session that leads to a place in it: which records a conversation must begin with that goes
//! on from there. Nothing is written here.
//!
//! Those are the records on the path to the root, with what belongs to them and stands beside it: the other records of
//! an answer that calls several tools at once, and their results. A call that never got its result is left out, as the
//! model is sent calls and results in pairs. What is no record of the tree (titles, modes, the queue's own log,
//! copies of files) and sub-agents' records are left out, as Claude Code 2.1.197 and 2.1.332 do in their own forks.

use std::collections::HashSet;
use std::ops::Range;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::claude_record::{Record, Ties, parse_tied};
use super::claude_tree::Tree;
use super::jsonl::Jsonl;
use super::{ConversationError, MessageKind, Result};
use crate::progress::Progress;
use crate::text;

/// A place in a conversation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Until {
    /// Just before this message.
    Before(String),
    /// The end of this message's turn.
    EndOf(String),
}

/// One record of the beginning.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Piece {
    at: Range<u64>,
    /// The record that it follows now, where that is another one than it says (`None`: it is a root).
    pub follows: Option<Option<String>>,
}

/// The records that lead to a place, in the file's order.
#[derive(Debug)]
pub struct Beginning {
    file: Jsonl,
    /// They.
    pub pieces: Vec<Piece>,
    /// How many messages of the human's are among them.
    pub messages: usize,
    /// The conversation ends there as it is: nothing comes after it.
    pub whole: bool,
}

impl Beginning {
    /// What leads to `until`; `None` if there is no such message. `store`: the session's file.
    pub fn read(store: &Path, until: &Until, progress: &dyn Progress) -> Result<Option<Self>> {
        let not_found = || ConversationError::NotFound {
            what: format!("at {}", text::shown_path(store)),
        };
        let file = Jsonl::open(store)?.ok_or_else(not_found)?;
        let (mut records, mut ties) = (Vec::new(), Vec::new());
        let skipped = file.each(0, progress, parse_tied, |block: Vec<Option<(Record, Ties)>>| {
            for (record, tie) in block.into_iter().flatten().filter(|(r, _)| r.node.is_some()) {
                records.push(record);
                ties.push(tie);
            }
        })?;
        if skipped > 0 {
            return Err(file.damaged("a record of it is longer than 64 MiB"));
        }
        let session = Session {
            tree: Tree::new(&records, true),
            records: &records,
            ties: &ties,
        };
        let Some(kept) = session.until(until) else {
            return Ok(None);
        };
        if kept.circle {
            return Err(file.damaged("its records follow each other in a circle"));
        }
        let messages = kept
            .pieces
            .iter()
            .filter(|p| records[**p].said().is_some())
            .count();
        let pieces = kept.pieces.iter().map(|&i| session.piece(i, &kept.is)).collect();
        Ok(Some(Self {
            pieces,
            messages,
            whole: kept.whole,
            file,
        }))
    }

    /// Hands each record over, without its line feed.
    pub fn each<E: From<ConversationError>>(
        &self,
        mut take: impl FnMut(&[u8], &Piece) -> std::result::Result<(), E>,
    ) -> std::result::Result<(), E> {
        for piece in &self.pieces {
            take(&self.file.bytes(piece.at.clone())?, piece)?;
        }
        Ok(())
    }
}

/// The records of a session.
struct Session<'a> {
    records: &'a [Record],
    ties: &'a [Ties],
    tree: Tree<'a>,
}

struct Kept {
    is: Vec<bool>,
    pieces: Vec<usize>,
    whole: bool,
    circle: bool,
}

impl Session<'_> {
    fn until(&self, until: &Until) -> Option<Kept> {
        let (Until::Before(id) | Until::EndOf(id)) = until;
        let message = self.tree.message(id)?;
        let (cut, limit) = match until {
            Until::Before(_) => (self.before(message), message),
            Until::EndOf(_) => {
                let end = self.end_of(message);
                (Some(end), self.records.len())
            }
        };
        let mut is = self.path(cut);
        self.add_company(&mut is, limit);
        self.leave_open_calls_out(&mut is);
        self.leave_lone_results_out(&mut is);
        let counts = |&i: &usize| is[i] && self.tree.counts(i);
        let pieces: Vec<usize> = (0..self.records.len()).filter(counts).collect();
        let head = self.tree.head();
        let after = |i: usize| self.records[i].stage.is_some() && Some(i) != cut;
        let mut here = head;
        let mut whole = matches!(until, Until::EndOf(_));
        // from the head down to the cut nothing is said or done
        while let Some(i) = here.filter(|&i| Some(i) != cut) {
            if after(i) || self.ties[i].boundary {
                whole = false;
                break;
            }
            here = self.tree.parent(i).filter(|&p| p < i);
        }
        Some(Kept {
            is,
            pieces,
            whole: whole && here.is_some(),
            circle: self.is_in_circle(cut),
        })
    }

    /// What comes later would lead to it, too.
    fn is_in_circle(&self, cut: Option<usize>) -> bool {
        let path = std::iter::successors(cut, |&i| self.tree.parent(i));
        path.take(self.records.len() + 1).count() > self.records.len()
    }

    /// The record before a message. A command that makes the conversation shorter is noted after what it did.
    fn before(&self, message: usize) -> Option<usize> {
        let parent = self.tree.parent(message);
        let compacts = self.records[message]
            .said()
            .is_some_and(|s| s.kind == MessageKind::Command && s.text.starts_with("/compact"));
        let mut here = parent.filter(|_| compacts);
        while let Some(i) = here {
            if self.ties[i].boundary {
                return self.tree.parent(i);
            }
            let idle = self.records[i].stage.is_none() && self.records[i].said().is_none();
            here = self.tree.parent(i).filter(|&p| idle && p < i);
        }
        parent
    }

    /// The last record by which the agent did something for a message before the next one.
    fn end_of(&self, message: usize) -> usize {
        let mut of = vec![false; self.records.len()];
        of[message] = true;
        let mut end = message;
        for i in message + 1..self.records.len() {
            let record = &self.records[i];
            let side = record.node.as_ref().is_some_and(|n| n.side);
            if side || record.said().is_some() || !self.tree.counts(i) {
                continue;
            }
            of[i] = self.tree.parent(i).is_some_and(|p| of[p]);
            if of[i] && record.stage.is_some() {
                end = i;
            }
        }
        end
    }

    /// What leads to a record; where the conversation was made shorter, what was kept of it, too.
    fn path(&self, cut: Option<usize>) -> Vec<bool> {
        let mut is = vec![false; self.records.len()];
        let mut next: Vec<usize> = cut.into_iter().collect();
        while let Some(i) = next.pop() {
            if std::mem::replace(&mut is[i], true) {
                continue;
            }
            next.extend(self.tree.parent(i));
            if self.ties[i].boundary {
                next.extend(self.tree.parents(i));
            }
        }
        is
    }

    /// An answer is several records, and the results of calls made at once follow one of them each: those that the
    /// path passes by belong to it all the same.
    fn add_company(&self, is: &mut [bool], limit: usize) {
        let ties = |i: &usize| &self.ties[*i];
        let on_path: Vec<usize> = (0..limit).filter(|&i| is[i]).collect();
        let answers: HashSet<&String> = on_path.iter().filter_map(|i| ties(i).message.as_ref()).collect();
        let results: HashSet<&String> = on_path.iter().flat_map(|i| &ties(i).results).collect();
        let mut calls: HashSet<&String> = on_path.iter().flat_map(|i| &ties(i).calls).collect();
        for i in (0..limit).filter(|&i| self.tree.counts(i)) {
            let follows = self.tree.parent(i).is_some_and(|p| is[p]);
            let side = self.records[i].node.as_ref().is_some_and(|n| n.side);
            if is[i] || side || !follows {
                continue;
            }
            let tie = &self.ties[i];
            let answer = tie.message.as_ref().is_some_and(|m| answers.contains(m));
            let mut of_calls = tie.results.iter();
            let result =
                !tie.results.is_empty() && of_calls.all(|r| calls.contains(r) && !results.contains(r));
            if answer || result {
                is[i] = true;
                calls.extend(&tie.calls);
            }
        }
    }

    fn leave_open_calls_out(&self, is: &mut [bool]) {
        let kept = || (0..self.records.len()).filter(|&i| is[i]);
        let results: HashSet<&String> = kept().flat_map(|i| &self.ties[i].results).collect();
        let open = |i: &usize| {
            let calls = &self.ties[*i].calls;
            !calls.is_empty() && !calls.iter().any(|c| results.contains(c))
        };
        let gone: Vec<usize> = kept().filter(open).collect();
        for i in gone {
            is[i] = false;
        }
    }

    /// The call may be in a line that cannot be read.
    fn leave_lone_results_out(&self, is: &mut [bool]) {
        let kept = || (0..self.records.len()).filter(|&i| is[i]);
        let calls: HashSet<&String> = kept().flat_map(|i| &self.ties[i].calls).collect();
        let lone = |i: &usize| {
            let results = &self.ties[*i].results;
            !results.is_empty() && !results.iter().any(|r| calls.contains(r))
        };
        let gone: Vec<usize> = kept().filter(lone).collect();
        for i in gone {
            is[i] = false;
        }
    }

    fn piece(&self, i: usize, is: &[bool]) -> Piece {
        let parent = self.tree.parent(i).filter(|_| !self.ties[i].boundary);
        let mut here = parent;
        while let Some(p) = here.filter(|&p| !is[p]) {
            here = self.tree.parent(p).filter(|&g| g < p);
        }
        let id = |p: usize| self.records[p].node.as_ref().map(|n| n.uuid.clone());
        Piece {
            at: self.ties[i].start..self.records[i].at + 1,
            follows: (here != parent).then(|| here.and_then(id)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The ids, what the records follow where that changed, and whether nothing comes after.
    type Led = (Vec<String>, Vec<Option<Option<String>>>, bool);

    fn beginning(lines: &str, until: &Until) -> Option<Led> {
        let dir = tempfile::tempdir().expect("a folder");
        let store = dir.path().join("s.jsonl");
        std::fs::write(&store, lines).expect("write");
        let read = Beginning::read(&store, until, &crate::progress::Silent).expect("read")?;
        let mut out = Vec::new();
        read.each(|bytes, _| -> Result<()> {
            let v: serde_json::Value = serde_json::from_slice(bytes).expect("JSON");
            out.push(v["uuid"].as_str().expect("an id").to_owned());
            Ok(())
        })
        .expect("pieces");
        let follows = read.pieces.iter().map(|p| p.follows.clone()).collect();
        Some((out, follows, read.whole))
    }

    fn said(id: &str, parent: &str) -> String {
        format!(
            "{{\"type\":\"user\",\"uuid\":\"{id}\",\"parentUuid\":{parent},\"message\":{{\"content\":\"x\"}}}}\n"
        )
    }

    fn agent(id: &str, parent: &str, message: &str, block: &str) -> String {
        format!(
            "{{\"type\":\"assistant\",\"uuid\":\"{id}\",\"parentUuid\":\"{parent}\",\"message\":{{\"id\":\"{message}\",\"content\":[{block}]}}}}\n"
        )
    }

    fn call(id: &str) -> String {
        format!("{{\"type\":\"tool_use\",\"id\":\"{id}\",\"name\":\"Bash\"}}")
    }

    fn result(id: &str, parent: &str, of: &str) -> String {
        format!(
            "{{\"type\":\"user\",\"uuid\":\"{id}\",\"parentUuid\":\"{parent}\",\"toolUseResult\":{{}},\"message\":{{\"content\":[{{\"type\":\"tool_result\",\"tool_use_id\":\"{of}\"}}]}}}}\n"
        )
    }

    const TEXT: &str = "{\"type\":\"text\",\"text\":\"y\"}";

    fn ids(lines: &str, until: &Until) -> Vec<String> {
        beginning(lines, until).expect("the message").0
    }

    fn before(id: &str) -> Until {
        Until::Before(id.into())
    }

    /// Two calls at once: the path passes by the first one's result.
    #[test]
    fn what_belongs_to_an_answer_goes_with_it() {
        let lines = said("m1", "null")
            + &agent("a1", "m1", "x", TEXT)
            + &agent("a2", "a1", "x", &call("c1"))
            + &agent("a3", "a2", "x", &call("c2"))
            + &result("r1", "a2", "c1")
            + &result("r2", "a3", "c2")
            + &agent("a4", "r2", "y", TEXT)
            + &said("m2", "\"a4\"");
        assert_eq!(
            ids(&lines, &before("m2")),
            ["m1", "a1", "a2", "a3", "r1", "r2", "a4"]
        );
        assert_eq!(ids(&lines, &before("m1")), [""; 0]);
        assert_eq!(
            beginning(&lines, &Until::EndOf("m1".into())).expect("m1"),
            (
                ["m1", "a1", "a2", "a3", "r1", "r2", "a4"]
                    .map(str::to_owned)
                    .to_vec(),
                vec![None; 7],
                false
            )
        );
        assert!(beginning(&lines, &before("gone")).is_none());
    }

    /// P130: a call without its result is left out, at the end and in the middle, and what came after it follows what
    /// came before it.
    #[test]
    fn no_call_is_left_open() {
        let lines = said("m1", "null")
            + &agent("a1", "m1", "x", TEXT)
            + &agent("a2", "a1", "x", &call("c1"))
            + &said("m2", "\"a2\"")
            + &agent("a3", "m2", "y", &call("c2"))
            + &said("m3", "\"a3\"");
        assert_eq!(ids(&lines, &before("m2")), ["m1", "a1"]);
        let (ids, follows, _) = beginning(&lines, &before("m3")).expect("m3");
        assert_eq!(ids, ["m1", "a1", "m2"]);
        assert_eq!(follows, [None, None, Some(Some("a1".into()))]);
        // a message that was sent while a tool ran: what the tool gave comes before it
        let queued = said("m1", "null")
            + &agent("a2", "m1", "x", &call("c1"))
            + &said("q", "\"a2\"")
            + &result("r", "a2", "c1")
            + &agent("a3", "r", "y", TEXT);
        assert_eq!(self::ids(&queued, &before("q")), ["m1"]);
    }

    /// A call in a line that is torn in the middle of the file: what it gave is no answer to anything.
    #[test]
    fn no_result_is_left_alone() {
        let torn = agent("a2", "a1", "x", &call("c1"));
        let lines = said("m1", "null")
            + &agent("a1", "m1", "x", TEXT)
            + &torn[..torn.len() / 2]
            + "\n"
            + &result("r1", "a2", "c1")
            + &agent("a3", "r1", "y", TEXT)
            + &said("m2", "\"a3\"");
        let (ids, follows, _) = beginning(&lines, &before("m2")).expect("m2");
        assert_eq!(ids, ["m1", "a1", "a3"]);
        assert_eq!(follows, [None, None, Some(Some("a1".into()))]);
    }

    /// Else a fork would have what it is to be before.
    #[test]
    fn circles_are_refused() {
        let dir = tempfile::tempdir().expect("a folder");
        let store = dir.path().join("s.jsonl");
        let through = |first: &str, second: &str| {
            said("m1", first)
                + &agent("a1", "m1", "x", TEXT)
                + &said("m2", second)
                + &agent("a2", "m2", "y", TEXT)
                + &said("m3", "\"a2\"")
        };
        for lines in [through("\"a2\"", "\"a1\""), through("null", "\"m2\"")] {
            std::fs::write(&store, lines).expect("write");
            for until in [before("m2"), before("m3"), Until::EndOf("m2".into())] {
                let read = Beginning::read(&store, &until, &crate::progress::Silent);
                let error = read.expect_err("a circle").to_string();
                assert!(error.contains("circle"), "{error}");
            }
        }
    }

    /// P125, P127: the first message, and where the conversation was made shorter.
    #[test]
    fn a_boundary_is_no_end() {
        let boundary = "{\"type\":\"system\",\"subtype\":\"compact_boundary\",\"uuid\":\"b\",\"parentUuid\":null,\"logicalParentUuid\":\"a2\"}\n";
        let summary = "{\"type\":\"user\",\"uuid\":\"s\",\"parentUuid\":\"b\",\"isCompactSummary\":true,\"message\":{\"content\":\"z\"}}\n";
        let compact = "{\"type\":\"user\",\"uuid\":\"k\",\"parentUuid\":\"s\",\"message\":{\"content\":\"<command-name>/compact</command-name>\"}}\n";
        let lines = said("m1", "null")
            + &agent("a1", "m1", "x", TEXT)
            + &said("m2", "\"a1\"")
            + &agent("a2", "m2", "y", TEXT)
            + boundary
            + summary
            + compact
            + &said("m3", "\"k\"");
        assert_eq!(ids(&lines, &before("m2")), ["m1", "a1"]);
        assert_eq!(ids(&lines, &before("k")), ["m1", "a1", "m2", "a2"]);
        assert_eq!(
            ids(&lines, &before("m3")),
            ["m1", "a1", "m2", "a2", "b", "s", "k"]
        );
        assert_eq!(ids(&lines, &Until::EndOf("m2".into())), ["m1", "a1", "m2", "a2"]);
    }

    /// Another branch in the same file, a side-chain, a record that stands twice, and a torn line.
    #[test]
    fn what_is_not_on_the_path_stays_out() {
        let side = "{\"type\":\"user\",\"uuid\":\"w\",\"parentUuid\":null,\"isSidechain\":true,\"message\":{\"content\":\"sub\"}}\n";
        let lines = "{\"type\":\"mode\",\"mode\":\"x\"}\n".to_owned()
            + &said("m1", "null")
            + &agent("a1", "m1", "x", TEXT)
            + side
            + &said("old", "\"a1\"")
            + &agent("a9", "old", "q", TEXT)
            + "{\"type\":\"user\",\"uu"
            + &said("m2", "\"a1\"")
            + &said("m2", "\"a1\"")
            + &agent("a2", "m2", "z", TEXT);
        assert_eq!(
            beginning(&lines, &Until::EndOf("m2".into())).expect("m2"),
            (
                ["m1", "a1", "m2", "a2"].map(str::to_owned).to_vec(),
                vec![None; 4],
                true
            )
        );
        assert_eq!(
            ids(&lines, &Until::EndOf("old".into())),
            ["m1", "a1", "old", "a9"]
        );
    }
}
