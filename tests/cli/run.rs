//! `respool run`: an agent under protection, and what an agent may not do. The agents are scripts of that name.

use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use crate::common::{self, wait_until};
use crate::copies::Plain;
use crate::lab::{Lab, SOON, cut};

const CONVERSATION: &str = "11111111222243338444555555555555";

/// An executable script.
pub fn script(path: &Path, text: &str) {
    std::fs::write(path, format!("#!/bin/sh\n{text}")).expect("write");
    std::fs::set_permissions(path, PermissionsExt::from_mode(0o755)).expect("chmod");
}

/// Takes away what the agent did after the first message.
fn only_the_message(store: &Path) {
    let mut events: Vec<PathBuf> = std::fs::read_dir(store.join("events"))
        .expect("events")
        .map(|e| e.expect("entry").path())
        .collect();
    events.sort();
    for later in events.drain(2..) {
        std::fs::remove_file(later).expect("remove");
    }
    let json = |path: &Path| -> serde_json::Value {
        serde_json::from_slice(&std::fs::read(path).expect("read")).expect("JSON")
    };
    let message = json(&events[1]);
    assert_eq!(message["source"], "user");
    let mut base = json(&store.join("base_state.json"));
    base["leaf_event_id"] = message["id"].clone();
    base["execution_status"] = "running".into();
    std::fs::write(store.join("base_state.json"), base.to_string()).expect("write");
}

/// A user without rights whose agent `openhands` is this script; `stage` is a store with a message that has just come.
fn user(agent: &str) -> Plain {
    common::need_root();
    let user = Plain::new();
    std::fs::create_dir_all(user.dir.join("home/.openhands/conversations")).expect("folders");
    std::fs::create_dir_all(user.dir.join("home/bin")).expect("folders");
    let ws = user.ws();
    let to = user.dir.join("stage");
    std::fs::create_dir_all(to.join("events")).expect("folders");
    cut(&to, 1, ws.to_str().expect("UTF-8"));
    only_the_message(&to);
    script(&user.dir.join("home/bin/openhands"), agent);
    user.shell("true", true);
    user
}

fn agent(user: &Plain) -> String {
    user.dir
        .join("home/bin/openhands")
        .to_str()
        .expect("UTF-8")
        .to_owned()
}

/// `respool` in the workspace, as the user.
fn in_workspace(user: &Plain) -> Command {
    let mut c = user.command(user.dir.join("respool").to_str().expect("UTF-8"));
    c.current_dir(user.ws()).stdin(Stdio::null());
    c
}

/// A program of the agent's name that lies in the workspace is not the agent, whatever PATH says.
#[test]
fn a_program_in_the_workspace_is_not_found_by_its_name() {
    let user = user("");
    let ran = user.dir.join("home/ran");
    script(&user.ws().join("openhands"), &format!("touch {}", ran.display()));
    user.shell("true", true);
    let out = in_workspace(&user)
        .env("PATH", ".::./:/usr/bin:/bin")
        .args(["--yes", "run", "--vault", "copy", "--", "openhands"])
        .output()
        .expect("run");
    let said = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(said.contains("no program openhands"), "{said}");
    assert!(!ran.exists(), "{said}");
}

/// What an agent script starts with: where things are, and how it tries to rewind.
fn head(user_dir: &str) -> String {
    format!(
        "R={user_dir}/respool; STORE={user_dir}/home/.openhands/conversations/{CONVERSATION}\n\
         attempt() {{ \"$@\" >>{user_dir}/home/said 2>&1; echo \"$1 said $?\" >>{user_dir}/home/said; }}\n"
    )
}

