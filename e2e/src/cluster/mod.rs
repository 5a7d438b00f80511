//! Cloche on a control plane: operator, gateway and one agent per node as processes of the test, with the rights that the chart gives them.
//!
//! ```text
//!   kubectl, kubectl-sandbox ──► kube-apiserver ◄── operator      each with a token of its service account;
//!                                     │   ▲                       an agent's names its node
//!                                     ▼   └──────── agents: folders and cgroup of their own, node1 to nodeN
//!                                  gateway ────────────┘
//! ```
//! [`run`] is one test: whatever happens in it, everything is dumped on failure, audited on success, and taken down.

mod install;
mod kubeconfig;
mod program;

use std::ops::Deref;
use std::panic::AssertUnwindSafe;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, bail};
use cloche_crds::SandboxNode;
use cloche_crds::cluster::{
    AGENT_ACCOUNT, GATEWAY_ACCOUNT, NAMESPACE, SUBRESOURCES_GROUP, VERSION,
};
use cloche_identity::{Applicant, Credentials, Identity};
use futures::FutureExt as _;
use kube::api::{Api, ListParams};
use tempfile::TempDir;

use crate::agent::{Agent, Options, Place};
use crate::deadline::until;
use crate::process::Built;
use crate::rig::ControlPlane;
pub use crate::rig::condition;
use crate::trial::words;
use crate::{audit, dump};
pub use program::Program;

/// How long the parts may take to find each other.
const START: Duration = Duration::from_mins(1);
/// Where the gateway listens, on the rig's address, which nobody else has.
const GATEWAY_PORT: u16 = 6444;
/// Where the operator listens for agents.
const OPERATOR_PORT: u16 = 6445;
/// Where the agent of node N listens: this + N.
const AGENT_PORT: u16 = 7443;

/// A whole Cloche.
#[derive(Debug)]
pub struct Cluster {
    /// etcd, apiserver, controller-manager.
    pub plane: ControlPlane,
    /// Its operator.
    pub operator: Program,
    /// Its gateway.
    pub gateway: Program,
    /// `agents[N - 1]` is that of node N.
    pub agents: Vec<Agent>,
    /// Kubeconfigs and logs.
    root: TempDir,
}

/// What is asked of its apiserver is asked of the control plane.
impl Deref for Cluster {
    type Target = ControlPlane;

    fn deref(&self) -> &ControlPlane {
        &self.plane
    }
}

impl Cluster {
    /// Starts one with `nodes` nodes, whose agents have `options`, and waits until all parts have found each other.
    pub async fn start(nodes: u8, options: &Options) -> Result<Self> {
        let plane = ControlPlane::start(nodes).await?;
        let address = plane.address()?;
        let listen = format!("{address}:{GATEWAY_PORT}");
        install::install(&plane, &listen).await?;
        let root = tempfile::Builder::new()
            .prefix("cloche-cluster-")
            .tempdir()
            .context("make the cluster's folder")?;
        let namespace = format!("--namespace={NAMESPACE}");
        let asked = format!("{address}:{OPERATOR_PORT}");
        let operator_config =
            kubeconfig::write(&plane, root.path(), "cloche-operator", None).await?;
        let operator = Program::new(
            "operator",
            Built::Operator,
            vec![
                namespace.clone().into(),
                "--kubeconfig".into(),
                operator_config.into(),
                format!("--listen={asked}").into(),
            ],
            root.path(),
        )?;
        let gateway_config = kubeconfig::write(&plane, root.path(), GATEWAY_ACCOUNT, None).await?;
        let gateway = Program::new(
            "gateway",
            Built::Gateway,
            vec![
                namespace.into(),
                "--kubeconfig".into(),
                gateway_config.into(),
                format!("--listen={listen}").into(),
                "--credentials".into(),
                root.path().join("gateway.json").into(),
            ],
            root.path(),
        )?;
        let mut agents = Vec::new();
        for number in 1..=nodes {
            let name = format!("node{number}");
            let kubeconfig =
                kubeconfig::write(&plane, root.path(), AGENT_ACCOUNT, Some(&name)).await?;
            let home = Place::Node {
                listen: format!("{address}:{}", AGENT_PORT + u16::from(number)),
                name,
                kubeconfig,
                operator: asked.clone(),
            };
            agents.push(Agent::in_place(options.clone(), home)?);
        }
        let mut cluster = Self {
            plane,
            operator,
            gateway,
            agents,
            root,
        };
        let ready = cluster.start_parts().await;
        if ready.is_err() {
            cluster.dump().await;
        }
        ready.map(|()| cluster)
    }

    async fn start_parts(&mut self) -> Result<()> {
        self.operator.start()?;
        self.gateway.start()?;
        for agent in &mut self.agents {
            agent.restart().await?;
        }
        self.ready().await
    }

