//! `cloche-operator uninstall`: what has to be gone before the parts of Cloche are, and what is left after them.
//!
//! Run by the chart's hooks. Each step tolerates what is done already, so an uninstall that failed half-way can be repeated.
//! - before: the `APIService` goes first, since one without a server blocks the deletion of every namespace of the cluster; then the
//!   sandboxes, while there are agents to end them and an operator to release those that no node has.
//! - after: what agents and operator made for themselves.

use std::collections::BTreeMap;
use std::time::Duration;

use cloche_crds::cluster::{CA_CONFIG_MAP, CA_SECRET, SUBRESOURCES_GROUP, VERSION};
use cloche_crds::{Sandbox, SandboxNode};
use futures::StreamExt as _;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use k8s_openapi::kube_aggregator::pkg::apis::apiregistration::v1::APIService;
use kube::api::{Api, DeleteParams, ListParams, PartialObjectMeta};
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::{self, Event};
use kube::{Client, ResourceExt};

use crate::told::chain;

/// Sandboxes that a message names.
const NAMED: usize = 5;

/// How `cloche-operator uninstall` is run.
#[derive(Clone, Debug, clap::Subcommand)]
pub enum Step {
    /// Take the `APIService` away, then end and delete sandboxes, or refuse
    Before {
        /// What becomes of sandboxes that exist
        #[arg(long, value_enum)]
        sandboxes: Sandboxes,
        /// Seconds until it gives up waiting for sandboxes to be gone
        #[arg(long, default_value_t = 120, value_parser = clap::value_parser!(u32).range(1..=3600))]
        timeout_seconds: u32,
    },
    /// Remove what agents and operator made for themselves
    After,
}

/// What becomes of sandboxes that exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Sandboxes {
    /// They are ended and deleted.
    Delete,
    /// The uninstall fails.
    Refuse,
}

/// Why an uninstall cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum UninstallError {
    /// The apiserver refused or could not be reached.
    #[error("{what}")]
    Api {
        /// What was asked of it.
        what: &'static str,
        /// Why.
        #[source]
        source: Box<kube::Error>,
    },
    /// It is not known what exists.
    #[error(
        "the sandboxes could not be listed in {0} s: look at the apiserver, then uninstall again"
    )]
    Unlisted(u64),
    /// There are sandboxes, and they are not to be deleted.
    #[error(
        "there are {count} sandboxes ({some}): delete them first, or uninstall with uninstall.sandboxes=Delete"
    )]
    Exist {
        /// How many.
        count: usize,
        /// A few of their names.
        some: String,
    },
    /// They did not go.
    #[error(
        "{count} sandboxes are still there ({some}): their nodes have not said that nothing of them is left. Look at their nodes' agents, then uninstall again"
    )]
    Left {
        /// How many.
        count: usize,
        /// A few of their names.
        some: String,
    },
}

/// Does one step.
pub async fn run(client: Client, namespace: &str, step: &Step) -> Result<(), UninstallError> {
    match step {
        Step::Before {
            sandboxes,
            timeout_seconds,
        } => {
            if *sandboxes == Sandboxes::Refuse {
                refuse_if_any(&client).await?;
            }
            let services: Api<APIService> = Api::all(client.clone());
            delete(
                &services,
                &format!("{VERSION}.{SUBRESOURCES_GROUP}"),
                "delete the APIService",
            )
            .await?;
            let patience = Duration::from_secs(u64::from(*timeout_seconds));
            end_sandboxes(client, patience).await
        }
        Step::After => {
            let leases: Api<Lease> = Api::namespaced(client.clone(), namespace);
            for node in existing(
                &Api::<SandboxNode>::all(client.clone()),
                "list sandbox nodes",
            )
            .await?
            {
                let name = node.name_any();
                delete(
                    &Api::<SandboxNode>::all(client.clone()),
                    &name,
                    "delete a sandbox node",
                )
                .await?;
                delete(&leases, &name, "delete a node's lease").await?;
            }
            delete(&leases, crate::lease::NAME, "delete the operator's lease").await?;
            let maps: Api<ConfigMap> = Api::namespaced(client.clone(), namespace);
            delete(&maps, CA_CONFIG_MAP, "delete the CA's ConfigMap").await?;
            let secrets: Api<Secret> = Api::namespaced(client, namespace);
            delete(&secrets, CA_SECRET, "delete the CA's Secret").await
        }
    }
}

async fn refuse_if_any(client: &Client) -> Result<(), UninstallError> {
    let sandboxes: Api<Sandbox> = Api::all(client.clone());
    let left = existing(&sandboxes, "list sandboxes").await?;
    if left.is_empty() {
        return Ok(());
    }
    Err(UninstallError::Exist {
        count: left.len(),
        some: some(left.iter().map(full_name)),
    })
}

