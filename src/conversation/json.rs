//! JSON that may hold anything: values that read what they can and never fail on a wrong type, so that one
//! odd field does not hide a message. Only broken syntax is an error.

use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;

use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor, value};

/// A string where there is one; numbers and booleans as their text, anything else nothing.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(super) enum Word<'a> {
    /// Not there, or `null`.
    #[default]
    Absent,
    /// A text (or a number's or boolean's text).
    Text(Cow<'a, str>),
    /// Something else.
    Other,
}

impl Word<'_> {
    /// The text, if it is one.
    pub(super) fn text(&self) -> Option<&str> {
        match self {
            Self::Text(t) => Some(t),
            _ => None,
        }
    }
    /// True if it is this text.
    pub(super) fn is(&self, text: &str) -> bool {
        self.text() == Some(text)
    }
    /// An owned copy of the text.
    pub(super) fn owned(&self) -> Option<String> {
        self.text().map(str::to_owned)
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Word<'a> {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        struct V<'a>(PhantomData<&'a ()>);
        impl<'de: 'a, 'a> Visitor<'de> for V<'a> {
            type Value = Word<'a>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("any value")
            }
            fn visit_borrowed_str<E>(self, v: &'de str) -> Result<Word<'a>, E> {
                Ok(Word::Text(Cow::Borrowed(v)))
            }
            fn visit_str<E>(self, v: &str) -> Result<Word<'a>, E> {
                Ok(Word::Text(Cow::Owned(v.to_owned())))
            }
            fn visit_unit<E>(self) -> Result<Word<'a>, E> {
                Ok(Word::Absent)
            }
            fn visit_bool<E>(self, v: bool) -> Result<Word<'a>, E> {
                Ok(Word::Text(Cow::Borrowed(if v { "true" } else { "false" })))
            }
            fn visit_i64<E>(self, v: i64) -> Result<Word<'a>, E> {
                Ok(Word::Text(Cow::Owned(v.to_string())))
            }
            fn visit_u64<E>(self, v: u64) -> Result<Word<'a>, E> {
                Ok(Word::Text(Cow::Owned(v.to_string())))
            }
            fn visit_f64<E>(self, v: f64) -> Result<Word<'a>, E> {
                Ok(Word::Text(Cow::Owned(v.to_string())))
            }
            fn visit_seq<A: SeqAccess<'de>>(self, seq: A) -> Result<Word<'a>, A::Error> {
                drain_seq(seq)?;
                Ok(Word::Other)
            }
            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Word<'a>, A::Error> {
                drain_map(map)?;
                Ok(Word::Other)
            }
        }
        d.deserialize_any(V(PhantomData))
    }
}

/// An object of `T`, or nothing where the value is no object.
#[derive(Debug, Clone)]
pub(super) struct Object<T>(pub(super) Option<T>);

impl<T> Default for Object<T> {
    fn default() -> Self {
        Self(None)
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Object<T> {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        struct V<T>(PhantomData<T>);
        impl<'de, T: Deserialize<'de>> Visitor<'de> for V<T> {
            type Value = Object<T>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("any value")
            }
            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Object<T>, A::Error> {
                T::deserialize(value::MapAccessDeserializer::new(map)).map(|t| Object(Some(t)))
            }
            fn visit_seq<A: SeqAccess<'de>>(self, seq: A) -> Result<Object<T>, A::Error> {
                drain_seq(seq).map(|_| Object(None))
            }
            fn visit_str<E>(self, _: &str) -> Result<Object<T>, E> {
                Ok(Object(None))
            }
            fn visit_unit<E>(self) -> Result<Object<T>, E> {
                Ok(Object(None))
            }
            fn visit_bool<E>(self, _: bool) -> Result<Object<T>, E> {
                Ok(Object(None))
            }
            fn visit_i64<E>(self, _: i64) -> Result<Object<T>, E> {
                Ok(Object(None))
            }
            fn visit_u64<E>(self, _: u64) -> Result<Object<T>, E> {
                Ok(Object(None))
            }
            fn visit_f64<E>(self, _: f64) -> Result<Object<T>, E> {
                Ok(Object(None))
            }
        }
        d.deserialize_any(V(PhantomData))
    }
}

