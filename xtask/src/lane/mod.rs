//! `cargo xtask test`: every check and every test, in lanes from the quickest to the slowest.
//!
//! | lane | what | needs |
//! |---|---|---|
//! | static | format, lints, dependency rules, generated files, licences | nothing |
//! | unit | the tests of every crate, the real kernel and runsc among them | root, artifacts |
//! | api | the CRDs on a real apiserver | root, the rig's control plane |
//! | cluster | operator, gateway and agents with a real apiserver | root, artifacts, the rig's control plane |
//! | helm | Cloche installed by helm on a node with a real kubelet | root, artifacts, the rig's cluster |
//! | node | the end-to-end tests against a real agent | root, artifacts |
//! | vm | the agent's tests of cgroups again, and a few end-to-end tests, on a virtual machine with cgroup v2 alone | root, artifacts |
//!
//! All lanes run, also after a failure. What fails counts as failed, be it a test, a check, a build or a whole program;
//! so does a test that was ignored, and a lane that ran nothing.

mod checks;
mod machine;
mod report;
mod suites;

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::ValueEnum;

use crate::artifact::{self, Artifacts};
use crate::clock::Stopwatch;
use crate::image;
use crate::package;
use crate::rig;
use crate::workspace::Workspace;
use report::{Counts, Report};
use suites::Suites;

/// The features of cargo's build: the points at which tests kill the agent.
pub(crate) const FEATURES: &str = "--features=cloche-agent/fault-points";

/// End-to-end tests at the same time, whatever the machine has: each runs an agent and sandboxes, and some say how long a thing may take.
const AT_ONCE: &str = "2";

/// A group of checks or tests with the same needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Lane {
    /// Format, lints, dependency rules, generated files, licences.
    Static,
    /// The tests of every crate.
    Unit,
    /// The CRDs on a real apiserver.
    Api,
    /// Operator, gateway and agents with a real apiserver.
    Cluster,
    /// Cloche installed by helm on a node with a real kubelet.
    Helm,
    /// The end-to-end tests against a real agent.
    Node,
    /// Tests of cgroups, and of a node, on a virtual machine with cgroup v2.
    Vm,
}

impl Lane {
    fn name(self) -> &'static str {
        match self {
            Self::Static => "static",
            Self::Unit => "unit",
            Self::Api => "api",
            Self::Cluster => "cluster",
            Self::Helm => "helm",
            Self::Node => "node",
            Self::Vm => "vm",
        }
    }

    /// Far above what it takes: a lane that hangs has to end.
    fn limit(self) -> Duration {
        let minutes = match self {
            Self::Static
            | Self::Unit
            | Self::Api
            | Self::Cluster
            | Self::Helm
            | Self::Node
            | Self::Vm => 30,
        };
        Duration::from_mins(minutes)
    }
}

/// What is left of a lane's time.
#[derive(Clone, Copy, Debug)]
struct Deadline {
    watch: Stopwatch,
    limit: Duration,
}

impl Deadline {
    fn left(self) -> Duration {
        self.limit.saturating_sub(self.watch.elapsed())
    }
}

