//! The marker of the layout's version.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::path::Path;

use nix::libc;
use rustix::fs::{Mode, OFlags};

use super::super::{EngineError, Result, random_id, subvolume};

/// The version of the layout that this program writes and reads.
pub const FORMAT: u32 = 1;
pub(super) const FORMAT_FILE: &str = "format";
const FORMAT_WORD: &str = "respool-pool";

/// Reads the marker of the layout; writes it into a new pool, or anew where a crash left it empty.
pub(super) fn check_format(base: &OwnedFd, path: &Path) -> Result<()> {
    let file = path.join(FORMAT_FILE);
    let mut text = String::new();
    match subvolume::open_beneath(base, Path::new(FORMAT_FILE), OFlags::RDONLY | OFlags::NONBLOCK) {
        Ok(fd) => {
            let mut bytes = Vec::new();
            File::from(fd)
                .take(256)
                .read_to_end(&mut bytes)
                .map_err(EngineError::io("read", &file))?;
            text.push_str(String::from_utf8_lossy(&bytes).trim_matches(['\0', '\n', ' ']));
        }
        Err(e) if e.raw_os_error() == Some(libc::ENOENT) => {}
        Err(e) => return Err(EngineError::io("read", &file)(e)),
    }
    if !text.is_empty() {
        return known_format(&text, &file);
    }
    let temp = format!("{FORMAT_FILE}.{}", random_id("new"));
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    let made = match rustix::fs::openat(base, temp.as_str(), flags, Mode::RUSR | Mode::WUSR) {
        Ok(fd) => File::from(fd),
        Err(rustix::io::Errno::ROFS) => return Ok(()),
        Err(e) => return Err(EngineError::io("write", &file)(e.into())),
    };
    let mut made = made;
    made.write_all(format!("{FORMAT_WORD} {FORMAT}\n").as_bytes())
        .and_then(|()| made.sync_all())
        .map_err(EngineError::io("write", &file))?;
    rustix::fs::renameat(base, temp.as_str(), base, FORMAT_FILE)
        .map_err(|e| EngineError::io("write", &file)(e.into()))
}

fn known_format(text: &str, file: &Path) -> Result<()> {
    let version = text
        .strip_prefix(FORMAT_WORD)
        .and_then(|v| v.trim().parse::<u32>().ok());
    match version {
        Some(v) if v <= FORMAT => Ok(()),
        Some(v) => Err(EngineError::Refused {
            why: format!("the pool has format {v}, this respool knows formats up to {FORMAT}"),
            path: Some(file.to_owned()),
            hint: Some("use a newer respool".into()),
        }),
        None => Err(EngineError::Damaged {
            what: "the format marker of the pool cannot be read".into(),
            path: file.to_owned(),
        }),
    }
}
