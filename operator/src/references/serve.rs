//! Answers over mTLS: live reads, and nothing decided.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use cloche_crds::cluster::CA_SECRET;
use cloche_crds::rules::{is_subdomain, validate};
use cloche_crds::sandbox::ReferenceKind;
use cloche_crds::{Effective, ImageRef, Sandbox};
use cloche_identity::{Credentials, Identity};
use cloche_proto::operator::v1alpha1 as pb;
use cloche_proto::operator::v1alpha1::references_server::{References, ReferencesServer};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use k8s_openapi::api::core::v1::{ConfigMap, Node, Secret};
use kube::{Api, Client, Resource};
use serde::de::DeserializeOwned;
use tokio::net::TcpListener;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status};

use super::binding::is_of;
use super::docker;
use super::environment::{Found, Named, objects, values, wanted};
use crate::told::chain;

/// How long one request to the apiserver may take.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long an answer may take, and how long a connection is used: an agent makes one for each question.
const ANSWER: Duration = Duration::from_secs(30);
/// Questions of one connection at one time.
const QUESTIONS: usize = 4;
/// Questions of all agents at one time, and of one node's. Of each are read so many objects at a time, of up to 1 MiB: of what is read only
/// what was asked for is kept.
const ANSWERS: usize = 16;
const OF_ONE: usize = 2;
/// Objects that are read at one time for one answer.
const READS: usize = 4;
/// How long a connection may take to end that is too old.
const GRACE: Duration = Duration::from_secs(5);
/// Bytes of a question: three names.
const LONGEST: usize = 4 << 10;

/// Answers agents at `listener` by the newest of `credentials`. `namespace` is where Cloche is installed.
pub async fn serve(
    listener: TcpListener,
    client: Client,
    namespace: String,
    credentials: watch::Receiver<Option<Credentials>>,
) -> Result<(), tonic::transport::Error> {
    let service = ReferencesServer::new(Service {
        client,
        namespace,
        turns: Turns::default(),
    });
    let (connections, accepted) = mpsc::channel(1);
    let server = tonic::transport::Server::builder()
        .timeout(ANSWER)
        .max_connection_age(ANSWER)
        .max_connection_age_grace(GRACE)
        .concurrency_limit_per_connection(QUESTIONS)
        .add_service(service.max_decoding_message_size(LONGEST))
        .serve_with_incoming(ReceiverStream::new(accepted));
    tokio::select! {
        // Accepts for ever, or until the server has ended.
        () = cloche_identity::accept(listener, credentials, is_agent, connections) => Ok(()),
        ended = server => ended,
    }
}

fn is_agent(peer: &Identity) -> bool {
    match peer {
        Identity::Agent { .. } => true,
        Identity::Gateway | Identity::Operator => false,
    }
}

struct Service {
    client: Client,
    namespace: String,
    turns: Turns,
}

/// Who is answered now. Others wait, as long as an answer may take.
struct Turns {
    all: Arc<Semaphore>,
    /// By node.
    of_one: Mutex<HashMap<String, Weak<Semaphore>>>,
}

/// The turn of one question.
struct Turn {
    _of_one: OwnedSemaphorePermit,
    _of_all: OwnedSemaphorePermit,
}

impl Default for Turns {
    fn default() -> Self {
        Self {
            all: Arc::new(Semaphore::new(ANSWERS)),
            of_one: Mutex::default(),
        }
    }
}

impl Turns {
    async fn take(&self, node: &str) -> Result<Turn, Status> {
        let closed = |_| Status::unavailable("the operator stops");
        // First: a node whose questions wait holds up no other's.
        let of_one = self.of(node).acquire_owned().await.map_err(closed)?;
        let of_all = Arc::clone(&self.all)
            .acquire_owned()
            .await
            .map_err(closed)?;
        Ok(Turn {
            _of_one: of_one,
            _of_all: of_all,
        })
    }

    fn of(&self, node: &str) -> Arc<Semaphore> {
        let mut of_one = self.of_one.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = of_one.get(node).and_then(Weak::upgrade) {
            return known;
        }
        of_one.retain(|_, known| known.strong_count() > 0);
        let new = Arc::new(Semaphore::new(OF_ONE));
        of_one.insert(node.to_owned(), Arc::downgrade(&new));
        new
    }
}

#[tonic::async_trait]
impl References for Service {
    async fn environment(
        &self,
        request: Request<pb::SandboxReference>,
    ) -> Result<Response<pb::EnvironmentResponse>, Status> {
        let _turn = self.turns.take(asking(&request)?).await?;
        let (namespace, spec) = self.asked(request).await?;
        let found = self.read(&namespace, &spec).await?;
        let values = values(&spec, &found).map_err(Status::failed_precondition)?;
        let variables = values
            .into_iter()
            .map(|(name, value)| pb::Variable { name, value })
            .collect();
        Ok(Response::new(pb::EnvironmentResponse { variables }))
    }

    async fn logins(
        &self,
        request: Request<pb::SandboxReference>,
    ) -> Result<Response<pb::LoginsResponse>, Status> {
        let _turn = self.turns.take(asking(&request)?).await?;
        let (namespace, spec) = self.asked(request).await?;
        let ImageRef::Registry(image) = &spec.image else {
            return Ok(Response::new(pb::LoginsResponse::default()));
        };
        let mut logins = Vec::new();
        for name in &spec.pull_secrets {
            let secret = self.secret(&namespace, name).await?;
            let found = secret
                .ok_or_else(|| "is not there".to_owned())
                .and_then(|secret| docker::logins(&secret, image));
            let found = found.map_err(|fault| {
                Status::failed_precondition(format!(
                    "imagePullSecrets: the Secret {name:?} {fault}"
                ))
            })?;
            logins.extend(found.into_iter().map(|login| pb::Login {
                secret: name.clone(),
                user: login.user,
                password: login.password,
            }));
        }
        Ok(Response::new(pb::LoginsResponse { logins }))
    }
}

