//! Checkpoints at each message and turn end: the agent's hook, and the watcher.

pub mod hook;
