//! `rewind --resend` and `--edit`: the message goes to the agent again, after files and conversation went back.

use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use serde_json::{Value, json};

use crate::agent_server::Fake;
use crate::chat::{done, events, four, leaf, messages, parent, whole};
use crate::lab::{Answer, Lab};

fn served(mode: &str) -> (Lab, Fake) {
    let lab = Lab::new(|_| {});
    four(&lab);
    let fake = Fake::start(&lab.store(), lab.dir(), mode, "OH_SESSION_API_KEYS_0");
    (lab, fake)
}

fn drafts(lab: &Lab) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(lab.state().join("drafts"));
    entries
        .into_iter()
        .flatten()
        .map(|e| e.expect("entry").path())
        .collect()
}

/// The message of the store that has a picture: its number, and its picture parts.
fn with_picture(lab: &Lab) -> (usize, Vec<Value>) {
    let ids = messages(lab);
    let picture = |e: &Value| -> Vec<Value> {
        let parts = e["llm_message"]["content"]
            .as_array()
            .cloned()
            .unwrap_or_default();
        parts.into_iter().filter(|p| p["type"] == "image").collect()
    };
    let all = events(lab);
    let found = ids.iter().enumerate().find_map(|(n, id)| {
        let event = all.iter().find(|e| e["id"] == *id.as_str())?;
        let parts = picture(event);
        (!parts.is_empty()).then_some((n + 1, parts))
    });
    found.expect("the recorded conversation has a picture")
}

#[test]
fn the_edited_message_goes_to_the_server_after_the_rewind() {
    let (lab, fake) = served("");
    let ids = messages(&lab);
    let doc = done(
        &lab,
        &[
            "--yes",
            "rewind",
            "2",
            "--resend",
            "-do it; $(better) \"this\" time",
        ],
    );
    assert_eq!(
        (&doc["resent"], &doc["chat"], &doc["verified"]),
        (&json!(true), &json!("rewound"), &json!(true))
    );
    assert_eq!((leaf(&lab), lab.read("f")), (parent(&lab, &ids[1]), "1".into()));
    let sent = fake.sent().expect("a message");
    let text = json!([{"type": "text", "text": "-do it; $(better) \"this\" time"}]);
    assert_eq!(
        (&sent["role"], &sent["run"], &sent["content"]),
        (&json!("user"), &json!(true), &text)
    );
    let asked = fake.asked();
    let place = |what: &str| asked.iter().position(|a| a == what);
    assert!(place("POST /navigate") < place("POST /events"), "{asked:?}");
    assert_eq!(drafts(&lab), Vec::<PathBuf>::new());
}

/// P128: pictures stay with the message. P120's kind: from standard input, of several lines.
#[test]
fn p128_pictures_are_sent_again() {
    let (lab, fake) = served("");
    let (number, pictures) = with_picture(&lab);
    let mut c = lab.whole_command(&["--yes", "rewind", &number.to_string(), "--resend", "-"]);
    let file = lab.dir().join("text");
    std::fs::write(&file, "two\nlines\n").expect("text");
    let a = Answer::of(
        c.stdin(std::fs::File::open(file).expect("text"))
            .output()
            .expect("run"),
    );
    assert_eq!(a.code, Some(0), "{}{}", a.text(), a.err);
    let mut want = vec![json!({"type": "text", "text": "two\nlines"})];
    want.extend(pictures);
    assert_eq!(fake.sent().expect("a message")["content"], json!(want));
}

/// P127: the very first message and the last one: sent once, and of the conversation nothing else is left after it.
#[test]
fn p127_the_first_and_the_last_message() {
    for (number, left, file) in [("1", 0, "0"), ("4", 3, "3")] {
        let (lab, fake) = served("");
        let ids = messages(&lab);
        done(&lab, &["--yes", "rewind", number, "--resend", "better"]);
        let at: usize = number.parse().expect("a number");
        assert_eq!(
            (leaf(&lab), lab.read("f")),
            (parent(&lab, &ids[at - 1]), file.into())
        );
        let doc = done(&lab, &["timeline", lab.store().to_str().expect("UTF-8")]);
        let active = doc["rows"]
            .as_array()
            .expect("rows")
            .iter()
            .filter(|r| r["active"] == true);
        assert_eq!(
            active.count(),
            left,
            "what the model hears before the new text: {doc}"
        );
        let posts = fake.asked().iter().filter(|a| *a == "POST /events").count();
        let sent = fake.sent().expect("sent")["content"][0].clone();
        assert_eq!((posts, sent), (1, json!({"type": "text", "text": "better"})));
    }
}

#[test]
fn what_could_not_be_sent_is_kept_and_the_rewind_can_be_undone() {
    let (lab, fake) = served("send-fails");
    let a = whole(&lab, &["--yes", "rewind", "2", "--resend", "better"]);
    assert_eq!(a.code, Some(1), "{}", a.text());
    let error = a.json()["error"].clone();
    assert!(
        error["message"]
            .as_str()
            .expect("message")
            .contains("the rewind is done"),
        "{error}"
    );
    let kept = drafts(&lab);
    assert_eq!(kept.len(), 1);
    assert_eq!(std::fs::read_to_string(&kept[0]).expect("kept"), "better");
    assert_eq!(
        std::fs::metadata(&kept[0]).expect("stat").permissions().mode() & 0o777,
        0o600
    );
    assert_eq!((lab.read("f"), fake.sent()), ("1".into(), None));
    done(&lab, &["--yes", "undo"]);
    assert_eq!(lab.read("f"), "4");
}

