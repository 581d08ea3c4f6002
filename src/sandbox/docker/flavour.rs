//! Which program made a container, and the conversation that it serves.

use serde::Serialize;

use super::inspect::{ContainerMount, Inspect};

/// Which program made a container, told by its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Flavour {
    /// `openhands-runtime-<session>`: OpenHands V0; its root file system is kept over stop and start.
    OpenhandsV0,
    /// `oh-agent-server-*`: the OpenHands V1 app.
    OpenhandsApp,
    /// `agent-server-conversation-*`: the agent server's Docker runtime, started with `--rm`.
    OpenhandsConversation,
    /// Anything else.
    Other,
}

pub(super) fn flavour(name: &str) -> Flavour {
    if name.starts_with("openhands-runtime-") {
        Flavour::OpenhandsV0
    } else if name.starts_with("oh-agent-server-") {
        Flavour::OpenhandsApp
    } else if name.starts_with("agent-server-conversation-") {
        Flavour::OpenhandsConversation
    } else {
        Flavour::Other
    }
}

pub(super) fn conversation(name: &str, flavour: Flavour, mounts: &[ContainerMount]) -> Option<String> {
    match flavour {
        Flavour::OpenhandsV0 => name.strip_prefix("openhands-runtime-").map(ToOwned::to_owned),
        Flavour::OpenhandsConversation => mounts.iter().find_map(|m| {
            let id = m.destination.strip_prefix("/var/openhands/conversations").ok()?;
            id.file_name()?.to_str().map(ToOwned::to_owned)
        }),
        Flavour::OpenhandsApp | Flavour::Other => None,
    }
}

/// Ids of conversations are written with dashes or without.
fn plain(id: &str) -> String {
    id.chars()
        .filter(|c| *c != '-')
        .map(|c| c.to_ascii_lowercase())
        .collect()
}

impl Inspect {
    /// True if it is known to serve this conversation.
    pub fn serves(&self, conversation: &str) -> bool {
        self.conversation
            .as_deref()
            .is_some_and(|c| !c.is_empty() && plain(c) == plain(conversation))
    }
}

#[cfg(test)]
mod tests {
    use super::super::inspect::tests::fixture;
    use super::*;

    #[test]
    fn names_and_mounts_tell_the_conversation() {
        let mount = ContainerMount {
            kind: "bind".into(),
            name: None,
            source: "/srv/c/2222".into(),
            destination: "/var/openhands/conversations/2222".into(),
            writable: true,
        };
        let f = flavour("agent-server-conversation-1-2");
        assert_eq!(
            conversation("agent-server-conversation-1-2", f, &[mount]).as_deref(),
            Some("2222")
        );
        let f = flavour("openhands-runtime-abc");
        assert_eq!(
            (f, conversation("openhands-runtime-abc", f, &[])),
            (Flavour::OpenhandsV0, Some("abc".into()))
        );
        assert_eq!(flavour("oh-agent-server-x"), Flavour::OpenhandsApp);
        assert_eq!(flavour("postgres"), Flavour::Other);
    }

    #[test]
    fn one_serves_its_own_conversation_alone() {
        let c = fixture("v1_agent_server_conversation.json");
        assert!(c.serves("66666666-7777-4888-8999-aaaaaaaaaaaa"));
        assert!(!c.serves("11111111222243338444555555555555"));
        assert!(!fixture("v1_app_oh-agent-server.json").serves(""));
    }
}
