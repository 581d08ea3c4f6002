//! Files of state that a full disk or a crash cannot destroy.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

/// Writes a file for its owner alone in one step, durably: into `temp` in the same folder, fsync, rename, fsync of
/// the folder. After a failure (a full disk) the old file is there as it was, and nothing of the new one.
pub fn replace_file(path: &Path, temp: &Path, bytes: &[u8]) -> io::Result<()> {
    let write = || {
        let mut file = own_file(temp)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(temp, path)?;
        File::open(path.parent().unwrap_or(Path::new(".")))?.sync_all()
    };
    write().inspect_err(|_| {
        let removed = fs::remove_file(temp);
        tracing::debug!(?removed, "took back a file that could not be written");
    })
}

/// An empty file for its owner alone, new or cut off; what is no regular file is not written to, and not waited for.
pub fn own_file(path: &Path) -> io::Result<File> {
    let file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .custom_flags(nix::libc::O_NOFOLLOW | nix::libc::O_NONBLOCK)
        .mode(0o600)
        .open(path)?;
    if file.metadata()?.is_file() {
        return Ok(file);
    }
    Err(io::Error::other("it is no regular file"))
}

/// Adds lines (each with its end) to a file of lines, for its owner alone, durably. After a failure the file is as
/// it was; a line that a crash tore is not continued.
pub fn append_lines(path: &Path, lines: &str) -> io::Result<()> {
    let mut file = OpenOptions::new()
        .read(true)
        .create(true)
        .append(true)
        .mode(0o600)
        .open(path)?;
    let before = file.metadata()?.len();
    let mut last = [b'\n'];
    if before > 0 {
        file.read_exact_at(&mut last, before - 1)?;
    }
    let torn = if last == [b'\n'] { "" } else { "\n" };
    let written = file.write_all(format!("{torn}{lines}").as_bytes());
    if written.is_err() {
        file.set_len(before)?;
    }
    written.and_then(|()| file.sync_all())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_torn_line_is_not_continued() {
        let dir = tempfile::tempdir().expect("tempdir");
        let file = dir.path().join("lines");
        append_lines(&file, "1\n2\n").expect("append");
        std::fs::write(&file, "1\n2").expect("tear");
        append_lines(&file, "3\n").expect("append");
        assert_eq!(std::fs::read_to_string(&file).expect("read"), "1\n2\n3\n");
    }

    #[test]
    fn a_file_that_cannot_be_replaced_stays() {
        let dir = tempfile::tempdir().expect("tempdir");
        let (file, temp) = (dir.path().join("f"), dir.path().join("f.new"));
        replace_file(&file, &temp, b"one").expect("write");
        assert_eq!(std::fs::read(&file).expect("read"), b"one");
        // no folder takes the place of a file
        let folder = dir.path().join("folder");
        std::fs::create_dir_all(folder.join("in")).expect("folder");
        replace_file(&folder, &temp, b"two").expect_err("a folder is there");
        assert!(folder.join("in").is_dir() && !temp.exists());
        // nor is a link followed
        std::os::unix::fs::symlink(&file, &temp).expect("link");
        replace_file(&dir.path().join("g"), &temp, b"three").expect_err("a link is there");
        assert_eq!(std::fs::read(&file).expect("read"), b"one");
    }
}
