//! `respool prune`.

use std::collections::HashSet;

use chrono::{DateTime, TimeDelta, Utc};
use serde_json::json;

use super::app::App;
use super::operations::{recover_adoptions_first, recover_first};
use super::output::{Done, Failure};
use super::pool::bytes;
use crate::config::RetentionConfig;
use crate::config::values::{self, Age, Size};
use crate::durable::append_lines;
use crate::engine::catalog::SandboxDir;
use crate::engine::pool::Pool;
use crate::engine::retention::{Keep, to_remove};
use crate::engine::space::measure_freed;
use crate::engine::vault::btrfs::records;
use crate::engine::{Checkpoint, CheckpointId, CheckpointKind, CheckpointMeta, EngineError};
use crate::failure::Kind;
use crate::rewind::journal::Log;
use crate::rewind::run::PATIENCE;
use crate::sandbox::parts;
use crate::sandbox::registry::Census;
use crate::sandbox::whole;
use crate::text::{age, count, first_line, shown, shown_path, size};
use crate::timeline::counts::forget;
use crate::timeline::join::thinned_marks;
use crate::timeline::notes::THINNED;
use crate::timeline::select::row_words;
use crate::timeline::{Row, Timeline};

/// An age: `30d`, `12h`, `45m`, `90s`.
fn within(text: &str) -> Result<TimeDelta, Failure> {
    values::age(text).ok_or_else(|| {
        Failure::new(Kind::Usage, format!("{} is no age", crate::text::shown(text)))
            .hint("for example 30d or 12h")
    })
}

/// What is kept: the flags, where they are silent the user's config, and what the workspace asks to stay.
fn rules(
    config: &RetentionConfig,
    project: &RetentionConfig,
    flags: (Option<usize>, Option<&str>, Option<&str>),
) -> Result<(Keep, Option<u64>), Failure> {
    let (keep, keep_within, max_bytes) = flags;
    let user = RetentionConfig {
        keep: keep.or(config.keep),
        keep_within: keep_within
            .map(within)
            .transpose()?
            .map(Age)
            .or(config.keep_within),
        max_bytes: max_bytes.map(bytes).transpose()?.map(Size).or(config.max_bytes),
    };
    let all = user.with_project(*project);
    let keep = Keep {
        // what was said here and now holds
        newest: keep.or(all.keep),
        within: if keep_within.is_some() {
            user.keep_within
        } else {
            all.keep_within
        }
        .map(|a| a.0),
    };
    let limit = if max_bytes.is_some() {
        user.max_bytes
    } else {
        all.max_bytes
    };
    Ok((keep, limit.map(|s| s.0)))
}

/// Removes old checkpoints.
pub fn run(app: &App, keep: Option<usize>, keep_within: Option<&str>, max_bytes: Option<&str>) -> Done {
    if keep.is_none()
        && keep_within.is_none()
        && max_bytes.is_none()
        && let Some((pool, id)) = untracked(app)?
    {
        return remove_sandbox(app, &pool, &id);
    }
    let flags = (keep, keep_within, max_bytes);
    let config = &app.config.retention;
    if flags == (None, None, None) && *config == RetentionConfig::default() {
        app.named_site()?; // one that is not there is named first
        return Err(Failure::new(Kind::Usage, "nothing says what to keep")
            .hint("name it: --keep N, --keep-within 30d or --max-bytes 10G, or [retention] in the config; or a sandbox that is no longer tracked: -s SANDBOX"));
    }
    rules(config, &RetentionConfig::default(), flags)?; // wrong words are told before anything is looked for
    let subject = app.subject()?;
    let site = &subject.site;
    let (rules, limit) = rules(config, &site.project().retention, flags)?;
    let all = site.vault.checkpoints()?;
    let now: DateTime<Utc> = Utc::now();
    let gone = to_remove(&all, &rules, now);
    let ids: Vec<CheckpointId> = gone.iter().map(|c| c.meta.id.clone()).collect();
    if app.global.dry_run {
        let timeline = subject.timeline();
        return app.out.result(&json!({"plan": {"remove": ids}}), || {
            gone.iter().map(|c| row(&c.meta, timeline, now)).collect()
        });
    }
    recover_first(app, site)?;
    if !ids.is_empty() || limit.is_some() {
        app.confirm(&format!(
            "remove {} of {} for good?",
            count(ids.len() as u64, "checkpoint"),
            shown_path(site.path())
        ))?;
    }
    remember(app, site.dir()?, &gone)?;
    let mut removed = ids.clone();
    let bar = app.bar();
    let before = site.vault.used()?;
    site.vault.remove(&ids, &bar)?;
    forget(site.dir()?, &ids).map_err(EngineError::io("clean", site.dir()?))?;
    if let Some(limit) = limit {
        down_to(app, &subject.site, limit, &mut removed, &bar)?;
    }
    let freed = before.saturating_sub(site.vault.used()?);
    drop(bar);
    let doc = json!({"removed": removed, "freed_bytes": freed});
    app.out.result(&doc, || {
        format!("{} removed, {} freed\n", removed.len(), size(freed))
    })
}

