//! A message is edited and sent again: the box, the plan, what was sent, what there is to do where nothing sends it.

use std::ffi::OsString;

use crate::harness::{Tui, at_message_3, pictures};
use crate::tui_fake::{self, Script};
use respool::failure::Kind;
use respool::rewind::{OperationKind, OperationState};
use respool::tui::backend::Failure;
use respool::tui::effect::Outside;
use respool::tui::message::Msg;
use respool::tui::state::{End, Overlay};

/// A conversation that goes back, too.
fn script() -> Script {
    let mut script = tui_fake::script();
    script.plan.as_mut().expect("a plan").chat = "rewound";
    script
}

fn text_of(tui: &Tui) -> String {
    let edit = tui.state.overlays.iter().find_map(|o| match o {
        Overlay::Edit(edit) => Some(edit),
        _ => None,
    });
    edit.and_then(|e| e.text()).expect("the box with its text")
}

fn opened(script: Script) -> Tui {
    let mut tui = Tui::started(script, (120, 40));
    at_message_3(&mut tui);
    tui.press("e");
    tui.wait("Edit message 3 and send it again");
    tui.settle();
    tui
}

fn row_text(tui: &Tui, id: &str) -> String {
    let rows = tui.state.open.as_ref().expect("open").rows();
    rows.iter().find(|r| r.id == id).expect("the row").text.clone()
}

#[test]
fn a_message_is_edited_and_sent_again_after_the_plan() {
    let mut tui = opened(script());
    tui.press(". Ctrl-s");
    tui.wait("Go back to just before message 3, and send the message?");
    tui.wait("send the new text");
    assert_eq!(tui.fake.calls("resend"), 0, "nothing before the yes");
    tui.press("y");
    tui.wait("Sent");
    tui.wait("the message was sent, by the agent server");
    let sent = tui.fake.edit(|s| s.sent.clone());
    let old = row_text(&tui, "event-0003");
    assert_eq!((sent.len(), &*sent[0].text), (1, format!("{old}.").as_str()));
    assert_eq!(sent[0].row, "event-0003");
    assert_eq!(
        (tui.fake.calls("rewind"), tui.fake.edit(|s| s.kept.len())),
        (0, 0)
    );
    // and undo from there
    tui.press("u");
    tui.wait("Undo the rewind?");
}

/// Unchanged is a retry. The same for the first message and the last.
#[test]
fn p127_the_first_and_the_last_message_are_sent_again_as_they_were() {
    for (keys, row) in [("g", "event-0001"), ("G", "event-0008")] {
        let mut tui = Tui::started(script(), (120, 40));
        tui.press(keys);
        tui.press("e");
        tui.wait("and send it again");
        tui.settle();
        tui.press("Ctrl-s");
        tui.wait("send the same message again");
        tui.press("y");
        tui.wait("the message was sent");
        let sent = tui.fake.edit(|s| s.sent.clone());
        assert_eq!(
            (sent[0].row.as_str(), &*sent[0].text),
            (row, row_text(&tui, row).as_str())
        );
        assert_eq!(tui.fake.calls("keep"), 0, "what is as it was needs no keeping");
    }
}

/// P021: the confirm box lists the user's own file, asks for a word, and offers to leave the files alone. Nothing
/// is done before the answer.
#[test]
fn p021_own_edits_are_named_and_the_conversation_alone_is_offered() {
    let mut script = script();
    let mut plan = tui_fake::plan(&["e.txt"]);
    plan.changes
        .push(tui_fake::change("e.txt", respool::engine::ChangeKind::Modified));
    plan.chat = "rewound";
    script.plan = Some(plan);
    let mut tui = opened(script);
    tui.press("! Ctrl-s");
    tui.wait("1 path is your own edit, not the agent's: taken back too");
    tui.wait("type send:");
    assert!(tui.screen().contains("e.txt"), "{}", tui.screen());
    tui.press("y Enter");
    assert_eq!(tui.fake.calls("resend"), 0);
    // cancelled: back in the box, with the text
    tui.press("Esc");
    tui.gone("type send:");
    assert!(text_of(&tui).ends_with('!'));
    // the conversation alone
    tui.press("Ctrl-s");
    tui.wait("type send:");
    tui.press("Tab");
    tui.wait("No file is changed.");
    tui.settle();
    tui.press("s e n d");
    tui.wait("the message was sent");
    let calls = tui.fake.edit(|s| s.calls.clone());
    assert!(calls.contains(&"resend event-0003 Chat".to_owned()), "{calls:?}");
}

