//! Does the plan on the live tree. Every entry is named by an open directory and a name; no link is followed
//! and no mount crossed. A kill at any point leaves a tree for which a new safety snapshot and a new plan do
//! the rest.

use std::collections::{BTreeSet, HashSet};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{AtFlags, Mode, RenameFlags, linkat, mkdirat, mknodat, renameat_with, symlinkat, unlinkat};
use rustix::io::Errno;

use super::attrs::{set_flags, thaw, write, write_times};
use super::plan::{Away, Plan, Put};
use super::source::Source;
use crate::engine::changes::node::{Node, Stamp, Walked, stat_at};
use crate::engine::changes::open::{Dirs, open_dir_at};
use crate::engine::{EngineError, FileType, Result, random_id};
use crate::process::{fault_point, fault_step};
use crate::progress::Progress;

/// How the names begin under which things are moved aside in the live root.
pub(super) const STAGE: &str = ".respool-stage";

/// A restore under way.
pub(super) struct Apply<'a> {
    pub(super) live: BorrowedFd<'a>,
    /// The user whose folder it is.
    pub(super) owner: u32,
    /// Folders (target tree) whose times the work on files changed.
    pub(super) stirred: BTreeSet<u32>,
    pub(super) a: &'a Walked,
    pub(super) b: &'a Walked,
    /// The live tree by the paths of the safety tree, and of the target.
    at_a: Dirs<'a>,
    pub(super) at_b: Dirs<'a>,
    link_b: Dirs<'a>,
    pub(super) target: Source<'a>,
    /// Folders that cannot go, as something that is not covered is in them.
    holds: HashSet<u32>,
    progress: &'a dyn Progress,
    done: u64,
    total: u64,
}

/// An adaptor for `map_err`: a system call on a node of a tree.
pub(super) fn on(what: &'static str, tree: &Walked, i: u32) -> impl FnOnce(io::Error) -> EngineError {
    EngineError::io(what, tree.path(i))
}

/// The file is not what the safety checkpoint holds: going on would lose the only copy.
fn changed_meanwhile() -> io::Error {
    io::Error::other("it was changed after the safety checkpoint; stop the program that writes to it")
}

/// True if the entry is still the inode that the safety tree has there, and for files still its bytes.
pub(super) fn unchanged(st: &rustix::fs::Statx, node: &Node) -> bool {
    let born = Stamp {
        s: st.stx_btime.tv_sec,
        ns: st.stx_btime.tv_nsec,
    };
    let mtime = Stamp {
        s: st.stx_mtime.tv_sec,
        ns: st.stx_mtime.tv_nsec,
    };
    (st.stx_ino, born) == node.inode
        && st.stx_mode & 0o170_000 == node.key.format
        && (node.is_dir() || (st.stx_size, mtime) == (node.size, node.mtime))
}

/// A new name for something moved aside.
pub(super) fn stage_name() -> String {
    random_id(STAGE)
}

impl<'a> Apply<'a> {
    pub fn new(
        live: BorrowedFd<'a>,
        safety: &'a Walked,
        target: (Source<'a>, &'a Walked),
        progress: &'a dyn Progress,
    ) -> Self {
        let (a, b) = (safety, target.1);
        let mut apply = Self {
            live,
            owner: 0,
            stirred: BTreeSet::new(),
            a,
            b,
            at_a: Dirs::new(live, a),
            at_b: Dirs::new(live, b),
            link_b: Dirs::new(live, b),
            target: target.0,
            holds: HashSet::new(),
            progress,
            done: 0,
            total: 0,
        };
        for i in (0..a.nodes.len() as u32).filter(|&i| !a.node(i).covered()) {
            apply.hold(i);
        }
        apply
    }

    /// Notes that the folders above `i` cannot be removed.
    fn hold(&mut self, i: u32) {
        let mut at = i;
        while at != 0 && self.holds.insert(at) {
            at = self.a.node(at).parent;
        }
    }

