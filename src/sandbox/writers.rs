//! Who writes to a subvolume: the kernel tells it (fanotify(7), with file handles; Btrfs from Linux 6.8 on).
//! It sees programs that hold no file open between two writes, too.

use std::collections::BTreeSet;
use std::io;
use std::os::fd::AsFd;
use std::path::Path;

use nix::sys::fanotify::{EventFFlags, Fanotify, InitFlags, MarkFlags, MaskFlags};
use rustix::fs::{Mode, OFlags};

/// FAN_REPORT_FID (include/uapi/linux/fanotify.h): events name files by handle, and open none.
const REPORT_FID: u32 = 0x200;
/// FAN_EVENT_INFO_TYPE_FID.
const INFO_FID: u8 = 1;

/// A watch of a whole file system.
#[derive(Debug)]
pub struct Writers {
    events: Fanotify,
    tree: u64,
}

impl Writers {
    /// Watches the file system whose top level is mounted at `top`, for changes in the subvolume `tree`.
    pub fn watch(top: &Path, tree: u64) -> io::Result<Self> {
        let init = InitFlags::from_bits_retain(REPORT_FID)
            | InitFlags::FAN_CLOEXEC
            | InitFlags::FAN_NONBLOCK
            | InitFlags::FAN_UNLIMITED_QUEUE;
        let events = Fanotify::init(init, EventFFlags::O_RDONLY)?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let top = rustix::fs::open(top, flags, Mode::empty())?;
        let mark = MarkFlags::FAN_MARK_ADD | MarkFlags::FAN_MARK_FILESYSTEM;
        let mask = MaskFlags::FAN_MODIFY
            | MaskFlags::FAN_ATTRIB
            | MaskFlags::FAN_CREATE
            | MaskFlags::FAN_DELETE
            | MaskFlags::FAN_MOVE
            | MaskFlags::FAN_ONDIR;
        events.mark(mark, mask, &top, None::<&Path>)?;
        Ok(Self { events, tree })
    }

    /// The processes that wrote to the subvolume since the last call, this one left out.
    pub fn seen(&self) -> BTreeSet<i32> {
        let own = std::process::id() as i32;
        let mut pids = BTreeSet::new();
        let mut buffer = vec![0u8; 64 << 10];
        while let Ok(n @ 1..) = rustix::io::read(self.events.as_fd(), &mut buffer[..]) {
            let mut rest = &buffer[..n];
            while let Some((event, after)) = next(rest) {
                if event.tree == Some(self.tree) && event.pid > 0 && event.pid != own {
                    pids.insert(event.pid);
                }
                rest = after;
            }
        }
        pids
    }
}

#[derive(Debug, PartialEq, Eq)]
struct Event {
    pid: i32,
    tree: Option<u64>,
}

fn number<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..at + N)?.try_into().ok()
}

/// The first event of what was read, and the rest. Layout: `struct fanotify_event_metadata`, then one
/// `struct fanotify_event_info_fid` whose handle is a `struct btrfs_fid` (inode number, number of its tree).
fn next(bytes: &[u8]) -> Option<(Event, &[u8])> {
    let length = u32::from_ne_bytes(number(bytes, 0)?) as usize;
    let head = usize::from(u16::from_ne_bytes(number(bytes, 6)?));
    let event = bytes.get(..length)?;
    if length < 24 || head < 24 {
        return None;
    }
    let pid = i32::from_ne_bytes(number(event, 20)?);
    // type 1, padding 1, length 2, file system id 8, handle's length 4 and type 4, inode number 8
    let is_fid = event.get(head) == Some(&INFO_FID);
    let handle = number(event, head + 12).map_or(0, u32::from_ne_bytes);
    let tree = (is_fid && handle >= 16).then(|| number(event, head + 28).map(u64::from_ne_bytes));
    let tree = tree.flatten();
    Some((Event { pid, tree }, &bytes[length..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As read on Linux 6.18: process 10887 renamed something in the root folder of tree 256.
    fn event(pid: i32) -> Vec<u8> {
        let mut e = Vec::new();
        e.extend(64u32.to_ne_bytes());
        e.extend([3, 0]);
        e.extend(24u16.to_ne_bytes());
        e.extend(0xc0u64.to_ne_bytes());
        e.extend((-1i32).to_ne_bytes());
        e.extend(pid.to_ne_bytes());
        e.extend([1, 0]);
        e.extend(40u16.to_ne_bytes());
        e.extend([7; 8]);
        e.extend(20u32.to_ne_bytes());
        e.extend(0x4di32.to_ne_bytes());
        e.extend(257u64.to_ne_bytes());
        e.extend(256u64.to_ne_bytes());
        e.extend([0; 4]);
        e
    }

    #[test]
    fn events_are_read_whole_or_not_at_all() {
        let both = [event(10887), event(5)].concat();
        let (first, rest) = next(&both).expect("first");
        let (second, rest) = next(rest).expect("second");
        assert_eq!((first.pid, first.tree), (10887, Some(256)));
        assert_eq!((second.pid, second.tree), (5, Some(256)));
        assert_eq!(next(rest), None);
        for cut in 0..64 {
            assert_eq!(next(&both[..cut]), None, "{cut}");
        }
        let mut strange = event(1);
        strange[24] = 9;
        assert_eq!(next(&strange).expect("one").0.tree, None);
        strange[0] = 0;
        assert_eq!(next(&strange), None);
    }
}