#[test]
fn a_checkpoint_at_each_message_and_no_rewind_by_the_agent() {
    let user = user("");
    let dir = user.dir.path().to_str().expect("UTF-8").to_owned();
    // a message; when it has its checkpoint, the agent tries to go back: itself, by its child without an environment, and by
    // a child that it has left behind
    let text = format!(
        "{}\
         cp -r {dir}/stage $STORE\n\
         n=0; until $R --json timeline $STORE | grep -qE 'state.:.(ok|late)'; do n=$((n+1)); [ $n -lt 200 ] || exit 9; sleep 0.02; done\n\
         echo two > f\n\
         attempt $R --yes rewind m1 --files\n\
         attempt env -i HOME=$HOME PATH=$PATH $R --yes undo\n\
         attempt $R --yes redo\n\
         attempt $R --dry-run rewind m1 --files\n\
         (setsid sh -c 'sleep 0.1; env -i HOME=$HOME PATH=/usr/bin:/bin $0 --yes -s . undo; echo left said $?' $R \
            >{dir}/home/left 2>&1 &)\n\
         n=0; until grep -q said {dir}/home/left; do n=$((n+1)); [ $n -lt 200 ] || exit 9; sleep 0.02; done\n\
         echo \"$@\"; exit 7\n",
        head(&dir)
    );
    script(&user.dir.join("home/bin/openhands"), &text);
    user.shell("true", true);
    let out = in_workspace(&user)
        .args([
            "--yes",
            "run",
            "--vault",
            "copy",
            "--",
            &agent(&user),
            "--task",
            "a b",
        ])
        .output()
        .expect("run");
    let err = String::from_utf8_lossy(&out.stderr).into_owned();
    assert_eq!(out.status.code(), Some(7), "{err}");
    assert_eq!(String::from_utf8_lossy(&out.stdout), "--task a b\n");
    assert!(
        err.contains("1 checkpoint of messages taken; look: respool"),
        "{err}"
    );
    let said = std::fs::read_to_string(user.dir.join("home/said")).expect("said");
    let refused = said
        .matches("this was started by the agent (openhands, process ")
        .count();
    assert_eq!(refused, 3, "{said}");
    assert!(said.contains("hint: run it in a terminal of your own"), "{said}");
    let ends: Vec<&str> = said.lines().filter(|l| l.contains(" said ")).collect();
    assert_eq!(ends.len(), 4, "{said}");
    assert!(ends[..3].iter().all(|l| l.ends_with(" 3")), "{said}");
    assert!(ends[3].ends_with(" 0"), "a dry run changes nothing: {said}");
    let left = std::fs::read_to_string(user.dir.join("home/left")).expect("left");
    assert!(
        left.contains("started by the agent") && left.contains("left said 3"),
        "{left}"
    );
    assert_eq!(std::fs::read_to_string(user.ws().join("f")).expect("f"), "two\n");
    // the user himself goes back
    let ws = user.ws();
    let ws = ws.to_str().expect("UTF-8");
    user.ok(&["-c", CONVERSATION, "--yes", "rewind", "m1", "--files"]);
    assert_eq!(std::fs::read_to_string(user.ws().join("f")).expect("f"), "one");
    user.ok(&["-s", ws, "--yes", "undo"]);
}

/// Also where it was started by hand: it is known by its name.
#[test]
fn an_agent_that_was_started_by_hand_is_known_by_its_name() {
    let user = user("");
    let dir = user.dir.path().to_str().expect("UTF-8").to_owned();
    let ws = user.ws();
    let ws = ws.to_str().expect("UTF-8");
    user.ok(&["--yes", "track", ws, "--vault", "copy"]);
    let id = user.ok(&["-s", ws, "checkpoint"])["checkpoint"]
        .as_str()
        .expect("an id")
        .to_owned();
    let text = format!("{}attempt $R -s {ws} --yes rewind {id} --files\n", head(&dir));
    script(&user.dir.join("home/bin/openhands"), &text);
    let ended = user.command(&agent(&user)).status().expect("the agent");
    assert!(ended.success());
    let said = std::fs::read_to_string(user.dir.join("home/said")).expect("said");
    assert!(
        said.contains("(openhands, process ") && said.contains("said 3"),
        "{said}"
    );
    // the same script under another name is a script
    let other = user.dir.join("home/bin/mine");
    std::fs::rename(agent(&user), &other).expect("rename");
    let ended = user.command(other.to_str().expect("UTF-8")).status();
    assert!(ended.expect("the script").success());
    let said = std::fs::read_to_string(user.dir.join("home/said")).expect("said");
    assert!(said.ends_with("said 0\n"), "{said}");
}

