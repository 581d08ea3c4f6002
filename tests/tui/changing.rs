//! Plan, yes and no, result, undo.

use crate::harness::{Tui, at_message_3};
use crate::tui_fake;
use ratatui::crossterm::event::KeyEventKind;
use respool::engine::ChangeKind;
use respool::failure::Kind;
use respool::rewind::Outcome;
use respool::tui::backend::Failure;
use respool::tui::state::End;

#[test]
fn a_rewind_and_its_undo() {
    let mut tui = Tui::started(tui_fake::script(), (120, 40));
    at_message_3(&mut tui);
    tui.press("r");
    tui.wait("Rewind to just before message 3?");
    tui.wait("y rewind");
    tui.press("y");
    tui.wait("Rewind done");
    tui.wait("the check after it found no difference");
    assert_eq!(tui.fake.calls("rewind"), 1);
    tui.press("u");
    tui.wait("Undo the rewind?");
    tui.press("y");
    tui.wait("Undo done");
    let calls = tui.fake.edit(|s| s.calls.clone());
    assert!(calls.contains(&"undo op-0000000002".to_owned()), "{calls:?}");
    tui.press("U");
    tui.wait("Redo what was undone?");
    tui.press("y");
    tui.wait("Redo done");
}

#[test]
fn keys_before_the_conversation_is_read_are_told_so() {
    let mut script = tui_fake::script();
    script.gates.extend(["tail", "timeline"]);
    let mut tui = Tui::new(script, (120, 40));
    tui.send(respool::tui::message::Msg::Start);
    for key in ["u", "U", "c"] {
        tui.rush(key);
        tui.wait("the conversation is still being read");
        assert!(!tui.screen().contains("not tracked"), "{}", tui.screen());
    }
    tui.fake.open_gate("tail");
    tui.fake.open_gate("timeline");
    tui.wait("Add tags to notes");
    at_message_3(&mut tui);
    tui.press("r");
    tui.wait("Rewind to just before message 3?");
}

#[test]
fn enter_esc_and_the_opening_key_never_confirm() {
    let mut tui = Tui::started(tui_fake::script(), (120, 40));
    at_message_3(&mut tui);
    // P029: Esc Esc Enter Enter, quickly
    tui.rush("Esc Esc Enter Enter");
    tui.press("Esc");
    tui.press("r");
    tui.wait("y rewind");
    tui.press("Enter Enter r r Space Enter");
    // a held Enter
    for _ in 0..200 {
        tui.rush("Enter");
    }
    assert!(tui.screen().contains("y rewind"), "{}", tui.screen());
    tui.press("Esc");
    tui.gone("y rewind");
    tui.settle();
    assert_eq!(tui.fake.calls("rewind"), 0);
}

#[test]
fn keys_that_were_typed_before_the_plan_was_seen_never_confirm() {
    let mut script = tui_fake::script();
    script.gates.push("plan");
    let mut tui = Tui::started(script, (120, 40));
    at_message_3(&mut tui);
    // typed ahead while the plan is computed
    tui.rush("r y y");
    tui.fake.open_gate("plan");
    tui.wait("y rewind");
    // right after it appeared
    tui.rush("y");
    assert!(tui.screen().contains("too early"), "{}", tui.screen());
    // y is held: it repeats after a while, then quickly
    tui.at += 660;
    tui.key("y", KeyEventKind::Press);
    for _ in 0..100 {
        tui.rush("y");
    }
    tui.at += 2000;
    tui.key("y", KeyEventKind::Repeat);
    assert_eq!(tui.fake.calls("rewind"), 0);
    // a deliberate one
    tui.at += 2000;
    tui.key("y", KeyEventKind::Press);
    tui.wait("Rewind done");
    assert_eq!(tui.fake.calls("rewind"), 1);
}

#[test]
fn own_edits_and_holders_need_the_word() {
    let own = tui_fake::plan(&["README.md"]);
    let mut held = tui_fake::plan(&[]);
    held.blockers
        .push(tui_fake::blocker("holder", Some(7), "vim", false));
    for plan in [own, held] {
        let mut script = tui_fake::script();
        script.plan = Some(plan);
        let mut tui = Tui::started(script, (120, 40));
        at_message_3(&mut tui);
        tui.press("r");
        tui.wait("type rewind");
        tui.press("y Enter y");
        tui.press("r e w i n");
        assert_eq!(tui.fake.calls("rewind"), 0);
        // another key than the next letter begins anew
        tui.press("y r e w i n");
        assert_eq!(tui.fake.calls("rewind"), 0);
        tui.press("Enter");
        assert_eq!(tui.fake.calls("rewind"), 0);
        tui.press("Backspace n");
        tui.press("d");
        tui.wait("Rewind done");
    }
}

