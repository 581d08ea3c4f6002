//! Unified diffs are taken by the real `git apply`, name things as git does, and bring no control byte of
//! the content to a terminal.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use proptest::prelude::*;
use respool::diff::{Limits, Side, unified};
use respool::engine::{Content, FileType};

/// A tree: path to mode and content.
type Tree = BTreeMap<PathBuf, (u32, Content)>;

fn file(bytes: impl AsRef<[u8]>) -> Content {
    let bytes = bytes.as_ref().to_vec();
    Content::File {
        size: bytes.len() as u64,
        bytes,
    }
}

fn link(target: impl AsRef<[u8]>) -> Content {
    Content::Link(PathBuf::from(OsStr::from_bytes(target.as_ref())))
}

fn path(name: impl AsRef<[u8]>) -> PathBuf {
    PathBuf::from(OsStr::from_bytes(name.as_ref()))
}

fn side<'a>(path: &'a Path, (mode, content): &'a (u32, Content)) -> Side<'a> {
    Side {
        path,
        mode: *mode,
        content,
    }
}

/// The patch from one tree to the other; `renames` are pairs of old and new path.
fn patch(a: &Tree, b: &Tree, renames: &[(PathBuf, PathBuf)], raw: bool) -> Vec<u8> {
    let mut out = Vec::new();
    for (old, new) in renames {
        out.extend(unified(
            Some(side(old, &a[old])),
            Some(side(new, &b[new])),
            Limits::default(),
            raw,
        ));
    }
    let mut paths: Vec<&PathBuf> = a.keys().chain(b.keys()).collect();
    paths.sort();
    paths.dedup();
    for path in paths
        .into_iter()
        .filter(|p| !renames.iter().any(|(old, new)| old == *p || new == *p))
    {
        let at = |tree: &'_ Tree| tree.get(path).cloned();
        let (old, new) = (at(a), at(b));
        let old = old.as_ref().map(|o| side(path, o));
        let new = new.as_ref().map(|n| side(path, n));
        out.extend(unified(old, new, Limits::default(), raw));
    }
    out
}

fn write(root: &Path, tree: &Tree) {
    for (path, (mode, content)) in tree {
        let at = root.join(path);
        fs::create_dir_all(at.parent().expect("parent")).expect("mkdir");
        match content {
            Content::File { bytes, .. } => {
                fs::write(&at, bytes).expect("write");
                fs::set_permissions(&at, fs::Permissions::from_mode(*mode)).expect("chmod");
            }
            Content::Link(target) => symlink(target, &at).expect("symlink"),
            Content::Other(_) => panic!("not written by a patch"),
        }
    }
}

fn read(root: &Path) -> Tree {
    fn walk(root: &Path, dir: &Path, tree: &mut Tree) {
        for entry in fs::read_dir(dir).expect("read_dir").map(|e| e.expect("entry")) {
            let path = entry.path();
            let kind = entry.file_type().expect("type");
            let name = path.strip_prefix(root).expect("inside").to_owned();
            if kind.is_symlink() {
                tree.insert(name, (0o777, Content::Link(fs::read_link(&path).expect("link"))));
            } else if kind.is_dir() {
                if name != Path::new(".git") {
                    walk(root, &path, tree);
                }
            } else {
                let mode = if entry.metadata().expect("stat").permissions().mode() & 0o100 == 0 {
                    0o644
                } else {
                    0o755
                };
                tree.insert(name, (mode, file(fs::read(&path).expect("read"))));
            }
        }
    }
    let mut tree = Tree::new();
    walk(root, root, &mut tree);
    tree
}

fn git(dir: &Path, args: &[&str], stdin: &[u8]) -> Vec<u8> {
    use std::io::Write;
    let mut child = Command::new("git")
        .args(args)
        .current_dir(dir)
        .env_clear()
        .envs(std::env::var_os("PATH").map(|p| ("PATH", p)))
        .env("HOME", dir)
        .env("GIT_CONFIG_NOSYSTEM", "1")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("this test needs git");
    child
        .stdin
        .take()
        .expect("stdin")
        .write_all(stdin)
        .expect("write");
    let out = child.wait_with_output().expect("git");
    let said = String::from_utf8_lossy(&out.stderr);
    assert!(
        out.status.success(),
        "git {args:?}: {said}\n{}",
        String::from_utf8_lossy(stdin)
    );
    out.stdout
}

