//! A thread of Codex's: its rollouts one after another, after what they go on from, as if they were one file. A rollout
//! begins where another one was left; the newest one is the active branch.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::{Path, PathBuf};

use super::claude_gather::HEAD;
use super::claude_record::Stage;
use super::codex_files::{Name, Rollouts};
use super::codex_record::{Base, Fact, Record, parse};
use super::jsonl::{Jsonl, split};
use super::rows::{Notes, Row};
use super::{MessageKind, Result};
use crate::progress::Progress;
use crate::text;

/// The first record is looked for in so much of the start.
const HEAD_MOST: u64 = 1 << 20;
/// A thread is not begun from others more often.
const DEEPEST: usize = 256;

/// The first record of a rollout.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Meta {
    pub(super) cwd: Option<String>,
    pub(super) base: Option<Base>,
}

/// Reads the start of a rollout, up to its first record, or with `wanted` its first message.
pub(super) fn head(file: &Jsonl, wanted: bool) -> Result<(Meta, Option<String>)> {
    let mut size = HEAD;
    loop {
        let bytes = file.bytes(0..size.min(file.len))?;
        let (mut meta, mut first) = (None, None);
        for line in split(&bytes, 0) {
            let (_, parsed) = parse(line);
            let mut notes = Notes::default();
            match notes.take(0, parsed).map(|r| r.fact) {
                Some(Fact::Meta { cwd, base }) if meta.is_none() => meta = Some(Meta { cwd, base }),
                Some(Fact::Message(sent)) if first.is_none() => first = Some(sent.said.text),
                _ => {}
            }
        }
        let enough = meta.is_some() && (!wanted || first.is_some());
        if enough || size >= file.len || size >= HEAD_MOST {
            return Ok((meta.unwrap_or_default(), first));
        }
        size *= 4;
    }
}

/// One rollout of a thread.
struct Part {
    segment: String,
    file: Jsonl,
    meta: Meta,
    /// Another thread's: its records before this one count.
    until: Option<u64>,
    /// Where it begins in the whole.
    offset: u64,
}

/// A thread, ready to be read.
pub(super) struct Thread {
    parts: Vec<Part>,
    notices: Vec<String>,
}

impl Thread {
    /// The thread that this rollout is of; `None` where there is none.
    pub(super) fn open(rollout: &Path, all: &Rollouts) -> Result<Option<Self>> {
        let mut it = Self {
            parts: Vec::new(),
            notices: Vec::new(),
        };
        for path in all.of(rollout) {
            it.push(&path, None)?;
        }
        if it.parts.is_empty() {
            return Ok(None);
        }
        it.add_foreign(all)?;
        let mut offset = 0;
        for part in &mut it.parts {
            part.offset = offset;
            offset += part.file.len;
        }
        Ok(Some(it))
    }

    fn push(&mut self, path: &Path, until: Option<u64>) -> Result<Option<Base>> {
        let Some((file, name)) = Jsonl::open(path)?.zip(Name::of(path)) else {
            return Ok(None);
        };
        let (meta, _) = head(&file, false)?;
        let base = meta.base.clone();
        self.parts.push(Part {
            segment: name.segment,
            file,
            meta,
            until,
            offset: 0,
        });
        Ok(base)
    }

