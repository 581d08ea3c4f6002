//! In the screens: a message is edited and sent again, by the server or by the agent's own program; two windows.

use std::path::PathBuf;
use std::time::Duration;

use serde_json::json;

use crate::agent_server::Fake;
use crate::chat::{four, leaf, messages, parent};
use crate::common::wait_until;
use crate::lab::{Lab, SOON};
use crate::run::script;
use crate::screen::Screen;

const CTRL_E: &str = "\x05";
const CTRL_S: &str = "\x13";

fn lab() -> Lab {
    let lab = Lab::new(|_| {});
    four(&lab);
    lab
}

/// Says yes until it is heard: a key that comes too early confirms nothing for a second.
fn yes(screen: &mut Screen, done: impl Fn(&Screen) -> bool) {
    let went = wait_until(SOON, || {
        screen.keys("y");
        std::thread::sleep(Duration::from_millis(1100));
        done(screen)
    });
    assert!(went, "{}", screen.text());
}

/// Opens the box of the newest message, and waits for the text in it.
fn edit(screen: &mut Screen) {
    screen.keys("e");
    screen.wait("and send it again");
    screen.gone("reading …");
}

fn drafts(lab: &Lab) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(lab.state().join("drafts"));
    let mut all: Vec<PathBuf> = entries
        .into_iter()
        .flatten()
        .map(|e| e.expect("entry").path())
        .collect();
    all.sort();
    all
}

#[test]
fn the_message_is_sent_by_the_server() {
    let lab = lab();
    let fake = Fake::start(&lab.store(), lab.dir(), "", "OH_SESSION_API_KEYS_0");
    let ids = messages(&lab);
    let mut screen = Screen::open(&lab, &[]);
    edit(&mut screen);
    // P150: pasted lines are text, whatever is in them
    let lines: Vec<String> = (1..=20).map(|n| format!("q y R {n}")).collect();
    screen.keys(&format!("\r\x1b[200~{}\x1b[201~", lines.join("\r")));
    screen.wait("q y R 20");
    assert_eq!(fake.sent(), None);
    screen.keys(CTRL_S);
    screen.wait("send the new text");
    assert_eq!(
        (lab.read("f"), fake.sent()),
        ("4".into(), None),
        "nothing before the yes"
    );
    yes(&mut screen, |_| fake.sent().is_some());
    screen.wait("the message was sent, by the agent server");
    assert_eq!((leaf(&lab), lab.read("f")), (parent(&lab, &ids[3]), "3".into()));
    let sent = fake.sent().expect("sent")["content"].clone();
    let text = sent[0]["text"].as_str().expect("a text");
    assert!(text.ends_with(&format!("\n{}", lines.join("\n"))), "{text:?}");
    let asked = fake.asked();
    let posts = asked.iter().filter(|a| *a == "POST /events").count();
    assert_eq!((posts, drafts(&lab)), (1, Vec::new()), "{asked:?}");
    screen.keys("\x1b");
    screen.gone("Sent");
    screen.quit();
}

/// A stub in the place of the agent: what it was called with, and the line that it read from this terminal.
fn stub(lab: &Lab) -> (PathBuf, String) {
    let agent = lab.dir().join("openhands");
    let called = lab.dir().join("called");
    script(
        &agent,
        &format!(
            "trap 'echo interrupted' INT\nprintf '%s\\0' \"$PWD\" \"$@\" >{0}\nprintf 'agent-asks> '\nread line\n\
             read line\necho \"agent-heard $line\" >>{0}\nexit 0\n",
            called.display()
        ),
    );
    let config = lab.dir().join("agents.toml");
    let text = format!(
        "[agents.openhands]\nresume = [\"{}\", \"--resume\"]\n",
        agent.display()
    );
    std::fs::write(&config, text).expect("config");
    (called, config.to_str().expect("UTF-8").to_owned())
}

/// No server has the conversation: the agent's own command runs in this terminal, has all keys and the interrupt of
/// the terminal, and afterwards the screens have them again.
#[test]
fn the_agents_own_program_runs_here_and_the_screens_come_back() {
    let lab = lab();
    let (called, config) = stub(&lab);
    let store = lab.store().to_str().expect("UTF-8").to_owned();
    let mut screen = Screen::run(&lab, &["--config", &config, &store], &[]);
    screen.wait(" cp-");
    edit(&mut screen);
    screen.keys(&format!("; $(id)\r'q'{CTRL_S}"));
    screen.wait("send the new text");
    yes(&mut screen, |s| s.text().contains("message not sent"));
    screen.wait("o run it here");
    let kept = drafts(&lab);
    assert_eq!(kept.len(), 1);
    let text = std::fs::read_to_string(&kept[0]).expect("kept");
    screen.keys("o");
    screen.wait("agent-asks>");
    screen.keys("\x03");
    screen.wait("interrupted");
    screen.keys("qqy\rqqy\r");
    screen.wait("the agent has ended");
    let heard = std::fs::read_to_string(&called).expect("called");
    let words: Vec<&str> = heard.split('\0').collect();
    let want = [
        lab.ws_text(),
        "--resume",
        &conversation(&lab),
        &format!("--task={text}"),
    ];
    assert_eq!(words[..4], want);
    assert!(
        text.ends_with("; $(id)\n'q'") && words[4].contains("agent-heard qqy"),
        "{heard}"
    );
    assert_eq!(drafts(&lab), kept, "kept until it is seen in the conversation");
    // keys work, each once
    screen.keys("?");
    screen.wait("half a page down");
    screen.keys("\x1b");
    screen.gone("half a page down");
    screen.quit();
}

