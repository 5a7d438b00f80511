//! Where sandboxes are: what commands ask for, and who answers.
//!
//! Commands know no more than this file: an agent's socket and a cluster differ in how they are reached and in what breaks, not in
//! what a sandbox or a session is.

mod cluster;
mod failure;
mod outage;
mod standalone;

use cloche_crds::DesiredState;
use cloche_proto::agent::v1alpha1::{LogRequest, SessionRequest, SessionResponse};
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tonic::Streaming;

pub(crate) use cluster::Cluster;
pub(crate) use failure::{Failure, Refusal};
pub(crate) use outage::Outage;
pub(crate) use standalone::Standalone;

use crate::error::Error;
use crate::object::usage::Usage;
use crate::object::{Object, field};

/// Requests of a session under way to the connection. Few: what is not sent yet is the session's to keep.
const REQUESTS: usize = 4;

/// Which sandboxes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Selection {
    /// The one of this name.
    One(String),
    /// All of the namespace, perhaps only those of some labels.
    All(Option<String>),
    /// All of all namespaces, perhaps only those of some labels.
    Everywhere(Option<String>),
    /// All that are bound to the node of this name, of all namespaces.
    OnNode(String),
}

/// One step of what happens to sandboxes.
#[derive(Debug)]
pub(crate) enum Change {
    /// It is like this now.
    Present(Object),
    /// It is gone; this is how it was last.
    Deleted(Object),
    /// There is none of the name that was asked for.
    Absent,
}

/// Where sandboxes are.
#[derive(Debug)]
pub(crate) enum Backend {
    /// With an agent that runs without Kubernetes.
    Standalone(Standalone),
    /// In a cluster.
    Cluster(Cluster),
}

impl Backend {
    /// The same in another namespace.
    pub(crate) fn in_namespace(&self, namespace: &str) -> Result<Self, Error> {
        Ok(match self {
            Self::Standalone(agent) => Self::Standalone(agent.in_namespace(namespace)),
            Self::Cluster(cluster) => Self::Cluster(cluster.in_namespace(namespace)?),
        })
    }

    /// Whether a deletion is waited for where the user does not say: kubectl's users expect it of a cluster.
    pub(crate) fn waits_for_deletions(&self) -> bool {
        match self {
            Self::Standalone(_) => false,
            Self::Cluster(_) => true,
        }
    }

    /// One sandbox as it is now.
    pub(crate) async fn get(&self, name: &str) -> Result<Object, Error> {
        let operation = format!("get sandbox {name}");
        self.select(&Selection::One(name.to_owned()))
            .await
            .and_then(|objects| {
                let first = objects.into_iter().next();
                first.ok_or_else(|| Failure::Wrong("it names no sandbox".to_owned()))
            })
            .map_err(|failure| failure.error(operation))
    }

    /// Sandboxes as they are now.
    pub(crate) async fn list(&self, selection: &Selection) -> Result<Vec<Object>, Error> {
        self.select(selection)
            .await
            .map_err(|failure| failure.error("list sandboxes"))
    }

    async fn select(&self, selection: &Selection) -> Result<Vec<Object>, Failure> {
        match self {
            Self::Standalone(agent) => agent.list(selection).await,
            Self::Cluster(cluster) => cluster.list(selection).await,
        }
    }

    /// Makes a sandbox of a manifest; as it is stored, where that is told.
    pub(crate) async fn create(&self, manifest: &Object) -> Result<Option<Object>, Error> {
        let bytes = manifest.json().to_string().into_bytes();
        match self {
            Self::Standalone(agent) => agent.create(bytes).await.map(|()| None),
            Self::Cluster(cluster) => cluster.create(bytes, false).await.map(Some),
        }
        .map_err(|failure| failure.error(format!("make sandbox {}", manifest.name())))
    }

    /// Says whether a sandbox is to run. One that does not, since nobody used it or could be brought back, does by any change of
    /// its spec: where it is to run already, that is written otherwise. The generation from which on what is told of it follows that.
    pub(crate) async fn set_desired_state(
        &self,
        name: &str,
        desired: DesiredState,
    ) -> Result<i64, Error> {
        let shown = self.get(name).await?;
        let written = shown.word("/spec/lifecycle/desiredState");
        let is_ready = shown
            .condition("Ready")
            .and_then(|ready| field(ready, "status"))
            .is_some_and(|status| status == "True");
        let default = DesiredState::default();
        let state = match written {
            Some(_) if !is_ready && desired == default => json!(null),
            Some(_) | None => json!(desired),
        };
        let before = shown.json().pointer("/metadata/generation");
        let before = before.and_then(Value::as_i64).unwrap_or(0);
        let generation = before + i64::from(written.as_deref() != state.as_str());
        let lifecycle = json!({"spec": {"lifecycle": {"desiredState": state}}});
        let written = match self {
            Self::Standalone(agent) => agent.merge(name, &lifecycle).await.map(|()| None),
            Self::Cluster(cluster) => cluster.merge(name, &lifecycle).await,
        }
        .map_err(|failure| failure.error(format!("set the state of sandbox {name}")))?;
        // An agent alone answers before it has taken it over.
        Ok(written.unwrap_or(generation))
    }

