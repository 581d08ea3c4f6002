//! Space: what a pool has and uses, what a removal really freed, and the guard before every write.

use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::libc;
use rustix::fs::StatVfsMountFlags;

use super::{EngineError, Result, attach, ioctl};
use crate::text;

/// The space of a mounted Btrfs, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Space {
    /// Of all its devices.
    pub size: u64,
    /// In use, every copy counted.
    pub used: u64,
    /// Not allocated to anything yet.
    pub unallocated: u64,
    /// What the file system says that can still be written.
    pub available: u64,
}

/// How often a block group of this profile stores its bytes (`BTRFS_BLOCK_GROUP_*`: RAID1 bit 4, DUP 5,
/// RAID10 6, RAID1C3 9, RAID1C4 10; parity profiles are counted once).
fn copies(flags: u64) -> u64 {
    match flags {
        f if f & (1 << 10) != 0 => 4,
        f if f & (1 << 9) != 0 => 3,
        f if f & (1 << 4 | 1 << 5 | 1 << 6) != 0 => 2,
        _ => 1,
    }
}

/// Reads the space of the file system that `fd` is on; `path` is for the error.
pub fn of(fd: impl AsFd, path: &Path) -> Result<Space> {
    let classes = ioctl::space_classes(fd.as_fd()).map_err(EngineError::io("read the space of", path))?;
    let (size, allocated) =
        ioctl::devices(fd.as_fd()).map_err(EngineError::io("read the devices of", path))?;
    let vfs = rustix::fs::fstatvfs(fd).map_err(|e| EngineError::io("read the space of", path)(e.into()))?;
    Ok(Space {
        size,
        used: classes.iter().map(|c| c.used * copies(c.flags)).sum(),
        unallocated: size.saturating_sub(allocated),
        available: vfs.f_bavail * vfs.f_frsize,
    })
}

/// How long to wait for the kernel's cleaner.
const PATIENCE: Duration = Duration::from_secs(60);

/// Waits until the space of removed subvolumes has come back: commits, which wakes the kernel's cleaner, until it
/// has nothing left to do; at most a minute.
pub fn settle(fd: impl AsFd, path: &Path) -> Result<()> {
    let sync = || ioctl::fs_sync(fd.as_fd()).map_err(EngineError::io("sync", path));
    let start = Instant::now();
    sync()?;
    loop {
        match ioctl::deleted_queued(fd.as_fd()) {
            Ok(0) => return sync(),
            Ok(_) if start.elapsed() < PATIENCE => {}
            Ok(_) => return Ok(()),
            // a kernel before 6.13, or not root
            Err(e) if matches!(e.raw_os_error(), Some(libc::ENOTTY | libc::EPERM)) => {
                return settle_by_looking(fd.as_fd(), path);
            }
            Err(e) => return Err(EngineError::io("wait for the removal in", path)(e)),
        }
        std::thread::sleep(Duration::from_millis(20));
        sync()?;
    }
}

/// Until the used bytes stay the same for a second, at most a minute.
fn settle_by_looking(fd: impl AsFd, path: &Path) -> Result<()> {
    let start = Instant::now();
    let mut last = of(fd.as_fd(), path)?.used;
    let mut same = 0;
    while same < 5 && start.elapsed() < PATIENCE {
        std::thread::sleep(Duration::from_millis(200));
        ioctl::fs_sync(fd.as_fd()).map_err(EngineError::io("sync", path))?;
        let now = of(fd.as_fd(), path)?.used;
        same = if now == last { same + 1 } else { 0 };
        last = now;
    }
    Ok(())
}

/// Runs `removal` and measures, after the cleaner ran, how many bytes the pool uses less.
pub fn measure_freed(fd: impl AsFd, path: &Path, removal: impl FnOnce() -> Result<()>) -> Result<u64> {
    settle(fd.as_fd(), path)?;
    let before = of(fd.as_fd(), path)?.used;
    removal()?;
    settle(fd.as_fd(), path)?;
    Ok(before.saturating_sub(of(fd.as_fd(), path)?.used))
}