/// Where the conversation stays, the message would come last of all: it is not sent.
#[test]
fn a_conversation_that_stays_is_sent_nothing() {
    let mut script = tui_fake::script();
    let plan = script.plan.as_mut().expect("a plan");
    plan.chat_reason = Some("conversations of claude cannot be moved yet".into());
    let mut tui = opened(script);
    tui.press("x Ctrl-s");
    tui.wait("conversations of claude cannot be moved yet");
    tui.wait("the message would come last of all");
    tui.wait("this cannot be done now");
    tui.press("y Enter s e n d y");
    assert_eq!(tui.fake.calls("resend"), 0);
    let kept = tui.fake.edit(|s| s.kept.clone());
    assert!(kept["event-0003"].ends_with('x'), "{kept:?}");
}

/// P128: what went with the message goes with it again, is shown, and can be left away.
#[test]
fn p128_pictures_go_with_it_and_can_be_left_away() {
    let mut script = script();
    script.attachments = ["picture 1: image/png, 12 KiB", "picture 2: image/gif, 3 B"]
        .map(String::from)
        .to_vec();
    let mut tui = opened(script);
    for words in [
        "+ picture 1: image/png",
        "+ picture 2: image/gif",
        "they go with it",
    ] {
        assert!(tui.screen().contains(words), "{}", tui.screen());
    }
    tui.press("Tab j x");
    tui.wait("- picture 2: image/gif, 3 B   left away");
    tui.press("Ctrl-s");
    tui.wait("without 1 picture");
    tui.press("y");
    tui.wait("the message was sent");
    assert_eq!(tui.fake.edit(|s| s.sent[0].keep.clone()), [true, false]);
}

/// P150: 20 lines with keys in them are pasted as text; nothing is sent or confirmed, whatever box is open.
#[test]
fn p150_pasted_lines_are_text() {
    let lines: Vec<String> = (1..=20)
        .map(|n| format!("q y R {n} \u{13}\u{1b}[27;5;13~"))
        .collect();
    let mut tui = opened(script());
    let before = text_of(&tui);
    tui.send(Msg::Paste(lines.join("\r")));
    assert_eq!(text_of(&tui), format!("{before}{}", lines.join("\n")));
    assert_eq!(tui.state.end, None);
    tui.press("Ctrl-s");
    tui.wait("y send");
    for text in ["y", "send", "y\ny\ny\n"] {
        tui.send(Msg::Paste(text.into()));
    }
    tui.settle();
    assert_eq!((tui.fake.calls("resend"), tui.fake.calls("plan")), (0, 1));
    assert!(tui.screen().contains("y send"), "{}", tui.screen());
}

/// Plain keys are text in the box, Enter is a new line.
#[test]
fn keys_are_text_in_the_box() {
    let mut tui = opened(script());
    let before = text_of(&tui);
    tui.press("Enter q y R e r Tab j Enter");
    assert_eq!(text_of(&tui), format!("{before}\nqyRer\tj\n"));
    assert_eq!((tui.state.end, tui.fake.calls("plan")), (None, 0));
}

/// Claude Code, or no server: respool itself sends nothing. What a step says is not said twice.
#[test]
fn where_no_server_sends_the_plan_says_so() {
    let mut script = script();
    let plan = script.plan.as_mut().expect("a plan");
    (plan.chat, plan.sends) = ("forked", false);
    plan.steps
        .push("go on in a new conversation that ends there (a fork)".into());
    let mut tui = opened(script);
    tui.press(". Ctrl-s");
    tui.wait("y go back, then offer the command");
    tui.wait("then offer the agent's own command to send the new text");
    assert_eq!(tui.screen().matches("a fork").count(), 1, "{}", tui.screen());
}

