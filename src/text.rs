//! Text for people and for JSON: foreign bytes made harmless, paths, sizes, ages.

use std::ffi::OsString;
use std::fmt::Write as _;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use base64::Engine as _;
use chrono::{DateTime, Utc};
use serde::ser::{SerializeMap, Serializer};
use serde_json::Value;

/// True for characters that must never reach a terminal: C0, DEL, C1, and the bidirectional and invisible
/// format controls that can reorder or hide text.
pub fn is_unsafe_char(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{061c}' | '\u{200b}' | '\u{200e}' | '\u{200f}' | '\u{2028}' | '\u{2029}'
            | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{2069}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}'
            | '\u{e0000}'..='\u{e007f}')
}

/// Marks of our own are ASCII.
static ASCII: AtomicBool = AtomicBool::new(false);

/// Follows the locale of the environment: where it names a character set that is not UTF-8 (`LC_ALL=C`), our own
/// marks are ASCII from now on. Nothing set at all says nothing: containers have no locale, their terminals UTF-8.
pub fn follow_locale() {
    ASCII.store(!is_utf8_locale(|n| std::env::var_os(n)), Ordering::Relaxed);
}

/// True if our own marks must be ASCII.
pub fn ascii_only() -> bool {
    ASCII.load(Ordering::Relaxed)
}

/// The first of the variables that is set and not empty counts (POSIX, 8.2).
fn is_utf8_locale(value: impl Fn(&str) -> Option<OsString>) -> bool {
    let set = ["LC_ALL", "LC_CTYPE", "LANG"]
        .iter()
        .find_map(|n| value(n).filter(|v| !v.is_empty()));
    set.is_none_or(|v| {
        let name = v.to_string_lossy().to_ascii_lowercase();
        name.contains("utf-8") || name.contains("utf8")
    })
}

/// Appends `c` in a visible, harmless form: control characters as `^[`-like carets, others as `\u{..}`.
fn push_visible(out: &mut String, c: char) {
    match c {
        '\n' | '\t' | '\r' if ascii_only() => out.extend(c.escape_default()),
        '\n' => out.push('␤'),
        '\t' => out.push('⇥'),
        '\r' => out.push('␍'),
        c if (c as u32) < 0x20 => {
            out.push('^');
            out.push((c as u8 + 0x40) as char);
        }
        '\x7f' => out.push_str("^?"),
        c => {
            let _written = write!(out, "\\u{{{:x}}}", c as u32);
        }
    }
}

/// `s` with every unsafe character made visible; newlines and tabs too, so the result is one line.
pub fn shown(s: &str) -> String {
    let mut out = String::with_capacity(s.len());
    for c in s.chars() {
        if is_unsafe_char(c) {
            push_visible(&mut out, c);
        } else {
            out.push(c);
        }
    }
    out
}

/// The bytes as harmless one-line text; invalid UTF-8 is shown as `\xNN`.
pub fn shown_bytes(bytes: &[u8]) -> String {
    let mut out = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        out.push_str(&shown(chunk.valid()));
        for b in chunk.invalid() {
            let _written = write!(out, "\\x{b:02x}");
        }
    }
    out
}

/// A path as harmless one-line text.
pub fn shown_path(path: &Path) -> String {
    shown_bytes(path.as_os_str().as_bytes())
}

/// The path for JSON: text with invalid UTF-8 replaced, and the exact bytes in base64 where that loses any.
pub fn json_path(path: &Path) -> (String, Option<String>) {
    let bytes = path.as_os_str().as_bytes();
    match std::str::from_utf8(bytes) {
        Ok(s) => (s.to_owned(), None),
        Err(_) => (
            String::from_utf8_lossy(bytes).into_owned(),
            Some(base64::engine::general_purpose::STANDARD.encode(bytes)),
        ),
    }
}

/// Writes `"name"` and, where needed, `"name_b64"` into a JSON object.
pub fn serialize_path<M: SerializeMap>(
    map: &mut M,
    name: &'static str,
    b64: &'static str,
    path: &Path,
) -> Result<(), M::Error> {
    let (text, exact) = json_path(path);
    map.serialize_entry(name, &text)?;
    if let Some(exact) = exact {
        map.serialize_entry(b64, &exact)?;
    }
    Ok(())
}

