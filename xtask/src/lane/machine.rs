//! The lane vm: a kernel with cgroup v2 alone, in qemu, for what this machine's own cgroups may not show.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};

use super::Deadline;
use super::report::Counts;
use super::suites::{self, Suites};
use crate::artifact::Artifacts;
use crate::command::Command;
use crate::package;
use crate::workspace::Workspace;

/// The suite whose tests of the kernel run there.
const KERNEL: &str = "agent lib cloche_agent";
/// The suite of which a few tests run there, with an agent and sandboxes.
const NODE: &str = "e2e test limits";
/// Of one boot and its tests: a minute in all on a quiet machine.
const LIMIT: Duration = Duration::from_mins(10);

pub(super) fn run(
    workspace: &Workspace,
    artifacts: &Artifacts,
    suites: &Suites,
    deadline: Deadline,
) -> Result<Counts> {
    package::install(package::MACHINE)?;
    let directory = workspace.target().join("vm");
    if !directory.exists() {
        // Its kernel is about to be fetched, and old lists name kernels that are gone.
        package::update()?;
    }
    let program = |suite: &str| {
        suites
            .program(suite)
            .with_context(|| format!("find the tests of {suite}"))
    };
    let boot = |script: &str| {
        Command::new(workspace.root().join("e2e/vm").join(script))
            .env("VM_DIR", &directory)
            .env("VM_SECONDS", LIMIT.as_secs().to_string())
            .limit(deadline.left())
    };
    println!("-- cgroup v2: the kernel's groups --");
    let mut counts = suites::run(boot("cgroups").arg(program(KERNEL)?), "cgroup v2");
    println!("-- cgroup v2: a node --");
    let programs: [&Path; 5] = [
        program(NODE)?,
        &workspace.program("cloche-agent"),
        &workspace.program("kubectl-sandbox"),
        &artifacts.runsc,
        &artifacts.init,
    ];
    counts += suites::run(boot("node").args(programs), "a node with cgroup v2");
    Ok(counts)
}
