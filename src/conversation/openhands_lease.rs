//! Whether a living agent server holds a conversation (`owner_lease.json`, SDK 1.19.1 on: renewed every 15
//! seconds, valid for 45, removed when the server lets go of it).

use chrono::{DateTime, Utc};
use serde::Deserialize;

use super::folder::Folder;
use super::json::{Word, with_object};

/// What the lease says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Held {
    /// A living server holds it.
    Yes,
    /// A server had it and let go, or died.
    No,
    /// No server that writes leases ever had it.
    Unknown,
}

#[derive(Deserialize)]
struct Raw<'a> {
    #[serde(borrow, default)]
    expires_at: Word<'a>,
    #[serde(borrow, default)]
    owner_host: Word<'a>,
    #[serde(borrow, default)]
    owner_pid: Word<'a>,
}

/// True for a process that has not ended; one that nobody has waited for yet has.
fn lives(pid: i32) -> bool {
    crate::process::stat(pid).is_some_and(|s| !matches!(s.state, 'Z' | 'X'))
}

/// Who a lease names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Owner {
    /// The process, in the eyes of its own machine or container.
    pub pid: i32,
    /// The host that it runs on (hostile).
    pub host: String,
    /// It is this host, and the process lives.
    pub here: bool,
    /// The lease holds: nobody else may touch the store.
    pub holds: bool,
}

/// The owner that the lease of a store names; `None` without a lease that can be read.
pub(super) fn owner(store: &Folder) -> Option<Owner> {
    let mut buffer = Vec::new();
    store.read_named("owner_lease.json", &mut buffer).ok().flatten()?;
    let mut repaired = Vec::new();
    let own = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    with_object(&buffer, &mut repaired, |raw: Raw<'_>| {
        let pid: i32 = raw.owner_pid.text().and_then(|t| t.parse().ok()).unwrap_or(0);
        let host = raw.owner_host.owned().unwrap_or_default();
        Owner {
            here: host == own.trim() && lives(pid),
            holds: of(store) == Held::Yes,
            pid,
            host,
        }
    })
    .ok()
}

/// Reads the lease of a store.
pub(super) fn of(store: &Folder) -> Held {
    let mut buffer = Vec::new();
    let written = match store.read_named("owner_lease.json", &mut buffer) {
        Ok(Some(written)) => written,
        _ if store.has_file(".owner_lease.lock") => return Held::No,
        _ => return Held::Unknown,
    };
    let mut repaired = Vec::new();
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let held = with_object(&buffer, &mut repaired, |raw: Raw<'_>| {
        holds(&raw, Utc::now(), host.trim())
    });
    match held {
        Ok(true) => Held::Yes,
        // half written by a living server, or the left-over of a crash
        Err(_) if (Utc::now() - written).num_seconds() < 60 => Held::Yes,
        Ok(false) | Err(_) => Held::No,
    }
}

fn holds(raw: &Raw<'_>, now: DateTime<Utc>, host: &str) -> bool {
    let expires: f64 = raw.expires_at.text().and_then(|t| t.parse().ok()).unwrap_or(0.0);
    let pid: i32 = raw.owner_pid.text().and_then(|t| t.parse().ok()).unwrap_or(0);
    let here = raw.owner_host.is(host);
    expires > now.timestamp() as f64 && (!here || lives(pid))
}

/// False if the machine was started after this instant: what was running then is not running now.
pub(super) fn since_boot(instant: Option<DateTime<Utc>>) -> bool {
    let uptime = std::fs::read_to_string("/proc/uptime").ok();
    let seconds = uptime.and_then(|u| u.split('.').next().and_then(|s| s.parse::<i64>().ok()));
    match (instant, seconds) {
        (Some(t), Some(up)) => (Utc::now() - t).num_seconds() <= up,
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_holds_while_it_lasts_and_its_owner_lives() {
        let now = DateTime::from_timestamp(1000, 0).expect("valid");
        let own = std::process::id();
        let holds = |json: String| {
            let mut room = Vec::new();
            with_object(json.as_bytes(), &mut room, |r: Raw<'_>| holds(&r, now, "here"))
        };
        let lease = |expires: &str, host: &str, pid: u32| {
            holds(format!(
                r#"{{"expires_at":{expires},"owner_host":"{host}","owner_pid":{pid}}}"#
            ))
        };
        assert_eq!(lease("1040.5", "here", own), Ok(true));
        assert_eq!(lease("999.5", "here", own), Ok(false));
        assert_eq!(lease("1040", "here", i32::MAX as u32), Ok(false));
        assert_eq!(lease("1040", "container", i32::MAX as u32), Ok(true));
        assert_eq!(holds("{}".into()), Ok(false));
    }

    #[test]
    fn nothing_runs_from_before_the_boot() {
        assert!(since_boot(Some(Utc::now())));
        assert!(!since_boot(DateTime::from_timestamp(0, 0)));
    }
}
