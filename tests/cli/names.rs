//! Hostile names, links, special files, content that is no text.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use base64::Engine as _;
use serde_json::{Value, json};

use crate::lab::Lab;

fn special(ws: &Path, kind: &str, name: &str) {
    let status = std::process::Command::new("mknod")
        .arg(ws.join(name))
        .args(kind.split(' '))
        .status();
    assert!(status.expect("mknod").success());
}

fn rows(list: &Value) -> Vec<String> {
    let row = |r: &Value| {
        format!(
            "{} {}",
            r["kind"].as_str().expect("kind"),
            r["path"].as_str().expect("path")
        )
    };
    let mut rows: Vec<String> = list.as_array().expect("rows").iter().map(row).collect();
    rows.sort();
    rows
}

/// P079 P081 P083: any bytes are a name: listed exactly, restored one by one and all together.
#[test]
fn p079_p081_p083_any_bytes_are_a_name() {
    let bad = OsStr::from_bytes(b"bad\xff\xfename");
    let names: Vec<PathBuf> = [
        "公共.txt",
        "emoji😀.txt",
        "naïve.md",
        "new\nline.txt",
        "\n@x/a",
        "\n@x/b",
        "with space.txt",
        "x dest=y",
        "-rf",
        "--help",
        "a\\040b",
        "tab\there",
        "\u{1b}]52;c;aGk=\u{7}",
        "quote'\"$(touch pwned)`",
        "*",
        "?[a]",
        "con:",
    ]
    .iter()
    .map(PathBuf::from)
    .chain([PathBuf::from(bad), PathBuf::from("x".repeat(255))])
    .collect();
    let lab = Lab::new(|ws| {
        for n in &names {
            let path = ws.join(n);
            std::fs::create_dir_all(path.parent().expect("parent")).expect("mkdir");
            std::fs::write(path, "v1\n").expect("write");
        }
    });
    lab.message(1);
    let before = lab.manifest();
    for n in &names {
        lab.write(n, "v2\n");
    }
    let list = lab.ok(&["changes", "m1", "now"]);
    let list = list.as_array().expect("rows");
    assert_eq!(list.len(), names.len());
    for n in &names {
        let found = list.iter().find(|r| match r["path_b64"].as_str() {
            Some(b64) => {
                base64::engine::general_purpose::STANDARD
                    .decode(b64)
                    .expect("base64")
                    == n.as_os_str().as_bytes()
            }
            None => r["path"].as_str() == n.to_str(),
        });
        assert!(found.is_some_and(|r| r["kind"] == "modified"), "{n:?}");
        assert_eq!(
            found.expect("row").get("path_b64").is_some_and(Value::is_string),
            n.to_str().is_none(),
            "{n:?}"
        );
    }
    let text = lab.bare(&["-c", lab.store().to_str().expect("UTF-8"), "changes", "m1", "now"]);
    assert_eq!(text.text().lines().count(), names.len(), "one line each");
    assert!(
        !text.out.iter().any(|b| *b < 32 && *b != b'\n'),
        "{}",
        text.text()
    );
    one_by_one(&lab, &names);
    before.assert_same(&lab.manifest(), "one by one");
    for n in &names {
        lab.write(n, "v3\n");
    }
    lab.ok(&["--yes", "rewind", "1"]);
    before.assert_same(&lab.manifest(), "all together");
}

fn one_by_one(lab: &Lab, names: &[PathBuf]) {
    for n in names {
        let given = lab.ws().join(n);
        let args = ["--yes", "rewind", "1", "--path"].map(OsStr::new);
        let a = lab.run(&[&args[..], &[given.as_os_str()]].concat());
        assert_eq!(a.code, Some(0), "{}: {}", n.display(), a.text());
        assert_eq!(
            std::fs::read(lab.at(n)).expect("read"),
            b"v1\n",
            "{}",
            n.display()
        );
    }
}

