//! What the tests of the agents' sources share: recorded stores with what the reference reader made of them, ways of
//! reading that must agree, and damage.

use std::fs::OpenOptions;
use std::io::Write;
use std::path::{Path, PathBuf};

use proptest::prelude::*;
use respool::conversation::{Message, MessageKind, Roots, Source};
use respool::progress::Silent;
use serde_json::Value;

pub fn roots(home: &Path, cwd: &Path) -> Roots {
    Roots {
        home: home.into(),
        env: std::collections::BTreeMap::new(),
        cwd: cwd.into(),
    }
}

/// Appends to a file, made with its folders where there is none.
pub fn append(path: &Path, bytes: &[u8]) {
    std::fs::create_dir_all(path.parent().expect("a folder")).expect("folders");
    let mut file = OpenOptions::new()
        .create(true)
        .append(true)
        .open(path)
        .expect("open");
    file.write_all(bytes).expect("write");
}

/// The recorded stores of an agent.
pub struct Fixture {
    home: PathBuf,
    expected: Vec<Value>,
}

impl Fixture {
    pub fn of(agent: &str) -> Self {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("tests/fixtures")
            .join(agent);
        let expected = std::fs::read(root.join("EXPECTED.json")).expect("fixture");
        Self {
            home: root.join("home"),
            expected: serde_json::from_slice(&expected).expect("JSON"),
        }
    }
    pub fn home(&self) -> &Path {
        &self.home
    }
    /// Each recorded conversation is among the stores and is read as the reference reads it.
    pub fn check(&self, source: &dyn Source, stores: &[PathBuf]) {
        let ids: Vec<String> = stores
            .iter()
            .map(|s| source.summary(s).expect("summary").id)
            .collect();
        for e in &self.expected {
            let id = e["session"].as_str().expect("an id");
            let at = ids
                .iter()
                .position(|i| i == id)
                .unwrap_or_else(|| panic!("{id} in {ids:?}"));
            check_one(source, &stores[at], e);
        }
        assert_eq!(ids.len(), self.expected.len(), "{ids:?}");
    }
}

fn check_one(source: &dyn Source, store: &Path, e: &Value) {
    let got = source.read(store, &Silent).expect("read");
    let name = &got.summary.id;
    let listed = source.summary(store).expect("summary");
    let workspace = e["workspace"].as_str().map(Path::new);
    assert_eq!(got.summary.workspace.as_deref(), workspace, "{name}");
    assert_eq!(
        (&listed.workspace, &listed.title),
        (&got.summary.workspace, &got.summary.title),
        "{name}"
    );
    assert_eq!(
        source.workspace(store).expect("workspace").as_deref(),
        workspace,
        "{name}"
    );
    let wanted = e["messages"].as_array().expect("messages");
    let texts: Vec<&str> = got.messages.iter().map(|m| m.text.as_str()).collect();
    assert_eq!(
        texts,
        wanted
            .iter()
            .map(|m| m["text"].as_str().expect("text"))
            .collect::<Vec<_>>(),
        "{name}"
    );
    for (m, e) in got.messages.iter().zip(wanted) {
        assert_eq!(m.id, e["id"].as_str().expect("id"), "{name}");
        assert_eq!(
            m.active,
            e["active"].as_bool().expect("active"),
            "{name}: {}",
            m.text
        );
        assert_eq!(m.active, m.branch == 0, "{name}: {}", m.text);
        assert_eq!(kind(m.kind), e["kind"], "{name}: {}", m.text);
        assert_eq!(
            u64::from(m.pictures),
            e["images"].as_u64().unwrap_or(0),
            "{name}: {}",
            m.text
        );
        let time = m.time.expect("a time");
        match &e["ts"] {
            Value::String(ts) => {
                assert_eq!(
                    &time.to_rfc3339_opts(chrono::SecondsFormat::Millis, true),
                    ts,
                    "{name}"
                );
            }
            ms => assert_eq!(Some(time.timestamp_millis()), ms.as_i64(), "{name}"),
        }
    }
    let numbers: Vec<u32> = got.messages.iter().filter_map(|m| m.number).collect();
    assert_eq!(numbers, (1..=numbers.len() as u32).collect::<Vec<_>>(), "{name}");
    assert!(
        got.messages.is_sorted_by_key(|m| m.index),
        "{name}: in the store's order"
    );
    assert!(got.messages.iter().all(|m| m.index < got.events), "{name}");
}

fn kind(kind: MessageKind) -> &'static str {
    match kind {
        MessageKind::Prompt => "prompt",
        MessageKind::Queued => "queued",
        MessageKind::Steer => "steer",
        MessageKind::Shell => "shell",
        MessageKind::Command => "command",
    }
}

/// The newest `rows` messages are the end of all.
pub fn at_least(source: &dyn Source, store: &Path, rows: usize) {
    let all = source.read(store, &Silent).expect("read");
    let tail = source.tail(store, rows).expect("tail");
    assert!(tail.messages.len() >= rows.min(all.messages.len()));
    let end = &all.messages[all.messages.len() - tail.messages.len()..];
    let key = |m: &Message| (m.id.clone(), m.index, m.text.clone());
    assert_eq!(
        tail.messages.iter().map(key).collect::<Vec<_>>(),
        end.iter().map(key).collect::<Vec<_>>()
    );
    assert_eq!(
        (tail.events, tail.acted, tail.at_work),
        (all.events, all.acted, all.at_work)
    );
    assert_eq!(tail.summary.workspace, all.summary.workspace);
}

/// Where the bytes of a store are damaged, and by what.
pub fn cuts() -> impl Strategy<Value = Vec<(usize, u8)>> {
    proptest::collection::vec((0_usize..200_000, any::<u8>()), 0..20)
}

pub fn damaged(mut bytes: Vec<u8>, cuts: &[(usize, u8)]) -> Vec<u8> {
    for &(at, byte) in cuts {
        let at = at % bytes.len();
        if byte < 16 {
            bytes.truncate(at.max(1));
        } else {
            bytes[at] = byte;
        }
    }
    bytes
}

/// All ways of reading a store, damaged or not, end and say the same.
pub fn agree(source: &dyn Source, store: &Path) {
    let _any = (
        source.summary(store),
        source.workspace(store),
        source.recognises(store),
    );
    let Ok(all) = source.read(store, &Silent) else {
        return;
    };
    let tail = source.tail(store, usize::MAX).expect("tail");
    assert_eq!(tail.messages, all.messages);
    let since = source.since(store, 0).expect("since");
    assert_eq!(
        (since.messages.len(), since.events),
        (all.messages.len(), all.events)
    );
    assert!(
        all.notices.iter().all(|n| !n.contains(char::is_control)),
        "{:?}",
        all.notices
    );
}
