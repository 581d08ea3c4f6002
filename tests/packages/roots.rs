//! Small root file systems, and what is said of two of them.

use std::fs;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use respool::packages::{Dirs, Manager, Summary, system};
use respool::progress::Silent;

use crate::common::TestDir;

pub struct Root(pub TestDir);

impl Root {
    pub fn new() -> Self {
        Self(TestDir::new())
    }
    pub fn path(&self) -> &Path {
        self.0.path()
    }
    pub fn at(&self, path: &str) -> PathBuf {
        self.path().join(path)
    }
    /// Writes a file, with the folders above it.
    pub fn write(&self, path: &str, content: impl AsRef<[u8]>) -> &Self {
        let path = self.at(path);
        fs::create_dir_all(path.parent().expect("parent")).expect("folders");
        fs::write(path, content).expect("write");
        self
    }
    pub fn folder(&self, path: &str) -> &Self {
        fs::create_dir_all(self.at(path)).expect("folders");
        self
    }
    pub fn remove(&self, path: &str) -> &Self {
        let path = self.at(path);
        if path.is_dir() {
            fs::remove_dir_all(path).expect("remove");
        } else {
            fs::remove_file(path).expect("remove");
        }
        self
    }
    /// The same root again, as a copy.
    pub fn copy(&self) -> Self {
        let to = Self::new();
        run(Command::new("cp")
            .arg("-a")
            .arg(self.path().join("."))
            .arg(to.path()));
        to
    }
    pub fn tree(&self) -> Dirs {
        Dirs::one(open(self.path()))
    }
    pub fn python(&self, place: &str, name: &str, version: &str) -> &Self {
        let text = format!("Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n\nA description.\n");
        self.write(&format!("{place}/{name}-{version}.dist-info/METADATA"), text)
    }
    pub fn node(&self, place: &str, name: &str, version: &str) -> &Self {
        let json = serde_json::json!({"name": name, "version": version, "dependencies": {"a": "^1"}});
        self.write(&format!("{place}/{name}/package.json"), json.to_string())
    }
}

pub fn open(path: &Path) -> OwnedFd {
    fs::File::open(path).expect("the root").into()
}

/// Runs a program that must succeed; its output.
pub fn run(command: &mut Command) -> String {
    let out = command.stdin(Stdio::null()).output();
    let out = out.unwrap_or_else(|e| panic!("this test needs {}: {e}", command.get_program().display()));
    let said = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "{command:?}: {said}");
    String::from_utf8_lossy(&out.stdout).into_owned()
}

pub fn between(a: &Root, b: &Root) -> Summary {
    system(&a.tree(), &b.tree(), &Silent).expect("not cancelled")
}

/// One line each: manager, name, versions, place; what cannot be read after that.
pub fn lines(summary: &Summary) -> Vec<String> {
    let version = |v: &Option<String>| v.clone().unwrap_or_else(|| "-".into());
    let one = |p: &respool::packages::PackageChange| {
        let place = p.place.as_ref().map(|w| format!(" {w}")).unwrap_or_default();
        let (from, to) = (version(&p.from), version(&p.to));
        format!("{} {} {from} {to}{place}", p.manager.word(), p.name)
    };
    let unread = summary.packages_unread.iter();
    let unread = unread.map(|u| {
        let manager = u.manager.map_or("all", Manager::word);
        format!("{manager} {} unread: {}", u.place, u.why)
    });
    summary.packages.iter().map(one).chain(unread).collect()
}

pub fn said(a: &Root, b: &Root) -> Vec<String> {
    lines(&between(a, b))
}

/// A stanza of dpkg's.
pub fn deb(name: &str, version: &str) -> String {
    format!(
        "Package: {name}\nStatus: install ok installed\nPriority: optional\nArchitecture: amd64\nVersion: {version}\n\
         Depends: libc6 (>= 2.34)\nDescription: a tool\n with a long text\n .\n Version: 0\n\n"
    )
}