/// What a program that failed said stays on the terminal until the user has read it.
#[test]
fn what_a_failed_program_said_can_be_read() {
    let lab = lab();
    let (_, config) = stub(&lab);
    script(
        &lab.dir().join("openhands"),
        "echo cannot connect to anything\nexit 7\n",
    );
    let store = lab.store().to_str().expect("UTF-8").to_owned();
    let mut screen = Screen::run(&lab, &["--config", &config, &store], &[]);
    screen.wait(" cp-");
    edit(&mut screen);
    screen.keys(&format!("more{CTRL_S}"));
    screen.wait("send the new text");
    yes(&mut screen, |s| s.text().contains("message not sent"));
    screen.wait("o run it here");
    screen.keys("o");
    screen.wait("Press Enter to go back");
    assert!(
        screen.text().contains("cannot connect to anything"),
        "{}",
        screen.text()
    );
    screen.keys("\r");
    screen.wait("the agent's command failed: exit code 7");
    screen.keys("\x1b");
    screen.gone("That did not work");
    screen.keys("\x1b");
    screen.gone("message not sent");
    screen.quit();
}

fn conversation(lab: &Lab) -> String {
    let base: serde_json::Value =
        serde_json::from_slice(&std::fs::read(lab.store().join("base_state.json")).expect("state"))
            .expect("JSON");
    base["id"].as_str().expect("id").to_owned()
}

/// A message that was not sent is there again, also after a crash; and the user's editor is the second way.
#[test]
fn what_was_written_survives_a_crash_and_the_editor_has_it() {
    let lab = lab();
    let editor = lab.dir().join("my editor");
    script(&editor, "printf 'by the editor\\n' >>\"$1\"\n");
    let named = format!("'{}'", editor.display());
    let mut screen = Screen::open(&lab, &[("EDITOR", &named)]);
    edit(&mut screen);
    screen.keys(" and more");
    assert!(wait_until(SOON, || drafts(&lab).len() == 1), "{}", screen.text());
    // SIGKILL
    drop(screen);
    let mut screen = Screen::open(&lab, &[("EDITOR", &named)]);
    edit(&mut screen);
    screen.wait("Not sent yet: this is what you wrote last time.");
    screen.wait("and more");
    screen.keys(CTRL_E);
    screen.wait("and moreby the editor");
    screen.keys("!\x1b");
    screen.wait("what you wrote is kept");
    // the editor's file is gone, the text is kept
    let kept = || match &drafts(&lab)[..] {
        [one] => std::fs::read_to_string(one).is_ok_and(|t| t.ends_with(" and moreby the editor!")),
        _ => false,
    };
    assert!(wait_until(SOON, kept), "{:?}", drafts(&lab));
    screen.quit();
}

/// P120: two windows on one session. The other one refreshes and says so; while one is at work the other is refused.
#[test]
fn p120_two_windows_on_one_session() {
    let lab = lab();
    let mut one = Screen::open(&lab, &[]);
    let other = Screen::open(&lab, &[]);
    one.keys("r");
    one.wait("move the conversation's head there");
    yes(&mut one, |s| s.text().contains("Rewind done"));
    other.wait("restored by the other window: to just before message 4");
    one.keys("\x1b");
    one.gone("Rewind done");
    one.quit();
    let mut other = other;
    let halted = lab.stopped_at("rewind-safety", &["--yes", "rewind", "1", "--files"]);
    other.keys("gr");
    other.wait("Rewind to just before message 1?");
    yes(&mut other, |s| s.text().contains("waiting for another respool"));
    // after its patience of 10 s
    let refused = || other.text().contains("another respool is changing");
    assert!(wait_until(SOON * 2, refused), "{}", other.text());
    let before = lab.read("f");
    let a = halted.go_on();
    assert_eq!(a.code, Some(0), "{}", a.text());
    assert_eq!((before.as_str(), lab.read("f").as_str()), ("3", "0"));
    other.keys("\x1b");
    other.wait("restored by the other window: to just before message 1");
    other.quit();
    assert_eq!(lab.log()[0], ("rewind".into(), "done".into()));
    assert_eq!(json!(lab.leftovers()), json!([]));
}
