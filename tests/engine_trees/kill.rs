//! SIGKILL in the middle of a restore: a new safety snapshot and the same call finish it.

use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};

use respool::engine::Selection;
use respool::engine::restore::restore;
use respool::progress::{Progress, Silent};

use crate::mutate::Rng;
use crate::nasty::{damage, nasty};
use crate::restore::{check, paths};
use crate::scratch::{Scratch, assert_same, manifest, open_dir};

/// Counts the steps of a restore, and kills the process at one of them.
struct Steps {
    total: AtomicU64,
    kill_at: Option<u64>,
}

impl Progress for Steps {
    fn step(&self, what: &'static str, done: u64, total: u64) {
        if what != "restoring" {
            return;
        }
        self.total.store(total, Ordering::Relaxed);
        if Some(done) == self.kill_at {
            let own = rustix::process::getpid();
            rustix::process::kill_process(own, rustix::process::Signal::KILL).unwrap();
        }
    }
}

fn selection(name: &str) -> Selection {
    match name {
        "all" => Selection::All,
        _ => paths(&[
            "src7",
            "src6",
            "renamed5",
            "src5",
            "abs",
            "big.bin",
            "ro",
            "node_modules",
        ]),
    }
}

/// Restores `live` to `a` with the safety snapshot `safety` on the file system that the parent left open.
#[test]
#[ignore = "the child process of a_kill_anywhere_can_be_finished"]
fn child() {
    let var = |name: &str| std::env::var(name).unwrap_or_else(|_| panic!("{name}: run by its parent only"));
    let fs = Scratch::inherited(open_dir(var("RESPOOL_KILL_FS").as_ref()).unwrap());
    let steps = Steps {
        total: AtomicU64::new(0),
        kill_at: Some(var("RESPOOL_KILL_AT").parse().unwrap()),
    };
    let live = open_dir(&fs.path("live")).unwrap();
    let (safety, target) = (fs.open("safety"), fs.open("a"));
    let selection = selection(&var("RESPOOL_KILL_SELECTION"));
    restore(live.as_fd(), &safety.tree(), &target.tree(), &selection, &steps).unwrap();
}

fn run_child(fs: &Scratch, kill_at: u64, selection: &str) {
    rustix::io::fcntl_setfd(fs.root(), rustix::io::FdFlags::empty()).unwrap();
    let status = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "kill::child", "--ignored", "--nocapture"])
        .env(
            "RESPOOL_KILL_FS",
            format!("/proc/self/fd/{}", fs.root().as_raw_fd()),
        )
        .env("RESPOOL_KILL_AT", kill_at.to_string())
        .env("RESPOOL_KILL_SELECTION", selection)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .unwrap();
    assert_eq!(
        status.signal(),
        Some(9),
        "the child must be killed in its restore, but: {status}"
    );
}

/// The steps that an undisturbed restore takes.
fn count(fs: &Scratch, selection: &Selection) -> u64 {
    fs.branch("b", "live");
    let steps = Steps {
        total: AtomicU64::new(0),
        kill_at: None,
    };
    let (safety, target) = (fs.snapshot("live", "safety"), fs.open("a"));
    let live = open_dir(&fs.path("live")).unwrap();
    restore(live.as_fd(), &safety.tree(), &target.tree(), selection, &steps).unwrap();
    drop((safety, live));
    fs.remove("safety");
    fs.remove("live");
    steps.total.into_inner()
}

#[test]
fn a_kill_anywhere_can_be_finished() {
    let fs = Scratch::new();
    let origin = fs.subvolume("origin");
    nasty(&origin, &mut Rng::new(21));
    let target = fs.snapshot("origin", "a");
    let want = manifest(&origin);
    damage(&origin);
    drop(fs.snapshot("origin", "b"));
    for name in ["all", "some"] {
        let selection = selection(name);
        let total = count(&fs, &selection);
        assert!(total > 14, "{total} steps are too few to be killed in");
        for n in 0..8 {
            let live = fs.branch("b", "live");
            drop(fs.snapshot("live", "safety"));
            run_child(&fs, 1 + n * (total - 2) / 7, name);
            let again = fs.snapshot("live", "again");
            let root = open_dir(&live).unwrap();
            restore(root.as_fd(), &again.tree(), &target.tree(), &selection, &Silent).unwrap();
            assert_eq!(check(&live, &target, &selection), [], "{name}, kill {n}");
            if name == "all" {
                assert_same(&manifest(&live), &want, &format!("kill {n} of {total} steps"));
            }
            let names = std::fs::read_dir(&live).unwrap().map(|e| e.unwrap().file_name());
            let stage: Vec<_> = names
                .filter(|n| n.to_string_lossy().starts_with(".respool"))
                .collect();
            assert!(stage.is_empty(), "{stage:?} was left");
            drop((again, root));
            for name in ["again", "safety", "live"] {
                fs.remove(name);
            }
        }
    }
}
