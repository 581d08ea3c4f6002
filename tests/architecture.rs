//! Keeps the dependency directions of `src/lib.rs` true, by reading the sources.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// Which rooms a room may use. A room that is not listed here fails the test: decide where it stands.
const MAY_USE: &[(&str, &[&str])] = &[
    ("failure", &["text"]),
    ("progress", &[]),
    ("text", &[]),
    ("durable", &[]),
    ("mounts", &[]),
    ("process", &[]),
    ("patterns", &[]),
    ("packages", &["text", "progress"]),
    ("config", &["failure", "text", "paths", "patterns"]),
    ("paths", &["conversation"]),
    ("conversation", &["failure", "text", "process", "progress"]),
    (
        "engine",
        &[
            "failure", "text", "process", "progress", "mounts", "durable", "patterns",
        ],
    ),
    (
        "sandbox",
        &[
            "engine", "failure", "text", "process", "progress", "mounts", "paths", "durable", "config",
            "patterns",
        ],
    ),
    ("diff", &["engine", "failure", "text", "progress"]),
    (
        "chat",
        &[
            "conversation",
            "engine",
            "failure",
            "text",
            "process",
            "progress",
            "paths",
            "durable",
        ],
    ),
    (
        "timeline",
        &[
            "packages",
            "conversation",
            "engine",
            "sandbox",
            "failure",
            "text",
            "progress",
            "durable",
        ],
    ),
    (
        "rewind",
        &[
            "packages", "chat", "timeline", "engine", "sandbox", "failure", "text", "process", "progress",
            "mounts", "durable", "paths", "config",
        ],
    ),
    (
        "watch",
        &[
            "timeline",
            "chat",
            "conversation",
            "engine",
            "sandbox",
            "failure",
            "text",
            "process",
            "progress",
            "paths",
        ],
    ),
    (
        "service",
        &[
            "rewind",
            "watch",
            "timeline",
            "conversation",
            "engine",
            "sandbox",
            "failure",
            "text",
            "process",
            "progress",
            "paths",
            "config",
        ],
    ),
    (
        "demo",
        &[
            "chat",
            "rewind",
            "watch",
            "timeline",
            "conversation",
            "engine",
            "sandbox",
            "diff",
            "failure",
            "text",
            "process",
            "progress",
            "paths",
            "config",
        ],
    ),
    (
        "tui",
        &[
            "packages",
            "chat",
            "rewind",
            "watch",
            "timeline",
            "conversation",
            "engine",
            "sandbox",
            "diff",
            "demo",
            "failure",
            "text",
            "process",
            "progress",
            "paths",
            "config",
        ],
    ),
    (
        "cli",
        &[
            "packages",
            "chat",
            "service",
            "tui",
            "demo",
            "rewind",
            "watch",
            "timeline",
            "conversation",
            "engine",
            "sandbox",
            "diff",
            "failure",
            "text",
            "durable",
            "process",
            "progress",
            "mounts",
            "paths",
            "config",
        ],
    ),
];

/// Crates that only one room may name.
const ONLY_IN: &[(&str, &str)] = &[
    ("ratatui", "tui"),
    ("ratatui_textarea", "tui"),
    ("crossterm", "tui"),
    ("clap", "cli"),
    ("clap_complete", "cli"),
    ("clap_mangen", "cli"),
    ("bollard", "sandbox"),
    ("ureq", "chat"),
    ("tungstenite", "chat"),
    ("loopdev", "engine"),
    ("similar", "diff"),
];

fn sources(dir: &Path, out: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).expect("src can be read") {
        let path = entry.expect("entry").path();
        if path.is_dir() {
            sources(&path, out);
        } else if path.extension().is_some_and(|e| e == "rs") {
            out.push(path);
        }
    }
}

