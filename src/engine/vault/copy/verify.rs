//! The independent check after a restore: the live tree is read path by path and compared with the record. It
//! shares no step with the change list, only the readers of single attributes.

use std::collections::{BTreeSet, HashMap};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;

use rustix::fs::{Statx, StatxAttributes};

use super::CopyVault;
use super::manifest::Manifest;
use super::object::digest;
use crate::engine::changes::attrs::{flags, target, xattrs};
use crate::engine::changes::node::{Facts, Node, stat_at};
use crate::engine::changes::open::{components, open_chain, open_file_at, to_path};
use crate::engine::restore::check::list;
use crate::engine::{Difference, EngineError, FileType, Result, Selection};
use crate::progress::Progress;
use crate::text::shown_bytes;

/// Most differences that are reported.
const MOST: usize = 100;

type Path = Vec<Box<[u8]>>;

struct Check<'a> {
    live: BorrowedFd<'a>,
    dev: (u32, u32),
    /// Numbers of links must agree.
    counted: bool,
    should: &'a Manifest,
    children: HashMap<u32, Vec<u32>>,
    /// None: all.
    selected: Option<Vec<Path>>,
    /// The first path of each inode, live and recorded.
    first: [HashMap<u64, Vec<u8>>; 2],
    found: Vec<Difference>,
    seen: u64,
    progress: &'a dyn Progress,
}

impl CopyVault {
    /// How the live tree differs from the record; at most 100 differences. Nested subvolumes and mounts are
    /// not compared.
    pub(super) fn compare(
        &self,
        should: &Manifest,
        selection: &Selection,
        progress: &dyn Progress,
    ) -> Result<Vec<Difference>> {
        let live = self.live()?;
        let selected = match selection {
            Selection::All => None,
            Selection::Paths(paths) => Some(paths.iter().map(|p| components(p)).collect::<Result<Vec<_>>>()?),
        };
        let root = stat_at(live, b"").map_err(|e| EngineError::io("read", ".")(e.into()))?;
        let mut children: HashMap<u32, Vec<u32>> = HashMap::new();
        for (i, node) in (0..).zip(&should.nodes).skip(1) {
            children.entry(node.parent).or_default().push(i);
        }
        let mut check = Check {
            live,
            dev: (root.stx_dev_major, root.stx_dev_minor),
            counted: !self.layer,
            should,
            children,
            selected: selected.filter(|all| !all.iter().any(Vec::is_empty)),
            first: [HashMap::new(), HashMap::new()],
            found: Vec::new(),
            seen: 0,
            progress,
        };
        if check.selected.is_none() {
            check.one(&[], live, b".", &root, &should.nodes[0])?;
        }
        check.run()?;
        Ok(check.found)
    }
}

fn is_dir(st: &Statx) -> bool {
    st.stx_mode & 0o170_000 == 0o040_000
}

