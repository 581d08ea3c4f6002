//! The parallel walk of a tree. Opens directories only; crosses neither mounts nor nested subvolumes.

use std::ffi::OsStr;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use rustix::fs::RawDir;

use super::node::{Node, Origin, Walked, stat_at};
use super::open::{open_chain, open_dir_at, to_path};
use crate::engine::{EngineError, Result};
use crate::patterns::Patterns;
use crate::progress::Progress;

/// Directories that one walk keeps open for the sake of their children; beyond that it opens by path.
const HELD: usize = 100;

/// A directory to read.
struct Job {
    dir: u32,
    depth: u32,
    parent: Option<Arc<Held>>,
    name: Box<[u8]>,
}

/// An open directory that its children are opened from; counted, as descriptors are few.
struct Held {
    fd: OwnedFd,
    count: Arc<AtomicUsize>,
}

impl Drop for Held {
    fn drop(&mut self) {
        self.count.fetch_sub(1, Ordering::Relaxed);
    }
}

struct State {
    nodes: Vec<Node>,
    queue: Vec<Job>,
    busy: usize,
    error: Option<EngineError>,
}

struct Walk<'a> {
    root: BorrowedFd<'a>,
    origin: Origin,
    /// Directories for which this says no are listed, not entered.
    enter: &'a (dyn Fn(&Node) -> bool + Sync),
    /// What these leave out counts as not covered.
    without: Option<&'a Patterns>,
    state: Mutex<State>,
    wake: Condvar,
    held: Arc<AtomicUsize>,
    progress: &'a dyn Progress,
}

/// Threads for one walk where `walks` run side by side.
pub(in crate::engine) fn threads(walks: usize) -> usize {
    let all = std::thread::available_parallelism().map_or(2, std::num::NonZero::get);
    (all / walks).clamp(1, 6)
}

/// Walks the tree below `root`.
pub(in crate::engine) fn walk(
    root: BorrowedFd<'_>,
    threads: usize,
    progress: &dyn Progress,
) -> Result<Walked> {
    walk_where(root, threads, progress, &Node::covered).map(Walked::new)
}

/// Walks the tree below `root`, entering only the directories that `enter` says yes to.
pub(in crate::engine) fn walk_where(
    root: BorrowedFd<'_>,
    threads: usize,
    progress: &dyn Progress,
    enter: &(dyn Fn(&Node) -> bool + Sync),
) -> Result<Vec<Node>> {
    walk_nodes(root, threads, progress, enter, None)
}

/// Walks the tree below `root`; what the patterns leave out is listed as not covered, and not entered.
pub(in crate::engine) fn walk_without(
    root: BorrowedFd<'_>,
    threads: usize,
    progress: &dyn Progress,
    patterns: &Patterns,
) -> Result<Vec<Node>> {
    let patterns = Some(patterns).filter(|p| !p.is_empty());
    walk_nodes(root, threads, progress, &Node::covered, patterns)
}

fn walk_nodes(
    root: BorrowedFd<'_>,
    threads: usize,
    progress: &dyn Progress,
    enter: &(dyn Fn(&Node) -> bool + Sync),
    without: Option<&Patterns>,
) -> Result<Vec<Node>> {
    let st = stat_at(root, b"")
        .map_err(std::io::Error::from)
        .map_err(EngineError::io("read", "."))?;
    let walk = Walk {
        root,
        origin: Origin::of(&st),
        enter,
        without,
        state: Mutex::new(State {
            nodes: vec![Node::new(b"", 0, 0, &st, None)],
            queue: vec![Job {
                dir: 0,
                depth: 0,
                parent: None,
                name: Box::default(),
            }],
            busy: 0,
            error: None,
        }),
        wake: Condvar::new(),
        held: Arc::new(AtomicUsize::new(0)),
        progress,
    };
    std::thread::scope(|s| {
        for _ in 1..threads {
            s.spawn(|| walk.work());
        }
        walk.work();
    });
    let state = walk.state.into_inner().unwrap_or_else(PoisonError::into_inner);
    match state.error {
        Some(error) => Err(error),
        None => Ok(state.nodes),
    }
}

