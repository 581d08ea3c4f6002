//! The engine's plain types.

use std::fmt;
use std::path::{Path, PathBuf};

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize, Serializer, ser::SerializeMap};

use crate::text;

/// Makes a random id: `prefix`, a dash, ten characters of lower-case base 32 (50 bits).
pub fn random_id(prefix: &str) -> String {
    const ALPHABET: &[u8; 32] = b"0123456789abcdefghjkmnpqrstvwxyz";
    let mut bytes = [0u8; 10];
    if getrandom::fill(&mut bytes).is_err() {
        // no entropy source: the clock still makes ids differ, and creation refuses a taken name
        let nanos = Utc::now().timestamp_nanos_opt().unwrap_or_default() as u64;
        bytes[..8].copy_from_slice(&nanos.rotate_left(17).to_le_bytes());
    }
    let tail: String = bytes
        .iter()
        .map(|b| ALPHABET[(b & 31) as usize] as char)
        .collect();
    format!("{prefix}-{tail}")
}

/// The id of a checkpoint, `cp-` and ten characters: never a number, never a prefix of a native message id.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct CheckpointId(pub String);

impl CheckpointId {
    /// A new random id.
    pub fn random() -> Self {
        Self(random_id("cp"))
    }
    /// The text of it.
    pub fn as_str(&self) -> &str {
        &self.0
    }
    /// True if `s` has the form of a checkpoint id (whether one exists or not).
    pub fn looks_like(s: &str) -> bool {
        s.strip_prefix("cp-")
            .is_some_and(|t| t.len() == 10 && t.bytes().all(|b| b.is_ascii_alphanumeric()))
    }
}

impl fmt::Display for CheckpointId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Why a checkpoint was taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CheckpointKind {
    /// The state just before a message took effect.
    Message,
    /// When the agent stopped.
    TurnEnd,
    /// Right before a rewind or an undo.
    Safety,
    /// On the user's demand.
    Manual,
    /// At `track`.
    Start,
}

/// The kind of a part.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PartKind {
    /// The folder that the agent works in.
    Workspace,
    /// A container's root file system.
    Container,
    /// A volume of the container engine.
    DockerVolume,
    /// The conversation's own store.
    Conversation,
    /// All data of the container engine.
    Docker,
}

/// A part of a checkpoint that is kept in a vault of its own, beside that of the workspace.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Elsewhere {
    /// What it is.
    pub kind: PartKind,
    /// The id of its vault.
    pub vault: String,
    /// What it is called (hostile).
    pub name: String,
    /// Why this checkpoint does not have it, one harmless line; `None` if it does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub missing: Option<String>,
}

/// Who asked for a checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum How {
    /// The agent's prompt hook: the agent waited.
    Hook,
    /// The watcher, right after the message was seen.
    Watch,
    /// A command of the user.
    Command,
    /// respool itself (safety, start, demo).
    Own,
}

/// What is recorded with a checkpoint: an xattr on its directory, under 4 KiB whatever the tree's size.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckpointMeta {
    /// Version of this record.
    pub v: u32,
    /// The checkpoint's id.
    pub id: CheckpointId,
    /// Position in the sandbox's sequence, from 1; the order of checkpoints, whatever the clock does.
    pub seq: u64,
    /// Why it was taken.
    pub kind: CheckpointKind,
    /// When, by the clock of this machine.
    pub time: DateTime<Utc>,
    /// Every part that this checkpoint must have; fewer present = incomplete, never offered.
    pub parts: Vec<PartKind>,
    /// Who asked.
    pub how: How,
    /// The agent's conversation id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub conversation: Option<String>,
    /// The native id of the message.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// The hash of the message's text, where the native id was not known yet (16 hex characters).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text_hash: Option<String>,
    /// The user's label, at most 200 characters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
    /// Never pruned.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub pinned: bool,
    /// Taken late: the agent may already have changed this many paths.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub late: Option<u64>,
    /// The operation that this is the safety checkpoint of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub operation: Option<String>,
    /// The clock stood before that of the previous checkpoint.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub clock_back: bool,
    /// The parts that are kept in vaults of their own, and those that could not be.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub elsewhere: Vec<Elsewhere>,
    /// Where in the snapshot the part is, if it is not all of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inner: Option<text::ExactPath>,
    /// How long containers were paused for it, milliseconds: known to who took it, not recorded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pause_ms: Option<u64>,
}

