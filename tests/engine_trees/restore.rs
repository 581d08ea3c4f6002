//! Restores in place, and the check of them.

use std::fs::{self, File};
use std::io::Write;
use std::os::fd::AsFd;
use std::os::unix::fs::{MetadataExt, chown, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use respool::engine::changes::Tree;
use respool::engine::restore::{Trust, differences, restore};
use respool::engine::{Difference, EngineError, Restored, Selection};
use respool::progress::Silent;
use rustix::fs::{CWD, FileType, RenameFlags};

use crate::mutate::{Rng, set_mtime};
use crate::nasty::{NAMES, at, chmod, damage, nasty, put, special, xattr};
use crate::scratch::{
    Scratch, Snapshot, assert_same, change_flags, flags, manifest, open_dir, tool, unequal,
};

/// Takes a safety snapshot of `live` and restores.
pub fn go_back(
    fs: &Scratch,
    live: &str,
    target: &Snapshot,
    selection: &Selection,
) -> Result<Restored, EngineError> {
    let name = format!("safety-{}", respool::engine::random_id("x"));
    let safety = fs.snapshot(live, &name);
    let root = open_dir(&fs.path(live)).unwrap();
    restore(root.as_fd(), &safety.tree(), &target.tree(), selection, &Silent)
}

/// What the check finds in the live tree, by both ways.
pub fn check(live: &Path, target: &Snapshot, selection: &Selection) -> Vec<Difference> {
    let root = open_dir(live).unwrap();
    let is = Tree {
        root: root.as_fd(),
        made: None,
    };
    let find = |trust| differences(&is, &target.tree(), selection, trust, &Silent).unwrap();
    let found = find(Trust::Nothing);
    assert_eq!(find(Trust::Lineage), found, "trust changed the answer");
    found
}

pub fn paths(list: &[&str]) -> Selection {
    Selection::Paths(list.iter().map(PathBuf::from).collect())
}

#[test]
fn there_and_back_and_there_again() {
    let fs = Scratch::new();
    let live = fs.subvolume("live");
    nasty(&live, &mut Rng::new(11));
    let before = manifest(&live);
    let a = fs.snapshot("live", "a");
    damage(&live);
    let damaged = manifest(&live);
    let b = fs.snapshot("live", "b");
    let mut held = File::options()
        .append(true)
        .open(live.join("src0/f1.txt"))
        .unwrap();
    let mut shell = Command::new("cat")
        .current_dir(live.join("src1"))
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    for (target, want, note) in [
        (&a, &before, "rewind"),
        (&b, &damaged, "undo"),
        (&a, &before, "redo"),
    ] {
        assert!(!check(&live, target, &Selection::All).is_empty());
        assert!(go_back(&fs, "live", target, &Selection::All).unwrap().changed > 40);
        assert_same(&manifest(&live), want, note);
        assert_eq!(check(&live, target, &Selection::All), [], "{note}");
        assert_eq!(
            go_back(&fs, "live", target, &Selection::All).unwrap().changed,
            0,
            "{note}"
        );
    }
    held.write_all(b"through the old descriptor").unwrap();
    assert!(
        fs::read(live.join("src0/f1.txt"))
            .unwrap()
            .ends_with(b"old descriptor")
    );
    let cwd = fs::metadata(format!("/proc/{}/cwd", shell.id())).unwrap();
    assert_eq!(cwd.ino(), fs::metadata(live.join("src1")).unwrap().ino());
    drop(shell.stdin.take());
    shell.wait().unwrap();
}

/// A thing that one change does to the tree.
type Change = (&'static str, fn(&Path), &'static str, &'static str);

const CHANGES: [Change; 18] = [
    (
        "type",
        |p| {
            fs::remove_file(p.join("f")).unwrap();
            fs::create_dir(p.join("f")).unwrap();
        },
        "f",
        "is a folder",
    ),
    (
        "mode",
        |p| chmod(&p.join("f"), 0o4711),
        "f",
        "mode 4711, should be 644",
    ),
    (
        "sticky",
        |p| chmod(&p.join("d"), 0o1755),
        "d",
        "mode 1755, should be 755",
    ),
    (
        "uid",
        |p| chown(p.join("f"), Some(7), None).unwrap(),
        "f",
        "owner 7:0, should be 0:0",
    ),
    (
        "gid",
        |p| std::os::unix::fs::lchown(p.join("l"), None, Some(4242)).unwrap(),
        "l",
        "owner 0:4242",
    ),
    (
        "size",
        |p| put(&p.join("f"), "longer than before", 0o644),
        "f",
        "size 18, should be 4",
    ),
    (
        "mtime",
        |p| set_mtime(&p.join("f"), (1, 1)).unwrap(),
        "f",
        "modification time 1.000000001",
    ),
    (
        "folder mtime",
        |p| set_mtime(&p.join("d"), (1, 1)).unwrap(),
        "d",
        "modification time 1.000000001",
    ),
    (
        "rdev",
        |p| {
            fs::remove_file(p.join("c")).unwrap();
            device(p, 5);
        },
        "c",
        "device 1:5, should be 1:3",
    ),
    (
        "target",
        |p| {
            fs::remove_file(p.join("l")).unwrap();
            symlink("b", p.join("l")).unwrap();
            same_time(p, "l");
        },
        "l",
        "link to b, should be to a",
    ),
    (
        "xattr",
        |p| xattr(&p.join("f"), "user.k", b"2"),
        "f",
        "extended attribute user.k differs",
    ),
    (
        "acl",
        |p| acl(&p.join("d")),
        "d",
        "extended attribute system.posix_acl_default differs",
    ),
    (
        "trusted",
        |p| xattr(&p.join("l"), "trusted.t", b"2"),
        "l",
        "extended attribute trusted.t differs",
    ),
    (
        "flags",
        |p| assert!(change_flags(&p.join("f"), 0x40, 0)),
        "f",
        "flags d, should be -",
    ),
    (
        "content",
        |p| {
            put(&p.join("f"), "same".replace('a', "o"), 0o644);
            same_time(p, "f");
        },
        "f",
        "content differs",
    ),
    (
        "links",
        |p| {
            fs::remove_file(p.join("h2")).unwrap();
            put(&p.join("h2"), "hard", 0o644);
            same_time(p, "h2");
        },
        "h2",
        "hard link",
    ),
    (
        "missing",
        |p| fs::remove_file(p.join("h2")).unwrap(),
        "h2",
        "is missing",
    ),
    (
        "extra",
        |p| put(&p.join("d/x"), "x", 0o644),
        "d/x",
        "should not be there",
    ),
];

fn device(p: &Path, minor: u32) {
    special(
        &p.join("c"),
        FileType::CharacterDevice,
        0o600,
        rustix::fs::makedev(1, minor),
    );
    same_time(p, "c");
}

fn same_time(p: &Path, name: &str) {
    set_mtime(&p.join(name), (1_000_000, 5)).unwrap();
}

/// A default ACL: user 4242 may read.
fn acl(path: &Path) {
    let entry = |tag: u16, perm: u16, id: u32| {
        [&tag.to_le_bytes()[..], &perm.to_le_bytes(), &id.to_le_bytes()].concat()
    };
    let all = u32::MAX;
    let entries = [
        entry(1, 7, all),
        entry(2, 4, 4242),
        entry(4, 5, all),
        entry(16, 5, all),
        entry(32, 5, all),
    ];
    let value = [&2u32.to_le_bytes()[..], &entries.concat()].concat();
    xattr(path, "system.posix_acl_default", &value);
}

fn small_tree(live: &Path) {
    put(&live.join("f"), "same", 0o644);
    put(&live.join("d/inner"), "inner", 0o644);
    put(&live.join("h1"), "hard", 0o644);
    fs::hard_link(live.join("h1"), live.join("h2")).unwrap();
    symlink("a", live.join("l")).unwrap();
    xattr(&live.join("l"), "trusted.t", b"1");
    device(live, 3);
    for name in ["f", "h1", "l", "d"] {
        same_time(live, name);
    }
}

/// Each attribute alone: the check names it, the restore brings it back, the check is content.
#[test]
fn every_single_difference_is_found_and_restored() {
    let fs = Scratch::new();
    let live = fs.subvolume("live");
    small_tree(&live);
    let want = manifest(&live);
    let a = fs.snapshot("live", "a");
    for (name, change, path, words) in CHANGES {
        change(&live);
        let root_time = fs::metadata(&a.path).unwrap();
        set_mtime(&live, (root_time.mtime(), root_time.mtime_nsec())).unwrap();
        let found = check(&live, &a, &Selection::All);
        let hit = found.iter().find(|d| d.path == Path::new(path));
        assert!(hit.is_some_and(|d| d.what.contains(words)), "{name}: {found:?}");
        let others = ["missing", "links", "extra"].contains(&name);
        assert!(others || found.len() == 1, "{name}: {found:?}");
        assert!(
            go_back(&fs, "live", &a, &Selection::All).unwrap().changed > 0,
            "{name}"
        );
        assert_same(&manifest(&live), &want, name);
        assert_eq!(check(&live, &a, &Selection::All), [], "{name}");
    }
}

/// P059: what did not change keeps its modification time and its change time to the nanosecond.
#[test]
fn unchanged_files_are_not_touched() {
    let fs = Scratch::new();
    let live = fs.subvolume("live");
    for n in 0..1000 {
        let path = live.join(format!("d{}/f{n}", n % 10));
        put(&path, "old", 0o644);
        set_mtime(&path, (978_307_200, 123_456_789)).unwrap();
    }
    let a = fs.snapshot("live", "a");
    for selection in [Selection::All, paths(&["d3/f3"])] {
        fs.next_tick();
        put(&live.join("d3/f3"), "new", 0o644);
        let before = manifest(&live);
        assert!(go_back(&fs, "live", &a, &selection).unwrap().changed < 3);
        let after = manifest(&live);
        let touched: Vec<_> = before
            .keys()
            .filter(|p| before[*p].ctime != after[*p].ctime)
            .collect();
        assert_eq!(touched, [b"d3/f3"]);
        assert_eq!(after[&b"d3/f3"[..]].mtime, (978_307_200, 123_456_789));
        assert_eq!(fs::read(live.join("d3/f3")).unwrap(), b"old");
    }
}

/// P060: frozen files and folders do not stop a restore, and are frozen again.
#[test]
fn immutable_and_append_only_flags_go_both_ways() {
    let fs = Scratch::new();
    let live = fs.subvolume("live");
    put(&live.join("frozen/f"), "kept", 0o644);
    put(&live.join("log"), "line 1\n", 0o644);
    put(&live.join("later"), "x", 0o644);
    put(&live.join("gone/deep/f"), "x", 0o644);
    acl(&live.join("gone"));
    let freeze = |name: &str, flag| assert!(change_flags(&live.join(name), flag, 0), "{name}");
    for (name, flag) in [("frozen/f", 0x10), ("frozen", 0x10), ("log", 0x20)] {
        freeze(name, flag);
    }
    let a = fs.snapshot("live", "a");
    let want = manifest(&live);
    for name in ["frozen", "frozen/f", "log"] {
        change_flags(&live.join(name), 0, 0x30);
    }
    put(&live.join("frozen/f"), "damaged", 0o644);
    put(&live.join("frozen/g"), "new", 0o644);
    put(&live.join("log"), "no", 0o644);
    put(&live.join("later"), "changed", 0o644);
    fs::rename(live.join("gone/deep"), live.join("moved")).unwrap();
    for (name, flag) in [
        ("frozen", 0x10),
        ("frozen/g", 0x10),
        ("later", 0x20),
        ("moved", 0x10),
        ("", 0x10),
    ] {
        freeze(name, flag);
    }
    go_back(&fs, "live", &a, &Selection::All).unwrap();
    assert_same(&manifest(&live), &want, "frozen");
    assert_eq!(
        (flags(&live.join("frozen")), flags(&live.join("log"))),
        (0x10, 0x20)
    );
    assert_eq!(check(&live, &a, &Selection::All), []);
    for name in ["frozen/f", "frozen", "log"] {
        change_flags(&live.join(name), 0, 0x30);
    }
}

/// Files without copy-on-write cannot share extents with others: they are copied.
#[test]
fn files_without_copy_on_write() {
    let fs = Scratch::new();
    let live = fs.subvolume("live");
    for name in ["was", "gets", "stays"] {
        put(&live.join(name), "", 0o644);
    }
    assert!(change_flags(&live.join("was"), 0x80_0000, 0));
    assert!(change_flags(&live.join("stays"), 0x80_0000, 0));
    for name in ["was", "gets", "stays"] {
        fs::write(live.join(name), Rng::new(1).bytes(70_001)).unwrap();
    }
    let want = manifest(&live);
    let a = fs.snapshot("live", "a");
    fs::remove_file(live.join("was")).unwrap();
    put(&live.join("was"), "cow now", 0o644);
    fs::remove_file(live.join("gets")).unwrap();
    put(&live.join("gets"), "", 0o644);
    assert!(change_flags(&live.join("gets"), 0x80_0000, 0));
    fs::write(live.join("gets"), "nocow").unwrap();
    fs::write(live.join("stays"), "short").unwrap();
    go_back(&fs, "live", &a, &Selection::All).unwrap();
    assert_same(&manifest(&live), &want, "no copy-on-write");
}

/// A program that runs cannot be written to; its name gets a new inode, the running one lives on.
#[test]
fn a_running_program_is_replaced() {
    let fs = Scratch::new();
    let live = fs.subvolume("live");
    put(&live.join("prog"), fs::read("/bin/sleep").unwrap(), 0o755);
    fs::hard_link(live.join("prog"), live.join("other-name")).unwrap();
    let want = manifest(&live);
    let a = fs.snapshot("live", "a");
    let mut patched = File::options().append(true).open(live.join("prog")).unwrap();
    patched.write_all(b"patched").unwrap();
    drop(patched);
    let mut running = Command::new(live.join("prog")).arg("100").spawn().unwrap();
    let write = File::options().write(true).open(live.join("prog"));
    assert_eq!(
        write.unwrap_err().raw_os_error(),
        Some(26),
        "the test needs a busy program"
    );
    go_back(&fs, "live", &a, &Selection::All).unwrap();
    assert_same(&manifest(&live), &want, "a busy program");
    assert!(running.try_wait().unwrap().is_none());
    running.kill().unwrap();
    running.wait().unwrap();
}

/// P063, P064, P066: nothing is written through a link, links come back as links.
#[test]
fn links_are_never_followed() {
    let fs = Scratch::new();
    let live = fs.subvolume("live");
    let outside = tempfile::tempdir().unwrap();
    put(&outside.path().join("target"), "untouched", 0o644);
    put(&outside.path().join("dir/f"), "untouched", 0o644);
    put(&live.join("cfg"), "settings", 0o644);
    put(&live.join("dir/f"), "inside", 0o644);
    symlink("a", live.join("s")).unwrap();
    symlink("a", live.join("s2")).unwrap();
    symlink("/nowhere/at/all", live.join("dangling")).unwrap();
    let want = manifest(&live);
    let a = fs.snapshot("live", "a");
    let damage = || {
        for name in ["cfg", "s", "s2", "dangling", "dir/f"] {
            fs::remove_file(live.join(name)).unwrap();
        }
        fs::remove_dir(live.join("dir")).unwrap();
        symlink(outside.path().join("target"), live.join("cfg")).unwrap();
        symlink(outside.path().join("dir"), live.join("dir")).unwrap();
        symlink("b", live.join("s")).unwrap();
        put(&live.join("s2/in"), "x", 0o644);
    };
    let untouched = || {
        assert_eq!(fs::read(outside.path().join("target")).unwrap(), b"untouched");
        assert_eq!(fs::read(outside.path().join("dir/f")).unwrap(), b"untouched");
        assert_eq!(fs::read_dir(outside.path().join("dir")).unwrap().count(), 1);
    };
    damage();
    // one by one, also below a link that stands where a folder was
    for one in ["cfg", "dir/f", "s", "s2", "dangling"] {
        go_back(&fs, "live", &a, &paths(&[one])).unwrap();
        assert_eq!(check(&live, &a, &paths(&[one])), [], "{one}");
        untouched();
    }
    go_back(&fs, "live", &a, &Selection::All).unwrap();
    assert_same(&manifest(&live), &want, "one by one");
    damage();
    go_back(&fs, "live", &a, &Selection::All).unwrap();
    assert_same(&manifest(&live), &want, "all at once");
    untouched();
}

/// Paths that were chosen: everything else stays, what is not in the target goes.
#[test]
fn selected_paths_only() {
    let fs = Scratch::new();
    let live = fs.subvolume("live");
    put(&live.join("keep/a/f"), "old", 0o600);
    put(&live.join("mine"), "old", 0o644);
    chmod(&live.join("keep"), 0o750);
    set_mtime(&live.join("keep"), (77, 7)).unwrap();
    let a = fs.snapshot("live", "a");
    fs::remove_dir_all(live.join("keep")).unwrap();
    put(&live.join("mine"), "my own edit", 0o644);
    put(&live.join("new/x"), "x", 0o644);
    put(&live.join("new/y"), "y", 0o644);
    go_back(
        &fs,
        "live",
        &a,
        &paths(&["keep/a/f", "new/x", "./keep//a", "never/there"]),
    )
    .unwrap();
    assert_eq!(fs::read(live.join("keep/a/f")).unwrap(), b"old");
    let made = fs::metadata(live.join("keep")).unwrap();
    assert_eq!(
        (made.mode() & 0o7777, made.mtime(), made.mtime_nsec()),
        (0o750, 77, 7),
        "a missing parent"
    );
    assert_eq!(fs::read(live.join("mine")).unwrap(), b"my own edit");
    assert!(!live.join("new/x").exists() && live.join("new/y").exists());
    for bad in ["/etc/passwd", "../x", "keep/../../x"] {
        let refused = go_back(&fs, "live", &a, &paths(&[bad]));
        assert!(
            matches!(refused, Err(EngineError::Refused { .. })),
            "{bad}: {refused:?}"
        );
    }
    go_back(&fs, "live", &a, &paths(&["."])).unwrap();
    assert_eq!(check(&live, &a, &Selection::All), []);
}

/// A file that has a name outside the selection does not change there.
#[test]
fn hard_links_outside_the_selection_stay() {
    let fs = Scratch::new();
    let live = fs.subvolume("live");
    put(&live.join("in"), "old", 0o644);
    fs::hard_link(live.join("in"), live.join("out")).unwrap();
    let a = fs.snapshot("live", "a");
    put(&live.join("in"), "new in both", 0o644);
    go_back(&fs, "live", &a, &paths(&["in"])).unwrap();
    assert_eq!(fs::read(live.join("in")).unwrap(), b"old");
    assert_eq!(fs::read(live.join("out")).unwrap(), b"new in both");
}

/// P079, P081, P083, P085: every name is restored by its bytes, alone and with all.
#[test]
fn names_of_any_bytes() {
    let fs = Scratch::new();
    let live = fs.subvolume("live");
    for name in NAMES {
        put(&at(&live, name), "old", 0o644);
    }
    put(&live.join("\n@x/1"), "1", 0o644);
    let a = fs.snapshot("live", "a");
    let want = manifest(&live);
    for name in NAMES {
        fs::remove_file(at(&live, name)).unwrap();
        let one = Selection::Paths(vec![at(Path::new(""), name)]);
        go_back(&fs, "live", &a, &one).unwrap();
        assert_eq!(fs::read(at(&live, name)).unwrap(), b"old");
        put(&at(&live, name), "damaged", 0o600);
    }
    fs::remove_dir_all(live.join("\n@x")).unwrap();
    go_back(&fs, "live", &a, &Selection::All).unwrap();
    assert_same(&manifest(&live), &want, "names");
}

/// P049: nested subvolumes stay as they are, wherever they are.
#[test]
fn nested_subvolumes_are_left_alone() {
    let fs = Scratch::new();
    let live = fs.subvolume("live");
    put(&live.join("f"), "old", 0o644);
    fs::create_dir(live.join("dir")).unwrap();
    let dir = open_dir(&live.join("dir")).unwrap();
    respool::engine::ioctl::subvol_create(&dir, b"cache").unwrap();
    let cache = "dir/cache";
    put(&live.join(cache).join("i.txt"), "kept", 0o644);
    let a = fs.snapshot("live", "a");
    put(&live.join("f"), "new", 0o644);
    put(&live.join(cache).join("i.txt"), "changed, not covered", 0o644);
    let holder = open_dir(&live).unwrap();
    fs::create_dir(live.join("later")).unwrap();
    let later = open_dir(&live.join("later")).unwrap();
    respool::engine::ioctl::subvol_create(&later, b"deep").unwrap();
    respool::engine::ioctl::subvol_create(&holder, b"top").unwrap();
    put(&live.join("later/deep/x"), "x", 0o644);
    put(&live.join("later/file"), "x", 0o644);
    go_back(&fs, "live", &a, &Selection::All).unwrap();
    assert_eq!(fs::read(live.join("f")).unwrap(), b"old");
    assert_eq!(
        fs::read(live.join(cache).join("i.txt")).unwrap(),
        b"changed, not covered"
    );
    assert_eq!(fs::read(live.join("later/deep/x")).unwrap(), b"x");
    assert!(live.join("top").exists() && !live.join("later/file").exists());
    let left: Vec<_> = check(&live, &a, &Selection::All)
        .into_iter()
        .map(|d| d.path)
        .collect();
    assert_eq!(
        left,
        [Path::new("later")],
        "the folder that could not go is named"
    );
    // in the place of a file: refused, with its name
    put(&live.join("spot"), "x", 0o644);
    let b = fs.snapshot("live", "b");
    fs::remove_file(live.join("spot")).unwrap();
    respool::engine::ioctl::subvol_create(&holder, b"spot").unwrap();
    let refused = go_back(&fs, "live", &b, &Selection::All).unwrap_err();
    assert!(
        matches!(&refused, EngineError::Refused { path: Some(p), .. } if p == Path::new("spot")),
        "{refused}"
    );
}

/// What was written after the safety snapshot is in no snapshot: it is an error, never lost.
#[test]
fn a_change_after_the_safety_snapshot_is_not_lost() {
    let fs = Scratch::new();
    let live = fs.subvolume("live");
    put(&live.join("f"), "old", 0o644);
    let a = fs.snapshot("live", "a");
    put(&live.join("f"), "new", 0o644);
    put(&live.join("extra/g"), "extra", 0o644);
    let safety = fs.snapshot("live", "safety");
    let root = open_dir(&live).unwrap();
    for path in ["f", "extra/g", "extra/h"] {
        fs.next_tick();
        put(&live.join(path), "written by a program", 0o644);
        let failed = restore(root.as_fd(), &safety.tree(), &a.tree(), &Selection::All, &Silent);
        assert!(failed.is_err(), "{path}");
        assert_eq!(fs::read(live.join(path)).unwrap(), b"written by a program");
        go_back(&fs, "live", &safety, &Selection::All).unwrap();
    }
}

/// A second opinion: another verifier, in another language.
#[test]
fn the_python_verifier_agrees() {
    let fs = Scratch::new();
    let live = fs.subvolume("live");
    nasty(&live, &mut Rng::new(5));
    let a = fs.snapshot("live", "a");
    damage(&live);
    let verifier = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/tools/fsverify.py");
    let dir = tempfile::tempdir().unwrap();
    let (before, after) = (dir.path().join("before"), dir.path().join("after"));
    let write = |of: &Path, to: &Path| {
        let fd = open_dir(of).unwrap();
        rustix::io::fcntl_setfd(&fd, rustix::io::FdFlags::empty()).unwrap();
        let root = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&fd));
        tool(
            Command::new("python3")
                .arg(&verifier)
                .arg("manifest")
                .arg(root)
                .arg(to),
        );
    };
    write(&a.path, &before);
    write(&live, &after);
    let compare = || {
        let mut command = Command::new("python3");
        command
            .arg(&verifier)
            .arg("diff")
            .arg(&before)
            .arg(&after)
            .output()
            .unwrap()
            .status
            .success()
    };
    assert!(!compare(), "the verifier must see the damage");
    go_back(&fs, "live", &a, &Selection::All).unwrap();
    write(&live, &after);
    assert!(compare());
}