    /// Has all sandboxes of a node end, or takes that back.
    pub(crate) async fn set_drained(&self, node: &str, is_drained: bool) -> Result<(), Error> {
        match self {
            Self::Standalone(_) => Err(Failure::Refused(Refusal::other(
                "an agent alone has no nodes: delete its sandboxes",
            ))),
            Self::Cluster(cluster) => cluster.set_drained(node, is_drained).await,
        }
        .map_err(|failure| failure.error(format!("drain node {node}")))
    }

    /// All that [`Self::create`] does but storing it; as it would be stored.
    pub(crate) async fn check(&self, manifest: &Object) -> Result<Object, Error> {
        let bytes = manifest.json().to_string().into_bytes();
        match self {
            Self::Standalone(_) => Err(Failure::Refused(Refusal::other(
                "an agent alone has no --dry-run=server",
            ))),
            Self::Cluster(cluster) => cluster.create(bytes, true).await,
        }
        .map_err(|failure| failure.error(format!("check sandbox {}", manifest.name())))
    }

    /// What was told of a sandbox as events. An agent alone has none.
    pub(crate) async fn events(&self, object: &Object) -> Result<Vec<Object>, Error> {
        match self {
            Self::Standalone(_) => Ok(Vec::new()),
            Self::Cluster(cluster) => cluster.events(object).await,
        }
        .map_err(|failure| failure.error(format!("list events of sandbox {}", object.name())))
    }

    /// Asks for a deletion, and returns before it is done. Where `uid` is given, only the one that has it is deleted: where another has the
    /// name, there is none.
    pub(crate) async fn delete(&self, name: &str, uid: Option<&str>) -> Result<(), Error> {
        match self {
            Self::Standalone(agent) => agent.delete(name, uid).await,
            Self::Cluster(cluster) => cluster.delete(name, uid).await,
        }
        .map_err(|failure| failure.error(format!("delete sandbox {name}")))
    }

    /// What happens to sandboxes from now on; nothing is connected yet.
    pub(crate) fn changes(&self, selection: &Selection) -> Changes {
        match self {
            Self::Standalone(agent) => Changes::Standalone(Box::new(agent.changes(selection))),
            Self::Cluster(cluster) => Changes::Cluster(Box::new(cluster.changes(selection))),
        }
    }

    /// Opens one connection of a session in sandbox `name` by its first request, which needs no key.
    pub(crate) async fn session(
        &self,
        name: &str,
        first: SessionRequest,
    ) -> Result<Connection, Failure> {
        match self {
            Self::Standalone(agent) => {
                let (requests, replies) = agent.session(name, first).await?;
                Ok(Connection {
                    requests,
                    replies: Replies::Standalone(Box::new(replies)),
                })
            }
            Self::Cluster(cluster) => cluster.session(name, first).await,
        }
    }

    /// What sandbox `name` uses.
    pub(crate) async fn usage(&self, name: &str) -> Result<Usage, Error> {
        match self {
            Self::Standalone(agent) => agent.usage(name).await,
            Self::Cluster(cluster) => cluster.usage(name).await,
        }
        .map_err(|failure| failure.error(format!("look what sandbox {name} uses")))
    }

    /// Opens the kept output of a command of sandbox `name`.
    pub(crate) async fn log(&self, name: &str, request: LogRequest) -> Result<Replies, Failure> {
        match self {
            Self::Standalone(agent) => {
                let replies = agent.log(name, request).await?;
                Ok(Replies::Standalone(Box::new(replies)))
            }
            Self::Cluster(cluster) => cluster.log(name, &request).await,
        }
    }
}

/// A stream of changes, opened at the first call and anew after each failure.
#[derive(Debug)]
pub(crate) enum Changes {
    /// Of an agent.
    Standalone(Box<standalone::Changes>),
    /// Of a cluster.
    Cluster(Box<cluster::Changes>),
}

impl Changes {
    /// The next change. Not cancel safe where a stream is opened; a call that was dropped there opens it again.
    pub(crate) async fn next(&mut self) -> Result<Change, Failure> {
        match self {
            Self::Standalone(changes) => changes.next().await,
            Self::Cluster(changes) => changes.next().await,
        }
    }
}

/// One connection's two directions.
#[derive(Debug)]
pub(crate) struct Connection {
    /// Dropping it detaches.
    pub(crate) requests: mpsc::Sender<SessionRequest>,
    /// What comes back.
    pub(crate) replies: Replies,
}

/// Replies of a session or a log.
#[derive(Debug)]
pub(crate) enum Replies {
    /// Of an agent.
    Standalone(Box<Streaming<SessionResponse>>),
    /// Of a cluster's gateway.
    Cluster(cluster::Incoming),
}

impl Replies {
    /// The next reply; `None`: the other side has said all. Cancel safe: a half received message stays in the stream.
    pub(crate) async fn next(&mut self) -> Result<Option<SessionResponse>, Failure> {
        match self {
            Self::Standalone(replies) => replies.message().await.map_err(standalone::failure),
            Self::Cluster(incoming) => incoming.next().await,
        }
    }
}