impl Check<'_> {
    fn report(&mut self, path: &[Box<[u8]>], what: impl Into<String>) {
        if self.found.len() < MOST {
            self.found.push(Difference {
                path: shown(path),
                what: what.into(),
            });
        }
    }

    fn run(&mut self) -> Result<()> {
        let mut todo: Vec<(Path, u32)> = vec![(Path::new(), 0)];
        while let Some((path, folder)) = todo.pop() {
            if self.found.len() >= MOST {
                break;
            }
            if self.progress.cancelled() {
                return Err(EngineError::Cancelled);
            }
            self.folder(&path, folder, &mut todo)?;
            self.progress
                .step("checking", self.seen, self.should.nodes.len() as u64);
        }
        Ok(())
    }

    /// Whether a path is compared, and whether something below it is.
    fn wanted(&self, path: &[Box<[u8]>]) -> (bool, bool) {
        let Some(selected) = &self.selected else {
            return (true, true);
        };
        let inside = selected.iter().any(|s| path.starts_with(s));
        (inside, inside || selected.iter().any(|s| s.starts_with(path)))
    }

    fn folder(&mut self, path: &[Box<[u8]>], folder: u32, todo: &mut Vec<(Path, u32)>) -> Result<()> {
        let names: Vec<&[u8]> = path.iter().map(|n| &n[..]).collect();
        let err = |what| EngineError::io(what, shown(path));
        let dir: OwnedFd = open_chain(self.live, &names).map_err(err("open"))?;
        let is = list(&dir).map_err(err("read"))?;
        let nodes = &self.should.nodes;
        let should: HashMap<&[u8], u32> = self
            .children
            .get(&folder)
            .into_iter()
            .flatten()
            .map(|&i| (&nodes[i as usize].name[..], i))
            .collect();
        let all: BTreeSet<&[u8]> = is.keys().map(|n| &n[..]).chain(should.keys().copied()).collect();
        for name in all {
            let mut below = path.to_vec();
            below.push(name.into());
            let (inside, above) = self.wanted(&below);
            let node = should.get(name).map(|&i| (i, &nodes[i as usize]));
            let away = is.get(name).is_none_or(|st| self.uncovered(&below, st));
            self.seen += 1;
            if !above || away && node.is_none_or(|(_, n)| !n.covered()) {
                continue;
            }
            match (is.get(name), node) {
                (Some(st), Some((i, node))) => {
                    let same = !inside || self.one(&below, dir.as_fd(), name, st, node)?;
                    if same && is_dir(st) && node.is_dir() && !away && node.covered() {
                        todo.push((below, i));
                    }
                }
                (Some(st), None) if inside => {
                    if !(is_dir(st) && self.holds_places_only(&below)?) {
                        self.report(&below, "should not be there");
                    }
                }
                (None, Some(_)) if inside => self.report(&below, "is missing"),
                // a folder above the selected path: absent on one side, so something of it is
                (Some(_), None) | (None, Some(_)) => self.partly(&below, is.get(name), node),
                (None, None) => {}
            }
        }
        Ok(())
    }

    /// A folder above a selected path that one side alone has: the selected path may be missing on both.
    fn partly(&mut self, above: &[Box<[u8]>], is: Option<&Statx>, node: Option<(u32, &Node)>) {
        for path in self.selected.clone().unwrap_or_default() {
            if !path.starts_with(above) {
                continue;
            }
            let there = match (is, node) {
                (Some(_), _) => {
                    let names: Vec<&[u8]> = path.iter().map(|n| &n[..]).collect();
                    let (last, chain) = names.split_last().map_or((&b"."[..], &[][..]), |(l, c)| (*l, c));
                    open_chain(self.live, chain).is_ok_and(|dir| stat_at(dir.as_fd(), last).is_ok())
                }
                (None, Some((i, _))) => self.recorded(i, &path[above.len()..]),
                (None, None) => false,
            };
            if there {
                let what = if is.is_some() {
                    "should not be there"
                } else {
                    "is missing"
                };
                self.report(&path, what);
            }
        }
    }

    /// Whether the record has these names below folder `at`.
    fn recorded(&self, at: u32, names: &[Box<[u8]>]) -> bool {
        let found = names.iter().try_fold(at, |at, name| {
            let mut all = self.children.get(&at)?.iter().copied();
            all.find(|&i| self.should.nodes[i as usize].name == *name)
        });
        found.is_some()
    }

    /// True for a folder that stays because of what is in it and in no checkpoint, and that holds nothing else.
    fn holds_places_only(&self, folder: &[Box<[u8]>]) -> Result<bool> {
        let mut todo = vec![folder.to_vec()];
        while let Some(path) = todo.pop() {
            let err = |what| EngineError::io(what, shown(&path));
            let names: Vec<&[u8]> = path.iter().map(|n| &n[..]).collect();
            let dir: OwnedFd = open_chain(self.live, &names).map_err(err("open"))?;
            let entries = list(&dir).map_err(err("read"))?;
            if entries.is_empty() {
                return Ok(false);
            }
            for (name, st) in &entries {
                let mut below = path.clone();
                below.push(name[..].into());
                if self.uncovered(&below, st) {
                    continue;
                }
                if !is_dir(st) {
                    return Ok(false);
                }
                todo.push(below);
            }
        }
        Ok(true)
    }

    fn uncovered(&self, path: &[Box<[u8]>], st: &Statx) -> bool {
        self.should.patterns.leaves_out(&shown(path), is_dir(st))
            || st.stx_attributes.contains(StatxAttributes::MOUNT_ROOT)
            || is_dir(st) && (st.stx_dev_major, st.stx_dev_minor) != self.dev
    }

    /// Compares one path. True if both are of one type and covered.
    fn one(
        &mut self,
        path: &[Box<[u8]>],
        dir: BorrowedFd<'_>,
        name: &[u8],
        st: &Statx,
        node: &Node,
    ) -> Result<bool> {
        if !path.is_empty() && (self.uncovered(path, st) || !node.covered()) {
            if is_dir(st) != node.is_dir() {
                self.report(path, "a nested subvolume or a mount is in its place");
            }
            return Ok(false);
        }
        let now = Node::new(name, 0, 0, st, None);
        if now.file_type != node.file_type {
            let what = format!("is {:?}, should be {:?}", now.file_type, node.file_type);
            self.report(path, what.to_lowercase());
            return Ok(false);
        }
        let mut what = self.by_stat(&now, node);
        if !self.should.settles(node, &now)
            && let Some(facts) = node.facts.as_deref()
        {
            let read = by_reading(dir, name, &now, node, facts);
            what.extend(read.map_err(EngineError::io("read", shown(path)))?);
        }
        what.extend(self.links(path, st, node));
        if !what.is_empty() {
            self.report(path, what.join("; "));
        }
        Ok(true)
    }

    fn by_stat(&self, now: &Node, node: &Node) -> Vec<String> {
        let mut what = Vec::new();
        let mut add = |name: &str, is: String, want: String| {
            if is != want {
                what.push(format!("{name} {is}, should be {want}"));
            }
        };
        let time = |n: &Node| format!("{}.{:09}", n.mtime.s, n.mtime.ns);
        if now.file_type != FileType::Link {
            add("mode", format!("{:o}", now.mode), format!("{:o}", node.mode));
        }
        let owner = |n: &Node| format!("{}:{}", n.uid, n.gid);
        add("owner", owner(now), owner(node));
        add("modification time", time(now), time(node));
        if matches!(now.file_type, FileType::File | FileType::Link) {
            add("size", now.size.to_string(), node.size.to_string());
        }
        if matches!(now.file_type, FileType::CharDevice | FileType::BlockDevice) {
            add("device", format!("{:?}", now.rdev), format!("{:?}", node.rdev));
        }
        // names that are left out count, too
        if self.counted && self.selected.is_none() && !now.is_dir() && self.should.patterns.is_empty() {
            add(
                "number of hard links",
                now.nlink.to_string(),
                node.nlink.to_string(),
            );
        }
        what
    }

    /// The first path of an inode must be that of the same group on the other side.
    fn links(&mut self, path: &[Box<[u8]>], st: &Statx, node: &Node) -> Option<String> {
        if node.is_dir() || st.stx_nlink < 2 && node.nlink < 2 {
            return None;
        }
        let path = path.join(&b'/');
        let [x, y] = [(0, st.stx_ino), (1, node.inode.0)].map(|(side, ino): (usize, u64)| {
            let first = self.first[side].entry(ino);
            first.or_insert_with(|| path.clone()).clone()
        });
        (x != y).then(|| {
            format!(
                "is a hard link of {}, should be of {}",
                shown_bytes(&x),
                shown_bytes(&y)
            )
        })
    }
}

