//! The store of checkpoints on a real Btrfs: images, pools, the catalog, the vault. Names of tests with a
//! `p` and a number are the cases that they cover.

mod common;

#[path = "engine_store/pool.rs"]
mod pool;
#[path = "engine_store/vault.rs"]
mod vault;
