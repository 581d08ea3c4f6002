//! Attaching an image to a loop device: once, however many processes ask, and never left behind.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::libc;
use rustix::fs::{FlockOperation, OFlags};

use super::nodes::{CONTROL, open_control, open_loop, peek};
use super::{EngineError, Result, image, ioctl};
use crate::text;

/// The exclusive right to look for, make and mount the attachment of one image; other processes wait.
/// Ends with the value.
#[derive(Debug)]
pub struct ImageLock {
    file: File,
    path: PathBuf,
}

impl ImageLock {
    /// Waits for the right.
    pub fn take(image: &Path) -> Result<Self> {
        let file = File::from(image::open(image)?);
        rustix::fs::flock(&file, FlockOperation::LockExclusive)
            .map_err(|e| EngineError::io("lock the image", image)(e.into()))?;
        Ok(Self {
            file,
            path: image.to_owned(),
        })
    }

    /// The file system id of the image; see [`image::read_fsid`].
    pub fn fsid(&self) -> Result<[u8; 16]> {
        image::fsid_of(&self.file, &self.path)
    }

    /// The loop device of the image; attaches it if it is not yet. The kernel detaches it when the value
    /// is dropped and no mount uses it.
    pub fn attach(&self) -> Result<Attached> {
        if let Some(found) = attached(&self.path)? {
            return Ok(found);
        }
        configure(&self.path)
    }
}

/// An attached loop device, held open: it cannot go away before the value does.
#[derive(Debug)]
pub struct Attached {
    /// `/dev/loopN`.
    pub device: PathBuf,
    held: OwnedFd,
}

impl Attached {
    /// The open device.
    pub fn fd(&self) -> impl AsFd + '_ {
        self.held.as_fd()
    }
}

/// Device and inode number of a file, as the loop driver reports them.
fn identity(image: &Path) -> Result<(u64, u64)> {
    let stat = rustix::fs::stat(image).map_err(|e| EngineError::io("look at the image", image)(e.into()))?;
    Ok((stat.st_dev, stat.st_ino))
}

/// True if the loop device is attached to this image.
pub(crate) fn is_of(device: &Path, image: &Path) -> Result<bool> {
    let want = identity(image)?;
    let Ok(fd) = open_loop(device, OFlags::RDONLY) else {
        return Ok(false);
    };
    Ok(ioctl::loop_backing(&fd).is_ok_and(|have| have == want))
}

/// The loop device that an image is attached to, if any.
pub fn attached(image: &Path) -> Result<Option<Attached>> {
    let want = identity(image)?;
    let sys = Path::new("/sys/block");
    for entry in std::fs::read_dir(sys).map_err(EngineError::io("read", sys))? {
        let entry = entry.map_err(EngineError::io("read", sys))?;
        let name = entry.file_name();
        if !name.as_bytes().starts_with(b"loop") || !entry.path().join("loop/backing_file").exists() {
            continue;
        }
        let device = Path::new("/dev").join(&name);
        let held = match peek(&device) {
            Ok(held) => held,
            // freed meanwhile, or a device whose node is not here and cannot be made
            Err(e) if matches!(e.raw_os_error(), Some(libc::ENXIO | libc::ENOENT | libc::EBUSY)) => continue,
            Err(e) => return Err(EngineError::io("open", &device)(e)),
        };
        if ioctl::loop_backing(&held).is_ok_and(|have| have == want) {
            // it is mounted and grown by its path
            let held = open_loop(&device, OFlags::RDONLY).map_err(EngineError::io("open", &device))?;
            return Ok(Some(Attached { device, held }));
        }
    }
    Ok(None)
}

/// The loop device (`/dev/loopN`) of an image that was deleted while it is in use.
pub(crate) fn deleted(image: &Path) -> Option<PathBuf> {
    let mark = [image.as_os_str().as_bytes(), b" (deleted)"].concat();
    let names = std::fs::read_dir("/sys/block").into_iter().flatten().flatten();
    let device = names.map(|e| e.file_name()).find(|name| {
        let device = Path::new("/dev").join(name);
        backing_file(&device).is_some_and(|file| file.as_os_str().as_bytes() == mark)
    })?;
    Some(Path::new("/dev").join(device))
}

/// The file of a loop device as the kernel names it; `None` for what is none.
pub(crate) fn backing_file(device: &Path) -> Option<PathBuf> {
    let file = Path::new("/sys/block")
        .join(device.file_name()?)
        .join("loop/backing_file");
    let text = std::fs::read(file).ok()?;
    Some(std::ffi::OsStr::from_bytes(text.strip_suffix(b"\n").unwrap_or(&text)).into())
}

/// The error for an image that is not at its path: where it is deleted but in use, how to save it.
pub(crate) fn missing(image: &Path, error: io::Error) -> EngineError {
    let device = deleted(image).filter(|_| error.kind() == io::ErrorKind::NotFound);
    let Some(device) = device else {
        return EngineError::io("find the image", image)(error);
    };
    EngineError::Refused {
        why: format!(
            "the image {} was deleted while it is in use",
            text::shown_path(image)
        ),
        path: Some(image.to_owned()),
        hint: Some(format!(
            "its content is still there: sync; sudo cp --sparse=always {} {}; then unmount what is mounted from it, and run: respool pool mount; or give the folders back: respool untrack DIR",
            device.display(),
            text::shell_word(image)
        )),
    }
}

