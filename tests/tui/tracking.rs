//! The first minute: from a conversation that is not tracked to the first checkpoint.

use crate::harness::{SIZES, Tui, pictures, setup};
use crate::tui_fake::{self, Script};
use ratatui::crossterm::event::KeyEventKind;
use respool::failure::Kind;
use respool::rewind::offer::VaultKind;
use respool::tui::backend::Failure;
use respool::tui::message::Msg;

fn untracked() -> Script {
    let mut s = tui_fake::script();
    let t = s.timeline.as_mut().expect("one");
    t.sandbox = None;
    t.rows.iter_mut().for_each(|r| r.checkpoint = None);
    s
}

fn at_start(script: Script, size: (u16, u16)) -> Tui {
    let mut tui = Tui::with(script, setup(size, None, "default"));
    tui.send(Msg::Start);
    tui.settle();
    tui
}

#[test]
fn two_keys_track_a_conversations_folder() {
    let mut tui = Tui::started(untracked(), (100, 30));
    tui.press("t");
    tui.wait("y track it");
    assert_eq!(tui.fake.calls("track"), 0, "an offer changes nothing");
    // Enter and a held key confirm nothing
    tui.press("Enter");
    tui.key("y", KeyEventKind::Repeat);
    tui.settle();
    assert_eq!(tui.fake.calls("track"), 0);
    tui.press("y");
    tui.wait("Tracked as sb-notes");
    assert_eq!(tui.fake.calls("track"), 1);
    tui.fake.edit(|s| {
        assert!(
            s.calls.contains(&"track /home/ada/src/notes btrfs".to_owned()),
            "{:?}",
            s.calls
        );
    });
    tui.wait("respool run -- openhands");
    tui.press("q");
    tui.gone("Tracked as");
    tui.settle();
    // the timeline was read again; nothing is left to track
    tui.press("t");
    tui.wait("tracked already");
    assert_eq!(tui.fake.calls("track_plan"), 1);
}

#[test]
fn the_other_vault_is_one_key_away_also_where_the_first_is_not_permitted() {
    let mut script = untracked();
    let why = Failure::new(
        Kind::Refused,
        "tracking needs root: it mounts a file system",
        Some("run: sudo respool track /home/ada/src/notes".into()),
    );
    script.failures.insert("track_plan_btrfs", why);
    script.vault = Some(VaultKind::Copy);
    let mut tui = Tui::started(script, (100, 30));
    tui.press("t");
    tui.wait("nothing is moved, and no root is needed");
    tui.press("v");
    tui.wait("run: sudo respool track /home/ada/src/notes");
    assert!(!tui.screen().contains("y track it"), "{}", tui.screen());
    tui.press("y");
    tui.settle();
    assert_eq!(tui.fake.calls("track"), 0, "what is refused cannot be confirmed");
    tui.press("v");
    tui.wait("y track it");
    tui.press("y");
    tui.wait("Tracked as");
    tui.fake.edit(|s| {
        assert!(
            s.calls.contains(&"track /home/ada/src/notes copy".to_owned()),
            "{:?}",
            s.calls
        );
    });
}

#[test]
fn what_stands_in_the_way_is_named_and_stops_it() {
    let mut script = untracked();
    script.in_the_way = vec![tui_fake::blocker(
        "holder",
        Some(4242),
        "node has files open for writing",
        true,
    )];
    let mut tui = Tui::started(script, (100, 30));
    tui.press("t");
    tui.wait("in the way: node has files open for writing (process 4242)");
    tui.press("y");
    tui.settle();
    assert_eq!(tui.fake.calls("track"), 0);
    tui.press("Esc");
    tui.gone("in the way");
}

#[test]
fn it_can_be_stopped_and_a_failure_is_shown() {
    let mut script = untracked();
    script.gates.push("track");
    let mut tui = Tui::started(script, (100, 30));
    tui.press("t");
    tui.wait("y track it");
    tui.press("y");
    tui.wait("40 of 100");
    tui.press("t Enter");
    tui.press("Esc");
    tui.wait("the folder is as it was");
    let why = Failure::new(
        Kind::Failed,
        "the disk is full; everything is as it was before",
        Some("free space".into()),
    );
    tui.fake.edit(|s| s.failures.insert("track", why));
    tui.fake.open_gate("track");
    tui.press("t");
    tui.wait("y track it");
    tui.press("y");
    tui.wait("was not tracked");
    tui.wait("the disk is full");
}

