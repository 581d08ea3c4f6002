//! Does the plan on the live tree. Every entry is named by an open directory and a name; no link is followed
//! and no mount crossed. What gets data, an owner or anything else is the inode that is meant, by its handle: see
//! [`Known`]. A kill at any point leaves a tree for which a new safety snapshot and a new plan do
//! the rest.

use std::collections::{BTreeSet, HashSet};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{
    AtFlags, CWD, Mode, OFlags, RenameFlags, linkat, mkdirat, mknodat, renameat, renameat_with, symlinkat,
    unlinkat,
};
use rustix::io::Errno;

use super::attrs::{set_flags_of, thaw, usable, write, write_times};
use super::file::NEW;
use super::known::{By, Known, Places};
use super::plan::{Away, Plan, Put};
use super::source::Source;
use crate::engine::changes::node::{Node, Stamp, Walked, stat_at};
use crate::engine::changes::open::{handle_path, open_dir_at};
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
    at_a: Places<'a>,
    pub(super) at_b: Places<'a>,
    link_b: Places<'a>,
    pub(super) known: Known<'a>,
    pub(super) target: Source<'a>,
    /// Folders that cannot go, as something that is not covered is in them.
    holds: HashSet<u32>,
    progress: &'a dyn Progress,
    pub(super) done: u64,
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
        let known = Known::new(live, a, b);
        let mut apply = Self {
            live,
            owner: 0,
            stirred: BTreeSet::new(),
            a,
            b,
            at_a: Places::new(live, &known, By::Safety),
            at_b: Places::new(live, &known, By::Target),
            link_b: Places::new(live, &known, By::Target),
            known,
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
            let (entry, _) = self.at_a.entry(&self.known, i)?;
            let entry = thaw(entry).map_err(on("change the flags of", self.a, i))?;
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
        // root makes things where nobody else can exchange them before they are known by their inodes
        let root = rustix::process::geteuid().is_root();
        let stage = if plan.stages() || root && plan.makes() {
            Some(self.make_stage()?)
        } else {
            None
        };
        let done = self.exchange(plan, stage.as_ref().map(|s| s.1.as_fd()));
        let gone = stage.map_or(Ok(()), |(name, _)| self.remove_stage(&name));
        // after a failure it may hold what was moved aside
        done.and(gone)
    }

    fn exchange(&mut self, plan: &Plan, stage: Option<BorrowedFd<'_>>) -> Result<()> {
        for away in &plan.away {
            self.take(away, stage)?;
            self.step();
        }
        for put in &plan.put {
            self.put(put, stage)?;
            self.step();
        }
        for link in &plan.links {
            let (from, _) = self.link_b.entry(&self.known, link.from)?;
            let (to, new) = self.at_b.place(&self.known, link.to)?;
            linkat(CWD, handle_path(&from), to, new, AtFlags::SYMLINK_FOLLOW)
                .map_err(|e| in_the_way(e, self.b, link.to))?;
            self.step();
        }
        Ok(())
    }

    /// Removes what stands at the name of a folder of our own if it is an empty folder: whoever put another one there
    /// could have removed it himself.
    pub(super) fn remove_stage(&self, name: &str) -> Result<()> {
        unlinkat(self.live, name, AtFlags::REMOVEDIR).map_err(|e| EngineError::io("remove", name)(e.into()))
    }

    /// A new folder in the root of the live tree, that only this process's user may enter.
    pub(super) fn make_stage(&self) -> Result<(String, OwnedFd)> {
        let name = stage_name();
        mkdirat(self.live, &name, Mode::RWXU)
            .map_err(io::Error::from)
            .map_err(EngineError::io("create", &name))?;
        let fd = open_dir_at(self.live, name.as_bytes()).map_err(EngineError::io("open", &name))?;
        let st = stat_at(fd.as_fd(), b"").map_err(|e| EngineError::io("read", &name)(e.into()))?;
        if st.stx_uid == rustix::process::geteuid().as_raw() && st.stx_mode & 0o777 == 0o700 {
            return Ok((name, fd));
        }
        Err(EngineError::io("open", &name)(changed_meanwhile()))
    }

    fn take(&mut self, away: &Away, stage: Option<BorrowedFd<'_>>) -> Result<()> {
        let (a, i) = (self.a, away.node);
        let node = a.node(i);
        let (dir, name) = self.at_a.place(&self.known, i)?;
        // removed is what is at the name: whoever puts another thing there meanwhile could have removed it himself
        let st = stat_at(dir, name).map_err(|e| on("restore", a, i)(e.into()))?;
        if !unchanged(&st, node) {
            return Err(on("restore", a, i)(changed_meanwhile()));
        }
        let done = match (away.stage, stage) {
            (Some(number), Some(stage)) => {
                let number = number.to_string();
                fault_step("restore-moving", self.done + 1);
                move_to(dir, name, stage, number.as_bytes()).and_then(|()| {
                    if unchanged(&stat_at(stage, number.as_bytes())?, node) {
                        return Ok(());
                    }
                    // another thing was put there meanwhile: it goes back
                    move_to(stage, number.as_bytes(), dir, name)?;
                    Err(Errno::STALE)
                })
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
            Err(Errno::NOTEMPTY | Errno::STALE) => Err(on("remove", a, i)(changed_meanwhile())),
            Err(e) => Err(on(if away.stage.is_some() { "move" } else { "remove" }, a, i)(
                e.into(),
            )),
        }
    }

    fn put(&mut self, put: &Put, stage: Option<BorrowedFd<'_>>) -> Result<()> {
        let (b, i) = (self.b, put.node);
        if let (Some(number), Some(stage)) = (put.stage, stage) {
            let (dir, name) = self.at_b.place(&self.known, i)?;
            let number = number.to_string();
            return move_to(stage, number.as_bytes(), dir, name).map_err(|e| in_the_way(e, b, i));
        }
        let node = b.node(i);
        let text = match node.file_type {
            FileType::Link => self.target.link(b, i)?,
            _ => Vec::new(),
        };
        let (dir, name) = self.at_b.place(&self.known, i)?;
        let make = |dir: BorrowedFd<'_>, name: &[u8]| {
            if node.file_type == FileType::Link {
                symlinkat(&text[..], dir, name)?;
            } else {
                make(dir, name, node)?;
            }
            stat_at(dir, name)
        };
        // a folder that this restore made is entered by nobody else before it gets its owner and mode at the end
        let made = match stage.filter(|_| !self.known.has_made(node.parent)) {
            Some(stage) => make(stage, NEW).and_then(|st| {
                let moved = move_to(stage, NEW, dir, name);
                if moved.is_err() {
                    let how = if node.is_dir() {
                        AtFlags::REMOVEDIR
                    } else {
                        AtFlags::empty()
                    };
                    unlinkat(stage, NEW, how)?;
                }
                moved.map(|()| st)
            }),
            None => make(dir, name),
        };
        let st = made.map_err(|e| in_the_way(e, b, i))?;
        self.known.made(i, &st);
        Ok(())
    }

    /// Sets the attributes of a directory.
    fn attributes(&mut self, i: u32) -> Result<()> {
        let want = self.target.attrs(self.b, i)?;
        let (entry, _) = self.at_b.entry(&self.known, i)?;
        let dir = usable(&entry, OFlags::RDONLY | OFlags::DIRECTORY).map_err(on("open", self.b, i))?;
        write(&dir, &want).map_err(on("set the attributes of", self.b, i))?;
        set_flags_of(&dir, want.flags).map_err(on("set the flags of", self.b, i))
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
                write_times(self.live, root).map_err(EngineError::io("set the times of", "."))?;
            }
        }
        Ok(())
    }
}

/// Moves an entry where nothing is. Some network file systems can only do that by looking first.
fn move_to(from: BorrowedFd<'_>, old: &[u8], to: BorrowedFd<'_>, new: &[u8]) -> rustix::io::Result<()> {
    match renameat_with(from, old, to, new, RenameFlags::NOREPLACE) {
        Err(Errno::INVAL | Errno::NOSYS) => match stat_at(to, new) {
            Err(Errno::NOENT) => renameat(from, old, to, new),
            Err(e) => Err(e),
            Ok(_) => Err(Errno::EXIST),
        },
        other => other,
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
