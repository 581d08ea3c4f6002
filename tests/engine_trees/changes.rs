//! The rows of change lists.

use std::collections::BTreeSet;
use std::fs;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use respool::engine::changes::{Tree, changes};
use respool::engine::{Change, ChangeKind, FileType, PartKind, What};
use respool::progress::Silent;

use crate::mutate::{Rng, set_mtime};
use crate::nasty::{Row, at, chmod, damage, nasty, put, xattr};
use crate::scratch::{Scratch, Snapshot, change_flags};

fn list(a: &Snapshot, b: &Snapshot, times: bool) -> Vec<Change> {
    changes(&a.tree(), &b.tree(), times, PartKind::Workspace, &Silent).unwrap()
}

fn rows(list: &[Change]) -> BTreeSet<Row> {
    let bytes = |p: &Path| p.as_os_str().as_bytes().to_vec();
    let all: BTreeSet<Row> = list
        .iter()
        .map(|c| (c.kind, bytes(&c.path), c.from.as_deref().map(bytes)))
        .collect();
    assert_eq!(all.len(), list.len(), "a row is listed twice");
    all
}

#[test]
fn a_damaged_tree_has_exactly_these_rows() {
    let fs = Scratch::new();
    let live = fs.subvolume("live");
    nasty(&live, &mut Rng::new(7));
    let a = fs.snapshot("live", "a");
    let want = damage(&live);
    let b = fs.snapshot("live", "b");
    let found = list(&a, &b, false);
    let got = rows(&found);
    let few: Vec<_> = want.difference(&got).collect();
    let many: Vec<_> = got.difference(&want).collect();
    assert!(
        few.is_empty() && many.is_empty(),
        "too few {few:?}, too many {many:?}"
    );
    let sorted: Vec<_> = found.iter().map(|c| c.path.as_os_str().as_bytes()).collect();
    assert!(sorted.is_sorted());
    let timed: Vec<_> = list(&a, &b, true)
        .into_iter()
        .filter(|c| c.kind == ChangeKind::Meta && c.what == [What::Time])
        .map(|c| c.path)
        .collect();
    assert_eq!(timed, [Path::new("src3/f0.txt")]);
    let fifo = found.iter().find(|c| c.path == Path::new("fifo")).unwrap();
    assert_eq!(
        (fifo.type_a, fifo.type_b),
        (Some(FileType::Fifo), Some(FileType::File))
    );
    assert_eq!((fifo.size_a, fifo.size_b), (None, Some(8)));
}

