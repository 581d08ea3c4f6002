//! What a command finds around it: sudo, a config file, a closed pipe, no terminal.

use std::os::fd::AsRawFd;
use std::process::Stdio;

use crate::contract::small;
use crate::lab::{Answer, Lab, error_text};

/// The invoking user's home counts under sudo; an empty SUDO_USER is none.
#[test]
fn sudo_user_empty_and_set() {
    let lab = Lab::new(|_| {});
    lab.message(1);
    let list = |user: &str| {
        let mut c = lab.command();
        let a = Answer::of(
            c.args(["--json", "conversations"])
                .env("SUDO_USER", user)
                .output()
                .expect("run"),
        );
        assert_eq!(a.code, Some(0), "{}", a.err);
        a.json()
            .as_array()
            .expect("rows")
            .iter()
            .filter(|r| {
                r["store"]
                    .as_str()
                    .is_some_and(|s| s.starts_with(lab.dir().to_str().expect("UTF-8")))
            })
            .count()
    };
    assert_eq!(list(""), 1);
    assert_eq!(list("root"), 1, "root's own sudo: HOME counts");
    assert_eq!(list("no-such-user-here"), 1);
    assert_eq!(list("nobody"), 0, "nobody's home has no conversations");
}

#[test]
fn a_config_with_a_wrong_key_is_named() {
    let lab = Lab::plain(|_| {});
    let file = lab.dir().join("c.toml");
    std::fs::write(&file, "[retention]\nkeeep = 3\n").expect("write");
    let said = lab.fails(2, &["--config", file.to_str().expect("UTF-8"), "sandboxes"]);
    assert!(
        said.contains("line 2") && said.contains("keeep") && said.contains("c.toml"),
        "{said}"
    );
    lab.fails(4, &["--config", "/nowhere/c.toml", "sandboxes"]);
    std::fs::write(&file, "[retention]\nkeep = 3\n").expect("write");
    lab.ok(&["--config", file.to_str().expect("UTF-8"), "sandboxes"]);
    std::fs::create_dir_all(lab.dir().join("home/.config/respool")).expect("mkdir");
    std::fs::write(lab.dir().join("home/.config/respool/config.toml"), "nonsense").expect("write");
    lab.fails(2, &["sandboxes"]);
    std::fs::remove_file(lab.dir().join("home/.config/respool/config.toml")).expect("remove");
}

/// A closed pipe on stdout is no panic and no failure; a full disk there is one.
#[test]
fn stdout_closed_and_full() {
    let lab = small();
    for args in [
        &["timeline"][..],
        &["--help"],
        &["changes", "m1", "now"],
        &["man"],
    ] {
        let (read, write) = std::io::pipe().expect("pipe");
        drop(read);
        let mut c = lab.command();
        let out = c
            .arg("-c")
            .arg(lab.store())
            .args(args)
            .stdout(Stdio::from(write))
            .stderr(Stdio::piped())
            .output()
            .expect("run");
        let err = String::from_utf8_lossy(&out.stderr).into_owned();
        assert!(!err.contains("panicked"), "{args:?}: {err}");
        assert!(
            matches!(out.status.code(), Some(0)),
            "{args:?}: {:?} {err}",
            out.status
        );
    }
    let full = std::fs::OpenOptions::new()
        .write(true)
        .open("/dev/full")
        .expect("open");
    assert!(full.as_raw_fd() > 2);
    let mut c = lab.command();
    let out = c
        .arg("-c")
        .arg(lab.store())
        .args(["--json", "timeline"])
        .stdout(Stdio::from(full))
        .output()
        .expect("run");
    assert_eq!(out.status.code(), Some(1));
    // nor is a closed stderr
    let mut c = lab.command();
    let (read, write) = std::io::pipe().expect("pipe");
    drop(read);
    let out = c
        .arg("-c")
        .arg(lab.store())
        .args(["--json", "rewind", "99"])
        .stderr(Stdio::from(write))
        .output()
        .expect("run");
    assert_eq!(out.status.code(), Some(4), "{:?}", out.status);
    error_text(&serde_json::from_slice(&out.stdout).expect("JSON"), 4);
}

/// Without a terminal the TUI refuses, with a hint.
#[test]
fn no_terminal_no_tui() {
    let lab = Lab::plain(|_| {});
    let a = lab.bare::<&str>(&[]);
    assert_eq!(a.code, Some(2));
    assert!(a.err.contains("hint"), "{}", a.err);
}