/// Two trees of no common lineage: everything is put in place anew, exactly.
#[test]
fn trees_without_common_history() {
    let fs = Scratch::new();
    let live = fs.subvolume("live");
    let other = fs.subvolume("other");
    nasty(&live, &mut Rng::new(1));
    nasty(&other, &mut Rng::new(2));
    rustix::fs::renameat_with(
        CWD,
        other.join("src1"),
        CWD,
        other.join("src2"),
        RenameFlags::EXCHANGE,
    )
    .unwrap();
    let a = fs.snapshot("other", "a");
    go_back(&fs, "live", &a, &Selection::All).unwrap();
    let bad = unequal(&manifest(&live), &manifest(&other));
    assert!(bad.is_empty(), "{:?}", &bad[..bad.len().min(3)]);
}

/// Folders whose times look right before the work must look right after it.
#[test]
fn folder_times_survive_the_work_in_them() {
    let fs = Scratch::new();
    let live = fs.subvolume("live");
    for name in ["from/f", "to/g", "gone/h"] {
        put(&live.join(name), name, 0o644);
    }
    let stamp = || {
        for name in ["from", "to", "gone", ""] {
            set_mtime(&live.join(name), (1_000, 7)).unwrap();
        }
    };
    stamp();
    let a = fs.snapshot("live", "a");
    let want = manifest(&live);
    fs::rename(live.join("from/f"), live.join("to/f")).unwrap();
    fs::remove_file(live.join("gone/h")).unwrap();
    put(&live.join("new"), "new", 0o644);
    stamp();
    go_back(&fs, "live", &a, &Selection::All).unwrap();
    assert_same(&manifest(&live), &want, "times");
}

/// The same files and numbers of links, linked with others.
#[test]
fn other_partners_of_hard_links_are_found_and_restored() {
    let fs = Scratch::new();
    let live = fs.subvolume("live");
    let link = |pairs: [[&str; 2]; 2]| {
        for [first, second] in pairs {
            for name in [first, second] {
                let _absent = fs::remove_file(live.join(name));
            }
            put(&live.join(first), "same", 0o644);
            set_mtime(&live.join(first), (9, 9)).unwrap();
            fs::hard_link(live.join(first), live.join(second)).unwrap();
        }
        set_mtime(&live, (9, 9)).unwrap();
    };
    link([["1", "2"], ["3", "4"]]);
    let a = fs.snapshot("live", "a");
    let want = manifest(&live);
    link([["1", "3"], ["2", "4"]]);
    let found = check(&live, &a, &Selection::All);
    assert!(
        !found.is_empty() && found.iter().all(|d| d.what.contains("hard link of")),
        "{found:?}"
    );
    go_back(&fs, "live", &a, &Selection::All).unwrap();
    assert_same(&manifest(&live), &want, "partners");
}
