//! How one file differs between two states: lines, words, hunks; binary, huge and hostile files.

mod compare;
mod lines;
mod quote;
mod unified;

use std::ops::Range;
use std::path::PathBuf;

use crate::engine::FileType;

pub use compare::{Limits, file_diff};
pub use unified::{Side, unified};

/// What a line of a hunk is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tag {
    /// In both.
    Equal,
    /// In the first only.
    Delete,
    /// In the second only.
    Insert,
}

/// A line of a hunk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Line {
    /// What it is.
    pub tag: Tag,
    /// Its number in the first file, from 1.
    pub old: Option<u32>,
    /// Its number in the second file, from 1.
    pub new: Option<u32>,
    /// The text without its line feed; hostile, a carriage return at the end included.
    pub text: String,
    /// Byte ranges of `text` that differ from the line that it replaces.
    pub emphasis: Vec<Range<usize>>,
    /// The last line of its file, without a line feed.
    pub no_newline: bool,
}

/// A run of lines with their context.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hunk {
    /// First line in the first file, from 1 (0 where it has none).
    pub old_start: u32,
    /// Lines of the first file.
    pub old_len: u32,
    /// First line in the second file.
    pub new_start: u32,
    /// Lines of the second file.
    pub new_len: u32,
    /// The lines.
    pub lines: Vec<Line>,
}

/// How one path differs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FileDiff {
    /// Both sides are text, or one is missing.
    Text {
        /// The hunks.
        hunks: Vec<Hunk>,
        /// Lines inserted.
        added: u64,
        /// Lines deleted.
        removed: u64,
        /// A remark ("only line ends differ", "the comparison ran out of time: whole file shown as replaced").
        note: Option<String>,
    },
    /// At least one side is not text.
    Binary {
        /// Size of the first in bytes.
        size_a: Option<u64>,
        /// Size of the second in bytes.
        size_b: Option<u64>,
        /// A hash of the first (16 hex characters).
        hash_a: Option<String>,
        /// A hash of the second.
        hash_b: Option<String>,
    },
    /// A symbolic link: its targets, never what they point at.
    Link {
        /// Target before.
        a: Option<PathBuf>,
        /// Target after.
        b: Option<PathBuf>,
    },
    /// Types that have no content to show, or a change of type.
    Special {
        /// Type before.
        a: Option<FileType>,
        /// Type after.
        b: Option<FileType>,
    },
    /// Too large to show.
    TooLarge {
        /// Size before.
        size_a: Option<u64>,
        /// Size after.
        size_b: Option<u64>,
    },
    /// The content is equal (attributes may differ).
    Same,
}
