//! `cloche-agent`: see the library's documentation.

use std::io::IsTerminal as _;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::{Parser, Subcommand};
use cloche_agent::{cluster, reserve, standalone, told::chain};
use tracing_subscriber::EnvFilter;

/// Runs the sandboxes of one node.
#[derive(Debug, Parser)]
#[command(version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the sandboxes of a manifest directory, without Kubernetes
    Standalone(Box<standalone::Options>),
    /// Run the sandboxes that a cluster binds to this node
    Node(Box<cluster::Options>),
    /// Do nothing: the pod that holds a node's budget for its sandboxes
    Reserve,
}

/// What is logged where nobody says otherwise. Each request that fails is told by whoever made it.
const LOGGED: &str = "info,kube_client::client::builder=off";

fn main() -> ExitCode {
    // The child that reads the bytes of images: before any thread, option or log, for it needs and gets nothing of the agent.
    if std::env::args_os()
        .nth(1)
        .is_some_and(|first| first == "unpack")
    {
        return cloche_agent::image::unpack::child_main();
    }
    let filter = EnvFilter::try_from_env("CLOCHE_LOG").unwrap_or_else(|_| EnvFilter::new(LOGGED));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        // A log that cannot be written, on a full disk or to a reader that has gone, is no reason to end.
        .log_internal_errors(false)
        .init();
    end_at_panic();
    match run(Cli::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("{}", chain(error.as_ref()));
            ExitCode::FAILURE
        }
    }
}

/// A task that panics would leave what it owned without an owner, and nobody told. The next agent finds everything as after a kill.
fn end_at_panic() {
    let tell = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        tell(panic);
        std::process::abort();
    }));
}

fn run(cli: Cli) -> anyhow::Result<()> {
    rustls::crypto::ring::default_provider()
        .install_default()
        .map_err(|_| anyhow::anyhow!("a TLS provider is installed already"))?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    let open_files =
        || cloche_agent::process::raise_open_files().context("raise the limit of open files");
    match cli.command {
        Command::Standalone(options) => {
            open_files()?;
            runtime.block_on(standalone::run(*options))
        }
        Command::Node(options) => {
            open_files()?;
            runtime.block_on(cluster::run(*options))
        }
        Command::Reserve => runtime.block_on(reserve::run()),
    }
}
