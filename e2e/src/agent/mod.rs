//! An agent of its own for each test: folders, socket and cgroup that no other test has.

mod options;
mod reboot;
mod take_down;

use std::fs::{File, OpenOptions};
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tempfile::TempDir;
use tokio::io::AsyncWriteExt as _;
use tokio::process::Child;

pub use options::Options;

use crate::client::Client;
use crate::deadline::{until, within};
use crate::process::{self, Built};

/// How long an agent may take to serve or to stop.
const START: Duration = Duration::from_mins(1);

/// Where an agent's sandboxes come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// A folder of manifests.
    Standalone,
    /// A cluster.
    Node {
        /// The node's name.
        name: String,
        /// Where it serves gateways: `IP:PORT`.
        listen: String,
        /// The apiserver, and who the agent is to it.
        kubeconfig: PathBuf,
        /// Where it asks the operator: `IP:PORT`.
        operator: String,
    },
}

/// Numbers the agents of this process.
static COUNT: AtomicU32 = AtomicU32::new(0);

/// An agent, running or not. Dropping it kills everything that is its own; [`Agent::take_down`] does so with a report.
#[derive(Debug)]
pub struct Agent {
    options: Options,
    place: Place,
    /// State, manifests, log.
    root: TempDir,
    /// Short, on a tmpfs.
    run: TempDir,
    group: String,
    child: Option<Child>,
}

impl Agent {
    /// Makes the folders of one with manifests; nothing runs yet.
    pub fn new(options: Options) -> Result<Self> {
        Self::in_place(options, Place::Standalone)
    }

    /// Makes the folders; nothing runs yet.
    pub fn in_place(options: Options, place: Place) -> Result<Self> {
        if !nix::unistd::geteuid().is_root() {
            bail!("this test needs root: it runs sandboxes");
        }
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let root = tempfile::Builder::new()
            .prefix("cloche-e2e-")
            .tempdir()
            .context("make the test's folder")?;
        let run = tempfile::Builder::new()
            .prefix("cle")
            .tempdir_in("/run")
            .context("make the test's folder in /run")?;
        let agent = Self {
            options,
            place,
            group: format!("cloche-e2e-{}-{number}", std::process::id()),
            root,
            run,
            child: None,
        };
        std::fs::create_dir(agent.manifests()).context("make the manifest folder")?;
        Ok(agent)
    }

    /// A new agent that serves.
    pub async fn start(options: Options) -> Result<Self> {
        let mut agent = Self::new(options)?;
        agent.restart().await?;
        Ok(agent)
    }

    /// Starts it on what an earlier one left, and waits until it serves.
    pub async fn restart(&mut self) -> Result<()> {
        self.restart_with_fault(None)?;
        self.serves().await
    }

    /// Waits until it serves; that it ended instead is an error.
    pub async fn serves(&mut self) -> Result<()> {
        let socket = self.socket();
        within(START, "the agent serves", async {
            until(START, "it answers", async || {
                if let Some(status) = self.exited()? {
                    bail!(
                        "the agent ended at its start ({status}):\n{}",
                        self.log_tail()
                    );
                }
                // An answer, and not a connection alone: what a killed agent was about to start holds its socket too, for a moment.
                let answer = async { Client::connect(&socket).await?.list().await };
                Ok(answer.await.ok().map(drop))
            })
            .await
        })
        .await
        .with_context(|| format!("its log ends so:\n{}", self.log_tail()))
    }

    /// Starts it with a fault point armed (`NAME` or `NAME:N`), and does not wait: it may die before it serves.
    pub fn restart_with_fault(&mut self, fault: Option<&str>) -> Result<()> {
        if self.child.is_some() {
            bail!("the agent runs already");
        }
        let log = self.open_log()?;
        let mut command = process::command(Built::Agent.path()?);
        match &self.place {
            Place::Standalone => command
                .arg("standalone")
                .arg("--manifests")
                .arg(self.manifests()),
            Place::Node {
                name,
                listen,
                kubeconfig,
                operator,
            } => command
                .args(["node", "--node-name", name, "--listen", listen])
                .args(["--operator", operator])
                // The pod that the rig has for it.
                .args(["--reservation", "app=cloche-reservation"])
                .arg("--kubeconfig")
                .arg(kubeconfig),
        };
        command
            .arg("--state")
            .arg(self.state())
            .arg("--run")
            .arg(self.run.path())
            .arg("--socket")
            .arg(self.socket())
            .arg("--cgroup-parent")
            .arg(&self.group)
            .args(self.options.arguments()?)
            .env_remove("CLOCHE_FAULT")
            .env("NO_COLOR", "1")
            .envs(fault.map(|fault| ("CLOCHE_FAULT", fault)))
            .stdout(log.try_clone().context("share the agent's log")?)
            .stderr(log);
        self.child = Some(command.spawn().context("start cloche-agent")?);
        Ok(())
    }