    /// The rollouts of other threads that this one goes on from, before its own.
    fn add_foreign(&mut self, all: &Rollouts) -> Result<()> {
        let own: HashSet<String> = self.parts.iter().map(|p| p.segment.clone()).collect();
        let mut wanted: Vec<Base> = self.parts.iter().filter_map(|p| p.meta.base.clone()).collect();
        let mut foreign: BTreeMap<String, (u64, u64)> = BTreeMap::new();
        let mut metas: HashMap<String, Option<Base>> = HashMap::new();
        let mut left = DEEPEST;
        while let Some(base) = wanted.pop() {
            if own.contains(&base.segment) {
                continue;
            }
            let known = foreign.get(&base.segment).copied().unwrap_or((0, 0));
            if known.0 >= base.end || left == 0 {
                continue;
            }
            left -= 1;
            let Some(path) = all.segments.get(&base.segment) else {
                let what = text::shown(&base.segment);
                let notice = format!("what it goes on from is not there: {what}");
                if !self.notices.contains(&notice) {
                    self.notices.push(notice);
                }
                continue;
            };
            foreign.insert(base.segment.clone(), (base.end, base.bytes.max(known.1)));
            if !metas.contains_key(&base.segment) {
                let file = Jsonl::open(path)?;
                let meta = file.map(|f| head(&f, false)).transpose()?;
                metas.insert(base.segment.clone(), meta.and_then(|(m, _)| m.base));
            }
            wanted.extend(metas.get(&base.segment).cloned().flatten());
        }
        // what another one goes on from comes before it
        let mut order: Vec<(String, (u64, u64))> = foreign.into_iter().collect();
        order.sort_by_cached_key(|(segment, _)| depth(segment, &metas));
        let mine = std::mem::take(&mut self.parts);
        for (segment, (end, bytes)) in order {
            if let Some(path) = all.segments.get(&segment) {
                self.push(path, Some(end))?;
                // it may have gone on since
                if let Some(part) = self.parts.last_mut().filter(|p| p.segment == segment) {
                    part.file.len = part.file.len.min(bytes);
                }
            }
        }
        self.parts.extend(mine);
        Ok(())
    }

    /// The newest rollout.
    fn newest(&self) -> Option<&Part> {
        self.parts.last()
    }

    /// The agent's folder.
    pub(super) fn cwd(&self) -> Option<PathBuf> {
        let own = self.newest()?.meta.cwd.clone();
        let any = || self.parts.iter().rev().find_map(|p| p.meta.cwd.clone());
        own.or_else(any).map(PathBuf::from)
    }

    /// When it last changed.
    pub(super) fn changed(&self) -> Option<chrono::DateTime<chrono::Utc>> {
        let own = self.parts.iter().filter(|p| p.until.is_none());
        own.map(|p| p.file.changed).max()
    }

    /// The length of all of it.
    pub(super) fn len(&self) -> u64 {
        self.newest().map_or(0, |p| p.offset + p.file.len)
    }

    /// The text of the first message.
    pub(super) fn first(&self) -> Result<Option<String>> {
        for part in &self.parts {
            if let (_, Some(text)) = head(&part.file, true)? {
                return Ok(Some(text));
            }
        }
        Ok(None)
    }

    /// How far the agent is, by the last few records.
    pub(super) fn stage(&self) -> Result<Option<Stage>> {
        let Some(part) = self.newest() else {
            return Ok(None);
        };
        let start = part.file.len.saturating_sub(HEAD);
        let bytes = part.file.bytes(start..part.file.len)?;
        let mut notes = Notes::default();
        let records = split(&bytes, start).into_iter().skip(usize::from(start > 0));
        let stages = records.filter_map(|line| notes.take(0, parse(line).1)?.stage);
        Ok(stages.last())
    }

    /// Other threads that it goes on from.
    pub(super) fn foreign(&self) -> Vec<String> {
        let others = self.parts.iter().filter(|p| p.until.is_some());
        others.map(|p| p.segment.clone()).collect()
    }

    /// Reads from the line on that holds the byte at `from` of the whole.
    pub(super) fn read(&self, from: u64, progress: &dyn Progress) -> Result<Reading> {
        let mut reading = Reading {
            notices: self.notices.clone(),
            whole: from == 0,
            ..Reading::default()
        };
        for part in &self.parts {
            if from > 0 && part.offset + part.file.len <= from && part.offset != self.last_offset() {
                continue;
            }
            let start = part.file.line_start(from.saturating_sub(part.offset))?;
            reading.begin(part, start);
            let skipped = part.file.each(start, progress, parse, |block| {
                for (at, parsed) in block {
                    reading.take(part, at, parsed);
                }
            })?;
            reading.close(part, skipped);
        }
        Ok(reading)
    }

    fn last_offset(&self) -> u64 {
        self.newest().map_or(0, |p| p.offset)
    }
}

