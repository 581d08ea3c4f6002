//! Whether two regular files hold the same bytes.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use rustix::fs::{SeekFrom, fstat, seek};
use rustix::io::{Errno, pread};

/// Bytes compared at once.
const STEP: usize = 256 << 10;

/// Where the next data begins at or after `at`; None if there is none. File systems without holes say `at`.
pub(in crate::engine) fn next_data(fd: BorrowedFd<'_>, at: u64) -> io::Result<Option<u64>> {
    match seek(fd, SeekFrom::Data(at)) {
        Ok(pos) => Ok(Some(pos)),
        Err(Errno::NXIO) => Ok(None),
        Err(Errno::INVAL) => Ok(Some(at)),
        Err(e) => Err(e.into()),
    }
}

/// Reads exactly `buffer.len()` bytes, or up to the end.
pub(in crate::engine) fn read_at(fd: BorrowedFd<'_>, buffer: &mut [u8], at: u64) -> io::Result<usize> {
    let mut done = 0;
    while done < buffer.len() {
        match pread(fd, &mut buffer[done..], at + done as u64) {
            Ok(0) => break,
            Ok(n) => done += n,
            Err(Errno::INTR) => {}
            Err(e) => return Err(e.into()),
        }
    }
    Ok(done)
}

/// Compares every byte; holes on both sides are skipped.
pub(in crate::engine) fn same_bytes(
    old: impl AsFd,
    new: impl AsFd,
    cancelled: &dyn Fn() -> bool,
) -> io::Result<bool> {
    let (old, new) = (old.as_fd(), new.as_fd());
    let size = fstat(old)?.st_size as u64;
    if size != fstat(new)?.st_size as u64 {
        return Ok(false);
    }
    let step = STEP.min(size as usize);
    let (mut left, mut right) = (vec![0; step], vec![0; step]);
    let mut at = 0;
    while at < size {
        // small files are not worth the extra calls
        if size > STEP as u64 {
            let next = [next_data(old, at)?, next_data(new, at)?];
            match next.into_iter().flatten().min() {
                Some(pos) => at = pos,
                None => break,
            }
        }
        let n = read_at(old, &mut left, at)?;
        if n != read_at(new, &mut right, at)? || left[..n] != right[..n] {
            return Ok(false);
        }
        if n == 0 {
            break;
        }
        if cancelled() {
            return Err(io::Error::from(io::ErrorKind::Interrupted));
        }
        at += n as u64;
    }
    Ok(true)
}