/// The room of a source file, and its code without comments and without its test module.
fn rooms() -> BTreeMap<String, Vec<(PathBuf, String)>> {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut files = Vec::new();
    sources(&src, &mut files);
    let mut rooms: BTreeMap<String, Vec<(PathBuf, String)>> = BTreeMap::new();
    for file in files {
        let relative = file.strip_prefix(&src).expect("below src").to_owned();
        let first = relative
            .iter()
            .next()
            .expect("a name")
            .to_string_lossy()
            .into_owned();
        let room = first.trim_end_matches(".rs").to_owned();
        let text = fs::read_to_string(&file).expect("readable");
        let code = text.split("#[cfg(test)]\nmod ").next().unwrap_or_default();
        let code: String = code
            .lines()
            .filter(|l| !l.trim_start().starts_with("//"))
            .map(|l| format!("{l}\n"))
            .collect();
        rooms.entry(room).or_default().push((relative, code));
    }
    rooms
}

#[test]
fn rooms_use_only_the_rooms_below_them() {
    let rooms = rooms();
    let names: Vec<&str> = MAY_USE.iter().map(|(n, _)| *n).collect();
    let mut bad = Vec::new();
    for (room, files) in &rooms {
        if room == "lib" || room == "main" {
            continue;
        }
        let Some((_, allowed)) = MAY_USE.iter().find(|(n, _)| n == room) else {
            bad.push(format!("room {room} has no place in MAY_USE"));
            continue;
        };
        for (file, code) in files {
            for other in names.iter().filter(|o| *o != room && !allowed.contains(o)) {
                let uses = [
                    format!("crate::{other}::"),
                    format!("crate::{other};"),
                    format!("crate::{{{other}"),
                ];
                if uses.iter().any(|u| code.contains(u.as_str())) {
                    bad.push(format!("{} uses {other}", file.display()));
                }
            }
        }
    }
    assert!(bad.is_empty(), "{}", bad.join("\n"));
}

#[test]
fn crates_stay_in_their_rooms() {
    let mut bad = Vec::new();
    for (room, files) in &rooms() {
        for (file, code) in files {
            for (krate, only) in ONLY_IN.iter().filter(|(_, only)| only != room) {
                if code.contains(&format!("{krate}::")) {
                    bad.push(format!(
                        "{} names {krate}, which belongs to {only}",
                        file.display()
                    ));
                }
            }
        }
    }
    assert!(bad.is_empty(), "{}", bad.join("\n"));
}

#[test]
fn unsafe_code_is_in_one_file() {
    let mut bad = Vec::new();
    for files in rooms().values() {
        for (file, code) in files {
            if code.contains("unsafe {") && !file.ends_with("engine/ioctl.rs") {
                bad.push(file.display().to_string());
            }
            if code.contains("ioctl_") && !file.starts_with("engine") {
                bad.push(format!("{}: ioctls belong to the engine", file.display()));
            }
        }
    }
    assert!(bad.is_empty(), "{}", bad.join("\n"));
}

#[test]
fn the_conversation_room_never_writes() {
    let writes = [
        "fs::write",
        "File::create",
        "OpenOptions",
        "remove_file",
        "remove_dir",
        "create_dir",
        "fs::rename",
    ];
    let mut bad = Vec::new();
    for (file, code) in rooms().get("conversation").into_iter().flatten() {
        bad.extend(
            writes
                .iter()
                .filter(|w| code.contains(**w))
                .map(|w| format!("{}: {w}", file.display())),
        );
    }
    assert!(bad.is_empty(), "{}", bad.join("\n"));
}

#[test]
fn the_top_level_holds_what_it_may() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let known = [
        "Cargo.toml",
        "Cargo.lock",
        "src",
        "assets",
        "tests",
        "README.md",
        "demo.tape",
        "LICENSE",
        "target",
    ];
    let mut bad = Vec::new();
    for entry in fs::read_dir(root).expect("the root can be read") {
        let name = entry.expect("entry").file_name().to_string_lossy().into_owned();
        if !name.starts_with('.') && !known.contains(&name.as_str()) {
            bad.push(name);
        }
    }
    assert!(bad.is_empty(), "{}", bad.join("\n"));
}
