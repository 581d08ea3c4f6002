//! What an agent's hook passes and what it wants back.
//!
//! OpenHands (measured with SDK 1.58 and 1.21): the prompt hook runs before the message is stored, gets its text
//! (parts joined with nothing between them) and the conversation's id; what it prints is stored in the event log
//! beside the message's id. The stop hook gets no text.
//!
//! Claude Code (measured with 2.1.197): the prompt hook runs before the message is stored and gets its text and the
//! session. What it prints goes to the model, and is stored nowhere: it must print nothing. The message is found
//! again by session and text.

use std::ffi::OsStr;
use std::path::PathBuf;

use serde::Deserialize;
use serde_json::json;

use super::agent::Agent;
use super::take::{restore_command, take};
use crate::conversation::{claude_words, lenient_json};
use crate::engine::{CheckpointId, CheckpointKind, How, NewCheckpoint};
use crate::failure::Explain;
use crate::sandbox::inside::remember_caller;
use crate::sandbox::registry::Registry;
use crate::text::shown_path;
use crate::timeline::join::{HOOK_FAILED, text_hash};

/// What the hook was called for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// A message, about to be stored.
    Prompt {
        /// Its text.
        text: String,
    },
    /// The agent stopped.
    Stop,
    /// Anything else: no checkpoint.
    Other,
}

/// A call of the hook.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Call {
    /// What for.
    pub event: Event,
    /// The conversation's id.
    pub session: String,
    /// The workspace.
    pub workspace: PathBuf,
}

#[derive(Deserialize)]
struct OpenHands {
    #[serde(default)]
    event_type: Option<String>,
    #[serde(default)]
    message: Option<String>,
    #[serde(default)]
    session_id: Option<String>,
    #[serde(default)]
    working_dir: Option<PathBuf>,
}

#[derive(Deserialize)]
struct Claude {
    #[serde(default)]
    hook_event_name: Option<String>,
    #[serde(default)]
    prompt: Option<String>,
    #[serde(default)]
    session_id: Option<String>,
    #[serde(default)]
    cwd: Option<PathBuf>,
}

impl Call {
    /// Reads what an agent passes on standard input. `project`: what `CLAUDE_PROJECT_DIR` says, the folder that
    /// Claude Code was started in (the one in its input moves with the agent).
    pub fn of(agent: Agent, input: &[u8], project: Option<&OsStr>) -> Result<Self, String> {
        match agent {
            Agent::OpenHands => Self::openhands(input),
            Agent::Claude => Self::claude(input, project),
        }
    }

    fn claude(input: &[u8], project: Option<&OsStr>) -> Result<Self, String> {
        let raw: Claude = lenient_json(input).map_err(|e| format!("the hook's input cannot be read: {e}"))?;
        let event = match raw
            .hook_event_name
            .ok_or("the hook's input names no event")?
            .as_str()
        {
            "UserPromptSubmit" => Event::Prompt {
                text: claude_words(&raw.prompt.unwrap_or_default()),
            },
            "Stop" => Event::Stop,
            _ => Event::Other,
        };
        let project = project.map(PathBuf::from).filter(|p| p.is_absolute());
        Ok(Self {
            event,
            session: raw
                .session_id
                .filter(|s| !s.is_empty())
                .ok_or("the hook's input names no session")?,
            workspace: project
                .or(raw.cwd)
                .filter(|w| w.is_absolute())
                .ok_or("the hook's input names no working folder")?,
        })
    }

    /// Reads what OpenHands passes on standard input.
    pub fn openhands(input: &[u8]) -> Result<Self, String> {
        let raw: OpenHands =
            lenient_json(input).map_err(|e| format!("the hook's input cannot be read: {e}"))?;
        let event = match raw.event_type.ok_or("the hook's input names no event")?.as_str() {
            "UserPromptSubmit" => Event::Prompt {
                text: raw.message.unwrap_or_default(),
            },
            "Stop" => Event::Stop,
            _ => Event::Other,
        };
        let session = raw
            .session_id
            .filter(|s| !s.is_empty())
            .ok_or("the hook's input names no session")?;
        let workspace = raw
            .working_dir
            .filter(|w| w.is_absolute())
            .ok_or("the hook's input names no working folder")?;
        Ok(Self {
            event,
            session,
            workspace,
        })
    }

    /// The checkpoint to take; `None` for events that need none.
    pub fn checkpoint(&self) -> Option<NewCheckpoint> {
        let mut new = match &self.event {
            Event::Prompt { text } => {
                let mut new = NewCheckpoint::of(CheckpointKind::Message, How::Hook);
                new.text_hash = Some(text_hash(text));
                new
            }
            Event::Stop => NewCheckpoint::of(CheckpointKind::TurnEnd, How::Hook),
            Event::Other => return None,
        };
        new.conversation = Some(self.session.clone());
        Some(new)
    }
}

/// A checkpoint that the hook took.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Taken {
    /// Its id.
    pub id: CheckpointId,
    /// The command that goes back to it.
    pub restore: String,
}

