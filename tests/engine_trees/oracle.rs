//! The rows that a change list must have, worked out naively from two manifests.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use respool::engine::{Change, ChangeKind, What};

use crate::scratch::{Facts, Manifest};

/// (kind, path, old path, what): the root is `.`.
pub type Row = (ChangeKind, Vec<u8>, Option<Vec<u8>>, Vec<What>);
type Id = (u64, i64, u32, char);
/// The paths of one inode in the first and in the second tree.
type Names<'a> = (Vec<&'a Vec<u8>>, Vec<&'a Vec<u8>>);

/// The rows of a list, in a form that can be compared.
pub fn rows(list: &[Change]) -> BTreeSet<Row> {
    let bytes = |p: &std::path::Path| p.as_os_str().as_bytes().to_vec();
    let all: BTreeSet<Row> = list
        .iter()
        .map(|c| {
            (
                c.kind,
                bytes(&c.path),
                c.from.as_deref().map(bytes),
                c.what.clone(),
            )
        })
        .collect();
    assert_eq!(all.len(), list.len(), "a row is listed twice");
    all
}

fn id(f: &Facts) -> Id {
    (f.id.0, f.id.1, f.id.2, f.kind)
}

fn dirname(path: &[u8]) -> (&[u8], &[u8]) {
    match path.iter().rposition(|b| *b == b'/') {
        Some(i) => (&path[..i], &path[i + 1..]),
        None => (b"", path),
    }
}

fn place<'a>(m: &Manifest, path: &'a [u8]) -> (Option<Id>, &'a [u8]) {
    let (dir, name) = dirname(path);
    // the root is the same on both sides
    ((!dir.is_empty()).then(|| id(&m[dir])), name)
}

fn what(x: &Facts, y: &Facts, times: bool) -> Vec<What> {
    let mut all = Vec::new();
    let content = (x.hash, x.size, &x.target) != (y.hash, y.size, &y.target) || x.rdev != y.rdev;
    let mut add = |w, differs| {
        if differs {
            all.push(w);
        }
    };
    add(What::Content, content);
    add(What::Mode, x.mode != y.mode);
    add(What::Owner, x.owner != y.owner);
    add(What::Xattr, x.xattrs != y.xattrs);
    add(What::Flags, x.flags != y.flags);
    add(What::Time, times && y.kind != 'd' && x.mtime != y.mtime);
    all
}

fn kept(out: &mut BTreeSet<Row>, old: &[u8], new: &[u8], what: Vec<What>) {
    if !what.is_empty() {
        let kind = if what.contains(&What::Content) {
            ChangeKind::Modified
        } else {
            ChangeKind::Meta
        };
        let from = (old != new).then(|| old.to_vec());
        out.insert((kind, dot(new), from, what));
    }
}

fn dot(path: &[u8]) -> Vec<u8> {
    if path.is_empty() {
        b".".to_vec()
    } else {
        path.to_vec()
    }
}

/// What must be listed from `a` to `b`.
pub fn expected(a: &Manifest, b: &Manifest, times: bool) -> BTreeSet<Row> {
    let mut out = BTreeSet::new();
    let mut groups: BTreeMap<Id, Names<'_>> = BTreeMap::new();
    for (path, facts) in a.iter().filter(|e| !e.0.is_empty()) {
        groups.entry(id(facts)).or_default().0.push(path);
    }
    for (path, facts) in b.iter().filter(|e| !e.0.is_empty()) {
        groups.entry(id(facts)).or_default().1.push(path);
    }
    kept(&mut out, b"", b"", what(&a[&b""[..]], &b[&b""[..]], times));
    let (mut deleted, mut added) = (BTreeSet::new(), BTreeSet::new());
    for (olds, news) in groups.values() {
        let (mut lost, mut won) = (Vec::new(), Vec::new());
        let stays = |old: &[u8], new: &[u8]| place(a, old) == place(b, new) || old == new;
        for old in olds {
            match news
                .iter()
                .find(|new| place(a, old) == place(b, new))
                .or_else(|| {
                    news.iter()
                        .find(|new| stays(old, new) && !olds.iter().any(|o| place(a, o) == place(b, new)))
                }) {
                Some(new) => kept(&mut out, old, new, what(&a[*old], &b[*new], times)),
                None => lost.push(*old),
            }
        }
        for new in news {
            let known = olds.iter().any(|old| place(a, old) == place(b, new))
                || olds
                    .iter()
                    .any(|old| old == new && !news.iter().any(|n| place(a, old) == place(b, n)));
            if !known {
                won.push(*new);
            }
        }
        let pairs = lost.len().min(won.len());
        for (old, new) in lost.iter().zip(&won) {
            let what = what(&a[*old], &b[*new], times);
            out.insert((ChangeKind::Renamed, (*new).clone(), Some((*old).clone()), what));
        }
        deleted.extend(lost[pairs..].iter().copied());
        added.extend(won[pairs..].iter().copied());
    }
    for path in &deleted {
        if !added.remove(*path) {
            out.insert((ChangeKind::Deleted, (*path).clone(), None, vec![]));
            continue;
        }
        let (x, y) = (&a[*path], &b[*path]);
        if x.kind == y.kind {
            kept(&mut out, path, path, what(x, y, times));
        } else {
            let mut all = what(x, y, times);
            all.retain(|w| matches!(w, What::Owner | What::Time));
            all.insert(0, What::Content);
            if x.mode != y.mode && x.kind != 'l' {
                all.insert(1, What::Mode);
            }
            out.insert((ChangeKind::Type, (*path).clone(), None, all));
        }
    }
    for path in added {
        out.insert((ChangeKind::Added, path.clone(), None, vec![]));
    }
    out
}

/// A row for messages.
pub fn shown(row: &Row) -> String {
    let name = |p: &Vec<u8>| OsStr::from_bytes(p).to_string_lossy().into_owned();
    format!(
        "{:?} {} from {:?} {:?}",
        row.0,
        name(&row.1),
        row.2.as_ref().map(name),
        row.3
    )
}
