//! The record of a tree: every entry with all its attributes and the hash of its content.
//!
//! The file: a magic line, numbers as LEB128, names as they are, the BLAKE3 hash of all before at the end.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;

use rustix::fs::IFlags;

use crate::engine::changes::attrs::Xattrs;
use crate::engine::changes::node::{Facts, Key, KeyKind, Node, Stamp, Walked, type_of};
use crate::patterns::Patterns;

const MAGIC: &[u8] = b"respool manifest 1\n";
/// With the patterns of what was left out; written only where there are some.
const MAGIC_PATTERNS: &[u8] = b"respool manifest 2\n";
const SEAL: usize = 32;
/// Seconds that a change time must be older than the look at it to prove anything later.
const RACY: i64 = 1;

const MOUNT: u8 = 1;
const FROZEN: u8 = 2;
const PLACE: u8 = 4;
const FACTS: u8 = 8;
const PLAIN: u8 = 16;

/// A hash for inode numbers, which nobody chooses to collide with a purpose: no more than a multiplication.
#[derive(Debug, Default)]
pub(super) struct Spread(u64);

impl Hasher for Spread {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        for b in bytes {
            self.write_u64(u64::from(*b));
        }
    }
    fn write_u64(&mut self, n: u64) {
        // 2^64 by the golden ratio; the table uses both ends of the result
        let spread = (self.0 ^ n).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = spread ^ (spread >> 32);
    }
}

/// A tree as it was at one moment.
#[derive(Debug)]
pub(super) struct Manifest {
    /// When the look at it began, by the clock of this machine.
    pub started: Stamp,
    /// The root first, every folder before its entries.
    pub nodes: Vec<Node>,
    /// What was left out.
    pub patterns: Patterns,
}

impl Manifest {
    /// True if a change time proves that the inode is still as it was recorded here.
    pub fn settles(&self, recorded: &Node, now: &Node) -> bool {
        recorded.inode == now.inode
            && recorded.file_type == now.file_type
            && (recorded.size, recorded.mtime, recorded.ctime) == (now.size, now.mtime, now.ctime)
            && (now.ctime.s, now.ctime.ns) < (self.started.s.saturating_sub(RACY), self.started.ns)
    }

    /// The nodes by the number of their inode; of several names one.
    pub fn by_inode(&self) -> HashMap<u64, u32, BuildHasherDefault<Spread>> {
        (0..).zip(&self.nodes).map(|(i, n)| (n.inode.0, i)).collect()
    }

    /// The tree, sorted by identity.
    pub fn walked(self) -> Walked {
        Walked::new(self.nodes)
    }

    /// The bytes of its file.
    pub fn bytes(&self) -> Vec<u8> {
        let mut out = Out(Vec::with_capacity(64 + self.nodes.len() * 112));
        let lines = self.patterns.lines();
        out.0
            .extend_from_slice(if lines.is_empty() { MAGIC } else { MAGIC_PATTERNS });
        if !lines.is_empty() {
            out.number(lines.len() as u64);
            for line in lines {
                out.bytes(line.as_bytes());
            }
        }
        out.stamp(self.started);
        out.number(self.nodes.len() as u64);
        for node in &self.nodes {
            out.node(node);
        }
        let seal = blake3::hash(&out.0);
        out.0.extend_from_slice(seal.as_bytes());
        out.0
    }

    /// Reads the file; what is wrong with it otherwise.
    pub fn parse(bytes: &[u8]) -> Result<Self, &'static str> {
        let whole = bytes.split_last_chunk::<SEAL>();
        let (body, seal) = whole.ok_or("its manifest is cut short")?;
        if blake3::hash(body) != *seal {
            return Err("its manifest is damaged");
        }
        let unread = "its manifest cannot be read";
        if let Some(rest) = body.strip_prefix(MAGIC) {
            return read(&mut In(rest), Patterns::default()).ok_or(unread);
        }
        let rest = body
            .strip_prefix(MAGIC_PATTERNS)
            .ok_or("its manifest is of another version")?;
        let mut from = In(rest);
        let lines = from.lines().ok_or(unread)?;
        let patterns = Patterns::of_lines(lines).map_err(|_| "its patterns cannot be read")?;
        read(&mut from, patterns).ok_or(unread)
    }
}

fn read(from: &mut In<'_>, patterns: Patterns) -> Option<Manifest> {
    let started = from.stamp()?;
    let count = from.number()?;
    let mut nodes: Vec<Node> = Vec::with_capacity((count as usize).min(from.0.len()));
    let plain = Arc::new(Facts {
        xattrs: Xattrs::new(),
        flags: IFlags::empty(),
        link: Vec::new(),
        hash: None,
    });
    for i in 0..count {
        let node = from.node(&nodes, &plain)?;
        if (i == 0) != node.name.is_empty() || (i > 0 && u64::from(node.parent) >= i) {
            return None;
        }
        nodes.push(node);
    }
    (from.0.is_empty() && count > 0).then_some(Manifest {
        started,
        nodes,
        patterns,
    })
}

