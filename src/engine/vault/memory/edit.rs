//! How a test changes "now".

use std::path::{Path, PathBuf};

use chrono::{DateTime, TimeDelta, Utc};

use super::super::super::FileType;
use super::tree::{self, Body, Node};
use super::{Inner, MemoryVault};

impl MemoryVault {
    /// Writes a file, making its folders; an existing file keeps its identity.
    pub fn write(&self, path: impl AsRef<Path>, bytes: impl AsRef<[u8]>) {
        self.inner()
            .put(path.as_ref(), Body::File(bytes.as_ref().into()), 0o644);
    }

    /// Makes a folder and those above it.
    pub fn mkdir(&self, path: impl AsRef<Path>) {
        self.inner().put(path.as_ref(), Body::Dir, 0o755);
    }

    /// Makes a link.
    pub fn symlink(&self, path: impl AsRef<Path>, target: impl AsRef<Path>) {
        self.inner()
            .put(path.as_ref(), Body::Link(target.as_ref().to_owned()), 0o777);
    }

    /// Makes a fifo, socket or device.
    pub fn special(&self, path: impl AsRef<Path>, file_type: FileType) {
        self.inner().put(path.as_ref(), Body::Other(file_type), 0o644);
    }

    /// Removes a path and all below it.
    pub fn remove_path(&self, path: impl AsRef<Path>) {
        let mut inner = self.inner();
        if let Some(path) = tree::normal(path.as_ref()).filter(|p| !p.as_os_str().is_empty()) {
            inner.now.remove(&path);
            inner.touch_parent(&path);
        }
    }

    /// Moves a path and all below it; what is at the new place goes away. Identities are kept.
    pub fn rename(&self, from: impl AsRef<Path>, to: impl AsRef<Path>) {
        let mut inner = self.inner();
        let (Some(from), Some(to)) = (tree::normal(from.as_ref()), tree::normal(to.as_ref())) else {
            return;
        };
        if !inner.now.0.contains_key(&from) || to.starts_with(&from) {
            return;
        }
        let moved: Vec<(PathBuf, Node)> = inner
            .now
            .below(&from)
            .into_iter()
            .filter_map(|p| Some((p.clone(), inner.now.0.remove(&p)?)))
            .collect();
        inner.now.remove(&to);
        inner.make_parents(&to);
        for (path, node) in moved {
            let rest = path.strip_prefix(&from).unwrap_or(Path::new(""));
            let path = if rest.as_os_str().is_empty() {
                to.clone()
            } else {
                to.join(rest)
            };
            inner.now.0.insert(path, node);
        }
        inner.touch_parent(&from);
        inner.touch_parent(&to);
    }

    /// Changes permission bits.
    pub fn chmod(&self, path: impl AsRef<Path>, mode: u32) {
        self.edit(path, |node| node.mode = mode);
    }

    /// Changes any attribute of a node.
    pub fn edit(&self, path: impl AsRef<Path>, edit: impl FnOnce(&mut Node)) {
        let mut inner = self.inner();
        if let Some(node) = tree::normal(path.as_ref()).and_then(|p| inner.now.0.get_mut(&p)) {
            edit(node);
        }
    }
}

impl Inner {
    pub(super) fn tick(&mut self) -> DateTime<Utc> {
        self.clock += TimeDelta::seconds(1);
        self.clock
    }

    fn touch_parent(&mut self, path: &Path) {
        let time = self.tick();
        if let Some(parent) = path.parent().and_then(|p| self.now.0.get_mut(p)) {
            parent.mtime = time;
        }
    }

    fn node(&mut self, body: Body, mode: u32) -> Node {
        let inode = self.next_inode;
        self.next_inode += 1;
        Node {
            inode,
            body,
            mode,
            uid: 1000,
            gid: 1000,
            mtime: self.clock,
        }
    }

    fn make_parents(&mut self, path: &Path) {
        let above: Vec<PathBuf> = path.ancestors().skip(1).map(Path::to_owned).collect();
        for folder in above.into_iter().rev() {
            if self.now.0.get(&folder).is_none_or(|n| n.body != Body::Dir) {
                let node = self.node(Body::Dir, 0o755);
                self.now.0.insert(folder, node);
            }
        }
    }

    fn put(&mut self, path: &Path, body: Body, mode: u32) {
        let Some(path) = tree::normal(path).filter(|p| !p.as_os_str().is_empty()) else {
            return;
        };
        let time = self.tick();
        self.make_parents(&path);
        match self.now.0.get_mut(&path) {
            Some(node)
                if matches!(
                    (&node.body, &body),
                    (Body::File(_), Body::File(_)) | (Body::Dir, Body::Dir)
                ) =>
            {
                node.body = body;
                node.mtime = time;
            }
            _ => {
                self.now.remove(&path);
                let node = self.node(body, mode);
                self.now.0.insert(path.clone(), node);
                self.touch_parent(&path);
            }
        }
    }
}
