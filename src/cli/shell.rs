//! `respool completions`.

use clap::CommandFactory;

use super::args::Cli;
use super::output::{Done, raw};

/// Prints the completions of a shell.
pub fn completions(shell: clap_complete::Shell) -> Done {
    let mut out = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "respool", &mut out);
    raw(&out)
}