    fn step(&mut self) {
        self.done += 1;
        fault_step("restore-step", self.done);
        self.progress.step("restoring", self.done, self.total);
    }

    /// Does all of it.
    pub fn run(&mut self, plan: &Plan) -> Result<()> {
        self.total =
            (plan.away.len() + plan.put.len() + plan.links.len() + plan.files.len() + plan.dirs.len()) as u64;
        let root = stat_at(self.live, b"")
            .map_err(io::Error::from)
            .map_err(EngineError::io("read", "."))?;
        self.owner = root.stx_uid;
        let mut outside = Vec::new();
        for &i in &plan.thaw {
            let (dir, name) = self.at_a.place(i)?;
            let entry = thaw(dir, name).map_err(on("change the flags of", self.a, i))?;
            if plan.refreeze.contains(&i) {
                outside.push((i, entry));
            }
        }
        self.names(plan)?;
        for file in &plan.files {
            self.file(file)?;
            self.step();
        }
        for &i in &plan.dirs {
            self.attributes(i)?;
            self.step();
        }
        for i in std::mem::take(&mut self.stirred) {
            if !plan.dirs.contains(&i) && !self.b.node(i).is_context() {
                self.attributes(i)?;
            }
        }
        fault_point("restore-above");
        self.above(plan, &Node::new(b"", 0, 0, &root, None))?;
        for (i, thawed) in outside {
            thawed.refreeze().map_err(on("set the flags of", self.a, i))?;
        }
        Ok(())
    }

    /// Takes away, puts back, links.
    fn names(&mut self, plan: &Plan) -> Result<()> {
        let stage = if plan.stages() {
            Some(self.make_stage()?)
        } else {
            None
        };
        for away in &plan.away {
            self.take(away, stage.as_ref().map(|s| s.1.as_fd()))?;
            self.step();
        }
        for put in &plan.put {
            self.put(put, stage.as_ref().map(|s| s.1.as_fd()))?;
            self.step();
        }
        for link in &plan.links {
            let (from, old) = self.link_b.place(link.from)?;
            let (to, new) = self.at_b.place(link.to)?;
            linkat(from, old, to, new, AtFlags::empty()).map_err(|e| in_the_way(e, self.b, link.to))?;
            self.step();
        }
        if let Some((name, _)) = stage {
            unlinkat(self.live, &name, AtFlags::REMOVEDIR)
                .map_err(io::Error::from)
                .map_err(EngineError::io("remove", name))?;
        }
        Ok(())
    }

    pub(super) fn make_stage(&self) -> Result<(String, OwnedFd)> {
        let name = stage_name();
        mkdirat(self.live, &name, Mode::RWXU)
            .map_err(io::Error::from)
            .map_err(EngineError::io("create", &name))?;
        let fd = open_dir_at(self.live, name.as_bytes()).map_err(EngineError::io("open", &name))?;
        Ok((name, fd))
    }

    fn take(&mut self, away: &Away, stage: Option<BorrowedFd<'_>>) -> Result<()> {
        let (a, i) = (self.a, away.node);
        let node = a.node(i);
        let (dir, name) = self.at_a.place(i)?;
        let st = stat_at(dir, name).map_err(|e| on("restore", a, i)(e.into()))?;
        if !unchanged(&st, node) {
            return Err(on("restore", a, i)(changed_meanwhile()));
        }
        let done = match (away.stage, stage) {
            (Some(number), Some(stage)) => {
                renameat_with(dir, name, stage, number.to_string(), RenameFlags::NOREPLACE)
            }
            _ if node.is_dir() => unlinkat(dir, name, AtFlags::REMOVEDIR),
            _ => unlinkat(dir, name, AtFlags::empty()),
        };
        match done {
            Ok(()) => Ok(()),
            Err(Errno::NOTEMPTY) if away.stage.is_none() && self.holds.contains(&i) => Ok(()),
            Err(Errno::BUSY) if away.stage.is_none() => {
                self.hold(i);
                Ok(())
            }
            Err(Errno::NOTEMPTY) => Err(on("remove", a, i)(changed_meanwhile())),
            Err(e) => Err(on(if away.stage.is_some() { "move" } else { "remove" }, a, i)(
                e.into(),
            )),
        }
    }

