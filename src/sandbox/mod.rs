//! Where the agent ran: which sandbox a path belongs to, who holds files in it, how its writers are stopped.

pub mod bind;
pub mod boot;
pub mod docker;
pub mod exclusive;
pub mod foreground;
pub mod freeze;
pub mod heard;
pub mod holders;
pub mod inside;
pub mod manage;
pub mod mapped;
pub mod mounts;
pub mod parts;
pub mod quiet;
mod rebuilt;
pub mod registry;
pub mod remote;
mod revive;
pub mod settings;
pub mod site;
pub mod starter;
pub mod user_pool;
pub mod whole;
pub mod writers;
