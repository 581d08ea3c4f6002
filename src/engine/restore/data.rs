//! The bytes of a file: shared with the source where the file system can, copied where not.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use rustix::fs::{SeekFrom, fstat, ftruncate, seek};
use rustix::io::{Errno, pwrite};

use crate::engine::changes::content::{next_data, read_at};
use crate::engine::ioctl;

/// Bytes copied at once.
const STEP: u64 = 1 << 20;

/// Makes `to` hold exactly the bytes of `from`, sharing the extents if possible.
pub(super) fn share_or_copy(from: impl AsFd, to: impl AsFd) -> io::Result<()> {
    let (from, to) = (from.as_fd(), to.as_fd());
    let size = fstat(from)?.st_size as u64;
    if fstat(to)?.st_size as u64 > size {
        ftruncate(to, size)?;
    }
    // the whole source, holes too; the target is not longer, so that the end need not be aligned
    if size == 0 || ioctl::clone_range(from, 0, 0, to, 0).is_ok() {
        return Ok(());
    }
    copy(from, to)
}

/// Makes `to` hold exactly the bytes of `from`; holes stay holes. Returns the bytes written.
pub(super) fn copy_sparse(from: impl AsFd, to: impl AsFd) -> io::Result<u64> {
    let (from, to) = (from.as_fd(), to.as_fd());
    let size = fstat(from)?.st_size as u64;
    ftruncate(to, 0)?;
    let mut buffer = vec![0; STEP.min(size) as usize];
    let (mut at, mut written) = (0, 0);
    while at < size {
        let Some(start) = next_data(from, at)? else { break };
        let end = hole_after(from, start)?.min(size);
        at = start;
        while at < end {
            let n = read_at(from, &mut buffer[..STEP.min(end - at) as usize], at)?;
            if n == 0 {
                return Err(io::Error::from(io::ErrorKind::UnexpectedEof));
            }
            write_all(to, &buffer[..n], at)?;
            at += n as u64;
            written += n as u64;
        }
    }
    ftruncate(to, size)?;
    Ok(written)
}

fn copy(from: BorrowedFd<'_>, to: BorrowedFd<'_>) -> io::Result<()> {
    copy_sparse(from, to).map(drop)
}

/// Where the hole after the data at `at` begins: at the latest at the end.
fn hole_after(fd: BorrowedFd<'_>, at: u64) -> io::Result<u64> {
    match seek(fd, SeekFrom::Hole(at)) {
        Ok(pos) => Ok(pos),
        Err(Errno::INVAL) => Ok(u64::MAX),
        Err(e) => Err(e.into()),
    }
}

fn write_all(fd: BorrowedFd<'_>, mut bytes: &[u8], mut at: u64) -> io::Result<()> {
    while !bytes.is_empty() {
        match pwrite(fd, bytes, at) {
            Ok(0) => return Err(io::Error::from(io::ErrorKind::WriteZero)),
            Ok(n) => {
                bytes = &bytes[n..];
                at += n as u64;
            }
            Err(Errno::INTR) => {}
            Err(e) => return Err(e.into()),
        }
    }
    Ok(())
}