/// One line of what would be removed: id, age, kind, and the message that it belongs to.
fn row(meta: &CheckpointMeta, timeline: Option<&Timeline>, now: DateTime<Utc>) -> String {
    let kind = match meta.kind {
        CheckpointKind::Message => "message",
        CheckpointKind::TurnEnd => "turn end",
        CheckpointKind::Safety => "safety",
        CheckpointKind::Manual => "manual",
        CheckpointKind::Start => "start",
    };
    let rows = timeline.map_or(&[][..], |t| &t.rows);
    let its = |r: &&Row| {
        let joined = r.checkpoint.as_ref();
        meta.message.as_ref() == Some(&r.id)
            || joined
                .is_some_and(|c| c.id.as_ref() == Some(&meta.id) || c.turn_end.as_ref() == Some(&meta.id))
    };
    let message = match rows.iter().find(its) {
        Some(r) => format!("{}: {}", row_words(r), first_line(&r.text)),
        None => meta
            .message
            .as_ref()
            .map_or_else(String::new, |m| format!("message id:{}", shown(m))),
    };
    let label = meta
        .label
        .as_ref()
        .map_or_else(String::new, |l| format!("  ({})", shown(l)));
    let line = format!(
        "{}  {:>4}  {kind:<8}  {message}{label}",
        meta.id,
        age(meta.time, now)
    );
    line.trim_end().to_owned() + "\n"
}

/// The sandbox that `-s` names by its id, if it is one that is no longer tracked.
fn untracked(app: &App) -> Result<Option<(Pool, String)>, Failure> {
    let Some(wanted) = app.global.sandbox.as_ref().and_then(|s| s.to_str()) else {
        return Ok(None);
    };
    let Census { pools, sandboxes, .. } = app.desk.registry.all()?;
    let found = sandboxes.into_iter().find(|(_, l)| l.id == wanted);
    let Some((at, listed)) = found.filter(|(_, l)| l.record.as_ref().is_ok_and(|r| !r.tracked)) else {
        return Ok(None);
    };
    Ok(pools.into_iter().nth(at).map(|pool| (pool, listed.id)))
}

