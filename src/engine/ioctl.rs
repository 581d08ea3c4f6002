//! The ioctls of Btrfs and of the loop driver, and system calls that the libraries lack, as safe functions. The only
//! file with unsafe code.
//! Layouts: include/uapi/linux/btrfs.h and loop.h of the kernel.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use nix::libc;

const MAGIC: u8 = 0x94;
const SUBVOL_RDONLY: u64 = 1 << 1;
const SUBVOL_SPEC_BY_ID: u64 = 1 << 4;

#[repr(C)]
struct VolArgsV2 {
    fd: i64,
    transid: u64,
    flags: u64,
    unused: [u64; 4],
    name: [u8; 4040],
}
const _: () = assert!(size_of::<VolArgsV2>() == 4096);

#[repr(C)]
struct VolArgs {
    fd: i64,
    name: [u8; 4088],
}
const _: () = assert!(size_of::<VolArgs>() == 4096);

#[repr(C)]
#[derive(Clone, Copy)]
struct RawTime {
    sec: u64,
    nsec: u32,
    pad: u32,
}

#[repr(C)]
struct RawSubvolInfo {
    treeid: u64,
    name: [u8; 256],
    parent_id: u64,
    dirid: u64,
    generation: u64,
    flags: u64,
    uuid: [u8; 16],
    parent_uuid: [u8; 16],
    received_uuid: [u8; 16],
    ctransid: u64,
    otransid: u64,
    stransid: u64,
    rtransid: u64,
    ctime: RawTime,
    otime: RawTime,
    stime: RawTime,
    rtime: RawTime,
    reserved: [u64; 8],
}
const _: () = assert!(size_of::<RawSubvolInfo>() == 504);

#[repr(C)]
struct RawFsInfo {
    max_id: u64,
    num_devices: u64,
    fsid: [u8; 16],
    nodesize: u32,
    sectorsize: u32,
    clone_alignment: u32,
    csum_type: u16,
    csum_size: u16,
    flags: u64,
    generation: u64,
    metadata_uuid: [u8; 16],
    reserved: [u8; 944],
}
const _: () = assert!(size_of::<RawFsInfo>() == 1024);

#[repr(C)]
struct RawSubvolWait {
    subvolid: u64,
    mode: u32,
    count: u32,
}

#[repr(C)]
struct RawCloneRange {
    src_fd: i64,
    src_offset: u64,
    src_length: u64,
    dest_offset: u64,
}

#[repr(C)]
struct RawDevInfo {
    devid: u64,
    uuid: [u8; 16],
    bytes_used: u64,
    total_bytes: u64,
    fsid: [u8; 16],
    unused: [u64; 377],
    path: [u8; 1024],
}
const _: () = assert!(size_of::<RawDevInfo>() == 4096);

#[repr(C)]
struct RawSpaceArgs {
    slots: u64,
    total: u64,
}

/// The head of `btrfs_ioctl_search_args_v2`; the buffer follows it.
#[repr(C)]
struct RawSearch {
    tree_id: u64,
    min_objectid: u64,
    max_objectid: u64,
    min_offset: u64,
    max_offset: u64,
    min_transid: u64,
    max_transid: u64,
    min_type: u32,
    max_type: u32,
    nr_items: u32,
    unused: [u32; 9],
    buf_size: u64,
}
const _: () = assert!(size_of::<RawSearch>() == 112);

#[repr(C)]
struct RawRootRefs {
    min_treeid: u64,
    refs: [[u64; 2]; 255],
    num_items: u8,
    align: [u8; 7],
}
const _: () = assert!(size_of::<RawRootRefs>() == 4096);

#[repr(C)]
struct RawInoLookupUser {
    dirid: u64,
    treeid: u64,
    name: [u8; 256],
    path: [u8; 3824],
}
const _: () = assert!(size_of::<RawInoLookupUser>() == 4096);