/// Runs `lanes`, or all; a failure unless every test passed. The last line of the output is the sum, whatever happens.
pub(crate) fn run(workspace: &Workspace, lanes: &[Lane]) -> Result<ExitCode> {
    let is_harmless = !lanes.is_empty() && lanes.iter().all(|lane| *lane == Lane::Static);
    if !is_harmless && !nix::unistd::Uid::effective().is_root() {
        bail!("test: not root; tests make cgroups and namespaces: only `--only static` needs none");
    }
    let mut made = Made::default();
    let mut report = Report::default();
    for lane in Lane::value_variants() {
        if !lanes.is_empty() && !lanes.contains(lane) {
            continue;
        }
        println!("== lane {} ==", lane.name());
        let watch = Stopwatch::start();
        let deadline = Deadline {
            watch,
            limit: lane.limit(),
        };
        let counts = run_lane(*lane, workspace, &mut made, deadline).unwrap_or_else(|error| {
            println!("lane {}: FAILED: {error:#}", lane.name());
            Counts::failure()
        });
        report.add(lane.name(), counts, watch.elapsed());
    }
    print!("{report}");
    Ok(if report.is_good() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// What several lanes use, made by the first of them.
#[derive(Default)]
struct Made(Option<(Artifacts, Suites)>);

impl Made {
    fn get(&mut self, workspace: &Workspace) -> Result<&(Artifacts, Suites)> {
        if self.0.is_none() {
            package::install(package::NODE)?;
            package::install(package::IMAGES)?;
            package::install(package::REGISTRY)?;
            let artifacts = artifact::build(workspace)?;
            let suites = Suites::build(workspace)?;
            self.0 = Some((artifacts, suites));
        }
        self.0.as_ref().context("build the tests")
    }
}

fn run_lane(
    lane: Lane,
    workspace: &Workspace,
    made: &mut Made,
    deadline: Deadline,
) -> Result<Counts> {
    match lane {
        Lane::Static => Ok(checks::run(workspace, deadline)),
        Lane::Unit => {
            let (artifacts, suites) = made.get(workspace)?;
            let environment = environment(workspace, artifacts);
            Ok(suites.of_crates().run(&environment, deadline))
        }
        Lane::Api => {
            let rig = rig::build(workspace, rig::Mode::ControlPlane)?;
            let (artifacts, suites) = made.get(workspace)?;
            let mut environment = environment(workspace, artifacts);
            environment.push(("CLOCHE_RIG".to_owned(), rig.display().to_string()));
            Ok(suites.of_api().run(&environment, deadline))
        }
        Lane::Cluster => {
            let rig = rig::build(workspace, rig::Mode::ControlPlane)?;
            let (artifacts, suites) = made.get(workspace)?;
            let mut environment = environment(workspace, artifacts);
            environment.push(("CLOCHE_RIG".to_owned(), rig.display().to_string()));
            environment.push(("RUST_TEST_THREADS".to_owned(), AT_ONCE.to_owned()));
            Ok(suites.of_cluster().run(&environment, deadline))
        }
        Lane::Helm => {
            let rig = rig::build(workspace, rig::Mode::Cluster)?;
            let (artifacts, suites) = made.get(workspace)?;
            let images = image::for_tests(workspace, artifacts)?;
            let mut environment = environment(workspace, artifacts);
            environment.push(("CLOCHE_RIG".to_owned(), rig.display().to_string()));
            environment.push(("CLOCHE_PUSHED".to_owned(), images.display().to_string()));
            // They share one rig.
            environment.push(("RUST_TEST_THREADS".to_owned(), "1".to_owned()));
            Ok(suites.of_helm().run(&environment, deadline))
        }
        Lane::Node => {
            let (artifacts, suites) = made.get(workspace)?;
            let mut environment = environment(workspace, artifacts);
            environment.push(("RUST_TEST_THREADS".to_owned(), AT_ONCE.to_owned()));
            Ok(suites.of_nodes().run(&environment, deadline))
        }
        Lane::Vm => {
            let (artifacts, suites) = made.get(workspace)?;
            machine::run(workspace, artifacts, suites, deadline)
        }
    }
}

/// By which tests find what was built, and know how long to loop.
fn environment(workspace: &Workspace, artifacts: &Artifacts) -> Vec<(String, String)> {
    let mut pairs: Vec<(String, String)> = artifacts
        .environment()
        .into_iter()
        .chain([
            ("CLOCHE_AGENT", workspace.program("cloche-agent")),
            ("CLOCHE_CLI", workspace.program("kubectl-sandbox")),
            ("CLOCHE_OPERATOR", workspace.program("cloche-operator")),
            ("CLOCHE_GATEWAY", workspace.program("cloche-gateway")),
        ])
        .map(|(name, path)| (name.to_owned(), path.to_string_lossy().into_owned()))
        .collect();
    let scale = scale(
        std::env::var("CLOCHE_SCALE").ok(),
        std::env::var("CI").ok().as_deref(),
    );
    pairs.push(("CLOCHE_SCALE".to_owned(), scale));
    pairs
}

/// The factor of loops and repetitions: as set, else a tenth in CI, else one.
fn scale(set: Option<String>, ci: Option<&str>) -> String {
    set.unwrap_or_else(|| if ci == Some("true") { "0.1" } else { "1" }.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loops_are_short_in_ci_unless_asked_otherwise() {
        assert_eq!(scale(None, None), "1");
        assert_eq!(scale(None, Some("")), "1");
        assert_eq!(scale(None, Some("true")), "0.1");
        assert_eq!(scale(Some("3".to_owned()), Some("true")), "3");
    }
}