#[test]
fn a_held_letter_does_not_begin_the_word() {
    let mut script = tui_fake::script();
    script.plan = Some(tui_fake::plan(&["README.md"]));
    let mut tui = Tui::started(script, (120, 40));
    at_message_3(&mut tui);
    tui.rush("r");
    tui.wait("type rewind");
    tui.rush("r r e w i n d");
    assert_eq!(tui.fake.calls("rewind"), 0);
    assert!(tui.screen().contains("too early"), "{}", tui.screen());
    tui.at += 1500;
    tui.rush("r e w i n d");
    tui.wait("Rewind done");
}

#[test]
fn a_plan_with_a_blocker_cannot_be_confirmed() {
    let mut script = tui_fake::script();
    let mut plan = tui_fake::plan(&["README.md"]);
    plan.blockers
        .push(tui_fake::blocker("agent", Some(9), "openhands is at work", true));
    script.plan = Some(plan);
    let mut tui = Tui::started(script, (120, 40));
    at_message_3(&mut tui);
    tui.press("r");
    tui.wait("this cannot be done now");
    tui.press("y r e w i n d y");
    assert_eq!(tui.fake.calls("rewind"), 0);
}

#[test]
fn a_plan_that_changes_nothing_has_no_yes() {
    let mut script = tui_fake::script();
    let mut plan = tui_fake::plan(&[]);
    plan.changes.clear();
    script.plan = Some(plan);
    let mut tui = Tui::started(script, (120, 40));
    tui.press("r");
    tui.wait("nothing to take back");
    tui.press("y");
    assert_eq!(tui.fake.calls("rewind"), 0);
}

#[test]
fn esc_stops_a_running_rewind() {
    let mut script = tui_fake::script();
    script.gates.push("rewind");
    let mut tui = Tui::started(script, (120, 40));
    at_message_3(&mut tui);
    tui.press("r");
    tui.wait("y rewind");
    tui.press("y");
    tui.wait("40 of 100");
    // nothing else can be done meanwhile
    tui.press("r u q");
    assert_eq!(tui.state.end, None);
    tui.press("Esc");
    tui.wait("Rewind stopped");
    tui.wait("everything is as it was");
}

#[test]
fn a_container_that_was_restarted_for_nothing_is_named() {
    let mut script = tui_fake::script();
    let why = "cancelled; everything is as it was before; container box was restarted";
    let failure = Failure::new(Kind::Cancelled, why, None);
    script.failures.insert("rewind", failure);
    let mut tui = Tui::started(script, (120, 40));
    at_message_3(&mut tui);
    tui.press("r");
    tui.wait("y rewind");
    tui.press("y");
    tui.wait("Rewind stopped");
    tui.wait("But container box was restarted.");
}

#[test]
fn ctrl_c_quits_from_everywhere_and_waits_for_a_rewind() {
    for keys in ["/ a", "Ctrl-o", ":", "?", "r", "l", "Enter"] {
        let mut tui = Tui::started(tui_fake::script(), (120, 40));
        tui.press(keys);
        tui.press("Ctrl-c");
        assert_eq!(tui.state.end, Some(End::Quit), "{keys}");
    }
    let mut script = tui_fake::script();
    script.gates.push("rewind");
    let mut tui = Tui::started(script, (120, 40));
    at_message_3(&mut tui);
    tui.press("r");
    tui.wait("y rewind");
    tui.press("y");
    tui.wait("40 of 100");
    tui.press("Ctrl-c");
    tui.until("the end", |t| t.state.end == Some(End::Quit));
}

#[test]
fn esc_never_quits_and_q_does() {
    let mut tui = Tui::started(tui_fake::script(), (120, 40));
    tui.press("Esc Esc Esc Tab Esc Enter Esc Esc");
    assert_eq!(tui.state.end, None);
    tui.press("q");
    assert_eq!(tui.state.end, Some(End::Quit));
}