/// Takes the checkpoint that `call` asks for. The error is one line that says why there is none.
pub fn carry_out(registry: &Registry, call: &Call) -> Result<Taken, String> {
    let new = call.checkpoint().ok_or("nothing to do")?;
    let site = match registry.find(&call.workspace) {
        Ok(Some(site)) => site,
        // without root neither pools nor their list can be read: do not say that the folder is not tracked
        _ if registry.line().is_none() && !rustix::process::geteuid().is_root() => {
            return Err(NEEDS_ROOT.into());
        }
        Ok(None) => return Err(format!("{} is not tracked", shown_path(&call.workspace))),
        Err(e) => return Err(words(&e)),
    };
    let taken = take(&site, &new).map_err(|e| words(&e))?;
    // the service knows who asks
    let here = site.dir().ok();
    let own = std::process::id() as i32;
    if let Some(Err(e)) = here.map(|dir| remember_caller(own, dir)) {
        tracing::warn!("the agent's process is not recorded: {e}");
    }
    Ok(Taken {
        restore: restore_command(registry, &taken.meta.id, &site.record.id),
        id: taken.meta.id,
    })
}

/// Why an agent that does not run as root gets no checkpoints.
pub const NEEDS_ROOT: &str = "the hook needs root, and the agent runs as another user";

/// An error and its hint in one line.
pub fn words(e: &dyn Explain) -> String {
    match e.hint() {
        Some(hint) => format!("{e} ({hint})"),
        None => e.to_string(),
    }
}

/// What the hook prints: nothing for Claude Code, which would give it to the model.
pub fn answer_to(agent: Agent, taken: Option<&Result<Taken, String>>) -> String {
    match (agent, taken) {
        (Agent::Claude, _) => String::new(),
        (Agent::OpenHands, None) => r#"{"decision":"allow"}"#.to_owned(),
        (Agent::OpenHands, Some(taken)) => answer(taken),
    }
}

/// What the hook prints for OpenHands: the agent goes on in any case, and its log says which checkpoint was taken
/// and how to go back to it, or why there is none.
pub fn answer(taken: &Result<Taken, String>) -> String {
    let reason = match taken {
        Ok(t) => format!("respool: checkpoint {}; go back with: {}", t.id, t.restore),
        Err(why) => format!("{HOOK_FAILED}{why}"),
    };
    json!({"decision": "allow", "reason": reason}).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prompt_and_a_stop() {
        let input = br#"{"event_type":"UserPromptSubmit","tool_name":null,"message":"do it","session_id":"a-b","working_dir":"/w","metadata":{}}"#;
        let call = Call::openhands(input).expect("valid");
        let new = call.checkpoint().expect("one");
        assert_eq!(
            (new.kind, new.conversation.as_deref()),
            (CheckpointKind::Message, Some("a-b"))
        );
        assert_eq!(new.text_hash, Some(text_hash("do\n it")));
        let input = br#"{"event_type":"Stop","message":null,"session_id":"a-b","working_dir":"/w"}"#;
        assert_eq!(
            Call::openhands(input)
                .expect("valid")
                .checkpoint()
                .map(|c| c.kind),
            Some(CheckpointKind::TurnEnd)
        );
    }

    /// What Claude Code 2.1.197 passed.
    #[test]
    fn claudes_events() {
        let payloads: serde_json::Value =
            serde_json::from_str(include_str!("../../tests/fixtures/claude/hook_payloads.json"))
                .expect("JSON");
        let call = |event: &str, project: Option<&str>| {
            let input = payloads[event].to_string();
            Call::of(Agent::Claude, input.as_bytes(), project.map(OsStr::new)).expect("valid")
        };
        let prompt = call("UserPromptSubmit", None);
        assert_eq!(prompt.workspace, PathBuf::from("/home/dev/ws/hk"));
        let new = prompt.checkpoint().expect("one");
        assert_eq!(new.kind, CheckpointKind::Message);
        assert_eq!(
            new.conversation.as_deref(),
            Some("9f5c081a-e2f4-4590-887a-96266ef07409")
        );
        let text = "hook payload sample\n@task sub\\n@sh true\n@sh echo x > x.txt";
        assert_eq!(new.text_hash, Some(text_hash(text)));
        let stop = call("Stop", Some("/home/dev/ws"));
        assert_eq!(stop.workspace, PathBuf::from("/home/dev/ws"));
        assert_eq!(stop.checkpoint().map(|c| c.kind), Some(CheckpointKind::TurnEnd));
        for other in [
            "SessionStart",
            "PreToolUse",
            "PostToolUse",
            "SubagentStop",
            "SessionEnd",
            "PreCompact",
        ] {
            assert!(call(other, None).checkpoint().is_none(), "{other}");
        }
        assert_eq!(answer_to(Agent::Claude, Some(&Err("x".into()))), "");
    }

    #[test]
    fn bad_input_is_an_answer_too() {
        for bad in [
            &b"{"[..],
            b"[]",
            br#"{"event_type":"Stop","session_id":"","working_dir":"/w"}"#,
            br#"{"event_type":"Stop","session_id":"x","working_dir":"w"}"#,
        ] {
            let why = Call::openhands(bad).expect_err("bad");
            let said = answer(&Err(why));
            assert!(
                said.starts_with(r#"{"decision":"allow","reason":"respool: no checkpoint: the hook's input"#),
                "{said}"
            );
        }
    }
}
