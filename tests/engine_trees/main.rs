//! Change lists, restores, the check and the copy, on Btrfs file systems of their own. Needs root.

mod fuzz;
mod mutate;
mod oracle;
mod scratch;