#[test]
fn what_was_not_verified_is_never_called_done() {
    let mut script = tui_fake::script();
    script.outcome = Some(Ok(Outcome {
        operation: "op-9".into(),
        safety: tui_fake::cp(80),
        changed: 3,
        verified: false,
        chat: "kept",
        conversation: None,
        store: None,
        resent: false,
        notes: Vec::new(),
        containers: Vec::new(),
    }));
    let mut tui = Tui::started(script, (120, 40));
    at_message_3(&mut tui);
    tui.press("r");
    tui.wait("y rewind");
    tui.press("y");
    tui.wait("Rewind not verified");
    assert!(!tui.screen().contains("done"), "{}", tui.screen());
}

/// The conversation that a fork leads to is shown from then on, and the undo's afterwards.
#[test]
fn a_fork_is_shown_once_it_is_there() {
    let mut script = tui_fake::script();
    let fork = std::path::PathBuf::from("/fork.jsonl");
    script.outcome = Some(Ok(Outcome {
        operation: "op-9".into(),
        safety: tui_fake::cp(80),
        changed: 3,
        verified: true,
        chat: "forked",
        conversation: Some("fork".into()),
        store: Some(fork.clone()),
        resent: false,
        containers: Vec::new(),
        notes: vec!["go on there: claude --resume fork".into()],
    }));
    let mut tui = Tui::started(script, (120, 40));
    at_message_3(&mut tui);
    tui.press("r");
    tui.wait("y rewind");
    tui.press("y");
    tui.wait("goes on in a fork");
    tui.wait("claude --resume fork");
    let shown = |t: &Tui| t.state.open.as_ref().map(|o| (o.store.clone(), o.from.clone()));
    assert_eq!(shown(&tui), Some((fork.clone(), Some(tui_fake::store()))));
    tui.press("Esc");
    tui.until("the fork's messages", |t| {
        let open = t.state.open.as_ref();
        open.and_then(|o| o.timeline.as_ref())
            .is_some_and(|t| t.conversation.store == fork && !t.partial)
    });
}

#[test]
fn a_rewind_that_fails_says_both_causes() {
    let mut script = tui_fake::script();
    script.outcome = Some(Err(Failure::new(
        Kind::Failed,
        "cannot write src/a: no space; everything was put back",
        Some("respool prune".into()),
    )));
    let mut tui = Tui::started(script, (120, 40));
    at_message_3(&mut tui);
    tui.press("r");
    tui.wait("y rewind");
    tui.press("y");
    tui.wait("Rewind failed");
    tui.wait("everything was put back");
    tui.wait("respool prune");
}

#[test]
fn undo_with_nothing_to_undo_says_so() {
    let mut script = tui_fake::script();
    script.operations.clear();
    let mut tui = Tui::started(script, (120, 40));
    tui.press("u");
    tui.wait("there is no rewind to undo");
    tui.press("U");
    tui.wait("there is nothing to redo");
}

#[test]
fn a_checkpoint_is_taken_and_named() {
    let mut tui = Tui::started(tui_fake::script(), (120, 40));
    tui.press("c");
    tui.wait("checkpoint cp-0000000090 taken in 12 ms");
    assert_eq!(tui.fake.calls("checkpoint"), 1);
}

#[test]
fn the_palette_runs_actions_and_its_enter_confirms_nothing() {
    let mut tui = Tui::started(tui_fake::script(), (120, 40));
    at_message_3(&mut tui);
    tui.press(": r e w i n d Space t o");
    tui.press("Enter");
    tui.wait("y rewind");
    tui.press("Enter Enter");
    assert_eq!(tui.fake.calls("rewind"), 0);
    tui.press("Esc");
    tui.press(": y o u r s e l f Enter");
    tui.wait("Files  after message 3");
}

#[test]
fn a_late_checkpoint_says_so_in_the_plan() {
    let mut tui = Tui::started(tui_fake::script(), (120, 40));
    tui.press("k k");
    tui.wait("Files  message 5");
    tui.press("r");
    tui.wait("the checkpoint was taken late: 2 paths had changed already");
}

