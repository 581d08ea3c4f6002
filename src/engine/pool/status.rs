//! The state of a pool, for people and JSON, and its check by the tool `btrfs`.

use std::path::Path;

use serde::Serialize;

use super::super::attach::{self, ImageLock};
use super::super::{EngineError, Result, image, space, subvolume};
use super::place::is_mounted;
use super::{Pool, PoolKind};
use crate::text;

/// A pool's state for people and JSON. Sizes are bytes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PoolStatus {
    /// The file system id.
    pub fsid: String,
    /// Whether it is mounted.
    pub mounted: bool,
    /// Where it is mounted, or would be; a path as text.
    pub mount: String,
    /// The image, where it is one; a path as text.
    pub image: Option<String>,
    /// Size of the file system.
    pub size: u64,
    /// In use.
    pub used: u64,
    /// What can still be written.
    pub available: u64,
    /// Not allocated to anything yet.
    pub free_unallocated: u64,
    /// What the image takes of its host now.
    pub image_allocated: Option<u64>,
    /// Free space of the disk that the image is on.
    pub host_free: Option<u64>,
    /// True if nothing can be written: mounted so, or forced by an error.
    pub read_only: bool,
    /// What is wrong, if anything, one line.
    pub trouble: Option<String>,
}

impl Pool {
    /// The state of it.
    pub fn status(&self) -> Result<PoolStatus> {
        let s = space::of(&self.root, &self.mount)?;
        let vfs = rustix::fs::fstatvfs(&self.root)
            .map_err(|e| EngineError::io("look at", &self.mount)(e.into()))?;
        let mut status = PoolStatus {
            fsid: image::uuid_text(&self.fsid),
            mounted: true,
            mount: text::json_path(&self.mount).0,
            image: None,
            size: s.size,
            used: s.used,
            available: s.available,
            free_unallocated: s.unallocated,
            image_allocated: None,
            host_free: None,
            read_only: vfs.f_flag.contains(rustix::fs::StatVfsMountFlags::RDONLY),
            trouble: self.guard_space().err().map(|e| e.to_string()),
        };
        if let Some(image) = self.image() {
            of_image(&mut status, image)?;
        }
        Ok(status)
    }

    /// Reads every block of the mounted pool and compares checksums (`btrfs scrub`, if it is installed).
    pub fn check(&self) -> Result<CheckReport> {
        if matches!(self.kind(), PoolKind::Folder { .. }) {
            return Ok(CheckReport {
                clean: None,
                lines: vec!["not checked: checking a file system needs root".into()],
            });
        }
        run_check(&["scrub", "start", "-B", "-r"], &self.mount)
    }
}

/// The result of a check by an external tool.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct CheckReport {
    /// True if the tool ran and found nothing; false if it found something; `None` if there is no tool.
    pub clean: Option<bool>,
    /// What it said, or what to install; lines without control characters.
    pub lines: Vec<String>,
}

/// Checks the structures of an image that is not mounted (`btrfs check --readonly`, if it is installed).
pub fn check_image(path: &Path) -> Result<CheckReport> {
    let _lock = ImageLock::take(path)?;
    image::read_fsid(path)?;
    if attach::attached(path)?.is_some() {
        return Err(EngineError::Refused {
            why: "the image is in use".into(),
            path: Some(path.to_owned()),
            hint: Some("unmount it first: respool pool unmount".into()),
        });
    }
    run_check(&["check", "--readonly"], path)
}

/// The state of an image whose pool is perhaps not mounted; mounts nothing.
pub fn peek(image: &Path, mnt_dir: &Path) -> Result<PoolStatus> {
    let fsid = image::read_fsid(image)?;
    let mount = mnt_dir.join(subvolume::hex(&fsid));
    if is_mounted(&mount, &fsid)? {
        return Pool::open_image(image, mnt_dir)?.status();
    }
    let size = image.metadata().map_err(EngineError::io("look at", image))?.len();
    let mut status = PoolStatus {
        fsid: image::uuid_text(&fsid),
        mounted: false,
        mount: text::json_path(&mount).0,
        image: None,
        size,
        used: 0,
        available: 0,
        free_unallocated: 0,
        image_allocated: None,
        host_free: None,
        read_only: false,
        trouble: None,
    };
    of_image(&mut status, image)?;
    Ok(status)
}

fn of_image(status: &mut PoolStatus, image: &Path) -> Result<()> {
    let size = image.metadata().map_err(EngineError::io("look at", image))?.len();
    status.image_allocated = Some(size.saturating_sub(space::unwritten(image)?));
    status.host_free = Some(space::host(image)?.0);
    status.image = Some(text::json_path(image).0);
    Ok(())
}

fn run_check(args: &[&str], target: &Path) -> Result<CheckReport> {
    let places = [
        "/usr/bin/btrfs",
        "/usr/sbin/btrfs",
        "/sbin/btrfs",
        "/bin/btrfs",
        "/usr/local/bin/btrfs",
    ];
    let Some(tool) = places.iter().find(|p| Path::new(p).exists()) else {
        return Ok(CheckReport {
            clean: None,
            lines: vec!["not checked: the tool btrfs is not installed (package btrfs-progs)".into()],
        });
    };
    let out = std::process::Command::new(tool)
        .args(args)
        .arg(target)
        .env_clear()
        .stdin(std::process::Stdio::null())
        .output()
        .map_err(EngineError::io("run", *tool))?;
    let text = [out.stdout, out.stderr].concat();
    Ok(CheckReport {
        clean: Some(out.status.success()),
        lines: text
            .split(|b| *b == b'\n')
            .filter(|l| !l.is_empty())
            .map(text::shown_bytes)
            .collect(),
    })
}
