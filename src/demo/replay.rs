//! Applies recorded file changes to a workspace.

use std::io::Write;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::{Component, Path};

use rustix::fs::{self, AtFlags, FileType, Mode, OFlags, RenameFlags, ResolveFlags};

use super::recording::Op;
use super::{DemoError, Result};

/// Applies the operations one after another, inside `root` only: no link is followed.
pub fn apply(ops: &[Op], root: BorrowedFd<'_>) -> Result<()> {
    ops.iter().try_for_each(|op| apply_one(op, root))
}

fn apply_one(op: &Op, root: BorrowedFd<'_>) -> Result<()> {
    match op {
        Op::Mkdir { path, mode } => {
            let (dir, name) = parent(root, path)?;
            fs::mkdirat(&dir, name, Mode::from_raw_mode(0o700)).map_err(DemoError::io("make", path))?;
            set_mode(&dir, name, *mode, path)
        }
        Op::Rename { from, to } => {
            let (old_dir, old) = parent(root, from)?;
            let (new_dir, new) = parent(root, to)?;
            fs::renameat_with(&old_dir, old, &new_dir, new, RenameFlags::NOREPLACE)
                .map_err(DemoError::io("rename", from))
        }
        Op::Remove { path } => {
            let (dir, name) = parent(root, path)?;
            remove(&dir, name, path)
        }
        Op::Write {
            path,
            mode,
            replace,
            content,
        } => {
            let (dir, name) = parent(root, path)?;
            if *replace {
                remove(&dir, name, path)?;
            }
            write(&dir, name, content.bytes(), *mode, path)
        }
        Op::Symlink { path, target } => {
            let (dir, name) = parent(root, path)?;
            fs::symlinkat(target, &dir, name).map_err(DemoError::io("link", path))
        }
        Op::Chmod { path, mode } => {
            let (dir, name) = parent(root, path)?;
            set_mode(&dir, name, *mode, path)
        }
    }
}

/// The folder that holds `path`, opened without leaving `root` or following a link, and the last name.
fn parent<'p>(root: BorrowedFd<'_>, path: &'p Path) -> Result<(OwnedFd, &'p Path)> {
    let Some(Component::Normal(name)) = path.components().next_back() else {
        return Err(DemoError::Recording {
            what: format!("{} names no file", path.display()),
        });
    };
    let folder = path
        .parent()
        .filter(|p| !p.as_os_str().is_empty())
        .unwrap_or(Path::new("."));
    let dir = fs::openat2(
        root,
        folder,
        OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC,
        Mode::empty(),
        ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS,
    )
    .map_err(DemoError::io("enter the folder of", path))?;
    Ok((dir, Path::new(name)))
}

fn remove(dir: &OwnedFd, name: &Path, path: &Path) -> Result<()> {
    let stat = fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW).map_err(DemoError::io("remove", path))?;
    let how = match FileType::from_raw_mode(stat.st_mode) {
        FileType::Directory => AtFlags::REMOVEDIR,
        _ => AtFlags::empty(),
    };
    fs::unlinkat(dir, name, how).map_err(DemoError::io("remove", path))
}

fn write(dir: &OwnedFd, name: &Path, bytes: &[u8], mode: u32, path: &Path) -> Result<()> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let fd =
        fs::openat(dir, name, flags, Mode::from_raw_mode(0o600)).map_err(DemoError::io("write", path))?;
    regular_or_folder(&fd, false, path)?;
    let mut file = std::fs::File::from(fd);
    file.set_len(0)
        .and_then(|()| file.write_all(bytes))
        .map_err(DemoError::io("write", path))?;
    fs::fchmod(&file, Mode::from_raw_mode(mode)).map_err(DemoError::io("set the mode of", path))
}

fn set_mode(dir: &OwnedFd, name: &Path, mode: u32, path: &Path) -> Result<()> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let fd = fs::openat(dir, name, flags, Mode::empty()).map_err(DemoError::io("set the mode of", path))?;
    regular_or_folder(&fd, true, path)?;
    fs::fchmod(&fd, Mode::from_raw_mode(mode)).map_err(DemoError::io("set the mode of", path))
}

