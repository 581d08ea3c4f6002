//! What the agent's user tries. Checkpoints survive all of it.

use std::io::Write;
use std::os::unix::net::UnixStream;

use respool::engine::{CheckpointId, CheckpointKind, How, NewCheckpoint, Selection};
use respool::rewind::OperationKind;
use respool::rewind::remote::Operate;
use respool::rewind::run::Order;
use respool::sandbox::remote::{Ask as About, Request};
use respool::service::frame::{Answer, Ask, Hello, Outcome, read, write};

use crate::served::{OWNER, Served};

#[test]
fn no_command_of_the_agents_user_removes_a_checkpoint() {
    let s = Served::new();
    let ws = s.tracked();
    let id = s.ok(&["checkpoint"])["checkpoint"]
        .as_str()
        .expect("id")
        .to_owned();
    let before = s.ok(&["ls", &id]);
    let path = ws.to_str().expect("UTF-8");
    let sandbox = s.run_as(OWNER, &["sandboxes"]).1[0]["id"]
        .as_str()
        .expect("id")
        .to_owned();
    for words in [
        &["--yes", "untrack", path][..],
        &["--yes", "prune", "--keep", "0"],
        &["--yes", "prune", "-s", &sandbox],
        &["--yes", "prune", "--max-bytes", "0"],
        &["--yes", "pool", "unmount"],
        &["--yes", "pool", "mount"],
    ] {
        assert!(s.refused(words).contains("for root alone"), "{words:?}");
    }
    let state = s.state();
    let script = format!(
        "rm -rf {home}/* {home}/.??* {state} {dir}; umount {ws}; umount -l {ws}; \
         find {state}; cat {state}/pool.img; truncate -s 0 {state}/pool.img; chattr -i {ws}; \
         for m in $(grep btrfs /proc/mounts | cut -d' ' -f2); do ls $m/s; rm -rf $m/s; done; \
         btrfs subvolume delete {state}/mnt/*/s/*/snaps/*; rm -f {dir}/sock; kill -9 {pid}; \
         for d in /dev/loop*; do head -c 1 $d && echo OPENED; done 2>/dev/null",
        home = s.home().display(),
        state = state.display(),
        dir = s.dir().path().display(),
        ws = ws.display(),
        pid = s.pid(),
    );
    let out = s.shell(&script);
    assert!(!String::from_utf8_lossy(&out.stdout).contains("OPENED"));
    assert_eq!(
        std::fs::read_dir(&ws).expect("still there").count(),
        0,
        "the attack took the files"
    );
    assert_eq!(s.ok(&["ls", &id]), before);
    s.ok(&["--yes", "rewind", &id]);
    assert_eq!(std::fs::read(ws.join("a")).expect("a"), b"one\n");
    assert_eq!(std::fs::read(ws.join("src/b")).expect("b"), b"x\n");
}

/// A line to the service as this process, which is root; `uid` is what the kernel says of a child.
pub struct Raw(UnixStream);

impl Raw {
    pub fn to(s: &Served) -> Self {
        let mut line = UnixStream::connect(s.socket()).expect("connect");
        write(&mut line, &Hello::own(None)).expect("hello");
        read::<Hello>(&mut line, 1 << 16)
            .expect("hello")
            .expect("an answer");
        Self(line)
    }
    /// Asks, and does not wait for the answer.
    pub fn begin(&mut self, request: Request) {
        let ask = Ask {
            id: 7,
            request: Some(request),
            cancel: false,
            weight: 1,
        };
        write(&mut self.0, &ask).expect("asked");
    }
    fn ask(&mut self, request: Request) -> Outcome {
        self.begin(request);
        loop {
            let answer: Answer = read(&mut self.0, 64 << 20).expect("read").expect("an answer");
            assert_eq!(answer.id, 7);
            match answer.outcome {
                Outcome::Progress(..) => {}
                done => return done,
            }
        }
    }
    fn refused(&mut self, request: Request) -> String {
        match self.ask(request) {
            Outcome::Error(report) => report.message,
            other => panic!("not refused: {other:?}"),
        }
    }
}

