//! Not one byte is free where the state is, or where the agent's settings are.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};

use crate::lab::{Lab, error_text};
use crate::whole::{agent, zone};

/// All files of a folder with their contents, without mounts and without locks (which name who holds them).
fn files(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut out = BTreeMap::new();
    let mut todo = vec![folder.to_owned()];
    while let Some(folder) = todo.pop() {
        for entry in std::fs::read_dir(&folder).expect("list") {
            let entry = entry.expect("entry");
            let kind = entry.file_type().expect("type");
            if kind.is_dir() && entry.file_name() != "mnt" {
                todo.push(entry.path());
            } else if kind.is_file() && !["full", "lock"].iter().any(|n| entry.file_name() == *n) {
                out.insert(entry.path(), std::fs::read(entry.path()).expect("read"));
            }
        }
    }
    out
}

/// A small file system over the state folder; gone when dropped.
struct Small(PathBuf);

impl Small {
    fn at(state: PathBuf) -> Self {
        std::fs::create_dir_all(&state).expect("state");
        mount("none", &state, "tmpfs", MountFlags::empty(), c"size=70M").expect("mount");
        Self(state)
    }
    /// Takes its last free byte.
    fn fill(&self) {
        use std::io::Write;
        let mut file = std::fs::File::create(self.0.join("full")).expect("create");
        for block in [vec![7u8; 1 << 20], vec![7u8; 4096], vec![7u8; 1]] {
            while file.write_all(&block).is_ok() {}
        }
        let space = rustix::fs::statvfs(&self.0).expect("statvfs");
        assert_eq!(space.f_bavail, 0, "it is full");
    }
    fn free(&self) {
        std::fs::remove_file(self.0.join("full")).expect("remove");
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let _gone = unmount(&self.0, UnmountFlags::DETACH);
    }
}

/// P041: not one byte is free where the state is. Every command that writes says so; every file that was there is
/// there with its whole content, or with its whole new one, and nothing half written is left beside. With room it
/// all works on.
#[test]
fn p041_a_full_disk_under_the_state_destroys_nothing_copy_vault() {
    let lab = Lab::plain(zone);
    let small = Small::at(lab.state());
    lab.ok(&["--yes", "track", lab.ws_text(), "--vault", "copy"]);
    let id = lab.message(1);
    agent(&lab);
    lab.ok(&["--yes", "rewind", "1", "--files"]);
    lab.ok(&["--yes", "undo"]);
    let tree = lab.manifest();
    let before = files(&lab.state());
    let other = lab.dir().join("other");
    std::fs::create_dir(&other).expect("folder");
    let other = other.to_str().expect("UTF-8");
    let commands: [&[&str]; 9] = [
        &["checkpoint"],
        &["label", &id, "a name"],
        &["pin", &id],
        &["--yes", "rewind", "1", "--files"],
        &["--yes", "redo"],
        &["--yes", "untrack", lab.ws_text()],
        &["--yes", "track", other, "--vault", "copy"],
        &["--yes", "pool", "create", "--size", "512M"],
        &["-s", lab.ws_text(), "checkpoint", "--label", "x"],
    ];
    small.fill();
    for args in commands {
        let a = lab.run(args);
        let code = a.code.expect("a code");
        assert!(matches!(code, 1 | 3), "{args:?}: {} {}", a.text(), a.err);
        error_text(&a.json(), code);
        tree.assert_same(&lab.manifest(), &format!("{args:?}"));
        let now = files(&lab.state());
        for (path, content) in &before {
            assert_eq!(
                now.get(path).map(Vec::len),
                Some(content.len()),
                "{args:?}: {}",
                path.display()
            );
            assert!(now[path] == *content, "{args:?}: {}", path.display());
        }
        let junk: Vec<&PathBuf> = now
            .keys()
            .filter(|p| !before.contains_key(*p))
            // locks hold nothing
            .filter(|p| p.extension().is_none_or(|e| e != "lock") && !p.ends_with("lock"))
            .collect();
        assert!(junk.is_empty(), "{args:?} left {junk:?}");
    }
    // what only reads works
    lab.ok(&["timeline", lab.store().to_str().expect("UTF-8")]);
    assert_eq!(
        lab.ok(&["changes", "m1", "now"]).as_array().map(Vec::len),
        Some(22)
    );
    small.free();
    lab.ok(&["--yes", "recover"]);
    assert_eq!(lab.ok(&["--yes", "rewind", "1", "--files"])["verified"], true);
    lab.ok(&["--yes", "undo"]);
    tree.assert_same(&lab.manifest(), "with room again");
    drop(small);
}

