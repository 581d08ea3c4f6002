//! What checkpoints cost: work, records and space, measured.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use crate::lab::Lab;

/// Many small files, 200 in a folder.
fn many(ws: &Path, files: usize) {
    for i in 0..files {
        if i % 200 == 0 {
            std::fs::create_dir_all(ws.join(format!("d{}", i / 200))).expect("folder");
        }
        std::fs::write(ws.join(format!("d{}/f{i}", i / 200)), i.to_string()).expect("write");
    }
}

/// How many system calls the program makes, all of its threads and children together.
fn calls(lab: &Lab, args: &[&str], input: Option<&Path>) -> usize {
    let trace = lab.dir().join("trace");
    let template = lab.command();
    let mut c = Command::new("strace");
    c.args(["-f", "-qq", "-o"]).arg(&trace);
    c.arg(template.get_program()).args(template.get_args()).args(args);
    for (name, value) in template.get_envs() {
        if let Some(value) = value {
            c.env(name, value);
        }
    }
    c.stdin(input.map_or_else(Stdio::null, |p| std::fs::File::open(p).expect("open").into()));
    let out = c
        .current_dir(lab.dir())
        .output()
        .expect("this test needs strace (package strace)");
    assert!(
        out.status.success(),
        "{args:?}: {}",
        String::from_utf8_lossy(&out.stderr)
    );
    let text = String::from_utf8_lossy(&std::fs::read(&trace).expect("trace")).into_owned();
    // a call that another thread's interrupts is two lines
    let n = text
        .lines()
        .filter(|l| l.contains('(') && !l.contains("resumed>"))
        .count();
    assert!(n > 50, "{args:?}: no trace of it");
    n
}

/// P072: a checkpoint's work does not grow with the number of files: the same system calls with 300 and with
/// 30,000, by command and by the hook on which the message waits; and no file of the tree is looked at.
#[test]
fn p072_a_checkpoint_does_not_look_at_the_files() {
    let count = |files: usize| {
        let lab = Lab::new(|_| {});
        many(lab.ws(), files);
        lab.cut(&lab.store(), 1);
        let hook = json!({"event_type": "UserPromptSubmit", "message": "Next", "session_id": "11111111-2222-4333-8444-555555555555", "working_dir": lab.ws_text()});
        let input = lab.dir().join("hook.json");
        std::fs::write(&input, hook.to_string()).expect("write");
        let mut out = Vec::new();
        for round in 0..2 {
            lab.write("d0/f0", format!("changed {round}"));
            lab.write("d1/f299", format!("changed {round}"));
            let by_command = calls(&lab, &["-s", lab.ws_text(), "checkpoint"], None);
            let trace = std::fs::read_to_string(lab.dir().join("trace")).expect("trace");
            assert!(!trace.contains("\"d0\"") && !trace.contains("f299"), "it walks");
            let by_hook = calls(&lab, &["hook", "openhands"], Some(&input));
            out.push((by_command, by_hook));
        }
        assert_eq!(lab.ok(&["sandboxes"])[0]["checkpoints"], 5, "each was taken");
        // the first one meets cold caches
        out[1]
    };
    let (few, lots) = (count(300), count(30_000));
    let close = |a: usize, b: usize| a.abs_diff(b) <= a / 20 + 10;
    assert!(
        close(few.0, lots.0) && close(few.1, lots.1),
        "system calls by command and by hook: {few:?} with 300 files, {lots:?} with 30,000"
    );
}

/// Bytes of everything that respool keeps of a sandbox beside the content: names, file contents, attributes.
fn records(folder: &Path) -> u64 {
    let mut bytes = 0;
    let mut todo = vec![folder.to_owned()];
    while let Some(folder) = todo.pop() {
        for entry in std::fs::read_dir(&folder).expect("list") {
            let path = entry.expect("entry").path();
            let meta = std::fs::symlink_metadata(&path).expect("stat");
            bytes += path.file_name().map_or(0, |n| n.len() as u64);
            bytes += attributes(&path);
            let subvolume = std::os::unix::fs::MetadataExt::ino(&meta) == 256;
            if meta.is_dir() && !subvolume {
                todo.push(path);
            } else if meta.is_file() {
                bytes += meta.len();
            }
        }
    }
    bytes
}

