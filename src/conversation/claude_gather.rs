//! What is gathered from the records of a session's file: from its start, from a part of it, or from all.

use super::claude_record::{Fact, Record, Said, Stage, parse};
use super::jsonl::{Jsonl, Line, split};
use super::{MessageKind, Result};
use crate::progress::{Progress, Silent};
use crate::text;

/// The first message is looked for in so much of its start.
const HEAD_MOST: u64 = 1 << 20;
/// Lines that cannot be read are named up to this many.
const NAMED: usize = 20;
/// So much of a file's start and end is read for a list.
pub(super) const HEAD: u64 = 16 << 10;

/// What was read of a file.
#[derive(Default)]
pub(super) struct Gathered {
    pub(super) records: Vec<Record>,
    pub(super) cwd: Option<String>,
    pub(super) title: Option<String>,
    pub(super) summary: Option<String>,
    pub(super) stage: Option<Stage>,
    pub(super) acted: Option<u64>,
    /// The position after the newest complete record.
    pub(super) end: u64,
    pub(super) notices: Vec<String>,
    pub(super) unreadable: u64,
}

impl Gathered {
    pub(super) fn add(&mut self, block: Vec<Record>) {
        for mut record in block {
            if record.fact == Fact::Unfinished {
                continue;
            }
            self.end = self.end.max(record.at + 1);
            self.stage = record.stage.or(self.stage);
            let cwd = record.cwd.take();
            self.cwd = self.cwd.take().or(cwd);
            match &mut record.fact {
                Fact::Title(title) => self.title = Some(std::mem::take(title)),
                Fact::Summary(title) => self.summary = Some(std::mem::take(title)),
                Fact::Unreadable(why) => {
                    self.unreadable += 1;
                    if self.notices.len() < NAMED {
                        let (at, why) = (record.at, text::shown(why));
                        self.notices
                            .push(format!("the line that ends at byte {at} is left out: {why}"));
                    }
                }
                Fact::Call => self.acted = Some(record.at),
                // the human's own line changes files too
                Fact::Message(said) if said.kind == MessageKind::Shell => self.acted = Some(record.at),
                Fact::Message(_) | Fact::Other | Fact::Unfinished => {}
            }
            if record.node.is_some() {
                self.records.push(record);
            }
        }
    }

    pub(super) fn of(lines: Vec<Line<'_>>) -> Self {
        let mut it = Self::default();
        it.add(lines.into_iter().map(parse).collect());
        it
    }

    pub(super) fn first(&self) -> Option<&Said> {
        self.records.iter().find_map(Record::said)
    }

    pub(super) fn said(&self) -> usize {
        self.records.iter().filter(|r| r.said().is_some()).count()
    }

    /// Says how many more lines than the named ones are left out.
    pub(super) fn count_unnamed(&mut self) {
        if self.unreadable > NAMED as u64 {
            let more = self.unreadable - NAMED as u64;
            self.notices.push(format!("{more} more lines are left out"));
        }
    }

    /// The human's title, else the agent's.
    pub(super) fn named(&self) -> Option<String> {
        self.title.clone().or_else(|| self.summary.clone())
    }
}

/// The first records, as many as are needed for the workspace and (where it is `wanted`) the first message.
/// Also whether these are all.
pub(super) fn head(file: &Jsonl, wanted: bool) -> Result<(Gathered, bool)> {
    let mut size = HEAD;
    loop {
        let bytes = file.bytes(0..size.min(file.len))?;
        let all = size >= file.len;
        let mut lines = split(&bytes, 0);
        if !all && lines.last().is_some_and(|l| !l.whole) {
            lines.pop();
        }
        let gathered = Gathered::of(lines);
        let enough = gathered.cwd.is_some() && (!wanted || gathered.first().is_some());
        if all || enough || size >= HEAD_MOST {
            return Ok((gathered, all));
        }
        size *= 4;
    }
}

/// Reads from the line on that holds the byte at `from`. What the part does not tell of the conversation comes
/// from the start of the file.
pub(super) fn part(file: &Jsonl, from: u64) -> Result<Gathered> {
    let start = file.line_start(from)?;
    let mut read = Gathered {
        end: start,
        ..Gathered::default()
    };
    let skipped = file.each(start, &Silent, parse, |block| read.add(block))?;
    too_long(skipped, &mut read.notices);
    if start > 0 {
        // the agent may have gone to another folder since
        let (head, _) = head(file, false)?;
        read.cwd = head.cwd.or(read.cwd);
    }
    Ok(read)
}

pub(super) fn too_long(skipped: u64, notices: &mut Vec<String>) {
    if skipped > 0 {
        notices.push(format!(
            "{} longer than 64 MiB left out",
            text::count(skipped, "line")
        ));
    }
}

/// All of it.
pub(super) fn all(file: &Jsonl, progress: &dyn Progress) -> Result<Gathered> {
    let mut read = Gathered::default();
    let skipped = file.each(0, progress, parse, |block| read.add(block))?;
    too_long(skipped, &mut read.notices);
    Ok(read)
}
