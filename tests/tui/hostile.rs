//! Odd text, odd sizes, the mouse.

use crate::harness::{Tui, at_message_3, parse};
use crate::tui_fake;
use ratatui::crossterm::event::KeyModifiers;
use ratatui::crossterm::event::MouseButton;
use ratatui::crossterm::event::MouseEvent;
use ratatui::crossterm::event::MouseEventKind;
use respool::tui::message::Msg;
use respool::tui::state::Overlay;

#[test]
fn borders_stay_straight_whatever_the_text_is() {
    let mut script = tui_fake::script();
    let texts = [
        "👩‍👩‍👧 family",
        "♻️ recycle",
        "ｶﾞ half width",
        "① one",
        "e\u{301}\u{301} marks",
        "a\u{200b}b zero",
        "กำลัง ไทย",
        "中文字中文字中文字中文字中文字中文字",
    ];
    for (row, text) in script.timeline.as_mut().expect("one").rows.iter_mut().zip(texts) {
        row.text = format!("{text} {text} {text}");
    }
    for width in 60..100 {
        let mut script2 = tui_fake::script();
        script2.timeline = script.timeline.clone();
        let tui = Tui::started(script2, (width, 24));
        let buffer = tui.terminal.backend().buffer();
        let x = respool::tui::layout::areas(&tui.state).divider.x;
        for y in 1..23 {
            let sign = buffer[(x, y)].symbol();
            assert!("│┬┤├┼".contains(sign), "{sign:?} at {x},{y}\n{}", tui.screen());
        }
    }
}

/// Sizes that have broken screens before, and the borders between layouts.
const ODD: [(u16, u16); 20] = [
    (0, 0),
    (1, 1),
    (7, 2),
    (14, 50),
    (200, 5),
    (0, 24),
    (80, 0),
    (19, 5),
    (20, 4),
    (20, 5),
    (40, 10),
    (59, 15),
    (60, 14),
    (60, 15),
    (61, 16),
    (80, 24),
    (24, 6),
    (2, 60),
    (300, 100),
    (500, 3),
];

/// Gives the screen another size, then moves and clicks everywhere that could be wrong.
fn shake(tui: &mut Tui, (width, height): (u16, u16)) {
    tui.terminal.backend_mut().resize(width, height);
    tui.send(Msg::Resize(width, height));
    tui.draw();
    for key in ["j", "k", "PgDn", "Down", "j", "PgDn"] {
        tui.send(Msg::Key(parse(key), tui.at));
        tui.draw();
    }
    let inner = (width.saturating_sub(1), height.saturating_sub(1));
    for (column, row) in [(0, 0), (width, height), inner, (u16::MAX, u16::MAX)] {
        for kind in [
            MouseEventKind::ScrollDown,
            MouseEventKind::ScrollUp,
            MouseEventKind::Moved,
        ] {
            tui.send(Msg::Mouse(MouseEvent {
                kind,
                column,
                row,
                modifiers: KeyModifiers::NONE,
            }));
            tui.draw();
        }
    }
}

/// P145: every box at every size.
#[test]
fn no_size_panics_in_any_box_and_the_state_survives() {
    for keys in [
        "",
        "Enter",
        "Tab Enter",
        "r",
        "u",
        "?",
        "l",
        ":",
        "Ctrl-o",
        "/ a",
        "r y",
    ] {
        let mut script = tui_fake::script();
        if keys == "r y" {
            script.gates.push("rewind");
        }
        let mut tui = Tui::started(script, (80, 24));
        at_message_3(&mut tui);
        for key in keys.split(' ').filter(|k| !k.is_empty()) {
            tui.press(key);
            let planning =
                |t: &Tui| matches!(t.state.overlays.last(), Some(Overlay::Plan(p)) if p.load.job.is_some());
            tui.until("the plan", |t| !planning(t));
        }
        tui.until("rest", |t| t.idle() || t.state.running());
        let context = tui.state.context();
        for size in ODD {
            shake(&mut tui, size);
        }
        tui.terminal.backend_mut().resize(80, 24);
        tui.send(Msg::Resize(80, 24));
        tui.draw();
        assert_eq!(tui.state.context(), context, "after {keys:?}");
        tui.fake.open_gate("rewind");
        assert!(tui.screen().contains("respool"), "{}", tui.screen());
    }
}

#[test]
fn a_click_selects_and_the_wheel_scrolls_what_is_under_it() {
    let mut tui = Tui::started(tui_fake::script(), (120, 40));
    let mouse = |kind, column, row| {
        Msg::Mouse(MouseEvent {
            kind,
            column,
            row,
            modifiers: KeyModifiers::NONE,
        })
    };
    tui.send(mouse(MouseEventKind::Down(MouseButton::Left), 10, 4));
    tui.wait("Files  message 3");
    tui.settle();
    tui.send(mouse(MouseEventKind::Down(MouseButton::Left), 80, 3));
    tui.wait("─ src/notes/search.py ─");
    tui.send(mouse(MouseEventKind::ScrollUp, 10, 4));
    tui.wait("Files  message 1");
    // neither button ever confirms
    tui.press("r");
    tui.wait("y rewind");
    for y in 0..40 {
        for x in 0..120 {
            tui.send(mouse(MouseEventKind::Down(MouseButton::Left), x, y));
        }
    }
    tui.draw();
    assert_eq!(tui.fake.calls("rewind"), 0);
}

#[test]
fn below_sixty_columns_there_is_one_pane() {
    let mut tui = Tui::started(tui_fake::script(), (50, 14));
    assert!(
        tui.screen().contains("Messages") && !tui.screen().contains("Files"),
        "{}",
        tui.screen()
    );
    tui.press("Tab");
    assert!(
        tui.screen().contains("Files") && !tui.screen().contains("Messages"),
        "{}",
        tui.screen()
    );
}
