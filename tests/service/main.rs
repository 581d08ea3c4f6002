//! The service: what an ordinary user may do by it, what nobody but root may, and what happens when either end
//! breaks.

#[path = "../common/mod.rs"]
mod common;

mod attack;
mod breaks;
mod chat;
mod owner;
mod served;
