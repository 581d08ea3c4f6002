//! A digest of a whole tree: paths, kinds, modes and contents. tests/recorder/trace_tree.py makes the same of
//! the real workspace, so a demo can prove that its tree is the recorded one, byte for byte, without asking
//! the engine.

use std::io::Read;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{self, AtFlags, FileType, Mode, OFlags};

use super::{DemoError, Result};

/// CRC-32C over all that is below `root`, as eight hexadecimal digits. Follows no link; refuses what is
/// neither file, folder nor symbolic link.
pub fn digest(root: BorrowedFd<'_>) -> Result<String> {
    let mut paths = Vec::new();
    list(root, Path::new(""), &mut paths)?;
    paths.sort_by(|(a, _), (b, _)| a.as_os_str().as_bytes().cmp(b.as_os_str().as_bytes()));
    let crc = paths
        .iter()
        .fold(0, |crc, (_, record)| crc32c::crc32c_append(crc, record));
    Ok(format!("{crc:08x}"))
}

fn list(folder: BorrowedFd<'_>, below: &Path, out: &mut Vec<(PathBuf, Vec<u8>)>) -> Result<()> {
    let entries = fs::Dir::read_from(folder).map_err(DemoError::io("list", below))?;
    for entry in entries {
        let entry = entry.map_err(DemoError::io("list", below))?;
        let name = entry.file_name();
        if name == c"." || name == c".." {
            continue;
        }
        let path = below.join(std::ffi::OsStr::from_bytes(name.to_bytes()));
        let stat =
            fs::statat(folder, name, AtFlags::SYMLINK_NOFOLLOW).map_err(DemoError::io("read", &path))?;
        let mode = stat.st_mode & 0o7777;
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory => {
                let inner = open(folder, name, OFlags::DIRECTORY, &path)?;
                out.push((path.clone(), record(&path, "dir", mode, b"")));
                list(inner.as_fd(), &path, out)?;
            }
            FileType::RegularFile => {
                let mut bytes = Vec::new();
                std::fs::File::from(open(folder, name, OFlags::empty(), &path)?)
                    .read_to_end(&mut bytes)
                    .map_err(DemoError::io("read", &path))?;
                out.push((path.clone(), record(&path, "file", mode, &bytes)));
            }
            FileType::Symlink => {
                let target =
                    fs::readlinkat(folder, name, Vec::new()).map_err(DemoError::io("read", &path))?;
                out.push((path.clone(), record(&path, "link", 0, target.as_bytes())));
            }
            _ => {
                return Err(DemoError::Io {
                    doing: "compare",
                    path,
                    source: std::io::Error::other("it is neither file, folder nor link"),
                });
            }
        }
    }
    Ok(())
}

fn open(folder: BorrowedFd<'_>, name: &std::ffi::CStr, kind: OFlags, path: &Path) -> Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC | kind;
    fs::openat(folder, name, flags, Mode::empty()).map_err(DemoError::io("read", path))
}

fn record(path: &Path, kind: &str, mode: u32, data: &[u8]) -> Vec<u8> {
    let mut out = path.as_os_str().as_bytes().to_vec();
    out.extend_from_slice(format!("\0{kind}\0{mode:o}\0{}\0", data.len()).as_bytes());
    out.extend_from_slice(data);
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};

    fn of(dir: &Path) -> String {
        digest(std::fs::File::open(dir).expect("opens").as_fd()).expect("a digest")
    }

    #[test]
    fn contents_modes_names_and_links_count() {
        let dir = tempfile::tempdir().expect("a folder");
        let at = |n: &str| dir.path().join(n);
        let mut seen = vec![of(dir.path())];
        assert_eq!(seen[0], "00000000");
        std::fs::write(at("a"), "1").expect("written");
        seen.push(of(dir.path()));
        std::fs::write(at("a"), "2").expect("written");
        seen.push(of(dir.path()));
        std::fs::set_permissions(at("a"), std::fs::Permissions::from_mode(0o600)).expect("set");
        seen.push(of(dir.path()));
        std::fs::rename(at("a"), at("b")).expect("renamed");
        seen.push(of(dir.path()));
        symlink("b", at("l")).expect("linked");
        seen.push(of(dir.path()));
        std::fs::create_dir(at("d")).expect("made");
        seen.push(of(dir.path()));
        let all: std::collections::BTreeSet<_> = seen.iter().collect();
        assert_eq!(all.len(), seen.len(), "{seen:?}");
    }

    #[test]
    fn a_pipe_is_refused_and_not_opened() {
        let dir = tempfile::tempdir().expect("a folder");
        let root = std::fs::File::open(dir.path()).expect("opens");
        fs::mknodat(&root, "pipe", FileType::Fifo, Mode::from_raw_mode(0o600), 0).expect("made");
        let e = digest(root.as_fd()).expect_err("refused");
        assert!(e.to_string().contains("pipe"), "{e}");
    }
}
