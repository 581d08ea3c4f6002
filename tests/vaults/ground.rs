//! A vault and the tree that it keeps, in memory or on disk.

use std::fs::File;
use std::path::{Path, PathBuf};

use respool::engine::vault::copy::{CopyDir, root_id};
use respool::engine::vault::{BtrfsVault, CopyVault, MemoryVault, Vault};
use respool::engine::{
    Change, ChangeKind, CheckpointId, CheckpointKind, Content, How, NewCheckpoint, Selection, State,
};
use respool::patterns::Patterns;
use respool::progress::Silent;

use crate::common::{BtrfsBox, TestDir, TestSandbox, test_record};

pub fn manual() -> NewCheckpoint {
    NewCheckpoint::of(CheckpointKind::Manual, How::Own)
}

pub type Row = (ChangeKind, String, Option<String>);

pub fn row(kind: ChangeKind, path: &str, from: Option<&str>) -> Row {
    (kind, path.into(), from.map(Into::into))
}

pub trait Ground {
    fn vault(&self) -> &dyn Vault;
    fn write(&self, path: &str, content: &str);
    fn remove(&self, path: &str);
    fn rename(&self, from: &str, to: &str);
    fn symlink(&self, path: &str, target: &str);
    fn chmod(&self, path: &str, mode: u32);

    fn take(&self) -> CheckpointId {
        self.vault().checkpoint(&manual()).expect("checkpoint").meta.id
    }

    fn changes(&self, a: &CheckpointId, b: &State) -> Vec<Change> {
        self.vault()
            .changes(&State::Checkpoint(a.clone()), b, false, &Silent)
            .expect("changes")
    }

    fn rows(&self, a: &CheckpointId, b: &State) -> Vec<Row> {
        let text = |p: &Path| p.to_string_lossy().into_owned();
        self.changes(a, b)
            .iter()
            .map(|c| (c.kind, text(&c.path), c.from.as_deref().map(text)))
            .collect()
    }

    fn content(&self, state: &State, path: &str) -> String {
        match self.vault().read(state, Path::new(path), 1 << 20).expect("read") {
            Content::File { bytes, .. } => String::from_utf8(bytes).expect("text"),
            other => panic!("{path}: {other:?}"),
        }
    }

    /// Goes back from the present state, kept before, and checks.
    fn back(&self, to: &CheckpointId, selection: &Selection) -> CheckpointId {
        let safety = self.take();
        let from = State::Checkpoint(safety.clone());
        self.vault()
            .restore(&from, to, selection, &Silent)
            .expect("restore");
        let differs = self.vault().verify(to, selection, &Silent).expect("verify");
        assert!(differs.is_empty(), "{differs:?}");
        safety
    }
}

pub struct Memory(MemoryVault);

impl Memory {
    pub fn new() -> Self {
        Self(MemoryVault::new())
    }
}

impl Ground for Memory {
    fn vault(&self) -> &dyn Vault {
        &self.0
    }
    fn write(&self, path: &str, content: &str) {
        self.0.write(path, content);
    }
    fn remove(&self, path: &str) {
        self.0.remove_path(path);
    }
    fn rename(&self, from: &str, to: &str) {
        self.0.rename(from, to);
    }
    fn symlink(&self, path: &str, target: &str) {
        self.0.symlink(path, target);
    }
    fn chmod(&self, path: &str, mode: u32) {
        self.0.chmod(path, mode);
    }
}

/// A tree on disk.
pub trait Disk: Ground {
    fn root(&self) -> &Path;
    fn at(&self, path: impl AsRef<Path>) -> PathBuf {
        self.root().join(path)
    }
}

macro_rules! ground_on_disk {
    ($type:ty) => {
        impl Ground for $type {
            fn vault(&self) -> &dyn Vault {
                &self.vault
            }
            fn write(&self, path: &str, content: &str) {
                let path = self.at(path);
                std::fs::create_dir_all(path.parent().expect("a folder")).expect("folders");
                std::fs::write(path, content).expect("write");
            }
            fn remove(&self, path: &str) {
                let path = self.at(path);
                if path.symlink_metadata().expect("there").is_dir() {
                    std::fs::remove_dir_all(path).expect("remove");
                } else {
                    std::fs::remove_file(path).expect("remove");
                }
            }
            fn rename(&self, from: &str, to: &str) {
                std::fs::rename(self.at(from), self.at(to)).expect("rename");
            }
            fn symlink(&self, path: &str, target: &str) {
                std::os::unix::fs::symlink(target, self.at(path)).expect("symlink");
            }
            fn chmod(&self, path: &str, mode: u32) {
                use std::os::unix::fs::PermissionsExt;
                let mode = std::fs::Permissions::from_mode(mode);
                std::fs::set_permissions(self.at(path), mode).expect("chmod");
            }
        }
    };
}

pub struct Btrfs {
    // closed before the pool goes
    vault: BtrfsVault,
    sandbox: TestSandbox,
    _pool: BtrfsBox,
}

impl Btrfs {
    pub fn new() -> Self {
        let pool = BtrfsBox::new();
        let sandbox = pool.sandbox();
        Self {
            vault: pool.vault(&sandbox),
            sandbox,
            _pool: pool,
        }
    }
}

impl Disk for Btrfs {
    fn root(&self) -> &Path {
        &self.sandbox.live
    }
}

pub(crate) use ground_on_disk;

ground_on_disk!(Btrfs);

pub struct Copies {
    vault: CopyVault,
    store: CopyDir,
    root: PathBuf,
    dir: TestDir,
}

impl Copies {
    pub fn new() -> Self {
        let dir = TestDir::new();
        let root = dir.join("ws");
        std::fs::create_dir(&root).expect("workspace");
        let live = || File::open(&root).expect("open");
        let mut record = test_record(&root);
        record.root = Some(root_id(live()).expect("root"));
        let store = CopyDir::create(&dir.join("copies"), &record).expect("store");
        Self {
            vault: CopyVault::open(&store, &root, Some(live().into())),
            store,
            root,
            dir,
        }
    }

    pub fn dir(&self) -> &TestDir {
        &self.dir
    }

    /// The same vault, leaving out what these say.
    pub fn leaving_out(&self, patterns: Patterns) -> CopyVault {
        let live = File::open(&self.root).expect("open");
        CopyVault::open(&self.store, &self.root, Some(live.into())).without(patterns)
    }

    /// The folder of the sandbox.
    pub fn store(&self) -> &Path {
        self.store.path()
    }

    /// The kept contents.
    pub fn objects(&self) -> Vec<PathBuf> {
        let list = |p: &Path| -> Vec<PathBuf> {
            let all = std::fs::read_dir(p).expect("list");
            all.map(|e| e.expect("entry").path()).collect()
        };
        let mut all: Vec<PathBuf> = list(&self.store().join("objects"))
            .iter()
            .flat_map(|p| if p.is_dir() { list(p) } else { vec![p.clone()] })
            .collect();
        all.sort();
        all
    }
}

impl Disk for Copies {
    fn root(&self) -> &Path {
        &self.root
    }
}

ground_on_disk!(Copies);
