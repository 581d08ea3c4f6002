//! The config from outside: the user's commands, retention, and the file that a workspace has of its own, which
//! the agent can write.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::lab::{Answer, Lab};

pub fn config(lab: &Lab, text: &str) -> String {
    let file = lab.dir().join("c.toml");
    std::fs::write(&file, text).expect("write");
    std::fs::set_permissions(&file, PermissionsExt::from_mode(0o644)).expect("chmod");
    file.to_str().expect("UTF-8").to_owned()
}

pub fn fill(ws: &Path) {
    std::fs::write(ws.join("f"), "one").expect("write");
}

pub fn with(lab: &Lab, file: &str, args: &[&str], env: &[(&str, &str)]) -> Answer {
    let mut c = lab.command();
    c.args(["--json", "--config", file, "-s", lab.ws_text()])
        .args(args);
    c.envs(env.iter().copied());
    Answer::of(c.output().expect("run"))
}

/// A folder that anybody may write to.
fn open_folder(lab: &Lab) -> PathBuf {
    let folder = lab.dir().join("out");
    std::fs::create_dir_all(&folder).expect("mkdir");
    std::fs::set_permissions(&folder, PermissionsExt::from_mode(0o777)).expect("chmod");
    folder
}

fn words(text: &str) -> Vec<String> {
    let mut all: Vec<String> = text.split_whitespace().map(ToOwned::to_owned).collect();
    all.sort();
    all.dedup();
    all
}

fn groups_of(user: &str) -> Vec<String> {
    let out = std::process::Command::new("id")
        .args(["-G", user])
        .output()
        .expect("id");
    words(&String::from_utf8(out.stdout).expect("UTF-8"))
}

/// The user's commands run as the invoking user with all groups of theirs and nothing of root's, know what it
/// is about, and are told nothing of root's surroundings.
#[test]
fn hooks_run_as_the_invoking_user() {
    let lab = Lab::new(fill);
    let out = open_folder(&lab);
    let out = out.display();
    let script = |name: &str| {
        format!(
            "{{ id -u; id -g; id -G; pwd; echo $RESPOOL_WORKSPACE; echo k$RESPOOL_KIND c$RESPOOL_CHECKPOINT o$RESPOOL_OPERATION; \
             echo $HOME $USER $SECRET; tty; grep NoNewPrivs /proc/self/status; }} > {out}/{name}"
        )
    };
    let file = config(
        &lab,
        &format!(
            "[hooks]\npre_checkpoint = [\"sh\", \"-c\", '{}']\npost_rewind = [\"sh\", \"-c\", '{}']\n",
            script("pre"),
            script("post")
        ),
    );
    let lines = |name: &str| -> Vec<String> {
        let text = std::fs::read_to_string(lab.dir().join("out").join(name)).expect("it ran");
        text.lines().map(ToOwned::to_owned).collect()
    };
    let nobody = nix::unistd::User::from_name("nobody")
        .expect("users")
        .expect("nobody");
    let (uid, gid) = (nobody.uid.to_string(), nobody.gid.to_string());
    let env = [("SUDO_USER", "nobody"), ("SECRET", "root's")];
    let a = with(&lab, &file, &["checkpoint"], &env);
    assert_eq!((a.code, a.err.as_str()), (Some(0), ""), "{}", a.text());
    let id = a.json()["checkpoint"].as_str().expect("an id").to_owned();
    let pre = lines("pre");
    assert_eq!((&pre[0], &pre[1]), (&uid, &gid));
    assert_eq!(words(&pre[2]), groups_of("nobody"));
    assert_eq!((pre[3].as_str(), pre[4].as_str()), (lab.ws_text(), lab.ws_text()));
    assert_eq!(pre[5], "kmanual c o");
    assert_eq!(pre[6], format!("{} nobody", nobody.dir.display()));
    assert_eq!(pre[7], "not a tty");
    lab.write("f", "two");
    let a = with(&lab, &file, &["--yes", "rewind", &id, "--files"], &env);
    assert_eq!(a.code, Some(0), "{} {}", a.text(), a.err);
    let operation = a.json()["operation"].as_str().expect("an id").to_owned();
    let post = lines("post");
    assert_eq!((&post[0], &post[1]), (&uid, &gid));
    assert_eq!(post[5], format!("k c{id} o{operation}"));
    // root itself, with its own config
    let a = with(&lab, &file, &["--yes", "undo"], &[]);
    assert_eq!(a.code, Some(0), "{} {}", a.text(), a.err);
    assert_eq!(lines("post")[0], "0");
}

