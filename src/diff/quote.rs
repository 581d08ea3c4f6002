//! Names in patches, quoted exactly as git does (`quote.c`, with `core.quotePath` at its default).

use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// `prefix` and the name, in double quotes with C escapes where a byte needs it. The result is ASCII without
/// control characters.
pub(super) fn quoted(prefix: &str, path: &Path) -> String {
    let name = path.as_os_str().as_bytes();
    let mut out = String::with_capacity(name.len() + 4);
    let mut plain = true;
    for &byte in prefix.as_bytes().iter().chain(name) {
        let letter = match byte {
            0x07 => 'a',
            0x08 => 'b',
            b'\t' => 't',
            b'\n' => 'n',
            0x0b => 'v',
            0x0c => 'f',
            b'\r' => 'r',
            b'"' | b'\\' => byte as char,
            0x20..=0x7e => {
                out.push(byte as char);
                continue;
            }
            _ => {
                plain = false;
                for shift in [6, 3, 0] {
                    if shift == 6 {
                        out.push('\\');
                    }
                    out.push((b'0' + ((byte >> shift) & 7)) as char);
                }
                continue;
            }
        };
        plain = false;
        out.push('\\');
        out.push(letter);
    }
    if plain { out } else { format!("\"{out}\"") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::OsStr;

    #[test]
    fn as_git_quotes() {
        for (name, want) in [
            (&b"plain name"[..], "a/plain name"),
            (b"tab\there", r#""a/tab\there""#),
            (b"new\nline", r#""a/new\nline""#),
            (b"q\"uote\\", r#""a/q\"uote\\""#),
            ("é".as_bytes(), r#""a/\303\251""#),
            (b"bad\xff\x01\x7f", r#""a/bad\377\001\177""#),
        ] {
            assert_eq!(quoted("a/", Path::new(OsStr::from_bytes(name))), want);
        }
    }
}