#[test]
fn what_was_written_is_kept_and_offered_again() {
    let mut tui = opened(script());
    let old = text_of(&tui);
    tui.press("!");
    // soon, without leaving: a crash does not lose it
    tui.until("kept", |t| t.fake.edit(|s| s.kept.contains_key("event-0003")));
    tui.press("? Esc");
    tui.gone("Edit message 3");
    tui.wait("what you wrote is kept");
    tui.until("kept", |t| t.fake.edit(|s| s.kept["event-0003"].ends_with("!?")));
    tui.press("e");
    tui.wait("Not sent yet: this is what you wrote last time.");
    tui.wait("and send it again: not sent yet, from last time");
    assert_eq!(text_of(&tui), format!("{old}!?"));
    tui.press("Ctrl-r");
    tui.gone("Not sent yet");
    assert_eq!(text_of(&tui), old);
    tui.press("Esc");
    tui.until("no longer kept", |t| t.fake.edit(|s| s.kept.is_empty()));
    // another message has a place of its own
    tui.press("k e");
    tui.wait("Edit message 2");
    tui.settle();
    assert_eq!(text_of(&tui), "Add tags to notes");
}

#[test]
fn quitting_and_signals_keep_what_was_written() {
    for msg in [None, Some(Msg::Signal(1))] {
        let mut tui = opened(script());
        tui.press("!");
        match msg {
            Some(msg) => tui.send(msg),
            None => tui.press("Ctrl-c"),
        }
        assert!(matches!(tui.state.end, Some(End::Quit | End::Signal(1))));
        tui.until("kept", |t| t.fake.edit(|s| s.kept.contains_key("event-0003")));
    }
}

/// What a terminal would act on is neither drawn nor lost.
#[test]
fn a_hostile_message_is_harmless_in_the_box_and_sent_byte_for_byte() {
    let evil = "a\tb\r\nc\u{1b}[2J\u{1b}]52;c;eA==\u{7}\0\u{9b}31m\u{7f}\u{202e}x\u{200b}中文👩‍👩‍👧\n";
    let mut script = script();
    script.timeline.as_mut().expect("one").rows[2].text = evil.into();
    script.attachments = vec!["picture 1: x^[[2J".into()];
    let mut tui = opened(script);
    for symbol in tui
        .terminal
        .backend()
        .buffer()
        .content()
        .iter()
        .map(ratatui::buffer::Cell::symbol)
    {
        assert!(
            !symbol
                .chars()
                .any(|c| respool::text::is_unsafe_char(c) || c as u32 >= 0xf_0000),
            "{symbol:?}\n{}",
            tui.screen()
        );
    }
    assert!(tui.screen().contains("c␛[2J␛]52;c;eA==␇␀"), "{}", tui.screen());
    tui.press("Ctrl-s");
    tui.wait("send the same message again");
    tui.press("y");
    tui.wait("the message was sent");
    assert_eq!(&*tui.fake.edit(|s| s.sent[0].text.clone()), evil);
}

#[test]
fn a_text_that_is_too_long_for_the_box_is_sent_as_it_is_or_edited_elsewhere() {
    let long = "0123456789 line\n".repeat(1 << 16);
    let mut script = script();
    script.timeline.as_mut().expect("one").rows[2]
        .text
        .clone_from(&long);
    let mut tui = opened(script);
    tui.wait("Too long to be edited here");
    tui.press("x");
    assert_eq!(text_of(&tui), long);
    tui.press("Ctrl-e");
    tui.until("the editor", |t| !t.outside.is_empty());
    let Outside::Editor(file) = tui.outside[0].clone() else {
        panic!("{:?}", tui.outside)
    };
    assert_eq!(std::fs::read_to_string(&file).expect("the file"), long);
    std::fs::write(&file, "short").expect("edited");
    tui.send(Msg::Ran(Outside::Editor(file.clone()), Ok(())));
    tui.until("taken", |t| text_of(t) == "short");
    assert!(!file.exists());
    // what a failed editor leaves is not taken
    tui.press("Ctrl-e");
    tui.until("the editor", |t| t.outside.len() == 2);
    std::fs::write(&file, "half").expect("edited");
    let failure = Failure::new(Kind::Failed, "the editor failed", None);
    tui.send(Msg::Ran(Outside::Editor(file.clone()), Err(failure)));
    tui.wait("the editor failed");
    tui.until("removed", |_| !file.exists());
    tui.settle();
    assert_eq!(text_of(&tui), "short");
}