/// The objects of a list; a plain text instead of a list is kept as that.
#[derive(Debug, Clone)]
pub(super) enum List<'a, T> {
    /// The elements that are objects.
    Objects(Vec<T>, usize),
    /// A text stands there instead.
    Text(Cow<'a, str>),
}

impl<T> Default for List<'_, T> {
    fn default() -> Self {
        Self::Objects(Vec::new(), 0)
    }
}

impl<T> List<'_, T> {
    /// How many elements it has, whatever they are.
    pub(super) fn len(&self) -> usize {
        match self {
            Self::Objects(_, n) => *n,
            Self::Text(_) => 0,
        }
    }
}

impl<'de: 'a, 'a, T: Deserialize<'de> + 'a> Deserialize<'de> for List<'a, T> {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        struct V<'a, T>(PhantomData<(&'a (), T)>);
        impl<'de: 'a, 'a, T: Deserialize<'de>> Visitor<'de> for V<'a, T> {
            type Value = List<'a, T>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("any value")
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<List<'a, T>, A::Error> {
                let (mut objects, mut n) = (Vec::new(), 0);
                while let Some(Object(one)) = seq.next_element()? {
                    objects.extend(one);
                    n += 1;
                }
                Ok(List::Objects(objects, n))
            }
            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<List<'a, T>, A::Error> {
                drain_map(map).map(|()| List::default())
            }
            fn visit_borrowed_str<E>(self, v: &'de str) -> Result<List<'a, T>, E> {
                Ok(List::Text(Cow::Borrowed(v)))
            }
            fn visit_str<E>(self, v: &str) -> Result<List<'a, T>, E> {
                Ok(List::Text(Cow::Owned(v.to_owned())))
            }
            fn visit_unit<E>(self) -> Result<List<'a, T>, E> {
                Ok(List::default())
            }
            fn visit_bool<E>(self, _: bool) -> Result<List<'a, T>, E> {
                Ok(List::default())
            }
            fn visit_i64<E>(self, _: i64) -> Result<List<'a, T>, E> {
                Ok(List::default())
            }
            fn visit_u64<E>(self, _: u64) -> Result<List<'a, T>, E> {
                Ok(List::default())
            }
            fn visit_f64<E>(self, _: f64) -> Result<List<'a, T>, E> {
                Ok(List::default())
            }
        }
        d.deserialize_any(V(PhantomData))
    }
}

fn drain_seq<'de, A: SeqAccess<'de>>(mut seq: A) -> Result<usize, A::Error> {
    let mut n = 0;
    while seq.next_element::<IgnoredAny>()?.is_some() {
        n += 1;
    }
    Ok(n)
}

fn drain_map<'de, A: MapAccess<'de>>(mut map: A) -> Result<(), A::Error> {
    while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
    Ok(())
}

/// Reads one JSON object from `bytes` and hands it to `f`. Text that is no UTF-8 and lone surrogates (Python
/// writes them) are replaced rather than refused. The error is one harmless line.
pub(super) fn with_object<'a, T, R>(
    bytes: &'a [u8],
    repaired: &'a mut Vec<u8>,
    f: impl FnOnce(T) -> R,
) -> Result<R, String>
where
    T: Deserialize<'a>,
{
    let first = match serde_json::from_slice::<Object<T>>(bytes) {
        Ok(object) => return object.0.map(f).ok_or_else(|| "it is no JSON object".to_owned()),
        Err(e) => e,
    };
    if first.is_eof() || bytes.iter().all(|&b| b == 0) {
        return Err(reason(bytes, &first));
    }
    *repaired = without_lone_surrogates(&String::from_utf8_lossy(bytes)).into_bytes();
    match serde_json::from_slice::<Object<T>>(repaired) {
        Ok(object) => object.0.map(f).ok_or_else(|| "it is no JSON object".to_owned()),
        Err(_) => Err(reason(bytes, &first)),
    }
}

