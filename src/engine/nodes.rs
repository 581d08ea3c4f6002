//! The nodes of loop devices. A container's `/dev` is its own: the kernel makes no node there for a device that comes
//! later, and may have made none at all. Who may make nodes makes what is missing, by the numbers that sysfs tells.

use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::libc;
use rustix::fs::{CWD, FileType, Mode, OFlags, makedev};

/// How long the kernel may take to make a node where it does.
const PATIENCE: Duration = Duration::from_millis(50);
/// What gives out loop devices.
pub const CONTROL: &str = "/dev/loop-control";
const CONTROL_NUMBERS: &str = "/sys/class/misc/loop-control/dev";

pub(super) fn open_device(path: &Path, flags: OFlags) -> io::Result<OwnedFd> {
    rustix::fs::open(path, flags | OFlags::CLOEXEC | OFlags::NONBLOCK, Mode::empty()).map_err(Into::into)
}

fn is_missing(e: &io::Error) -> bool {
    e.raw_os_error() == Some(libc::ENOENT)
}

fn missing() -> io::Error {
    io::Error::from_raw_os_error(libc::ENOENT)
}

/// Opens what gives out loop devices, making its node where there is none.
pub(super) fn open_control(flags: OFlags) -> io::Result<OwnedFd> {
    let path = Path::new(CONTROL);
    match open_device(path, flags) {
        Err(e) if is_missing(&e) => {
            make(path, FileType::CharacterDevice, Path::new(CONTROL_NUMBERS)).map_err(|_| missing())?;
            open_device(path, flags)
        }
        other => other,
    }
}

/// Opens a loop device by its path, making its node where there is none and the device exists. The error of one that
/// cannot be made is that it is missing.
pub(super) fn open_loop(device: &Path, flags: OFlags) -> io::Result<OwnedFd> {
    let start = Instant::now();
    loop {
        match open_device(device, flags) {
            Err(e) if is_missing(&e) && start.elapsed() < PATIENCE && sysfs(device).exists() => {
                std::thread::sleep(Duration::from_millis(2));
            }
            Err(e) if is_missing(&e) => {
                make(device, FileType::BlockDevice, &sysfs(device)).map_err(|_| missing())?;
                return open_device(device, flags);
            }
            other => return other,
        }
    }
}

/// Opens a loop device to look at it. Where it has no node, one is made for that under another name, and goes again.
pub(super) fn peek(device: &Path) -> io::Result<OwnedFd> {
    match open_device(device, OFlags::RDONLY) {
        Err(e) if is_missing(&e) => {
            let name = device.file_name().unwrap_or_default().display().to_string();
            let other = device.with_file_name(format!(".respool-{}-{name}", std::process::id()));
            make(&other, FileType::BlockDevice, &sysfs(device)).map_err(|_| missing())?;
            let opened = open_device(&other, OFlags::RDONLY);
            std::fs::remove_file(&other)?;
            // one that may not be used from here is as good as none
            opened.map_err(|_| missing())
        }
        other => other,
    }
}

fn sysfs(device: &Path) -> PathBuf {
    let name = device.file_name().unwrap_or_default();
    Path::new("/sys/block").join(name).join("dev")
}

/// Makes a node with the numbers in this file of sysfs; one that another process made meanwhile will do.
fn make(path: &Path, kind: FileType, numbers: &Path) -> io::Result<()> {
    let text = std::fs::read_to_string(numbers)?;
    let (major, minor) = text
        .trim()
        .split_once(':')
        .and_then(|(a, b)| Some((a.parse().ok()?, b.parse().ok()?)))
        .ok_or_else(|| io::Error::other("sysfs has no device number there"))?;
    match rustix::fs::mknodat(CWD, path, kind, Mode::RUSR | Mode::WUSR, makedev(major, minor)) {
        Ok(()) | Err(rustix::io::Errno::EXIST) => Ok(()),
        Err(e) => Err(e.into()),
    }
}

/// Whether loop devices can be had here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Loops {
    /// Their nodes are there.
    There,
    /// The kernel has them, and root can make their nodes.
    CanBeMade,
    /// The kernel has them, but this container may not use them.
    Forbidden,
    /// The kernel has none, or its driver is not loaded.
    None,
}

impl Loops {
    /// Looks; nothing is made. `mknod`: root has the right to make nodes.
    pub fn look(mknod: bool) -> Self {
        match open_device(Path::new(CONTROL), OFlags::RDONLY) {
            // EPERM is the device cgroup's; EACCES comes of the node's mode, which is no matter for root
            Err(e) if e.raw_os_error() == Some(libc::EPERM) => Self::Forbidden,
            Err(e) if is_missing(&e) && !Path::new(CONTROL_NUMBERS).exists() => Self::None,
            Err(e) if is_missing(&e) && mknod => Self::CanBeMade,
            Err(e) if is_missing(&e) => Self::Forbidden,
            _ => Self::There,
        }
    }

    /// True if they can be used, by root.
    pub fn usable(self) -> bool {
        matches!(self, Self::There | Self::CanBeMade)
    }
}
