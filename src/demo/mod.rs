//! The self-contained demo: a recorded conversation, replayed turn by turn in a scratch sandbox.

pub mod digest;
mod error;
pub mod recording;
pub mod replay;
pub mod run;
pub mod stage;
pub mod store;

pub use error::{DemoError, Result};
