//! The agent of a node in a cluster: the apiserver's Sandboxes that are bound to the node are the desired state, and their status tells
//! what became of them.
//!
//! All but that is [`start`]'s, as it is standalone. What can be relied on:
//! - Only what is bound to this very Node, by name *and* UID, is run. What was begun goes on without the apiserver, and from the records
//!   alone where the agent starts without it; what happens meanwhile is told later, with its own times.
//! - Absence is no deletion: only a deletion timestamp, or the apiserver's answer to a request for that very object, is. Losing the
//!   binding is told in the log, and nothing else.
//! - Nothing runs twice: an object whose status tells that it ran, and of which there is no record, is ended.
//! - An end is told before the record of it goes, and the finalizer goes last, when nothing of the sandbox is on the node.
//! - A sandbox costs two writes of its status in a normal life ([`due`]) and the removal of its finalizer.

mod clerk;
mod client;
mod desired;
mod due;
mod entry;
mod events;
mod judge;
mod objects;
mod own_node;
mod patch;
mod patience;
mod presence;
mod references;
mod seen;
mod status;

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, Result};
use cloche_crds::cluster::{NAMESPACE, operator_address};
use cloche_identity::{Applicant, Identity, Store};
use kube::runtime::watcher;
use kube::runtime::watcher::Event;
use tokio::sync::watch;

use self::clerk::{Clerk, Desk};
use self::objects::ClusterObjects;
use self::own_node::OwnNode;
use self::patience::patient;
pub(crate) use self::patience::pause;
use self::presence::{Announcer, Heart, Reservation, Standing, Terms};
pub use self::references::References;
use crate::api;
use crate::image::architecture;
use crate::settled::Settle;
use crate::start::{self, Crew, Prepared, Regime};

/// How `cloche-agent node` is run.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// Name of the Node that this machine is
    #[arg(long, env = "NODE_NAME")]
    pub node_name: String,
    /// The namespace where Cloche is installed
    #[arg(long, default_value = NAMESPACE)]
    pub namespace: String,
    /// Where gateways reach the agent, by mTLS
    #[arg(long, default_value = "0.0.0.0:7443")]
    pub listen: SocketAddr,
    /// The address of this machine that gateways are told of [default: the Node's internal one]
    #[arg(long)]
    pub advertise_address: Option<IpAddr>,
    /// Where the operator is asked for what sandboxes take from Secrets and config maps, by mTLS [default: its Service, by the cluster's DNS]
    #[arg(long, value_name = "HOST:PORT")]
    pub operator: Option<String>,
    /// Offer the budget only while a pod with these labels (KEY=VALUE,...), in the namespace of Cloche, is Running on the node [default:
    /// always]
    #[arg(long, value_name = "LABELS")]
    pub reservation: Option<String>,
    /// How to reach the apiserver [default: as the pod's service account, else as kubectl does]
    #[arg(long)]
    pub kubeconfig: Option<PathBuf>,
    /// What every agent has.
    #[command(flatten)]
    pub node: start::Options,
}

/// Runs until SIGTERM or SIGINT.
pub async fn run(options: Options) -> Result<()> {
    let identity = Identity::agent(&options.node_name)
        .with_context(|| format!("--node-name {:?} cannot be a Node's", options.node_name))?;
    let locks = start::lock(&options.node, None).await?;
    let own_node = OwnNode::open(&options.node.state, &options.node_name)?;
    let client = client::client(options.kubeconfig.as_deref()).await?;
    let settle = Settle::default();
    let credentials = watch::Sender::new(None);
    let operator = options
        .operator
        .unwrap_or_else(|| operator_address(&options.namespace));
    let regime = Regime::Cluster {
        node: options.node_name.clone(),
        settled: settle.settled(),
        references: References::new(operator, credentials.subscribe()),
    };
    let Prepared {
        node,
        supervisor,
        lost,
    } = start::prepare(&locks, &options.node, regime).await?;
    let socket = options.node.socket();
    let listener = api::listen(&socket)?;
    let remote = api::mtls::listen(options.listen).await?;

    let terms = Terms {
        advertise: options.advertise_address,
        port: remote.local_addr().context("ask for the port")?.port(),
        budget: node.budget,
        runtime: node.runtime.clone(),
        architecture: architecture(),
    };
    let reserved = watch::Sender::new(options.reservation.is_none());
    let standing = Standing {
        credentials: credentials.subscribe(),
        reserved: reserved.subscribe(),
        disk_pressed: node.disk_pressed.subscribe(),
    };
    let announcer = Announcer::new(
        client.clone(),
        &options.node_name,
        own_node.facts(),
        terms,
        standing,
    );
    let heart = Heart::new(client.clone(), &options.namespace, own_node.ours());
    let applicant = Applicant {
        client: client.clone(),
        identity,
        namespace: options.namespace.clone(),
    };
    let objects = Arc::new(ClusterObjects::new(client.clone()));
    let desk = Desk {
        objects: Arc::clone(&objects),
        ours: own_node.ours(),
        board: node.board.clone(),
        accounted: supervisor.accounted(),
        settle,
    };
    let clerk = Clerk::new(desk, supervisor.taken(), lost);
    let desired = clerk.desired();
    let bound =
        watcher::Config::default().fields(&format!("status.nodeName={}", options.node_name));
    let told = patient(watcher(objects.all(), bound), |event| {
        !matches!(event, Event::Init)
    });

    let mut crew = Crew::new(&node)?;
    tracing::info!(socket = %socket.display(), node = options.node_name, "serving");
    let stop = || node.cancel.child_token();
    crew.join("API", api::serve(listener, Arc::clone(&node), None));
    let remote = api::mtls::serve(remote, credentials.subscribe(), Arc::clone(&node));
    crew.join("API for gateways", remote);
    let store = Store::new(options.node.state.join("credentials.json"));
    crew.join(
        "certificate",
        cloche_identity::keep(applicant, Some(store), credentials),
    );
    crew.join("SandboxNode", announcer.run(stop()));
    if let Some(labels) = &options.reservation {
        let (namespace, node) = (&options.namespace, &options.node_name);
        let reservation =
            Reservation::new(client.clone(), namespace, labels, node, reserved.clone());
        crew.join("watch of the reservation", reservation.run(stop()));
    }
    crew.join("Lease", heart.run(stop()));
    crew.join(
        "watch of the Node",
        own_node.run(client, node.outlook.clone(), stop()),
    );
    crew.join("clerk", clerk.run(told, stop()));
    crew.join("supervisor", supervisor.run(desired));
    crew.run().await
}
