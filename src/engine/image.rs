//! The image of a pool: a file that holds a Btrfs file system. Made from a template without any external
//! program, and read to learn which file system it is before anything is attached.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use rustix::fs::{FallocateFlags, Mode, OFlags};

use super::{EngineError, Result};
use crate::text;

/// The smallest image in bytes: the kernel resizes a Btrfs to no less (`btrfs_ioctl_resize`).
pub const MIN_SIZE: u64 = 256 << 20;
/// What the host must have free for a new sparse image, in bytes.
const MIN_HOST_FREE: u64 = 64 << 20;

/// An empty file system as its non-zero bytes; made by `tests/tools/make-template.py`, which has the format.
const TEMPLATE: &[u8] = include_bytes!("../../assets/pool-template");
const TEMPLATE_MAGIC: &[u8; 8] = b"RSPTPL1\n";

/// The superblock. Layout: `struct btrfs_super_block` in the kernel's include/uapi/linux/btrfs_tree.h.
const SUPER_AT: u64 = 0x10000;
const SUPER_LEN: usize = 4096;
const CSUM_END: usize = 0x20;
const FSID: usize = 0x20;
const BYTENR: usize = 0x30;
const MAGIC: usize = 0x40;
const TOTAL_BYTES: usize = 0x70;
const INCOMPAT: usize = 0xbc;
const CSUM_TYPE: usize = 0xc4;
const METADATA_UUID: usize = 0x23b;
const INCOMPAT_METADATA_UUID: u64 = 0x400;

/// One run of non-zero bytes of the template.
struct Run {
    at: u64,
    bytes: &'static [u8],
}

/// The template's size and runs.
fn template() -> Option<(u64, Vec<Run>)> {
    let rest = TEMPLATE.strip_prefix(TEMPLATE_MAGIC)?;
    let (size, mut rest) = rest.split_first_chunk::<8>()?;
    let mut runs = Vec::new();
    while !rest.is_empty() {
        let (at, after) = rest.split_first_chunk::<4>()?;
        let (len, after) = after.split_first_chunk::<2>()?;
        let (bytes, after) = after.split_at_checked(usize::from(u16::from_le_bytes(*len)))?;
        runs.push(Run {
            at: u64::from(u32::from_le_bytes(*at)),
            bytes,
        });
        rest = after;
    }
    Some((u64::from_le_bytes(*size), runs))
}

fn u64_at(block: &[u8; SUPER_LEN], at: usize) -> u64 {
    let mut b = [0; 8];
    b.copy_from_slice(&block[at..at + 8]);
    u64::from_le_bytes(b)
}

/// Gives the superblock another file system id; the one that the tree blocks carry moves to the metadata
/// uuid (kernel 5.0 or newer).
fn give_fsid(block: &mut [u8; SUPER_LEN], fsid: [u8; 16]) {
    let old: Vec<u8> = block[FSID..FSID + 16].to_vec();
    block[FSID..FSID + 16].copy_from_slice(&fsid);
    block[METADATA_UUID..METADATA_UUID + 16].copy_from_slice(&old);
    let flags = u64_at(block, INCOMPAT) | INCOMPAT_METADATA_UUID;
    block[INCOMPAT..INCOMPAT + 8].copy_from_slice(&flags.to_le_bytes());
    let sum = crc32c::crc32c(&block[CSUM_END..]);
    block[..4].copy_from_slice(&sum.to_le_bytes());
}

fn refused(why: String, path: &Path, hint: &str) -> EngineError {
    EngineError::Refused {
        why,
        path: Some(path.to_owned()),
        hint: Some(hint.to_owned()),
    }
}

/// The folder that a file is in.
fn folder_of(path: &Path) -> PathBuf {
    match path.parent() {
        Some(p) if !p.as_os_str().is_empty() => p.to_owned(),
        _ => PathBuf::from("."),
    }
}

/// Makes an image of `size` bytes (rounded down to 4 KiB) that holds an empty file system, mode 0600, and
/// returns the file system's id. Never touches a file that exists. With `preallocate` all its space is
/// taken from the host at once, so that a full host cannot hurt it.
pub fn create(image: &Path, size: u64, preallocate: bool) -> Result<[u8; 16]> {
    let size = size & !4095;
    check_room(image, size, preallocate)?;
    let folder = folder_of(image);
    let file = tempfile::Builder::new()
        .prefix(".respool-image-")
        .tempfile_in(&folder)
        .map_err(EngineError::io("make an image in", &folder))?;
    let fsid = fill(file.as_file(), size, preallocate).map_err(EngineError::io("write the image", image))?;
    file.persist_noclobber(image).map_err(|e| EngineError::Io {
        what: "put in place the image",
        path: image.to_owned(),
        source: e.error,
    })?;
    File::open(&folder)
        .and_then(|d| d.sync_all())
        .map_err(EngineError::io("sync", &folder))?;
    Ok(fsid)
}

