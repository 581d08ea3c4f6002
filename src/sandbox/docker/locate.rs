//! Finds the folder on the host that holds what a container changed, and how it can be kept.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::engine::Engine;
use super::inspect::Inspect;
use super::rootfs::{self, Overlay, Root};
use super::technique::{Technique, Verdict};
use crate::engine::mounts::Mount;
use crate::engine::subvolume::{self, ROOT_INODE};
use crate::sandbox::{bind, mounts};
use crate::text::{shown, shown_path};

/// Where the files of a container are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Located {
    /// The root folder, or the upper layer of an overlay.
    pub path: PathBuf,
    /// The layers, where it is an overlay.
    pub overlay: Option<Overlay>,
    /// How it is kept.
    pub verdict: Verdict,
}

impl Located {
    /// What tells the layers below; empty where there are none.
    pub fn chain(&self) -> String {
        let Some(overlay) = &self.overlay else {
            return String::new();
        };
        let mut hash = blake3::Hasher::new();
        // the uppermost is the container's own: name resolution and mount points
        let own = self.path.parent().map(|p| {
            let mut name = p.as_os_str().to_owned();
            name.push("-init");
            PathBuf::from(name)
        });
        for layer in &overlay.lower {
            // engines mount layers by short links
            let real = layer.canonicalize().unwrap_or_else(|_| layer.clone());
            if own.as_ref().is_some_and(|own| real.starts_with(own)) {
                continue;
            }
            hash.update(real.as_os_str().as_encoded_bytes());
            hash.update(&[0]);
        }
        hash.finalize().to_hex()[..16].to_owned()
    }
}

const DATA_ON_BTRFS: &str =
    "the engine's data on a Btrfs file system: checkpoints take no time then, whatever was changed";

/// How a folder is kept, by what it lies on.
fn verdict(path: &Path, overlay: bool) -> std::result::Result<Verdict, String> {
    let io = |e: std::io::Error| format!("{}: {e}", shown_path(path));
    let folder = bind::open_folder(path).map_err(io)?;
    let what = if overlay {
        "its changed files are"
    } else {
        "its root is"
    };
    if !subvolume::on_btrfs(&folder).map_err(io)? {
        let more = if overlay {
            ""
        } else {
            ", and not apart from its image"
        };
        return Ok(Verdict {
            technique: Technique::OverlayCopy,
            why: format!("{what} in a folder that is on no Btrfs{more}: what is new is copied"),
            better: Some(DATA_ON_BTRFS.into()),
        });
    }
    let ino = std::fs::symlink_metadata(path).map_err(io)?.ino();
    if ino == ROOT_INODE {
        return Ok(Verdict {
            technique: Technique::SubvolumeRoot,
            why: "its root is a Btrfs subvolume".into(),
            better: None,
        });
    }
    Ok(Verdict {
        technique: Technique::OverlayOnBtrfs,
        why: format!("{what} in a folder on Btrfs"),
        better: None,
    })
}

/// The folder that a process has as its root file system.
fn of_process(pid: i32, own: &[Mount]) -> std::result::Result<(PathBuf, Option<Overlay>), String> {
    let theirs = mounts::mounts(Some(pid)).map_err(|e| format!("its mounts cannot be read: {e}"))?;
    match rootfs::root(&theirs).ok_or("its root file system is of a kind that is not known")? {
        Root::Overlay(overlay) => Ok((overlay.upper.clone(), Some(overlay))),
        Root::Folder { device, inside } => {
            let path = rootfs::host_path(&device, &inside, own);
            Ok((path.ok_or("its root file system is mounted nowhere here")?, None))
        }
    }
}

/// The folder of one that is not running, from what its engine says or keeps.
fn of_record(
    engine: &Engine,
    c: &Inspect,
    known: Option<&Path>,
) -> std::result::Result<(PathBuf, Option<Overlay>), String> {
    let path = |key: &str| c.storage.get(key).map(PathBuf::from);
    if let (Some(upper), Some(work)) = (path("UpperDir"), path("WorkDir")) {
        let lower = c.storage.get("LowerDir").map(String::as_str).unwrap_or_default();
        let overlay = Overlay {
            device: String::new(),
            lower: lower
                .split(':')
                .filter(|l| !l.is_empty())
                .map(PathBuf::from)
                .collect(),
            upper: upper.clone(),
            work,
            options: Vec::new(),
        };
        return Ok((upper, Some(overlay)));
    }
    let folder = match c.driver.as_str() {
        "btrfs" => Some("btrfs/subvolumes"),
        "vfs" => Some("vfs/dir"),
        _ => None,
    };
    if let (Some(folder), Some(data)) = (folder, engine.data_root()) {
        let id = data
            .join("image")
            .join(&c.driver)
            .join("layerdb/mounts")
            .join(&c.id)
            .join("mount-id");
        let id = crate::paths::read_file(&id).map_err(|e| format!("{}: {e}", shown_path(&id)))?;
        let id = String::from_utf8_lossy(&id).trim().to_owned();
        if id.is_empty() || !id.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-') {
            return Err(format!(
                "the engine keeps it under a strange name: {}",
                shown(&id)
            ));
        }
        return Ok((data.join(folder).join(id), None));
    }
    match known {
        Some(path) => Ok((path.to_owned(), None)),
        None => Err("where its files are is only known while it runs: start it once".into()),
    }
}

/// True for the path that a root has after it was exchanged under a container that lives. (The kernel adds `//deleted`
/// to that of one that was removed.)
fn exchanged(path: &Path) -> bool {
    path.iter()
        .any(|n| n.as_encoded_bytes().starts_with(b".respool-"))
}

/// Where the files of a container are, and how they can be kept; or why they cannot. `known`: where they were when it
/// was last seen running.
pub fn locate(engine: &Engine, c: &Inspect, known: Option<&Path>) -> std::result::Result<Located, Verdict> {
    if let Some(why) = engine.out_of_reach() {
        let root = !rustix::process::geteuid().is_root();
        return Err(Verdict::api_only(
            why,
            root.then_some("run it as root, or start the service: sudo respool service"),
        ));
    }
    let failed = |why: String| Verdict::api_only(why, None);
    let own = mounts::mounts(None).map_err(|e| failed(format!("the mounts cannot be read: {e}")))?;
    let found = if c.pid > 0 {
        of_process(c.pid, &own)
    } else {
        of_record(engine, c, known)
    };
    let (mut path, overlay) = found.map_err(failed)?;
    if exchanged(&path) {
        // it still has the old root: the one that it gets at its next start counts
        path = match known {
            Some(known) => known.to_owned(),
            None => of_record(engine, c, None).map_err(failed)?.0,
        };
    }
    let there = std::fs::symlink_metadata(&path);
    if !there.as_ref().is_ok_and(std::fs::Metadata::is_dir) {
        let why = format!(
            "{} is not here: the engine has mounts of its own",
            shown_path(&path)
        );
        return Err(Verdict::api_only(why, Some("run respool where the engine runs")));
    }
    let verdict = verdict(&path, overlay.is_some()).map_err(failed)?;
    Ok(Located {
        path,
        overlay,
        verdict,
    })
}
