//! A real control plane of Kubernetes for a test: `e2e/rig`, with an ID that nobody else uses.
//!
//! It is held by a process of the script, which takes it down when its standard input ends: at [`ControlPlane::down`], when this is dropped,
//! and also when the test program ends in any other way, even by SIGKILL.

mod hold;
mod sandboxes;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Output;

use anyhow::{Context as _, Result, anyhow, bail};
use cloche_crds::cluster::{AGENT_ACCOUNT, NAMESPACE};
use futures::FutureExt as _;
use kube::config::{Config, KubeConfigOptions, Kubeconfig};
use serde_json::{Value, json};
use tokio::sync::OnceCell;

use crate::dump::{section, tail};
use crate::process::{self, Built};
use hold::{Hold, Mode};
pub use sandboxes::condition;

/// etcd, kube-apiserver and kube-controller-manager. Its nodes are objects only, Ready as long as the test does not write otherwise; or real
/// ones, and then there are a scheduler and names too.
#[derive(Debug)]
pub struct ControlPlane {
    hold: Hold,
}

impl ControlPlane {
    /// Starts one with `nodes` nodes, `node1` to `nodeN` (9 at most), and waits until it serves: some 4 s.
    pub async fn start(nodes: u8) -> Result<Self> {
        Self::held(Mode::ControlPlane, nodes).await
    }

    /// The same with a kubelet and containerd on each node: some 20 s.
    pub async fn start_with_kubelets(nodes: u8) -> Result<Self> {
        Self::held(Mode::Cluster, nodes).await
    }

    async fn held(mode: Mode, nodes: u8) -> Result<Self> {
        // Its start is a process that is read to its end of output.
        let hold = tokio::task::spawn_blocking(move || Hold::start(mode, nodes))
            .await
            .context("start a rig")??;
        Ok(Self { hold })
    }

