//! Plays a recording: file changes into a workspace, event files into a conversation store.

use std::io::Write;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Component, Path};

use chrono::{DateTime, Local};
use rustix::fs::{self, AtFlags, FileType, Mode, OFlags, RenameFlags, ResolveFlags};
use serde_json::{Value, json};

use super::recording::{Op, Recording, Turn};
use super::{DemoError, Result};

/// Events that are no part of the conversation's tree: they are never its head.
const NOT_IN_TREE: [&str; 2] = ["ConversationStateUpdateEvent", "ConversationErrorEvent"];

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

/// How far a turn's events are played.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Until {
    /// Up to and with the message: the agent is about to start ("running").
    Message,
    /// To the turn's end ("finished"); [`Until::Message`] must have been played before.
    TurnEnd,
}

impl Recording {
    /// Plays the next events of `turn` into `store`, as OpenHands itself would: each file appears under its
    /// final name at once, then base_state.json says the new head and status. Makes the store with the first
    /// message. `workspace` stands in base_state.json in place of the recorded one; `now` in the events.
    pub fn play_events(
        &self,
        turn: &Turn,
        until: Until,
        store: &Path,
        workspace: &Path,
        now: DateTime<Local>,
    ) -> Result<()> {
        let folder = store.join("events");
        std::fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&folder)
            .map_err(DemoError::io("make", &folder))?;
        let span = turn.events;
        let (from, to) = match until {
            Until::Message => (span.first, span.message + 1),
            Until::TurnEnd => (span.message + 1, span.end),
        };
        for event in &self.events[from..to] {
            let mut json = event.json.clone();
            // OpenHands writes the local time, without a zone
            json["timestamp"] = json!(now.format("%Y-%m-%dT%H:%M:%S%.6f").to_string());
            put(&folder.join(&event.file), &json)?;
        }
        put(
            &store.join("base_state.json"),
            &self.state_at(turn, until, to, store, workspace)?,
        )
    }

    /// base_state.json once the first `count` events are there.
    fn state_at(
        &self,
        turn: &Turn,
        until: Until,
        count: usize,
        store: &Path,
        workspace: &Path,
    ) -> Result<Value> {
        let in_tree = |e: &Value| !NOT_IN_TREE.iter().any(|k| e["kind"] == *k);
        let head = self.events[..count]
            .iter()
            .rev()
            .map(|e| &e.json)
            .find(|e| in_tree(e));
        let mut state = self.base_state.clone();
        state["leaf_event_id"] = head.map_or(Value::Null, |e| e["id"].clone());
        state["last_user_message_id"] = json!(turn.id);
        state["execution_status"] = json!(match until {
            Until::Message => "running",
            Until::TurnEnd => "finished",
        });
        state["workspace"]["working_dir"] = json!(utf8(workspace)?);
        state["persistence_dir"] = json!(utf8(store)?);
        Ok(state)
    }
}

fn utf8(path: &Path) -> Result<&str> {
    path.to_str().ok_or_else(|| DemoError::Io {
        doing: "use",
        path: path.to_owned(),
        source: std::io::Error::other("the demo's folder must have a name in UTF-8"),
    })
}

/// Writes beside, then renames: a reader sees all of it or nothing.
fn put(path: &Path, json: &Value) -> Result<()> {
    let folder = path.parent().unwrap_or(Path::new("."));
    let mut file = tempfile::Builder::new()
        .prefix(".event")
        .tempfile_in(folder)
        .map_err(DemoError::io("write", path))?;
    file.write_all(json.to_string().as_bytes())
        .map_err(DemoError::io("write", path))?;
    file.persist(path)
        .map_err(|e| DemoError::io("write", path)(e.error))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::demo::digest::digest;
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

    #[test]
    fn the_store_grows_message_by_message_and_ends_as_it_was_recorded() {
        let r = Recording::load().expect("the recording loads");
        let dir = tempfile::tempdir().expect("a folder");
        let store = dir.path().join("conversations").join(&r.conversation);
        let workspace = dir.path().join("skylog");
        let state = || -> Value {
            serde_json::from_slice(&std::fs::read(store.join("base_state.json")).expect("there"))
                .expect("JSON")
        };
        let count = || std::fs::read_dir(store.join("events")).expect("listed").count();
        let now = Local::now();
        for turn in &r.turns {
            r.play_events(turn, Until::Message, &store, &workspace, now)
                .expect("played");
            assert_eq!(count(), turn.events.message + 1);
            assert_eq!(state()["leaf_event_id"], turn.id.as_str());
            assert_eq!(state()["execution_status"], "running");
            r.play_events(turn, Until::TurnEnd, &store, &workspace, now)
                .expect("played");
            assert_eq!(count(), turn.events.end);
            assert_eq!(state()["leaf_event_id"], r.events[turn.events.end - 1].json["id"]);
            assert_eq!(state()["execution_status"], "finished");
            assert_eq!(state()["last_user_message_id"], turn.id.as_str());
        }
        let mut end = state();
        assert_eq!(
            end["workspace"]["working_dir"],
            workspace.to_str().expect("UTF-8")
        );
        end["workspace"] = r.base_state["workspace"].clone();
        end["persistence_dir"] = r.base_state["persistence_dir"].clone();
        assert_eq!(end, r.base_state);
        let event = store.join("events").join(&r.events[1].file);
        assert_eq!(event.metadata().expect("there").mode() & 0o777, 0o600);
        let event: Value = serde_json::from_slice(&std::fs::read(event).expect("there")).expect("JSON");
        assert_eq!(
            event["timestamp"],
            now.format("%Y-%m-%dT%H:%M:%S%.6f").to_string()
        );
    }
}
