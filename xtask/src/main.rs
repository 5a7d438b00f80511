//! Every chore of the repository.

mod artifact;
mod bench;
mod clock;
mod command;
mod dependency;
mod generate;
mod image;
mod lane;
mod package;
mod rig;
mod trial;
mod workspace;

use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};

use lane::Lane;
use workspace::Workspace;

/// Every chore of the repository.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Arguments {
    #[command(subcommand)]
    chore: Chore,
}

#[derive(Subcommand)]
enum Chore {
    /// Builds what is needed, runs example sandboxes with the agent alone, takes all down; the last line is `try: ok`.
    Try,
    /// Runs every check and every test; the last line is `N passed, N failed`.
    Test {
        /// Only this lane; may be given more than once.
        #[arg(long, value_name = "LANE")]
        only: Vec<Lane>,
    },
    /// Measures the released agent beside the same work done by bare calls.
    Bench(bench::Options),
    /// Makes runsc, cloche-init and the test images, and says where they are.
    Artifacts,
    /// Makes the images of a cluster: Cloche's own as they are released, and stand-ins for a few of Docker Hub.
    Images(image::Options),
    /// A real Kubernetes on this machine, to test in and to try things in.
    #[command(subcommand)]
    Rig(rig::Chore),
    /// Checks which crates depend on which.
    Deps,
    /// Writes the generated files.
    Generate {
        /// Writes nothing; fails when a committed file is out of date.
        #[arg(long)]
        check: bool,
    },
}

fn main() -> ExitCode {
    match run(Arguments::parse().chore) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(chore: Chore) -> Result<ExitCode> {
    let workspace = Workspace::find()?;
    match chore {
        Chore::Try => trial::run(&workspace)?,
        Chore::Test { only } => return lane::run(&workspace, &only),
        Chore::Bench(options) => bench::run(&workspace, &options)?,
        Chore::Artifacts => {
            package::install(package::IMAGES)?;
            for (name, path) in artifact::build(&workspace)?.environment() {
                println!("{name}={}", path.display());
            }
        }
        Chore::Images(options) => image::run(&workspace, &options)?,
        Chore::Rig(chore) => return rig::run(&workspace, &chore),
        Chore::Deps => dependency::check(&workspace)?,
        Chore::Generate { check: true } => generate::check(&workspace)?,
        Chore::Generate { check: false } => generate::write(&workspace)?,
    }
    Ok(ExitCode::SUCCESS)
}