/// What the caller says of a checkpoint to be taken; the vault adds id, sequence, time and parts.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct NewCheckpoint {
    /// Why.
    pub kind: CheckpointKind,
    /// Who asks.
    pub how: How,
    /// The agent's conversation id.
    pub conversation: Option<String>,
    /// The native id of the message.
    pub message: Option<String>,
    /// See [`CheckpointMeta::text_hash`].
    pub text_hash: Option<String>,
    /// A label of the user's.
    pub label: Option<String>,
    /// See [`CheckpointMeta::late`].
    pub late: Option<u64>,
    /// The operation that this is the safety checkpoint of.
    pub operation: Option<String>,
    /// It must cover what this checkpoint covers, whatever is left out of others now: what a restore to that
    /// one may change.
    pub like: Option<CheckpointId>,
    /// The id that it gets; a new one if none is named.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<CheckpointId>,
    /// See [`CheckpointMeta::elsewhere`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub elsewhere: Vec<Elsewhere>,
}

impl NewCheckpoint {
    /// A checkpoint of this kind with nothing else known.
    pub fn of(kind: CheckpointKind, how: How) -> Self {
        Self {
            kind,
            how,
            conversation: None,
            message: None,
            text_hash: None,
            label: None,
            late: None,
            operation: None,
            like: None,
            id: None,
            elsewhere: Vec::new(),
        }
    }
}

/// Whether a checkpoint can be used.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "state", content = "reason", rename_all = "kebab-case")]
pub enum Health {
    /// All of it is there.
    Ok,
    /// A part that it names is missing.
    Incomplete(String),
    /// Its record cannot be read, or its tree is not a read-only snapshot.
    Damaged(String),
}

/// A checkpoint as the vault lists it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Checkpoint {
    /// The record; for a damaged one, what could be recovered from its directory's name.
    pub meta: CheckpointMeta,
    /// Whether it can be used.
    pub health: Health,
}

/// One state of a part's tree.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum State {
    /// As kept by this checkpoint.
    Checkpoint(CheckpointId),
    /// As it is.
    Now,
}

/// The type of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FileType {
    /// A regular file.
    File,
    /// A directory.
    Dir,
    /// A symbolic link.
    Link,
    /// A named pipe.
    Fifo,
    /// A Unix socket.
    Socket,
    /// A character device.
    CharDevice,
    /// A block device.
    BlockDevice,
}

/// How a path differs between two states.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ChangeKind {
    /// In the second state only.
    Added,
    /// In both, content differs.
    Modified,
    /// In the first state only.
    Deleted,
    /// The same file or directory under another name; `from` is the old one.
    Renamed,
    /// The path holds another type of file.
    Type,
    /// Content equal, attributes differ.
    Meta,
}

/// What of a path differs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum What {
    /// Bytes, link target or device number.
    Content,
    /// Permission bits.
    Mode,
    /// Owner or group.
    Owner,
    /// Extended attributes, ACLs and capabilities included.
    Xattr,
    /// Inode flags (immutable, append-only, no copy-on-write, no dump).
    Flags,
    /// Modification time.
    Time,
}

/// One row of a change list. Paths are relative to the part's root and in the second state, but for
/// deleted ones; the root itself is `.`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// The path.
    pub path: PathBuf,
    /// How it differs.
    pub kind: ChangeKind,
    /// The path in the first state, where it is another one.
    pub from: Option<PathBuf>,
    /// What differs; empty for added and deleted.
    pub what: Vec<What>,
    /// The type in the first state.
    pub type_a: Option<FileType>,
    /// The type in the second state.
    pub type_b: Option<FileType>,
    /// Size in bytes in the first state.
    pub size_a: Option<u64>,
    /// Size in bytes in the second state.
    pub size_b: Option<u64>,
    /// The part that the path is in.
    pub part: PartKind,
}

impl Change {
    /// The path in the first state.
    pub fn old_path(&self) -> &Path {
        self.from.as_deref().unwrap_or(&self.path)
    }
}

impl Serialize for Change {
    fn serialize<S: Serializer>(&self, s: S) -> std::result::Result<S::Ok, S::Error> {
        let mut map = s.serialize_map(None)?;
        text::serialize_path(&mut map, "path", "path_b64", &self.path)?;
        map.serialize_entry("kind", &self.kind)?;
        match &self.from {
            Some(from) => text::serialize_path(&mut map, "from", "from_b64", from)?,
            None => map.serialize_entry("from", &None::<()>)?,
        }
        map.serialize_entry("what", &self.what)?;
        map.serialize_entry("type_a", &self.type_a)?;
        map.serialize_entry("type_b", &self.type_b)?;
        map.serialize_entry("size_a", &self.size_a)?;
        map.serialize_entry("size_b", &self.size_b)?;
        map.serialize_entry("part", &self.part)?;
        map.end()
    }
}

