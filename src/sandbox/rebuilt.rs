//! The list of pools where its file is damaged: from what is mounted.

use std::path::Path;

use chrono::Utc;

use super::registry::PoolEntry;
use crate::engine::mounts::{self, Mount};
use crate::engine::{EngineError, Result, attach};
use crate::text::{ExactPath, shown_path};

/// The pools that are mounted from the state folder `dir`.
pub(super) fn from_mounts(dir: &Path) -> Vec<PoolEntry> {
    let all = mounts::list().unwrap_or_default();
    let mnt = dir.join("mnt");
    let ours = |m: &&Mount| m.fs_type == "btrfs" && m.point.parent() == Some(&mnt);
    all.iter()
        .filter(ours)
        .filter_map(|m| entry(m, &all, &mnt))
        .collect()
}

/// What the list would say of this mount: its image, or, of a file system that exists, another place where it is
/// mounted.
fn entry(own: &Mount, all: &[Mount], mnt: &Path) -> Option<PoolEntry> {
    let elsewhere = all
        .iter()
        .find(|m| m.device == own.device && !m.point.starts_with(mnt) && !is_workspace(m))
        .map(|m| PoolEntry::Existing(ExactPath(m.point.clone())));
    elsewhere.or_else(|| {
        let image = attach::backing_file(&own.source)?;
        image.exists().then_some(PoolEntry::Image(ExactPath(image)))
    })
}

/// A live tree that is shown at its workspace: `/s/<sandbox>/live` of an image.
fn is_workspace(m: &Mount) -> bool {
    m.root.ends_with("live") && m.root.starts_with("/s")
}

/// Keeps a damaged list beside the new one.
pub(super) fn keep_aside(list: &Path) -> Result<()> {
    let name = format!("damaged-{}", Utc::now().format("%Y%m%d-%H%M%S%.3f"));
    let aside = list.with_extension(name);
    std::fs::rename(list, &aside).map_err(EngineError::io("keep aside", list))?;
    tracing::warn!("the damaged list is kept as {}", shown_path(&aside));
    Ok(())
}