/// Free and total bytes of the disk that the file is on.
pub fn host(image: &Path) -> Result<(u64, u64)> {
    let folder = match image.parent() {
        Some(p) if !p.as_os_str().is_empty() => p,
        _ => Path::new("."),
    };
    let vfs = rustix::fs::statvfs(folder).map_err(|e| EngineError::io("look at", folder)(e.into()))?;
    Ok((vfs.f_bavail * vfs.f_frsize, vfs.f_blocks * vfs.f_frsize))
}

/// How much the host must have free before a write into a sparse image: 5 % of its disk, at least 64 MiB,
/// at most 1 GiB, and never more than the image can still grow (`unwritten`).
pub fn reserve(host_total: u64, unwritten: u64) -> u64 {
    (host_total / 20).clamp(64 << 20, 1 << 30).min(unwritten)
}

/// Checks before each writing action that it cannot make a sparse image fail for want of space on its host
/// (Btrfs then turns read-only and loses what was never synced).
#[derive(Debug)]
pub struct Guard {
    /// The image, where the pool is one.
    pub image: Option<PathBuf>,
    /// The pool, open.
    pub root: OwnedFd,
    /// Where it is mounted.
    pub mount: PathBuf,
}

impl Guard {
    /// Refuses where a write could end badly, with what helps.
    pub fn check(&self) -> Result<()> {
        if let Some(image) = &self.image
            && let Err(e) = std::fs::symlink_metadata(image)
        {
            return Err(attach::missing(image, e));
        }
        self.room()
    }

    /// As [`Guard::check`], for the work of giving a folder back: that the image was deleted is no reason against it.
    pub fn room(&self) -> Result<()> {
        let vfs = rustix::fs::fstatvfs(&self.root)
            .map_err(|e| EngineError::io("look at", &self.mount)(e.into()))?;
        if vfs.f_flag.contains(StatVfsMountFlags::RDONLY) {
            return Err(self.read_only());
        }
        let Some(image) = &self.image else {
            return Ok(());
        };
        // of one that was deleted it is not known: the whole reserve, then
        let unwritten = if image.exists() {
            unwritten(image)?
        } else {
            u64::MAX
        };
        let (free, total) = host(image)?;
        let need = reserve(total, unwritten);
        if free >= need {
            return Ok(());
        }
        Err(EngineError::Refused {
            why: format!(
                "the disk under the image {} has {} free, at least {} are needed to write safely",
                text::shown_path(image),
                text::size(free),
                text::size(need)
            ),
            path: Some(image.clone()),
            hint: Some("free space on that disk; respool prune gives back what old checkpoints hold".into()),
        })
    }

    fn read_only(&self) -> EngineError {
        let hint = match &self.image {
            Some(image) => format!(
                "the kernel does so when the disk under the image is full or failing: free space on the disk of \
                 {}, then: respool pool unmount; respool pool mount; respool pool check",
                text::shown_path(image)
            ),
            None => "it was mounted so, or the kernel found an error: see dmesg".into(),
        };
        EngineError::Refused {
            why: format!("the pool at {} is read-only", text::shown_path(&self.mount)),
            path: Some(self.mount.clone()),
            hint: Some(hint),
        }
    }
}

/// How many bytes of the image have no space on the host yet.
pub fn unwritten(image: &Path) -> Result<u64> {
    let stat = rustix::fs::stat(image).map_err(|e| EngineError::io("look at the image", image)(e.into()))?;
    let (size, blocks) = (
        u64::try_from(stat.st_size).unwrap_or(0),
        u64::try_from(stat.st_blocks).unwrap_or(0),
    );
    Ok(size.saturating_sub(blocks * 512))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reserve_scales_with_the_host_and_ends_with_the_image() {
        assert_eq!(reserve(100 << 30, 20 << 30), 1 << 30);
        assert_eq!(reserve(10 << 30, 20 << 30), 512 << 20);
        assert_eq!(reserve(600 << 20, 20 << 30), 64 << 20);
        assert_eq!(reserve(100 << 30, 10 << 20), 10 << 20);
        assert_eq!(reserve(100 << 30, 0), 0);
    }

    #[test]
    fn copies_by_profile() {
        assert_eq!(
            [1, 4 | 1 << 5, 1 | 1 << 4, 4 | 1 << 9, 4 | 1 << 10].map(copies),
            [1, 2, 2, 3, 4]
        );
    }
}