/// A row as it is written.
#[derive(Deserialize)]
struct RawChange {
    path: String,
    #[serde(default)]
    path_b64: Option<String>,
    kind: ChangeKind,
    #[serde(default)]
    from: Option<String>,
    #[serde(default)]
    from_b64: Option<String>,
    what: Vec<What>,
    type_a: Option<FileType>,
    type_b: Option<FileType>,
    size_a: Option<u64>,
    size_b: Option<u64>,
    part: PartKind,
}

impl<'de> Deserialize<'de> for Change {
    fn deserialize<D: serde::Deserializer<'de>>(d: D) -> std::result::Result<Self, D::Error> {
        let raw = RawChange::deserialize(d)?;
        Ok(Self {
            path: text::path_of(raw.path, raw.path_b64.as_deref()),
            kind: raw.kind,
            from: raw.from.map(|f| text::path_of(f, raw.from_b64.as_deref())),
            what: raw.what,
            type_a: raw.type_a,
            type_b: raw.type_b,
            size_a: raw.size_a,
            size_b: raw.size_b,
            part: raw.part,
        })
    }
}

/// Numbers of a change list by kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Counts {
    /// Paths added.
    pub added: u64,
    /// Paths whose content changed.
    pub modified: u64,
    /// Paths deleted.
    pub deleted: u64,
    /// Paths renamed.
    pub renamed: u64,
    /// Type and attribute changes.
    pub other: u64,
}

impl Counts {
    /// Counts the rows of a list.
    pub fn of(changes: &[Change]) -> Self {
        let mut c = Self::default();
        for change in changes {
            match change.kind {
                ChangeKind::Added => c.added += 1,
                ChangeKind::Modified => c.modified += 1,
                ChangeKind::Deleted => c.deleted += 1,
                ChangeKind::Renamed => c.renamed += 1,
                ChangeKind::Type | ChangeKind::Meta => c.other += 1,
            }
        }
        c
    }
    /// The sum.
    pub fn total(&self) -> u64 {
        self.added + self.modified + self.deleted + self.renamed + self.other
    }
}

/// What of a part a restore covers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Selection {
    /// All of it.
    All,
    /// These paths (relative to the part's root), each with everything below it.
    Paths(#[serde(with = "text::exact_list")] Vec<PathBuf>),
}

/// What a restore did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Restored {
    /// Inodes changed, made, moved or removed.
    pub changed: u64,
}

/// One difference found by the independent check.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Difference {
    /// The path, relative to the part's root.
    #[serde(with = "text::exact")]
    pub path: PathBuf,
    /// What differs, in words ("mode 644, should be 755").
    pub what: String,
}

/// An entry of a directory in some state.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// The name.
    #[serde(with = "text::exact")]
    pub name: PathBuf,
    /// Its type.
    pub file_type: FileType,
    /// Size in bytes.
    pub size: u64,
    /// Permission bits.
    pub mode: u32,
    /// Modification time, nanoseconds since 1970.
    #[serde(with = "number_text")]
    pub mtime_ns: i128,
}

/// The content of a path in some state.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Content {
    /// A regular file's bytes, and whether that is all of them.
    File {
        /// The first bytes, up to the limit asked for.
        #[serde(with = "text::base64_bytes")]
        bytes: Vec<u8>,
        /// The whole size in bytes.
        size: u64,
    },
    /// A link's target; never followed.
    Link(#[serde(with = "text::exact")] PathBuf),
    /// Anything else: only its type; never opened.
    Other(FileType),
}

/// A number too wide for JSON, as text.
mod number_text {
    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(n: &i128, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(n)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<i128, D::Error> {
        let text = String::deserialize(d)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

/// Who asks to see a file, where that is not the user of this process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reader {
    /// User id.
    pub uid: u32,
    /// All groups.
    pub groups: Vec<u32>,
}

impl Reader {
    /// True if a file with these attributes lets this user read it (a folder: list it), by its permission
    /// bits. `shut`: it has an access list; then only its owner may, as the bits do not tell all.
    pub fn may_read(&self, uid: u32, gid: u32, mode: u32, shut: bool) -> bool {
        self.allowed(uid, gid, mode, 4, shut)
    }

    /// As [`Reader::may_read`], for going through a folder.
    pub fn may_pass(&self, uid: u32, gid: u32, mode: u32, shut: bool) -> bool {
        self.allowed(uid, gid, mode, 1, shut)
    }

    fn allowed(&self, uid: u32, gid: u32, mode: u32, bit: u32, shut: bool) -> bool {
        let bits = if self.uid == uid {
            mode >> 6
        } else if shut {
            return false;
        } else if self.groups.contains(&gid) {
            mode >> 3
        } else {
            mode
        };
        self.uid == 0 || bits & bit != 0
    }
}
