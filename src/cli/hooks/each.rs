//! Whether the messages of each conversation of a workspace have checkpoints, and by what.

use std::path::Path;

use serde_json::{Value, json};

use super::super::app::App;
use super::container::NOBODY;
use crate::sandbox::heard::{self, Heard, Way};
use crate::sandbox::site::Site;
use crate::service::door;
use crate::text::shown;

/// What takes checkpoints at the messages of one conversation.
pub struct Row {
    id: String,
    /// `hook`, `hook in a container`, `event stream`, `store watcher`, `none`.
    how: &'static str,
    why: Option<String>,
}

/// What holds for all conversations of the workspace.
pub struct Common {
    /// A watcher is at work.
    pub watched: bool,
    /// Why the hook on this machine takes none.
    pub lacking: Option<String>,
}

impl Row {
    fn new(id: &str, how: &'static str, why: Option<String>) -> Self {
        let id = id.to_owned();
        Self { id, how, why }
    }

    /// For scripts.
    pub fn json(&self) -> Value {
        json!({"id": self.id, "how": self.how, "will_checkpoint": self.how != "none", "why": self.why})
    }

    /// For people.
    pub fn line(&self) -> String {
        let why = self
            .why
            .as_ref()
            .map_or_else(String::new, |w| format!(": {}", shown(w)));
        format!("  {}  {}{why}\n", shown(&self.id), self.how)
    }
}

/// One a conversation: those whose stores this machine sees, and those that were heard of.
pub fn rows(app: &App, site: &Site, common: &Common) -> Vec<Row> {
    let told = site.dir().map(heard::heard).unwrap_or_default();
    let (door, served) = door::state(&app.desk.registry, &site.record.id);
    let mut out: Vec<Row> = Vec::new();
    for (source, store) in app.desk.library.stores(None) {
        let workspace = source.workspace(&store).ok().flatten();
        let Some(id) = store.file_stem().map(|n| n.to_string_lossy().into_owned()) else {
            continue;
        };
        let own = workspace.as_deref().is_some_and(|w| in_it(w, site.path()));
        let heard = || told.iter().any(|h| heard::same(&h.conversation, &id));
        if !own && !heard() {
            continue;
        }
        let seen = of_store(&told, &id, common, own, (door, served));
        out.push(seen);
    }
    for h in &told {
        if !out.iter().any(|r| heard::same(&r.id, &h.conversation)) {
            out.push(of_store(&told, &h.conversation, common, false, (door, served)));
        }
    }
    out
}

fn in_it(workspace: &Path, site: &Path) -> bool {
    workspace.canonicalize().is_ok_and(|w| w.starts_with(site))
}

/// `own`: its store is on this machine and names this workspace.
fn of_store(told: &[Heard], id: &str, common: &Common, own: bool, door: (bool, bool)) -> Row {
    let by = |way: Way| {
        told.iter()
            .any(|h| h.way == way && heard::same(&h.conversation, id))
    };
    if by(Way::Hook) {
        return match door {
            (true, served) if served || common.watched => Row::new(id, "hook in a container", None),
            (true, _) => Row::new(id, "none", Some(NOBODY.into())),
            (false, _) => {
                let why = "the door was taken away: respool hooks install --container";
                Row::new(id, "none", Some(why.into()))
            }
        };
    }
    if common.watched && by(Way::Stream) {
        return Row::new(id, "event stream", None);
    }
    if own && common.watched {
        return Row::new(id, "store watcher", None);
    }
    if own && common.lacking.is_none() {
        return Row::new(id, "hook", None);
    }
    let why = common.lacking.clone().filter(|_| own);
    let why = why.unwrap_or_else(|| "no respool watch is running, and its hook never called".into());
    Row::new(id, "none", Some(why))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_says_whether_and_how() {
        let heard = |conversation: &str, way| Heard {
            conversation: conversation.into(),
            way,
            container: None,
        };
        let told = [heard("a-1", Way::Hook), heard("b", Way::Stream)];
        let common = |watched, lacking: Option<&str>| Common {
            watched,
            lacking: lacking.map(str::to_owned),
        };
        let how = |id: &str, c: &Common, own, door| of_store(&told, id, c, own, door).how;
        let (watched, alone) = (common(true, Some("no hook")), common(false, Some("no hook")));
        assert_eq!(how("a1", &alone, false, (true, true)), "hook in a container");
        assert_eq!(how("a1", &alone, false, (true, false)), "none");
        assert_eq!(how("a1", &watched, false, (false, false)), "none");
        assert_eq!(how("b", &watched, false, (false, false)), "event stream");
        assert_eq!(how("b", &alone, false, (false, false)), "none");
        assert_eq!(how("c", &watched, true, (false, false)), "store watcher");
        assert_eq!(how("c", &common(false, None), true, (false, false)), "hook");
        let none = of_store(&told, "c", &alone, true, (false, false));
        assert_eq!((none.how, none.why.as_deref()), ("none", Some("no hook")));
    }
}
