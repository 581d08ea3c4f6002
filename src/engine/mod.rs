//! What the files looked like: the Btrfs snapshot and restore engine. It knows neither conversations nor
//! containers nor terminals; its calls take and return plain serde types and report through
//! [`crate::progress::Progress`].

pub mod attach;
pub mod catalog;
pub mod changes;
pub mod error;
pub mod flags;
pub mod forest;
pub mod image;
#[expect(
    unsafe_code,
    reason = "the one file with ioctls; everything else is safe code"
)]
pub mod ioctl;
mod model;
pub mod mounts;
pub mod nodes;
pub mod pool;
pub mod restore;
pub mod retention;
pub mod space;
pub mod subvolume;
pub mod vault;

pub use error::{EngineError, Result};
pub use model::*;
