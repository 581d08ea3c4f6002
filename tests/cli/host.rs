//! `--host`: the same commands through an `ssh` that is a script, with a home of its own at each end.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use crate::common::{self, wait_until};
use crate::lab::{Answer, Lab, SOON, error_text};
use crate::rounds::rich;

/// The host's name in these tests.
pub const HOST: &str = "ada@far.example";

/// A folder before all others in the PATH, with this script as its `ssh`, and the client's own home.
pub struct Desk {
    pub lab: Lab,
}

impl Desk {
    /// `through`: what the program at the other end runs in, with `"$@"` for its words.
    pub fn new(lab: Lab, through: &str) -> Self {
        let desk = Self { lab };
        let far = desk.lab.dir();
        let script = format!(
            "#!/bin/sh\n\
             [ \"$1 $2\" = \"-- {HOST}\" ] || {{ echo \"words: $*\" >&2; exit 99; }}\n\
             shift 3\n\
             echo $$ > {far}/ssh.pid\n\
             cd {far}/home || exit 98\n\
             export HOME={far}/home XDG_STATE_HOME={far}/home/.local/state XDG_CONFIG_HOME={far}/home/.config\n\
             set -- {bin} --state-dir {state} \"$@\"\n\
             {through}\n",
            far = far.display(),
            bin = env!("CARGO_BIN_EXE_respool"),
            state = desk.lab.state().display(),
        );
        desk.script(&script);
        desk
    }

    pub fn script(&self, text: &str) {
        let dir = self.lab.dir().join("bin");
        fs::create_dir_all(&dir).expect("bin");
        fs::write(dir.join("ssh"), text).expect("ssh");
        fs::set_permissions(dir.join("ssh"), fs::Permissions::from_mode(0o755)).expect("ssh");
    }

    /// The program at the near end, which has nothing of its own.
    pub fn command(&self, args: &[&str]) -> Command {
        let near = self.lab.dir().join("near");
        fs::create_dir_all(&near).expect("near");
        let mut c = common::respool(&near);
        let path = std::env::var("PATH").expect("PATH");
        c.env("PATH", format!("{}:{path}", self.lab.dir().join("bin").display()));
        c.args(["--host", HOST]).args(args);
        c
    }

    pub fn run(&self, args: &[&str]) -> Answer {
        Answer::of(self.command(args).output().expect("run"))
    }

    pub fn ok(&self, args: &[&str]) -> Value {
        let mut all = vec!["--json"];
        all.extend(args);
        let a = self.run(&all);
        assert_eq!(a.code, Some(0), "{args:?}: {}\n{}", a.text(), a.err);
        a.json()
    }

    pub fn fails(&self, code: i32, args: &[&str]) -> String {
        let mut all = vec!["--json"];
        all.extend(args);
        let a = self.run(&all);
        assert_eq!(a.code, Some(code), "{args:?}: {}\n{}", a.text(), a.err);
        error_text(&a.json(), code)
    }

    fn ssh(&self) -> i32 {
        let text = || fs::read_to_string(self.lab.dir().join("ssh.pid")).unwrap_or_default();
        assert!(wait_until(SOON, || text().ends_with('\n')), "ssh was started");
        text().trim().parse().expect("a pid")
    }
}

fn children(pid: i32) -> Vec<(i32, String)> {
    let text = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    text.split_whitespace()
        .filter_map(|p| p.parse().ok())
        .filter_map(|p: i32| {
            Some((
                p,
                fs::read_to_string(format!("/proc/{p}/comm"))
                    .ok()?
                    .trim()
                    .to_owned(),
            ))
        })
        .collect()
}

fn state(pid: i32) -> Option<char> {
    respool::process::stat(pid).map(|s| s.state)
}

/// A project with three messages.
pub fn project() -> Lab {
    let lab = Lab::new(rich);
    for n in 1..=3 {
        lab.write("d0/f0", format!("turn {n}"));
        lab.write(format!("made-{n}"), "new\n");
        lab.message(n);
    }
    lab.write("d0/f0", "now\n");
    lab
}

pub fn id(lab: &Lab) -> String {
    lab.store()
        .file_name()
        .expect("a name")
        .to_string_lossy()
        .into_owned()
}