    /// The one of this test program, with one node, started by whichever test asks first. It ends with the program.
    pub async fn shared() -> Result<&'static Self> {
        static SHARED: OnceCell<ControlPlane> = OnceCell::const_new();
        SHARED.get_or_try_init(|| Self::start(1)).await
    }

    /// Takes it down; an error if something is left.
    pub async fn down(self) -> Result<()> {
        tokio::task::spawn_blocking(move || self.hold.end())
            .await
            .context("take the control plane down")?
    }

    /// Its ID, which is in the names of all that it has on this machine.
    pub fn id(&self) -> Result<&str> {
        self.hold.variable("RIG_ID")
    }

    /// The kubeconfig of an administrator.
    pub fn kubeconfig(&self) -> Result<PathBuf> {
        Ok(PathBuf::from(self.hold.variable("KUBECONFIG")?))
    }

    /// The address of this machine at which the control plane finds what a test serves, a webhook or an aggregated API: loopback is none of
    /// a Service's. Others of the machine do not see it.
    pub fn address(&self) -> Result<String> {
        Ok(format!("{}.0.1", self.hold.variable("RIG_NET")?))
    }

    /// `HOST:PORT` of its registry, over plain HTTP; empty until something is [pushed](crate::registry::push).
    pub fn registry(&self) -> Result<&str> {
        self.hold.variable("RIG_REGISTRY")
    }

    /// A new client of an administrator. One per test: its connections are of the test's own runtime.
    pub async fn client(&self) -> Result<kube::Client> {
        // Another test may have set it already.
        rustls::crypto::ring::default_provider()
            .install_default()
            .ok();
        let kubeconfig =
            Kubeconfig::read_from(self.kubeconfig()?).context("read the kubeconfig")?;
        let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default())
            .await
            .context("read the kubeconfig")?;
        kube::Client::try_from(config).context("make a client")
    }

    /// One of its programs.
    pub(crate) fn program(&self, name: &str) -> Result<PathBuf> {
        self.hold.program(name)
    }

    /// What its programs need to know of it.
    pub(crate) fn variables(&self) -> &BTreeMap<String, String> {
        self.hold.variables()
    }

    /// Where this machine has what nodes with kubelets have in a folder of their own.
    pub(crate) fn folder(&self) -> Result<PathBuf> {
        Ok(PathBuf::from(self.hold.variable("RIG_RUN")?))
    }

    /// Runs kubectl to its end, as an administrator. It finds `kubectl sandbox`.
    pub async fn kubectl(&self, arguments: &[&str]) -> Result<Output> {
        self.run_program("kubectl", arguments).await
    }

    /// The same; what it prints, and an error unless it succeeds.
    pub async fn kubectl_text(&self, arguments: &[&str]) -> Result<String> {
        text("kubectl", arguments, self.kubectl(arguments).await?)
    }

    /// Runs helm; what it prints, and an error unless it succeeds.
    pub async fn helm_text(&self, arguments: &[&str]) -> Result<String> {
        text(
            "helm",
            arguments,
            self.run_program("helm", arguments).await?,
        )
    }

    async fn run_program(&self, name: &str, arguments: &[&str]) -> Result<Output> {
        process::command(self.hold.program(name)?)
            .envs(self.hold.variables())
            .env("PATH", path(Built::Cli.path()?.parent())?)
            .args(arguments)
            .output()
            .await
            .with_context(|| format!("run {name} {}", arguments.join(" ")))
    }

    /// A token of the agent's service account that names a node, as the one that is mounted into its pod there.
    pub async fn agent_token(&self, node: &str) -> Result<String> {
        let pod = format!("{AGENT_ACCOUNT}-{node}");
        let token = self
            .kubectl_text(&[
                "create",
                "token",
                AGENT_ACCOUNT,
                "--namespace",
                NAMESPACE,
                "--bound-object-kind",
                "Pod",
                "--bound-object-name",
                &pod,
            ])
            .await?;
        Ok(token.trim().to_owned())
    }

    /// What the apiserver makes of a token: a `TokenReview` with its answer.
    pub async fn review(&self, token: &str) -> Result<Value> {
        let review = json!({
            "apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": {"token": token},
        });
        let request = http::Request::post("/apis/authentication.k8s.io/v1/tokenreviews")
            .header("content-type", "application/json")
            .body(serde_json::to_vec(&review).context("write a TokenReview")?)
            .context("make a request")?;
        let client = self.client().await?;
        client.request(request).await.context("review a token")
    }

    /// Ends one of its processes by SIGKILL: `etcd`, `kube-apiserver`, `kube-controller-manager`.
    pub async fn kill(&self, name: &str) -> Result<()> {
        self.script(&["kill", name]).await
    }

    /// Starts what was killed, with the data that it had, and waits until it serves.
    pub async fn restore(&self) -> Result<()> {
        self.script(&["restore"]).await
    }

    /// Installs Cloche from the images of its registry, on nodes with kubelets, or puts back what was changed of it; waits until it serves.
    pub async fn install(&self) -> Result<()> {
        self.script(&["cloche"]).await
    }

    async fn script(&self, arguments: &[&str]) -> Result<()> {
        let output = process::command(hold::SCRIPT)
            .envs(self.hold.variables())
            .args(arguments)
            .output()
            .await
            .with_context(|| format!("run rig {}", arguments.join(" ")))?;
        text("rig", arguments, output).map(drop)
    }

    /// Runs the body of a test; whether it fails or panics, the ends of the logs are shown.
    pub async fn run(&self, body: impl Future<Output = Result<()>>) -> Result<()> {
        let outcome = std::panic::AssertUnwindSafe(body)
            .catch_unwind()
            .await
            .unwrap_or_else(|_panic| Err(anyhow!("the test panicked")));
        if let Err(problem) = &outcome {
            self.dump(problem);
        }
        outcome
    }

    /// Prints the failure and the ends of the logs on standard error.
    pub fn dump(&self, problem: &anyhow::Error) {
        let mut text = format!("==== failed: {problem:#}\n");
        match self.hold.logs() {
            Ok(logs) => {
                for (name, log) in logs {
                    section(&mut text, &name, &tail(&log));
                }
            }
            Err(problem) => section(&mut text, "logs", &format!("{problem:#}")),
        }
        eprintln!("{text}==== end");
    }
}

/// What a program printed, or its failure in its own words.
fn text(name: &str, arguments: &[&str], output: Output) -> Result<String> {
    if !output.status.success() {
        let told = String::from_utf8_lossy(&output.stderr);
        bail!("{name} {}: {}", arguments.join(" "), told.trim());
    }
    String::from_utf8(output.stdout).with_context(|| format!("read what {name} printed"))
}

/// The PATH with another folder in front.
fn path(first: Option<&Path>) -> Result<OsString> {
    let others = std::env::var_os("PATH").unwrap_or_default();
    let folders = first.map(Path::to_owned).into_iter();
    std::env::join_paths(folders.chain(std::env::split_paths(&others))).context("make a PATH")
}
