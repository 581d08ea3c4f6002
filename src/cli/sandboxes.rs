//! `respool sandboxes` and `respool space`.

use std::fmt::Write as _;
use std::path::Path;

use serde_json::{Value, json};

use super::app::App;
use super::forward::{document, may};
use super::output::Done;
use crate::engine::catalog::Listed;
use crate::engine::pool::Pool;
use crate::engine::vault::copy::open_root;
use crate::failure::Explain;
use crate::rewind::adopt::shows;
use crate::sandbox::exclusive::{clone_of, template};
use crate::sandbox::manage::Verb;
use crate::sandbox::registry::Census;
use crate::sandbox::site::Site;
use crate::text::{count, json_path, shown, shown_path, size};

/// Lists what is tracked.
pub fn run(app: &App) -> Done {
    let Census {
        pools,
        sandboxes: all,
        copies,
        mut trouble,
    } = app.desk.registry.all()?;
    if all.is_empty() && copies.is_empty() && !trouble.is_empty() {
        // "nothing is tracked" would be no answer
        return Err(trouble.swap_remove(0).into());
    }
    if all.is_empty()
        && let Some(e) = app.desk.registry.hidden()
    {
        if copies.is_empty() {
            return Err(e.into());
        }
        trouble.push(e);
    }
    for e in &trouble {
        app.out.say(format!("respool: {e}"));
        if let Some(hint) = e.hint() {
            app.out.say(format!("  hint: {hint}"));
        }
    }
    let ours = |l: &Listed| {
        l.record
            .as_ref()
            .map_or(app.global.behalf.is_none(), |r| may(app, r))
    };
    let mut rows: Vec<Value> = all
        .iter()
        .filter(|(_, l)| ours(l))
        .map(|(i, l)| row(&pools[*i], l))
        .collect();
    rows.extend(
        copies
            .iter()
            .filter(|(_, l)| ours(l))
            .map(|(dir, l)| copy_row(dir, l)),
    );
    if let Some(Value::Array(more)) = document(app, Verb::Sandboxes)? {
        rows.extend(more);
    }
    app.out.result(&rows, || {
        let mut out = String::new();
        for r in &rows {
            let mounted = if r["tracked"] == false {
                "untracked"
            } else if r["mounted"] == true {
                "mounted"
            } else {
                "not mounted"
            };
            let _written = writeln!(
                out,
                "{}  {:<11}  {:>16}  {}{}",
                r["id"].as_str().unwrap_or_default(),
                mounted,
                checkpoints(r),
                shown(r["path"].as_str().unwrap_or("?")),
                kin(r)
            );
        }
        if rows.is_empty() {
            "nothing is tracked; put a project under respool: sudo respool track DIR\n".into()
        } else {
            out
        }
    })
}

/// What a row has to do with others.
fn kin(row: &Value) -> String {
    if row["per_conversation"] == true {
        return "  (the template of its conversations' workspaces)".into();
    }
    let template = row["template"].as_str();
    template.map_or_else(String::new, |t| format!("  (cloned from {})", shown(t)))
}

/// `3 checkpoints` of a row.
fn checkpoints(row: &Value) -> String {
    let number = row["checkpoints"].as_u64();
    number.map_or_else(|| "? checkpoints".into(), |n| count(n, "checkpoint"))
}

fn row(pool: &Pool, listed: &Listed) -> Value {
    let number = crate::engine::catalog::SandboxDir::open(pool, &listed.id)
        .ok()
        .and_then(|d| std::fs::read_dir(d.path().join("snaps")).ok())
        .map_or(0, Iterator::count);
    match &listed.record {
        Ok(r) => {
            let (path, exact) = json_path(&r.path);
            let origin = clone_of(r);
            json!({
                "id": listed.id, "path": path, "path_b64": exact, "vault": "btrfs", "mounted": r.tracked && shows(r),
                "per_conversation": template(r).is_some(), "template": origin.as_ref().map(|o| &o.template),
                "conversation": origin.as_ref().map(|o| &o.conversation),
                "tracked": r.tracked, "checkpoints": number, "bytes": null, "pool": shown_path(pool.mount()),
            })
        }
        Err(why) => json!({
            "id": listed.id, "path": null, "vault": "btrfs", "mounted": false, "tracked": null, "checkpoints": number,
            "bytes": null, "damaged": why, "pool": shown_path(pool.mount()),
        }),
    }
}

