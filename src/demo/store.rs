//! Plays recorded events into a conversation store, as OpenHands itself writes one (V1, SDK 1.58).

use std::io::Write;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;

use chrono::{DateTime, Local};
use serde_json::{Value, json};

use super::recording::{Recording, Turn};
use super::{DemoError, Result};

/// Events that are no part of the conversation's tree: they are never its head.
const NOT_IN_TREE: [&str; 2] = ["ConversationStateUpdateEvent", "ConversationErrorEvent"];

/// How far a turn's events are played.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Until {
    /// Up to and with the message: the agent is about to start ("running").
    Message,
    /// To the turn's end ("finished"); [`Until::Message`] must have been played before.
    TurnEnd,
}

impl Recording {
    /// Plays the next events of `turn` into `store`, as OpenHands itself would: each file appears under its
    /// final name at once, then base_state.json says the new head and status. Makes the store with the first
    /// message. `workspace` stands in base_state.json in place of the recorded one; `now` in the events.
    pub fn play_events(
        &self,
        turn: &Turn,
        until: Until,
        store: &Path,
        workspace: &Path,
        now: DateTime<Local>,
    ) -> Result<()> {
        let folder = store.join("events");
        std::fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&folder)
            .map_err(DemoError::io("make", &folder))?;
        let span = turn.events;
        let (from, to) = match until {
            Until::Message => (span.first, span.message + 1),
            Until::TurnEnd => (span.message + 1, span.end),
        };
        for event in &self.events[from..to] {
            let mut json = event.json.clone();
            // OpenHands writes the local time, without a zone
            json["timestamp"] = json!(now.format("%Y-%m-%dT%H:%M:%S%.6f").to_string());
            put(&folder.join(&event.file), &json)?;
        }
        put(
            &store.join("base_state.json"),
            &self.state_at(turn, until, to, store, workspace)?,
        )
    }

    /// base_state.json once the first `count` events are there.
    fn state_at(
        &self,
        turn: &Turn,
        until: Until,
        count: usize,
        store: &Path,
        workspace: &Path,
    ) -> Result<Value> {
        let in_tree = |e: &Value| !NOT_IN_TREE.iter().any(|k| e["kind"] == *k);
        let head = self.events[..count]
            .iter()
            .rev()
            .map(|e| &e.json)
            .find(|e| in_tree(e));
        let mut state = self.base_state.clone();
        state["leaf_event_id"] = head.map_or(Value::Null, |e| e["id"].clone());
        state["last_user_message_id"] = json!(turn.id);
        state["execution_status"] = json!(match until {
            Until::Message => "running",
            Until::TurnEnd => "finished",
        });
        state["workspace"]["working_dir"] = json!(utf8(workspace)?);
        state["persistence_dir"] = json!(utf8(store)?);
        Ok(state)
    }
}

fn utf8(path: &Path) -> Result<&str> {
    path.to_str().ok_or_else(|| DemoError::Io {
        doing: "use",
        path: path.to_owned(),
        source: std::io::Error::other("the demo's folder must have a name in UTF-8"),
    })
}

/// Writes beside, then renames: a reader sees all of it or nothing.
fn put(path: &Path, json: &Value) -> Result<()> {
    let folder = path.parent().unwrap_or(Path::new("."));
    let mut file = tempfile::Builder::new()
        .prefix(".event")
        .tempfile_in(folder)
        .map_err(DemoError::io("write", path))?;
    file.write_all(json.to_string().as_bytes())
        .map_err(DemoError::io("write", path))?;
    file.persist(path)
        .map_err(|e| DemoError::io("write", path)(e.error))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt;

    #[test]
    fn the_store_grows_message_by_message_and_ends_as_it_was_recorded() {
        let r = Recording::load().expect("the recording loads");
        let dir = tempfile::tempdir().expect("a folder");
        let store = dir.path().join("conversations").join(&r.conversation);
        let workspace = dir.path().join("skylog");
        let state = || -> Value {
            serde_json::from_slice(&std::fs::read(store.join("base_state.json")).expect("there"))
                .expect("JSON")
        };
        let count = || std::fs::read_dir(store.join("events")).expect("listed").count();
        let now = Local::now();
        for turn in &r.turns {
            r.play_events(turn, Until::Message, &store, &workspace, now)
                .expect("played");
            assert_eq!(count(), turn.events.message + 1);
            assert_eq!(state()["leaf_event_id"], turn.id.as_str());
            assert_eq!(state()["execution_status"], "running");
            r.play_events(turn, Until::TurnEnd, &store, &workspace, now)
                .expect("played");
            assert_eq!(count(), turn.events.end);
            assert_eq!(state()["leaf_event_id"], r.events[turn.events.end - 1].json["id"]);
            assert_eq!(state()["execution_status"], "finished");
            assert_eq!(state()["last_user_message_id"], turn.id.as_str());
        }
        let mut end = state();
        assert_eq!(
            end["workspace"]["working_dir"],
            workspace.to_str().expect("UTF-8")
        );
        end["workspace"] = r.base_state["workspace"].clone();
        end["persistence_dir"] = r.base_state["persistence_dir"].clone();
        assert_eq!(end, r.base_state);
        let event = store.join("events").join(&r.events[1].file);
        assert_eq!(event.metadata().expect("there").mode() & 0o777, 0o600);
        let event: Value = serde_json::from_slice(&std::fs::read(event).expect("there")).expect("JSON");
        assert_eq!(
            event["timestamp"],
            now.format("%Y-%m-%dT%H:%M:%S%.6f").to_string()
        );
    }
}
