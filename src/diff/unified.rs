//! Unified diffs that `git apply` takes: git's own headers, names and modes. What git's text patches cannot
//! say (binary files, pipes, sockets, devices) is said in lines that it passes over.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use super::quote::quoted;
use super::{FileDiff, Hunk, Limits, Tag, compare, lines};
use crate::engine::{Content, FileType};
use crate::text::{shown, size};

/// One side of a comparison: a path in some state.
#[derive(Debug, Clone, Copy)]
pub struct Side<'a> {
    /// Its path, relative to the part's root.
    pub path: &'a Path,
    /// Its permission bits.
    pub mode: u32,
    /// Its content.
    pub content: &'a Content,
}

impl Side<'_> {
    /// The mode as git has it.
    fn git_mode(&self) -> &'static str {
        match self.content {
            Content::Link(_) => "120000",
            _ if self.mode & 0o100 != 0 => "100755",
            _ => "100644",
        }
    }

    fn file_type(&self) -> FileType {
        match self.content {
            Content::File { .. } => FileType::File,
            Content::Link(_) => FileType::Link,
            Content::Other(file_type) => *file_type,
        }
    }
}

/// The patch from `a` to `b` (`None`: not there). `raw`: exact bytes, for a pipe or a file; else every
/// control character of the content but tabs is made visible, for a terminal.
pub fn unified(a: Option<Side<'_>>, b: Option<Side<'_>>, limits: Limits, raw: bool) -> Vec<u8> {
    let mut patch = Patch { out: Vec::new(), raw };
    match (a, b) {
        (Some(a), Some(b)) if a.file_type() != b.file_type() => {
            patch.one(Some(a), None, limits);
            patch.one(None, Some(b), limits);
        }
        _ => patch.one(a, b, limits),
    }
    patch.out
}

struct Patch {
    out: Vec<u8>,
    raw: bool,
}

impl Patch {
    fn one(&mut self, a: Option<Side<'_>>, b: Option<Side<'_>>, limits: Limits) {
        let Some(some) = a.or(b) else { return };
        match some.file_type() {
            FileType::File => {}
            FileType::Link => return self.link(a, b, limits),
            FileType::Dir => return,
            special => return self.special(a, b, special),
        }
        match compare::file_diff(a.map(|s| s.content), b.map(|s| s.content), limits) {
            FileDiff::Text { hunks, .. } => {
                self.header(a, b, false);
                self.hunks(a, b, &hunks);
            }
            FileDiff::Binary { size_a, size_b, .. } => {
                self.unsaid(a, b, "Binary files", "differ", size_a, size_b);
            }
            FileDiff::TooLarge { size_a, size_b } => {
                self.unsaid(a, b, "Files", "are too large to compare", size_a, size_b);
            }
            FileDiff::Same | FileDiff::Link { .. } | FileDiff::Special { .. } => self.metadata(a, b, true),
        }
    }

    /// A link: its target is its content, as in git.
    fn link(&mut self, a: Option<Side<'_>>, b: Option<Side<'_>>, limits: Limits) {
        let text = |s| std::str::from_utf8(target(s));
        match (text(a), text(b)) {
            (Ok(x), Ok(y)) if a.is_some() && b.is_some() && x == y => self.metadata(a, b, true),
            (Ok(x), Ok(y)) => {
                if let FileDiff::Text { hunks, .. } = lines::text_diff(x, y, limits.time) {
                    self.header(a, b, false);
                    self.hunks(a, b, &hunks);
                }
            }
            _ => {
                let len = |s: Option<Side<'_>>| s.map(|s| target(Some(s)).len() as u64);
                self.unsaid(a, b, "Links", "differ", len(a), len(b));
            }
        }
    }

    fn special(&mut self, a: Option<Side<'_>>, b: Option<Side<'_>>, file_type: FileType) {
        let word = match file_type {
            FileType::Fifo => "Named pipe",
            FileType::Socket => "Socket",
            FileType::CharDevice => "Character device",
            FileType::BlockDevice => "Block device",
            FileType::File | FileType::Dir | FileType::Link => "File",
        };
        let line = match (a, b) {
            (None, Some(b)) => format!("{word} {} is new", quoted("b/", b.path)),
            (Some(a), None) => format!("{word} {} is gone", quoted("a/", a.path)),
            (Some(a), Some(b)) if a.path != b.path => {
                format!("{word} {} is now {}", quoted("a/", a.path), quoted("b/", b.path))
            }
            (Some(a), _) => format!("{word} {} has other attributes", quoted("a/", a.path)),
            (None, None) => return,
        };
        self.say(&line);
    }