#[test]
fn the_end_of_a_turn_can_be_gone_back_to() {
    let mut tui = Tui::started(tui_fake::script(), (120, 40));
    at_message_3(&mut tui);
    tui.press(": e n d Space o f Space t h i s Enter");
    tui.wait("y rewind");
    let calls = tui.fake.edit(|s| s.calls.clone());
    assert!(
        calls.contains(&"plan End(\"event-0003\")".to_owned()),
        "{calls:?}"
    );
    // the newest turn has no end yet
    tui.press("Esc G");
    tui.press(": e n d Space o f Space t h i s Enter");
    tui.wait("the end of this turn was not kept");
}

#[test]
fn nothing_stops_the_program_while_a_rewind_is_at_work() {
    let mut script = tui_fake::script();
    script.gates.push("rewind");
    let mut tui = Tui::started(script, (120, 40));
    tui.press("r");
    tui.wait("y rewind");
    tui.press("y");
    tui.wait("40 of 100");
    tui.press("Ctrl-z");
    tui.wait("not while something is at work");
    tui.fake.open_gate("rewind");
    tui.wait("Rewind done");
}

#[test]
fn a_long_plan_scrolls() {
    let mut script = tui_fake::script();
    let mut plan = tui_fake::plan(&["file-499"]);
    plan.changes = (0..500)
        .map(|n| tui_fake::change(&format!("file-{n}"), ChangeKind::Added))
        .collect();
    script.plan = Some(plan);
    let mut tui = Tui::started(script, (80, 24));
    tui.press("r");
    tui.wait("type rewind");
    assert!(!tui.screen().contains("file-499"));
    tui.press("G");
    tui.wait("file-499");
    tui.wait("yours");
    tui.press("g");
    tui.wait("file-0 ");
}

/// The plan says what happens to the conversation; a key of the plan takes files and conversation, one, or the other.
#[test]
fn files_and_conversation_one_or_the_other() {
    let mut script = tui_fake::script();
    if let Some(plan) = &mut script.plan {
        plan.chat = "rewound";
    }
    let mut tui = Tui::started(script, (120, 40));
    at_message_3(&mut tui);
    tui.press("r");
    tui.wait("the conversation goes back too");
    tui.wait("Tab files and chat");
    tui.press("Tab");
    tui.wait("Tab files alone");
    tui.wait("the conversation is kept as it is");
    tui.press("Tab");
    tui.wait("Tab chat alone");
    tui.wait("the conversation goes back, the files stay");
    tui.press("Tab");
    tui.wait("Tab files and chat");
    let calls = tui.fake.edit(|s| s.calls.clone());
    let plans: Vec<&String> = calls.iter().filter(|c| c.starts_with("plan")).collect();
    assert_eq!(plans.len(), 4, "{calls:?}");
    assert!(
        plans[1].ends_with(" Files") && plans[2].ends_with(" Chat"),
        "{plans:?}"
    );
    assert_eq!(tui.fake.calls("rewind"), 0);
}

/// A conversation that cannot be moved: the plan says why, and the key has nothing to switch.
#[test]
fn a_conversation_that_stays_says_why() {
    let mut script = tui_fake::script();
    if let Some(plan) = &mut script.plan {
        plan.chat_reason = Some("conversations of x\u{1b}[31m cannot be moved yet".into());
    }
    let mut tui = Tui::started(script, (120, 40));
    at_message_3(&mut tui);
    tui.press("r");
    tui.wait("kept as it is: conversations of x");
    assert!(!tui.screen().contains("Tab files"), "{}", tui.screen());
    tui.press("Tab");
    assert_eq!(tui.fake.calls("plan"), 1);
}

/// An agent at work is interrupted by the typed word alone.
#[test]
fn an_agent_at_work_needs_the_word() {
    let mut script = tui_fake::script();
    if let Some(plan) = &mut script.plan {
        plan.chat = "rewound";
        plan.blockers.push(tui_fake::blocker(
            "agent",
            Some(4242),
            "the agent is at work on this conversation: it is interrupted",
            false,
        ));
    }
    let mut tui = Tui::started(script, (120, 40));
    at_message_3(&mut tui);
    tui.press("r");
    tui.wait("it is interrupted (process 4242)");
    tui.press("y");
    tui.settle();
    assert_eq!(tui.fake.calls("rewind"), 0);
    tui.press("r e w i n d");
    tui.wait("Rewind done");
    assert_eq!(tui.fake.calls("rewind"), 1);
}
