//! Hostile surroundings: nothing that they name is started.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::lab::{Answer, Lab};
use crate::screen::Screen;
use crate::scripts::worked_on;

/// What runs if anything looks for it by name.
fn trap(dir: &Path, name: &str, mark: &Path) {
    let script = format!("#!/bin/sh\necho {name} \"$@\" >> '{}'\nexit 1\n", mark.display());
    std::fs::write(dir.join(name), script).expect("trap");
    crate::rounds::mode(&dir.join(name), 0o755);
}

/// Sets the traps: a folder of programs, git's hooks and configuration. Where they are, and the file in which each
/// that is started leaves a line.
fn set(lab: &Lab) -> (PathBuf, PathBuf) {
    let (traps, mark) = (lab.dir().join("traps"), lab.dir().join("mark"));
    std::fs::create_dir(&traps).expect("folder");
    for name in [
        "git",
        "less",
        "more",
        "pager",
        "sh",
        "bash",
        "env",
        "btrfs",
        "mount",
        "umount",
        "losetup",
        "mkfs.btrfs",
        "ssh",
        "sudo",
        "docker",
        "vi",
        "editor",
        "stty",
        "tput",
        "cp",
        "rsync",
        "gpg",
        "id",
        "uname",
        "hook",
    ] {
        trap(&traps, name, &mark);
    }
    for hook in [
        "post-checkout",
        "pre-commit",
        "post-merge",
        "reference-transaction",
        "fsmonitor-watchman",
    ] {
        trap(&lab.at(".git/hooks"), hook, &mark);
    }
    let hook = traps.join("hook");
    let hook = hook.to_str().expect("UTF-8");
    let config = format!(
        "[commit]\n\tgpgsign = true\n[core]\n\thooksPath = {0}\n\tfsmonitor = {hook}\n\tpager = {hook}\n\tsshCommand = {hook}\n[diff]\n\texternal = {hook}\n",
        traps.display()
    );
    std::fs::write(lab.dir().join("home/.gitconfig"), config).expect("config");
    (traps, mark)
}

/// All variables that make one program start another.
fn odd(c: &mut Command, traps: &Path, path: Option<&str>) {
    let hook = traps.join("hook");
    let hook = hook.to_str().expect("UTF-8");
    for (name, value) in [
        ("GIT_DIR", "/nowhere/.git"),
        ("GIT_WORK_TREE", "/nowhere"),
        ("GIT_INDEX_FILE", "/nowhere/index"),
        ("GIT_SSH_COMMAND", hook),
        ("GIT_EXTERNAL_DIFF", hook),
        ("PAGER", hook),
        ("GIT_PAGER", hook),
        ("MANPAGER", hook),
        ("LESSOPEN", &format!("|{hook} %s")),
        ("EDITOR", hook),
        ("VISUAL", hook),
        ("BASH_ENV", hook),
        ("ENV", hook),
        ("SHELL", hook),
        ("LD_LIBRARY_PATH", "/nowhere"),
        ("DOCKER_HOST", "unix:///nowhere/docker.sock"),
    ] {
        c.env(name, value);
    }
    for name in ["LD_PRELOAD", "HOME", "TERM"] {
        c.env_remove(name);
    }
    match path {
        Some(path) => c.env("PATH", path),
        None => c.env_remove("PATH"),
    };
    c.current_dir(traps).stdin(Stdio::null());
}

/// P157: git's configuration with hooks, signing and a pager, the variables that start programs, a `PATH` full of
/// traps or none at all, no home: no prompt, no hook, no pager, no program of that path is started.
#[test]
fn p157_hostile_surroundings_start_nothing() {
    let lab = worked_on(|ws| {
        let git = Command::new("git").args(["init", "-q"]).current_dir(ws).status();
        assert!(git.expect("git").success());
    });
    let (traps, mark) = set(&lab);
    let hook = traps.join("hook");
    let hook = hook.to_str().expect("UTF-8");
    // a trap that is stepped on tells
    let told = Command::new(traps.join("git")).arg("status").status();
    assert!(!told.expect("trap").success());
    assert_eq!(std::fs::read_to_string(&mark).expect("mark"), "git status\n");
    std::fs::remove_file(&mark).expect("remove");
    let tree = lab.manifest();
    let store = lab.store();
    let store = store.to_str().expect("UTF-8");
    for path in [Some(traps.to_str().expect("UTF-8")), Some("."), Some(""), None] {
        for args in [
            &["timeline", store][..],
            &["-c", store, "changes", "m1", "now"],
            &["-c", store, "diff", "m1", "now"],
            &["-c", store, "cat", "m1", "f"],
            &["-c", store, "checkpoint"],
            &["-c", store, "--yes", "rewind", "1", "--files"],
            &["-c", store, "--yes", "undo"],
            &["-c", store, "log"],
            &["-c", store, "why", "f"],
            &["space"],
            &["pool", "check"],
            &["--help"],
            &["man"],
            &["sandboxes"],
        ] {
            let mut c = lab.command();
            odd(c.args(args), &traps, path);
            let a = Answer::of(c.output().expect("run"));
            let started = std::fs::read_to_string(&mark).unwrap_or_default();
            assert_eq!(started, "", "PATH={path:?} {args:?}");
            assert_eq!(a.code, Some(0), "PATH={path:?} {args:?}: {}", a.err);
            assert!(!a.out.is_empty() || args.contains(&"why"), "{args:?}");
        }
        tree.assert_same(&lab.manifest(), &format!("PATH={path:?}"));
    }
    // on a terminal: it prints and ends, and waits for no key
    for words in [
        &["timeline", store][..],
        &["-c", store, "diff", "start", "now"],
        &["--help"],
    ] {
        let mut screen = Screen::run(&lab, words, &[("PAGER", hook), ("LESSOPEN", hook), ("HOME", "")]);
        assert_eq!(screen.end(), 0, "{words:?}: {}", screen.text());
        assert!(!mark.exists(), "{words:?}");
    }
}
