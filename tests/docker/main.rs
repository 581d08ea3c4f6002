//! Containers of a real Docker daemon go back with the workspace: on the btrfs driver, and on overlay2 on Btrfs and
//! on ext4. Needs root and dockerd; P numbers name the collected case that a test stands for.

#[path = "../common/mod.rs"]
mod common;
#[path = "../cli/manifest.rs"]
mod manifest;

mod door;
mod engine;
mod hazards;
mod inside;
mod kills;
mod look;
mod packages;
mod points;
mod proof;
mod rewinds;
mod states;
mod whole;
mod whole_kills;
mod whole_more;
