//! P140: the store of the conversation that the screens show changes: it grows, another one is put in its place, it
//! is deleted and comes back. The timeline follows, the selection stays on its message.

use std::io::Write as _;
use std::path::PathBuf;

use serde_json::{Value, json};

use crate::lab::Lab;
use crate::screen::Screen;

/// The message that the cursor is on.
fn on(screen: &Screen, number: u32) {
    screen.wait(&format!("─ Message {number} ─"));
}

/// How many messages the title counts.
fn messages(screen: &Screen, count: usize) {
    let rest = format!("─ {count} ─");
    screen.until(&format!("{count} messages"), |t| {
        t.lines()
            .any(|l| l.starts_with("─ Messages ─") && l.contains(&rest))
    });
}

#[test]
fn p140_a_conversation_of_openhands() {
    let lab = Lab::new(|_| {});
    for n in 1..=2 {
        lab.message(n);
    }
    let store = lab.store();
    let mut screen = Screen::open(&lab, &[]);
    screen.keys("g");
    on(&screen, 1);
    for n in 3..=4 {
        lab.cut(&store, n);
        messages(&screen, n);
        on(&screen, 1);
    }
    screen.keys("j");
    on(&screen, 2);
    // another one in its place, and that one is followed
    let other = lab.dir().join("other");
    lab.copy_store(&other);
    lab.cut(&other, 3);
    std::fs::rename(&store, lab.dir().join("away")).expect("rename");
    std::fs::rename(&other, &store).expect("rename");
    messages(&screen, 3);
    on(&screen, 2);
    lab.cut(&store, 4);
    messages(&screen, 4);
    on(&screen, 2);
    // deleted: the last state stays, and says so; it is followed again when it comes back
    std::fs::remove_dir_all(&store).expect("remove");
    screen.wait("no longer readable");
    on(&screen, 2);
    let again = lab.dir().join("again");
    lab.copy_store(&again);
    lab.cut(&again, 3);
    std::fs::rename(&again, &store).expect("rename");
    screen.wait("there again");
    messages(&screen, 3);
    lab.cut(&store, 4);
    messages(&screen, 4);
    on(&screen, 2);
    screen.quit();
}

/// A session of Claude Code, one file.
struct Session {
    file: PathBuf,
    lines: Vec<String>,
}

impl Session {
    fn new(lab: &Lab) -> Self {
        let project = lab.dir().join("home/.claude/projects/-w");
        std::fs::create_dir_all(&project).expect("folders");
        let file = project.join("11111111-2222-4333-8444-555555555555.jsonl");
        let mut parent = Value::Null;
        let mut lines = Vec::new();
        for n in 1..=6 {
            let uuid = format!("{n:08}-0000-4000-8000-000000000000");
            let record = json!({"parentUuid": parent, "isSidechain": false, "type": "user", "uuid": uuid,
                "timestamp": format!("2026-11-29T17:05:{n:02}Z"), "sessionId": file.file_stem().expect("a name").to_str(),
                "cwd": lab.ws(), "message": {"role": "user", "content": format!("message {n}")}});
            lines.push(format!("{record}\n"));
            parent = uuid.into();
        }
        Self { file, lines }
    }

    fn append(&self, n: usize) {
        let file = std::fs::File::options()
            .create(true)
            .append(true)
            .open(&self.file);
        file.expect("open")
            .write_all(self.lines[n - 1].as_bytes())
            .expect("write");
    }

    /// A file with the first `count` messages is put in its place.
    fn replace(&self, count: usize) {
        let new = self.file.with_extension("new");
        std::fs::write(&new, self.lines[..count].concat()).expect("write");
        std::fs::rename(new, &self.file).expect("rename");
    }
}

#[test]
fn p140_a_session_of_claude_code() {
    let lab = Lab::new(|_| {});
    let session = Session::new(&lab);
    session.replace(2);
    let mut screen = Screen::run(&lab, &[session.file.to_str().expect("UTF-8")], &[]);
    messages(&screen, 2);
    screen.keys("g");
    on(&screen, 1);
    session.append(3);
    messages(&screen, 3);
    on(&screen, 1);
    screen.keys("j");
    on(&screen, 2);
    for round in 0..2 {
        session.replace(4 + round);
        messages(&screen, 4 + round);
        on(&screen, 2);
        session.append(5 + round);
        messages(&screen, 5 + round);
        on(&screen, 2);
    }
    std::fs::remove_file(&session.file).expect("remove");
    screen.wait("no longer readable");
    on(&screen, 2);
    session.replace(3);
    screen.wait("there again");
    messages(&screen, 3);
    session.append(4);
    messages(&screen, 4);
    on(&screen, 2);
    screen.quit();
}