/// Deletes every sandbox, also those that are made meanwhile, until there is none.
async fn end_sandboxes(client: Client, patience: Duration) -> Result<(), UninstallError> {
    let mut left = BTreeMap::new();
    match tokio::time::timeout(patience, follow(&client, &mut left)).await {
        Ok(done) => done,
        Err(_) if left.is_empty() => Err(UninstallError::Unlisted(patience.as_secs())),
        Err(_) => Err(UninstallError::Left {
            count: left.len(),
            some: some(left.into_values()),
        }),
    }
}

/// `left`: those that exist, their names by uid.
async fn follow(
    client: &Client,
    left: &mut BTreeMap<String, String>,
) -> Result<(), UninstallError> {
    let sandboxes: Api<PartialObjectMeta<Sandbox>> = Api::all(client.clone());
    let events = watcher::watcher(sandboxes, watcher::Config::default()).default_backoff();
    let mut events = std::pin::pin!(events);
    let mut listed = BTreeMap::new();
    let mut known = false;
    loop {
        let Some(event) = events.next().await else {
            // A watch goes on for ever; without one nothing more is known until the patience is over.
            return std::future::pending().await;
        };
        let event = match event {
            Ok(event) => event,
            Err(error) if is_without_kind(&error) => return Ok(()),
            Err(error) => {
                tracing::warn!(
                    error = chain(&error),
                    "cannot watch sandboxes; trying again"
                );
                continue;
            }
        };
        match event {
            Event::Init => {
                listed.clear();
                known = false;
            }
            Event::InitApply(object) => {
                listed.insert(object.uid().unwrap_or_default(), full_name(&object));
                end(client, &object).await?;
            }
            Event::InitDone => {
                *left = std::mem::take(&mut listed);
                known = true;
            }
            Event::Apply(object) => {
                left.insert(object.uid().unwrap_or_default(), full_name(&object));
                end(client, &object).await?;
            }
            Event::Delete(object) => {
                left.remove(&object.uid().unwrap_or_default());
            }
        }
        if known && left.is_empty() {
            return Ok(());
        }
    }
}

/// Whether there is nothing to watch: the CRDs are gone, and every sandbox with them.
fn is_without_kind(error: &watcher::Error) -> bool {
    matches!(error, watcher::Error::InitialListFailed(kube::Error::Api(status)) if status.code == 404)
}

async fn end(client: &Client, object: &PartialObjectMeta<Sandbox>) -> Result<(), UninstallError> {
    if object.metadata.deletion_timestamp.is_some() {
        return Ok(());
    }
    let namespace = object.namespace().unwrap_or_default();
    let sandboxes: Api<Sandbox> = Api::namespaced(client.clone(), &namespace);
    delete(&sandboxes, &object.name_any(), "delete a sandbox").await
}

/// Deletes one object; none is no error.
async fn delete<K>(api: &Api<K>, name: &str, what: &'static str) -> Result<(), UninstallError>
where
    K: Clone + std::fmt::Debug + serde::de::DeserializeOwned,
{
    match api.delete(name, &DeleteParams::default()).await {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        Err(source) => Err(UninstallError::Api {
            what,
            source: Box::new(source),
        }),
    }
}

/// What there is of a kind; nothing where the kind itself is gone.
async fn existing<K>(
    api: &Api<K>,
    what: &'static str,
) -> Result<Vec<PartialObjectMeta<K>>, UninstallError>
where
    K: Clone + std::fmt::Debug + serde::de::DeserializeOwned,
{
    match api.list_metadata(&ListParams::default()).await {
        Ok(list) => Ok(list.items),
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(Vec::new()),
        Err(source) => Err(UninstallError::Api {
            what,
            source: Box::new(source),
        }),
    }
}

fn full_name<K>(object: &PartialObjectMeta<K>) -> String {
    let name = object.metadata.name.as_deref().unwrap_or_default();
    let namespace = object.metadata.namespace.as_deref().unwrap_or_default();
    format!("{namespace}/{name}")
}

fn some(names: impl IntoIterator<Item = String>) -> String {
    let mut names = names.into_iter();
    let mut some: Vec<String> = names.by_ref().take(NAMED).collect();
    if names.next().is_some() {
        some.push("…".to_owned());
    }
    some.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_crds_there_is_nothing_to_end() {
        let failed = |code| {
            let status = kube::core::Status::failure("", "").with_code(code);
            watcher::Error::InitialListFailed(kube::Error::Api(Box::new(status)))
        };
        assert!(is_without_kind(&failed(404)));
        assert!(!is_without_kind(&failed(403)));
    }

    #[test]
    fn a_few_are_named() {
        let names = |count: usize| (0..count).map(|index| format!("ns/{index}"));
        assert_eq!(some(names(0)), "");
        assert_eq!(some(names(2)), "ns/0, ns/1");
        assert_eq!(some(names(NAMED)).matches(", ").count(), NAMED - 1);
        assert!(some(names(NAMED + 1)).ends_with(", …"));
    }
}
