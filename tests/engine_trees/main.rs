//! Change lists, restores, the check and the copy, on Btrfs file systems of their own. Needs root.

#[cfg(test)]
mod changes;
#[cfg(test)]
mod copy;
#[cfg(test)]
mod fuzz;
#[cfg(test)]
mod kill;
#[cfg(test)]
mod mutate;
#[cfg(test)]
mod nasty;
#[cfg(test)]
mod oracle;
#[cfg(test)]
mod restore;
#[cfg(test)]
mod scratch;
mod swaps;