impl Service {
    /// Namespace and spec of the sandbox that is asked for, where it is the asking agent's.
    async fn asked(
        &self,
        request: Request<pb::SandboxReference>,
    ) -> Result<(String, Effective), Status> {
        let node = asking(&request)?.to_owned();
        let pb::SandboxReference {
            namespace,
            name,
            uid,
        } = request.into_inner();
        // They become a part of a path.
        if !is_subdomain(&namespace) || !is_subdomain(&name) {
            return Err(Status::invalid_argument("these are no names of objects"));
        }
        let sandboxes: Api<Sandbox> = Api::namespaced(self.client.clone(), &namespace);
        let nodes: Api<Node> = Api::all(self.client.clone());
        let (sandbox, found) = tokio::try_join!(get(&sandboxes, &name), get(&nodes, &node))?;
        let node_uid = found.and_then(|node| node.metadata.uid).unwrap_or_default();
        let Some(sandbox) = sandbox.filter(|sandbox| is_of(sandbox, &uid, &node, &node_uid)) else {
            tracing::warn!(node, namespace, name, uid, "refused: not of its node");
            return Err(Status::permission_denied(format!(
                "the sandbox {namespace}/{name} of UID {uid} is not bound to the node {node}, or has ended"
            )));
        };
        let spec = validate(&sandbox).map_err(|broken| {
            Status::failed_precondition(format!("the sandbox breaks a rule: {broken}"))
        })?;
        Ok((namespace, spec))
    }

    /// What the environment of `spec` names.
    async fn read(&self, namespace: &str, spec: &Effective) -> Result<Found, Status> {
        stream::iter(objects(spec))
            .map(async |(named, wanted)| {
                let keys = self.keys(namespace, &named, &wanted).await?;
                Ok((named, keys))
            })
            .buffer_unordered(READS)
            .try_collect()
            .await
    }

    /// The keys of an object that are `asked` for, if it is there.
    async fn keys(
        &self,
        namespace: &str,
        (kind, name): &Named,
        asked: &BTreeSet<String>,
    ) -> Result<Option<BTreeMap<String, Vec<u8>>>, Status> {
        match kind {
            ReferenceKind::Secret => {
                let secret = self.secret(namespace, name).await?;
                let data = secret.map(|secret| secret.data.unwrap_or_default());
                Ok(data
                    .map(|data| wanted(data.into_iter().map(|(key, bytes)| (key, bytes.0)), asked)))
            }
            ReferenceKind::ConfigMap => {
                let maps: Api<ConfigMap> = Api::namespaced(self.client.clone(), namespace);
                let data = get(&maps, name).await?;
                let data = data.map(|map| map.data.unwrap_or_default());
                Ok(data.map(|data| {
                    let bytes = data.into_iter().map(|(key, text)| (key, text.into_bytes()));
                    wanted(bytes, asked)
                }))
            }
        }
    }

    async fn secret(&self, namespace: &str, name: &str) -> Result<Option<Secret>, Status> {
        // Who could read it could be every part of Cloche.
        if namespace == self.namespace && name == CA_SECRET {
            return Err(Status::failed_precondition(format!(
                "the Secret {CA_SECRET:?} is Cloche's own, which no sandbox gets: name another"
            )));
        }
        let secrets: Api<Secret> = Api::namespaced(self.client.clone(), namespace);
        get(&secrets, name).await
    }
}

/// The node of the agent that asks.
fn asking<T>(request: &Request<T>) -> Result<&str, Status> {
    match request.extensions().get::<Identity>() {
        Some(Identity::Agent { node }) => Ok(node),
        Some(Identity::Gateway | Identity::Operator) | None => {
            Err(Status::permission_denied("only agents are answered"))
        }
    }
}

/// An object as it is now, if it is there.
async fn get<K>(api: &Api<K>, name: &str) -> Result<Option<K>, Status>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + std::fmt::Debug,
{
    let kind = K::kind(&());
    let answer = tokio::time::timeout(PATIENCE, api.get_opt(name)).await;
    let answer = answer.map_err(|_| {
        Status::unavailable(format!(
            "read the {kind} {name:?}: the apiserver does not answer"
        ))
    })?;
    answer.map_err(|error| {
        Status::unavailable(format!("read the {kind} {name:?}: {}", chain(&error)))
    })
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    #[tokio::test]
    async fn a_node_that_asks_much_holds_up_no_other() {
        let turns = Turns::default();
        let mut held = Vec::new();
        for _ in 0..OF_ONE {
            held.push(turns.take("a").await.unwrap());
        }
        assert!(turns.take("a").now_or_never().is_none(), "it waits");
        for node in 0..ANSWERS - OF_ONE {
            held.push(turns.take(&node.to_string()).await.unwrap());
        }
        assert!(turns.take("b").now_or_never().is_none(), "all are taken");
        held.pop();
        assert!(turns.take("b").now_or_never().is_some());
        held.clear();
        assert!(turns.take("a").now_or_never().is_some());
        drop(turns.take("c").await);
        assert_eq!(turns.of_one.lock().unwrap().len(), 1, "of those that ask");
    }
}