/// `git apply` makes `b` of `a`.
fn applies(a: &Tree, b: &Tree, renames: &[(PathBuf, PathBuf)]) {
    let dir = tempfile::tempdir().expect("temp dir");
    git(dir.path(), &["init", "-q"], b"");
    write(dir.path(), a);
    let patch = patch(a, b, renames, true);
    if !patch.is_empty() {
        git(dir.path(), &["apply", "-"], &patch);
    }
    assert_eq!(&read(dir.path()), b, "{}", String::from_utf8_lossy(&patch));
}

fn tree(entries: &[(&[u8], u32, Content)]) -> Tree {
    entries
        .iter()
        .map(|(name, mode, content)| (path(name), (*mode, content.clone())))
        .collect()
}

const NAMES: [&[u8]; 9] = [
    b"plain",
    b"with space.txt",
    b"tab\there",
    b"new\nline",
    b"q\"uote\\",
    b"bad\xff\xfename",
    "d/\u{e9}t\u{e9}".as_bytes(),
    b"x dest=y",
    b"-dash",
];

#[test]
fn git_apply_takes_every_kind_of_change() {
    let many = (0..60)
        .map(|i| format!("line {i}\n"))
        .collect::<Vec<_>>()
        .concat();
    for name in NAMES {
        let one = |content: Content| tree(&[(name, 0o644, content)]);
        let none = Tree::new();
        for (a, b) in [
            ("", "x\n"),
            ("x", "x\n"),
            ("x\n", "x"),
            ("a\r\nb\r\n", "a\nb\r\n"),
            ("lone\rcr", "lone\rCR"),
            ("\u{1b}[31m\n", "\u{1b}[32m\n"),
            ("-- old\n++ new\n", "-- odd\n++ new\n"),
            (
                &many,
                &many.replace("line 3\n", "").replace("line 40\n", "l\nl\n"),
            ),
        ] {
            applies(&one(file(a)), &one(file(b)), &[]);
            applies(&none, &one(file(b)), &[]);
            applies(&one(file(a)), &none, &[]);
        }
        applies(&none, &one(file("")), &[]);
        applies(
            &one(link("/etc")),
            &tree(&[(name, 0o777, link("elsewhere\n"))]),
            &[],
        );
        applies(&one(link("/etc")), &one(file("now a file\n")), &[]);
        applies(
            &one(file("was a file\n")),
            &tree(&[(name, 0o777, link("target"))]),
            &[],
        );
    }
}

#[test]
fn git_apply_takes_renames_and_modes() {
    for name in NAMES {
        for to in [&b"moved"[..], b"dir/m o v e d", b"\xff\x01"] {
            let renames = [(path(name), path(to))];
            let from = tree(&[(name, 0o644, file("one\ntwo\nthree\n"))]);
            applies(&from, &tree(&[(to, 0o644, file("one\ntwo\nthree\n"))]), &renames);
            applies(&from, &tree(&[(to, 0o755, file("one\n2\nthree\n"))]), &renames);
            let links = tree(&[(name, 0o777, link("t"))]);
            applies(&links, &tree(&[(to, 0o777, link("t"))]), &renames);
        }
        let a = tree(&[(name, 0o644, file("x\n")), (b"zz", 0o644, file("1\n"))]);
        applies(
            &a,
            &tree(&[(name, 0o755, file("x\n")), (b"zz", 0o644, file("2\n"))]),
            &[],
        );
        applies(
            &a,
            &tree(&[(name, 0o755, file("y\n")), (b"zz", 0o755, file("1\n"))]),
            &[],
        );
    }
}

