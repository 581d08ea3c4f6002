//! Either end breaks.

use std::time::Duration;

use crate::common::wait_until;
use crate::served::{OWNER, Served};

/// Changes, goes back to the start, and says what the program said.
fn fill(s: &Served) {
    assert!(
        s.shell("cd project && for i in $(seq 300); do echo $i > f$i; done; echo two > a")
            .status
            .success()
    );
}

fn is_before(s: &Served) -> bool {
    std::fs::read(s.ws().join("a")).expect("a") == b"two\n" && s.ws().join("f300").exists()
}

fn is_after(s: &Served) -> bool {
    std::fs::read(s.ws().join("a")).expect("a") == b"one\n" && !s.ws().join("f1").exists()
}

#[test]
fn a_service_that_dies_in_a_rewind_leaves_before_or_after() {
    for point in [
        "rewind-safety",
        "rewind-applying",
        "rewind-restored",
        "rewind-checked",
    ] {
        let mut s = Served::new();
        s.tracked();
        fill(&s);
        s.stop();
        s.start(&[("RESPOOL_KILL_AT", point)]);
        let (code, doc) = s.run(&["--yes", "rewind", "start"]);
        assert_eq!(code, 1, "{point}: {doc}");
        let said = doc["error"]["message"].as_str().expect("message");
        assert!(said.contains("the line to the service broke"), "{said}");
        s.service().wait().expect("killed");
        s.start(&[]);
        let out = s
            .user(OWNER, s.dir().join("respool"))
            .args(["-s", s.ws().to_str().expect("UTF-8"), "checkpoint"])
            .output()
            .expect("respool");
        let said = String::from_utf8_lossy(&out.stderr);
        assert!(said.contains("had been cut short"), "{point}: {said}");
        assert!(is_before(&s) || is_after(&s), "{point}");
    }
}

#[test]
fn a_client_that_dies_in_a_rewind_leaves_before_or_after() {
    let s = Served::new();
    s.tracked();
    for round in 0..6u64 {
        fill(&s);
        let mut c = s.user(OWNER, s.dir().join("respool"));
        let ws = s.ws();
        c.args(["--yes", "-s", ws.to_str().expect("UTF-8"), "rewind", "start"]);
        c.stdout(std::process::Stdio::null())
            .stderr(std::process::Stdio::null());
        let mut client = c.spawn().expect("respool");
        // at another moment each time
        let ended = wait_until(Duration::from_millis(5 + round * 9), || {
            client.try_wait().is_ok_and(|s| s.is_some())
        });
        if !ended {
            client.kill().expect("kill");
        }
        client.wait().expect("end");
        assert_eq!(s.run_as(OWNER, &["recover"]).0, 0);
        assert!(is_before(&s) || is_after(&s), "round {round}");
    }
}

#[test]
fn it_ends_when_told_and_takes_the_place_of_a_dead_one() {
    let mut s = Served::new();
    s.tracked();
    let second = std::process::Command::new(s.dir().join("respool"))
        .args([
            "--state-dir",
            s.state().to_str().expect("UTF-8"),
            "service",
            "--socket",
        ])
        .arg(s.socket())
        .output()
        .expect("respool");
    assert_eq!(second.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&second.stderr).contains("a service is there already"));
    assert!(s.stop().success());
    assert!(!s.socket().exists());
    // without it the user is told what is missing
    let (code, doc) = s.run(&["checkpoint"]);
    assert_eq!(code, 3, "{doc}");
    s.start(&[]);
    s.service().kill().expect("kill");
    s.service().wait().expect("killed");
    assert!(s.socket().exists());
    s.start(&[]);
    s.ok(&["checkpoint"]);
}

/// As after a start of the machine: nothing is mounted when the service starts, everything is when it serves.
#[test]
fn workspaces_are_back_before_anybody_is_served() {
    let mut s = Served::new();
    let ws = s.tracked();
    let id = s.ok(&["checkpoint"])["checkpoint"]
        .as_str()
        .expect("id")
        .to_owned();
    s.stop();
    assert_eq!(s.root(&["pool", "unmount"]).0, 0);
    assert_eq!(std::fs::read_dir(&ws).expect("the folder").count(), 0);
    let out = s.shell("cd project && echo early > write");
    assert!(!out.status.success(), "the empty folder takes no write");
    s.start(&[]);
    assert_eq!(std::fs::read(ws.join("a")).expect("a"), b"one\n");
    s.ok(&["--yes", "rewind", &id]);
}

#[test]
fn a_socket_that_is_not_roots_is_not_trusted() {
    let s = Served::new();
    let path = s.home().join("fake");
    // a service of the user's own: it would say that a checkpoint was taken
    let script = format!(
        "import socket,os\nl=socket.socket(socket.AF_UNIX);l.bind({:?});l.listen();print('up',flush=True);l.accept()",
        path.to_str().expect("UTF-8")
    );
    let mut fake = s.user(OWNER, "python3");
    fake.args(["-c", &script]).stdout(std::process::Stdio::piped());
    let mut fake = fake.spawn().expect("python3 is needed by this test");
    let mut line = String::new();
    let mut out = std::io::BufReader::new(fake.stdout.take().expect("stdout"));
    std::io::BufRead::read_line(&mut out, &mut line).expect("read");
    let mut c = s.user(OWNER, s.dir().join("respool"));
    let out = c
        .env("RESPOOL_SOCKET", &path)
        .args(["--json", "sandboxes"])
        .output()
        .expect("respool");
    fake.kill().expect("kill");
    fake.wait().expect("end");
    assert_eq!(out.status.code(), Some(3));
    assert!(String::from_utf8_lossy(&out.stdout).contains("is not root's"));
}
