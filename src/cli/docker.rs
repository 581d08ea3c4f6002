//! `respool docker status`.

use serde_json::json;

use super::app::App;
use super::output::Done;
use crate::sandbox::docker::{Container, containers};
use crate::text::{shown, shown_path};

/// Shows the containers, and what of each is covered today: the folders of the host that it has mounted and
/// that lie in a tracked workspace. Root file systems and volumes are not.
pub fn status(app: &App) -> Done {
    let list = containers()?;
    let rows: Vec<_> = list
        .iter()
        .map(|c| {
            let mounts: Vec<_> = c
                .mounts
                .iter()
                .map(|m| {
                    let covered = m.kind == "bind" && app.desk.registry.find(&m.source).is_ok_and(|s| s.is_some());
                    json!({"kind": m.kind, "source": shown_path(&m.source), "destination": shown_path(&m.destination),
                           "writable": m.writable, "covered": covered})
                })
                .collect();
            json!({"id": c.id, "name": c.name, "image": c.image, "state": c.state, "flavour": c.flavour,
                   "conversation": c.conversation, "root_covered": false, "mounts": mounts})
        })
        .collect();
    app.out.result(&rows, || {
        if list.is_empty() {
            return "no containers\n".into();
        }
        list.iter().map(line).collect()
    })
}

fn line(c: &Container) -> String {
    let mut text = format!(
        "{} ({}, {})\n  its root file system: not covered\n",
        shown(&c.name),
        shown(&c.image),
        shown(&c.state)
    );
    for m in &c.mounts {
        text += &format!("  {} at {}\n", shown_path(&m.source), shown_path(&m.destination));
    }
    text
}
