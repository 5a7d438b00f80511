//! The init inside every sandbox: see the library for what it does.

use std::process::ExitCode;

use cloche_init::{bridge, holder, pause};

/// Directory of the init's own image, empty, over which the holder mounts what nobody else is to see.
const RUN: &str = "/.cloche/run";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let outcome = match arguments.as_slice() {
        ["holder"] => holder::run(RUN).map_err(|error| error.to_string()),
        ["holder", run] => holder::run(run).map_err(|error| error.to_string()),
        ["bridge"] => bridge::run(RUN).map_err(|error| error.to_string()),
        ["bridge", run] => bridge::run(run).map_err(|error| error.to_string()),
        ["pause"] => pause::run().map_err(|error| error.to_string()),
        _ => Err("usage: cloche-init holder|bridge|pause".to_owned()),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("cloche-init: {error}");
            ExitCode::FAILURE
        }
    }
}