/// No answer: where the conversation shows that the message was taken it was sent, else that is not known, and said; a
/// server that has it and cannot begin says so.
#[test]
fn no_answer_is_no_refusal() {
    let (lab, _fake) = served("send-taken");
    let doc = done(&lab, &["--yes", "rewind", "2", "--resend", "better"]);
    assert_eq!(doc["resent"], json!(true), "{doc}");
    assert_eq!(drafts(&lab), Vec::<PathBuf>::new());
    drop(lab);

    let (lab, fake) = served("send-lost");
    let a = whole(&lab, &["--yes", "rewind", "2", "--resend", "better"]);
    assert_eq!((a.code, fake.sent()), (Some(1), None), "{}", a.text());
    for word in ["may have been taken", "before you send it again"] {
        assert!(a.text().contains(word), "{}", a.text());
    }
    assert_eq!(drafts(&lab).len(), 1);
    drop(lab);

    let (lab, fake) = served("send-busy");
    let doc = done(&lab, &["--yes", "rewind", "2", "--resend", "better"]);
    assert_eq!(
        (&doc["resent"], fake.sent().is_some()),
        (&json!(true), true),
        "{doc}"
    );
    assert!(
        doc["notes"].to_string().contains("begins when you tell it"),
        "{doc}"
    );
}

/// What is longer than can be sent is refused, not cut off.
#[test]
fn a_message_that_is_too_long_is_not_cut_off() {
    let lab = Lab::new(|_| {});
    four(&lab);
    let file = lab.dir().join("text");
    std::fs::write(&file, "x".repeat((4 << 20) + 1)).expect("text");
    let mut c = lab.whole_command(&["--yes", "rewind", "2", "--resend", "-"]);
    let a = Answer::of(
        c.stdin(std::fs::File::open(file).expect("text"))
            .output()
            .expect("run"),
    );
    assert_eq!((a.code, lab.read("f")), (Some(3), "4".into()), "{}", a.text());
    assert!(a.text().contains("too long"), "{}", a.text());
    assert_eq!(drafts(&lab), Vec::<PathBuf>::new());
}

/// Without a server the agent's own command is told; nothing is started behind the user's back.
#[test]
fn without_a_server_the_command_is_told() {
    let lab = Lab::new(|_| {});
    four(&lab);
    let doc = done(&lab, &["--yes", "rewind", "2", "--resend", "better"]);
    assert_eq!((&doc["resent"], &doc["chat"]), (&json!(false), &json!("rewound")));
    let notes = doc["notes"].to_string();
    assert!(
        notes.contains("openhands --resume") && notes.contains("-t"),
        "{notes}"
    );
    assert_eq!(std::fs::read_to_string(&drafts(&lab)[0]).expect("kept"), "better");
    // no command that would fail
    let file = lab.dir().join("text");
    std::fs::write(&file, "x".repeat(200 << 10)).expect("text");
    let mut c = lab.whole_command(&["--yes", "rewind", "1", "--resend", "-"]);
    let a = Answer::of(
        c.stdin(std::fs::File::open(file).expect("text"))
            .output()
            .expect("run"),
    );
    let notes = a.json()["notes"].to_string();
    assert!(
        notes.contains("too long") && !notes.contains("openhands --resume"),
        "{notes}"
    );
}

/// Under sudo the shell that reads the file is the user's: it lies in that user's home, and nowhere else. This user has
/// none.
#[test]
fn under_sudo_the_message_is_kept_in_the_users_home() {
    let lab = Lab::new(|_| {});
    four(&lab);
    let mut c = lab.whole_command(&["--yes", "rewind", "2", "--resend", "better"]);
    let a = Answer::of(c.env("SUDO_USER", "nobody").output().expect("run"));
    assert_eq!((a.code, lab.read("f")), (Some(1), "4".into()), "{}", a.text());
    assert!(a.text().contains("/nonexistent/.local/state"), "{}", a.text());
    assert_eq!(drafts(&lab), Vec::<PathBuf>::new());
}

#[test]
fn what_cannot_be_sent_again_is_refused_first() {
    let (lab, fake) = served("");
    for (args, code) in [
        (&["--yes", "rewind", "start", "--resend", "x"][..], 2),
        (&["--yes", "rewind", "2", "--files", "--resend", "x"], 2),
        (&["--yes", "rewind", "2", "--edit", "--resend", "x"], 2),
        (&["--yes", "rewind", "2", "--edit"], 2),
        (&["--yes", "rewind", "2", "--resend", " \n"], 130),
    ] {
        let a = whole(&lab, args);
        assert_eq!(a.code, Some(code), "{args:?}: {}{}", a.text(), a.err);
        assert_eq!(lab.read("f"), "4", "{args:?}");
    }
    assert_eq!(fake.sent(), None);
}
