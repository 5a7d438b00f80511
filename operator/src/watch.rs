//! Watches, object by object: one that cannot be read does not hold up the others.

use std::fmt::Debug;

use cloche_crds::{Sandbox, SandboxNode};
use futures::{StreamExt as _, TryStreamExt as _};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Node;
use kube::core::DeserializeGuard;
use kube::runtime::watcher::{self, Event as Watched};
use kube::runtime::{WatchStreamExt as _, watcher as watch};
use kube::{Api, Client, Resource};
use serde::de::DeserializeOwned;
use tokio::sync::mpsc::Sender;

use crate::core::{Change, Event, Kind};

/// Follows everything that the decider goes by, until nobody takes events any more. A full channel holds up the watch, and the apiserver
/// with it; nothing is dropped.
pub async fn follow_all(client: &Client, namespace: &str, events: &Sender<Event>) {
    let sandboxes: Api<DeserializeGuard<Sandbox>> = Api::all(client.clone());
    let nodes: Api<DeserializeGuard<Node>> = Api::all(client.clone());
    let offers: Api<DeserializeGuard<SandboxNode>> = Api::all(client.clone());
    let leases: Api<DeserializeGuard<Lease>> = Api::namespaced(client.clone(), namespace);
    // The first that ends ends all: each ends only when nobody takes events any more.
    tokio::select! {
        () = follow(sandboxes, Kind::Sandbox, Event::Sandbox, events) => {}
        () = follow(nodes, Kind::Node, Event::Node, events) => {}
        () = follow(offers, Kind::Offer, Event::Offer, events) => {}
        () = follow(leases, Kind::Lease, Event::Lease, events) => {}
    }
}

async fn follow<K>(
    api: Api<DeserializeGuard<K>>,
    kind: Kind,
    event: fn(Change<K>) -> Event,
    events: &Sender<Event>,
) where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + 'static,
{
    let mut stream = watch(api, watcher::Config::default())
        .default_backoff()
        .into_stream()
        .boxed();
    let mut sees = true;
    loop {
        let next = match stream.try_next().await {
            Ok(Some(next)) => next,
            Ok(None) => return,
            Err(error) => {
                tracing::warn!(?kind, %error, "cannot watch; trying again");
                sees = false;
                if events.send(Event::Sight(kind, false)).await.is_err() {
                    return;
                }
                continue;
            }
        };
        // Before what is seen, so that ages begin before anything is judged by it.
        if !sees && events.send(Event::Sight(kind, true)).await.is_err() {
            return;
        }
        sees = true;
        if events.send(event(change(kind, next))).await.is_err() {
            return;
        }
    }
}

fn change<K: Resource>(kind: Kind, watched: Watched<DeserializeGuard<K>>) -> Change<K> {
    let read = |guard: DeserializeGuard<K>, of: fn(Box<K>) -> Change<K>| match guard.0 {
        Ok(object) => of(Box::new(object)),
        Err(unreadable) => {
            let metadata = unreadable.metadata;
            tracing::warn!(
                ?kind,
                namespace = metadata.namespace,
                name = metadata.name,
                error = unreadable.error,
                "cannot be read; left alone"
            );
            Change::Unreadable(Box::new(metadata))
        }
    };
    match watched {
        Watched::Apply(object) => read(object, Change::Applied),
        Watched::Delete(object) => read(object, Change::Gone),
        Watched::Init => Change::Listing,
        Watched::InitApply(object) => read(object, Change::Listed),
        Watched::InitDone => Change::Complete,
    }
}
