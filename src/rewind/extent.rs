//! How much a folder holds, for people who were about to track far too much.

use std::path::Path;
use std::time::{Duration, Instant};

use super::error::RewindError;
use crate::engine::restore::measure;
use crate::progress::Progress;
use crate::sandbox::bind;
use crate::text::size;

/// How long it may take to count.
const PATIENCE: Duration = Duration::from_millis(300);

struct Until(Instant);

impl Progress for Until {
    fn step(&self, _: &'static str, _: u64, _: u64) {}
    fn cancelled(&self) -> bool {
        Instant::now() > self.0
    }
}

/// What is in it, with the folder itself, in words to put after a sentence; where counting takes too long, what its disk holds.
pub fn extent(path: &Path) -> String {
    let Ok(folder) = bind::open_folder(path) else {
        return String::new();
    };
    if let Ok(m) = measure(
        std::os::fd::AsFd::as_fd(&folder),
        &Until(Instant::now() + PATIENCE),
    ) {
        return format!(" ({} files and folders, {})", m.entries, size(m.bytes));
    }
    rustix::fs::fstatvfs(&folder).map_or_else(
        |_| String::new(),
        |v| {
            let used = v.f_blocks.saturating_sub(v.f_bfree).saturating_mul(v.f_frsize);
            if used == 0 {
                return String::new(); // no disk
            }
            format!(" (its disk holds {})", size(used))
        },
    )
}

impl RewindError {
    /// A place that is refused, with how much is there.
    pub(super) fn with_extent(self, path: &Path) -> Self {
        match self {
            Self::Refused { why, path: at, hint } => Self::Refused {
                why: format!("{why}{}", extent(path)),
                path: at,
                hint,
            },
            other => other,
        }
    }
}
