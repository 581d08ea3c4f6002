//! The mounts of this process, from `/proc/self/mountinfo` (format: proc(5)).

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use super::{EngineError, Result};

/// One mount.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mount {
    /// Its number.
    pub id: u64,
    /// The number of the mount that it is on.
    pub parent: u64,
    /// The number of the file system: `0:45`. (One for all subvolumes of a Btrfs, unlike `st_dev`.)
    pub device: String,
    /// The folder within the file system that is shown there (for Btrfs with the subvolume's path).
    pub root: PathBuf,
    /// Where it is mounted.
    pub point: PathBuf,
    /// The options of this mount: `rw,noatime`.
    pub options: String,
    /// How it hears of mounts elsewhere: `shared:7`, `master:1`.
    pub peers: Vec<String>,
    /// The type of the file system: `btrfs`.
    pub fs_type: String,
    /// The device, or another source.
    pub source: PathBuf,
    /// The options of the file system.
    pub super_options: String,
}

impl Mount {
    /// True if nothing can be written through it.
    pub fn read_only(&self) -> bool {
        let ro = |s: &str| s.split(',').any(|o| o == "ro");
        ro(&self.options) || ro(&self.super_options)
    }
}

/// Undoes the `\ooo` escapes of mountinfo.
pub fn unescape(field: &[u8]) -> OsString {
    let mut out = Vec::with_capacity(field.len());
    let mut i = 0;
    while i < field.len() {
        let octal = field.get(i + 1..i + 4).filter(|d| {
            field[i] == b'\\' && matches!(d[0], b'0'..=b'3') && d.iter().all(|c| matches!(c, b'0'..=b'7'))
        });
        if let Some(d) = octal {
            out.push((d[0] - b'0') << 6 | (d[1] - b'0') << 3 | (d[2] - b'0'));
            i += 4;
        } else {
            out.push(field[i]);
            i += 1;
        }
    }
    OsString::from_vec(out)
}

fn parse_line(line: &[u8]) -> Option<Mount> {
    let fields: Vec<&[u8]> = line.split(|b| *b == b' ').collect();
    let dash = fields.iter().skip(6).position(|f| *f == b"-")? + 6;
    let text = |i: usize| String::from_utf8_lossy(fields.get(i).copied().unwrap_or_default()).into_owned();
    let path = |i: usize| PathBuf::from(unescape(fields.get(i).copied().unwrap_or_default()));
    Some(Mount {
        id: text(0).parse().ok()?,
        parent: text(1).parse().ok()?,
        device: text(2),
        root: path(3),
        point: path(4),
        options: text(5),
        peers: (6..dash).map(text).collect(),
        fs_type: text(dash + 1),
        source: path(dash + 2),
        super_options: text(dash + 3),
    })
}

/// Parses the text of a mountinfo file; lines of another form are left out.
pub fn parse(text: &[u8]) -> Vec<Mount> {
    text.split(|b| *b == b'\n').filter_map(parse_line).collect()
}

/// The mounts that this process sees, in the order in which they were made.
pub fn list() -> Result<Vec<Mount>> {
    let path = Path::new("/proc/self/mountinfo");
    let text = std::fs::read(path).map_err(EngineError::io("read", path))?;
    Ok(parse(&text))
}

/// The mount that `path` (absolute, without symbolic links) is on: the last one made among those with the
/// longest mount point.
pub fn find<'a>(mounts: &'a [Mount], path: &Path) -> Option<&'a Mount> {
    mounts
        .iter()
        .filter(|m| path.starts_with(&m.point))
        .max_by_key(|m| m.point.as_os_str().len())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::ffi::OsStrExt;

    #[test]
    fn lines_with_escapes_and_optional_fields() {
        let text = b"36 35 98:0 /mnt1 /mnt\\0402 rw,noatime master:1 shared:7 - btrfs /dev/loop0 rw,ssd\n\
            37 36 0:5 / /x\\134\\012 ro - tmpfs none rw\nrubbish\n";
        let m = parse(text);
        assert_eq!(m.len(), 2);
        assert_eq!((m[0].id, m[0].parent), (36, 35));
        assert_eq!(m[0].root, Path::new("/mnt1"));
        assert_eq!(m[0].point, Path::new("/mnt 2"));
        assert_eq!(
            (m[0].fs_type.as_str(), m[0].source.as_path()),
            ("btrfs", Path::new("/dev/loop0"))
        );
        assert_eq!(m[1].point.as_os_str().as_bytes(), b"/x\\\n");
        assert_eq!(m[0].peers, ["master:1", "shared:7"]);
        assert!(!m[0].read_only() && m[1].read_only());
    }

    #[test]
    fn the_innermost_and_last_mount_holds_a_path() {
        let text =
            b"1 0 0:1 / / rw - ext4 a rw\n2 1 0:2 / /w rw - btrfs b rw\n3 2 0:3 / /w rw - btrfs c rw\n";
        let m = parse(text);
        let source = |p: &str| find(&m, Path::new(p)).map(|m| m.source.clone());
        assert_eq!(source("/w/x"), Some("c".into()));
        assert_eq!(source("/wx"), Some("a".into()));
    }

    #[test]
    fn escapes_that_are_none_stay() {
        assert_eq!(unescape(b"a\\9b\\04").as_bytes(), b"a\\9b\\04");
    }
}
