//! `respool pool`.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::app::App;
use super::args::PoolCommand;
use super::output::{Done, Failure};
use crate::config::values;
use crate::engine::EngineError;
use crate::engine::catalog;
use crate::engine::image;
use crate::engine::pool::{Pool, peek};
use crate::failure::Kind;
use crate::rewind::adopt::shows;
use crate::sandbox::bind;
use crate::sandbox::registry::PoolEntry;
use crate::sandbox::whole::{Home, Phase, Record};
use crate::text::{shown_path, size};

/// A size: `20G`, `500M`, `1048576`. Powers of 1024.
pub fn bytes(text: &str) -> Result<u64, Failure> {
    values::bytes(text).ok_or_else(|| {
        Failure::new(Kind::Usage, format!("{} is no size", crate::text::shown(text)))
            .hint("for example 20G or 500M")
    })
}

/// Looks after the pools.
pub fn run(app: &App, command: PoolCommand) -> Done {
    match command {
        PoolCommand::Create {
            image,
            size,
            preallocate,
        } => create(app, image, &size, preallocate),
        PoolCommand::Status => status(app),
        PoolCommand::Grow { size, pool } => grow(app, &size, pool.as_deref()),
        PoolCommand::Mount => mount(app),
        PoolCommand::Unmount => unmount(app),
        PoolCommand::Check => check(app),
    }
}

fn create(app: &App, image: Option<PathBuf>, wanted: &str, preallocate: bool) -> Done {
    let registry = &app.desk.registry;
    let image = image.map_or_else(|| registry.default_image(), |i| app.cwd.join(i));
    let wanted = bytes(wanted)?;
    if app.global.dry_run {
        let step = format!("make {} of {}", shown_path(&image), size(wanted));
        return app
            .out
            .result(&json!({"plan": {"steps": [step]}}), || format!("would {step}\n"));
    }
    registry.prepare()?;
    image::create(&image, wanted, preallocate)?;
    let pool = registry.open_image(&image)?;
    let status = pool.status()?;
    app.out.result(&status, || {
        format!(
            "made {}, mounted at {}\n",
            shown_path(&image),
            shown_path(pool.mount())
        )
    })
}

fn entry_name(entry: &PoolEntry) -> &Path {
    match entry {
        PoolEntry::Image(p) | PoolEntry::Existing(p) | PoolEntry::Folder(p) => &p.0,
    }
}

fn status(app: &App) -> Done {
    let mut rows = Vec::new();
    for (mnt, entry) in app.desk.registry.listed() {
        // nothing is attached or mounted to answer this
        let row = match &entry {
            PoolEntry::Image(image) => peek(&image.0, &mnt).map(|s| json!(s)),
            PoolEntry::Existing(folder) => Pool::open_existing(&folder.0, &mnt)
                .and_then(|p| p.status())
                .map(|s| json!(s)),
            PoolEntry::Folder(folder) => Pool::open_folder(&folder.0)
                .and_then(|p| p.status())
                .map(|s| json!(s)),
        };
        rows.push(row.unwrap_or_else(
            |e| json!({"image": shown_path(entry_name(&entry)), "mounted": false, "trouble": e.to_string()}),
        ));
    }
    app.out.result(&rows, || {
        if rows.is_empty() {
            return "there is no pool yet; track makes one\n".into();
        }
        rows.iter().map(line).collect()
    })
}

fn line(s: &Value) -> String {
    let bytes = |k: &str| s[k].as_u64().map_or_else(|| "?".into(), size);
    let place = s["image"].as_str().or_else(|| s["mount"].as_str()).unwrap_or("?");
    let mounted = if s["mounted"] == true {
        "mounted"
    } else {
        "not mounted"
    };
    let trouble = s["trouble"]
        .as_str()
        .map_or_else(String::new, |t| format!("  TROUBLE: {t}"));
    format!(
        "{place}: {mounted}, {} used of {}, {} free, its disk has {} free{trouble}\n",
        bytes("used"),
        bytes("size"),
        bytes("available"),
        bytes("host_free")
    )
}

fn opened(app: &App) -> Result<Vec<Pool>, Failure> {
    let mut out = Vec::new();
    for (_, pool) in app.desk.registry.pools() {
        out.push(pool?);
    }
    Ok(out)
}

fn grow(app: &App, wanted: &str, which: Option<&str>) -> Done {
    let wanted = bytes(wanted)?;
    let mut pools = opened(app)?;
    pools.retain(|p| {
        which.is_none_or(|w| {
            crate::engine::subvolume::hex(&p.fsid()).starts_with(w) || p.image() == Some(Path::new(w))
        })
    });
    let [pool] = pools.as_slice() else {
        return Err(Failure::new(
            if pools.is_empty() {
                Kind::NotFound
            } else {
                Kind::Refused
            },
            format!("{} pools fit", pools.len()),
        )
        .hint("name one: --pool IMAGE; respool pool status lists them"));
    };
    if app.global.dry_run {
        let step = format!("grow {} to {}", shown_path(pool.mount()), size(wanted));
        return app
            .out
            .result(&json!({"plan": {"steps": [step]}}), || format!("would {step}\n"));
    }
    pool.grow(wanted)?;
    let status = pool.status()?;
    app.out
        .result(&status, || format!("it has {} now\n", size(status.size)))
}