/// P063 P064 P066: links are links: what they point to is neither written nor read.
#[test]
fn p063_p064_p066_no_link_is_followed() {
    let lab = Lab::new(|ws| {
        std::fs::write(ws.join("cfg"), "mine").expect("write");
        symlink("/etc", ws.join("d")).expect("link");
        symlink("a", ws.join("s")).expect("link");
        symlink("a", ws.join("s2")).expect("link");
        std::fs::create_dir(ws.join("dir")).expect("mkdir");
        std::fs::write(ws.join("dir/in"), "in").expect("write");
    });
    lab.message(1);
    let before = lab.manifest();
    let outside = lab.dir().join("outside");
    std::fs::create_dir(&outside).expect("mkdir");
    std::fs::write(outside.join("in"), "outside").expect("write");
    for (name, to) in [("cfg", outside.join("in")), ("s", "b".into()), ("s2", "x".into())] {
        std::fs::remove_file(lab.at(name)).expect("remove");
        symlink(to, lab.at(name)).expect("link");
    }
    std::fs::remove_file(lab.at("s2")).expect("remove");
    std::fs::create_dir(lab.at("s2")).expect("mkdir");
    std::fs::remove_dir_all(lab.at("dir")).expect("remove");
    symlink(&outside, lab.at("dir")).expect("link");
    lab.ok(&["--yes", "rewind", "1", "--path", "cfg"]);
    assert_eq!(lab.read("cfg"), "mine");
    assert!(!lab.at("cfg").is_symlink());
    lab.ok(&["--yes", "rewind", "1", "--path", "dir/in"]);
    lab.ok(&["--yes", "rewind", "1"]);
    before.assert_same(&lab.manifest(), "all");
    assert_eq!(
        std::fs::read_to_string(outside.join("in")).expect("read"),
        "outside"
    );
    // nothing beyond a link is there
    for args in [
        &["cat", "m1", "d/hosts"][..],
        &["ls", "m1", "d"],
        &["cat", "m1", "../../etc/hosts"],
        &["cat", "m1", "/etc/hosts"],
        &["--yes", "rewind", "1", "--path", "d/hosts"],
    ] {
        let a = lab.run(args);
        assert!(
            matches!(a.code, Some(3 | 4)),
            "{args:?}: {:?} {}",
            a.code,
            a.text()
        );
        assert!(!a.text().contains("localhost"), "{args:?}");
    }
    let said = lab.fails(3, &["cat", "m1", "d"]);
    assert!(said.contains("/etc"), "the link's own text: {said}");
    std::fs::remove_file(lab.at("d")).expect("remove");
    symlink("/usr", lab.at("d")).expect("link");
    let diff = lab
        .bare(&["-c", lab.store().to_str().expect("UTF-8"), "diff", "m1", "now"])
        .text();
    assert!(
        diff.contains("/etc") && diff.contains("/usr") && !diff.contains("localhost"),
        "{diff}"
    );
}

/// P068 P069: sockets, fifos and devices are listed with their type, never opened, and come back.
#[test]
fn p068_p069_special_files_are_listed_and_never_opened() {
    let lab = Lab::new(|ws| {
        std::fs::write(ws.join("f"), "x").expect("write");
        special(ws, "c 1 3", "chr");
        special(ws, "p", "fifo");
    });
    lab.message(1);
    let before = lab.manifest();
    std::fs::remove_file(lab.at("chr")).expect("remove");
    drop(UnixListener::bind(lab.at("sock")).expect("socket"));
    special(lab.ws(), "p", "fifo2");
    special(lab.ws(), "b 7 99", "blk");
    let list = lab.ok(&["changes", "m1", "now"]);
    assert_eq!(
        rows(&list),
        ["added blk", "added fifo2", "added sock", "deleted chr"]
    );
    let started = std::time::Instant::now();
    for path in ["fifo", "sock", "fifo2", "blk"] {
        let a = lab.run(&["cat", "now", path]);
        assert!(matches!(a.code, Some(3 | 4)), "{path}: {:?} {}", a.code, a.text());
    }
    let types = lab.ok(&["ls", "now"]);
    let types: Vec<String> = types
        .as_array()
        .expect("rows")
        .iter()
        .map(|r| format!("{} {}", r["name"], r["type"]))
        .collect();
    assert!(
        types.iter().any(|t| t.contains("sock") && t.contains("socket")),
        "{types:?}"
    );
    lab.ok(&["diff", "m1", "now"]);
    assert!(started.elapsed().as_secs() < 5);
    lab.ok(&["--yes", "rewind", "1"]);
    before.assert_same(&lab.manifest(), "the tree");
}

