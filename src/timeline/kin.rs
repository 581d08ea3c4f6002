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
use crate::text::ExactPath;

/// So many are kept.
const MOST: usize = 64;

type Read = (elsewhere::Stamp, Arc<Conversation>);

/// What was read of them last: most of them never change again.
#[derive(Default)]
pub(super) struct Kin(Mutex<HashMap<PathBuf, Read>>);

impl Kin {
    /// The conversations that share messages with this one, those that a rewind began `anew` from it, or it from
    /// them, and so on. What cannot be read tells nothing.
    pub(super) fn of(&self, found: &Found, anew: &[(ExactPath, ExactPath)]) -> Vec<Arc<Conversation>> {
        let mut all = Vec::new();
        for store in stores(found, anew) {
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

fn stores(found: &Found, anew: &[(ExactPath, ExactPath)]) -> Vec<PathBuf> {
    let mut all = vec![found.1.clone()];
    let mut at = 0;
    while at < all.len() && all.len() <= MOST {
        let store = all[at].clone();
        let pairs = anew.iter().flat_map(|(a, b)| [(&a.0, &b.0), (&b.0, &a.0)]);
        let linked = pairs
            .filter(|(a, b)| **a == store && b.parent() == store.parent() && b.exists())
            .map(|(_, b)| b.clone());
        // what shares messages with one of its kin shares them with it, too
        let kin = (at == 0 || !anew.is_empty()).then(|| found.0.kin(&store));
        for other in kin.into_iter().flatten().chain(linked) {
            if !all.contains(&other) {
                all.push(other);
            }
        }
        at += 1;
    }
    all.split_off(1)
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
