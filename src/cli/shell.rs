//! `respool completions` and `respool man`.

use clap::CommandFactory;

use super::args::Cli;
use super::output::{Done, Failure, raw};
use crate::failure::Kind;

/// Prints the completions of a shell.
pub fn completions(shell: clap_complete::Shell) -> Done {
    let mut out = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "respool", &mut out);
    raw(&out)
}

/// Prints the manual page.
pub fn man() -> Done {
    let mut out = Vec::new();
    clap_mangen::Man::new(Cli::command())
        .render(&mut out)
        .map_err(|e| Failure::new(Kind::Failed, format!("cannot make the manual page: {e}")))?;
    raw(&out)
}
