//! One file per command of the program.

mod attach;
mod create;
mod describe;
mod drain;
mod exec;
mod log;
mod ls;
mod pace;
mod rm;
mod run;
mod top;
mod wait;
mod watch;

use std::io::{Read as _, Write as _};

use crate::args::{Cli, Command};
use crate::backend::{Backend, Cluster, Standalone};
use crate::error::Error;
use crate::object::Object;

/// Does what was asked for; the exit code.
pub(crate) async fn run(cli: &Cli) -> Result<u8, Error> {
    let backend = backend(cli).await?;
    match &cli.command {
        Command::Exec(args) => exec::exec(&backend, args).await,
        Command::Attach(args) => attach::attach(&backend, args).await,
        Command::Run(args) => run::run(&backend, args).await,
        Command::Create(args) => create::create(&backend, args, cli.namespace.as_deref())
            .await
            .map(|()| 0),
        Command::Ls(args) => ls::ls(&backend, args).await.map(|()| 0),
        Command::Describe(args) => describe::describe(&backend, args).await.map(|()| 0),
        Command::Top(args) => top::top(&backend, args).await.map(|()| 0),
        Command::Wait(args) => wait::wait(&backend, args).await.map(|()| 0),
        Command::Log(args) => log::log(&backend, args).await.map(|()| 0),
        Command::Pause(args) => pace::set(&backend, args, pace::PAUSE).await.map(|()| 0),
        Command::Resume(args) => pace::set(&backend, args, pace::RESUME).await.map(|()| 0),
        Command::Stop(args) => pace::set(&backend, args, pace::STOP).await.map(|()| 0),
        Command::Start(args) => pace::set(&backend, args, pace::START).await.map(|()| 0),
        Command::Rm(args) => rm::rm(&backend, args).await.map(|()| 0),
        Command::Drain(args) => drain::drain(&backend, args).await.map(|()| 0),
    }
}

/// Where the sandboxes are; nothing is connected yet.
async fn backend(cli: &Cli) -> Result<Backend, Error> {
    let namespace = cli.namespace.as_deref();
    match (&cli.standalone, cli.cluster.given()) {
        (Some(_), Some(flag)) => Err(Error::Usage(format!(
            "{flag} is of a cluster, and --standalone or CLOCHE_STANDALONE names an agent: give one of them"
        ))),
        (Some(socket), None) => Ok(Backend::Standalone(Standalone::new(socket, namespace))),
        (None, _) if cli.cluster.as_user.is_none() && !cli.cluster.as_groups.is_empty() => Err(
            Error::Usage("--as-group: say by --as of which user it is".to_owned()),
        ),
        (None, _) => Cluster::new(&cli.cluster, namespace)
            .await
            .map(Backend::Cluster),
    }
}

/// A manifest as it is sent.
fn manifest(sandbox: &cloche_crds::Sandbox, name: &str) -> Result<Object, Error> {
    serde_json::to_value(sandbox)
        .map_err(|problem| problem.to_string())
        .and_then(Object::of)
        .map_err(|message| Error::Wrong {
            operation: format!("make sandbox {name}"),
            message,
        })
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