#[repr(C)]
struct RawLoopInfo {
    device: u64,
    inode: u64,
    rdevice: u64,
    offset: u64,
    sizelimit: u64,
    number: u32,
    encrypt_type: u32,
    encrypt_key_size: u32,
    flags: u32,
    file_name: [u8; 64],
    crypt_name: [u8; 64],
    encrypt_key: [u8; 32],
    init: [u64; 2],
}
const _: () = assert!(size_of::<RawLoopInfo>() == 232);

#[repr(C)]
struct RawLoopConfig {
    fd: u32,
    block_size: u32,
    info: RawLoopInfo,
    reserved: [u64; 8],
}
const _: () = assert!(size_of::<RawLoopConfig>() == 304);

mod raw {
    use super::{
        MAGIC, RawCloneRange, RawDevInfo, RawFsInfo, RawInoLookupUser, RawLoopConfig, RawLoopInfo,
        RawRootRefs, RawSearch, RawSpaceArgs, RawSubvolInfo, RawSubvolWait, VolArgs, VolArgsV2,
    };

    nix::ioctl_write_ptr!(ioc_snap_create_v2, MAGIC, 23, VolArgsV2);
    nix::ioctl_write_ptr!(ioc_subvol_create_v2, MAGIC, 24, VolArgsV2);
    nix::ioctl_write_ptr!(ioc_snap_destroy_v2, MAGIC, 63, VolArgsV2);
    nix::ioctl_read!(ioc_subvol_getflags, MAGIC, 25, u64);
    nix::ioctl_write_ptr!(ioc_subvol_setflags, MAGIC, 26, u64);
    nix::ioctl_none!(ioc_sync, MAGIC, 8);
    nix::ioctl_read!(ioc_start_sync, MAGIC, 24, u64);
    nix::ioctl_read!(ioc_get_subvol_info, MAGIC, 60, RawSubvolInfo);
    nix::ioctl_read!(ioc_fs_info, MAGIC, 31, RawFsInfo);
    nix::ioctl_readwrite!(ioc_dev_info, MAGIC, 30, RawDevInfo);
    nix::ioctl_readwrite!(ioc_space_info, MAGIC, 20, RawSpaceArgs);
    nix::ioctl_readwrite!(ioc_tree_search_v2, MAGIC, 17, RawSearch);
    nix::ioctl_readwrite!(ioc_subvol_rootref, MAGIC, 61, RawRootRefs);
    nix::ioctl_readwrite!(ioc_ino_lookup_user, MAGIC, 62, RawInoLookupUser);
    nix::ioctl_write_ptr!(ioc_resize, MAGIC, 3, VolArgs);
    nix::ioctl_write_ptr!(ioc_subvol_sync_wait, MAGIC, 65, RawSubvolWait);
    nix::ioctl_write_ptr!(ioc_clone_range, MAGIC, 13, RawCloneRange);
    nix::ioctl_write_ptr_bad!(ioc_loop_configure, 0x4C0A, RawLoopConfig);
    nix::ioctl_read_bad!(ioc_loop_get_status64, 0x4C05, RawLoopInfo);
    nix::ioctl_none_bad!(ioc_loop_ctl_get_free, 0x4C82);
}
use raw::{
    ioc_clone_range, ioc_dev_info, ioc_fs_info, ioc_get_subvol_info, ioc_ino_lookup_user, ioc_loop_configure,
    ioc_loop_ctl_get_free, ioc_loop_get_status64, ioc_resize, ioc_snap_create_v2, ioc_snap_destroy_v2,
    ioc_space_info, ioc_start_sync, ioc_subvol_create_v2, ioc_subvol_rootref, ioc_subvol_setflags,
    ioc_subvol_sync_wait, ioc_sync, ioc_tree_search_v2,
};

fn err(e: nix::errno::Errno) -> io::Error {
    io::Error::from_raw_os_error(e as i32)
}

fn named(fd: i64, flags: u64, name: &[u8]) -> io::Result<Box<VolArgsV2>> {
    if name.is_empty() || name.len() > 255 || name.contains(&0) || name.contains(&b'/') {
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    }
    let mut a = Box::new(VolArgsV2 {
        fd,
        transid: 0,
        flags,
        unused: [0; 4],
        name: [0; 4040],
    });
    a.name[..name.len()].copy_from_slice(name);
    Ok(a)
}