    fn put(&mut self, put: &Put, stage: Option<BorrowedFd<'_>>) -> Result<()> {
        let (b, i) = (self.b, put.node);
        let node = b.node(i);
        let (dir, name) = self.at_b.place(i)?;
        let done = match (put.stage, stage) {
            (Some(number), Some(stage)) => {
                renameat_with(stage, number.to_string(), dir, name, RenameFlags::NOREPLACE)
            }
            _ if node.file_type == FileType::Link => {
                let text = self.target.link(b, i)?;
                symlinkat(&text[..], dir, name)
            }
            _ => make(dir, name, node),
        };
        done.map_err(|e| in_the_way(e, b, i))
    }

    /// Sets the attributes of a directory.
    fn attributes(&mut self, i: u32) -> Result<()> {
        let node = self.b.node(i);
        let want = self.target.attrs(self.b, i)?;
        let (to, name) = self.at_b.place(i)?;
        write(to, name, &want).map_err(on("set the attributes of", self.b, i))?;
        set_flags(to, name, node.file_type, want.flags).map_err(on("set the flags of", self.b, i))
    }

    /// The root above a selection keeps its times if nothing in it changed but what was moved aside.
    fn above(&mut self, plan: &Plan, root: &Node) -> Result<()> {
        let in_root = |tree: &Walked, i: u32| i != 0 && tree.node(i).parent == 0;
        let touched = plan.away.iter().any(|x| in_root(self.a, x.node))
            || plan.put.iter().any(|x| in_root(self.b, x.node))
            || plan.links.iter().any(|x| in_root(self.b, x.to));
        if self.a.node(0).is_context() && !touched {
            let now = stat_at(self.live, b"").map_err(|e| EngineError::io("read", ".")(e.into()))?;
            if Node::new(b"", 0, 0, &now, None).mtime != root.mtime {
                write_times(self.live, b".", root).map_err(EngineError::io("set the times of", "."))?;
            }
        }
        Ok(())
    }
}

/// Makes an empty directory, file, pipe, socket or device, for the owner alone until its attributes are set.
pub(super) fn make(dir: BorrowedFd<'_>, name: &[u8], node: &Node) -> rustix::io::Result<()> {
    use rustix::fs::FileType as T;
    let kind = match node.file_type {
        FileType::Dir => return mkdirat(dir, name, Mode::RWXU),
        FileType::Fifo => T::Fifo,
        FileType::Socket => T::Socket,
        FileType::CharDevice => T::CharacterDevice,
        FileType::BlockDevice => T::BlockDevice,
        FileType::File | FileType::Link => T::RegularFile,
    };
    let device = rustix::fs::makedev(node.rdev.0, node.rdev.1);
    mknodat(dir, name, kind, Mode::RUSR | Mode::WUSR, device)
}

/// The error of putting something where something uncovered stands.
fn in_the_way(e: Errno, tree: &Walked, i: u32) -> EngineError {
    let path = tree.path(i);
    if e != Errno::EXIST {
        return EngineError::io("create", path)(e.into());
    }
    EngineError::Refused {
        why: format!(
            "{} cannot be put back: a nested subvolume, a mount or a new file is in its place",
            crate::text::shown_path(&path)
        ),
        path: Some(path),
        hint: Some("move it away or unmount it, then run it again".into()),
    }
}

/// The error of a file that is not what the safety tree has.
pub(super) fn refuse_changed(tree: &Walked, i: u32) -> EngineError {
    on("restore", tree, i)(changed_meanwhile())
}
