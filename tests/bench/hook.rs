//! What a message costs: `respool hook openhands` from exec to exit, against the bare ioctl on the same dirty
//! data, alternating within one run: as root in its own process, and as an ordinary user by the service; and against `btrfs subvolume snapshot` and `git add -A && git commit`.
//!
//! `cargo bench --bench hook -- [FILES [ROUNDS]]`, as root; 20000 files and 20 rounds if not said.

#[path = "../common/mod.rs"]
mod common;

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use common::{TestDir, respool};
use respool::engine::ioctl;
use respool::engine::pool::Pool;

const DIRTY: usize = 10;
const PER_FOLDER: usize = 24;
/// The ordinary user whose hook asks the service.
const USER: u32 = 65534;
const NAMES: [&str; 6] = [
    "bare ioctl",
    "respool hook openhands",
    "the same, by the service",
    "respool --version",
    "btrfs subvolume snapshot -r",
    "git add -A && git commit",
];

fn name(i: usize) -> String {
    format!("d{}/f{i}", i / PER_FOLDER)
}

fn fill(dir: &Path, files: usize) {
    for i in 0..files {
        if i % PER_FOLDER == 0 {
            std::fs::create_dir_all(dir.join(format!("d{}", i / PER_FOLDER))).expect("folder");
        }
        std::fs::write(dir.join(name(i)), format!("{i} ").repeat(40 + i % 400)).expect("file");
    }
}

/// Rewrites the same ten files, spread over the tree.
fn dirty(dir: &Path, files: usize, round: usize) {
    for k in 0..DIRTY {
        let content = format!("{round} {k} ").repeat(300);
        std::fs::write(dir.join(name(k * files / DIRTY)), content).expect("file");
    }
}

fn timed(action: impl FnOnce()) -> Duration {
    let start = Instant::now();
    action();
    start.elapsed()
}

fn ok(command: &mut Command) {
    let out = command.output().expect("the program is installed");
    assert!(
        out.status.success(),
        "{command:?}: {}",
        String::from_utf8_lossy(&out.stderr)
    );
}

/// The service on the state folder, ended when it is dropped.
struct Service(Child);

impl Service {
    fn start(dir: &TestDir) -> Self {
        let mut c = respool(dir.path());
        c.arg("--state-dir").arg(dir.join("state"));
        c.args(["service", "--socket"]).arg(dir.join("sock"));
        let service = Self(c.stderr(Stdio::null()).spawn().expect("the service"));
        let up = || std::os::unix::net::UnixStream::connect(dir.join("sock")).is_ok();
        assert!(
            common::wait_until(Duration::from_secs(10), up),
            "the service is not there"
        );
        service
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        let pid = nix::unistd::Pid::from_raw(self.0.id() as i32);
        let _ended = nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM);
        let _status = self.0.wait();
    }
}

/// `served`: as an ordinary user, by the service.
fn hook(dir: &TestDir, workspace: &Path, message: usize, served: bool) {
    let input = serde_json::json!({"event_type": "UserPromptSubmit", "message": format!("message {message}"),
        "session_id": "00000000-0000-4000-8000-000000000000", "working_dir": workspace});
    let mut command = if served {
        let mut c = Command::new(dir.join("respool"));
        c.env_clear().env("RESPOOL_SOCKET", dir.join("sock"));
        c.env("HOME", workspace).uid(USER).gid(USER);
        c
    } else {
        let mut c = respool(dir.path());
        c.arg("--state-dir").arg(dir.join("state"));
        c
    };
    let mut child = command
        .args(["hook", "openhands"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("respool");
    let mut stdin = child.stdin.take().expect("stdin");
    stdin.write_all(input.to_string().as_bytes()).expect("input");
    drop(stdin);
    let out = child.wait_with_output().expect("its end");
    assert!(
        out.status.success() && String::from_utf8_lossy(&out.stdout).contains("respool: checkpoint cp-"),
        "{out:?}"
    );
}

fn git(dir: &Path, words: &[&str]) -> Command {
    let mut c = Command::new("git");
    c.arg("-C")
        .arg(dir)
        .args(["-c", "user.name=x", "-c", "user.email=x@x", "-c", "gc.auto=0"])
        .args(words);
    c
}

fn report(what: &str, mut times: Vec<Duration>, base: Option<Duration>) -> Duration {
    times.sort();
    let median = times[times.len() / 2];
    let ms = |d: Duration| d.as_secs_f64() * 1e3;
    let more = base.map_or(String::new(), |b| {
        format!("  {:+.2} ms  x{:.2}", ms(median) - ms(b), ms(median) / ms(b))
    });
    println!(
        "{what:<28} median {:>9.3} ms  min {:>9.3}  max {:>9.3}  n={}{more}",
        ms(median),
        ms(times[0]),
        ms(times[times.len() - 1]),
        times.len()
    );
    median
}

/// Takes the folder away again, whatever happens.
struct Tracked<'a>(&'a TestDir);

impl Drop for Tracked<'_> {
    fn drop(&mut self) {
        let mut untrack = respool(self.0.path());
        untrack.arg("--state-dir").arg(self.0.join("state"));
        ok(untrack.args(["--yes", "untrack"]).arg(self.0.join("w")));
        let pool = Pool::open_image(&self.0.join("state/pool.img"), &self.0.join("state/mnt")).expect("pool");
        pool.unmount().expect("unmount");
    }
}

