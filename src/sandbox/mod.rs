//! Where the agent ran: which sandbox a path belongs to, who holds files in it, how its writers are stopped.

pub mod docker;
pub mod freeze;
pub mod holders;
pub mod mounts;
