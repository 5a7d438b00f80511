//! Watches, object by object: one that cannot be read does not hold up the others.

use std::fmt::{Debug, Display};
use std::time::Duration;

use cloche_crds::SandboxNode;
use futures::{Stream, StreamExt as _};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Node;
use kube::core::DeserializeGuard;
use kube::runtime::watcher::{self, Event as Watched};
use kube::runtime::{WatchStreamExt as _, watcher as watch};
use kube::{Api, Client, Resource};
use serde::de::DeserializeOwned;
use tokio::sync::mpsc::Sender;

use crate::core::{Change, Event, Kind};
use crate::lenient::Lenient;

/// How long nothing may be heard after an error until the watch counts as one that works: a watch that goes on says so by no event, one
/// that fails again does so sooner. The client's longest pause before it tries again, a minute, and the 30 s that connecting may take.
const QUIET: Duration = Duration::from_secs(95);

/// Follows everything that the decider goes by, until nobody takes events any more. A full channel holds up the watch, and the apiserver
/// with it; nothing is dropped.
pub async fn follow_all(client: &Client, namespace: &str, events: &Sender<Event>) {
    let sandboxes: Api<DeserializeGuard<Lenient>> = Api::all(client.clone());
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
    let stream = watch(api, watcher::Config::default()).default_backoff();
    tell(stream, kind, event, events, QUIET).await;
}

/// Hands on what a watch tells, and whether it sees at all.
async fn tell<K, E>(
    stream: impl Stream<Item = Result<Watched<DeserializeGuard<K>>, E>>,
    kind: Kind,
    event: fn(Change<K>) -> Event,
    events: &Sender<Event>,
    quiet: Duration,
) where
    K: Resource,
    E: Display,
{
    let mut stream = std::pin::pin!(stream);
    let mut sees = true;
    // What begins to list has asked nothing yet, and tells when it has.
    let mut lists = true;
    loop {
        let next = if sees || lists {
            stream.next().await
        } else if let Ok(next) = tokio::time::timeout(quiet, stream.next()).await {
            next
        } else {
            sees = true;
            if events.send(Event::Sight(kind, true)).await.is_err() {
                return;
            }
            continue;
        };
        let next = match next {
            None => return,
            Some(Ok(next)) => next,
            Some(Err(error)) => {
                tracing::warn!(?kind, %error, "cannot watch; trying again");
                (sees, lists) = (false, false);
                if events.send(Event::Sight(kind, false)).await.is_err() {
                    return;
                }
                continue;
            }
        };
        lists = matches!(next, Watched::Init);
        // Before what is seen, so that ages begin before anything is judged by it.
        if !sees && !lists {
            sees = true;
            if events.send(Event::Sight(kind, true)).await.is_err() {
                return;
            }
        }
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
        Watched::Delete(DeserializeGuard(object)) => {
            let metadata = object.map_or_else(
                |unreadable| unreadable.metadata,
                |object| object.meta().clone(),
            );
            Change::Gone(Box::new(metadata))
        }
        Watched::Init => Change::Listing,
        Watched::InitApply(object) => read(object, Change::Listed),
        Watched::InitDone => Change::Complete,
    }
}

#[cfg(test)]
mod tests {
    use futures::stream;
    use tokio::sync::mpsc;

    use super::*;

    type Step = Result<Watched<DeserializeGuard<Node>>, &'static str>;

    fn node() -> DeserializeGuard<Node> {
        DeserializeGuard(Ok(Node::default()))
    }

    /// What a stream of these that goes on without a word tells, until nothing more is told for a long time.
    async fn told(steps: Vec<Step>) -> Vec<&'static str> {
        const SHORT: Duration = Duration::from_millis(20);
        let (events, mut taken) = mpsc::channel(16);
        let steps = stream::iter(steps).chain(stream::pending());
        let telling = tell(steps, Kind::Node, Event::Node, &events, SHORT);
        assert!(tokio::time::timeout(SHORT * 20, telling).await.is_err());
        drop(events);
        let mut words = Vec::new();
        while let Some(event) = taken.recv().await {
            words.push(match event {
                Event::Sight(Kind::Node, true) => "sees",
                Event::Sight(Kind::Node, false) => "is blind",
                Event::Node(Change::Listing) => "lists",
                Event::Node(Change::Listed(_)) => "names",
                Event::Node(Change::Complete) => "has listed",
                Event::Node(Change::Applied(_)) => "follows",
                other => panic!("{other:?}"),
            });
        }
        words
    }

    #[tokio::test]
    async fn a_watch_that_goes_on_without_a_word_sees() {
        let words = told(vec![Ok(Watched::Init), Ok(Watched::InitDone), Err("reset")]).await;
        assert_eq!(words, ["lists", "has listed", "is blind", "sees"]);
    }

    #[tokio::test]
    async fn whoever_begins_to_list_has_seen_nothing_yet() {
        let words = told(vec![
            Ok(Watched::Init),
            Err("refused"),
            Ok(Watched::Init),
            Err("refused"),
            Ok(Watched::Init),
        ])
        .await;
        assert_eq!(words, ["lists", "is blind", "lists", "is blind", "lists"]);
        let words = told(vec![
            Err("refused"),
            Ok(Watched::Init),
            Ok(Watched::InitApply(node())),
            Ok(Watched::InitDone),
            Ok(Watched::Apply(node())),
        ])
        .await;
        assert_eq!(
            words,
            [
                "is blind",
                "lists",
                "sees",
                "names",
                "has listed",
                "follows"
            ]
        );
    }
}
