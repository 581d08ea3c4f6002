//! Progress and cancellation of long work, without any knowledge of who shows it.

use std::sync::atomic::{AtomicBool, Ordering};

/// Receives progress and says whether to go on. Called from worker threads, often; must be cheap.
pub trait Progress: Sync {
    /// `done` of `total` steps (0 = not known) of the phase `what` ("copying", "comparing", ...).
    fn step(&self, what: &'static str, done: u64, total: u64);
    /// True once the user asked to stop. Long work checks it between steps.
    fn cancelled(&self) -> bool {
        false
    }
}

/// No progress, never cancelled.
#[derive(Debug, Default, Clone, Copy)]
pub struct Silent;

impl Progress for Silent {
    fn step(&self, _what: &'static str, _done: u64, _total: u64) {}
}

/// A flag that one side sets and the other reads.
#[derive(Debug, Default)]
pub struct CancelFlag(AtomicBool);

impl CancelFlag {
    /// Not set.
    pub const fn new() -> Self {
        Self(AtomicBool::new(false))
    }
    /// Asks the work to stop.
    pub fn cancel(&self) {
        self.0.store(true, Ordering::Relaxed);
    }
    /// True after [`CancelFlag::cancel`].
    pub fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// Another one that also ends when this side says so. Tells nothing.
pub struct Until<'a> {
    other: &'a dyn Progress,
    flag: CancelFlag,
}

impl<'a> Until<'a> {
    /// Ends when `other` does, or at [`Until::end`].
    pub fn new(other: &'a dyn Progress) -> Self {
        Self {
            other,
            flag: CancelFlag::new(),
        }
    }
    /// Ends it.
    pub fn end(&self) {
        self.flag.cancel();
    }
}

impl Progress for Until<'_> {
    fn step(&self, _what: &'static str, _done: u64, _total: u64) {}
    fn cancelled(&self) -> bool {
        self.flag.is_set() || self.other.cancelled()
    }
}
