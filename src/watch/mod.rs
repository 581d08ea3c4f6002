//! Checkpoints at each message and turn end: the agent's hook, and the watcher.

pub mod agent;
mod event;
mod followed;
pub mod hook;
pub mod hooks;
pub mod line;
mod newcomers;
mod presence;
pub mod stream;
pub mod take;
pub mod watcher;

pub use presence::is_watched;
pub use take::{TakeError, restore_command, take};
