//! Our entries in an agent's hook configuration: the file of a project, or the user's own. OpenHands reads the
//! first of the two that exists, Claude Code both. The project's folder is the agent's, so no link in it is
//! followed, and a file is replaced whole or not at all.

mod edit;

use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, FileType, Gid, Mode, OFlags, Stat, Uid};
use rustix::io::Errno;
use serde::Serialize;

use super::agent::{Agent, Spot};
use crate::failure::{Explain, Kind};
use crate::text::{shown, shown_path};
pub use edit::{Removal, command, for_one_run, state, with_ours, without_ours};

/// A larger file is none that a person wrote.
const LIMIT: u64 = 4 << 20;

/// What can go wrong when hook files are read or written.
#[derive(Debug, thiserror::Error)]
pub enum HookError {
    /// A system call failed.
    #[error("cannot {what} {}: {source}", shown_path(path))]
    Io {
        /// The verb.
        what: &'static str,
        /// The path.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The file cannot be understood, so it is left as it is.
    #[error("{} cannot be edited: {}", shown_path(path), shown(reason))]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// The path is a link or no regular file.
    #[error("{} is {what}: it is not touched", shown_path(path))]
    Refused {
        /// The path.
        path: PathBuf,
        /// What it is.
        what: &'static str,
    },
    /// The path of the binary cannot stand in a hook.
    #[error("{0}")]
    Binary(String),
}

impl Explain for HookError {
    fn kind(&self) -> Kind {
        match self {
            Self::Io { .. } => Kind::Failed,
            Self::Damaged { .. } => Kind::Damaged,
            Self::Refused { .. } | Self::Binary(_) => Kind::Refused,
        }
    }
    fn path(&self) -> Option<&Path> {
        match self {
            Self::Io { path, .. } | Self::Damaged { path, .. } | Self::Refused { path, .. } => Some(path),
            Self::Binary(_) => None,
        }
    }
    fn hint(&self) -> Option<String> {
        match self {
            Self::Damaged { .. } => Some("mend the file by hand, then run the command again".into()),
            Self::Refused { .. } => Some("put a regular file in its place".into()),
            Self::Io { .. } | Self::Binary(_) => None,
        }
    }
}

/// Where a hook file is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Place {
    /// In the workspace.
    Project,
    /// In the user's home.
    User,
}

/// What our entries in one hook file are.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "state", content = "detail", rename_all = "kebab-case")]
pub enum State {
    /// Both are there and call this binary.
    Installed,
    /// None is there, or no file.
    Absent,
    /// They call another binary, this one.
    OtherBinary(String),
    /// Only some are there; these events lack theirs.
    Incomplete(Vec<&'static str>),
    /// They are in the user's file, but the project has a file of its own, which alone is read.
    Shadowed,
    /// They are there, but the file switches all hooks off.
    SwitchedOff,
    /// The file cannot be read or understood; why.
    Unreadable(String),
}

/// The state of one hook file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Status {
    /// Where.
    pub place: Place,
    /// The file, whether it exists or not.
    #[serde(serialize_with = "as_text")]
    pub path: PathBuf,
    /// What our entries in it are.
    #[serde(flatten)]
    pub state: State,
}

fn as_text<S: serde::Serializer>(path: &Path, s: S) -> Result<S::Ok, S::Error> {
    s.serialize_str(&crate::text::json_path(path).0)
}

/// What an edit did to the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Edit {
    /// Nothing was to be done.
    Unchanged,
    /// It was written.
    Written,
    /// It held our entries alone and was deleted.
    Deleted,
}

/// Puts our entries into the agent's hook file there, making it if there is none.
/// `binary`: the absolute path of respool.
pub fn install(
    agent: Agent,
    spot: &Spot,
    binary: &Path,
    state_dir: Option<&Path>,
) -> Result<Edit, HookError> {
    let command = command(agent, binary, state_dir).map_err(HookError::Binary)?;
    let place = Opened::new(agent, spot, true)?;
    let (text, stat) = match place.read()? {
        Some((text, stat)) => (
            with_ours(agent, &text, &command).map_err(|r| place.damaged(r))?,
            (Some(stat), Some(text)),
        ),
        None => (edit::fresh(agent, &command), (None, None)),
    };
    if stat.1.as_ref() == Some(&text) {
        return Ok(Edit::Unchanged);
    }
    place.write(&text, stat.0.as_ref())?;
    Ok(Edit::Written)
}