/// Removes a sandbox that is no longer tracked, with all its checkpoints.
fn remove_sandbox(app: &App, pool: &Pool, id: &str) -> Done {
    let dir = SandboxDir::open(pool, id)?;
    let path = dir.record()?.path;
    recover_adoptions_first(app, &path)?;
    let all = records(&dir)?;
    let ids: Vec<&CheckpointId> = all.iter().map(|(id, _)| id).collect();
    if app.global.dry_run {
        let now = Utc::now();
        return app
            .out
            .result(&json!({"plan": {"remove": ids, "sandbox": id}}), || {
                let line = |(id, meta): &(CheckpointId, Option<CheckpointMeta>)| {
                    meta.as_ref()
                        .map_or_else(|| format!("{id}\n"), |m| row(m, None, now))
                };
                all.iter().map(line).collect()
            });
    }
    let metas = all.iter().filter_map(|(_, m)| m.as_ref());
    let pinned: Vec<&str> = metas.filter(|m| m.pinned).map(|m| m.id.as_str()).collect();
    let pinned = match pinned.as_slice() {
        [] => String::new(),
        some => format!(", of them pinned: {}", some.join(", ")),
    };
    app.confirm(&format!(
        "remove sandbox {id} of {} for good, with {}{pinned}?",
        shown_path(&path),
        count(all.len() as u64, "checkpoint"),
    ))?;
    let log = Log::open(dir.path())?;
    let _lock = log.lock(&path, PATIENCE)?;
    log.none_interrupted()?;
    if dir.record()?.tracked {
        return Err(Failure::new(Kind::Refused, format!("sandbox {id} is tracked")));
    }
    let containers = parts::containers(&dir.record()?);
    let mnt = pool.mount().parent().unwrap_or(pool.mount());
    for why in parts::attach::destroy(&containers, mnt) {
        app.out.say(format!("respool: {why}"));
    }
    let freed = measure_freed(pool.root(), pool.mount(), || {
        if let Some(docker) = whole::Keep::find(app.desk.registry.state_dir(), id) {
            docker.remove(&|_| true)?;
        }
        dir.destroy(pool)
    })?;
    app.out
        .result(&json!({"removed": ids, "freed_bytes": freed}), || {
            let gone = count(all.len() as u64, "checkpoint");
            format!("sandbox {id} is gone: {gone} removed, {} freed\n", size(freed))
        })
}

/// Removes the oldest that may go, one by one, until the store takes at most `limit` bytes.
fn down_to(
    app: &App,
    site: &crate::sandbox::site::Site,
    limit: u64,
    removed: &mut Vec<CheckpointId>,
    bar: &super::output::Bar,
) -> Result<(), Failure> {
    while site.vault.used()? > limit {
        let all = site.vault.checkpoints()?;
        let may = to_remove(
            &all,
            &Keep {
                newest: Some(1),
                within: None,
            },
            Utc::now(),
        );
        let Some(oldest) = may.first() else { break };
        remember(app, site.dir()?, std::slice::from_ref(oldest))?;
        let ids = vec![oldest.meta.id.clone()];
        site.vault.remove(&ids, bar)?;
        forget(site.dir()?, &ids).map_err(EngineError::io("clean", site.dir()?))?;
        removed.extend(ids);
    }
    Ok(())
}

/// The timeline must be able to say that a message's checkpoint was removed by retention.
fn remember(_app: &App, dir: &std::path::Path, gone: &[Checkpoint]) -> Result<(), Failure> {
    let path = dir.join(THINNED);
    let known: HashSet<String> = std::fs::read_to_string(&path)
        .unwrap_or_default()
        .lines()
        .filter_map(|l| serde_json::from_str(l).ok())
        .collect();
    let mut text = String::new();
    for mark in gone
        .iter()
        .flat_map(|c| thinned_marks(&c.meta))
        .filter(|m| !known.contains(m))
    {
        text += &format!("{}\n", json!(mark));
    }
    append_lines(&path, &text).map_err(EngineError::io("write", &path))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_go_before_the_config_and_a_workspace_only_adds() {
        let days = |n| Some(Age(TimeDelta::days(n)));
        let config = RetentionConfig {
            keep: None,
            keep_within: days(1825),
            max_bytes: None,
        };
        let greedy = RetentionConfig {
            keep: Some(1),
            keep_within: days(0),
            max_bytes: Some(Size(1)),
        };
        let (keep, limit) = rules(&config, &greedy, (None, None, None)).expect("rules");
        assert_eq!((keep.within, limit), (Some(TimeDelta::days(1825)), None));
        let (keep, _) = rules(&config, &greedy, (Some(3), Some("2d"), None)).expect("rules");
        assert_eq!((keep.newest, keep.within), (Some(3), Some(TimeDelta::days(2))));
        let generous = RetentionConfig {
            keep: Some(50),
            keep_within: days(9000),
            max_bytes: None,
        };
        let (keep, _) = rules(&config, &generous, (None, None, None)).expect("rules");
        assert_eq!(
            (keep.newest, keep.within),
            (Some(50), Some(TimeDelta::days(9000)))
        );
        assert!(rules(&config, &generous, (None, Some("soon"), None)).is_err());
    }
}