    /// A change that a text patch cannot hold, named with its sizes in a line that `git apply` passes over;
    /// a new name or mode is said in a header that it takes.
    fn unsaid(
        &mut self,
        a: Option<Side<'_>>,
        b: Option<Side<'_>>,
        what: &str,
        how: &str,
        size_a: Option<u64>,
        size_b: Option<u64>,
    ) {
        self.metadata(a, b, false);
        let bytes = |s: Option<u64>| s.map_or_else(|| "none".to_owned(), size);
        let line = format!(
            "{what} {} and {} {how} ({}, {})",
            old_name(a),
            new_name(b),
            bytes(size_a),
            bytes(size_b)
        );
        self.say(&line);
    }

    /// The header alone, where both sides are there and name or mode differ.
    fn metadata(&mut self, a: Option<Side<'_>>, b: Option<Side<'_>>, equal: bool) {
        if let (Some(x), Some(y)) = (a, b)
            && (x.path != y.path || x.git_mode() != y.git_mode())
        {
            self.header(a, b, equal);
        }
    }

    fn header(&mut self, a: Option<Side<'_>>, b: Option<Side<'_>>, equal: bool) {
        let (Some(old), Some(new)) = (a.or(b), b.or(a)) else {
            return;
        };
        self.say(&format!(
            "diff --git {} {}",
            quoted("a/", old.path),
            quoted("b/", new.path)
        ));
        match (a, b) {
            (None, Some(b)) => self.say(&format!("new file mode {}", b.git_mode())),
            (Some(a), None) => self.say(&format!("deleted file mode {}", a.git_mode())),
            _ => {
                if old.git_mode() != new.git_mode() {
                    self.say(&format!("old mode {}", old.git_mode()));
                    self.say(&format!("new mode {}", new.git_mode()));
                }
                if old.path != new.path {
                    if equal {
                        self.say("similarity index 100%");
                    }
                    self.say(&format!("rename from {}", quoted("", old.path)));
                    self.say(&format!("rename to {}", quoted("", new.path)));
                }
            }
        }
    }

    fn hunks(&mut self, a: Option<Side<'_>>, b: Option<Side<'_>>, hunks: &[Hunk]) {
        if hunks.is_empty() {
            return;
        }
        // a tab after a name with blanks, as git: else a time stamp is looked for there
        let tab = |name: String| if name.contains(' ') { name + "\t" } else { name };
        self.say(&format!("--- {}", tab(old_name(a))));
        self.say(&format!("+++ {}", tab(new_name(b))));
        let span = |start: u32, len: u32| {
            if len == 1 {
                start.to_string()
            } else {
                format!("{start},{len}")
            }
        };
        for hunk in hunks {
            let (old, new) = (
                span(hunk.old_start, hunk.old_len),
                span(hunk.new_start, hunk.new_len),
            );
            self.say(&format!("@@ -{old} +{new} @@"));
            for line in &hunk.lines {
                self.out.push(match line.tag {
                    Tag::Equal => b' ',
                    Tag::Delete => b'-',
                    Tag::Insert => b'+',
                });
                self.content(&line.text);
                if line.no_newline {
                    self.say("\\ No newline at end of file");
                }
            }
        }
    }

    /// A line of the file.
    fn content(&mut self, text: &str) {
        if self.raw {
            self.out.extend_from_slice(text.as_bytes());
        } else {
            let shown: Vec<String> = text.split('\t').map(shown).collect();
            self.out.extend_from_slice(shown.join("\t").as_bytes());
        }
        self.out.push(b'\n');
    }

    /// A line of ours; harmless as it is.
    fn say(&mut self, line: &str) {
        self.out.extend_from_slice(line.as_bytes());
        self.out.push(b'\n');
    }
}

/// A link's target, empty where there is no link.
fn target(side: Option<Side<'_>>) -> &[u8] {
    match side.map(|s| s.content) {
        Some(Content::Link(target)) => target.as_os_str().as_bytes(),
        _ => &[],
    }
}

fn old_name(side: Option<Side<'_>>) -> String {
    side.map_or_else(|| "/dev/null".to_owned(), |s| quoted("a/", s.path))
}

fn new_name(side: Option<Side<'_>>) -> String {
    side.map_or_else(|| "/dev/null".to_owned(), |s| quoted("b/", s.path))
}