/// Serializes an instant as RFC 3339 in UTC with a `Z`.
pub fn serialize_time<S: Serializer>(time: &DateTime<Utc>, s: S) -> Result<S::Ok, S::Error> {
    s.serialize_str(&rfc3339(*time))
}

/// RFC 3339 in UTC, milliseconds, `Z`.
pub fn rfc3339(time: DateTime<Utc>) -> String {
    time.to_rfc3339_opts(chrono::SecondsFormat::Millis, true)
}

/// A path that survives JSON whatever its bytes: a string where it is UTF-8 that could be shown as it is, else `b64:`
/// and base64.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ExactPath(pub std::path::PathBuf);

impl serde::Serialize for ExactPath {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        match self.0.to_str() {
            Some(text) if !text.starts_with("b64:") && !text.chars().any(is_unsafe_char) => {
                s.serialize_str(text)
            }
            _ => {
                let bytes = self.0.as_os_str().as_bytes();
                s.serialize_str(&format!(
                    "b64:{}",
                    base64::engine::general_purpose::STANDARD.encode(bytes)
                ))
            }
        }
    }
}

impl<'de> serde::Deserialize<'de> for ExactPath {
    fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let text = String::deserialize(d)?;
        let Some(code) = text.strip_prefix("b64:") else {
            return Ok(Self(text.into()));
        };
        let bytes = base64::engine::general_purpose::STANDARD
            .decode(code)
            .map_err(serde::de::Error::custom)?;
        Ok(Self(std::ffi::OsString::from_vec(bytes).into()))
    }
}

/// Serde of a path field as [`ExactPath`].
pub mod exact {
    use std::path::{Path, PathBuf};

    use super::ExactPath;

    /// Writes it.
    pub fn serialize<S: serde::Serializer>(path: &Path, s: S) -> Result<S::Ok, S::Error> {
        serde::Serialize::serialize(&ExactPath(path.to_owned()), s)
    }

    /// Reads it.
    pub fn deserialize<'de, D: serde::Deserializer<'de>>(d: D) -> Result<PathBuf, D::Error> {
        <ExactPath as serde::Deserialize>::deserialize(d).map(|p| p.0)
    }
}

/// Serde of a list of paths, each as [`ExactPath`].
pub mod exact_list {
    use std::path::PathBuf;

    use super::ExactPath;

    /// Writes it.
    pub fn serialize<S: serde::Serializer>(paths: &[PathBuf], s: S) -> Result<S::Ok, S::Error> {
        s.collect_seq(paths.iter().map(|p| ExactPath(p.clone())))
    }

    /// Reads it.
    pub fn deserialize<'de, D: serde::Deserializer<'de>>(d: D) -> Result<Vec<PathBuf>, D::Error> {
        let list = <Vec<ExactPath> as serde::Deserialize>::deserialize(d)?;
        Ok(list.into_iter().map(|p| p.0).collect())
    }
}

/// Serde of bytes as base64.
pub mod base64_bytes {
    use base64::Engine as _;
    use base64::engine::general_purpose::STANDARD;

    /// Writes them.
    pub fn serialize<S: serde::Serializer>(bytes: &[u8], s: S) -> Result<S::Ok, S::Error> {
        s.serialize_str(&STANDARD.encode(bytes))
    }

    /// Reads them.
    pub fn deserialize<'de, D: serde::Deserializer<'de>>(d: D) -> Result<Vec<u8>, D::Error> {
        let text = <String as serde::Deserialize>::deserialize(d)?;
        STANDARD.decode(text).map_err(serde::de::Error::custom)
    }
}

/// The path of a field that [`serialize_path`] wrote: the exact bytes where they stand beside it.
pub fn path_of(text: String, exact: Option<&str>) -> std::path::PathBuf {
    let bytes = exact.and_then(|b| base64::engine::general_purpose::STANDARD.decode(b).ok());
    bytes.map_or_else(|| text.into(), |b| std::ffi::OsString::from_vec(b).into())
}

