//! A message is kept in a file until it was sent: neither a crash nor a rewind that fails loses what was written.

use std::fs;
use std::io::Write;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use chrono::{DateTime, Utc};

use super::error::{ChatError, Result};
use super::{Hand, fork};
use crate::conversation::Summary;
use crate::durable::{own_file, replace_file};
use crate::paths::read_text;

/// The longest text that is kept and sent, in bytes.
pub const MOST: u64 = 4 << 20;

/// The folder where messages are kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Drafts {
    folder: PathBuf,
    hand: Hand,
}

/// The place of one message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kept {
    path: PathBuf,
    hand: Hand,
}

impl Drafts {
    /// In the folder `drafts` of this state folder, which belongs to whom `hand` is.
    pub fn new(state_dir: &Path, hand: Hand) -> Self {
        Self {
            folder: state_dir.join("drafts"),
            hand,
        }
    }

    /// The place for what is written instead of a message (its native id) of this conversation. Nothing is made yet.
    /// A fork has the messages of what it is a fork of, under their ids: what was written for one is there in both.
    pub fn instead_of(&self, conversation: &Summary, message: &str) -> Kept {
        let shared = conversation.agent == fork::AGENT && fork::is_id(message);
        self.of(if shared { fork::AGENT } else { &conversation.id }, message)
    }

    fn of(&self, conversation: &str, message: &str) -> Kept {
        let mut name: String = conversation
            .chars()
            .filter(|c| c.is_ascii_alphanumeric() || *c == '-')
            .take(40)
            .collect();
        // ids are the agent's: what is left of them need not tell them apart
        let mark = blake3::hash(format!("{conversation}\0{message}").as_bytes()).to_hex();
        name.push('.');
        name.push_str(&mark[..12]);
        Kept {
            path: self.folder.join(name + ".txt"),
            hand: self.hand,
        }
    }
}

impl Kept {
    /// The file, which holds the text and nothing else.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What is kept there.
    pub fn read(&self) -> Result<Option<String>> {
        self.hand.run(|| match read_text(&self.path) {
            Ok(text) => Ok(Some(text)),
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(e) => Err(ChatError::io("read", &self.path)(e)),
        })
    }

    /// What is kept there and was not sent. Where one of the `messages` (text and time) says just that and is newer
    /// than the file, a command that was told has sent it, unseen by us: it is kept no longer.
    pub fn unsent<'a>(
        &self,
        messages: impl IntoIterator<Item = (&'a str, Option<DateTime<Utc>>)>,
    ) -> Result<Option<String>> {
        let Some(text) = self.read()? else { return Ok(None) };
        let written = self.hand.run(|| {
            let meta = fs::symlink_metadata(&self.path).map_err(ChatError::io("look at", &self.path))?;
            meta.modified().map_err(ChatError::io("look at", &self.path))
        })?;
        let written = DateTime::<Utc>::from(written);
        // a shell takes the last line's end away
        let is = |said: &str| said == text || said == text.trim_end_matches('\n');
        let mut messages = messages.into_iter();
        if messages.any(|(said, time)| time.is_some_and(|t| t > written) && is(said)) {
            self.remove()?;
            return Ok(None);
        }
        Ok(Some(text))
    }

    /// Keeps a text there.
    pub fn keep(&self, text: &str) -> Result<()> {
        self.hand.run(|| {
            self.folder()?;
            let temp = self.path.with_extension(format!("{}.tmp", std::process::id()));
            replace_file(&self.path, &temp, text.as_bytes())
                .map_err(ChatError::io("keep the message in", &self.path))
        })
    }

