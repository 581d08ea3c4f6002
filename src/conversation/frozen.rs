//! A SQLite database as it stands at one moment, read without taking part in it. Its files are opened to be read and
//! nothing else: no lock is taken, no `-shm` is mapped, nothing is recovered, checkpointed or deleted, so that they
//! stay byte for byte and nobody who uses them waits. What was committed to the write-ahead log is laid over the
//! database's own pages.
//!
//! Two moments would be mixed where the database or the part of the log that counts changes while they are read. A
//! checkpoint changes the database: it copies pages from the log. Those that the log held from the start are read from
//! the log anyway; so either nothing was added to the log, or the database must not have changed, which its time tells
//! (if it was not changed just before: the clock of files goes in steps). A log that is begun anew has other salts in
//! its first bytes. Who has read asks [`Frozen::holds`], and reads again where it does not.
//! (Format: <https://www.sqlite.org/fileformat2.html>.)

use std::collections::HashMap;
use std::fs::{File, Metadata};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::Result;
use super::folder::{damaged, failed};
use super::jsonl::open_regular;

const WAL_HEADER: usize = 32;
const FRAME_HEADER: usize = 24;
/// The first bytes of a journal that was not played back.
const HOT: [u8; 8] = [0xd9, 0xd5, 0x05, 0xf9, 0x20, 0xa1, 0x63, 0xd7];
/// Where the database says whether it has a write-ahead log: 1 = none.
const VERSIONS: std::ops::Range<u64> = 18..20;

/// The clock of files goes in smaller steps than this.
const STEP: Duration = Duration::from_millis(50);

/// Device, inode, length and times of a file.
type Stamp = (u64, u64, u64, i64, i64, i64, i64);

fn stamp(m: &Metadata) -> Stamp {
    (
        m.dev(),
        m.ino(),
        m.len(),
        m.mtime(),
        m.mtime_nsec(),
        m.ctime(),
        m.ctime_nsec(),
    )
}

/// True if a change from now on gives the file another time.
fn is_settled(m: &Metadata) -> bool {
    let Ok(changed) = m.modified() else { return false };
    match changed.elapsed() {
        Ok(age) => age > STEP,
        Err(ahead) => ahead.duration() > STEP,
    }
}

/// The write-ahead log: where in it the newest committed copy of each page is.
#[derive(Debug)]
struct Log {
    file: File,
    is: Stamp,
    settled: bool,
    header: [u8; WAL_HEADER],
    pages: HashMap<u32, u64>,
    /// How many pages the database has.
    count: u32,
    /// Where the part that counts ends, and the first bytes behind it.
    end: u64,
    next: [u8; FRAME_HEADER],
}

/// A database at one moment.
#[derive(Debug)]
pub(super) struct Frozen {
    db: File,
    is: Stamp,
    settled: bool,
    log: Option<Log>,
    page: u64,
    len: u64,
}

/// The path of a file beside the database.
pub(super) fn beside(db: &Path, ending: &str) -> PathBuf {
    let mut name = db.as_os_str().to_owned();
    name.push(ending);
    name.into()
}

fn be(bytes: &[u8], at: usize) -> u32 {
    bytes
        .get(at..at + 4)
        .and_then(|b| b.try_into().ok())
        .map_or(0, u32::from_be_bytes)
}

