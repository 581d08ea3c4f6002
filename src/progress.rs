//! Progress and cancellation of long work, without any knowledge of who shows it.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

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

/// So many phases with a name in them are kept.
const NAMED: usize = 256;

/// The name of a phase that is made of words known only now (harmless): kept for good, a limited number of them. `other`:
/// what it is called when there are too many.
pub fn named(phase: &str, other: &'static str) -> &'static str {
    static KNOWN: Mutex<Vec<&'static str>> = Mutex::new(Vec::new());
    let Ok(mut known) = KNOWN.lock() else { return other };
    if let Some(found) = known.iter().find(|k| **k == phase) {
        return found;
    }
    if known.len() >= NAMED {
        return other;
    }
    let kept: &'static str = Box::leak(phase.into());
    known.push(kept);
    kept
}

/// How often a phase is told again while one waits.
const AGAIN: Duration = Duration::from_millis(100);

/// Waits for work of one step, each part in a thread of its own; `what` tells the phase by those that are not done yet.
pub fn together<T: Sync, R: Send>(
    parts: &[T],
    progress: &dyn Progress,
    what: impl Fn(&[&T]) -> &'static str,
    work: impl Fn(&T) -> R + Sync,
) -> Vec<R> {
    std::thread::scope(|threads| {
        let work = &work;
        let waiting = std::thread::current();
        let one = |part| {
            let waiting = waiting.clone();
            threads.spawn(move || {
                let done = work(part);
                waiting.unpark();
                done
            })
        };
        let all: Vec<_> = parts.iter().map(one).collect();
        loop {
            let open = parts.iter().zip(&all).filter(|(_, t)| !t.is_finished());
            let open: Vec<&T> = open.map(|(part, _)| part).collect();
            if open.is_empty() {
                break;
            }
            progress.step(what(&open), 0, 0);
            std::thread::park_timeout(AGAIN);
        }
        let result = |t: std::thread::ScopedJoinHandle<'_, R>| match t.join() {
            Ok(done) => done,
            Err(panic) => std::panic::resume_unwind(panic),
        };
        all.into_iter().map(result).collect()
    })
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    struct Heard(Mutex<mpsc::Sender<&'static str>>);

    impl Progress for Heard {
        fn step(&self, what: &'static str, _: u64, _: u64) {
            let _told = self.0.lock().expect("lock").send(what);
        }
    }

    /// Each part waits until it is told alone: they work at the same time, and what is told changes as they end.
    #[test]
    fn parts_work_at_the_same_time_and_those_that_are_open_are_told() {
        let (send, heard) = mpsc::channel();
        let barrier = std::sync::Barrier::new(2);
        let last = Mutex::new(heard);
        let what = |open: &[&u32]| named(&format!("waiting for {open:?}"), "waiting");
        let done = together(&[1, 2], &Heard(Mutex::new(send)), what, |n| {
            barrier.wait();
            if *n == 2 {
                let heard = last.lock().expect("lock");
                while heard.recv().expect("told") != "waiting for [2]" {}
            }
            n * 10
        });
        assert_eq!(done, [10, 20]);
        assert!(std::ptr::eq(named("one", "other"), named("one", "other")));
    }
}