#[test]
fn orders_that_the_program_itself_never_gives_are_refused() {
    let s = Served::new();
    s.tracked();
    let sandbox = s.run_as(OWNER, &["sandboxes"]).1[0]["id"]
        .as_str()
        .expect("id")
        .to_owned();
    let start = s.root(&["-s", &sandbox, "log"]).0;
    assert_eq!(start, 0);
    let mut line = Raw::to(&s);
    let about = |ask| Request::Of(sandbox.clone(), ask);
    let run = |kind, paths: &[&str]| {
        let order = Order {
            kind,
            target: CheckpointId("cp-0000000000".into()),
            words: "x".into(),
            selection: Selection::Paths(paths.iter().map(Into::into).collect()),
            of: None,
            chat: None,
            mover: None,
            whole_docker: false,
        };
        about(About::Operate(
            serde_json::to_value(Operate::Run(order)).expect("order"),
        ))
    };
    for bad in ["../x", "/etc/passwd", "a/../../x"] {
        let said = line.refused(run(OperationKind::Rewind, &[bad]));
        assert!(said.contains("leads out of the workspace"), "{said}");
    }
    for kind in [OperationKind::Track, OperationKind::Untrack] {
        assert!(line.refused(run(kind, &["a"])).contains("no such operation"));
    }
    for kind in [CheckpointKind::Safety, CheckpointKind::Start] {
        let new = NewCheckpoint::of(kind, How::Own);
        assert!(
            line.refused(about(About::Take(new)))
                .contains("made by respool itself")
        );
    }
    let mut huge = NewCheckpoint::of(CheckpointKind::Message, How::Hook);
    huge.message = Some("x".repeat(100_000));
    assert!(line.refused(about(About::Take(huge))).contains("bytes"));
    assert!(
        line.refused(about(About::Missed("m".into(), "r".repeat(5000))))
            .contains("at most")
    );
    assert!(
        line.refused(Request::Find("relative".into()))
            .contains("no absolute path")
    );
    assert!(
        line.refused(about(About::Operate(serde_json::json!({"remove": 1}))))
            .contains("understood")
    );
    assert!(
        line.refused(Request::Manage(serde_json::json!({"verb": "rm"})))
            .contains("understood")
    );
    assert!(
        line.refused(Request::Library(serde_json::json!("list")))
            .contains("not read by the service")
    );
    let escape = About::Read(respool::engine::State::Now, "../../../../etc/shadow".into(), 100);
    assert!(line.refused(about(escape)).contains("there is no"));
}

#[test]
fn an_order_takes_back_only_what_went_back_and_labels_are_short() {
    let s = Served::new();
    s.tracked();
    let sandbox = s.run_as(OWNER, &["sandboxes"]).1[0]["id"]
        .as_str()
        .expect("id")
        .to_owned();
    let mut line = Raw::to(&s);
    let about = |ask| Request::Of(sandbox.clone(), ask);
    let records = Operate::Records;
    let Outcome::Ok(records) = line.ask(about(About::Operate(
        serde_json::to_value(records).expect("JSON"),
    ))) else {
        panic!("no log");
    };
    let track = records[0]["id"].as_str().expect("id").to_owned();
    let start = line.ask(about(About::Checkpoints));
    let Outcome::Ok(start) = start else {
        panic!("{start:?}")
    };
    let start: Vec<respool::engine::Checkpoint> = serde_json::from_value(start).expect("checkpoints");
    for (kind, why) in [
        (OperationKind::Rewind, "takes back no operation"),
        (OperationKind::Undo, "was taken back meanwhile"),
    ] {
        let order = Order {
            kind,
            target: start[0].meta.id.clone(),
            words: "x".into(),
            selection: Selection::All,
            of: Some(track.clone()),
            chat: None,
            mover: None,
            whole_docker: false,
        };
        let order = serde_json::to_value(Operate::Run(order)).expect("order");
        assert!(line.refused(about(About::Operate(order))).contains(why));
    }
    let label = About::Label(start[0].meta.id.clone(), "x".repeat(3_000_000));
    assert!(line.refused(about(label)).contains("at most"));
}