/// Takes our entries out of the agent's hook file there; deletes the file (and the folder, if that is empty then)
/// if it holds nothing else.
pub fn uninstall(agent: Agent, spot: &Spot) -> Result<Edit, HookError> {
    let place = match Opened::new(agent, spot, false) {
        Err(HookError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
            return Ok(Edit::Unchanged);
        }
        other => other?,
    };
    let Some((text, stat)) = place.read()? else {
        return Ok(Edit::Unchanged);
    };
    match without_ours(agent, &text).map_err(|r| place.damaged(r))? {
        Removal::Nothing => Ok(Edit::Unchanged),
        Removal::Text(text) => place.write(&text, Some(&stat)).map(|()| Edit::Written),
        Removal::File => place.delete(&spot.folder()).map(|()| Edit::Deleted),
    }
}

/// The state of the project's file (where there is a workspace) and of the user's.
pub fn status(
    agent: Agent,
    project: Option<&Spot>,
    user: &Spot,
    binary: &Path,
    state_dir: Option<&Path>,
) -> Result<Vec<Status>, HookError> {
    let command = command(agent, binary, state_dir).map_err(HookError::Binary)?;
    let mut all = Vec::new();
    let mut project_has_one = false;
    if let Some(spot) = project.filter(|p| *p != user) {
        let (there, state) = look(agent, spot, &command);
        project_has_one = there;
        all.push(Status {
            place: Place::Project,
            path: spot.file(agent),
            state,
        });
    }
    let (_, state) = look(agent, user, &command);
    let has_ours = matches!(
        state,
        State::Installed | State::OtherBinary(_) | State::Incomplete(_)
    );
    let state = if has_ours && project_has_one && agent == Agent::OpenHands {
        State::Shadowed
    } else {
        state
    };
    all.push(Status {
        place: Place::User,
        path: user.file(agent),
        state,
    });
    Ok(all)
}

/// Whether there is a file, and what it holds of ours.
fn look(agent: Agent, spot: &Spot, command: &str) -> (bool, State) {
    let read = match Opened::new(agent, spot, false) {
        Err(HookError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
            return (false, State::Absent);
        }
        opened => opened.and_then(|place| place.read()),
    };
    match read {
        Ok(None) => (false, State::Absent),
        Ok(Some((text, _))) => (
            true,
            state(agent, &text, command).unwrap_or_else(State::Unreadable),
        ),
        Err(error) => (true, State::Unreadable(error.to_string())),
    }
}

/// The open folder of a hook file.
struct Opened {
    folder: OwnedFd,
    /// The file's name.
    file: &'static str,
    path: PathBuf,
    /// Owner of what is made anew: that of the folder it is made in.
    owner: (u32, u32),
}

impl Opened {
    fn new(agent: Agent, spot: &Spot, make: bool) -> Result<Self, HookError> {
        let (dir, name) = (spot.parent.as_path(), spot.name.as_os_str());
        let path = spot.folder();
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let parent = rustix::fs::open(dir, flags, Mode::empty()).map_err(|e| failed("open", dir, e))?;
        let above = rustix::fs::fstat(&parent).map_err(|e| failed("open", dir, e))?;
        if make {
            match rustix::fs::mkdirat(&parent, name, Mode::from_raw_mode(0o755)) {
                Ok(()) => {
                    give(&parent, name, (above.st_uid, above.st_gid))
                        .map_err(|e| failed("make", &path, e))?;
                }
                Err(Errno::EXIST) => {}
                Err(e) => return Err(failed("make", &path, e)),
            }
        }
        let folder = match rustix::fs::openat(&parent, name, flags | OFlags::NOFOLLOW, Mode::empty()) {
            Ok(folder) => folder,
            Err(Errno::LOOP | Errno::NOTDIR) => {
                return Err(HookError::Refused {
                    path,
                    what: "a link or no folder",
                });
            }
            Err(e) => return Err(failed("open", &path, e)),
        };
        let stat = rustix::fs::fstat(&folder).map_err(|e| failed("open", &path, e))?;
        Ok(Self {
            folder,
            file: agent.file(),
            path: path.join(agent.file()),
            owner: (stat.st_uid, stat.st_gid),
        })
    }

