//! Change lists and restores on random trees, against naive oracles. `RESPOOL_FUZZ_ROUNDS` and
//! `RESPOOL_FUZZ_SEED` choose how many and which.

use std::collections::BTreeSet;
use std::os::fd::AsFd;

use crate::mutate::{Rng, mutate};
use crate::oracle::{expected, rows, shown};
use crate::scratch::{Manifest, Scratch, Snapshot, assert_same, change_flags, manifest, open_dir};
use respool::engine::changes::{Tree, changes};
use respool::engine::restore::{Trust, differences, restore};
use respool::engine::{PartKind, Selection};
use respool::progress::Silent;

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |v| v.parse().expect("a number"))
}

/// One tree of a round, and how the engine shall see it.
struct Side {
    snapshot: Snapshot,
    manifest: Manifest,
}

/// Change times prove equality in every second round, in the others all is read.
fn tree(side: &Side, later: bool) -> Tree<'_> {
    if later {
        side.snapshot.tree_later()
    } else {
        side.snapshot.tree()
    }
}

fn check_rows(a: &Side, b: &Side, later: bool, note: &str) {
    for times in [false, true] {
        let list = changes(
            &tree(a, later),
            &tree(b, later),
            times,
            PartKind::Workspace,
            &Silent,
        )
        .unwrap();
        let (got, want) = (rows(&list), expected(&a.manifest, &b.manifest, times));
        let show = |x: &BTreeSet<crate::oracle::Row>, y: &BTreeSet<crate::oracle::Row>| -> Vec<String> {
            x.difference(y).map(shown).collect()
        };
        assert_eq!(
            (show(&got, &want), show(&want, &got)),
            (vec![], vec![]),
            "{note}, times {times}: (too many, too few)"
        );
    }
}

fn check_restore(fs: &Scratch, live: &str, safety: &Side, target: &Side, later: bool, note: &str) {
    let root = open_dir(&fs.path(live)).unwrap();
    let (from, to) = (tree(safety, later), tree(target, later));
    restore(root.as_fd(), &from, &to, &Selection::All, &Silent).unwrap_or_else(|e| panic!("{note}: {e}"));
    let now = manifest(&fs.path(live));
    assert_same(&now, &target.manifest, note);
    let is = Tree {
        root: root.as_fd(),
        made: None,
    };
    for trust in [Trust::Lineage, Trust::Nothing] {
        let found = differences(&is, &to, &Selection::All, trust, &Silent).unwrap();
        assert_eq!(found, vec![], "{note}");
    }
    for (path, facts) in &now {
        let want = &target.manifest[path];
        // one of another owner, or with more rights, must not come back into a file that may be open
        let kept = safety.manifest.values().any(|f| {
            (f.id, f.kind, f.owner) == (want.id, want.kind, want.owner) && want.mode & 0o6000 & !f.mode == 0
        });
        assert!(!kept || facts.id == want.id, "{note}: {path:?} got a new inode");
        // without a tick between snapshots, a renamed file may show the change time from before
        let untouched = safety
            .manifest
            .get(path)
            .filter(|s| later && s.id == want.id && s.ctime == want.ctime && s.kind != 'd');
        if let Some(before) = untouched {
            assert_eq!(facts.ctime, before.ctime, "{note}: {path:?} was touched");
        }
    }
}

fn check_selected(fs: &Scratch, rng: &mut Rng, live: &str, target: &Side, later: bool, note: &str) {
    let safety = Side {
        snapshot: fs.snapshot(live, "selected"),
        manifest: manifest(&fs.path(live)),
    };
    let all: Vec<&Vec<u8>> = safety
        .manifest
        .keys()
        .chain(target.manifest.keys())
        .filter(|p| !p.is_empty())
        .collect();
    if !all.is_empty() {
        let picked: Vec<Vec<u8>> = (0..=rng.below(3)).map(|_| rng.pick(&all).clone()).collect();
        selected(fs, live, &safety, target, &picked, later, note);
    }
    drop(safety);
    fs.remove("selected");
}

