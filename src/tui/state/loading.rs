//! Selections, and what is asked for in the background.

use crate::tui::backend::Failure;
use crate::tui::message::JobId;

/// A selected row and the first one on the screen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Position {
    /// The selected row.
    pub selected: usize,
    /// The first row that is shown.
    pub top: usize,
}

impl Position {
    /// Moves both so that the selection exists and can be seen in `height` rows.
    pub fn settle(&mut self, len: usize, height: usize) {
        self.selected = self.selected.min(len.saturating_sub(1));
        self.top = self.top.min(len.saturating_sub(height.max(1)));
        if self.selected < self.top {
            self.top = self.selected;
        } else if height > 0 && self.selected >= self.top + height {
            self.top = self.selected + 1 - height;
        }
    }
}

/// Something that is asked for in the background. The last value stays until the next one is there, or
/// until the work turns out to be slow.
#[derive(Debug, Clone)]
pub struct Loading<K, T> {
    /// What is wished.
    pub wanted: Option<K>,
    /// The work that is under way for it.
    pub job: Option<JobId>,
    /// It has been under way for a while.
    pub slow: bool,
    /// What is there, and for which wish.
    pub value: Option<(K, Result<T, Failure>)>,
}

impl<K, T> Default for Loading<K, T> {
    fn default() -> Self {
        Self {
            wanted: None,
            job: None,
            slow: false,
            value: None,
        }
    }
}

impl<K: Clone, T> Loading<K, T> {
    /// Work begins.
    pub fn begin(&mut self, wanted: K, job: JobId) {
        self.wanted = Some(wanted);
        self.job = Some(job);
        self.slow = false;
    }
    /// Takes an answer; false if it is not the one that is waited for.
    pub fn finish(&mut self, job: JobId, value: Result<T, Failure>) -> bool {
        if self.job != Some(job) {
            return false;
        }
        self.job = None;
        self.slow = false;
        if let Some(wanted) = self.wanted.clone() {
            self.value = Some((wanted, value));
        }
        true
    }
    /// Forgets everything.
    pub fn clear(&mut self) {
        *self = Self::default();
    }
    /// The value, if it can be used.
    pub fn ready(&self) -> Option<&T> {
        self.value.as_ref().and_then(|(_, v)| v.as_ref().ok())
    }
}
