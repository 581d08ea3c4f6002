//! Timeline, files, diff, filter, lists.

use crate::harness::{Tui, at_message_3, setup};
use crate::tui_fake;
use respool::failure::Kind;
use respool::tui::backend::Failure;
use respool::tui::backend::StateRef;
use respool::tui::message::Msg;
use respool::tui::state::Overlay;

#[test]
fn the_skeleton_comes_before_any_call_and_rows_before_the_whole_timeline() {
    let mut script = tui_fake::script();
    script.gates.push("timeline");
    let mut tui = Tui::new(script, (100, 30));
    assert!(tui.screen().contains("Messages"), "{}", tui.screen());
    assert_eq!(tui.fake.calls("tail") + tui.fake.calls("timeline"), 0);
    tui.send(Msg::Start);
    tui.wait("Make search ignore case");
    tui.wait("the last 8");
    tui.fake.open_gate("timeline");
    tui.gone("the last 8");
    tui.wait("● 7 ");
}

#[test]
fn a_tail_that_comes_late_does_not_replace_the_whole() {
    let mut script = tui_fake::script();
    script.gates.push("tail");
    let mut tui = Tui::new(script, (100, 30));
    tui.send(Msg::Start);
    tui.wait("● 7 ");
    tui.fake.open_gate("tail");
    tui.settle();
    assert!(!tui.screen().contains("the last"), "{}", tui.screen());
}

#[test]
fn the_default_pair_is_the_turn_and_marks_change_it() {
    let mut tui = Tui::started(tui_fake::script(), (120, 40));
    let asked = |t: &Tui, a: &StateRef, b: &StateRef| {
        let call = format!("changes {a:?} {b:?}");
        t.fake.edit(|s| s.calls.contains(&call))
    };
    let (before, end) = (
        |n| StateRef::Before(format!("event-{n:04}")),
        |n| StateRef::End(format!("event-{n:04}")),
    );
    assert!(
        asked(&tui, &before(8), &StateRef::Now),
        "the last turn goes on until now"
    );
    at_message_3(&mut tui);
    assert!(asked(&tui, &before(3), &end(3)));
    // a on 1, b on 3: from before 1 to before 3
    tui.press("g a j j b");
    tui.wait("message 1 → before message 3");
    tui.settle();
    assert!(asked(&tui, &before(1), &before(3)));
    // b again: to the end of 3; both stay while the selection moves
    tui.press("b");
    tui.wait("end of message 3");
    tui.press("G k");
    tui.settle();
    assert!(asked(&tui, &before(1), &end(3)));
    assert!(tui.screen().contains("end of message 3"), "{}", tui.screen());
    tui.press("x G");
    tui.wait("message 7 until now");
}

#[test]
fn a_row_without_checkpoint_says_why_and_names_its_neighbours() {
    let mut tui = Tui::started(tui_fake::script(), (120, 40));
    tui.press("k k k");
    tui.wait("the hook ran out of time after 5 s");
    tui.wait("messages 3 and 5 have one");
    tui.press("r");
    tui.wait("no checkpoint to go back to; messages 3 and 5 have one");
    assert_eq!(tui.fake.calls("plan"), 0);
}

#[test]
fn versions_of_a_file_are_walked() {
    let mut tui = Tui::started(tui_fake::script(), (120, 40));
    at_message_3(&mut tui);
    tui.press("Tab j");
    tui.wait("─ src/notes/search.py ─");
    tui.press("[");
    tui.wait("version 2 of 3, message 2");
    tui.press("[");
    tui.wait("version 1 of 3");
    tui.press("[");
    tui.wait("oldest version");
    tui.press("] ]");
    tui.wait("version 3 of 3");
    assert_eq!(tui.fake.calls("file_versions"), 1);
    tui.press("k");
    tui.wait("─ src/notes/__init__.py ─");
}

#[test]
fn the_newest_preview_wins() {
    let mut script = tui_fake::script();
    script.gates.push("changes");
    let mut tui = Tui::new(script, (120, 40));
    tui.send(Msg::Start);
    tui.wait("● 7 ");
    tui.press("g j j");
    tui.fake.open_gate("changes");
    tui.wait("Files  message 3");
    tui.settle();
    let seen = tui.fake.edit(|s| {
        s.calls
            .iter()
            .filter(|c| c.starts_with("changes"))
            .cloned()
            .collect::<Vec<_>>()
    });
    assert!(seen.last().is_some_and(|c| c.contains("event-0003")), "{seen:?}");
    assert!(
        !seen.iter().any(|c| c.contains("event-0002")),
        "skipped, never run: {seen:?}"
    );
}

#[test]
fn slow_work_shows_a_spinner_and_quick_work_none() {
    let mut script = tui_fake::script();
    script.gates.push("changes");
    let mut tui = Tui::new(script, (120, 40));
    tui.send(Msg::Start);
    tui.wait("● 7 ");
    assert!(tui.state.spinner.is_none());
    tui.wait("comparing …");
    tui.until("spinner", |t| t.state.spinner.is_some());
    tui.fake.open_gate("changes");
    tui.settle();
    assert!(tui.screen().contains("6 paths"), "{}", tui.screen());
}

