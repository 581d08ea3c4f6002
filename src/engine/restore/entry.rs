//! One path of one tree, as the check compares it.

use std::io;
use std::os::fd::BorrowedFd;

use rustix::fs::{IFlags, Statx};

use crate::engine::FileType;
use crate::engine::changes::attrs::{FLAGS, flags, target, xattrs};
use crate::engine::changes::content::same_bytes;
use crate::engine::changes::node::type_of;
use crate::engine::changes::open::open_file_at;
use crate::text::shown_bytes;

/// An entry: its directory, its name there, and what `statx` says of it.
pub(super) struct Side<'a> {
    pub dir: BorrowedFd<'a>,
    pub name: &'a [u8],
    pub st: &'a Statx,
}

fn word(t: FileType) -> &'static str {
    match t {
        FileType::File => "a file",
        FileType::Dir => "a folder",
        FileType::Link => "a link",
        FileType::Fifo => "a pipe",
        FileType::Socket => "a socket",
        FileType::CharDevice => "a character device",
        FileType::BlockDevice => "a block device",
    }
}

/// `chattr`'s letters.
fn letters(flags: IFlags) -> String {
    let all = [
        (IFlags::IMMUTABLE, 'i'),
        (IFlags::APPEND, 'a'),
        (IFlags::NODUMP, 'd'),
        (IFlags::NOCOW, 'C'),
    ];
    let text: String = all
        .iter()
        .filter(|(f, _)| flags.contains(*f))
        .map(|x| x.1)
        .collect();
    if text.is_empty() { "-".into() } else { text }
}

impl Side<'_> {
    pub fn file_type(&self) -> FileType {
        type_of(u32::from(self.st.stx_mode))
    }

    /// What `statx` alone shows, in words. `links`: the number of links must agree too.
    pub fn by_stat(&self, should: &Side<'_>, links: bool) -> Vec<String> {
        let (x, y) = (self.st, should.st);
        let (is, want) = (self.file_type(), should.file_type());
        if is != want {
            return vec![format!("is {}, should be {}", word(is), word(want))];
        }
        let mut what = Vec::new();
        let (m, n) = (x.stx_mode & 0o7777, y.stx_mode & 0o7777);
        if m != n {
            what.push(format!("mode {m:o}, should be {n:o}"));
        }
        if (x.stx_uid, x.stx_gid) != (y.stx_uid, y.stx_gid) {
            let (u, g, v, h) = (x.stx_uid, x.stx_gid, y.stx_uid, y.stx_gid);
            what.push(format!("owner {u}:{g}, should be {v}:{h}"));
        }
        if matches!(is, FileType::File | FileType::Link) && x.stx_size != y.stx_size {
            what.push(format!("size {}, should be {}", x.stx_size, y.stx_size));
        }
        let (s, t) = (x.stx_mtime, y.stx_mtime);
        if (s.tv_sec, s.tv_nsec) != (t.tv_sec, t.tv_nsec) {
            what.push(format!(
                "modification time {}.{:09}, should be {}.{:09}",
                s.tv_sec, s.tv_nsec, t.tv_sec, t.tv_nsec
            ));
        }
        if matches!(is, FileType::CharDevice | FileType::BlockDevice) {
            let (p, q) = (
                (x.stx_rdev_major, x.stx_rdev_minor),
                (y.stx_rdev_major, y.stx_rdev_minor),
            );
            if p != q {
                what.push(format!("device {}:{}, should be {}:{}", p.0, p.1, q.0, q.1));
            }
        }
        if links && is != FileType::Dir && x.stx_nlink != y.stx_nlink {
            what.push(format!("{} hard links, should be {}", x.stx_nlink, y.stx_nlink));
        }
        what
    }

    /// What only reading shows, in words. Both are of one type.
    pub fn by_reading(&self, should: &Side<'_>, cancelled: &dyn Fn() -> bool) -> io::Result<Vec<String>> {
        let mut what = Vec::new();
        let kind = self.file_type();
        if kind == FileType::Link {
            let (x, y) = (target(self.dir, self.name)?, target(should.dir, should.name)?);
            if x != y {
                what.push(format!(
                    "link to {}, should be to {}",
                    shown_bytes(&x),
                    shown_bytes(&y)
                ));
            }
        }
        let (x, y) = (xattrs(self.dir, self.name)?, xattrs(should.dir, should.name)?);
        for key in x.keys().chain(y.keys().filter(|k| !x.contains_key(*k))) {
            if x.get(key) != y.get(key) {
                what.push(format!("extended attribute {} differs", shown_bytes(key)));
            }
        }
        let (p, q) = (
            flags(self.dir, self.name, kind)? & FLAGS,
            flags(should.dir, should.name, kind)? & FLAGS,
        );
        if p != q {
            what.push(format!("flags {}, should be {}", letters(p), letters(q)));
        }
        if kind == FileType::File && self.st.stx_size == should.st.stx_size {
            let (f, g) = (
                open_file_at(self.dir, self.name, false)?,
                open_file_at(should.dir, should.name, false)?,
            );
            if !same_bytes(&f, &g, cancelled)? {
                what.push("content differs".into());
            }
        }
        Ok(what)
    }
}
