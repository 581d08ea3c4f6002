//! How long a large conversation takes to read: 10,000 messages in 100,000 event files, against a plain
//! reader that parses each file into a `serde_json::Value`, in the same run on warm files.
//! Run: `cargo bench --bench conversation`.

use std::error::Error;
use std::fs;
use std::hint::black_box;
use std::path::Path;
use std::time::{Duration, Instant};

use respool::conversation::{OpenHandsV1, Source};
use respool::progress::Silent;

const MESSAGES: u64 = 10_000;
const EVENTS: u64 = 100_000;
const ROUNDS: usize = 5;

type Outcome<T> = Result<T, Box<dyn Error>>;

fn id(index: u64) -> String {
    format!(
        "{index:08x}-0000-4000-8000-{:012x}",
        index.wrapping_mul(0x9e37_79b9_7f4a)
    )
}

fn event(index: u64) -> String {
    let parent = index.checked_sub(1).map_or_else(|| "__root__".to_owned(), id);
    let head = format!(
        r#""id":"{}","timestamp":"2026-11-29T17:05:02.516407","parent_id":"{parent}""#,
        id(index)
    );
    match index % (EVENTS / MESSAGES) {
        0 => format!(
            r#"{{{head},"source":"user","llm_message":{{"role":"user","content":[{{"cache_prompt":false,"type":"text","text":"message {index}: please go on\nwith the next step"}}],"thinking_blocks":[]}},"activated_skills":[],"extended_content":[],"kind":"MessageEvent"}}"#
        ),
        n if n % 2 == 1 => format!(
            r#"{{{head},"source":"agent","thought":[],"action":{{"command":"make test","kind":"TerminalAction"}},"tool_name":"terminal","tool_call_id":"call_{index}","llm_response_id":"x","kind":"ActionEvent"}}"#
        ),
        _ => format!(
            r#"{{{head},"source":"environment","tool_name":"terminal","tool_call_id":"call_{}","observation":{{"content":[{{"type":"text","text":"{}"}}],"is_error":false,"kind":"TerminalObservation"}},"kind":"ObservationEvent"}}"#,
            index - 1,
            "a line of the output\\n".repeat(40)
        ),
    }
}

fn make(store: &Path) -> Outcome<()> {
    let events = store.join("events");
    fs::create_dir(&events)?;
    for index in 0..EVENTS {
        fs::write(
            events.join(format!("event-{index:05}-{}.json", id(index))),
            event(index),
        )?;
    }
    let base = format!(
        r#"{{"id":"bench","workspace":{{"working_dir":"/w"}},"execution_status":"idle","leaf_event_id":"{}","head_is_empty":false}}"#,
        id(EVENTS - 1)
    );
    fs::write(store.join("base_state.json"), base)?;
    Ok(())
}

/// The plain reader: every file, one after another, as a `Value`.
fn plain(store: &Path) -> Outcome<usize> {
    let mut names: Vec<_> = fs::read_dir(store.join("events"))?.collect::<Result<_, _>>()?;
    names.sort_by_key(fs::DirEntry::file_name);
    let mut messages = 0;
    for name in names {
        let value: serde_json::Value = serde_json::from_slice(&fs::read(name.path())?)?;
        messages += usize::from(value["kind"] == "MessageEvent" && value["source"] == "user");
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
            return Err(format!("{got} messages, {want} wanted").into());
        }
    }
    Ok(best)
}

fn main() -> Outcome<()> {
    let dir = tempfile::tempdir()?;
    let store = dir.path();
    make(store)?;
    let all = MESSAGES as usize;
    let plain = best(|| plain(store), all)?;
    let read = best(|| Ok(OpenHandsV1.read(store, &Silent)?.messages.len()), all)?;
    let tail = best(|| Ok(OpenHandsV1.tail(store, 50)?.messages.len()), 50)?;
    let summary = best(|| OpenHandsV1.summary(store).map(|_| 1).map_err(Into::into), 1)?;
    println!("{EVENTS} events, {MESSAGES} messages, best of {ROUNDS}");
    for (what, took) in [
        ("plain Value reader", plain),
        ("read", read),
        ("tail of 50", tail),
        ("summary", summary),
    ] {
        let ratio = took.as_secs_f64() / plain.as_secs_f64();
        println!(
            "{what:20} {:8.1} ms   {ratio:5.3} of the plain reader",
            took.as_secs_f64() * 1e3
        );
    }
    Ok(())
}
