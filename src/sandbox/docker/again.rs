//! Making a container again that its engine removed: from what the engine said of it before.

use bollard::models::{ContainerCreateBody, EndpointSettings, NetworkingConfig};
use bollard::query_parameters::CreateContainerOptionsBuilder;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::engine::{ASK, Engine};
use super::error::{DockerError, Result};

/// All that a container is made of but its files. Keys of servers may be in it: it is for files of root's alone.
#[derive(Clone, Serialize, Deserialize)]
pub struct Spec {
    name: String,
    body: Value,
}

/// What of a network is the container's own, and not the engine's doing.
fn own(found: EndpointSettings) -> EndpointSettings {
    EndpointSettings {
        ipam_config: found.ipam_config,
        links: found.links,
        aliases: found.aliases,
        ..EndpointSettings::default()
    }
}

impl Engine {
    fn failed(&self, name: &str, why: String) -> DockerError {
        tracing::debug!("{}: {why}", self.host());
        DockerError::Act {
            what: "make again",
            name: name.to_owned(),
            why,
        }
    }

    /// What a container is made of.
    pub fn spec(&self, id: &str) -> Result<Spec> {
        let found = self.call(ASK, self.docker().inspect_container(id, None));
        let found = found.map_err(|why| self.failed(id, why))?;
        let name = found.name.unwrap_or_default().trim_start_matches('/').to_owned();
        let host = found.host_config.unwrap_or_default();
        let mode = host.network_mode.clone().unwrap_or_default();
        let shared = ["", "default", "bridge", "none", "host"].contains(&mode.as_str())
            || mode.starts_with("container:");
        let networks = found
            .network_settings
            .and_then(|n| n.networks)
            .filter(|_| !shared);
        let networks = networks.map(|all| NetworkingConfig {
            endpoints_config: Some(all.into_iter().map(|(name, e)| (name, own(e))).collect()),
        });
        let json = |e: serde_json::Error| self.failed(id, e.to_string());
        let mut body = serde_json::to_value(found.config.unwrap_or_default()).map_err(json)?;
        body["HostConfig"] = serde_json::to_value(host).map_err(json)?;
        if let Some(networks) = networks {
            body["NetworkingConfig"] = serde_json::to_value(networks).map_err(json)?;
        }
        Ok(Spec { name, body })
    }

    /// Makes it again, not started. It has another id.
    pub fn make_again(&self, spec: &Spec) -> Result<()> {
        let body: ContainerCreateBody =
            serde_json::from_value(spec.body.clone()).map_err(|e| self.failed(&spec.name, e.to_string()))?;
        let options = CreateContainerOptionsBuilder::default().name(&spec.name).build();
        let made = self.call(ASK * 4, self.docker().create_container(Some(options), body));
        made.map(drop).map_err(|why| self.failed(&spec.name, why))
    }
}
