//! Copies that leave something out, on random trees: what is left out is never changed or removed, all else
//! comes back. `RESPOOL_FUZZ_ROUNDS` and `RESPOOL_FUZZ_SEED` choose how many and which.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use respool::engine::vault::Vault;
use respool::engine::{CheckpointId, Selection, State};
use respool::failure::{Explain, Kind};
use respool::patterns::Patterns;
use respool::progress::Silent;

use crate::ground::{Copies, Disk, manual};

/// A small generator (xorshift): the same seed gives the same trees.
struct Rng(u64);

impl Rng {
    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as usize % n
    }
    /// A path of up to three names; `x` (a folder) and `*.o` are left out.
    fn path(&mut self) -> PathBuf {
        const NAMES: [&str; 6] = ["a", "b", "c", "x", "p.o", "q.o"];
        let depth = 1 + self.below(3);
        (0..depth).map(|_| NAMES[self.below(NAMES.len())]).collect()
    }
}

fn patterns() -> Patterns {
    Patterns::new([("x/", false), ("*.o", false), ("/c/q.o", true)])
}

/// Written down again, by hand.
fn out(path: &Path, folder: bool) -> bool {
    let name = path.file_name().expect("a name");
    (name == "x" && folder) || (path.extension().is_some_and(|e| e == "o") && path != Path::new("c/q.o"))
}

/// What is below the root: path, inode, and content or None for folders; what is left out, and what is not.
#[derive(Debug, PartialEq, Default)]
struct Seen {
    covered: BTreeMap<PathBuf, Option<Vec<u8>>>,
    left_out: BTreeMap<PathBuf, (u64, Option<Vec<u8>>)>,
}

impl Seen {
    fn of(root: &Path) -> Self {
        let mut seen = Self::default();
        let mut todo = vec![(PathBuf::new(), false)];
        while let Some((folder, inside)) = todo.pop() {
            for entry in fs::read_dir(root.join(&folder)).expect("list") {
                let path = folder.join(entry.expect("entry").file_name());
                let meta = root.join(&path).symlink_metadata().expect("there");
                let content = meta.is_file().then(|| fs::read(root.join(&path)).expect("read"));
                let inside = inside || out(&path, meta.is_dir());
                if meta.is_dir() {
                    todo.push((path.clone(), inside));
                }
                if inside {
                    seen.left_out.insert(path, (meta.ino(), content));
                } else {
                    seen.covered.insert(path, content);
                }
            }
        }
        seen
    }

    /// What is left out, wherever it is.
    fn kept(&self) -> BTreeSet<(u64, Option<Vec<u8>>)> {
        self.left_out.values().cloned().collect()
    }

    /// The covered ones without the folders that are there for what is left out in them alone.
    fn without_shells(&self, wanted: &Self) -> BTreeMap<PathBuf, Option<Vec<u8>>> {
        let shell = |path: &Path| {
            !wanted.covered.contains_key(path) && self.left_out.keys().any(|p| p.starts_with(path))
        };
        let all = self.covered.iter().filter(|(p, c)| c.is_some() || !shell(p));
        all.map(|(p, c)| (p.clone(), c.clone())).collect()
    }
}

/// Something that a program could do; what is not possible is left.
fn step(root: &Path, rng: &mut Rng) {
    let (path, other) = (root.join(rng.path()), root.join(rng.path()));
    let _whatever = match rng.below(10) {
        0..3 => fs::create_dir_all(path.parent().expect("parent"))
            .and_then(|()| fs::write(&path, format!("{}", rng.below(1000)))),
        3 => fs::create_dir_all(&path),
        4 | 5 => fs::rename(&path, &other),
        6 => fs::remove_file(&path),
        7 | 8 => fs::hard_link(&path, &other),
        _ => fs::remove_dir_all(&path),
    };
}

fn safety(g: &Copies, vault: &dyn Vault, target: &CheckpointId) -> CheckpointId {
    let mut new = manual();
    new.like = Some(target.clone());
    let taken = vault
        .checkpoint(&new)
        .unwrap_or_else(|e| panic!("{}: {e}", g.root().display()));
    taken.meta.id
}

#[test]
fn random_trees_lose_nothing() {
    let number =
        |name: &str, default: u64| std::env::var(name).map_or(default, |v| v.parse().expect("a number"));
    let seed = number("RESPOOL_FUZZ_SEED", 1);
    let (mut done, mut refused, mut shells) = (0, 0, 0);
    for round in 0..number("RESPOOL_FUZZ_ROUNDS", 40) {
        let g = Copies::new();
        let vault = g.leaving_out(patterns());
        let mut rng = Rng((seed * 1_000_003 + round).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        for _ in 0..25 {
            step(g.root(), &mut rng);
        }
        // now and then it stands in the way of a file
        let way = (round % 8 == 0).then(|| g.root().join("b"));
        if let Some(b) = &way {
            let _not_there = fs::remove_dir_all(b).or_else(|_| fs::remove_file(b));
            fs::write(b, "a file").expect("write");
        }
        let target = vault.checkpoint(&manual()).expect("checkpoint").meta.id;
        let then = Seen::of(g.root());
        for _ in 0..rng.below(25) {
            step(g.root(), &mut rng);
        }
        if let Some(b) = &way {
            let _not_there = fs::remove_dir_all(b).or_else(|_| fs::remove_file(b));
            fs::create_dir_all(b.join("x")).expect("folders");
        }
        let before = Seen::of(g.root());
        let denied = vault.denied(&target, &Selection::All, &Silent).expect("denied");
        let first = safety(&g, &vault, &target);
        let restored = vault.restore(
            &State::Checkpoint(first.clone()),
            &target,
            &Selection::All,
            &Silent,
        );
        let after = Seen::of(g.root());
        if !denied.is_empty() {
            let e = restored.expect_err("refused");
            assert_eq!(e.kind(), Kind::Refused, "round {round}: {e}");
            assert_eq!(after, before, "round {round}");
            refused += 1;
            continue;
        }
        restored.unwrap_or_else(|e| panic!("round {round}: {e}"));
        let differs = vault.verify(&target, &Selection::All, &Silent).expect("verify");
        assert!(
            differs.is_empty(),
            "round {round}: {differs:?}\nthen {then:?}\nbefore {before:?}\nafter {after:?}"
        );
        assert_eq!(after.kept(), before.kept(), "round {round}");
        let covered = after.without_shells(&then);
        assert_eq!(covered, then.covered, "round {round}");
        shells += usize::from(covered.len() < after.covered.len());
        let second = safety(&g, &vault, &first);
        vault
            .restore(&State::Checkpoint(second), &first, &Selection::All, &Silent)
            .unwrap_or_else(|e| panic!("undo of round {round}: {e}"));
        let differs = vault.verify(&first, &Selection::All, &Silent).expect("verify");
        assert!(differs.is_empty(), "undo of round {round}: {differs:?}");
        assert_eq!(Seen::of(g.root()), before, "undo of round {round}");
        done += 1;
    }
    assert!(
        done > refused && refused > 0 && shells > 0,
        "{done} {refused} {shells}"
    );
}
