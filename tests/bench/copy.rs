//! What a checkpoint of the copy vault costs: against a bare walk of the same tree (every folder listed, every
//! entry looked at) and against `cp -a`, alternating within one run.
//!
//! `cargo bench --bench copy -- [FILES [ROUNDS]]`; 20000 files and 15 rounds if not said. The changed files are flushed before, but where it is said.

#[path = "../common/mod.rs"]
mod common;

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use common::{TestDir, test_record};
use respool::engine::vault::CopyVault;
use respool::engine::vault::copy::{CopyDir, root_id};
use respool::engine::{CheckpointKind, How, NewCheckpoint};

const DIRTY: usize = 10;
const PER_FOLDER: usize = 24;

fn name(i: usize) -> String {
    format!("d{}/f{i}", i / PER_FOLDER)
}

fn fill(root: &Path, files: usize) {
    for i in 0..files {
        if i % PER_FOLDER == 0 {
            std::fs::create_dir(root.join(format!("d{}", i / PER_FOLDER))).expect("folder");
        }
        std::fs::write(root.join(name(i)), format!("{i} ").repeat(40 + i % 400)).expect("file");
    }
}

fn dirty(root: &Path, files: usize, round: usize) {
    for k in 0..DIRTY {
        let content = format!("{round} {k} ").repeat(300);
        std::fs::write(root.join(name(k * files / DIRTY)), content).expect("file");
    }
}

fn timed(action: impl FnOnce()) -> Duration {
    let start = Instant::now();
    action();
    start.elapsed()
}

/// Lists every folder and looks at every entry.
fn walk(root: &Path) -> usize {
    let mut todo = vec![root.to_owned()];
    let mut seen = 0;
    while let Some(folder) = todo.pop() {
        for entry in std::fs::read_dir(folder).expect("list") {
            let entry = entry.expect("entry");
            seen += 1;
            if entry.metadata().expect("look").is_dir() {
                todo.push(entry.path());
            }
        }
    }
    seen
}

fn median(mut all: Vec<Duration>) -> Duration {
    all.sort();
    all[all.len() / 2]
}

fn main() {
    let mut args = std::env::args().skip(1).filter(|a| !a.starts_with('-'));
    let files: usize = args.next().map_or(20_000, |a| a.parse().expect("FILES"));
    let rounds: usize = args.next().map_or(15, |a| a.parse().expect("ROUNDS"));
    let dir = TestDir::new();
    let root = dir.join("ws");
    std::fs::create_dir(&root).expect("workspace");
    fill(&root, files);
    let live = || std::fs::File::open(&root).expect("open");
    let mut record = test_record(&root);
    record.root = Some(root_id(live()).expect("root"));
    let store = CopyDir::create(&dir.join("copies"), &record).expect("store");
    let vault = CopyVault::open(&store, &root, Some(live().into()));
    let take = || {
        vault
            .checkpoint_at(
                &NewCheckpoint::of(CheckpointKind::Message, How::Hook),
                chrono::Utc::now(),
            )
            .expect("checkpoint");
    };
    let first = timed(take);
    // change times must be older than the margin of the last look to prove anything
    std::thread::sleep(Duration::from_millis(1200));
    take();
    let (mut walks, mut copies, mut checkpoints, mut unflushed) =
        (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for round in 0..rounds {
        dirty(&root, files, round);
        rustix::fs::syncfs(live()).expect("sync");
        walks.push(timed(|| assert!(walk(&root) >= files)));
        checkpoints.push(timed(take));
        dirty(&root, files, round + rounds);
        unflushed.push(timed(take));
        if round % 5 == 0 {
            let to = dir.join(format!("cp{round}"));
            copies.push(timed(|| {
                let done = Command::new("cp").arg("-a").args([&root, &to]).status();
                assert!(done.expect("cp").success());
            }));
            std::fs::remove_dir_all(&to).expect("remove");
        }
    }
    let [walk, checkpoint, dirty, copy] = [walks, checkpoints, unflushed, copies].map(median);
    let ratio = |a: Duration, b: Duration| a.as_secs_f64() / b.as_secs_f64();
    println!("{files} files, {DIRTY} changed before each; medians of {rounds} rounds");
    println!("first checkpoint  {first:>10.1?}");
    println!("bare walk         {walk:>10.1?}");
    println!(
        "checkpoint        {checkpoint:>10.1?}   {:.2} x the walk (at most 1.2)",
        ratio(checkpoint, walk)
    );
    println!("  with its dirty data {dirty:>7.1?}");
    println!(
        "cp -a             {copy:>10.1?}   {:.1} x the checkpoint (at least 5)",
        ratio(copy, checkpoint)
    );
}
