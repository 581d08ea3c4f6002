//! What a checkpoint costs: the vault against the bare ioctl on the same dirty data, alternating within one
//! run, and against `btrfs subvolume snapshot` and `cp -a --reflink`.
//!
//! `cargo bench --bench checkpoint -- [FILES [ROUNDS]]`, as root; 20000 files and 20 rounds if not said.

#[path = "../common/mod.rs"]
mod common;

use std::fs::File;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use common::{BtrfsBox, TestSandbox};
use respool::engine::vault::BtrfsVault;
use respool::engine::{CheckpointKind, How, NewCheckpoint, ioctl};

const DIRTY: usize = 10;
const PER_FOLDER: usize = 24;

fn name(i: usize) -> String {
    format!("d{}/f{i}", i / PER_FOLDER)
}

fn fill(s: &TestSandbox, files: usize) {
    for i in 0..files {
        if i % PER_FOLDER == 0 {
            std::fs::create_dir(s.live.join(format!("d{}", i / PER_FOLDER))).expect("folder");
        }
        std::fs::write(s.live.join(name(i)), format!("{i} ").repeat(40 + i % 400)).expect("file");
    }
}

/// Rewrites the same ten files, spread over the tree.
fn dirty(s: &TestSandbox, files: usize, round: usize) {
    for k in 0..DIRTY {
        let content = format!("{round} {k} ").repeat(300);
        std::fs::write(s.live.join(name(k * files / DIRTY)), content).expect("file");
    }
}

fn timed(action: impl FnOnce()) -> Duration {
    let start = Instant::now();
    action();
    start.elapsed()
}

fn checkpoint(v: &BtrfsVault) {
    v.checkpoint(&NewCheckpoint::of(CheckpointKind::Message, How::Hook))
        .expect("checkpoint");
}

fn run(program: &str, args: &[&str], paths: [&Path; 2]) {
    let out = Command::new(program)
        .args(args)
        .args(paths)
        .output()
        .expect("the program is installed");
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
}

fn report(what: &str, mut times: Vec<Duration>, base: Option<Duration>) -> Duration {
    times.sort();
    let median = times[times.len() / 2];
    let ms = |d: Duration| d.as_secs_f64() * 1e3;
    let ratio = base.map_or(String::new(), |b| format!("  x{:.2}", ms(median) / ms(b)));
    println!(
        "{what:<34} median {:>10.3} ms  min {:>10.3}  max {:>10.3}  n={}{ratio}",
        ms(median),
        ms(times[0]),
        ms(times[times.len() - 1]),
        times.len()
    );
    median
}

fn main() {
    let numbers: Vec<usize> = std::env::args().skip(1).filter_map(|a| a.parse().ok()).collect();
    let files = numbers.first().copied().unwrap_or(20_000).max(DIRTY);
    let rounds = numbers.get(1).copied().unwrap_or(20).max(1);
    let b = BtrfsBox::sized(16 << 30);
    let s = b.sandbox();
    let v = b.vault(&s);
    fill(&s, files);
    let bare = b.pool().mount().join("bare");
    std::fs::create_dir(&bare).expect("folder");
    let (live, into) = (
        File::open(&s.live).expect("live"),
        File::open(&bare).expect("bare"),
    );
    checkpoint(&v);

    let mut times: [Vec<Duration>; 3] = Default::default();
    for round in 0..rounds {
        // each goes first, second and last equally often
        for which in [round, round + 1, round + 2].map(|n| n % 3) {
            dirty(&s, files, round * 3 + which);
            let name = format!("{round}-{which}");
            times[which].push(match which {
                0 => timed(|| ioctl::snap_create(&live, &into, name.as_bytes(), true).expect("ioctl")),
                1 => timed(|| checkpoint(&v)),
                _ => timed(|| {
                    run(
                        "btrfs",
                        &["subvolume", "snapshot", "-r"],
                        [&s.live, &bare.join(&name)],
                    );
                }),
            });
        }
    }
    println!("{files} files, {DIRTY} changed before each");
    let [ioctl, vault, tool] = times;
    let base = report("bare ioctl", ioctl, None);
    report("checkpoint", vault, Some(base));
    report("btrfs subvolume snapshot -r", tool, Some(base));
    for _ in 0..200 {
        checkpoint(&v);
    }
    let lists = (0..rounds)
        .map(|_| timed(|| assert!(v.checkpoints().expect("list").len() > 200)))
        .collect();
    report("listing over 200 checkpoints", lists, None);
    let copies = (0..2)
        .map(|i| {
            let to = bare.join(format!("copy{i}"));
            timed(|| run("cp", &["-a", "--reflink=always"], [&s.live, &to]))
        })
        .collect();
    report("cp -a --reflink", copies, Some(base));
}