fn unsent(script: Script, tmux: bool) -> Tui {
    let mut tui = opened(script);
    tui.state.tmux = tmux;
    tui.press("! Ctrl-s");
    tui.wait("y send");
    tui.press("y");
    tui.wait("Rewind done, message not sent");
    tui
}

fn command() -> (Vec<OsString>, std::path::PathBuf) {
    let words = ["openhands", "--resume", "3f2a9c0d", "--task=better"].map(OsString::from);
    (words.to_vec(), "/home/ada/src/notes".into())
}

#[test]
fn where_no_server_sends_it_the_agents_own_command_is_offered() {
    let mut script = script();
    script.command = Some(command());
    let mut tui = unsent(script, true);
    for words in [
        "o run it here",
        "w in a tmux window",
        "c copy it",
        "u undo",
        "no agent server has",
    ] {
        assert!(tui.screen().contains(words), "{words}: {}", tui.screen());
    }
    tui.press("c");
    assert!(matches!(&tui.outside[0], Outside::Copy(line) if line.contains("openhands --resume 3f2a9c0d")));
    tui.send(Msg::Ran(tui.outside[0].clone(), Ok(())));
    tui.wait("the command is in the clipboard");
    let (words, folder) = command();
    tui.press("w");
    assert_eq!(tui.outside[1], Outside::Window(words.clone(), folder.clone()));
    let failure = Failure::new(Kind::Failed, "tmux opens no window: no server", None);
    tui.send(Msg::Ran(tui.outside[1].clone(), Err(failure)));
    tui.wait("tmux opens no window");
    tui.press("o");
    assert_eq!(tui.outside[2], Outside::Run(words, folder));
    let kept = |t: &Tui| t.fake.edit(|s| s.kept.contains_key("event-0003"));
    assert!(kept(&tui), "until it is seen in the conversation");
    // the agent takes it: the new message stands in the conversation
    let text = tui.fake.edit(|s| s.kept["event-0003"].clone());
    let mut new = tui_fake::row(9, &text);
    new.id = "event-0099".into();
    tui.fake
        .edit(|s| s.timeline.as_mut().expect("one").rows.push(new));
    tui.send(Msg::Ran(tui.outside[2].clone(), Ok(())));
    tui.gone("message not sent");
    tui.until("no longer kept", |t| !kept(t));
}

/// An older message with the same words is not the one that is waited for: the copied command still reads the file.
#[test]
fn an_older_message_with_the_same_words_is_not_the_new_one() {
    let mut script = script();
    script.command = Some(command());
    let mut tui = unsent(script, true);
    let kept = |t: &Tui| t.fake.edit(|s| s.kept.contains_key("event-0003"));
    let text = tui.fake.edit(|s| s.kept["event-0003"].clone());
    let row = |id: &str, text: &str| {
        let mut row = tui_fake::row(9, text);
        row.id = id.into();
        row
    };
    let older = row("event-0098", &text);
    let add = |t: &mut Tui, row| {
        t.fake.edit(|s| s.timeline.as_mut().expect("one").rows.push(row));
        t.fake.changed();
        t.settle();
    };
    add(&mut tui, older);
    tui.press("c");
    tui.send(Msg::Ran(tui.outside[0].clone(), Ok(())));
    tui.fake.changed();
    tui.settle();
    tui.send(Msg::Refresh);
    tui.settle();
    assert!(kept(&tui), "{}", tui.screen());
    add(&mut tui, row("event-0099", &text));
    tui.send(Msg::Refresh);
    tui.until("no longer kept", |t| !kept(t));
}

#[test]
fn outside_of_tmux_no_window_is_offered() {
    let mut script = script();
    script.command = Some(command());
    let mut tui = unsent(script, false);
    assert!(!tui.screen().contains("tmux"), "{}", tui.screen());
    tui.press("w");
    assert!(tui.outside.is_empty());
    tui.press("Esc");
    tui.gone("message not sent");
    assert!(
        tui.fake.edit(|s| s.kept.contains_key("event-0003")),
        "it stays kept"
    );
}

#[test]
fn a_rewind_that_fails_keeps_the_message() {
    let mut script = script();
    let why = "the check found 1 path; everything is as it was before";
    script
        .failures
        .insert("resend", Failure::new(Kind::Failed, why, None));
    let mut tui = opened(script);
    tui.press("! Ctrl-s");
    tui.wait("y send");
    tui.press("y");
    tui.wait("Rewind failed");
    tui.wait("The message was not sent; it is kept: e on it offers it again.");
    assert!(tui.fake.edit(|s| s.kept.contains_key("event-0003")));
}

