//! Roots whose owner wants something else than to be read.

use std::fs;
use std::os::unix::fs::symlink;
use std::process::Command;
use std::time::Duration;

use respool::packages::{Cancelled, system};
use respool::progress::Progress;

use crate::roots::{Root, between, deb, run, said};

const PLACE: &str = "usr/local/lib/python3.11/site-packages";

#[test]
fn links_lead_nowhere() {
    let (a, b, outside) = (Root::new(), Root::new(), Root::new());
    outside
        .python("x", "secret", "1")
        .write("status", deb("secret", "1"));
    b.folder("usr/local/lib/python3.11")
        .folder("var/lib/dpkg")
        .folder("usr/local/lib/node_modules/x");
    symlink(outside.at("x"), b.at(PLACE)).expect("link");
    symlink("/etc", b.at("usr/local/lib/python3.11/dist-packages")).expect("link");
    symlink(outside.at("status"), b.at("var/lib/dpkg/status")).expect("link");
    symlink("/etc/passwd", b.at("usr/local/lib/node_modules/x/package.json")).expect("link");
    symlink(outside.path(), b.at("opt")).expect("link");
    let link = "it is a link, and links are not followed";
    assert_eq!(
        said(&a, &b),
        [
            format!("dpkg /var/lib/dpkg/status unread: {link}"),
            "pip /opt unread: it is a link, and links are not followed".to_owned(),
            format!("pip /usr/local/lib/python3.11/dist-packages unread: {link}"),
            format!("pip /{PLACE} unread: {link}"),
            format!("npm /opt unread: {link}"),
            format!("npm /usr/local/lib/node_modules/x unread: package.json: {link}"),
        ]
    );
}

#[test]
fn nothing_but_files_is_opened() {
    let (a, b) = (Root::new(), Root::new());
    let fifo = |path: &str| {
        b.folder(path.rsplit_once('/').expect("a folder").0);
        run(Command::new("mkfifo").arg(b.at(path)));
    };
    fifo(&format!("{PLACE}/evil-1.0.dist-info/METADATA"));
    fifo("lib/apk/db/installed");
    fifo("usr/local/lib/node_modules/evil/package.json");
    b.folder("var/lib/dpkg/status");
    let (send, done) = std::sync::mpsc::channel();
    let (x, y) = (a.tree(), b.tree());
    std::thread::spawn(move || send.send(system(&x, &y, &respool::progress::Silent)));
    let summary = done
        .recv_timeout(Duration::from_secs(20))
        .expect("it waits for no pipe");
    assert_eq!(
        crate::roots::lines(&summary.expect("not cancelled")),
        [
            "dpkg /var/lib/dpkg/status unread: it is no regular file".to_owned(),
            "apk /lib/apk/db/installed unread: it is no regular file".to_owned(),
            format!("pip /{PLACE}/evil-1.0.dist-info unread: METADATA: it is no regular file"),
            "npm /usr/local/lib/node_modules/evil unread: package.json: it is no regular file".to_owned(),
        ]
    );
}

#[test]
fn what_is_too_large_is_not_read() {
    let (a, b) = (Root::new(), Root::new());
    b.write("var/lib/dpkg/status", deb("curl", "1"));
    fs::File::options()
        .write(true)
        .open(b.at("var/lib/dpkg/status"))
        .and_then(|f| f.set_len(1 << 30))
        .expect("a sparse file");
    b.write("usr/local/lib/node_modules/x/package.json", vec![b' '; 5 << 20]);
    // of a description only the head counts
    let text = "Name: big\nVersion: 1\n\n".to_owned() + &"x".repeat(3 << 20);
    b.write(&format!("{PLACE}/big-1.dist-info/METADATA"), text);
    let start = std::time::Instant::now();
    assert_eq!(
        said(&a, &b),
        [
            format!("pip big - 1 /{PLACE}"),
            "dpkg /var/lib/dpkg/status unread: it is larger than 64.0 MiB".to_owned(),
            "npm /usr/local/lib/node_modules/x unread: package.json: it is larger than 4.0 MiB".to_owned(),
        ]
    );
    assert!(start.elapsed() < Duration::from_secs(5));
}

