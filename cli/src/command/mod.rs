//! One file per command of the program.

mod describe;
mod exec;
mod log;
mod ls;
mod rm;
mod run;
mod wait;
mod watch;

use std::io::{Read as _, Write as _};

use crate::args::{Cli, Command};
use crate::backend::{Backend, Standalone};
use crate::error::Error;

/// Does what was asked for; the exit code.
pub(crate) async fn run(cli: &Cli) -> Result<u8, Error> {
    let socket = cli.standalone.as_deref().ok_or(Error::NoAgent)?;
    let backend = Backend::Standalone(Standalone::new(socket, cli.namespace.as_deref()));
    match &cli.command {
        Command::Exec(args) => exec::exec(&backend, args).await,
        Command::Run(args) => run::run(&backend, args).await,
        Command::Ls(args) => ls::ls(&backend, args).await.map(|()| 0),
        Command::Describe(args) => describe::describe(&backend, args).await.map(|()| 0),
        Command::Wait(args) => wait::wait(&backend, args).await.map(|()| 0),
        Command::Log(args) => log::log(&backend, args).await.map(|()| 0),
        Command::Rm(args) => rm::rm(&backend, args).await.map(|()| 0),
    }
}

/// Prints on standard output.
fn print(text: &str) -> Result<(), Error> {
    let mut stdout = std::io::stdout();
    stdout
        .write_all(text.as_bytes())
        .and_then(|()| stdout.flush())
        .map_err(Error::stdout)
}

/// `N` random bytes as hex digits, for names.
fn random_hex<const N: usize>() -> Result<String, Error> {
    let mut bytes = [0; N];
    std::fs::File::open("/dev/urandom")
        .and_then(|mut file| file.read_exact(&mut bytes))
        .map_err(Error::Random)?;
    let digits = bytes.iter().flat_map(|byte| [byte >> 4, byte & 15]);
    Ok(digits
        .filter_map(|digit| char::from_digit(digit.into(), 16))
        .collect())
}