fn reason(bytes: &[u8], error: &serde_json::Error) -> String {
    if bytes.is_empty() {
        "it is empty".into()
    } else if bytes.iter().all(|&b| b == 0) {
        "it holds only NUL bytes".into()
    } else if error.is_eof() {
        "it is cut off".into()
    } else {
        format!("no valid JSON (line {}, column {})", error.line(), error.column())
    }
}

/// `json` with each `\uD800`-like escape that has no partner replaced by the replacement character.
fn without_lone_surrogates(json: &str) -> String {
    let mut out = String::with_capacity(json.len());
    let mut rest = json;
    while let Some(at) = rest.find('\\') {
        out.push_str(&rest[..at]);
        rest = &rest[at..];
        let len = match (unit(rest), rest.get(6..).and_then(unit)) {
            (Some(0xd800..=0xdbff), Some(0xdc00..=0xdfff)) => 12,
            (Some(0xd800..=0xdfff), _) => {
                out.push_str("\\ufffd");
                rest = &rest[6..];
                continue;
            }
            (Some(_), _) => 6,
            (None, _) => 1 + rest[1..].chars().next().map_or(0, char::len_utf8),
        };
        out.push_str(&rest[..len]);
        rest = &rest[len..];
    }
    out.push_str(rest);
    out
}

/// The UTF-16 unit of an escape `\uXXXX` at the start of `s`.
fn unit(s: &str) -> Option<u16> {
    let digits = s.strip_prefix("\\u")?.get(..4)?;
    if !digits.bytes().all(|b| b.is_ascii_hexdigit()) {
        return None;
    }
    u16::from_str_radix(digits, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(serde::Deserialize)]
    struct Probe<'a> {
        #[serde(borrow, default)]
        a: Word<'a>,
        #[serde(borrow, default)]
        b: List<'a, IgnoredAny>,
    }

    fn a_of(json: &[u8]) -> Result<Option<String>, String> {
        let mut room = Vec::new();
        with_object(json, &mut room, |p: Probe<'_>| p.a.owned())
    }

    #[test]
    fn wrong_types_are_no_errors() {
        for (json, want) in [
            (r#"{"a":"x"}"#, Some("x")),
            (r#"{"a":7}"#, Some("7")),
            (r#"{"a":null}"#, None),
            (r#"{"a":[1,{"x":[]}]}"#, None),
            (r#"{"a":{"y":1},"b":"text"}"#, None),
            (r#"{"a":true,"b":3}"#, Some("true")),
        ] {
            assert_eq!(a_of(json.as_bytes()), Ok(want.map(str::to_owned)), "{json}");
        }
        let deep = format!(
            "{{\"z\":{}{}, \"a\":\"x\"}}",
            "[".repeat(200_000),
            "]".repeat(200_000)
        );
        assert_eq!(a_of(deep.as_bytes()), Ok(Some("x".into())));
        let mut room = Vec::new();
        let n = with_object(br#"{"b":[1,{},"x"]}"#, &mut room, |p: Probe<'_>| p.b.len());
        assert_eq!(n, Ok(3));
    }

    #[test]
    fn broken_text_is_repaired_broken_syntax_named() {
        assert_eq!(a_of(b"{\"a\":\"x\xff\"}"), Ok(Some("x\u{fffd}".into())));
        assert_eq!(
            a_of(br#"{"a":"\ud83d\ude00 \ud83d \\ud83d"}"#),
            Ok(Some("😀 \u{fffd} \\ud83d".into()))
        );
        assert_eq!(a_of(b""), Err("it is empty".into()));
        assert_eq!(a_of(&[0; 64]), Err("it holds only NUL bytes".into()));
        assert_eq!(a_of(br#"{"a":"x"#), Err("it is cut off".into()));
        assert_eq!(a_of(b"[]"), Err("it is no JSON object".into()));
        assert!(a_of(b"{'a'}").is_err_and(|e| e.starts_with("no valid JSON")));
    }
}
