//! The record of a sandbox, as JSON that keeps exact paths and the fields of newer versions.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

use base64::Engine as _;
use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

use crate::text;

/// The version of the record.
pub const RECORD_VERSION: u32 = 1;

/// Where the live tree of a sandbox is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Place {
    /// In the pool, bind-mounted over the workspace.
    Pool,
    /// At the workspace's own path, on an existing Btrfs.
    Own,
    /// At the workspace's own path; checkpoints are copies.
    Copy,
}

/// A folder by its inode number and birth time: both survive a restart, unlike its device number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct RootId {
    /// The inode number.
    pub ino: u64,
    /// When it was made: seconds since 1970, nanoseconds; zero where the file system does not know.
    pub born: (i64, u32),
}

/// A file by device and inode number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stub {
    /// The device.
    pub dev: u64,
    /// The inode number.
    pub ino: u64,
}

/// What is recorded of a sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Raw", into = "Raw")]
pub struct SandboxRecord {
    /// Version of this record.
    pub v: u32,
    /// `sb-` and ten characters.
    pub id: String,
    /// The workspace, exact bytes.
    pub path: PathBuf,
    /// When it was tracked.
    pub created: DateTime<Utc>,
    /// The uuid of the live subvolume, 32 hexadecimal digits.
    pub live_uuid: String,
    /// Where the live tree is.
    pub place: Place,
    /// The owner.
    pub uid: u32,
    /// The owner's group.
    pub gid: u32,
    /// False after `untrack`: the checkpoints are still there.
    pub tracked: bool,
    /// The emptied folder that the live tree is mounted on.
    pub stub: Option<Stub>,
    /// The workspace itself, where checkpoints are copies.
    pub root: Option<RootId>,
    /// Fields of newer versions, kept as they are.
    pub extra: serde_json::Map<String, serde_json::Value>,
}

/// The record as it is written: a path that is no UTF-8 has its exact bytes beside it.
#[derive(Serialize, Deserialize)]
struct Raw {
    v: u32,
    id: String,
    path: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    path_b64: Option<String>,
    #[serde(serialize_with = "text::serialize_time")]
    created: DateTime<Utc>,
    live_uuid: String,
    place: Place,
    uid: u32,
    gid: u32,
    tracked: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    stub: Option<Stub>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    root: Option<RootId>,
    #[serde(flatten)]
    extra: serde_json::Map<String, serde_json::Value>,
}

impl From<Raw> for SandboxRecord {
    fn from(r: Raw) -> Self {
        let exact = r
            .path_b64
            .and_then(|b| base64::engine::general_purpose::STANDARD.decode(b).ok())
            .map(OsString::from_vec);
        Self {
            v: r.v,
            id: r.id,
            path: exact.unwrap_or_else(|| r.path.into()).into(),
            created: r.created,
            live_uuid: r.live_uuid,
            place: r.place,
            uid: r.uid,
            gid: r.gid,
            tracked: r.tracked,
            stub: r.stub,
            root: r.root,
            extra: r.extra,
        }
    }
}

impl From<SandboxRecord> for Raw {
    fn from(r: SandboxRecord) -> Self {
        let (path, path_b64) = text::json_path(&r.path);
        Self {
            v: r.v,
            id: r.id,
            path,
            path_b64,
            created: r.created,
            live_uuid: r.live_uuid,
            place: r.place,
            uid: r.uid,
            gid: r.gid,
            tracked: r.tracked,
            stub: r.stub,
            root: r.root,
            extra: r.extra,
        }
    }
}

/// The record in an attribute's value, or what is wrong with it.
pub(crate) fn parse_record<T: serde::de::DeserializeOwned>(
    value: Option<&[u8]>,
) -> std::result::Result<T, String> {
    match value {
        None => Err("its record is missing".into()),
        Some([]) => Err("its record is empty".into()),
        Some(v) if v.iter().all(|b| *b == 0) => Err("its record holds zero bytes only".into()),
        Some(v) => serde_json::from_slice(v)
            .map_err(|e| format!("its record cannot be read: {}", text::shown(&e.to_string()))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(path: &[u8]) -> SandboxRecord {
        SandboxRecord {
            v: 1,
            id: "sb-0123456789".into(),
            path: PathBuf::from(OsString::from_vec(path.to_vec())),
            created: DateTime::from_timestamp(1_700_000_000, 0).expect("time"),
            live_uuid: "00".repeat(16),
            place: Place::Pool,
            uid: 1000,
            gid: 1000,
            tracked: true,
            stub: Some(Stub { dev: 1, ino: 2 }),
            root: None,
            extra: serde_json::Map::new(),
        }
    }

    #[test]
    fn a_record_keeps_exact_paths_and_unknown_fields() {
        for path in [&b"/w/x"[..], b"/w/\xff\n"] {
            let mut r = record(path);
            r.extra
                .insert("from_the_future".into(), serde_json::json!({"a": 1}));
            let json = serde_json::to_string(&r).expect("json");
            assert_eq!(serde_json::from_str::<SandboxRecord>(&json).expect("back"), r);
        }
        let json = serde_json::to_value(record(b"/w/x")).expect("json");
        assert_eq!(json["path"], "/w/x");
        assert!(json.get("path_b64").is_none());
        assert_eq!(json["created"], "2023-11-14T22:13:20.000Z");
    }

    #[test]
    fn damaged_records_say_why() {
        let why = |v: Option<&[u8]>| parse_record::<SandboxRecord>(v).expect_err("damaged");
        assert_eq!(why(None), "its record is missing");
        assert_eq!(why(Some(b"")), "its record is empty");
        assert_eq!(why(Some(&[0; 64])), "its record holds zero bytes only");
        assert!(why(Some(b"{\"v\":1,")).starts_with("its record cannot be read"));
    }
}