fn attributes(path: &Path) -> u64 {
    let mut names = vec![0u8; 64 << 10];
    let n = rustix::fs::llistxattr(path, &mut names[..]).unwrap_or(0);
    let names = names[..n].split(|b| *b == 0).filter(|n| !n.is_empty());
    names
        .map(|name| {
            let mut value = vec![0u8; 64 << 10];
            let n = rustix::fs::lgetxattr(path, name, &mut value[..]).unwrap_or(0);
            (name.len() + n) as u64
        })
        .sum()
}

/// P075: with 100,000 files that no repository knows, 50 checkpoints: what is recorded of each is under 4 KiB, in
/// the pool, in the state folder and in the user's folders together.
#[test]
fn p075_the_record_of_a_checkpoint_is_small() {
    let lab = Lab::new(|_| {});
    many(lab.ws(), 100_000);
    let folders = || -> u64 {
        let sandbox = lab.sandboxes().remove(0);
        let state: u64 = std::fs::read_dir(lab.state())
            .expect("state")
            .map(|e| e.expect("entry").path())
            .filter(|p| p.is_dir() && !p.ends_with("mnt"))
            .map(|p| records(&p))
            .sum();
        let user: u64 = ["home/.cache", "home/.config", "home/.local", "run", "tmp"]
            .map(|f| records(&lab.dir().join(f)))
            .iter()
            .sum();
        records(&sandbox) + state + user
    };
    lab.message(1);
    let before = folders();
    for i in 0..50 {
        for k in 0..40 {
            lab.write(format!("d{k}/f{}", k * 200 + i), format!("changed {i}"));
        }
        lab.checkpoint();
    }
    lab.ok(&["timeline", lab.store().to_str().expect("UTF-8")]);
    let each = (folders() - before) / 50;
    eprintln!("{each} bytes a checkpoint");
    // each has at least its id, kind and time
    assert!((100..4096).contains(&each), "{each} bytes a checkpoint");
}

/// Bytes that do not compress.
fn noise(seed: u64, bytes: usize) -> Vec<u8> {
    let mut out = vec![0; bytes];
    let mut hasher = blake3::Hasher::new();
    hasher.update(&seed.to_le_bytes());
    hasher.finalize_xof().fill(&mut out);
    out
}

/// What the file system says is in use, after everything came to the disk.
fn in_use(mount: &Path) -> u64 {
    rustix::fs::syncfs(std::fs::File::open(mount).expect("open")).expect("sync");
    let vfs = rustix::fs::statvfs(mount).expect("statvfs");
    (vfs.f_blocks - vfs.f_bfree) * vfs.f_frsize
}

fn within_tenth(what: &str, is: u64, should: u64) {
    assert!(
        is.abs_diff(should) <= should / 10,
        "{what}: {is} bytes, should be {should} within a tenth"
    );
}