/// Reads until the room is full or the file ends.
fn fill(file: &File, offset: u64, room: &mut [u8]) -> io::Result<usize> {
    let mut got = 0;
    while got < room.len() {
        match file.read_at(&mut room[got..], offset + got as u64) {
            Ok(0) => break,
            Ok(n) => got += n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(got)
}

/// The checksum of the log, over words of eight bytes.
fn sum(big: bool, (mut a, mut b): (u32, u32), bytes: &[u8]) -> (u32, u32) {
    for word in bytes.chunks_exact(8) {
        let half = |at: usize| {
            let four = [word[at], word[at + 1], word[at + 2], word[at + 3]];
            if big {
                u32::from_be_bytes(four)
            } else {
                u32::from_le_bytes(four)
            }
        };
        a = a.wrapping_add(half(0)).wrapping_add(b);
        b = b.wrapping_add(half(4)).wrapping_add(a);
    }
    (a, b)
}

impl Log {
    /// The log of a database; `None` where it has none that counts.
    fn read(path: &Path) -> Result<Option<(Self, u64)>> {
        let Some((file, meta)) = open_regular(path)? else {
            return Ok(None);
        };
        let mut header = [0; WAL_HEADER];
        let got = fill(&file, 0, &mut header).map_err(|e| failed(path, e))?;
        let big = be(&header, 0) & 1 == 1;
        let seed = sum(big, (0, 0), &header[..24]);
        let page = u64::from(be(&header, 8));
        let right = got == WAL_HEADER
            && be(&header, 0) & !1 == 0x377f_0682
            && (be(&header, 24), be(&header, 28)) == seed
            && is_page(page);
        if !right {
            return Ok(None);
        }
        let mut it = Self {
            file,
            is: stamp(&meta),
            settled: is_settled(&meta),
            header,
            pages: HashMap::new(),
            count: 0,
            end: 0,
            next: [0; FRAME_HEADER],
        };
        it.frames(page, big, seed).map_err(|e| failed(path, e))?;
        Ok((it.count > 0).then_some((it, page)))
    }

    /// Goes through the frames up to the last one of a transaction that was committed.
    fn frames(&mut self, page: u64, big: bool, seed: (u32, u32)) -> io::Result<()> {
        let mut frame = vec![0; FRAME_HEADER + page as usize];
        let mut open: Vec<(u32, u64)> = Vec::new();
        let (mut at, mut checked) = (WAL_HEADER as u64, seed);
        while fill(&self.file, at, &mut frame)? == frame.len() {
            checked = sum(big, sum(big, checked, &frame[..8]), &frame[FRAME_HEADER..]);
            let own = frame[8..16] == self.header[16..24];
            if !own || (be(&frame, 16), be(&frame, 20)) != checked {
                break;
            }
            open.push((be(&frame, 0), at + FRAME_HEADER as u64));
            at += frame.len() as u64;
            let count = be(&frame, 4);
            if count > 0 {
                self.pages.extend(open.drain(..));
                self.count = count;
                // before anything behind it is looked at
                (self.end, self.next) = (at, self.behind(at)?);
            }
        }
        Ok(())
    }

    /// The first bytes from a place on.
    fn behind(&self, at: u64) -> io::Result<[u8; FRAME_HEADER]> {
        let mut next = [0; FRAME_HEADER];
        fill(&self.file, at, &mut next)?;
        Ok(next)
    }

    /// True while it was not begun anew.
    fn goes_on(&self, path: &Path) -> bool {
        let mut header = [0; WAL_HEADER];
        let own = |m: Metadata| (m.dev(), m.ino()) == (self.is.0, self.is.1);
        std::fs::symlink_metadata(path).is_ok_and(own)
            && fill(&self.file, 0, &mut header).is_ok_and(|n| n == WAL_HEADER)
            && header == self.header
    }
}

fn is_page(size: u64) -> bool {
    size.is_power_of_two() && (512..=65536).contains(&size)
}

impl Frozen {
    /// The database at a path; `None` if there is none.
    pub(super) fn open(path: &Path) -> Result<Option<Self>> {
        let Some((db, meta)) = open_regular(path)? else {
            return Ok(None);
        };
        let log = Log::read(&beside(path, "-wal"))?;
        let mut head = [0; 100];
        let got = fill(&db, 0, &mut head).map_err(|e| failed(path, e))?;
        let own = match u64::from(u16::from_be_bytes([head[16], head[17]])) {
            1 => 65536,
            size => size,
        };
        let page = log.as_ref().map_or(own, |(_, page)| *page);
        if !is_page(page) || (log.is_none() && (got < head.len() || !head.starts_with(b"SQLite format 3\0")))
        {
            return Err(damaged(path, "it is no SQLite database"));
        }
        if log.is_none() && is_hot(&beside(path, "-journal"))? {
            return Err(damaged(path, "a change of it was begun and not finished"));
        }
        let log = log.map(|(log, _)| log);
        Ok(Some(Self {
            len: log.as_ref().map_or(meta.len(), |l| u64::from(l.count) * page),
            is: stamp(&meta),
            settled: is_settled(&meta),
            db,
            log,
            page,
        }))
    }

    /// Its length in bytes.
    pub(super) fn len(&self) -> u64 {
        self.len
    }

    /// Reads from an offset on; fewer bytes where it ends before.
    pub(super) fn read(&self, offset: u64, room: &mut [u8]) -> io::Result<usize> {
        let wanted = (room.len() as u64).min(self.len.saturating_sub(offset)) as usize;
        let mut got = 0;
        while got < wanted {
            let at = offset + got as u64;
            let (number, within) = (at / self.page, at % self.page);
            let here = (wanted - got).min((self.page - within) as usize);
            let room = &mut room[got..got + here];
            let in_log = |l: &Log| l.pages.get(&u32::try_from(number + 1).ok()?).copied();
            let read = match self.log.as_ref().and_then(|l| Some((l, in_log(l)?))) {
                Some((log, start)) => fill(&log.file, start + within, room)?,
                None => fill(&self.db, at, room)?,
            };
            if read == 0 {
                break;
            }
            got += read;
        }
        for at in VERSIONS {
            // for whom reads this there is no log
            let place = at.checked_sub(offset).filter(|p| *p < got as u64);
            if let Some(place) = place {
                room[place as usize] = 1;
            }
        }
        Ok(got)
    }

    /// True if what was read is of one moment, and not of two.
    pub(super) fn holds(&self, path: &Path) -> bool {
        let Ok(now) = std::fs::symlink_metadata(path) else {
            return false;
        };
        let now = stamp(&now);
        let still = self.settled && now == self.is;
        let Some(log) = &self.log else { return still };
        // what is behind it already, of the same log, may be committed at any moment
        let begun = log.next[8..16] == log.header[16..24];
        let grown = || begun || log.behind(log.end).map_or(true, |next| next != log.next);
        let same = (now.0, now.1) == (self.is.0, self.is.1);
        // the first bytes last: what was read before is of the log that they begin
        same && (still || !grown()) && log.goes_on(&beside(path, "-wal"))
    }

    /// True if the database still stands as it does here, for certain.
    pub(super) fn is_current(&self, path: &Path) -> bool {
        if !self.settled || self.log.as_ref().is_some_and(|l| !l.settled) {
            return false;
        }
        let log = std::fs::symlink_metadata(beside(path, "-wal"))
            .ok()
            .filter(|m| m.len() > 0);
        let same = match (&self.log, log) {
            (Some(log), Some(now)) => log.is == stamp(&now),
            (None, None) => true,
            _ => false,
        };
        same && std::fs::symlink_metadata(path).is_ok_and(|m| stamp(&m) == self.is)
    }
}

/// True for a journal that must be played back before the database is whole.
fn is_hot(journal: &Path) -> Result<bool> {
    let Some((file, _)) = open_regular(journal)? else {
        return Ok(false);
    };
    let mut head = [0; 8];
    let got = fill(&file, 0, &mut head).map_err(|e| failed(journal, e))?;
    Ok(got == head.len() && head == HOT)
}
