//! Whole-Docker mode: the data folder of a Docker daemon is a subvolume of a pool, and each checkpoint has a snapshot of
//! all of it. The subvolume is mounted over the same path: no setting but the storage driver's name changes, a
//! `--data-root` of the command line stays valid, and what containers remember of paths, too. A daemon that comes up
//! without the pool finds a folder that takes no write, and fails.

pub mod back;
pub mod daemon;
pub mod home;
pub mod keep;
pub mod look;
pub mod pin;
pub mod place;
pub mod recipe;
pub mod record;

pub use daemon::Daemon;
pub use home::Home;
pub use keep::{Fate, Keep};
pub use look::Inventory;
pub use pin::Pin;
pub use place::Beside;
pub use recipe::{Recipe, Runs};
pub use record::{Phase, Ran, Record, Stopped};
