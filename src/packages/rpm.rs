//! rpm's database since version 4.16: an SQLite table `Packages` whose rows hold each package's header (rpm's
//! documentation, "Package Format": header structure, without its magic).

use std::collections::BTreeMap;

use super::harmless;
use super::sqlite::{Database, Value};
use super::stanzas::Listed;

const NAME: u32 = 1000;
const VERSION: u32 = 1001;
const RELEASE: u32 = 1002;
const EPOCH: u32 = 1003;
const ARCH: u32 = 1022;
/// Not a package but a key.
const KEY: &[u8] = b"gpg-pubkey";

/// The packages in a database, or why it cannot be read.
pub(super) fn sqlite(bytes: &[u8]) -> Result<Listed, String> {
    let mut out = Listed::default();
    let mut all: BTreeMap<(Vec<u8>, Vec<u8>), Vec<String>> = BTreeMap::new();
    let mut row = |values: Vec<Value>| {
        let blob = values.into_iter().find_map(|v| match v {
            Value::Bytes(b) => Some(b),
            _ => None,
        });
        match blob.as_deref().and_then(header) {
            Some((name, _, _)) if name == KEY => {}
            Some((name, arch, version)) => all.entry((name, arch)).or_default().push(version),
            None => out.broken += 1,
        }
    };
    if !Database::open(bytes)?.table("Packages", &mut row)? {
        return Err("it has no table of packages".into());
    }
    let mut last: Option<Vec<u8>> = None;
    for ((name, arch), versions) in all {
        let shown = if last.as_deref() == Some(&name) {
            format!("{}.{}", harmless(&name), harmless(&arch))
        } else {
            harmless(&name)
        };
        last = Some(name);
        out.installed.entry(shown).or_default().extend(versions);
    }
    Ok(out)
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_be_bytes(
        bytes.get(at..at.checked_add(4)?)?.try_into().ok()?,
    ))
}

/// Name, architecture, and version in one.
fn header(blob: &[u8]) -> Option<(Vec<u8>, Vec<u8>, String)> {
    let entries = u32_at(blob, 0)? as usize;
    let data = blob.get(entries.checked_mul(16)?.checked_add(8)?..)?;
    let mut texts: BTreeMap<u32, &[u8]> = BTreeMap::new();
    let mut epoch = None;
    for n in 0..entries {
        let at = 8 + 16 * n;
        let (tag, offset) = (u32_at(blob, at)?, u32_at(blob, at + 8)? as usize);
        match tag {
            NAME | VERSION | RELEASE | ARCH => {
                let text = data.get(offset..)?;
                texts.insert(tag, &text[..memchr::memchr(0, text)?]);
            }
            EPOCH => epoch = Some(u32_at(data, offset)?),
            _ => {}
        }
    }
    let text = |tag| texts.get(&tag).copied();
    let mut version = epoch
        .filter(|e| *e > 0)
        .map_or_else(String::new, |e| format!("{e}:"));
    version += &harmless(text(VERSION)?);
    version.push('-');
    version += &harmless(text(RELEASE)?);
    let name = text(NAME).filter(|n| !n.is_empty())?;
    Some((name.to_vec(), text(ARCH).unwrap_or_default().to_vec(), version))
}
