//! What is kept of a folder that is no longer tracked, what is said of it, and how it goes.

use serde_json::json;

use crate::lab::{Answer, Lab};

fn messages(lab: &Lab) -> String {
    for n in 1..=2 {
        lab.write("f", n.to_string());
        lab.message(n);
    }
    lab.ok(&["sandboxes"])[0]["id"].as_str().expect("id").to_owned()
}

fn timeline(lab: &Lab) -> String {
    let a = lab.bare(&["timeline", lab.store().to_str().expect("UTF-8")]);
    assert_eq!(a.code, Some(0), "{}", a.err);
    a.text()
}

#[test]
fn the_plan_comes_first_and_the_checkpoints_are_told() {
    let lab = Lab::new(|ws| std::fs::write(ws.join("f"), "0").expect("write"));
    let id = messages(&lab);
    let plan = lab.bare(&["--dry-run", "untrack", lab.ws_text()]).text();
    assert!(
        plan.contains("byte and attribute") && plan.contains("4 checkpoints are kept"),
        "{plan}"
    );
    let doc = lab.ok(&["--dry-run", "untrack", lab.ws_text()]);
    assert_eq!(doc["plan"]["kept"], 4, "{doc}");
    let done = lab.bare(&["--yes", "untrack", lab.ws_text()]).text();
    let state = lab.state();
    let command = format!("respool --state-dir {} prune -s {id}", state.display());
    assert!(
        done.contains("4 checkpoints are kept") && done.contains(&command),
        "{done}"
    );
    let told = timeline(&lab);
    assert!(
        told.contains(&format!(
            "no longer tracked: 4 checkpoints of sandbox {id} are kept"
        )),
        "{told}"
    );
    assert!(!told.contains("there are no checkpoints"), "{told}");
    // tracked again: the old messages' checkpoints are not here, and not "before the folder was tracked"
    lab.track();
    lab.cut(&lab.store(), 3);
    let rows = lab.ok(&["timeline", lab.store().to_str().expect("UTF-8")]);
    let reason = |n: usize| rows["rows"][n]["checkpoint"]["reason"].clone();
    let there = json!(format!("its checkpoint is in an earlier sandbox: {id}"));
    assert_eq!((reason(0), reason(1)), (there.clone(), there), "{rows}");
    assert_eq!(reason(2), "sent before the folder was tracked", "{rows}");
}

#[test]
fn prune_removes_an_untracked_sandbox_and_no_other() {
    let lab = Lab::new(|ws| std::fs::write(ws.join("f"), "0").expect("write"));
    let id = messages(&lab);
    let pinned = lab.checkpoint();
    lab.ok(&["pin", &pinned]);
    // tracked: it must be said what to keep
    lab.fails(2, &["-s", &id, "--yes", "prune"]);
    assert_eq!(lab.ok(&["sandboxes"])[0]["checkpoints"], 4);
    lab.ok(&["--yes", "untrack", lab.ws_text()]);
    let said = lab.fails(3, &["-s", &id, "prune"]);
    assert!(
        said.contains("5 checkpoints") && said.contains(&pinned) && said.contains("--yes"),
        "{said}"
    );
    let plan = lab.ok(&["-s", &id, "--dry-run", "prune"]);
    assert_eq!(plan["plan"]["remove"].as_array().map(Vec::len), Some(5), "{plan}");
    assert_eq!(lab.sandboxes().len(), 1);
    let done = lab.ok(&["-s", &id, "--yes", "prune"]);
    let removed = done["removed"].as_array().expect("ids");
    assert!(removed.len() == 5 && removed.contains(&json!(pinned)), "{done}");
    assert!(done["freed_bytes"].is_u64(), "{done}");
    assert_eq!(lab.ok(&["sandboxes"]), json!([]));
    assert_eq!(lab.sandboxes(), Vec::<std::path::PathBuf>::new());
    assert_eq!(lab.read("f"), "2");
    lab.fails(4, &["-s", &id, "--yes", "prune"]);
    assert!(timeline(&lab).contains("there are no checkpoints"));
}