/// The program that calls the hook is recorded, whatever its name; a person who calls it is not.
#[test]
fn the_hooks_caller_is_recorded() {
    let lab = Lab::copies(|ws| std::fs::write(ws.join("f"), "one").expect("write"));
    let id = lab.checkpoint();
    let event = format!(
        r#"{{"event_type":"UserPromptSubmit","message":"do it","session_id":"{CONVERSATION}","working_dir":"{}"}}"#,
        lab.ws_text()
    );
    let hook_then_rewind = |marked: bool| {
        let mark = if marked {
            "OPENHANDS_EVENT_TYPE=UserPromptSubmit "
        } else {
            ""
        };
        // perl stands for an agent that nobody knows by name; each command has a shell between
        let perl = r#"system("sh", "-c", $ARGV[0]); exit(system("sh", "-c", $ARGV[1]) >> 8)"#;
        let state = lab.state();
        let program = format!(
            "{} --state-dir {}",
            env!("CARGO_BIN_EXE_respool"),
            state.display()
        );
        let mut c = Command::new("perl");
        c.args(["-e", perl]);
        c.arg(format!(
            "printf %s '{event}' | {mark}{program} hook openhands >/dev/null; true"
        ));
        c.arg(format!(
            "{program} -s {} --yes rewind {id} --files; exit $?",
            lab.ws_text()
        ));
        let template = common::respool(lab.dir());
        c.env_clear();
        c.env("RESPOOL_SOCKET", "/nonexistent/no-service");
        for (name, value) in template.get_envs() {
            c.env(name, value.expect("a value"));
        }
        c.output().expect("perl")
    };
    let out = hook_then_rewind(true);
    let err = String::from_utf8_lossy(&out.stderr).into_owned();
    assert_eq!(out.status.code(), Some(3), "{err}");
    assert!(err.contains("started by the agent (perl, process "), "{err}");
    let out = hook_then_rewind(false);
    assert_eq!(
        out.status.code(),
        Some(0),
        "{}",
        String::from_utf8_lossy(&out.stderr)
    );
}

/// Under sudo the agent is the user's, with all groups, and root's variables are gone.
#[test]
fn under_sudo_the_agent_is_not_root() {
    let lab = Lab::plain(|ws| std::fs::write(ws.join("f"), "one").expect("write"));
    let open = || PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(lab.dir(), open()).expect("chmod");
    let agent = lab.dir().join("openhands");
    script(
        &agent,
        "id -u; id -ru; id -G; echo \"$USER $HOME [$SUDO_USER] $RESPOOL_RUN\"; grep -E '^(Uid|CapEff|SigBlk):' /proc/self/status\n",
    );
    let out = lab
        .command()
        .args(["--yes", "run", "--vault", "copy", "--"])
        .arg(&agent)
        .current_dir(lab.ws())
        .env("SUDO_USER", "nobody")
        .output()
        .expect("run");
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    assert_eq!(
        out.status.code(),
        Some(0),
        "{text}{}",
        String::from_utf8_lossy(&out.stderr)
    );
    let mut lines = text.lines();
    let nobody = nix::unistd::User::from_name("nobody")
        .expect("accounts")
        .expect("nobody");
    let uid = nobody.uid.to_string();
    assert_eq!(
        (lines.next(), lines.next()),
        (Some(uid.as_str()), Some(uid.as_str())),
        "{text}"
    );
    assert_eq!(lines.next(), Some(nobody.gid.to_string().as_str()), "{text}");
    let home = nobody.dir.display();
    assert_eq!(
        lines.next(),
        Some(format!("nobody {home} [] openhands").as_str()),
        "{text}"
    );
    assert!(
        text.contains(&format!("Uid:\t{uid}\t{uid}\t{uid}\t{uid}")),
        "{text}"
    );
    assert!(text.contains("CapEff:\t0000000000000000"), "{text}");
    assert!(text.contains("SigBlk:\t0000000000000000"), "{text}");
    // the record is root's, out of the agent's reach
    let records: Vec<PathBuf> = std::fs::read_dir(lab.state().join("copies"))
        .expect("copies")
        .map(|e| e.expect("entry").path().join("agents.jsonl"))
        .collect();
    assert_eq!(records.len(), 1);
    let record = std::fs::read_to_string(&records[0]).expect("the record");
    assert_eq!(record.lines().count(), 2, "{record}");
    assert!(record.contains("\"agent\":\"openhands\""), "{record}");
    let readable = Command::new("setpriv")
        .args(["--reuid", "65534", "--regid", "65534", "--clear-groups", "cat"])
        .arg(&records[0])
        .output()
        .expect("setpriv");
    assert!(!readable.status.success());
}

