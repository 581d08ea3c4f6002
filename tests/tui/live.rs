//! The store changes while it is shown.

use crate::harness::{Tui, at_message_3};
use crate::tui_fake;
use respool::failure::Kind;
use respool::timeline::notes::UNDER_WAY;
use respool::tui::backend::Failure;

/// P140: it grows.
#[test]
fn new_messages_appear_and_the_selection_stays_on_its_message() {
    let mut tui = Tui::started(tui_fake::script(), (120, 40));
    at_message_3(&mut tui);
    let mut more = tui_fake::row(8, "One more thing");
    more.id = "event-0009".into();
    tui.until("watched", |t| t.fake.calls("watch") == 1);
    tui.fake
        .edit(|s| s.timeline.as_mut().expect("one").rows.push(more.clone()));
    tui.fake.changed();
    tui.wait("One more thing");
    assert_eq!(
        tui.state.open.as_ref().expect("open").selected().expect("row").id,
        "event-0003"
    );
    // on the newest row the selection follows
    tui.press("G");
    more.id = "event-0010".into();
    more.text = "And another".into();
    tui.fake
        .edit(|s| s.timeline.as_mut().expect("one").rows.push(more));
    tui.fake.changed();
    tui.wait("And another");
    assert_eq!(
        tui.state.open.as_ref().expect("open").selected().expect("row").id,
        "event-0010"
    );
}

/// P140: it is deleted.
#[test]
fn a_store_that_is_deleted_stays_on_the_screen_and_comes_back() {
    let mut tui = Tui::started(tui_fake::script(), (120, 40));
    tui.until("watched", |t| t.fake.calls("watch") == 1);
    let kept = tui.fake.edit(|s| s.timeline.take());
    tui.fake.changed();
    tui.wait("no longer readable");
    tui.wait("not readable");
    assert!(tui.screen().contains("Add tags to notes"), "{}", tui.screen());
    tui.fake.edit(|s| s.timeline = kept);
    tui.fake.changed();
    tui.wait("there again");
}

#[test]
fn many_changes_are_one_read() {
    let mut tui = Tui::started(tui_fake::script(), (120, 40));
    tui.until("watched", |t| t.fake.calls("watch") == 1);
    let before = tui.fake.calls("timeline");
    for _ in 0..100 {
        tui.fake.changed();
    }
    tui.until("read", |t| t.fake.calls("timeline") > before && t.idle());
    let reads = tui.fake.calls("timeline") - before;
    assert!(reads <= 2, "{reads} reads");
}

#[test]
fn numbers_come_for_rows_that_can_be_seen_newest_first_and_once() {
    let tui = Tui::started(tui_fake::long(500), (120, 40));
    let asked = tui.fake.edit(|s| {
        s.calls
            .iter()
            .filter_map(|c| c.strip_prefix("counts ").map(str::to_owned))
            .collect::<Vec<_>>()
    });
    assert_eq!(asked.first().map(String::as_str), Some("event-0500"));
    assert!(asked.len() < 60, "{} rows", asked.len());
    let mut once = asked.clone();
    once.sort();
    once.dedup();
    assert_eq!(once.len(), asked.len(), "each once");
}

#[test]
fn numbers_that_fail_are_not_asked_for_again_and_again() {
    let mut script = tui_fake::script();
    script
        .failures
        .insert("counts", Failure::new(Kind::Failed, "no", None));
    let mut tui = Tui::started(script, (120, 40));
    let before = tui.fake.calls("counts");
    tui.press("k k j j");
    tui.settle();
    assert_eq!(tui.fake.calls("counts"), before);
}

/// Another one's work is told as long as it lasts, and nothing else need tell of its end.
#[test]
fn the_work_of_another_respool_is_told_while_it_lasts() {
    let mut tui = Tui::started(tui_fake::script(), (120, 40));
    tui.until("watched", |t| t.fake.calls("watch") == 1);
    under_way(&tui, true);
    tui.fake.changed();
    tui.wait(UNDER_WAY);
    under_way(&tui, false);
    tui.gone(UNDER_WAY);
}

/// The log says the same of a rewind that is done here: that is no news.
#[test]
fn the_work_of_this_window_is_not_told_as_anothers() {
    let mut script = tui_fake::script();
    script.gates.push("rewind");
    let mut tui = Tui::started(script, (120, 40));
    tui.until("watched", |t| t.fake.calls("watch") == 1);
    at_message_3(&mut tui);
    tui.press("r");
    tui.wait("y rewind");
    tui.press("y");
    tui.until("at work", |t| t.fake.calls("rewind") == 1);
    under_way(&tui, true);
    let before = tui.fake.calls("timeline");
    tui.fake.changed();
    tui.until("read", |t| {
        let open = t.state.open.as_ref().expect("open");
        t.fake.calls("timeline") > before && open.load.job.is_none()
    });
    let notices = |t: &Tui| {
        t.state
            .open
            .as_ref()
            .expect("open")
            .timeline
            .as_ref()
            .expect("one")
            .notices
            .clone()
    };
    assert_eq!(notices(&tui), Vec::<String>::new());
    assert!(!tui.screen().contains(UNDER_WAY), "{}", tui.screen());
    under_way(&tui, false);
    tui.fake.open_gate("rewind");
    tui.wait("Rewind done");
    tui.settle();
    assert!(!tui.screen().contains(UNDER_WAY), "{}", tui.screen());
}

fn under_way(tui: &Tui, is: bool) {
    let notices = if is {
        vec![UNDER_WAY.to_owned()]
    } else {
        Vec::new()
    };
    tui.fake
        .edit(|s| s.timeline.as_mut().expect("one").notices = notices);
}