/// Root never runs what another user's file says, and nothing from a file that others can write.
#[test]
fn hooks_of_a_file_that_is_not_trusted_do_not_run() {
    let lab = Lab::new(fill);
    let mark = open_folder(&lab).join("ran");
    let file = config(
        &lab,
        &format!("[hooks]\npre_checkpoint = [\"touch\", {mark:?}]\n"),
    );
    let other = nix::unistd::Uid::from_raw(12_321);
    nix::unistd::chown(Path::new(&file), Some(other), None).expect("chown");
    for user in ["", "nobody"] {
        let a = with(&lab, &file, &["checkpoint"], &[("SUDO_USER", user)]);
        assert_eq!(a.code, Some(0), "{}", a.text());
        assert!(a.err.contains("belongs to another user"), "{}", a.err);
    }
    nix::unistd::chown(Path::new(&file), Some(0.into()), None).expect("chown");
    std::fs::set_permissions(&file, PermissionsExt::from_mode(0o666)).expect("chmod");
    let a = with(&lab, &file, &["checkpoint"], &[]);
    assert!(
        a.code == Some(0) && a.err.contains("written by others"),
        "{}",
        a.err
    );
    assert!(!mark.exists());
    std::fs::set_permissions(&file, PermissionsExt::from_mode(0o644)).expect("chmod");
    let a = with(&lab, &file, &["checkpoint"], &[]);
    assert!(a.code == Some(0) && mark.exists(), "{}", a.err);
}

/// A command that fails, is not there or does not end is said; the checkpoint is taken, the rewind stays.
#[test]
fn hooks_that_fail_stop_nothing() {
    let lab = Lab::new(fill);
    let file = config(
        &lab,
        "[hooks]\npre_checkpoint = [\"sh\", \"-c\", \"printf 'no\\\\033[2Jdb'; exit 3\"]\npost_rewind = [\"/none/such\"]\n",
    );
    let a = with(&lab, &file, &["checkpoint"], &[]);
    assert_eq!(a.code, Some(0), "{}", a.err);
    assert!(
        a.err.contains("pre_checkpoint (sh) ended with exit code 3: no"),
        "{}",
        a.err
    );
    assert!(!a.err.contains('\u{1b}'), "{}", a.err);
    let id = a.json()["checkpoint"].as_str().expect("an id").to_owned();
    lab.write("f", "two");
    let a = with(&lab, &file, &["--yes", "rewind", &id, "--files"], &[]);
    assert_eq!(
        (a.code, &a.json()["verified"]),
        (Some(0), &json!(true)),
        "{}",
        a.err
    );
    assert!(
        a.json()["notes"]
            .to_string()
            .contains("post_rewind (/none/such) ended with exit code 127"),
        "{}",
        a.text()
    );
    assert_eq!(lab.read("f"), "one");
    let file = config(
        &lab,
        "[hooks]\npre_checkpoint = [\"sh\", \"-c\", \"sleep 600 & sleep 601\"]\n",
    );
    let a = with(&lab, &file, &["checkpoint"], &[]);
    assert_eq!(a.code, Some(0), "{}", a.err);
    assert!(a.err.contains("took more than 5 seconds"), "{}", a.err);
    // what it started is gone with it: the lab looks for processes at its end
}

