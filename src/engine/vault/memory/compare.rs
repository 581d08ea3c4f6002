//! What differs between two trees in memory: the same rules as on Btrfs.

use std::collections::{BTreeMap, HashMap};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::super::super::{Change, ChangeKind, Difference, FileType, PartKind, What};
use super::tree::{Node, Tree};

/// What differs between two nodes.
fn what(a: &Node, b: &Node) -> Vec<What> {
    [
        (a.body != b.body, What::Content),
        (a.mode != b.mode, What::Mode),
        (a.uid != b.uid || a.gid != b.gid, What::Owner),
        (a.mtime != b.mtime, What::Time),
    ]
    .into_iter()
    .filter_map(|(differs, what)| differs.then_some(what))
    .collect()
}

fn by_inode(tree: &Tree) -> HashMap<u64, &Path> {
    tree.0.iter().map(|(p, n)| (n.inode, p.as_path())).collect()
}

/// Where a name is: the identity of its folder, and the name. Equal = nothing was renamed here.
fn place<'a>(tree: &'a Tree, path: &'a Path) -> Option<(u64, &'a [u8])> {
    let parent = tree.0.get(path.parent()?)?;
    Some((parent.inode, path.file_name().unwrap_or_default().as_bytes()))
}

fn shown(path: &Path) -> PathBuf {
    if path.as_os_str().is_empty() {
        PathBuf::from(".")
    } else {
        path.to_owned()
    }
}

struct Rows {
    times: bool,
    rows: Vec<Change>,
}

impl Rows {
    fn push(
        &mut self,
        kind: ChangeKind,
        a: Option<(&Path, &Node)>,
        b: Option<(&Path, &Node)>,
        what: &[What],
    ) {
        let path = b.or(a).map_or(Path::new(""), |(p, _)| p);
        let from = match (a, b) {
            (Some((from, _)), Some((to, _))) if from != to => Some(from.to_owned()),
            _ => None,
        };
        self.rows.push(Change {
            path: shown(path),
            kind,
            from,
            what: what.to_vec(),
            type_a: a.map(|(_, n)| n.file_type()),
            type_b: b.map(|(_, n)| n.file_type()),
            size_a: a.and_then(|(_, n)| n.size()),
            size_b: b.and_then(|(_, n)| n.size()),
            part: PartKind::Workspace,
        });
    }

    /// What of it is told: the time alone only if asked for, and never of folders.
    fn told(&self, a: &Node, b: &Node) -> Vec<What> {
        let hidden = !self.times || b.file_type() == FileType::Dir;
        what(a, b)
            .into_iter()
            .filter(|w| !(hidden && *w == What::Time))
            .collect()
    }

    fn kept(&mut self, a: (&Path, &Node), b: (&Path, &Node)) {
        let told = self.told(a.1, b.1);
        if told.is_empty() {
            return;
        }
        let kind = if told.contains(&What::Content) {
            ChangeKind::Modified
        } else {
            ChangeKind::Meta
        };
        self.push(kind, Some(a), Some(b), &told);
    }
}

/// The change list from `a` to `b`, sorted by the bytes of the path.
pub(super) fn changes(a: &Tree, b: &Tree, times: bool) -> Vec<Change> {
    let mut out = Rows {
        times,
        rows: Vec::new(),
    };
    let (in_a, in_b) = (by_inode(a), by_inode(b));
    let mut deleted: BTreeMap<&Path, &Node> = BTreeMap::new();
    for (from, x) in &a.0 {
        let Some((to, y)) = in_b.get(&x.inode).and_then(|to| Some((*to, b.0.get(*to)?))) else {
            deleted.insert(from, x);
            continue;
        };
        let (old, new) = ((from.as_path(), x), (to, y));
        if from == to || place(a, from) == place(b, to) {
            out.kept(old, new);
        } else {
            let told = out.told(x, y);
            out.push(ChangeKind::Renamed, Some(old), Some(new), &told);
        }
    }
    for (to, y) in b.0.iter().filter(|(_, y)| !in_a.contains_key(&y.inode)) {
        let new = (to.as_path(), y);
        match deleted.remove(to.as_path()) {
            None => out.push(ChangeKind::Added, None, Some(new), &[]),
            Some(x) if x.file_type() == y.file_type() => out.kept((to, x), new),
            Some(x) => {
                let mut told = out.told(x, y);
                if !told.contains(&What::Content) {
                    told.insert(0, What::Content);
                }
                out.push(ChangeKind::Type, Some((to, x)), Some(new), &told);
            }
        }
    }
    for (path, x) in deleted {
        out.push(ChangeKind::Deleted, Some((path, x)), None, &[]);
    }
    let key = |c: &Change| (c.path.as_os_str().as_bytes().to_vec(), c.kind);
    out.rows.sort_by_key(key);
    out.rows
}

/// The inodes that differ in any way.
pub(super) fn changed_inodes(a: &Tree, b: &Tree) -> u64 {
    let (in_a, in_b) = (by_inode(a), by_inode(b));
    let mut count = 0;
    for (inode, path) in &in_a {
        let same = in_b.get(inode).is_some_and(|other| {
            place(a, path) == place(b, other)
                && a.0.get(*path).zip(b.0.get(*other)).is_some_and(|(x, y)| x == y)
        });
        count += u64::from(!same);
    }
    count + in_b.keys().filter(|i| !in_a.contains_key(i)).count() as u64
}

/// Compares path by path, every attribute, identities left out; at most 100 differences.
pub(super) fn differences(now: &Tree, target: &Tree, covers: impl Fn(&Path) -> bool) -> Vec<Difference> {
    let mut out = Vec::new();
    let mut paths: Vec<&PathBuf> = now
        .0
        .keys()
        .chain(target.0.keys())
        .filter(|p| covers(p))
        .collect();
    paths.sort();
    paths.dedup();
    for path in paths {
        let mut report = |what: String| {
            out.push(Difference {
                path: shown(path),
                what,
            });
        };
        match (now.0.get(path), target.0.get(path)) {
            (Some(_), None) => report("should not be there".into()),
            (None, Some(_)) => report("is missing".into()),
            (Some(x), Some(y)) => {
                for differs in what(x, y) {
                    match differs {
                        What::Mode => report(format!("mode {:o}, should be {:o}", x.mode, y.mode)),
                        What::Owner => {
                            report(format!(
                                "owner {}:{}, should be {}:{}",
                                x.uid, x.gid, y.uid, y.gid
                            ));
                        }
                        What::Time => report(format!("time {}, should be {}", x.mtime, y.mtime)),
                        _ => report("content differs".into()),
                    }
                }
            }
            (None, None) => {}
        }
        if out.len() >= 100 {
            out.truncate(100);
            break;
        }
    }
    out
}
