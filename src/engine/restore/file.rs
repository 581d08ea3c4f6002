//! Data and attributes of one file of a restore.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{AtFlags, IFlags, OFlags, ftruncate, ioctl_getflags, linkat, renameat, unlinkat};
use rustix::io::Errno;

use super::apply::{Apply, make, on, refuse_changed, stage_name, unchanged};
use super::attrs::{Attrs, open_up, set_flags, set_flags_of, write, write_times};
use super::data::share_or_copy;
use super::plan::Sync;
use crate::engine::changes::node::{Node, stat_at};
use crate::engine::changes::open::{open_at, open_file_at};
use crate::engine::{EngineError, FileType, Result};

/// Names in a folder of our own.
const NEW: &[u8] = b"new";
const NEXT: &[u8] = b"next";

impl Apply<'_> {
    /// Makes one file, link or special file equal to the target's: data, attributes, flags.
    pub(super) fn file(&mut self, sync: &Sync) -> Result<()> {
        let (b, i) = (self.b, sync.node);
        let node = b.node(i);
        let want = self.target.attrs(b, i)?;
        if self.foreign(sync, &want) {
            return self.apart(sync, &want);
        }
        if node.is_file() && (sync.content || sync.flags) {
            let source = self.target.open(b, i)?;
            self.data(sync, &source, &want)?;
        }
        let (to, name) = self.at_b.place(i)?;
        write(to, name, &want).map_err(on("set the attributes of", b, i))?;
        set_flags(to, name, node.file_type, want.flags).map_err(on("set the flags of", b, i))
    }

    fn data(&mut self, sync: &Sync, source: &OwnedFd, want: &Attrs<'_>) -> Result<()> {
        let (b, i) = (self.b, sync.node);
        let (to, name) = self.at_b.place(i)?;
        let live = match open_file_at(to, name, true) {
            Ok(live) => live,
            // a program that runs cannot be written to: it keeps its inode, the name gets a new one
            Err(e) if e.raw_os_error() == Some(Errno::TXTBSY.raw_os_error()) && sync.content => {
                return self.replace(sync, source, want);
            }
            // its owner, without root, may not write to it: its mode is set again later
            Err(e) if e.kind() == io::ErrorKind::PermissionDenied => open_at(to, name, OFlags::PATH)
                .and_then(open_up)
                .and_then(|()| open_file_at(to, name, true))
                .map_err(on("open", b, i))?,
            Err(e) => return Err(on("open", b, i)(e)),
        };
        if let Some(was) = sync.was {
            let st = stat_at(live.as_fd(), b"").map_err(|e| on("read", b, i)(e.into()))?;
            if !unchanged(&st, self.a.node(was)) {
                return Err(refuse_changed(b, i));
            }
        }
        let filled = fill(&live, source, want.flags, sync.content);
        if filled.is_err()
            && let Some(was) = sync.was
        {
            // without space or quota the kernel may show a new time that is not on the disk: the safety checkpoint
            // has the true one, and what is taken back is compared with that
            let (to, name) = self.at_b.place(i)?;
            if let Err(e) = write_times(to, name, self.a.node(was)) {
                tracing::debug!("the times of a file that could not be written: {e}");
            }
        }
        filled.map_err(on("write", b, i))
    }

    /// True if this gives somebody's rights or secrets away unless who works in the folder never has it open: it belongs
    /// to another than the folder, or its program gets rights. One that was like that before stays in place.
    fn foreign(&self, sync: &Sync, want: &Attrs<'_>) -> bool {
        const RIGHTS: u32 = 0o6000;
        let node = want.node;
        let capable = want.xattrs.keys().any(|k| &k[..] == b"security.capability");
        let like = |was: &Node| {
            (was.uid, was.gid) == (node.uid, node.gid) && node.mode & RIGHTS & !was.mode == 0 && !capable
        };
        rustix::process::geteuid().is_root()
            && node.file_type != FileType::Link
            && (node.uid != self.owner || node.mode & RIGHTS != 0 || capable)
            && !sync.was.is_some_and(|was| like(self.a.node(was)))
    }

    /// Makes a file in a folder that only this process may enter, complete, and then gives it all its names: a program
    /// that has the old one open, or puts another one at the name meanwhile, gets nothing of it.
    fn apart(&mut self, sync: &Sync, want: &Attrs<'_>) -> Result<()> {
        let (b, i) = (self.b, sync.node);
        if let Some(was) = sync.was {
            let (to, name) = self.at_b.place(i)?;
            let st = stat_at(to, name).map_err(|e| on("read", b, i)(e.into()))?;
            if !unchanged(&st, self.a.node(was)) {
                return Err(refuse_changed(b, i));
            }
        }
        let (folder, stage) = self.make_stage()?;
        let mut made = || -> Result<Option<OwnedFd>> {
            make(stage.as_fd(), NEW, want.node).map_err(|e| on("create", b, i)(e.into()))?;
            let mut file = None;
            if want.node.is_file() {
                let source = self.target.open(b, i)?;
                let to = open_file_at(stage.as_fd(), NEW, true).map_err(on("open", b, i))?;
                fill(&to, &source, want.flags, true).map_err(on("write", b, i))?;
                file = Some(to);
            }
            write(stage.as_fd(), NEW, want).map_err(on("set the attributes of", b, i))?;
            Ok(file)
        };
        let file = made()?;
        for &name in sync.names.iter().skip(1) {
            linkat(&stage, NEW, &stage, NEXT, AtFlags::empty()).map_err(|e| on("link", b, name)(e.into()))?;
            self.named(&stage, NEXT, name)?;
        }
        self.named(&stage, NEW, sync.names.first().copied().unwrap_or(i))?;
        if let Some(file) = file {
            set_flags_of(&file, want.flags).map_err(on("set the flags of", b, i))?;
        }
        unlinkat(self.live, &folder, AtFlags::REMOVEDIR)
            .map_err(|e| EngineError::io("remove", &folder)(e.into()))
    }

    /// Moves an entry of a folder of our own to its name in the live tree.
    fn named(&mut self, stage: &OwnedFd, from: &[u8], i: u32) -> Result<()> {
        let b = self.b;
        let (dir, name) = self.at_b.place(i)?;
        renameat(stage, from, dir, name).map_err(|e| on("replace", b, i)(e.into()))?;
        self.stirred.insert(b.node(i).parent);
        Ok(())
    }

    /// Gives every name of the file to a new inode with the target's bytes.
    fn replace(&mut self, sync: &Sync, source: &OwnedFd, want: &Attrs<'_>) -> Result<()> {
        let b = self.b;
        let stage = stage_name();
        let live = self.at_b.dir(0)?;
        let made = make(live, stage.as_bytes(), want.node)
            .map_err(io::Error::from)
            .and_then(|()| open_file_at(live, stage.as_bytes(), true))
            .and_then(|fd| fill(&fd, source, want.flags, true));
        made.map_err(EngineError::io("create", &stage))?;
        for (n, &i) in sync.names.iter().enumerate() {
            if n > 0 {
                let (dir, name) = self.at_b.place(sync.names[0])?;
                let dir = dir.try_clone_to_owned().map_err(on("open", b, i))?;
                let root = self.at_b.dir(0)?;
                linkat(&dir, name, root, &stage, AtFlags::empty()).map_err(|e| on("link", b, i)(e.into()))?;
            }
            let root = self.at_b.dir(0)?.try_clone_to_owned().map_err(on("open", b, i))?;
            let (dir, name) = self.at_b.place(i)?;
            renameat(&root, &stage, dir, name).map_err(|e| on("replace", b, i)(e.into()))?;
        }
        Ok(())
    }
}

/// Writes the bytes. Whether a file is copy-on-write can only be changed while it is empty.
pub(super) fn fill(to: &OwnedFd, from: &OwnedFd, want: IFlags, content: bool) -> io::Result<()> {
    let now = match ioctl_getflags(to) {
        Ok(now) => now,
        Err(Errno::NOTTY | Errno::OPNOTSUPP) => IFlags::empty(),
        Err(e) => return Err(e.into()),
    };
    let differs = (now ^ want).contains(IFlags::NOCOW);
    if differs {
        ftruncate(to, 0)?;
        set_flags_of(to, want & IFlags::NOCOW)?;
    }
    if content || differs {
        share_or_copy(from, to)?;
    }
    Ok(())
}
