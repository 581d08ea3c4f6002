//! `respool hooks` through the program: where the files go, whose they are, that what they call works, and
//! whether messages will have checkpoints.

mod common;

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;

use common::{Store, Style, Tracked, respool, with_input};
use serde_json::{Value, json};

fn words(t: &Tracked, words: &[&str]) -> Value {
    let (code, said) = t.run(words);
    assert_eq!(code, 0, "{words:?}: {said}");
    said
}

fn status(t: &Tracked) -> (Value, Value) {
    let said = words(t, &["hooks", "status", "openhands"]);
    (said["will_checkpoint"].clone(), said["reason"].clone())
}

/// Runs the command of the first entry for `event` as OpenHands does.
fn call(file: &Path, event: &str, cwd: &Path, input: &str) -> String {
    let config: Value = serde_json::from_slice(&std::fs::read(file).expect("file")).expect("JSON");
    let command = config["hooks"][event][0]["hooks"][0]["command"]
        .as_str()
        .expect("a command");
    let mut c = Command::new("/bin/sh");
    c.arg("-c").arg(command).current_dir(cwd).env_clear();
    let out = with_input(c, input.as_bytes());
    assert!(out.status.success(), "{command}: {out:?}");
    String::from_utf8(out.stdout).expect("text")
}

#[test]
fn what_is_installed_takes_checkpoints_from_any_folder() {
    let t = Tracked::new();
    let sub = t.workspace().join("sub/dir");
    std::fs::create_dir_all(&sub).expect("folders");
    let file = t.workspace().join(".openhands/hooks.json");
    let (will, reason) = status(&t);
    assert_eq!(will, false);
    assert_eq!(
        reason,
        "the hook is not installed: respool hooks install openhands"
    );
    words(&t, &["--dry-run", "hooks", "install", "openhands", "--project"]);
    assert!(!file.exists());
    // from a folder in it, with a relative state folder: the file is the workspace's, the path in it absolute
    let mut c = respool(t.dir().path());
    c.current_dir(&sub)
        .args(["--json", "--state-dir", "../../../state"]);
    let out = c
        .args(["hooks", "install", "openhands", "--project"])
        .output()
        .expect("respool");
    assert!(out.status.success() && file.exists(), "{out:?}");
    assert_eq!(status(&t), (json!(true), Value::Null));
    let store = Store::new(&t, 1, Style::Renamed);
    let before = t.checkpoints();
    for (event, message) in [("UserPromptSubmit", Some("m")), ("Stop", None)] {
        let said = call(&file, event, Path::new("/"), &store.hook_input(event, message));
        assert!(said.contains("respool: checkpoint cp-"), "{said}");
    }
    assert_eq!(t.checkpoints(), before + 2);
    words(&t, &["hooks", "uninstall", "openhands", "--project"]);
    assert!(!t.workspace().join(".openhands").exists());
}

/// A running watcher is as good as the hook; without an agent named, it is OpenHands.
#[test]
fn a_watcher_that_runs_is_counted() {
    let t = Tracked::new();
    let said = words(&t, &["hooks", "status"]);
    assert_eq!(
        (&said["will_checkpoint"], &said["watcher"]),
        (&json!(false), &json!(false))
    );
    let mut watcher = t
        .command()
        .arg("watch")
        .stdout(std::process::Stdio::piped())
        .spawn()
        .expect("respool");
    let mut lines = std::io::BufRead::lines(std::io::BufReader::new(watcher.stdout.take().expect("stdout")));
    let waiting = lines.next().expect("a line").expect("text");
    let said = words(&t, &["hooks", "status"]);
    watcher.kill().expect("kill");
    watcher.wait().expect("end");
    assert!(waiting.contains("waiting"), "{waiting}");
    assert_eq!(
        (&said["will_checkpoint"], &said["watcher"], &said["reason"]),
        (&json!(true), &json!(true), &Value::Null)
    );
    assert_eq!(status(&t).0, false, "it is gone");
}

#[test]
fn the_projects_file_hides_the_users() {
    let t = Tracked::new();
    let home = t.dir().join("home/.openhands/hooks.json");
    words(&t, &["hooks", "install", "openhands", "--user"]);
    assert!(home.exists());
    assert_eq!(status(&t), (json!(true), Value::Null));
    std::fs::create_dir(t.workspace().join(".openhands")).expect("folder");
    std::fs::write(t.workspace().join(".openhands/hooks.json"), "{}").expect("file");
    let (will, reason) = status(&t);
    assert_eq!(will, false);
    let reason = reason.as_str().expect("a reason");
    assert!(
        reason.contains("the project's own file is read instead"),
        "{reason}"
    );
    words(&t, &["hooks", "install", "openhands", "--project"]);
    assert_eq!(status(&t).0, true);
    words(&t, &["hooks", "uninstall", "openhands", "--user"]);
    assert!(!home.exists());
}

#[test]
fn where_nothing_is_tracked_there_will_be_none() {
    let t = Tracked::new();
    let other = t.dir().join("other");
    std::fs::create_dir(&other).expect("folder");
    let mut c = t.command();
    c.current_dir(&other);
    let out = c
        .args(["hooks", "status", "openhands"])
        .output()
        .expect("respool");
    let said: Value = serde_json::from_slice(&out.stdout).expect("JSON");
    assert_eq!(
        (&said["will_checkpoint"], &said["tracked"], &said["reason"]),
        (
            &json!(false),
            &json!(false),
            &json!("the workspace is not tracked")
        )
    );
}

#[test]
fn through_sudo_the_users_files_are_the_users() {
    let t = Tracked::new();
    let home = t.dir().join("dev");
    std::fs::create_dir(&home).expect("home");
    std::os::unix::fs::chown(&home, Some(4321), Some(1234)).expect("chown");
    let passwd = t.dir().join("passwd");
    let entries = format!(
        "root:x:0:0::/root:/bin/sh\ndev:x:4321:1234::{}:/bin/sh\n",
        home.display()
    );
    std::fs::write(&passwd, entries).expect("passwd");
    // in a mount namespace of its own, where that user exists
    let sudo = |words: &[&str]| {
        let mut c = Command::new("unshare");
        c.args(["--mount", "--propagation", "private", "/bin/sh", "-c"]);
        c.arg(r#"mount --bind "$1" /etc/passwd && shift && exec "$@""#)
            .arg("sh")
            .arg(&passwd);
        c.arg(env!("CARGO_BIN_EXE_respool"))
            .args(["--json", "--state-dir"])
            .arg(t.state())
            .args(words);
        c.current_dir(t.workspace())
            .env("SUDO_USER", "dev")
            .env("HOME", "/root");
        let out = c.output().expect("unshare");
        assert!(out.status.success(), "{out:?}");
        serde_json::from_slice::<Value>(&out.stdout).expect("JSON")
    };
    sudo(&["hooks", "install", "openhands", "--user"]);
    for made in [home.join(".openhands"), home.join(".openhands/hooks.json")] {
        let stat = std::fs::symlink_metadata(&made).expect("made");
        assert_eq!((stat.uid(), stat.gid()), (4321, 1234), "{}", made.display());
    }
    let said = sudo(&["hooks", "status", "openhands"]);
    assert_eq!(said["tracked"], true, "{said}");
    assert_eq!(said["will_checkpoint"], false, "{said}");
    let reason = said["reason"].as_str().expect("a reason");
    assert!(
        reason.starts_with("the hook needs root, and the agent runs as another user (user id 4321)"),
        "{reason}"
    );
    sudo(&["hooks", "uninstall", "openhands", "--user"]);
    assert_eq!(std::fs::read_dir(&home).expect("home").count(), 0);
}