/// Signals reach the agent, and the code is its own.
#[test]
fn signals_reach_the_agent() {
    let lab = Lab::copies(|ws| std::fs::write(ws.join("f"), "one").expect("write"));
    let agent = lab.dir().join("openhands");
    script(
        &agent,
        "trap 'echo got TERM; exit 5' TERM; trap 'echo got HUP' HUP; trap 'echo got INT' INT\n\
         echo ready; while :; do sleep 0.02; done\n",
    );
    for (signals, code, said) in [
        (&["HUP", "INT", "TERM"][..], 5, "got HUP\ngot INT\ngot TERM\n"),
        (&["USR1"][..], 128 + 10, ""),
    ] {
        let child = lab
            .command()
            .args(["run", "--"])
            .arg(&agent)
            .current_dir(lab.ws())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("run");
        let mut child = Ended(child);
        let mut out = child.0.stdout.take().expect("a pipe");
        let mut text = String::new();
        read_until(&mut out, &mut text, "ready\n");
        for signal in signals {
            let sent = Command::new("kill")
                .args(["-s", signal, &child.0.id().to_string()])
                .status();
            assert!(sent.expect("kill").success());
            if *signal != "TERM" && !said.is_empty() {
                read_until(&mut out, &mut text, &format!("got {signal}\n"));
            }
        }
        out.read_to_string(&mut text).expect("its output");
        let status = child.0.wait().expect("its end");
        assert_eq!(status.code(), Some(code), "{text}");
        assert_eq!(text, format!("ready\n{said}"));
    }
}

/// Killed when dropped.
struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ended = self.0.kill();
        let _status = self.0.wait();
    }
}

fn read_until(from: &mut impl Read, text: &mut String, end: &str) {
    let mut byte = [0];
    while !text.ends_with(end) {
        assert_eq!(from.read(&mut byte).expect("read"), 1, "it ended: {text:?}");
        text.push(char::from(byte[0]));
    }
}

/// The terminal's Ctrl-C comes to the agent once, and the run goes on.
#[test]
fn the_terminals_interrupt_comes_once() {
    let lab = Lab::copies(|ws| std::fs::write(ws.join("f"), "one").expect("write"));
    let agent = lab.dir().join("openhands");
    script(
        &agent,
        "n=0; trap 'n=$((n+1)); echo \"got $n\"' INT; trap 'echo \"in all $n\"; exit 4' USR1\n\
         echo ready; while :; do sleep 0.02; done\n",
    );
    let size = portable_pty::PtySize {
        rows: 24,
        cols: 80,
        pixel_width: 0,
        pixel_height: 0,
    };
    let pty = portable_pty::native_pty_system()
        .openpty(size)
        .expect("a terminal");
    let template = lab.command();
    let mut command = portable_pty::CommandBuilder::new(template.get_program());
    command.args(template.get_args());
    command.args(["run", "--"]);
    command.arg(&agent);
    command.env_clear();
    command.env("RESPOOL_SOCKET", "/nonexistent/no-service");
    for (name, value) in template.get_envs() {
        command.env(name, value.expect("a value"));
    }
    command.cwd(lab.ws());
    let mut child = pty.slave.spawn_command(command).expect("run");
    drop(pty.slave);
    let mut reader = pty.master.try_clone_reader().expect("its output");
    let mut keys = pty.master.take_writer().expect("its input");
    let mut text = String::new();
    read_until(&mut reader, &mut text, "ready\r\n");
    for n in 1..=2 {
        keys.write_all(b"\x03").expect("Ctrl-C");
        read_until(&mut reader, &mut text, &format!("got {n}\r\n"));
    }
    let run = child.process_id().expect("a process").to_string();
    let sent = Command::new("kill").args(["-s", "USR1", &run]).status();
    assert!(sent.expect("kill").success());
    read_until(&mut reader, &mut text, "in all 2\r\n");
    assert_eq!(child.wait().expect("its end").exit_code(), 4);
}

