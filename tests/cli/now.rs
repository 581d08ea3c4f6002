//! P091: comparisons with the present while it changes, and what killed ones leave.

use crate::actors::Writer;
use crate::lab::Lab;

#[test]
fn p091_a_comparison_with_now_while_a_writer_runs() {
    let lab = Lab::new(|ws| {
        std::fs::write(ws.join("busy"), "").expect("write");
        std::fs::write(ws.join("f"), "1").expect("write");
    });
    lab.message(1);
    lab.write("f", "2");
    let writer = Writer::start(&lab, "busy");
    for _ in 0..20 {
        let list = lab.ok(&["changes", "m1", "now"]);
        let paths: Vec<&str> = list
            .as_array()
            .expect("rows")
            .iter()
            .filter_map(|r| r["path"].as_str())
            .collect();
        assert!(paths == ["busy", "f"] || paths == ["f"], "{paths:?}");
        lab.ok(&["diff", "m1", "now"]);
    }
    writer.assert_runs("never stopped for a comparison");
    assert_eq!(lab.leftovers(), Vec::<String>::new());
    // what a killed one leaves goes with the next comparison, or with `recover`
    for last in [&["changes", "m1", "now"][..], &["--yes", "recover"]] {
        for point in ["now-made", "now-taken"] {
            assert!(lab.killed_at(point, &["diff", "m1", "now"]));
        }
        assert_eq!(lab.leftovers().len(), 1);
        lab.ok(last);
        assert_eq!(lab.leftovers(), Vec::<String>::new(), "{last:?}");
    }
    // one that is still being looked at is not taken away
    let looking = lab.stopped_at("now-taken", &["changes", "m1", "now"]);
    lab.ok(&["changes", "m1", "now"]);
    lab.ok(&["--yes", "recover"]);
    assert_eq!(looking.go_on().code, Some(0));
    assert_eq!(lab.leftovers(), Vec::<String>::new());
}

/// A rewind with a writer in a session of its own: it is paused, told of, and goes on.
#[test]
fn a_writer_is_paused_and_goes_on() {
    let lab = Lab::new(|ws| {
        std::fs::write(ws.join("busy"), "").expect("write");
        for i in 0..300 {
            std::fs::write(ws.join(format!("f{i}")), "1").expect("write");
        }
    });
    lab.message(1);
    for i in 0..300 {
        lab.write(format!("f{i}"), "2");
    }
    let writer = Writer::start(&lab, "busy");
    let plan = lab.ok(&["--dry-run", "rewind", "1"]);
    assert_eq!(plan["plan"]["blockers"][0]["kind"], "holder", "{plan}");
    for args in [
        &["--yes", "rewind", "1"][..],
        &["--yes", "undo"],
        &["--yes", "redo"],
    ] {
        let done = lab.ok(args);
        assert!(done["notes"].to_string().contains("paused"), "{done}");
        writer.assert_runs("afterwards");
    }
}

/// A writer that is not paused, as it is in the program's own session: the check finds what it did, all
/// goes back, and both are said; never "done".
#[test]
fn a_writer_that_cannot_be_paused_makes_no_false_success() {
    let lab = Lab::new(|ws| {
        std::fs::write(ws.join("busy"), "").expect("write");
        std::fs::write(ws.join("f"), "good").expect("write");
    });
    lab.message(1);
    lab.write("f", "bad");
    let writer = Writer::own(&lab, "busy");
    let a = lab.run(&["--yes", "rewind", "1"]);
    writer.assert_runs("never stopped");
    drop(writer);
    match a.code {
        // it may have slept through it
        Some(0) => assert_eq!(lab.read("f"), "good"),
        Some(1) => {
            assert!(a.text().contains("busy"), "{}", a.text());
            lab.ok(&["--yes", "recover"]);
            assert_eq!(lab.read("f"), "bad");
        }
        other => panic!("{other:?} {}", a.text()),
    }
}
