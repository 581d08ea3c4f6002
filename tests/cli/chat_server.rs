//! The conversation of an agent server: moved by the server alone, with its key, after an interruption; and what
//! happens when the server goes wrong. The answers are a real server's.

use serde_json::json;

use crate::agent_server::{Fake, KEY};
use crate::chat::{base, done, four, leaf, messages, parent, whole};
use crate::lab::{Answer, Lab};

const VARIABLE: &str = "OH_SESSION_API_KEYS_0";

fn served(mode: &str) -> (Lab, Fake) {
    let lab = Lab::new(|_| {});
    four(&lab);
    let fake = Fake::start(&lab.store(), lab.dir(), mode, VARIABLE);
    (lab, fake)
}

fn running(lab: &Lab) {
    let text = base(lab).replace(
        "\"execution_status\":\"finished\"",
        "\"execution_status\":\"running\"",
    );
    std::fs::write(lab.store().join("base_state.json"), text).expect("state");
}

#[test]
fn the_server_moves_the_head() {
    for variable in [VARIABLE, "SESSION_API_KEY"] {
        let lab = Lab::new(|_| {});
        four(&lab);
        let (at, ids) = (leaf(&lab), messages(&lab));
        let fake = Fake::start(&lab.store(), lab.dir(), "", variable);
        let plan = done(&lab, &["--dry-run", "rewind", "2"])["plan"].to_string();
        assert!(
            plan.contains(&format!("http://127.0.0.1:{}", fake.port())),
            "{plan}"
        );
        assert!(
            plan.contains(&format!("process {}", fake.pid())) && !plan.contains(KEY),
            "{plan}"
        );
        assert!(
            !fake.asked().iter().any(|a| a.starts_with("POST")),
            "a plan only looks"
        );
        let mut c = lab.whole_command(&["-v", "--yes", "rewind", "2"]);
        // not even in the log of everything
        let a = Answer::of(c.env("RESPOOL_LOG", "trace").output().expect("run"));
        assert_eq!(a.code, Some(0), "{}{}", a.text(), a.err);
        assert_eq!(a.json()["chat"], "rewound");
        assert!(
            !a.text().contains(KEY) && !a.err.contains(KEY),
            "{}{}",
            a.text(),
            a.err
        );
        assert_eq!((leaf(&lab), lab.read("f")), (parent(&lab, &ids[1]), "1".into()));
        let asked = fake.asked();
        assert!(
            asked.contains(&"POST /navigate".to_owned()) && !asked.contains(&"POST /interrupt".to_owned())
        );
        done(&lab, &["--yes", "undo"]);
        assert_eq!((leaf(&lab), lab.read("f")), (at.clone(), "4".into()));
        done(&lab, &["--yes", "redo"]);
        assert_eq!(lab.read("f"), "1");
    }
}

/// The key of a process is not enough where it is another one; the user's config names the right one.
#[test]
fn the_key_of_the_config() {
    let lab = Lab::new(|_| {});
    four(&lab);
    let before = base(&lab);
    let fake = Fake::start(&lab.store(), lab.dir(), "", "NO_KEY_HERE");
    let a = whole(&lab, &["--yes", "rewind", "2"]);
    assert_eq!((a.code, base(&lab), lab.read("f")), (Some(3), before, "4".into()));
    assert!(
        a.text().contains("api_key_file") && a.text().contains(&fake.pid().to_string()),
        "{}",
        a.text()
    );
    let config = lab.dir().join("home/.config/respool/config.toml");
    std::fs::create_dir_all(config.parent().expect("parent")).expect("folder");
    std::fs::write(lab.dir().join("home/key"), format!("{KEY}\n")).expect("key");
    let port = fake.port();
    for text in [
        "[agents.openhands]\napi_key_file = \"~/key\"\n".to_owned(),
        format!("[agents.openhands]\napi_key_file = \"~/key\"\nurl = \"http://localhost:{port}/\"\n"),
    ] {
        std::fs::write(&config, &text).expect("config");
        let doc = done(&lab, &["--yes", "rewind", "2"]);
        assert_eq!(
            (&doc["chat"], lab.read("f")),
            (&json!("rewound"), "1".into()),
            "{text}"
        );
        done(&lab, &["--yes", "undo"]);
    }
    // no other way than plain http
    std::fs::write(&config, "[agents.openhands]\nurl = \"https://localhost:1\"\n").expect("config");
    let a = whole(&lab, &["--yes", "rewind", "2", "--both"]);
    assert_ne!(a.code, Some(0), "{}", a.text());
    assert_eq!(lab.read("f"), "4");
}

