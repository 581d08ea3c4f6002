//! `respool diff`.

use std::io::IsTerminal;
use std::path::{Path, PathBuf};

use serde_json::json;

use super::app::App;
use super::changes::list;
use super::output::{Done, raw};
use crate::diff::{Limits, Side, unified};
use crate::engine::vault::Vault;
use crate::engine::{Content, EngineError, FileType, State};

/// Files larger than this are named, not shown.
const LIMIT: u64 = 16 << 20;

/// Shows the difference of texts between two states.
pub fn run(app: &App, a: &str, b: &str, paths: &[PathBuf]) -> Done {
    let subject = app.look_for(&[a, b])?;
    let (a, b) = (App::state(&subject, a)?, App::state(&subject, b)?);
    let changes = list(app, &subject, &a.state, &b.state, paths, false)?;
    let vault: &dyn Vault = &*subject.site.vault;
    let exact = !std::io::stdout().is_terminal() || app.out.json;
    let limits = Limits {
        bytes: LIMIT,
        ..Limits::default()
    };
    let mut out = Vec::new();
    for c in &changes {
        let x = side(vault, &a.state, c.old_path(), c.type_a)?;
        let y = side(vault, &b.state, &c.path, c.type_b)?;
        let x = x.as_ref().map(|(mode, content)| Side {
            path: c.old_path(),
            mode: *mode,
            content,
        });
        let y = y.as_ref().map(|(mode, content)| Side {
            path: &c.path,
            mode: *mode,
            content,
        });
        out.extend(unified(x, y, limits, exact));
    }
    if app.out.json {
        let text = String::from_utf8_lossy(&out);
        return app
            .out
            .result(&json!({"diff": text, "changes": changes}), String::new);
    }
    if app.out.color {
        out = coloured(&out);
    }
    raw(&out)
}

/// Mode and content of one side; `None` where there is nothing or a folder.
fn side(
    vault: &dyn Vault,
    state: &State,
    path: &Path,
    is: Option<FileType>,
) -> Result<Option<(u32, Content)>, EngineError> {
    if matches!(is, None | Some(FileType::Dir)) {
        return Ok(None);
    }
    let content = vault.read(state, path, LIMIT + 1)?;
    let parent = path
        .parent()
        .filter(|p| !p.as_os_str().is_empty())
        .unwrap_or(Path::new("."));
    let entries = vault.entries(state, parent)?;
    let mode = entries
        .iter()
        .find(|e| Some(e.name.as_os_str()) == path.file_name())
        .map_or(0o644, |e| e.mode);
    Ok(Some((mode, content)))
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
