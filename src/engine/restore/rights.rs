//! What a process without root cannot bring back.

use std::os::fd::BorrowedFd;

use rustix::fs::IFlags;

use super::plan::Plan;
use crate::engine::changes::attrs::{Xattrs, flags, xattrs};
use crate::engine::changes::node::{Node, Walked};
use crate::engine::changes::open::Dirs;
use crate::engine::changes::walk::{threads, walk_where};
use crate::engine::{Difference, EngineError, FileType, Result};
use crate::progress::Progress;

/// This process's user and groups; None as root, who may do everything.
struct User {
    uid: u32,
    groups: Vec<u32>,
}

impl User {
    fn current() -> Option<Self> {
        let uid = rustix::process::geteuid();
        if uid.is_root() {
            return None;
        }
        let mut groups = vec![rustix::process::getegid().as_raw()];
        groups.extend(
            rustix::process::getgroups()
                .unwrap_or_default()
                .iter()
                .map(|g| g.as_raw()),
        );
        Some(Self {
            uid: uid.as_raw(),
            groups,
        })
    }

    /// Why the inode `now` (None: a new one) cannot become `want`.
    fn denied(&self, now: Option<(&Node, &Own)>, want: (&Node, &Own)) -> Option<String> {
        let (was, (want, own)) = (now.map(|n| n.1), want);
        let now = now.map(|n| n.0);
        let owner = now.map_or((self.uid, None), |n| (n.uid, Some(n.gid)));
        if want.uid != owner.0 {
            return Some(format!("owner {}", want.uid));
        }
        if Some(want.gid) != owner.1 && !self.groups.contains(&want.gid) {
            return Some(format!("group {}", want.gid));
        }
        if owner.0 != self.uid {
            return Some(format!("it belongs to user {}", owner.0));
        }
        if now.is_none() && matches!(want.file_type, FileType::CharDevice | FileType::BlockDevice) {
            return Some("a device".into());
        }
        attributes(was, own)
    }
}

/// What of an inode `statx` does not say.
pub(super) struct Own {
    xattrs: Xattrs,
    flags: IFlags,
}

/// Reads it from the record of a tree.
pub(super) fn recorded(tree: &Walked, i: u32) -> Own {
    let facts = tree.node(i).facts.as_deref();
    Own {
        xattrs: facts.map(|f| f.xattrs.clone()).unwrap_or_default(),
        flags: facts.map_or(IFlags::empty(), |f| f.flags),
    }
}

/// Reads it from a tree on disk. What cannot be read is no reason against it here: reading fails later, with its own
/// words.
pub(super) fn on_disk(dirs: &mut Dirs<'_>, tree: &Walked, i: u32) -> Result<Own> {
    let (dir, name) = dirs.place(i)?;
    let closed = |e: &std::io::Error| e.kind() == std::io::ErrorKind::PermissionDenied;
    let wrong = |e| EngineError::io("look at", tree.path(i))(e);
    let xattrs = match xattrs(dir, name) {
        Err(e) if closed(&e) => Xattrs::new(),
        other => other.map_err(wrong)?,
    };
    let flags = match flags(dir, name, tree.node(i).file_type) {
        Err(e) if closed(&e) => IFlags::empty(),
        other => other.map_err(wrong)?,
    };
    Ok(Own { xattrs, flags })
}

fn attributes(had: Option<&Own>, wants: &Own) -> Option<String> {
    if had.map_or(IFlags::empty(), |f| f.flags & FROZEN) != wants.flags & FROZEN {
        return Some("the immutable or append-only flag".into());
    }
    let needs_root = |k: &&Vec<u8>| k.starts_with(b"trusted.") || k.starts_with(b"security.");
    let before = had.map(|f| &f.xattrs);
    let key = wants
        .xattrs
        .keys()
        .filter(needs_root)
        .find(|k| before.and_then(|x| x.get(*k)) != wants.xattrs.get(*k))?;
    Some(format!("extended attribute {}", crate::text::shown_bytes(key)))
}

const FROZEN: IFlags = IFlags::IMMUTABLE.union(IFlags::APPEND);

/// Most that are told.
const MOST: usize = 100;

/// Collects what is denied.
struct Told(Vec<Difference>);

impl Told {
    fn full(&self) -> bool {
        self.0.len() >= MOST
    }
    fn add(&mut self, tree: &Walked, i: u32, why: Option<String>) {
        if let Some(why) = why
            && !self.full()
        {
            self.0.push(Difference {
                path: tree.path(i),
                what: format!("needs root: {why}"),
            });
        }
    }
}

/// What of the plan this process has no right to do; at most 100. `look` reads an inode of `a` (false) or `b`.
pub(super) fn denied(
    a: &Walked,
    b: &Walked,
    plan: &Plan,
    look: &mut dyn FnMut(bool, u32) -> Result<Own>,
) -> Result<Vec<Difference>> {
    let Some(user) = User::current() else {
        return Ok(Vec::new());
    };
    let mut out = Told(Vec::new());
    let dirs = plan
        .dirs
        .iter()
        .map(|&i| (a.find(b.node(i).key).first().copied(), i));
    let pairs: Vec<_> = plan.files.iter().map(|f| (f.was, f.node)).chain(dirs).collect();
    for (was, i) in pairs {
        if out.full() {
            break;
        }
        let had = was.map(|w| look(false, w)).transpose()?;
        let wants = look(true, i)?;
        let now = was.zip(had.as_ref()).map(|(w, own)| (a.node(w), own));
        out.add(b, i, user.denied(now, (b.node(i), &wants)));
    }
    for away in &plan.away {
        let parent = a.node(a.node(away.node).parent);
        let sticky = parent.mode & 0o1000 != 0 && a.node(away.node).uid != user.uid && parent.uid != user.uid;
        let closed = parent.uid != user.uid && parent.mode & 0o022 == 0;
        let why = (sticky || closed).then(|| format!("its folder belongs to user {}", parent.uid));
        out.add(a, away.node, why);
    }
    Ok(out.0)
}

/// What in the tree below `root` this process cannot make again somewhere else; at most 100. Nothing for root.
pub fn unmakable(root: BorrowedFd<'_>, progress: &dyn Progress) -> Result<Vec<Difference>> {
    let Some(user) = User::current() else {
        return Ok(Vec::new());
    };
    let nodes = walk_where(root, threads(1), progress, &|n: &Node| !n.mount)?;
    let tree = Walked {
        nodes,
        order: Vec::new(),
    };
    let mut dirs = Dirs::new(root, &tree);
    let mut out = Told(Vec::new());
    for (i, node) in (0..).zip(&tree.nodes) {
        if out.full() {
            break;
        }
        let own = on_disk(&mut dirs, &tree, i)?;
        out.add(&tree, i, user.denied(None, (node, &own)));
    }
    Ok(out.0)
}