#[test]
fn the_filter_narrows_and_n_goes_on_after_it() {
    let mut tui = Tui::started(tui_fake::script(), (120, 40));
    tui.press("/ t a g");
    tui.wait("2 found");
    tui.press("Enter");
    tui.wait("/tag 2 of 8");
    assert!(!tui.screen().contains("formatter"));
    // keys are keys again, Esc clears
    tui.press("Esc");
    tui.wait("formatter");
    tui.press("g n");
    tui.wait("Files  message 2");
    tui.press("n");
    tui.wait("Files  message 7");
    tui.press("N");
    tui.wait("Files  message 2");
    tui.press("/ z z z");
    tui.wait("No message has that");
    tui.press("Esc");
    tui.wait("formatter");
}

#[test]
fn pasted_text_types_but_presses_no_key() {
    let mut tui = Tui::started(tui_fake::script(), (120, 40));
    tui.send(Msg::Paste("q\ny\nR".into()));
    tui.draw();
    assert_eq!(tui.state.end, None);
    tui.press("/");
    tui.send(Msg::Paste("tag\nq\ny".into()));
    tui.wait("2 found");
    tui.press("Esc");
    at_message_3(&mut tui);
    tui.press("r");
    tui.wait("y rewind");
    tui.at += 2000;
    tui.send(Msg::Paste("y".into()));
    tui.draw();
    assert_eq!(tui.fake.calls("rewind"), 0);
}

#[test]
fn the_switcher_finds_and_opens_another_conversation() {
    let mut tui = Tui::started(tui_fake::script(), (120, 40));
    tui.press("Ctrl-o");
    tui.wait("Dark mode");
    tui.press("d a r k");
    tui.gone("First draft");
    tui.press("Enter");
    tui.settle();
    let store = &tui.state.open.as_ref().expect("open").store;
    assert!(store.ends_with("c3"), "{}", store.display());
}

#[test]
fn the_switcher_keeps_the_selected_conversation_when_the_list_comes_anew() {
    let mut tui = Tui::started(tui_fake::script(), (120, 40));
    tui.press("Ctrl-o");
    tui.wait("Dark mode");
    tui.press("Down Esc Ctrl-o");
    tui.settle();
    tui.press("Down");
    let picked = |t: &Tui| {
        let Some(Overlay::Picker(p)) = t.state.overlays.last() else {
            panic!("no switcher")
        };
        t.state.conversations.load.ready().expect("list")[p.order[p.at.selected]]
            .id
            .clone()
    };
    let before = picked(&tui);
    let newer = {
        let mut s = tui_fake::summary();
        s.id = "newer".into();
        s.store = "/home/ada/.openhands/conversations/newer".into();
        s.updated_at = Some(tui_fake::now());
        s
    };
    tui.fake.edit(|s| s.conversations.insert(0, newer));
    let job = tui.state.job();
    tui.state.conversations.load.begin((), job);
    tui.runtime.block_on(async { tokio::task::yield_now().await });
    let list = tui.fake.edit(|s| s.conversations.clone());
    tui.send(Msg::Reply(
        job,
        respool::tui::message::Reply::Conversations(Ok(list)),
    ));
    tui.draw();
    assert_eq!(picked(&tui), before);
}

#[test]
fn the_start_screen_opens_a_conversation() {
    let mut tui = Tui::with(tui_fake::script(), setup((80, 24), None, "default"));
    tui.send(Msg::Start);
    tui.wait("Dark mode");
    tui.press("Enter");
    tui.wait("● 7 ");
}

#[test]
fn errors_show_their_hint() {
    let mut script = tui_fake::script();
    let failure = Failure::new(
        Kind::Refused,
        "the pool is not mounted",
        Some("respool pool mount".into()),
    );
    script.failures.insert("plan", failure.clone());
    script.failures.insert("changes", failure);
    let mut tui = Tui::started(script, (120, 40));
    tui.wait("respool pool mount");
    tui.press("r");
    tui.wait("That did not work");
    tui.press("Esc");
    tui.gone("That did not work");
}

#[test]
fn a_worker_that_breaks_is_an_error_and_not_the_end() {
    let mut script = tui_fake::script();
    script.panics.push("plan");
    let mut tui = Tui::started(script, (120, 40));
    tui.press("r");
    tui.wait("internal error: plan broke");
    tui.press("Esc");
    tui.press("?");
    tui.wait("next row");
}

#[test]
fn what_could_not_be_read_is_said() {
    let mut script = tui_fake::script();
    let notices = vec![
        "event-00012.json is torn\x1b[2J".to_owned(),
        "2 events of an unknown kind".to_owned(),
    ];
    script.timeline.as_mut().expect("one").notices = notices;
    let mut tui = Tui::started(script, (120, 40));
    tui.wait("8, 2 not read");
    tui.wait("event-00012.json is torn^[[2J");
    tui.press(": n o t Space b e Space r e a d Enter");
    tui.wait("2 events of an unknown kind");
}

#[test]
fn a_state_can_be_compared_with_now_and_with_the_start() {
    let mut tui = Tui::started(tui_fake::script(), (120, 40));
    at_message_3(&mut tui);
    tui.press(": w i t h Space n o w Enter");
    tui.wait("before message 3 → now");
    tui.press(": s t a r t Space o f Enter");
    tui.wait("start → before message 3");
}
