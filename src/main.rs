//! The respool program: one call into the library.

use std::process::ExitCode;

fn main() -> ExitCode {
    respool::cli::run()
}
