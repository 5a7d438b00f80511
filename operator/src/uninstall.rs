//! `cloche-operator uninstall`: what has to be gone before the parts of Cloche are, and what is left after them.
//!
//! Run by the chart's hooks. Each step tolerates what is done already, so an uninstall that failed half-way can be repeated. What the
//! apiserver refuses only now is asked for again, until the step's time is over.
//! - before: the `APIService` goes first, since one without a server blocks the deletion of every namespace of the cluster; then the
//!   sandboxes, while there are agents to end them and an operator to release those that no node has.
//! - after: what agents and operator made for themselves.

use std::collections::BTreeMap;
use std::time::Duration;

use cloche_crds::cluster::{CA_CONFIG_MAP, CA_SECRET, SUBRESOURCES_GROUP, VERSION};
use cloche_crds::{Sandbox, SandboxNode};
use futures::StreamExt as _;
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use k8s_openapi::kube_aggregator::pkg::apis::apiregistration::v1::APIService;
use kube::api::{Api, DeleteParams, ListParams, PartialObjectMeta};
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::{self, Event};
use kube::{Client, ResourceExt};
use tokio::time::Instant;

use crate::failure::{Class, class, pause};
use crate::told::chain;

/// Sandboxes that a message names.
const NAMED: usize = 5;
/// Sandboxes that are ended at one time.
const AT_ONCE: usize = 16;
/// How long what is left after the parts may take: helm waits five minutes for all of it.
const AFTER: Duration = Duration::from_mins(1);
/// How long one request may take.
const PATIENCE: Duration = Duration::from_secs(10);

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
    /// It did not answer.
    #[error("{what}: the apiserver has not answered in {} s", PATIENCE.as_secs())]
    Silent {
        /// What was asked of it.
        what: &'static str,
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
            let patience = Duration::from_secs(u64::from(*timeout_seconds));
            let until = Instant::now() + patience;
            if *sandboxes == Sandboxes::Refuse {
                refuse_if_any(&client, until).await?;
            }
            let services: Api<APIService> = Api::all(client.clone());
            delete(
                &services,
                &format!("{VERSION}.{SUBRESOURCES_GROUP}"),
                "delete the APIService",
                until,
            )
            .await?;
            end_sandboxes(client, patience, until).await
        }
        Step::After => {
            let until = Instant::now() + AFTER;
            let nodes: Api<SandboxNode> = Api::all(client.clone());
            let leases: Api<Lease> = Api::namespaced(client.clone(), namespace);
            for node in existing(&nodes, "list sandbox nodes", until).await? {
                let name = node.name_any();
                delete(&nodes, &name, "delete a sandbox node", until).await?;
                delete(&leases, &name, "delete a node's lease", until).await?;
            }
            let lease = crate::lease::NAME;
            delete(&leases, lease, "delete the operator's lease", until).await?;
            let maps: Api<ConfigMap> = Api::namespaced(client.clone(), namespace);
            delete(&maps, CA_CONFIG_MAP, "delete the CA's ConfigMap", until).await?;
            let secrets: Api<Secret> = Api::namespaced(client, namespace);
            delete(&secrets, CA_SECRET, "delete the CA's Secret", until).await
        }
    }
}

async fn refuse_if_any(client: &Client, until: Instant) -> Result<(), UninstallError> {
    let sandboxes: Api<Sandbox> = Api::all(client.clone());
    let left = existing(&sandboxes, "list sandboxes", until).await?;
    if left.is_empty() {
        return Ok(());
    }
    Err(UninstallError::Exist {
        count: left.len(),
        some: some(left.iter().map(full_name)),
    })
}

