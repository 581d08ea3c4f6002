//! `respool checkpoints`.

use serde_json::{Value, json};

use super::app::App;
use super::output::Done;
use crate::engine::{Checkpoint, CheckpointKind, Health};
use crate::text::{age, rfc3339, shown};

/// Lists all checkpoints of a sandbox, newest first, also those of no message.
pub fn run(app: &App) -> Done {
    let subject = app.look()?;
    let mut all = subject.site.vault.checkpoints()?;
    all.reverse();
    let rows: Vec<Value> = all.iter().map(row).collect();
    app.out.result(&rows, || {
        let now = chrono::Utc::now();
        all.iter().map(|c| line(c, now)).collect()
    })
}

fn state(c: &Checkpoint) -> (&'static str, Option<&str>) {
    match &c.health {
        Health::Ok => ("ok", None),
        Health::Incomplete(why) => ("incomplete", Some(why)),
        Health::Damaged(why) => ("damaged", Some(why)),
    }
}

fn row(c: &Checkpoint) -> Value {
    let (state, reason) = state(c);
    json!({
        "checkpoint": c.meta.id, "kind": c.meta.kind, "time": rfc3339(c.meta.time), "state": state, "reason": reason,
        "conversation": c.meta.conversation, "message": c.meta.message, "label": c.meta.label,
        "pinned": c.meta.pinned, "late": c.meta.late, "operation": c.meta.operation,
    })
}

fn line(c: &Checkpoint, now: chrono::DateTime<chrono::Utc>) -> String {
    let kind = match c.meta.kind {
        CheckpointKind::Message => "message",
        CheckpointKind::TurnEnd => "turn end",
        CheckpointKind::Safety => "safety",
        CheckpointKind::Manual => "manual",
        CheckpointKind::Start => "start",
    };
    let pinned = if c.meta.pinned { "pinned" } else { "" };
    let mut out = format!(
        "{:>4}  {}  {kind:<8}  {pinned:<6}",
        age(c.meta.time, now),
        c.meta.id
    );
    if let Some(label) = &c.meta.label {
        out += &format!("  {}", shown(label));
    }
    if let (state, Some(reason)) = state(c) {
        out += &format!("  ({state}: {})", shown(reason));
    }
    out.trim_end().to_owned() + "\n"
}
