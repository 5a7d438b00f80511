//! `kubectl-sandbox`: see the library.

use std::process::ExitCode;

fn main() -> ExitCode {
    cloche_cli::main(std::env::args_os())
}
