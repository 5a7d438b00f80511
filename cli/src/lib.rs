//! `kubectl sandbox`: run commands in sandboxes and see how they are.
//!
//! ```text
//!   args ──► request (pure) ──► command::{exec, attach, run, create, ls, describe, wait, log, rm} ──► backend ─┬─► agent's socket
//!                                       │                      │                                               └─► apiserver, gateway
//!                                       │                      └──► object (pure): table, text, conditions
//!                                       └──► session: state (pure) ◄──► drive ◄──► terminal: raw mode, stdin, stdout, signals
//! ```
//!
//! | part | owns | takes in | gives out |
//! |---|---|---|---|
//! | `cloche_proto::session` | offsets of both outputs, stdin that the agent has not yet taken | replies, stdin | requests, bytes to write |
//! | `session::drive` | the session's connection, opened anew when it breaks | the state's requests | the command's end |
//! | `backend` | where sandboxes are: an agent's socket, or a cluster's apiserver and the gateway behind it | what commands ask for | objects, changes, connections; failures in four kinds |
//! | `terminal` | the terminal's mode, one thread each that reads stdin and writes output | bytes | bytes, signals, sizes |
//!
//! **Restart contract.** A restart of the agent, of the gateway or of an apiserver is a pause: sessions are attached to again by their command id, output goes
//! on at the byte after the last one received, stdin at the byte after the last one taken. A command is never run twice.
//!
//! **Exit codes.** `exec`, `attach` and `run`: the command's own; 124 where its `--timeout` ended it; 125 where it could not be run
//! or its end is not known, and for wrong usage of any command; 130 and the like (128 + signal) where the user left before
//! the command's end; 141 where nobody reads standard output any more. All others: 0 done, 1 not done.

mod args;
mod backend;
mod command;
mod error;
mod object;
mod request;
mod session;
mod terminal;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::Parser as _;

use crate::args::Cli;

/// Exit code of wrong usage, and of `exec` and `run` where the command's own code is not known.
const NOT_RUN: u8 = 125;

/// Does what the arguments say, prints what went wrong as one line, returns the process's exit code.
pub fn main(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    let cli = match Cli::try_parse_from(args) {
        Ok(cli) => cli,
        Err(problem) => {
            let wrong = problem.use_stderr();
            // Nothing can be told to a closed terminal.
            drop(problem.print());
            return ExitCode::from(if wrong { NOT_RUN } else { 0 });
        }
    };
    // One thread: the work is to pass bytes on, and a pool costs start-up time.
    let outcome = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(error::Error::Runtime)
        .and_then(|runtime| {
            let outcome = runtime.block_on(command::run(&cli));
            // A blocked read of stdin must not hold up the end.
            runtime.shutdown_background();
            outcome
        });
    match outcome {
        Ok(code) => ExitCode::from(code),
        Err(problem) if problem.is_closed_output() => ExitCode::from(141),
        Err(problem) => {
            error::print(&problem);
            ExitCode::from(if cli.command.runs_a_command() {
                NOT_RUN
            } else {
                1
            })
        }
    }
}
