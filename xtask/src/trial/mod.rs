//! `cargo xtask try`: the agent, its plugin and two sandboxes, as a newcomer would run them.
//!
//! What it does is what the README says, command by command. All of it lives below a folder of the target directory, one in
//! `/run` and one cgroup, all with names of their own; at the end nothing may be left of it but the agent's image cache and log.

mod remains;

use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use nix::fcntl::{Flock, FlockArg};

use crate::artifact::{self, Artifacts};
use crate::command::{Command, Service};
use crate::lane::FEATURES;
use crate::package;
use crate::workspace::Workspace;
use remains::Remains;

/// The agent's runtime folder: short, because the paths of sockets are.
const RUN: &str = "/run/cloche-try";
/// How long the build may take.
const BUILD: Duration = Duration::from_mins(30);
/// The agent's cgroup.
const CGROUP: &str = "cloche-try";

/// Builds what is needed and runs the examples; an error unless all went as it should and nothing is left.
pub(crate) fn run(workspace: &Workspace) -> Result<()> {
    if !nix::unistd::Uid::effective().is_root() {
        bail!("try: not root; the agent makes cgroups and namespaces");
    }
    package::install(package::NODE)?;
    package::install(package::IMAGES)?;
    let artifacts = build(workspace)?;

    let _alone = lock()?;
    let trial = Trial::prepare(workspace, &artifacts)?;
    let result = trial.everything().and_then(|()| trial.audit());
    if let Err(error) = result {
        println!("The end of the agent's log, {}:", trial.log().display());
        print!("{}", tail(&trial.log()));
        // The sandboxes outlive their agent, on purpose: here nobody would come back for them.
        remains::kill(CGROUP)?;
        return Err(error);
    }
    remains::remove_groups(CGROUP)?;
    std::fs::remove_dir_all(RUN).with_context(|| format!("remove {RUN}"))?;
    println!("try: ok");
    Ok(())
}

/// Builds everything; the programs beside the artifacts, since downloads, links and unpacking leave processors idle.
fn build(workspace: &Workspace) -> Result<Artifacts> {
    let log = workspace.target().join("try-build.log");
    let programs = Command::cargo()
        .args(["build", "--quiet", "--workspace", "--bins", FEATURES])
        .directory(workspace.root())
        .start(&log)?;
    let artifacts = artifact::build(workspace)?;
    println!("xtask: building the agent (some minutes the first time)");
    if let Err(error) = programs.finish(BUILD) {
        print!("{}", tail(&log));
        return Err(error);
    }
    Ok(artifacts)
}

/// One trial at a time on a machine.
fn lock() -> Result<Flock<File>> {
    std::fs::create_dir_all(RUN).with_context(|| format!("create {RUN}"))?;
    let path = format!("{RUN}.lock");
    let file = File::create(&path).with_context(|| format!("create {path}"))?;
    Flock::lock(file, FlockArg::LockExclusiveNonblock)
        .map_err(|(_, error)| anyhow!("{path}: {error}: another cargo xtask try is running"))
}

/// The folders and programs of one trial.
struct Trial {
    home: PathBuf,
    examples: PathBuf,
    agent: PathBuf,
    plugin: PathBuf,
    artifacts: Artifacts,
}

impl Trial {
    /// The agent's state is kept from one trial to the next, for its images; manifests are not.
    fn prepare(workspace: &Workspace, artifacts: &Artifacts) -> Result<Self> {
        let trial = Self {
            home: workspace.target().join("try"),
            examples: workspace.root().join("examples"),
            agent: workspace.program("cloche-agent"),
            plugin: workspace.program("kubectl-sandbox"),
            artifacts: artifacts.clone(),
        };
        let manifests = trial.manifests();
        if manifests.exists() {
            std::fs::remove_dir_all(&manifests)
                .with_context(|| format!("remove {}", manifests.display()))?;
        }
        std::fs::create_dir_all(&manifests)
            .with_context(|| format!("create {}", manifests.display()))?;
        Ok(trial)
    }

    fn manifests(&self) -> PathBuf {
        self.home.join("manifests")
    }

    fn log(&self) -> PathBuf {
        self.home.join("agent.log")
    }

    fn socket() -> PathBuf {
        Path::new(RUN).join("agent.sock")
    }

    fn everything(&self) -> Result<()> {
        let mut agent = self.start()?;
        let told = self.use_it(&mut agent);
        // Also after a failure: a stopped agent empties its pool.
        let stopped = agent.stop(Duration::from_secs(30));
        told.and(stopped)
    }

