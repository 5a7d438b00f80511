//! Test programs: built once, so that all lanes share one set of features, then run one after the other.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use serde::Deserialize;

use super::report::{Counts, summaries};
use super::{Deadline, FEATURES};
use crate::command::Command;
use crate::workspace::Workspace;

/// The crate with the end-to-end tests.
const END_TO_END: &str = "e2e";
/// Those of them that have a control plane: lanes of their own.
const API: &str = "e2e test api";
const CLUSTER: &str = "e2e test cluster";
const HELM: &str = "e2e test helm";

/// One test program.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Suite {
    /// As in `agent lib cloche_agent`.
    name: String,
    program: PathBuf,
    /// The directory of its crate, in which it runs.
    directory: PathBuf,
}

impl Suite {
    fn is_end_to_end(&self) -> bool {
        self.name.split(' ').next() == Some(END_TO_END)
    }
}

/// Test programs to run.
#[derive(Clone, Debug)]
pub(super) struct Suites(Vec<Suite>);

impl Suites {
    /// Builds the programs of the product and all test programs.
    pub(super) fn build(workspace: &Workspace) -> Result<Self> {
        let messages = Command::cargo()
            .args(["build", "--quiet", "--workspace", "--bins", "--tests"])
            .args([FEATURES, "--message-format=json-render-diagnostics"])
            .directory(workspace.root())
            .limit(Duration::from_mins(30))
            .text()?;
        let suites = read(&messages, workspace.root())?;
        Ok(Self(suites))
    }

    /// All but the end-to-end tests.
    pub(super) fn of_crates(&self) -> Self {
        self.filter(|suite| !suite.is_end_to_end())
    }

    /// The program of one suite.
    pub(super) fn program(&self, name: &str) -> Option<&Path> {
        let suite = self.0.iter().find(|suite| suite.name == name)?;
        Some(&suite.program)
    }

    /// The end-to-end tests with a real agent.
    pub(super) fn of_nodes(&self) -> Self {
        let others = [API, CLUSTER, HELM];
        self.filter(|suite| suite.is_end_to_end() && !others.contains(&&*suite.name))
    }

    /// The end-to-end tests with a real apiserver.
    pub(super) fn of_api(&self) -> Self {
        self.filter(|suite| suite.name == API)
    }

    /// The end-to-end tests of a whole Cloche.
    pub(super) fn of_cluster(&self) -> Self {
        self.filter(|suite| suite.name == CLUSTER)
    }

    /// The end-to-end tests of an installed Cloche.
    pub(super) fn of_helm(&self) -> Self {
        self.filter(|suite| suite.name == HELM)
    }

    fn filter(&self, keep: impl Fn(&Suite) -> bool) -> Self {
        let suites = self.0.iter().filter(|suite| keep(suite));
        Self(suites.cloned().collect())
    }

    /// Runs them one after the other, all of them.
    pub(super) fn run(&self, environment: &[(String, String)], deadline: Deadline) -> Counts {
        let mut counts = Counts::default();
        for suite in &self.0 {
            println!("-- {} --", suite.name);
            let command = Command::new(&suite.program)
                .directory(&suite.directory)
                // As cargo test does: golden files are found by them.
                .env("CARGO_MANIFEST_DIR", &suite.directory)
                .env("RUST_BACKTRACE", "1")
                .envs(environment.iter().map(|(name, value)| (name, value)))
                .limit(deadline.left());
            counts += run(command, &suite.name);
        }
        counts
    }
}

fn show(bytes: &[u8]) {
    // A closed stdout must not stop the tests.
    let _shown = std::io::stdout().write_all(bytes);
}

/// Shows the output as it comes, and counts.
pub(super) fn run(command: Command, name: &str) -> Counts {
    run_and_show(command, name, &mut show)
}

fn run_and_show(command: Command, name: &str, show: &mut dyn FnMut(&[u8])) -> Counts {
    let mut output = Vec::new();
    let result = command.stream(&mut |bytes| {
        output.extend_from_slice(bytes);
        show(bytes);
    });
    let counts = summaries(&String::from_utf8_lossy(&output));
    let (counts, problem) = match (result, counts) {
        (Err(error), counts) => (counts, Some(format!("{error:#}"))),
        (Ok(status), None) => (None, Some(format!("{status} without a summary"))),
        (Ok(status), Some(counts)) if !status.success() && counts.failed == 0 => {
            (Some(counts), Some(status.to_string()))
        }
        (Ok(_), counts) => (counts, None),
    };
    let mut sum = counts.unwrap_or_default();
    if let Some(problem) = problem {
        println!("suite {name}: FAILED: {problem}");
        sum += Counts::failure();
    }
    sum
}