/// What the kernel says of the subvolume that an open file or directory is in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SubvolInfo {
    /// The id of its tree.
    pub tree_id: u64,
    /// Its own uuid: never changes.
    pub uuid: [u8; 16],
    /// The uuid of what it is a snapshot of; zero if of nothing.
    pub parent_uuid: [u8; 16],
    /// Its generation now.
    pub generation: u64,
    /// The transaction in which it was made.
    pub otransid: u64,
    /// When it was made: seconds and nanoseconds since 1970.
    pub otime: (i64, u32),
    /// Read-only.
    pub read_only: bool,
}

/// Makes a subvolume `name` in the directory `parent`.
pub fn subvol_create(parent: impl AsFd, name: &[u8]) -> io::Result<()> {
    let a = named(0, 0, name)?;
    // SAFETY: the fd is open for the call, the argument is a valid 4 KiB struct.
    unsafe { ioc_subvol_create_v2(parent.as_fd().as_raw_fd(), &raw const *a) }
        .map(drop)
        .map_err(err)
}

/// Makes a snapshot `name` of the subvolume root `source` in the directory `parent`. Returns after the
/// transaction that holds it, and all dirty data of the source, is on disk.
pub fn snap_create(source: impl AsFd, parent: impl AsFd, name: &[u8], read_only: bool) -> io::Result<()> {
    let a = named(
        i64::from(source.as_fd().as_raw_fd()),
        if read_only { SUBVOL_RDONLY } else { 0 },
        name,
    )?;
    // SAFETY: as above.
    unsafe { ioc_snap_create_v2(parent.as_fd().as_raw_fd(), &raw const *a) }
        .map(drop)
        .map_err(err)
}

/// Removes the subvolume `name` of the directory `parent`; its space comes back in the background.
pub fn snap_destroy(parent: impl AsFd, name: &[u8]) -> io::Result<()> {
    let a = named(0, 0, name)?;
    // SAFETY: as above.
    unsafe { ioc_snap_destroy_v2(parent.as_fd().as_raw_fd(), &raw const *a) }
        .map(drop)
        .map_err(err)
}

/// Removes the subvolume whose tree has this id, of the file system that `fd` is in: whatever is at its name by now, it
/// is that one (Linux 5.7; needs CAP_SYS_ADMIN).
pub fn snap_destroy_id(fd: impl AsFd, tree_id: u64) -> io::Result<()> {
    let mut a = Box::new(VolArgsV2 {
        fd: 0,
        transid: 0,
        flags: SUBVOL_SPEC_BY_ID,
        unused: [0; 4],
        name: [0; 4040],
    });
    // the name and the id are one union
    a.name[..8].copy_from_slice(&tree_id.to_ne_bytes());
    // SAFETY: as above.
    unsafe { ioc_snap_destroy_v2(fd.as_fd().as_raw_fd(), &raw const *a) }
        .map(drop)
        .map_err(err)
}

/// Sets or clears the read-only flag of a subvolume root.
pub fn set_read_only(subvol: impl AsFd, read_only: bool) -> io::Result<()> {
    let flags = if read_only { SUBVOL_RDONLY } else { 0 };
    // SAFETY: the pointer is to a u64 that lives through the call.
    unsafe { ioc_subvol_setflags(subvol.as_fd().as_raw_fd(), &raw const flags) }
        .map(drop)
        .map_err(err)
}

/// The subvolume that `fd` is in. ENOTTY where the file system is not Btrfs.
pub fn subvol_info(fd: impl AsFd) -> io::Result<SubvolInfo> {
    // SAFETY: all-zero bytes are a valid value of this plain struct; the kernel fills it.
    let mut i: Box<RawSubvolInfo> = Box::new(unsafe { std::mem::zeroed() });
    // SAFETY: as above.
    unsafe { ioc_get_subvol_info(fd.as_fd().as_raw_fd(), &raw mut *i) }.map_err(err)?;
    Ok(SubvolInfo {
        tree_id: i.treeid,
        uuid: i.uuid,
        parent_uuid: i.parent_uuid,
        generation: i.generation,
        otransid: i.otransid,
        otime: (i.otime.sec as i64, i.otime.nsec),
        read_only: i.flags & 1 != 0,
    })
}

