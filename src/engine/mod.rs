//! What the files looked like: the Btrfs snapshot and restore engine. It knows neither conversations nor
//! containers nor terminals; its calls take and return plain serde types and report through
//! [`crate::progress::Progress`].

pub mod changes;
mod error;
#[expect(
    unsafe_code,
    reason = "the one file with ioctls; everything else is safe code"
)]
pub mod ioctl;
mod model;
pub mod restore;
pub mod vault;

pub use error::{EngineError, Result};
pub use model::*;