/// P064, P068, P069, P088: what a text patch cannot hold is named, and does not spoil the patch around it.
#[test]
fn binary_and_special_files_are_named() {
    let a = tree(&[
        (b"a.txt", 0o644, file("1\n")),
        (b"b.bin", 0o644, file(b"\xff")),
        (b"d", 0o755, file(b"\0")),
        (b"gone.bin", 0o644, file(b"\0")),
        (b"s", 0o600, Content::Other(FileType::Socket)),
        (b"z.txt", 0o644, file("1\n")),
    ]);
    let b = tree(&[
        (b"a.txt", 0o644, file("2\n")),
        (b"b.bin", 0o755, file(b"\xfe\0")),
        (b"c.fifo", 0o600, Content::Other(FileType::Fifo)),
        (b"d", 0o777, link("/etc")),
        (b"null", 0o600, Content::Other(FileType::CharDevice)),
        (b"z.txt", 0o644, file("2\n")),
    ]);
    let out = String::from_utf8(patch(&a, &b, &[], true)).expect("text");
    for line in [
        "Binary files a/b.bin and b/b.bin differ (1 B, 2 B)",
        "Binary files a/gone.bin and /dev/null differ (1 B, none)",
        "Named pipe b/c.fifo is new",
        "Character device b/null is new",
        "Socket a/s is gone",
        "+/etc",
    ] {
        assert!(out.lines().any(|l| l == line), "{line}\n{out}");
    }
    let dir = tempfile::tempdir().expect("temp dir");
    git(dir.path(), &["init", "-q"], b"");
    let mut writable = a.clone();
    writable.remove(Path::new("s"));
    writable.remove(Path::new("d"));
    write(dir.path(), &writable);
    git(dir.path(), &["apply", "-"], out.as_bytes());
    let after = read(dir.path());
    assert_eq!(after[Path::new("a.txt")].1, file("2\n"));
    assert_eq!(after[Path::new("z.txt")].1, file("2\n"));
    assert_eq!(after[Path::new("d")].1, link("/etc"));
    assert_eq!(
        after[Path::new("b.bin")],
        (0o755, file(b"\xff")),
        "the mode is taken, the bytes are only named"
    );
}

/// The lines of git's own diff, without the object ids that only git has.
#[test]
fn headers_and_hunks_are_those_of_git() {
    let a: Tree = NAMES
        .iter()
        .map(|n| (path(n), (0o644, file("one\ntwo\n"))))
        .collect();
    let mut b: Tree = NAMES.iter().map(|n| (path(n), (0o755, file("one\n2")))).collect();
    b.remove(&path(NAMES[0]));
    b.insert(path("new one"), (0o644, file("")));
    let dir = tempfile::tempdir().expect("temp dir");
    git(dir.path(), &["init", "-q"], b"");
    write(dir.path(), &a);
    git(dir.path(), &["add", "-A"], b"");
    git(
        dir.path(),
        &["-c", "user.name=x", "-c", "user.email=x", "commit", "-qm", "a"],
        b"",
    );
    for entry in a.keys() {
        fs::remove_file(dir.path().join(entry)).expect("rm");
    }
    write(dir.path(), &b);
    git(dir.path(), &["add", "-A"], b"");
    let theirs = git(
        dir.path(),
        &["diff", "--cached", "--no-renames", "--diff-algorithm=myers"],
        b"",
    );
    let lines = |bytes: &[u8]| -> Vec<String> {
        let text = String::from_utf8_lossy(bytes).into_owned();
        text.lines()
            .filter(|l| !l.starts_with("index "))
            .map(str::to_owned)
            .collect()
    };
    assert_eq!(lines(&patch(&a, &b, &[], true)), lines(&theirs));
}

#[test]
fn nothing_but_tabs_and_line_feeds_controls_a_terminal() {
    let evil = "\u{1b}]52;c;x\u{7}\ta\u{9b}31m\u{202e}\r\u{0b}\n\u{7f}";
    let mut b: Tree = NAMES.iter().map(|n| (path(n), (0o644, file(evil)))).collect();
    b.insert(path(evil.replace('\n', "")), (0o777, link(evil)));
    b.insert(path("\x1b[2Jpipe"), (0o644, Content::Other(FileType::Fifo)));
    b.insert(path("\x1b[2Jbin"), (0o644, file(b"\0")));
    let shown = patch(&Tree::new(), &b, &[], false);
    let text = String::from_utf8(shown).expect("UTF-8");
    let bad: Vec<char> = text
        .chars()
        .filter(|c| respool::text::is_unsafe_char(*c) && !matches!(c, '\n' | '\t'))
        .collect();
    assert!(bad.is_empty(), "{bad:?}");
    assert!(text.contains("+^[]52;c;x^G\ta"), "{text}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn git_apply_makes_the_second_of_the_first(
        a in prop::collection::vec("[ab\r\t]{0,3}\n", 0..30),
        cuts in prop::collection::vec((any::<prop::sample::Index>(), "[abc]{0,2}\n?"), 0..6),
        end in any::<bool>(),
    ) {
        let mut b = a.clone();
        for (at, text) in cuts {
            let at = at.index(b.len() + 1);
            if at < b.len() { b[at] = text } else { b.push(text) }
        }
        let (a, mut b) = (a.concat(), b.concat());
        if end && b.ends_with('\n') {
            b.pop();
        }
        let one = |s: &str| tree(&[(b"f", 0o644, file(s))]);
        applies(&one(&a), &one(&b), &[]);
    }
}
