//! Follows the files of a conversation while it is shown: also those that are put in the place of others, and those
//! that come back after they were deleted.

use std::collections::{BTreeSet, HashMap};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

use notify::{RecommendedWatcher, RecursiveMode, Watcher};

/// What the thread that follows is told.
enum Told {
    /// Something changed here.
    Changed(Vec<PathBuf>),
    /// Reports were lost: anything may have changed.
    Lost,
    /// Nobody looks any more.
    End,
}

/// Follows until it is dropped.
pub(super) struct Eyes(Sender<Told>);

impl Drop for Eyes {
    fn drop(&mut self) {
        // a thread that broke has ended already
        drop(self.0.send(Told::End));
    }
}

/// What is followed: the paths, and which inode each was when it was last looked at.
struct Followed {
    watcher: RecommendedWatcher,
    paths: BTreeSet<PathBuf>,
    seen: HashMap<PathBuf, (u64, u64)>,
}

/// The inode at a path; `None` if there is none.
fn identity(path: &Path) -> Option<(u64, u64)> {
    std::fs::symlink_metadata(path).ok().map(|m| (m.dev(), m.ino()))
}

impl Followed {
    /// Asks for reports of each path whose inode is another one than before. True if there was one.
    fn renew(&mut self) -> notify::Result<bool> {
        let mut other = false;
        for path in &self.paths {
            let now = identity(path);
            if now.as_ref() == self.seen.get(path) {
                continue;
            }
            other = true;
            if self.seen.remove(path).is_some() {
                // the kernel has let go of one that was deleted
                let _gone_already = self.watcher.unwatch(path);
            }
            if let Some(now) = now {
                self.watcher.watch(path, RecursiveMode::NonRecursive)?;
                self.seen.insert(path.clone(), now);
            }
        }
        Ok(other)
    }
}

/// True if a change at `path` is one of what is followed. (Others have their files beside it.)
fn concerns(wished: &BTreeSet<PathBuf>, path: &Path) -> bool {
    wished.iter().any(|w| w.starts_with(path) || path.starts_with(w))
}

/// Calls `changed` at each change of one of these files or folders, whether they are there now or not.
pub(super) fn follow(paths: Vec<PathBuf>, changed: Arc<dyn Fn() + Send + Sync>) -> notify::Result<Eyes> {
    let wished: BTreeSet<PathBuf> = paths.into_iter().collect();
    let (tell, told) = channel();
    let report = tell.clone();
    let watcher = notify::recommended_watcher(move |event: notify::Result<notify::Event>| {
        let told = match event {
            // reading the store is no change of it
            Ok(event) if event.kind.is_access() => return,
            Ok(event) if event.need_rescan() => Told::Lost,
            Ok(event) => Told::Changed(event.paths),
            Err(_) => Told::Lost,
        };
        // nobody listens at the end
        drop(report.send(told));
    })?;
    // the folder above says when one of them is exchanged, or comes back
    let above = wished.iter().filter_map(|p| p.parent()).map(Path::to_owned);
    let mut followed = Followed {
        watcher,
        paths: wished.iter().cloned().chain(above).collect(),
        seen: HashMap::new(),
    };
    followed.renew()?;
    std::thread::spawn(move || run(followed, &wished, &told, &*changed));
    Ok(Eyes(tell))
}

fn run(mut followed: Followed, wished: &BTreeSet<PathBuf>, told: &Receiver<Told>, changed: &dyn Fn()) {
    while let Ok(news) = told.recv() {
        let mut ours = match news {
            Told::End => return,
            Told::Lost => true,
            Told::Changed(paths) => paths.iter().any(|p| concerns(wished, p)),
        };
        // the order counts: what changes after this is reported
        match followed.renew() {
            Ok(other) => ours |= other,
            Err(e) => tracing::warn!("a file that is shown cannot be followed: {e}"),
        }
        if ours {
            changed();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::time::Duration;

    use super::*;

    /// P140: appended to, put in its place, deleted, made anew: each is told; what happens beside it is not.
    #[test]
    fn p140_a_file_is_followed_through_everything() {
        let dir = tempfile::tempdir().expect("tempdir");
        let file = dir.path().join("session.jsonl");
        fs::write(&file, "1\n").expect("write");
        let (send, seen) = channel();
        let tell: Arc<dyn Fn() + Send + Sync> = Arc::new(move || send.send(()).unwrap_or_default());
        let eyes = follow(vec![file.clone()], tell).expect("followed");
        let told = |what: &str| {
            let first = seen.recv_timeout(Duration::from_secs(10));
            assert!(first.is_ok(), "{what} was not told");
            // one deed is several reports
            while seen.recv_timeout(Duration::from_millis(100)).is_ok() {}
        };
        let put = |text: &str| {
            fs::write(dir.path().join("new"), text).expect("write");
            fs::rename(dir.path().join("new"), &file).expect("rename");
        };
        for round in 0..2 {
            fs::write(&file, "1\n2\n").expect("write");
            told("appended");
            put("3\n");
            told("replaced");
            fs::write(&file, "3\n4\n").expect("write");
            told("appended to the new one");
            fs::remove_file(&file).expect("remove");
            told("deleted");
            put("5\n");
            told(if round == 0 {
                "came back"
            } else {
                "came back again"
            });
        }
        fs::write(dir.path().join("another.jsonl"), "x").expect("write");
        fs::create_dir(dir.path().join("folder")).expect("folder");
        assert!(seen.recv_timeout(Duration::from_millis(300)).is_err());
        drop(eyes);
    }
}