#[test]
fn all_that_is_looked_at_is_what_is_there() {
    let desk = Desk::new(project(), "exec \"$@\"");
    let (lab, id) = (&desk.lab, id(&desk.lab));
    let c = ["-c", id.as_str()];
    let here = |args: &[&str]| lab.ok(args);
    let store = lab.store();
    let store = store.to_str().expect("UTF-8");
    assert_eq!(desk.ok(&["timeline", &id]), here(&["timeline", store]));
    assert_eq!(desk.ok(&["timeline", store]), here(&["timeline", store]));
    let all = desk.ok(&["conversations"]);
    assert_eq!(all[0]["workspace"], lab.ws_text(), "{all}");
    assert_eq!(desk.ok(&["sandboxes"]), here(&["sandboxes"]));
    for words in [
        &["changes", "m1", "now"][..],
        &["ls", "m2", "d0"],
        &["why", "d0/f0"],
        &["log"],
    ] {
        let both: Vec<&str> = c.iter().chain(words).copied().collect();
        assert_eq!(desk.ok(&both), here(words), "{words:?}");
    }
    let both = |words: &[&str]| {
        let all: Vec<&str> = c.iter().chain(words).copied().collect();
        let far = desk.run(&all);
        let mut near = lab.command();
        near.arg("-c").arg(store).args(words);
        let near = Answer::of(near.output().expect("run"));
        assert_eq!(
            (far.code, far.text()),
            (near.code, near.text()),
            "{words:?}: {}",
            far.err
        );
        assert!(!far.out.is_empty());
    };
    both(&["diff", "m1", "now"]);
    both(&["cat", "m2", "d0/f0"]);
    // a sandbox by its path there
    assert_eq!(
        desk.ok(&["-s", lab.ws_text(), "changes", "m1", "now"]),
        here(&["changes", "m1", "now"])
    );
}

#[test]
fn back_and_forth_and_what_is_kept_of_it() {
    let desk = Desk::new(project(), "exec \"$@\"");
    let (lab, id) = (&desk.lab, id(&desk.lab));
    let now = lab.manifest();
    let taken = desk.ok(&["-c", &id, "checkpoint", "--label", "by hand"]);
    let checkpoint = taken["checkpoint"].as_str().expect("an id");
    desk.ok(&["-c", &id, "pin", checkpoint]);
    let plan = desk.ok(&["-c", &id, "rewind", "m2", "--dry-run"]);
    assert!(!plan["plan"]["changes"].as_array().expect("changes").is_empty());
    let said = desk.fails(3, &["-c", &id, "rewind", "m2"]);
    assert!(said.contains("--yes"), "{said}");
    assert_eq!(lab.manifest(), now, "nothing was changed yet");
    let done = desk.ok(&["--yes", "-c", &id, "rewind", "m2"]);
    assert_eq!(
        (&done["verified"], lab.read("d0/f0").as_str()),
        (&Value::Bool(true), "turn 2")
    );
    assert!(!lab.at("made-3").exists());
    desk.ok(&["--yes", "-c", &id, "undo"]);
    assert_eq!(lab.manifest(), now);
    desk.ok(&["--yes", "-c", &id, "redo"]);
    assert_eq!(lab.read("d0/f0"), "turn 2");
    desk.ok(&["--yes", "-s", lab.ws_text(), "undo"]);
    assert_eq!(lab.manifest(), now);
    assert_eq!(desk.ok(&["-c", &id, "log"]), lab.ok(&["log"]));
    assert_eq!(lab.log().len(), 5, "{:?}", lab.log());
    assert_eq!(desk.ok(&["recover"]).as_array().map(Vec::len), Some(0));
    assert!(desk.ok(&["recover", "--dry-run"])["plan"]["steps"].is_array());
    let plan = desk.ok(&["--dry-run", "-c", &id, "prune", "--keep", "1"]);
    assert!(plan["plan"].is_object() || plan["removed"].is_array(), "{plan}");
    let status = desk.ok(&["pool", "status"]);
    assert_eq!(status.as_array().map(Vec::len), Some(1), "{status}");
    assert_eq!(desk.ok(&["space"])["pools"].as_array().map(Vec::len), Some(1));
}

/// The state folder of the other machine can be named here; this machine's own is never looked at.
#[test]
fn a_state_folder_is_one_of_the_other_machine() {
    let desk = Desk::new(project(), "shift 3; exec \"$0.bin\" \"$@\"");
    // the words of the script's own state folder are left away
    let bin = desk.lab.dir().join("bin/ssh.bin");
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_respool"), bin).expect("link");
    let state = desk.lab.state();
    let state = state.to_str().expect("UTF-8");
    assert_eq!(
        desk.ok(&["--state-dir", state, "sandboxes"]),
        desk.lab.ok(&["sandboxes"])
    );
    let said = desk.fails(2, &["--state-dir", "state", "sandboxes"]);
    assert!(said.contains("absolute"), "{said}");
}