    /// Removes what is kept there.
    pub fn remove(&self) -> Result<()> {
        self.hand.run(|| match fs::remove_file(&self.path) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(ChatError::io("remove", &self.path)(e)),
            _ => Ok(()),
        })
    }

    /// A new file for the user's editor, with a text in it.
    pub fn for_editor(&self, text: &str) -> Result<PathBuf> {
        self.hand.run(|| {
            self.folder()?;
            let file = self
                .path
                .with_extension(format!("{}.edit.txt", std::process::id()));
            let write = || own_file(&file)?.write_all(text.as_bytes());
            write().map_err(ChatError::io("write", &file))?;
            Ok(file)
        })
    }

    /// What the editor made of it; the file is removed, unless it is no text. `before`: what it was.
    pub fn edited(&self, file: &Path, before: &str) -> Result<String> {
        self.hand.run(|| {
            let new = read_text(file).map_err(ChatError::io("read", file))?;
            fs::remove_file(file).map_err(ChatError::io("remove", file))?;
            // editors end the last line
            Ok(match new.strip_suffix('\n') {
                Some(short) if !before.ends_with('\n') => short.to_owned(),
                _ => new,
            })
        })
    }

    fn folder(&self) -> Result<()> {
        let folder = self.path.parent().unwrap_or(Path::new("."));
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(folder)
            .map_err(ChatError::io("make", folder))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SELF: Hand = Hand { uid: 0, gid: 0 };

    #[test]
    fn each_message_has_a_place_of_its_own_whatever_its_id_is() {
        let dir = tempfile::tempdir().expect("tempdir");
        let drafts = Drafts::new(dir.path(), SELF);
        let ids = [
            ("a", "1"),
            ("a", "2"),
            ("a_", "1"),
            ("../../etc", "/x"),
            ("a", "\n1"),
        ];
        let paths: std::collections::BTreeSet<_> = ids.iter().map(|(c, m)| drafts.of(c, m).path).collect();
        assert_eq!(paths.len(), ids.len());
        for path in paths {
            assert_eq!(path.parent(), Some(dir.path().join("drafts").as_path()));
        }
    }

    #[test]
    fn a_text_is_kept_byte_for_byte_until_it_is_removed() {
        let dir = tempfile::tempdir().expect("tempdir");
        let kept = Drafts::new(dir.path(), SELF).of("c", "m");
        assert_eq!(kept.read().expect("nothing"), None);
        kept.remove().expect("nothing to remove");
        for text in ["a\tb\r\n\0\u{1b}[2J\n", "", "better\n\n"] {
            kept.keep(text).expect("keep");
            assert_eq!(kept.read().expect("kept").as_deref(), Some(text));
        }
        kept.remove().expect("remove");
        assert_eq!(kept.read().expect("nothing"), None);
    }

    #[test]
    fn what_was_sent_since_is_kept_no_longer() {
        let dir = tempfile::tempdir().expect("tempdir");
        let kept = Drafts::new(dir.path(), SELF).of("c", "m");
        let read = |messages: &[(&'static str, i64)]| {
            let at = |s: &i64| Some(Utc::now() + chrono::TimeDelta::seconds(*s));
            let messages: Vec<_> = messages.iter().map(|(text, s)| (*text, at(s))).collect();
            kept.unsent(messages).expect("readable")
        };
        assert_eq!(read(&[("better", 9)]), None);
        kept.keep("better\n").expect("keep");
        let there = Some("better\n".to_owned());
        assert_eq!(read(&[("better", -9), ("best", 9), ("better or not", 9)]), there);
        assert_eq!(kept.unsent([("better", None)]).expect("no time"), there);
        assert_eq!(read(&[("other", 9), ("better", 9)]), None);
        assert!(!kept.path().exists());
    }

    /// A pipe in its way is not waited for.
    #[test]
    fn what_is_no_file_is_not_written_to() {
        let dir = tempfile::tempdir().expect("tempdir");
        let kept = Drafts::new(dir.path(), SELF).of("c", "m");
        kept.keep("one").expect("keep");
        let pid = std::process::id();
        for end in [format!("{pid}.tmp"), format!("{pid}.edit.txt")] {
            let pipe = kept.path.with_extension(end);
            nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).expect("a pipe");
        }
        kept.for_editor("two").expect_err("a pipe");
        kept.keep("two").expect_err("a pipe");
        assert_eq!(kept.read().expect("kept").as_deref(), Some("one"));
        fs::remove_file(&kept.path).expect("remove");
        nix::unistd::mkfifo(&kept.path, nix::sys::stat::Mode::S_IRWXU).expect("a pipe");
        kept.read().expect_err("a pipe");
    }

    #[test]
    fn an_editor_that_ends_the_last_line_has_changed_nothing() {
        let dir = tempfile::tempdir().expect("tempdir");
        let kept = Drafts::new(dir.path(), SELF).of("c", "m");
        for (before, written, after) in [
            ("one", "one\n", "one"),
            ("one\n", "one\n", "one\n"),
            ("one", "two\n\n", "two\n"),
            ("", "\n", ""),
        ] {
            let file = kept.for_editor(before).expect("file");
            assert_eq!(fs::read_to_string(&file).expect("read"), before);
            fs::write(&file, written).expect("edit");
            assert_eq!(kept.edited(&file, before).expect("text"), after);
            assert!(!file.exists());
        }
    }
}
