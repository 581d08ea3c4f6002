//! How many bytes of data each checkpoint brought: the extents that were written since the previous one, from the
//! blocks of the snapshot's tree that are new. Layout: `btrfs_file_extent_item` in include/uapi/linux/btrfs_tree.h.

use std::collections::HashSet;
use std::io;
use std::os::fd::AsFd;

use super::{BtrfsVault, part_name};
use crate::engine::subvolume::{open_dir, root_info};
use crate::engine::{CheckpointId, EngineError, Result, ioctl};

/// `BTRFS_EXTENT_DATA_KEY`.
const EXTENT_DATA: u8 = 108;
/// `BTRFS_FILE_EXTENT_INLINE`: the data is in the item.
const INLINE: u8 = 0;
/// Where inline data begins.
const DATA_AT: usize = 21;

/// Bytes on disk of the data in a subvolume that was written after transaction `since`, each extent once.
fn written_after(subvolume: impl AsFd, since: u64) -> io::Result<u64> {
    let mut seen = HashSet::new();
    let mut bytes = 0;
    let mut from = (0, 0, 0);
    loop {
        let items = ioctl::items(subvolume.as_fd(), from, since + 1)?;
        let Some(last) = items.last().map(|i| i.key) else {
            return Ok(bytes);
        };
        for item in items.iter().filter(|i| i.key.1 == EXTENT_DATA) {
            let number = |at| ioctl::field(&item.bytes, at).map(u64::from_le_bytes);
            // a block that is new holds old items, too
            if number(0)? <= since {
                continue;
            }
            if item.bytes.get(20) == Some(&INLINE) {
                bytes += item.bytes.len().saturating_sub(DATA_AT) as u64;
                continue;
            }
            let (place, size) = (number(21)?, number(29)?);
            // place 0 is a hole
            if place != 0 && seen.insert(place) {
                bytes += size;
            }
        }
        from = match last {
            (inode, kind, u64::MAX) if kind == u8::MAX => (inode + 1, 0, 0),
            (inode, kind, u64::MAX) => (inode, kind + 1, 0),
            (inode, kind, offset) => (inode, kind, offset + 1),
        };
    }
}

impl BtrfsVault {
    /// Of each checkpoint that can be read, oldest first: bytes on disk of the data that the previous one has not.
    /// Needs CAP_SYS_ADMIN.
    pub(super) fn new_data(&self) -> Result<Vec<(CheckpointId, u64)>> {
        let mut out = Vec::new();
        let mut since = 0;
        for name in self.names()? {
            let Some(dir) = self.open_checkpoint(&name)? else {
                continue;
            };
            let path = self.snaps_path.join(name.text());
            let Ok(snapshot) = open_dir(&dir, part_name(self.part)) else {
                continue;
            };
            let info = root_info(&snapshot).map_err(EngineError::io("look at", &path))?;
            let Some(info) = info else { continue };
            let bytes = written_after(&snapshot, since).map_err(EngineError::io("measure", &path))?;
            out.push((name.id, bytes));
            since = info.otransid;
        }
        Ok(out)
    }
}
