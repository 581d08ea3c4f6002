//! One file and one folder of a kept tree.

use std::fs::File;
use std::io::Read;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use super::CopyVault;
use super::manifest::Manifest;
use crate::engine::changes::node::Node;
use crate::engine::changes::open::{components, to_path};
use crate::engine::restore::Objects;
use crate::engine::vault::btrfs::look::reader_refused;
use crate::engine::{CheckpointId, Content, EngineError, Entry, FileType, Reader, Result};

/// Up to this size a content is compared with its hash before it is shown.
const CHECKED: u64 = 16 << 20;

fn no_path(path: &Path) -> EngineError {
    EngineError::NoPath {
        path: path.to_owned(),
    }
}

impl Manifest {
    fn find(&self, path: &Path) -> Result<u32> {
        let names = components(path).map_err(|_| no_path(path))?;
        let (mut at, mut above) = (0, PathBuf::new());
        for name in names {
            let found = self.taken(at, &above).find(|(_, n)| n.name == name);
            at = found.map(|(i, _)| i).ok_or_else(|| no_path(path))?;
            above.push(to_path(&name));
        }
        Ok(at)
    }

    /// What of the entries of a folder with this path was not left out.
    fn taken(&self, folder: u32, path: &Path) -> impl Iterator<Item = (u32, &Node)> {
        let out = move |n: &Node| self.patterns.leaves_out(&path.join(to_path(&n.name)), n.is_dir());
        self.entries(folder).filter(move |(_, n)| n.covered() || !out(n))
    }

    fn entries(&self, folder: u32) -> impl Iterator<Item = (u32, &Node)> {
        (0..)
            .zip(&self.nodes)
            .skip(1)
            .filter(move |(_, n)| n.parent == folder)
    }
}

/// The error of a content that is not what it must be.
pub(super) fn lost(id: &CheckpointId, path: &Path, e: &std::io::Error) -> EngineError {
    EngineError::DamagedCheckpoint {
        id: id.to_string(),
        reason: format!("{}: {e}", crate::text::shown_path(path)),
    }
}

impl Manifest {
    /// Refused where a folder above, or (`itself`) the node, would not let this user look.
    fn allows(&self, reader: &Reader, path: &Path) -> Result<()> {
        let at = self.find(path)?;
        let node = &self.nodes[at as usize];
        let shut = |n: &Node| {
            let facts = n.facts.as_deref();
            facts.is_some_and(|f| f.xattrs.contains_key(&b"system.posix_acl_access"[..]))
        };
        let mut allowed = reader.may_read(node.uid, node.gid, node.mode, shut(node));
        let mut above = node;
        if node.is_dir() {
            allowed &= reader.may_pass(node.uid, node.gid, node.mode, shut(node));
        }
        for _ in 0..node.depth {
            above = &self.nodes[above.parent as usize];
            allowed &= reader.may_pass(above.uid, above.gid, above.mode, shut(above));
        }
        if allowed || node.file_type == FileType::Link {
            return Ok(());
        }
        Err(reader_refused(path))
    }
}

/// What an entry of an overlay's upper layer is, besides itself (kernel documentation, filesystems/overlayfs).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LayerMark {
    /// Nothing else.
    Plain,
    /// What was removed.
    Whiteout,
    /// A folder that hides all that is below it.
    Opaque,
    /// What only the kernel puts together: a renamed folder, attributes without content.
    Elsewhere,
}

impl CopyVault {
    /// What a path of a checkpoint is in an overlay whose marks are in this namespace (`trusted`, `user`).
    pub fn layer_mark(&self, id: &CheckpointId, path: &Path, space: &str) -> Result<LayerMark> {
        let manifest = self.manifest(id)?;
        let node = &manifest.nodes[manifest.find(path)? as usize];
        if node.file_type == FileType::CharDevice && node.rdev == (0, 0) {
            return Ok(LayerMark::Whiteout);
        }
        let value = |what: &str| {
            let name = format!("{space}.overlay.{what}");
            node.facts.as_deref()?.xattrs.get(name.as_bytes())
        };
        Ok(if value("redirect").is_some() || value("metacopy").is_some() {
            LayerMark::Elsewhere
        } else if value("opaque").is_some_and(|v| v[..] == *b"y") {
            LayerMark::Opaque
        } else {
            LayerMark::Plain
        })
    }

    /// Refused where the permission bits in this checkpoint would not let this user look.
    pub(super) fn allows(&self, reader: &Reader, id: &CheckpointId, path: &Path) -> Result<()> {
        self.manifest(id)?.allows(reader, path)
    }

    pub(super) fn read_kept(&self, id: &CheckpointId, path: &Path, limit: u64) -> Result<Content> {
        let manifest = self.manifest(id)?;
        let node = &manifest.nodes[manifest.find(path)? as usize];
        let facts = node.facts.as_deref();
        Ok(match (node.file_type, facts.and_then(|f| f.hash)) {
            (FileType::Link, _) => {
                let target = facts.map(|f| f.link.clone()).unwrap_or_default();
                Content::Link(PathBuf::from(std::ffi::OsString::from_vec(target)))
            }
            (FileType::File, Some(hash)) => {
                let damaged = |e: std::io::Error| lost(id, path, &e);
                if node.size <= CHECKED {
                    self.objects.check(&hash).map_err(damaged)?;
                }
                let mut bytes = Vec::new();
                File::from(self.objects.open(&hash).map_err(damaged)?)
                    .take(limit)
                    .read_to_end(&mut bytes)
                    .map_err(damaged)?;
                Content::File {
                    bytes,
                    size: node.size,
                }
            }
            (other, _) => Content::Other(other),
        })
    }

    pub(super) fn entries_kept(&self, id: &CheckpointId, path: &Path) -> Result<Vec<Entry>> {
        let manifest = self.manifest(id)?;
        let folder = manifest.find(path)?;
        if !manifest.nodes[folder as usize].is_dir() {
            return Err(no_path(path));
        }
        let mut out: Vec<Entry> = manifest
            .taken(folder, path)
            .map(|(_, n)| Entry {
                name: to_path(&n.name),
                file_type: n.file_type,
                size: n.size,
                mode: n.mode,
                mtime_ns: i128::from(n.mtime.s) * 1_000_000_000 + i128::from(n.mtime.ns),
            })
            .collect();
        out.sort_by(|a, b| a.name.as_os_str().cmp(b.name.as_os_str()));
        Ok(out)
    }
}