/// A size for people: `17 B`, `3.2 KiB`, `1.5 GiB`.
pub fn size(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let mut value = bytes as f64 / 1024.0;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    format!("{value:.1} {}", UNITS[unit])
}

/// A number of things: `1 path`, `5 paths`, `2 processes`.
pub fn count(n: u64, one: &str) -> String {
    match n {
        1 => format!("1 {one}"),
        n if one.ends_with('s') => format!("{n} {one}es"),
        n => format!("{n} {one}s"),
    }
}

/// How long ago, in at most four characters: `now`, `12s`, `5m`, `3h`, `9d`, `2y`.
pub fn age(then: DateTime<Utc>, now: DateTime<Utc>) -> String {
    let s = (now - then).num_seconds();
    match s {
        i64::MIN..=0 => "now".into(),
        1..=59 => format!("{s}s"),
        60..=3599 => format!("{}m", s / 60),
        3600..=86_399 => format!("{}h", s / 3600),
        86_400..=31_535_999 => format!("{}d", s / 86_400),
        _ => format!("{}y", s / 31_536_000),
    }
}

/// A path as one word of a shell's, harmless to show and safe to paste.
pub fn shell_word(path: &Path) -> String {
    let bytes = path.as_os_str().as_bytes();
    match std::str::from_utf8(bytes) {
        Ok(s) if !s.chars().any(is_unsafe_char) => {
            shlex::try_quote(s).map_or_else(|_| shown(s), std::borrow::Cow::into_owned)
        }
        // $'..' of bash and zsh: every odd byte escaped
        _ => {
            let mut out = String::from("$'");
            for b in bytes {
                match b {
                    b'\'' | b'\\' => {
                        out.push('\\');
                        out.push(*b as char);
                    }
                    0x20..=0x7e => out.push(*b as char),
                    _ => {
                        let _written = write!(out, "\\x{b:02x}");
                    }
                }
            }
            out.push('\'');
            out
        }
    }
}

/// The most characters of a [`first_line`].
const LINE: usize = 500;

/// The first line that is not blank, made harmless; a very long one is cut.
pub fn first_line(s: &str) -> String {
    let line = s.lines().find(|l| !l.trim().is_empty()).unwrap_or("").trim();
    match line.char_indices().nth(LINE) {
        Some((end, _)) => shown(&line[..end]) + if ascii_only() { "..." } else { "…" },
        None => shown(line),
    }
}

/// A value as one line of JSON that is harmless on a terminal: the standard's escapes for every unsafe
/// character, not only for those that JSON demands.
pub fn json_line(value: &impl serde::Serialize) -> serde_json::Result<String> {
    let text = serde_json::to_string(value)?;
    if !text.chars().any(is_unsafe_char) {
        return Ok(text);
    }
    let mut out = String::with_capacity(text.len() + 16);
    // outside of strings there are none
    for c in text.chars() {
        if is_unsafe_char(c) {
            for unit in c.encode_utf16(&mut [0; 2]) {
                let _written = write!(out, "\\u{unit:04x}");
            }
        } else {
            out.push(c);
        }
    }
    Ok(out)
}

