//! The containers of a sandbox, as its record names them.

use serde::{Deserialize, Serialize};

use crate::engine::catalog::SandboxRecord;
use crate::sandbox::docker::Inspect;
use crate::text::ExactPath;

/// The field of a sandbox's record.
const FIELD: &str = "containers";

/// A container that is a part of a sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContainerRecord {
    /// The id of its vault, `ct-` and ten characters.
    pub part: String,
    /// Its name.
    pub name: String,
    /// Its full id when it was last seen.
    pub id: String,
    /// The id of its image.
    pub image: String,
    /// What tells the layers below its own; empty where there are none.
    pub chain: String,
    /// Where its engine listens.
    pub host: String,
    /// Where its files were when it was last seen.
    pub path: ExactPath,
}

impl ContainerRecord {
    /// True if another container of this name may take its place: a layer fits the image that it was made on alone.
    pub fn fits(&self, c: &Inspect, chain: &str) -> bool {
        c.name == self.name && c.image == self.image && chain == self.chain
    }
}

/// The containers that a record names. What cannot be read is told and left where it is.
pub fn containers(record: &SandboxRecord) -> Vec<ContainerRecord> {
    let Some(value) = record.extra.get(FIELD) else {
        return Vec::new();
    };
    match serde_json::from_value(value.clone()) {
        Ok(list) => list,
        Err(e) => {
            tracing::warn!("the containers of sandbox {} cannot be read: {e}", record.id);
            Vec::new()
        }
    }
}

/// Names the containers of a record.
pub fn set_containers(record: &mut SandboxRecord, list: &[ContainerRecord]) -> serde_json::Result<()> {
    if list.is_empty() {
        record.extra.remove(FIELD);
    } else {
        record.extra.insert(FIELD.into(), serde_json::to_value(list)?);
    }
    Ok(())
}
