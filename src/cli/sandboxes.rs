//! `respool sandboxes` and `respool space`.

use std::fmt::Write as _;

use serde_json::{Value, json};

use super::app::App;
use super::output::Done;
use crate::engine::catalog::Listed;
use crate::engine::pool::Pool;
use crate::failure::Explain;
use crate::rewind::adopt::shows;
use crate::sandbox::registry::Census;
use crate::sandbox::site::Site;
use crate::text::{json_path, shown, shown_path, size};

/// Lists what is tracked.
pub fn run(app: &App) -> Done {
    let Census {
        pools,
        sandboxes: all,
        mut trouble,
    } = app.desk.registry.all()?;
    if all.is_empty() && !trouble.is_empty() {
        // "nothing is tracked" would be no answer
        return Err(trouble.swap_remove(0).into());
    }
    if all.is_empty()
        && let Some(e) = app.desk.registry.hidden()
    {
        return Err(e.into());
    }
    for e in &trouble {
        app.out.say(format!("respool: {e}"));
        if let Some(hint) = e.hint() {
            app.out.say(format!("  hint: {hint}"));
        }
    }
    let rows: Vec<Value> = all.iter().map(|(i, l)| row(&pools[*i], l)).collect();
    app.out.result(&rows, || {
        let mut out = String::new();
        for r in &rows {
            let mounted = if r["mounted"] == true {
                "mounted"
            } else {
                "not mounted"
            };
            let _written = writeln!(
                out,
                "{}  {:<11}  {:>4} checkpoints  {}",
                r["id"].as_str().unwrap_or_default(),
                mounted,
                r["checkpoints"],
                shown(r["path"].as_str().unwrap_or("?"))
            );
        }
        if rows.is_empty() {
            "nothing is tracked; put a project under respool: sudo respool track DIR\n".into()
        } else {
            out
        }
    })
}

fn row(pool: &Pool, listed: &Listed) -> Value {
    let count = crate::engine::catalog::SandboxDir::open(pool, &listed.id)
        .ok()
        .and_then(|d| std::fs::read_dir(d.path().join("snaps")).ok())
        .map_or(0, Iterator::count);
    match &listed.record {
        Ok(r) => {
            let (path, exact) = json_path(&r.path);
            json!({
                "id": listed.id, "path": path, "path_b64": exact, "vault": "btrfs", "mounted": r.tracked && shows(r),
                "tracked": r.tracked, "checkpoints": count, "bytes": null, "pool": shown_path(pool.mount()),
            })
        }
        Err(why) => json!({
            "id": listed.id, "path": null, "vault": "btrfs", "mounted": false, "tracked": null, "checkpoints": count,
            "bytes": null, "damaged": why, "pool": shown_path(pool.mount()),
        }),
    }
}

/// Shows what takes space.
pub fn space(app: &App) -> Done {
    let Census {
        pools,
        sandboxes: all,
        trouble: _,
    } = app.desk.registry.all()?;
    let mut list = Vec::new();
    for pool in &pools {
        list.push(serde_json::to_value(pool.status()?).unwrap_or(Value::Null));
    }
    let mut sandboxes = Vec::new();
    for (i, l) in all {
        let Ok(record) = l.record else { continue };
        let (path, pool) = (record.path.clone(), i);
        let again = app.desk.registry.by_id(&record.id).ok().flatten();
        let count = again
            .as_ref()
            .map(|s: &Site| s.vault.checkpoints().map_or(0, |c| c.len()));
        sandboxes
            .push(json!({"id": record.id, "path": json_path(&path).0, "pool": pool, "checkpoints": count}));
    }
    let doc = json!({"pools": list, "sandboxes": sandboxes});
    app.out.result(&doc, || {
        let mut out = String::new();
        for p in &list {
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
        for s in &sandboxes {
            let _written = writeln!(
                out,
                "{}: {} checkpoints",
                shown(s["path"].as_str().unwrap_or("?")),
                s["checkpoints"]
            );
        }
        out
    })
}