#[test]
fn what_cannot_be_sent_again_is_told() {
    let mut tui = Tui::started(script(), (120, 40));
    // message 6 is a shell line without a checkpoint, message 4 has a checkpoint that failed
    for keys in ["k e", "k k e"] {
        tui.press(keys);
        assert!(!tui.screen().contains("send it again"), "{}", tui.screen());
    }
    let mut script = script();
    let why = "the message has 2 pictures, and they cannot be found";
    script
        .failures
        .insert("opening", Failure::new(Kind::Refused, why, None));
    let mut tui = Tui::started(script, (120, 40));
    at_message_3(&mut tui);
    tui.press("e");
    tui.wait(why);
    assert!(tui.state.overlays.is_empty());
}

/// P120: what another window does to the same sandbox is told here, and what this one does is not.
#[test]
fn p120_a_rewind_of_the_other_window_is_told() {
    let mut tui = Tui::started(script(), (120, 40));
    tui.until("watched", |t| t.fake.calls("watch") == 1);
    tui.until("the log is known", |t| {
        t.state.open.as_ref().is_some_and(|o| o.newest.is_some())
    });
    at_message_3(&mut tui);
    tui.press("r");
    tui.wait("y rewind");
    tui.press("y");
    tui.wait("Rewind done");
    tui.settle();
    tui.fake.changed();
    tui.settle();
    assert!(!tui.screen().contains("other window"), "{}", tui.screen());
    tui.press("Esc");
    for (kind, words) in [
        (
            OperationKind::Rewind,
            "restored by the other window: just before message 2",
        ),
        (OperationKind::Undo, "a rewind was undone by the other window"),
    ] {
        let id = format!("op-{words}");
        let op = tui_fake::operation(&id, kind, OperationState::Done, "just before message 2");
        tui.fake.edit(|s| s.operations.insert(0, op));
        let reads = tui.fake.calls("timeline");
        tui.fake.changed();
        tui.wait(words);
        assert!(tui.fake.calls("timeline") > reads, "and everything is read again");
        tui.press("x");
    }
    // while it is at work this one is told to wait
    let busy = Failure::new(
        Kind::Refused,
        "another respool is changing /home/ada/src/notes (process 7)",
        None,
    );
    tui.fake.edit(|s| s.failures.insert("rewind", busy));
    tui.press("r");
    tui.wait("y rewind");
    tui.press("y");
    tui.wait("another respool is changing /home/ada/src/notes");
}

#[test]
fn pictures_of_the_box() {
    let with = |found: bool| {
        move || {
            let mut script = script();
            script.attachments = ["picture 1: image/png, 12 KiB", "picture 2: image/gif, 3 B"]
                .map(String::from)
                .to_vec();
            if found {
                script.kept.insert(
                    "event-0003".into(),
                    "Split it\n\n\tand \u{1b}[31mtest it 中文".into(),
                );
            }
            script
        }
    };
    let open = |tui: &mut Tui| {
        tui.press(crate::harness::TO_3);
        tui.settle();
        tui.press("e");
        tui.wait("send it again");
        tui.settle();
    };
    pictures("edit", with(false), open);
    pictures("edit_found", with(true), |tui| {
        open(tui);
        tui.press("Tab x");
    });
    pictures("edit_plan", with(false), |tui| {
        open(tui);
        tui.press("! Ctrl-s");
        tui.wait("y send");
        tui.settle();
    });
}

#[test]
fn pictures_of_the_result() {
    let go = |tui: &mut Tui| {
        tui.state.tmux = true;
        tui.press(crate::harness::TO_3);
        tui.settle();
        tui.press("e");
        tui.wait("send it again");
        tui.settle();
        tui.press("Ctrl-s");
        tui.wait("y send");
        tui.press("y");
        tui.until("the result", |t| {
            matches!(t.state.overlays.last(), Some(Overlay::Ended(_)))
        });
        tui.settle();
    };
    pictures("edit_sent", script, go);
    let unsent = || {
        let mut script = script();
        script.command = Some(command());
        script
    };
    pictures("edit_unsent", unsent, go);
}
