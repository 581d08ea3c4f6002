//! What a power cut leaves of the copy vault's records, and checkpoints that are gone: named, never replaced, the
//! rest works. (The same on Btrfs is in `pool.rs` and `rounds.rs`.)

use std::path::{Path, PathBuf};

use serde_json::json;

use crate::lab::Lab;

/// Three messages, each with a state of its own; their ids.
fn three(lab: &Lab) -> Vec<String> {
    let made = (1..=3).map(|n| {
        lab.write("f", n.to_string());
        lab.message(n)
    });
    let ids = made.collect();
    lab.write("f", "now");
    ids
}

fn store(lab: &Lab) -> PathBuf {
    let copies = std::fs::read_dir(lab.state().join("copies")).expect("copies");
    let mut all: Vec<PathBuf> = copies.map(|e| e.expect("entry").path()).collect();
    assert_eq!(all.len(), 1);
    all.remove(0)
}

/// The folder of a checkpoint.
fn folder(lab: &Lab, id: &str) -> PathBuf {
    let all = std::fs::read_dir(store(lab).join("snaps")).expect("snaps");
    let mut found = all
        .map(|e| e.expect("entry").path())
        .filter(|p| p.to_string_lossy().ends_with(id));
    found.next().expect("the checkpoint")
}

fn junk(path: &Path, bytes: &[u8]) {
    if path.exists() {
        crate::rounds::mode(path, 0o600);
    }
    std::fs::write(path, bytes).expect("write");
}

/// P022 P039 P042: a checkpoint that is gone, one without its record, one whose manifest is zeros: each is refused
/// by its name, the tree stays, no neighbour is taken for it; the others can be gone back to.
#[test]
fn p022_p039_p042_damaged_copies_are_named_and_hide_no_other() {
    type Harm = fn(&Path);
    let harms: [(&str, Harm); 6] = [
        ("gone", |p| std::fs::remove_dir_all(p).expect("remove")),
        ("no record", |p| {
            std::fs::remove_file(p.join("meta.json")).expect("remove");
        }),
        ("empty record", |p| junk(&p.join("meta.json"), b"")),
        ("zeros", |p| junk(&p.join("meta.json"), &[0; 300])),
        ("empty manifest", |p| junk(&p.join("manifest"), b"")),
        ("manifest of zeros", |p| junk(&p.join("manifest"), &[0; 4000])),
    ];
    for (what, harm) in harms {
        let lab = Lab::copies(|ws| std::fs::write(ws.join("f"), "0").expect("write"));
        let ids = three(&lab);
        harm(&folder(&lab, &ids[1]));
        let before = lab.manifest();
        // named by its message it may be unknown whose it was; by its id it is known
        let a = lab.run(&["--yes", "rewind", "2", "--files"]);
        assert!(matches!(a.code, Some(4 | 5)), "{what}: {} {}", a.text(), a.err);
        assert!(a.text().contains("message 2"), "{what}: {}", a.text());
        let a = lab.run(&["--yes", "rewind", &ids[1], "--files"]);
        assert!(matches!(a.code, Some(4 | 5)), "{what}: {}", a.text());
        assert!(a.text().contains(&ids[1]), "{what}: {}", a.text());
        before.assert_same(&lab.manifest(), what);
        let rows = lab.ok(&["timeline", lab.store().to_str().expect("UTF-8")]);
        let state = |n: usize| rows["rows"][n]["checkpoint"]["state"].clone();
        assert_eq!((state(0), state(2)), (json!("ok"), json!("ok")), "{what}: {rows}");
        // what a manifest holds is read when it is needed
        if what != "manifest of zeros" {
            assert_ne!(state(1), json!("ok"), "{what}: {rows}");
        }
        for (n, text) in [(1, "1"), (3, "3")] {
            lab.ok(&["--yes", "rewind", &n.to_string(), "--files"]);
            assert_eq!(lab.read("f"), text, "{what}");
        }
        // and new ones can be taken
        let id = lab.checkpoint();
        lab.write("f", "later");
        lab.ok(&["-s", lab.ws_text(), "--yes", "rewind", &id, "--files"]);
        assert_eq!(lab.read("f"), "3", "{what}");
    }
}

/// P039: the other files of the state folder, emptied or filled with zeros.
#[test]
fn p039_the_records_of_a_copy_sandbox() {
    for bytes in [&b""[..], &[0; 200], b"{\"v\":1"] {
        let lab = Lab::copies(|ws| std::fs::write(ws.join("f"), "0").expect("write"));
        three(&lab);
        lab.ok(&["--yes", "rewind", "2", "--files"]);
        lab.ok(&["--yes", "undo"]);
        let before = lab.manifest();
        // an operation
        let mut ops: Vec<PathBuf> = std::fs::read_dir(store(&lab).join("ops"))
            .expect("ops")
            .map(|e| e.expect("entry").path())
            .collect();
        ops.sort();
        junk(&ops[ops.len() - 2], bytes);
        let a = lab.run(&["log"]);
        assert_eq!(a.code, Some(0), "{}", a.err);
        assert!(a.err.contains("cannot be read"), "{}", a.err);
        lab.ok(&["--yes", "rewind", "2", "--files"]);
        assert_eq!(lab.read("f"), "2");
        lab.ok(&["--yes", "undo"]);
        before.assert_same(&lab.manifest(), "undone");
        // the sandbox itself
        let record = store(&lab).join("record.json");
        let good = std::fs::read(&record).expect("record");
        junk(&record, bytes);
        let listed = lab.ok(&["sandboxes"]);
        assert!(listed[0]["damaged"].is_string(), "{listed}");
        let a = lab.run(&["-s", lab.ws_text(), "checkpoint"]);
        assert!(matches!(a.code, Some(3..=5)), "{} {}", a.text(), a.err);
        before.assert_same(&lab.manifest(), "nothing touched");
        // the conversation can still be read
        let a = lab.run(&["timeline", lab.store().to_str().expect("UTF-8")]);
        assert_eq!(a.code, Some(0), "{}", a.err);
        // tracked again: another sandbox; the old one's copies are not removed
        let objects = std::fs::read_dir(store(&lab).join("snaps"))
            .expect("snaps")
            .count();
        let a = lab.run(&["--yes", "track", lab.ws_text(), "--vault", "copy"]);
        assert_eq!(a.code, Some(0), "{} {}", a.text(), a.err);
        lab.ok(&["--yes", "recover"]);
        let left = std::fs::read_dir(record.with_file_name("snaps"))
            .expect("snaps")
            .count();
        assert_eq!(left, objects);
        std::fs::write(&record, good).expect("put back");
    }
}
