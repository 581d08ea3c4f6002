//! What an engine says of itself, and what it has.

use std::path::PathBuf;

use bollard::models::LocalNodeState;
use bollard::query_parameters::{ListImagesOptions, ListVolumesOptions};

use super::engine::{ASK, Engine};
use super::error::{DockerError, Result};

/// What an engine says of itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Info {
    /// The folder of its data.
    pub data_root: PathBuf,
    /// Its storage driver.
    pub driver: String,
    /// Containers live on while the daemon is stopped.
    pub live_restore: bool,
    /// It is a node of a swarm.
    pub swarm: bool,
    /// Images and containers are kept by containerd.
    pub snapshotter: bool,
}

impl Engine {
    /// What it says of itself.
    pub fn facts(&self) -> Result<Info> {
        let info = self
            .call(ASK, self.docker().info())
            .map_err(DockerError::Unreachable)?;
        let root = info.docker_root_dir.filter(|r| r.starts_with('/'));
        let root =
            root.ok_or_else(|| DockerError::Unreachable("it does not say where its data is".into()))?;
        let status = info.driver_status.unwrap_or_default();
        let state = info.swarm.and_then(|s| s.local_node_state);
        Ok(Info {
            data_root: root.into(),
            driver: info.driver.unwrap_or_default(),
            live_restore: info.live_restore_enabled.unwrap_or(false),
            swarm: state.is_some_and(|s| !matches!(s, LocalNodeState::INACTIVE | LocalNodeState::EMPTY)),
            snapshotter: status
                .iter()
                .flatten()
                .any(|w| w.contains("io.containerd.snapshotter")),
        })
    }

    /// One line for each image, tag, container and volume that it has: what must be there after a move as before.
    pub fn inventory(&self) -> Result<Vec<String>> {
        let images = self
            .call(ASK, self.docker().list_images(None::<ListImagesOptions>))
            .map_err(DockerError::Unreachable)?;
        let volumes = self
            .call(ASK, self.docker().list_volumes(None::<ListVolumesOptions>))
            .map_err(DockerError::Unreachable)?;
        let mut out = Vec::new();
        for image in images {
            out.extend(
                image
                    .repo_tags
                    .into_iter()
                    .map(|t| format!("image {t} of {}", image.id)),
            );
            out.push(format!("image {}", image.id));
        }
        out.extend(
            self.all()?
                .into_iter()
                .map(|c| format!("container {} ({})", c.name, c.id)),
        );
        let volumes = volumes.volumes.unwrap_or_default();
        out.extend(volumes.into_iter().map(|v| format!("volume {}", v.name)));
        out.sort();
        out.dedup();
        Ok(out)
    }
}
