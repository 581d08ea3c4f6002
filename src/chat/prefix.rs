//! The file of a fork of a Claude Code conversation: written whole or not at all, and taken away again as long as
//! nobody has gone on in it. `.<id>.jsonl.respool` while it is written, `<id>.jsonl` when it is complete: a look at
//! the folder tells how far it came.

use std::io::{BufWriter, Read, Write};
use std::path::Path;

use super::error::{ChatError, Result};
use super::fork::{Fork, folder};
use super::members;
use super::shelf::Shelf;
use super::{Change, Side, Way};
use crate::conversation::{Beginning, Until, claude_open};
use crate::process::fault_point;
use crate::progress::Silent;
use crate::text::shown;

/// Counts and hashes what goes through it.
struct Meter<W> {
    to: W,
    bytes: u64,
    hasher: blake3::Hasher,
}

impl<W: Write> Write for Meter<W> {
    fn write(&mut self, data: &[u8]) -> std::io::Result<usize> {
        let n = self.to.write(data)?;
        self.bytes += n as u64;
        self.hasher.update(&data[..n]);
        Ok(n)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.to.flush()
    }
}

/// The length and hash of a beginning as the new conversation will have it.
pub(super) fn measured(beginning: &Beginning, id: &str, store: &Path) -> Result<(u64, String)> {
    pour(beginning, id, store, std::io::sink(), || {})
}

/// Writes a beginning as the new conversation has it; its length and hash. `halfway`: called in the middle.
fn pour(
    beginning: &Beginning,
    id: &str,
    store: &Path,
    to: impl Write,
    mut halfway: impl FnMut(),
) -> Result<(u64, String)> {
    let mut out = Meter {
        to,
        bytes: 0,
        hasher: blake3::Hasher::new(),
    };
    let damaged = |reason: &'static str| ChatError::Damaged {
        path: store.to_owned(),
        reason: reason.into(),
    };
    let half = beginning.pieces.len() / 2;
    let mut number = 0;
    beginning.each(|bytes, piece| -> Result<()> {
        let mut record = members::put(bytes, "sessionId", Some(id)).map_err(damaged)?;
        if let Some(follows) = &piece.follows {
            record = members::put(&record, "parentUuid", follows.as_deref()).map_err(damaged)?;
        }
        record.push(b'\n');
        out.write_all(&record).map_err(ChatError::io("write", store))?;
        number += 1;
        if number == half {
            out.flush().map_err(ChatError::io("write", store))?;
            halfway();
        }
        Ok(())
    })?;
    out.flush().map_err(ChatError::io("write", store))?;
    Ok((out.bytes, out.hasher.finalize().to_hex().to_string()))
}

fn beginning(store: &Path, until: &Until) -> Result<Beginning> {
    let (Until::Before(id) | Until::EndOf(id)) = until;
    Beginning::read(store, until, &Silent)?.ok_or_else(|| {
        ChatError::Unmovable(format!("the conversation has no message {} any more", shown(id)))
    })
}

/// Brings a fork's file there, or away, as the side of the change wants it.
pub(super) fn moved(change: &Change, to: Side) -> Result<()> {
    match (&change.way, to) {
        (Way::Fork(fork), Side::After) | (Way::Unfork(fork), Side::Before) => made(change.path(), fork),
        (Way::Fork(fork), Side::Before) | (Way::Unfork(fork), Side::After) => taken_away(change.path(), fork),
        _ => Err(ChatError::Unmovable("it is changed in another way".into())),
    }
}

