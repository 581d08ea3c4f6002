//! Where the root file system of a process is: the last mount at `/` that its mountinfo shows, whatever engine made
//! it. (Format: proc(5); the options of an overlay: Documentation/filesystems/overlayfs.rst.)

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use crate::engine::mounts::{Mount, find, unescape};

/// A root file system.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Root {
    /// A folder of a file system.
    Folder {
        /// The number of the file system, as mountinfo has it.
        device: String,
        /// Its path within that.
        inside: PathBuf,
    },
    /// An overlay.
    Overlay(Overlay),
}

/// The layers of an overlay.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Overlay {
    /// The number of its file system.
    pub device: String,
    /// What was changed.
    pub upper: PathBuf,
    /// The folder that the kernel works in.
    pub work: PathBuf,
    /// What is below, the uppermost first.
    pub lower: Vec<PathBuf>,
    /// Its other options, as they are mounted again: `index=off`, ...
    pub options: Vec<String>,
}

/// Splits at a byte that no backslash stands before.
fn split(text: &[u8], at: u8) -> Vec<&[u8]> {
    let (mut out, mut from, mut escaped) = (Vec::new(), 0, false);
    for (i, b) in text.iter().enumerate() {
        if *b == at && !escaped {
            out.push(&text[from..i]);
            from = i + 1;
        }
        escaped = *b == b'\\' && !escaped;
    }
    out.push(&text[from..]);
    out
}

/// Takes away the backslashes before other bytes.
fn plain(text: &[u8]) -> PathBuf {
    let (mut out, mut escaped) = (Vec::with_capacity(text.len()), false);
    for b in text {
        escaped = *b == b'\\' && !escaped;
        if !escaped {
            out.push(*b);
        }
    }
    PathBuf::from(OsString::from_vec(out))
}

/// The layers in the options of an overlay's mount.
fn overlay(mount: &Mount) -> Option<Overlay> {
    let mut found = Overlay {
        device: mount.device.clone(),
        ..Overlay::default()
    };
    for option in split(mount.super_options.as_bytes(), b',') {
        let mut halves = option.splitn(2, |b| *b == b'=');
        let (key, value) = (
            halves.next().unwrap_or_default(),
            halves.next().unwrap_or_default(),
        );
        let value = unescape(value);
        let bytes = value.as_bytes();
        match key {
            b"upperdir" => found.upper = plain(bytes),
            b"workdir" => found.work = plain(bytes),
            b"lowerdir" => found.lower = split(bytes, b':').into_iter().map(plain).collect(),
            // one a layer, since Linux 6.5
            b"lowerdir+" => found.lower.push(plain(bytes)),
            b"rw" | b"ro" => {}
            _ => found.options.push(String::from_utf8_lossy(option).into_owned()),
        }
    }
    let whole = found.upper.is_absolute() && found.work.is_absolute();
    whole.then_some(found)
}

/// The root file system that these mounts of a process show; `None` if it is of a kind that is not known.
pub fn root(mounts: &[Mount]) -> Option<Root> {
    let mount = mounts.iter().rev().find(|m| m.point == Path::new("/"))?;
    match mount.fs_type.as_str() {
        "overlay" => overlay(mount).map(Root::Overlay),
        kind if kind.starts_with("fuse") => None,
        _ => Some(Root::Folder {
            device: mount.device.clone(),
            inside: mount.root.clone(),
        }),
    }
}

/// The path here of a folder of a file system: through the mount that shows the most of it, as one that shows the
/// folder alone goes away with the container.
pub fn host_path(device: &str, inside: &Path, own: &[Mount]) -> Option<PathBuf> {
    let through = |m: &&Mount| m.device == device && inside.starts_with(&m.root);
    let mount = own
        .iter()
        .filter(through)
        .min_by_key(|m| m.root.components().count())?;
    let rest = inside.strip_prefix(&mount.root).ok()?;
    Some(if rest.as_os_str().is_empty() {
        mount.point.clone()
    } else {
        mount.point.join(rest)
    })
}

/// What a path here is within its file system, and the mount that it is reached by.
pub fn within<'a>(path: &Path, own: &'a [Mount]) -> Option<(PathBuf, &'a Mount)> {
    let (_, inside) = crate::sandbox::mounts::identity(own, path)?;
    Some((inside, find(own, path)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::mounts::parse;

    #[test]
    fn a_root_on_btrfs_is_a_folder_of_it() {
        let theirs = parse(
            b"1 0 0:30 / / rw - rootfs rootfs rw\n2 1 0:45 /d/btrfs/subvolumes/abc / rw,relatime master:9 - btrfs /dev/loop0 rw,subvolid=270,subvol=/d/btrfs/subvolumes/abc\n3 2 0:5 / /proc rw - proc proc rw\n",
        );
        let found = root(&theirs).expect("a root");
        let inside = PathBuf::from("/d/btrfs/subvolumes/abc");
        assert_eq!(
            found,
            Root::Folder {
                device: "0:45".into(),
                inside: inside.clone()
            }
        );
        // the mount of the folder alone is not taken
        let own = parse(
            b"7 1 0:45 /d/btrfs/subvolumes/abc /run/task/rootfs rw - btrfs /dev/loop0 rw\n8 1 0:45 / /mnt rw - btrfs /dev/loop0 rw\n9 1 0:46 / /x rw - btrfs /dev/loop1 rw\n",
        );
        assert_eq!(
            host_path("0:45", &inside, &own),
            Some("/mnt/d/btrfs/subvolumes/abc".into())
        );
        assert_eq!(host_path("0:47", &inside, &own), None);
        let (back, _) = within(Path::new("/mnt/d/btrfs/subvolumes/abc"), &own).expect("within");
        assert_eq!(back, inside);
    }

    #[test]
    fn the_layers_of_an_overlay_are_read_with_their_escapes() {
        let theirs = parse(
            b"2 1 0:50 / / rw - overlay overlay rw,lowerdir=/d/a\\040b/l/X:/d/c\\134:d/diff,upperdir=/d/x\\054y/diff,workdir=/d/x\\054y/work,index=off,nouserxattr\n",
        );
        let Some(Root::Overlay(o)) = root(&theirs) else {
            panic!("no overlay")
        };
        assert_eq!(o.upper, Path::new("/d/x,y/diff"));
        assert_eq!(o.work, Path::new("/d/x,y/work"));
        assert_eq!(
            o.lower,
            [PathBuf::from("/d/a b/l/X"), PathBuf::from("/d/c:d/diff")]
        );
        assert_eq!(o.options, ["index=off", "nouserxattr"]);
        let newer =
            parse(b"2 1 0:50 / / rw - overlay overlay rw,lowerdir+=/a,lowerdir+=/b,upperdir=/u,workdir=/w\n");
        let Some(Root::Overlay(o)) = root(&newer) else {
            panic!("no overlay")
        };
        assert_eq!(o.lower, [PathBuf::from("/a"), PathBuf::from("/b")]);
    }

    #[test]
    fn what_cannot_be_told_is_none() {
        assert_eq!(root(&[]), None);
        let fuse = parse(b"2 1 0:50 / / rw - fuse.fuse-overlayfs fuse-overlayfs rw,user_id=0\n");
        assert_eq!(root(&fuse), None);
        let read_only = parse(b"2 1 0:50 / / ro - overlay overlay ro,lowerdir=/a:/b\n");
        assert_eq!(root(&read_only), None);
    }
}