/// What another machine says, without any character that could reach a terminal: ids and lines that this program made
/// itself are printed as they are. Paths are shown through [`shown_path`] wherever they are shown, and stay exact.
pub fn harmless(value: Value) -> Value {
    const PATHS: &[&str] = &["path", "from"];
    match value {
        Value::String(s) => Value::String(shown(&s)),
        Value::Array(all) => all.into_iter().map(harmless).collect(),
        Value::Object(map) => map
            .into_iter()
            .map(|(name, v)| match v {
                Value::String(_) if PATHS.contains(&name.as_str()) => (name, v),
                v => (shown(&name), harmless(v)),
            })
            .collect(),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::OsStr;

    #[test]
    fn the_first_locale_that_is_set_counts() {
        let utf8 = |all: &str, lang: &str| {
            is_utf8_locale(|n| match n {
                "LC_ALL" => Some(all.into()),
                "LANG" => Some(lang.into()),
                _ => None,
            })
        };
        assert!(utf8("", "") && utf8("", "de_DE.UTF-8") && utf8("C.utf8", "C"));
        assert!(!utf8("C", "de_DE.UTF-8") && !utf8("", "POSIX") && !utf8("", "de_DE.ISO-8859-1"));
    }

    #[test]
    fn control_and_bidi_characters_become_visible() {
        assert_eq!(shown("a\x1b]52;c;x\x07b"), "a^[]52;c;x^Gb");
        assert_eq!(shown("\u{9b}31m\u{202e}x"), "\\u{9b}31m\\u{202e}x");
        assert_eq!(shown("new\nline\tx\r"), "new␤line⇥x␍");
    }

    #[test]
    fn json_reaches_a_terminal_harmless_and_whole() {
        let value = serde_json::json!({"a\u{9b}": "\u{1b}[2J\u{7f}\u{202e}\u{e0041}é\n"});
        let line = json_line(&value).expect("json");
        assert!(!line.chars().any(is_unsafe_char), "{line}");
        assert!(
            line.contains("\\u009b") && line.contains("\\udb40\\udc41"),
            "{line}"
        );
        assert_eq!(
            serde_json::from_str::<serde_json::Value>(&line).expect("valid"),
            value
        );
    }

    #[test]
    fn a_first_line_is_never_endless() {
        assert_eq!(first_line("\n  one \ntwo"), "one");
        let cut = first_line(&"é".repeat(10_000));
        assert_eq!((cut.chars().count(), cut.ends_with('…')), (501, true));
    }

    #[test]
    fn bytes_that_are_not_utf8_are_shown_and_kept() {
        let p = Path::new(OsStr::from_bytes(b"bad\xff\xfe"));
        assert_eq!(shown_path(p), "bad\\xff\\xfe");
        let (text, exact) = json_path(p);
        assert_eq!(text, "bad\u{fffd}\u{fffd}");
        assert_eq!(exact.as_deref(), Some("YmFk//4="));
        assert_eq!(json_path(Path::new("plain")), ("plain".to_owned(), None));
        for exact in [
            ExactPath(p.to_owned()),
            ExactPath("b64:x".into()),
            ExactPath("plain".into()),
            ExactPath("odd\u{9b}\u{202e}\n".into()),
        ] {
            let json = serde_json::to_string(&exact).expect("json");
            assert!(
                !json.chars().any(is_unsafe_char) && !json.contains('\\'),
                "{json}"
            );
            assert_eq!(serde_json::from_str::<ExactPath>(&json).expect("back"), exact);
        }
    }

    #[test]
    fn numbers_of_things() {
        let all = [count(1, "path"), count(0, "path"), count(2, "process")];
        assert_eq!(all, ["1 path", "0 paths", "2 processes"]);
    }

    #[test]
    fn sizes_and_ages() {
        assert_eq!(size(17), "17 B");
        assert_eq!(size(3 << 20), "3.0 MiB");
        let now = DateTime::from_timestamp(1_000_000, 0).expect("valid");
        let at = |s: i64| DateTime::from_timestamp(1_000_000 - s, 0).expect("valid");
        assert_eq!(
            [
                age(at(-5), now),
                age(at(59), now),
                age(at(61), now),
                age(at(7200), now)
            ],
            ["now", "59s", "1m", "2h"]
        );
    }

    #[test]
    fn names_of_files_stay_exact() {
        let odd = serde_json::json!([{"path": "a\u{1b}b\n", "from": "\u{9b}", "what": "\u{1b}"}]);
        let cleaned = harmless(odd.clone());
        assert_eq!(
            (&cleaned[0]["path"], &cleaned[0]["from"]),
            (&odd[0]["path"], &odd[0]["from"])
        );
        assert_eq!(cleaned[0]["what"], "^[");
    }

    proptest::proptest! {
        #[test]
        fn no_text_is_left_that_a_terminal_acts_on(text in ".{0,40}") {
            let cleaned = harmless(serde_json::json!({"id": text, text.as_str(): [text], "path": "p"}));
            proptest::prop_assert!(!cleaned.to_string().chars().any(is_unsafe_char));
        }
    }
}