#[test]
fn the_start_screen_tracks_a_conversations_folder_or_this_one() {
    let mut tui = at_start(tui_fake::script(), (100, 30));
    let asked = |t: &Tui, dir: &str| t.fake.edit(|s| s.calls.contains(&format!("track_plan {dir}")));
    tui.press("T");
    tui.wait("y track it");
    assert!(asked(&tui, "/home/ada/src/new"));
    tui.press("Esc j j j t");
    tui.wait("y track it");
    assert!(asked(&tui, "/home/ada/src/website"));
    // without any conversation it is this folder that is meant
    let mut tui = at_start(Script::default(), (100, 30));
    tui.press("t");
    tui.wait("y track it");
    assert!(asked(&tui, "/home/ada/src/new"));
}

#[test]
fn the_conversation_of_this_folder_is_selected_at_the_start() {
    let mut begin = setup((100, 30), None, "default");
    begin.select = Some("/home/ada/.openhands/conversations/c3".into());
    begin.notice = Some("what is tracked here can be seen by root: sudo respool".into());
    let mut tui = Tui::with(tui_fake::script(), begin);
    tui.send(Msg::Start);
    tui.settle();
    tui.wait("can be seen by root");
    tui.press("t");
    tui.wait("Keep checkpoints of ~/src/website?");
}

#[test]
fn pictures_of_tracking() {
    pictures("track_offer", untracked, |t| {
        t.press("t");
        t.wait("y track it");
    });
    let copies = || {
        let mut s = untracked();
        s.vault = Some(VaultKind::Copy);
        s.in_the_way = vec![tui_fake::blocker(
            "links",
            None,
            "1 file has names outside of it, too",
            false,
        )];
        s
    };
    pictures("track_copies", copies, |t| {
        t.press("t");
        t.wait("y track it");
    });
    let refused = || {
        let mut s = untracked();
        let why = Failure::new(
            Kind::Refused,
            "tracking needs root: it mounts a file system",
            Some("run: sudo respool track ~/src/notes; or, without root: respool track --vault copy ~/src/notes".into()),
        );
        s.failures.insert("track_plan_btrfs", why);
        s
    };
    pictures("track_needs_root", refused, |t| {
        t.press("t");
        t.wait("needs root");
    });
    pictures("tracked_now", untracked, |t| {
        t.press("t");
        t.wait("y track it");
        t.press("y");
        t.wait("Tracked as");
        t.settle();
    });
}

#[test]
fn every_empty_place_says_what_to_do_next() {
    let nothing_differs = || {
        let mut s = tui_fake::script();
        s.changes.values_mut().for_each(Vec::clear);
        s
    };
    pictures("nothing_differs", nothing_differs, |t| t.wait("Nothing differs."));
    let no_operations = || {
        let mut s = tui_fake::script();
        s.operations.clear();
        s
    };
    pictures("empty_log", no_operations, |t| {
        t.press("l");
        t.wait("Nothing was done yet.");
    });
    pictures("no_match", tui_fake::script, |t| {
        t.press("/ z z z");
        t.wait("No message has that.");
    });
    pictures("no_conversation_matches", tui_fake::script, |t| {
        t.press("Ctrl-o");
        t.wait("Dark mode");
        t.press("z z z");
        t.wait("nothing matches");
    });
    let empty_untracked = || {
        let mut s = untracked();
        s.timeline.as_mut().expect("one").rows.clear();
        s
    };
    pictures("empty_untracked", empty_untracked, |t| t.wait("No message yet"));
    for size in SIZES {
        let tui = at_start(Script::default(), size);
        assert!(
            tui.screen().contains("respool run -- openhands"),
            "{}",
            tui.screen()
        );
    }
}