fn made(store: &Path, fork: &Fork) -> Result<()> {
    if fork.bytes == 0 {
        return Ok(());
    }
    let shelf = folder(store)?;
    settled(&shelf, fork)?;
    if shelf.has_file(&fork.name())? {
        // somebody goes on in it: that is what it is for
        if begins_as_written(&shelf, fork)? {
            return Ok(());
        }
        return Err(ChatError::Changed(
            "another conversation has the new one's id".into(),
        ));
    }
    fault_point("chat-fork");
    let start = beginning(store, &fork.until)?;
    let old = store.file_name().and_then(|n| n.to_str()).unwrap_or_default();
    shelf.create((&fork.name(), &fork.temp(), old), |file| {
        let out = BufWriter::with_capacity(1 << 20, file);
        let half = || fault_point("chat-fork-half");
        let (bytes, hash) = pour(&start, &fork.id, store, out, half)?;
        if (bytes, &hash) == (fork.bytes, &fork.hash) {
            return Ok(());
        }
        Err(ChatError::Changed(
            "what comes before that place is not what it was".into(),
        ))
    })?;
    fault_point("chat-forked");
    Ok(())
}

/// Takes a fork away in which nobody has gone on. What is left then is what the old conversation has, too.
fn taken_away(store: &Path, fork: &Fork) -> Result<()> {
    let shelf = folder(store)?;
    settled(&shelf, fork)?;
    let open = claude_open(&fork.store(store))?.is_some();
    if open || is_as_written(store, fork)? != Some(true) {
        return Ok(());
    }
    fault_point("chat-unfork");
    shelf.move_to(&fork.name(), &shelf, &fork.temp())?;
    shelf.sync()?;
    fault_point("chat-unforked");
    settled(&shelf, fork)
}

/// What is left under the other name: half of a fork, or one that was on its way out. What somebody wrote meanwhile
/// comes back.
fn settled(shelf: &Shelf, fork: &Fork) -> Result<()> {
    let temp = fork.temp();
    let Some(file) = shelf.file(&temp)? else {
        return Ok(());
    };
    let path = shelf.path.join(&temp);
    let length = file.metadata().map_err(ChatError::io("look at", &path))?.len();
    if length > fork.bytes {
        shelf.move_to(&temp, shelf, &fork.name())?;
    } else {
        shelf.unlink(&temp)?;
    }
    shelf.sync()
}

/// Whether a fork's file is, byte for byte, as it was written; `None` if there is none.
pub(super) fn is_as_written(store: &Path, fork: &Fork) -> Result<Option<bool>> {
    let shelf = folder(store)?;
    let Some(file) = shelf.file(&fork.name())? else {
        return Ok(None);
    };
    let path = shelf.path.join(fork.name());
    let length = file.metadata().map_err(ChatError::io("look at", &path))?.len();
    Ok(Some(length == fork.bytes && begins_as_written(&shelf, fork)?))
}

fn begins_as_written(shelf: &Shelf, fork: &Fork) -> Result<bool> {
    let Some(file) = shelf.file(&fork.name())? else {
        return Ok(false);
    };
    let path = shelf.path.join(fork.name());
    let mut hasher = blake3::Hasher::new();
    let mut rest = file.take(fork.bytes);
    let mut block = vec![0; 1 << 16];
    loop {
        match rest.read(&mut block).map_err(ChatError::io("read", &path))? {
            0 => break,
            n => hasher.update(&block[..n]),
        };
    }
    Ok(hasher.finalize().to_hex().to_string() == fork.hash)
}

/// On which side of a change the conversations are. It is always told: a half-written fork is none.
pub(super) fn side(change: &Change) -> Result<Option<Side>> {
    let store = change.path();
    let (fork, there, gone) = match &change.way {
        Way::Fork(fork) => (fork, Side::After, Side::Before),
        Way::Unfork(fork) => (fork, Side::Before, Side::After),
        _ => return Ok(None),
    };
    if fork.bytes == 0 {
        // nothing to be done
        return Ok(Some(Side::After));
    }
    settled(&folder(store)?, fork)?;
    Ok(Some(match (is_as_written(store, fork)?, there) {
        (None, _) => gone,
        // one that somebody has gone on in stays, whichever way it goes
        (Some(false), _) => Side::After,
        (Some(true), there) => there,
    }))
}