impl Walk<'_> {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn work(&self) {
        let mut buffer = vec![MaybeUninit::uninit(); 64 << 10];
        while let Some(job) = self.next_job() {
            let found = self.read(&job, &mut buffer);
            self.done(&job, found);
        }
    }

    fn next_job(&self) -> Option<Job> {
        let mut state = self.lock();
        loop {
            if state.error.is_some() {
                return None;
            }
            if let Some(job) = state.queue.pop() {
                state.busy += 1;
                return Some(job);
            }
            if state.busy == 0 {
                return None;
            }
            state = self.wake.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn done(&self, job: &Job, found: Result<(Vec<Node>, Option<Arc<Held>>)>) {
        let mut state = self.lock();
        state.busy -= 1;
        match found {
            Ok((nodes, held)) => {
                let first = state.nodes.len() as u32;
                for (i, node) in (first..).zip(&nodes) {
                    if node.is_dir() && (self.enter)(node) {
                        state.queue.push(Job {
                            dir: i,
                            depth: job.depth + 1,
                            parent: held.clone(),
                            name: node.name.clone(),
                        });
                    }
                }
                state.nodes.extend(nodes);
                self.progress.step("comparing", state.nodes.len() as u64, 0);
            }
            Err(error) => state.error = Some(error),
        }
        drop(state);
        self.wake.notify_all();
    }

    fn open(&self, job: &Job) -> Result<OwnedFd> {
        let opened = if let Some(held) = &job.parent {
            open_dir_at(held.fd.as_fd(), &job.name)
        } else {
            let chain = self.chain(job.dir);
            let names: Vec<&[u8]> = chain.iter().map(|n| &n[..]).collect();
            open_chain(self.root, &names)
        };
        opened.map_err(|e| self.error("open", job.dir, e))
    }

    fn chain(&self, dir: u32) -> Vec<Box<[u8]>> {
        let state = self.lock();
        let mut names = Vec::new();
        let mut at = dir;
        while at != 0 {
            let node = &state.nodes[at as usize];
            names.push(node.name.clone());
            at = node.parent;
        }
        names.reverse();
        names
    }

    fn error(&self, what: &'static str, dir: u32, e: std::io::Error) -> EngineError {
        EngineError::io(what, to_path(&self.chain(dir).join(&b'/')))(e)
    }

    fn read(&self, job: &Job, buffer: &mut [MaybeUninit<u8>]) -> Result<(Vec<Node>, Option<Arc<Held>>)> {
        if self.progress.cancelled() {
            return Err(EngineError::Cancelled);
        }
        let fd = self.open(job)?;
        let mut nodes = Vec::new();
        let without = self
            .without
            .map(|p| (p, to_path(&self.chain(job.dir).join(&b'/'))));
        let mut entries = RawDir::new(&fd, buffer);
        while let Some(entry) = entries.next() {
            let entry = entry.map_err(|e| self.error("read", job.dir, e.into()))?;
            let name = entry.file_name().to_bytes();
            if name == b"." || name == b".." {
                continue;
            }
            let st = stat_at(fd.as_fd(), name).map_err(|e| self.error("read", job.dir, e.into()))?;
            let mut node = Node::new(name, job.dir, job.depth + 1, &st, Some(self.origin));
            if let Some((patterns, above)) = &without
                && patterns.leaves_out(&above.join(OsStr::from_bytes(name)), node.is_dir())
            {
                node.leave_out();
            }
            nodes.push(node);
        }
        let keep = nodes.iter().any(Node::is_dir) && self.held.fetch_add(1, Ordering::Relaxed) < HELD;
        if !keep {
            if nodes.iter().any(Node::is_dir) {
                self.held.fetch_sub(1, Ordering::Relaxed);
            }
            return Ok((nodes, None));
        }
        let count = Arc::clone(&self.held);
        Ok((nodes, Some(Arc::new(Held { fd, count }))))
    }
}
