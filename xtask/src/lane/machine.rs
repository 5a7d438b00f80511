//! The lane vm: a kernel with cgroup v2 alone, in qemu, for what this machine's own cgroups may not show.

use std::time::Duration;

use anyhow::{Context, Result};

use super::Deadline;
use super::report::Counts;
use super::suites::{self, Suites};
use crate::command::Command;
use crate::package;
use crate::workspace::Workspace;

/// The suite whose tests of the kernel run there.
const SUITE: &str = "agent lib cloche_agent";
/// Of one boot and its tests: a minute in all on a quiet machine.
const LIMIT: Duration = Duration::from_mins(10);

pub(super) fn run(workspace: &Workspace, suites: &Suites, deadline: Deadline) -> Result<Counts> {
    package::install(package::MACHINE)?;
    let directory = workspace.target().join("vm");
    if !directory.exists() {
        // Its kernel is about to be fetched, and old lists name kernels that are gone.
        package::update()?;
    }
    let program = suites
        .program(SUITE)
        .with_context(|| format!("find the tests of {SUITE}"))?;
    let command = Command::new(workspace.root().join("e2e/vm/cgroups"))
        .arg(program)
        .env("VM_DIR", &directory)
        .env("VM_SECONDS", LIMIT.as_secs().to_string())
        .limit(deadline.left());
    Ok(suites::run(command, "cgroup v2"))
}
