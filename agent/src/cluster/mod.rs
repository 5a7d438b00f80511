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
mod judge;
mod objects;
mod own_node;
mod patch;
mod patience;
mod seen;
mod status;

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Result;
use kube::runtime::watcher;
use kube::runtime::watcher::Event;

use self::clerk::{Clerk, Desk};
use self::objects::ClusterObjects;
use self::own_node::OwnNode;
use self::patience::patient;
use crate::api;
use crate::settled::Settle;
use crate::start::{self, Crew, Prepared, Regime};

/// How `cloche-agent node` is run.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// Name of the Node that this machine is
    #[arg(long, env = "NODE_NAME")]
    pub node_name: String,
    /// How to reach the apiserver [default: as the pod's service account, else as kubectl does]
    #[arg(long)]
    pub kubeconfig: Option<PathBuf>,
    /// What every agent has.
    #[command(flatten)]
    pub node: start::Options,
}

/// Runs until SIGTERM or SIGINT.
pub async fn run(options: Options) -> Result<()> {
    let locks = start::lock(&options.node, None).await?;
    let own_node = OwnNode::open(&options.node.state, &options.node_name)?;
    let client = client::client(options.kubeconfig.as_deref()).await?;
    let settle = Settle::default();
    let regime = Regime::Cluster {
        node: options.node_name.clone(),
        settled: settle.settled(),
    };
    let Prepared {
        node,
        supervisor,
        lost,
    } = start::prepare(&locks, &options.node, regime).await?;
    let socket = options.node.socket();
    let listener = api::listen(&socket)?;

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
    crew.join("watch of the Node", own_node.run(client, stop()));
    crew.join("clerk", clerk.run(told, stop()));
    crew.join("supervisor", supervisor.run(desired));
    crew.run().await
}