struct Out(Vec<u8>);

impl Out {
    fn number(&mut self, mut n: u64) {
        while n >= 0x80 {
            self.0.push(n as u8 | 0x80);
            n >>= 7;
        }
        self.0.push(n as u8);
    }

    fn bytes(&mut self, bytes: &[u8]) {
        self.number(bytes.len() as u64);
        self.0.extend_from_slice(bytes);
    }

    fn stamp(&mut self, t: Stamp) {
        self.number(((t.s << 1) ^ (t.s >> 63)) as u64);
        self.number(t.ns.into());
    }

    fn node(&mut self, n: &Node) {
        let facts = n.facts.as_deref();
        let plain = facts.is_some_and(|f| f.xattrs.is_empty() && f.flags.is_empty() && f.link.is_empty());
        let mut bits = 0;
        for (bit, set) in [
            (MOUNT, n.mount),
            (FROZEN, n.frozen),
            (PLACE, !n.covered()),
            (FACTS, facts.is_some()),
            (PLAIN, plain),
        ] {
            bits |= if set { bit } else { 0 };
        }
        self.0.push(bits);
        self.bytes(&n.name);
        for number in [
            u64::from(n.parent),
            u64::from(n.format()) | u64::from(n.mode),
            n.uid.into(),
            n.gid.into(),
            n.nlink.into(),
            n.rdev.0.into(),
            n.rdev.1.into(),
            n.size,
            n.allocated,
            n.inode.0,
            n.dev.0.into(),
            n.dev.1.into(),
        ] {
            self.number(number);
        }
        for stamp in [n.mtime, n.atime, n.ctime, n.inode.1] {
            self.stamp(stamp);
        }
        let Some(facts) = facts else { return };
        if !plain {
            self.number(u64::from(facts.flags.bits()));
            self.number(facts.xattrs.len() as u64);
            for (key, value) in &facts.xattrs {
                self.bytes(key);
                self.bytes(value);
            }
            self.bytes(&facts.link);
        }
        self.bytes(facts.hash.as_ref().map_or(&[][..], |h| &h[..]));
    }
}

struct In<'a>(&'a [u8]);