/// The file system id (as in `/sys/fs/btrfs`).
pub fn fs_id(fd: impl AsFd) -> io::Result<[u8; 16]> {
    // SAFETY: as above.
    let mut i: Box<RawFsInfo> = Box::new(unsafe { std::mem::zeroed() });
    // SAFETY: as above.
    unsafe { ioc_fs_info(fd.as_fd().as_raw_fd(), &raw mut *i) }.map_err(err)?;
    Ok(i.fsid)
}

/// Size and allocated bytes of all devices of the file system.
pub fn devices(fd: impl AsFd) -> io::Result<(u64, u64)> {
    // SAFETY: all-zero bytes are a valid value of this plain struct; the kernel fills it.
    let mut fs: Box<RawFsInfo> = Box::new(unsafe { std::mem::zeroed() });
    // SAFETY: as above.
    unsafe { ioc_fs_info(fd.as_fd().as_raw_fd(), &raw mut *fs) }.map_err(err)?;
    let (mut size, mut allocated) = (0, 0);
    for devid in 1..=fs.max_id {
        // SAFETY: as above.
        let mut d: Box<RawDevInfo> = Box::new(unsafe { std::mem::zeroed() });
        d.devid = devid;
        // SAFETY: as above.
        match unsafe { ioc_dev_info(fd.as_fd().as_raw_fd(), &raw mut *d) } {
            Ok(_) => {
                size += d.total_bytes;
                allocated += d.bytes_used;
            }
            // ids of removed devices are gaps
            Err(nix::errno::Errno::ENODEV) => {}
            Err(e) => return Err(err(e)),
        }
    }
    Ok((size, allocated))
}

/// The space of one kind of block group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SpaceClass {
    /// `BTRFS_BLOCK_GROUP_*`: data 1, system 2, metadata 4; the profile above.
    pub flags: u64,
    /// Bytes allocated to it.
    pub total: u64,
    /// Bytes in use.
    pub used: u64,
}

/// The space of every kind of block group, without the global reserve.
pub fn space_classes(fd: impl AsFd) -> io::Result<Vec<SpaceClass>> {
    const SLOTS: usize = 64;
    const GLOBAL_RESERVE: u64 = 1 << 49;
    let mut words = vec![0u64; 2 + 3 * SLOTS];
    words[0] = SLOTS as u64;
    // SAFETY: the buffer has the two header words and room for as many slots as the first one says; u64
    // has the alignment of the struct.
    unsafe { ioc_space_info(fd.as_fd().as_raw_fd(), words.as_mut_ptr().cast::<RawSpaceArgs>()) }
        .map_err(err)?;
    let n = (words[1] as usize).min(SLOTS);
    Ok(words[2..2 + 3 * n]
        .chunks_exact(3)
        .map(|w| SpaceClass {
            flags: w[0],
            total: w[1],
            used: w[2],
        })
        .filter(|c| c.flags & GLOBAL_RESERVE == 0)
        .collect())
}

/// An item of a subvolume's tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Item {
    /// Its key: inode, type, offset.
    pub key: (u64, u8, u64),
    /// Its bytes, as on disk.
    pub bytes: Vec<u8>,
}

