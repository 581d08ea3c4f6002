//! What the timeline of a long conversation costs, counts of every turn included: the first time, again, and
//! with one more turn; and `respool why` of a file that few turns changed.
//!
//! `cargo bench --bench timeline -- [FILES [MESSAGES]]`, as root; 20000 files and 30 messages if not said.

#[path = "../common/mod.rs"]
mod common;

use std::path::Path;
use std::time::{Duration, Instant};

use common::{Store, Style, Tracked, with_input};

const DIRTY: usize = 10;
const PER_FOLDER: usize = 24;

fn name(i: usize) -> String {
    format!("d{}/f{i}", i / PER_FOLDER)
}

fn fill(dir: &Path, files: usize) {
    for i in 0..files {
        if i % PER_FOLDER == 0 {
            std::fs::create_dir_all(dir.join(format!("d{}", i / PER_FOLDER))).expect("folder");
        }
        std::fs::write(dir.join(name(i)), format!("{i} ").repeat(40)).expect("file");
    }
}

/// One turn by the hook: ten files change, one of them for the second time in each third turn.
fn turn(t: &Tracked, store: &mut Store, files: usize, number: usize) {
    for event in ["UserPromptSubmit", "Stop"] {
        let text = format!("message {number}");
        let mut c = t.command();
        c.args(["hook", "openhands"]);
        let input = store.hook_input(event, (event != "Stop").then_some(&text));
        let out = with_input(c, input.as_bytes());
        let said = String::from_utf8_lossy(&out.stdout).into_owned();
        assert!(said.contains("respool: checkpoint cp-"), "{said}");
        if event == "Stop" {
            continue;
        }
        store.hook_ran(event, &said);
        store.message(&[&text]);
        store.action();
        for k in 0..DIRTY {
            let path = t.workspace().join(name((k * files / DIRTY + number) % files));
            std::fs::write(path, format!("{number} {k}\n")).expect("change");
        }
        if number.is_multiple_of(3) {
            std::fs::write(t.workspace().join("first.txt"), format!("{number}\n")).expect("change");
        }
    }
    store.status("finished");
}

fn timed(t: &Tracked, words: &[&str]) -> (Duration, serde_json::Value) {
    let start = Instant::now();
    let (code, said) = t.run(words);
    let took = start.elapsed();
    assert_eq!(code, 0, "{said}");
    (took, said)
}

fn main() {
    let numbers: Vec<usize> = std::env::args().skip(1).filter_map(|a| a.parse().ok()).collect();
    let files = numbers.first().copied().unwrap_or(20_000).max(DIRTY);
    let messages = numbers.get(1).copied().unwrap_or(30).max(1);
    let t = Tracked::new();
    fill(&t.workspace(), files);
    let mut store = Store::new(&t, 1, Style::Renamed);
    for number in 1..=messages {
        turn(&t, &mut store, files, number);
    }
    println!("{files} files, {messages} messages, {DIRTY} files changed in each turn");
    let show = |what: &str, took: Duration| println!("{what:<34} {:>9.1} ms", took.as_secs_f64() * 1e3);
    let path = store.dir.to_string_lossy().into_owned();
    let (took, said) = timed(&t, &["timeline", &path]);
    show("timeline, nothing counted yet", took);
    let counted = |said: &serde_json::Value| {
        let rows = said["rows"].as_array().expect("rows");
        rows.iter()
            .filter(|r| r["changes"]["modified"].as_u64() >= Some(DIRTY as u64))
            .count()
    };
    assert_eq!(counted(&said), messages);
    let (took, again) = timed(&t, &["timeline", &path]);
    show("timeline, again", took);
    assert_eq!(again["rows"], said["rows"]);
    turn(&t, &mut store, files, messages + 1);
    show("timeline, one more turn", timed(&t, &["timeline", &path]).0);
    let (took, why) = timed(&t, &["-c", &path, "why", "first.txt"]);
    show("why", took);
    assert_eq!(why.as_array().map(Vec::len), Some((messages + 1) / 3));
}