#[test]
fn noise_at_the_socket_hinders_nobody() {
    let s = Served::new();
    s.tracked();
    let mut seed = 0x2545_f491_4f6c_dd1d_u64;
    let mut random = || {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        seed
    };
    let mut hello = Vec::new();
    write(&mut hello, &Hello::own(None)).expect("hello");
    let mut good = Vec::new();
    let find = Ask {
        id: 1,
        request: Some(Request::Find(s.ws())),
        cancel: false,
        weight: 1,
    };
    write(&mut good, &find).expect("ask");
    for round in 0..300 {
        let mut line = UnixStream::connect(s.socket()).expect("connect");
        let mut bytes = if round % 3 == 0 { Vec::new() } else { hello.clone() };
        match round % 4 {
            0 => bytes.extend((0..200).map(|_| random() as u8)),
            1 => {
                let mut changed = good.clone();
                let at = random() as usize % changed.len();
                changed[at] ^= 1 << (random() % 8);
                bytes.extend(changed);
            }
            2 => bytes.extend([0xff; 8]),
            _ => bytes.extend(&good[..random() as usize % good.len()]),
        }
        // the service may have hung up already
        drop(line.write_all(&bytes));
    }
    s.ok(&["checkpoint"]);
    let status = std::fs::read_to_string(format!("/proc/{}/status", s.pid())).expect("alive");
    let peak: u64 = status
        .lines()
        .find_map(|l| l.strip_prefix("VmHWM:"))
        .and_then(|l| l.trim().trim_end_matches(" kB").parse().ok())
        .expect("a number");
    assert!(peak < 200_000, "{peak} kB");
}

#[test]
fn one_user_cannot_take_all_connections() {
    let s = Served::new();
    s.tracked();
    // as another user: a program that holds 200 connections until its input ends
    let script = format!(
        "import socket,sys\nall=[]\nfor i in range(200):\n c=socket.socket(socket.AF_UNIX)\n c.connect({:?})\n all.append(c)\nprint('held',flush=True)\nsys.stdin.read()\n",
        s.socket().to_str().expect("UTF-8")
    );
    let mut holder = s.user(crate::served::OTHER, "python3");
    holder
        .args(["-c", &script])
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped());
    let mut holder = holder.spawn().expect("python3 is needed by this test");
    let mut line = String::new();
    let mut out = std::io::BufReader::new(holder.stdout.take().expect("stdout"));
    std::io::BufRead::read_line(&mut out, &mut line).expect("read");
    assert_eq!(line, "held\n");
    s.ok(&["checkpoint"]);
    drop(holder.stdin.take());
    holder.wait().expect("ended");
}

/// A folder that is mounted on itself, and no longer when it is dropped.
struct Remounted(std::path::PathBuf);

impl Remounted {
    fn with(path: std::path::PathBuf, options: &str) -> Self {
        let it = Self(path);
        for flags in ["bind".to_owned(), format!("remount,bind,{options}")] {
            it.run("mount", &["-o", &flags, it.0.to_str().expect("UTF-8")]);
        }
        it
    }
    fn run(&self, program: &str, words: &[&str]) {
        let mut c = std::process::Command::new(program);
        assert!(c.args(words).arg(&self.0).status().expect(program).success());
    }
}

impl Drop for Remounted {
    fn drop(&mut self) {
        self.run("umount", &["-l"]);
    }
}

/// A disk of the user's may have programs on it that would make him root; so it is mounted without that.
#[test]
fn what_the_disk_of_a_folder_forbids_stays_forbidden() {
    use std::os::unix::fs::PermissionsExt;
    let s = Served::new();
    let disk = Remounted::with(s.home(), "nosuid,nodev");
    assert!(s.shell("mkdir project").status.success());
    let id = s.ws().join("id");
    std::fs::copy("/usr/bin/id", &id).expect("id");
    std::fs::set_permissions(&id, std::fs::Permissions::from_mode(0o4755)).expect("mode");
    let who = || String::from_utf8(s.shell("./project/id -u").stdout).expect("UTF-8");
    assert_eq!(who(), "65534\n");
    s.tracked();
    assert_eq!(who(), "65534\n", "the mount of the live tree");
    // as after a restart of the machine
    let ws = s.ws();
    let ws = ws.to_str().expect("UTF-8");
    let unmounted = std::process::Command::new("umount").arg(ws).status();
    assert!(unmounted.expect("umount").success());
    s.ok(&["ls", "now"]);
    assert_eq!(who(), "65534\n", "the mount that was made again");
    assert_eq!(s.root(&["untrack", ws]).0, 0);
    drop(disk);
}