fn selected(
    fs: &Scratch,
    live: &str,
    safety: &Side,
    target: &Side,
    picked: &[Vec<u8>],
    later: bool,
    note: &str,
) {
    use std::os::unix::ffi::OsStrExt;
    let list: Vec<_> = picked
        .iter()
        .map(|p| std::ffi::OsStr::from_bytes(p).into())
        .collect();
    let note = format!("{note}, selected {list:?}");
    let selection = Selection::Paths(list);
    let root = open_dir(&fs.path(live)).unwrap();
    restore(
        root.as_fd(),
        &tree(safety, later),
        &tree(target, later),
        &selection,
        &Silent,
    )
    .unwrap_or_else(|e| panic!("{note}: {e}"));
    let now = manifest(&fs.path(live));
    let below = |path: &[u8], top: &[u8]| path == top || path.strip_prefix(top).is_some_and(|r| r[0] == b'/');
    let inside = |path: &[u8]| picked.iter().any(|top| below(path, top));
    let above = |path: &[u8]| path.is_empty() || picked.iter().any(|top| below(top, path));
    let strip = |f: &crate::scratch::Facts, time: bool| {
        let mut f = f.clone();
        f.nlink = 0;
        f.group = None;
        if !time {
            f.mtime = (0, 0);
        }
        f
    };
    for path in now
        .keys()
        .chain(safety.manifest.keys())
        .chain(target.manifest.keys())
    {
        let (is, old, want) = (
            now.get(path),
            safety.manifest.get(path),
            target.manifest.get(path),
        );
        if inside(path) {
            // where the way there is no folder in the target, nothing is to be there
            match (is, want) {
                (Some(is), Some(want)) => assert!(
                    strip(is, true).same(&strip(want, true)),
                    "{note}: {path:?} is {is:?}, should be {want:?}"
                ),
                (is, want) => assert_eq!(is.is_some(), want.is_some(), "{note}: {path:?}"),
            }
        } else if !above(path) {
            match (is, old) {
                (Some(is), Some(old)) => assert!(
                    strip(is, true).same(&strip(old, true)) && is.id == old.id,
                    "{note}: {path:?} outside changed: {is:?}, was {old:?}"
                ),
                // something stood where a folder had to be made
                (is, old) => assert_eq!(is.is_some(), old.is_some(), "{note}: {path:?} outside"),
            }
        }
    }
    let is = Tree {
        root: root.as_fd(),
        made: None,
    };
    let found = differences(&is, &tree(target, later), &selection, Trust::Nothing, &Silent).unwrap();
    let real: Vec<_> = found
        .iter()
        .filter(|d| !d.what.starts_with("is a hard link of"))
        .collect();
    assert!(real.is_empty(), "{note}: {real:?}");
}

/// Immutable files would outlive the round.
fn thaw(root: &std::path::Path) {
    use std::os::unix::ffi::OsStrExt;
    for (path, facts) in manifest(root) {
        if facts.flags & 0x30 != 0 {
            change_flags(&root.join(std::ffi::OsStr::from_bytes(&path)), 0, 0x30);
        }
    }
}

fn round(fs: &Scratch, seed: u64) {
    let mut rng = Rng::new(seed);
    let later = seed % 2 == 1;
    let live = fs.subvolume("live");
    let pause = || {
        if later {
            fs.next_tick();
        }
    };
    let take = |of: &str, name: &str| {
        pause(); // not in the tick of the last change: the clock of change times is coarse
        let side = Side {
            snapshot: fs.snapshot(of, name),
            manifest: manifest(&fs.path(name)),
        };
        pause();
        side
    };
    mutate(&mut rng, &live, 120);
    let a = take("live", "a");
    let n = rng.pick(&[3, 10, 40, 120]);
    mutate(&mut rng, &live, n);
    let b = take("live", "b");
    let branch = fs.branch("a", "branch");
    let n = rng.pick(&[3, 20, 60]);
    mutate(&mut rng, &branch, n);
    let d = take("branch", "d");
    for (x, y, name) in [
        (&a, &b, "a-b"),
        (&b, &a, "b-a"),
        (&b, &d, "b-d"),
        (&d, &a, "d-a"),
        (&a, &a, "a-a"),
    ] {
        check_rows(x, y, later, &format!("seed {seed} {name}"));
    }
    check_restore(fs, "live", &b, &a, later, &format!("seed {seed} live to a"));
    check_restore(fs, "branch", &d, &b, later, &format!("seed {seed} branch to b"));
    for n in 0..2 {
        check_selected(
            fs,
            &mut rng,
            "branch",
            &a,
            later,
            &format!("seed {seed} selection {n}"),
        );
    }
    for path in [&live, &branch] {
        thaw(path);
    }
    drop((a, b, d));
    for name in ["live", "branch", "a", "b", "d"] {
        fs.remove(name);
    }
}

#[test]
fn random_trees_are_listed_and_restored_exactly() {
    let fs = Scratch::new();
    let seed = number("RESPOOL_FUZZ_SEED", 1);
    for n in 0..number("RESPOOL_FUZZ_ROUNDS", 40) {
        round(&fs, seed + n);
    }
}
