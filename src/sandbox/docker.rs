//! Containers, through the Docker API: which exist, whose conversation each serves, what of the host each
//! has mounted. Read-only.

use std::path::PathBuf;
use std::time::Duration;

use bollard::Docker;
use bollard::models::ContainerSummary;
use bollard::query_parameters::ListContainersOptionsBuilder;
use serde::Serialize;

use crate::failure::{Explain, Kind};
use crate::text::shown;

/// The Docker daemon cannot be asked.
#[derive(Debug, thiserror::Error)]
#[error("no container engine answers: {}", shown(reason))]
pub struct DockerError {
    reason: String,
}

impl Explain for DockerError {
    fn kind(&self) -> Kind {
        Kind::Failed
    }
    fn hint(&self) -> Option<String> {
        Some("containers are looked for at DOCKER_HOST or /var/run/docker.sock".into())
    }
}

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

/// A part of the host that a container has mounted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ContainerMount {
    /// `bind`, `volume`, `tmpfs`.
    pub kind: String,
    /// Where it is on the host.
    pub source: PathBuf,
    /// Where the container sees it.
    pub destination: PathBuf,
    /// The container may write to it.
    pub writable: bool,
}

/// A container.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Container {
    /// The full id.
    pub id: String,
    /// The name, without the slash.
    pub name: String,
    /// The image.
    pub image: String,
    /// `running`, `exited`, ...
    pub state: String,
    /// Who made it.
    pub flavour: Flavour,
    /// The conversation that it serves, where name or mounts tell.
    pub conversation: Option<String>,
    /// What it has mounted.
    pub mounts: Vec<ContainerMount>,
}

fn flavour(name: &str) -> Flavour {
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

fn conversation(name: &str, flavour: Flavour, mounts: &[ContainerMount]) -> Option<String> {
    match flavour {
        Flavour::OpenhandsV0 => name.strip_prefix("openhands-runtime-").map(ToOwned::to_owned),
        Flavour::OpenhandsConversation => mounts.iter().find_map(|m| {
            let id = m.destination.strip_prefix("/var/openhands/conversations").ok()?;
            id.file_name()?.to_str().map(ToOwned::to_owned)
        }),
        Flavour::OpenhandsApp | Flavour::Other => None,
    }
}

fn container(c: ContainerSummary) -> Container {
    let name = c.names.unwrap_or_default().into_iter().next().unwrap_or_default();
    let name = name.trim_start_matches('/').to_owned();
    let mounts: Vec<ContainerMount> = c
        .mounts
        .unwrap_or_default()
        .into_iter()
        .map(|m| ContainerMount {
            kind: m.typ.unwrap_or_default(),
            source: m.source.unwrap_or_default().into(),
            destination: m.destination.unwrap_or_default().into(),
            writable: m.rw.unwrap_or(true),
        })
        .collect();
    let flavour = flavour(&name);
    Container {
        id: c.id.unwrap_or_default(),
        conversation: conversation(&name, flavour, &mounts),
        image: c.image.unwrap_or_default(),
        state: c.state.map(|s| s.to_string()).unwrap_or_default(),
        flavour,
        mounts,
        name,
    }
}

/// All containers, stopped ones too. Waits at most three seconds for the engine.
pub fn containers() -> Result<Vec<Container>, DockerError> {
    let failed = |e: &dyn std::fmt::Display| DockerError {
        reason: e.to_string(),
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|e| failed(&e))?;
    runtime.block_on(async {
        let docker = Docker::connect_with_defaults().map_err(|e| failed(&e))?;
        let options = ListContainersOptionsBuilder::default().all(true).build();
        let list = tokio::time::timeout(Duration::from_secs(3), docker.list_containers(Some(options)));
        let list = list
            .await
            .map_err(|_| failed(&"no answer within three seconds"))?
            .map_err(|e| failed(&e))?;
        Ok(list.into_iter().map(container).collect())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_mounts_tell_the_conversation() {
        let mount = ContainerMount {
            kind: "bind".into(),
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
}