/// The image of a user's state may hold the only copy of a workspace: it stays, whatever the user does with the folder
/// that it stands for.
#[test]
fn the_state_of_a_user_is_kept_while_something_is_tracked_there() {
    let mut s = Served::new();
    assert!(s.shell("mkdir project; echo one > project/a").status.success());
    let (ws, mine) = (s.ws(), s.home().join("mine"));
    let (ws, mine) = (ws.to_str().expect("UTF-8"), mine.to_str().expect("UTF-8"));
    let ok = |s: &Served, words: &[&str]| {
        let mut all = vec!["--state-dir", mine, "--yes"];
        all.extend(words);
        let (code, doc) = s.run_as(OWNER, &all);
        assert_eq!(code, 0, "{words:?}: {doc}");
    };
    // the folder itself was never made
    ok(&s, &["track", ws, "--size", "300M"]);
    ok(&s, &["pool", "unmount"]);
    assert!(!s.ws().join("a").exists());
    ok(&s, &["pool", "mount"]);
    assert_eq!(std::fs::read(s.ws().join("a")).expect("a"), b"one\n");
    ok(&s, &["pool", "unmount"]);
    assert!(s.stop().success());
    // its superblock cannot be read when the service starts
    let users = std::fs::read_dir(s.state().join("users/65534")).expect("users");
    let image = users.flatten().next().expect("one").path().join("pool.img");
    let whole = std::fs::read(&image).expect("the image is kept");
    let blank = |bytes: &[u8]| {
        use std::os::unix::fs::FileExt;
        let file = std::fs::OpenOptions::new()
            .write(true)
            .open(&image)
            .expect("image");
        file.write_all_at(bytes, 65536).expect("written");
    };
    blank(&[0; 4096]);
    s.start(&[]);
    blank(&whole[65536..65536 + 4096]);
    ok(&s, &["pool", "mount"]);
    assert_eq!(std::fs::read(s.ws().join("a")).expect("a"), b"one\n");
    ok(&s, &["untrack", ws]);
    ok(&s, &["pool", "unmount"]);
    let users = s.state().join("users/65534");
    assert_eq!(std::fs::read_dir(users).expect("users").count(), 0);
}

#[test]
fn waiting_takes_neither_roots_watches_nor_all_threads() {
    let s = Served::new();
    s.tracked();
    let sandbox = s.run_as(OWNER, &["sandboxes"]).1[0]["id"]
        .as_str()
        .expect("id")
        .to_owned();
    // 160 at once, of which the user may have 64
    let script = format!(
        r#"
import json,socket,struct,sys
def send(c,o):
    b=json.dumps(o).encode(); c.sendall(struct.pack(">I",len(b))+b)
def take(c,n):
    b=b""
    while len(b)<n:
        more=c.recv(n-len(b))
        if not more: sys.exit("hung up")
        b+=more
    return b
def frame(c): return take(c,struct.unpack(">I",take(c,4))[0])
all=[]
for i in range(10):
    c=socket.socket(socket.AF_UNIX); c.connect({socket:?}); send(c,{{"version":1,"program":"x"}}); frame(c)
    for r in range(16): send(c,{{"id":r+1,"request":{{"of":[{sandbox:?},"wait"]}}}})
    all.append(c)
many=0
while many<96:
    import select
    for c in select.select(all,[],[],20)[0]:
        assert b"too many requests" in frame(c)
        many+=1
print("waiting",flush=True)
sys.stdin.read()
"#,
        socket = s.socket().to_str().expect("UTF-8"),
    );
    let mut flood = s.user(OWNER, "python3");
    flood
        .args(["-c", &script])
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped());
    let mut flood = flood.spawn().expect("python3 is needed by this test");
    let mut line = String::new();
    let mut out = std::io::BufReader::new(flood.stdout.take().expect("stdout"));
    std::io::BufRead::read_line(&mut out, &mut line).expect("read");
    assert_eq!(line, "waiting\n");
    let watches = || {
        let all = std::fs::read_dir(format!("/proc/{}/fd", s.pid())).expect("alive");
        let links = all.flatten().filter_map(|e| std::fs::read_link(e.path()).ok());
        links.filter(|l| l.to_string_lossy().contains("inotify")).count()
    };
    let some = crate::common::wait_until(std::time::Duration::from_secs(10), || watches() == 32);
    assert!(some, "{}", watches());
    drop(flood.stdin.take());
    flood.wait().expect("ended");
    // nothing is left of it
    let ended = crate::common::wait_until(std::time::Duration::from_secs(10), || watches() == 0);
    assert!(ended, "{}", watches());
    s.ok(&["checkpoint"]);
}