/// Items of the tree of the subvolume that `fd` is in, with a key of at least `from`, out of the tree's blocks that
/// were written in transaction `since` or later. As many as fit: the next call goes on behind the last one's key;
/// none: there are no more. Needs CAP_SYS_ADMIN.
pub fn items(fd: impl AsFd, from: (u64, u8, u64), since: u64) -> io::Result<Vec<Item>> {
    const BUFFER: usize = 64 << 10;
    const HEAD: usize = size_of::<RawSearch>();
    let mut words = vec![0u64; (HEAD + BUFFER) / 8];
    let head = words.as_mut_ptr().cast::<RawSearch>();
    let args = RawSearch {
        tree_id: 0,
        min_objectid: from.0,
        max_objectid: u64::MAX,
        min_offset: from.2,
        max_offset: u64::MAX,
        min_transid: since,
        max_transid: u64::MAX,
        min_type: from.1.into(),
        max_type: u8::MAX.into(),
        nr_items: u32::MAX,
        unused: [0; 9],
        buf_size: BUFFER as u64,
    };
    // SAFETY: the buffer has room for the head and for as many bytes as the head says; u64 has its alignment.
    unsafe {
        head.write(args);
        ioc_tree_search_v2(fd.as_fd().as_raw_fd(), head).map_err(err)?;
    }
    // nr_items is the first half of the word after the types
    let bytes: Vec<u8> = words.iter().flat_map(|w| w.to_ne_bytes()).collect();
    let count = u32::from_ne_bytes(field(&bytes, 64)?);
    let mut out = Vec::new();
    let mut at = HEAD;
    for _ in 0..count {
        let objectid = u64::from_ne_bytes(field(&bytes, at + 8)?);
        let offset = u64::from_ne_bytes(field(&bytes, at + 16)?);
        let kind = u32::from_ne_bytes(field(&bytes, at + 24)?);
        let len = u32::from_ne_bytes(field(&bytes, at + 28)?) as usize;
        at += 32;
        let content = bytes.get(at..at + len).ok_or_else(cut_short)?;
        out.push(Item {
            key: (objectid, u8::try_from(kind).unwrap_or(u8::MAX), offset),
            bytes: content.to_vec(),
        });
        at += len;
    }
    Ok(out)
}

fn cut_short() -> io::Error {
    io::Error::other("the kernel's answer is cut short")
}

/// The bytes of a number at a place.
pub(super) fn field<const N: usize>(bytes: &[u8], at: usize) -> io::Result<[u8; N]> {
    let found = bytes.get(at..at + N).and_then(|b| b.try_into().ok());
    found.ok_or_else(cut_short)
}

/// The subvolumes directly inside the subvolume that `root` is the root of: the id of the tree, and the path
/// relative to `root`. Works without privileges.
pub fn nested_subvolumes(root: impl AsFd) -> io::Result<Vec<(u64, Vec<u8>)>> {
    let mut out = Vec::new();
    let mut min_treeid = 0;
    loop {
        // SAFETY: all-zero bytes are a valid value of this plain struct; the kernel fills it.
        let mut r: Box<RawRootRefs> = Box::new(unsafe { std::mem::zeroed() });
        r.min_treeid = min_treeid;
        // SAFETY: as above.
        let more = match unsafe { ioc_subvol_rootref(root.as_fd().as_raw_fd(), &raw mut *r) } {
            Ok(_) => false,
            Err(nix::errno::Errno::EOVERFLOW) => true,
            Err(e) => return Err(err(e)),
        };
        for [treeid, dirid] in r.refs.iter().take(usize::from(r.num_items)) {
            // SAFETY: as above.
            let mut l: Box<RawInoLookupUser> = Box::new(unsafe { std::mem::zeroed() });
            l.dirid = *dirid;
            l.treeid = *treeid;
            // SAFETY: as above.
            match unsafe { ioc_ino_lookup_user(root.as_fd().as_raw_fd(), &raw mut *l) } {
                // the folder's path ends with a slash, unless it is empty
                Ok(_) => out.push((*treeid, [until_nul(&l.path), until_nul(&l.name)].concat())),
                // removed meanwhile
                Err(nix::errno::Errno::ENOENT) => {}
                Err(e) => return Err(err(e)),
            }
        }
        if !more {
            return Ok(out);
        }
        min_treeid = r.min_treeid;
    }
}

fn until_nul(bytes: &[u8]) -> Vec<u8> {
    bytes.iter().copied().take_while(|b| *b != 0).collect()
}

