//! Data and attributes of one file of a restore.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{AtFlags, IFlags, OFlags, Statx, ftruncate, ioctl_getflags, linkat, renameat};
use rustix::io::Errno;

use super::apply::{Apply, make, on, refuse_changed, unchanged};
use super::attrs::{Attrs, set_flags_of, usable, write, write_times};
use super::data::share_or_copy;
use super::plan::Sync;
use crate::engine::changes::node::Node;
use crate::engine::changes::open::{open_at, open_file_at};
use crate::engine::{FileType, Result};
use crate::process::fault_step;

/// Names in a folder of our own.
pub(super) const NEW: &[u8] = b"new";
const NEXT: &[u8] = b"next";

impl Apply<'_> {
    /// Makes one file, link or special file equal to the target's: data, attributes, flags. All of it is done to the one
    /// inode that was opened and is the one that is meant.
    pub(super) fn file(&mut self, sync: &Sync) -> Result<()> {
        let (b, i) = (self.b, sync.node);
        let node = b.node(i);
        let want = self.target.attrs(b, i)?;
        if self.foreign(sync, &want) {
            return self.apart(sync, &want);
        }
        let (entry, st) = self.at_b.entry(&self.known, i)?;
        if !node.is_file() {
            return write(&entry, &want).map_err(on("set the attributes of", b, i));
        }
        let content = sync.content || sync.flags;
        if content {
            self.still(sync, &st)?;
        }
        let how = if content { OFlags::RDWR } else { OFlags::RDONLY };
        let file = match usable(&entry, how) {
            // a program that runs cannot be written to: it keeps its inode, the name gets a new one
            Err(e) if Errno::from_io_error(&e) == Some(Errno::TXTBSY) && sync.content => {
                return self.apart(sync, &want);
            }
            file => file.map_err(on("open", b, i))?,
        };
        drop(entry);
        if content {
            let source = self.target.open(b, i)?;
            self.data(sync, &file, &source, &want)?;
        }
        fault_step("restore-written", self.done + 1);
        write(&file, &want).map_err(on("set the attributes of", b, i))?;
        set_flags_of(&file, want.flags).map_err(on("set the flags of", b, i))
    }

    /// Refuses a file that is not as the safety checkpoint has it.
    fn still(&self, sync: &Sync, st: &Statx) -> Result<()> {
        match sync.was {
            Some(was) if !unchanged(st, self.a.node(was)) => Err(refuse_changed(self.b, sync.node)),
            _ => Ok(()),
        }
    }

    fn data(&self, sync: &Sync, live: &OwnedFd, source: &OwnedFd, want: &Attrs<'_>) -> Result<()> {
        let filled = fill(live, source, want.flags, sync.content);
        if filled.is_err()
            && let Some(was) = sync.was
        {
            // without space or quota the kernel may show a new time that is not on the disk: the safety checkpoint
            // has the true one, and what is taken back is compared with that
            if let Err(e) = write_times(live, self.a.node(was)) {
                tracing::debug!("the times of a file that could not be written: {e}");
            }
        }
        filled.map_err(on("write", self.b, sync.node))
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
    /// that has the old one open, or puts another one at the name meanwhile, gets nothing of it. Names in that folder
    /// are safe to use: nobody else can put anything there.
    fn apart(&mut self, sync: &Sync, want: &Attrs<'_>) -> Result<()> {
        let (b, i) = (self.b, sync.node);
        if sync.was.is_some() {
            let (_, st) = self.at_b.entry(&self.known, i)?;
            self.still(sync, &st)?;
        }
        let (folder, stage) = self.make_stage()?;
        make(stage.as_fd(), NEW, want.node).map_err(|e| on("create", b, i)(e.into()))?;
        let file = if want.node.is_file() {
            let file = open_file_at(stage.as_fd(), NEW, true).map_err(on("open", b, i))?;
            let source = self.target.open(b, i)?;
            fill(&file, &source, want.flags, true).map_err(on("write", b, i))?;
            write(&file, want).map_err(on("set the attributes of", b, i))?;
            Some(file)
        } else {
            let entry = open_at(stage.as_fd(), NEW, OFlags::PATH).map_err(on("open", b, i))?;
            write(&entry, want).map_err(on("set the attributes of", b, i))?;
            None
        };
        for &name in sync.names.iter().skip(1) {
            linkat(&stage, NEW, &stage, NEXT, AtFlags::empty()).map_err(|e| on("link", b, name)(e.into()))?;
            self.named(&stage, NEXT, name)?;
        }
        self.named(&stage, NEW, sync.names.first().copied().unwrap_or(i))?;
        if let Some(file) = file {
            set_flags_of(&file, want.flags).map_err(on("set the flags of", b, i))?;
        }
        self.remove_stage(&folder)
    }

    /// Moves an entry of a folder of our own to its name in the live tree.
    fn named(&mut self, stage: &OwnedFd, from: &[u8], i: u32) -> Result<()> {
        let b = self.b;
        let (dir, name) = self.at_b.place(&self.known, i)?;
        // what is there goes, whatever it is: whoever put it there could have removed it
        renameat(stage, from, dir, name).map_err(|e| on("replace", b, i)(e.into()))?;
        self.stirred.insert(b.node(i).parent);
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