/// A rewind is in place, but a file of root's never comes back into one that its reader has open, and could write to.
#[test]
fn a_file_of_roots_is_not_put_into_one_that_the_user_has_open() {
    use std::os::unix::fs::{MetadataExt, PermissionsExt};
    let s = Served::new();
    assert!(s.shell("mkdir project").status.success());
    for (name, mode) in [("secret", 0o600), ("tool", 0o4755)] {
        std::fs::write(s.ws().join(name), "of root").expect("write");
        std::fs::set_permissions(s.ws().join(name), std::fs::Permissions::from_mode(mode)).expect("mode");
        std::fs::hard_link(s.ws().join(name), s.ws().join(format!("{name}-too"))).expect("link");
    }
    let ws = s.tracked();
    let script = format!(
        r#"
import os,subprocess
os.chdir({ws:?})
held=[]
for n in ("secret","tool"):
    os.unlink(n); os.unlink(n+"-too")
    held.append(open(n,"w+b")); held[-1].write(b"mine"); held[-1].flush()
done=subprocess.run(["../../respool","--yes","-s",{ws:?},"rewind","start"])
assert done.returncode==0
for f in held:
    f.seek(0); print(f.read().decode(),flush=True)
    f.seek(0); f.write(b"evil"); f.flush()
"#,
        ws = ws.to_str().expect("UTF-8")
    );
    let out = s
        .user(OWNER, "python3")
        .args(["-c", &script])
        .output()
        .expect("python3");
    let said = String::from_utf8_lossy(&out.stdout);
    assert_eq!(
        said.lines().filter(|l| *l == "mine").count(),
        2,
        "{said}{}",
        String::from_utf8_lossy(&out.stderr)
    );
    for (name, mode) in [("secret", 0o600), ("tool", 0o4755)] {
        let meta = std::fs::metadata(ws.join(name)).expect(name);
        assert_eq!(
            (meta.uid(), meta.mode() & 0o7777, meta.nlink()),
            (0, mode, 2),
            "{name}"
        );
        assert_eq!(std::fs::read(ws.join(name)).expect(name), b"of root");
    }
}

#[test]
fn a_users_rewind_stops_no_process_of_roots() {
    let s = Served::new();
    let ws = s.tracked();
    let mut daemon = std::process::Command::new("setsid");
    daemon
        .args(["sh", "-c", "exec 3>>log; echo up; read line"])
        .current_dir(&ws)
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped());
    let mut daemon = daemon.spawn().expect("setsid");
    let mut line = String::new();
    let mut out = std::io::BufReader::new(daemon.stdout.take().expect("stdout"));
    std::io::BufRead::read_line(&mut out, &mut line).expect("read");
    let done = s.ok(&["--yes", "rewind", "start"]);
    drop(daemon.stdin.take());
    daemon.wait().expect("ended");
    let notes = done["notes"].to_string();
    assert!(
        notes.contains(&format!("process {} (sh) has files open", daemon.id())),
        "{done}"
    );
    assert!(!notes.contains("was paused meanwhile"), "{done}");
}
