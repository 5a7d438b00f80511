//! A cluster: objects by its apiserver, sessions and logs by Cloche's gateway behind it.
//!
//! ```text
//! kubeconfig, flags ─► config ─► client ─┬─► objects (pure) ─► apiserver ─► answer (pure)
//!                                        └─► socket ─► apiserver ─► gateway ─► agent
//! ```

mod answer;
mod changes;
mod client;
mod config;
mod objects;
mod socket;

use std::fmt;

use cloche_proto::agent::v1alpha1::session_request::Kind as Ask;
use cloche_proto::agent::v1alpha1::{LogRequest, SessionRequest};
use kube::Client;
use serde::Deserialize;
use serde_json::Value;

use self::answer::Asked;
use self::objects::Objects;
use super::{Connection, Failure, Refusal, Replies, Selection};
use crate::args::ClusterFlags;
use crate::error::Error;
use crate::object::Object;
use crate::object::usage::Usage;

pub(crate) use changes::Changes;
pub(crate) use socket::Incoming;

/// A list is asked for anew so often when its pages are too old to go on.
const LISTS: usize = 3;
/// A Node is written so often when others write it meanwhile.
const WRITES: usize = 10;
/// Pages whose version is no longer kept.
const EXPIRED: u16 = 410;
/// A deletion of an object of another UID.
const CONFLICT: u16 = 409;

/// A cluster, and a namespace in it.
#[derive(Clone)]
pub(crate) struct Cluster {
    client: Client,
    /// For messages.
    server: String,
    objects: Objects,
}

impl Cluster {
    /// By the kubeconfig and what the command line says over it; nothing is connected yet.
    pub(crate) async fn new(flags: &ClusterFlags, namespace: Option<&str>) -> Result<Self, Error> {
        let config = config::load(flags).await?;
        let namespace = namespace.unwrap_or(&config.default_namespace);
        let objects =
            Objects::new(namespace).map_err(|refusal| Error::Usage(refusal.to_string()))?;
        Ok(Self {
            server: config.cluster_url.to_string(),
            client: client::client(config)?,
            objects,
        })
    }

    /// The same in another namespace.
    pub(super) fn in_namespace(&self, namespace: &str) -> Result<Self, Error> {
        let objects =
            Objects::new(namespace).map_err(|refusal| Error::Usage(refusal.to_string()))?;
        Ok(Self {
            objects,
            ..self.clone()
        })
    }

    fn failure(&self, problem: kube::Error, asked: Asked) -> Failure {
        answer::failure(problem, asked, &self.server)
    }

    /// Asks for something of the apiserver.
    async fn request(&self, request: http::Request<Vec<u8>>) -> Result<Value, Failure> {
        self.client
            .request(request)
            .await
            .map_err(|problem| self.failure(problem, Asked::Objects))
    }

    /// What a sandbox uses.
    pub(super) async fn usage(&self, name: &str) -> Result<Usage, Failure> {
        let used = self
            .client
            .request(self.objects.usage(name)?)
            .await
            .map_err(|problem| self.failure(problem, Asked::Gateway))?;
        serde_json::from_value(used).map_err(|problem| Failure::Wrong(problem.to_string()))
    }

    /// The sandboxes; a refusal where one was named and is not there.
    pub(super) async fn list(&self, selection: &Selection) -> Result<Vec<Object>, Failure> {
        match selection {
            Selection::One(name) => {
                let object = self.request(self.objects.get(name)?).await?;
                Ok(vec![Object::of(object).map_err(Failure::Wrong)?])
            }
            Selection::All(_) | Selection::Everywhere(_) | Selection::OnNode(_) => self
                .page_through(selection)
                .await
                .map(|(objects, _)| objects),
        }
    }

    /// Events of an object: as many as one answer holds.
    pub(super) async fn events(&self, object: &Object) -> Result<Vec<Object>, Failure> {
        let Some(uid) = object.word("/metadata/uid") else {
            return Ok(Vec::new());
        };
        let page = self.request(self.objects.events(&uid)?).await?;
        let page: Page =
            serde_json::from_value(page).map_err(|problem| Failure::Wrong(problem.to_string()))?;
        page.items
            .into_iter()
            .map(Object::of)
            .collect::<Result<_, _>>()
            .map_err(Failure::Wrong)
    }

