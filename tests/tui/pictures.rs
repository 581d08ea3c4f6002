//! What users see, as text.

use crate::harness::{SIZES, Tui, at_message_3, pictures, setup};
use crate::tui_fake;
use crate::tui_fake::Script;
use ratatui::style::Color;
use ratatui::style::Modifier;
use respool::tui::message::Msg;

#[test]
fn picture_of_the_skeleton() {
    for size in SIZES {
        let tui = Tui::new(tui_fake::script(), size);
        insta::assert_snapshot!(format!("skeleton_{}x{}", size.0, size.1), tui.screen());
    }
}

#[test]
fn picture_of_the_timeline() {
    pictures("timeline", tui_fake::script, at_message_3);
}

#[test]
fn picture_of_a_message() {
    pictures("message", tui_fake::script, |t| {
        t.press("g Enter");
        t.wait("Keep it in one file.");
        t.settle();
    });
}

#[test]
fn picture_of_a_diff_in_full() {
    pictures("diff", tui_fake::script, |t| {
        t.press("Tab j");
        t.wait("by_tag");
        t.press("Enter");
        t.settle();
    });
}

#[test]
fn picture_of_a_plan() {
    pictures("plan", tui_fake::script, |t| {
        at_message_3(t);
        t.press("r");
        t.wait("y rewind");
    });
}

/// A turn that installed packages: a line for it below the timeline, all of them with the message, and in the plan.
#[test]
fn pictures_of_packages() {
    let script = || {
        let mut s = tui_fake::script();
        let counted = s.counts.get_mut("event-0003").expect("message 3");
        counted.packages = Some(tui_fake::packages());
        let mut plan = tui_fake::plan(&[]);
        plan.packages = tui_fake::packages();
        s.plan = Some(plan);
        s
    };
    pictures("packages_timeline", script, at_message_3);
    pictures("packages_message", script, |t| {
        at_message_3(t);
        t.press("Enter");
        t.wait("id  event-0003");
        t.settle();
    });
    pictures("packages_plan", script, |t| {
        at_message_3(t);
        t.press("r");
        t.wait("y rewind");
    });
}

#[test]
fn picture_of_a_plan_with_own_edits() {
    let script = || {
        let mut s = tui_fake::script();
        let mut plan = tui_fake::plan(&["README.md"]);
        plan.blockers.push(tui_fake::blocker(
            "holder",
            Some(4242),
            "vim has files open: it is paused meanwhile",
            false,
        ));
        plan.blockers.push(tui_fake::blocker(
            "cwd",
            None,
            "2 programs stand in this folder (bash, watch): they are left alone",
            false,
        ));
        plan.not_covered
            .push("node_modules (a subvolume of its own)".into());
        s.plan = Some(plan);
        s
    };
    pictures("plan_own", script, |t| {
        at_message_3(t);
        t.press("r");
        t.wait("type rewind");
        t.press("r e w");
    });
}

#[test]
fn picture_of_a_plan_that_is_refused() {
    let script = || {
        let mut s = tui_fake::script();
        let mut plan = tui_fake::plan(&[]);
        plan.blockers.push(tui_fake::blocker(
            "space",
            None,
            "the pool has 2 MiB left, 40 MiB are needed",
            true,
        ));
        s.plan = Some(plan);
        s
    };
    pictures("plan_refused", script, |t| {
        at_message_3(t);
        t.press("r");
        t.wait("cannot be done");
    });
}

#[test]
fn picture_of_progress_and_result() {
    for size in SIZES {
        let mut script = tui_fake::script();
        script.gates.push("rewind");
        let mut tui = Tui::started(script, size);
        at_message_3(&mut tui);
        tui.press("r");
        tui.wait("y rewind");
        tui.press("y");
        tui.wait("40 of 100");
        // the spinner turns with time
        tui.until("the spinner", |t| t.state.spinner.is_some());
        tui.state.spinner = Some(0);
        tui.draw();
        insta::assert_snapshot!(format!("progress_{}x{}", size.0, size.1), tui.screen());
        tui.fake.open_gate("rewind");
        tui.wait("Rewind done");
        tui.settle();
        insta::assert_snapshot!(format!("result_{}x{}", size.0, size.1), tui.screen());
    }
}

