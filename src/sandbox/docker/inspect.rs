//! One container as plain data. Its environment is not kept: keys of agents' servers are in it.

use std::collections::BTreeMap;
use std::path::PathBuf;

use bollard::models::{
    ContainerInspectResponse, ContainerState, ContainerStateStatusEnum as Status, MountPoint,
};
use serde::Serialize;

use super::flavour::{self, Flavour};

/// What a container does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum State {
    /// Made, and never started.
    Created,
    /// It runs.
    Running,
    /// It is paused.
    Paused,
    /// The engine starts it again and again.
    Restarting,
    /// It ended.
    Exited,
    /// It is being removed, or could not be.
    Dead,
}

impl State {
    /// The word for it.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Created => "created",
            Self::Running => "running",
            Self::Paused => "paused",
            Self::Restarting => "restarting",
            Self::Exited => "stopped",
            Self::Dead => "dead",
        }
    }

    /// True if it has processes.
    pub const fn lives(self) -> bool {
        matches!(self, Self::Running | Self::Paused | Self::Restarting)
    }
}

/// A part of the host that a container has mounted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ContainerMount {
    /// `bind`, `volume`, `tmpfs`.
    pub kind: String,
    /// The name of a volume.
    pub name: Option<String>,
    /// Where it is on the host.
    pub source: PathBuf,
    /// Where the container sees it.
    pub destination: PathBuf,
    /// The container may write to it.
    pub writable: bool,
}

/// A container.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Inspect {
    /// The full id.
    pub id: String,
    /// The name, without the slash.
    pub name: String,
    /// The id of its image.
    pub image: String,
    /// What the image was called.
    pub image_name: String,
    /// What it does.
    pub state: State,
    /// Its first process; 0 if it has none.
    pub pid: i32,
    /// How its last first process ended.
    pub exit_code: i64,
    /// What its health check says, where it has one: `starting`, `healthy`, `unhealthy`.
    pub health: Option<String>,
    /// It is removed as soon as it is stopped.
    pub auto_remove: bool,
    /// `no`, `always`, `on-failure`, `unless-stopped`.
    pub restart: String,
    /// `default`, `host`, `none`, ...
    pub network: String,
    /// It has all rights.
    pub privileged: bool,
    /// How long a stop waits before it kills, seconds.
    pub stop_seconds: u32,
    /// What it has mounted, those in memory left out.
    pub mounts: Vec<ContainerMount>,
    /// What it has in memory: in no checkpoint ever.
    pub tmpfs: Vec<PathBuf>,
    /// The storage driver.
    pub driver: String,
    /// What the driver says: `UpperDir`, `LowerDir`, ...; empty for some.
    pub storage: BTreeMap<String, String>,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
    /// The folder that its commands start in.
    pub working_dir: PathBuf,
    /// Who made it.
    pub flavour: Flavour,
    /// The conversation that it serves, where name or mounts tell.
    pub conversation: Option<String>,
}

fn state(s: &ContainerState) -> State {
    let is = |flag: Option<bool>| flag.unwrap_or(false);
    // a paused one is running, too, and one that is started again may be neither
    if is(s.paused) {
        return State::Paused;
    }
    if is(s.restarting) {
        return State::Restarting;
    }
    match s.status {
        Some(Status::CREATED) => State::Created,
        Some(Status::RUNNING | Status::STOPPING) => State::Running,
        Some(Status::PAUSED) => State::Paused,
        Some(Status::RESTARTING) => State::Restarting,
        Some(Status::REMOVING | Status::DEAD) => State::Dead,
        _ if is(s.dead) => State::Dead,
        _ if is(s.running) => State::Running,
        _ => State::Exited,
    }
}

fn mount(m: MountPoint) -> ContainerMount {
    ContainerMount {
        kind: m.typ.unwrap_or_default(),
        name: m.name.filter(|n| !n.is_empty()),
        source: m.source.unwrap_or_default().into(),
        destination: m.destination.unwrap_or_default().into(),
        writable: m.rw.unwrap_or(true),
    }
}

/// Seconds that an engine waits by itself.
const STOP: u32 = 10;