#[derive(Deserialize)]
struct Message {
    reason: String,
    manifest_path: Option<PathBuf>,
    target: Option<Target>,
    profile: Option<Profile>,
    executable: Option<PathBuf>,
}

#[derive(Deserialize)]
struct Target {
    name: String,
    kind: Vec<String>,
}

#[derive(Deserialize)]
struct Profile {
    test: bool,
}

/// The test programs among cargo's messages, sorted by name.
fn read(messages: &str, root: &Path) -> Result<Vec<Suite>> {
    let mut suites = Vec::new();
    for line in messages.lines().filter(|line| line.starts_with('{')) {
        let message: Message = serde_json::from_str(line).context("read a message of cargo")?;
        if message.reason != "compiler-artifact" || !message.profile.is_some_and(|p| p.test) {
            continue;
        }
        let (Some(program), Some(manifest), Some(target)) =
            (message.executable, message.manifest_path, message.target)
        else {
            continue;
        };
        let directory = manifest.parent().unwrap_or(root).to_owned();
        let of = directory.strip_prefix(root).unwrap_or(&directory);
        let name = format!("{} {} {}", of.display(), target.kind.join("+"), target.name);
        suites.push(Suite {
            name,
            program,
            directory,
        });
    }
    suites.sort_by(|left, right| left.name.cmp(&right.name));
    Ok(suites)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MESSAGES: &str = r#"
{"reason":"compiler-artifact","manifest_path":"/w/e2e/Cargo.toml","target":{"name":"start","kind":["test"]},"profile":{"test":true},"executable":"/t/start-1"}
{"reason":"compiler-artifact","manifest_path":"/w/e2e/Cargo.toml","target":{"name":"api","kind":["test"]},"profile":{"test":true},"executable":"/t/api-1"}
{"reason":"compiler-artifact","manifest_path":"/w/agent/Cargo.toml","target":{"name":"cloche-agent","kind":["bin"]},"profile":{"test":false},"executable":"/t/cloche-agent"}
{"reason":"compiler-artifact","manifest_path":"/w/agent/Cargo.toml","target":{"name":"cloche_agent","kind":["lib"]},"profile":{"test":true},"executable":"/t/cloche_agent-2"}
{"reason":"compiler-artifact","manifest_path":"/c/serde/Cargo.toml","target":{"name":"serde","kind":["lib"]},"profile":{"test":false},"executable":null}
{"reason":"build-script-executed","package_id":"x"}
{"reason":"build-finished","success":true}
"#;

    #[test]
    fn test_programs_are_found_and_sorted() {
        let suites = Suites(read(MESSAGES, Path::new("/w")).unwrap());
        let names = |suites: &Suites| -> Vec<String> {
            suites.0.iter().map(|suite| suite.name.clone()).collect()
        };
        assert_eq!(
            names(&suites),
            ["agent lib cloche_agent", "e2e test api", "e2e test start"]
        );
        assert_eq!(names(&suites.of_crates()), ["agent lib cloche_agent"]);
        assert_eq!(names(&suites.of_api()), ["e2e test api"]);
        assert_eq!(names(&suites.of_nodes()), ["e2e test start"]);
        assert_eq!(suites.0[2].program, Path::new("/t/start-1"));
        assert_eq!(suites.0[2].directory, Path::new("/w/e2e"));
    }

    #[test]
    fn broken_messages_are_told() {
        assert!(read("{\"reason\":", Path::new("/w")).is_err());
    }

    fn counted(script: &str, limit: Duration) -> (u64, u64) {
        let command = Command::new("/bin/sh").arg("-c").arg(script).limit(limit);
        let counts = run_and_show(command, "script", &mut |_| {});
        (counts.passed, counts.failed)
    }

    #[test]
    fn a_program_that_ends_badly_has_failed_whatever_it_said() {
        let minute = Duration::from_mins(1);
        let said = |failed: u32| {
            format!("echo 'test result: ok. 2 passed; {failed} failed; 0 ignored; 0 measured'")
        };
        assert_eq!(counted(&said(0), minute), (2, 0));
        assert_eq!(counted(&format!("{}; exit 101", said(3)), minute), (2, 3));
        assert_eq!(counted(&format!("{}; kill -9 $$", said(0)), minute), (2, 1));
        assert_eq!(counted("exit 0", minute), (0, 1));
        let hanging = format!("{}; exec sleep 1000", said(0));
        assert_eq!(counted(&hanging, Duration::from_millis(200)), (2, 1));
    }
}