#[test]
fn picture_of_the_undo_question() {
    pictures("undo", tui_fake::script, |t| {
        t.press("u");
        t.wait("y undo");
    });
}

#[test]
fn picture_of_the_help() {
    pictures("help", tui_fake::script, |t| {
        t.press("?");
        t.wait("next row");
    });
    let mut tui = Tui::started(tui_fake::script(), (100, 100));
    tui.press("?");
    insta::assert_snapshot!("help_all", tui.screen());
}

#[test]
fn picture_of_the_log() {
    let script = || {
        use respool::rewind::{OperationKind as K, OperationState as S};
        let mut s = tui_fake::script();
        s.operations = vec![
            tui_fake::operation(
                "op-0000000004",
                K::Rewind,
                S::Interrupted,
                "just before message 2",
            ),
            tui_fake::operation("op-0000000003", K::Undo, S::Done, "before the rewind"),
            tui_fake::operation("op-0000000002", K::Rewind, S::Undone, "just before message 3"),
            tui_fake::operation("op-0000000001", K::Rewind, S::RolledBack, "end of turn 1"),
        ];
        s
    };
    pictures("log", script, |t| {
        t.press("l");
        t.wait("rolled back");
    });
}

#[test]
fn picture_of_the_palette() {
    pictures("palette", tui_fake::script, |t| {
        t.press(": u n d");
        t.wait("› und");
    });
}

#[test]
fn picture_of_the_switcher() {
    pictures("switcher", tui_fake::script, |t| {
        t.press("Ctrl-o");
        t.wait("Dark mode");
    });
}

#[test]
fn picture_of_the_start_screen() {
    for size in SIZES {
        let mut tui = Tui::with(tui_fake::script(), setup(size, None, "default"));
        tui.send(Msg::Start);
        tui.wait("Dark mode");
        insta::assert_snapshot!(format!("start_{}x{}", size.0, size.1), tui.screen());
    }
}

#[test]
fn pictures_of_empty_states() {
    let empty = || {
        let mut s = tui_fake::script();
        s.timeline.as_mut().expect("one").rows.clear();
        s
    };
    pictures("empty_timeline", empty, |t| t.wait("No message yet"));
    let untracked = || {
        let mut s = tui_fake::script();
        let t = s.timeline.as_mut().expect("one");
        t.sandbox = None;
        t.rows.iter_mut().for_each(|r| r.checkpoint = None);
        s
    };
    pictures("untracked", untracked, |t| t.wait("not tracked"));
    let gone = || Script::default();
    pictures("no_such_conversation", gone, |t| {
        t.wait("there is no conversation");
    });
    for size in SIZES {
        let mut tui = Tui::with(Script::default(), setup(size, None, "default"));
        tui.send(Msg::Start);
        tui.wait("No conversation");
        insta::assert_snapshot!(format!("empty_start_{}x{}", size.0, size.1), tui.screen());
    }
}

#[test]
fn without_colours_the_selection_is_seen_and_signs_remain() {
    let mut tui = Tui::with(
        tui_fake::script(),
        setup((80, 24), Some(tui_fake::store()), "mono"),
    );
    tui.send(Msg::Start);
    tui.settle();
    tui.wait("+2 ~1 -1 >1");
    insta::assert_snapshot!("no_color_80x24", tui.screen());
    let buffer = tui.terminal.backend().buffer();
    for cell in &buffer.content {
        assert_eq!((cell.fg, cell.bg), (Color::Reset, Color::Reset));
    }
    assert!(
        tui.style_of("Tag search")
            .add_modifier
            .contains(Modifier::REVERSED)
    );
}
