//! Containers, through the Docker API: which exist, whose conversation each serves, what of the host each has
//! mounted, where its root file system is, and pausing, stopping and starting one. The state is read again after
//! each act: what the engines answer is not trusted.

pub mod act;
pub mod again;
pub mod engine;
mod error;
pub mod flavour;
pub mod info;
pub mod inspect;
pub mod locate;
pub mod paths;
pub mod rootfs;
pub mod sight;
pub mod technique;

pub use engine::Engine;
pub use error::{DockerError, Result};
pub use flavour::Flavour;
pub use inspect::{ContainerMount, Inspect, State};
pub use technique::{Technique, Verdict};

/// All containers, stopped ones too, and the engine that has them.
pub fn containers() -> Result<(Engine, Vec<Inspect>)> {
    let engine = Engine::connect(None)?;
    let all = engine.all()?;
    Ok((engine, all))
}