/// P077: 20 turns that each rewrite a file of 12 MiB. What `space` shows is what they take; `prune` gives that back
/// to the file system before it ends, and says how much.
#[test]
fn p077_space_is_shown_and_comes_back() {
    const FILE: usize = 12 << 20;
    const TURNS: u64 = 20;
    let lab = Lab::new(|ws| std::fs::write(ws.join("data"), noise(0, FILE)).expect("write"));
    let pools: Vec<PathBuf> = std::fs::read_dir(lab.state().join("mnt"))
        .expect("mnt")
        .map(|e| e.expect("pool").path())
        .collect();
    let mount = &pools[0];
    let shown = || {
        rustix::fs::syncfs(std::fs::File::open(mount).expect("open")).expect("sync");
        lab.ok(&["space"])["pools"][0]["used"].as_u64().expect("bytes")
    };
    let (used, df) = (shown(), in_use(mount));
    let mut ids = Vec::new();
    for n in 1..=TURNS {
        ids.push(lab.checkpoint());
        lab.write("data", noise(n, FILE));
    }
    let exclusive = TURNS * FILE as u64;
    within_tenth("space", shown() - used, exclusive);
    within_tenth("df", in_use(mount) - df, exclusive);
    let space = lab.ok(&["space"]);
    let sandbox = &space["sandboxes"][0];
    let rows = sandbox["new"].as_array().expect("rows");
    assert_eq!(rows.len() as u64, TURNS + 1, "{space}");
    // the first one is the state at the start: nothing was changed from there to the next
    assert_eq!(rows[1]["bytes"], 0, "{space}");
    for row in rows.iter().skip(2).chain(rows.first()) {
        within_tenth("new", row["bytes"].as_u64().expect("bytes"), FILE as u64);
    }
    assert!(
        rows[1..]
            .iter()
            .zip(&ids)
            .all(|(r, id)| r["checkpoint"] == json!(id))
    );
    within_tenth("bytes", sandbox["bytes"].as_u64().expect("bytes"), exclusive);
    let full = in_use(mount);
    // the newest holds one version, and the live file is another
    let done = lab.ok(&["-s", lab.ws_text(), "--yes", "prune", "--keep", "1"]);
    assert_eq!(
        done["removed"].as_array().map(Vec::len),
        Some(TURNS as usize),
        "{done}"
    );
    let gone = (TURNS - 1) * FILE as u64;
    within_tenth("freed_bytes", done["freed_bytes"].as_u64().expect("bytes"), gone);
    // at once: it has waited for the cleaner
    within_tenth("df after prune", full - in_use(mount), gone);
    // an untracked sandbox goes as a whole
    lab.ok(&["--yes", "untrack", lab.ws_text()]);
    let id = lab.ok(&["sandboxes"])[0]["id"].as_str().expect("id").to_owned();
    let full = in_use(mount);
    let done = lab.ok(&["-s", &id, "--yes", "prune"]);
    let freed = done["freed_bytes"].as_u64().expect("bytes");
    within_tenth("freed with the sandbox", freed, full - in_use(mount));
    assert!(freed >= FILE as u64, "{done}");
    assert_eq!(lab.ok(&["sandboxes"]), Value::Array(Vec::new()));
}

/// P077: what counts as new is what was written: not the rest of a file of which a part was, not what a rewind
/// brought back, and of what compresses only what it takes.
#[test]
fn p077_only_what_was_written_counts() {
    use std::os::unix::fs::FileExt;
    const FILE: usize = 12 << 20;
    const PART: usize = 2 << 20;
    let lab = Lab::new(|ws| std::fs::write(ws.join("data"), noise(0, FILE)).expect("write"));
    let new = |id: &str| -> u64 {
        let space = lab.ok(&["space"]);
        let rows = space["sandboxes"][0]["new"].as_array().expect("rows").clone();
        let row = rows.iter().find(|r| r["checkpoint"] == json!(id));
        row.expect("its row")["bytes"].as_u64().expect("bytes")
    };
    let first = lab.checkpoint();
    let file = std::fs::File::options()
        .write(true)
        .open(lab.at("data"))
        .expect("open");
    file.write_all_at(&noise(1, PART), 4 << 20).expect("write");
    drop(file);
    within_tenth("a part", new(&lab.checkpoint()), PART as u64);
    lab.write("data", noise(2, FILE));
    within_tenth("all of it", new(&lab.checkpoint()), FILE as u64);
    lab.ok(&["-s", lab.ws_text(), "--yes", "rewind", &first, "--files"]);
    let back = new(&lab.checkpoint());
    assert!(back < 64 << 10, "{back} bytes, but a rewind writes no data");
    lab.write("text", "the same line again\n".repeat(200_000));
    lab.write("small", "inline");
    let text = new(&lab.checkpoint());
    assert!(
        (6..1 << 20).contains(&text),
        "{text} bytes of 4 MB that compress well"
    );
    std::fs::rename(lab.at("data"), lab.at("moved")).expect("rename");
    crate::rounds::mode(&lab.at("text"), 0o600);
    assert_eq!(new(&lab.checkpoint()), 0, "names and attributes are no data");
}
