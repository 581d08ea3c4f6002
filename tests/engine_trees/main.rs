//! Change lists, restores, the check and the copy, on Btrfs file systems of their own. Needs root.

mod changes;
mod fuzz;
mod mutate;
mod nasty;
mod oracle;
mod scratch;
