//! `respool diff`.

use std::io::IsTerminal;
use std::path::PathBuf;

use serde_json::json;

use super::app::App;
use super::changes::list;
use super::output::Done;
use crate::engine::vault::Vault;
use crate::engine::{Change, Content, EngineError, FileType, State};
use crate::diff::unified::{Side, unified};

/// Files larger than this are named, not shown.
const LIMIT: u64 = 16 << 20;

/// Shows the difference of texts between two states.
pub fn run(app: &App, a: &str, b: &str, paths: &[PathBuf]) -> Done {
    let subject = app.subject()?;
    let (a, b) = (app.state(&subject, a)?, app.state(&subject, b)?);
    let changes = list(app, &subject, &a.state, &b.state, paths, false)?;
    let vault: &dyn Vault = &subject.site.vault;
    let raw = !std::io::stdout().is_terminal() || app.out.json;
    let mut out = Vec::new();
    for c in &changes {
        let (x, y) = (side_a(vault, &a.state, c)?, side_b(vault, &b.state, c)?);
        out.extend(unified(c, x.as_ref(), y.as_ref(), raw));
    }
    if app.out.json {
        let text = String::from_utf8_lossy(&out);
        return app.out.result(&json!({"diff": text, "changes": changes}), String::new);
    }
    if app.out.color {
        out = coloured(&out);
    }
    app.out.raw(&out)
}

fn read(vault: &dyn Vault, state: &State, path: &std::path::Path, is: Option<FileType>) -> Result<Option<Side>, EngineError> {
    if is == Some(FileType::Dir) {
        return Ok(None);
    }
    let content = vault.read(state, path, LIMIT)?;
    let mode = vault
        .entries(state, path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(std::path::Path::new(".")))?
        .into_iter()
        .find(|e| Some(e.name.as_os_str()) == path.file_name())
        .map_or(0o644, |e| e.mode);
    let _size = match &content {
        Content::File { size, .. } => *size,
        _ => 0,
    };
    Ok(Some(Side { content, mode }))
}

/// The first side of a change.
pub fn side_a(vault: &dyn Vault, state: &State, c: &Change) -> Result<Option<Side>, EngineError> {
    if c.type_a.is_none() { Ok(None) } else { read(vault, state, c.old_path(), c.type_a) }
}

/// The second side of a change.
pub fn side_b(vault: &dyn Vault, state: &State, c: &Change) -> Result<Option<Side>, EngineError> {
    if c.type_b.is_none() { Ok(None) } else { read(vault, state, &c.path, c.type_b) }
}

fn coloured(text: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len() * 2);
    for line in text.split_inclusive(|b| *b == b'\n') {
        let sgr: &[u8] = match line.first() {
            Some(b'+') => b"\x1b[32m",
            Some(b'-') => b"\x1b[31m",
            Some(b'@') => b"\x1b[36m",
            Some(b'd' | b'i' | b'n' | b'o' | b'r' | b's' | b'B') => b"\x1b[1m",
            _ => b"",
        };
        let (body, end) = match line.strip_suffix(b"\n") {
            Some(body) => (body, &b"\n"[..]),
            None => (line, &b""[..]),
        };
        out.extend_from_slice(sgr);
        out.extend_from_slice(body);
        if !sgr.is_empty() {
            out.extend_from_slice(b"\x1b[0m");
        }
        out.extend_from_slice(end);
    }
    out
}