impl<'a> In<'a> {
    fn byte(&mut self) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*first)
    }

    fn number(&mut self) -> Option<u64> {
        let mut n = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            n |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Some(n);
            }
        }
        None
    }

    fn small(&mut self) -> Option<u32> {
        self.number()?.try_into().ok()
    }

    fn bytes(&mut self) -> Option<&'a [u8]> {
        let len = usize::try_from(self.number()?).ok()?;
        let (bytes, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(bytes)
    }

    fn lines(&mut self) -> Option<Vec<String>> {
        let count = self.number()?;
        (0..count)
            .map(|_| Some(std::str::from_utf8(self.bytes()?).ok()?.to_owned()))
            .collect()
    }

    fn stamp(&mut self) -> Option<Stamp> {
        let (s, ns) = (self.number()?, self.small()?);
        Some(Stamp {
            s: (s >> 1) as i64 ^ -((s & 1) as i64),
            ns,
        })
    }

    fn node(&mut self, before: &[Node], plain: &Arc<Facts>) -> Option<Node> {
        let bits = self.byte()?;
        let name = self.bytes()?;
        if matches!(name, b"." | b"..") || name.iter().any(|b| matches!(b, b'/' | 0)) {
            return None;
        }
        let parent = self.small()?;
        let mode = self.small()?;
        let (uid, gid, nlink) = (self.small()?, self.small()?, self.small()?);
        let rdev = (self.small()?, self.small()?);
        let (size, allocated, ino) = (self.number()?, self.number()?, self.number()?);
        let dev = (self.small()?, self.small()?);
        let (mtime, atime, ctime, born) = (self.stamp()?, self.stamp()?, self.stamp()?, self.stamp()?);
        let format = u16::try_from(mode & 0o170_000).ok()?;
        let root = before.is_empty();
        let kind = if bits & PLACE != 0 {
            KeyKind::Place
        } else {
            KeyKind::Inode
        };
        let key = Key {
            kind,
            ino,
            born,
            format,
        };
        let facts = if bits & FACTS == 0 {
            None
        } else {
            Some(self.facts(bits & PLAIN != 0, plain)?)
        };
        Some(Node {
            parent,
            depth: if root {
                0
            } else {
                before.get(parent as usize)?.depth + 1
            },
            name: name.into(),
            key: if root { Key::ROOT } else { key },
            inode: (ino, born),
            file_type: type_of(format.into()),
            mode: mode & 0o7777,
            uid,
            gid,
            nlink,
            rdev,
            size,
            mtime,
            atime,
            ctime,
            frozen: bits & FROZEN != 0,
            mount: bits & MOUNT != 0,
            dev,
            allocated,
            facts,
        })
    }

    fn facts(&mut self, is_plain: bool, plain: &Arc<Facts>) -> Option<Arc<Facts>> {
        let mut facts = Facts::clone(plain);
        if !is_plain {
            facts.flags = IFlags::from_bits_retain(self.number()?.try_into().ok()?);
            for _ in 0..self.number()? {
                let (key, value) = (self.bytes()?.to_vec(), self.bytes()?.to_vec());
                facts.xattrs.insert(key, value);
            }
            facts.link = self.bytes()?.to_vec();
        }
        facts.hash = match self.bytes()? {
            [] if is_plain => return Some(Arc::clone(plain)),
            [] => None,
            hash => Some(hash.try_into().ok()?),
        };
        Some(Arc::new(facts))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(name: &[u8], parent: u32, format: u16, facts: Facts) -> Node {
        let born = Stamp {
            s: -5,
            ns: 999_999_999,
        };
        let root = name.is_empty();
        let key = Key {
            kind: KeyKind::Inode,
            ino: u64::MAX,
            born,
            format,
        };
        Node {
            parent,
            depth: u32::from(!root),
            name: name.into(),
            key: if root { Key::ROOT } else { key },
            inode: (u64::MAX, born),
            file_type: type_of(format.into()),
            mode: 0o7777,
            uid: u32::MAX,
            gid: 7,
            nlink: 3,
            rdev: (1, u32::MAX),
            size: 1 << 62,
            mtime: born,
            atime: Stamp { s: i64::MAX, ns: 1 },
            ctime: Stamp { s: i64::MIN, ns: 2 },
            frozen: true,
            mount: false,
            dev: (8, 1),
            allocated: 4096,
            facts: Some(Arc::new(facts)),
        }
    }

    fn sample() -> Manifest {
        let facts = |link: &[u8], hash| Facts {
            xattrs: Xattrs::from([(b"user.\xff".to_vec(), b"\0v".to_vec())]),
            flags: IFlags::IMMUTABLE,
            link: link.to_vec(),
            hash,
        };
        let plain = |hash| Facts {
            xattrs: Xattrs::new(),
            flags: IFlags::empty(),
            link: Vec::new(),
            hash,
        };
        Manifest {
            started: Stamp { s: 1, ns: 2 },
            nodes: vec![
                node(b"", 0, 0o040_000, plain(None)),
                node(b"\xff\n", 0, 0o100_000, facts(b"", Some([7; 32]))),
                node(b"l", 0, 0o120_000, facts(b"../x", None)),
                node(b"p", 0, 0o100_000, plain(Some([9; 32]))),
            ],
            patterns: Patterns::default(),
        }
    }

    #[test]
    fn everything_is_kept() {
        let mut sample = sample();
        let back = Manifest::parse(&sample.bytes()).expect("whole");
        assert_eq!(format!("{back:?}"), format!("{sample:?}"));
        sample.patterns = Patterns::new([("*.o", false), ("a/", false), ("b.o", true)]);
        let back = Manifest::parse(&sample.bytes()).expect("whole");
        assert_eq!(back.patterns.lines(), ["*.o", "a/", "!b.o"]);
        assert_eq!(format!("{:?}", back.nodes), format!("{:?}", sample.nodes));
    }

    #[test]
    fn damaged_ones_are_errors_and_names_cannot_leave_the_folder() {
        damaged(&sample());
        damaged(&Manifest {
            patterns: Patterns::new([("*.o", false)]),
            ..sample()
        });
    }

    fn damaged(sample: &Manifest) {
        let bytes = sample.bytes();
        let body = &bytes[..bytes.len() - SEAL];
        let sealed = |body: &[u8]| [body, blake3::hash(body).as_bytes()].concat();
        for n in 0..body.len() {
            assert!(Manifest::parse(&bytes[..n]).is_err());
            assert!(Manifest::parse(&sealed(&body[..n])).is_err(), "cut at {n}");
            let mut other = body.to_vec();
            other[n] ^= 0xff;
            // an answer, whatever it is: no panic, no huge allocation
            let parsed = Manifest::parse(&sealed(&other));
            assert!(parsed.is_err() || parsed.is_ok_and(|m| m.nodes.len() < 5));
        }
        for bad in [&b".."[..], b".", b"a/b", b"a\0"] {
            let mut m = self::sample();
            m.nodes[1].name = bad.into();
            assert!(Manifest::parse(&m.bytes()).is_err());
        }
    }
}
