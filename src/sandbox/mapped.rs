//! Where a conversation's workspace is on this machine, when its store names a path inside a container.

use std::path::{Component, Path, PathBuf};
use std::time::{Duration, Instant};

use super::docker::paths::Place;
use super::docker::{Inspect, containers};

/// By the mounts of the container that serves this conversation; `None` where there is none, or the workspace is in the
/// container's own files.
pub fn on_this_machine(conversation: &str, workspace: &Path) -> Option<PathBuf> {
    Known::default().find(conversation, workspace)
}

/// How long a list of containers is as good as new.
const FRESH: Duration = Duration::from_secs(2);

/// As [`on_this_machine`], for many conversations one after the other.
#[derive(Default)]
pub struct Known(Option<(Instant, Vec<Inspect>)>);

impl Known {
    /// See [`on_this_machine`].
    pub fn find(&mut self, conversation: &str, workspace: &Path) -> Option<PathBuf> {
        if !rustix::process::geteuid().is_root() {
            return None;
        }
        if self.0.as_ref().is_none_or(|(at, _)| at.elapsed() > FRESH) {
            let all = containers().map(|(_, all)| all).unwrap_or_default();
            self.0 = Some((Instant::now(), all));
        }
        mapped(&self.0.as_ref()?.1, conversation, workspace)
    }
}

fn mapped(all: &[Inspect], conversation: &str, workspace: &Path) -> Option<PathBuf> {
    let plain = |c: Component<'_>| matches!(c, Component::RootDir | Component::Normal(_));
    if !workspace.is_absolute() || !workspace.components().all(plain) {
        return None;
    }
    let mut serving = all.iter().filter(|c| c.serves(conversation));
    match (serving.next(), serving.next()) {
        (Some(one), None) => match one.place(workspace) {
            Place::Host(path) => Some(path),
            Place::Root(_) | Place::Memory => None,
        },
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn conversation() -> Inspect {
        let path = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("tests/fixtures/openhands/docker_inspect/v1_agent_server_conversation.json");
        let text = std::fs::read(path).expect("fixture");
        let mut all: Vec<bollard::models::ContainerInspectResponse> =
            serde_json::from_slice(&text).expect("inspect");
        Inspect::of(all.remove(0))
    }

    #[test]
    fn the_container_that_serves_it_tells_and_no_path_leads_out() {
        let all = [conversation()];
        let id = "66666666-7777-4888-8999-aaaaaaaaaaaa";
        let at = |path: &str| mapped(&all, id, Path::new(path));
        let root =
            "/home/dev/oh/workspace/.openhands/runtime-data/66666666777748888999aaaaaaaaaaaa/workspace";
        assert_eq!(at("/workspace/x"), Some(Path::new(root).join("x")));
        assert_eq!(at("/workspace/../../etc"), None);
        assert_eq!(at("/elsewhere"), None, "in the container itself");
        assert_eq!(mapped(&all, "another", Path::new("/workspace")), None);
        let two = [conversation(), conversation()];
        assert_eq!(mapped(&two, id, Path::new("/workspace")), None, "not guessed");
    }
}