/// Mounts what it can: one pool that fails must not keep the others away.
fn mount(app: &App) -> Done {
    let mut rows = Vec::new();
    for (entry, pool) in app.desk.registry.pools() {
        match pool.and_then(|pool| catalog::list_sandboxes(&pool)) {
            Ok(listed) => rows.extend(listed.into_iter().filter_map(|l| mounted(app, l))),
            Err(e) => rows.push(
                json!({"pool": shown_path(entry_name(&entry)), "mounted": false, "trouble": e.to_string()}),
            ),
        }
    }
    rows.extend(docker(app));
    let failed = rows.iter().filter(|r| r["mounted"] == false).count();
    app.out.result(&rows, || {
        rows.iter()
            .map(|r| {
                let what = r["path"].as_str().or_else(|| r["pool"].as_str()).unwrap_or("?");
                format!("{what}: {}\n", r["trouble"].as_str().unwrap_or("mounted"))
            })
            .collect()
    })?;
    if failed == 0 {
        return Ok(());
    }
    // the list itself is the answer; the exit code tells the unit that calls it, and scripts
    std::process::exit(i32::from(Kind::Failed.exit_code()))
}

/// Shows Docker's data again, where it is in a pool.
fn docker(app: &App) -> Option<Value> {
    let state = app.desk.registry.state_dir();
    let record = match Record::load(state) {
        Ok(record) => record?,
        Err(e) => {
            return Some(json!({"docker": true, "path": null, "mounted": false, "trouble": e.to_string()}));
        }
    };
    let trouble = match record.phase {
        Phase::On => Home::open(state, &record)
            .and_then(|home| record.show(&home))
            .err()
            .map(|e| e.to_string()),
        _ => Some("moving Docker's data was interrupted: respool recover".to_owned()),
    };
    Some(
        json!({"docker": true, "path": shown_path(record.root()), "mounted": trouble.is_none(), "trouble": trouble}),
    )
}

/// Shows one sandbox's workspace again, and the row that says so; `None` for one that is not tracked.
fn mounted(app: &App, listed: catalog::Listed) -> Option<Value> {
    let record = match listed.record {
        Ok(record) if record.tracked => record,
        Ok(_) => return None,
        Err(why) => {
            return Some(json!({"sandbox": listed.id, "path": null, "mounted": false, "trouble": why}));
        }
    };
    // finding it shows it again where only the mount is missing
    let trouble = app.desk.registry.find(&record.path).err().map(|e| e.to_string());
    Some(
        json!({"sandbox": record.id, "path": shown_path(&record.path), "mounted": trouble.is_none(), "trouble": trouble}),
    )
}

/// Unmounts the workspaces of a pool, then the pool.
pub fn unmount_pool(pool: Pool) -> Result<(), EngineError> {
    for listed in catalog::list_sandboxes(&pool)? {
        let Ok(record) = listed.record else { continue };
        while record.place == catalog::Place::Pool && shows(&record) {
            bind::unmount(&record.path, false).map_err(EngineError::io("unmount", &record.path))?;
        }
    }
    pool.unmount()
}

fn unmount(app: &App) -> Done {
    let pools: Vec<(PathBuf, PoolEntry)> = app.desk.registry.listed();
    if app.global.dry_run {
        let names: Vec<String> = pools.iter().map(|(_, e)| shown_path(entry_name(e))).collect();
        let steps: Vec<String> = names
            .iter()
            .map(|n| format!("unmount the pool {n} and its workspaces"))
            .collect();
        return app.out.result(&json!({"plan": {"steps": steps}}), || {
            steps.iter().map(|s| format!("would {s}\n")).collect()
        });
    }
    app.confirm("unmount all workspaces and pools?")?;
    let mut done = Vec::new();
    for (mnt, entry) in pools {
        // one that is not mounted is not mounted for this
        let pool = match &entry {
            PoolEntry::Image(image) => match peek(&image.0, &mnt) {
                Ok(s) if !s.mounted => continue,
                Err(_) if !image.0.exists() => match Pool::open_image(&image.0, &mnt) {
                    Ok(pool) => pool,
                    Err(_) => continue, // there is nothing to unmount
                },
                _ => Pool::open_image(&image.0, &mnt)?,
            },
            PoolEntry::Existing(folder) => Pool::open_existing(&folder.0, &mnt)?,
            PoolEntry::Folder(_) => continue, // nothing is mounted
        };
        let mount = shown_path(pool.mount());
        unmount_pool(pool)?;
        done.push(json!({"mount": mount, "mounted": false}));
    }
    app.out.result(&done, || format!("{} unmounted\n", done.len()))
}

fn check(app: &App) -> Done {
    let mut rows = Vec::new();
    let mut bad = 0;
    for pool in opened(app)? {
        let report = pool.check()?;
        if report.clean == Some(false) {
            bad += 1;
        }
        rows.push(json!({"mount": shown_path(pool.mount()), "clean": report.clean, "lines": report.lines}));
    }
    app.out.result(&rows, || {
        rows.iter()
            .map(|r| {
                let word = match r["clean"].as_bool() {
                    Some(true) => "clean",
                    Some(false) => "DAMAGED",
                    None => "not checked: btrfs-progs is not installed",
                };
                format!("{}: {word}\n", r["mount"].as_str().unwrap_or("?"))
            })
            .collect()
    })?;
    if bad == 0 {
        return Ok(());
    }
    app.out.say(format!(
        "respool: {bad} pools are damaged: make copies of what matters"
    ));
    // the list itself is the answer; the exit code tells scripts
    std::process::exit(i32::from(Kind::Damaged.exit_code()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        assert_eq!(bytes("20G").ok(), Some(20 << 30));
        assert_eq!(bytes("500MiB").ok(), Some(500 << 20));
        assert_eq!(bytes("4096").ok(), Some(4096));
        assert!(bytes("lots").is_err() && bytes("99999999999T").is_err());
    }
}