    fn damaged(&self, reason: String) -> HookError {
        HookError::Damaged {
            path: self.path.clone(),
            reason,
        }
    }

    fn failed(&self, what: &'static str) -> impl Fn(Errno) -> HookError {
        let path = self.path.clone();
        move |e| failed(what, &path, e)
    }

    /// The text of the file and its attributes; `None` if there is none.
    fn read(&self) -> Result<Option<(String, Stat)>, HookError> {
        let stat = match rustix::fs::statat(&self.folder, self.file, AtFlags::SYMLINK_NOFOLLOW) {
            Err(Errno::NOENT) => return Ok(None),
            other => other.map_err(self.failed("read"))?,
        };
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err(HookError::Refused {
                path: self.path.clone(),
                what: "a link or no regular file",
            });
        }
        if u64::try_from(stat.st_size).unwrap_or(0) > LIMIT {
            return Err(self.damaged("it is larger than 4 MiB".into()));
        }
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
        let file =
            rustix::fs::openat(&self.folder, self.file, flags, Mode::empty()).map_err(self.failed("read"))?;
        let mut bytes = Vec::new();
        io::Read::read_to_end(&mut io::Read::take(std::fs::File::from(file), LIMIT), &mut bytes).map_err(
            |source| HookError::Io {
                what: "read",
                path: self.path.clone(),
                source,
            },
        )?;
        let text = String::from_utf8(bytes).map_err(|_| self.damaged("it is not UTF-8".into()))?;
        Ok(Some((text, stat)))
    }

    /// Replaces the file at once: a new one with the old one's mode and owner, durable before it has the name.
    fn write(&self, text: &str, old: Option<&Stat>) -> Result<(), HookError> {
        let temporary = crate::engine::random_id(&format!(".{}.respool", self.file));
        let written = self.write_as(&temporary, text, old);
        if written.is_err() {
            // it may not have been made; the error that counts is the one before
            let _gone = rustix::fs::unlinkat(&self.folder, &temporary, AtFlags::empty());
        }
        written
    }

    fn write_as(&self, temporary: &str, text: &str, old: Option<&Stat>) -> Result<(), HookError> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fail = self.failed("write");
        let file =
            rustix::fs::openat(&self.folder, temporary, flags, Mode::from_raw_mode(0o600)).map_err(&fail)?;
        let owner = old.map_or(self.owner, |s| (s.st_uid, s.st_gid));
        give(&self.folder, temporary, owner).map_err(&fail)?;
        let mode = old.map_or(0o644, |s| s.st_mode & 0o777);
        rustix::fs::fchmod(&file, Mode::from_raw_mode(mode)).map_err(&fail)?;
        let mut file = std::fs::File::from(file);
        file.write_all(text.as_bytes())
            .and_then(|()| file.sync_all())
            .map_err(|source| HookError::Io {
                what: "write",
                path: self.path.clone(),
                source,
            })?;
        rustix::fs::renameat(&self.folder, temporary, &self.folder, self.file).map_err(&fail)?;
        rustix::fs::fsync(&self.folder).map_err(&fail)
    }

    fn delete(&self, folder: &Path) -> Result<(), HookError> {
        rustix::fs::unlinkat(&self.folder, self.file, AtFlags::empty()).map_err(self.failed("delete"))?;
        match std::fs::remove_dir(folder) {
            Ok(()) => Ok(()),
            Err(e) if e.kind() == io::ErrorKind::DirectoryNotEmpty => Ok(()),
            Err(source) => Err(HookError::Io {
                what: "delete",
                path: folder.to_owned(),
                source,
            }),
        }
    }
}

/// Gives a new file the owner, where that is another one than its maker.
fn give(
    folder: &OwnedFd,
    name: impl rustix::path::Arg + Copy,
    (uid, gid): (u32, u32),
) -> rustix::io::Result<()> {
    let stat = rustix::fs::statat(folder, name, AtFlags::SYMLINK_NOFOLLOW)?;
    if (stat.st_uid, stat.st_gid) == (uid, gid) {
        return Ok(());
    }
    let (uid, gid) = (Uid::from_raw(uid), Gid::from_raw(gid));
    rustix::fs::chownat(folder, name, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW)
}

fn failed(what: &'static str, path: &Path, e: Errno) -> HookError {
    HookError::Io {
        what,
        path: path.to_owned(),
        source: e.into(),
    }
}
