//! `cargo xtask bench`: what the agent costs, beside the same work done raw, and a cluster beside pods. A figure that misses its goal is no
//! failure.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::{Args, ValueEnum};

use crate::artifact::{self, Artifacts};
use crate::command::Command;
use crate::image;
use crate::package;
use crate::rig;
use crate::workspace::{Profile, Workspace};

/// What is measured takes about 5 minutes.
const LIMIT: Duration = Duration::from_mins(30);

#[derive(Args)]
pub(crate) struct Options {
    /// What to measure; may be several.
    #[arg(required = true, value_name = "NAME")]
    names: Vec<Name>,
    /// Writes the figures to this file: a list of {name, unit, min, p50, p95, `raw_p50`, goal, met}.
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
    /// A pause and its end.
    Lifecycle,
    /// 500 idle sandboxes: to make them, to delete them, and what each costs; starts for a minute.
    Density,
    /// A command beside a neighbour that does its worst.
    Neighbours,
    /// A whole Cloche in a rig with one node, beside pods with runc and with gVisor; by itself, since a cluster that runs would be in the
    /// other figures.
    Api,
}

impl Name {
    fn as_str(self) -> &'static str {
        match self {
            Self::Start => "start",
            Self::Exec => "exec",
            Self::Memory => "memory",
            Self::Lifecycle => "lifecycle",
            Self::Density => "density",
            Self::Neighbours => "neighbours",
            Self::Api => "api",
        }
    }
}

/// Builds what is released, without fault points, and measures it.
pub(crate) fn run(workspace: &Workspace, options: &Options) -> Result<()> {
    if !nix::unistd::Uid::effective().is_root() {
        bail!("bench: not root; the agent makes cgroups and namespaces");
    }
    let in_cluster = options.names.contains(&Name::Api);
    if in_cluster && options.names.iter().any(|name| *name != Name::Api) {
        bail!("bench: api is measured by itself: run it apart from the others");
    }
    package::install(package::NODE)?;
    package::install(package::IMAGES)?;
    let artifacts = artifact::build(workspace)?;
    image::build_programs(workspace, Profile::Release)?;
    if in_cluster {
        beside_pods(workspace, &artifacts, options)
    } else {
        program(workspace, &artifacts, options).run()
    }
}

/// In a rig that is there for nothing else, and goes however the measurement ends.
fn beside_pods(workspace: &Workspace, artifacts: &Artifacts, options: &Options) -> Result<()> {
    if rig::runs(workspace)? {
        bail!(
            "bench: this rig runs already: take it down (cargo xtask rig down), or set another RIG_ID"
        );
    }
    let measured = rig::up(workspace, &rig::Up::to_measure()).and_then(|lines| {
        let mut program = program(workspace, artifacts, options);
        for name in ["KUBECONFIG", "RIG_ID", "RIG_RUN"] {
            program = program.env(name, rig::variable(&lines, name)?);
        }
        program.run()
    });
    let down = rig::down(workspace).context("take the rig down");
    measured.and(down)
}

fn program(workspace: &Workspace, artifacts: &Artifacts, options: &Options) -> Command {
    let released = |name| workspace.built(Profile::Release, name);
    let command = Command::new(released("cloche-bench"))
        .envs(artifacts.environment())
        .env("CLOCHE_AGENT", released("cloche-agent"))
        .env("CLOCHE_CLI", released("kubectl-sandbox"))
        .args(options.names.iter().map(|name| name.as_str()))
        .limit(LIMIT);
    match &options.json {
        Some(file) => command.arg("--json").arg(file),
        None => command,
    }
}