#[test]
fn a_workspace_that_was_a_subvolume_is_forgotten_and_stays() {
    let lab = Lab::on_subvolume(|ws| std::fs::write(ws.join("f"), "0").expect("write"));
    lab.track();
    let id = lab.ok(&["sandboxes"])[0]["id"].as_str().expect("id").to_owned();
    lab.ok(&["--yes", "untrack", lab.ws_text()]);
    lab.ok(&["-s", &id, "--yes", "prune"]);
    assert_eq!(lab.ok(&["sandboxes"]), json!([]));
    assert_eq!(lab.read("f"), "0");
}

#[test]
fn a_dry_run_of_prune_names_each_one() {
    let lab = Lab::new(|ws| std::fs::write(ws.join("f"), "0").expect("write"));
    messages(&lab);
    let store = lab.store();
    let a = lab.bare(&[
        "-c",
        store.to_str().expect("UTF-8"),
        "--dry-run",
        "prune",
        "--keep",
        "1",
    ]);
    let text = a.text();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 2, "{text}");
    assert!(lines[0].contains("now  start"), "{text}");
    assert!(
        lines[1].starts_with("cp-") && lines[1].contains("message   message 1: "),
        "{text}"
    );
}

/// What `demo --keep` leaves goes with the commands that it prints.
#[test]
fn a_kept_demo_is_removed_by_what_it_says() {
    let lab = Lab::plain(|_| {});
    let dir = lab.dir().join("demo");
    let a = lab.bare(&[
        "demo",
        "--headless",
        "--keep",
        "--dir",
        dir.to_str().expect("UTF-8"),
    ]);
    assert_eq!(a.code, Some(0), "{}", a.err);
    let command = |name: &str| {
        let line = a.err.lines().find_map(|l| l.strip_prefix(name));
        let line = line.unwrap_or_else(|| panic!("{name}: {}", a.err));
        let program = std::path::Path::new(env!("CARGO_BIN_EXE_respool"));
        let path = format!("{}:/usr/bin:/bin", program.parent().expect("folder").display());
        let template = lab.command();
        let mut c = std::process::Command::new("sh");
        for (name, value) in template.get_envs() {
            if let Some(value) = value {
                c.env(name, value);
            }
        }
        let out = c
            .args(["-c", line])
            .env("PATH", path)
            .current_dir(lab.dir())
            .output();
        let out = Answer::of(out.expect("sh"));
        assert_eq!(out.code, Some(0), "{line}: {}", out.err);
        out.text()
    };
    let timeline = command("look at it: ");
    assert!(timeline.contains("cp-") && !timeline.contains("+0"), "{timeline}");
    command("remove it: ");
    assert!(!dir.exists());
}

/// The user's shell stands in the folder: it is told once what to do.
#[test]
fn a_shell_that_stands_in_it_is_told_once() {
    let lab = Lab::plain(|ws| std::fs::write(ws.join("f"), "0").expect("write"));
    let shell = |command: &str| {
        let template = lab.command();
        let mut c = std::process::Command::new("sh");
        c.args(["-c", &format!("{command}; exit $?"), "sh"]);
        c.arg(template.get_program()).arg(lab.state()).arg(lab.ws());
        for (name, value) in template.get_envs() {
            if let Some(value) = value {
                c.env(name, value);
            }
        }
        let a = Answer::of(c.current_dir(lab.ws()).output().expect("sh"));
        assert_eq!(a.code, Some(0), "{}", a.err);
        a
    };
    let told = |a: &Answer| a.err.matches("run cd \"$PWD\"").count();
    let a = shell("\"$1\" --state-dir \"$2\" --yes track \"$3\" --size 512M");
    assert_eq!(told(&a), 1, "{}", a.err);
    assert!(
        a.err.contains("your shell still sees the old, now empty folder"),
        "{}",
        a.err
    );
    assert!(
        a.text().contains("respool --state-dir") && a.text().contains(" watch "),
        "{}",
        a.text()
    );
    let a = shell("\"$1\" --state-dir \"$2\" --yes untrack \"$3\"");
    assert_eq!(told(&a), 1, "{}", a.err);
}
