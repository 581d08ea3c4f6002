//! `respool prune`.

use std::collections::HashSet;
use std::io::Write;

use chrono::{DateTime, TimeDelta, Utc};
use serde_json::json;

use super::app::App;
use super::operations::recover_first;
use super::output::{Done, Failure};
use super::pool::bytes;
use crate::engine::retention::{Keep, to_remove};
use crate::engine::{Checkpoint, CheckpointId, EngineError};
use crate::failure::Kind;
use crate::text::{shown_path, size};
use crate::timeline::counts::forget;
use crate::timeline::desk::THINNED;

/// An age: `30d`, `12h`, `45m`, `90s`.
fn within(text: &str) -> Result<TimeDelta, Failure> {
    let wrong = || {
        Failure::new(Kind::Usage, format!("{} is no age", crate::text::shown(text)))
            .hint("for example 30d or 12h")
    };
    let (number, unit) = text
        .split_at_checked(text.len().saturating_sub(1))
        .ok_or_else(wrong)?;
    let n: i64 = number.parse().map_err(|_| wrong())?;
    match unit {
        "d" => TimeDelta::try_days(n),
        "h" => TimeDelta::try_hours(n),
        "m" => TimeDelta::try_minutes(n),
        "s" => TimeDelta::try_seconds(n),
        _ => None,
    }
    .ok_or_else(wrong)
}

/// Removes old checkpoints.
pub fn run(app: &App, keep: Option<usize>, keep_within: Option<&str>, max_bytes: Option<&str>) -> Done {
    let defaults = &app.config.retention;
    let rules = Keep {
        newest: keep.or(defaults.keep),
        within: keep_within
            .or(defaults.keep_within.as_deref())
            .map(within)
            .transpose()?,
    };
    let limit = max_bytes.map(bytes).transpose()?.or(defaults.max_bytes);
    if rules.newest.is_none() && rules.within.is_none() && limit.is_none() {
        return Err(Failure::new(Kind::Usage, "nothing says what to keep")
            .hint("name it: --keep N, --keep-within 30d or --max-bytes 10G"));
    }
    let subject = app.subject()?;
    let site = &subject.site;
    let all = site.vault.checkpoints()?;
    let now: DateTime<Utc> = Utc::now();
    let gone = to_remove(&all, &rules, now);
    let ids: Vec<CheckpointId> = gone.iter().map(|c| c.meta.id.clone()).collect();
    if app.global.dry_run {
        return app.out.result(&json!({"plan": {"remove": ids}}), || {
            ids.iter().map(|i| format!("{i}\n")).collect()
        });
    }
    recover_first(app, site)?;
    if !ids.is_empty() || limit.is_some() {
        app.confirm(&format!(
            "remove {} checkpoints of {} for good?",
            ids.len(),
            shown_path(site.path())
        ))?;
    }
    remember(app, site.dir(), &gone)?;
    let mut removed = ids.clone();
    let bar = app.bar();
    let before = site.vault.used()?;
    site.vault.remove(&ids, &bar)?;
    forget(site.dir(), &ids).map_err(EngineError::io("clean", site.dir()))?;
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
        remember(app, site.dir(), std::slice::from_ref(oldest))?;
        let ids = vec![oldest.meta.id.clone()];
        site.vault.remove(&ids, bar)?;
        forget(site.dir(), &ids).map_err(EngineError::io("clean", site.dir()))?;
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
    for id in gone
        .iter()
        .filter_map(|c| c.meta.message.as_ref())
        .filter(|m| !known.contains(*m))
    {
        text += &format!("{}\n", json!(id));
    }
    let mut file = std::fs::OpenOptions::new()
        .create(true)
        .append(true)
        .open(&path)
        .map_err(EngineError::io("write", &path))?;
    file.write_all(text.as_bytes())
        .and_then(|()| file.sync_all())
        .map_err(EngineError::io("write", &path))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages() {
        assert_eq!(within("30d").ok(), Some(TimeDelta::days(30)));
        assert_eq!(within("45m").ok(), Some(TimeDelta::minutes(45)));
        assert!(within("soon").is_err() && within("").is_err() && within("9999999999999999999d").is_err());
    }
}
