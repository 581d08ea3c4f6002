//! How long Claude Code's sessions take to read: one of 223 MB in 65,000 lines, one of them 10 MB long, against a plain
//! reader that parses each line into a `serde_json::Value`; and a list of 3,000 sessions with 2 GiB. Warm files.
//! Run: `cargo bench --bench claude`. It needs 2.3 GB of disk.

use std::error::Error;
use std::fs::{self, File};
use std::hint::black_box;
use std::io::{BufRead, BufReader, BufWriter, Write};
use std::path::Path;
use std::time::{Duration, Instant};

use respool::conversation::{ClaudeCode, Library, Roots, Source};
use respool::progress::Silent;

const LINES: u64 = 65_000;
const BYTES: u64 = 223_000_000;
const LONG: usize = 10_000_000;
const SESSIONS: u64 = 3000;
const ALL_BYTES: u64 = 2 << 30;
const ROUNDS: usize = 5;

type Outcome<T> = Result<T, Box<dyn Error>>;

fn uuid(index: u64) -> String {
    format!(
        "{index:08x}-0000-4000-8000-{:012x}",
        index.wrapping_mul(0x9e37_79b9)
    )
}

/// The lines of a session: a message, a tool call, its result, an answer, and again. `text`: of each result.
fn line(session: &str, index: u64, text: &str) -> String {
    let parent = index
        .checked_sub(1)
        .map_or_else(|| "null".to_owned(), |p| format!("\"{}\"", uuid(p)));
    let head = format!(
        r#"{{"parentUuid":{parent},"isSidechain":false,"userType":"external","cwd":"/home/dev/w","sessionId":"{session}","version":"2.1.197","gitBranch":"main","uuid":"{}","timestamp":"2026-11-29T17:05:13.139Z""#,
        uuid(index)
    );
    let answer = |block: &str, stop: &str| {
        format!(
            r#"{head},"type":"assistant","message":{{"id":"msg_{index}","type":"message","role":"assistant","model":"m","content":[{block}],"stop_reason":"{stop}","usage":{{"input_tokens":100,"output_tokens":20}}}}}}"#
        )
    };
    match index % 4 {
        0 => format!(
            r#"{head},"type":"user","promptId":"p{index}","message":{{"role":"user","content":"message {index}: please go on\nwith the next step"}}}}"#
        ),
        1 => answer(
            r#"{"type":"tool_use","id":"toolu_1","name":"Bash","input":{"command":"make test","description":"run"}}"#,
            "tool_use",
        ),
        2 => format!(
            r#"{head},"type":"user","toolUseResult":{{"stdout":"{text}"}},"message":{{"role":"user","content":[{{"tool_use_id":"toolu_1","type":"tool_result","content":"{text}"}}]}}}}"#
        ),
        _ => answer(
            r#"{"type":"text","text":"It is \"done\".\nAll of it."}"#,
            "end_turn",
        ),
    }
}

fn write(path: &Path, session: &str, lines: u64, bytes: u64, long: usize) -> Outcome<()> {
    let plain = 330 * lines;
    let results = (lines / 4).max(1);
    let each = (bytes.saturating_sub(plain + 2 * long as u64) / results / 2) as usize;
    let text = "a line of the output\\n".repeat(each / 22);
    let mut out = BufWriter::new(File::create(path)?);
    for index in 0..lines {
        if long > 0 && index == lines / 8 * 4 + 2 {
            writeln!(out, "{}", line(session, index, &"z".repeat(long / 2)))?;
        } else {
            writeln!(out, "{}", line(session, index, &text))?;
        }
    }
    out.flush()?;
    Ok(())
}

fn plain(store: &Path) -> Outcome<usize> {
    let mut messages = 0;
    for line in BufReader::new(File::open(store)?).split(b'\n') {
        let value: serde_json::Value = serde_json::from_slice(&line?)?;
        messages += usize::from(value["type"] == "user" && value["toolUseResult"].is_null());
    }
    Ok(messages)
}

fn best(mut f: impl FnMut() -> Outcome<usize>, want: usize) -> Outcome<Duration> {
    let mut best = Duration::MAX;
    for _ in 0..ROUNDS {
        let began = Instant::now();
        let got = black_box(f()?);
        best = best.min(began.elapsed());
        if got != want {
            return Err(format!("{got}, {want} wanted").into());
        }
    }
    Ok(best)
}

/// The most memory that this process had since the last call, in MiB.
fn peak() -> Outcome<f64> {
    let status = fs::read_to_string("/proc/self/status")?;
    let line = status
        .lines()
        .find(|l| l.starts_with("VmHWM"))
        .ok_or("no VmHWM")?;
    let kib: f64 = line.split_whitespace().nth(1).ok_or("no number")?.parse()?;
    fs::write("/proc/self/clear_refs", "5")?;
    Ok(kib / 1024.0)
}

fn main() -> Outcome<()> {
    let dir = tempfile::tempdir()?;
    let project = dir.path().join(".claude/projects/-home-dev-w");
    fs::create_dir_all(&project)?;
    let store = dir.path().join("11111111-2222-4333-8444-555555555555.jsonl");
    write(&store, "11111111-2222-4333-8444-555555555555", LINES, BYTES, LONG)?;
    let size = fs::metadata(&store)?.len() as f64 / 1e6;
    let source = ClaudeCode::default();
    let messages = (LINES / 4) as usize;
    let mut times = vec![("plain Value reader", best(|| plain(&store), messages)?)];
    peak()?;
    times.push((
        "read",
        best(|| Ok(source.read(&store, &Silent)?.messages.len()), messages)?,
    ));
    println!(
        "{LINES} lines, {size:.0} MB; peak while reading: {:.0} MiB",
        peak()?
    );
    times.push((
        "tail of 50",
        best(
            || Ok(usize::from(source.tail(&store, 50)?.messages.len() >= 50)),
            1,
        )?,
    ));
    let end = source.tail(&store, 1)?.events;
    times.push((
        "since the end",
        best(|| Ok(source.since(&store, end - 8)?.messages.len()), 0)?,
    ));
    times.push((
        "summary",
        best(|| source.summary(&store).map(|_| 1).map_err(Into::into), 1)?,
    ));
    for n in 0..SESSIONS {
        let id = uuid(n);
        // from tiny to large, 2 GiB together
        let bytes = ALL_BYTES / SESSIONS * (n % 5) / 2;
        write(&project.join(format!("{id}.jsonl")), &id, 200, bytes, 0)?;
    }
    let library = Library::new(Roots {
        home: dir.path().into(),
        env: std::collections::BTreeMap::new(),
        cwd: "/".into(),
    });
    let list = || Ok(library.list(Some("claude")).conversations.len());
    times.push(("list of 3,000", best(list, SESSIONS as usize)?));
    println!("best of {ROUNDS}; peak of the list: {:.0} MiB", peak()?);
    for (what, took) in times {
        println!("{what:20} {:8.1} ms", took.as_secs_f64() * 1e3);
    }
    Ok(())
}