#[test]
fn what_makes_no_sense_there_is_refused() {
    let desk = Desk::new(Lab::plain(|_| {}), "exec \"$@\"");
    for words in [
        &["track", "/x"][..],
        &["demo"],
        &["watch"],
        &["hooks", "status"],
        &["docker", "status"],
        &["doctor"],
        &["service"],
        &["completions", "bash"],
        &["man"],
        &["pool", "create"],
        &["pool", "check"],
    ] {
        let said = desk.fails(2, words);
        assert!(
            said.contains("does not work with --host") && said.contains("ssh HOST respool"),
            "{said}"
        );
    }
    // 2 would make the agent refuse the message
    desk.fails(1, &["hook", "openhands"]);
    for words in [&["timeline"][..], &["rewind", "m1"], &["checkpoint"]] {
        let said = desk.fails(2, words);
        assert!(said.contains("-c CONVERSATION"), "{said}");
    }
    let said = desk.fails(2, &["-s", "here", "log"]);
    assert!(said.contains("absolute"), "{said}");
    let said = desk.fails(2, &["untrack", "here"]);
    assert!(said.contains("absolute"), "{said}");
    desk.fails(4, &["-c", "zzz", "timeline"]);
    desk.fails(2, &[]);
    assert!(
        fs::read_dir(desk.lab.dir().join("near/home/.local/state"))
            .expect("near")
            .next()
            .is_none()
    );
}

#[test]
fn a_host_that_cannot_be_used_says_why() {
    let desk = Desk::new(Lab::plain(|_| {}), "");
    for (script, wanted) in [
        (
            "echo sh: 1: respool: not found >&2; exit 127",
            "install respool there",
        ),
        ("echo no route to host >&2; exit 255", "ssh does not get to"),
        ("echo error: unexpected argument >&2; exit 2", "older"),
        ("exit 1", "exit code 1"),
        ("echo Welcome to this machine", "what a login there prints"),
        ("", "no respool answers"),
    ] {
        desk.script(&format!("#!/bin/sh\n{script}\n"));
        let said = desk.fails(1, &["conversations"]);
        assert!(said.contains(wanted), "{script}: {said}");
    }
    // what ssh says is passed on, harmless
    desk.script("#!/bin/sh\nprintf 'a\\033[2Jb\\r\\nc' >&2; exit 255\n");
    let a = desk.run(&["conversations"]);
    assert!(a.err.starts_with("a^[[2Jb\nc\nrespool: "), "{:?}", a.err);
    // a host is never an option, and never of control characters
    desk.script("#!/bin/sh\necho \"$1|$2|$3 $4 $5\" >&2; exit 255\n");
    let near = desk.lab.dir().join("near");
    for (host, code, wanted) in [
        (
            "-oProxyCommand=x",
            1,
            "--|-oProxyCommand=x|respool service --stdio",
        ),
        ("a\u{1b}[2J", 2, "no host has such a name"),
        ("a b", 2, "no host has such a name"),
        ("", 2, "it is empty"),
    ] {
        let mut c = common::respool(&near);
        let path = std::env::var("PATH").expect("PATH");
        c.env("PATH", format!("{}:{path}", desk.lab.dir().join("bin").display()));
        let a = Answer::of(
            c.arg(format!("--host={host}"))
                .arg("conversations")
                .output()
                .expect("run"),
        );
        assert_eq!(a.code, Some(code), "{host:?}: {}", a.err);
        assert!(
            a.err.contains(wanted) && !a.err.contains('\u{1b}'),
            "{host:?}: {}",
            a.err
        );
    }
}

struct Killed(Vec<i32>);

impl Drop for Killed {
    fn drop(&mut self) {
        for pid in &self.0 {
            let _gone = kill(Pid::from_raw(*pid), Signal::SIGCONT);
            let _gone = kill(Pid::from_raw(*pid), Signal::SIGKILL);
        }
    }
}