    /// All of a list, and its version.
    async fn page_through(&self, selection: &Selection) -> Result<(Vec<Object>, String), Failure> {
        let mut objects = Vec::new();
        let mut next: Option<String> = None;
        let mut tries = 1;
        loop {
            let request = self.objects.list(selection, next.as_deref())?;
            let page: Page = match self.client.request(request).await {
                Ok(page) => page,
                Err(kube::Error::Api(status)) if status.code == EXPIRED && tries < LISTS => {
                    tries += 1;
                    objects.clear();
                    next = None;
                    continue;
                }
                Err(problem) => return Err(self.failure(problem, Asked::Objects)),
            };
            for item in page.items {
                objects.push(Object::of(item).map_err(Failure::Wrong)?);
            }
            match page.metadata.next {
                Some(more) if !more.is_empty() => next = Some(more),
                Some(_) | None => return Ok((objects, page.metadata.resource_version)),
            }
        }
    }

    /// Makes a sandbox; as it is stored, or with `check_only` as it would be.
    pub(super) async fn create(
        &self,
        manifest: Vec<u8>,
        check_only: bool,
    ) -> Result<Object, Failure> {
        let made = self
            .request(self.objects.create(manifest, check_only)?)
            .await?;
        Object::of(made).map_err(Failure::Wrong)
    }

    /// Changes what `patch` names of a sandbox; the generation that this made.
    pub(super) async fn merge(&self, name: &str, patch: &Value) -> Result<Option<i64>, Failure> {
        let written = self.request(self.objects.merge(name, patch)?).await?;
        Ok(written
            .pointer("/metadata/generation")
            .and_then(Value::as_i64))
    }

    /// Puts the taint on a Node that has its sandboxes end, or takes it off; beside whatever other taints it has.
    pub(super) async fn set_drained(&self, node: &str, is_drained: bool) -> Result<(), Failure> {
        let mut tries = 1;
        loop {
            let seen = self.request(objects::node(node)?).await?;
            let Some(patch) = objects::taints(&seen, is_drained) else {
                return Ok(());
            };
            let request = objects::patch_node(node, &patch)?;
            match self.client.request::<Value>(request).await {
                Ok(_) => return Ok(()),
                // Somebody else wrote meanwhile.
                Err(kube::Error::Api(status)) if status.code == CONFLICT && tries < WRITES => {
                    tries += 1;
                }
                Err(problem) => return Err(self.failure(problem, Asked::Objects)),
            }
        }
    }

    /// Asks for a deletion.
    pub(super) async fn delete(&self, name: &str, uid: Option<&str>) -> Result<(), Failure> {
        let request = self.objects.delete(name, uid)?;
        let answer = self.client.request::<Value>(request).await;
        answer.map(drop).map_err(|problem| match problem {
            kube::Error::Api(status) if status.code == CONFLICT && uid.is_some() => {
                Failure::Refused(Refusal::not_found(&format!(
                    "the sandbox {name} was deleted, and another one has its name"
                )))
            }
            problem => self.failure(problem, Asked::Objects),
        })
    }

    /// What happens to sandboxes; nothing is connected yet.
    pub(super) fn changes(&self, selection: &Selection) -> Changes {
        Changes::new(self.clone(), selection.clone())
    }

    /// Runs a command or attaches to one.
    pub(super) async fn session(
        &self,
        name: &str,
        first: SessionRequest,
    ) -> Result<Connection, Failure> {
        let runs = matches!(&first.kind, Some(Ask::Open(open)) if open.command.is_some());
        let path = self.objects.session(name, runs)?;
        socket::session(&self.client, &self.server, &path, first).await
    }

    /// A command's output as kept on its node.
    pub(super) async fn log(&self, name: &str, request: &LogRequest) -> Result<Replies, Failure> {
        let path = self.objects.log(name, request)?;
        socket::read(&self.client, &self.server, &path).await
    }
}

impl fmt::Debug for Cluster {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Cluster")
            .field("server", &self.server)
            .finish_non_exhaustive()
    }
}

/// A page of a list.
#[derive(Deserialize)]
struct Page {
    metadata: PageMetadata,
    #[serde(default)]
    items: Vec<Value>,
}

#[derive(Deserialize)]
struct PageMetadata {
    #[serde(rename = "resourceVersion", default)]
    resource_version: String,
    #[serde(rename = "continue")]
    next: Option<String>,
}