impl Inspect {
    /// From what the engine answers. All of that may be missing.
    pub fn of(c: ContainerInspectResponse) -> Self {
        let name = c.name.unwrap_or_default().trim_start_matches('/').to_owned();
        let host = c.host_config.unwrap_or_default();
        let config = c.config.unwrap_or_default();
        let known = c.state.unwrap_or_default();
        let (memory, mounts): (Vec<_>, Vec<_>) = c
            .mounts
            .unwrap_or_default()
            .into_iter()
            .map(mount)
            .partition(|m| m.kind == "tmpfs");
        let mut tmpfs: Vec<PathBuf> = memory.into_iter().map(|m| m.destination).collect();
        tmpfs.extend(host.tmpfs.unwrap_or_default().into_keys().map(PathBuf::from));
        tmpfs.sort();
        tmpfs.dedup();
        let flavour = flavour::flavour(&name);
        let health = known
            .health
            .as_ref()
            .and_then(|h| h.status.as_ref())
            .map(ToString::to_string);
        Self {
            id: c.id.unwrap_or_default(),
            conversation: flavour::conversation(&name, flavour, &mounts),
            image: c.image.unwrap_or_default(),
            image_name: config.image.unwrap_or_default(),
            state: state(&known),
            pid: known.pid.and_then(|p| i32::try_from(p).ok()).unwrap_or(0),
            exit_code: known.exit_code.unwrap_or(0),
            health: health.filter(|h| !h.is_empty() && h != "none"),
            auto_remove: host.auto_remove.unwrap_or(false),
            restart: host
                .restart_policy
                .and_then(|p| p.name)
                .map(|n| n.to_string())
                .filter(|n| !n.is_empty())
                .unwrap_or_else(|| "no".into()),
            network: host.network_mode.unwrap_or_default(),
            privileged: host.privileged.unwrap_or(false),
            stop_seconds: config
                .stop_timeout
                .and_then(|t| u32::try_from(t).ok())
                .unwrap_or(STOP)
                .min(120),
            mounts,
            tmpfs,
            driver: c
                .driver
                .or_else(|| c.graph_driver.as_ref().map(|g| g.name.clone()))
                .unwrap_or_default(),
            storage: c
                .graph_driver
                .map(|g| g.data.into_iter().collect())
                .unwrap_or_default(),
            labels: config.labels.unwrap_or_default().into_iter().collect(),
            working_dir: config.working_dir.unwrap_or_default().into(),
            flavour,
            name,
        }
    }

    /// True if it runs, and its first process is there: an engine may hear late of its end.
    pub fn is_up(&self) -> bool {
        let ended = |s: &crate::process::Stat| matches!(s.state, 'Z' | 'X');
        self.state == State::Running && crate::process::stat(self.pid).is_some_and(|s| !ended(&s))
    }

    /// Name and the first digits of the id, harmless.
    pub fn shown(&self) -> String {
        let id: String = self.id.chars().take(12).collect();
        format!("{} ({})", crate::text::shown(&self.name), crate::text::shown(&id))
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub fn fixture(name: &str) -> Inspect {
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("tests/fixtures/openhands/docker_inspect")
            .join(name);
        let text = std::fs::read(path).expect("fixture");
        let mut all: Vec<ContainerInspectResponse> = serde_json::from_slice(&text).expect("inspect");
        Inspect::of(all.remove(0))
    }

    #[test]
    fn the_three_flavours_are_read() {
        let v0 = fixture("v0_openhands-runtime.json");
        assert_eq!((v0.flavour, v0.state), (Flavour::OpenhandsV0, State::Running));
        assert_eq!(
            v0.conversation.as_deref(),
            Some("b7e6d5c4a3f24819b0a1c2d3e4f50627")
        );
        assert_eq!(
            (v0.auto_remove, v0.restart.as_str(), v0.driver.as_str()),
            (false, "no", "overlay2")
        );
        assert!(v0.storage["UpperDir"].ends_with("/diff"));
        let conversation = fixture("v1_agent_server_conversation.json");
        assert_eq!(conversation.flavour, Flavour::OpenhandsConversation);
        assert!(conversation.auto_remove);
        assert_eq!(
            conversation.conversation.as_deref(),
            Some("66666666777748888999aaaaaaaaaaaa")
        );
        let app = fixture("v1_app_oh-agent-server.json");
        assert_eq!((app.flavour, app.auto_remove), (Flavour::OpenhandsApp, false));
        assert_eq!(app.conversation, None);
        assert!(app.labels.contains_key("sandbox_spec_id"));
        // no key of a server is in what is kept
        let all = serde_json::to_string(&[v0, conversation, app]).expect("json");
        assert!(!all.contains("SESSION_API_KEY"), "{all}");
    }

    #[test]
    fn what_is_missing_is_nothing() {
        let empty: ContainerInspectResponse = serde_json::from_str("{}").expect("empty");
        let c = Inspect::of(empty);
        assert_eq!((c.state, c.pid, c.stop_seconds), (State::Exited, 0, STOP));
        let host: ContainerInspectResponse = serde_json::from_str(
            r#"{"State":{"Status":"running","Running":true,"Paused":true,"Pid":7},"HostConfig":{"NetworkMode":"host",
               "Tmpfs":{"/t":""}},"Config":{"ExposedPorts":null},"NetworkSettings":{"Ports":{}},"GraphDriver":{"Name":"btrfs","Data":null}}"#,
        )
        .expect("host network");
        let c = Inspect::of(host);
        assert_eq!(
            (c.state, c.network.as_str(), c.driver.as_str()),
            (State::Paused, "host", "btrfs")
        );
        assert_eq!(c.tmpfs, [PathBuf::from("/t")]);
    }
}
