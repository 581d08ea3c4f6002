//! What a turn installed in a workspace, in the timeline and in the plan of a rewind.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use serde_json::{Value, json};

use crate::lab::Lab;

const VENV: &str = ".venv/lib/python3.11/site-packages";

fn python(ws: &Path, name: &str, version: &str) {
    let dir = ws.join(format!("{VENV}/{name}-{version}.dist-info"));
    fs::create_dir_all(&dir).expect("folders");
    let text = format!("Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n\ntext\n");
    fs::write(dir.join("METADATA"), text).expect("write");
}

fn node(ws: &Path, place: &str, name: &str, version: &str) {
    let dir = ws.join(place).join(name);
    fs::create_dir_all(&dir).expect("folders");
    fs::write(dir.join("package.json"), json!({"version": version}).to_string()).expect("write");
}

fn remove(ws: &Path, path: &str) {
    fs::remove_dir_all(ws.join(path)).expect("remove");
}

fn change(manager: &str, name: &str, from: Option<&str>, to: Option<&str>, place: &str) -> Value {
    json!({"manager": manager, "name": name, "from": from, "to": to, "where": place})
}

/// Two turns: the first installs, the second upgrades and removes.
fn turns(lab: &Lab) {
    let ws = lab.ws();
    lab.message(1);
    python(ws, "requests", "2.31.0");
    python(ws, "six", "1.16");
    node(ws, "tools/lib/node_modules", "@scope/typescript", "5.4.0");
    // a project's dependencies are its files
    node(ws, "node_modules", "left-pad", "1.0.0");
    lab.message(2);
    remove(ws, &format!("{VENV}/requests-2.31.0.dist-info"));
    remove(ws, &format!("{VENV}/six-1.16.dist-info"));
    python(ws, "requests", "2.32.0");
    lab.message(3);
    lab.write("README.md", "text");
    lab.message(4);
    lab.cut(&lab.store(), 4);
}

fn timeline(lab: &Lab) -> Vec<Value> {
    let doc = lab.ok(&["timeline", lab.store().to_str().expect("UTF-8")]);
    doc["rows"].as_array().expect("rows").clone()
}

fn checked(lab: &Lab) {
    turns(lab);
    let node = "tools/lib/node_modules";
    let first = json!([
        change("pip", "requests", None, Some("2.31.0"), VENV),
        change("pip", "six", None, Some("1.16"), VENV),
        change("npm", "@scope/typescript", None, Some("5.4.0"), node),
    ]);
    let second = json!([
        change("pip", "requests", Some("2.31.0"), Some("2.32.0"), VENV),
        change("pip", "six", Some("1.16"), None, VENV),
    ]);
    // counted, then as it was kept
    for _ in 0..2 {
        let rows = timeline(lab);
        let packages: Vec<&Value> = rows.iter().map(|r| &r["packages"]).collect();
        assert_eq!(packages, [&first, &second, &json!([]), &Value::Null], "{rows:?}");
        assert_eq!(rows[0]["packages_unread"], json!([]));
    }
    let said = lab
        .bare(&["timeline", lab.store().to_str().expect("UTF-8")])
        .text();
    let line = "[upgraded requests 2.31.0 -> 2.32.0 (pip); removed six (pip)]";
    assert!(said.contains(line), "{said}");

    let plan = lab.ok(&["rewind", "2", "--dry-run"])["plan"].clone();
    assert_eq!(
        (&plan["packages"], &plan["packages_unread"]),
        (&second, &json!([]))
    );
    let store = lab.store();
    let store = store.to_str().expect("UTF-8");
    let said = lab
        .bare(&["-c", store, "rewind", "1", "--files", "--dry-run"])
        .text();
    let line = "packages since then, taken back: installed requests (pip), @scope/typescript (npm)\n";
    assert!(said.contains(line), "{said}");
    // of a part of the paths only the packages that it covers
    let part = lab.ok(&["rewind", "1", "--dry-run", "--path", "tools"])["plan"].clone();
    let part: Vec<&Value> = part["packages"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|p| &p["name"])
        .collect();
    assert_eq!(part, ["@scope/typescript"]);
    let chat = lab.run(&["rewind", "1", "--dry-run", "--chat"]);
    if chat.code == Some(0) {
        assert_eq!(chat.json()["plan"]["packages"], json!([]));
    }

    lab.ok(&["--yes", "rewind", "2"]);
    let there = |name: &str| lab.at(format!("{VENV}/{name}.dist-info")).exists();
    assert!(there("requests-2.31.0") && there("six-1.16") && !there("requests-2.32.0"));
    let plan = lab.ok(&["undo", "--dry-run"])["plan"].clone();
    assert_eq!(plan["packages"].as_array().map(Vec::len), Some(2), "{plan}");
}

#[test]
fn on_btrfs() {
    checked(&Lab::new(|_| {}));
}

#[test]
fn of_copies() {
    checked(&Lab::copies(|_| {}));
}

#[test]
fn what_cannot_be_read_is_said() {
    let lab = Lab::new(|_| {});
    lab.message(1);
    let dir = lab.at(format!("{VENV}/evil-1.dist-info"));
    fs::create_dir_all(&dir).expect("folders");
    symlink("/etc/passwd", dir.join("METADATA")).expect("link");
    lab.write(
        format!("{VENV}/worse-1.dist-info/METADATA"),
        "Name: \u{1b}[2J\nVersion: 1\u{9b}\n",
    );
    lab.message(2);
    lab.cut(&lab.store(), 2);
    let row = timeline(&lab).swap_remove(0);
    let why = "METADATA: it is a link, and links are not followed";
    let place = format!("{VENV}/evil-1.dist-info");
    assert_eq!(
        row["packages_unread"],
        json!([{"manager": "pip", "where": place, "why": why}])
    );
    assert_eq!(row["packages"].as_array().map(Vec::len), Some(1));
    let said = lab
        .bare(&["timeline", lab.store().to_str().expect("UTF-8")])
        .text();
    assert!(
        said.contains(why) && !said.contains('\u{1b}') && !said.contains('\u{9b}'),
        "{said}"
    );
}