/// An agent at work: refused, with who it is and the flag; with the flag it is interrupted and waited for first.
#[test]
fn an_agent_at_work_is_interrupted_if_that_is_wanted() {
    let lab = Lab::new(|_| {});
    four(&lab);
    running(&lab);
    let ids = messages(&lab);
    let fake = Fake::start(&lab.store(), lab.dir(), "", VARIABLE);
    let a = whole(&lab, &["--yes", "rewind", "2"]);
    assert_eq!((a.code, lab.read("f")), (Some(3), "4".into()), "{}", a.text());
    assert!(
        a.text().contains("--interrupt") && a.text().contains(&fake.pid().to_string()),
        "{}",
        a.text()
    );
    assert!(!fake.asked().iter().any(|a| a.starts_with("POST")));
    let plan = done(&lab, &["--dry-run", "rewind", "2", "--interrupt"])["plan"].clone();
    assert!(
        plan["steps"][0]
            .as_str()
            .expect("a step")
            .starts_with("interrupt the agent"),
        "{plan}"
    );
    let doc = done(&lab, &["--yes", "rewind", "2", "--interrupt"]);
    assert_eq!((&doc["chat"], lab.read("f")), (&json!("rewound"), "1".into()));
    assert_eq!(leaf(&lab), parent(&lab, &ids[1]));
    let asked = fake.asked();
    let at = |what: &str| asked.iter().position(|a| a == what).expect(what);
    let waited = asked[at("POST /interrupt")..at("POST /navigate")].len();
    assert!(waited > 3, "it was waited for: {asked:?}");
}

/// A rewind that fails after the agent was interrupted for it: nobody sets it to work again, and that is said.
#[test]
fn an_agent_that_was_interrupted_in_vain_stays_so_and_that_is_said() {
    let lab = Lab::new(|_| {});
    four(&lab);
    running(&lab);
    let fake = Fake::start(&lab.store(), lab.dir(), "navigate-fails", VARIABLE);
    let a = whole(&lab, &["--yes", "rewind", "2", "--interrupt"]);
    assert_eq!((a.code, lab.read("f")), (Some(1), "4".into()), "{}", a.text());
    assert!(fake.asked().contains(&"POST /interrupt".to_owned()));
    let told = a.json()["error"]["message"].to_string();
    for words in [
        "everything is as it was before",
        "the agent was interrupted for it and stays so",
    ] {
        assert!(told.contains(words), "{told}");
    }
    drop(fake);
    let (lab, _fake) = served("navigate-fails");
    let told = whole(&lab, &["--yes", "rewind", "2"]).text();
    assert!(!told.contains("interrupted"), "nobody was: {told}");
}

/// Whatever goes wrong at the server: files and conversation are both as before.
#[test]
fn a_server_that_fails_changes_nothing() {
    for mode in ["navigate-fails", "navigate-lies"] {
        let (lab, _fake) = served(mode);
        let at = leaf(&lab);
        let a = whole(&lab, &["--yes", "rewind", "2"]);
        assert_eq!(a.code, Some(1), "{mode}: {}", a.text());
        assert!(
            a.text().contains("everything is as it was before"),
            "{mode}: {}",
            a.text()
        );
        assert!(
            !a.text().contains('\u{1b}') && !a.text().contains("\\u001b[31m"),
            "{mode}: {}",
            a.text()
        );
        assert_eq!((leaf(&lab), lab.read("f")), (at, "4".into()), "{mode}");
        assert_eq!(lab.log()[0], ("rewind".into(), "rolled-back".into()), "{mode}");
    }
}

/// It moved the head and died before it answered: brought back without it.
#[test]
fn a_server_that_dies_in_between() {
    let (lab, _fake) = served("navigate-dies");
    let at = leaf(&lab);
    let a = whole(&lab, &["--yes", "rewind", "2"]);
    assert_eq!(
        (a.code, leaf(&lab), lab.read("f")),
        (Some(1), at, "4".into()),
        "{}",
        a.text()
    );
    done(&lab, &["--yes", "rewind", "2"]);
    assert_eq!(lab.read("f"), "1");
}

/// A killed server leaves its lease; its store is free then.
#[test]
fn the_lease_of_a_killed_server_holds_nothing() {
    let (lab, mut fake) = served("");
    let ids = messages(&lab);
    fake.kill();
    assert!(lab.store().join("owner_lease.json").exists());
    done(&lab, &["--yes", "rewind", "2"]);
    assert_eq!((leaf(&lab), lab.read("f")), (parent(&lab, &ids[1]), "1".into()));
}

/// A lease of another machine or container cannot be asked, and is not overridden.
#[test]
fn a_lease_of_another_host_is_respected() {
    let lab = Lab::new(|_| {});
    four(&lab);
    let before = base(&lab);
    let lease = json!({"owner_instance_id": "x", "generation": 1, "owner_host": "elsewhere\u{1b}[31m", "owner_pid": 1,
        "expires_at": chrono::Utc::now().timestamp() + 600});
    std::fs::write(lab.store().join("owner_lease.json"), lease.to_string()).expect("lease");
    let a = whole(&lab, &["--yes", "rewind", "2"]);
    assert_eq!(
        (a.code, base(&lab), lab.read("f")),
        (Some(3), before, "4".into()),
        "{}",
        a.text()
    );
    assert!(
        a.text().contains("elsewhere") && !a.text().contains("\\u001b"),
        "{}",
        a.text()
    );
}