    /// Nothing but images may be left.
    fn audit(&self) -> Result<()> {
        let remains = Remains::find(CGROUP, &[&self.home, Path::new(RUN)])?;
        if remains.is_nothing() {
            return Ok(());
        }
        bail!("left behind: {remains}")
    }

    fn start(&self) -> Result<Service> {
        let socket = Self::socket();
        let command = Command::new(&self.agent)
            .args(["standalone", "--cgroup-parent", CGROUP])
            .arg("--manifests")
            .arg(self.manifests())
            .arg("--state")
            .arg(self.home.join("state"))
            .args(["--run", RUN, "--socket"])
            .arg(&socket)
            .arg("--images")
            .arg(&self.artifacts.images)
            .arg("--runsc")
            .arg(&self.artifacts.runsc)
            .arg("--init")
            .arg(&self.artifacts.init);
        println!("$ {}", command.line());
        let mut agent = command.start(&self.log())?;
        agent.wait_until("serving", Duration::from_mins(1), || {
            std::os::unix::net::UnixStream::connect(&socket).is_ok()
        })?;
        Ok(agent)
    }

    fn use_it(&self, agent: &mut Service) -> Result<()> {
        self.apply(agent, "hello")?;
        self.plugin(&["wait", "hello", "--for=condition=Ready", "--timeout=60s"])?;
        let script = "import platform, sys; print('Python', platform.python_version(), 'on', sys.platform, 6 * 7)";
        let said = self.plugin(&["exec", "hello", "--", "python3", "-c", script])?;
        expect(&said, "on linux 42")?;
        expect(&self.plugin(&["ls"])?, "Running")?;
        expect(&self.plugin(&["describe", "hello"])?, "Running")?;

        self.apply(agent, "primes")?;
        self.plugin(&["wait", "primes", "--for=finished", "--timeout=60s"])?;
        expect(&self.plugin(&["log", "primes"])?, "primes: 2 3 5 7 11")?;
        expect(&self.plugin(&["describe", "primes"])?, "Completed")?;

        // The last word of an object that goes: the end of the one that ran, and the end that the other had had.
        let gone = self.plugin(&["rm", "--wait", "hello", "primes"])?;
        expect(&gone, "hello deleted (Deleted: its object was deleted)")?;
        expect(&gone, "primes deleted (Completed")
    }

    /// What `kubectl apply` is to a cluster: a file in the manifest folder.
    fn apply(&self, agent: &mut Service, name: &str) -> Result<()> {
        let file = format!("{name}.yaml");
        let (from, to) = (self.examples.join(&file), self.manifests().join(&file));
        println!("$ cp {} {}", from.display(), to.display());
        std::fs::copy(&from, &to)
            .with_context(|| format!("copy {} to {}", from.display(), to.display()))?;
        // Listed, not asked for: that would be an error until it is there.
        let known = || {
            self.command(&["ls", "--output=name"])
                .text()
                .is_ok_and(|names| {
                    names
                        .lines()
                        .any(|line| line.ends_with(&format!("/{name}")))
                })
        };
        agent.wait_until(&format!("aware of {name}"), Duration::from_secs(10), known)
    }

    fn command(&self, args: &[&str]) -> Command {
        Command::new(&self.plugin)
            .arg("--standalone")
            .arg(Self::socket())
            .args(args)
            .limit(Duration::from_mins(2))
    }

    /// Shows the plugin's command line and output.
    fn plugin(&self, args: &[&str]) -> Result<String> {
        let command = self.command(args);
        println!("$ {}", command.line());
        let output = command.output()?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        print!("{text}");
        if !output.status.success() {
            bail!("kubectl-sandbox {}: {}", args.join(" "), output.status);
        }
        Ok(text)
    }
}

fn expect(text: &str, what: &str) -> Result<()> {
    if text.contains(what) {
        return Ok(());
    }
    bail!("expected {what:?} in the output")
}

/// The last lines of a log.
fn tail(path: &Path) -> String {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let lines: Vec<&str> = text.split_inclusive('\n').collect();
    lines[lines.len().saturating_sub(40)..].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tail_is_the_last_forty_lines() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("log");
        assert_eq!(tail(&path), "");
        let lines: Vec<String> = (0..50).map(|n| format!("line {n}\n")).collect();
        std::fs::write(&path, lines.concat()).unwrap();
        assert_eq!(tail(&path), lines[10..].concat());
    }
}
