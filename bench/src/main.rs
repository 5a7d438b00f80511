//! Measures the real agent beside the same work done raw, by bare calls to runsc, and a whole Cloche beside pods, in the same run.
//!
//! ```text
//!   main ──► start, exec, ... ──► figure       samples, goals, table, JSON (pure)
//!     │           │
//!     │           ├──► scene    the agent: manifests in, what its API tells, its pool
//!     │           └──► raw      instances by runsc create and the control socket, in the agent's groups and folders
//!     └──► api                  a cluster that is there already, beside pods
//! ```
//!
//! Agent and raw work take turns, so that whatever else the machine does hits both alike. What the raw work makes lies in the
//! folders and groups of the agent under test: the audit of the end-to-end tests finds what either of them leaves.

mod api;
mod clock;
mod density;
mod exec;
mod figure;
mod lifecycle;
mod memory;
mod neighbours;
mod pool;
mod raw;
mod scene;
mod start;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context as _, Result, bail};
use clap::{Parser, ValueEnum};
use cloche_agent::sys::orphan;
use tokio::signal::unix::{SignalKind, signal};

use figure::Figure;

/// Measures the agent beside raw work.
#[derive(Debug, Parser)]
struct Arguments {
    /// What to measure
    #[arg(required = true, value_name = "NAME")]
    names: Vec<Bench>,
    /// Writes the figures to this file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Bench {
    Start,
    Exec,
    Memory,
    Lifecycle,
    Density,
    Neighbours,
    Api,
}

fn main() -> ExitCode {
    match run(&Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bench: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments) -> Result<()> {
    if !nix::unistd::geteuid().is_root() {
        bail!("not root: the agent makes cgroups and namespaces");
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .context("start the runtime")?;
    runtime.block_on(async {
        // Sentries are left to us by their `runsc create`, as they are to the agent.
        orphan::become_subreaper().context("adopt orphans")?;
        let mut terminate = signal(SignalKind::terminate()).context("handle SIGTERM")?;
        let mut interrupt = signal(SignalKind::interrupt()).context("handle SIGINT")?;
        tokio::select! {
            measured = measure(arguments) => measured,
            // The agent under test takes down all that is its own when it is dropped.
            _ = terminate.recv() => bail!("ended by SIGTERM"),
            _ = interrupt.recv() => bail!("interrupted"),
            reaped = orphan::reap() => reaped.context("reap orphans"),
        }
    })
}

async fn measure(arguments: &Arguments) -> Result<()> {
    let mut figures: Vec<Figure> = Vec::new();
    let before = scene::load()?;
    let measured = all(arguments, &mut figures).await;
    // Whatever came to an end is worth to be seen.
    print!("{}", figure::table(&figures));
    println!("load: {before} before, {} after", scene::load()?);
    measured?;
    if let Some(path) = &arguments.json {
        std::fs::write(path, figure::json(&figures)?)
            .with_context(|| format!("write {}", path.display()))?;
    }
    Ok(())
}

async fn all(arguments: &Arguments, figures: &mut Vec<Figure>) -> Result<()> {
    for bench in Bench::value_variants() {
        if arguments.names.contains(bench) {
            match bench {
                Bench::Start => figures.extend(start::measure().await?),
                Bench::Exec => figures.extend(exec::measure().await?),
                Bench::Memory => figures.extend(memory::measure().await?),
                Bench::Lifecycle => figures.extend(lifecycle::measure().await?),
                Bench::Density => figures.extend(density::measure().await?),
                Bench::Neighbours => figures.extend(neighbours::measure().await?),
                Bench::Api => api::measure(figures).await?,
            }
        }
    }
    Ok(())
}
