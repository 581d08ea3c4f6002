//! What package managers have in two states of a root file system: databases as they write them, hostile ones, an
//! overlay's layers, and the managers themselves.

#[path = "../common/mod.rs"]
mod common;

mod distributions;
mod hostile;
mod layers;
mod real;
mod roots;