#[test]
fn names_are_harmless() {
    let (a, b) = (Root::new(), Root::new());
    b.write("var/lib/dpkg/status", deb("\u{1b}]0;owned\u{7}", "1\u{202e}"));
    b.python(PLACE, "a\u{9b}2Jb", "1\u{1b}c");
    b.node("usr/local/lib/node_modules", "n\u{1b}[2J", "1\u{1b}");
    b.write("usr/local/lib/node_modules/m\n\u{1b}/package.json", "{");
    let summary = between(&a, &b);
    let text = format!("{summary:?} {}", summary.line());
    assert_eq!(
        (summary.packages.len(), summary.packages_unread.len()),
        (3, 1),
        "{text}"
    );
    assert!(!text.chars().any(respool::text::is_unsafe_char), "{text}");
    assert!(
        !respool::text::json_line(&summary)
            .expect("json")
            .contains("\\u001b")
    );
}

#[test]
fn what_is_broken_is_said_and_the_rest_is_told() {
    let (a, b) = (Root::new(), Root::new());
    b.write(
        "var/lib/dpkg/status",
        deb("jq", "1.6") + "Version: 3\n\n" + &deb("curl", "7"),
    );
    b.write("lib/apk/db/installed", [0x80, 0xff, 0, b'\n', 7]);
    b.write("root/.cargo/.crates2.json", "{\"installs\": [");
    b.write(
        "var/lib/rpm/rpmdb.sqlite",
        "SQLite format 3\0".to_owned() + &"\u{1}".repeat(2000),
    );
    b.write(
        "usr/local/lib/node_modules/x/package.json",
        r#"{"version": {"a": 1}}"#,
    );
    b.write(&format!("{PLACE}/none-1.dist-info/RECORD"), "");
    b.write("var/lib/gems/3.1.0/specifications/nodash.gemspec", "");
    let all = said(&a, &b);
    assert_eq!(all[..2], ["dpkg curl - 7", "dpkg jq - 1.6"]);
    let unread: Vec<&str> = all[2..]
        .iter()
        .map(|l| l.split(": ").next().expect("a place"))
        .collect();
    assert_eq!(
        unread,
        [
            "dpkg /var/lib/dpkg/status unread",
            "apk /lib/apk/db/installed unread",
            "rpm /var/lib/rpm/rpmdb.sqlite unread",
            "pip /usr/local/lib/python3.11/site-packages/none-1.dist-info unread",
            "npm /usr/local/lib/node_modules/x unread",
            "gem /var/lib/gems/3.1.0/specifications/nodash.gemspec unread",
            "cargo /root/.cargo/.crates2.json unread",
        ],
        "{all:?}"
    );
    assert!(all[2].ends_with("1 entry is broken"), "{all:?}");
}

/// A damaged database of rpm ends in words, whatever is damaged.
#[test]
fn a_database_of_rpm_with_any_byte_turned_ends() {
    let (a, b) = (Root::new(), Root::new());
    let path = "var/lib/rpm/rpmdb.sqlite";
    crate::distributions::small_rpmdb(&b, path);
    let whole = fs::read(b.at(path)).expect("read");
    let mut silent = 0;
    for at in (0..whole.len()).step_by(whole.len() / 500) {
        for value in [0, 0xff, whole[at] ^ 0x40] {
            let mut bytes = whole.clone();
            bytes[at] = value;
            b.write(path, &bytes);
            let summary = between(&a, &b);
            silent += usize::from(summary.is_empty());
        }
    }
    for end in [0, 15, 100, 511, 4096, whole.len() / 2] {
        b.write(path, &whole[..end]);
        silent += usize::from(between(&a, &b).is_empty());
    }
    assert_eq!(silent, 0, "a damaged database is never taken for an empty one");
}

struct Stopped;

impl Progress for Stopped {
    fn step(&self, _: &'static str, _: u64, _: u64) {}
    fn cancelled(&self) -> bool {
        true
    }
}

#[test]
fn it_can_be_stopped() {
    let root = Root::new();
    assert_eq!(system(&root.tree(), &root.tree(), &Stopped), Err(Cancelled));
}
