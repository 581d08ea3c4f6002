//! Changes single members of a JSON object and leaves every other byte of it as it is.

use std::ops::Range;

/// Where the members of the outermost object are: for each its name, and where name and value stand.
struct Members<'a> {
    bytes: &'a [u8],
    at: usize,
    open: usize,
    found: Vec<(Vec<u8>, Range<usize>)>,
}

impl<'a> Members<'a> {
    fn of(bytes: &'a [u8]) -> Option<Self> {
        let mut it = Self {
            bytes,
            at: 0,
            open: 0,
            found: Vec::new(),
        };
        it.space();
        it.take(b'{')?;
        it.open = it.at;
        it.space();
        if it.peek()? == b'}' {
            return Some(it);
        }
        loop {
            it.space();
            let name = it.text()?;
            it.space();
            it.take(b':')?;
            it.space();
            let start = it.at;
            it.value()?;
            let value = bytes.get(start..it.at)?.trim_ascii_end();
            it.found.push((name, start..start + value.len()));
            it.space();
            match it.peek()? {
                b',' => it.at += 1,
                b'}' => return Some(it),
                _ => return None,
            }
        }
    }

    fn peek(&self) -> Option<u8> {
        self.bytes.get(self.at).copied()
    }

    fn take(&mut self, byte: u8) -> Option<()> {
        (self.peek()? == byte).then(|| self.at += 1)
    }

    fn space(&mut self) {
        while self
            .peek()
            .is_some_and(|b| matches!(b, b' ' | b'\t' | b'\n' | b'\r'))
        {
            self.at += 1;
        }
    }

    /// A string; what stands between its quotes.
    fn text(&mut self) -> Option<Vec<u8>> {
        self.take(b'"')?;
        let start = self.at;
        loop {
            match self.peek()? {
                b'\\' => self.at += 2,
                b'"' => break,
                _ => self.at += 1,
            }
        }
        self.at += 1;
        self.bytes.get(start..self.at - 1).map(<[u8]>::to_vec)
    }

    fn value(&mut self) -> Option<()> {
        let mut depth = 0_usize;
        loop {
            match self.peek()? {
                b'"' => drop(self.text()?),
                b'{' | b'[' => {
                    depth += 1;
                    self.at += 1;
                }
                b'}' | b']' => {
                    depth = depth.checked_sub(1)?;
                    self.at += 1;
                }
                _ => self.at += 1,
            }
            let end = self.peek().is_none_or(|b| matches!(b, b',' | b'}' | b']'));
            if depth == 0 && end {
                return Some(());
            }
        }
    }
}

/// The value of a member as it is written; `None` if there is no such member. The error is one harmless line.
pub(super) fn get<'a>(bytes: &'a [u8], name: &str) -> Result<Option<&'a [u8]>, &'static str> {
    Ok(range(bytes, name)?.1.map(|r| &bytes[r]))
}

fn range(bytes: &[u8], name: &str) -> Result<(usize, Option<Range<usize>>), &'static str> {
    let members = Members::of(bytes).ok_or("it is no JSON object")?;
    let mut of = members
        .found
        .into_iter()
        .filter(|(n, _)| n == name.as_bytes())
        .map(|(_, r)| r);
    let first = of.next();
    if of.next().is_some() {
        return Err("a key is in it twice");
    }
    Ok((members.open, first))
}

/// The same object with this member set to a text; all other bytes stay. The error is one harmless line.
pub(super) fn set(bytes: &[u8], name: &str, text: &str) -> Result<Vec<u8>, &'static str> {
    let out = put(bytes, name, Some(text))?;
    let parsed: Result<serde_json::Value, _> = serde_json::from_slice(&out);
    match parsed {
        Ok(v) if v[name] == text => Ok(out),
        _ => Err(UNSAFE),
    }
}

const UNSAFE: &str = "it is no JSON that can be changed safely";

/// As [`set`], of an object whose other members may hold what is no text (a lone surrogate). `None` = `null`.
pub(super) fn put(bytes: &[u8], name: &str, text: Option<&str>) -> Result<Vec<u8>, &'static str> {
    let value = serde_json::Value::from(text).to_string();
    let (open, found) = range(bytes, name)?;
    let mut out = Vec::with_capacity(bytes.len() + value.len() + name.len() + 4);
    match found {
        Some(at) => {
            out.extend_from_slice(&bytes[..at.start]);
            out.extend_from_slice(value.as_bytes());
            out.extend_from_slice(&bytes[at.end..]);
        }
        None => {
            let more = bytes[open..].iter().find(|b| !b.is_ascii_whitespace());
            let comma = if more == Some(&b'}') { "" } else { "," };
            out.extend_from_slice(&bytes[..open]);
            out.extend_from_slice(format!("\"{name}\":{value}{comma}").as_bytes());
            out.extend_from_slice(&bytes[open..]);
        }
    }
    match get(&out, name) {
        Ok(Some(now)) if now == value.as_bytes() => Ok(out),
        _ => Err(UNSAFE),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn only_the_named_member_changes() {
        let text = br#" {"a":{"leaf":"no","x":[1,"]}"]}, "leaf" : "old" ,"b\"leaf":null,"z":1.50}  "#;
        let out = set(text, "leaf", "new\"").expect("set");
        let want = br#" {"a":{"leaf":"no","x":[1,"]}"]}, "leaf" : "new\"" ,"b\"leaf":null,"z":1.50}  "#;
        assert_eq!(String::from_utf8_lossy(&out), String::from_utf8_lossy(want));
        assert_eq!(get(text, "leaf"), Ok(Some(&b"\"old\""[..])));
        assert_eq!(get(text, "nope"), Ok(None));
        assert_eq!(set(b"{}", "k", "v").expect("set"), br#"{"k":"v"}"#);
        assert_eq!(set(b"{ \"a\":1}", "k", "v").expect("set"), br#"{"k":"v", "a":1}"#);
    }

    #[test]
    fn what_is_no_object_is_refused() {
        for bad in [
            &b""[..],
            b"[1]",
            b"{",
            b"{\"a\":",
            b"{\"a\":1,\"a\":2}",
            b"{\"a\" 1}",
            b"null",
        ] {
            assert!(set(bad, "a", "v").is_err(), "{}", String::from_utf8_lossy(bad));
        }
    }

    proptest! {
        /// Any object keeps its other members, and comes back byte for byte.
        #[test]
        fn there_and_back(keys in proptest::collection::btree_map("[a-z\"\\\\{}\\[\\],: ]{0,6}", "\\PC{0,12}", 0..6)) {
            let mut map: serde_json::Map<String, serde_json::Value> =
                keys.into_iter().map(|(k, v)| (k, v.into())).collect();
            map.insert("leaf".into(), "one".into());
            let text = serde_json::Value::from(map.clone()).to_string();
            let there = set(text.as_bytes(), "leaf", "two").expect("set");
            map.insert("leaf".into(), "two".into());
            let parsed: serde_json::Value = serde_json::from_slice(&there).expect("JSON");
            prop_assert_eq!(parsed, serde_json::Value::from(map));
            prop_assert_eq!(set(&there, "leaf", "one").expect("back"), text.as_bytes());
        }

        /// Whatever the bytes are, it ends and never panics.
        #[test]
        fn any_bytes(bytes in proptest::collection::vec(any::<u8>(), 0..80)) {
            let _either = set(&bytes, "a", "v");
        }
    }
}
