//! `respool why`.

use std::path::Path;

use serde_json::{Value, json};

use super::app::App;
use super::changes::one;
use super::output::{Done, Failure};
use crate::failure::Kind;
use crate::text::{first_line, shown_path};
use crate::timeline::desk::spans;

/// Which turns changed a file, the newest first.
pub fn run(app: &App, path: &Path) -> Done {
    let subject = app.look_for(&["m1"])?;
    let path = one(app, subject.site.path(), path)?;
    let timeline = subject.timeline().ok_or_else(|| {
        Failure::new(Kind::NotFound, "there is no conversation here").hint("name it: -c CONVERSATION")
    })?;
    let bar = app.bar();
    let mut rows: Vec<(Value, String)> = Vec::new();
    for (row, span) in timeline.rows.iter().zip(spans(&timeline.rows)).rev() {
        let Some((a, b)) = span.turn else { continue };
        // most turns leave most files alone: then no list is made
        let known = app.desk.known(&subject.site, &a, &b);
        if known.is_some_and(|t| t.counts.total() == 0) || subject.site.vault.untouched(&a, &b, &path)? {
            continue;
        }
        let list = app.desk.listed(&subject.site, &a, &b, &bar)?;
        if let Some(c) = list.iter().find(|c| c.path == path || c.old_path() == path) {
            let value = json!({"message": row.message, "id": row.id, "checkpoint": a, "kind": c.kind});
            let number = row.message.map_or_else(|| "-".into(), |n| n.to_string());
            rows.push((
                value,
                format!(
                    "{number:>4}  {:<9} {}\n",
                    format!("{:?}", c.kind).to_lowercase(),
                    first_line(&row.text)
                ),
            ));
        }
    }
    if rows.is_empty() {
        return Err(Failure::new(
            Kind::NotFound,
            format!("no turn with checkpoints changed {}", shown_path(&path)),
        )
        .path(path));
    }
    let values: Vec<&Value> = rows.iter().map(|r| &r.0).collect();
    app.out
        .result(&values, || rows.iter().map(|r| r.1.as_str()).collect())
}
