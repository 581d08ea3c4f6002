//! Stores without a tree (OpenHands V1 before SDK 1.31, and V0): the events from a place on go to an archive
//! beside the events folder, and come back from there. Files are renamed, never written: byte for byte.
//!
//! `_rewound/<name>.taking` while files go in, `_rewound/<name>` when all are in; the archive that comes back is
//! removed when it is empty. So a look at the folders alone tells how far it came.

use super::Side;
use super::error::{ChatError, Result};
use super::shelf::Shelf;
use crate::process::{fault_point, fault_step};

/// The folder of the archives, in the store.
pub(super) const FOLDER: &str = "_rewound";
const EVENTS: &str = "events";
const CACHE: &str = "event_cache";
/// V0 keeps a stale count and state of the agent in it; history is rebuilt from the events.
const STATE: &str = "agent_state.pkl";

/// What is cut, and where it goes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Cut<'a> {
    /// The number of the first event that goes.
    pub(super) from: u64,
    /// The name of the new archive.
    pub(super) archive: &'a str,
    /// The archive that comes back.
    pub(super) back: Option<&'a str>,
}

/// True for the plain name of an archive.
pub(super) fn is_name(name: &str) -> bool {
    !name.is_empty() && name.len() < 100 && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
}

/// The number in the name of an event's file: `event-00017-<id>.json`, `17.json`.
fn event_number(name: &str) -> Option<u64> {
    let stem = name.strip_suffix(".json")?;
    let digits = match stem.strip_prefix("event-") {
        Some(rest) => rest.split_once('-').map(|(n, _)| n).filter(|n| n.len() >= 5)?,
        None => stem,
    };
    digits
        .bytes()
        .all(|b| b.is_ascii_digit())
        .then(|| digits.parse().ok())?
}

/// The end of a V0 cache page: `25-50.json`.
fn page_end(name: &str) -> Option<u64> {
    name.strip_suffix(".json")?.split_once('-')?.1.parse().ok()
}

/// What of the store belongs to the time from `from` on: folder and name, the newest first.
fn later(store: &Shelf, from: u64) -> Result<Vec<(&'static str, String)>> {
    let mut out = Vec::new();
    let mut pages = Vec::new();
    if let Some(cache) = store.sub(CACHE)? {
        let files = cache.files()?;
        pages = files
            .into_iter()
            .filter(|n| page_end(n).is_some_and(|e| e > from))
            .map(|n| (CACHE, n))
            .collect();
    }
    let mut events: Vec<(u64, String)> = Vec::new();
    if let Some(folder) = store.sub(EVENTS)? {
        let files = folder.files()?;
        events.extend(files.into_iter().filter_map(|n| Some((event_number(&n)?, n))));
    }
    let v0 = events.iter().any(|(_, n)| !n.starts_with("event-"));
    events.retain(|(n, _)| *n >= from);
    events.sort_unstable_by(|a, b| b.cmp(a));
    // pages first: without one the events themselves are read
    out.extend(pages);
    if v0 && store.has_file(STATE)? {
        out.push(("", STATE.to_owned()));
    }
    out.extend(events.into_iter().map(|(_, n)| (EVENTS, n)));
    Ok(out)
}

/// Everything in an archive, the oldest event first.
fn archived(archive: &Shelf) -> Result<Vec<(&'static str, String)>> {
    let mut out = Vec::new();
    if let Some(events) = archive.sub(EVENTS)? {
        let mut files: Vec<(Option<u64>, String)> = events
            .files()?
            .into_iter()
            .map(|n| (event_number(&n), n))
            .collect();
        files.sort_unstable();
        out.extend(files.into_iter().map(|(_, n)| (EVENTS, n)));
    }
    out.extend(archive.files()?.into_iter().map(|n| ("", n)));
    if let Some(cache) = archive.sub(CACHE)? {
        out.extend(cache.files()?.into_iter().map(|n| (CACHE, n)));
    }
    Ok(out)
}

fn folder(of: &Shelf, name: &str, make: bool) -> Result<Shelf> {
    if name.is_empty() {
        return of.sub(".")?.ok_or_else(|| missing(of, name));
    }
    if make {
        return of.made(name);
    }
    of.sub(name)?.ok_or_else(|| missing(of, name))
}

fn missing(of: &Shelf, name: &str) -> ChatError {
    ChatError::Damaged {
        path: of.path.join(name),
        reason: "it is not there".into(),
    }
}