/// Deletes every sandbox, also those that are made meanwhile, until there is none.
async fn end_sandboxes(
    client: Client,
    patience: Duration,
    until: Instant,
) -> Result<(), UninstallError> {
    let mut left = BTreeMap::new();
    match tokio::time::timeout_at(until, follow(&client, &mut left, until)).await {
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
    until: Instant,
) -> Result<(), UninstallError> {
    let sandboxes: Api<PartialObjectMeta<Sandbox>> = Api::all(client.clone());
    let events = watcher::watcher(sandboxes, watcher::Config::default()).default_backoff();
    let mut events = std::pin::pin!(events);
    let mut listed = BTreeMap::new();
    let mut known = false;
    // One that is refused for now holds up no other.
    let mut ends = FuturesUnordered::new();
    loop {
        let event = tokio::select! {
            // Both are cancel safe: streams keep what is not taken.
            Some(ended) = ends.next() => {
                let () = ended?;
                continue;
            }
            event = events.next(), if ends.len() < AT_ONCE => event,
        };
        let Some(event) = event else {
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
                ends.extend(end(client, &object, until));
            }
            Event::InitDone => {
                *left = std::mem::take(&mut listed);
                known = true;
            }
            Event::Apply(object) => {
                left.insert(object.uid().unwrap_or_default(), full_name(&object));
                ends.extend(end(client, &object, until));
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

/// The deletion of one that is not being deleted yet.
fn end(
    client: &Client,
    object: &PartialObjectMeta<Sandbox>,
    until: Instant,
) -> Option<BoxFuture<'static, Result<(), UninstallError>>> {
    if object.metadata.deletion_timestamp.is_some() {
        return None;
    }
    let namespace = object.namespace().unwrap_or_default();
    let sandboxes: Api<Sandbox> = Api::namespaced(client.clone(), &namespace);
    let name = object.name_any();
    Some(Box::pin(async move {
        delete(&sandboxes, &name, "delete a sandbox", until).await
    }))
}

/// Deletes one object; none is no error.
async fn delete<K>(
    api: &Api<K>,
    name: &str,
    what: &'static str,
    until: Instant,
) -> Result<(), UninstallError>
where
    K: Clone + std::fmt::Debug + serde::de::DeserializeOwned,
{
    let params = DeleteParams::default();
    persist(what, until, || api.delete(name, &params))
        .await
        .map(drop)
}

/// What there is of a kind; nothing where the kind itself is gone.
async fn existing<K>(
    api: &Api<K>,
    what: &'static str,
    until: Instant,
) -> Result<Vec<PartialObjectMeta<K>>, UninstallError>
where
    K: Clone + std::fmt::Debug + serde::de::DeserializeOwned,
{
    let params = ListParams::default();
    let list = persist(what, until, || api.list_metadata(&params)).await?;
    Ok(list.map(|list| list.items).unwrap_or_default())
}

/// Asks, again and again where it may go well later, before `until`; nothing where there is no such thing.
async fn persist<T, F>(
    what: &'static str,
    until: Instant,
    ask: impl Fn() -> F,
) -> Result<Option<T>, UninstallError>
where
    F: Future<Output = Result<T, kube::Error>>,
{
    let mut failures = 0;
    loop {
        let error = match tokio::time::timeout(PATIENCE, ask()).await {
            Ok(Ok(done)) => return Ok(Some(done)),
            Ok(Err(source)) => match class(&source) {
                Class::Gone => return Ok(None),
                Class::Conflict | Class::Transient => api(what, source),
                Class::Invalid | Class::Bug => return Err(api(what, source)),
            },
            Err(_) => UninstallError::Silent { what },
        };
        let again = Instant::now() + pause(failures, 0);
        if again >= until {
            return Err(error);
        }
        tracing::warn!(error = chain(&error), "trying again");
        failures += 1;
        tokio::time::sleep_until(again).await;
    }
}

fn api(what: &'static str, source: kube::Error) -> UninstallError {
    let source = Box::new(source);
    UninstallError::Api { what, source }
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

    #[tokio::test]
    async fn what_is_refused_for_now_is_asked_for_again_in_time() {
        let refused = |code| {
            let status = kube::core::Status::failure("", "").with_code(code);
            kube::Error::Api(Box::new(status))
        };
        let asked = std::cell::Cell::new(0);
        let ask = |codes: &'static [u16], patience: u64| {
            asked.set(0);
            let asked = &asked;
            let until = Instant::now() + Duration::from_secs(patience);
            persist("delete it", until, move || {
                let answer = codes.get(asked.replace(asked.get() + 1));
                std::future::ready(answer.map_or(Ok(()), |code| Err(refused(*code))))
            })
        };
        for codes in [&[409][..], &[429], &[500], &[]] {
            assert!(matches!(ask(codes, 60).await, Ok(Some(()))), "{codes:?}");
            assert_eq!(asked.get(), codes.len() + 1);
        }
        assert!(matches!(ask(&[404], 60).await, Ok(None)));
        assert!(ask(&[400], 60).await.is_err());
        assert!(ask(&[503], 0).await.is_err());
        assert_eq!(asked.get(), 1);
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
