//! A container that was started with `--rm` on an overlay: it must not be stopped, and a restart keeps its overlay
//! mounted. So its upper layer is made anew beside, the two are exchanged, and the engine's mount of the overlay is
//! made again over the new one; the restart then takes that. What the old processes still write goes into the old
//! layer.

use std::ffi::{CString, OsString};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::mount::{MountFlags, UnmountFlags};

use super::part::Part;
use crate::engine::restore::{copy_tree, remove};
use crate::engine::{CheckpointId, Difference, EngineError, Result};
use crate::process::fault_point;
use crate::progress::Progress;
use crate::sandbox::docker::rootfs::Overlay;
use crate::sandbox::{bind, mounts};
use std::os::fd::AsFd;

/// So many layers may be left by restores that were cut short.
const MOST: usize = 8;

/// A path beside another one.
fn next_to(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.file_name().map(OsString::from).unwrap_or_default();
    name.push(suffix);
    path.with_file_name(name)
}

/// The engine's mount of an overlay here: the one that it shows the container's first process.
fn mount_point(overlay: &Overlay) -> Result<Option<PathBuf>> {
    let io = EngineError::io("read the mounts at", &overlay.upper);
    let all = mounts::mounts(None).map_err(io)?;
    let shown = |m: &&mounts::Mount| m.device == overlay.device && m.root == Path::new("/");
    let found = all.iter().find(shown).map(|m| m.point.clone());
    // one that was taken away when a restore was cut short
    let merged = overlay.upper.with_file_name("merged");
    Ok(found.or_else(|| merged.is_dir().then_some(merged)))
}

/// True if that can be done with this overlay.
pub(super) fn possible(overlay: &Overlay) -> Result<bool> {
    let plain = |p: &Path| p.is_absolute() && !p.as_os_str().as_bytes().iter().any(|b| b":,\\".contains(b));
    let paths = overlay.lower.iter().chain([&overlay.upper, &overlay.work]);
    Ok(
        paths.map(PathBuf::as_path).all(plain)
            && !overlay.lower.is_empty()
            && mount_point(overlay)?.is_some(),
    )
}

/// The options of the mount: those that it had, and none that would refuse another layer.
fn options(overlay: &Overlay) -> Result<CString> {
    let lower: Vec<&[u8]> = overlay.lower.iter().map(|p| p.as_os_str().as_bytes()).collect();
    let mut text = b"lowerdir=".to_vec();
    text.extend(lower.join(&b':'));
    for (key, path) in [("upperdir", &overlay.upper), ("workdir", &overlay.work)] {
        text.extend(format!(",{key}=").bytes());
        text.extend(path.as_os_str().as_bytes());
    }
    let kept = |o: &&String| {
        ["redirect_dir=", "metacopy=", "xino=", "userxattr", "volatile"]
            .iter()
            .any(|k| o.starts_with(k))
    };
    for option in overlay.options.iter().filter(kept) {
        text.extend(format!(",{option}").bytes());
    }
    text.extend(b",index=off");
    CString::new(text).map_err(|e| EngineError::io("mount", &overlay.upper)(e.into()))
}

fn exchange(a: &Path, b: &Path) -> Result<()> {
    renameat_with(CWD, a, CWD, b, RenameFlags::EXCHANGE).map_err(|e| EngineError::io("exchange", a)(e.into()))
}

/// The folders that the layer and its work folder get when they are exchanged.
fn beside(overlay: &Overlay, mark: &str, i: usize) -> [PathBuf; 2] {
    let suffix = format!("{mark}-{i}");
    [next_to(&overlay.upper, &suffix), next_to(&overlay.work, &suffix)]
}

/// Brings the layer of a paused container back, for its next restart. What differs from the checkpoint, if anything
/// does; then nothing was exchanged.
pub(super) fn remount(
    part: &Part,
    overlay: &Overlay,
    target: &CheckpointId,
    mark: &str,
    progress: &dyn Progress,
) -> Result<Vec<Difference>> {
    let free = |i: &usize| {
        beside(overlay, mark, *i)
            .iter()
            .all(|p| std::fs::symlink_metadata(p).is_err())
    };
    let gone = || EngineError::NoPath {
        path: overlay.upper.clone(),
    };
    let i = (0..MOST).find(free).ok_or_else(gone)?;
    let [upper, work] = beside(overlay, mark, i);
    for folder in [&upper, &work] {
        let made = std::fs::DirBuilder::new().mode(0o700).create(folder);
        made.map_err(EngineError::io("make", folder))?;
    }
    let open = |path: &Path| bind::open_folder(path).map_err(EngineError::io("open", path));
    copy_tree(open(&overlay.upper)?.as_fd(), open(&upper)?.as_fd(), progress)?;
    fault_point("remount-copied");
    let found = part.rebuild(&upper, target, progress)?;
    if !found.is_empty() {
        return Ok(found);
    }
    exchange(&overlay.upper, &upper)?;
    exchange(&overlay.work, &work)?;
    fault_point("remount-exchanged");
    let point = mount_point(overlay)?.ok_or_else(gone)?;
    let flags = UnmountFlags::DETACH | UnmountFlags::NOFOLLOW;
    match rustix::mount::unmount(&point, flags) {
        // not mounted: a restore was cut short here
        Ok(()) | Err(rustix::io::Errno::INVAL) => {}
        Err(e) => return Err(EngineError::io("unmount", &point)(e.into())),
    }
    fault_point("remount-unmounted");
    let data = options(overlay)?;
    rustix::mount::mount("overlay", &point, "overlay", MountFlags::empty(), data.as_c_str())
        .map_err(|e| EngineError::io("mount the container's files at", &point)(e.into()))?;
    Ok(found)
}

/// Removes the layers that were exchanged: the container has been restarted.
pub(super) fn clear(overlay: &Overlay, mark: &str) -> Result<()> {
    for path in (0..MOST).flat_map(|i| beside(overlay, mark, i)) {
        let folder = match bind::open_folder(&path) {
            Ok(folder) => folder,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => continue,
            Err(e) => return Err(EngineError::io("open", &path)(e)),
        };
        remove::empty(&folder, &path)?;
        std::fs::remove_dir(&path).map_err(EngineError::io("remove", &path))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_overlay_is_mounted_as_it_was() {
        let overlay = Overlay {
            device: "0:9".into(),
            upper: "/d/x/diff".into(),
            work: "/d/x/work".into(),
            lower: vec!["/d/l/A".into(), "/d/l/B".into()],
            options: vec!["index=off".into(), "xino=off".into(), "nouserxattr".into()],
        };
        let text = options(&overlay).expect("options");
        assert_eq!(
            text.to_str(),
            Ok("lowerdir=/d/l/A:/d/l/B,upperdir=/d/x/diff,workdir=/d/x/work,xino=off,index=off")
        );
        assert_eq!(
            beside(&overlay, ".respool-a", 1),
            [
                PathBuf::from("/d/x/diff.respool-a-1"),
                PathBuf::from("/d/x/work.respool-a-1")
            ]
        );
        let strange = Overlay {
            lower: vec!["l/A".into()],
            ..overlay
        };
        assert!(!possible(&strange).expect("mounts"));
    }
}
