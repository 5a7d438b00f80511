//! Doing jobs. Decides nothing but what a job leaves open until an object was read.

use std::sync::Arc;
use std::time::Duration;

use cloche_crds::SandboxNode;
use k8s_openapi::api::core::v1::Node as NodeObject;
use kube::api::{Api, DeleteParams, PatchParams, Preconditions};
use kube::{Client, Resource};

use crate::clock::Now;
use crate::event;
use crate::failure::{Class, class};
use crate::index::node::Machine;
use crate::index::sandbox::{SandboxKey, is_unreachable, says_unreachable, version_of};
use crate::job::{Job, Outcome, Subject, Task};
use crate::lenient::Lenient;
use crate::loss::Loss;
use crate::patch::{JsonPatch, PatchError, Read, lose, node_unreachable, unreachable};
use crate::told::chain;

/// How long a request may take. What was written by one that took longer is seen by the watch.
const PATIENCE: Duration = Duration::from_secs(10);

/// Does jobs.
#[derive(Clone)]
pub struct Hands {
    client: Client,
}

/// Why a job failed.
#[derive(Debug, thiserror::Error)]
enum WorkError {
    /// The apiserver refused or could not be reached.
    #[error("ask the apiserver")]
    Api(#[from] Box<kube::Error>),
    /// It did not answer.
    #[error("the apiserver did not answer in {} s", PATIENCE.as_secs())]
    Timeout,
    /// A mistake of ours.
    #[error(transparent)]
    Patch(#[from] PatchError),
    /// The Node is not as it was said to be.
    #[error("the Node is not as it was seen")]
    NotLost,
}

impl WorkError {
    fn class(&self) -> Class {
        match self {
            Self::Api(error) => class(error),
            Self::Timeout => Class::Transient,
            Self::Patch(_) => Class::Bug,
            Self::NotLost => Class::Conflict,
        }
    }
}

impl Hands {
    /// With the operator's account.
    pub const fn new(client: Client) -> Self {
        Self { client }
    }

    /// Does a job; a failure is told here, its class to the decider.
    pub async fn perform(&self, job: &Job, now: Now) -> Outcome {
        let done = match &job.subject {
            Subject::Sandbox(key) => self.of_sandbox(key, job, now).await,
            Subject::Node(name) => self.of_node(name, job, now).await,
        };
        done.unwrap_or_else(|error| {
            let class = error.class();
            let (subject, task) = (told(&job.subject), job.task.as_str());
            match class {
                Class::Gone => return Outcome::Gone,
                Class::Conflict => {
                    tracing::debug!(subject, task, error = chain(&error), "look again");
                }
                Class::Transient => {
                    tracing::warn!(
                        subject,
                        task,
                        class = class.as_str(),
                        error = chain(&error),
                        "trying again"
                    );
                }
                Class::Invalid | Class::Bug => {
                    tracing::error!(
                        subject,
                        task,
                        class = class.as_str(),
                        error = chain(&error),
                        "refused; left until it changes"
                    );
                }
            }
            Outcome::Failed(class)
        })
    }

    async fn of_sandbox(
        &self,
        key: &SandboxKey,
        job: &Job,
        now: Now,
    ) -> Result<Outcome, WorkError> {
        let api: Api<Lenient> = Api::namespaced(self.client.clone(), &key.namespace);
        let object = match &job.task {
            Task::Write { finalizer, status } => {
                let put = write(&api, &key.name, finalizer.as_ref(), Place::Object);
                let set = write(&api, &key.name, status.as_ref(), Place::Status);
                let (put, set) = futures::future::join(put, set).await;
                let (put, set) = (put?, set?);
                event::tell_end(&self.client, set.as_ref(), now);
                newest(put, set)
            }
            Task::Release { patch, absent } => {
                if let Some((node, uid)) = absent {
                    let loss = match uid {
                        Some(_) => Loss::Replaced,
                        None => Loss::Deleted,
                    };
                    self.prove(loss, node, uid.as_deref()).await?;
                }
                write(&api, &key.name, Some(patch), Place::Object).await?
            }
            Task::Delete { version } => {
                let only = Preconditions {
                    uid: Some(job.uid.to_string()),
                    resource_version: Some(version.to_string()),
                };
                let params = DeleteParams::default().preconditions(only);
                // The object as it is while it goes, or at once nothing.
                match ask(api.delete(&key.name, &params)).await?.left() {
                    Some(object) => Some(object),
                    None => return Ok(Outcome::Gone),
                }
            }
            Task::Unreachable => {
                let read = ask(api.get(&key.name)).await?;
                if read.meta().uid.as_deref() != Some(&*job.uid) {
                    return Ok(Outcome::Gone);
                }
                match tell_unreachable(&read, now) {
                    Some(patch) => write(&api, &key.name, Some(&patch), Place::Status).await?,
                    None => Some(read),
                }
            }
            Task::Lose(loss) => {
                let read = ask(api.get(&key.name)).await?;
                if read.meta().uid.as_deref() != Some(&*job.uid) {
                    return Ok(Outcome::Gone);
                }
                match self.tell_lost(&read, *loss, now).await? {
                    Some(patch) => {
                        let told = write(&api, &key.name, Some(&patch), Place::Status).await?;
                        event::tell_end(&self.client, told.as_ref(), now);
                        told
                    }
                    None => Some(read),
                }
            }
            Task::NodeUnreachable => None,
        };
        Ok(object.map_or(Outcome::Failed(Class::Bug), |object| {
            Outcome::Sandbox(Arc::new(object))
        }))
    }

    async fn tell_lost(
        &self,
        read: &Lenient,
        loss: Loss,
        now: Now,
    ) -> Result<Option<JsonPatch>, WorkError> {
        let status = read.sandbox.status.as_ref();
        let Some(status) = status.filter(|status| status.termination.is_none()) else {
            return Ok(None);
        };
        let Some(node) = &status.node_name else {
            return Ok(None);
        };
        self.prove(loss, node, status.node_uid.as_deref()).await?;
        tracing::warn!(
            namespace = read.meta().namespace,
            name = read.meta().name,
            node,
            "its node is lost: {loss}"
        );
        Ok(Some(lose(of(read), status, node, loss, now.wall)))
    }

    /// Asks the apiserver itself whether a node is lost: a watch may lag behind.
    async fn prove(&self, loss: Loss, node: &str, uid: Option<&str>) -> Result<(), WorkError> {
        let nodes: Api<NodeObject> = Api::all(self.client.clone());
        let found = ask(nodes.get_opt(node)).await?;
        let machine = found.as_ref().map(Machine::read);
        if holds(loss, machine.as_ref(), uid) {
            Ok(())
        } else {
            Err(WorkError::NotLost)
        }
    }

    async fn of_node(&self, name: &str, job: &Job, now: Now) -> Result<Outcome, WorkError> {
        let api: Api<SandboxNode> = Api::all(self.client.clone());
        let read = ask(api.get(name)).await?;
        if read.metadata.uid.as_deref() != Some(&*job.uid) {
            return Ok(Outcome::Gone);
        }
        let status = read.status.as_ref();
        let news = status.filter(|status| !says_unreachable(&status.conditions));
        let node = match news {
            Some(status) => {
                let patch = node_unreachable(of(&read), status, now.wall).to_patch()?;
                ask(api.patch_status(name, &PatchParams::default(), &patch)).await?
            }
            None => read,
        };
        Ok(Outcome::Node(Arc::new(node)))
    }
}

/// Whether a node is lost for this reason, by what the apiserver says now.
fn holds(loss: Loss, machine: Option<&Machine>, uid: Option<&str>) -> bool {
    let Some(machine) = machine else {
        return true;
    };
    let replaced = uid.is_some_and(|uid| *uid != *machine.uid);
    match loss {
        Loss::Deleted | Loss::Replaced => replaced,
        Loss::OutOfService => replaced || machine.out_of_service,
        Loss::NotReady => replaced || !machine.ready,
    }
}

fn tell_unreachable(read: &Lenient, now: Now) -> Option<JsonPatch> {
    let status = read.sandbox.status.as_ref()?;
    let node = status.node_name.as_deref()?;
    let lives = status.termination.is_none() && !status.phase.is_terminal();
    (lives && !is_unreachable(status)).then(|| unreachable(of(read), status, node, now.wall))
}

fn of<K: Resource>(object: &K) -> Read<'_> {
    Read {
        uid: object.meta().uid.as_deref().unwrap_or_default(),
        version: object
            .meta()
            .resource_version
            .as_deref()
            .unwrap_or_default(),
    }
}

#[derive(Clone, Copy)]
enum Place {
    Object,
    Status,
}

async fn write(
    api: &Api<Lenient>,
    name: &str,
    patch: Option<&JsonPatch>,
    place: Place,
) -> Result<Option<Lenient>, WorkError> {
    let Some(patch) = patch else {
        return Ok(None);
    };
    let (patch, params) = (patch.to_patch()?, PatchParams::default());
    let written = match place {
        Place::Object => ask(api.patch(name, &params, &patch)).await?,
        Place::Status => ask(api.patch_status(name, &params, &patch)).await?,
    };
    Ok(Some(written))
}

/// The later of two states of one object.
fn newest(one: Option<Lenient>, other: Option<Lenient>) -> Option<Lenient> {
    let version = |object: &Lenient| version_of(object.meta());
    match (one, other) {
        (Some(one), Some(other)) if version(&one) > version(&other) => Some(one),
        (_, Some(other)) => Some(other),
        (one, None) => one,
    }
}

async fn ask<T>(request: impl Future<Output = Result<T, kube::Error>>) -> Result<T, WorkError> {
    let answer = tokio::time::timeout(PATIENCE, request).await;
    Ok(answer.map_err(|_| WorkError::Timeout)?.map_err(Box::new)?)
}

fn told(subject: &Subject) -> String {
    match subject {
        Subject::Sandbox(key) => format!("sandbox {key}"),
        Subject::Node(name) => format!("node {name}"),
    }
}
