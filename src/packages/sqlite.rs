//! One table of an SQLite database, read from its bytes (the file format is described at sqlite.org/fileformat2.html).
//! Only what rpm's database needs: tables with a row number, no index, no write-ahead log.

use std::collections::BTreeSet;

/// Deeper trees do not exist: a page holds at least four entries.
const DEEPEST: u32 = 24;
/// What cannot be followed, in words.
pub(super) type Wrong = &'static str;

/// A database in memory.
pub(super) struct Database<'a> {
    bytes: &'a [u8],
    page: usize,
    usable: usize,
}

/// A value of a row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Value {
    /// A number.
    Int(i64),
    /// Text or bytes.
    Bytes(Vec<u8>),
    /// Anything else.
    Other,
}

fn u16_at(bytes: &[u8], at: usize) -> Option<usize> {
    Some(usize::from(u16::from_be_bytes(
        bytes.get(at..at + 2)?.try_into().ok()?,
    )))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_be_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

/// A number of variable length, and how many bytes it takes.
fn varint(bytes: &[u8]) -> Option<(u64, usize)> {
    let mut value: u64 = 0;
    for (i, b) in bytes.iter().take(9).enumerate() {
        if i == 8 {
            return Some(((value << 8) | u64::from(*b), 9));
        }
        value = (value << 7) | u64::from(b & 0x7f);
        if b & 0x80 == 0 {
            return Some((value, i + 1));
        }
    }
    None
}

impl<'a> Database<'a> {
    /// Looks at the head of a database.
    pub fn open(bytes: &'a [u8]) -> Result<Self, Wrong> {
        if !bytes.starts_with(b"SQLite format 3\0") || bytes.len() < 512 {
            return Err("it is no SQLite database");
        }
        let page = match u16_at(bytes, 16) {
            Some(1) => 65536,
            Some(n) if n >= 512 && n.is_power_of_two() => n,
            _ => return Err("its pages have no valid size"),
        };
        let usable = page - usize::from(bytes[20]);
        if usable < 480 {
            return Err("its pages have no valid size");
        }
        Ok(Self { bytes, page, usable })
    }

    /// The rows of a table; `None` if there is no such table.
    pub fn table(&self, name: &str, row: &mut dyn FnMut(Vec<Value>)) -> Result<bool, Wrong> {
        let mut root = None;
        self.walk(1, &mut |values| {
            if let [Value::Bytes(is), Value::Bytes(named), _, Value::Int(page), ..] = values.as_slice()
                && is == b"table"
                && named == name.as_bytes()
            {
                root = u32::try_from(*page).ok();
            }
        })?;
        let Some(root) = root else { return Ok(false) };
        self.walk(root, row)?;
        Ok(true)
    }

    fn walk(&self, root: u32, row: &mut dyn FnMut(Vec<Value>)) -> Result<(), Wrong> {
        self.tree(root, 0, &mut BTreeSet::new(), row)
    }

    fn bytes_of(&self, number: u32) -> Result<&'a [u8], Wrong> {
        let start = (number as usize)
            .checked_sub(1)
            .and_then(|n| n.checked_mul(self.page));
        let found = start.and_then(|s| self.bytes.get(s..s.checked_add(self.page)?));
        found.ok_or("it is cut off")
    }

    fn tree(
        &self,
        number: u32,
        depth: u32,
        seen: &mut BTreeSet<u32>,
        row: &mut dyn FnMut(Vec<Value>),
    ) -> Result<(), Wrong> {
        const TORN: Wrong = "a page of it is damaged";
        if depth > DEEPEST || !seen.insert(number) {
            return Err("its pages go round in a circle");
        }
        let page = self.bytes_of(number)?;
        let head = if number == 1 { 100 } else { 0 };
        let cells = u16_at(page, head + 3).ok_or(TORN)?;
        let leaf = match page.get(head) {
            Some(0x0d) => true,
            Some(0x05) => false,
            _ => return Err(TORN),
        };
        let pointers = head + if leaf { 8 } else { 12 };
        for n in 0..cells {
            let at = u16_at(page, pointers + 2 * n).ok_or(TORN)?;
            if leaf {
                let payload = self.payload(page.get(at..).ok_or(TORN)?)?;
                row(record(&payload).ok_or("a row of it is damaged")?);
            } else {
                self.tree(u32_at(page, at).ok_or(TORN)?, depth + 1, seen, row)?;
            }
        }
        if !leaf {
            self.tree(u32_at(page, head + 8).ok_or(TORN)?, depth + 1, seen, row)?;
        }
        Ok(())
    }

    /// The content of a leaf's cell, with what does not fit in its page.
    fn payload(&self, cell: &[u8]) -> Result<Vec<u8>, Wrong> {
        const TORN: Wrong = "a row of it is damaged";
        let (size, a) = varint(cell).ok_or(TORN)?;
        let (_, b) = varint(cell.get(a..).ok_or(TORN)?).ok_or(TORN)?;
        let size = usize::try_from(size)
            .ok()
            .filter(|s| *s <= self.bytes.len())
            .ok_or(TORN)?;
        let cell = cell.get(a + b..).ok_or(TORN)?;
        let most = self.usable - 35;
        if size <= most {
            return Ok(cell.get(..size).ok_or(TORN)?.to_vec());
        }
        let least = (self.usable - 12) * 32 / 255 - 23;
        let wanted = least + (size - least) % (self.usable - 4);
        let local = if wanted <= most { wanted } else { least };
        let mut out = Vec::with_capacity(size);
        out.extend_from_slice(cell.get(..local).ok_or(TORN)?);
        let mut next = u32_at(cell, local).ok_or(TORN)?;
        // ends: each page adds at least a byte
        while out.len() < size {
            let page = self.bytes_of(next)?;
            let take = (size - out.len()).min(self.usable - 4);
            out.extend_from_slice(page.get(4..4 + take).ok_or(TORN)?);
            next = u32_at(page, 0).ok_or(TORN)?;
        }
        Ok(out)
    }
}

fn record(payload: &[u8]) -> Option<Vec<Value>> {
    let (head, mut at) = varint(payload)?;
    let head = usize::try_from(head).ok().filter(|h| *h <= payload.len())?;
    let (mut body, mut out) = (head, Vec::new());
    while at < head {
        let (kind, n) = varint(payload.get(at..head)?)?;
        at += n;
        let size = match kind {
            0 | 8 | 9 => 0,
            1..=4 => kind as usize,
            5 => 6,
            6 | 7 => 8,
            10 | 11 => return None,
            n => usize::try_from((n - 12) / 2).ok()?,
        };
        let bytes = payload.get(body..body.checked_add(size)?)?;
        body += size;
        out.push(match kind {
            1..=6 => Value::Int(int(bytes)),
            8 => Value::Int(0),
            9 => Value::Int(1),
            n if n >= 12 => Value::Bytes(bytes.to_vec()),
            _ => Value::Other,
        });
    }
    Some(out)
}

/// A signed number, the first byte first.
fn int(bytes: &[u8]) -> i64 {
    let sign = bytes.first().is_some_and(|b| b & 0x80 != 0);
    let start = if sign { -1 } else { 0 };
    bytes.iter().fold(start, |n, b| (n << 8) | i64::from(*b))
}