/// Flags and block size to try, best first: past the page cache with 4 KiB blocks, as Btrfs writes.
const WAYS: [(u32, u32); 4] = [
    (ioctl::loop_flags::AUTOCLEAR | ioctl::loop_flags::DIRECT_IO, 4096),
    (ioctl::loop_flags::AUTOCLEAR | ioctl::loop_flags::DIRECT_IO, 512),
    (ioctl::loop_flags::AUTOCLEAR, 4096),
    (ioctl::loop_flags::AUTOCLEAR, 512),
];

fn configure(image: &Path) -> Result<Attached> {
    let control = Path::new(CONTROL);
    let ctl = open_control(OFlags::RDWR).map_err(|source| match source.raw_os_error() {
        Some(libc::ENOENT | libc::ENODEV) => no_loop(image),
        Some(libc::EPERM) => forbidden(control),
        _ => EngineError::io("open", control)(source),
    })?;
    // its own open file: the lock must not live as long as the device
    let backing = image::open(image)?;
    let start = Instant::now();
    loop {
        let n = ioctl::loop_free(&ctl).map_err(EngineError::io("get a loop device from", control))?;
        let device = PathBuf::from(format!("/dev/loop{n}"));
        let error = match open_loop(&device, OFlags::RDWR) {
            Ok(held) => match try_ways(&held, &backing, image) {
                Ok(()) => return Ok(Attached { device, held }),
                Err(e) => e,
            },
            Err(e) => e,
        };
        // taken by another process first, or the node is still being made
        let patience = match error.raw_os_error() {
            Some(libc::EBUSY | libc::ENXIO) => Duration::from_secs(5),
            Some(libc::ENOENT) => Duration::from_secs(1),
            _ => Duration::ZERO,
        };
        if start.elapsed() >= patience {
            return Err(match error.raw_os_error() {
                Some(libc::ENOENT) => no_node(n, &device),
                Some(libc::EPERM) => forbidden(&device),
                _ => EngineError::io("attach the image", image)(error),
            });
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn try_ways(device: &OwnedFd, backing: &OwnedFd, image: &Path) -> io::Result<()> {
    let mut last = io::Error::from_raw_os_error(libc::EINVAL);
    for (flags, block) in WAYS {
        match ioctl::loop_configure(
            device,
            backing.as_fd(),
            flags,
            block,
            image.as_os_str().as_bytes(),
        ) {
            Ok(()) => return Ok(()),
            Err(e) if e.raw_os_error() == Some(libc::EINVAL) => last = e,
            Err(e) => return Err(e),
        }
    }
    Err(last)
}

fn no_loop(image: &Path) -> EngineError {
    EngineError::Refused {
        why: "there are no loop devices here".into(),
        path: Some(image.to_owned()),
        hint: Some(
            "load the driver: modprobe loop; in a container: start it privileged; or: --vault copy".into(),
        ),
    }
}

/// The flags of `docker run` with which a container may do all that a pool needs; the second where a machine refuses the
/// first (it has not all rights to give).
pub const CONTAINER_FLAGS: &str = "--privileged; where that is refused: --cap-add ALL --cap-drop SYS_RESOURCE --device-cgroup-rule 'a *:* rwm'";

fn forbidden(device: &Path) -> EngineError {
    EngineError::Refused {
        why: format!("this container may not use {}", device.display()),
        path: Some(device.to_owned()),
        hint: Some(format!("start it with {CONTAINER_FLAGS}; or: --vault copy")),
    }
}

fn no_node(n: u32, device: &Path) -> EngineError {
    EngineError::Refused {
        why: format!(
            "the kernel gave loop device {n}, but {} is missing",
            device.display()
        ),
        path: Some(device.to_owned()),
        hint: Some(format!("make it: mknod {} b 7 {n}", device.display())),
    }
}

/// Waits until the image is attached nowhere, at most `limit`; asks the kernel to detach a device that was
/// attached by hand. False if it is still attached.
pub fn wait_free(image: &Path, limit: Duration) -> Result<bool> {
    let start = Instant::now();
    let mut asked = false;
    loop {
        // the look-up itself holds the device: drop it before the next look
        let Some(device) = attached(image)?.map(|a| a.device) else {
            return Ok(true);
        };
        if start.elapsed() > limit {
            return Ok(false);
        }
        if !asked && start.elapsed() > Duration::from_millis(300) && is_of(&device, image)? {
            asked = true;
            let open = loopdev::LoopDevice::open(&device).map_err(EngineError::io("open", &device))?;
            match open.detach() {
                Ok(()) => {}
                Err(e) if matches!(e.raw_os_error(), Some(libc::ENXIO | libc::EBUSY)) => {}
                Err(e) => return Err(EngineError::io("detach", &device)(e)),
            }
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Tells the loop device that its image has grown.
pub(crate) fn grown(device: &Path) -> Result<()> {
    loopdev::LoopDevice::open(device)
        .and_then(|d| d.set_capacity())
        .map_err(EngineError::io("grow", device))
}
