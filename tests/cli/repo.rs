//! Workspaces that are git repositories.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::lab::Lab;
use crate::manifest::Manifest;

pub fn git(dir: &Path, args: &[&str]) -> String {
    let out = Command::new("git")
        .args([
            "-c",
            "user.name=t",
            "-c",
            "user.email=t@t",
            "-c",
            "protocol.file.allow=always",
            "-c",
            "safe.directory=*",
        ])
        .args(args)
        .current_dir(dir)
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .env("GIT_CONFIG_NOSYSTEM", "1")
        .output()
        .expect("git");
    assert!(
        out.status.success(),
        "git {args:?}: {}",
        String::from_utf8_lossy(&out.stderr)
    );
    String::from_utf8_lossy(&out.stdout).into_owned()
}

fn commit(dir: &Path, file: &str, text: &str) {
    std::fs::write(dir.join(file), text).expect("write");
    git(dir, &["add", "."]);
    git(dir, &["commit", "-qm", text]);
}

/// P026: what was not committed comes back, and what was staged is staged.
#[test]
fn p026_uncommitted_work_and_the_index_come_back() {
    let lab = Lab::new(|ws| {
        git(ws, &["init", "-q"]);
        commit(ws, "f", "v0");
        std::fs::write(ws.join("f"), "v1").expect("write");
        git(ws, &["add", "f"]);
        std::fs::write(ws.join("f"), "v1 and more").expect("write");
    });
    lab.message(1);
    let (before, index, status) = (
        lab.manifest(),
        git(lab.ws(), &["show", ":f"]),
        git(lab.ws(), &["status", "--porcelain"]),
    );
    lab.write("f", "v2");
    git(lab.ws(), &["add", "f"]);
    git(lab.ws(), &["commit", "-qm", "by the agent"]);
    git(lab.ws(), &["gc", "-q"]);
    lab.ok(&["--yes", "rewind", "1"]);
    before.assert_same(&lab.manifest(), "the tree");
    assert_eq!(index, git(lab.ws(), &["show", ":f"]));
    assert_eq!(status, git(lab.ws(), &["status", "--porcelain"]));
}

pub fn four(ws: &Path) {
    let sub = ws.parent().expect("parent").join("sub-source");
    std::fs::create_dir(&sub).expect("mkdir");
    git(&sub, &["init", "-q"]);
    commit(&sub, "s", "s0");
    git(ws, &["init", "-q"]);
    commit(ws, "f", "v0");
    std::fs::create_dir_all(ws.join("vendor/x")).expect("mkdir");
    git(&ws.join("vendor/x"), &["init", "-q"]);
    commit(&ws.join("vendor/x"), "n", "n0");
    git(
        ws,
        &[
            "submodule",
            "--quiet",
            "add",
            sub.to_str().expect("UTF-8"),
            "module",
        ],
    );
    git(ws, &["worktree", "add", "-q", "tree"]);
}

pub fn git_names(m: &Manifest) -> Vec<&Path> {
    let is_git = |p: &&Path| {
        p.file_name()
            .is_some_and(|n| n.to_string_lossy().starts_with(".git"))
    };
    m.0.keys()
        .map(std::path::PathBuf::as_path)
        .filter(is_git)
        .collect()
}

/// The agent commits in each of the four.
pub fn turn(lab: &Lab) {
    for (dir, file) in [(".", "f"), ("vendor/x", "n"), ("module", "s"), ("tree", "w")] {
        for i in 0..4 {
            commit(&lab.at(dir), file, &format!("by the agent {i}"));
        }
    }
}

/// All four are whole.
pub fn git_fine(lab: &Lab, what: &str) {
    for dir in [".", "vendor/x", "module", "tree"] {
        for args in [&["fsck", "--no-progress"][..], &["--no-optional-locks", "status"]] {
            eprintln!("{what}: git {args:?} in {dir}");
            git(&lab.at(dir), args);
        }
    }
}

/// Files with names outside (as `git clone` makes them) are no obstacle: they are told, the outside stays.
#[test]
fn files_with_names_outside_become_files_of_their_own() {
    let lab = Lab::plain(|ws| {
        std::fs::write(ws.join("a"), "x").expect("write");
        std::fs::hard_link(ws.join("a"), ws.join("b")).expect("link");
        std::fs::hard_link(ws.join("a"), ws.with_file_name("outside")).expect("link");
        std::fs::write(ws.join("c"), "x").expect("write");
        std::fs::hard_link(ws.join("c"), ws.join("d")).expect("link");
    });
    let before = lab.manifest();
    let plan = lab.ok(&["--dry-run", "track", lab.ws_text()]);
    assert!(
        plan["plan"]["blockers"][0]["what"]
            .to_string()
            .contains("1 file has names outside"),
        "{plan}"
    );
    lab.track();
    before.assert_same(&lab.manifest(), "with the links among themselves");
    lab.write("a", "changed");
    let outside = std::fs::read_to_string(lab.dir().join("outside")).expect("read");
    assert_eq!((outside.as_str(), lab.read("b").as_str()), ("x", "changed"));
}

/// P045: a root repository, a nested one, a submodule and a worktree: killed at any moment of a rewind,
/// twenty times, all are whole and no `.git` name ever changed.
#[test]
fn p045_repositories_survive_a_kill_at_any_moment() {
    let lab = Lab::new(four);
    lab.message(1);
    let good = lab.manifest();
    turn(&lab);
    let bad = lab.manifest();
    for n in 0..20u64 {
        let mut c = lab.json_command(&["--yes", "rewind", "1"]);
        let mut child = c
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("start");
        // any moment: spread over the time that a rewind takes
        std::thread::sleep(Duration::from_millis(20 + n * 17 % 140));
        let _ended = child.kill();
        child.wait().expect("its end");
        let mid = lab.manifest();
        let known = |p: &Path| good.0.contains_key(p) || bad.0.contains_key(p);
        let renamed: Vec<&Path> = git_names(&mid).into_iter().filter(|p| !known(p)).collect();
        assert!(renamed.is_empty(), "{renamed:?}");
        lab.ok(&["--yes", "recover"]);
        let now = lab.manifest();
        assert!(
            now == good || now == bad,
            "run {n}: {:?}",
            good.differs(&now).iter().take(3).collect::<Vec<_>>()
        );
        git_fine(&lab, &format!("run {n}"));
        if now == good {
            lab.ok(&["--yes", "undo"]);
        }
    }
}
