//! `base_state.json` of an OpenHands V1 conversation: what it is about, its status, its head.

use std::path::PathBuf;
use std::time::Duration;

use chrono::{DateTime, Utc};
use serde::Deserialize;

use super::Result;
use super::folder::{Folder, damaged};
use super::json::{Object, Word, with_object};
use super::openhands_tree::Head;

/// A newest file that is younger than this may still be being written.
const FRESH: Duration = Duration::from_secs(2);
pub(super) const RETRIES: u32 = 5;
pub(super) const RETRY_PAUSE: Duration = Duration::from_millis(15);

/// What `base_state.json` says.
#[derive(Debug, Default)]
pub(super) struct Base {
    pub(super) id: Option<String>,
    pub(super) workspace: Option<PathBuf>,
    pub(super) status: Option<String>,
    pub(super) leaf: Option<String>,
    head_is_empty: bool,
}

#[derive(Deserialize)]
struct RawBase<'a> {
    #[serde(borrow, default)]
    id: Word<'a>,
    #[serde(borrow, default)]
    workspace: Object<RawWorkspace<'a>>,
    #[serde(borrow, default)]
    execution_status: Word<'a>,
    #[serde(borrow, default)]
    leaf_event_id: Word<'a>,
    #[serde(borrow, default)]
    head_is_empty: Word<'a>,
}

#[derive(Deserialize)]
struct RawWorkspace<'a> {
    #[serde(borrow, default)]
    working_dir: Word<'a>,
}

impl Base {
    fn of(raw: &RawBase<'_>) -> Self {
        Self {
            id: raw.id.owned(),
            workspace: raw
                .workspace
                .0
                .as_ref()
                .and_then(|w| w.working_dir.owned())
                .map(PathBuf::from),
            status: raw.execution_status.owned(),
            leaf: raw.leaf_event_id.owned(),
            head_is_empty: raw.head_is_empty.is("true"),
        }
    }

    pub(super) fn head(&self) -> Head {
        match &self.leaf {
            Some(id) => Head::At(id.clone()),
            None if self.head_is_empty => Head::Empty,
            None => Head::Newest,
        }
    }

    /// Reads it; a store without one (never saved) is as one with nothing in it.
    pub(super) fn read(store: &Folder) -> Result<Self> {
        let mut buffer = Vec::new();
        for attempt in 0.. {
            let Some(mtime) = store.read_named("base_state.json", &mut buffer)? else {
                return Ok(Self::default());
            };
            let mut repaired = Vec::new();
            match with_object(&buffer, &mut repaired, |raw: RawBase<'_>| Self::of(&raw)) {
                Ok(base) => return Ok(base),
                Err(_) if attempt < RETRIES && is_fresh(mtime) => std::thread::sleep(RETRY_PAUSE),
                Err(reason) => return Err(damaged(&store.path.join("base_state.json"), reason)),
            }
        }
        Ok(Self::default())
    }
}

/// True for a file that its writer may still be at.
pub(super) fn is_fresh(mtime: DateTime<Utc>) -> bool {
    (Utc::now() - mtime).to_std().map_or(true, |age| age < FRESH)
}
