//! Checkpoints at each message and turn end: the agent's hook, and the watcher.

pub mod hook;
pub mod hooks;
pub mod watcher;