/// Refuses what cannot end well: too small, there already, no space on the host.
fn check_room(image: &Path, size: u64, preallocate: bool) -> Result<()> {
    if size < MIN_SIZE {
        return Err(refused(
            format!(
                "an image of {} is too small, at least {} are needed",
                text::size(size),
                text::size(MIN_SIZE)
            ),
            image,
            "choose a larger size, for example --size 20G",
        ));
    }
    if image.symlink_metadata().is_ok() {
        return Err(refused(
            format!("{} exists already", text::shown_path(image)),
            image,
            "choose another name, or use the pool in it: respool pool mount",
        ));
    }
    let folder = folder_of(image);
    let vfs = rustix::fs::statvfs(&folder).map_err(|e| EngineError::io("look at", &folder)(e.into()))?;
    let free = vfs.f_bavail * vfs.f_frsize;
    let need = if preallocate { size } else { MIN_HOST_FREE };
    if free < need {
        return Err(refused(
            format!(
                "the disk of {} has {} free, {} are needed",
                text::shown_path(&folder),
                text::size(free),
                text::size(need)
            ),
            image,
            "free space there, or choose a smaller size or another disk",
        ));
    }
    Ok(())
}

/// Writes the template into an empty file.
fn fill(file: &File, size: u64, preallocate: bool) -> io::Result<[u8; 16]> {
    let bad = || io::Error::new(io::ErrorKind::InvalidData, "the built-in template is damaged");
    let (_, runs) = template().ok_or_else(bad)?;
    file.set_len(size)?;
    if preallocate {
        rustix::fs::fallocate(file, FallocateFlags::empty(), 0, size)?;
    }
    let mut fsid = [0u8; 16];
    getrandom::fill(&mut fsid).map_err(|e| io::Error::other(e.to_string()))?;
    // the form of a random uuid (RFC 9562, version 4)
    fsid[6] = (fsid[6] & 0x0f) | 0x40;
    fsid[8] = (fsid[8] & 0x3f) | 0x80;
    let mut block = [0u8; SUPER_LEN];
    for run in &runs {
        match run.at.checked_sub(SUPER_AT) {
            Some(at) if at < SUPER_LEN as u64 => {
                let at = at as usize;
                let to = block.get_mut(at..at + run.bytes.len()).ok_or_else(bad)?;
                to.copy_from_slice(run.bytes);
            }
            _ => file.write_all_at(run.bytes, run.at)?,
        }
    }
    give_fsid(&mut block, fsid);
    file.write_all_at(&block, SUPER_AT)?;
    file.sync_all()?;
    Ok(fsid)
}

/// Opens an image for reading and writing; refuses anything but a regular file.
pub(crate) fn open(image: &Path) -> Result<OwnedFd> {
    let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let fd = rustix::fs::open(image, flags, Mode::empty())
        .map_err(|e| EngineError::io("open the image", image)(e.into()))?;
    let stat = rustix::fs::fstat(&fd).map_err(|e| EngineError::io("look at", image)(e.into()))?;
    if rustix::fs::FileType::from_raw_mode(stat.st_mode) == rustix::fs::FileType::RegularFile {
        Ok(fd)
    } else {
        Err(EngineError::Damaged {
            what: "this image is no regular file".into(),
            path: image.to_owned(),
        })
    }
}

/// The id of the file system in the image, from its superblock. [`EngineError::Damaged`] if there is none
/// or its checksum is wrong. Attaches nothing.
pub fn read_fsid(image: &Path) -> Result<[u8; 16]> {
    fsid_of(&File::from(open(image)?), image)
}