/// A server that takes the store after it was found to be free is not gone behind: nothing is changed, and the next try
/// asks it.
#[test]
fn a_server_that_comes_at_the_last_moment() {
    let lab = Lab::new(|_| {});
    four(&lab);
    let (before, at) = (base(&lab), leaf(&lab));
    let stopped = lab.stopped_at("chat-alone", &["--yes", "rewind", "2", "--both"]);
    let _fake = Fake::start(&lab.store(), lab.dir(), "", VARIABLE);
    let a = stopped.go_on();
    assert_eq!(a.code, Some(1), "{}", a.text());
    assert!(
        a.text().contains("has just taken it") && a.text().contains("everything is as it was"),
        "{}",
        a.text()
    );
    assert_eq!((base(&lab), leaf(&lab), lab.read("f")), (before, at, "4".into()));
    done(&lab, &["--yes", "rewind", "2"]);
    assert_eq!(lab.read("f"), "1");
}

/// SIGKILL while the server moves the head: the next command that writes finishes it, or takes the files back.
#[test]
fn killed_between_files_and_server() {
    for (point, after) in [
        ("chat-held", false),
        ("chat-navigated", true),
        ("chat-moved", true),
    ] {
        let (lab, _fake) = served("");
        let (at, ids) = (leaf(&lab), messages(&lab));
        let out = lab
            .whole_command(&["--yes", "rewind", "2"])
            .env("RESPOOL_KILL_AT", point)
            .output()
            .expect("run");
        assert_eq!(
            std::os::unix::process::ExitStatusExt::signal(&out.status),
            Some(9),
            "{point}"
        );
        let doc = done(&lab, &["--yes", "recover"]);
        let (outcome, leaf_now, f) = if after {
            ("finished", parent(&lab, &ids[1]), "1")
        } else {
            ("rolled-back", at, "4")
        };
        assert_eq!(doc[0]["outcome"], outcome, "{point}: {doc}");
        assert_eq!((leaf(&lab), lab.read("f")), (leaf_now, f.to_owned()), "{point}");
    }
}

/// P120: two respools in one folder: while one is at it the other is refused, and nothing is done twice.
#[test]
fn two_at_once() {
    let (lab, _fake) = served("");
    let stopped = lab.stopped_at("chat-held", &["--yes", "rewind", "2", "--both"]);
    let a = Answer::of(
        lab.whole_command(&["--yes", "rewind", "3", "--chat"])
            .output()
            .expect("run"),
    );
    assert_eq!(a.code, Some(3), "{}", a.text());
    let a = stopped.go_on();
    assert_eq!(a.code, Some(0), "{}", a.err);
    assert_eq!(lab.read("f"), "1");
}

/// SIGKILL right after the interruption, and after a failure was taken back in the conversation.
#[test]
fn killed_before_and_after_the_conversation_was_touched() {
    let lab = Lab::new(|_| {});
    four(&lab);
    running(&lab);
    let _fake = Fake::start(&lab.store(), lab.dir(), "", VARIABLE);
    let (at, ops) = (leaf(&lab), lab.log().len());
    assert!(lab.killed_at(
        "chat-interrupted",
        &["--yes", "rewind", "2", "--both", "--interrupt"]
    ));
    assert_eq!(
        (leaf(&lab), lab.read("f"), lab.log().len()),
        (at, "4".into(), ops)
    );
    drop(lab);

    let (lab, _fake) = served("navigate-fails");
    let at = leaf(&lab);
    assert!(lab.killed_at("chat-reverted", &["--yes", "rewind", "2", "--both"]));
    let doc = done(&lab, &["--yes", "recover"]);
    assert_eq!(doc[0]["outcome"], "rolled-back", "{doc}");
    assert_eq!((leaf(&lab), lab.read("f")), (at, "4".into()));
}

/// An agent that does not stop in time: nothing is changed.
#[test]
fn an_agent_that_does_not_stop() {
    let lab = Lab::new(|_| {});
    four(&lab);
    running(&lab);
    let before = base(&lab);
    let _fake = Fake::start(&lab.store(), lab.dir(), "never-stops", VARIABLE);
    let a = whole(&lab, &["--yes", "rewind", "2", "--interrupt"]);
    assert_eq!((a.code, lab.read("f")), (Some(3), "4".into()), "{}", a.text());
    assert!(a.text().contains("did not stop within"), "{}", a.text());
    assert_eq!(base(&lab), before);
}