/// P061: attributes alone are listed, each by its name; times only when asked for.
#[test]
fn each_attribute_is_listed_by_its_name() {
    let fs = Scratch::new();
    let live = fs.subvolume("live");
    for name in ["mode", "owner", "xattr", "acl", "flags", "time", "cap", "same"] {
        put(&live.join(name), name, 0o644);
    }
    let a = fs.snapshot("live", "a");
    fs.next_tick();
    chmod(&live.join("mode"), 0o755);
    std::os::unix::fs::chown(live.join("owner"), Some(1000), None).unwrap();
    xattr(&live.join("xattr"), "user.k", b"v");
    xattr(
        &live.join("cap"),
        "security.capability",
        &[1, 0, 0, 2, 0, 32, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
    );
    assert!(change_flags(&live.join("flags"), 0x50, 0));
    set_mtime(&live.join("time"), (5, 7)).unwrap();
    fs::write(live.join("same"), "same").unwrap(); // the same bytes again
    chmod(&live, 0o700);
    let b = fs.snapshot("live", "b");
    let what = |times| -> Vec<(String, Vec<What>)> {
        let all = list(&a, &b, times);
        assert!(all.iter().all(|c| c.kind == ChangeKind::Meta && c.from.is_none()));
        all.into_iter()
            .map(|c| (c.path.to_str().unwrap().to_owned(), c.what))
            .collect()
    };
    let want = |names: &[(&str, What)]| -> Vec<(String, Vec<What>)> {
        names.iter().map(|(n, w)| ((*n).to_owned(), vec![*w])).collect()
    };
    let always = [
        (".", What::Mode),
        ("cap", What::Xattr),
        ("flags", What::Flags),
        ("mode", What::Mode),
        ("owner", What::Owner),
    ];
    let mut plain = want(&always);
    plain.extend(want(&[("xattr", What::Xattr)]));
    assert_eq!(what(false), plain);
    let mut timed = want(&always);
    timed.extend(want(&[
        ("same", What::Time),
        ("time", What::Time),
        ("xattr", What::Xattr),
    ]));
    assert_eq!(what(true), timed);
    change_flags(&live.join("flags"), 0, 0x10);
}

/// P089, and the corners of it.
#[test]
fn renames_are_one_row() {
    let fs = Scratch::new();
    let live = fs.subvolume("live");
    for n in 0..20 {
        put(&live.join(format!("d/f{n}")), format!("{n}"), 0o644);
    }
    for name in ["a", "b", "edited", "over", "under", "link"] {
        put(&live.join(name), name, 0o644);
    }
    fs::hard_link(live.join("link"), live.join("link2")).unwrap();
    let a = fs.snapshot("live", "a");
    fs::rename(live.join("d"), live.join("e")).unwrap();
    put(&live.join("e/f3"), "inside", 0o644);
    fs::rename(live.join("a"), live.join("t")).unwrap();
    fs::rename(live.join("b"), live.join("a")).unwrap();
    fs::rename(live.join("t"), live.join("b")).unwrap();
    fs::rename(live.join("edited"), live.join("edited2")).unwrap();
    put(&live.join("edited2"), "other", 0o600);
    fs::rename(live.join("over"), live.join("under")).unwrap();
    fs::hard_link(live.join("link"), live.join("link3")).unwrap();
    fs::write(live.join("link"), "all three").unwrap();
    let b = fs.snapshot("live", "b");
    let got: Vec<_> = list(&a, &b, false)
        .into_iter()
        .map(|c| {
            let from = c.from.map(|p| p.to_str().unwrap().to_owned());
            (c.kind, c.path.to_str().unwrap().to_owned(), from, c.what)
        })
        .collect();
    let row = |kind, path: &str, from: Option<&str>, what: &[What]| {
        (kind, path.to_owned(), from.map(str::to_owned), what.to_vec())
    };
    use ChangeKind::{Added, Deleted, Modified, Renamed};
    assert_eq!(
        got,
        [
            row(Renamed, "a", Some("b"), &[]),
            row(Renamed, "b", Some("a"), &[]),
            row(Renamed, "e", Some("d"), &[]),
            row(Modified, "e/f3", Some("d/f3"), &[What::Content]),
            row(Renamed, "edited2", Some("edited"), &[What::Content, What::Mode]),
            row(Modified, "link", None, &[What::Content]),
            row(Modified, "link2", None, &[What::Content]),
            row(Added, "link3", None, &[]),
            row(Deleted, "under", None, &[]),
            row(Renamed, "under", Some("over"), &[]),
        ]
    );
}

/// P093 with the proof by change time at work: the same size and time, other bytes.
#[test]
fn same_size_and_time_with_other_bytes_is_found() {
    let fs = Scratch::new();
    let live = fs.subvolume("live");
    put(&live.join("f"), "old bytes", 0o644);
    set_mtime(&live.join("f"), (100, 1)).unwrap();
    let a = fs.snapshot("live", "a");
    let change = |bytes: &str| {
        fs::write(live.join("f"), bytes).unwrap();
        set_mtime(&live.join("f"), (100, 1)).unwrap();
    };
    let found = |x: Tree<'_>, y: Tree<'_>| -> Vec<_> {
        let all = changes(&x, &y, true, PartKind::Workspace, &Silent).unwrap();
        all.into_iter().map(|c| (c.kind, c.what)).collect()
    };
    let want = [(ChangeKind::Modified, vec![What::Content])];
    // at once, maybe in the same tick of the clock
    change("new bytes");
    let b = fs.snapshot("live", "b");
    assert_eq!(found(a.tree(), b.tree()), want);
    // later, when the change time is proof
    fs.next_tick();
    change("newer byt");
    let c = fs.snapshot("live", "c");
    assert_eq!(found(b.tree_later(), c.tree_later()), want);
    assert_eq!(found(c.tree_later(), c.tree_later()), []);
}

/// Numbers are used again on branches: the birth time tells the files apart.
#[test]
fn a_number_used_again_is_no_rename() {
    let fs = Scratch::new();
    let live = fs.subvolume("live");
    put(&live.join("base"), "x", 0o644);
    let base = fs.snapshot("live", "base");
    let branch = fs.branch("base", "branch");
    put(&live.join("one"), "of this branch", 0o644);
    fs.next_tick();
    put(&branch.join("two"), "of the other", 0o644);
    let number = |p: &Path| std::os::unix::fs::MetadataExt::ino(&fs::metadata(p).unwrap());
    assert_eq!(
        number(&live.join("one")),
        number(&branch.join("two")),
        "the test needs one number twice"
    );
    let (a, b) = (fs.snapshot("live", "a"), fs.snapshot("branch", "b"));
    let got: Vec<_> = list(&a, &b, false)
        .into_iter()
        .map(|c| (c.kind, c.path))
        .collect();
    assert_eq!(
        got,
        [
            (ChangeKind::Deleted, "one".into()),
            (ChangeKind::Added, "two".into())
        ]
    );
    drop(base);
}

/// P049: a nested subvolume is an empty directory with inode 2 in a snapshot: no row for what is in it.
#[test]
fn nested_subvolumes_have_no_content() {
    let fs = Scratch::new();
    let live = fs.subvolume("live");
    put(&live.join("f"), "x", 0o644);
    fs.subvolume("live2");
    let a = fs.snapshot("live", "a");
    let parent = crate::scratch::open_dir(&live).unwrap();
    respool::engine::ioctl::subvol_create(&parent, b"cache").unwrap();
    put(&live.join("cache/i.txt"), "inner", 0o644);
    let b = fs.snapshot("live", "b");
    put(&live.join("cache/i.txt"), "inner 2", 0o644);
    let c = fs.snapshot("live", "c");
    let kinds = |x: &Snapshot, y: &Snapshot| -> Vec<_> {
        list(x, y, true).into_iter().map(|c| (c.kind, c.path)).collect()
    };
    assert_eq!(kinds(&a, &b), [(ChangeKind::Added, "cache".into())]);
    assert_eq!(kinds(&b, &c), []);
    assert_eq!(kinds(&c, &a), [(ChangeKind::Deleted, "cache".into())]);
}

/// P085: longer than any path may be, and deeper than any stack; a name of 255 bytes.
#[test]
fn paths_of_any_depth_and_length() {
    let fs = Scratch::new();
    let live = fs.subvolume("live");
    let mut dir = crate::scratch::open_dir(&live).unwrap();
    let name = "n".repeat(255);
    for _ in 0..1000 {
        rustix::fs::mkdirat(&dir, &name, 0o755.into()).unwrap();
        let flags = rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::DIRECTORY;
        dir = rustix::fs::openat(&dir, &name, flags, rustix::fs::Mode::empty()).unwrap();
    }
    let a = fs.snapshot("live", "a");
    let made = rustix::fs::OFlags::CREATE | rustix::fs::OFlags::WRONLY;
    rustix::fs::openat(&dir, "leaf", made, 0o644.into()).unwrap();
    let b = fs.snapshot("live", "b");
    let found = list(&a, &b, true);
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].kind, ChangeKind::Added);
    assert_eq!(found[0].path.as_os_str().len(), 256 * 1000 + 4);
    let root = crate::scratch::open_dir(&live).unwrap();
    let all = respool::engine::Selection::All;
    respool::engine::restore::restore(root.as_fd(), &b.tree(), &a.tree(), &all, &Silent).unwrap();
    let is = Tree {
        root: root.as_fd(),
        made: None,
    };
    let trust = respool::engine::restore::Trust::Nothing;
    let left = respool::engine::restore::differences(&is, &a.tree(), &all, trust, &Silent).unwrap();
    assert_eq!(left, []);
    assert!(
        rustix::fs::statat(&dir, "leaf", rustix::fs::AtFlags::empty()).is_err(),
        "same folder, leaf gone"
    );
    drop(at(&live, b""));
}

