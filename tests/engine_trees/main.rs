//! Change lists, restores, the check and the copy, on Btrfs file systems of their own. Needs root.

mod changes;
mod copy;
mod fuzz;
mod kill;
mod mutate;
mod nasty;
mod oracle;
mod restore;
mod scratch;
