//! Change lists against other tools on the same two trees, in one run: `cargo bench --bench changes`, or
//! `-- 200000` for more files. Needs root; rsync, diff and git are measured if they are there.

#[expect(dead_code, reason = "the tests use the rest of it")]
#[path = "../engine_trees/scratch.rs"]
mod scratch;

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use respool::engine::PartKind;
use respool::engine::Selection;
use respool::engine::changes::changes;
use respool::engine::restore::{Trust, differences, restore};
use respool::progress::Silent;
use scratch::{Scratch, Snapshot, open_dir};

const RUNS: usize = 5;
const IN_FOLDER: usize = 50;

fn file(root: &Path, n: usize) -> std::path::PathBuf {
    let folder = n / IN_FOLDER;
    root.join(format!("d{}/e{folder}/f{n}.txt", folder / IN_FOLDER))
}

fn fill(root: &Path, files: usize) {
    for n in 0..files {
        let path = file(root, n);
        if n % IN_FOLDER == 0 {
            fs::create_dir_all(path.parent().expect("a folder")).expect("made");
        }
        fs::write(path, format!("file {n}\n").repeat(1 + n % 60)).expect("written");
    }
}

/// Changes `count` files: writes, renames, deletes, adds in turn.
fn change(root: &Path, files: usize, count: usize) {
    for k in 0..count {
        let path = file(root, k * (files / count));
        match k % 4 {
            0 => fs::write(path, "changed").expect("written"),
            1 => fs::rename(&path, path.with_extension("moved")).expect("moved"),
            2 => fs::remove_file(path).expect("removed"),
            _ => fs::write(path.with_extension("new"), "new").expect("written"),
        }
    }
}

fn median(mut run: impl FnMut()) -> Duration {
    run(); // warm
    let mut all: Vec<Duration> = (0..RUNS)
        .map(|_| {
            let start = Instant::now();
            run();
            start.elapsed()
        })
        .collect();
    all.sort();
    all[RUNS / 2]
}

/// Unmounts at the end, however it comes.
struct Mounted(tempfile::TempDir);

impl Drop for Mounted {
    fn drop(&mut self) {
        let done = Command::new("umount").arg("-l").arg(self.0.path()).status();
        if !done.is_ok_and(|s| s.success()) {
            eprintln!("{} is still mounted", self.0.path().display());
        }
    }
}

/// The time of a tool that is there; one of these exit codes is expected.
fn command(name: &str, args: &[&str], codes: &[i32]) -> Option<Duration> {
    let run = || {
        Command::new(name)
            .args(args)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()
    };
    run().ok()?;
    Some(median(|| {
        let code = run().expect("it ran before").code();
        assert!(
            code.is_some_and(|c| codes.contains(&c)),
            "{name} failed: {code:?}"
        );
    }))
}

fn report(name: &str, time: Option<Duration>, ours: Duration) {
    match time {
        Some(t) => {
            let ratio = t.as_secs_f64() / ours.as_secs_f64();
            println!("  {name:<28} {:>9.1} ms   x{ratio:.1}", t.as_secs_f64() * 1e3);
        }
        None => println!("  {name:<28} not here"),
    }
}

fn git(live: &str, dir: &Path, args: &[&str]) -> Command {
    let mut git = Command::new("git");
    git.args(["--git-dir", &dir.to_string_lossy(), "--work-tree", live]);
    git.args([
        "-c",
        "core.fsmonitor=false",
        "-c",
        "gc.auto=0",
        "-c",
        "user.name=b",
        "-c",
        "user.email=b@b",
    ]);
    git.args(["-c", "safe.directory=*"])
        .args(args)
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    git
}

fn bench(files: usize, count: usize) {
    let mount = Mounted(tempfile::tempdir().expect("a folder"));
    let fs = Scratch::mounted(mount.0.path());
    let path = fs.subvolume("live");
    fill(&path, files);
    std::thread::sleep(Duration::from_millis(1500)); // out of the racy margin, as in life
    let a = fs.snapshot("live", "a");
    let dir = tempfile::tempdir().expect("a folder");
    let at = |name: &str| format!("{}/{name}/", mount.0.path().display());
    let work = at("live");
    let with_git = git(&work, dir.path(), &["init", "-q"]).status().is_ok();
    if with_git {
        for args in [&["add", "-A"][..], &["commit", "-qm", "a"]] {
            assert!(
                git(&work, dir.path(), args).status().is_ok_and(|s| s.success()),
                "git {args:?}"
            );
        }
    }
    change(&path, files, count);
    let b = fs.snapshot("live", "b");
    let list = || changes(&a.tree(), &b.tree(), false, PartKind::Workspace, &Silent).expect("a list");
    let rows = list().len();
    let ours = median(|| {
        list();
    });
    println!("{files} files, {count} changes, {rows} rows");
    report("respool changes", Some(ours), ours);
    let (x, y) = (at("a"), at("b"));
    report(
        "rsync -n -ai --delete",
        command("rsync", &["-n", "-ai", "--delete", &y, &x], &[0]),
        ours,
    );
    report(
        "diff -rq",
        command("diff", &["-rq", "--no-dereference", &x, &y], &[1]),
        ours,
    );
    let status = || {
        let mut command = git(
            &work,
            dir.path(),
            &["--no-optional-locks", "status", "--porcelain", "-uall"],
        );
        assert!(command.status().is_ok_and(|s| s.success()));
    };
    report("git status (shadow)", with_git.then(|| median(status)), ours);
    back(&path, &a, &b);
}

/// One restore in place, and the check after it.
fn back(path: &Path, a: &Snapshot, b: &Snapshot) {
    use std::os::fd::AsFd;
    let root = open_dir(path).expect("the live root");
    let start = Instant::now();
    let done = restore(root.as_fd(), &b.tree(), &a.tree(), &Selection::All, &Silent).expect("restored");
    println!(
        "  restore in place, {} inodes: {:.1} ms",
        done.changed,
        start.elapsed().as_secs_f64() * 1e3
    );
    let is = respool::engine::changes::Tree {
        root: root.as_fd(),
        made: None,
    };
    for trust in [Trust::Lineage, Trust::Nothing] {
        let start = Instant::now();
        let found = differences(&is, &a.tree(), &Selection::All, trust, &Silent).expect("checked");
        assert!(found.is_empty(), "{found:?}");
        println!(
            "  check ({trust:?}): {:.1} ms",
            start.elapsed().as_secs_f64() * 1e3
        );
    }
}

fn main() {
    let files = std::env::args()
        .skip(1)
        .find_map(|a| a.parse().ok())
        .unwrap_or(20_000);
    for count in [10, 1000] {
        bench(files, count);
    }
}
