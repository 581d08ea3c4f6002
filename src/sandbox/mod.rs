//! Where the agent ran: which sandbox a path belongs to, who holds files in it, how its writers are stopped.

pub mod bind;
pub mod boot;
pub mod docker;
pub mod freeze;
pub mod holders;
pub mod mounts;
pub mod quiet;
mod rebuilt;
pub mod registry;
mod revive;
pub mod site;
pub mod user_pool;
pub mod writers;
