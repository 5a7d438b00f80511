//! Cloche as a user installs it: both charts by helm, from images of a registry, on nodes with kubelet and containerd.
//!
//! [`run`] is one test. All tests of a program share one rig, one after the other, since its start takes longer than most of them; it ends
//! with the program. Whatever happens in a test, everything is dumped on failure, audited on success, and put back for the next one.

mod node;

use std::ops::Deref;
use std::panic::AssertUnwindSafe;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, ensure};
use cloche_crds::cluster::NAMESPACE;
use futures::FutureExt as _;
use tokio::sync::{Mutex, OnceCell};

use crate::deadline::until;
use crate::image::Image;
use crate::process::Built;
use crate::rig::ControlPlane;
use crate::trial::words;
use crate::{audit, registry};
pub use node::Node;

/// Nodes of the rig.
const NODES: u8 = 1;
/// How long an agent may take to come or to go.
const AGENT: Duration = Duration::from_mins(2);
/// The agents' pods.
const AGENTS: &str = "--selector=app.kubernetes.io/component=agent";

/// An installed Cloche.
#[derive(Debug)]
pub struct Release {
    plane: ControlPlane,
}

/// What is asked of its apiserver is asked of the control plane.
impl Deref for Release {
    type Target = ControlPlane;

    fn deref(&self) -> &ControlPlane {
        &self.plane
    }
}

impl Release {
    async fn start() -> Result<Mutex<Self>> {
        let plane = ControlPlane::start_with_kubelets(NODES).await?;
        push(plane.registry()?).await?;
        let release = Self { plane };
        if let Err(problem) = release.install().await {
            release.dump(&problem).await;
            return Err(problem);
        }
        Ok(Mutex::new(release))
    }

    /// Runs kubectl in the namespace of Cloche's own parts.
    pub async fn own(&self, arguments: &[&str]) -> Result<String> {
        let namespace = format!("--namespace={NAMESPACE}");
        let arguments: Vec<&str> = [namespace.as_str()]
            .into_iter()
            .chain(arguments.iter().copied())
            .collect();
        self.kubectl_text(&arguments).await
    }

    /// Runs helm with the release's name and namespace after the verb.
    pub async fn helm(&self, verb: &str, arguments: &[&str]) -> Result<String> {
        let arguments: Vec<&str> = [verb, "cloche", "--namespace", NAMESPACE]
            .into_iter()
            .chain(arguments.iter().copied())
            .collect();
        self.helm_text(&arguments).await
    }

    /// Node N.
    pub fn node(&self, number: u8) -> Result<Node> {
        Node::find(&self.plane, number)
    }

    /// All nodes.
    pub fn nodes(&self) -> Result<Vec<Node>> {
        (1..=NODES).map(|number| self.node(number)).collect()
    }

    /// Waits until node N has no agent.
    pub async fn agent_gone(&self, number: u8) -> Result<()> {
        let node = self.node(number)?;
        until(AGENT, "the agent is gone", async || {
            Ok(node.agent()?.is_none().then_some(()))
        })
        .await
    }

    /// Waits until every node has the agent of the `DaemonSet` as it is now.
    pub async fn agents_ready(&self) -> Result<()> {
        let patience = format!("--timeout={}s", AGENT.as_secs());
        self.own(&["rollout", "status", "daemonset/cloche-agent", &patience])
            .await
            .map(drop)
    }

    /// What the agents' pods say of `path`, a `JSONPath` below a pod.
    pub async fn agents(&self, path: &str) -> Result<String> {
        let output = format!("--output=jsonpath={{.items[*]{path}}}");
        self.own(&["get", "pods", AGENTS, &output]).await
    }

    /// Takes the agents away until [`Self::let_agents`].
    pub async fn bar_agents(&self) -> Result<()> {
        self.patch_agents(r#"{"example.com/none": "such"}"#).await
    }

    /// Puts back what [`Self::bar_agents`] changed.
    pub async fn let_agents(&self) -> Result<()> {
        self.patch_agents(r#"{"example.com/none": null}"#).await
    }

    async fn patch_agents(&self, selector: &str) -> Result<()> {
        let patch =
            format!(r#"{{"spec": {{"template": {{"spec": {{"nodeSelector": {selector}}}}}}}}}"#);
        self.own(&["patch", "daemonset", "cloche-agent", "--patch", &patch])
            .await
            .map(drop)
    }

    /// Nothing is left of sandboxes on any node, and its agent runs.
    async fn idle(&self) -> Result<()> {
        for node in self.nodes()? {
            let owner = node.owner()?;
            ensure!(owner.pid.is_some(), "a node has no agent");
            audit::idle_of(&owner).await?;
        }
        Ok(())
    }

    /// Nothing is left on any node but images and profiles: no sandbox, no pool, no pod.
    pub async fn gone(&self) -> Result<()> {
        for node in self.nodes()? {
            node.without_pods().await?;
            audit::stopped_of(&node.owner()?).await?;
        }
        Ok(())
    }

    async fn dump(&self, problem: &anyhow::Error) {
        self.plane.dump(problem);
        let logs = [
            "logs",
            "--selector=app.kubernetes.io/name=cloche",
            "--all-containers",
            "--prefix",
            "--tail=60",
            "--max-log-requests=20",
        ];
        let all = [
            "get",
            "sandboxes,sandboxnodes,pods,leases",
            "-A",
            "-o",
            "yaml",
        ];
        let events = ["get", "events", "-A"];
        for told in [
            self.kubectl_text(&all).await,
            self.kubectl_text(&events).await,
            self.own(&logs).await,
        ] {
            eprintln!("{}", told.unwrap_or_else(|problem| format!("{problem:#}")));
        }
    }
}

/// Runs `body` on the shared release. After a body that succeeded every sandbox of the namespace `default` is deleted, and of each node
/// nothing but its pool may be left.
pub async fn run(body: impl AsyncFnOnce(&Release) -> Result<()>) -> Result<()> {
    static SHARED: OnceCell<Mutex<Release>> = OnceCell::const_new();
    let release = SHARED.get_or_try_init(Release::start).await?.lock().await;
    let outcome = AssertUnwindSafe(whole(&release, body))
        .catch_unwind()
        .await
        .unwrap_or_else(|panic| Err(anyhow!("the test panicked: {}", words(panic.as_ref()))));
    if let Err(problem) = &outcome {
        release.dump(problem).await;
        if let Err(problem) = put_back(&release).await {
            eprintln!("and could not put it back for the next test: {problem:#}");
        }
    }
    outcome
}

async fn whole(release: &Release, body: impl AsyncFnOnce(&Release) -> Result<()>) -> Result<()> {
    body(release).await?;
    release.delete_sandboxes().await?;
    release
        .idle()
        .await
        .context("after every sandbox was deleted")
}

async fn put_back(release: &Release) -> Result<()> {
    release.install().await?;
    release.delete_sandboxes().await
}

/// Fills a rig's registry with the images that the build has listed: lines of `NAME:TAG DIGEST LAYOUT`.
async fn push(registry: &str) -> Result<()> {
    let list = Built::Pushed.path()?;
    let lines =
        std::fs::read_to_string(&list).with_context(|| format!("read {}", list.display()))?;
    for line in lines.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [name, _digest, layout] = words[..] else {
            anyhow::bail!("{} has the line {line:?}", list.display());
        };
        let (name, tag) = name.rsplit_once(':').context("a tag")?;
        let image = Image::read(Path::new(layout))?;
        registry::push(registry, &image, name, tag).await?;
    }
    Ok(())
}
