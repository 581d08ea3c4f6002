//! Which checkpoints may be removed.

use chrono::{DateTime, TimeDelta, Utc};

use super::{Checkpoint, CheckpointKind};

/// How long a safety checkpoint stays, whatever else is asked.
pub const SAFETY_DAYS: i64 = 30;

/// What to keep. A checkpoint that any rule keeps stays.
#[derive(Debug, Clone, Copy, Default)]
pub struct Keep {
    /// The newest so many.
    pub newest: Option<usize>,
    /// Those younger than this.
    pub within: Option<TimeDelta>,
}

/// The checkpoints that no rule keeps, oldest first. Never a pinned one, the newest one, or a safety
/// checkpoint under 30 days old. Without any rule none goes.
pub fn to_remove(all: &[Checkpoint], keep: &Keep, now: DateTime<Utc>) -> Vec<Checkpoint> {
    if keep.newest.is_none() && keep.within.is_none() {
        return Vec::new();
    }
    let newest = keep.newest.unwrap_or(0).max(1);
    let first_kept = all.len().saturating_sub(newest);
    let old = |c: &Checkpoint| {
        let age = now - c.meta.time;
        let young = keep.within.is_some_and(|w| age < w);
        let safety = c.meta.kind == CheckpointKind::Safety && age < TimeDelta::days(SAFETY_DAYS);
        !(young || safety || c.meta.pinned)
    };
    all[..first_kept].iter().filter(|c| old(c)).cloned().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::{CheckpointId, CheckpointMeta, Health, How, PartKind};

    fn checkpoint(seq: u64, days: i64, kind: CheckpointKind, pinned: bool, now: DateTime<Utc>) -> Checkpoint {
        let meta = CheckpointMeta {
            v: 1,
            id: CheckpointId(format!("cp-{seq:010}")),
            seq,
            kind,
            time: now - TimeDelta::days(days),
            parts: vec![PartKind::Workspace],
            how: How::Command,
            conversation: None,
            message: None,
            text_hash: None,
            label: None,
            pinned,
            late: None,
            operation: None,
            clock_back: false,
            elsewhere: Vec::new(),
            inner: None,
            pause_ms: None,
        };
        Checkpoint {
            meta,
            health: Health::Ok,
        }
    }

    #[test]
    fn pinned_safe_young_and_newest_stay() {
        let now = Utc::now();
        let all = [
            checkpoint(1, 90, CheckpointKind::Message, false, now),
            checkpoint(2, 90, CheckpointKind::Message, true, now),
            checkpoint(3, 40, CheckpointKind::Safety, false, now),
            checkpoint(4, 20, CheckpointKind::Safety, false, now),
            checkpoint(5, 10, CheckpointKind::Message, false, now),
            checkpoint(6, 1, CheckpointKind::TurnEnd, false, now),
        ];
        let seqs = |keep: Keep| {
            to_remove(&all, &keep, now)
                .iter()
                .map(|c| c.meta.seq)
                .collect::<Vec<_>>()
        };
        assert_eq!(
            seqs(Keep {
                newest: Some(1),
                within: None
            }),
            [1, 3, 5]
        );
        assert_eq!(
            seqs(Keep {
                newest: None,
                within: Some(TimeDelta::days(30))
            }),
            [1, 3]
        );
        assert_eq!(
            seqs(Keep {
                newest: Some(2),
                within: Some(TimeDelta::days(60))
            }),
            [1]
        );
        assert_eq!(
            seqs(Keep {
                newest: None,
                within: Some(TimeDelta::days(1825))
            }),
            [0u64; 0]
        );
        assert_eq!(seqs(Keep::default()), [0u64; 0]);
    }
}