fn main() {
    common::need_root();
    let numbers: Vec<usize> = std::env::args().skip(1).filter_map(|a| a.parse().ok()).collect();
    let files = numbers.first().copied().unwrap_or(20_000).max(DIRTY);
    let rounds = numbers.get(1).copied().unwrap_or(20).max(1);
    let dir = TestDir::new();
    let workspace = dir.join("w");
    fill(&workspace, files);
    std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o755)).expect("open to all");
    std::fs::copy(env!("CARGO_BIN_EXE_respool"), dir.join("respool")).expect("the program");
    chown(&workspace, Some(USER), Some(USER)).expect("an owner");
    let mut track = respool(dir.path());
    track.arg("--state-dir").arg(dir.join("state"));
    ok(track.args(["--yes", "track"]).arg(&workspace));
    let _tracked = Tracked(&dir);
    let _service = Service::start(&dir);
    let pool = Pool::open_image(&dir.join("state/pool.img"), &dir.join("state/mnt")).expect("pool");
    let bare = pool.mount().join("bare");
    std::fs::create_dir(&bare).expect("folder");
    // git's copy is on the same file system
    let repository = pool.mount().join("repository");
    fill(&repository, files);
    ok(&mut git(&repository, &["init", "-q"]));
    ok(&mut git(&repository, &["add", "-A"]));
    ok(&mut git(&repository, &["commit", "-qm", "start"]));
    let (live, into) = (
        File::open(&workspace).expect("live"),
        File::open(&bare).expect("bare"),
    );
    hook(&dir, &workspace, 0, false);
    hook(&dir, &workspace, 0, true);

    let mut times: [Vec<Duration>; NAMES.len()] = Default::default();
    for round in 0..rounds {
        // each goes first, second and last equally often
        for which in (0..NAMES.len()).map(|n| (round + n) % NAMES.len()) {
            let count = round * NAMES.len() + which + 1;
            // what the one before left must not be paid for by this one
            ioctl::fs_sync(pool.root()).expect("sync");
            dirty(if which == 5 { &repository } else { &workspace }, files, count);
            let name = format!("{round}-{which}");
            times[which].push(match which {
                0 => timed(|| ioctl::snap_create(&live, &into, name.as_bytes(), true).expect("ioctl")),
                1 | 2 => timed(|| hook(&dir, &workspace, count, which == 2)),
                3 => timed(|| ok(respool(dir.path()).arg("--version"))),
                4 => timed(|| {
                    ok(Command::new("btrfs")
                        .args(["subvolume", "snapshot", "-r"])
                        .args([&workspace, &bare.join(&name)]));
                }),
                _ => timed(|| {
                    ok(&mut git(&repository, &["add", "-A"]));
                    ok(&mut git(&repository, &["commit", "-qm", &name]));
                }),
            });
        }
    }
    println!("{files} files, {DIRTY} changed before each");
    let mut base = None;
    for (name, times) in NAMES.iter().zip(times) {
        let median = report(name, times, base);
        base = base.or(Some(median));
    }
    drop((live, into, pool));
}