/// Commits everything of the file system and waits for it.
pub fn fs_sync(fd: impl AsFd) -> io::Result<()> {
    // SAFETY: no argument.
    unsafe { ioc_sync(fd.as_fd().as_raw_fd()) }.map(drop).map_err(err)
}

/// Starts a commit without waiting for it.
pub fn start_sync(fd: impl AsFd) -> io::Result<()> {
    let mut transid = 0u64;
    // SAFETY: the pointer is to a u64 that lives through the call.
    unsafe { ioc_start_sync(fd.as_fd().as_raw_fd(), &raw mut transid) }
        .map(drop)
        .map_err(err)
}

/// Resizes the mounted file system: `max`, or a number of bytes.
pub fn resize(fd: impl AsFd, amount: &str) -> io::Result<()> {
    let mut a = Box::new(VolArgs {
        fd: 0,
        name: [0; 4088],
    });
    let bytes = amount.as_bytes();
    if bytes.len() >= a.name.len() {
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    }
    a.name[..bytes.len()].copy_from_slice(bytes);
    // SAFETY: as above.
    unsafe { ioc_resize(fd.as_fd().as_raw_fd(), &raw const *a) }
        .map(drop)
        .map_err(err)
}

/// How many removed subvolumes the cleaner has not cleaned up yet. Kernel 6.13 or newer; ENOTTY before.
pub fn deleted_queued(fd: impl AsFd) -> io::Result<u32> {
    const COUNT: u32 = 2;
    let mut a = RawSubvolWait {
        subvolid: 0,
        mode: COUNT,
        count: 0,
    };
    let argument = &raw mut a;
    // SAFETY: the pointer is to a valid struct that lives through the call; the kernel writes the count to it.
    unsafe { ioc_subvol_sync_wait(fd.as_fd().as_raw_fd(), argument.cast_const()) }.map_err(err)?;
    Ok(a.count)
}

/// FICLONERANGE: shares `len` bytes (0 = to the end) of `src` at `src_offset` with `dst` at `dst_offset`.
pub fn clone_range(
    src: impl AsFd,
    src_offset: u64,
    len: u64,
    dst: impl AsFd,
    dst_offset: u64,
) -> io::Result<()> {
    let a = RawCloneRange {
        src_fd: i64::from(src.as_fd().as_raw_fd()),
        src_offset,
        src_length: len,
        dest_offset: dst_offset,
    };
    // SAFETY: as above.
    unsafe { ioc_clone_range(dst.as_fd().as_raw_fd(), &raw const a) }
        .map(drop)
        .map_err(err)
}

/// Flags of a loop device.
pub mod loop_flags {
    /// Detached by the kernel when its last user closes it.
    pub const AUTOCLEAR: u32 = 4;
    /// The backing file is read and written past the page cache.
    pub const DIRECT_IO: u32 = 16;
}

/// The number of a free loop device (made if there is none).
pub fn loop_free(control: impl AsFd) -> io::Result<u32> {
    // SAFETY: no argument.
    unsafe { ioc_loop_ctl_get_free(control.as_fd().as_raw_fd()) }
        .map(|n| n as u32)
        .map_err(err)
}

/// LOOP_CONFIGURE (kernel 5.8): backing file, flags and block size in one atomic call. EBUSY if another
/// process took the device first.
pub fn loop_configure(
    device: impl AsFd,
    backing: BorrowedFd<'_>,
    flags: u32,
    block_size: u32,
    name: &[u8],
) -> io::Result<()> {
    // SAFETY: all-zero bytes are a valid value of this plain struct.
    let mut c: Box<RawLoopConfig> = Box::new(unsafe { std::mem::zeroed() });
    c.fd = backing.as_raw_fd() as u32;
    c.block_size = block_size;
    c.info.flags = flags;
    let n = name.len().min(63);
    c.info.file_name[..n].copy_from_slice(&name[..n]);
    // SAFETY: both fds are open for the call, the argument is a valid struct.
    unsafe { ioc_loop_configure(device.as_fd().as_raw_fd(), &raw const *c) }
        .map(drop)
        .map_err(err)
}

