//! A checkpoint at each message and turn end: the agents' hooks, the watcher.

pub mod hooks;
