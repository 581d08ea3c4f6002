//! Files of one JSON record a line that only grow: read from the start in blocks, from the end backwards, or from a
//! position on. A record's position is that of its last byte, so that a place in the file is known without
//! counting lines. The last line may be half written; nothing is held of a file but the block that is read.

use std::fs::{File, Metadata};
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use chrono::{DateTime, Utc};
use memchr::{memchr, memrchr};
use rayon::prelude::*;
use rustix::fs::{FileType, Mode, OFlags};

use super::folder::{damaged, failed};
use super::{ConversationError, Result};
use crate::progress::Progress;

/// So much is read at once.
const BLOCK: usize = 4 << 20;
/// A longer line is left out.
const LONGEST: usize = 64 << 20;
/// So much is looked through at once for the start of a line.
const STEP: u64 = 64 << 10;

/// An open file of records.
#[derive(Debug)]
pub(super) struct Jsonl {
    file: File,
    path: PathBuf,
    /// Its length when it was opened; what comes later is read the next time.
    pub(super) len: u64,
    /// When it last changed.
    pub(super) changed: DateTime<Utc>,
}

/// A line and where it ends (the position after its last byte, the line feed left out).
#[derive(Debug, Clone, Copy)]
pub(super) struct Line<'a> {
    pub(super) bytes: &'a [u8],
    pub(super) end: u64,
    /// A line feed follows it.
    pub(super) whole: bool,
}

/// Opens a regular file to be read, never through a link at its end; `None` if there is none.
pub(super) fn open_regular(path: &Path) -> Result<Option<(File, Metadata)>> {
    use rustix::io::Errno;
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::NOFOLLOW;
    // what is no regular file is not opened at all: a device or a pipe may act on it
    match rustix::fs::lstat(path) {
        Ok(stat) if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile => return Ok(None),
        Ok(_) => {}
        Err(Errno::NOENT | Errno::NOTDIR) => return Ok(None),
        Err(e) => return Err(failed(path, e.into())),
    }
    let file = match rustix::fs::open(path, flags, Mode::empty()) {
        Ok(fd) => File::from(fd),
        Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => return Ok(None),
        Err(e) => return Err(failed(path, e.into())),
    };
    let meta = file.metadata().map_err(|e| failed(path, e))?;
    Ok(meta.is_file().then_some((file, meta)))
}

impl Jsonl {
    /// Opens a regular file, never through a link at its end; `None` if there is none.
    pub(super) fn open(path: &Path) -> Result<Option<Self>> {
        let Some((file, meta)) = open_regular(path)? else {
            return Ok(None);
        };
        let changed = meta.modified().map_err(|e| failed(path, e))?;
        Ok(Some(Self {
            file,
            path: path.to_owned(),
            len: meta.len(),
            changed: changed.into(),
        }))
    }

    fn fill(&self, from: u64, room: &mut [u8]) -> Result<usize> {
        let mut got = 0;
        while got < room.len() {
            match self.file.read_at(&mut room[got..], from + got as u64) {
                Ok(0) => break,
                Ok(n) => got += n,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(failed(&self.path, e)),
            }
        }
        Ok(got)
    }

    /// The bytes of a range, fewer where the file ends before.
    pub(super) fn bytes(&self, range: Range<u64>) -> Result<Vec<u8>> {
        let mut bytes = vec![0; (range.end.saturating_sub(range.start)) as usize];
        let got = self.fill(range.start, &mut bytes)?;
        bytes.truncate(got);
        Ok(bytes)
    }

    /// Where the line begins that holds the byte at `at`.
    pub(super) fn line_start(&self, at: u64) -> Result<u64> {
        let mut end = at.min(self.len);
        while end > 0 {
            let start = end.saturating_sub(STEP);
            let bytes = self.bytes(start..end)?;
            if let Some(i) = memrchr(b'\n', &bytes) {
                return Ok(start + i as u64 + 1);
            }
            end = start;
        }
        Ok(0)
    }

    /// Makes a `T` of each line from `from` on (the start of a line), several at a time, and hands them over in
    /// order, block by block. `make` gets no empty line. Returns how many lines were too long to be read.
    pub(super) fn each<T: Send>(
        &self,
        from: u64,
        progress: &dyn Progress,
        make: impl Fn(Line<'_>) -> T + Sync,
        mut take: impl FnMut(Vec<T>),
    ) -> Result<u64> {
        let left = self.len.saturating_sub(from);
        let mut block = vec![0; BLOCK.min(left as usize + 1)];
        let (mut at, mut held, mut skipping, mut skipped) = (from, 0, false, 0);
        loop {
            if progress.cancelled() {
                return Err(ConversationError::Cancelled);
            }
            if held == block.len() {
                if skipping || held >= LONGEST {
                    skipped += u64::from(!skipping);
                    skipping = true;
                    at += held as u64;
                    held = 0;
                } else {
                    block.resize(held * 2, 0);
                }
            }
            let left = self.len.saturating_sub(at + held as u64);
            let room = (left as usize).min(block.len() - held);
            let got = self.fill(at + held as u64, &mut block[held..held + room])?;
            let filled = held + got;
            let done = got < room || at + filled as u64 >= self.len;
            let cut = memrchr(b'\n', &block[..filled]).map_or(0, |i| i + 1);
            let end = if done { filled } else { cut };
            let mut start = 0;
            if skipping && end > 0 {
                start = memchr(b'\n', &block[..end]).map_or(end, |i| i + 1);
                skipping = false;
            }
            let lines = split(&block[start..end], at + start as u64);
            take(lines.into_par_iter().with_min_len(16).map(&make).collect());
            progress.step("reading", at + end as u64, self.len);
            if done {
                return Ok(skipped);
            }
            block.copy_within(end..filled, 0);
            held = filled - end;
            at += end as u64;
        }
    }

    /// The error of a file that is not what was expected.
    pub(super) fn damaged(&self, reason: &str) -> ConversationError {
        damaged(&self.path, reason)
    }
}

/// The lines of a piece of the file that begins at `at`, empty ones left out.
pub(super) fn split(bytes: &[u8], at: u64) -> Vec<Line<'_>> {
    let mut lines = Vec::new();
    let mut start = 0;
    while start < bytes.len() {
        let feed = memchr(b'\n', &bytes[start..]);
        let end = feed.map_or(bytes.len(), |i| start + i);
        let line = &bytes[start..end];
        if !line.iter().all(u8::is_ascii_whitespace) {
            lines.push(Line {
                bytes: line,
                end: at + end as u64,
                whole: feed.is_some(),
            });
        }
        start = end + 1;
    }
    lines
}