fn copy_row(copies: &Path, listed: &Listed) -> Value {
    let dir = copies.join(&listed.id);
    let count = std::fs::read_dir(dir.join("snaps")).map_or(0, |all| {
        let real = |e: &std::io::Result<std::fs::DirEntry>| {
            e.as_ref()
                .is_ok_and(|e| !e.file_name().as_encoded_bytes().starts_with(b"."))
        };
        all.filter(real).count()
    });
    match &listed.record {
        Ok(r) => {
            let (path, exact) = json_path(&r.path);
            json!({
                "id": listed.id, "path": path, "path_b64": exact, "vault": "copy",
                "mounted": r.tracked && open_root(&r.path, r.root.as_ref()).is_ok(),
                "tracked": r.tracked, "checkpoints": count, "bytes": null, "pool": null,
            })
        }
        Err(why) => json!({
            "id": listed.id, "path": null, "vault": "copy", "mounted": false, "tracked": null, "checkpoints": count,
            "bytes": null, "damaged": why, "pool": null,
        }),
    }
}

/// Shows what takes space.
pub fn space(app: &App) -> Done {
    let Census {
        pools,
        sandboxes: all,
        copies,
        trouble: _,
    } = app.desk.registry.all()?;
    let mut list = Vec::new();
    for pool in &pools {
        list.push(serde_json::to_value(pool.status()?).unwrap_or(Value::Null));
    }
    let mut sandboxes = Vec::new();
    for (i, l) in all {
        let Ok(record) = l.record else { continue };
        if !may(app, &record) {
            continue;
        }
        let (path, pool) = (record.path.clone(), i);
        let again = app.desk.registry.by_id(&record.id).ok().flatten();
        let number = again
            .as_ref()
            .map(|s: &Site| s.vault.checkpoints().map_or(0, |c| c.len()));
        // without the right to look it is not known
        let new = again.and_then(|s| s.vault.new_data().ok()).unwrap_or_default();
        let bytes: u64 = new.iter().map(|(_, bytes)| bytes).sum();
        let rows: Vec<Value> = new
            .iter()
            .map(|(id, bytes)| json!({"checkpoint": id, "bytes": bytes}))
            .collect();
        sandboxes.push(json!({
            "id": record.id, "path": json_path(&path).0, "pool": pool, "checkpoints": number,
            "bytes": (!new.is_empty()).then_some(bytes), "new": rows,
        }));
    }
    for (_, l) in copies {
        let Ok(record) = l.record else { continue };
        let path = json_path(&record.path).0;
        let site = app.desk.registry.by_id(&record.id).ok().flatten();
        let count = site
            .as_ref()
            .map(|s| s.vault.checkpoints().map_or(0, |c| c.len()));
        let bytes = site.and_then(|s| s.vault.used().ok());
        sandboxes
            .push(json!({"id": record.id, "path": path, "pool": null, "checkpoints": count, "bytes": bytes}));
    }
    if let Some(mut more) = document(app, Verb::Space)? {
        for (own, name) in [(&mut list, "pools"), (&mut sandboxes, "sandboxes")] {
            let its = more.get_mut(name).and_then(Value::as_array_mut);
            own.extend(its.map(std::mem::take).unwrap_or_default());
        }
    }
    let doc = json!({"pools": list, "sandboxes": sandboxes});
    app.out.result(&doc, || space_text(&list, &sandboxes))
}

fn space_text(list: &[Value], sandboxes: &[Value]) -> String {
    let mut out = String::new();
    for p in list {
        let bytes = |k: &str| p[k].as_u64().map_or_else(|| "?".into(), size);
        let _written = writeln!(
            out,
            "pool {}: {} used of {}, {} free; its disk has {} free",
            p["fsid"].as_str().unwrap_or("?"),
            bytes("used"),
            bytes("size"),
            bytes("available"),
            bytes("host_free")
        );
    }
    for s in sandboxes {
        let data = s["bytes"].as_u64().map(|b| format!(", {} of data", size(b)));
        let _written = writeln!(
            out,
            "{}: {}{}",
            shown(s["path"].as_str().unwrap_or("?")),
            checkpoints(s),
            data.unwrap_or_default()
        );
        for row in s["new"].as_array().into_iter().flatten() {
            let bytes = row["bytes"].as_u64().unwrap_or(0);
            let id = row["checkpoint"].as_str().unwrap_or("?");
            let _written = writeln!(out, "  {}  {:>10} new", shown(id), size(bytes));
        }
    }
    out
}
