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
struct Raw(UnixStream);

impl Raw {
    fn to(s: &Served) -> Self {
        let mut line = UnixStream::connect(s.socket()).expect("connect");
        write(&mut line, &Hello::own(None)).expect("hello");
        read::<Hello>(&mut line, 1 << 16)
            .expect("hello")
            .expect("an answer");
        Self(line)
    }
    fn ask(&mut self, request: Request) -> Outcome {
        let ask = Ask {
            id: 7,
            request: Some(request),
            cancel: false,
        };
        write(&mut self.0, &ask).expect("asked");
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