#[test]
fn without_a_yes_nothing_is_made() {
    let lab = Lab::plain(|_| {});
    let agent = lab.dir().join("openhands");
    script(&agent, "echo it ran\n");
    let run = |args: &[&str]| {
        let mut c = lab.command();
        c.args(args).arg(&agent).current_dir(lab.ws());
        let out = c.output().expect("run");
        let said = String::from_utf8_lossy(&out.stderr).into_owned();
        (
            out.status.code(),
            String::from_utf8_lossy(&out.stdout).into_owned(),
            said,
        )
    };
    let (code, out, err) = run(&["run", "--vault", "copy", "--"]);
    assert_eq!((code, out.as_str()), (Some(3), ""), "{err}");
    assert!(err.contains("it would ask: track "), "{err}");
    let (code, out, err) = run(&["--dry-run", "run", "--vault", "copy", "--"]);
    assert_eq!(code, Some(0), "{err}");
    assert!(out.contains("nothing is moved"), "{out}");
    let (code, _, err) = run(&["--yes", "run", "--", "no-such-agent"]);
    assert_eq!(code, Some(4), "{err}");
    assert!(err.contains("there is no program no-such-agent"), "{err}");
    assert!(!lab.state().join("copies").exists());
    // an agent whose conversations cannot be read has one checkpoint to go back to
    let other = lab.dir().join("other");
    script(&other, "echo it ran; echo two > f\n");
    let out = lab
        .command()
        .args(["--yes", "run", "--vault", "copy", "--"])
        .arg(&other)
        .current_dir(lab.ws())
        .output()
        .expect("run");
    let err = String::from_utf8_lossy(&out.stderr).into_owned();
    assert_eq!(
        (out.status.code(), out.stdout.as_slice()),
        (Some(0), &b"it ran\n"[..]),
        "{err}"
    );
    assert!(err.contains("1 checkpoint was taken, before it began"), "{err}");
    assert!(wait_until(SOON, || lab.ok(&["sandboxes"])[0]["checkpoints"] == 2));
}

/// The first minute of a user without rights, in a folder without a conversation: three keys to the first checkpoint.
#[test]
fn the_start_screen_tracks_this_folder_without_root() {
    let user = user("");
    let size = portable_pty::PtySize {
        rows: 24,
        cols: 100,
        pixel_width: 0,
        pixel_height: 0,
    };
    let pty = portable_pty::native_pty_system()
        .openpty(size)
        .expect("a terminal");
    let template = in_workspace(&user);
    let mut command = portable_pty::CommandBuilder::new(template.get_program());
    command.args(template.get_args());
    command.env_clear();
    command.env("RESPOOL_SOCKET", "/nonexistent/no-service");
    for (name, value) in template.get_envs() {
        command.env(name, value.expect("a value"));
    }
    command.env("TERM", "xterm-256color");
    command.cwd(user.ws());
    let mut child = pty.slave.spawn_command(command).expect("respool");
    drop(pty.slave);
    let mut reader = pty.master.try_clone_reader().expect("its output");
    let mut keys = pty.master.take_writer().expect("its input");
    let (send, bytes) = std::sync::mpsc::channel();
    let reading = std::thread::spawn(move || {
        let mut buffer = [0; 4096];
        while let Ok(n @ 1..) = reader.read(&mut buffer) {
            if send.send(buffer[..n].to_vec()).is_err() {
                break;
            }
        }
    });
    let mut screen = vt100::Parser::new(24, 100, 0);
    let mut wait = |text: &str| {
        let end = std::time::Instant::now() + SOON;
        while !screen.screen().contents().contains(text) {
            let left = end.saturating_duration_since(std::time::Instant::now());
            let more = bytes.recv_timeout(left);
            let more = more.unwrap_or_else(|_| panic!("never came: {text}\n{}", screen.screen().contents()));
            screen.process(&more);
        }
    };
    wait("No conversation of an agent was found");
    keys.write_all(b"T").expect("a key");
    wait("nothing is moved, and no root is needed");
    wait("y track it");
    keys.write_all(b"y").expect("a key");
    wait("Tracked as sb-");
    wait("under protection");
    keys.write_all(b"qq").expect("keys");
    assert_eq!(child.wait().expect("its end").exit_code(), 0);
    drop((keys, pty.master));
    reading.join().expect("the reader");
    let listed = user.ok(&["sandboxes"]);
    assert_eq!(listed[0]["vault"], "copy", "{listed}");
    assert_eq!(listed[0]["checkpoints"], 1, "{listed}");
}
