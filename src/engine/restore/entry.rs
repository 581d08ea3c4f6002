//! One path of one tree, as the check compares it.

use std::io;
use std::os::fd::BorrowedFd;

use rustix::fs::{IFlags, Statx};

use crate::engine::FileType;
use crate::engine::changes::attrs::{flags, target, xattrs};
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
        let (is, want) = (self.st, should.st);
        let kind = self.file_type();
        if kind != should.file_type() {
            return vec![format!(
                "is {}, should be {}",
                word(kind),
                word(should.file_type())
            )];
        }
        let mut what = Vec::new();
        let mut add = |name: &str, is: String, want: String| {
            if is != want {
                what.push(format!("{name}{is}, should be {want}"));
            }
        };
        let mode = |st: &Statx| format!("{:o}", st.stx_mode & 0o7777);
        let owner = |st: &Statx| format!("{}:{}", st.stx_uid, st.stx_gid);
        let time = |st: &Statx| format!("{}.{:09}", st.stx_mtime.tv_sec, st.stx_mtime.tv_nsec);
        let device = |st: &Statx| format!("{}:{}", st.stx_rdev_major, st.stx_rdev_minor);
        add("mode ", mode(is), mode(want));
        add("owner ", owner(is), owner(want));
        if matches!(kind, FileType::File | FileType::Link) {
            add("size ", is.stx_size.to_string(), want.stx_size.to_string());
        }
        add("modification time ", time(is), time(want));
        if matches!(kind, FileType::CharDevice | FileType::BlockDevice) {
            add("device ", device(is), device(want));
        }
        if links && kind != FileType::Dir {
            add(
                "number of hard links ",
                is.stx_nlink.to_string(),
                want.stx_nlink.to_string(),
            );
        }
        what
    }

    /// What only reading shows, in words. Both are of one type.
    pub fn by_reading(&self, should: &Side<'_>, cancelled: &dyn Fn() -> bool) -> io::Result<Vec<String>> {
        let mut what = Vec::new();
        let kind = self.file_type();
        if kind == FileType::Link {
            let (is, want) = (target(self.dir, self.name)?, target(should.dir, should.name)?);
            if is != want {
                let (is, want) = (shown_bytes(&is), shown_bytes(&want));
                what.push(format!("link to {is}, should be to {want}"));
            }
        }
        let (is, want) = (xattrs(self.dir, self.name)?, xattrs(should.dir, should.name)?);
        for key in is.keys().chain(want.keys().filter(|k| !is.contains_key(*k))) {
            if is.get(key) != want.get(key) {
                what.push(format!("extended attribute {} differs", shown_bytes(key)));
            }
        }
        let is = flags(self.dir, self.name, kind)?;
        let want = flags(should.dir, should.name, kind)?;
        if is != want {
            what.push(format!("flags {}, should be {}", letters(is), letters(want)));
        }
        if kind == FileType::File && self.st.stx_size == should.st.stx_size {
            let is = open_file_at(self.dir, self.name, false)?;
            let want = open_file_at(should.dir, should.name, false)?;
            if !same_bytes(&is, &want, cancelled)? {
                what.push("content differs".into());
            }
        }
        Ok(what)
    }
}