fn regular_or_folder(fd: &OwnedFd, folder_too: bool, path: &Path) -> Result<()> {
    let stat = fs::fstat(fd).map_err(DemoError::io("read", path))?;
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => Ok(()),
        FileType::Directory if folder_too => Ok(()),
        _ => Err(DemoError::Io {
            doing: "change",
            path: path.to_owned(),
            source: std::io::Error::other("it is no regular file"),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::demo::digest::digest;
    use crate::demo::recording::Recording;
    use std::fs::File;
    use std::os::fd::AsFd;
    use std::os::unix::fs::{MetadataExt, symlink};

    fn ops(json: &str) -> Vec<Op> {
        serde_json::from_str(json).expect("operations")
    }

    #[test]
    fn every_turn_gives_the_tree_that_the_real_workspace_had() {
        let r = Recording::load().expect("the recording loads");
        let dir = tempfile::tempdir().expect("a folder");
        let root = File::open(dir.path()).expect("opens");
        let tree = || digest(root.as_fd()).expect("a digest");
        apply(&r.initial, root.as_fd()).expect("applied");
        assert_eq!(tree(), r.initial_tree);
        for turn in &r.turns {
            apply(&turn.before, root.as_fd()).expect("applied");
            assert_eq!(tree(), turn.before_tree, "before message {}", turn.number);
            apply(&turn.ops, root.as_fd()).expect("applied");
            assert_eq!(tree(), turn.tree, "after message {}", turn.number);
        }
    }

    #[test]
    fn a_rename_keeps_the_inode_and_a_replaced_file_gets_a_new_one() {
        let dir = tempfile::tempdir().expect("a folder");
        let root = File::open(dir.path()).expect("opens");
        let inode = |n: &str| dir.path().join(n).metadata().expect("there").ino();
        apply(
            &ops(r#"[{"op":"write","path":"a","mode":"0644","text":"1"}]"#),
            root.as_fd(),
        )
        .expect("applied");
        let held = File::open(dir.path().join("a")).expect("opens");
        let old = inode("a");
        apply(&ops(r#"[{"op":"rename","from":"a","to":"b"}]"#), root.as_fd()).expect("applied");
        assert_eq!(inode("b"), old);
        apply(
            &ops(r#"[{"op":"write","path":"b","mode":"0600","text":"2"}]"#),
            root.as_fd(),
        )
        .expect("applied");
        assert_eq!(inode("b"), old);
        apply(
            &ops(r#"[{"op":"write","path":"b","mode":"0600","text":"3","replace":true}]"#),
            root.as_fd(),
        )
        .expect("applied");
        assert_ne!(inode("b"), old);
        assert_eq!(held.metadata().expect("held").nlink(), 0);
    }

    #[test]
    fn nothing_outside_the_root_is_reached() {
        let dir = tempfile::tempdir().expect("a folder");
        let (inside, outside) = (dir.path().join("in"), dir.path().join("out"));
        std::fs::create_dir(&inside).expect("made");
        std::fs::create_dir(&outside).expect("made");
        std::fs::write(outside.join("kept"), "kept").expect("written");
        symlink("../out", inside.join("folder")).expect("linked");
        symlink("../out/kept", inside.join("file")).expect("linked");
        let root = File::open(&inside).expect("opens");
        for bad in [
            r#"[{"op":"write","path":"../out/kept","mode":"0644","text":"lost"}]"#,
            r#"[{"op":"write","path":"folder/kept","mode":"0644","text":"lost"}]"#,
            r#"[{"op":"write","path":"file","mode":"0644","text":"lost"}]"#,
            r#"[{"op":"chmod","path":"file","mode":"0000"}]"#,
            r#"[{"op":"remove","path":"folder/kept"}]"#,
            r#"[{"op":"rename","from":"folder/kept","to":"mine"}]"#,
            r#"[{"op":"mkdir","path":"folder/new","mode":"0755"}]"#,
            r#"[{"op":"mkdir","path":"..","mode":"0755"}]"#,
            &format!(
                r#"[{{"op":"symlink","path":"{}/new","target":"x"}}]"#,
                outside.display()
            ),
        ] {
            assert!(apply(&ops(bad), root.as_fd()).is_err(), "{bad}");
        }
        assert_eq!(
            std::fs::read_to_string(outside.join("kept")).expect("there"),
            "kept"
        );
        assert_eq!(std::fs::read_dir(&outside).expect("listed").count(), 1);
    }
}
