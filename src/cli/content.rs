//! `respool cat` and `respool ls`.

use std::io::IsTerminal;
use std::path::Path;

use base64::Engine as _;
use serde_json::{Value, json};

use super::app::App;
use super::changes::one;
use super::output::{Done, Failure, raw};
use crate::engine::Content;
use crate::failure::Kind;
use crate::text::{json_path, shown, shown_path, size};

/// The largest file that `cat` prints.
const LIMIT: u64 = 1 << 30;

/// Prints a file as it was.
pub fn cat(app: &App, state: &str, path: &Path) -> Done {
    let subject = app.look_for(&[state])?;
    let state = App::state(&subject, state)?;
    let path = one(app, subject.site.path(), path)?;
    let content = subject.site.vault.read(&state.state, &path, LIMIT)?;
    let Content::File { bytes, size: whole } = content else {
        let what = match content {
            Content::Link(to) => format!("a link to {}", shown_path(&to)),
            Content::Other(t) => format!("a {t:?}").to_lowercase(),
            Content::File { .. } => String::new(),
        };
        return Err(Failure::new(
            Kind::Refused,
            format!("{} is no regular file but {what}", shown_path(&path)),
        )
        .path(path));
    };
    if whole > bytes.len() as u64 {
        return Err(Failure::new(
            Kind::Refused,
            format!("{} has {}: too large", shown_path(&path), size(whole)),
        )
        .path(path));
    }
    if app.out.json {
        let text = std::str::from_utf8(&bytes).ok();
        let exact = text
            .is_none()
            .then(|| base64::engine::general_purpose::STANDARD.encode(&bytes));
        return app.out.result(
            &json!({"path": json_path(&path).0, "size": whole, "text": text, "b64": exact}),
            String::new,
        );
    }
    if std::io::stdout().is_terminal() {
        // what the agent wrote must not drive the terminal
        let text = String::from_utf8_lossy(&bytes);
        let safe: String = text
            .split_inclusive('\n')
            .map(|l| match l.strip_suffix('\n') {
                Some(l) => shown(&l.replace('\t', "    ")) + "\n",
                None => shown(&l.replace('\t', "    ")),
            })
            .collect();
        return raw(safe.as_bytes());
    }
    raw(&bytes)
}

/// Lists a folder as it was.
pub fn ls(app: &App, state: &str, path: Option<&Path>) -> Done {
    let subject = app.look_for(&[state])?;
    let state = App::state(&subject, state)?;
    let path = path
        .map(|p| one(app, subject.site.path(), p))
        .transpose()?
        .unwrap_or_else(|| ".".into());
    let entries = subject.site.vault.entries(&state.state, &path)?;
    let rows: Vec<Value> = entries
        .iter()
        .map(|e| {
            let (name, exact) = json_path(&e.name);
            json!({"name": name, "name_b64": exact, "type": e.file_type, "size": e.size, "mode": format!("{:o}", e.mode)})
        })
        .collect();
    app.out.result(&rows, || {
        entries
            .iter()
            .map(|e| {
                let kind = format!("{:?}", e.file_type).to_lowercase();
                format!(
                    "{:>6o} {:>10} {kind:<6} {}\n",
                    e.mode,
                    size(e.size),
                    shown_path(&e.name)
                )
            })
            .collect()
    })
}
