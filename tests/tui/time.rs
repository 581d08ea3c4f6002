//! Ages, and the cost of a frame.

use crate::harness::Tui;
use crate::tui_fake;
use chrono::TimeDelta;
use ratatui::style::Color;
use ratatui::style::Modifier;
use respool::tui::message::Msg;
use std::time::Duration;
use std::time::Instant;

#[test]
fn a_tick_redraws_only_if_an_age_that_is_seen_changed() {
    let mut tui = Tui::started(tui_fake::script(), (120, 40));
    tui.state.dirty = false;
    tui.send(Msg::Tick(tui_fake::now() + TimeDelta::milliseconds(10)));
    assert!(!tui.state.dirty);
    tui.send(Msg::Tick(tui_fake::now() + TimeDelta::minutes(1)));
    assert!(tui.state.dirty);
}

#[test]
fn ten_thousand_rows_cost_a_frame_no_more_than_ten() {
    let key_to_frame = |rows: u32| {
        let mut tui = Tui::started(tui_fake::long(rows), (120, 40));
        let begin = Instant::now();
        for _ in 0..100 {
            tui.rush("k");
            tui.rush("j");
        }
        begin.elapsed() / 200
    };
    let (few, many) = (key_to_frame(60), key_to_frame(10_000));
    assert!(
        many < few * 4 + Duration::from_millis(4),
        "{few:?} with 60 rows, {many:?} with 10,000"
    );
}

#[test]
fn the_selection_and_the_colours_of_signs() {
    let mut tui = Tui::started(tui_fake::script(), (120, 40));
    assert!(
        tui.style_of("Tag search")
            .add_modifier
            .contains(Modifier::REVERSED)
    );
    assert_eq!(tui.style_of("● 1").fg, Some(Color::Green));
    tui.press("Tab j");
    tui.wait("by_tag");
    assert_eq!(tui.style_of("- old_notes").fg, Some(Color::Red));
    let emphasised = tui.style_of("tag.lower()");
    assert!(
        emphasised.add_modifier.contains(Modifier::UNDERLINED),
        "{emphasised:?}"
    );
}