/// Starts a rewind that stops itself at the other end in the middle of the restore: the client, ssh, and the stopped
/// process.
fn halfway(desk: &Desk) -> (Child, i32, i32) {
    let id = id(&desk.lab);
    let client = desk
        .command(&["--json", "--yes", "-c", &id, "rewind", "m1"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("start");
    let ssh = desk.ssh();
    let mut far = 0;
    let there = wait_until(SOON, || {
        far = children(ssh)
            .iter()
            .find(|(_, n)| n == "respool")
            .map_or(0, |c| c.0);
        far != 0 && state(far) == Some('T')
    });
    assert!(there, "the other end stopped itself: {:?}", children(ssh));
    (client, ssh, far)
}

const PIPES: &str = "cat | RESPOOL_STOP_AT=restore-step-3 \"$@\" | cat";

fn many() -> Lab {
    let lab = Lab::new(rich);
    for i in 0..200 {
        lab.write(format!("many/{i}"), "old");
    }
    lab.message(1);
    for i in 0..200 {
        lab.write(format!("many/{i}"), "newer");
    }
    lab
}

fn assert_rolled_back(desk: &Desk, far: i32, before: &crate::manifest::Manifest) {
    // the way back has a third step, too
    let gone = wait_until(SOON, || {
        let state = state(far);
        if state == Some('T') {
            kill(Pid::from_raw(far), Signal::SIGCONT).expect("goes on");
        }
        matches!(state, None | Some('Z'))
    });
    assert!(gone, "it ends by itself: {:?}", state(far));
    assert_eq!(desk.lab.manifest(), *before);
    let log = desk.lab.log();
    assert_eq!(
        (log[0].0.as_str(), log[0].1.as_str()),
        ("rewind", "rolled-back"),
        "{log:?}"
    );
    desk.lab.ok(&["--yes", "rewind", "m1"]);
    assert_eq!(desk.lab.read("many/7"), "old");
}

#[test]
fn ssh_that_dies_in_the_middle_leaves_all_as_it_was() {
    let desk = Desk::new(many(), PIPES);
    let before = desk.lab.manifest();
    let (client, ssh, far) = halfway(&desk);
    let _end = Killed(vec![far]);
    let parts = children(ssh);
    kill(Pid::from_raw(ssh), Signal::SIGKILL).expect("ssh");
    for (pid, _) in parts.iter().filter(|(p, _)| *p != far) {
        kill(Pid::from_raw(*pid), Signal::SIGKILL).expect("its pipes");
    }
    // the client does not wait for what cannot come any more
    let a = Answer::of(client.wait_with_output().expect("its end"));
    assert_eq!(a.code, Some(1), "{} {}", a.text(), a.err);
    let said = error_text(&a.json(), 1);
    assert!(
        said.contains("the line to the service broke") && said.contains("respool log"),
        "{said}"
    );
    assert_rolled_back(&desk, far, &before);
}

#[test]
fn a_client_that_dies_in_the_middle_leaves_all_as_it_was() {
    let desk = Desk::new(many(), PIPES);
    let before = desk.lab.manifest();
    let (mut client, _, far) = halfway(&desk);
    let _end = Killed(vec![far]);
    client.kill().expect("killed");
    client.wait().expect("its end");
    assert_rolled_back(&desk, far, &before);
}

/// Frames on stdout, all else on stderr.
#[test]
fn the_other_end_says_nothing_but_frames() {
    let lab = project();
    let mut c = lab.command();
    c.args(["-v", "-v", "service", "--stdio"]);
    let mut line = Vec::new();
    let hello = respool::service::frame::Hello::own(None);
    respool::service::frame::write(&mut line, &hello).expect("written");
    for (i, request) in [
        respool::sandbox::remote::Request::Find(lab.ws().to_owned()),
        respool::sandbox::remote::Request::Find(PathBuf::from("relative")),
        respool::sandbox::remote::Request::Library(serde_json::json!({"find": "zzz"})),
        respool::sandbox::remote::Request::Library(serde_json::json!("nonsense")),
        respool::sandbox::remote::Request::Manage(serde_json::json!(7)),
    ]
    .into_iter()
    .enumerate()
    {
        let ask = respool::service::frame::Ask {
            id: i as u64,
            request: Some(request),
            cancel: false,
            weight: 1,
        };
        respool::service::frame::write(&mut line, &ask).expect("written");
    }
    let mut child = c
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("start");
    let mut to = child.stdin.take().expect("stdin");
    let mut from = child.stdout.take().expect("stdout");
    std::io::Write::write_all(&mut to, &line).expect("sent");
    let hello: respool::service::frame::Hello = respool::service::frame::read(&mut from, 1 << 16)
        .expect("a frame")
        .expect("a greeting");
    assert_eq!(hello.version, respool::service::frame::VERSION);
    let mut seen = std::collections::BTreeMap::new();
    while seen.len() < 5 {
        let a: respool::service::frame::Answer = respool::service::frame::read(&mut from, 1 << 20)
            .expect("a frame")
            .expect("an answer");
        let last = match a.outcome {
            respool::service::frame::Outcome::Progress(..) => None,
            respool::service::frame::Outcome::Ok(v) => Some(Ok(v)),
            respool::service::frame::Outcome::Error(r) => Some(Err(r.kind.word())),
        };
        last.map(|l| seen.insert(a.id, l));
    }
    assert_eq!(seen[&0].as_ref().expect("found")["path"], lab.ws_text());
    let kinds: Vec<_> = (1..5)
        .map(|i| *seen[&i].as_ref().expect_err("an error"))
        .collect();
    assert_eq!(kinds, ["refused", "not-found", "usage", "usage"]);
    drop(to);
    let mut rest = Vec::new();
    std::io::Read::read_to_end(&mut from, &mut rest).expect("the end");
    assert!(rest.is_empty(), "{rest:?}");
    assert_eq!(child.wait().expect("its end").code(), Some(0));
}
