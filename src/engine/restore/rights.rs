//! What a process without root cannot bring back.

use rustix::fs::IFlags;

use super::plan::Plan;
use crate::engine::changes::node::{Node, Walked};
use crate::engine::{Difference, FileType};

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
    fn denied(&self, now: Option<&Node>, want: &Node) -> Option<String> {
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
        attributes(now, want)
    }
}

fn attributes(now: Option<&Node>, want: &Node) -> Option<String> {
    let (had, wants) = (now.and_then(|n| n.facts.as_deref()), want.facts.as_deref()?);
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

/// What of the plan this process has no right to do; at most 100.
pub(super) fn denied(a: &Walked, b: &Walked, plan: &Plan) -> Vec<Difference> {
    let Some(user) = User::current() else {
        return Vec::new();
    };
    let mut out = Vec::new();
    let mut add = |tree: &Walked, i: u32, why: Option<String>| {
        if let Some(why) = why
            && out.len() < 100
        {
            out.push(Difference {
                path: tree.path(i),
                what: format!("needs root: {why}"),
            });
        }
    };
    for file in &plan.files {
        let was = file.was.map(|i| a.node(i));
        add(b, file.node, user.denied(was, b.node(file.node)));
    }
    for &i in &plan.dirs {
        let was = a.find(b.node(i).key).first().map(|&i| a.node(i));
        add(b, i, user.denied(was, b.node(i)));
    }
    for away in &plan.away {
        let parent = a.node(a.node(away.node).parent);
        let sticky = parent.mode & 0o1000 != 0 && a.node(away.node).uid != user.uid && parent.uid != user.uid;
        let closed = parent.uid != user.uid && parent.mode & 0o022 == 0;
        let why = (sticky || closed).then(|| format!("its folder belongs to user {}", parent.uid));
        add(a, away.node, why);
    }
    out
}
