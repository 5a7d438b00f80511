//! `cargo xtask rig`: a real Kubernetes on this machine (`e2e/rig/README.md`), and what of Cloche runs in it.
//!
//! Its programs are built here, from pinned sources; the scripts in `e2e/rig` start and end it. What a person reads goes to
//! stderr: the stdout of `up` and `env` is for a shell to evaluate.

mod gvisor;
mod program;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::{Args, Subcommand, ValueEnum};

use crate::artifact;
use crate::command::Command;
use crate::image;
use crate::package;
use crate::workspace::{Profile, Workspace};

/// How long one program may take to build.
const BUILD: Duration = Duration::from_mins(20);

#[derive(Subcommand)]
pub(crate) enum Chore {
    /// Builds what is needed, starts a rig or what is missing of one, and prints the shell lines to use it:
    /// `eval "$(cargo xtask rig up)"`. `RIG_ID` (0 to 9, default 0) keeps several apart.
    Up(Up),
    /// Ends it, with all that it holds.
    Down,
    /// Tells what runs; fails where nothing does.
    Status,
}

#[derive(Args)]
pub(crate) struct Up {
    /// What runs.
    #[arg(long, default_value = "control-plane")]
    mode: Mode,
    /// Nodes, 1 to 9.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=9))]
    nodes: u8,
    /// Cloche's programs as they are released, instead of the debug build with fault points.
    #[arg(long)]
    release: bool,
    /// In a cluster, also gVisor as a runtime of ordinary pods: the `RuntimeClass` gvisor.
    #[arg(long)]
    gvisor: bool,
}

impl Up {
    /// What sandboxes are measured in, beside pods.
    pub(crate) fn to_measure() -> Self {
        Self {
            mode: Mode::Cluster,
            nodes: 1,
            release: true,
            gvisor: true,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Mode {
    /// etcd, kube-apiserver and kube-controller-manager; nodes are objects only.
    ControlPlane,
    /// Also kube-scheduler, and nodes with kubelet, containerd and kube-proxy.
    Cluster,
}

impl Mode {
    fn as_str(self) -> &'static str {
        match self {
            Self::ControlPlane => "control-plane",
            Self::Cluster => "cluster",
        }
    }
}

pub(crate) fn run(workspace: &Workspace, chore: &Chore) -> Result<ExitCode> {
    if !nix::unistd::Uid::effective().is_root() {
        bail!("rig: not root; it makes a network bridge");
    }
    match chore {
        Chore::Up(options) => print!("{}", up(workspace, options)?),
        Chore::Down => down(workspace)?,
        Chore::Status => {
            let output = script(workspace, "status").output()?;
            print!("{}", String::from_utf8_lossy(&output.stdout));
            if !output.status.success() {
                return Ok(ExitCode::FAILURE);
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Builds what a rig of this mode is made of.
pub(crate) fn build(workspace: &Workspace, mode: Mode) -> Result<PathBuf> {
    package::install(package::RIG)?;
    package::install(package::REGISTRY)?;
    if mode == Mode::Cluster {
        package::install(package::CLUSTER)?;
    }
    program::build(workspace, mode)?;
    Ok(directory(workspace))
}

/// Starts one; the shell lines to use it.
pub(crate) fn up(workspace: &Workspace, options: &Up) -> Result<String> {
    if options.gvisor && options.mode != Mode::Cluster {
        bail!("rig: --gvisor needs --mode cluster: pods run nowhere else");
    }
    build(workspace, options.mode)?;
    if options.gvisor {
        gvisor::build(workspace)?;
    }
    let profile = if options.release {
        Profile::Release
    } else {
        Profile::Debug
    };
    script(workspace, "up")
        .args([options.mode.as_str(), &options.nodes.to_string()])
        .run()?;
    let lines = script(workspace, "env").text()?;
    let registry = variable(&lines, "RIG_REGISTRY")?;
    image::push(&image::stand_ins(workspace)?, registry)?;
    if options.mode == Mode::Cluster {
        image::push(&image::own(workspace, profile)?, registry)?;
    }
    if options.gvisor {
        script(workspace, "gvisor").run()?;
    }
    let artifacts = artifact::build(workspace)?;
    image::build_programs(workspace, profile)?;
    let folder = artifacts.runsc.parent().map(Path::to_owned);
    script(workspace, "cloche")
        .arg(workspace.programs(profile))
        .arg(folder.unwrap_or_default())
        .run()?;
    // For the plugin.
    let programs = workspace.programs(profile);
    Ok(format!("{lines}export PATH={}:$PATH\n", programs.display()))
}

/// Ends it, whatever runs of it.
pub(crate) fn down(workspace: &Workspace) -> Result<()> {
    script(workspace, "down").run()
}

/// Whether something of it runs.
pub(crate) fn runs(workspace: &Workspace) -> Result<bool> {
    Ok(script(workspace, "status").output()?.status.success())
}

/// A variable of the lines that point a shell at a rig.
pub(crate) fn variable<'a>(lines: &'a str, name: &str) -> Result<&'a str> {
    lines
        .split_whitespace()
        .find_map(|word| word.strip_prefix(name)?.strip_prefix('='))
        .with_context(|| format!("the rig did not tell its {name}"))
}

/// Where the rig's programs and logs are.
fn directory(workspace: &Workspace) -> PathBuf {
    workspace.target().join("rig")
}

fn script(workspace: &Workspace, command: &str) -> Command {
    Command::new(workspace.root().join("e2e/rig/rig"))
        .env("RIG_DIR", directory(workspace))
        .arg(command)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_are_found_by_their_whole_name() {
        let lines = "export RIG_ID=1 RIG_REGISTRY=10.201.0.1:5000\nexport RIG=b\n";
        assert_eq!(variable(lines, "RIG_REGISTRY").unwrap(), "10.201.0.1:5000");
        assert_eq!(variable(lines, "RIG").unwrap(), "b");
        assert!(variable("export RIG_ID=1\n", "RIG").is_err());
    }
}