/// Device and inode number of the backing file of an attached loop device; ENXIO if it is free.
pub fn loop_backing(device: impl AsFd) -> io::Result<(u64, u64)> {
    // SAFETY: all-zero bytes are a valid value of this plain struct; the kernel fills it.
    let mut i: Box<RawLoopInfo> = Box::new(unsafe { std::mem::zeroed() });
    // SAFETY: as above.
    unsafe { ioc_loop_get_status64(device.as_fd().as_raw_fd(), &raw mut *i) }.map_err(err)?;
    Ok((i.device, i.inode))
}

/// What a mount forbids, whatever the file system under it would allow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Forbidden {
    /// Programs get no rights of their owner's from set-user-id bits and the like.
    pub setuid: bool,
    /// Device files cannot be opened.
    pub devices: bool,
    /// No program can be started.
    pub programs: bool,
}

/// Forbids more on a mount (mount_setattr(2), Linux 5.12): `tree` is its root, as open_tree(2) gives it, before it is
/// shown anywhere. Nothing is allowed by it.
pub fn forbid(tree: impl AsFd, what: Forbidden) -> io::Result<()> {
    let bits = [
        (what.setuid, libc::MOUNT_ATTR_NOSUID),
        (what.devices, libc::MOUNT_ATTR_NODEV),
        (what.programs, libc::MOUNT_ATTR_NOEXEC),
    ];
    let attr_set = bits
        .iter()
        .filter(|(on, _)| *on)
        .fold(0, |all, (_, bit)| all | bit);
    if attr_set == 0 {
        return Ok(());
    }
    let attributes = libc::mount_attr {
        attr_set,
        attr_clr: 0,
        propagation: 0,
        userns_fd: 0,
    };
    // SAFETY: the path is an empty C string, and the pointer is to a valid struct of the size that is given; both live
    // through the call, which writes to neither.
    let done = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            tree.as_fd().as_raw_fd(),
            c"".as_ptr(),
            libc::AT_EMPTY_PATH,
            &raw const attributes,
            size_of::<libc::mount_attr>(),
        )
    };
    if done == 0 {
        return Ok(());
    }
    Err(io::Error::last_os_error())
}

/// The supplementary groups that the process at the other end of a Unix socket had when it connected (`SO_PEERGROUPS`,
/// Linux 4.13).
pub fn peer_groups(socket: impl AsFd) -> io::Result<Vec<u32>> {
    // the limit of Linux on the groups of one process, NGROUPS_MAX
    let mut groups = vec![0u32; 65_536];
    let mut len = size_of_val(&groups[..]) as libc::socklen_t;
    // SAFETY: the buffer has as many bytes as are given, and both live through the call, which writes at most as many.
    let done = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERGROUPS,
            groups.as_mut_ptr().cast(),
            &raw mut len,
        )
    };
    if done != 0 {
        return Err(io::Error::last_os_error());
    }
    groups.truncate(len as usize / size_of::<u32>());
    groups.shrink_to_fit();
    Ok(groups)
}

/// A handle of the process that connected to a Unix socket (`SO_PEERPIDFD`). `None` before Linux 6.5, which has none.
pub fn peer_process(socket: impl AsFd) -> io::Result<Option<OwnedFd>> {
    let mut fd: libc::c_int = -1;
    let mut len = size_of_val(&fd) as libc::socklen_t;
    // SAFETY: the pointers are to a number of the size that is given, and both live through the call.
    let done = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERPIDFD,
            (&raw mut fd).cast(),
            &raw mut len,
        )
    };
    if done == 0 {
        // SAFETY: the kernel made this descriptor just now, for this call alone.
        return Ok(Some(unsafe { OwnedFd::from_raw_fd(fd) }));
    }
    match io::Error::last_os_error() {
        e if e.raw_os_error() == Some(libc::ENOPROTOOPT) => Ok(None),
        e => Err(e),
    }
}