fn shown(path: &[Box<[u8]>]) -> PathBuf {
    to_path(&path.join(&b'/'))
}

/// What only reading shows.
fn by_reading(
    dir: BorrowedFd<'_>,
    name: &[u8],
    now: &Node,
    node: &Node,
    facts: &Facts,
) -> io::Result<Vec<String>> {
    let mut what = Vec::new();
    if now.file_type == FileType::Link {
        let is = target(dir, name)?;
        if is != facts.link {
            let (is, want) = (shown_bytes(&is), shown_bytes(&facts.link));
            what.push(format!("link to {is}, should be to {want}"));
        }
    }
    let is = xattrs(dir, name)?;
    let keys: BTreeSet<&Vec<u8>> = is.keys().chain(facts.xattrs.keys()).collect();
    for key in keys {
        if is.get(key) != facts.xattrs.get(key) {
            what.push(format!("extended attribute {} differs", shown_bytes(key)));
        }
    }
    if flags(dir, name, now.file_type)? != facts.flags {
        what.push("inode flags differ".into());
    }
    if now.is_file() && now.size == node.size {
        let is = digest(open_file_at(dir, name, false)?.as_fd(), &mut |_, _| Ok(()))?;
        if facts.hash != Some(is) {
            what.push("content differs".into());
        }
    }
    Ok(what)
}