/// What a hostile workspace puts into its own file.
#[test]
fn the_workspaces_own_file_runs_nothing_and_removes_nothing() {
    let lab = Lab::copies(fill);
    let mark = lab.dir().join("ran");
    let ids: Vec<String> = (0..3).map(|_| lab.checkpoint()).collect();
    lab.write(
        ".respool.toml",
        format!(
            "[hooks]\npre_checkpoint = [\"touch\", {mark:?}]\npost_rewind = [\"touch\", {mark:?}]\n\
             [retention]\nkeep = 1\nkeep_within = \"0s\"\nmax_bytes = 1\n[sandbox]\nvault = \"btrfs\"\n"
        ),
    );
    let none = config(&lab, "");
    let a = with(
        &lab,
        &none,
        &["--yes", "rewind", &ids[0], "--files", "--path", "f"],
        &[],
    );
    assert_eq!(a.code, Some(0), "{}", a.err);
    for key in ["hooks.pre_checkpoint", "hooks.post_rewind", "sandbox.vault"] {
        assert!(
            a.err.contains(&format!(".respool.toml: {key} is ignored")),
            "{}",
            a.err
        );
    }
    assert!(!mark.exists());
    // its rules alone are none
    let a = with(&lab, &none, &["--yes", "prune"], &[]);
    assert_eq!(a.code, Some(2), "{}", a.text());
    let long = config(&lab, "[retention]\nkeep_within = \"1825d\"\n");
    let a = with(&lab, &long, &["--yes", "prune"], &[]);
    assert_eq!((a.code, &a.json()["removed"]), (Some(0), &json!([])), "{}", a.err);
    // it can make more stay
    lab.write(".respool.toml", "[retention]\nkeep = 100\n");
    let short = config(&lab, "[retention]\nkeep = 1\n");
    let a = with(&lab, &short, &["--yes", "prune"], &[]);
    assert_eq!((a.code, &a.json()["removed"]), (Some(0), &json!([])), "{}", a.err);
    // a broken one stops nothing
    lab.write(".respool.toml", "[retention\n\u{1b}[2J");
    let a = with(&lab, &short, &["--yes", "prune"], &[]);
    assert!(
        a.code == Some(0) && a.json()["removed"].as_array().is_some_and(|r| r.len() >= 3),
        "{}",
        a.text()
    );
    assert!(
        a.err.contains(".respool.toml: it is ignored: line 1") && !a.err.contains('\u{1b}'),
        "{}",
        a.err
    );
}

/// P034: nothing that the user's own setting keeps is removed.
#[test]
fn p034_prune_heeds_the_users_setting() {
    let lab = Lab::copies(fill);
    for _ in 0..4 {
        lab.checkpoint();
    }
    let old = (chrono::Utc::now() - chrono::TimeDelta::days(40)).to_rfc3339();
    let mut dated = 0;
    for sandbox in std::fs::read_dir(lab.state().join("copies"))
        .expect("copies")
        .flatten()
    {
        for snap in std::fs::read_dir(sandbox.path().join("snaps"))
            .expect("snaps")
            .flatten()
        {
            let path = snap.path().join("meta.json");
            let mut meta: Value = serde_json::from_slice(&std::fs::read(&path).expect("meta")).expect("JSON");
            meta["time"] = json!(old);
            std::fs::write(&path, meta.to_string()).expect("write");
            dated += 1;
        }
    }
    assert_eq!(dated, 5);
    let file = config(&lab, "[retention]\nkeep_within = \"1825d\"\n");
    let a = with(&lab, &file, &["--yes", "prune"], &[]);
    assert_eq!((a.code, &a.json()["removed"]), (Some(0), &json!([])), "{}", a.err);
    let file = config(&lab, "[retention]\nkeep_within = \"30d\"\n");
    let a = with(&lab, &file, &["--yes", "prune"], &[]);
    assert_eq!(
        a.json()["removed"].as_array().map(Vec::len),
        Some(4),
        "all but the newest: {}",
        a.text()
    );
}
