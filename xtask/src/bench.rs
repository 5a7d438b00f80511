//! `cargo xtask bench`: what the agent costs, beside the same work done raw. A figure that misses its goal is no failure.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, bail};
use clap::{Args, ValueEnum};

use crate::artifact;
use crate::command::Command;
use crate::image;
use crate::package;
use crate::workspace::{Profile, Workspace};

/// What is measured takes about 4 minutes.
const LIMIT: Duration = Duration::from_mins(20);

#[derive(Args)]
pub(crate) struct Options {
    /// What to measure; may be several.
    #[arg(required = true, value_name = "NAME")]
    names: Vec<Name>,
    /// Writes the figures to this file: a list of {name, unit, p50, p95, `raw_p50`, goal, met}.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Name {
    /// From a manifest to a running sandbox: from the pool, on demand, 50 at once.
    Start,
    /// `true` in a sandbox that runs.
    Exec,
    /// Memory of an idle sandbox; memory and processor time of an agent with 100.
    Memory,
}

impl Name {
    fn as_str(self) -> &'static str {
        match self {
            Self::Start => "start",
            Self::Exec => "exec",
            Self::Memory => "memory",
        }
    }
}

/// Builds what is released, without fault points, and measures it.
pub(crate) fn run(workspace: &Workspace, options: &Options) -> Result<()> {
    if !nix::unistd::Uid::effective().is_root() {
        bail!("bench: not root; the agent makes cgroups and namespaces");
    }
    package::install(package::NODE)?;
    package::install(package::IMAGES)?;
    let artifacts = artifact::build(workspace)?;
    image::build_programs(workspace, Profile::Release)?;
    let released = |name| workspace.built(Profile::Release, name);
    let mut command = Command::new(released("cloche-bench"))
        .envs(artifacts.environment())
        .env("CLOCHE_AGENT", released("cloche-agent"))
        .env("CLOCHE_CLI", released("kubectl-sandbox"))
        .args(options.names.iter().map(|name| name.as_str()))
        .limit(LIMIT);
    if let Some(file) = &options.json {
        command = command.arg("--json").arg(file);
    }
    command.run()
}
