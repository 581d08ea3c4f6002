//! The program from outside, on a real pool: commands in, documents and exit codes out, the tree compared
//! byte by byte and attribute by attribute. P numbers name the collected case that a test stands for.

#[path = "../common/mod.rs"]
mod common;

mod lab;
mod manifest;

mod actors;
mod contract;
mod copies;
mod host;
mod host_hostile;
mod host_user;
mod kill;
mod kill_adopt;
mod messages;
mod names;
mod now;
mod pairs;
mod places;
mod plans;
mod pool;
mod refuse;
mod repo;
mod rounds;
mod strays;
mod surroundings;
mod texts;
mod untracked;
