//! The text databases of dpkg (deb-control(5), dpkg's `status`) and apk (apk-package(5)): stanzas of fields, a blank
//! line after each.

use std::collections::BTreeMap;

use super::{Installed, harmless};

/// What was read of a database, and how many of its entries could not be.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Listed {
    /// What is installed.
    pub installed: Installed,
    /// Entries without a name or a version.
    pub broken: usize,
}

/// One stanza's field, by its name; continuation lines are none.
fn stanzas(bytes: &[u8]) -> impl Iterator<Item = Vec<(&[u8], &[u8])>> {
    let mut lines = bytes.split(|b| *b == b'\n');
    std::iter::from_fn(move || {
        let mut fields = Vec::new();
        let mut any = false;
        for line in lines.by_ref() {
            let line = line.strip_suffix(b"\r").unwrap_or(line);
            if line.is_empty() {
                if any {
                    return Some(fields);
                }
                continue;
            }
            any = true;
            if line.starts_with(b" ") || line.starts_with(b"\t") {
                continue;
            }
            if let Some(colon) = memchr::memchr(b':', line) {
                fields.push((&line[..colon], line[colon + 1..].trim_ascii()));
            }
        }
        any.then_some(fields)
    })
}

fn field<'a>(fields: &[(&[u8], &'a [u8])], name: &str) -> Option<&'a [u8]> {
    let found = fields
        .iter()
        .find(|(n, _)| n.eq_ignore_ascii_case(name.as_bytes()));
    found.map(|(_, value)| *value).filter(|v| !v.is_empty())
}

/// The states of a package of which nothing but its configuration is there (dpkg(1)).
const GONE: [&[u8]; 2] = [b"not-installed", b"config-files"];

/// dpkg's database: `status`, and what a run that was cut short left beside it, the oldest first.
pub(super) fn dpkg<'a>(files: impl IntoIterator<Item = &'a [u8]>) -> Listed {
    let mut out = Listed::default();
    let mut all: BTreeMap<(Vec<u8>, Vec<u8>), Option<String>> = BTreeMap::new();
    for fields in files.into_iter().flat_map(stanzas) {
        let Some(name) = field(&fields, "Package") else {
            out.broken += 1;
            continue;
        };
        let state = field(&fields, "Status").and_then(|s| s.rsplit(|b| *b == b' ').next());
        let arch = field(&fields, "Architecture").unwrap_or_default();
        let version = field(&fields, "Version");
        let gone = state.is_some_and(|s| GONE.contains(&s));
        if version.is_none() && !gone {
            out.broken += 1;
        }
        let version = version.filter(|_| !gone).map(harmless);
        all.insert((name.to_vec(), arch.to_vec()), version);
    }
    // the same package of several architectures is told apart
    let mut last: Option<Vec<u8>> = None;
    for ((name, arch), version) in all {
        let Some(version) = version else { continue };
        let shown = if last.as_deref() == Some(&name) {
            format!("{}:{}", harmless(&name), harmless(&arch))
        } else {
            harmless(&name)
        };
        last = Some(name);
        out.installed.entry(shown).or_default().insert(version);
    }
    out
}

/// apk's database `installed`.
pub(super) fn apk(bytes: &[u8]) -> Listed {
    let mut out = Listed::default();
    for fields in stanzas(bytes) {
        match (field_exact(&fields, b"P"), field_exact(&fields, b"V")) {
            (Some(name), Some(version)) => {
                let versions = out.installed.entry(harmless(name)).or_default();
                versions.insert(harmless(version));
            }
            _ => out.broken += 1,
        }
    }
    out
}

/// apk's fields differ by case (`p`: what it provides).
fn field_exact<'a>(fields: &[(&[u8], &'a [u8])], name: &[u8]) -> Option<&'a [u8]> {
    let found = fields.iter().find(|(n, _)| *n == name);
    found.map(|(_, value)| *value).filter(|v| !v.is_empty())
}

/// The fields `Name` and `Version` at the head of a Python package's description (core metadata specifications).
pub(super) fn python(bytes: &[u8]) -> Option<(String, String)> {
    let head = stanzas(bytes).next()?;
    let name = field(&head, "Name")?;
    Some((normal(name), harmless(field(&head, "Version")?)))
}

/// The name by which Python's tools compare packages (names and normalization).
fn normal(name: &[u8]) -> String {
    let mut out = Vec::with_capacity(name.len().min(256));
    for b in name.iter().take(1024) {
        match b {
            b'-' | b'_' | b'.' if out.last() == Some(&b'-') => {}
            b'-' | b'_' | b'.' => out.push(b'-'),
            b => out.push(b.to_ascii_lowercase()),
        }
    }
    harmless(&out)
}