/// As [`read_fsid`], of an open image.
pub(crate) fn fsid_of(file: &File, image: &Path) -> Result<[u8; 16]> {
    let damaged = |what: &str| EngineError::Damaged {
        what: what.into(),
        path: image.to_owned(),
    };
    let mut block = [0u8; SUPER_LEN];
    match file.read_exact_at(&mut block, SUPER_AT) {
        Ok(()) => {}
        Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => {
            return Err(damaged("the image is cut off before its superblock"));
        }
        Err(e) => return Err(EngineError::io("read the image", image)(e)),
    }
    if &block[MAGIC..MAGIC + 8] != b"_BHRfS_M" || u64_at(&block, BYTENR) != SUPER_AT {
        return Err(damaged("there is no Btrfs superblock in the image"));
    }
    let sum = u32::from_le_bytes([block[0], block[1], block[2], block[3]]);
    let crc32c_used = block[CSUM_TYPE..CSUM_TYPE + 2] == [0, 0];
    if crc32c_used && sum != crc32c::crc32c(&block[CSUM_END..]) {
        return Err(damaged("the superblock of the image has a wrong checksum"));
    }
    let has = file
        .metadata()
        .map_err(EngineError::io("look at the image", image))?
        .len();
    let needs = u64_at(&block, TOTAL_BYTES);
    if has < needs {
        let (has, needs) = (text::size(has), text::size(needs));
        return Err(damaged(&format!(
            "the image is cut off: it has {has}, the file system in it needs {needs}"
        )));
    }
    let mut fsid = [0u8; 16];
    fsid.copy_from_slice(&block[FSID..FSID + 16]);
    Ok(fsid)
}

/// A file system id as the kernel writes it: `xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx`.
pub fn uuid_text(id: &[u8; 16]) -> String {
    use std::fmt::Write as _;
    let mut out = String::with_capacity(36);
    for (i, b) in id.iter().enumerate() {
        if matches!(i, 4 | 6 | 8 | 10) {
            out.push('-');
        }
        let _written = write!(out, "{b:02x}");
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::failure::{Explain, Kind};
    use std::os::unix::fs::MetadataExt;

    #[test]
    fn the_template_has_one_superblock_and_nothing_beyond_its_size() {
        let (size, runs) = template().expect("a whole template");
        assert_eq!(size, 48 << 20);
        assert!(
            runs.windows(2)
                .all(|w| w[0].at + w[0].bytes.len() as u64 <= w[1].at)
        );
        assert!(runs.iter().all(|r| r.at + r.bytes.len() as u64 <= size));
        assert!(runs.iter().any(|r| r.at / 4096 == SUPER_AT / 4096));
        let blocks: std::collections::BTreeSet<u64> = runs.iter().map(|r| r.at / 4096).collect();
        assert!(blocks.len() < 64, "an empty file system: {} blocks", blocks.len());
    }

    #[test]
    fn an_image_has_its_own_id_and_its_size_and_takes_little_space() {
        let dir = tempfile::tempdir().expect("tempdir");
        let (a, b) = (dir.path().join("a"), dir.path().join("b"));
        let ids = [
            create(&a, 1 << 30, false).expect("a"),
            create(&b, 1 << 30, false).expect("b"),
        ];
        assert_ne!(ids[0], ids[1]);
        assert_eq!(read_fsid(&a).expect("a"), ids[0]);
        assert_eq!(read_fsid(&b).expect("b"), ids[1]);
        let meta = a.metadata().expect("stat");
        assert_eq!((meta.len(), meta.mode() & 0o7777), (1 << 30, 0o600));
        assert!(meta.blocks() * 512 < 1 << 20, "sparse");
        assert_eq!(std::fs::read_dir(dir.path()).expect("dir").count(), 2);
    }

    #[test]
    fn nothing_is_made_where_it_cannot_be() {
        let dir = tempfile::tempdir().expect("tempdir");
        let a = dir.path().join("a");
        assert_eq!(
            create(&a, MIN_SIZE - 1, false).expect_err("small").kind(),
            Kind::Refused
        );
        assert_eq!(
            create(&a, 1 << 60, true).expect_err("no space").kind(),
            Kind::Refused
        );
        std::fs::write(&a, "mine").expect("write");
        assert_eq!(
            create(&a, 1 << 30, false).expect_err("taken").kind(),
            Kind::Refused
        );
        assert_eq!(std::fs::read(&a).expect("read"), b"mine");
        assert_eq!(std::fs::read_dir(dir.path()).expect("dir").count(), 1);
    }

    #[test]
    fn a_damaged_superblock_is_named() {
        let dir = tempfile::tempdir().expect("tempdir");
        let a = dir.path().join("a");
        create(&a, MIN_SIZE, false).expect("create");
        let f = File::options().write(true).open(&a).expect("open");
        f.write_all_at(b"x", SUPER_AT + 0x50).expect("write");
        let e = read_fsid(&a).expect_err("checksum");
        assert_eq!((e.kind(), e.path()), (Kind::Damaged, Some(a.as_path())));
        f.set_len(100).expect("cut");
        assert_eq!(read_fsid(&a).expect_err("cut").kind(), Kind::Damaged);
        std::fs::remove_file(&a).expect("rm");
        std::os::unix::fs::symlink("/etc/passwd", &a).expect("link");
        assert_eq!(read_fsid(&a).expect_err("link").kind(), Kind::Failed);
    }
}
