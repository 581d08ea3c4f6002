//! What kind of difference two contents have: text, binary, link, type.

use std::time::Duration;

use super::{FileDiff, lines};
use crate::engine::{Content, FileType};

/// How much is compared.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Larger files (bytes) are [`FileDiff::TooLarge`].
    pub bytes: u64,
    /// The comparison of lines is cut short after this time; the result is right, but not minimal.
    pub time: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            bytes: 8 << 20,
            time: Duration::from_secs(1),
        }
    }
}

/// How a path's content differs from `a` to `b`; `None` where it is not there.
pub fn file_diff(a: Option<&Content>, b: Option<&Content>, limits: Limits) -> FileDiff {
    let is_file = |c: Option<&Content>| c.is_none_or(|c| matches!(c, Content::File { .. }));
    let is_link = |c: Option<&Content>| c.is_none_or(|c| matches!(c, Content::Link(_)));
    if a == b && a.is_none_or(|c| whole(c).is_some()) {
        return FileDiff::Same;
    }
    if is_file(a) && is_file(b) {
        return files(a, b, limits);
    }
    if is_link(a) && is_link(b) {
        let target = |c: Option<&Content>| match c {
            Some(Content::Link(target)) => Some(target.clone()),
            _ => None,
        };
        return FileDiff::Link {
            a: target(a),
            b: target(b),
        };
    }
    FileDiff::Special {
        a: a.map(type_of),
        b: b.map(type_of),
    }
}

fn type_of(content: &Content) -> FileType {
    match content {
        Content::File { .. } => FileType::File,
        Content::Link(_) => FileType::Link,
        Content::Other(file_type) => *file_type,
    }
}

/// The bytes, unless they are only the beginning of a larger file.
fn whole(content: &Content) -> Option<&[u8]> {
    match content {
        Content::File { bytes, size } => (bytes.len() as u64 == *size).then_some(bytes),
        Content::Link(_) | Content::Other(_) => Some(&[]),
    }
}

fn files(a: Option<&Content>, b: Option<&Content>, limits: Limits) -> FileDiff {
    let size = |c: Option<&Content>| match c {
        Some(Content::File { size, .. }) => Some(*size),
        _ => None,
    };
    let (size_a, size_b) = (size(a), size(b));
    let too_large = |c: &Content| whole(c).is_none_or(|b| b.len() as u64 > limits.bytes);
    if a.is_some_and(too_large) || b.is_some_and(too_large) {
        return FileDiff::TooLarge { size_a, size_b };
    }
    let (bytes_a, bytes_b) = (a.and_then(whole), b.and_then(whole));
    match (text_of(bytes_a), text_of(bytes_b)) {
        (Some(text_a), Some(text_b)) => lines::text_diff(text_a, text_b, limits.time),
        _ => FileDiff::Binary {
            size_a,
            size_b,
            hash_a: bytes_a.map(hash),
            hash_b: bytes_b.map(hash),
        },
    }
}

/// The text of a file (empty for one that is not there), or nothing for a binary one: a NUL or invalid UTF-8
/// in it. UTF-16 is binary by its byte order mark.
fn text_of(bytes: Option<&[u8]>) -> Option<&str> {
    let text = std::str::from_utf8(bytes.unwrap_or_default()).ok()?;
    (!text.contains('\0')).then_some(text)
}

/// The first 16 hex characters of the content's BLAKE3 hash.
fn hash(bytes: &[u8]) -> String {
    blake3::hash(bytes).to_hex()[..16].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    fn file(bytes: &[u8]) -> Content {
        Content::File {
            bytes: bytes.to_vec(),
            size: bytes.len() as u64,
        }
    }
    fn diff(a: &[u8], b: &[u8]) -> FileDiff {
        file_diff(Some(&file(a)), Some(&file(b)), Limits::default())
    }

    /// P088: bytes that are no text are told apart by size and hash, never called equal.
    #[test]
    fn p088_binary_content() {
        let mut png = b"\x89PNG\r\n\x1a\n0123".to_vec();
        let before = png.clone();
        png[9] = b'X';
        let utf16: Vec<u8> = [0xff, 0xfe]
            .into_iter()
            .chain("hi".encode_utf16().flat_map(u16::to_le_bytes))
            .collect();
        for (a, b) in [
            (&b"a\xff"[..], &b"a\xfe"[..]),
            (&before, &png),
            (b"nul\0", b"nul"),
            (&utf16, b"hi"),
            (b"\xfe\xff", b""),
        ] {
            let FileDiff::Binary {
                size_a,
                size_b,
                hash_a: Some(hash_a),
                hash_b: Some(hash_b),
            } = diff(a, b)
            else {
                panic!("{a:?} {b:?}: {:?}", diff(a, b))
            };
            assert_eq!((size_a, size_b), (Some(a.len() as u64), Some(b.len() as u64)));
            assert!(hash_a != hash_b && hash_a.len() == 16, "{hash_a} {hash_b}");
        }
        assert_eq!(diff(b"\xff", b"\xff"), FileDiff::Same);
        let added = file_diff(None, Some(&file(b"\0")), Limits::default());
        assert!(matches!(
            added,
            FileDiff::Binary {
                size_a: None,
                hash_a: None,
                size_b: Some(1),
                ..
            }
        ));
    }

    /// P064, P068, P069: links show their target's text, everything else only its type.
    #[test]
    fn links_and_special_files() {
        let link = |t: &str| Content::Link(PathBuf::from(t));
        assert_eq!(
            file_diff(None, Some(&link("/etc")), Limits::default()),
            FileDiff::Link {
                a: None,
                b: Some("/etc".into())
            }
        );
        assert_eq!(
            file_diff(Some(&link("x")), Some(&link("x")), Limits::default()),
            FileDiff::Same
        );
        for special in [
            FileType::Fifo,
            FileType::Socket,
            FileType::CharDevice,
            FileType::BlockDevice,
        ] {
            let other = Content::Other(special);
            assert_eq!(
                file_diff(Some(&other), None, Limits::default()),
                FileDiff::Special {
                    a: Some(special),
                    b: None
                }
            );
            assert_eq!(
                file_diff(Some(&file(b"x")), Some(&other), Limits::default()),
                FileDiff::Special {
                    a: Some(FileType::File),
                    b: Some(special)
                }
            );
        }
        assert_eq!(
            file_diff(Some(&link("x")), Some(&file(b"x")), Limits::default()),
            FileDiff::Special {
                a: Some(FileType::Link),
                b: Some(FileType::File)
            }
        );
    }

    #[test]
    fn too_large_is_said() {
        let cut = Content::File {
            bytes: b"begin".to_vec(),
            size: 1 << 40,
        };
        let want = FileDiff::TooLarge {
            size_a: Some(1 << 40),
            size_b: Some(1 << 40),
        };
        assert_eq!(file_diff(Some(&cut), Some(&cut), Limits::default()), want);
        let limits = Limits {
            bytes: 3,
            ..Limits::default()
        };
        let big = file_diff(None, Some(&file(b"four")), limits);
        assert_eq!(
            big,
            FileDiff::TooLarge {
                size_a: None,
                size_b: Some(4)
            }
        );
    }
}
