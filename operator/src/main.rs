//! `cloche-operator`: see the library's documentation.

use std::io::IsTerminal as _;
use std::process::ExitCode;

use clap::Parser as _;
use cloche_operator::options::Options;
use cloche_operator::run::run;
use cloche_operator::told::chain;
use tracing_subscriber::EnvFilter;

fn main() -> ExitCode {
    let filter = EnvFilter::try_from_env("CLOCHE_LOG").unwrap_or_else(|_| EnvFilter::new("info"));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        // A log that cannot be written is no reason to end.
        .log_internal_errors(false)
        .init();
    end_at_panic();
    match start(Options::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("{}", chain(error.as_ref()));
            ExitCode::FAILURE
        }
    }
}

/// A task that panics would leave what it owned without an owner. The next replica goes on from what stands in the objects.
fn end_at_panic() {
    let tell = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        tell(panic);
        std::process::abort();
    }));
}

fn start(options: Options) -> anyhow::Result<()> {
    rustls::crypto::ring::default_provider()
        .install_default()
        .map_err(|_| anyhow::anyhow!("a TLS provider is installed already"))?;
    tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?
        .block_on(run(options))
}
