//! The program from outside, on a real pool: commands in, documents and exit codes out, the tree compared
//! byte by byte and attribute by attribute. P numbers name the collected case that a test stands for.

#[path = "../common/mod.rs"]
mod common;

mod lab;
mod manifest;
mod screen;

mod actors;
mod agent_server;
mod boot;
mod busy;
mod chat;
mod chat_kill;
mod chat_server;
mod claude_chat;
mod claude_kill;
mod config;
mod contract;
mod copies;
mod damaged;
mod edit_screen;
mod exclusive;
mod follow;
mod full;
mod host;
mod host_btrfs;
mod host_hostile;
mod host_user;
mod kill;
mod kill_adopt;
mod left_out;
mod losses;
mod lost;
mod many;
mod measure;
mod messages;
mod names;
mod now;
mod own_dev;
mod packages;
mod pairs;
mod places;
mod plain;
mod plans;
mod pool;
mod refuse;
mod repo;
mod resend;
mod rounds;
mod rows;
mod run;
mod run_claude;
mod scripts;
mod strays;
mod surroundings;
mod swaps;
mod texts;
mod traps;
mod untracked;
mod users;
mod whole;
