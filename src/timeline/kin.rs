//! Conversations that share messages with another one, under the same ids: forks, and what they are forks of. What is
//! in them alone is a branch of the same tree; it stands in other files.

use std::collections::{HashMap, HashSet};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use super::Row;
use super::join::{self, Background};
use crate::conversation::{Conversation, Found, elsewhere};
use crate::engine::{Checkpoint, CheckpointId};
use crate::progress::Silent;

/// So many are kept.
const MOST: usize = 64;

type Read = (elsewhere::Stamp, Arc<Conversation>);

/// What was read of them last: most of them never change again.
#[derive(Default)]
pub(super) struct Kin(Mutex<HashMap<PathBuf, Read>>);

impl Kin {
    /// The conversations that share messages with this one. What cannot be read tells nothing.
    pub(super) fn of(&self, found: &Found) -> Vec<Arc<Conversation>> {
        let mut all = Vec::new();
        for store in found.0.kin(&found.1) {
            let stamp = elsewhere::stamp(&found.0.watched(&store));
            let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some((_, kin)) = known.get(&store).filter(|(s, _)| *s == stamp) {
                all.push(Arc::clone(kin));
                continue;
            }
            match found.0.read(&store, &Silent) {
                Ok(kin) => {
                    let kin = Arc::new(kin);
                    if known.len() >= MOST {
                        known.clear();
                    }
                    known.insert(store, (stamp, Arc::clone(&kin)));
                    all.push(kin);
                }
                Err(e) => tracing::debug!("{e}"),
            }
        }
        all
    }
}

/// The checkpoints of their messages, by the messages' ids.
pub(super) fn taken(
    kin: &[Arc<Conversation>],
    checkpoints: &[Checkpoint],
    thinned: &HashSet<String>,
) -> HashMap<String, CheckpointId> {
    kin.iter()
        .flat_map(|k| join::taken_for(k, checkpoints, thinned))
        .collect()
}

/// Puts the messages of the others among the rows, each behind the one that it followed, on branches of their own.
pub(super) fn add(
    rows: &mut Vec<Row>,
    kin: &[Arc<Conversation>],
    checkpoints: &[Checkpoint],
    background: &Background,
) {
    let mut seen: HashSet<String> = rows.iter().map(|r| r.id.clone()).collect();
    let mut free = rows.iter().map(|r| r.branch + 1).max().unwrap_or(1);
    for other in kin {
        let mut branches: HashMap<u32, u32> = HashMap::new();
        // where the next one goes: behind the one before it
        let mut at = 0;
        for mut row in join::rows(other, Some(checkpoints), background) {
            if !seen.insert(row.id.clone()) {
                at = rows.iter().position(|r| r.id == row.id).map_or(at, |i| i + 1);
                continue;
            }
            let branch = *branches.entry(row.branch).or_insert_with(|| {
                free += 1;
                free - 1
            });
            row.message = None;
            row.active = false;
            row.branch = branch;
            rows.insert(at, row);
            at += 1;
        }
    }
}