    /// SIGKILL, and waits until it is gone. What it runs goes on.
    pub async fn kill(&mut self) -> Result<()> {
        let mut child = self.child.take().context("the agent does not run")?;
        child.kill().await.context("kill the agent")
    }

    /// SIGTERM, and waits until it is gone.
    pub async fn stop(&mut self) -> Result<ExitStatus> {
        self.signal(Signal::SIGTERM)?;
        self.wait().await
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        kill(self.pid()?, signal).with_context(|| format!("send {signal} to the agent"))
    }

    /// Waits until it ends.
    pub async fn wait(&mut self) -> Result<ExitStatus> {
        let mut child = self.child.take().context("the agent does not run")?;
        within(START, "the agent ends", async {
            child.wait().await.context("wait for the agent")
        })
        .await
    }

    /// Waits until it has killed itself at its fault point.
    pub async fn wait_for_fault(&mut self) -> Result<()> {
        let status = self.wait().await?;
        if status.signal() != Some(Signal::SIGKILL as i32) {
            bail!(
                "the agent ended by {status} and not at its fault point:\n{}",
                self.log_tail()
            );
        }
        Ok(())
    }

    /// How it ended, if it has.
    pub fn exited(&mut self) -> Result<Option<ExitStatus>> {
        match &mut self.child {
            Some(child) => child.try_wait().context("look at the agent"),
            None => Ok(None),
        }
    }

    /// Whether it was started and neither killed nor waited for.
    pub fn is_started(&self) -> bool {
        self.child.is_some()
    }

    /// Its process.
    pub fn pid(&self) -> Result<Pid> {
        let pid = self
            .child
            .as_ref()
            .and_then(Child::id)
            .context("the agent does not run")?;
        Ok(Pid::from_raw(
            i32::try_from(pid).context("its process number")?,
        ))
    }

    /// Connects to its API.
    pub async fn client(&self) -> Result<Client> {
        Client::connect(&self.socket()).await
    }

    /// Runs `kubectl sandbox` with its socket to the end.
    pub async fn kubectl(&self, arguments: &[&str]) -> Result<Output> {
        process::command(Built::Cli.path()?)
            .env("CLOCHE_STANDALONE", self.socket())
            .args(arguments)
            .output()
            .await
            .with_context(|| format!("run kubectl-sandbox {}", arguments.join(" ")))
    }

    /// The same with bytes as its standard input.
    pub async fn kubectl_fed(&self, arguments: &[&str], input: &[u8]) -> Result<Output> {
        let mut child = process::command(Built::Cli.path()?)
            .env("CLOCHE_STANDALONE", self.socket())
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .with_context(|| format!("run kubectl-sandbox {}", arguments.join(" ")))?;
        let mut stdin = child.stdin.take().context("its standard input")?;
        // Both at once: it may print more than a pipe takes before it has read all. One that reads no further is fine.
        let feed = async move { stdin.write_all(input).await.ok() };
        let (_, output) = tokio::join!(feed, child.wait_with_output());
        output.with_context(|| format!("wait for kubectl-sandbox {}", arguments.join(" ")))
    }

    /// Its socket, also for `kubectl sandbox --standalone`.
    pub fn socket(&self) -> PathBuf {
        self.run.path().join("agent.sock")
    }

    /// Folder of manifests.
    pub fn manifests(&self) -> PathBuf {
        self.root.path().join("manifests")
    }

    /// Folder of what outlives it.
    pub fn state(&self) -> PathBuf {
        self.root.path().join("state")
    }

    /// Folder of what does not outlive a boot.
    pub fn run(&self) -> &Path {
        self.run.path()
    }

    /// Folder of the test's own files, deleted with the rest.
    pub fn scratch(&self) -> &Path {
        self.root.path()
    }

    /// Name of its cgroup, in every hierarchy.
    pub fn group(&self) -> &str {
        &self.group
    }

    /// All that it and those before it on this state have logged.
    pub fn log(&self) -> Result<String> {
        std::fs::read_to_string(self.log_file()).context("read the agent's log")
    }

    fn log_file(&self) -> PathBuf {
        self.root.path().join("agent.log")
    }

    fn open_log(&self) -> Result<File> {
        OpenOptions::new()
            .create(true)
            .append(true)
            .open(self.log_file())
            .context("open the agent's log")
    }

    /// The last lines of the log.
    pub fn log_tail(&self) -> String {
        let log = self.log().unwrap_or_else(|problem| format!("{problem:#}"));
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(60)..].join("\n")
    }
}