    /// Waits until every node offers itself and the gateway is reached through the apiserver.
    pub async fn ready(&mut self) -> Result<()> {
        let client = self.plane.client().await?;
        let nodes: Api<SandboxNode> = Api::all(client.clone());
        let wanted = self.agents.len();
        until(START, "every node is offered", async || {
            self.operator.check()?;
            self.gateway.check()?;
            let list = nodes
                .list(&ListParams::default())
                .await
                .context("list sandbox nodes")?;
            let ready = list.items.iter().filter(|node| {
                let status = node.status.as_ref();
                status.is_some_and(|status| {
                    status
                        .conditions
                        .iter()
                        .any(|condition| condition.type_ == "Ready" && condition.status == "True")
                })
            });
            Ok((ready.count() == wanted).then_some(()))
        })
        .await?;
        let path = format!("/apis/{SUBRESOURCES_GROUP}/{VERSION}");
        until(START, "the gateway serves", async || {
            self.gateway.check()?;
            let output = self.plane.kubectl(&["get", "--raw", &path]).await?;
            Ok(output.status.success().then_some(()))
        })
        .await
    }

    /// A client with the token of a node's agent.
    pub async fn agent_client(&self, node: &str) -> Result<kube::Client> {
        let path =
            kubeconfig::write(&self.plane, self.root.path(), AGENT_ACCOUNT, Some(node)).await?;
        kubeconfig::client(&path).await
    }

    /// Credentials of a node's agent, signed by the operator as the agent's own are.
    pub async fn agent_credentials(&self, node: &str) -> Result<Credentials> {
        let identity = Identity::agent(node).context("the name of a node")?;
        credentials(identity, self.agent_client(node).await?).await
    }

    /// Credentials of a gateway.
    pub async fn gateway_credentials(&self) -> Result<Credentials> {
        let path = kubeconfig::write(&self.plane, self.root.path(), GATEWAY_ACCOUNT, None).await?;
        credentials(Identity::Gateway, kubeconfig::client(&path).await?).await
    }

    /// Where the operator answers agents: `IP:PORT`.
    pub fn operator_address(&self) -> Result<String> {
        Ok(format!("{}:{OPERATOR_PORT}", self.plane.address()?))
    }

    /// A client of an administrator who acts as somebody else.
    pub async fn client_as(&self, user: &str) -> Result<kube::Client> {
        kubeconfig::impersonate(&self.plane.kubeconfig()?, user).await
    }

    async fn dump(&self) {
        eprintln!("== operator\n{}", self.operator.tail());
        eprintln!("== gateway\n{}", self.gateway.tail());
        let told = self
            .plane
            .kubectl_text(&["get", "sandboxes,sandboxnodes", "-A", "-o", "yaml"])
            .await;
        eprintln!(
            "== objects\n{}",
            told.unwrap_or_else(|problem| format!("{problem:#}"))
        );
    }

    async fn take_down(self) -> Result<()> {
        let mut outcome = Ok(());
        for agent in self.agents {
            outcome = outcome.and(agent.take_down().await);
        }
        drop((self.operator, self.gateway));
        outcome.and(self.plane.down().await)
    }
}

async fn credentials(identity: Identity, client: kube::Client) -> Result<Credentials> {
    let applicant = Applicant {
        client,
        identity,
        namespace: NAMESPACE.to_owned(),
    };
    applicant.obtain().await.context("get a certificate")
}

/// Runs `body` on a cluster. After a body that succeeded every sandbox is deleted through the apiserver, and of each node nothing but its
/// pool may be left, and nothing at all once its agent is stopped.
pub async fn run(
    nodes: u8,
    options: Options,
    body: impl AsyncFnOnce(&mut Cluster) -> Result<()>,
) -> Result<()> {
    let mut cluster = Cluster::start(nodes, &options).await?;
    let outcome = AssertUnwindSafe(whole(&mut cluster, body))
        .catch_unwind()
        .await
        .unwrap_or_else(|panic| Err(anyhow!("the test panicked: {}", words(panic.as_ref()))));
    if let Err(problem) = &outcome {
        cluster.dump().await;
        for agent in &cluster.agents {
            dump::dump(agent, problem).await;
        }
    }
    let down = cluster.take_down().await.context("take the test down");
    outcome.and(down)
}

async fn whole(
    cluster: &mut Cluster,
    body: impl AsyncFnOnce(&mut Cluster) -> Result<()>,
) -> Result<()> {
    body(cluster).await?;
    if !cluster.operator.check()? {
        cluster.operator.start()?;
    }
    for agent in &mut cluster.agents {
        if !agent.is_started() {
            agent
                .restart()
                .await
                .context("start an agent again for the audit")?;
        }
    }
    cluster.delete_sandboxes().await?;
    for agent in &mut cluster.agents {
        audit::idle(agent)
            .await
            .context("after every sandbox was deleted")?;
        let status = agent.stop().await?;
        if !status.success() {
            bail!("the agent stopped with {status}:\n{}", agent.log_tail());
        }
        audit::stopped(agent)
            .await
            .context("after the agent was stopped")?;
    }
    cluster.operator.check()?;
    cluster.gateway.check()?;
    Ok(())
}