/// P041: the same, with the checkpoints in an image elsewhere: the list of pools is whole, also when a second one
/// cannot be added.
#[test]
fn p041_a_full_disk_under_the_state_destroys_nothing_btrfs() {
    let lab = Lab::plain(zone);
    let small = Small::at(lab.state());
    let image = lab.dir().join("images/pool.img");
    std::fs::create_dir(image.parent().expect("folder")).expect("folder");
    let image = image.to_str().expect("UTF-8");
    lab.ok(&[
        "--yes",
        "track",
        lab.ws_text(),
        "--image",
        image,
        "--size",
        "512M",
    ]);
    lab.message(1);
    agent(&lab);
    let before = files(&lab.state());
    assert!(
        before.keys().any(|p| p.ends_with("pools.json")),
        "the list of pools: {:?}",
        before.keys()
    );
    let other = lab.dir().join("other");
    std::fs::create_dir(&other).expect("folder");
    let other = other.to_str().expect("UTF-8");
    let second = lab.dir().join("images/second.img");
    let second = second.to_str().expect("UTF-8");
    small.fill();
    for args in [
        &["--yes", "pool", "create", "--image", second, "--size", "512M"][..],
        &["--yes", "track", other, "--image", second, "--size", "512M"],
    ] {
        let a = lab.run(args);
        let code = a.code.expect("a code");
        assert!(matches!(code, 1 | 3), "{args:?}: {} {}", a.text(), a.err);
        error_text(&a.json(), code);
        let now = files(&lab.state());
        for (path, content) in &before {
            assert!(now.get(path) == Some(content), "{args:?}: {}", path.display());
        }
        let junk: Vec<&PathBuf> = now
            .keys()
            .filter(|p| !before.contains_key(*p) && !p.to_string_lossy().contains("lock"))
            .collect();
        assert!(junk.is_empty(), "{args:?} left {junk:?}");
    }
    // what is kept in the pool goes on
    assert_eq!(lab.ok(&["--yes", "rewind", "1", "--files"])["verified"], true);
    small.free();
    lab.ok(&["--yes", "track", other, "--image", second, "--size", "512M"]);
    lab.ok(&["--yes", "untrack", other]);
    lab.ok(&["--yes", "pool", "unmount"]);
    drop(small);
}

/// P041: the settings of the agent, in a workspace on a full disk, stay as they were.
#[test]
fn p041_a_full_disk_does_not_empty_the_hooks_file() {
    let lab = Lab::plain(|_| {});
    let home = lab.dir().join("home/.openhands");
    // the store stands there already; the settings stand beside it
    let file = home.join("hooks.json");
    let small = Small::at(home);
    std::fs::write(&file, "{\"stop\": [{\"matcher\": \"*\", \"hooks\": []}]}\n").expect("write");
    let before = std::fs::read(&file).expect("read");
    small.fill();
    let mut c = lab.command();
    let a = crate::lab::Answer::of(
        c.args(["--json", "--yes", "hooks", "install", "openhands", "--user"])
            .output()
            .expect("run"),
    );
    assert_eq!(a.code, Some(1), "{} {}", a.text(), a.err);
    assert!(error_text(&a.json(), 1).contains("hooks.json"), "{}", a.text());
    assert_eq!(std::fs::read(&file).expect("read"), before);
    let names: Vec<_> = std::fs::read_dir(&small.0)
        .expect("list")
        .map(|e| e.expect("entry").file_name())
        .collect();
    assert_eq!(names.len(), 2, "nothing half written: {names:?}");
    drop(small);
}
