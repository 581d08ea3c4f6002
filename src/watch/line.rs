//! The line from a hook inside a container to respool outside of it: a socket of one sandbox that can do one thing, to
//! say that a message has come. One JSON line there, one back.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::hook::{Call, Taken};
use crate::engine::{CheckpointId, CheckpointKind, How, NewCheckpoint};
use crate::sandbox::heard::is_id;

/// The socket's name in its folder.
pub const SOCKET: &str = "hook.sock";
/// The program's name there.
pub const PROGRAM: &str = "respool";
/// Where the folder is mounted in a container.
pub const INSIDE: &str = "/run/respool";
/// The longest line either way, in bytes.
pub const LINE: u64 = 4096;
/// The version of these lines.
pub const VERSION: u32 = 1;

/// What a hook says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Said {
    /// The version.
    pub v: u32,
    /// What has happened.
    pub event: Happened,
    /// In this conversation.
    pub conversation: String,
    /// The hash of the message's text, hexadecimal.
    #[serde(default)]
    pub text_hash: Option<String>,
}

/// What has happened in a conversation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Happened {
    /// A message is about to be stored.
    Message,
    /// The agent stopped.
    TurnEnd,
}

/// What it gets back.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Reply {
    /// The checkpoint, and the command that goes back to it.
    Taken(CheckpointId, String),
    /// Why there is none.
    None(String),
}

impl Said {
    /// What this call says; `None` for an event that needs no checkpoint.
    pub fn of(call: &Call) -> Option<Self> {
        let new = call.checkpoint()?;
        Some(Self {
            v: VERSION,
            event: match new.kind {
                CheckpointKind::Message => Happened::Message,
                _ => Happened::TurnEnd,
            },
            conversation: call.session.clone(),
            text_hash: new.text_hash,
        })
    }

    /// The checkpoint that it asks for. Only what has the form of an id and of a hash gets into its record.
    pub fn checkpoint(&self) -> Result<NewCheckpoint, String> {
        if self.v != VERSION {
            return Err("the hook in the container is of another version".into());
        }
        let hex = |h: &String| h.len() <= 128 && h.bytes().all(|b| b.is_ascii_hexdigit());
        if !is_id(&self.conversation) || !self.text_hash.as_ref().is_none_or(hex) {
            return Err("the hook names no conversation, or no hash of a text".into());
        }
        let kind = match self.event {
            Happened::Message => CheckpointKind::Message,
            Happened::TurnEnd => CheckpointKind::TurnEnd,
        };
        let mut new = NewCheckpoint::of(kind, How::Hook);
        new.conversation = Some(self.conversation.clone());
        new.text_hash = self.text_hash.clone().filter(|_| self.event == Happened::Message);
        Ok(new)
    }
}

/// The socket beside the program that runs: that of a folder which is mounted into a container. At the place where it is
/// mounted it is meant, also while nobody answers.
pub fn beside(program: &Path) -> Option<PathBuf> {
    let folder = program.parent()?;
    let socket = folder.join(SOCKET);
    if folder == Path::new(INSIDE) {
        return Some(socket);
    }
    let meta = std::fs::symlink_metadata(&socket).ok()?;
    std::os::unix::fs::FileTypeExt::is_socket(&meta.file_type()).then_some(socket)
}

/// Says it, and waits for the checkpoint. The container may be paused meanwhile, and this process with it. The error is
/// one line that says why there is none.
pub fn say(socket: &Path, call: &Call, patience: Duration) -> Result<Taken, String> {
    let said = Said::of(call).ok_or("nothing to do")?;
    let failed = |e: std::io::Error| format!("respool cannot be reached from inside the container: {e}");
    let mut stream = UnixStream::connect(socket).map_err(failed)?;
    stream.set_read_timeout(Some(patience)).map_err(failed)?;
    let mut line = serde_json::to_vec(&said).map_err(|e| e.to_string())?;
    line.push(b'\n');
    stream.write_all(&line).map_err(failed)?;
    let reply: Reply = read_line(&stream).map_err(failed)?;
    match reply {
        Reply::Taken(id, restore) => Ok(Taken { id, restore }),
        Reply::None(why) => Err(why),
    }
}

/// Reads one line of the other end's.
pub fn read_line<T: serde::de::DeserializeOwned>(stream: &UnixStream) -> std::io::Result<T> {
    let mut line = Vec::new();
    BufReader::new(stream.take(LINE)).read_until(b'\n', &mut line)?;
    if line.last() != Some(&b'\n') {
        return Err(std::io::Error::new(
            std::io::ErrorKind::UnexpectedEof,
            "the line is cut short",
        ));
    }
    serde_json::from_slice(&line).map_err(Into::into)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(conversation: &str, hash: &str) -> Said {
        Said {
            v: VERSION,
            event: Happened::Message,
            conversation: conversation.into(),
            text_hash: Some(hash.into()),
        }
    }

    #[test]
    fn what_has_not_the_form_of_an_id_gets_into_no_record() {
        let new = said("a-1", "00ff").checkpoint().expect("one");
        assert_eq!((new.kind, new.how), (CheckpointKind::Message, How::Hook));
        assert_eq!(new.text_hash.as_deref(), Some("00ff"));
        for (conversation, hash) in [
            ("", "00"),
            ("../x", "00"),
            ("a\n", "00"),
            ("a", "xyz"),
            ("\u{1b}[m", "00"),
        ] {
            assert!(said(conversation, hash).checkpoint().is_err(), "{conversation:?}");
        }
        let newer = Said {
            v: 2,
            ..said("a", "00")
        };
        assert!(newer.checkpoint().is_err());
    }

    #[test]
    fn nobody_there_is_a_reason() {
        let call = Call {
            event: super::super::hook::Event::Stop,
            session: "s".into(),
            workspace: "/w".into(),
        };
        let dir = tempfile::tempdir().expect("tempdir");
        let why = say(&dir.path().join("none"), &call, Duration::from_secs(1)).expect_err("nobody");
        assert!(
            why.starts_with("respool cannot be reached from inside the container"),
            "{why}"
        );
        assert_eq!(beside(&dir.path().join("respool")), None);
        let inside = Path::new(INSIDE);
        assert_eq!(beside(&inside.join("respool")), Some(inside.join(SOCKET)));
    }
}