/// Moves these files from one folder to the other, in this order, durably.
fn carry(from: &Shelf, to: &Shelf, files: &[(&'static str, String)], point: &str) -> Result<()> {
    let mut touched: Vec<(&str, Shelf, Shelf)> = Vec::new();
    for (number, (place, name)) in (1..).zip(files) {
        if !touched.iter().any(|(p, ..)| p == place) {
            touched.push((place, folder(from, place, false)?, folder(to, place, true)?));
        }
        if let Some((_, a, b)) = touched.iter().find(|(p, ..)| p == place) {
            a.move_to(name, b, name)?;
        }
        fault_step(point, number);
    }
    for (_, a, b) in &touched {
        b.sync()?;
        a.sync()?;
    }
    Ok(())
}

/// No event of the store may have the number of one that comes back.
fn room_for(store: &Shelf, files: &[(&'static str, String)]) -> Result<()> {
    let Some(events) = store.sub(EVENTS)? else {
        return Ok(());
    };
    let there: std::collections::HashSet<u64> =
        events.files()?.iter().filter_map(|n| event_number(n)).collect();
    let taken = |(place, n): &&(&str, String)| {
        *place == EVENTS && event_number(n).is_some_and(|i| there.contains(&i))
    };
    match files.iter().find(taken) {
        None => Ok(()),
        Some((_, name)) => Err(ChatError::Changed(format!(
            "another event has the number of {}",
            crate::text::shown(name)
        ))),
    }
}

/// Removes an archive that is empty now.
fn drop_empty(archives: &Shelf, name: &str) -> Result<()> {
    if let Some(archive) = archives.sub(name)? {
        archive.remove_empty(EVENTS)?;
        archive.remove_empty(CACHE)?;
    }
    archives.remove_empty(name)?;
    archives.sync()
}

/// On which side of the cut a store is; `None` if it is between the two.
pub(super) fn side(store: &Shelf, cut: Cut<'_>) -> Result<Option<Side>> {
    let Some(archives) = store.sub(FOLDER)? else {
        return Ok(Some(Side::Before));
    };
    let taking = archives.sub(&format!("{}.taking", cut.archive))?.is_some();
    let taken = archives.sub(cut.archive)?.is_some();
    let waits = match cut.back {
        Some(name) => archives.sub(name)?.is_some(),
        None => false,
    };
    Ok(match (taking, taken, waits) {
        (false, false, _) => Some(Side::Before),
        (false, true, false) => Some(Side::After),
        _ => None,
    })
}

/// Brings the store to the far side of the cut.
pub(super) fn apply(store: &Shelf, cut: Cut<'_>) -> Result<()> {
    let archives = store.made(FOLDER)?;
    let taking = format!("{}.taking", cut.archive);
    if let Some(name) = cut.back {
        archives.sub(name)?.ok_or_else(|| missing(&archives, name))?;
    }
    let going = later(store, cut.from)?;
    let new = archives.made(&taking)?;
    fault_point("chat-cut-begun");
    carry(store, &new, &going, "chat-cut")?;
    archives.move_to(&taking, &archives, cut.archive)?;
    archives.sync()?;
    fault_point("chat-cut-taken");
    if let Some(name) = cut.back {
        bring(store, &archives, name, "chat-back")?;
    }
    Ok(())
}

/// Moves everything of an archive back into the store.
fn bring(store: &Shelf, archives: &Shelf, name: &str, point: &str) -> Result<()> {
    let Some(archive) = archives.sub(name)? else {
        return Ok(());
    };
    let files = archived(&archive)?;
    room_for(store, &files)?;
    carry(&archive, store, &files, point)?;
    drop_empty(archives, name)
}

/// Brings the store to the near side of the cut, from wherever it is.
pub(super) fn revert(store: &Shelf, cut: Cut<'_>) -> Result<()> {
    let Some(archives) = store.sub(FOLDER)? else {
        return Ok(());
    };
    let taking = format!("{}.taking", cut.archive);
    let taken = archives.sub(cut.archive)?.is_some();
    if taken && let Some(name) = cut.back {
        // what came back goes into its archive again
        let coming = later(store, cut.from)?;
        let back = archives.made(name)?;
        carry(store, &back, &coming, "chat-revert")?;
    }
    if taken {
        archives.move_to(cut.archive, &archives, &taking)?;
        archives.sync()?;
    }
    bring(store, &archives, &taking, "chat-unrevert")?;
    store.remove_if_empty(FOLDER)
}