/// How often a rollout was begun from another one.
fn depth(segment: &str, metas: &HashMap<String, Option<Base>>) -> usize {
    let mut here = segment;
    let mut depth = 0;
    while let Some(Some(base)) = metas.get(here)
        && depth < DEEPEST
    {
        here = &base.segment;
        depth += 1;
    }
    depth
}

/// What was read of a thread.
#[derive(Default)]
pub(super) struct Reading {
    rows: Vec<Row>,
    /// The messages of each rollout that were not taken back, with their numbers in the thread.
    chains: HashMap<String, Vec<(u64, usize)>>,
    /// The same, of the rollout that is read now.
    chain: Vec<(u64, usize)>,
    ids: HashSet<String>,
    turn: Option<String>,
    turns: HashSet<String>,
    notes: Notes,
    pub(super) notices: Vec<String>,
    pub(super) stage: Option<Stage>,
    pub(super) acted: Option<u64>,
    /// The position after the newest complete record.
    pub(super) end: u64,
    pub(super) records: u64,
    pub(super) unreadable: u64,
    /// It is all of it.
    pub(super) whole: bool,
}

impl Reading {
    fn begin(&mut self, part: &Part, start: u64) {
        self.notes = Notes {
            end: start,
            ..Notes::default()
        };
        (self.turn, self.stage) = (None, None);
        let base = part.meta.base.as_ref();
        self.chain = base
            .and_then(|b| Some((b, self.chains.get(&b.segment)?)))
            .map(|(b, chain)| chain.iter().copied().filter(|(n, _)| *n < b.end).collect())
            .unwrap_or_default();
    }

    fn take(&mut self, part: &Part, at: u64, parsed: super::torn::Parsed<Record>) {
        let Some(record) = self.notes.take(at, parsed) else {
            return;
        };
        let ordinal = record.ordinal.unwrap_or(0);
        if part.until.is_some_and(|until| ordinal >= until) {
            return;
        }
        self.turn = record.turn.or(self.turn.take());
        self.stage = record.stage.or(self.stage);
        match record.fact {
            Fact::Call => self.acted = Some(part.offset + at),
            Fact::Back(turns) => self.back(turns),
            Fact::Message(mut sent) => {
                let id = sent
                    .id
                    .take()
                    .unwrap_or_else(|| format!("{}@{}", part.segment, record.stamp));
                if !self.ids.insert(id.clone()) {
                    return;
                }
                let again = self.turn.clone().is_some_and(|t| !self.turns.insert(t));
                if again {
                    sent.said.kind = MessageKind::Steer;
                }
                let follows = self.chain.last().map(|(_, row)| *row);
                self.chain.push((ordinal, self.rows.len()));
                self.rows.push(Row {
                    id,
                    index: part.offset + at,
                    said: sent.said,
                    follows,
                    active: false,
                });
            }
            Fact::Meta { .. } | Fact::Other => {}
        }
    }

    /// Takes turns back.
    fn back(&mut self, turns: u64) {
        for _ in 0..turns {
            while let Some((_, row)) = self.chain.pop() {
                // what was said in the middle of a turn goes with it
                if self.rows[row].said.kind != MessageKind::Steer {
                    break;
                }
            }
            if self.chain.is_empty() {
                return;
            }
        }
    }

    fn close(&mut self, part: &Part, skipped: u64) {
        let notes = std::mem::take(&mut self.notes);
        self.records += notes.records;
        self.unreadable += notes.unreadable;
        self.end = self.end.max(part.offset + notes.end);
        self.notices.extend(notes.close(skipped));
        self.chains.insert(part.segment.clone(), self.chain.clone());
    }

    /// How many messages there are.
    pub(super) fn said(&self) -> usize {
        self.rows.len()
    }

    /// The messages. What the newest rollout has and goes on from is the active branch.
    pub(super) fn rows(&mut self) -> Vec<Row> {
        let mut rows = std::mem::take(&mut self.rows);
        for (_, row) in &self.chain {
            rows[*row].active = true;
        }
        rows
    }
}
