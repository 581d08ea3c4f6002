//! The parts of a sandbox beside its workspace: containers. They are kept in vaults of their own, on the file system
//! that they are on, and are snapshotted and brought back together with the workspace.

pub mod attach;
mod living;
mod open;
pub mod outlook;
pub mod part;
pub mod pause;
pub mod record;
mod remount;
pub mod turn;
mod vault;

pub use open::{Found, Parts};
pub use part::{Part, Shelf};
pub use record::{ContainerRecord, containers};
pub use turn::{NoContainers, Turn, Turns, Was};
pub use vault::PartedVault;
