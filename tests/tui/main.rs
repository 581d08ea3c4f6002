//! The screens, in process.

mod changing;
mod editing;
mod harness;
mod hostile;
mod live;
mod looking;
mod pictures;
mod time;
mod tracking;
#[path = "../tui_fake/mod.rs"]
mod tui_fake;
