//! `respool run -- claude`: the hook for this run only. The agent is a script that does with its settings what Claude Code
//! does with them.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use crate::common;
use crate::copies::Plain;
use crate::run::script;

const SESSION: &str = "11111111-2222-4333-8444-555555555555";

/// Calls the hooks of its settings around one turn: the message is stored after the hook, as Claude Code does it.
const AGENT: &str = r#"
[ "$1" = --settings ] || exit 8
case $2 in {*) S=$2 ;; *) S=$(cat "$2"); stat -c %a "$2" >$HOME/mode; echo "$2" >$HOME/path ;; esac
printf %s "$S" >$HOME/settings
hook() {
    printf %s "$S" | sed -n "s/.*\"$1\": \[{\"hooks\": \[{\"type\": \"command\", \"command\": \"\([^\"]*\)\".*/\1/p" >$HOME/command
    printf '{"session_id":"%s","cwd":"%s","hook_event_name":"%s","prompt":"go"}' $ID "$PWD" $1 |
        sh -c "$(cat $HOME/command)" >>$HOME/heard || exit 9
}
ID=11111111-2222-4333-8444-555555555555
P=$HOME/.claude/projects/-w; mkdir -p $P
hook UserPromptSubmit
echo two >f
printf '{"type":"user","uuid":"u1","parentUuid":null,"sessionId":"%s","cwd":"%s","message":{"content":"go"}}\n' $ID "$PWD" >>$P/$ID.jsonl
printf '{"type":"assistant","uuid":"u2","parentUuid":"u1","message":{"stop_reason":"end_turn","content":[]}}\n' >>$P/$ID.jsonl
hook Stop
shift 2
echo "$@"
exit 7
"#;

fn user() -> Plain {
    common::need_root();
    let user = Plain::new();
    std::fs::create_dir_all(user.dir.join("home/bin")).expect("folders");
    script(&user.dir.join("home/bin/claude"), AGENT);
    user.shell("true", true);
    user
}

fn home(user: &Plain, name: &str) -> PathBuf {
    user.dir.join("home").join(name)
}

fn read(user: &Plain, name: &str) -> String {
    std::fs::read_to_string(home(user, name)).expect(name)
}

/// `respool run` of the script in the workspace, as the user.
fn run(user: &Plain, words: &[&str]) -> std::process::Output {
    let mut c: Command = user.command(user.dir.join("respool").to_str().expect("UTF-8"));
    c.current_dir(user.ws()).stdin(Stdio::null());
    c.args(["--yes", "run", "--vault", "copy", "--"])
        .arg(home(user, "bin/claude"));
    c.args(words).output().expect("run")
}

#[test]
fn the_hook_is_there_for_one_run_and_touches_no_file() {
    let user = user();
    let out = run(&user, &["-p", "go on"]);
    let err = String::from_utf8_lossy(&out.stderr).into_owned();
    assert_eq!(out.status.code(), Some(7), "{err}");
    assert_eq!(String::from_utf8_lossy(&out.stdout), "-p go on\n");
    assert!(err.contains("1 checkpoint of messages taken"), "{err}");
    assert_eq!(read(&user, "heard"), "", "the model would hear it");
    assert!(!home(&user, ".claude/settings.json").exists() && !user.ws().join(".claude").exists());
    let rows = user.ok(&["-c", SESSION, "timeline"]);
    let row = &rows["rows"][0];
    assert_eq!(row["checkpoint"]["state"], "ok", "{rows}");
    assert_eq!(row["changes"]["modified"], 1, "{rows}");
    user.ok(&["-c", SESSION, "--yes", "rewind", "m1", "--files"]);
    assert_eq!(std::fs::read_to_string(user.ws().join("f")).expect("f"), "one");
}

#[test]
fn settings_of_the_user_go_with_it() {
    let user = user();
    let mine = home(&user, "mine.json");
    std::fs::write(&mine, "{\"env\": {\"SECRET\": \"s3\"}, \"model\": \"opus\"}").expect("write");
    user.shell("true", true);
    for (given, in_file) in [
        (mine.to_str().expect("UTF-8").to_owned(), true),
        (
            "{\"env\": {\"SECRET\": \"s3\"}, \"model\": \"opus\"}".to_owned(),
            false,
        ),
    ] {
        let out = run(&user, &["--settings", &given, "-p", "x"]);
        let err = String::from_utf8_lossy(&out.stderr).into_owned();
        assert_eq!(out.status.code(), Some(7), "{err}");
        assert_eq!(String::from_utf8_lossy(&out.stdout), "-p x\n");
        let settings: serde_json::Value = serde_json::from_str(&read(&user, "settings")).expect("JSON");
        assert_eq!(
            (&settings["model"], &settings["env"]["SECRET"]),
            (&"opus".into(), &"s3".into())
        );
        if in_file {
            // nobody else sees what was in the file, and nothing is left of it
            assert_eq!(read(&user, "mode"), "600\n");
            let path = read(&user, "path");
            assert!(!std::path::Path::new(path.trim()).exists(), "{path}");
        }
    }
    // what cannot be used is said before anything begins
    for (given, code) in [("nowhere.json", 4), ("{", 5)] {
        let out = run(&user, &["--settings", given]);
        assert_eq!(
            out.status.code(),
            Some(code),
            "{}",
            String::from_utf8_lossy(&out.stderr)
        );
    }
}