/// P088: content that is no text is named as such, never "no change", and `git apply` takes what is text.
#[test]
fn p088_content_that_is_no_text() {
    let lab = Lab::new(|ws| {
        std::fs::write(ws.join("a"), b"x\xff").expect("write");
        std::fs::write(ws.join("nul"), b"a\0b").expect("write");
        std::fs::write(ws.join("u16"), b"\xff\xfea\0b\0").expect("write");
        std::fs::write(ws.join("t"), "one\ntwo\n").expect("write");
    });
    lab.message(1);
    lab.write("a", b"x\xfe");
    lab.write("nul", b"a\0c");
    lab.write("u16", b"\xff\xfea\0c\0");
    lab.write("t", "one\n2\n");
    let list = lab.ok(&["changes", "m1", "now"]);
    assert_eq!(
        rows(&list),
        ["modified a", "modified nul", "modified t", "modified u16"]
    );
    let store = lab.store();
    let store = store.to_str().expect("UTF-8");
    let diff = lab.bare(&["-c", store, "diff", "m1", "now"]);
    for name in ["nul", "u16", "a"] {
        assert!(
            diff.text()
                .lines()
                .any(|l| l.contains(name) && l.to_lowercase().contains("binary")),
            "{name}: {}",
            diff.text()
        );
    }
    let patch = lab.bare(&["-c", store, "diff", "m1", "now", "t"]);
    let copy = lab.dir().join("copy");
    std::fs::create_dir(&copy).expect("mkdir");
    std::fs::write(copy.join("t"), "one\ntwo\n").expect("write");
    std::fs::write(lab.dir().join("p"), &patch.out).expect("write");
    let status = std::process::Command::new("git")
        .args(["apply", "../p"])
        .current_dir(&copy)
        .status();
    assert!(status.expect("git").success(), "{}", patch.text());
    assert_eq!(std::fs::read_to_string(copy.join("t")).expect("read"), "one\n2\n");
}

/// P089: renames, swaps, a renamed folder is one row; all come back.
#[test]
fn p089_renames_and_swaps() {
    let lab = Lab::new(|ws| {
        for f in ["a", "x", "y", "e1"] {
            std::fs::write(ws.join(f), format!("content of {f}\n").repeat(50)).expect("write");
        }
        std::fs::create_dir(ws.join("d")).expect("mkdir");
        for i in 0..20 {
            std::fs::write(ws.join(format!("d/{i}")), i.to_string()).expect("write");
        }
    });
    lab.message(1);
    let before = lab.manifest();
    let mv = |a: &str, b: &str| std::fs::rename(lab.at(a), lab.at(b)).expect("rename");
    mv("a", "b");
    mv("d", "e");
    mv("x", "tmp");
    mv("y", "x");
    mv("tmp", "y");
    mv("e1", "e2");
    lab.write("e2", "edited");
    let list = lab.ok(&["changes", "m1", "now"]);
    let from: Vec<(Value, Value)> = list
        .as_array()
        .expect("rows")
        .iter()
        .filter(|r| r["kind"] == "renamed")
        .map(|r| (r["from"].clone(), r["path"].clone()))
        .collect();
    for pair in [("a", "b"), ("d", "e"), ("y", "x"), ("x", "y"), ("e1", "e2")] {
        assert!(from.contains(&(json!(pair.0), json!(pair.1))), "{pair:?}: {list}");
    }
    assert_eq!(from.len(), 5, "{list}");
    lab.ok(&["--yes", "rewind", "1"]);
    before.assert_same(&lab.manifest(), "the tree");
}