/// Nothing but folders and regular files is opened: a pipe would wait for ever, a device would act.
#[test]
fn pipes_and_devices_are_never_opened() {
    let fs = Scratch::new();
    let live = fs.subvolume("live");
    nasty(&live, &mut Rng::new(3));
    let a = fs.snapshot("live", "a");
    for name in ["fifo", "sock", "chr"] {
        chmod(&live.join(name), 0o600);
    }
    let b = fs.snapshot("live", "b");
    let found: Vec<_> = list(&a, &b, false)
        .into_iter()
        .map(|c| (c.path, c.kind, c.what))
        .collect();
    let want = |n: &str| (n.into(), ChangeKind::Meta, vec![What::Mode]);
    assert_eq!(found, [want("chr"), want("fifo"), want("sock")]);
}

#[test]
fn cancelling_stops_it() {
    struct Now;
    impl respool::progress::Progress for Now {
        fn step(&self, _what: &'static str, _done: u64, _total: u64) {}
        fn cancelled(&self) -> bool {
            true
        }
    }
    let fs = Scratch::new();
    fs.subvolume("live");
    let a = fs.snapshot("live", "a");
    let stopped = changes(&a.tree(), &a.tree(), false, PartKind::Workspace, &Now);
    assert!(matches!(stopped, Err(respool::engine::EngineError::Cancelled)));
}
