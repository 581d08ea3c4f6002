//! Where a path of a container is on the host.

use std::path::{Path, PathBuf};

use super::inspect::Inspect;

/// Where a path of a container is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// At this path of the host.
    Host(PathBuf),
    /// In the container's own root file system.
    Root(PathBuf),
    /// In memory.
    Memory,
}

impl Inspect {
    /// Where an absolute path of the container is: the mount with the longest destination above it decides.
    pub fn place(&self, path: &Path) -> Place {
        let bind = self
            .mounts
            .iter()
            .filter(|m| path.starts_with(&m.destination))
            .max_by_key(|m| m.destination.components().count());
        let memory = self.tmpfs.iter().filter(|t| path.starts_with(t));
        let memory = memory.map(|t| t.components().count()).max().unwrap_or(0);
        let depth = bind.map_or(0, |m| m.destination.components().count());
        if memory > depth {
            return Place::Memory;
        }
        match bind.map(|m| (m, path.strip_prefix(&m.destination))) {
            Some((m, Ok(rest))) if rest.as_os_str().is_empty() => Place::Host(m.source.clone()),
            Some((m, Ok(rest))) => Place::Host(m.source.join(rest)),
            _ => Place::Root(path.to_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::inspect::tests::fixture;
    use super::*;

    #[test]
    fn the_longest_destination_decides() {
        let c = fixture("v1_agent_server_conversation.json");
        let host = |p: &str| match c.place(Path::new(p)) {
            Place::Host(h) => h.display().to_string(),
            other => format!("{other:?}"),
        };
        let id = "66666666777748888999aaaaaaaaaaaa";
        assert_eq!(
            host("/workspace/src/a"),
            format!("/home/dev/oh/workspace/.openhands/runtime-data/{id}/workspace/src/a")
        );
        assert_eq!(
            host(&format!("/var/openhands/conversations/{id}/events")),
            format!("/home/dev/oh/workspace/conversations/{id}/events")
        );
        assert_eq!(
            c.place(Path::new("/workspace2")),
            Place::Root("/workspace2".into())
        );
        assert_eq!(
            host("/workspace"),
            format!("/home/dev/oh/workspace/.openhands/runtime-data/{id}/workspace")
        );
    }
}
